"""Range tombstones as rows of a state, and which rows they delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.cql.ranges import Bound, Key, RangeTombstone
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.wire import read_value
from cdc_platform.log.state.shape import Kind
from cdc_platform.log.state.wire import components, ranks

_BEFORE, _BEHIND = 0, 1
NEVER = np.iinfo(np.int64).min
"""The time (µs) at which what was never deleted was."""


def edge_of(bound: Bound | None, schema: TableSchema, *, is_start: bool) -> bytes:
    """One end of a range as bytes: its prefix, and on which side of the rows that begin with it the edge lies."""
    prefix = () if bound is None else bound.prefix
    inclusive = bound is None or bound.inclusive
    values = zip(schema.clustering_key, prefix, strict=False)
    parts = [column.type.to_bytes(value) for column, value in values]
    side = _BEFORE if inclusive == is_start else _BEHIND
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts) + bytes([side])


def range_row(schema: TableSchema, partition: bytes, tombstone: RangeTombstone) -> dict[str, Any]:
    """The row of a state that is a range tombstone."""
    return {
        "partition": partition,
        "clustering": edge_of(tombstone.start, schema, is_start=True),
        "kind": int(Kind.RANGE_TOMBSTONE),
        "path": edge_of(tombstone.end, schema, is_start=False),
        "timestamp": tombstone.timestamp,
        "ttl": 0,
        "expires": 0,
        "dead": False,
        "inexact": False,
    }


def range_of(schema: TableSchema, row: Mapping[str, Any]) -> RangeTombstone:
    """The range tombstone that a row of a state is."""
    start = _bound(schema, row["clustering"], is_start=True)
    return RangeTombstone(start, _bound(schema, row["path"], is_start=False), Microseconds(row["timestamp"]))


def key_of(schema: TableSchema, data: bytes) -> Key:
    """The values of the clustering columns, or of the first of them, of which `wire.composed` made bytes."""
    found, at = [], 0
    for column in schema.clustering_key:
        if at == len(data):
            break
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(read_value(column.type, data[at + 4 : end]))
        at = end
    return tuple(found)


def _bound(schema: TableSchema, edge: bytes, *, is_start: bool) -> Bound | None:
    prefix = key_of(schema, edge[:-1])
    return Bound(prefix, (edge[-1] == _BEFORE) == is_start) if prefix else None


def covering(
    schema: TableSchema, ranges: pa.Table, range_partitions: np.ndarray, keys: pa.Array, partitions: np.ndarray
) -> np.ndarray:
    """The time (int64, µs) at which a range deleted each row; `NEVER` where none did.

    `ranges` are rows of a state in normal form, `keys` the clustering keys of rows; beside both stand integers that
    are equal for one partition.
    """
    count, total = ranges.num_rows, len(keys)
    if not count or not total:
        return np.full(total, NEVER)
    rows = ranges.to_pydict()
    edges = [(edge[:-1], edge[-1]) for name in ("clustering", "path") for edge in rows[name]]
    ranked = _positions(schema, keys, edges)
    # What lies at one place stands in the order: ends of ranges, starts of ranges, rows.
    role = np.concatenate([np.full(total, 2), np.full(count, 1), np.zeros(count, dtype=np.int64)])
    partition = np.concatenate([partitions, range_partitions, range_partitions])
    order = np.lexsort((role, *reversed(ranked), partition))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    here, starts, ends = rank[:total], rank[total : total + count], rank[total + count :]
    by_start = np.argsort(starts)
    place = np.searchsorted(starts[by_start], here) - 1
    found = by_start[np.maximum(place, 0)]
    inside = (place >= 0) & (here < ends[found]) & (range_partitions[found] == partitions)
    return np.where(inside, np.asarray(ranges["timestamp"])[found], NEVER)


def _positions(schema: TableSchema, keys: pa.Array, edges: list[tuple[bytes, int]]) -> list[np.ndarray]:
    """What orders rows and edges, the most significant first: an integer a clustering column, and the side."""
    columns = schema.clustering_key
    widest = len(columns)
    prefixes = [_parts(prefix) for prefix, _ in edges]
    sides = np.array([1 if side == _BEHIND else -1 for _, side in edges], dtype=np.int64)
    found = []
    for place, (column, values) in enumerate(zip(columns, components(keys, widest), strict=True)):
        told = np.array([len(parts) > place for parts in prefixes], dtype=bool)
        more = pa.array([parts[place] for parts in prefixes if len(parts) > place], pa.binary())
        ranked = ranks(column.type, pa.concat_arrays([values, more]))
        ordered = np.unique(~ranked if column.descending else ranked, return_inverse=True)[1].astype(np.int64)
        of_edges = np.where(sides > 0, np.int64(len(ordered)), np.int64(-1))
        of_edges[told] = ordered[len(keys) :]
        found.append(np.concatenate([ordered[: len(keys)], of_edges]))
    return [*found, np.concatenate([np.zeros(len(keys), dtype=np.int64), sides])]


def _parts(prefix: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(prefix):
        end = at + 4 + int.from_bytes(prefix[at : at + 4], "big")
        found.append(prefix[at + 4 : end])
        at = end
    return found
