"""A cluster watched: what changes is said once, with whom it changed, whether it can be reached or not."""

from __future__ import annotations

import json

import pytest
from support.command_line import run
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.world import time_uuid

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.watching import watch
from cdc_platform.home import open_home

pytestmark = pytest.mark.cassandra

SECOND_MS = FIRST_MS + Milliseconds(3_600_000)


def test_what_changes_is_told_once(standin: StandIn, cluster: KnownCluster) -> None:
    """All of it at the first look, a generation and TTL when they come, nothing while all stays; by small queries."""
    home = open_home(cluster.home.parent.parent)
    looks = watch(home, "prod", Clock(), 0.0, lambda _: None)
    standin.world.cdc_options("shop", "orders", ttl="3600")
    # Another test's node may have been down a moment ago.
    now, first = next(look for look in looks if not look[0].problem)
    told = {change.who: change.what for change in first}
    assert len(now.nodes) == 3
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


def test_a_cluster_that_is_gone_is_a_change_and_comes_back(standin: StandIn, cluster: KnownCluster) -> None:
    """One line when it can no longer be reached, one when it can; the watch goes on in between."""
    home = open_home(cluster.home.parent.parent)
    looks = watch(home, "prod", Clock(), 0.0, lambda _: None)
    next(looks)
    for node in range(3):
        standin.proxy.kill(node)
    (gone,) = next(looks)[1]
    assert gone.who == "cluster"
    assert next(looks)[1] == []
    standin.proxy.faults.down.clear()
    assert [change.what for change in next(looks)[1]] == ["answers again"]
    looks.close()


def test_the_command_prints_a_line_a_change(standin: StandIn, cluster: KnownCluster) -> None:
    """As JSON, or on a screen that names the nodes; an unknown name is one line and no watch."""
    home = str(cluster.home.parent.parent)
    told = run("--home", home, "watch", "prod", "--looks", "1", "--json")
    assert told.exit_code == 0, told.stderr
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert {"node 127.0.0.1", "node 127.0.0.2", "node 127.0.0.3"} <= {line["who"] for line in lines}
    shown = run("--home", home, "watch", "prod", "--looks", "1")
    assert nodes()[0].address in shown.stdout
    assert run("--home", home, "watch", "nobody", "--looks", "1").exit_code == 2
