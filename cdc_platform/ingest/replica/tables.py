"""The two tables of a base table that is kept: what it holds now, for readers, and beside it the state that tells why.

Both are cut into slices of the token ring, so that a change rewrites the slices that it falls into and no others. What
was copied when, and up to which version of the log both are, stands in the numbers of applications of their commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds, ms_of
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import StateError
from cdc_platform.lake.arrow import compute, tokens_of_column
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table, column
from cdc_platform.log.exact import may_be_far
from cdc_platform.log.log_table import EXACT_COLUMN
from cdc_platform.log.state.selecting import Shown, selected_schema
from cdc_platform.log.state.shape import STATE
from cdc_platform.log.stored_names import AS_OF, EXACT, INEXACT, MARKED, stored
from cdc_platform.records import cdc_tables

SLICE, EXPIRES = "cdc$slice", "cdc$expires"
COPIED, SINCE, SLICES, OF, BEHIND = (f"current:{name}" for name in ("copied", "since", "slices", "of", "behind"))
"""Of the state: when the copy began (µs), from when on the log counts (µs), slices of the ring, of which table it is,
and which version of the log was there before.
"""
COPY, COVERED, SURE = "current:copy", "current:log", "current:sure"
"""Of the readers' table: of which copy it is, up to which version of the log, and up to when (µs) that is whole."""


def current_table(schema: TableSchema) -> Table:
    """The readers' table: the base table's columns, with the types that they have in its log, behind three more.

    Where a column may have values that no native one holds, there is the log's column for those as well.
    """
    keys = tuple(each.name for each in (*stored(schema).partition_key, *stored(schema).clustering_key))
    fields = [column(each.name, each.type, "as SELECT answers", null=True) for each in selected_schema(schema)]
    more = [
        column(INEXACT, pa.bool_(), "true: some of it rests on what CQL does not tell exactly"),
        column(EXPIRES, pa.int64(), "when the next of it expires, µs; null: never", null=True),
        column(SLICE, pa.int32(), "slice of the token ring, from 0"),
    ]
    return Table(
        schema.keyspace,
        schema.name,
        # Delta keeps the bounds of the first 32 columns alone, and those are what tells where something expires.
        pa.schema([*more, *fields, *([EXACT_COLUMN] if _may_be_far(schema) else [])]),
        keys=keys,
        comment=f"{schema.full_name} as the cluster has it",
        partition_by=(SLICE,),
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
    )


def cells_table(schema: TableSchema) -> Table:
    """The state of the base table: `shape.STATE`, by slices."""
    fields = [column(each.name, each.type, "see the state beside a log", null=each.nullable) for each in STATE]
    return Table(
        schema.keyspace,
        f".{schema.name}.cells",
        pa.schema([*fields, column(SLICE, pa.int32(), "slice of the token ring, from 0")]),
        keys=("partition", "clustering", "kind", "column", "path"),
        comment=f"State of {schema.full_name}, of its cluster and its log",
        partition_by=(SLICE,),
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
    )


@dataclass(frozen=True)
class Replica:
    """How a kept table stands. Times in µs; `log` and `as_of_us` are None until it was brought up once.

    Of what was written up to `sure_us` no row comes any more: all that the log got of it by a second reading is merged.
    What came into the log later than its version `behind` was not there yet when the table was copied.
    """

    copied_us: Microseconds
    since_us: Microseconds
    slices: int
    log: int | None
    as_of_us: Microseconds | None
    inexact: int
    sure_us: Microseconds
    behind: int | None


def find_replica(lake: Lake, schema: TableSchema) -> Replica | None:
    """How the table of this schema stands in the lake; None where it was not copied, or another one of its name was."""
    cells, current = cells_table(schema), current_table(schema)
    copied = lake.transaction(cells, COPIED)
    if copied is None or lake.transaction(cells, OF) != identity(schema):
        return None
    since, slices = lake.transaction(cells, SINCE), lake.transaction(cells, SLICES)
    assert since is not None
    assert slices is not None
    ours = lake.transaction(current, COPY) == copied
    log, as_of = (lake.transaction(current, name) if ours else None for name in (COVERED, AS_OF))
    marked, sure = ((lake.transaction(current, name) or 0) if ours else 0 for name in (MARKED, SURE))
    as_of_us = None if as_of is None else Microseconds(as_of)
    behind = lake.transaction(cells, BEHIND)
    return Replica(Microseconds(copied), Microseconds(since), slices, log, as_of_us, marked, Microseconds(sure), behind)


