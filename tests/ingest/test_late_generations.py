"""An ingest loses no row of a generation or stream set that is published long after nodes began to use it.

Nodes know a generation before it begins, and then the position waits at its start. If no source announces it, the
streams are read from their own start once they are readable.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from support.command_line import run
from support.drawing import SEED
from support.standin.brought import FIRST_US, GENERATIONS, NOW_US, SWITCH_MS, SWITCH_US, bring, keys_there, lake_of
from support.standin.cluster import FIRST_MS, StandIn
from support.standin.kept_table import in_lake
from support.standin.late import TOLD, UNTOLD, Late
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.live_table import HISTORIES, LiveTable, drawn
from support.standin.versions import VERSIONS
from support.standin.world import World

from cdc_platform.cdclog import FROM_CLUSTER, check_interval_read, log_table
from cdc_platform.cdclog.consumer import reader
from cdc_platform.cdclog.consumer.progress import StreamProgress
from cdc_platform.cdclog.consumer.reader import consume, sink_table
from cdc_platform.clock import HOUR_US, MINUTE_US, SECOND_US, Clock, Microseconds, format_us
from cdc_platform.delta import TaskRunner
from cdc_platform.ingest import ReadPolicy
from cdc_platform.metastore import consumers
from cdc_platform.scylla import ScyllaCluster, run_observation

pytestmark = pytest.mark.cassandra

DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
NO_SECOND_PASS = ReadPolicy(second_pass_after_us=Microseconds(0))
LATER_US = Microseconds(NOW_US + HOUR_US)


def live_log(late: Late) -> LiveLog:
    """Create the log of `shop.t`; its rows are in the streams that nodes use."""
    late.begin()
    return LiveLog(late.world, defined(DDL), late.generations).make()


def claims(cluster: ScyllaCluster, log: LiveLog | LiveTable, since_us: int, until_us: int, now_us: int) -> bool:
    """Return True if `verify-interval` proves that everything between two times (µs) was read."""
    lake = lake_of(cluster)
    reader = consumers.find_consumer(lake, FROM_CLUSTER, "shop", "t")
    times = Microseconds(since_us), Microseconds(until_us)
    return all(
        result.holds for result in check_interval_read(lake, Clock(Microseconds(now_us)), log.schema, reader, *times)
    )


@pytest.mark.parametrize("said", TOLD)
def test_position_waits_for_a_generation_that_is_not_published(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, said: str
) -> None:
    """The position waits just before the start, and a message says since when."""
    # After publication each row arrives once, on time.
    late = Late(standin, said)
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    early = SWITCH_US - 60 * SECOND_US
    assert bring(cluster, workers, early, policy=NO_SECOND_PASS).waiting_for is None
    messages: list[str] = []
    done = bring(cluster, workers, told=messages, policy=NO_SECOND_PASS)
    assert (done.rows, done.position_us) == (1, SWITCH_US - 1)
    name = f"generation {format_us(SWITCH_US)} is committed but not published, since {format_us(Microseconds(early))}"
    assert done.waiting_for == f"shop.t waits at {format_us(Microseconds(SWITCH_US - 1))}: {name}"
    assert messages == [done.waiting_for]
    assert claims(cluster, log, FIRST_US, SWITCH_US, NOW_US)
    assert not claims(cluster, log, FIRST_US, SWITCH_US + 1, NOW_US)
    late.publish()
    after = bring(cluster, workers, LATER_US, policy=NO_SECOND_PASS)
    assert (after.rows, after.late_ever, after.waiting_for) == (2, 0, None)
    assert not any(window.catch_up for window in after.windows)
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)


@pytest.mark.parametrize("way", ["streams", "ranges"])
@pytest.mark.parametrize("said", UNTOLD)
def test_set_published_behind_the_position_is_read_from_its_start(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, said: str, way: str
) -> None:
    """Each row arrives once."""
    # Between the observation that finds the set and the ingest that reads it, `verify-interval` proves nothing.
    late = Late(standin, said)
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    before = bring(cluster, workers, way=way, policy=NO_SECOND_PASS)
    log.write([LATER_US - 60 * SECOND_US])
    late.publish()
    run_observation(cluster, Clock(LATER_US))
    assert not claims(cluster, log, FIRST_US, SWITCH_US + 1, LATER_US)
    assert claims(cluster, log, FIRST_US, SWITCH_US, LATER_US)
    after = bring(cluster, workers, LATER_US, way=way, policy=NO_SECOND_PASS)
    assert before.position_us > SWITCH_US
    first = after.windows[0]
    assert (first.catch_up, first.set_us, first.after_us) == (True, SWITCH_US, SWITCH_US - 1)
    assert first.until_us == before.position_us
    assert not after.windows[1].catch_up
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)
    repeated = bring(cluster, workers, LATER_US + MINUTE_US, policy=NO_SECOND_PASS)
    assert (repeated.rows, [window.catch_up for window in repeated.windows]) == (0, [False])


def test_half_published_generation_behind_the_position_is_not_proved(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """Nothing after its start is proved until the rest of its streams is published; earlier intervals stay proved."""
    late = Late(standin, "nobody")
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    bring(cluster, workers, policy=NO_SECOND_PASS)
    generation = GENERATIONS[SWITCH_MS]
    last, streams = generation.entry(len(generation) - 1), "scylla_distributed.cdc_streams_descriptions_v2"
    late.world.published(SWITCH_MS, generation)
    late.world.delete(streams, "time = %s AND range_end = %s", SWITCH_MS, last.range_end)
    for _ in range(2):
        assert bring(cluster, workers, LATER_US, policy=NO_SECOND_PASS).rows == 0
        assert claims(cluster, log, FIRST_US, SWITCH_US, LATER_US)
        assert not claims(cluster, log, FIRST_US, SWITCH_US + 1, LATER_US)
    rest = {stream.tobytes() for stream in last.streams}
    late.world.put(streams, time=SWITCH_MS, range_end=last.range_end, streams=rest)
    bring(cluster, workers, LATER_US, policy=NO_SECOND_PASS)
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)


def test_consumers_read_the_rows_of_a_set_published_behind_them(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """A consumer that knows the set waits until the lake's log has its rows, and then reads each of them once."""
    late = Late(standin, "nobody")
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    bring(cluster, workers)
    lake, clock = lake_of(cluster), Clock(LATER_US)

    def copied() -> list[tuple[bytes, str, int]]:
        consume(lake, clock, log.schema, "audit")
        return keys_of(lake.read(sink_table(log.schema, "audit")))

    ingested = keys_of(lake.read(log_table(log.schema)))
    assert len(ingested) < len(log.written_keys())
    assert copied() == ingested
    late.publish()
    run_observation(cluster, clock)
    assert copied() == ingested
    bring(cluster, workers, LATER_US)
    assert copied() == log.written_keys()
    assert copied() == log.written_keys()
    results = check_interval_read(
        lake, clock, log.schema, consumers.find_consumer(lake, "audit", "shop", "t"), FIRST_US, NOW_US
    )
    assert [result for result in results if not result.holds] == []


