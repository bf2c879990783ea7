"""Arrow schema of a table's state, its range tombstones, and the normal form of its keys.

Keys and values are bytes of the CQL protocol, so states merge without a schema. Equal values may have several
encodings (1.0 and 1.00 are one key): a state keeps the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.column_codec import rank_values, split_components
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    DECIMAL,
    CqlType,
    KeyValues,
    RangeBound,
    RangeTombstone,
    TableSchema,
    get_element_key_type,
    value_from_bytes,
)


class StateRowKind(IntEnum):
    """What a row of a state is."""

    PARTITION_TOMBSTONE = 0
    RANGE_TOMBSTONE = 1
    ROW_TOMBSTONE = 2
    MARKER = 3
    COLLECTION_TOMBSTONE = 4
    CELL = 5


STATE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.binary(), nullable=False),
        pa.field("clustering", pa.binary()),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("path", pa.binary()),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("ttl", pa.int64(), nullable=False),
        pa.field("expires", pa.int64(), nullable=False),
        pa.field("dead", pa.bool_(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("inexact", pa.bool_(), nullable=False),
    ]
)
"""The columns of a state.

| column | |
|---|---|
| `partition` | the serialized partition key |
| `clustering` | the clustering key (`wire.composed`); null: of the static row or the partition; of a range: its start |
| `kind` | one of `StateRowKind` |
| `column` | of a cell, or a collection's tombstone: the column's name in CQL |
| `path` | of an element: its key, a list's as timeuuid, a user type's as smallint; of a range: its end |
| `timestamp` | of the write (µs) |
| `ttl`, `expires` | of cells and markers: seconds, 0 for none; and when that is (µs), 0 for never |
| `dead` | of a cell: it was deleted |
| `value` | of a live cell; null where it has none, as an element of a set |
| `inexact` | it was seen in the cluster, which does not tell when it was written: `timestamp` is but its order |

