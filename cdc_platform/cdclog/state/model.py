"""Arrow schema of a table's state, its range tombstones, and the normal form of its keys.

Keys and values are bytes of the CQL protocol, so states merge without a schema. Equal values may have several
encodings (1.0 and 1.00 are one key): a state keeps the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from hashlib import blake2b
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
    join_length_prefixed,
    split_length_prefixed,
    value_from_bytes,
)


class StateRowKind(IntEnum):
    """The kind of a state row."""

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
| `clustering` | the clustering key (`encode_clustering_key`); null: static row or partition; of a range: its start |
| `kind` | one of `StateRowKind` |
| `column` | of a cell, or a collection's tombstone: the column's name in CQL |
| `path` | of an element: its key, a list's as timeuuid, a user type's as smallint; of a range: its end |
| `timestamp` | of the write (µs) |
| `ttl`, `expires` | of cells and markers: seconds, 0 for none; and the expiry time (µs), 0 for never |
| `dead` | of a cell: it was deleted |
| `value` | of a live cell; null if it has none, as an element of a set |
| `inexact` | it was read from the cluster, which does not return write times: `timestamp` only gives the order |

The end of a range is its prefix, composed as a clustering key is, and one byte more, which is 0 if the edge lies before
all rows that begin with the prefix, and 1 if it lies after them.
"""


def hash_identity(facts: tuple[object, ...]) -> int:
    """Return a number (63 bits) that Delta's log stores of a state, to detect a state of another table."""
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest(), "big") >> 1


def empty_state() -> pa.Table:
    """Return the state of a table without writes."""
    return STATE_SCHEMA.empty_table()


_BEFORE, _BEHIND = 0, 1
NEVER_DELETED = np.iinfo(np.int64).min
"""The deletion time (µs) of something that was never deleted."""


def encode_edge(bound: RangeBound | None, schema: TableSchema, *, is_start: bool) -> bytes:
    """Encode one end of a range: its prefix, and whether the edge lies before or after rows with the prefix."""
    prefix = () if bound is None else bound.prefix
    inclusive = bound is None or bound.inclusive
    values = zip(schema.clustering_key, prefix, strict=False)
    side = _BEFORE if inclusive == is_start else _BEHIND
    return join_length_prefixed(column.type.to_bytes(value) for column, value in values) + bytes([side])


def range_to_row(schema: TableSchema, partition: bytes, tombstone: RangeTombstone) -> dict[str, Any]:
    """Return a range tombstone as a state row."""
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
    """Return the range tombstone of a state row."""
    start = _decode_bound(schema, row["clustering"], is_start=True)
    return RangeTombstone(start, _decode_bound(schema, row["path"], is_start=False), Microseconds(row["timestamp"]))


def encode_clustering_key(schema: TableSchema, key: KeyValues) -> bytes:
    """Encode a clustering key as states store it."""
    return join_length_prefixed(
        column.type.to_bytes(value) for column, value in zip(schema.clustering_key, key, strict=True)
    )


def decode_clustering_key(schema: TableSchema, data: bytes) -> KeyValues:
    """Decode a clustering key, or the leading values of one (see `encode_clustering_key`)."""
    parts = split_length_prefixed(data)
    return tuple(
        value_from_bytes(column.type, part or b"") for column, part in zip(schema.clustering_key, parts, strict=False)
    )


def _decode_bound(schema: TableSchema, edge: bytes, *, is_start: bool) -> RangeBound | None:
    prefix = decode_clustering_key(schema, edge[:-1])
    return RangeBound(prefix, (edge[-1] == _BEFORE) == is_start) if prefix else None


