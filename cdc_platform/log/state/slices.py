"""The state that files of a log and rows of a state come to, by slices of the ring: one is in memory at a time.

A partition is in one slice with all of its rows, and so is a batch of the log, which is of one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake.arrow import tokens_of_column
from cdc_platform.lake.encoding import one_array
from cdc_platform.lake.volume import TaskRows
from cdc_platform.log.state.of_log import partition_keys

_ROWS_A_SLICE = 100_000
_FILES_A_SLICE = 2
_TOKENS = 1 << 64
_FIRST_TOKEN = -(1 << 63)

Sources = Sequence[tuple[int, Callable[[], pa.Table]]]
"""Tables, each with its number of rows, which are read when they are asked for, and again for each slice."""


def sliced(schema: TableSchema, logs: Sources, states: Sources, merge: Callable[..., pa.Table], token: str) -> TaskRows:
    """The rows of the state in parts, each of tokens of its own and in their order, none of which is large.

    `merge` makes a state in the order of tokens, which its column `token` has, of tables of a log and of states.
    """
    rows = sum(count for count, _ in (*logs, *states))
    slices = -(-rows // _ROWS_A_SLICE)
    files = slices * _FILES_A_SLICE if slices > 1 else slices * (1 + rows * _FILES_A_SLICE // _ROWS_A_SLICE)
    files_a_slice = files // slices if slices else 0

    @lru_cache(maxsize=1)
    def of_slice(number: int) -> pa.Table:
        edges = number, number + 1, slices
        chosen = [_within(table, lambda table=table: partition_keys(schema, table), *edges) for table in _read(logs)]
        known = [_within(table, lambda table=table: table["partition"], *edges) for table in _read(states)]
        return merge(chosen, known)

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        table = of_slice(number // files_a_slice)
        tokens = np.asarray(table[token])
        first, last = (_place(tokens, edge, files) for edge in (number, number + 1))
        yield from table.slice(first, last - first).to_batches()

    return TaskRows(files, batches)


def _read(sources: Sources) -> Iterator[pa.Table]:
    return (read() for _, read in sources)


def _within(table: pa.Table, keys: Callable[[], pa.Array], first: int, last: int, of: int) -> pa.Table:
    """The rows of the partitions whose tokens are from one of so many edges of the ring up to another."""
    if of == 1 or not table.num_rows:
        return table
    tokens = tokens_of_column(one_array(keys()))
    chosen = np.ones(len(tokens), dtype=bool)
    if first:
        chosen &= tokens >= _edge(first, of)
    if last < of:
        chosen &= tokens < _edge(last, of)
    return table.filter(pa.array(chosen))


def _edge(number: int, of: int) -> np.int64:
    return np.int64(_FIRST_TOKEN + _TOKENS * number // of)


def _place(tokens: np.ndarray, number: int, of: int) -> int:
    """Where in ascending tokens an edge lies."""
    return len(tokens) if number == of else int(np.searchsorted(tokens, _edge(number, of)))
