// Reads the CDC logs of tables with ScyllaDB's own library and prints each change: generation, stream, time, place in its
// batch. Ends when as many came as are expected and a few seconds brought no more.
//   java -cp 'JARS/*' ReadLogs.java HOST PORT USER PASSWORD CHANGES KEYSPACE.TABLE

import com.scylladb.cdc.lib.CDCConsumer;
import com.scylladb.cdc.model.worker.RawChange;
import com.scylladb.cdc.model.worker.Task;
import java.util.HexFormat;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;

public class ReadLogs {
    public static void main(String[] words) throws Exception {
        long expected = Long.parseLong(words[4]);
        AtomicLong seen = new AtomicLong(), last = new AtomicLong(System.currentTimeMillis());
        String[] table = words[5].split("\\.");
        CDCConsumer consumer = CDCConsumer.builder()
            .addContactPoint(words[0], Integer.parseInt(words[1]))
            .withCredentials(words[2], words[3])
            .addTable(table[0], table[1])
            .withWorkersCount(1)
            .withQueryTimeWindowSizeMs(300_000)
            .withConfidenceWindowSizeMs(1_000)
            .withSleepBeforeFirstGenerationMs(200)
            .withSleepBeforeGenerationDoneMs(200)
            .withTaskAndRawChangeConsumer((Task task, RawChange change) -> {
                System.out.println("change " + task.id.getGenerationId().getGenerationStart().toDate().getTime() + " "
                    + HexFormat.of().formatHex(bytes(change)) + " " + change.getId().getChangeTime().getUUID() + " "
                    + change.getBatchSequenceNumber());
                seen.incrementAndGet();
                last.set(System.currentTimeMillis());
                return CompletableFuture.completedFuture(null);
            })
            .build();
        consumer.start();
        long until = System.currentTimeMillis() + 60_000;
        while (System.currentTimeMillis() < until
            && (seen.get() < expected || System.currentTimeMillis() < last.get() + 2_000)) {
            Thread.sleep(50);
        }
        System.out.println("end");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static byte[] bytes(RawChange change) {
        java.nio.ByteBuffer given = change.getId().getStreamId().getValue().duplicate();
        byte[] found = new byte[given.remaining()];
        given.get(found);
        return found;
    }
}
