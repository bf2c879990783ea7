"""A few rows through everything that the platform does on Spark, for an embedded session and a Connect server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cdc_platform.delta import Lake, TaskRunner, translate_errors
from cdc_platform.errors import InputError
from cdc_platform.query.spark import run_spark_query
from cdc_platform.spark import IncomingFrameSchema, arrow_to_spark_schema, frames
from cdc_platform.spark.frame_schema import ColumnMismatch
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2
from cdc_platform.timeline.dataframe import append_with_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)


def core(spark: SparkSession, lake: Lake) -> None:
    """Write a partition computed in Python, merge, read back, query by SQL, append base writes, and reject bad rows."""
    from pyspark.sql import functions as F

    def streams(batches):  # noqa: ANN001 sent to a worker, where annotations are only overhead
        import pyarrow as pa

        for batch in batches:
            ids = [[token.to_bytes(8, "big") * 2] * 2 for token in batch["range_end"].to_pylist()]
            yield pa.record_batch(
                [batch["time"], batch["range_end"], pa.array(ids)], names=["time", "range_end", "streams"]
            )

    table = STREAMS_DESCRIPTIONS_V2
    ranges = spark.range(0, 5, 1, 2).select(F.lit(TIME).alias("time"), F.col("id").alias("range_end"))
    rows = ranges.mapInArrow(streams, "time timestamp, range_end bigint, streams array<binary>")
    version = frames.replace_partition(TaskRunner(lambda: spark), lake, table, rows, {"time": TIME})
    assert not frames.append_to_table(TaskRunner(lambda: spark), lake, table, rows.limit(0))
    assert lake.version(table) == version
    assert frames.read_table_frame(spark, lake, table).where(F.col("range_end") > 2).count() == 2
    ends = frames.get_partition_rows(lake, table, {"time": TIME}, ["range_end"]).frame(spark, "range_end bigint")
    assert sorted(row["range_end"] for row in ends.collect()) == list(range(5))
    read = lake.read(table, filters=[("range_end", "=", 3)]).to_pylist()
    assert read == [{"time": TIME, "range_end": 3, "streams": [(3).to_bytes(8, "big") * 2] * 2}]
    with run_spark_query(lake, "SELECT time FROM cdc_generation_timestamps WHERE time > '2021-01-01'") as result:
        assert list(result.values()) == []
    with run_spark_query(lake, f"SELECT max(range_end), count(*) FROM {table.full_name}") as result:
        assert list(result.values()) == [(4, 5)]
    key = F.col("id").cast("string").cast("binary").alias("key")
    writes = spark.range(0, 5, 1, 2).select(key, F.col("id").alias("timestamp"))
    assert [append_with_streams(lake, writes, "ks.writes", ("core", 1)) for _ in range(2)] == [True, False]
    appended = spark.read.format("delta").load(f"{lake.location}/ks/writes").where("stream_id IS NULL")
    assert sorted(row["timestamp"] for row in appended.collect()) == list(range(5))
    wrong = rows.withColumn("range_end", F.lit(None).cast("bigint"))
    with pytest.raises(InputError, match="range_end may not be null"):
        frames.replace_partition(TaskRunner(lambda: spark), lake, table, wrong, {"time": TIME})
    expected = arrow_to_spark_schema(table.schema)
    assert IncomingFrameSchema("rows", expected).misfits(rows) == []
    wrong = rows.drop("range_end").withColumn("time", F.lit("noon"))
    assert IncomingFrameSchema("rows", expected).misfits(wrong) == [
        ColumnMismatch("time", "string", "timestamp"),
        ColumnMismatch("range_end", None, "bigint"),
    ]
    with pytest.raises(InputError, match="Syntax error"), translate_errors("the query"):
        spark.sql("SELEC 1").collect()
    assert lake.read(table).num_rows == 5
