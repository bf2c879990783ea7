"""Queries on Spark, for volume: over views of the tables that a query names, as rows in Arrow batches.

Nothing is created, and no name stays in Spark's catalog.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import ipc

from cdc_platform.errors import InputError
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.session import bounded_batches, spark_session
from cdc_platform.lake.shape import spark_schema
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.query.names import At, Names, Reference, Source
from cdc_platform.query.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOW = At()
_SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What holds while a query of somebody else's text is read."""


@contextmanager
def answer(lake: Lake, text: str, *, at: At = _NOW, limit: int | None = None) -> Iterator[Rows]:
    """The rows that a query answers with, at most `limit`; Spark hands them out partition by partition, in the block.

    Raises:
        InputError: the query is none, names what is not there, or would do more than answer.
        NotFound: the past that it asks for is not known.
        StateError: a file of a table is missing or damaged.
        EnvironmentProblem: there is no Spark.
    """
    from cdc_platform.query import spark_tree

    tree = spark_tree.judged(text)
    names = Names(lake)
    tables = {reference: _found(names, reference) for _, reference in spark_tree.tables_of(tree)}
    wanted = {table.full_name: table for table in tables.values()}
    sources = names.sources(wanted.values(), at)
    known = {name.lower() for source in sources for name in source.schema.names}
    spark_tree.refuse_names_of_session(tree, known)
    run = uuid.uuid4().hex
    views = {source.table.full_name: f"sql_{run}_{number}" for number, source in enumerate(sources)}
    columns = spark_tree.columns_of(tree)
    query = spark_tree.rewritten(tree, lambda reference: views[tables[reference].full_name])
    spark = spark_session()
    with ExitStack() as stack, translated("the query"):
        for source in sources:
            view = views[source.table.full_name]
            _rows_of(spark, lake, source, columns).createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
        stack.enter_context(_set(spark, _SETTINGS))
        stack.enter_context(bounded_batches(spark))
        result = spark.sql(query)
        yield _batches(result if limit is None else result.limit(limit))


def _found(names: Names, reference: Reference) -> Table:
    table = names.find(reference)
    if table is None:
        raise InputError(f"there is no table {reference} in this home{names.close_to(reference)}")
    return table


def _rows_of(spark: SparkSession, lake: Lake, source: Source, columns: Collection[str] | None) -> DataFrame:
    if source.snapshot is None:
        return spark.createDataFrame([], spark_schema(source.table))
    return frames.read(spark, lake, source.table, source.snapshot.version, columns)


def _batches(result: DataFrame) -> Rows:
    """The rows as the workers have them in Arrow: each batch comes as the bytes of Arrow's stream, in order."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(result.schema, timezone="UTC")
    # A query may call two columns the same, what is made of them here may not.
    columns = result.toDF(*(f"c{place}" for place in range(len(schema))))
    streams = columns.mapInArrow(_as_bytes, "batch binary").toLocalIterator()

    def batches() -> Iterator[pa.RecordBatch]:
        with translated("the query"):
            for row in streams:
                yield from ipc.open_stream(row["batch"])

    return Rows(schema, batches())


def _as_bytes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as one value; runs in Spark's workers."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["batch"])


@contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Settings of a session while a block runs: the platform's own statements name files."""
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