def find_range_deletions(
    schema: TableSchema, ranges: pa.Table, range_partitions: np.ndarray, keys: pa.Array, partitions: np.ndarray
) -> np.ndarray:
    """Return the time (int64, µs) at which a range deleted each row; `NEVER_DELETED` if none did.

    `ranges` are state rows in normal form, and `keys` are the clustering keys of rows. `range_partitions` and
    `partitions` are integers that are equal for rows of one partition.
    """
    count, total = ranges.num_rows, len(keys)
    if not count or not total:
        return np.full(total, NEVER_DELETED)
    rows = ranges.to_pydict()
    edges = [(edge[:-1], edge[-1]) for name in ("clustering", "path") for edge in rows[name]]
    ranked = _sort_columns(schema, keys, edges)
    # At equal positions ends of ranges come first, then starts of ranges, then rows.
    role = np.concatenate([np.full(total, 2), np.full(count, 1), np.zeros(count, dtype=np.int64)])
    partition = np.concatenate([partitions, range_partitions, range_partitions])
    order = np.lexsort((role, *reversed(ranked), partition))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    row_ranks, starts, ends = rank[:total], rank[total : total + count], rank[total + count :]
    by_start = np.argsort(starts)
    index = np.searchsorted(starts[by_start], row_ranks) - 1
    candidates = by_start[np.maximum(index, 0)]
    inside = (index >= 0) & (row_ranks < ends[candidates]) & (range_partitions[candidates] == partitions)
    return np.where(inside, np.asarray(ranges["timestamp"])[candidates], NEVER_DELETED)


def _sort_columns(schema: TableSchema, keys: pa.Array, edges: list[tuple[bytes, int]]) -> list[np.ndarray]:
    """Return the sort keys of rows and edges, most significant first: one per clustering column, and the side."""
    columns = schema.clustering_key
    widest = len(columns)
    prefixes = [list(split_length_prefixed(prefix)) for prefix, _ in edges]
    sides = np.array([1 if side == _BEHIND else -1 for _, side in edges], dtype=np.int64)
    sort_keys = []
    for index, (column, values) in enumerate(zip(columns, split_components(keys, widest), strict=True)):
        has_value = np.array([len(parts) > index for parts in prefixes], dtype=bool)
        more = pa.array([parts[index] for parts in prefixes if len(parts) > index], pa.binary())
        ranked = rank_values(column.type, pa.concat_arrays([values, more]))
        ordered = np.unique(~ranked if column.descending else ranked, return_inverse=True)[1].astype(np.int64)
        edge_ranks = np.where(sides > 0, np.int64(len(ordered)), np.int64(-1))
        edge_ranks[has_value] = ordered[len(keys) :]
        sort_keys.append(np.concatenate([ordered[: len(keys)], edge_ranks]))
    return [*sort_keys, np.concatenate([np.zeros(len(keys), dtype=np.int64), sides])]


def normalize_key_forms(schema: TableSchema, state: pa.Table) -> pa.Table:
    """Return a state without ranges with one form of each row key and element key."""
    if any(map(_has_several_forms, (column.type for column in schema.clustering_key))):
        order = cache(lambda data: schema.clustering_order(decode_clustering_key(schema, data)))
        state = _replace_with_shortest(state, "clustering", ("partition",), lambda row: order(row["clustering"]))
    ambiguous = {
        column.name: get_element_key_type(column.type)
        for column in schema.columns
        if column.type.multicell and _has_several_forms(get_element_key_type(column.type))
    }
    if ambiguous:
        state = _replace_with_shortest(
            state,
            "path",
            ("partition", "clustering", "column"),
            lambda row: ambiguous[row["column"]].sort_key(value_from_bytes(ambiguous[row["column"]], row["path"])),
            ambiguous,
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
    """Replace each value of a column by the least form among rows that agree in the columns `beside`."""
    rows = state.select([*{*beside, "column", name}]).to_pylist()
    groups: list[tuple[Any, ...] | None] = []
    least: dict[tuple[Any, ...], bytes] = {}
    for row in rows:
        if row[name] is None or (columns is not None and row["column"] not in columns):
            groups.append(None)
        else:
            group = (*(row[key] for key in beside), order(row))
            least[group] = min(row[name], least.get(group, row[name]))
            groups.append(group)
    values = [row[name] if group is None else least[group] for row, group in zip(rows, groups, strict=True)]
    return state.set_column(state.schema.get_field_index(name), state.schema.field(name), pa.array(values, pa.binary()))
