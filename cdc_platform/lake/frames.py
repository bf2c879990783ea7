"""The tables as Spark sees them: read, replace one generation's slice, append, replace all.

Only the API that Spark Connect has, so the same code runs embedded, on a warm server and on a cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from cdc_platform.clock import from_datetime, to_datetime
from cdc_platform.errors import InputError, StateError
from cdc_platform.lake import slices, snapshots
from cdc_platform.lake.committed import Committed, committed
from cdc_platform.lake.conflicts import until_first
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.shape import quoted, spark_schema
from cdc_platform.lake.stored_frames import frame_of
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.lake.volume import FrameRows, TaskRows, Workers, rows_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Result = TypeVar("_Result")


def read(
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
        return spark.createDataFrame([], spark_schema(table))
    if lake.place.here is None:
        found = snapshots.newest(lake, table) if version is None else snapshots.of_version(lake, table, version)
        assert found is not None
        return frame_of(spark, found, columns)
    with translated(f"reading {table.full_name}"):
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(lake.path(table))


def slice_rows(lake: Lake, table: Table, where: Mapping[str, Any], columns: Sequence[str]) -> TaskRows:
    """Columns of the rows of a slice, none of them one that names it, as Spark's tasks read them: a part a file.

    Delta's log is read by deltalake: Delta on Spark would rebuild the table's state first, three to four jobs for each
    new version.

    Raises:
        InputError: the slice is not named by all partition columns and no others.
    """
    _check_partition(table, where)
    return rows_of_files(lake.files(table, [(name, "=", value) for name, value in where.items()]), columns)


def committed_rows(lake: Lake, table: Table, where: Mapping[str, Any]) -> Committed:
    """The rows of a slice, to make others of them: whoever puts those into a table holds these against their commits.

    A table without partitions is one slice, which nothing names. One of which commits say nothing is taken as it is.

    Raises:
        InputError: the slice is not named by all partition columns and no others.
    """
    if table.partition_by:
        _check_partition(table, where)
    with translated(f"reading {table.full_name}"):
        return committed(lake, table, where)


def assert_as_committed(workers: Workers, lake: Lake, table: Table, where: Mapping[str, Any]) -> None:
    """Hold that the rows of a slice, see `committed_rows`, are those that commits put there.

    Raises:
        StateError: they are others, or a file of it is damaged.
    """
    with lake.open_tables.looked_at_once(), translated(f"reading {table.full_name}"):
        committed_rows(lake, table, where).hold(workers.of_arrays())


def replace_slice(
    workers: Workers,
    lake: Lake,
    table: Table,
    rows: DataFrame | slices.Rows,
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
    with translated(what):
        made = _of_table(table, rows)
        try:
            few = slices.few(workers, table, made) if due is None else None
            if few is not None:
                fit = slices.checked(table, few, where, what)
                return until_first(what, lambda: slices.commit_few(lake, table, fit, where))
            draft = slices.write_draft(workers.of_arrays(), lake, table, made, where, what)
        except InputError:
            if isinstance(made, Committed):  # damaged ones may not fit, either
                made.hold(workers.of_arrays())
            raise
    try:
        if due is not None and draft.digests != due:
            raise StateError(f"{what}: the rows made anew are not those that its commits put there; it stays as it was")
        return _committed(what, lambda: slices.commit(lake, table, draft, where))
    finally:
        slices.discard(draft)


def append(
    workers: Workers,
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
    return _put(workers, lake, table, rows, transaction, what, append=True, beside=beside)


def replace_all(
    workers: Workers,
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
    return _put(workers, lake, table, rows, transaction, what, append=False, beside=beside, of=of)


def _put(
    workers: Workers,
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
    with translated(what):
        draft = slices.write_draft(workers, lake, table, _of_table(table, rows), {}, what)
    try:
        return _committed(
            what, lambda: slices.commit_once(lake, table, draft, transaction, append=append, beside=beside, of=of)
        )
    finally:
        slices.discard(draft)


def _of_table(table: Table, rows: DataFrame | FrameRows | slices.Rows) -> FrameRows | slices.Rows:
    """The rows with the table's columns in order; of which types they are, the tasks see that write them."""
    if isinstance(rows, FrameRows | TaskRows | Committed):
        return rows
    return FrameRows(rows.select(*map(quoted, table.schema.names)))


def _check_partition(table: Table, where: Mapping[str, Any]) -> None:
    due = ", ".join(table.partition_by) or "no column"
    if not where or set(where) != set(table.partition_by):
        raise InputError(f"a slice of {table.full_name} is named by {due}, not by {dict(where)}")
    for value in where.values():
        _literal(value)


def _committed(what: str, commit: Callable[[], _Result]) -> _Result:
    """Commit files that tasks have written, with longer waits than those of small writes, which take milliseconds."""
    return until_first(what, commit, first_wait=0.1, longest_wait=2)


def _literal(value: Any) -> str:
    """A value in Spark's SQL."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{to_datetime(from_datetime(value)).isoformat(sep=' ')}'"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, str | uuid.UUID):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    raise InputError(f"a slice is named by texts, UUIDs, integers and datetimes, not by {value!r}")
