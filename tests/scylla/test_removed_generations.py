"""A home drops a generation that its cluster has removed, once no log can have a row of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.homes.foreign import changed_row, complaint_about
from support.next_lines import lines_of
from support.standin.brought import FIRST_US, SWITCH_US, bring, lake_of, rows_in
from support.standin.cluster import FIRST_MS, StandIn
from support.standin.live_log import LiveLog
from support.standin.world import time_uuid

from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds, format_us, system_time_us
from cdc_platform.delta import TaskRunner
from cdc_platform.errors import StateError
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import ScyllaCluster, registry, run_observation
from cdc_platform.tables import (
    CDC_TABLE_CHANGES,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS_V2,
)

pytestmark = pytest.mark.cassandra

TTL = 7200
EXPIRED_US = Microseconds(SWITCH_US + (10 + TTL) * SECOND_US)
REMOVABLE_US = Microseconds(EXPIRED_US + HOUR_US)
FIRST = time_uuid(FIRST_MS)


@pytest.fixture
def short(log: LiveLog) -> LiveLog:
    """The log with rows that live for two hours."""
    log.world.cdc_options("shop", "t", ttl=str(TTL))
    return log


def on_mirror(cluster: ScyllaCluster, at_us: int, *words: str) -> Answer:
    """Run a command on the cluster's own home."""
    return run("--home", cluster.home, "--clock", format_us(Microseconds(at_us)), *words)


def state_past(cluster: ScyllaCluster) -> None:
    """State that each log has had its TTL since before all generations, which no observation shows."""
    for name in ("shop.t", "shop.orders", '"Shop"."Carts"'):
        words = ("tables", "alter", name, "--ttl-since", format_us(Microseconds(FIRST_US - HOUR_US)))
        stated = on_mirror(cluster, EXPIRED_US, *words)
        assert stated.exit_code == 0, stated.stderr


def observe(cluster: ScyllaCluster, at_us: int) -> None:
    """Observe the cluster as a new process does."""
    run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock(Microseconds(at_us))
    )


def purge(standin: StandIn, cluster: ScyllaCluster, *, but_last: bool = False) -> None:
    """Run in the cluster the statements that `expire --cql` prints."""
    answer = on_mirror(cluster, REMOVABLE_US, "expire", "--cql")
    statements = [line for line in answer.stdout.splitlines() if line.startswith("DELETE ")]
    assert len(statements) == 3
    for statement in statements[: -1 if but_last else None]:
        standin.world.run(statement.replace("FROM system_", "FROM scylla_").rstrip(";"))


def count_rows(cluster: ScyllaCluster) -> list[int]:
    """Return how many rows the home has of the first generation, in each of its tables."""
    lake = lake_of(cluster)
    counts = [lake.read(table)["time"].cast("int64").to_pylist().count(FIRST_US) for table in BY_TIME]
    return [*counts, lake.read(GENERATION_DESCRIPTIONS_V2)["id"].to_pylist().count(str(FIRST))]


BY_TIME = (GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2)


@pytest.mark.parametrize("but_last", [False, True], ids=["all of it", "but its description"])
def test_printed_statements_remove_a_generation(
    standin: StandIn, cluster: ScyllaCluster, short: LiveLog, workers: TaskRunner, but_last: bool
) -> None:
    """After the printed DELETEs, observations and ingests continue, and the home drops the generation for good."""
    short.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers, SWITCH_US + HOUR_US)
    assert "Nothing may be removed" in on_mirror(cluster, REMOVABLE_US, "expire", "--cql").stdout
    state_past(cluster)
    observe(cluster, EXPIRED_US)
    assert on_mirror(cluster, REMOVABLE_US, "expire").stderr.endswith("[mirror]\n")
    dry = on_mirror(cluster, REMOVABLE_US, "expire", "--dry-run")
    (line,) = lines_of(dry)
    assert line.endswith(
        f"--home {cluster.home} expire --cql  # for cqlsh on prod; what has gone there goes here at the next: "
        "cdc-platform observe prod"
    )
    purge(standin, cluster, but_last=but_last)
    assert min(count_rows(cluster)) > 0
    observe(cluster, REMOVABLE_US)
    assert count_rows(cluster) == [0, 0, 0]
    changes = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert [change["what"] for change in changes if change["who"] == "generation 2026-09-21T14:13:20.000Z"][-1] == (
        "is no longer published"
    )
    observe(cluster, REMOVABLE_US + 1)
    assert count_rows(cluster) == [0, 0, 0]
    short.write([REMOVABLE_US + 1], p=[7])
    assert bring(cluster, workers, REMOVABLE_US + 60 * SECOND_US).rows == 1
    assert rows_in(cluster, short).num_rows == 3
    explanation = on_mirror(
        cluster, REMOVABLE_US, "explain", "--token", "5", "--at", format_us(Microseconds(FIRST_US + 1))
    )
    assert "was removed" in explanation.stdout + explanation.stderr
    options = ("--accept", "--reason", "nothing was written")
    accepted = on_mirror(cluster, REMOVABLE_US, "consumers", "gaps", "shop.t", *options)
    assert accepted.exit_code == 0, accepted
    assert on_mirror(cluster, REMOVABLE_US, "check").exit_code == 0
    assert on_mirror(cluster, REMOVABLE_US, "expire", "--dry-run", "--json").rows[0]["action"] == "keep"


