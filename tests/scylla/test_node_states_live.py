"""Every state of a node and of the topology in a live cluster: the same rule as for files."""

from __future__ import annotations

from typing import Any

import pytest
from support.command_line import run
from support.standin.cluster import StandIn, nodes
from support.states import GONE, NODE_STATES, OWNS, SEARCH_CLASSES, TRANSITIONS, UNKNOWN

from cdc_platform.cdclog import read_table_schema
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import cdc_local, cdc_tables, ring
from cdc_platform.ring import Node
from cdc_platform.scylla import Observation, ScyllaCluster, ScyllaSession, registry, run_observation
from cdc_platform.scylla.session import CqlRow
from cdc_platform.scylla.system_tables import TOPOLOGY

pytestmark = pytest.mark.cassandra


def look(cluster: ScyllaCluster) -> Observation:
    """Observe the cluster as the next process would."""
    return run_observation(registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock())


def members(cluster: ScyllaCluster) -> list[Node]:
    """The nodes that the home has."""
    return ring.read_nodes(Lake(cluster.open_home().lake))


def test_each_node_state_has_its_meaning(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Owners stay; while one joins or leaves nodes are as before; one that is gone leaves the ring."""
    look(cluster)
    last = nodes()[-1]
    for state, meaning in NODE_STATES.items():
        standin.world.put("scylla.topology", key="topology", host_id=last.host_id, node_state=state)
        seen = look(cluster)
        assert (seen.changing is None) == (meaning in (OWNS, GONE)), state
        if seen.changing is not None:
            assert seen.changing == f"node {last.host_id} is {state}"
        assert (last.host_id in {node.host_id for node in members(cluster)}) == (meaning is not GONE), state
        standin.world.put("scylla.topology", key="topology", host_id=last.host_id, node_state="normal")
        look(cluster)
        assert len(members(cluster)) == len(nodes())


def test_each_transition_has_its_meaning(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Tablets that move hold nothing up, in a first look too; whatever concerns nodes or generations does."""
    for transition, changes in TRANSITIONS.items():
        standin.world.put("scylla.topology", key="topology", transition_state=transition)
        seen = look(cluster)
        assert seen.changing == (transition if changes else None), transition
        status = run("--home", cluster.home, "status", "--json").json
        assert (status["ring"]["changing"] is not None) == changes
        assert ("topology-changing" in {each["code"] for each in status["alerts"]}) == changes


@pytest.mark.parametrize("what", [{"node_state": UNKNOWN}, {"transition_state": UNKNOWN}])
def test_what_is_unknown_is_refused_by_name(what: dict[str, str], standin: StandIn, cluster: ScyllaCluster) -> None:
    """Nothing is taken in of a topology of which nobody can say who owns tokens."""
    look(cluster)
    before = members(cluster)
    host = {"host_id": nodes()[-1].host_id} if "node_state" in what else {}
    standin.world.put("scylla.topology", key="topology", **host, **what)
    standin.world.put("scylla.topology", key="topology", version=9)
    with pytest.raises(InputError, match=f"'{UNKNOWN}' is not known"):
        look(cluster)
    answer = run("--home", cluster.home.parent.parent, "observe", "prod")
    assert (answer.exit_code, UNKNOWN in answer.stderr) == (2, True)
    assert members(cluster) == before


def test_tablets_that_migrate_hold_nothing_up(
    standin: StandIn, cluster: ScyllaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a migration is another version: nodes that two reads agree on are taken."""
    standin.world.put("scylla.topology", key="topology", transition_state="tablet migration")
    versions = iter(range(100, 200))
    select = ScyllaSession.select

    def step_before(live: ScyllaSession, table: str, *args: Any, **named: Any) -> list[CqlRow]:
        """Let a tablet move before each read."""
        if table == TOPOLOGY:
            standin.world.put("scylla.topology", key="topology", version=next(versions))
        return select(live, table, *args, **named)

    monkeypatch.setattr(ScyllaSession, "select", step_before)
    assert look(cluster).changing is None
    assert len(members(cluster)) == len(nodes())


def test_a_zero_token_node_is_a_member(standin: StandIn, cluster: ScyllaCluster) -> None:
    """It has no vnode and no stream, and learns of generations as the others do."""
    arbiter = nodes(4)[3]
    row = {"datacenter": "arbiter", "rack": "r1", "shard_count": 2, "ignore_msb": 12, "node_state": "normal"}
    standin.world.put("scylla.topology", key="topology", host_id=arbiter.host_id, **row)
    seen = look(cluster)
    assert seen.changing is None
    found = {node.host_id: node for node in members(cluster)}
    assert (found[arbiter.host_id].tokens, found[arbiter.host_id].datacenter) == ((), "arbiter")
    lake = Lake(cluster.open_home().lake)
    assert len(ring.read_current_ring(lake).tokens) == sum(len(node.tokens) for node in nodes())
    shown = run("--home", cluster.home, "ring").stdout
    assert "1 of them zero-token" in shown
    assert run("--home", cluster.home, "check").exit_code == 0
    assert run("--home", cluster.home, "status", "--json").json["ring"]["zero_token_nodes"] == 1
    assert cdc_local.read_node_generation_ids(lake)


@pytest.mark.parametrize("class_name", [*SEARCH_CLASSES, UNKNOWN])
def test_each_class_of_index_has_its_meaning(class_name: str, standin: StandIn, cluster: ScyllaCluster) -> None:
    """A log that only its index turns on counts as on; an unknown class counts as one that does, and is named."""
    lake = Lake(cluster.open_home().lake)
    look(cluster)
    assert not cdc_tables.find_cdc_table(lake, "Shop", "Carts").enabled
    where = "keyspace_name = 'Shop' AND table_name = 'Carts' AND index_name = 'i'"
    try:
        standin.world.run(
            "INSERT INTO system_schema.indexes (keyspace_name, table_name, index_name, kind, options) VALUES "
            f"('Shop', 'Carts', 'i', 'CUSTOM', {{'class_name': '{class_name}', 'target': 'v'}})"
        )
        seen = look(cluster)
        found = cdc_tables.find_cdc_table(lake, "Shop", "Carts")
        assert found.enabled == SEARCH_CLASSES.get(class_name, True)
        assert any(UNKNOWN in line for line in seen.warnings) == (class_name == UNKNOWN)
        if class_name != UNKNOWN:
            assert [each.class_name for each in read_table_schema(lake, "Shop", "Carts").search_indexes] == [class_name]
        assert look(cluster).tables_changed == []
    finally:
        standin.world.run(f"DELETE FROM system_schema.indexes WHERE {where}")
    look(cluster)
    assert not cdc_tables.find_cdc_table(lake, "Shop", "Carts").enabled
