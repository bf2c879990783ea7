"""A cluster of two datacenters: the near one is asked for all that is not a node's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import run
from support.standin.brought import assert_each_once, bring
from support.standin.cluster import StandIn, nodes
from support.standin.live_log import LiveLog

from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, registry
from cdc_platform.scylla.system_tables import NODE_LOCAL_TABLES

pytestmark = pytest.mark.cassandra

NEAR, FAR = {0, 2}, {1}


@pytest.fixture
def near(standin: StandIn) -> Connection:
    """The middle one of three nodes is far."""
    there = [replace(node, datacenter="far" if place in FAR else "near") for place, node in enumerate(nodes())]
    standin.world.cluster(there)
    return standin.connection(datacenter="near")


def asked(standin: StandIn) -> dict[str, set[int]]:
    """Which nodes were asked for each table that is not a node's own."""
    found: dict[str, set[int]] = {}
    for node, text in standin.proxy.statements:
        (table,) = (each for each in text.split(" FROM ")[1].split()[:1])
        if table not in NODE_LOCAL_TABLES and not table.startswith(("system.local", "system.peers")):
            found.setdefault(table, set()).add(node)
    return found


@pytest.mark.parametrize("way", ["streams", "ranges"])
@pytest.mark.parametrize("contact", [0, 1], ids=["a near contact", "a far contact"])
def test_only_the_near_nodes_are_asked(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path, contact: int, way: str
) -> None:
    """For published generations, for windows of a log and for the table itself; every node for its own clock."""
    contacts = (f"127.0.0.{contact + 1}:{standin.proxy.port}",)
    cluster = registry.add_cluster(
        open_home_location(tmp_path / "home"), "prod", near.model_copy(update={"contacts": contacts})
    )
    log.write([place * 1000 + 1_790_000_000_000_001 for place in range(50)])
    standin.proxy.statements.clear()
    bring(cluster, workers, way=way, current=True)
    found = asked(standin)
    assert set().union(*found.values()) == NEAR, found
    assert {"shop.t", "shop.t_scylla_cdc_log"} <= {table.replace('"', "") for table in found}
    assert found["system_distributed.cdc_streams_descriptions_v2"] <= NEAR
    assert {node for node, text in standin.proxy.statements if "now() AS now" in text} == NEAR | FAR
    assert_each_once(cluster, log)


def test_without_a_name_all_are_asked(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """So that what is said of the near ones is seen here to be able to fail."""
    cluster = registry.add_cluster(
        open_home_location(tmp_path / "home"), "prod", near.model_copy(update={"datacenter": None})
    )
    standin.proxy.statements.clear()
    bring(cluster, workers)
    assert set().union(*asked(standin).values()) == NEAR | FAR


def test_the_far_nodes_are_asked_where_no_near_one_is_up(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """What is near is asked first, and not alone."""
    contacts = (f"127.0.0.2:{standin.proxy.port}",)
    cluster = registry.add_cluster(
        open_home_location(tmp_path / "home"), "prod", near.model_copy(update={"contacts": contacts})
    )
    log.write([1_790_000_000_000_001])
    for node in NEAR:
        standin.proxy.kill(node)
    bring(cluster, workers)
    assert_each_once(cluster, log)


def test_another_name_is_one_line_with_those_there_are(standin: StandIn, near: Connection, tmp_path: Path) -> None:
    """Of every command that asks the cluster."""
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", near.model_copy(update={"datacenter": "nearer"}))
    for command in (("observe", "prod"), ("ingest", "prod", "shop.t"), ("cluster", "test", "prod")):
        answer = run("--home", home, *command)
        assert answer.exit_code != 0
        told = answer.stderr if command[0] != "cluster" else " ".join(answer.stdout.split())
        assert "no datacenter nearer, but far, near" in told
        assert len(answer.stderr.splitlines()) <= 1