def test_generation_with_possible_rows_is_not_dropped(standin: StandIn, cluster: ScyllaCluster, short: LiveLog) -> None:
    """A generation missing before it expired is an error; later it is dropped once the log's past is stated."""
    # Before it expired, it was created here or the cluster was restored.
    observe(cluster, SWITCH_US + HOUR_US)
    standin.world.delete("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", FIRST_MS)
    with pytest.raises(StateError, match="publishes generation 2026-09-21T14:13:20"):
        observe(cluster, EXPIRED_US - SECOND_US)
    observe(cluster, EXPIRED_US)
    observe(cluster, REMOVABLE_US)
    assert min(count_rows(cluster)) > 0
    state_past(cluster)
    for at_us in (EXPIRED_US, REMOVABLE_US - SECOND_US):
        observe(cluster, at_us)
        assert min(count_rows(cluster)) > 0
    observe(cluster, REMOVABLE_US)
    assert count_rows(cluster) == [0, 0, 0]


def test_mirror_removes_nothing_because_of_foreign_rows(
    standin: StandIn, cluster: ScyllaCluster, short: LiveLog, workers: TaskRunner
) -> None:
    """The observation imports new metadata and warns with the message of `check`. A clock ahead has the same effect."""
    bring(cluster, workers, SWITCH_US + HOUR_US)
    state_past(cluster)
    observe(cluster, EXPIRED_US)
    standin.world.delete("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", FIRST_MS)
    ahead = Clock(Microseconds(system_time_us() + 2 * HOUR_US))
    observation = run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), ahead
    )
    assert [warning for warning in observation.warnings if "this machine's" in warning]
    assert min(count_rows(cluster)) > 0
    changed_row(Path(lake_of(cluster).path(CDC_TABLE_CHANGES)))
    observation = run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name),
        Clock(Microseconds(REMOVABLE_US)),
    )
    complaint = complaint_about(lake_of(cluster), CDC_TABLE_CHANGES)
    assert [warning for warning in observation.warnings if complaint in warning]
    assert min(count_rows(cluster)) > 0
    refused = on_mirror(cluster, REMOVABLE_US, "expire", "--cql")
    assert (refused.exit_code, refused.stdout, complaint in refused.stderr) == (2, "", True)


def test_consumer_delays_the_removal(
    standin: StandIn, cluster: ScyllaCluster, short: LiveLog, workers: TaskRunner
) -> None:
    """A consumer that is behind continues with the lake's rows; once it is done, the next observation drops them."""
    short.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers, SWITCH_US + HOUR_US)
    state_past(cluster)
    observe(cluster, EXPIRED_US)
    read = on_mirror(cluster, FIRST_US + 60 * SECOND_US, "consume", "shop.t", "--name", "audit")
    assert read.exit_code == 0, read.stderr
    standin.world.delete("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", FIRST_MS)
    observe(cluster, REMOVABLE_US)
    assert min(count_rows(cluster)) > 0
    (first, _) = on_mirror(cluster, REMOVABLE_US, "expire", "--dry-run", "--json").rows
    assert (first["action"], first["blocked_by"]) == ("keep", ["audit"])
    assert on_mirror(cluster, REMOVABLE_US, "consume", "shop.t", "--name", "audit").exit_code == 0
    observe(cluster, REMOVABLE_US)
    assert count_rows(cluster) == [0, 0, 0]
