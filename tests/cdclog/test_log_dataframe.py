"""Typed writes through Spark: the same rows as in one process, in a table whose files are ordered by time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from support.spark.batches import rows_a_batch

from cdc_platform.cdclog import WRITTEN_AT, log_rows_from_arrow, log_table, replay_log
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.dataframe import append_log_rows, append_writes, encode_dataframe
from cdc_platform.cdclog.image_encoder import encode_batch_with_images, read_states_before
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.cdclog.state.store import store_state
from cdc_platform.cdclog.values import log_rows_to_arrow
from cdc_platform.clock import parse_time_us
from cdc_platform.cql import INT, TEXT, CdcOptions, Column, ListType, LivePartition, MapType, TableSchema, UserType
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.timeline import StreamSources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US = parse_time_us("2020-11-26T12:00:00Z")
SCHEMA = TableSchema(
    "ks",
    "t",
    (
        Column("p", INT, "partition"),
        Column("k", INT, "clustering"),
        Column("s", TEXT, "static"),
        Column("v", INT),
        Column("m", MapType(INT, TEXT)),
        Column("l", ListType(INT)),
        Column("u", UserType("ks", "ut", (("a", INT), ("b", TEXT)))),
    ),
    CdcOptions(enabled=True),
)


def _write(number: int) -> dict[str, Any]:
    """Return one of 600 writes, 600 ms apart. They insert and update all columns, with and without TTL, and delete."""
    key = {"timestamp": START_US + number * 600_000, "ttl": (number % 5 == 0) * 60, "p": number % 40, "k": number % 3}
    match number % 6:
        case 0:
            return key | {"operation": 2, "v": number, "m": [(1, "a"), (2, "b")], "cdc$deleted_m": True}
        case 1:
            return key | {"operation": 1, "s": f"s{number}", "cdc$deleted_v": True, "cdc$deleted_elements_m": [1]}
        case 2:
            return key | {"operation": 2, "v": 7, "m": [(3, "c")]}
        case 3:
            return key | {
                "operation": 1,
                "u": {"a": None, "b": "x"},
                "l": [("cc5baec0-2fec-11eb-af55-000000000001", number)],
            }
        case 4:
            return key | {"operation": 3}
    return key | {"operation": 1, "k": None, "s": "alone"}


@pytest.mark.spark
def test_typed_writes_become_a_log_ordered_by_time(streams_home: Path, tmp_path: Path, spark: SparkSession) -> None:
    """The rows equal those of one process and are appended once; files do not overlap; the log can be replayed."""
    source = Lake(streams_home / "lake")
    batch = pa.RecordBatch.from_pylist([_write(number) for number in range(600)], schema=typed_writes_schema(SCHEMA))
    writes = spark.createDataFrame(pa.Table.from_batches([batch]))
    copytree(streams_home / "lake", tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    for _ in range(2):
        append_writes(lake, SCHEMA, writes.repartition(3), files=6, transaction=("writer", 1))
    table = log_table(SCHEMA)
    log_rows = lake.read(table)
    expected = pa.Table.from_batches([encode_log_batch(SCHEMA, batch, StreamSources(source).generations.finder())])
    assert _sorted(log_rows) == _sorted(expected)
    assert _sorted(log_rows_to_arrow(SCHEMA, list(log_rows_from_arrow(SCHEMA, log_rows)))) == _sorted(log_rows)

    other_log = log_table(TableSchema("ks", "again", SCHEMA.columns, SCHEMA.cdc))
    append_log_rows(
        lake, TableSchema("ks", "again", SCHEMA.columns, SCHEMA.cdc), encode_dataframe(source, SCHEMA, writes), files=3
    )
    assert _sorted(lake.read(other_log)) == _sorted(log_rows)

    bounds = pa.table(DeltaTable(lake.path(table)).get_add_actions(flatten=True)).to_pylist()
    spans = sorted((file[f"min.{WRITTEN_AT}"], file[f"max.{WRITTEN_AT}"]) for file in bounds)
    assert len(spans) == 6
    assert all(first[1] < second[0] for first, second in pairwise(spans))

    partitions = replay_log(SCHEMA, log_rows_from_arrow(SCHEMA, log_rows))
    alone = {row["s"] for state in partitions.values() for row in LivePartition(state).selected()}
    assert "alone" in alone

    # An invalid write fails the batch with one line; columns are checked before anything runs.
    invalid = spark.createDataFrame(
        pa.Table.from_pylist([_write(0) | {"operation": 9}], schema=typed_writes_schema(SCHEMA))
    )
    with pytest.raises(
        InputError, match=r"^appending to ks\.t_scylla_cdc_log: operation 9 of 1 writes is out of bounds"
    ):
        append_log_rows(lake, SCHEMA, encode_dataframe(source, SCHEMA, invalid), files=1)
    with pytest.raises(InputError, match="no column nonsense"):
        encode_dataframe(source, SCHEMA, writes.withColumnRenamed("v", "nonsense"))
    with pytest.raises(InputError, match=r"column v of typed writes to ks\.t is string; it has to be int"):
        encode_dataframe(source, SCHEMA, writes.withColumn("v", writes["v"].cast("string")))
    assert lake.read(table).num_rows == log_rows.num_rows


def test_a_table_without_cdc_has_no_log(streams_home: Path) -> None:
    """Its writes are refused."""
    writes: Any = None
    with pytest.raises(StateError, match="has no CDC log"):
        encode_dataframe(Lake(streams_home / "lake"), TableSchema("ks", "t", SCHEMA.columns, CdcOptions()), writes)


@pytest.mark.spark
def test_images_and_ranges_through_spark_equal_those_of_one_process(
    streams_home: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """Writes in three parts follow stored ones, which the images show as well; range deletions remove rows."""
    schema = TableSchema("ks", "t", SCHEMA.columns, CdcOptions(enabled=True, preimage="full", postimage=True))
    copytree(streams_home / "lake", tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    streams = StreamSources(lake).generations.finder()
    expected: list[dict[str, Any]] = []
    for part in range(2):
        typed = [_write(number) | _ranged(number) for number in range(part * 120, part * 120 + 120)]
        batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(schema))
        expected += encode_batch_with_images(schema, batch, streams, read_states_before(lake, schema)).to_pylist()
        writes = spark.createDataFrame(pa.Table.from_batches([batch])).repartition(3)
        append_writes(lake, schema, writes, files=2, transaction=("writer", part + 1))
        if part == 0:
            store_state(lake, schema)
    log_rows = lake.read(log_table(schema))
    assert _sorted(log_rows) == _sorted(pa.Table.from_pylist(expected, schema=log_rows.schema))
    operations = {row["cdc$operation"] for row in expected}
    assert {0, 5, 8, 9} <= operations
    assert any(row["cdc$operation"] == 0 and row["v"] is not None for row in expected[-200:])


@pytest.mark.spark
def test_a_file_is_ordered_wherever_batches_end(streams_home: Path, tmp_path: Path, spark: SparkSession) -> None:
    """This holds also if more writes share a time than a batch has; a write without a time is refused."""
    copytree(streams_home / "lake", tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    typed = [_write(number) | {"timestamp": START_US + number % 9, "p": number} for number in range(200)]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(SCHEMA))
    with rows_a_batch(spark, 7):
        append_writes(lake, SCHEMA, spark.createDataFrame(pa.Table.from_batches([batch])), files=3)
    table = log_table(SCHEMA)
    written = [parquet.read_table(file.path) for file in lake.data_files(table)]
    assert len(written) == 3
    assert [rows.to_pylist() for rows in written] == [
        sorted(rows.to_pylist(), key=lambda row: (row[WRITTEN_AT], row["cdc$time"], row["cdc$batch_seq_no"]))
        for rows in written
    ]
    expected = encode_log_batch(SCHEMA, batch, StreamSources(lake).generations.finder())
    assert _sorted(lake.read(table)) == _sorted(pa.Table.from_batches([expected]))

    timeless = pa.Table.from_pylist([typed[0], typed[1] | {"timestamp": None}], schema=typed_writes_schema(SCHEMA))
    with pytest.raises(InputError, match=r"^appending to ks\.t_scylla_cdc_log: 1 writes have no timestamp"):
        append_writes(lake, SCHEMA, spark.createDataFrame(timeless), files=1)
    assert len(lake.data_files(table)) == 3


def _ranged(number: int) -> dict[str, Any]:
    """Make every sixth write a deletion of the rows from 0 to before 2."""
    if number % 6 != 4:
        return {}
    return {"operation": 5, "k": 0, "cdc$range_end": 8, "cdc$range_end_k": 2}


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["cdc$time"], row["cdc$batch_seq_no"]))
