"""The generation ID and the rewrite marker of each node: the owner of `system.cdc_local`.

A node's generation never goes back to an older one, and an existing marker remains unchanged. No Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from cdc_platform.clock import Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake, to_milliseconds, to_python_values
from cdc_platform.generations import GenerationId
from cdc_platform.tables import CDC_LOCAL

GENERATION_KEY = "cdc_local"
"""The key of the row with the node's newest generation."""
REWRITTEN_KEY = "rewritten"
"""The key of the marker that the node has nothing, or nothing more, to rewrite."""


@dataclass(frozen=True)
class NodeLocalRow:
    """A row of a node under a key; the time (ms) and the UUID are each None if the row has none."""

    host_id: str
    key: str
    time_ms: Milliseconds | None
    uuid: str | None = None


def read_cdc_local(lake: Lake) -> dict[tuple[str, str], NodeLocalRow]:
    """Return every row by its node and key."""
    return {(row.host_id, row.key): row for row in _read(lake, [])}


def hosts_with_cdc_local(lake: Lake) -> set[str]:
    """Return the nodes that have a row of any content."""
    return set(lake.read(CDC_LOCAL, ["host_id"])["host_id"].to_pylist())


def read_node_generation_ids(lake: Lake) -> dict[str, GenerationId]:
    """Return the generation ID that each node has stored, by host ID. A row without a time counts as missing."""
    return {
        row.host_id: _generation_id(row.time_ms, row.uuid)
        for row in _read(lake, [_IS_GENERATION])
        if row.time_ms is not None
    }


def read_node_generation_id(lake: Lake, host_id: UUID | str) -> GenerationId | None:
    """Return the ID that a node has stored: V1 if it has no UUID, None if the node has none."""
    row = next(_read(lake, [("host_id", "=", str(host_id)), _IS_GENERATION]), None)
    return None if row is None or row.time_ms is None else _generation_id(row.time_ms, row.uuid)


def store_node_generation_id(lake: Lake, host_id: UUID | str, id: GenerationId) -> bool:
    """Store an ID at a node unless it has the same or a newer one; return True if it was stored."""

    def newer() -> pa.Table | None:
        before = read_node_generation_id(lake, host_id)
        if before is not None and before.time_ms >= id.time_ms:
            return None
        return cdc_local_rows([_generation_row(str(host_id), id)])

    return lake.merge_judged(CDC_LOCAL, newer, update=True) is not None


def store_first_generation_ids(lake: Lake, host_ids: Collection[UUID], id: GenerationId) -> None:
    """Store this ID at those of the nodes that have no row yet, in one commit."""
    _write(lake, [_generation_row(str(host), id) for host in host_ids], update=False)


def store_introduced_generation_id(lake: Lake, host_id: UUID | str, id: GenerationId, *, joins: bool) -> None:
    """Store a generation's ID at the node that makes it, and the rewrite marker if the node `joins`.

    Writes both in one commit. A node that has learnt of a newer generation since keeps the newer ID.
    """

    def not_older() -> pa.Table | None:
        before = read_node_generation_id(lake, host_id)
        if before is not None and before.time_ms > id.time_ms:
            return None
        return cdc_local_rows(
            [_generation_row(str(host_id), id), *([NodeLocalRow(str(host_id), REWRITTEN_KEY, None)] if joins else [])]
        )

    lake.merge_judged(CDC_LOCAL, not_older, update=True)


def advance_node_generation_ids(lake: Lake, host_ids: Collection[str], id: GenerationId) -> None:
    """Replace older IDs by this one at those of the nodes that have an ID, in one commit.

    The generation of a node without a row is unknown, so this does not create one.
    """
    where = [_IS_GENERATION, ("host_id", "in", list(host_ids))]
    hosts = lake.read(CDC_LOCAL, ["host_id"], where)["host_id"].to_pylist()
    lake.raise_column(CDC_LOCAL, cdc_local_rows(_generation_row(host, id) for host in hosts), "streams_timestamp")


def forget_nodes(lake: Lake, host_ids: Collection[str]) -> int:
    """Delete the rows of nodes that are no longer part of the cluster; return the number of rows."""
    return lake.delete(CDC_LOCAL, [("host_id", "in", sorted(host_ids))]) if host_ids else 0


def hosts_with_rewrite_marker(lake: Lake) -> set[str]:
    """Return the nodes that have the marker."""
    return set(lake.read(CDC_LOCAL, ["host_id"], [_IS_MARKER])["host_id"].to_pylist())


def has_dated_rewrite_marker(lake: Lake) -> bool:
    """Return True if a marker has a time, as a rewrite's has; one without a time means there was nothing to rewrite."""
    times = lake.read(CDC_LOCAL, ["streams_timestamp"], [_IS_MARKER])["streams_timestamp"]
    return times.null_count < len(times)


def write_rewrite_markers(lake: Lake, host_ids: Sequence[str], newest_ms: Milliseconds | None) -> None:
    """Write the marker of each node with the newest rewritten time (ms); existing markers remain unchanged."""
    _write(lake, [NodeLocalRow(host, REWRITTEN_KEY, newest_ms) for host in host_ids], update=False)


def cdc_local_rows(rows: Iterable[NodeLocalRow]) -> pa.Table:
    """Build the rows of the table."""
    return pa.Table.from_pylist(
        [
            {
                "host_id": row.host_id,
                "key": row.key,
                "streams_timestamp": None if row.time_ms is None else datetime_from_ms(row.time_ms),
                "uuid": row.uuid,
            }
            for row in rows
        ],
        schema=CDC_LOCAL.schema,
    )


@dataclass(frozen=True)
class LocalDisk:
    """The state that a node of the lake preserves over a restart, stored in `system.cdc_local`."""

    lake: Lake
    host_id: UUID

    def load_id(self) -> GenerationId | None:
        """Return the ID that the node has stored, None if it has none."""
        return read_node_generation_id(self.lake, self.host_id)

    def store_id(self, id: GenerationId) -> bool:
        """Store an ID unless the node has the same or a newer one; return True if it was stored."""
        return store_node_generation_id(self.lake, self.host_id, id)


_IS_GENERATION = ("key", "=", GENERATION_KEY)
_IS_MARKER = ("key", "=", REWRITTEN_KEY)


def _read(lake: Lake, where: list[tuple[str, str, object]]) -> Iterator[NodeLocalRow]:
    rows = lake.read(CDC_LOCAL, filters=where)
    hosts, keys, uuids = (to_python_values(rows[name]) for name in ("host_id", "key", "uuid"))
    return map(NodeLocalRow, hosts, keys, to_milliseconds(rows["streams_timestamp"]), uuids)


def _write(lake: Lake, rows: Sequence[NodeLocalRow], *, update: bool) -> None:
    lake.merge(CDC_LOCAL, cdc_local_rows(rows), update=update)


def _generation_row(host_id: str, id: GenerationId) -> NodeLocalRow:
    return NodeLocalRow(host_id, GENERATION_KEY, id.time_ms, None if id.uuid is None else str(id.uuid))


def _generation_id(time_ms: Milliseconds, uuid: str | None) -> GenerationId:
    return GenerationId(time_ms, None if uuid is None else UUID(uuid))
