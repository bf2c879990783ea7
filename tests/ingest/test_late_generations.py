"""Generations and stream sets that clients can read long after nodes began to use them: no row of them is lost.

Nodes know a generation before it begins, and then the position waits at its start. Where nothing says so beforehand,
the streams are read from their own start once they can be read.
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
NEVER_AGAIN = ReadPolicy(second_pass_after_us=Microseconds(0))
LATER_US = Microseconds(NOW_US + HOUR_US)


def live_log(late: Late) -> LiveLog:
    """The log of `shop.t`, which is written to in the streams that nodes use."""
    late.begin()
    return LiveLog(late.world, defined(DDL), late.generations).make()


def claims(cluster: ScyllaCluster, log: LiveLog | LiveTable, since_us: int, until_us: int, now_us: int) -> bool:
    """Whether `verify-interval` says that everything between two times was read."""
    lake = lake_of(cluster)
    reader = consumers.find_consumer(lake, FROM_CLUSTER, "shop", "t")
    times = Microseconds(since_us), Microseconds(until_us)
    return all(
        each.holds for each in check_interval_read(lake, Clock(Microseconds(now_us)), log.schema, reader, *times)
    )


@pytest.mark.parametrize("said", TOLD)
def test_the_position_waits_for_a_generation_that_nodes_use_and_nobody_can_read(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, said: str
) -> None:
    """It stands just before the start and says so, with since when; published, every row comes once, none late."""
    late = Late(standin, said)
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    early = SWITCH_US - 60 * SECOND_US
    assert bring(cluster, workers, early, policy=NEVER_AGAIN).waiting_for is None
    told: list[str] = []
    done = bring(cluster, workers, told=told, policy=NEVER_AGAIN)
    assert (done.rows, done.position_us) == (1, SWITCH_US - 1)
    name = f"generation {format_us(SWITCH_US)} is committed but not published, since {format_us(Microseconds(early))}"
    assert done.waiting_for == f"shop.t waits at {format_us(Microseconds(SWITCH_US - 1))}: {name}"
    assert told == [done.waiting_for]
    assert claims(cluster, log, FIRST_US, SWITCH_US, NOW_US)
    assert not claims(cluster, log, FIRST_US, SWITCH_US + 1, NOW_US)
    late.publish()
    after = bring(cluster, workers, LATER_US, policy=NEVER_AGAIN)
    assert (after.rows, after.late_ever, after.waiting_for) == (2, 0, None)
    assert not any(window.catch_up for window in after.windows)
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)


@pytest.mark.parametrize("way", ["streams", "ranges"])
@pytest.mark.parametrize("said", UNTOLD)
def test_a_set_that_appears_behind_the_position_is_read_from_its_start(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, said: str, way: str
) -> None:
    """Every row comes once; between the look that finds it and the ingest that reads it nothing is proved."""
    late = Late(standin, said)
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    before = bring(cluster, workers, way=way, policy=NEVER_AGAIN)
    log.write([LATER_US - 60 * SECOND_US])
    late.publish()
    run_observation(cluster, Clock(LATER_US))
    assert not claims(cluster, log, FIRST_US, SWITCH_US + 1, LATER_US)
    assert claims(cluster, log, FIRST_US, SWITCH_US, LATER_US)
    after = bring(cluster, workers, LATER_US, way=way, policy=NEVER_AGAIN)
    assert before.position_us > SWITCH_US
    first = after.windows[0]
    assert (first.catch_up, first.set_us, first.after_us) == (True, SWITCH_US, SWITCH_US - 1)
    assert first.until_us == before.position_us
    assert not after.windows[1].catch_up
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)
    again = bring(cluster, workers, LATER_US + MINUTE_US, policy=NEVER_AGAIN)
    assert (again.rows, [window.catch_up for window in again.windows]) == (0, [False])


def test_a_generation_that_is_half_published_behind_the_position_leaves_nothing_proved(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """From its start on; what was read before stays proved, and all of it is once the rest of its streams is there."""
    late = Late(standin, "nobody")
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    bring(cluster, workers, policy=NEVER_AGAIN)
    made = GENERATIONS[SWITCH_MS]
    last, streams = made.entry(len(made) - 1), "scylla_distributed.cdc_streams_descriptions_v2"
    late.world.published(SWITCH_MS, made)
    late.world.delete(streams, "time = %s AND range_end = %s", SWITCH_MS, last.range_end)
    for _ in range(2):
        assert bring(cluster, workers, LATER_US, policy=NEVER_AGAIN).rows == 0
        assert claims(cluster, log, FIRST_US, SWITCH_US, LATER_US)
        assert not claims(cluster, log, FIRST_US, SWITCH_US + 1, LATER_US)
    rest = {stream.tobytes() for stream in last.streams}
    late.world.put(streams, time=SWITCH_MS, range_end=last.range_end, streams=rest)
    bring(cluster, workers, LATER_US, policy=NEVER_AGAIN)
    assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    assert claims(cluster, log, FIRST_US, NOW_US, LATER_US)


def test_readers_of_the_lake_get_the_rows_of_a_set_that_appears_behind_them(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """They wait until the log here has them, although they know the set by then; then they have each row once."""
    late = Late(standin, "nobody")
    log = live_log(late)
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 60 * SECOND_US])
    bring(cluster, workers)
    lake, clock = lake_of(cluster), Clock(LATER_US)

    def copied() -> list[tuple[bytes, str, int]]:
        consume(lake, clock, log.schema, "audit")
        return keys_of(lake.read(sink_table(log.schema, "audit")))

    brought = keys_of(lake.read(log_table(log.schema)))
    assert len(brought) < len(log.written_keys())
    assert copied() == brought
    late.publish()
    run_observation(cluster, clock)
    assert copied() == brought
    bring(cluster, workers, LATER_US)
    assert copied() == log.written_keys()
    assert copied() == log.written_keys()
    held = check_interval_read(
        lake, clock, log.schema, consumers.find_consumer(lake, "audit", "shop", "t"), FIRST_US, NOW_US
    )
    assert [each for each in held if not each.holds] == []


def test_a_log_that_an_earlier_release_read_is_read_once_more(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It noted nothing of sets: until they were read once more nothing is proved, and what it missed comes then."""
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


