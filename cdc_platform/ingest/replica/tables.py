"""The two tables of a replicated table, partitioned by token range.

One table has the current rows for readers; the other has the state that explains them. Both are partitioned by token
range, so a change rewrites only the partitions that it falls into. The application numbers of their commits record
what was copied, and up to which version of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import (
    AS_OF_APPLICATION,
    EXACT,
    EXACT_COLUMN,
    INEXACT,
    INEXACT_APPLICATION,
    STATE_SCHEMA,
    SelectedRows,
    hash_identity,
    may_be_out_of_range,
    select_schema,
    with_stored_names,
)
from cdc_platform.clock import Microseconds, ms_from_us
from cdc_platform.cql import TableSchema, format_cdc_enabling
from cdc_platform.delta import Lake, compute, tokens_from_keys
from cdc_platform.errors import StateError
from cdc_platform.metastore import cdc_tables
from cdc_platform.tables import Table, column

RANGE, EXPIRES = "cdc$slice", "cdc$expires"
COPIED, SINCE, RANGES, IDENTITY, LOG_BEFORE_COPY = (
    f"current:{name}" for name in ("copied", "since", "slices", "of", "behind")
)
"""Applications of the state's commits.

They hold when the copy began (µs), from when on the log counts (µs), the number of token ranges, the table's identity,
and the log's version before the copy.
"""
COPY, MERGED_LOG, SURE = "current:copy", "current:log", "current:sure"
"""Of the readers' table: the copy that it comes from, the log version merged, and up to when (µs) that is complete."""


def current_table(schema: TableSchema) -> Table:
    """Return the readers' table: the base table's columns, with their types in its log, after three more.

    If a column may have values out of its native type's range, the log's column for those is there too.
    """
    keys = tuple(
        item.name for item in (*with_stored_names(schema).partition_key, *with_stored_names(schema).clustering_key)
    )
    fields = [column(item.name, item.type, "as SELECT returns it", null=True) for item in select_schema(schema)]
    extra_fields = [
        column(INEXACT, pa.bool_(), "true: part of the row rests on times that CQL does not report"),
        column(EXPIRES, pa.int64(), "when the next value of the row expires, µs; null: never", null=True),
        column(RANGE, pa.int32(), "token range, counted from 0"),
    ]
    return Table(
        schema.keyspace,
        schema.name,
        # Delta has bounds of the first 32 columns only, and these bounds show where something expires.
        pa.schema([*extra_fields, *fields, *([EXACT_COLUMN] if _may_be_out_of_range(schema) else [])]),
        keys=keys,
        comment=f"Current rows of {schema.full_name}, replicated from its cluster",
        partition_by=(RANGE,),
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
    )


def cells_table(schema: TableSchema) -> Table:
    """Return the table of the base table's state (`STATE_SCHEMA`), by token range."""
    fields = [column(field.name, field.type, "see the state of a log", null=field.nullable) for field in STATE_SCHEMA]
    return Table(
        schema.keyspace,
        f".{schema.name}.cells",
        pa.schema([*fields, column(RANGE, pa.int32(), "token range, counted from 0")]),
        keys=("partition", "clustering", "kind", "column", "path"),
        comment=f"State of {schema.full_name}, merged from a copy and its log",
        partition_by=(RANGE,),
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
    )


@dataclass(frozen=True)
class Replica:
    """The state of a replicated table. Times in µs; `log` and `as_of_us` are None before the first update.

    No more rows arrive of writes up to `sure_us`: everything that the second pass added to the log is merged. Log rows
    added after its version `log_before_copy` arrived after the copy.
    """

    copied_us: Microseconds
    since_us: Microseconds
    ranges: int
    log: int | None
    as_of_us: Microseconds | None
    inexact: int
    sure_us: Microseconds
    log_before_copy: int | None


def find_replica(lake: Lake, schema: TableSchema) -> Replica | None:
    """Return a table's replica in the lake; None if there is no copy, or one of another table of its name."""
    cells, current = cells_table(schema), current_table(schema)
    copied = lake.transaction(cells, COPIED)
    if copied is None or lake.transaction(cells, IDENTITY) != identity(schema):
        return None
    since, ranges = lake.transaction(cells, SINCE), lake.transaction(cells, RANGES)
    assert since is not None
    assert ranges is not None
    ours = lake.transaction(current, COPY) == copied
    log, as_of = (lake.transaction(current, name) if ours else None for name in (MERGED_LOG, AS_OF_APPLICATION))
    marked, sure = ((lake.transaction(current, name) or 0) if ours else 0 for name in (INEXACT_APPLICATION, SURE))
    as_of_us = None if as_of is None else Microseconds(as_of)
    before_copy = lake.transaction(cells, LOG_BEFORE_COPY)
    return Replica(
        Microseconds(copied), Microseconds(since), ranges, log, as_of_us, marked, Microseconds(sure), before_copy
    )


