"""A watch reports each change of a cluster once, with what changed, whether or not the cluster is reachable."""

from __future__ import annotations

import json
import time

import pytest
from support.command_line import run
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.world import time_uuid

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import ScyllaCluster, watch_cluster

pytestmark = pytest.mark.cassandra

SECOND_MS = FIRST_MS + Milliseconds(3_600_000)


def test_each_change_is_reported_once(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The first poll reports everything, a later one only a new generation or TTL."""
    # Polls without a change take at most five small queries.
    home = open_home_location(cluster.home.parent.parent)
    polls = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    standin.world.cdc_options("shop", "orders", ttl="3600")
    # A node that another test stopped may still be reported as down.
    view, first = next(poll for poll in polls if not poll[0].problems)
    changes = {change.who: change.what for change in first}
    assert len(view.named("node")) == 3
    assert changes["table shop.orders"] == "came: TTL 3600 s, CDC on"
    assert f"generation {'2026-09-21T14:13:20.000Z'}" in changes

    standin.proxy.statements.clear()
    assert next(polls)[1] == []
    assert len(standin.proxy.statements) <= 5

    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
    (published,) = next(polls)[1]
    assert (published.who, published.what[:13]) == ("generation 2026-09-21T15:13:20.000Z", "was published")
    standin.world.cdc_options("shop", "orders", ttl="7200")
    standin.world.schema_changed()
    assert [change.what for change in next(polls)[1]] == ["is now: TTL 7200 s, CDC on"]
    polls.close()


def test_outage_and_its_end_are_one_change_each(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The watch continues while the cluster is unreachable."""
    home = open_home_location(cluster.home.parent.parent)
    polls = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    next(polls)
    for node in range(3):
        standin.proxy.kill(node)
    (outage,) = next(polls)[1]
    assert outage.who == "cluster"
    assert next(polls)[1] == []
    standin.proxy.faults.down.clear()
    assert [change.what for change in next(polls)[1]] == ["answers again"]
    polls.close()


def test_outage_during_a_topology_change_is_reported(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Outage and topology change are each reported at their start and end, with time and subject."""
    # While the topology changes, new generations are imported and nodes stay as before.
    polls = watch_cluster(open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: None)
    next(poll for poll in polls if not poll[0].problems)
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS), nodes(4)))
    view, changes = next(polls)
    assert [(change.who, change.what.partition(",")[0]) for change in changes] == [
        ("generation 2026-09-21T15:13:20.000Z", "was published"),
        ("cluster", "the topology is changing (write_both_read_old): nodes are as before"),
    ]
    assert {change.at_us for change in changes} == {view.at_us}
    assert (len(view.named("node")), next(polls)[1]) == (3, [])

    for node in range(3):
        standin.proxy.kill(node)
    view, (outage,) = next(polls)
    assert (outage.who, outage.at_us) == ("cluster", view.at_us)
    assert outage.what.startswith("prod")
    assert len(view.problems) == 2
    assert next(polls)[1] == []
    standin.world.put("scylla.topology", key="topology", transition_state=None)
    assert next(polls)[1] == []
    standin.proxy.faults.down.clear()
    view, changes = next(polls)
    while view.problems:  # nodes are retried one after the other
        view, more_changes = next(polls)
        changes += more_changes
    assert [(change.who, change.what) for change in changes] == [
        ("cluster", "answers again"),
        ("cluster", "the topology has settled"),
    ]
    polls.close()


def test_node_that_goes_down_and_comes_up_is_reported(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The change names the node's address; the cluster stays reachable through the other nodes."""
    polls = watch_cluster(
        open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: time.sleep(0.05)
    )
    next(poll for poll in polls if not poll[0].problems)
    standin.proxy.kill(2)
    first = next(changes for _, changes in polls if changes)
    assert [(change.who, change.what) for change in first] == [("node 127.0.0.3", "is down")]
    standin.proxy.faults.down.clear()
    second = next(changes for _, changes in polls if changes)
    assert [(change.who, change.what) for change in second] == [("node 127.0.0.3", "is up again")]
    polls.close()


def test_incomplete_generation_is_not_an_outage(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A left-out generation is named when it is left out and when it is imported."""
    # Only the end of an outage is reported as "answers again".
    generation, streams = description(time_uuid(SECOND_MS)), "scylla_distributed.cdc_streams_descriptions_v2"
    polls = watch_cluster(open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: None)
    next(poll for poll in polls if not poll[0].problems)
    who, missing = "generation 2026-09-21T15:13:20.000Z", int(generation.range_ends[-1])
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), generation, timestamp=False)
    standin.world.delete(streams, "time = %s AND range_end = %s", SECOND_MS, missing)
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=SECOND_MS)
    committed, left_out = next(polls)[1]
    assert (committed.who, committed.what.partition(",")[0]) == (who, "was committed and is not published yet")
    assert (left_out.who, left_out.what.partition(":")[0]) == (who, "is left out")
    assert "half-written" in left_out.what
    for node in range(3):
        standin.proxy.kill(node)
    assert [change.who for change in next(polls)[1]] == ["cluster"]
    standin.proxy.faults.down.clear()
    view, changes = next(polls)
    while ("cluster", "reach") in view.problems:
        view, more_changes = next(polls)
        changes += more_changes
    assert [(change.who, change.what) for change in changes] == [("cluster", "answers again")]

    last = {stream.tobytes() for stream in generation.entry(len(generation) - 1).streams}
    standin.world.put(streams, time=SECOND_MS, range_end=missing, streams=last)
    assert [(change.who, change.what.partition(",")[0]) for change in next(polls)[1]] == [
        (who, "was published"),
        (who, "is no longer left out"),
    ]
    polls.close()


def test_other_cluster_is_reported_once(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A cluster that answers under another name may not be observed; its start and end are one change each."""
    polls = watch_cluster(open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: None)
    next(poll for poll in polls if not poll[0].problems)
    standin.world.cluster(nodes(), name="restored")
    (other,) = next(polls)[1]
    assert "calls itself restored" in other.what
    assert next(polls)[1] == []
    standin.world.cluster(nodes())
    assert [(change.who, change.what) for change in next(polls)[1]] == [("cluster", "can be looked at again")]
    polls.close()


def test_restarted_watch_marks_only_new_changes_as_fresh(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The first poll reports everything; only changes that no earlier observation recorded are fresh."""
    home = open_home_location(cluster.home.parent.parent)
    first = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    _, changes = next(poll for poll in first if not poll[0].problems)
    assert all(change.fresh for change in changes)
    first.close()
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
    second = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    _, changes = next(poll for poll in second if not poll[0].problems)
    assert [change.who for change in changes if change.fresh] == ["generation 2026-09-21T15:13:20.000Z"]
    assert {"node 127.0.0.1", "table shop.orders"} <= {change.who for change in changes if not change.fresh}
    second.close()


def test_command_prints_one_line_per_change(standin: StandIn, cluster: ScyllaCluster) -> None:
    """`watch` prints JSON, or a screen that names the nodes; an unknown cluster is one line."""
    home = str(cluster.home.parent.parent)
    answer = run("--home", home, "watch", "prod", "--polls", "1", "--json")
    assert answer.exit_code == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert {"node 127.0.0.1", "node 127.0.0.2", "node 127.0.0.3"} <= {line["who"] for line in lines}
    screen = run("--home", home, "watch", "prod", "--polls", "1")
    assert nodes()[0].address in screen.stdout
    assert screen.stdout.endswith("\n")
    assert run("--home", home, "watch", "nobody", "--polls", "1").exit_code == 2