def test_rows_that_died_before_their_set_could_be_read_are_told_of(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """With the times between which they were written, once."""
    late = Late(standin, "nobody")
    late.begin()
    log = LiveLog(late.world, defined(DDL.replace("'ttl': '0'", "'ttl': '3600'")), GENERATIONS).make()
    log.write([SWITCH_US - MINUTE_US, SWITCH_US + MINUTE_US])
    bring(cluster, workers, SWITCH_US + 10 * MINUTE_US)
    late.publish()
    told: list[str] = []
    bring(cluster, workers, SWITCH_US + 65 * MINUTE_US, told)
    (line,) = (each for each in told if "could not be read before" in each)
    assert f"from {format_us(SWITCH_US)} to {format_us(Microseconds(SWITCH_US + 5 * MINUTE_US + 1))}" in line
    told.clear()
    bring(cluster, workers, SWITCH_US + 66 * MINUTE_US, told)
    assert told == []


@dataclass
class History:
    """One history of a table: when what is written, read and published, in which way; drawn by a seed."""

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
        """Let time pass, in which rows are written that nobody has read up to; then publish what is due, and read."""
        low, self.now_us = max(self.now_us, self.position_us), self.now_us + minutes * MINUTE_US
        for at in sorted({self.dice.randrange(low + 1, self.now_us) for _ in range(count)} - self.table.times):
            self.table.write(at)
        if not self.published and self.now_us >= SWITCH_US + self.lag_us:
            self.late.publish()
            self.published = True
        self.read()

    published: bool = False

    def read(self) -> None:
        """Ingest once, and hold that nothing is claimed that is not so."""
        options: dict[str, Any] = {
            "way": self.way,
            "policy": ReadPolicy(Microseconds(0), Microseconds(self.again_us), Microseconds(1)),
        }
        done = bring(self.cluster, self.workers, self.now_us, current=self.keeps, **options)
        self.position_us = done.position_us
        if self.late.said in UNTOLD and not self.published:
            return
        here = keys_of(lake_of(self.cluster).read(log_table(self.table.schema)))
        there = self._keys_by_time()
        for since, until in ((FIRST_US, SWITCH_US), (SWITCH_US, self.now_us), (FIRST_US, self.now_us)):
            if since < until and claims(self.cluster, self.table, since, until, self.now_us + HOUR_US):
                assert {key for at, key in there if since <= at < until} <= set(here)

    def _keys_by_time(self) -> list[tuple[int, tuple[bytes, str, int]]]:
        return [((uuid.UUID(key[1]).time - 0x01B21DD213814000) // 10, key) for key in self._there()]

    def _there(self) -> list[tuple[bytes, str, int]]:
        return keys_there(LiveLog(self.table.world, self.table.schema, self.table.generations))

    def end(self) -> None:
        """Hold that every row came once, and that the kept table is the cluster's."""
        assert self.published
        here = keys_of(lake_of(self.cluster).read(log_table(self.table.schema)))
        assert here == self._there()
        assert len(here) == self.table.logged
        assert claims(self.cluster, self.table, FIRST_US, self.position_us, self.now_us + HOUR_US)
        if self.keeps:
            assert in_lake(self.cluster, self.table)[0] == self.table.rows()


@pytest.mark.grid("generations that are published late", 3)
@pytest.mark.parametrize("history", range(HISTORIES))
@pytest.mark.parametrize("keeps", [False, True], ids=["log", "current"])
@pytest.mark.parametrize("said", [*TOLD, *UNTOLD])
def test_whenever_a_generation_is_published_every_row_comes_once(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, said: str, keeps: bool, history: int
) -> None:
    """From 0 s to 2 h late, by streams or ranges, with a second reading or without: log and kept table are whole."""
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
        left = (SWITCH_US + lag_us - drawn_history.now_us) // MINUTE_US + 1
        drawn_history.step(dice.randint(max(1, left // 3), left), 3)
    drawn_history.step(5, 2)
    drawn_history.end()


def with_first_format_only(world: World) -> None:
    """Both generations in the tables of the first format, as ScyllaDB 4.3 has them."""
    world.delete("scylla_distributed.cdc_generation_timestamps", "key = %s", "timestamps")
    for at, made in GENERATIONS.items():
        world.first_format(at, made)


def rewrite(world: World) -> None:
    """What a later version does with them, on every node."""
    for at, made in GENERATIONS.items():
        world.published(at, made)
    for node in range(world.nodes):
        world.put(f"node{node}.cdc_local", key="rewritten", streams_timestamp=SWITCH_MS)


@pytest.mark.parametrize("version", ["4.3", "4.4"])
def test_a_cluster_of_the_first_format_is_read_until_its_tables_are_rewritten(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, version: str
) -> None:
    """Its rows come by the first format's streams; after the upgrade the same log goes on, each row once."""
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
def test_a_cluster_of_which_nothing_can_be_read_is_refused_with_the_reason(
    standin: StandIn, cluster: ScyllaCluster, what: str
) -> None:
    """Exit code 1 and one line; no position is made up, and nothing of the log comes."""
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
        again = run("--home", cluster.home.parent.parent, "--clock", format_us(NOW_US), "ingest", "prod", "shop.t")
        assert again.exit_code == 0, again.stderr
        assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
