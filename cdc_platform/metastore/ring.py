"""The nodes of the ring and their status: the owner of `platform.nodes`.

Nodes that wait to join are in `inbox`. No Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from cdc_platform.delta import Lake
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import NODES

STATUS_NORMAL = "NORMAL"
"""The status of a node that owns its tokens."""
STATUS_LEFT = "LEFT"
"""The status of a node that was there and owns nothing any more."""


def read_nodes(lake: Lake) -> list[Node]:
    """Every node of `platform.nodes`, whatever its status."""
    return nodes_from_rows(lake.read(NODES))


def read_current_ring(lake: Lake) -> Ring:
    """The ring as it stands: the nodes of `platform.nodes` with status NORMAL."""
    return Ring.of(nodes_from_rows(lake.read(NODES, filters=[("status", "=", STATUS_NORMAL)])))


def read_node_statuses(lake: Lake) -> dict[str, str]:
    """The status of every node by its host ID. Reads no tokens."""
    rows = lake.read(NODES, ["host_id", "status"])
    return dict(zip(rows["host_id"].to_pylist(), rows["status"].to_pylist(), strict=True))


def read_token_owner(lake: Lake, token: int) -> Node | None:
    """The node that has a token now, whatever its status; None where none has it."""
    return next((node for node in read_nodes(lake) if token in node.tokens), None)


def read_node_columns(lake: Lake, names: Sequence[str]) -> pa.Table:
    """Columns of all nodes as they are, for an audit of the ring: what is in them makes no node perhaps."""
    return lake.read(NODES, names)


def read_host_ids(lake: Lake, status: str = STATUS_NORMAL) -> list[str]:
    """The host IDs of the nodes with this status, ascending. Reads no tokens."""
    return sorted(host for host, is_now in read_node_statuses(lake).items() if is_now == status)


def read_node_features(lake: Lake) -> list[list[str] | None]:
    """The features of every NORMAL node, None where they are not known. Reads no tokens."""
    return lake.read(NODES, ["features"], [("status", "=", STATUS_NORMAL)])["features"].to_pylist()


def write_nodes(lake: Lake, nodes: Sequence[Node], *, update: bool = True) -> int:
    """Write nodes as they are now, or without `update` those alone that are not there; answers how many it wrote."""
    merged = lake.merge(NODES, node_rows(nodes), update=update)
    return merged.inserted + merged.updated


@dataclass(frozen=True)
class RingReplacement:
    """What another ring in place of the old one changes: host IDs, ascending, and the number of rows."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    rows_written: int


def replace_ring(lake: Lake, nodes: Sequence[Node]) -> RingReplacement:
    """Let these nodes be all that there are, in one commit."""
    replaced: list[RingReplacement] = []

    def rule(rows: pa.Table) -> pa.Table:
        before, after = ({row["host_id"]: row for row in each.to_pylist()} for each in (rows, node_rows(nodes)))
        added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
        changed = sorted(host for host in after.keys() & before.keys() if after[host] != before[host])
        replaced[:] = [RingReplacement(added, removed, changed, len(added) + len(removed) + len(changed))]
        return node_rows(nodes)

    lake.transact(NODES, rule, whole=True)
    return replaced[0]


def node_rows(nodes: Sequence[Node]) -> pa.Table:
    """Nodes as rows of `platform.nodes`."""
    return pa.Table.from_pylist(
        [
            {
                "host_id": str(node.host_id),
                "address": node.address,
                "datacenter": node.datacenter,
                "rack": node.rack,
                "status": node.status,
                "tokens": list(node.tokens),
                "shard_count": node.shard_count,
                "ignore_msb": node.ignore_msb,
                "features": list(node.features),
            }
            for node in nodes
        ],
        schema=NODES.schema,
    )


def nodes_from_rows(rows: pa.Table) -> list[Node]:
    """The nodes that rows describe; rows without a status, as the inbox has them, are of NORMAL nodes."""
    return list(_parsed_nodes(_SameRows(rows)))


@dataclass(frozen=True, eq=False)
class _SameRows:
    """Rows, and no others that are equal to them: what was read once of a version is the same object from then on."""

    rows: pa.Table

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameRows) and other.rows is self.rows

    def __hash__(self) -> int:
        return id(self.rows)


@lru_cache(maxsize=4)
def _parsed_nodes(these: _SameRows) -> tuple[Node, ...]:
    return tuple(
        Node(
            host_id=uuid.UUID(row["host_id"]),
            tokens=tuple(row["tokens"]),
            shard_count=row["shard_count"],
            ignore_msb=row["ignore_msb"],
            address=row["address"] or "",
            datacenter=row["datacenter"] or "",
            rack=row["rack"] or "",
            features=tuple(row["features"] or ()),
            status=row.get("status", STATUS_NORMAL),
        )
        for row in these.rows.to_pylist()
    )
