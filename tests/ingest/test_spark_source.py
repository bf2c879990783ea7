"""Spark's data source reads each row of a live CDC log once, whatever happens between the runs of a stream.

Most messages and refusals are tested where a query is planned; one test shows that they reach the user.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StructType
from support.command_line import run
from support.standin.brought import DDL, FIRST_US, GENERATIONS, LOG, SWITCH_MS, SWITCH_US, with_secret_file
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.late import UNTOLD, Late
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.world import OBSERVER, time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds, Milliseconds, format_us, us_from_ms
from cdc_platform.delta import TaskRunner
from cdc_platform.errors import InputError, PlatformError, StateError
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import cluster_log, ingest_table, planner
from cdc_platform.ingest.planner import LEAST_RANGES
from cdc_platform.ingest.spark_source import ScyllaCdc
from cdc_platform.scylla import ScyllaCluster, registry
from cdc_platform.spark import LOG_VARIABLE
from cdc_platform.spark.session import get_work_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.cassandra

SWITCH = format_us(SWITCH_US)


@pytest.fixture
def cluster(standin: StandIn, tmp_path: Path) -> ScyllaCluster:
    """The stand-in, with its secret where Spark's workers find it."""
    return with_secret_file(standin, tmp_path)


def live_log(standin: StandIn, ttl: int = 0) -> LiveLog:
    """Create a log with rows on both sides of a switch."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    live = LiveLog(standin.world, defined(DDL.replace("'ttl': '0'", f"'ttl': '{ttl}'")), GENERATIONS).make()
    live.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 1])
    return live


@pytest.fixture
def log(standin: StandIn) -> LiveLog:
    """Rows on both sides of a switch, which live for ever."""
    return live_log(standin)


def options(cluster: ScyllaCluster) -> dict[str, str]:
    """Return the options that locate the log."""
    return {"home": str(cluster.home.parent.parent), "cluster": "prod", "table": "shop.t"}


def keys(frame: DataFrame) -> list[tuple[bytes, str, int]]:
    """Return the sorted keys of a frame's rows."""
    return keys_of(frame.toArrow())


class Stream:
    """A stream from the log into a Delta table; each run uses the trigger `availableNow`."""

    def __init__(self, spark: SparkSession, cluster: ScyllaCluster, folder: Path) -> None:
        spark.dataSource.register(ScyllaCdc)
        self.spark, self.where = spark, {**options(cluster), "confidence": "0"}
        self.checkpoint, self.sink = folder / "checkpoint", folder / "sink"

    def run(self, **more: str) -> int:
        """Read the available rows and return how many there were, or raise the query's error."""
        stream = self.spark.readStream.format("scylla_cdc").options(**self.where, **more).load()
        writer = stream.writeStream.format("delta").option("mergeSchema", "true")
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        try:
            running = query.start(str(self.sink))
            running.awaitTermination(120)
        except StreamingQueryException as error:
            # Spark waits only ten seconds for a Python process to start, however busy the machine is.
            if "failed to connect back" not in str(error):
                raise
            running = query.start(str(self.sink))
            running.awaitTermination(120)
        return sum(json.loads(progress.json)["numInputRows"] for progress in running.recentProgress)

    def rows(self) -> DataFrame:
        """Return the rows in the sink."""
        return self.spark.read.format("delta").load(str(self.sink))


@pytest.mark.spark
def test_batch_reads_rows_between_two_times(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, spark: SparkSession
) -> None:
    """The interval includes both times, and the columns are those of the lake's table."""
    # One scan covers both sides of a switch.
    spark.dataSource.register(ScyllaCdc)
    reader = spark.read.format("scylla_cdc").options(**options(cluster))
    whole = reader.load()
    assert whole.columns == log_table(log.schema, exact=True).schema.names
    assert keys(whole) == log.written_keys()
    standin.proxy.statements.clear()
    assert keys(reader.option("by", "ranges").load()) == log.written_keys()
    assert len([text for _, text in standin.proxy.statements if "token(" in text]) == LEAST_RANGES
    part = reader.option("from", SWITCH).option("until", SWITCH).load()
    assert part.count() == 1
    with pytest.raises(InputError, match="no option form"):
        ScyllaCdc({**options(cluster), "form": "x"}).schema()


