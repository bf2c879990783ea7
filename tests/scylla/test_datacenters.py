"""A cluster of two datacenters: the near one is asked for all that is not a node's own."""

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


@pytest.mark.parametrize("level", [None, "LOCAL_ONE", "QUORUM"])
def test_far_nodes_serve_rows_only_at_levels_that_span_datacenters(
    standin: StandIn, near: Connection, log: LiveLog, workers: TaskRunner, tmp_path: Path, level: str | None
) -> None:
    """A LOCAL_ level of a far node would be that of its own datacenter, which may lack rows."""
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
    """On the wire; one that is given counts, and metadata is read at QUORUM in any case."""
    if not several:
        standin.world.empty({LOG_NAME, "shop.t"})
        standin.world.cluster(nodes())
        standin.world.generation(FIRST_MS, time_uuid(FIRST_MS), description(time_uuid(FIRST_MS)))
        log.make()
    connection = near if named and several else near.model_copy(update={"datacenter": None})
    home = tmp_path / "home"
    registry.add_cluster(open_home_location(home), "prod", connection)
    log.write([1_790_000_000_000_001])
    given = () if level is None else ("--consistency", level.lower())
    answer = run("--home", home, "ingest", "prod", "shop.t", *given)
    assert answer.exit_code == 0, answer.stderr
    levels = {level for text, level in standin.proxy.levels if LOG_NAME in text}
    assert levels == {getattr(ConsistencyLevel, expected)}
    metadata = {level for text, level in standin.proxy.levels if "system_distributed.cdc_streams_descriptions" in text}
    assert metadata == {ConsistencyLevel.QUORUM}
    warned = [line for line in answer.stderr.splitlines() if "none is named" in line]
    assert len(warned) == int(several and not named)
    checked = run("--home", home, "cluster", "test", "prod")
    assert ("datacenters" in checked.stdout) == several
    assert ("--datacenter" in checked.stdout) == (several and not named)


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
