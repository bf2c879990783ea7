"""The rows about a replicated table: changes in one part of it and in all of it, relative to rewriting both its tables.

They need no server, because the log's rows determine every change and nothing is read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import Result, paired
from bench.session import Bench
from cdc_platform.cdclog import STATE_SCHEMA, StateRowKind, join_components, log_table
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.clock import DAY_SECONDS, Clock, Microseconds, us_from_seconds
from cdc_platform.cql import INT, TEXT, CdcOptions, Column, TableSchema
from cdc_platform.delta import Batches, Lake, TaskRows, TaskRunner, fixed_width_to_arrow
from cdc_platform.ingest import ReadPolicy, ReplicationResult
from cdc_platform.ingest.replica import tables as kept
from cdc_platform.ingest.replica.replica import ROWS_AT_ONCE, TableReplicator
from cdc_platform.spark import frames

ROWS_VARIABLE = "CDC_PLATFORM_BENCH_KEPT_ROWS"
_ROWS, _QUICK_ROWS = 5_000_000, 20_000
_ROWS_A_PARTITION, _SLICES, _CELLS_A_ROW = 10, 100, 3
_COPIED_US = Microseconds(1_790_000_000_000_000)
_SCHEMA = TableSchema(
    "bench",
    "kept",
    (Column("p", INT, "partition"), Column("k", INT, "clustering"), Column("a", INT), Column("b", TEXT)),
    CdcOptions(enabled=True),
)


def keeping_current(bench: Bench) -> list[Result]:
    """Change one row in a hundred: all in a hundredth of the ring, and anywhere."""
    full = int(os.environ.get(ROWS_VARIABLE, _ROWS))
    count = full if bench.sizes.repeats > 1 else _QUICK_ROWS
    with bench.scratch() as folder:
        table = _Kept(folder / "lake", count)
        table.bring(Microseconds(_COPIED_US + 1))
        together = table.measured(table.inside, min(3, bench.sizes.repeats))
        spread = table.measured(table.anywhere, min(3, bench.sizes.repeats))
    at = f"{count:,} rows, 1 % changed"
    floor = "rewriting both of its tables as they are"
    return [
        Result("kept-one-part", f"{at} in 1 % of the ring", together.seconds, floor, together.floor_seconds,
               together.ratio, 0.1),
        Result("kept-anywhere", f"{at} anywhere", spread.seconds, floor, spread.floor_seconds, spread.ratio, 1.2),
    ]  # fmt: skip


class _Kept:
    """A table of `count` rows as a copy leaves it, each with a marker and two cells, and its log."""

    def __init__(self, folder: Path, count: int) -> None:
        self._lake, self._count, self._round = Lake(folder), count, 0
        self._dice = np.random.default_rng(7)
        keys = np.arange(count // _ROWS_A_PARTITION, dtype=np.int32)
        slices = kept.ranges_from_keys(_bytes_of(keys), _SLICES)
        self._of_slices = [keys[slices == number] for number in range(_SLICES)]
        cells = kept.cells_table(_SCHEMA)
        self._lake.ensure(cells)
        state_rows = TaskRows(_SLICES, lambda number: iter(_state(self._of_slices[number], number).to_batches()))
        marks = {
            kept.COPIED: _COPIED_US,
            kept.SINCE: _COPIED_US,
            kept.RANGES: _SLICES,
            kept.IDENTITY: kept.identity(_SCHEMA),
        }
        frames.replace_all_rows(TaskRunner.alone(), self._lake, cells, state_rows, ("current:commits", 1), marks)
        self._lake.ensure(log_table(_SCHEMA))

    def inside(self) -> np.ndarray:
        """Return the partitions and rows of a hundredth of all rows, in one part of the ring."""
        keys = self._of_slices[self._round % _SLICES]
        rows = np.arange(len(keys) * _ROWS_A_PARTITION)
        return np.stack([keys[rows // _ROWS_A_PARTITION], rows % _ROWS_A_PARTITION])

    def anywhere(self) -> np.ndarray:
        """Return the partitions and rows of a hundredth of all rows, anywhere."""
        rows = self._dice.choice(self._count, self._count // 100, replace=False)
        return np.stack([rows // _ROWS_A_PARTITION, rows % _ROWS_A_PARTITION])

    def measured(self, drawn: Callable[[], np.ndarray], repeats: int) -> Any:
        """Measure the replication of changes to such rows, relative to rewriting the table."""

        def subject() -> None:
            done = self.bring(Microseconds(_COPIED_US + us_from_seconds(self._round)))
            assert done.rows == self._count, done

        return paired(subject, self._rewrite, repeats=repeats, prepare=lambda: self._change(drawn()))

    def bring(self, as_of_us: Microseconds) -> ReplicationResult:
        """Replicate the table up to its log."""
        unasked: Any = None
        keeper = TableReplicator(unasked, self._lake, Clock(as_of_us), _SCHEMA, TaskRunner.alone(), ReadPolicy(), print)
        return keeper.replicate(as_of_us, _COPIED_US, us_from_seconds(DAY_SECONDS), recopy=False)

    def _change(self, rows: np.ndarray) -> None:
        """Log an update of each row."""
        self._round += 1
        count, at = rows.shape[1], _COPIED_US + us_from_seconds(self._round - 1)
        typed = {
            "operation": np.full(count, 1, np.int8),
            "timestamp": at + 1 + np.arange(count) % 997,
            "p": rows[0].astype(np.int32),
            "k": rows[1].astype(np.int32),
            "a": np.full(count, self._round, np.int32),
        }
        write_schema = typed_writes_schema(_SCHEMA)
        arrays = [
            pa.array(typed[column.name], column.type) if column.name in typed else pa.nulls(count, column.type)
            for column in write_schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=write_schema)
        encoded = encode_log_batch(_SCHEMA, batch, lambda keys, _: pa.array([bytes(16)] * len(keys), pa.binary()))
        log = log_table(_SCHEMA)
        self._lake.append_once(log, pa.Table.from_batches([encoded]), {"bench": self._round}, self._round - 1 or None)

    def _rewrite(self) -> None:
        """Rewrite both tables with the same contents, in the batch sizes of a merge."""
        lake = self._lake
        together = max(1, ROWS_AT_ONCE * _SLICES // (_CELLS_A_ROW * self._count))
        groups = [list(range(first, min(first + together, _SLICES))) for first in range(0, _SLICES, together)]
        for table in (kept.cells_table(_SCHEMA), kept.current_table(_SCHEMA)):

            def batches(number: int, table: Any = table) -> Batches:
                yield from lake.read(table, filters=[(kept.RANGE, "in", groups[number])]).combine_chunks().to_batches()

            frames.replace_all_rows(TaskRunner.alone(), lake, table, TaskRows(len(groups), batches))


def _state(keys: np.ndarray, number: int) -> pa.Table:
    """Return a marker and two cells for each row of some partitions, as in the state's table."""
    rows = np.repeat(keys, _ROWS_A_PARTITION)
    clusterings = np.tile(np.arange(_ROWS_A_PARTITION, dtype=np.int32), len(keys))
    partition, count = _bytes_of(rows), len(rows)
    composed_keys = join_components([_bytes_of(clusterings)], count)
    parts: list[pa.Table] = []
    for kind, column, values in (
        (StateRowKind.MARKER, None, pa.nulls(count, pa.binary())),
        (StateRowKind.CELL, "a", _bytes_of(rows)),
        (StateRowKind.CELL, "b", pa.array([b"value of row %d" % row for row in range(count)], pa.binary())),
    ):
        none = pa.array(np.zeros(count, np.int64))
        columns = {
            "partition": partition,
            "clustering": composed_keys,
            "kind": pa.array(np.full(count, kind, np.int8)),
            "column": pa.nulls(count, pa.string()) if column is None else pa.repeat(column, count),
            "path": pa.nulls(count, pa.binary()),
            "timestamp": pa.array(np.full(count, _COPIED_US - 1)),
            "ttl": none,
            "expires": none,
            "dead": pa.array(np.zeros(count, bool)),
            "value": values,
            "inexact": pa.array(np.zeros(count, bool)),
        }
        parts.append(pa.table(columns, schema=STATE_SCHEMA))
    whole = pa.concat_tables(parts)
    return whole.append_column(
        pa.field(kept.RANGE, pa.int32(), nullable=False), pa.repeat(np.int32(number), len(whole))
    )


def _bytes_of(values: np.ndarray) -> pa.Array:
    """Return integers as CQL bytes."""
    return fixed_width_to_arrow(values.astype(">i4"))
