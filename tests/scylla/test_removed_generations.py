"""What a cluster has taken out of its tables goes from its home too, once no log can hold a row of it."""

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
    """A command on the cluster's own home."""
    return run("--home", cluster.home, "--clock", format_us(Microseconds(at_us)), *words)


def state_past(cluster: ScyllaCluster) -> None:
    """State that each log has had its TTL since before all generations, which no look at the cluster shows."""
    for name in ("shop.t", "shop.orders", '"Shop"."Carts"'):
        words = ("tables", "alter", name, "--ttl-since", format_us(Microseconds(FIRST_US - HOUR_US)))
        stated = on_mirror(cluster, EXPIRED_US, *words)
        assert stated.exit_code == 0, stated.stderr


def look(cluster: ScyllaCluster, at_us: int) -> None:
    """Observe as the next process would."""
    run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock(Microseconds(at_us))
    )


def purge(standin: StandIn, cluster: ScyllaCluster, *, but_last: bool = False) -> None:
    """Run in the cluster what `expire --cql` says there."""
    answer = on_mirror(cluster, REMOVABLE_US, "expire", "--cql")
    statements = [line for line in answer.stdout.splitlines() if line.startswith("DELETE ")]
    assert len(statements) == 3
    for statement in statements[: -1 if but_last else None]:
        standin.world.run(statement.replace("FROM system_", "FROM scylla_").rstrip(";"))


def there(cluster: ScyllaCluster) -> list[int]:
    """How many rows the home has of the first generation, in each of its tables."""
    lake = lake_of(cluster)
    found = [lake.read(table)["time"].cast("int64").to_pylist().count(FIRST_US) for table in BY_TIME]
    return [*found, lake.read(GENERATION_DESCRIPTIONS_V2)["id"].to_pylist().count(str(FIRST))]


BY_TIME = (GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2)


@pytest.mark.parametrize("but_last", [False, True], ids=["all of it", "but its description"])
def test_what_the_plan_says_can_be_done_in_the_cluster(
    standin: StandIn, cluster: ScyllaCluster, short: LiveLog, workers: TaskRunner, but_last: bool
) -> None:
    """The plan names the DELETEs; after them observe and ingest go on, and the generation is gone here, for good."""
    short.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers, SWITCH_US + HOUR_US)
    assert "Nothing may be removed" in on_mirror(cluster, REMOVABLE_US, "expire", "--cql").stdout
    state_past(cluster)
    look(cluster, EXPIRED_US)
    assert on_mirror(cluster, REMOVABLE_US, "expire").stderr.endswith("[mirror]\n")
    dry = on_mirror(cluster, REMOVABLE_US, "expire", "--dry-run")
    (line,) = lines_of(dry)
    assert line.endswith(
        f"--home {cluster.home} expire --cql  # for cqlsh on prod; what has gone there goes here at the next: "
        "cdc-platform observe prod"
    )
    purge(standin, cluster, but_last=but_last)
    assert min(there(cluster)) > 0
    look(cluster, REMOVABLE_US)
    assert there(cluster) == [0, 0, 0]
    told = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert [each["what"] for each in told if each["who"] == "generation 2026-09-21T14:13:20.000Z"][-1] == (
        "is no longer published"
    )
    look(cluster, REMOVABLE_US + 1)
    assert there(cluster) == [0, 0, 0]
    short.write([REMOVABLE_US + 1], p=[7])
    assert bring(cluster, workers, REMOVABLE_US + 60 * SECOND_US).rows == 1
    assert rows_in(cluster, short).num_rows == 3
    said = on_mirror(cluster, REMOVABLE_US, "explain", "--token", "5", "--at", format_us(Microseconds(FIRST_US + 1)))
    assert "was removed" in said.stdout + said.stderr
    because = ("--accept", "--reason", "nothing was written")
    accepted = on_mirror(cluster, REMOVABLE_US, "consumers", "gaps", "shop.t", *because)
    assert accepted.exit_code == 0, accepted
    assert on_mirror(cluster, REMOVABLE_US, "check").exit_code == 0
    assert on_mirror(cluster, REMOVABLE_US, "expire", "--dry-run", "--json").rows[0]["action"] == "keep"


def test_what_a_log_may_hold_has_not_gone(standin: StandIn, cluster: ScyllaCluster, short: LiveLog) -> None:
    """Before it expires it was made here, or the cluster was restored; after, it goes once its log's past is stated."""
    look(cluster, SWITCH_US + HOUR_US)
    standin.world.delete("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", FIRST_MS)
    with pytest.raises(StateError, match="publishes generation 2026-09-21T14:13:20"):
        look(cluster, EXPIRED_US - SECOND_US)
    look(cluster, EXPIRED_US)
    look(cluster, REMOVABLE_US)
    assert min(there(cluster)) > 0
    state_past(cluster)
    for at_us in (EXPIRED_US, REMOVABLE_US - SECOND_US):
        look(cluster, at_us)
        assert min(there(cluster)) > 0
    look(cluster, REMOVABLE_US)
    assert there(cluster) == [0, 0, 0]


def test_a_mirror_removes_nothing_by_rows_that_no_commit_put_there(
    standin: StandIn, cluster: ScyllaCluster, short: LiveLog, workers: TaskRunner
) -> None:
    """Nor does it mark: the look brings what is new, and a warning has the line of `check`. So with a clock ahead."""
    bring(cluster, workers, SWITCH_US + HOUR_US)
    state_past(cluster)
    look(cluster, EXPIRED_US)
    standin.world.delete("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", FIRST_MS)
    ahead = Clock(Microseconds(system_time_us() + 2 * HOUR_US))
    found = run_observation(registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), ahead)
    assert [each for each in found.warnings if "this machine's" in each]
    assert min(there(cluster)) > 0
    changed_row(Path(lake_of(cluster).path(CDC_TABLE_CHANGES)))
    found = run_observation(
        registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name),
        Clock(Microseconds(REMOVABLE_US)),
    )
    complaint = complaint_about(lake_of(cluster), CDC_TABLE_CHANGES)
    assert [each for each in found.warnings if complaint in each]
    assert min(there(cluster)) > 0
    refused = on_mirror(cluster, REMOVABLE_US, "expire", "--cql")
    assert (refused.exit_code, refused.stdout, complaint in refused.stderr) == (2, "", True)


def test_who_reads_here_keeps_it_here(
    standin: StandIn, cluster: ScyllaCluster, short: LiveLog, workers: TaskRunner
) -> None:
    """A consumer that has not read so far goes on with what the lake has; without it the next look lets go."""
    short.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers, SWITCH_US + HOUR_US)
    state_past(cluster)
    look(cluster, EXPIRED_US)
    read = on_mirror(cluster, FIRST_US + 60 * SECOND_US, "consume", "shop.t", "--name", "audit")
    assert read.exit_code == 0, read.stderr
    standin.world.delete("scylla_distributed.cdc_generation_timestamps", "key = 'timestamps' AND time = %s", FIRST_MS)
    look(cluster, REMOVABLE_US)
    assert min(there(cluster)) > 0
    (first, _) = on_mirror(cluster, REMOVABLE_US, "expire", "--dry-run", "--json").rows
    assert (first["action"], first["blocked_by"]) == ("keep", ["audit"])
    assert on_mirror(cluster, REMOVABLE_US, "consume", "shop.t", "--name", "audit").exit_code == 0
    look(cluster, REMOVABLE_US)
    assert there(cluster) == [0, 0, 0]
