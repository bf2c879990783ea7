"""Queries on Spark over temporary views of the tables that a query names, as rows in Arrow batches.

A query creates nothing, and the views are dropped from Spark's catalog.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import ipc

from cdc_platform.delta import Lake, translate_query_errors
from cdc_platform.errors import InputError
from cdc_platform.query.names import ItemView, QuerySource, TableNames, TableReference, TimeTravel
from cdc_platform.query.result import QueryResult
from cdc_platform.spark import frames, get_spark_session, limit_batch_bytes, table_to_spark_schema
from cdc_platform.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOW = TimeTravel()
_SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""The session settings while a user's query is parsed."""


@contextmanager
def run_spark_query(lake: Lake, text: str, *, at: TimeTravel = _NOW, limit: int | None = None) -> Iterator[QueryResult]:
    """Yield the result of a query, at most `limit` rows; Spark returns them partition by partition, in the block.

    Raises:
        InputError: the text is no query, names an unknown table or column, or would change something.
        NotFound: the requested past is not available.
        StateError: a file of a table is missing or damaged.
        EnvironmentProblem: Spark is not available.
    """
    from cdc_platform.query import spark_guard

    tree = spark_guard.check_spark_query(text)
    names = TableNames(lake)
    tables = {reference: _find_table(names, reference) for _, reference in spark_guard.find_table_references(tree)}
    wanted = {table.full_name: table for table in tables.values()}
    sources = names.sources(wanted.values(), at)
    known = {name.lower() for source in sources for name in source.schema.names}
    spark_guard.refuse_session_names(tree, known)
    run = uuid.uuid4().hex
    views = {source.table.full_name: f"sql_{run}_{number}" for number, source in enumerate(sources)}
    columns = spark_guard.find_column_names(tree)
    query = spark_guard.rewrite_with_views(tree, lambda reference: views[tables[reference].full_name])
    spark = get_spark_session()
    with ExitStack() as stack, translate_query_errors("the query"):
        for source in sources:
            view = views[source.table.full_name]
            _source_frame(spark, lake, source, columns).createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
        stack.enter_context(_session_settings(spark, _SETTINGS))
        stack.enter_context(limit_batch_bytes(spark))
        result = spark.sql(query)
        yield _batches(result if limit is None else result.limit(limit))


def _find_table(names: TableNames, reference: TableReference) -> Table:
    table = names.find(reference)
    if table is None:
        raise InputError(f"there is no table {reference} in this home{names.close_to(reference)}")
    return table


def _source_frame(spark: SparkSession, lake: Lake, source: QuerySource, columns: Collection[str] | None) -> DataFrame:
    if source.snapshot is None:
        return spark.createDataFrame([], table_to_spark_schema(source.table))
    if source.view is not None:
        from cdc_platform.cdclog import changes_frame, items_frame

        rows = frames.read_table_frame(spark, lake, source.view.log, source.snapshot.version)
        if isinstance(source.view, ItemView):
            return items_frame(source.view.schema, rows)
        return changes_frame(source.view.schema, rows, source.view.images)
    return frames.read_table_frame(spark, lake, source.table, source.snapshot.version, columns)


def _batches(result: DataFrame) -> QueryResult:
    """Return the rows in Arrow: the workers send each batch as the bytes of an Arrow stream, in order."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(result.schema, timezone="UTC")
    # A query may give two columns the same name, but `mapInArrow` needs distinct names.
    columns = result.toDF(*(f"c{index}" for index in range(len(schema))))
    streams = columns.mapInArrow(_batch_to_bytes, "batch binary").toLocalIterator()

    def batches() -> Iterator[pa.RecordBatch]:
        with translate_query_errors("the query"):
            for row in streams:
                yield from ipc.open_stream(row["batch"])

    return QueryResult(schema, batches())


def _batch_to_bytes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch as one binary value; runs in Spark's workers."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["batch"])


@contextmanager
def _session_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Set options of a session for the block only, because the platform's own statements name files."""
    before: Sequence[tuple[str, str | None]] = [(name, spark.conf.get(name, None)) for name in settings]
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before:
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
