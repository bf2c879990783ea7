"""The ring and the nodes' generation IDs have one owner module each; no other module reads or writes their tables."""

from __future__ import annotations

import ast
from pathlib import Path
from uuid import UUID

import pytest

from cdc_platform.clock import Milliseconds
from cdc_platform.delta import Lake
from cdc_platform.generations import GenerationId
from cdc_platform.metastore import (
    cdc_local,
    read_current_ring,
    read_host_ids,
    read_node_statuses,
    read_nodes,
    replace_ring,
    write_nodes,
)
from cdc_platform.ring import Node
from cdc_platform.tables import CDC_LOCAL

PLATFORM = Path(__file__).resolve().parents[2] / "cdc_platform"
ONE, TWO, THREE = (UUID(int=number) for number in (1, 2, 3))
OLD, NEW = GenerationId(Milliseconds(1_700_000_000_000)), GenerationId(Milliseconds(1_700_000_600_000), UUID(int=0xB))
OWNERS = {"NODES": "metastore/ring.py", "CDC_LOCAL": "metastore/cdc_local.py"}
ROWS = {"read", "merge", "delete", "raise_column", "append_once"}


def modules_using(name: str) -> set[str]:
    """Return the modules that pass the table of this name to a method of a lake that reads or writes rows."""
    modules = set()
    for path in sorted(PLATFORM.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        row_calls = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in ROWS]
        if any(isinstance(argument, ast.Name) and argument.id == name for call in row_calls for argument in call.args):
            modules.add(str(path.relative_to(PLATFORM)))
    return modules


@pytest.mark.parametrize("name", OWNERS)
def test_a_shared_table_has_one_owner(name: str) -> None:
    """Rows of the ring and of cdc_local go through their owner module, so that each rule about them is written once."""
    assert modules_using(name) == {OWNERS[name]}


def test_a_node_keeps_the_newest_id_in_either_format(lake: Lake) -> None:
    """A node's ID advances from none to V1 to V2; an older or equal ID changes nothing; other nodes are unaffected."""
    assert cdc_local.read_node_generation_id(lake, ONE) is None
    assert [cdc_local.store_node_generation_id(lake, ONE, generation_id) for generation_id in (OLD, NEW, NEW, OLD)] == [
        True,
        True,
        False,
        False,
    ]
    assert cdc_local.store_node_generation_id(lake, TWO, OLD)
    assert cdc_local.read_node_generation_ids(lake) == {str(ONE): NEW, str(TWO): OLD}


def test_the_creator_of_a_generation_stores_it_and_is_marked_only_if_it_joins(lake: Lake) -> None:
    """A node that joins gets its ID and a rewrite marker; one that repairs gets no marker; no ID goes back."""
    cdc_local.store_introduced_generation_id(lake, ONE, OLD, joins=True)
    cdc_local.store_introduced_generation_id(lake, TWO, NEW, joins=False)
    cdc_local.store_introduced_generation_id(lake, TWO, OLD, joins=True)
    assert cdc_local.read_node_generation_ids(lake) == {str(ONE): OLD, str(TWO): NEW}
    assert cdc_local.hosts_with_rewrite_marker(lake) == {str(ONE)}
    assert not cdc_local.has_dated_rewrite_marker(lake)


def test_a_reported_ring_raises_stored_features_and_invents_none(lake: Lake) -> None:
    """Reporting a ring creates no row for a node without one and leaves nodes that are not named unchanged."""
    cdc_local.store_node_generation_id(lake, ONE, OLD)
    cdc_local.store_node_generation_id(lake, TWO, OLD)
    cdc_local.advance_node_generation_ids(lake, [str(ONE), str(THREE)], NEW)
    assert cdc_local.read_node_generation_ids(lake) == {str(ONE): NEW, str(TWO): OLD}
    cdc_local.advance_node_generation_ids(lake, [str(ONE)], OLD)
    assert cdc_local.read_node_generation_ids(lake)[str(ONE)] == NEW


def test_the_first_rewrite_marker_stays(lake: Lake) -> None:
    """A marker without a time is no dated marker; marking the node again with a time does not change it."""
    cdc_local.write_rewrite_markers(lake, [str(ONE)], None)
    assert not cdc_local.has_dated_rewrite_marker(lake)
    cdc_local.write_rewrite_markers(lake, [str(ONE), str(TWO)], OLD.time_ms)
    assert cdc_local.has_dated_rewrite_marker(lake)
    times = {host: row.time_ms for (host, _), row in cdc_local.read_cdc_local(lake).items()}
    assert times == {str(ONE): None, str(TWO): OLD.time_ms}
    assert cdc_local.read_node_generation_ids(lake) == {}
    assert cdc_local.hosts_with_cdc_local(lake) == {str(ONE), str(TWO)}


def test_a_ring_is_replaced_and_reported_node_by_node(lake: Lake) -> None:
    """Report which nodes are added, removed and changed; replacing a ring with the same one writes nothing."""
    first, second = Node(ONE, (5,), 2, 0), Node(TWO, (7, 9), 3, 12)
    moved, third = Node(ONE, (6,), 2, 0), Node(THREE, (1,), 1, 0, status="LEFT")
    assert replace_ring(lake, [first, second]).added == [str(ONE), str(TWO)]
    replaced = replace_ring(lake, [moved, third])
    assert (replaced.added, replaced.removed, replaced.changed) == ([str(THREE)], [str(TWO)], [str(ONE)])
    assert replaced.rows_written == 3
    assert replace_ring(lake, [moved, third]).rows_written == 0
    assert {node.host_id for node in read_nodes(lake)} == {ONE, THREE}
    assert read_current_ring(lake).nodes == (moved,)
    assert (read_host_ids(lake), read_node_statuses(lake)[str(THREE)]) == ([str(ONE)], "LEFT")
    assert write_nodes(lake, [first], update=False) == 0
    assert read_current_ring(lake).nodes == (moved,)


def test_a_node_that_is_replaced_away_needs_no_generation_any_more(lake: Lake) -> None:
    """Delete what a removed node stored, but no row of a node that stays or that joins and is not in the ring yet."""
    first, second = Node(ONE, (5,), 2, 0), Node(TWO, (7,), 3, 12)
    replace_ring(lake, [first, second])
    for host in (ONE, TWO, THREE):
        cdc_local.store_node_generation_id(lake, host, NEW)
    cdc_local.write_rewrite_markers(lake, [str(TWO)], None)
    replace_ring(lake, [first])
    assert cdc_local.hosts_with_cdc_local(lake) == {str(ONE), str(THREE)}
    version = lake.version(CDC_LOCAL)
    replace_ring(lake, [first])
    assert lake.version(CDC_LOCAL) == version
