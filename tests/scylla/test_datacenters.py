"""In a cluster of two datacenters only the near one serves requests that any node can answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel
from support.command_line import run
from support.standin.brought import assert_each_once, bring
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.live_log import LiveLog
from support.standin.world import time_uuid

from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, Unreachable, open_session, registry
from cdc_platform.scylla.system_tables import NODE_LOCAL_TABLES

pytestmark = pytest.mark.cassandra

LOG_NAME = "shop.t_scylla_cdc_log"
NEAR, FAR = {0, 2}, {1}


@pytest.fixture
def near(standin: StandIn) -> Connection:
    """A connection to three nodes, the middle one of which is far."""
    cluster_nodes = [replace(node, datacenter="far" if index in FAR else "near") for index, node in enumerate(nodes())]
    standin.world.cluster(cluster_nodes)
    return standin.connection(datacenter="near")


def queried_nodes(standin: StandIn) -> dict[str, set[int]]:
    """Return which nodes were queried for each table that is not node-local."""
    nodes_by_table: dict[str, set[int]] = {}
    for node, text in standin.proxy.statements:
        (table,) = (word for word in text.split(" FROM ")[1].split()[:1])
        if table not in NODE_LOCAL_TABLES and not table.startswith(("system.local", "system.peers")):
            nodes_by_table.setdefault(table, set()).add(node)
    return nodes_by_table


@pytest.mark.parametrize("way", ["streams", "ranges"])
@pytest.mark.parametrize("contact", [0, 1], ids=["a near contact", "a far contact"])
def test_only_near_nodes_are_queried(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path, contact: int, way: str
) -> None:
    """This holds for published generations, windows of a log and the table; every node is asked for its clock."""
    contacts = (f"127.0.0.{contact + 1}:{standin.proxy.port}",)
    cluster = registry.add_cluster(
        open_home_location(tmp_path / "home"), "prod", near.model_copy(update={"contacts": contacts})
    )
    log.write([index * 1000 + 1_790_000_000_000_001 for index in range(50)])
    standin.proxy.statements.clear()
    bring(cluster, workers, way=way, current=True)
    queried = queried_nodes(standin)
    assert set().union(*queried.values()) == NEAR, queried
    assert {"shop.t", "shop.t_scylla_cdc_log"} <= {table.replace('"', "") for table in queried}
    assert queried["system_distributed.cdc_streams_descriptions_v2"] <= NEAR
    assert {node for node, text in standin.proxy.statements if "now() AS now" in text} == NEAR | FAR
    assert_each_once(cluster, log)


def test_without_a_named_datacenter_all_nodes_are_queried(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """This shows that the test of the near nodes can fail."""
    cluster = registry.add_cluster(
        open_home_location(tmp_path / "home"), "prod", near.model_copy(update={"datacenter": None})
    )
    standin.proxy.statements.clear()
    bring(cluster, workers)
    assert set().union(*queried_nodes(standin).values()) == NEAR | FAR


@pytest.mark.parametrize("level", [None, "LOCAL_ONE", "QUORUM"])
def test_far_nodes_serve_rows_only_at_levels_that_span_datacenters(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path, level: str | None
) -> None:
    """A LOCAL_ level at a far node would cover its own datacenter only, where rows may be missing."""
    contacts = (f"127.0.0.2:{standin.proxy.port}",)
    changes = {"contacts": contacts, "consistency": level}
    cluster = registry.add_cluster(open_home_location(tmp_path / "home"), "prod", near.model_copy(update=changes))
    log.write([1_790_000_000_000_001])
    for node in NEAR:
        standin.proxy.kill(node)
    if level == "QUORUM":
        bring(cluster, workers)
        assert_each_once(cluster, log)
        return
    with pytest.raises(Unreachable, match="no node of datacenter near is up") as refused:
        bring(cluster, workers)
    assert "--consistency QUORUM" in str(refused.value)
    assert not [text for _, text in standin.proxy.statements if LOG_NAME in text]
    with pytest.raises(Unreachable), open_session("prod", cluster.connection, one_node=0):
        pass


@pytest.mark.parametrize(
    ("named", "several", "level", "expected"),
    [
        (True, True, None, "LOCAL_QUORUM"),
        (False, True, None, "QUORUM"),
        (False, False, None, "LOCAL_QUORUM"),
        (True, True, "LOCAL_ONE", "LOCAL_ONE"),
        (False, True, "ONE", "ONE"),
        (False, False, "ALL", "ALL"),
    ],
)
def test_rows_are_read_at_the_level_that_the_datacenters_imply(
    standin: StandIn,
    near: Connection,
    log: LiveLog,
    tmp_path: Path,
    named: bool,
    several: bool,
    level: str | None,
    expected: str,
) -> None:
    """A given level counts, as the proxy sees it; metadata is always read at QUORUM."""
    if not several:
        standin.world.empty({LOG_NAME, "shop.t"})
        standin.world.cluster(nodes())
        standin.world.generation(FIRST_MS, time_uuid(FIRST_MS), description(time_uuid(FIRST_MS)))
        log.make()
    connection = near if named and several else near.model_copy(update={"datacenter": None})
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", connection)
    log.write([1_790_000_000_000_001])
    options = () if level is None else ("--consistency", level.lower())
    answer = run("--home", home, "ingest", "prod", "shop.t", *options)
    assert answer.exit_code == 0, answer.stderr
    levels = {level for text, level in standin.proxy.levels if LOG_NAME in text}
    assert levels == {getattr(ConsistencyLevel, expected)}
    metadata = {level for text, level in standin.proxy.levels if "system_distributed.cdc_streams_descriptions" in text}
    assert metadata == {ConsistencyLevel.QUORUM}
    warnings = [line for line in answer.stderr.splitlines() if "none is named" in line]
    assert len(warnings) == int(several and not named)
    check = run("--home", home, "cluster", "test", "prod")
    assert ("datacenters" in check.stdout) == several
    assert ("--datacenter" in check.stdout) == (several and not named)


def test_unknown_datacenter_is_one_line_with_the_known_ones(standin: StandIn, near: Connection, tmp_path: Path) -> None:
    """This holds for every command that connects to the cluster."""
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", near.model_copy(update={"datacenter": "nearer"}))
    for command in (("observe", "prod"), ("ingest", "prod", "shop.t"), ("cluster", "test", "prod")):
        answer = run("--home", home, *command)
        assert answer.exit_code != 0
        output = answer.stderr if command[0] != "cluster" else " ".join(answer.stdout.split())
        assert "no datacenter nearer, but far, near" in output
        assert len(answer.stderr.splitlines()) <= 1
