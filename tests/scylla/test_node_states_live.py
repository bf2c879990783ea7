"""Every state of a node and of the topology has the same meaning in a live cluster as in files."""

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


def observe(cluster: ScyllaCluster) -> Observation:
    """Observe the cluster as a new process does."""
    return run_observation(registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock())


def read_nodes(cluster: ScyllaCluster) -> list[Node]:
    """Return the nodes of the home."""
    return ring.read_nodes(Lake(cluster.open_home().lake))


def test_meaning_of_each_node_state(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Owners stay; while a node joins or leaves, nodes stay as before; a removed node leaves the ring."""
    observe(cluster)
    last = nodes()[-1]
    for state, meaning in NODE_STATES.items():
        standin.world.put("scylla.topology", key="topology", host_id=last.host_id, node_state=state)
        observation = observe(cluster)
        assert (observation.changing is None) == (meaning in (OWNS, GONE)), state
        if observation.changing is not None:
            assert observation.changing == f"node {last.host_id} is {state}"
        assert (last.host_id in {node.host_id for node in read_nodes(cluster)}) == (meaning is not GONE), state
        standin.world.put("scylla.topology", key="topology", host_id=last.host_id, node_state="normal")
        observe(cluster)
        assert len(read_nodes(cluster)) == len(nodes())


def test_meaning_of_each_transition(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Tablet migrations delay nothing, not even a first observation; changes of nodes or generations do."""
    for transition, changes in TRANSITIONS.items():
        standin.world.put("scylla.topology", key="topology", transition_state=transition)
        observation = observe(cluster)
        assert observation.changing == (transition if changes else None), transition
        status = run("--home", cluster.home, "status", "--json").json
        assert (status["ring"]["changing"] is not None) == changes
        assert ("topology-changing" in {alert["code"] for alert in status["alerts"]}) == changes


@pytest.mark.parametrize("what", [{"node_state": UNKNOWN}, {"transition_state": UNKNOWN}])
def test_unknown_state_is_refused_by_name(what: dict[str, str], standin: StandIn, cluster: ScyllaCluster) -> None:
    """An observation imports nothing of a topology whose token owners are unknown."""
    observe(cluster)
    before = read_nodes(cluster)
    host = {"host_id": nodes()[-1].host_id} if "node_state" in what else {}
    standin.world.put("scylla.topology", key="topology", **host, **what)
    standin.world.put("scylla.topology", key="topology", version=9)
    with pytest.raises(InputError, match=f"'{UNKNOWN}' is not known"):
        observe(cluster)
    answer = run("--home", cluster.home.parent.parent, "observe", "prod")
    assert (answer.exit_code, UNKNOWN in answer.stderr) == (2, True)
    assert read_nodes(cluster) == before


def test_tablet_migration_delays_nothing(
    standin: StandIn, cluster: ScyllaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a migration is another version; nodes count once two reads agree."""
    standin.world.put("scylla.topology", key="topology", transition_state="tablet migration")
    versions = iter(range(100, 200))
    select = ScyllaSession.select

    def step_before(live: ScyllaSession, table: str, *args: Any, **kwargs: Any) -> list[CqlRow]:
        """Move a tablet before each read."""
        if table == TOPOLOGY:
            standin.world.put("scylla.topology", key="topology", version=next(versions))
        return select(live, table, *args, **kwargs)

    monkeypatch.setattr(ScyllaSession, "select", step_before)
    assert observe(cluster).changing is None
    assert len(read_nodes(cluster)) == len(nodes())


def test_zero_token_node_is_a_member(standin: StandIn, cluster: ScyllaCluster) -> None:
    """It has no vnode and no stream, and learns of generations like the others."""
    arbiter = nodes(4)[3]
    row = {"datacenter": "arbiter", "rack": "r1", "shard_count": 2, "ignore_msb": 12, "node_state": "normal"}
    standin.world.put("scylla.topology", key="topology", host_id=arbiter.host_id, **row)
    observation = observe(cluster)
    assert observation.changing is None
    stored = {node.host_id: node for node in read_nodes(cluster)}
    assert (stored[arbiter.host_id].tokens, stored[arbiter.host_id].datacenter) == ((), "arbiter")
    lake = Lake(cluster.open_home().lake)
    assert len(ring.read_current_ring(lake).tokens) == sum(len(node.tokens) for node in nodes())
    output = run("--home", cluster.home, "ring").stdout
    assert "1 of them zero-token" in output
    assert run("--home", cluster.home, "check").exit_code == 0
    assert run("--home", cluster.home, "status", "--json").json["ring"]["zero_token_nodes"] == 1
    assert cdc_local.read_node_generation_ids(lake)


@pytest.mark.parametrize("class_name", [*SEARCH_CLASSES, UNKNOWN])
def test_meaning_of_each_index_class(class_name: str, standin: StandIn, cluster: ScyllaCluster) -> None:
    """A log that only its index enables counts as enabled; so does one with an unknown class, which a warning names."""
    lake = Lake(cluster.open_home().lake)
    observe(cluster)
    assert not cdc_tables.find_cdc_table(lake, "Shop", "Carts").enabled
    where = "keyspace_name = 'Shop' AND table_name = 'Carts' AND index_name = 'i'"
    try:
        standin.world.run(
            "INSERT INTO system_schema.indexes (keyspace_name, table_name, index_name, kind, options) VALUES "
            f"('Shop', 'Carts', 'i', 'CUSTOM', {{'class_name': '{class_name}', 'target': 'v'}})"
        )
        observation = observe(cluster)
        table = cdc_tables.find_cdc_table(lake, "Shop", "Carts")
        assert table.enabled == SEARCH_CLASSES.get(class_name, True)
        assert any(UNKNOWN in line for line in observation.warnings) == (class_name == UNKNOWN)
        if class_name != UNKNOWN:
            assert [index.class_name for index in read_table_schema(lake, "Shop", "Carts").search_indexes] == [
                class_name
            ]
        assert observe(cluster).tables_changed == []
    finally:
        standin.world.run(f"DELETE FROM system_schema.indexes WHERE {where}")
    observe(cluster)
    assert not cdc_tables.find_cdc_table(lake, "Shop", "Carts").enabled