def is_replicated(lake: Lake, schema: TableSchema) -> bool:
    """Return True if a table of this name is replicated, or was before it was recreated."""
    return lake.transaction(cells_table(schema), COPIED) is not None


def why_not_replicable(lake: Lake, schema: TableSchema) -> str | None:
    """Return why no log reports what changes in the table; None if one does."""
    if not cdc_tables.find_cdc_table(lake, schema.keyspace, schema.name).enabled:
        return "its CDC is disabled"
    return None


def assert_replicable(lake: Lake, schema: TableSchema) -> None:
    """Raise StateError unless the table's log reports what changes in the table."""
    why = why_not_replicable(lake, schema)
    if why is not None:
        raise StateError(
            f"{schema.full_name} cannot be replicated: {why}; run {format_cdc_enabling(schema)} first, or ingest its "
            "log without --current"
        )


def identity(schema: TableSchema) -> int:
    """Return a number (63 bits) for the state's schema and a table with these keys and this creation time."""
    keys = [
        (key_column.name, key_column.type.cql, key_column.kind, key_column.descending)
        for key_column in schema.columns
        if key_column.is_key
    ]
    facts = (
        STATE_SCHEMA.names,
        keys,
        ms_from_us(schema.created_at_us),
        *((EXACT,) if _may_be_out_of_range(schema) else ()),
    )
    return hash_identity(facts)


def _may_be_out_of_range(schema: TableSchema) -> bool:
    return any(may_be_out_of_range(column.type) for column in schema.columns)


def ranges_from_keys(partitions: pa.Array, count: int) -> np.ndarray:
    """Return the token range (int32) of each serialized partition key (binary)."""
    if not len(partitions):
        return np.empty(0, np.int32)
    # Rows of a partition are adjacent, so it is hashed once for all of them.
    begins = np.append(True, np.asarray(compute.not_equal(partitions[1:], partitions[:-1])))
    tokens = tokens_from_keys(partitions.filter(pa.array(begins))).astype(np.int64)
    ends = np.array([low for low, _ in split_ring(count)], np.int64)
    indices = (np.searchsorted(ends, tokens, side="left") - 1).clip(0).astype(np.int32)
    return indices[np.cumsum(begins) - 1]


def split_ring(count: int) -> list[tuple[int, int]]:
    """Return each range's tokens as (exclusive start, inclusive end)."""
    first, last = -(2**63), 2**63 - 1
    edges = [first + (last - first) * index // count for index in range(count + 1)]
    return list(pairwise(edges))


def with_ranges(state: pa.Table, count: int) -> pa.Table:
    """Return the rows of a state with their token range, as in the state's table."""
    state = state.combine_chunks()
    keys = state["partition"].combine_chunks() if state.num_rows else pa.array([], pa.binary())
    return state.append_column(pa.field(RANGE, pa.int32(), nullable=False), pa.array(ranges_from_keys(keys, count)))


def for_readers(schema: TableSchema, selected: SelectedRows, count: int) -> pa.Table:
    """Return the rows of a state as in the readers' table."""
    table = current_table(schema)
    marks = {
        INEXACT: pa.array(selected.inexact),
        EXPIRES: pa.array(selected.expires, mask=selected.expires == 0),
        RANGE: pa.array(ranges_from_keys(selected.partitions, count)),
        EXACT: pa.array(_pairs(selected), EXACT_COLUMN.type),
    }
    arrays = [marks[name] if name in marks else selected.rows[name] for name in table.schema.names]
    return pa.table(arrays, schema=table.schema)


def _pairs(selected: SelectedRows) -> list[list[tuple[str, str]] | None]:
    """Return the out-of-range values by row, as Arrow takes a map."""
    pairs: list[list[tuple[str, str]] | None] = [None] * selected.rows.num_rows
    for row, values in selected.exact.items():
        pairs[row] = list(values.items())
    return pairs
