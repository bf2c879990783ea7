"""A Spark stream reads each row of a log once while the log's files are rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.homes.minute_log import MinuteLog

from cdc_platform.cdclog import LOG_KEY, WRITTEN_AT
from cdc_platform.clock import parse_time_us
from cdc_platform.delta import Lake, TimeOrder
from cdc_platform.delta.small_files import rewrite_small_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_US = parse_time_us("2026-01-31T12:00:00Z")
ROWS = 2


class Reader:
    """A stream that copies a log; each run continues after the last one."""

    def __init__(self, spark: SparkSession, log: str, folder: Path) -> None:
        self._spark, self._log, self._folder = spark, log, folder
        self.batches = 0

    def read(self, fail_after: int | None = None) -> None:
        """Read available rows in batches of few files; with `fail_after`, fail after that many batches."""

        def copy(rows: DataFrame, number: int) -> None:
            if fail_after is not None and self.batches >= fail_after:
                raise RuntimeError("the stream dies")
            self.batches += 1
            rows.write.format("delta").mode("append").option("txnAppId", "copy").option("txnVersion", number).save(
                str(self._folder / "copy")
            )

        stream = self._spark.readStream.format("delta").option("maxFilesPerTrigger", 20).load(self._log)
        query = (
            stream.writeStream.foreachBatch(copy)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def numbers(self) -> list[int]:
        """Return the numbers of the copied rows."""
        rows = self._spark.read.format("delta").load(str(self._folder / "copy")).select("ck").collect()
        return sorted(row["ck"] for row in rows)


def test_stream_reads_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """Files are rewritten within the first version that the stream reads, between its runs, and after it."""
    from pyspark.errors import StreamingQueryException

    lake = Lake(tmp_path / "lake")
    log = MinuteLog(START_US, 60, ROWS)
    log.write(lake)
    reader = Reader(spark, lake.path(log.table), tmp_path)

    def rewrite(minutes: int) -> int:
        end = TimeOrder(WRITTEN_AT, LOG_KEY, MinuteLog(START_US, minutes, ROWS).end_us)
        return rewrite_small_files(lake, log.table, end).files_before

    with pytest.raises(StreamingQueryException, match="the stream dies"):
        reader.read(fail_after=1)
    assert rewrite(60) == 60
    reader.read()
    assert reader.numbers() == list(range(60 * ROWS))
    MinuteLog(START_US, 120, ROWS).write(lake, first=60)
    assert rewrite(120) == 60
    reader.read()
    assert reader.numbers() == list(range(120 * ROWS))
    MinuteLog(START_US, 125, ROWS).write(lake, first=120)
    reader.read()
    assert reader.numbers() == list(range(125 * ROWS))