@pytest.mark.spark
def test_restarted_stream_has_each_row_once(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, spark: SparkSession, tmp_path: Path
) -> None:
    """A switch and an altered table between two runs lose no row; the new column has its values."""
    stream = Stream(spark, cluster, tmp_path)
    assert stream.run(until=format_us(Microseconds(SWITCH_US + 30 * SECOND_US))) == 4
    assert keys(stream.rows()) == log.written_keys()
    third, world = Milliseconds(SWITCH_MS + 60_000), standin.world
    generation = description(time_uuid(third))
    log.generations = {**GENERATIONS, third: generation}
    world.generation(third, time_uuid(third), generation)
    log.write([SWITCH_US + 40 * SECOND_US])
    world.run("ALTER TABLE shop.t ADD w int")
    world.run(f'ALTER TABLE {LOG} ADD (w int, "cdc$deleted_w" boolean)')
    world.made(log.schema, FIRST_MS)
    world.schema_changed()
    log.schema = defined(DDL.replace("v int,", "v int, w int,"))
    log.write([us_from_ms(third) - 1, us_from_ms(third), us_from_ms(third) + 1, Clock().now_us()], w=[7, 8, 9, 10])
    assert stream.run() == 5
    assert keys(stream.rows()) == log.written_keys()
    assert sorted(row.w for row in stream.rows().select("w").collect() if row.w is not None) == [7, 8, 9, 10]
    assert stream.run() == 0


