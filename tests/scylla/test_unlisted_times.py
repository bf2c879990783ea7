"""The home of a live cluster mirrors it: nothing is made up there, and where it was, no row is lost in silence."""

from __future__ import annotations

import pytest
from support.command_line import run
from support.next_lines import lines_of
from support.standin.brought import GENERATIONS, NOW_US, SWITCH_US, assert_each_once, bring, lake_of
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.live_log import LiveLog
from support.standin.world import time_uuid

from cdc_platform.clock import HOUR_US, Clock, Microseconds, Milliseconds, format_us, ms_from_us
from cdc_platform.delta import MIRROR_MARK_FILE, TaskRunner, WriteSource, write_as
from cdc_platform.errors import StateError
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import repair as repairing
from cdc_platform.lifecycle import run_join
from cdc_platform.scylla import MetadataSnapshot, ScyllaCluster, registry, run_observation
from cdc_platform.scylla.observe import PublishedTimes, assert_listed_by_cluster
from cdc_platform.scylla.registry import ClusterIdentity
from cdc_platform.tables import GENERATION_TIMESTAMPS, TABLES

LATER_US = Microseconds(NOW_US + 60_000_000)
LIST = "scylla_distributed.cdc_generation_timestamps"


def grown(standin: StandIn) -> None:
    """Let a fourth node have come in the place of the third, with no generation of it."""
    standin.world.cluster(nodes(4)[:2] + nodes(4)[3:])


def at(cluster: ScyllaCluster, us: int, *words: str) -> tuple[str, ...]:
    """The words on the cluster's own home, at a time (µs)."""
    return ("--home", str(cluster.home), "--clock", format_us(Microseconds(us)), *words)


def look(cluster: ScyllaCluster, us: int = LATER_US) -> None:
    """Observe as the next process would."""
    run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock(Microseconds(us))
    )


