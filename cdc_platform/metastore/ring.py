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
from cdc_platform.metastore import cdc_local
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import NODES

STATUS_NORMAL = "NORMAL"
"""The status of a node that owns its tokens."""
STATUS_LEFT = "LEFT"
"""The status of a former node that no longer owns tokens."""


def read_nodes(lake: Lake) -> list[Node]:
    """Return every node of `platform.nodes`, of any status."""
    return nodes_from_rows(lake.read(NODES))


def read_current_ring(lake: Lake) -> Ring:
    """Return the current ring: the nodes of `platform.nodes` with status NORMAL."""
    return Ring.of(nodes_from_rows(lake.read(NODES, filters=[("status", "=", STATUS_NORMAL)])))


def read_node_statuses(lake: Lake) -> dict[str, str]:
    """Return the status of every node by its host ID. Reads no tokens."""
    rows = lake.read(NODES, ["host_id", "status"])
    return dict(zip(rows["host_id"].to_pylist(), rows["status"].to_pylist(), strict=True))


def read_token_owner(lake: Lake, token: int) -> Node | None:
    """Return the node of any status that has a token now, None if there is none."""
    return next((node for node in read_nodes(lake) if token in node.tokens), None)


def read_node_columns(lake: Lake, names: Sequence[str]) -> pa.Table:
    """Return columns of all nodes unparsed, for audits: the values may not form valid nodes."""
    return lake.read(NODES, names)


def read_host_ids(lake: Lake, status: str = STATUS_NORMAL) -> list[str]:
    """Return the host IDs of the nodes with this status, ascending. Reads no tokens."""
    return sorted(host for host, current in read_node_statuses(lake).items() if current == status)


def read_node_features(lake: Lake) -> list[list[str] | None]:
    """Return the features of every NORMAL node, None if unknown. Reads no tokens."""
    return lake.read(NODES, ["features"], [("status", "=", STATUS_NORMAL)])["features"].to_pylist()


def write_nodes(lake: Lake, nodes: Sequence[Node], *, update: bool = True) -> int:
    """Insert nodes, and update existing ones if `update`; return the number of rows written."""
    merged = lake.merge(NODES, node_rows(nodes), update=update)
    return merged.inserted + merged.updated


@dataclass(frozen=True)
class RingReplacement:
    """The changes made by replacing the ring: host IDs, ascending, and the number of rows."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    rows_written: int


def replace_ring(lake: Lake, nodes: Sequence[Node]) -> RingReplacement:
    """Replace all nodes by these in one commit.

    First delete what the other nodes stored in their `cdc_local`: a generation that only such a node names would never
    be removed. After a kill in between, the same call does the rest.
    """
    cdc_local.forget_nodes(lake, read_node_statuses(lake).keys() - {str(node.host_id) for node in nodes})
    replaced: list[RingReplacement] = []

    def rule(rows: pa.Table) -> pa.Table:
        before, after = ({row["host_id"]: row for row in table.to_pylist()} for table in (rows, node_rows(nodes)))
        added, removed = sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys())
        changed = sorted(host for host in after.keys() & before.keys() if after[host] != before[host])
        replaced[:] = [RingReplacement(added, removed, changed, len(added) + len(removed) + len(changed))]
        return node_rows(nodes)

    lake.transact(NODES, rule, whole=True)
    return replaced[0]


def node_rows(nodes: Sequence[Node]) -> pa.Table:
    """Build rows of `platform.nodes`."""
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
    """Parse rows into nodes; rows without a status, as in the inbox, are NORMAL nodes."""
    return list(_parsed_nodes(_SameRows(rows)))


@dataclass(frozen=True, eq=False)
class _SameRows:
    """Rows compared by identity, as a cache key: a version that was read once remains the same object."""

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