@pytest.mark.spark
@pytest.mark.grid("streams over generations that are published late", 1)
@pytest.mark.parametrize("ways", [("streams", "streams"), ("ranges", "ranges"), ("ranges", "streams")], ids="-".join)
@pytest.mark.parametrize("said", ["group", "nodes", "nobody", "tablets"])
def test_stream_has_each_row_of_a_generation_published_late(
    standin: StandIn, cluster: ScyllaCluster, spark: SparkSession, tmp_path: Path, said: str, ways: tuple[str, str]
) -> None:
    """A stream waits at the start of a generation that nodes know."""
    # It reads one that it has passed from its start, once.
    first_way, way = ways
    late = Late(standin, said)
    late.begin()
    log = LiveLog(standin.world, defined(DDL), late.generations).make()
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + HOUR_US])
    stream = Stream(spark, cluster, tmp_path)
    first = stream.run(by=first_way, until=format_us(Microseconds(SWITCH_US + HOUR_US // 2)))
    # A scan also returns the rows of streams that are not published yet.
    assert first == (3 if said in UNTOLD and first_way == "ranges" else 2)
    between = stream.run(by="streams")
    late.publish()
    log.write([Clock().now_us()])
    assert first + between + stream.run(by=way) == 5
    assert keys(stream.rows()) == log.written_keys()
    assert stream.run() == 0


def read_worker_output() -> str:
    """Return the output of Spark's workers; the platform's own session writes the JVM's output to a file."""
    return Path(os.environ.get(LOG_VARIABLE) or get_work_folder() / "spark.log").read_text(encoding="utf-8")


@pytest.mark.spark
def test_stream_refuses_a_gap_unless_told_to_report_it(
    standin: StandIn, cluster: ScyllaCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """A stream stopped for longer than rows live ends with one line and no rows; with `gaps = tell` it continues."""
    log = live_log(standin, ttl=3600)
    stream = Stream(spark, cluster, tmp_path)
    # The available rows begin with the generation whose rows may still live.
    assert stream.run(until=SWITCH) == 1
    with pytest.raises(StreamingQueryException) as refused:
        stream.run()
    first = str(refused.value).splitlines()[0]
    assert "rows of shop.t written from 2026-09-21T15:13:20.000001Z" in first
    assert "with the option gaps = tell" in first
    assert stream.rows().count() == 1
    before = len(read_worker_output())
    assert stream.run(gaps="tell") == 1
    assert keys(stream.rows()) == sorted(key for rows in log.written for key in keys_of(rows.slice(2)))
    assert "may be gone" in read_worker_output()[before:]
    assert stream.run(gaps="tell") == 0


@pytest.mark.spark
def test_batch_reports_expired_rows(standin: StandIn, cluster: ScyllaCluster, spark: SparkSession) -> None:
    """A batch from a time whose rows may have expired reads the others and logs a warning."""
    # With `gaps = refuse` the batch fails with one line.
    log = live_log(standin, ttl=3600)
    spark.dataSource.register(ScyllaCdc)
    reader = spark.read.format("scylla_cdc").options(**options(cluster)).option("from", format_us(FIRST_US))
    before = len(read_worker_output())
    assert keys(reader.load()) == log.written_keys()
    assert "rows of shop.t written from 2026-09-21T14:13:20.000Z" in read_worker_output()[before:]
    with pytest.raises(PySparkException) as refused:
        reader.option("gaps", "refuse").load().count()
    (line,) = [text for text in str(refused.value).splitlines() if "SQLSTATE" not in text]
    assert "may be gone" in line


def error_lines(refused: BaseException) -> list[str]:
    """Return the lines of an error without Spark's SQLSTATE line."""
    return [line for line in str(refused).splitlines() if line.strip() and not line.strip().startswith("SQLSTATE")]


@pytest.mark.spark
def test_secret_missing_on_workers_is_one_line(
    standin: StandIn, log: LiveLog, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret that is set at the query, but not at Spark's workers, is one line."""
    # This holds for the source and for an ingest by tasks.
    names = {"user_env": "CDC_TEST_HERE_ALONE", "password_env": "CDC_TEST_HERE_TOO"}
    alone = registry.add_cluster(open_home_location(tmp_path / "home"), "prod", standin.connection(**names))
    for name, value in zip(names.values(), OBSERVER, strict=True):
        monkeypatch.setenv(name, value)
    spark.dataSource.register(ScyllaCdc)
    with pytest.raises(PySparkException) as refused:
        spark.read.format("scylla_cdc").options(**options(alone)).load().count()
    (line,) = error_lines(refused.value)
    assert "environment variable CDC_TEST_HERE_ALONE is not set" in line
    with pytest.raises(PySparkException) as ended:
        Stream(spark, alone, tmp_path).run()
    assert error_lines(ended.value) == [line]
    monkeypatch.setattr(cluster_log, "TASKS_HERE", 0)
    monkeypatch.setattr(planner, "LOOKS_A_TASK", 40)
    with pytest.raises(PlatformError) as failed:
        ingest_table(alone, Clock(), "shop", "t", TaskRunner(lambda: spark, in_process=0), way="ranges")
    assert len(str(failed.value).splitlines()) == 1
    assert "CDC_TEST_HERE_ALONE" in str(failed.value)


@pytest.mark.spark
def test_no_secret_is_visible(cluster: ScyllaCluster, log: LiveLog, spark: SparkSession) -> None:
    """No setting, query plan, process's command line or worker output has the password."""
    spark.dataSource.register(ScyllaCdc)
    rows = spark.read.format("scylla_cdc").options(**options(cluster)).load()
    assert rows.count() == 4
    settings = [f"{name}={value}" for name, value in spark.sparkContext.getConf().getAll()]
    commands = list[str]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    plan = cast("Any", rows)._jdf.queryExecution().toString()
    assert "scylla_cdc" in plan
    assert any("java" in command for command in commands)
    assert [text for text in (*settings, *commands, plan, read_worker_output()) if OBSERVER[1] in text] == []


SCRIPT = """
import os, signal, sys
from cdc_platform.ingest.spark_source import ScyllaCdc
from cdc_platform.spark.session import get_spark_session

def die(rows, number):
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

home, checkpoint = sys.argv[1:]
spark = get_spark_session("killed")
spark.dataSource.register(ScyllaCdc)
where = {"home": home, "cluster": "prod", "table": "shop.t", "confidence": "0"}
stream = spark.readStream.format("scylla_cdc").options(**where).load()
writer = stream.writeStream.foreachBatch(die).option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start().awaitTermination(120)
"""


@pytest.mark.spark
@pytest.mark.long("a JVM of its own, which is killed")
def test_killed_stream_repeats_its_batch(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, spark: SparkSession, tmp_path: Path
) -> None:
    """Rows arrive once after a kill between offset and sink, and after a kill between sink and Spark's commit file."""
    stream = Stream(spark, cluster, tmp_path)
    command = [sys.executable, "-c", SCRIPT, stream.where["home"], str(stream.checkpoint)]
    killed = subprocess.run(command, capture_output=True, timeout=200)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode(errors="replace")[-3000:]
    assert (stream.checkpoint / "offsets" / "0").exists()
    assert not (stream.checkpoint / "commits" / "0").exists()
    until = json.loads((stream.checkpoint / "offsets" / "0").read_text(encoding="utf-8").splitlines()[-1])["until"]
    log.write([until, until + 1])
    assert stream.run() == 6
    assert keys(stream.rows()) == log.written_keys()
    # A process that is killed between the sink's commit and Spark's commit file leaves this state.
    for path in (stream.checkpoint / "commits").glob("*1*"):
        path.unlink()
    log.write([Clock().now_us()])
    assert stream.run() >= 1
    assert keys(stream.rows()) == log.written_keys()


def plan_tasks(cluster: ScyllaCluster, start: dict[str, int], until_us: Microseconds, **more: str) -> int:
    """Return how many tasks Spark's worker plans for a batch of a stream."""
    reader = ScyllaCdc({**options(cluster), "confidence": "0", **more}).streamReader(StructType())
    try:
        assert reader.latestOffset(start, reader.getDefaultReadLimit())["until"] > until_us
        return len(reader.partitions(start, {"until": until_us}))
    finally:
        reader.stop()


def assert_refused_or_reported(
    cluster: ScyllaCluster, caplog: pytest.LogCaptureFixture, says: str, after_us: int, until_us: Microseconds
) -> None:
    """Assert that a stream refuses a gap, reports it with `gaps = tell`, and does neither after the gap."""
    with pytest.raises(StateError, match=says) as refused:
        plan_tasks(cluster, {"until": after_us}, until_us)
    assert "gaps = tell" in str(refused.value)
    caplog.clear()
    assert plan_tasks(cluster, {"until": after_us}, until_us, gaps="tell") > 0
    assert [record.message for record in caplog.records if re.search(says, record.message)]
    caplog.clear()
    assert plan_tasks(cluster, {"until": after_us, "whole": until_us}, until_us) > 0
    assert plan_tasks(cluster, {"until": until_us}, Microseconds(until_us + 1)) > 0
    assert [
        record for record in caplog.records if record.levelno >= logging.WARNING and "may be gone" in record.message
    ] == []


def test_recreated_log_is_a_gap(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of the dropped log are lost; a new log without a predecessor is no gap."""
    first = Microseconds(SWITCH_US + HOUR_US)
    assert plan_tasks(cluster, {"until": FIRST_US - 1}, first) > 0
    for table in ("shop.t", LOG):
        standin.world.run(f"DROP TABLE {table}")
    standin.world.logged_table(log.schema, Milliseconds(SWITCH_MS + 5_400_000))
    assert_refused_or_reported(
        cluster, caplog, "recreated at 2026-09-21T16:43:20", first, Microseconds(first + HOUR_US)
    )


def test_skipped_generation_is_reported_and_no_gap(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Like official clients, a stream skips a generation without streams once a later one operates."""
    empty, last = Milliseconds(SWITCH_MS + 60_000), Milliseconds(SWITCH_MS + 120_000)
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=empty)
    standin.world.generation(last, time_uuid(last), description(time_uuid(last)))
    until = Microseconds(us_from_ms(last) + SECOND_US)
    assert plan_tasks(cluster, {"until": SWITCH_US}, until) > 0
    assert [
        record.message for record in caplog.records if "skips the generation of 2026-09-21T15:14:20" in record.message
    ]
    caplog.clear()
    assert plan_tasks(cluster, {"until": until}, Microseconds(until + 1)) > 0
    assert "skips" not in caplog.text


def test_cluster_history_names_the_spark_source(standin: StandIn, cluster: ScyllaCluster, log: LiveLog) -> None:
    """A change that the planning of a query observes first is recorded as observed by Spark."""
    plan_tasks(cluster, {"until": FIRST_US - 1}, SWITCH_US)
    standin.world.cdc_options("shop", "t", ttl="60", enabled="true")
    standin.world.schema_changed()
    plan_tasks(cluster, {"until": FIRST_US - 1}, SWITCH_US, gaps="tell")
    rows = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert {row["by"] for row in rows} == {"Spark scylla_cdc"}
    assert [row["what"] for row in rows if row["who"] == "table shop.t" and "TTL 60 s" in row["what"]]


def test_time_without_cdc_is_a_gap(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, caplog: pytest.LogCaptureFixture
) -> None:
    """If CDC was off between two observations, no log has the writes of that time."""
    start = Clock().now_us()
    for enabled in ("true", "false", "true"):
        standin.world.cdc_options("shop", "t", ttl="0", enabled=enabled)
        standin.world.schema_changed()
        plan_tasks(cluster, {"until": FIRST_US - 1}, SWITCH_US)
    assert_refused_or_reported(cluster, caplog, r"CDC of shop\.t was off from", start, Clock().now_us())


def test_task_fails_if_its_rows_may_have_expired(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Rows may expire while a batch's tasks wait, so each task checks the time at its end."""
    log = live_log(standin, ttl=3600)
    log.write([Clock().now_us()])
    reader = ScyllaCdc({**options(cluster), "confidence": "0"}).streamReader(StructType())
    reader.initialOffset()
    end = Clock().now_us()
    tasks = [partition.value for partition in reader.partitions({"until": end - 60 * SECOND_US}, {"until": end})]
    reader.stop()
    assert {task.alive_us for task in tasks} == {end - 60 * SECOND_US + HOUR_US}
    assert sum(batch.num_rows for task in tasks for batch in task.rows()) == 1
    late = [replace(task, alive_us=Clock().now_us() - 1) for task in tasks]
    with pytest.raises(StateError, match="and were read later"):
        list(chain.from_iterable(task.rows() for task in late))
