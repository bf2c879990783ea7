"""One pass over a log: every row once, a part of its time a task; what is found comes back, rows stay where they are.

A small log is read in the process, without Spark, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.translate import translated
from cdc_platform.lake.volume import TaskRows
from cdc_platform.log.audit.files import LogPart, log_parts, part_rows
from cdc_platform.log.audit.rows import LogRows
from cdc_platform.log.log_table import log_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Callable[[], "SparkSession"]

ROWS_A_TASK = 500_000
"""About as many rows as a task looks at."""
ROWS_IN_PROCESS = 1_000_000
"""Logs with no more rows are read in the process, which takes two seconds: Spark would take longer to start."""


def run(
    lake: Lake, schema: TableSchema, spark: Session, look: Callable[[LogRows], pa.RecordBatch], found: pa.Schema
) -> list[dict[str, Any]]:
    """What `look` finds in each part of a log, as rows of `found`; all rows of one time are in one part.

    `look` travels to executors where the log is large; `spark` is called then.
    """
    count, parts = log_parts(lake, schema, ROWS_A_TASK)
    if not parts:
        return []
    looked = partial(_looked, schema, look, parts)
    if count <= ROWS_IN_PROCESS:
        return [row for number in range(len(parts)) for batch in looked(number) for row in batch.to_pylist()]
    from pyspark.sql.pandas.types import from_arrow_schema

    with translated(f"reading {log_table(schema).full_name}"):
        return TaskRows(len(parts), looked).frame(spark(), from_arrow_schema(found)).toArrow().to_pylist()


def _looked(
    schema: TableSchema, look: Callable[[LogRows], pa.RecordBatch], parts: Sequence[LogPart], number: int
) -> Iterator[pa.RecordBatch]:
    yield look(part_rows(schema, parts[number]))
