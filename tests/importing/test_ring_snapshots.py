"""Ring snapshots give nodes, and the joins between two of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.files.export_files import NODES

import cdc_platform
from cdc_platform.errors import InputError
from cdc_platform.importing import joins_between_snapshots, parse_ring_snapshot, read_ring_snapshot, snapshot_from_node
from cdc_platform.ring import Node, Ring

REAL = Path(cdc_platform.__file__).parent / "data" / "real_ring"


def snapshot(*nodes: Node, **fields: object) -> str:
    """Return the snapshot of these nodes, without their sharding unless `fields` has it."""
    return json.dumps(
        [
            {
                "address": node.address,
                "host_id": str(node.host_id),
                "datacenter": node.datacenter,
                "rack": node.rack,
                "tokens": list(node.tokens),
            }
            | fields
            for node in nodes
        ]
    )


def test_real_snapshots_give_three_joins() -> None:
    """Snapshots of a live cluster, taken as its nodes joined, give one join each."""
    snapshots = [read_ring_snapshot(REAL / f"ring{number}.json", shards=8, ignore_msb=12) for number in (1, 2, 3)]
    assert [len(Ring.of(nodes).tokens) for nodes in snapshots] == [256, 512, 768]
    requests = joins_between_snapshots(snapshots)
    assert [str(request.host_id) for request in requests] == [str(node.host_id) for node in snapshots[2]]
    assert [request.tokens for request in requests] == [node.tokens for node in snapshots[2]]
    assert {(request.shard_count, request.ignore_msb) for request in requests} == {(8, 12)}


def test_file_overrides_the_caller() -> None:
    """A node's sharding in the file counts; otherwise the caller's does."""
    entries = json.loads(snapshot(NODES[0], shard_count=2, ignore_msb=3)) + json.loads(snapshot(NODES[1]))
    nodes = parse_ring_snapshot(json.dumps(entries), shards=64, ignore_msb=12)
    assert [(node.shard_count, node.ignore_msb) for node in nodes] == [(2, 3), (64, 12)]


@pytest.mark.parametrize(
    ("shards", "ignore_msb", "option"), [(None, 12, "--shards"), (8, None, "--ignore-msb"), (None, None, "--shards")]
)
def test_sharding_is_never_guessed(shards: int | None, ignore_msb: int | None, option: str) -> None:
    """A snapshot without it is refused with the name of the option."""
    with pytest.raises(InputError, match=option):
        parse_ring_snapshot(snapshot(NODES[0]), shards=shards, ignore_msb=ignore_msb)


@pytest.mark.parametrize("field", ["address", "datacenter", "rack"])
def test_unknown_fields_of_a_node_are_empty(field: str) -> None:
    """A home writes empty fields for unknown ones, and reads them unchanged."""
    written = snapshot_from_node(NODES[0]) | {field: ""}
    (node,) = parse_ring_snapshot(json.dumps([written]))
    assert json.loads(json.dumps(snapshot_from_node(node))) == json.loads(json.dumps(written))
    with pytest.raises(InputError, match=f"{field}: ' ' is no name"):
        parse_ring_snapshot(json.dumps([written | {field: " "}]))


def test_shared_nodes_are_no_join() -> None:
    """The same ring twice is no join."""
    assert joins_between_snapshots([NODES, NODES]) == joins_between_snapshots([NODES])


def test_missing_node_is_refused() -> None:
    """Removals do not become joins."""
    with pytest.raises(InputError, match="of the previous snapshot is missing"):
        joins_between_snapshots([NODES, NODES[:1]])


def test_node_with_other_tokens_is_refused() -> None:
    """Moved tokens do not become a join."""
    with pytest.raises(InputError, match="other tokens"):
        joins_between_snapshots([NODES, (replace(NODES[0], tokens=(5,)), NODES[1])])
