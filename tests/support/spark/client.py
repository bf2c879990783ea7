"""A client of the tests' cluster, run as a script: append to a log, or print which files each worker sees."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
from support.read_logs import schema

from cdc_platform.cdclog.dataframe import append_writes
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.clock import parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.spark import get_spark_session

_START_US = parse_time_us("2026-01-31T12:20:00Z")


def writes(lake: Lake) -> pa.RecordBatch:
    """Return two hundred typed writes."""
    rows = [
        {"timestamp": _START_US + index * 600_000, "ttl": 0, "operation": 2, "p": index % 40, "k": index, "v": index}
        for index in range(200)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=typed_writes_schema(schema(lake)))


def _append(address: str, tasks: int) -> None:
    """Append two hundred rows by this many tasks, one file per task."""
    lake = Lake(f"{address}/lake")
    frame: Any = get_spark_session().createDataFrame(pa.Table.from_batches([writes(lake)]))
    append_writes(lake, schema(lake), frame.repartition(tasks), files=tasks, transaction=("writer", 1))


def _look(files: list[str]) -> None:
    """Print what each worker sees of some files."""
    import_file = "cdc_platform.delta.task_writer"

    def look(_row: int) -> str:
        import importlib
        import sys
        import time
        from pathlib import Path

        visible = []
        for name in files:
            try:
                Path(name).read_bytes()
                visible.append(name)
            except OSError:
                pass
        time.sleep(0.5)
        program = importlib.import_module(import_file).__file__
        return json.dumps(
            {"seen": visible, "python": sys.prefix + "/bin/python", "program": program, "at": str(Path.cwd())}
        )

    from pyspark.sql import functions as F

    session = get_spark_session()
    look_up = F.udf(look, "string", useArrow=False)
    results = session.range(0, 2, 1, 2).select(look_up("id").alias("told")).collect()
    print("\n".join(sorted({row["told"] for row in results})))


if __name__ == "__main__":
    if sys.argv[1] == "append":
        _append(sys.argv[2], int(sys.argv[3]))
    else:
        _look(sys.argv[2:])
