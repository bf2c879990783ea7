"""Read tables as DataFrames, replace a partition, append, or replace a table from Spark.

The module uses only the API of Spark Connect, so it runs embedded, on a Connect server and on a cluster. Tasks read
tables in an object store with the platform's own credentials, because Spark's reader would need the JARs of
hadoop-aws.
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
"""The most tasks of a read, as many as Spark's default for a shuffle: an old home has thousands of small files."""


def _frame_from_snapshot(spark: SparkSession, snapshot: Snapshot, columns: Collection[str] | None = None) -> DataFrame:
    """Return the rows of a table's version, with those of its columns that are in `columns` (lower case), or with all.

    Raises:
        StateError: the version uses a Delta feature, so its files alone do not determine its rows.
    """
    if snapshot.unreadable_features:
        raise StateError(
            f"{snapshot.table.full_name} has the Delta feature {', '.join(snapshot.unreadable_features)}, which is not "
            "read from a store; drop it with ALTER TABLE ... DROP FEATURE"
        )
    chosen = [field for field in snapshot.schema if columns is None or field.name.lower() in columns]
    schema = pa.schema(chosen or [snapshot.schema.field(0)])
    folder, parts = str(snapshot.folder), snapshot.files
    task_parts = [parts[first::_MAX_TASKS] for first in range(min(len(parts), _MAX_TASKS))]

    def batches(number: int) -> Batches:
        for path, values, _ in task_parts[number]:
            yield from _read_snapshot_file(f"{folder}/{path}", values, schema)

    return TaskRows(len(task_parts), batches).frame(spark, arrow_to_spark_schema(schema))


def _read_snapshot_file(path: str, values: Mapping[str, Any], schema: pa.Schema) -> Batches:
    """Yield the rows of a file with the partition's columns.

    Columns that are newer than the file are null.
    """
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
    """Return the newest rows of a table, or those of a version; no rows if the table does not exist.

    `columns` (lower case) are the columns that the caller needs. A table in an object store is read with those of them
    that it has; Spark's own reader skips unused columns by itself.
    """
    if not lake.exists(table):
        return spark.createDataFrame([], table_to_spark_schema(table))
    if lake.location.local_path is None:
        current = (
            snapshot.read_newest_snapshot(lake, table)
            if version is None
            else snapshot.read_snapshot_at_version(lake, table, version)
        )
        assert current is not None
        return _frame_from_snapshot(spark, current, columns)
    with translate_errors(f"reading {table.full_name}"):
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(lake.path(table))


def get_partition_rows(lake: Lake, table: Table, where: Mapping[str, Any], columns: Sequence[str]) -> TaskRows:
    """Return columns of a partition's rows as input of Spark tasks, one part per file.

    `columns` has no partition column. deltalake reads Delta's log: Delta on Spark would first rebuild the table's
    state, with three to four jobs for each new version.

    Raises:
        InputError: `where` does not name exactly the partition columns.
    """
    _check_partition(table, where)
    return rows_from_files(
        [file.path for file in lake.data_files(table, [(name, "=", value) for name, value in where.items()])], columns
    )


def get_verified_partition_rows(lake: Lake, table: Table, where: Mapping[str, Any]) -> VerifiedRows:
    """Return the rows of a partition from which a caller derives other rows.

    The writer of the derived rows verifies these rows against their commits. A table without partitions is one
    partition, with an empty `where`. A partition without digests in its commits is accepted unverified.

    Raises:
        InputError: `where` does not name exactly the partition columns.
    """
    if table.partition_by:
        _check_partition(table, where)
    with translate_errors(f"reading {table.full_name}"):
        return get_verified_rows(lake, table, where)


def assert_partition_as_committed(workers: TaskRunner, lake: Lake, table: Table, where: Mapping[str, Any]) -> None:
    """Verify a partition's rows against its commits, see `get_verified_partition_rows`.

    Raises:
        StateError: the rows differ, or a file of the partition is damaged.
    """
    with lake.table_cache.pin_versions(), translate_errors(f"reading {table.full_name}"):
        get_verified_partition_rows(lake, table, where).verify(workers.for_arrays())


def replace_partition(
    workers: TaskRunner,
    lake: Lake,
    table: Table,
    rows: DataFrame | task_writer.WritableRows,
    where: Mapping[str, Any],
    due: Mapping[str, int] | None = None,
) -> int:
    """Replace the partition `where` with `rows` in one atomic commit; return the table's version with the result.

    The operation is idempotent: run again, or by two writers at once, with the same rows it leaves the same rows.
    `where` has a value for every partition column. `due` are the digests of partitions that the rows must have.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints, or lie outside the partition.
        ConflictError: other writers kept winning.
        EnvironmentProblem: Spark's workers do not see the table's folder.
        StateError: the rows do not match `due`, or they derive from rows that differ from their commits.
    """
    _check_partition(table, where)
    lake.ensure(table)
    what = f"replacing {' AND '.join(f'{name} = {value}' for name, value in where.items())} of {table.full_name}"
    with translate_errors(what):
        selected = _select_table_columns(table, rows)
        try:
            few = task_writer.collect_if_few(workers, table, selected) if due is None else None
            if few is not None:
                fit = task_writer.check_rows(table, few, where, what)
                return retry_on_conflict(what, lambda: task_writer.commit_few_rows(lake, table, fit, where))
            draft = task_writer.write_draft(workers.for_arrays(), lake, table, selected, where, what)
        except InputError:
            if isinstance(selected, VerifiedRows):  # damaged rows may not fit either: report damage first
                selected.verify(workers.for_arrays())
            raise
    try:
        if due is not None and draft.digests != due:
            raise StateError(f"{what}: the restored rows differ from those of its commits; nothing was changed")
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
    """Append `rows` to a table, one file per partition in the table's order; return True if they were appended.

    A `transaction` (application and number) makes the append happen at most once: it does nothing if the table has
    seen that number or a higher one. `beside` are the numbers of other applications to store in the same commit; with
    them a commit is made even without rows.

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
    """Replace all rows of a table with `rows`, and its columns with the declared ones.

    `transaction` and `beside` mean what they mean in `append_to_table`. `of` is the table's version from which the
    rows were derived, if they were.

    Raises:
        As `append_to_table`.
        ConflictError: the table's version is no longer `of`.
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
            lambda: task_writer.commit_draft_once(
                lake, table, draft, transaction, append=append, other_numbers=beside, read_version=of
            ),
        )
    finally:
        task_writer.discard_write_draft(draft)


def _select_table_columns(
    table: Table, rows: DataFrame | FrameRows | task_writer.WritableRows
) -> FrameRows | task_writer.WritableRows:
    """Return the rows with the table's columns in order; the tasks that write them check their types."""
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
    """Commit files that tasks have written; wait longer between attempts than small writes, which take ms."""
    return retry_on_conflict(what, commit, first_wait=0.1, longest_wait=2)


def _spark_literal(value: Any) -> str:
    """Return a value as a literal in Spark's SQL."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{datetime_from_us(us_from_datetime(value)).isoformat(sep=' ')}'"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, str | uuid.UUID):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    raise InputError(f"a slice is named by texts, UUIDs, integers and datetimes, not by {value!r}")
