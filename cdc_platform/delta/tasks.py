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
"""How many tasks of work are done in the process that asks; 0: Spark does everything."""
_TASKS_IN_PROCESS = 1
# Of numpy's and Arrow's work, which threads do side by side: up to eight million streams a warm Spark takes as long on
# the cores of one machine, and a JVM starts in seconds. Two threads are worth one and a half: what hashes rows, and
# what takes microseconds a call, holds Python's lock, for which reason their batches are not small.
_ARRAY_TASKS_IN_PROCESS = 4

# Of one batch of rows from a file: with what is made from it, it stays in the processor's last cache. Of a fourth of it
# a join of 1.6 million streams on two threads takes an eighth longer, of twice as much as long: each call of numpy's
# waits for Python's lock, and a call of a million bytes lasts long enough for the other thread to work beside it.
_BATCH_BYTES = 1 << 22

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class TaskRows:
    """Rows in as many parts as there are Spark tasks for them: `batches(number)` gives part `number` of `tasks`.

    The function travels to the executors, and with it all that it holds on to; each part is independent of the others
    and the same whenever it is asked for again.
    """

    tasks: int
    batches: Callable[[int], Batches]

    def map(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> TaskRows:
        """The same parts with every batch changed."""
        batches = self.batches
        return TaskRows(self.tasks, lambda number: map(change, batches(number)))

    def through(self, change: Callable[[Batches], Batches]) -> TaskRows:
        """The same parts, each changed as a whole."""
        batches = self.batches
        return TaskRows(self.tasks, lambda number: change(batches(number)))

    def frame(self, spark: SparkSession, schema: StructType | str) -> DataFrame:
        """The rows as a DataFrame, one partition a part: for what comes out of them, not for the volume itself."""
        if not self.tasks:
            return spark.createDataFrame([], schema)
        batches = self.batches

        def run(numbers: Batches) -> Batches:
            for number in (number for some in numbers for number in some.column(0).to_pylist()):
                yield from batches(number)
            freeze_worker_heap()

        return spark.range(0, self.tasks, 1, self.tasks).mapInArrow(run, schema)


@dataclass(frozen=True, eq=False)
class FrameRows:
    """Rows of a DataFrame, a partition a part; `change` is what tasks make of a part before they do more with it.

    What is made goes on in Python: as a DataFrame of its own it would go through the JVM, row by row, once more.
    """

    frame: DataFrame
    change: Callable[[Batches], Batches] | None = None

    def table(self, work: Callable[[Batches], Batches], schema: pa.Schema) -> pa.Table:
        """What `work` answers for all parts, as one table; see `Workers.table`."""
        from pyspark.sql.pandas.types import from_arrow_schema

        change = self.change

        def run(batches: Batches) -> Batches:
            return work(batches if change is None else change(batches))

        return self.frame.mapInArrow(run, from_arrow_schema(schema)).toArrow()


@dataclass(frozen=True, eq=False)
class TaskRunner:
    """Who works on parts of rows: this process while there is nothing to share out, from then on tasks of Spark.

    `session` is called when Spark is needed, and not before: a JVM takes seconds to start. `in_process` is how many
    tasks are done here, by default what `CDC_PLATFORM_TASKS_IN_PROCESS` says, or one; `threads` do them.
    """

    session: Callable[[], SparkSession]
    in_process: int = field(default_factory=lambda: int(os.environ.get(IN_PROCESS_VARIABLE, _TASKS_IN_PROCESS)))
    threads: int = 1

    @classmethod
    def alone(cls) -> TaskRunner:
        """This process, however much there is: for rows that are in its memory already."""

        def no_session() -> SparkSession:
            raise AssertionError("what is in the memory of a process is written by it")

        return cls(no_session, sys.maxsize)

    def at_least(self, tasks: int) -> TaskRunner:
        """These, where so many tasks take less time here than Spark takes to start."""
        return replace(self, in_process=max(self.in_process, tasks)) if self.in_process else self

    def of_arrays(self) -> TaskRunner:
        """These for tasks of numpy's and Arrow's work: more are done here, on as many threads as there are cores."""
        return replace(self.at_least(_ARRAY_TASKS_IN_PROCESS), threads=os.cpu_count() or 1)

    def work_here(self, tasks: int) -> bool:
        """Whether so many tasks are done in this process."""
        return tasks <= self.in_process

    def parts(self, tasks: int, threads: int) -> int:
        """How many parts to make of the work of so many tasks: where it is done here, of use to so many threads.

        Each of those gets as many of them: at the end none waits for another's last one.
        """
        if not self.work_here(tasks):
            return tasks
        used = max(1, min(threads, self.threads, self.in_process))
        return min(-(-tasks // used), self.in_process // used) * used

    def table(self, rows: TaskRows, schema: pa.Schema) -> pa.Table:
        """What all parts give, as one table: for what comes out of them, not for the volume itself."""
        if self.work_here(rows.tasks):
            batches = list(self._made_here(rows))
            return pa.Table.from_batches(batches, schema) if batches else schema.empty_table()
        from pyspark.sql.pandas.types import from_arrow_schema

        with translate_errors("Spark's tasks"):
            try:
                return rows.frame(self.session(), from_arrow_schema(schema)).toArrow()
            except Exception as error:
                told = error_from_task_trace(error)
                if told is None:
                    raise
                raise told from error

    def _made_here(self, rows: TaskRows) -> Batches:
        """What all parts give, in their order."""
        if min(self.threads, rows.tasks) < 2:
            return chain.from_iterable(map(rows.batches, range(rows.tasks)))
        made = map_in_threads(lambda number: list(rows.batches(number)), range(rows.tasks), self.threads)
        return chain.from_iterable(made)


def group_batches_by_key(batches: Batches, key: str, size: int = sys.maxsize) -> Iterator[list[pa.RecordBatch]]:
    """Batches that come in the order of a column, cut anew such that all rows with one value of it come together.

    Of those read, what belongs to the last value is kept until its end, or until there are more than `size` bytes.
    """
    held, bytes_held = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys = batch.column(key)
        start = compute.index(keys, keys[-1]).as_py()
        if start > 0:
            held.append(batch.slice(0, start))
        if held and held[-1].column(key)[-1] != keys[-1]:
            yield held
            held, bytes_held = [], 0
        held.append(batch.slice(start))
        bytes_held += held[-1].nbytes
        if bytes_held > size:
            yield held
            held, bytes_held = [], 0
    if held:
        yield held


def coalesce_batches(batches: Batches, size: int) -> Batches:
    """The same rows in batches of about so many bytes at least, but for the last one.

    A file has the rows of one batch in their order; of several deltalake's threads write whichever is at hand.
    """
    held, bytes_held = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        bytes_held += batch.nbytes
        if bytes_held >= size:
            yield pa.concat_batches(held)
            held, bytes_held = [], 0
    if held:
        yield pa.concat_batches(held)


@cache
def freeze_worker_heap() -> None:
    """Take what a worker has loaded out of the garbage collector's sight; called in it as its first task ends.

    pyspark collects garbage after every task, and looking through the modules took it as long (40 ms) as the audit of
    half a million streams.
    """
    gc.collect()
    gc.freeze()


def rows_from_files(paths: Sequence[str], columns: Sequence[str]) -> TaskRows:
    """The rows of Parquet files with these columns, a part a file."""
    files, names = list(paths), list(columns)
    return TaskRows(len(files), lambda number: read_file_batches(files[number], names))


def read_file_batches(
    path: str, columns: Sequence[str] | None = None, only: tuple[str, np.ndarray] | None = None
) -> Batches:
    """The rows of one Parquet file, in their order, about four megabytes at a time however long a row is.

    `columns`: not all of them. `only`: no rows but those with these values (int64, ascending) of a column. Nothing
    behind the last of them is read.
    """
    whole = file_cache.read_cached_file(path)
    if whole is not None:
        chosen = whole if only is None else whole.filter(_is_one_of(whole[only[0]], only[1]))
        names = [name for name in columns or chosen.schema.names if name in chosen.schema.names]
        yield from map(_without_views, chosen.select(names).combine_chunks().to_batches())
        return
    with open_parquet(path) as file:
        rows, names = _get_rows_per_batch(file, _BATCH_BYTES), None if columns is None else list(columns)
        # One thread: the other tasks of this machine have the other cores.
        if only is None:
            yield from map(_without_views, file.iter_batches(rows, columns=names, use_threads=False))
            return
        for group in range(file.num_row_groups):
            wanted = _find_matching_rows(file, group, *only)
            places, start = np.flatnonzero(wanted), 0
            batches = file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False)
            while start <= places.max(initial=-1):
                batch = _without_views(next(batches))
                chosen = wanted[start : start + batch.num_rows]
                if chosen.any():
                    yield batch.filter(pa.array(chosen))
                start += batch.num_rows


def _find_matching_rows(file: pq.ParquetFile, group: int, name: str, values: np.ndarray) -> np.ndarray:
    """Of the rows of a row group, which have one of the values; where its statistics rule them out, nothing is read."""
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
    """As many rows of a file as `size` bytes hold, one at least, however long they are."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    return max(1, file.metadata.num_rows * size // max(sum(group.total_byte_size for group in groups), 1))


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """deltalake notes in its files that it had views of binaries and texts, which few of Arrow's functions take."""
    schema = pa.schema([field.with_type(_type_without_views(field.type)) for field in batch.schema])
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _type_without_views(kind: pa.DataType) -> pa.DataType:
    if pat.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_without_views(kind.value_type)))
    return {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}.get(kind, kind)
