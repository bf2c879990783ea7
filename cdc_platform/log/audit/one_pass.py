"""One pass over a log: every row once, a part of its time a task; what is found comes back, rows stay where they are.

A small log is read in the process, without Spark, by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.translate import translated
from cdc_platform.lake.volume import TaskRows, Workers
from cdc_platform.log.audit.files import LogPart, log_parts, part_rows
from cdc_platform.log.audit.rows import LogRows
from cdc_platform.log.log_table import log_table

ROWS_A_TASK = 500_000
"""About as many rows as a task looks at."""
TASKS_IN_PROCESS = 2
"""Logs of no more tasks are read in the process, which takes two seconds: Spark would take longer to start."""


def run(
    lake: Lake, schema: TableSchema, workers: Workers, look: Callable[[LogRows], pa.RecordBatch], found: pa.Schema
) -> list[dict[str, Any]]:
    """What `look` finds in each part of a log, as rows of `found`; all rows of one time are in one part.

    `look` travels to executors where the log is large.
    """
    parts = log_parts(lake, schema, ROWS_A_TASK)
    looked = TaskRows(len(parts), partial(_looked, schema, look, parts))
    with translated(f"reading {log_table(schema).full_name}"):
        return workers.at_least(TASKS_IN_PROCESS).table(looked, found).to_pylist()


def _looked(
    schema: TableSchema, look: Callable[[LogRows], pa.RecordBatch], parts: Sequence[LogPart], number: int
) -> Iterator[pa.RecordBatch]:
    yield look(part_rows(schema, parts[number]))
