"""The home of a live cluster mirrors it: no generation is created there; if one was, no row is lost silently."""

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


def replace_third_node(standin: StandIn) -> None:
    """Replace the third node by a fourth, without a new generation."""
    standin.world.cluster(nodes(4)[:2] + nodes(4)[3:])


def at_time(cluster: ScyllaCluster, us: int, *words: str) -> tuple[str, ...]:
    """Return arguments that run a command on the cluster's own home at a time (µs)."""
    return ("--home", str(cluster.home), "--clock", format_us(Microseconds(us)), *words)


def observe(cluster: ScyllaCluster, us: int = LATER_US) -> None:
    """Observe the cluster as a new process does."""
    run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock(Microseconds(us))
    )


def create_unlisted_generation(cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """Create a generation that the cluster does not have, as `repair --run` of earlier releases did in such a home."""
    lake, clock = lake_of(cluster), Clock(LATER_US)
    with write_as(WriteSource.OBSERVED):
        event = repairing.queue_needed_repair(lake, clock, repairing.check_newest_generation(lake))
        assert event is not None
        run_join(
            workers, lake, clock, open_home_location(cluster.home).settings, event.generation_id, entry_point="a test"
        )


@pytest.mark.cassandra
def test_repair_in_a_mirror_is_refused(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The message says what to run in the cluster; after that each row arrives once."""
    log.write([SWITCH_US - 1, SWITCH_US + 1])
    assert bring(cluster, workers).rows == 2
    replace_third_node(standin)
    observe(cluster)
    before = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    refused = run(*at_time(cluster, LATER_US, "repair", "--run"))
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "repair: this home mirrors the live cluster prod" in refused.stderr
    assert refused.stderr.endswith("[mirror]\n")
    status = run(*at_time(cluster, LATER_US, "status", "--json"))
    alert_due = next(alert for alert in status.json["alerts"] if alert["code"] == "repair-due")
    observe_command = f"cdc-platform --home {cluster.home.parents[1]} observe prod"
    assert alert_due["advice"] == f"on a node of prod: nodetool checkAndRepairCdcStreams; then: {observe_command}"
    assert not {"expiry-due", "no-tables"} & {alert["code"] for alert in status.json["alerts"]}
    dry = run(*at_time(cluster, LATER_US, "repair", "--dry-run"))
    assert dry.exit_code == 1
    assert lines_of(dry) == [f"nodetool checkAndRepairCdcStreams  # on a node of prod; then: {observe_command}"]
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == before

    created_ms = ms_from_us(LATER_US)
    generation = description(time_uuid(created_ms), nodes(4)[:2] + nodes(4)[3:])
    standin.world.generation(created_ms, time_uuid(created_ms), generation)
    assert isinstance(log.generations, dict)
    after = LiveLog(log.world, log.schema, {**GENERATIONS, created_ms: generation}, log.written)
    after.write([LATER_US + 1, LATER_US + HOUR_US], p=[7, 8])
    assert bring(cluster, workers, NOW_US + 3 * HOUR_US).rows == 2
    assert_each_once(cluster, after)


@pytest.mark.cassandra
def test_home_with_an_unlisted_generation_loses_no_row(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """`ingest` reads no row and moves no position, whether or not the metadata changed."""
    # `cluster replace` repairs the home.
    log.write([SWITCH_US - 1, SWITCH_US + 1])
    assert bring(cluster, workers).rows == 2
    replace_third_node(standin)
    observe(cluster)
    create_unlisted_generation(cluster, workers)
    log.write([LATER_US + 1, LATER_US + HOUR_US], p=[7, 8])
    message = r"the home of prod publishes generation .*which the cluster does not list.*cluster replace prod"
    versions = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    for changed in (False, True):
        with pytest.raises(StateError, match=message):
            bring(cluster, workers, NOW_US + 3 * HOUR_US)
        with pytest.raises(StateError, match=message):
            observe(cluster, NOW_US + 3 * HOUR_US)
        if not changed:
            standin.world.schema_changed()
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == versions

    home = cluster.home.parent.parent
    assert run("--home", home, "cluster", "replace", "prod").exit_code == 0
    assert bring(cluster, workers, NOW_US + 3 * HOUR_US).rows == 4
    assert_each_once(cluster, log)


@pytest.mark.cassandra
def test_unlisted_generation_before_the_first_observation_is_moved_too(
    standin: StandIn, cluster: ScyllaCluster
) -> None:
    """`cluster replace` moves a home that was never observed but is not empty; the new home equals the cluster."""
    observe(cluster)
    (cluster.home / "identity.json").unlink()
    standin.world.delete(LIST, "key = 'timestamps' AND time = %s", FIRST_MS)
    other_ms = Milliseconds(FIRST_MS + 1)
    standin.world.generation(other_ms, time_uuid(other_ms), description(time_uuid(other_ms)))
    with pytest.raises(StateError, match="does not list"):
        observe(cluster)
    home = cluster.home.parent.parent
    previous_home = run("--home", home, "cluster", "replace", "prod", "--json").json["previous_home"]
    assert previous_home is not None
    observe(cluster)
    assert lake_of(cluster).read(GENERATION_TIMESTAMPS).num_rows == 1
    assert run("--home", previous_home, "expire").stderr.endswith("[mirror]\n")


@pytest.mark.cassandra
def test_cluster_may_remove_an_expired_generation(standin: StandIn, cluster: ScyllaCluster, log: LiveLog) -> None:
    """The cluster reports the time of expiry, and may remove the generation from its list only from then on."""
    later_ms = Milliseconds(FIRST_MS + 2 * 3_600_000)
    standin.world.put(LIST, key="timestamps", time=FIRST_MS, expired=later_ms)
    observe(cluster)
    standin.world.delete(LIST, "key = 'timestamps' AND time = %s", FIRST_MS)
    with pytest.raises(StateError, match="publishes generation 2026"):
        observe(cluster, (later_ms - 1) * 1000)
    observe(cluster, later_ms * 1000)


def test_unlisted_stream_sets_are_found() -> None:
    """Sets between the cluster's or after its last are unlisted; those before its first may have been collected."""
    table, other = ("shop", "orders"), ("shop", "carts")
    snapshot = MetadataSnapshot(
        ClusterIdentity(cluster_name="p", host_ids=()), "", (), {table: (Milliseconds(20), Milliseconds(40))}
    )
    stored = [(table, Milliseconds(ms)) for ms in (10, 20, 40)]
    # The other table has no sets in the cluster because it was dropped; the next observation removes its sets.
    assert_listed_by_cluster("prod", PublishedTimes((), (*stored, (other, Milliseconds(30)))), snapshot)
    for ms in (30, 50):
        with pytest.raises(StateError, match=r"stream set .* of shop\.orders"):
            assert_listed_by_cluster("prod", PublishedTimes((), (*stored, (table, Milliseconds(ms)))), snapshot)


@pytest.mark.cassandra
def test_homes_of_earlier_releases_are_mirrors(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A home without a mark is recognized by its identity or its connection; a moved home stays a mirror."""
    observe(cluster)
    (cluster.home / MIRROR_MARK_FILE).unlink()
    for name in ("identity.json", "cluster.json"):
        content = (cluster.home / name).read_bytes()
        (cluster.home / name).unlink()
        refused = run("--home", cluster.home, "tables", "drop", "shop.orders")
        assert refused.stderr.endswith("[mirror]\n")
        (cluster.home / name).write_bytes(content)
    home = cluster.home.parent.parent
    previous_home = run("--home", home, "cluster", "replace", "prod", "--json").json["previous_home"]
    assert "mirrors the live cluster prod," in run("--home", previous_home, "tables", "drop", "shop.orders").stderr
