"""Run tasks over rows in Arrow batches, in this process or as Spark tasks, past the JVM.

A single task runs in this process, as do a few array tasks on threads. Passing rows one by one between Python and the
JVM takes ten times as long as making or checking them (64 stream IDs each), so large data stays in Arrow from its
source to its file.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from cdc_platform.delta import file_cache
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.errors import error_from_task_trace, translate_errors
from cdc_platform.delta.files import open_parquet
from cdc_platform.storage import map_in_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

IN_PROCESS_VARIABLE = "CDC_PLATFORM_TASKS_IN_PROCESS"
"""The maximum number of tasks that the calling process runs itself; 0: Spark runs everything."""
_TASKS_IN_PROCESS = 1
# For numpy and Arrow work, which threads run in parallel: up to eight million streams a warm Spark takes as long on
# the cores of one machine, and a JVM takes seconds to start. Two threads are worth one and a half: hashing rows and
# calls of a few microseconds hold Python's lock, so the batches must not be small.
_ARRAY_TASKS_IN_PROCESS = 4

# The size of one batch of rows from a file: with its results it stays in the processor's last-level cache. With a
# quarter of it, a join of 1.6 million streams on two threads takes an eighth longer; with twice as much, as long. Each
# numpy call waits for Python's lock, and a call on a million bytes is long enough for the other thread to run.
_BATCH_BYTES = 1 << 22

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class TaskRows:
    """Rows in as many parts as there are Spark tasks for them: `batches(number)` yields part `number` of `tasks`.

    The function is pickled to the executors with everything that it references. Each part is independent of the others,
    and the same on every call.
    """

    tasks: int
    batches: Callable[[int], Batches]

    def map(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> TaskRows:
        """Return the same parts with every batch changed."""
        batches = self.batches
        return TaskRows(self.tasks, lambda number: map(change, batches(number)))

    def through(self, change: Callable[[Batches], Batches]) -> TaskRows:
        """Return the same parts, each changed as a whole."""
        batches = self.batches
        return TaskRows(self.tasks, lambda number: change(batches(number)))

    def frame(self, spark: SparkSession, schema: StructType | str) -> DataFrame:
        """Return the rows as a DataFrame, one partition per part; meant for results, not for large volumes."""
        if not self.tasks:
            return spark.createDataFrame([], schema)
        batches = self.batches

        def run(numbers: Batches) -> Batches:
            for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
                yield from batches(number)
            freeze_worker_heap()

        return spark.range(0, self.tasks, 1, self.tasks).mapInArrow(run, schema)


@dataclass(frozen=True, eq=False)
class FrameRows:
    """Rows of a DataFrame, one part per partition; `change` transforms a part before tasks continue with it.

    The transformed rows stay in Python: as a DataFrame they would pass through the JVM again, row by row.
    """

    frame: DataFrame
    change: Callable[[Batches], Batches] | None = None

    def table(self, work: Callable[[Batches], Batches], schema: pa.Schema) -> pa.Table:
        """Return the results of `work` for all parts, as one table; see `TaskRunner.table`."""
        from pyspark.sql.pandas.types import from_arrow_schema

        change = self.change

        def run(batches: Batches) -> Batches:
            return work(batches if change is None else change(batches))

        return self.frame.mapInArrow(run, from_arrow_schema(schema)).toArrow()


@dataclass(frozen=True, eq=False)
class TaskRunner:
    """Runs tasks in this process while they are few, otherwise as Spark tasks.

    `session` is called only when Spark is needed: a JVM takes seconds to start. `in_process` is the maximum number of
    tasks to run here, by default `CDC_PLATFORM_TASKS_IN_PROCESS` or 1; `threads` of this process run them.
    """

    session: Callable[[], SparkSession]
    in_process: int = field(default_factory=lambda: int(os.environ.get(IN_PROCESS_VARIABLE, _TASKS_IN_PROCESS)))
    threads: int = 1

    @classmethod
    def alone(cls) -> TaskRunner:
        """Return a runner that always uses this process: for rows that are already in its memory."""

        def no_session() -> SparkSession:
            raise AssertionError("rows in the memory of a process need no Spark session")

        return cls(no_session, sys.maxsize)

    def at_least(self, tasks: int) -> TaskRunner:
        """Return this runner with at least so many tasks in process; they must take less time than a JVM start."""
        return replace(self, in_process=max(self.in_process, tasks)) if self.in_process else self

    def for_arrays(self) -> TaskRunner:
        """Return this runner for numpy and Arrow work: more tasks run here, on as many threads as there are cores."""
        return replace(self.at_least(_ARRAY_TASKS_IN_PROCESS), threads=os.cpu_count() or 1)

    def runs_in_process(self, tasks: int) -> bool:
        """Return True if this process runs so many tasks itself."""
        return tasks <= self.in_process

    def parts(self, tasks: int, threads: int) -> int:
        """Return the number of parts for the work of so many tasks; in this process, a multiple of the usable threads.

        Each thread gets the same number of parts, so that none waits at the end for another's last one.
        """
        if not self.runs_in_process(tasks):
            return tasks
        used = max(1, min(threads, self.threads, self.in_process))
        return min(-(-tasks // used), self.in_process // used) * used

    def table(self, rows: TaskRows, schema: pa.Schema) -> pa.Table:
        """Return the rows of all parts as one table; meant for results, not for large volumes."""
        if self.runs_in_process(rows.tasks):
            batches = list(self._made_here(rows))
            return pa.Table.from_batches(batches, schema) if batches else schema.empty_table()
        from pyspark.sql.pandas.types import from_arrow_schema

        with translate_errors("Spark's tasks"):
            try:
                return rows.frame(self.session(), from_arrow_schema(schema)).toArrow()
            except Exception as error:
                translated = error_from_task_trace(error)
                if translated is None:
                    raise
                raise translated from error

    def _made_here(self, rows: TaskRows) -> Batches:
        """Yield the rows of all parts, in order."""
        if min(self.threads, rows.tasks) < 2:
            return chain.from_iterable(map(rows.batches, range(rows.tasks)))
        results = map_in_threads(lambda number: list(rows.batches(number)), range(rows.tasks), self.threads)
        return chain.from_iterable(results)


def group_batches_by_key(batches: Batches, key: str, size: int = sys.maxsize) -> Iterator[list[pa.RecordBatch]]:
    """Regroup batches that are ordered by a column, so that all rows with one value come together.

    The rows of the last value are held until its end, or until they exceed `size` bytes.
    """
    pending, pending_bytes = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = batch.column(key)
        start = compute.index(keys, keys[-1]).as_py()
        if start > 0:
            pending.append(batch.slice(0, start))
        if pending and pending[-1].column(key)[-1] != keys[-1]:
            yield pending
            pending, pending_bytes = [], 0
        pending.append(batch.slice(start))
        pending_bytes += pending[-1].nbytes
        if pending_bytes > size:
            yield pending
            pending, pending_bytes = [], 0
    if pending:
        yield pending


def coalesce_batches(batches: Batches, size: int) -> Batches:
    """Yield the same rows in batches of at least about `size` bytes, except the last one.

    A file has the rows of one batch in order; several batches are written by deltalake's threads in any order.
    """
    pending, pending_bytes = list[pa.RecordBatch](), 0
    for batch in batches:
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= size:
            yield pa.concat_batches(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield pa.concat_batches(pending)


@cache
def freeze_worker_heap() -> None:
    """Hide a worker's loaded objects from the garbage collector; called at the end of its first task.

    pyspark collects garbage after every task, and traversing the modules took as long (40 ms) as the audit of half a
    million streams.
    """
    gc.collect()
    gc.freeze()


def rows_from_files(paths: Sequence[str], columns: Sequence[str]) -> TaskRows:
    """Return the rows of Parquet files with these columns, one part per file."""
    files, names = list(paths), list(columns)
    return TaskRows(len(files), lambda number: read_file_batches(files[number], names))


def read_file_batches(
    path: str, columns: Sequence[str] | None = None, only: tuple[str, np.ndarray] | None = None
) -> Batches:
    """Yield the rows of one Parquet file, in order, about four megabytes at a time regardless of row length.

    `columns` selects columns. `only` selects the rows with these values (int64, ascending) of a column; nothing after
    the last of them is read.
    """
    whole = file_cache.read_cached_file(path)
    if whole is not None:
        chosen = whole if only is None else whole.filter(_is_one_of(whole[only[0]], only[1]))
        names = [name for name in columns or chosen.schema.names if name in chosen.schema.names]
        yield from map(_without_views, chosen.select(names).combine_chunks().to_batches())
        return
    with open_parquet(path) as file:
        rows, names = _get_rows_per_batch(file, _BATCH_BYTES), None if columns is None else list(columns)
        # Use one thread: the other tasks of this machine use the other cores.
        if only is None:
            yield from map(_without_views, file.iter_batches(rows, columns=names, use_threads=False))
            return
        for group in range(file.num_row_groups):
            wanted = _find_matching_rows(file, group, *only)
            positions, start = np.flatnonzero(wanted), 0
            batches = file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False)
            while start <= positions.max(initial=-1):
                batch = _without_views(next(batches))
                chosen = wanted[start : start + batch.num_rows]
                if chosen.any():
                    yield batch.filter(pa.array(chosen))
                start += batch.num_rows


def _find_matching_rows(file: pq.ParquetFile, group: int, name: str, values: np.ndarray) -> np.ndarray:
    """Return a mask of a row group's rows with one of the values; skip the read if statistics rule them out."""
    about = file.metadata.row_group(group)
    chunks = map(about.column, range(about.num_columns))
    bounds = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == name), None)
    if bounds is not None and bounds.has_min_max:
        values = values[np.searchsorted(values, bounds.min) : np.searchsorted(values, bounds.max, "right")]
    if not len(values):
        return np.zeros(about.num_rows, dtype=bool)
    column = file.read_row_group(group, columns=[name], use_threads=False)[name]
    return np.asarray(_is_one_of(column, values))


def _is_one_of(column: pa.ChunkedArray, values: np.ndarray) -> pa.ChunkedArray:
    return compute.is_in(column, pa.array(values))


def _get_rows_per_batch(file: pq.ParquetFile, size: int) -> int:
    """Return the number of a file's rows that `size` bytes hold, at least one."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    return max(1, file.metadata.num_rows * size // max(sum(group.total_byte_size for group in groups), 1))


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cast view types, which deltalake records in its files and few of Arrow's functions support."""
    schema = pa.schema([field.with_type(_type_without_views(field.type)) for field in batch.schema])
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _type_without_views(kind: pa.DataType) -> pa.DataType:
    if pat.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_without_views(kind.value_type)))
    return {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}.get(kind, kind)
