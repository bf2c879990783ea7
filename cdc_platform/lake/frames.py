"""The tables as Spark DataFrames: read, replace one generation's slice, merge on the keys, name them for SQL.

Only the API that Spark Connect has, so the same code runs embedded, on a warm server and on a cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from cdc_platform.clock import from_datetime, to_datetime
from cdc_platform.errors import ConflictError, InputError
from cdc_platform.lake.lake import ATTEMPTS, PATIENCE_SECONDS, Lake
from cdc_platform.lake.shape import assert_shape, spark_schema
from cdc_platform.lake.tables import TABLES, Table
from cdc_platform.lake.translate import OUTSIDE_SLICE, spark_conflicts, translated

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

_Result = TypeVar("_Result")


def read(spark: SparkSession, lake: Lake, table: Table) -> DataFrame:
    """The table as it is now; no rows where it does not exist."""
    if not lake.exists(table):
        return spark.createDataFrame([], spark_schema(table))
    with translated(f"reading {table.full_name}"):
        return spark.read.format("delta").load(lake.path(table))


def read_slice(spark: SparkSession, lake: Lake, table: Table, where: Mapping[str, Any]) -> DataFrame:
    """The rows in which every column of `where` has its value; `where` names all partition columns.

    Delta's log is read by deltalake and the rows by Spark, from the files of the slice: Delta on Spark would rebuild
    the table's state first, three to four jobs for each new version, where a slice takes one.

    Raises:
        InputError: a partition column is not named, or `where` names what is no column.
    """
    from pyspark.sql import functions as F

    if set(table.partition_by) - set(where) or set(where) - set(table.schema.names):
        raise InputError(
            f"a slice of {table.full_name} is named by {', '.join(table.partition_by)}, not by {dict(where)}"
        )
    files = lake.files(table, [(name, "=", value) for name, value in where.items()])
    schema = spark_schema(table)
    if not files:
        return spark.createDataFrame(table.schema.empty_table())
    stored = type(schema)([field for field in schema if field.name not in table.partition_by])
    with translated(f"reading {table.full_name}"):
        rows = spark.read.schema(stored).parquet(*files)
    given = {name: F.expr(_literal(where[name])).cast(schema[name].dataType) for name in table.partition_by}
    for name in set(where) - set(table.partition_by):
        rows = rows.where(F.col(name) == F.expr(_literal(where[name])))
    return rows.withColumns(given).select(*schema.names)


def replace_slice(spark: SparkSession, lake: Lake, table: Table, df: DataFrame, where: Mapping[str, Any]) -> int:
    """Put the rows of `df` in place of all rows in which every column of `where` has its value; one atomic commit.

    Run again, or by two writers at once, with the same rows it leaves the same rows. Answers with the table's version
    in which the slice is.

    A slice of partitions that is empty so far is appended: Delta would rebuild the table's state to replace nothing,
    which takes longer than the rows. Appends meet no conflict by themselves; a transaction number for the slice makes
    them, so that of two writers one appends and the other, like any that finds rows, replaces.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints, or lie outside the slice.
        ConflictError: other writers kept winning.
    """
    unknown = set(where) - set(table.schema.names)
    if unknown or not where:
        raise InputError(f"a slice of {table.full_name} is named by its columns, not by {sorted(unknown) or 'nothing'}")
    lake.ensure(table)
    rows = assert_shape(table, df)
    slice_ = " AND ".join(f"{_name(column)} = {_literal(value)}" for column, value in where.items())
    filters = [(column, "=", value) for column, value in where.items()]
    of_partitions = set(where) <= set(table.partition_by)

    def write() -> int:
        # The number is read before the files: whoever appends in between has taken it.
        number = lake.transaction_number(table, slice_) + 1
        version = None
        if of_partitions and not lake.files(table, filters):
            numbered = {"txnAppId": slice_, "txnVersion": str(number)}
            version = _commit(lake, table, _inside(rows, where).write.mode("append").options(**numbered))
        if version is None:
            version = _commit(lake, table, rows.write.mode("overwrite").option("replaceWhere", slice_))
        if version is None:
            raise ConflictError(f"{table.full_name}: 20 other writers came after this one at once; run it again")
        return version

    return _retried(f"replacing {slice_} of {table.full_name}", write)


def merge(spark: SparkSession, lake: Lake, table: Table, df: DataFrame) -> int:
    """Insert the rows whose key the table lacks and leave those it has; answers how many came in.

    For volume; `Lake.merge` does the same for a few rows without a JVM, in milliseconds.

    Raises:
        InputError: the rows don't fit the table's columns, types or constraints.
        ConflictError: other writers kept winning.
    """
    lake.ensure(table)
    rows = assert_shape(table, df)
    on_keys = " AND ".join(f"t.{_name(key)} <=> s.{_name(key)}" for key in table.keys)
    statement = (
        f"MERGE INTO delta.{_name(lake.path(table))} t USING {{source}} s ON {on_keys} WHEN NOT MATCHED THEN INSERT *"
    )
    counts = _retried(f"merging into {table.full_name}", lambda: spark.sql(statement, source=rows).collect())
    return int(counts[0]["num_inserted_rows"])


def register(spark: SparkSession, lake: Lake, tables: Iterable[Table] | None = None) -> None:
    """Name the tables, by default all, in Spark's catalog: SQL finds them by `keyspace.name`. Missing ones are created.

    A name that stands for another lake's table is moved to this one. Only names: no file is touched.
    """
    wanted: dict[str, list[Table]] = {}
    for table in TABLES.values() if tables is None else tables:
        lake.ensure(table)
        wanted.setdefault(table.keyspace, []).append(table)
    with translated("naming the tables in Spark's catalog"):
        for keyspace, members in wanted.items():
            known = _tables_named(spark, lake, keyspace)
            for table in members:
                if table.name not in known:
                    name = f"{_name(keyspace)}.{_name(table.name)}"
                    location = _literal(lake.path(table))
                    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {location}")


def _tables_named(spark: SparkSession, lake: Lake, keyspace: str) -> set[str]:
    """The names that a database of this lake has; one of another lake is dropped, which leaves its files alone."""
    database = _name(keyspace)
    root = str(lake.root)
    if keyspace in {row[0] for row in spark.sql("SHOW DATABASES").collect()}:
        described = {row[0]: row[1] for row in spark.sql(f"DESCRIBE DATABASE EXTENDED {database}").collect()}
        if described.get("Comment") == root:
            return {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {database}").collect()}
        spark.sql(f"DROP DATABASE {database} CASCADE")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} COMMENT {_literal(root)}")
    return set()


def _retried(what: str, write: Callable[[], _Result]) -> _Result:
    with translated(what):
        for attempt in Retrying(
            retry=retry_if_exception_type(spark_conflicts()),
            stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(PATIENCE_SECONDS),
            wait=wait_random_exponential(multiplier=0.1, max=2),
            reraise=True,
        ):
            with attempt:
                return write()
    raise AssertionError("unreachable: the last attempt raises")


def _commit(lake: Lake, table: Table, writer: DataFrameWriter) -> int | None:
    """Write, and find our own commit in the table's history, where others may have come after it.

    None where there is none: Delta leaves out, in silence, an append whose transaction number is taken.
    """
    mark = uuid.uuid4().hex
    writer.format("delta").option("userMetadata", mark).save(lake.path(table))
    own = [commit["version"] for commit in lake.history(table, 20) if commit.get("userMetadata") == mark]
    return int(own[0]) if own else None


def _inside(rows: DataFrame, where: Mapping[str, Any]) -> DataFrame:
    """The rows, which fail where one lies outside the slice: an append does not look at that."""
    from pyspark.sql import functions as F

    def checked(column: str, value: Any) -> Column:
        found = F.concat(
            F.lit(f"{OUTSIDE_SLICE} ({column} : "), F.coalesce(F.col(column).cast("string"), F.lit("null"))
        )
        wrong = F.raise_error(F.concat(found, F.lit(")")))
        return F.when(F.col(column) == F.expr(_literal(value)), F.col(column)).otherwise(wrong)

    return rows.withColumns({column: checked(column, value) for column, value in where.items()})


def _literal(value: Any) -> str:
    """A value in Spark's SQL."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{to_datetime(from_datetime(value)).isoformat(sep=' ')}'"
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, str | uuid.UUID):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    raise InputError(f"a slice is named by texts, UUIDs, integers and datetimes, not by {value!r}")


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
