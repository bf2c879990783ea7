"""A cluster watched: what changes is said once, with whom it changed, whether it can be reached or not."""

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


def test_what_changes_is_told_once(standin: StandIn, cluster: ScyllaCluster) -> None:
    """All of it at the first look, a generation and TTL when they come, nothing while all stays; by small queries."""
    home = open_home_location(cluster.home.parent.parent)
    looks = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    standin.world.cdc_options("shop", "orders", ttl="3600")
    # Another test's node may have been down a moment ago.
    now, first = next(look for look in looks if not look[0].problems)
    told = {change.who: change.what for change in first}
    assert len(now.named("node")) == 3
    assert told["table shop.orders"] == "came: TTL 3600 s, CDC on"
    assert f"generation {'2026-09-21T14:13:20.000Z'}" in told

    standin.proxy.statements.clear()
    assert next(looks)[1] == []
    assert len(standin.proxy.statements) <= 5

    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
    (came,) = next(looks)[1]
    assert (came.who, came.what[:13]) == ("generation 2026-09-21T15:13:20.000Z", "was published")
    standin.world.cdc_options("shop", "orders", ttl="7200")
    standin.world.schema_changed()
    assert [change.what for change in next(looks)[1]] == ["is now: TTL 7200 s, CDC on"]
    looks.close()


def test_a_cluster_that_is_gone_is_a_change_and_comes_back(standin: StandIn, cluster: ScyllaCluster) -> None:
    """One line when it can no longer be reached, one when it can; the watch goes on in between."""
    home = open_home_location(cluster.home.parent.parent)
    looks = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    next(looks)
    for node in range(3):
        standin.proxy.kill(node)
    (gone,) = next(looks)[1]
    assert gone.who == "cluster"
    assert next(looks)[1] == []
    standin.proxy.faults.down.clear()
    assert [change.what for change in next(looks)[1]] == ["answers again"]
    looks.close()


