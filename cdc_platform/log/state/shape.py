"""The one shape of a base table's state in Arrow: a row a cell, row marker or tombstone, whatever table it is of.

Keys and values are bytes of CQL's protocol, so that a state needs no schema to be merged; `wire` has the way there and
back, `merging` what several rows of one place come to.
"""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa


class Kind(IntEnum):
    """What a row of a state is."""

    PARTITION_TOMBSTONE = 0
    RANGE_TOMBSTONE = 1
    ROW_TOMBSTONE = 2
    MARKER = 3
    COLLECTION_TOMBSTONE = 4
    CELL = 5


STATE = pa.schema(
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
| `kind` | one of `Kind` |
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


def empty() -> pa.Table:
    """The state of a table to which nothing was written."""
    return STATE.empty_table()
