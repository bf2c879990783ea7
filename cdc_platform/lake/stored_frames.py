"""A table in a store as Spark sees it: its tasks read the files as all of the platform does, with the same credentials.

Spark's own reader would need the JARs of hadoop-aws, and their way to credentials. It would leave out files by their
bounds, which this one does not: all files of a table are read, in the columns that are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc_platform.errors import StateError
from cdc_platform.lake.rows import filled
from cdc_platform.lake.shape import spark_struct
from cdc_platform.lake.snapshots import Snapshot
from cdc_platform.lake.volume import Batches, TaskRows, file_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_TASKS = 200
"""As many as Spark takes for a shuffle: a home that is old has thousands of small files."""


def frame_of(spark: SparkSession, snapshot: Snapshot, columns: Collection[str] | None = None) -> DataFrame:
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
    shares = [parts[first::_MOST_TASKS] for first in range(min(len(parts), _MOST_TASKS))]

    def batches(number: int) -> Batches:
        for path, values, _ in shares[number]:
            yield from _rows(f"{folder}/{path}", values, schema)

    return TaskRows(len(shares), batches).frame(spark, spark_struct(schema))


def _rows(path: str, values: Mapping[str, Any], schema: pa.Schema) -> Batches:
    """The rows of a file with the columns that name its partition, and nulls where it is older than a column."""
    inside = [name for name in schema.names if name not in values]
    for batch in file_batches(path, inside):
        columns = zip(filled(batch, schema, values), schema.types, strict=True)
        yield pa.RecordBatch.from_arrays([column.cast(kind) for column, kind in columns], schema=schema)