def is_replicated(lake: Lake, schema: TableSchema) -> bool:
    """Whether the table of this name is kept, or was before it was made anew."""
    return lake.transaction(cells_table(schema), COPIED) is not None


def why_not_replicable(lake: Lake, schema: TableSchema) -> str | None:
    """Why the table's log does not tell by now what becomes of the table; None where it does."""
    if schema.cdc.delta != "full":
        return f"it logs keys alone (delta '{schema.cdc.delta}')"
    if not cdc_tables.find(lake, schema.keyspace, schema.name).enabled:
        return "its CDC is off"
    return None


def assert_replicable(lake: Lake, schema: TableSchema) -> None:
    """Hold that the table's log tells what becomes of the table; raises StateError."""
    why = why_not_replicable(lake, schema)
    if why is not None:
        raise StateError(
            f"{schema.full_name} cannot be kept: {why}; ALTER TABLE {schema.full_name} WITH cdc = {{'enabled': true}} "
            "first, or ingest its log without --current"
        )


def identity(schema: TableSchema) -> int:
    """A number (63 bits) of the shape of states and of a table with these keys that was made when this one was."""
    keys = [(each.name, each.type.cql, each.kind, each.descending) for each in schema.columns if each.is_key]
    told = (STATE.names, keys, ms_of(schema.created_at_us), *((EXACT,) if _may_be_far(schema) else ()))
    return int.from_bytes(blake2b(repr(told).encode(), digest_size=8).digest(), "big") >> 1


def _may_be_far(schema: TableSchema) -> bool:
    return any(may_be_far(each.type) for each in schema.columns)


def slices_of(partitions: pa.Array, slices: int) -> np.ndarray:
    """The slice (int32) of each serialized partition key (binary)."""
    if not len(partitions):
        return np.empty(0, np.int32)
    # Rows of a partition come together: it is hashed once for all of them.
    begins = np.append(True, np.asarray(compute.not_equal(partitions[1:], partitions[:-1])))
    tokens = tokens_of_column(partitions.filter(pa.array(begins))).astype(np.int64)
    ends = np.array([low for low, _ in ranges(slices)], np.int64)
    found = (np.searchsorted(ends, tokens, side="left") - 1).clip(0).astype(np.int32)
    return found[np.cumsum(begins) - 1]


def ranges(slices: int) -> list[tuple[int, int]]:
    """The tokens of each slice: behind the first number up to and with the second."""
    first, last = -(2**63), 2**63 - 1
    edges = [first + (last - first) * place // slices for place in range(slices + 1)]
    return list(pairwise(edges))


def with_slices(state: pa.Table, slices: int) -> pa.Table:
    """Rows of a state as the state's table has them."""
    state = state.combine_chunks()
    keys = state["partition"].combine_chunks() if state.num_rows else pa.array([], pa.binary())
    return state.append_column(pa.field(SLICE, pa.int32(), nullable=False), pa.array(slices_of(keys, slices)))


def for_readers(schema: TableSchema, found: Shown, slices: int) -> pa.Table:
    """The rows of a state as the readers' table has them."""
    table = current_table(schema)
    marks = {
        INEXACT: pa.array(found.inexact),
        EXPIRES: pa.array(found.expires, mask=found.expires == 0),
        SLICE: pa.array(slices_of(found.partitions, slices)),
        EXACT: pa.array(_pairs(found), EXACT_COLUMN.type),
    }
    arrays = [marks[name] if name in marks else found.rows[name] for name in table.schema.names]
    return pa.table(arrays, schema=table.schema)


def _pairs(found: Shown) -> list[list[tuple[str, str]] | None]:
    """As Arrow takes a map: by row what no native column holds."""
    pairs: list[list[tuple[str, str]] | None] = [None] * found.rows.num_rows
    for row, beside in found.exact.items():
        pairs[row] = list(beside.items())
    return pairs