The end of a range is its prefix, composed as a clustering key is, and one byte more: whether the edge lies before (0)
or behind (1) all rows that begin with the prefix.
"""


def empty_state() -> pa.Table:
    """The state of a table to which nothing was written."""
    return STATE_SCHEMA.empty_table()


_BEFORE, _BEHIND = 0, 1
NEVER_DELETED = np.iinfo(np.int64).min
"""The time (µs) at which what was never deleted was."""


def encode_edge(bound: RangeBound | None, schema: TableSchema, *, is_start: bool) -> bytes:
    """One end of a range as bytes: its prefix, and on which side of the rows that begin with it the edge lies."""
    prefix = () if bound is None else bound.prefix
    inclusive = bound is None or bound.inclusive
    values = zip(schema.clustering_key, prefix, strict=False)
    parts = [column.type.to_bytes(value) for column, value in values]
    side = _BEFORE if inclusive == is_start else _BEHIND
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts) + bytes([side])


def range_to_row(schema: TableSchema, partition: bytes, tombstone: RangeTombstone) -> dict[str, Any]:
    """The row of a state that is a range tombstone."""
    return {
        "partition": partition,
        "clustering": encode_edge(tombstone.start, schema, is_start=True),
        "kind": int(StateRowKind.RANGE_TOMBSTONE),
        "path": encode_edge(tombstone.end, schema, is_start=False),
        "timestamp": tombstone.timestamp,
        "ttl": 0,
        "expires": 0,
        "dead": False,
        "inexact": False,
    }


def range_from_row(schema: TableSchema, row: Mapping[str, Any]) -> RangeTombstone:
    """The range tombstone that a row of a state is."""
    start = _decode_bound(schema, row["clustering"], is_start=True)
    return RangeTombstone(start, _decode_bound(schema, row["path"], is_start=False), Microseconds(row["timestamp"]))


def decode_clustering_key(schema: TableSchema, data: bytes) -> KeyValues:
    """The values of the clustering columns, or of the first of them, of which `wire.composed` made bytes."""
    found, at = [], 0
    for column in schema.clustering_key:
        if at == len(data):
            break
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(value_from_bytes(column.type, data[at + 4 : end]))
        at = end
    return tuple(found)


def _decode_bound(schema: TableSchema, edge: bytes, *, is_start: bool) -> RangeBound | None:
    prefix = decode_clustering_key(schema, edge[:-1])
    return RangeBound(prefix, (edge[-1] == _BEFORE) == is_start) if prefix else None


def find_range_deletions(
    schema: TableSchema, ranges: pa.Table, range_partitions: np.ndarray, keys: pa.Array, partitions: np.ndarray
) -> np.ndarray:
    """The time (int64, µs) at which a range deleted each row; `NEVER_DELETED` where none did.

    `ranges` are rows of a state in normal form, `keys` the clustering keys of rows; beside both stand integers that
    are equal for one partition.
    """
    count, total = ranges.num_rows, len(keys)
    if not count or not total:
        return np.full(total, NEVER_DELETED)
    rows = ranges.to_pydict()
    edges = [(edge[:-1], edge[-1]) for name in ("clustering", "path") for edge in rows[name]]
    ranked = _sort_columns(schema, keys, edges)
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
    return np.where(inside, np.asarray(ranges["timestamp"])[found], NEVER_DELETED)


def _sort_columns(schema: TableSchema, keys: pa.Array, edges: list[tuple[bytes, int]]) -> list[np.ndarray]:
    """What orders rows and edges, the most significant first: an integer a clustering column, and the side."""
    columns = schema.clustering_key
    widest = len(columns)
    prefixes = [_split_prefix(prefix) for prefix, _ in edges]
    sides = np.array([1 if side == _BEHIND else -1 for _, side in edges], dtype=np.int64)
    found = []
    for place, (column, values) in enumerate(zip(columns, split_components(keys, widest), strict=True)):
        told = np.array([len(parts) > place for parts in prefixes], dtype=bool)
        more = pa.array([parts[place] for parts in prefixes if len(parts) > place], pa.binary())
        ranked = rank_values(column.type, pa.concat_arrays([values, more]))
        ordered = np.unique(~ranked if column.descending else ranked, return_inverse=True)[1].astype(np.int64)
        of_edges = np.where(sides > 0, np.int64(len(ordered)), np.int64(-1))
        of_edges[told] = ordered[len(keys) :]
        found.append(np.concatenate([ordered[: len(keys)], of_edges]))
    return [*found, np.concatenate([np.zeros(len(keys), dtype=np.int64), sides])]


def _split_prefix(prefix: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(prefix):
        end = at + 4 + int.from_bytes(prefix[at : at + 4], "big")
        found.append(prefix[at + 4 : end])
        at = end
    return found


def normalize_key_forms(schema: TableSchema, state: pa.Table) -> pa.Table:
    """The state, which has no ranges, with one form of each key of a row and of an element."""
    if any(map(_has_several_forms, (column.type for column in schema.clustering_key))):
        order = cache(lambda data: schema.clustering_order(decode_clustering_key(schema, data)))
        state = _replace_with_shortest(state, "clustering", ("partition",), lambda row: order(row["clustering"]))
    several = {
        column.name: get_element_key_type(column.type)
        for column in schema.columns
        if column.type.multicell and _has_several_forms(get_element_key_type(column.type))
    }
    if several:
        state = _replace_with_shortest(
            state,
            "path",
            ("partition", "clustering", "column"),
            lambda row: several[row["column"]].sort_key(value_from_bytes(several[row["column"]], row["path"])),
            several,
        )
    return state


def _has_several_forms(kind: CqlType) -> bool:
    return kind == DECIMAL or any(map(_has_several_forms, kind.parts))


def _replace_with_shortest(
    state: pa.Table,
    name: str,
    beside: tuple[str, ...],
    order: Callable[[dict[str, Any]], Any],
    columns: Iterable[str] | None = None,
) -> pa.Table:
    """The state with the least form of each value of a column among the rows that are alike in those `beside`."""
    rows = state.select([*{*beside, "column", name}]).to_pylist()
    groups: list[tuple[Any, ...] | None] = []
    least: dict[tuple[Any, ...], bytes] = {}
    for row in rows:
        if row[name] is None or (columns is not None and row["column"] not in columns):
            groups.append(None)
        else:
            group = (*(row[each] for each in beside), order(row))
            least[group] = min(row[name], least.get(group, row[name]))
            groups.append(group)
    found = [row[name] if group is None else least[group] for row, group in zip(rows, groups, strict=True)]
    return state.set_column(state.schema.get_field_index(name), state.schema.field(name), pa.array(found, pa.binary()))