def make_up(cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """A generation that the cluster has not, as `repair --run` of earlier releases made it in such a home."""
    lake, clock = lake_of(cluster), Clock(LATER_US)
    with write_as(WriteSource.OBSERVED):
        event = repairing.queue_needed_repair(lake, clock, repairing.check_newest_generation(lake))
        assert event is not None
        run_join(
            workers, lake, clock, open_home_location(cluster.home).settings, event.generation_id, entry_point="a test"
        )


@pytest.mark.cassandra
def test_no_generation_is_made_in_a_mirror_and_the_cluster_is_named(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A repair is due: it is refused, what is said to do is done in the cluster, and then every row comes."""
    log.write([SWITCH_US - 1, SWITCH_US + 1])
    assert bring(cluster, workers).rows == 2
    grown(standin)
    look(cluster)
    before = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    refused = run(*at(cluster, LATER_US, "repair", "--run"))
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "repair: this home mirrors the live cluster prod" in refused.stderr
    assert refused.stderr.endswith("[mirror]\n")
    told = run(*at(cluster, LATER_US, "status", "--json"))
    due = next(each for each in told.json["alerts"] if each["code"] == "repair-due")
    again = f"cdc-platform --home {cluster.home.parents[1]} observe prod"
    assert due["advice"] == f"on a node of prod: nodetool checkAndRepairCdcStreams; then: {again}"
    assert not {"expiry-due", "no-tables"} & {each["code"] for each in told.json["alerts"]}
    dry = run(*at(cluster, LATER_US, "repair", "--dry-run"))
    assert dry.exit_code == 1
    assert lines_of(dry) == [f"nodetool checkAndRepairCdcStreams  # on a node of prod; then: {again}"]
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == before

    made_ms = ms_from_us(LATER_US)
    made = description(time_uuid(made_ms), nodes(4)[:2] + nodes(4)[3:])
    standin.world.generation(made_ms, time_uuid(made_ms), made)
    assert isinstance(log.generations, dict)
    after = LiveLog(log.world, log.schema, {**GENERATIONS, made_ms: made}, log.written)
    after.write([LATER_US + 1, LATER_US + HOUR_US], p=[7, 8])
    assert bring(cluster, workers, NOW_US + 3 * HOUR_US).rows == 2
    assert_each_once(cluster, after)


@pytest.mark.cassandra
def test_a_home_in_which_a_generation_was_made_loses_no_row(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """`ingest` reads nothing and moves nothing, whether a glance shows a change or not; `renew` mends it."""
    log.write([SWITCH_US - 1, SWITCH_US + 1])
    assert bring(cluster, workers).rows == 2
    grown(standin)
    look(cluster)
    make_up(cluster, workers)
    log.write([LATER_US + 1, LATER_US + HOUR_US], p=[7, 8])
    said = r"the home of prod publishes generation .*which the cluster does not list.*cluster replace prod"
    versions = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    for changed in (False, True):
        with pytest.raises(StateError, match=said):
            bring(cluster, workers, NOW_US + 3 * HOUR_US)
        with pytest.raises(StateError, match=said):
            look(cluster, NOW_US + 3 * HOUR_US)
        if not changed:
            standin.world.schema_changed()
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == versions

    home = cluster.home.parent.parent
    assert run("--home", home, "cluster", "replace", "prod").exit_code == 0
    assert bring(cluster, workers, NOW_US + 3 * HOUR_US).rows == 4
    assert_each_once(cluster, log)


@pytest.mark.cassandra
def test_what_was_made_before_the_first_look_is_moved_aside_too(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A home that was never observed and is not empty: `renew` moves it, and what is observed then is the cluster's."""
    look(cluster)
    (cluster.home / "identity.json").unlink()
    standin.world.delete(LIST, "key = 'timestamps' AND time = %s", FIRST_MS)
    other_ms = Milliseconds(FIRST_MS + 1)
    standin.world.generation(other_ms, time_uuid(other_ms), description(time_uuid(other_ms)))
    with pytest.raises(StateError, match="does not list"):
        look(cluster)
    home = cluster.home.parent.parent
    aside = run("--home", home, "cluster", "replace", "prod", "--json").json["previous_home"]
    assert aside is not None
    look(cluster)
    assert lake_of(cluster).read(GENERATION_TIMESTAMPS).num_rows == 1
    assert run("--home", aside, "expire").stderr.endswith("[mirror]\n")


@pytest.mark.cassandra
def test_a_generation_that_has_expired_may_go(standin: StandIn, cluster: ScyllaCluster, log: LiveLog) -> None:
    """The cluster says when it expired; from then on it may take it out of its list, and not before."""
    later_ms = Milliseconds(FIRST_MS + 2 * 3_600_000)
    standin.world.put(LIST, key="timestamps", time=FIRST_MS, expired=later_ms)
    look(cluster)
    standin.world.delete(LIST, "key = 'timestamps' AND time = %s", FIRST_MS)
    with pytest.raises(StateError, match="publishes generation 2026"):
        look(cluster, (later_ms - 1) * 1000)
    look(cluster, later_ms * 1000)


def test_stream_sets_that_were_made_up_are_found() -> None:
    """Between and behind the cluster's; those before its first may have been collected there."""
    table, other = ("shop", "orders"), ("shop", "carts")
    seen = MetadataSnapshot(
        ClusterIdentity(cluster_name="p", host_ids=()), "", (), {table: (Milliseconds(20), Milliseconds(40))}
    )
    here = [(table, Milliseconds(ms)) for ms in (10, 20, 40)]
    # A table that has none there was dropped: its sets go with the look that finds that.
    assert_listed_by_cluster("prod", PublishedTimes((), (*here, (other, Milliseconds(30)))), seen)
    for ms in (30, 50):
        with pytest.raises(StateError, match=r"stream set .* of shop\.orders"):
            assert_listed_by_cluster("prod", PublishedTimes((), (*here, (table, Milliseconds(ms)))), seen)


@pytest.mark.cassandra
def test_homes_of_before_are_mirrors_as_well(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Without a mark it is known by what was seen or by how it is reached; what is moved aside stays one."""
    look(cluster)
    (cluster.home / MIRROR_MARK_FILE).unlink()
    for gone in ("identity.json", "cluster.json"):
        kept = (cluster.home / gone).read_bytes()
        (cluster.home / gone).unlink()
        refused = run("--home", cluster.home, "tables", "drop", "shop.orders")
        assert refused.stderr.endswith("[mirror]\n")
        (cluster.home / gone).write_bytes(kept)
    home = cluster.home.parent.parent
    aside = run("--home", home, "cluster", "replace", "prod", "--json").json["previous_home"]
    assert "mirrors the live cluster prod," in run("--home", aside, "tables", "drop", "shop.orders").stderr
