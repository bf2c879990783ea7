"""Columns of incoming DataFrames: a pandera model checks names and flat types, the declaration nested ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.spark import IncomingFrameSchema
from cdc_platform.spark.frame_schema import ColumnMismatch
from cdc_platform.timeline.dataframe import assign_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = {
    "cdc$time": "string",
    "a.b": "bigint",
    "q`x": "binary",
    "at": "timestamp",
    "on": "boolean",
    "list": "array<int>",
    "kinds": "map<string,struct<a:bigint>>",
    "whole": "struct<a:bigint,b:array<string>>",
}
MISFITS = {
    "as declared": ({}, ()),
    "one too many": ({"more": "int"}, [ColumnMismatch("more", "int", None)]),
    "one missing": ({"a.b": None}, [ColumnMismatch("a.b", None, "bigint")]),
    "one that may be missing": ({"on": None}, ()),
    "a nested one missing": ({"kinds": None}, [ColumnMismatch("kinds", None, "map<string,struct<a:bigint>>")]),
    "another flat type": ({"cdc$time": "int"}, [ColumnMismatch("cdc$time", "int", "string")]),
    "another in one that may be missing": ({"on": "string"}, [ColumnMismatch("on", "string", "boolean")]),
    "nested for flat": ({"q`x": "struct<a:int>"}, [ColumnMismatch("q`x", "struct<a:int>", "binary")]),
    "a type that pandera does not know": ({"at": "interval day"}, [ColumnMismatch("at", "interval day", "timestamp")]),
    "flat for nested": ({"kinds": "string"}, [ColumnMismatch("kinds", "string", "map<string,struct<a:bigint>>")]),
    "another field": (
        {"whole": "struct<a:bigint>"},
        [ColumnMismatch("whole", "struct<a:bigint>", "struct<a:bigint,b:array<string>>")],
    ),
    "several": (
        {"more": "int", "at": "date", "list": "array<bigint>"},
        [
            ColumnMismatch("at", "date", "timestamp"),
            ColumnMismatch("list", "array<bigint>", "array<int>"),
            ColumnMismatch("more", "int", None),
        ],
    ),
}


def test_mismatches_are_named_without_a_job(spark: SparkSession) -> None:
    """Each mismatch has the actual and the required type; no row, of any volume, is read."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    declared = T.StructType([T.StructField(name, T.DataType.fromDDL(kind)) for name, kind in COLUMNS.items()])
    schema = IncomingFrameSchema("rows", declared, optional=["on"], strict=True)
    spark.sparkContext.setJobGroup("shapes", "shapes")
    for case, (change, expected) in MISFITS.items():
        kinds = {name: kind for name, kind in (COLUMNS | change).items() if kind is not None}
        rows = spark.range(3).select(*(F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()))
        assert schema.misfits(rows) == list(expected), case
    readable_schema = IncomingFrameSchema("rows", declared, readable=lambda found, expected: True)
    rows = spark.range(3).select("id", *(F.lit(None).cast(kind).alias(name) for name, kind in COLUMNS.items()))
    assert readable_schema.misfits(rows.withColumn("whole", F.lit(1))) == []
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("shapes")) == []
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")


def test_nullability_is_no_part_of_a_type(spark: SparkSession) -> None:
    """An array without nulls matches one that may have them."""
    from pyspark.sql import types as T

    flat = T.StructType([T.StructField("ids", T.ArrayType(T.LongType(), False), False)])
    assert (
        IncomingFrameSchema("rows", T.StructType([T.StructField("ids", T.ArrayType(T.LongType(), True))])).misfits(
            spark.createDataFrame([], flat)
        )
        == []
    )


def test_base_writes_have_a_key_and_a_timestamp(spark: SparkSession, lake: Lake) -> None:
    """Both need their types, with any other columns; the refusal comes before a row is read."""
    from pyspark.sql import functions as F

    writes = spark.range(3).select(F.lit(b"k").alias("key"), F.col("id").alias("timestamp"), F.lit(1).alias("more"))
    for bad, message in (
        (writes.drop("timestamp"), r"^writes need a column 'timestamp' of type bigint; they have \['key', 'more'\]$"),
        (writes.withColumn("key", F.lit("k")), r"^writes need a column 'key' of type binary; "),
    ):
        with pytest.raises(InputError, match=message):
            assign_streams(lake, bad)
    assert assign_streams(lake, writes).columns == ["key", "timestamp", "more", "stream_id"]
