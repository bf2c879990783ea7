"""Read tables as DataFrames, replace a partition, append, or replace a table from Spark.

Only the API of Spark Connect is used, so the code runs embedded, on a Connect server and on a cluster. Tables in an
object store are read by tasks with the platform's own credentials: Spark's reader would need the JARs of hadoop-aws.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from cdc_platform.clock import datetime_from_us, us_from_datetime
from cdc_platform.delta import (
    Batches,
    FrameRows,
    Lake,
    Snapshot,
    TaskRows,
    TaskRunner,
    VerifiedRows,
    fill_columns,
    get_verified_rows,
    read_file_batches,
    retry_on_conflict,
    rows_from_files,
    snapshot,
    task_writer,
    translate_errors,
)
from cdc_platform.errors import InputError, StateError
from cdc_platform.spark.frame_schema import arrow_to_spark_schema, quote_spark_name, table_to_spark_schema
from cdc_platform.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_TASKS = 200
"""As many as Spark takes for a shuffle: a home that is old has thousands of small files."""


def _frame_from_snapshot(spark: SparkSession, snapshot: Snapshot, columns: Collection[str] | None = None) -> DataFrame:
    """The rows of a version of a table, in those of some columns that it has, in lower case, or in all.

    Raises:
        StateError: its files alone do not tell which rows it has.
    """
    if snapshot.beyond:
        raise StateError(
            f"{snapshot.table.full_name} has the Delta feature {', '.join(snapshot.beyond)}, which is not read from a"
            " store; drop it with ALTER TABLE ... DROP FEATURE"
        )
    chosen = [each for each in snapshot.schema if columns is None or each.name.lower() in columns]
    schema = pa.schema(chosen or [snapshot.schema.field(0)])
    folder, parts = str(snapshot.folder), snapshot.parts
    shares = [parts[first::_MAX_TASKS] for first in range(min(len(parts), _MAX_TASKS))]

    def batches(number: int) -> Batches:
        for path, values, _ in shares[number]:
            yield from _read_snapshot_file(f"{folder}/{path}", values, schema)

    return TaskRows(len(shares), batches).frame(spark, arrow_to_spark_schema(schema))


def _read_snapshot_file(path: str, values: Mapping[str, Any], schema: pa.Schema) -> Batches:
    """The rows of a file with the columns that name its partition, and nulls where it is older than a column."""
    inside = [name for name in schema.names if name not in values]
    for batch in read_file_batches(path, inside):
        columns = zip(fill_columns(batch, schema, values), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([column.cast(kind) for column, kind in columns], schema=schema)


_Result = TypeVar("_Result")


def read_table_frame(
    spark: SparkSession,
    lake: Lake,
    table: Table,
    version: int | None = None,
    columns: Collection[str] | None = None,
) -> DataFrame:
    """The table as it is now, or as it was at a version; no rows where it does not exist.

    With some `columns`, in lower case, at least those of them that it has: Spark's own reader leaves out by itself what
    is not asked of it.
    """
    if not lake.exists(table):
        return spark.createDataFrame([], table_to_spark_schema(table))
    if lake.place.here is None:
        found = (
            snapshot.read_newest_snapshot(lake, table)
            if version is None
            else snapshot.read_snapshot_at_version(lake, table, version)
        )
        assert found is not None
        return _frame_from_snapshot(spark, found, columns)
    with translate_errors(f"reading {table.full_name}"):
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(lake.path(table))


def get_partition_rows(lake: Lake, table: Table, where: Mapping[str, Any], columns: Sequence[str]) -> TaskRows:
    """Columns of the rows of a slice, none of them one that names it, as Spark's tasks read them: a part a file.

    Delta's log is read by deltalake: Delta on Spark would rebuild the table's state first, three to four jobs for each
    new version.

    Raises:
        InputError: the slice is not named by all partition columns and no others.
    """
    _check_partition(table, where)
    return rows_from_files(lake.files(table, [(name, "=", value) for name, value in where.items()]), columns)


def get_verified_partition_rows(lake: Lake, table: Table, where: Mapping[str, Any]) -> VerifiedRows:
    """The rows of a slice, to make others of them: whoever puts those into a table holds these against their commits.

    A table without partitions is one slice, which nothing names. One of which commits say nothing is taken as it is.

    Raises:
        InputError: the slice is not named by all partition columns and no others.
    """
    if table.partition_by:
        _check_partition(table, where)
    with translate_errors(f"reading {table.full_name}"):
        return get_verified_rows(lake, table, where)


def assert_partition_as_committed(workers: TaskRunner, lake: Lake, table: Table, where: Mapping[str, Any]) -> None:
    """Hold that the rows of a slice, see `get_verified_partition_rows`, are those that commits put there.

    Raises:
        StateError: they are others, or a file of it is damaged.
    """
    with lake.open_tables.looked_at_once(), translate_errors(f"reading {table.full_name}"):
        get_verified_partition_rows(lake, table, where).hold(workers.of_arrays())


def replace_partition(
    workers: TaskRunner,
    lake: Lake,
    table: Table,
    rows: DataFrame | task_writer.WritableRows,
    where: Mapping[str, Any],
    due: Mapping[str, int] | None = None,
) -> int:
    """Put `rows` in place of all rows in which every partition column has its value in `where`; one atomic commit.

    Run again, or by two writers at once, with the same rows it leaves the same rows. Answers with the table's version
    in which the slice is. With `due`, the digests of slices, no other rows than those are put in.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints, or lie outside the slice.
        ConflictError: other writers kept winning.
        EnvironmentProblem: Spark's workers do not see the table's folder.
        StateError: the rows are not those that are due, or are made of others than commits put there.
    """
    _check_partition(table, where)
    lake.ensure(table)
    what = f"replacing {' AND '.join(f'{name} = {value}' for name, value in where.items())} of {table.full_name}"
    with translate_errors(what):
        made = _select_table_columns(table, rows)
        try:
            few = task_writer.collect_if_few(workers, table, made) if due is None else None
            if few is not None:
                fit = task_writer.check_rows(table, few, where, what)
                return retry_on_conflict(what, lambda: task_writer.commit_few_rows(lake, table, fit, where))
            draft = task_writer.write_draft(workers.of_arrays(), lake, table, made, where, what)
        except InputError:
            if isinstance(made, VerifiedRows):  # damaged ones may not fit, either
                made.hold(workers.of_arrays())
            raise
    try:
        if due is not None and draft.digests != due:
            raise StateError(f"{what}: the rows made anew are not those that its commits put there; it stays as it was")
        return _commit_with_retries(what, lambda: task_writer.commit_draft(lake, table, draft, where))
    finally:
        task_writer.discard_write_draft(draft)


def append_to_table(
    workers: TaskRunner,
    lake: Lake,
    table: Table,
    rows: DataFrame | FrameRows | TaskRows,
    transaction: tuple[str, int] | None = None,
    beside: Mapping[str, int] | None = None,
) -> bool:
    """Put `rows` behind those that the table has, a file a partition in its order; whether that was done.

    With a `transaction` (application and its number) they go in at most once: where the table has seen that number or
    a higher one, nothing is done. `beside` are the numbers of other applications that the same commit keeps, which is
    then made for no rows as well.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints.
        ConflictError: other writers kept winning.
        EnvironmentProblem: Spark's workers do not see the table's folder.
    """
    lake.ensure(table)
    what = f"appending to {table.full_name}"
    return _write_rows(workers, lake, table, rows, transaction, what, append=True, beside=beside)


def replace_all_rows(
    workers: TaskRunner,
    lake: Lake,
    table: Table,
    rows: DataFrame | TaskRows,
    transaction: tuple[str, int] | None = None,
    beside: Mapping[str, int] | None = None,
    *,
    of: int | None = None,
) -> bool:
    """Put `rows` in place of all that the table has, and its declared columns in place of those that it has.

    Where they were made of rows of the table itself, `of` is the version that has those.

    Raises:
        As `append`, with whose transactions, and those `beside`, those of this share their meaning.
        ConflictError: the table is of another version by now than `of`.
    """
    what = f"rewriting {table.full_name}"
    return _write_rows(workers, lake, table, rows, transaction, what, append=False, beside=beside, of=of)


def _write_rows(
    workers: TaskRunner,
    lake: Lake,
    table: Table,
    rows: DataFrame | FrameRows | TaskRows,
    transaction: tuple[str, int] | None,
    what: str,
    *,
    append: bool,
    beside: Mapping[str, int] | None = None,
    of: int | None = None,
) -> bool:
    seen = None if transaction is None else lake.transaction(table, transaction[0])
    if transaction is not None and seen is not None and seen >= transaction[1]:
        return False
    with translate_errors(what):
        draft = task_writer.write_draft(workers, lake, table, _select_table_columns(table, rows), {}, what)
    try:
        return _commit_with_retries(
            what,
            lambda: task_writer.commit_draft_once(lake, table, draft, transaction, append=append, beside=beside, of=of),
        )
    finally:
        task_writer.discard_write_draft(draft)


def _select_table_columns(
    table: Table, rows: DataFrame | FrameRows | task_writer.WritableRows
) -> FrameRows | task_writer.WritableRows:
    """The rows with the table's columns in order; of which types they are, the tasks see that write them."""
    if isinstance(rows, FrameRows | TaskRows | VerifiedRows):
        return rows
    return FrameRows(rows.select(*map(quote_spark_name, table.schema.names)))


def _check_partition(table: Table, where: Mapping[str, Any]) -> None:
    due = ", ".join(table.partition_by) or "no column"
    if not where or set(where) != set(table.partition_by):
        raise InputError(f"a slice of {table.full_name} is named by {due}, not by {dict(where)}")
    for value in where.values():
        _spark_literal(value)


def _commit_with_retries(what: str, commit: Callable[[], _Result]) -> _Result:
    """Commit files that tasks have written, with longer waits than those of small writes, which take milliseconds."""
    return retry_on_conflict(what, commit, first_wait=0.1, longest_wait=2)


def _spark_literal(value: Any) -> str:
    """A value in Spark's SQL."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{datetime_from_us(us_from_datetime(value)).isoformat(sep=' ')}'"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, str | uuid.UUID):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    raise InputError(f"a slice is named by texts, UUIDs, integers and datetimes, not by {value!r}")
