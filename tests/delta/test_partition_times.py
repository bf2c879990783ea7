"""Times as partition values: every writer adds the zone, and values of earlier releases mean the same times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_platform.delta import Lake, TaskRows, TaskRunner, verify_tables, writer
from cdc_platform.delta import snapshot as delta_snapshot
from cdc_platform.spark import frames
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = STREAMS_DESCRIPTIONS_V2
FIRST = datetime(2026, 1, 31, 20, 30, 0, 1_000, tzinfo=UTC)  # the next day in Tokyo
SECOND = FIRST + timedelta(hours=9)  # the local time in Tokyo at FIRST
ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
OLD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")

Write = Callable[[Lake], object]


def streams(time: datetime, *ends: int, stream: bytes = b"0123456789abcdef") -> pa.Table:
    """Return rows of a time with these range ends."""
    return pa.Table.from_pylist(
        [{"time": time, "range_end": end, "streams": [stream]} for end in ends], schema=TABLE.schema
    )


def part(rows: pa.Table) -> TaskRows:
    """Return rows as the work of one task."""
    return TaskRows(1, lambda _: iter(rows.to_batches()))


def merged_whole(lake: Lake) -> None:
    """Replace all rows with the existing ones, without one."""
    lake.transact(
        TABLE, lambda rows: rows.filter(pa.array([end != 2 for end in rows["range_end"].to_pylist()])), whole=True
    )


WRITES: Mapping[str, Write] = {
    "insert": lambda lake: lake.merge(TABLE, streams(FIRST, 1, 2, 7), update=False),
    "update": lambda lake: lake.merge(TABLE, streams(FIRST, 1, 2, 7, stream=b"f" * 16), update=True),
    "update across": lambda lake: lake.merge(
        TABLE, pa.concat_tables([streams(FIRST, 2, stream=b"f" * 16), streams(SECOND, 3, 8)]), update=True
    ),
    "judged": lambda lake: lake.merge_judged(TABLE, lambda: streams(FIRST, 2, 7, stream=b"e" * 16), update=True),
    "whole": merged_whole,
    "set": lambda lake: lake.compare_and_set(TABLE, streams(FIRST, 2, stream=b"d" * 16), ("range_end", 2)),
    "append": lambda lake: lake.append_once(TABLE, streams(FIRST, 9), {"application": 1}, None),
    "replace some": lambda lake: lake.replace_once(
        TABLE, streams(FIRST, 2, stream=b"c" * 16), [("time", "=", FIRST), ("range_end", "=", 2)], lake.version(TABLE)
    ),
    "delete a row": lambda lake: lake.delete(TABLE, [("time", "=", FIRST), ("range_end", "=", 1)]),
    "delete a row everywhere": lambda lake: lake.delete(TABLE, [("range_end", ">=", 2)]),
    "delete a time": lambda lake: lake.delete(TABLE, [("time", "=", FIRST)]),
    "slice": lambda lake: frames.replace_partition(
        TaskRunner.alone(), lake, TABLE, part(streams(FIRST, 2, 7)), {"time": FIRST}
    ),
    "nothing in a slice": lambda lake: frames.replace_partition(
        TaskRunner.alone(), lake, TABLE, part(streams(FIRST)), {"time": FIRST}
    ),
    "append in volume": lambda lake: frames.append_to_table(TaskRunner.alone(), lake, TABLE, part(streams(FIRST, 9))),
    "replace all": lambda lake: frames.replace_all_rows(TaskRunner.alone(), lake, TABLE, part(streams(SECOND, 1, 2))),
}


def values(lake: Lake) -> list[str]:
    """Return the partition times of all files that the table's log ever added."""
    log = sorted(Path(lake.path(TABLE), "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in log for line in file.read_text(encoding="utf-8").splitlines()]
    return [action["add"]["partitionValues"]["time"] for action in actions if "add" in action]


def read_sorted(lake: Lake, *where: Any) -> list[dict[str, Any]]:
    """Return the rows that pass the filters, sorted."""
    return lake.read(TABLE, filters=where).sort_by([("time", "ascending"), ("range_end", "ascending")]).to_pylist()


def write_as_before(lake: Lake, monkeypatch: pytest.MonkeyPatch, rows: pa.Table) -> None:
    """Write rows as earlier releases did, through deltalake, which omits the zone."""
    with monkeypatch.context() as patched:
        patched.setattr(writer, "has_time_partitions", lambda _: False)
        lake.merge(TABLE, rows, update=False)


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Lake, Lake]:
    """Equal rows twice: in a lake where both kinds of values name one time, and in one where all have the zone."""
    mixed, zoned = Lake(tmp_path / "mixed"), Lake(tmp_path / "zoned")
    write_as_before(mixed, monkeypatch, pa.concat_tables([streams(FIRST, 1, 3), streams(SECOND, 1)]))
    assert all(map(OLD.fullmatch, values(mixed)))
    zoned.merge(TABLE, pa.concat_tables([streams(FIRST, 1, 3), streams(SECOND, 1)]), update=False)
    for lake in (mixed, zoned):
        lake.merge(TABLE, streams(FIRST, 2), update=False)
    assert {bool(ZONED.fullmatch(value)) for value in values(mixed)} == {True, False}
    return mixed, zoned


@pytest.mark.parametrize("name", WRITES)
def test_old_and_new_values_name_one_partition(twins: tuple[Lake, Lake], name: str) -> None:
    """Every write leaves equal rows, partitions, digests and versions in both lakes, and adds times with a zone."""
    mixed, zoned = twins
    known = len(values(mixed))
    WRITES[name](mixed)
    WRITES[name](zoned)
    assert read_sorted(mixed) == read_sorted(zoned)
    assert all(map(ZONED.fullmatch, [*values(mixed)[known:], *values(zoned)]))
    partitions = [sorted((part.key, part.rows) for part in lake.partitions(TABLE)) for lake in twins]
    assert partitions[0] == partitions[1]
    assert mixed.version(TABLE) == zoned.version(TABLE)
    digests = [[commit.info.digests for commit in lake.commits(TABLE) if commit.info] for lake in twins]
    assert digests[0][0] == digests[1][0]
    for lake in twins:
        (result,) = verify_tables(lake, deep=True, names=[TABLE.full_name])
        assert (result.damage, result.unexpected, result.foreign, result.unknown) == ([], [], [], 0)


@pytest.mark.parametrize(
    "where",
    [
        [("time", "=", FIRST)],
        [("time", "!=", FIRST)],
        [("time", "<=", FIRST)],
        [("time", ">", FIRST)],
        [("time", "in", [FIRST, FIRST + timedelta(hours=1)])],
        [("time", "=", FIRST), ("range_end", "=", 2)],
    ],
)
def test_filters_find_both_kinds(twins: tuple[Lake, Lake], where: list[Any]) -> None:
    """A filter selects rows and files by time, in both forms of the values."""
    mixed, zoned = twins
    assert read_sorted(mixed, *where) == read_sorted(zoned, *where)
    rows = [sum(file.rows for file in lake.data_files(TABLE, where)) for lake in twins]
    assert rows[0] == rows[1]


def test_every_reader_reads_the_same_time(twins: tuple[Lake, Lake]) -> None:
    """deltalake, pyarrow datasets and DuckDB in another zone's session read the written instants."""
    for lake in twins:
        opened = DeltaTable(lake.path(TABLE))
        assert set(opened.to_pyarrow_table()["time"].to_pylist()) == {FIRST, SECOND}
        assert set(opened.to_pyarrow_dataset().to_table(columns=["time"])["time"].to_pylist()) == {FIRST, SECOND}
        snapshot = delta_snapshot.read_newest_snapshot(lake, TABLE)
        assert snapshot is not None
        with duckdb.connect() as engine:
            engine.execute("SET TimeZone = 'Asia/Tokyo'")
            engine.register("v2", snapshot.dataset())
            counted = engine.execute("SELECT epoch_us(time), count(*) FROM v2 GROUP BY 1 ORDER BY 1").fetchall()
            filtered = engine.execute("SELECT count(*) FROM v2 WHERE time = TIMESTAMPTZ '2026-01-31 20:30:00.001Z'")
            assert filtered.fetchall() == [(3,)]
        assert counted == [(int(time.timestamp() * 1e6), count) for time, count in ((FIRST, 3), (SECOND, 1))]


def test_equal_input_makes_equal_bytes(tmp_path: Path) -> None:
    """Two lakes with equal histories have files of equal content, and logs that differ only in file names."""
    histories = []
    for name in ("one", "other"):
        lake = Lake(tmp_path / name)
        lake.merge(TABLE, streams(FIRST, 3, 1, 2), update=False)
        lake.merge(TABLE, streams(FIRST, 1, 9, stream=b"f" * 16), update=True)
        before = lake.version(TABLE)
        lake.merge(TABLE, streams(FIRST, 1, 9, stream=b"f" * 16), update=True)
        assert lake.version(TABLE) == before
        log = [file.read_text(encoding="utf-8") for file in sorted(Path(lake.path(TABLE), "_delta_log").glob("*.json"))]
        actions = [action["add"] for text in log for action in map(json.loads, text.splitlines()) if "add" in action]
        content = [Path(lake.path(TABLE), writer.decode_path(file["path"])).read_bytes() for file in actions]
        histories.append(
            [(file["partitionValues"], file["stats"], data) for file, data in zip(actions, content, strict=True)]
        )
    assert histories[0] == histories[1]


def test_only_one_column_of_times_names_partitions() -> None:
    """Rewritten rows are found by one time column; a table with several would need another way."""
    assert [table for table in TABLES.values() if writer.has_time_partitions(table)] == [STREAMS_DESCRIPTIONS_V2]
    assert all(len(table.partition_by) == 1 for table in TABLES.values() if writer.has_time_partitions(table))


@pytest.mark.spark
def test_a_session_in_another_zone_reads_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    """Delta on Spark in Tokyo reads the written instants in rows, filters and skipped partitions."""
    from pyspark.sql import functions as F

    lake = Lake(tmp_path / "lake")
    for name in ("insert", "update", "delete a row", "append"):
        WRITES[name](lake)
    lake.merge(TABLE, streams(SECOND, 1), update=False)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        read = frames.read_table_frame(spark, lake, TABLE)
        times = {row[0] for row in read.select(F.unix_micros("time")).collect()}
        assert times == {int(time.timestamp() * 1e6) for time in (FIRST, SECOND)}
        assert read.where("time = TIMESTAMP '2026-02-01 05:30:00.001'").count() == 3
        assert read.where("time = TIMESTAMP '2026-01-31 20:30:00.001Z'").count() == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