def test_an_outage_is_told_while_the_topology_changes(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Each of the two as it comes and as it goes, with when and who; what is new comes in while nodes are as before."""
    looks = watch_cluster(open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: None)
    next(look for look in looks if not look[0].problems)
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS), nodes(4)))
    now, told = next(looks)
    assert [(each.who, each.what.partition(",")[0]) for each in told] == [
        ("generation 2026-09-21T15:13:20.000Z", "was published"),
        ("cluster", "the topology is changing (write_both_read_old): nodes are as before"),
    ]
    assert {each.at_us for each in told} == {now.at_us}
    assert (len(now.named("node")), next(looks)[1]) == (3, [])

    for node in range(3):
        standin.proxy.kill(node)
    now, (gone,) = next(looks)
    assert (gone.who, gone.at_us) == ("cluster", now.at_us)
    assert gone.what.startswith("prod")
    assert len(now.problems) == 2
    assert next(looks)[1] == []
    standin.world.put("scylla.topology", key="topology", transition_state=None)
    assert next(looks)[1] == []
    standin.proxy.faults.down.clear()
    now, told = next(looks)
    while now.problems:  # nodes are tried again one after the other
        now, more = next(looks)
        told += more
    assert [(each.who, each.what) for each in told] == [
        ("cluster", "answers again"),
        ("cluster", "the topology has settled"),
    ]
    looks.close()


def test_a_node_that_is_down_is_told_as_it_goes_and_as_it_comes(standin: StandIn, cluster: ScyllaCluster) -> None:
    """By its address; the others answer for the cluster, which is not out of reach."""
    looks = watch_cluster(
        open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: time.sleep(0.05)
    )
    next(look for look in looks if not look[0].problems)
    standin.proxy.kill(2)
    first = next(told for _, told in looks if told)
    assert [(each.who, each.what) for each in first] == [("node 127.0.0.3", "is down")]
    standin.proxy.faults.down.clear()
    second = next(told for _, told in looks if told)
    assert [(each.who, each.what) for each in second] == [("node 127.0.0.3", "is up again")]
    looks.close()


def test_a_generation_that_is_left_out_is_told_apart_from_an_outage(standin: StandIn, cluster: ScyllaCluster) -> None:
    """It is named as it is left out and as it comes in; that a cluster answers again is said of an outage alone."""
    made, streams = description(time_uuid(SECOND_MS)), "scylla_distributed.cdc_streams_descriptions_v2"
    looks = watch_cluster(open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: None)
    next(look for look in looks if not look[0].problems)
    who, missing = "generation 2026-09-21T15:13:20.000Z", int(made.range_ends[-1])
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), made, timestamp=False)
    standin.world.delete(streams, "time = %s AND range_end = %s", SECOND_MS, missing)
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=SECOND_MS)
    committed, left_out = next(looks)[1]
    assert (committed.who, committed.what.partition(",")[0]) == (who, "was committed and is not published yet")
    assert (left_out.who, left_out.what.partition(":")[0]) == (who, "is left out")
    assert "half-written" in left_out.what
    for node in range(3):
        standin.proxy.kill(node)
    assert [each.who for each in next(looks)[1]] == ["cluster"]
    standin.proxy.faults.down.clear()
    now, told = next(looks)
    while ("cluster", "reach") in now.problems:
        now, more = next(looks)
        told += more
    assert [(each.who, each.what) for each in told] == [("cluster", "answers again")]

    last = {stream.tobytes() for stream in made.entry(len(made) - 1).streams}
    standin.world.put(streams, time=SECOND_MS, range_end=missing, streams=last)
    assert [(each.who, each.what.partition(",")[0]) for each in next(looks)[1]] == [
        (who, "was published"),
        (who, "is no longer left out"),
    ]
    looks.close()


def test_another_cluster_is_told_once_and_is_no_outage(standin: StandIn, cluster: ScyllaCluster) -> None:
    """It answers and may not be looked at: that is said as it comes and as it goes."""
    looks = watch_cluster(open_home_location(cluster.home.parent.parent), "prod", Clock(), 0.0, lambda _: None)
    next(look for look in looks if not look[0].problems)
    standin.world.cluster(nodes(), name="restored")
    (other,) = next(looks)[1]
    assert "calls itself restored" in other.what
    assert next(looks)[1] == []
    standin.world.cluster(nodes())
    assert [(each.who, each.what) for each in next(looks)[1]] == [("cluster", "can be looked at again")]
    looks.close()


def test_a_watch_that_begins_again_tells_what_there_is_and_what_is_new(
    standin: StandIn, cluster: ScyllaCluster
) -> None:
    """All of it in the first look; what nobody had seen before the watch began is fresh, and nothing else."""
    home = open_home_location(cluster.home.parent.parent)
    first = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    _, told = next(look for look in first if not look[0].problems)
    assert all(each.fresh for each in told)
    first.close()
    standin.world.generation(SECOND_MS, time_uuid(SECOND_MS), description(time_uuid(SECOND_MS)))
    second = watch_cluster(home, "prod", Clock(), 0.0, lambda _: None)
    _, told = next(look for look in second if not look[0].problems)
    assert [each.who for each in told if each.fresh] == ["generation 2026-09-21T15:13:20.000Z"]
    assert {"node 127.0.0.1", "table shop.orders"} <= {each.who for each in told if not each.fresh}
    second.close()


def test_the_command_prints_a_line_a_change(standin: StandIn, cluster: ScyllaCluster) -> None:
    """As JSON, or on a screen that names the nodes; an unknown name is one line and no watch."""
    home = str(cluster.home.parent.parent)
    told = run("--home", home, "watch", "prod", "--polls", "1", "--json")
    assert told.exit_code == 0, told.stderr
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert {"node 127.0.0.1", "node 127.0.0.2", "node 127.0.0.3"} <= {line["who"] for line in lines}
    shown = run("--home", home, "watch", "prod", "--polls", "1")
    assert nodes()[0].address in shown.stdout
    assert shown.stdout.endswith("\n")
    assert run("--home", home, "watch", "nobody", "--polls", "1").exit_code == 2