def test_log_ingested_by_an_earlier_release_is_read_again(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier release recorded no sets."""
    # Nothing is proved until they are reread, which also adds the rows that it missed.
    late = Late(standin, "nobody")
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    with monkeypatch.context() as earlier:
        earlier.setattr(StreamProgress, "marks", lambda *_: {})
        earlier.setattr(reader, "iter_unread_windows", lambda *_: iter(()))
        bring(cluster, workers)
    late.publish()
    run_observation(cluster, Clock(LATER_US))
    assert not claims(cluster, log, FIRST_US, SWITCH_US, LATER_US)
    after = bring(cluster, workers, LATER_US)
    assert [window.set_us for window in after.windows if window.catch_up] == [FIRST_US, SWITCH_US]
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)
    assert not any(window.catch_up for window in bring(cluster, workers, LATER_US + MINUTE_US).windows)


def test_rows_that_expired_before_publication_are_reported_once(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """The message has the times between which the rows were written."""
    late = Late(standin, "nobody")
    late.begin()
    log = LiveLog(late.world, defined(DDL.replace("'ttl': '0'", "'ttl': '3600'")), GENERATIONS).make()
    log.write([SWITCH_US - MINUTE_US, SWITCH_US + MINUTE_US])
    bring(cluster, workers, SWITCH_US + 10 * MINUTE_US)
    late.publish()
    messages: list[str] = []
    bring(cluster, workers, SWITCH_US + 65 * MINUTE_US, messages)
    (line,) = (message for message in messages if "could not be read before" in message)
    assert f"from {format_us(SWITCH_US)} to {format_us(Microseconds(SWITCH_US + 5 * MINUTE_US + 1))}" in line
    messages.clear()
    bring(cluster, workers, SWITCH_US + 66 * MINUTE_US, messages)
    assert messages == []


@dataclass
class History:
    """A history of one table, drawn from a seed: when rows are written, read and published, and how they are read."""

    late: Late
    dice: random.Random
    lag_us: int
    way: str | None
    again_us: int
    keeps: bool
    table: LiveTable
    cluster: ScyllaCluster
    workers: TaskRunner
    now_us: int = FIRST_US
    position_us: int = 0

    def step(self, minutes: int, count: int) -> None:
        """Advance the clock, write rows behind the position, publish if it is due, and ingest."""
        low, self.now_us = max(self.now_us, self.position_us), self.now_us + minutes * MINUTE_US
        for at in sorted({self.dice.randrange(low + 1, self.now_us) for _ in range(count)} - self.table.times):
            self.table.write(at)
        if not self.published and self.now_us >= SWITCH_US + self.lag_us:
            self.late.publish()
            self.published = True
        self.read()

    published: bool = False

    def read(self) -> None:
        """Ingest once, and assert that no interval with missing rows is proved."""
        options: dict[str, Any] = {
            "way": self.way,
            "policy": ReadPolicy(Microseconds(0), Microseconds(self.again_us), Microseconds(1)),
        }
        done = bring(self.cluster, self.workers, self.now_us, current=self.keeps, **options)
        self.position_us = done.position_us
        if self.late.said in UNTOLD and not self.published:
            return
        stored = keys_of(lake_of(self.cluster).read(log_table(self.table.schema)))
        expected = self._keys_by_time()
        for since, until in ((FIRST_US, SWITCH_US), (SWITCH_US, self.now_us), (FIRST_US, self.now_us)):
            if since < until and claims(self.cluster, self.table, since, until, self.now_us + HOUR_US):
                assert {key for at, key in expected if since <= at < until} <= set(stored)

    def _keys_by_time(self) -> list[tuple[int, tuple[bytes, str, int]]]:
        return [((uuid.UUID(key[1]).time - 0x01B21DD213814000) // 10, key) for key in self._there()]

    def _there(self) -> list[tuple[bytes, str, int]]:
        return keys_there(LiveLog(self.table.world, self.table.schema, self.table.generations))

    def end(self) -> None:
        """Assert that each row arrived once, and that the replica equals the cluster's table."""
        assert self.published
        stored = keys_of(lake_of(self.cluster).read(log_table(self.table.schema)))
        assert stored == self._there()
        assert len(stored) == self.table.logged
        assert claims(self.cluster, self.table, FIRST_US, self.position_us, self.now_us + HOUR_US)
        if self.keeps:
            assert in_lake(self.cluster, self.table)[0] == self.table.rows()


@pytest.mark.grid("generations that are published late", 3)
@pytest.mark.parametrize("history", range(HISTORIES))
@pytest.mark.parametrize("keeps", [False, True], ids=["log", "current"])
@pytest.mark.parametrize("said", [*TOLD, *UNTOLD])
def test_each_row_is_ingested_once_whenever_its_generation_is_published(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, said: str, keeps: bool, history: int
) -> None:
    """Log and replica are complete after a publication that is 0 s to 2 h late."""
    # Rows are read by streams or by ranges, with a second pass or without.
    dice = random.Random(f"{SEED} {said} {keeps} {history}")
    late = Late(standin, said)
    late.begin()
    schema = drawn(dice)
    table = LiveTable(standin.world, schema, late.generations, dice).make()
    standin.proxy.collections = {column.name for column in schema.columns if column.type.multicell}
    lag_us = dice.choice((0, dice.randrange(120), dice.randrange(7_200), 7_200)) * SECOND_US
    way, again_us = dice.choice((None, "streams", "ranges")), dice.choice((0, 0, 600 * SECOND_US))
    drawn_history = History(late, dice, lag_us, way, again_us, keeps, table, cluster, workers)
    drawn_history.step(dice.randrange(1, 55), 4)
    while drawn_history.now_us < SWITCH_US + lag_us:
        remaining = (SWITCH_US + lag_us - drawn_history.now_us) // MINUTE_US + 1
        drawn_history.step(dice.randint(max(1, remaining // 3), remaining), 3)
    drawn_history.step(5, 2)
    drawn_history.end()


def with_first_format_only(world: World) -> None:
    """Put both generations in the tables of the first format, as ScyllaDB 4.3 does."""
    world.delete("scylla_distributed.cdc_generation_timestamps", "key = %s", "timestamps")
    for at, generation in GENERATIONS.items():
        world.first_format(at, generation)


def rewrite(world: World) -> None:
    """Rewrite the generations in the newer tables, as a later version does on every node."""
    for at, generation in GENERATIONS.items():
        world.published(at, generation)
    for node in range(world.nodes):
        world.put(f"node{node}.cdc_local", key="rewritten", streams_timestamp=SWITCH_MS)


@pytest.mark.parametrize("version", ["4.3", "4.4"])
def test_first_format_is_read_until_the_tables_are_rewritten(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, version: str
) -> None:
    """The first format's streams give the rows; after the upgrade the same log continues, each row once."""
    standin.proxy.version = VERSIONS[version]
    with_first_format_only(standin.world)
    log = LiveLog(standin.world, defined(DDL), GENERATIONS).make()
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US + 1])
    done = bring(cluster, workers)
    assert (done.rows, done.waiting_for) == (3, None)
    assert claims(cluster, log, FIRST_US, SWITCH_US + 1, NOW_US)
    standin.proxy.version = VERSIONS["4.4"]
    rewrite(standin.world)
    log.write([NOW_US + 1])
    after = bring(cluster, workers, LATER_US)
    assert (after.rows, [window.catch_up for window in after.windows]) == (1, [False])
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()


@pytest.mark.parametrize("what", ["nothing is listed", "the first is not published"])
def test_cluster_without_readable_generations_is_refused(standin: StandIn, cluster: ScyllaCluster, what: str) -> None:
    """The command exits with code 1 and one line that has the reason; it registers no position and copies no rows."""
    world = standin.world
    world.delete("scylla_distributed.cdc_generation_timestamps", "key = %s", "timestamps")
    world.delete("scylla_distributed.cdc_streams_descriptions_v2", "time = %s", FIRST_MS)
    if what == "nothing is listed":
        world.run("UPDATE scylla.topology SET committed_cdc_generations = {} WHERE key = 'topology'")
        for node in range(world.nodes):
            world.delete(f"node{node}.cdc_local", "key = %s", "cdc_local")
    log = LiveLog(world, defined(DDL), {FIRST_MS: GENERATIONS[FIRST_MS]}).make()
    log.write([FIRST_US + 1])
    answer = run("--home", cluster.home.parent.parent, "--clock", format_us(NOW_US), "ingest", "prod", "shop.t")
    assert answer.exit_code == 1
    (line,) = answer.stderr.splitlines()
    reason = "no generation with streams" if what == "nothing is listed" else "is committed but not published"
    assert "no generation of prod can be read for shop.t" in line
    assert reason in line
    assert not lake_of(cluster).exists(log_table(log.schema))
    assert consumers.read_consumers(lake_of(cluster)) == []
    if what == "the first is not published":
        world.published(FIRST_MS, GENERATIONS[FIRST_MS])
        repeated = run("--home", cluster.home.parent.parent, "--clock", format_us(NOW_US), "ingest", "prod", "shop.t")
        assert repeated.exit_code == 0, repeated.stderr
        assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
