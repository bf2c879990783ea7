"""Base writes that Spark's executors append, with their streams, to a Delta table of the lake."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from support.command_line import run
from support.homes.timelines import FIRST_MS, LEASE_END_MS, SECOND_MS, home_of

from cdc_platform.clock import us_from_ms
from cdc_platform.delta import Lake, read_newest_versions
from cdc_platform.errors import InputError, StateError
from cdc_platform.timeline.dataframe import append_with_streams, assign_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "shop.cart_writes"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with three generations."""
    return Lake(home_of(tmp_path, "three") / "lake")


def create_writes(spark: SparkSession, count: int = 300) -> DataFrame:
    """Return writes before, in and after the generations, in three partitions.

    Some lack a key or a time; all have more columns.
    """
    from pyspark.sql import functions as F

    first, step = us_from_ms(FIRST_MS) - 1_000_000, (us_from_ms(SECOND_MS) - us_from_ms(FIRST_MS)) // 100
    return spark.range(0, count, 1, 3).select(
        F.when(F.col("id") % 50 != 7, F.col("id").cast("string").cast("binary")).alias("key"),
        F.when(F.col("id") % 50 != 9, F.lit(first) + F.col("id") * F.lit(step)).alias("timestamp"),
        F.concat(F.lit("cart "), F.col("id").cast("string")).alias("note"),
        F.timestamp_micros(F.col("id")).alias("seen"),
    )


def count_rows(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return how often each row occurs."""
    return Counter(repr(sorted(row.items())) for row in rows)


def stored_rows(lake: Lake, name: str = NAME) -> list[dict[str, Any]]:
    """Return the table's rows, read by deltalake alone."""
    rows = DeltaTable(f"{lake.location}/{name.replace('.', '/')}").to_pyarrow_table().to_pylist()
    return [row | {"seen": row["seen"].replace(tzinfo=None)} for row in rows]


def test_the_table_has_the_rows_of_the_frame(spark: SparkSession, lake: Lake) -> None:
    """Each write is stored once with the stream from `assign_streams`, by one commit with a file per partition."""
    expected = [row.asDict() for row in assign_streams(lake, create_writes(spark)).collect()]
    assert {row["stream_id"] is None for row in expected} == {True, False}
    assert append_with_streams(lake, create_writes(spark), NAME)
    assert count_rows(stored_rows(lake)) == count_rows(expected)
    table = DeltaTable(f"{lake.location}/shop/cart_writes")
    assert (table.version(), len(table.file_uris())) == (1, 3)
    assert append_with_streams(lake, create_writes(spark, 5), NAME)
    assert len(stored_rows(lake)) == 305


def test_a_transaction_is_appended_once(spark: SparkSession, lake: Lake) -> None:
    """Repeating a transaction number appends nothing; the next number appends its rows."""
    assert append_with_streams(lake, create_writes(spark, 20), NAME, ("loader", 1))
    assert not append_with_streams(lake, create_writes(spark, 20), NAME, ("loader", 1))
    assert len(stored_rows(lake)) == 20
    assert append_with_streams(lake, create_writes(spark, 20), NAME, ("loader", 2))
    assert len(stored_rows(lake)) == 40


def test_values_that_cannot_be_stored_are_refused_before_any_write(spark: SparkSession, lake: Lake) -> None:
    """The error is one line that names the column or the table, and nothing is written."""
    from pyspark.sql import functions as F

    writes, before = create_writes(spark, 5), read_newest_versions(lake)
    for frame, name, message in (
        (writes.drop("key"), NAME, "^writes need a column 'key' of type binary"),
        (writes.withColumn("Stream_ID", F.lit(1)), NAME, "^writes have a column 'stream_id' already"),
        (writes.withColumn("tags", F.array("note")), NAME, r"^column 'tags' of the writes is array<string>, which"),
        (writes.withColumn("a b", F.lit(1)), NAME, "^Delta has no column 'a b'"),
        (writes, "carts", "^writes are appended to keyspace.table, not to 'carts'"),
        (writes, "shop/x.carts", "^writes are appended to keyspace.table"),
        (writes, "platform.generations", "^platform.generations is reserved for the platform's own tables"),
        (writes, "shop.carts_scylla_cdc_log", "^shop.carts_scylla_cdc_log is reserved for the platform's own tables"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            append_with_streams(lake, frame, name)
        assert "\n" not in str(refused.value)
    assert read_newest_versions(lake) == before
    assert append_with_streams(lake, writes, NAME)
    with pytest.raises(
        StateError, match=r"^shop.cart_writes at .* has columns key, timestamp, note, seen, stream_id wh"
    ):
        append_with_streams(lake, writes.drop("note"), NAME)
    assert len(stored_rows(lake)) == 5


def test_a_write_that_waits_for_a_decision_blocks_all_others(spark: SparkSession, tmp_path: Path) -> None:
    """The error of the task is one line, and no row of any task is stored."""
    lake = Lake(home_of(tmp_path, "undecided") / "lake")
    rows = [(b"k", us_from_ms(FIRST_MS)), (b"k", us_from_ms(LEASE_END_MS))]
    writes = spark.createDataFrame(rows, "key binary, timestamp bigint").repartition(2)
    with pytest.raises(StateError, match=r"^[^\n]*undecided since[^\n]*$"):
        append_with_streams(lake, writes, NAME)
    assert DeltaTable(f"{lake.location}/shop/cart_writes").to_pyarrow_table().num_rows == 0


def test_a_home_with_appended_writes_passes_its_checks(spark: SparkSession, lake: Lake) -> None:
    """Deep checks cover the appended table, and a copy of the home contains it."""
    home = Path(str(lake.location)).parent

    def check_results() -> dict[str, tuple[bool, int]]:
        results = run("--home", home, "check", "--deep", "--json").rows
        return {result["invariant"]: (result["passed"], result["checked"]) for result in results}

    before = check_results()
    append_with_streams(lake, create_writes(spark, 20), NAME)
    after = check_results()
    assert {name: passed for name, (passed, _) in after.items()} == {
        name: passed for name, (passed, _) in before.items()
    }
    assert {name for name, (_, checked) in after.items() if checked > before[name][1]} >= {
        "files_whole",
        "rows_as_committed",
    }
    assert run("home", "copy", home, home.parent / "copy").exit_code == 0
    assert count_rows(stored_rows(Lake(home.parent / "copy" / "lake"))) == count_rows(stored_rows(lake))
