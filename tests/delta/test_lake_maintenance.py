"""Maintenance of a lake: compare-and-set, columns that only grow, partition sizes, and vacuum."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.table import TableOptimizer

from cdc_platform.delta import Lake, verify_tables
from cdc_platform.errors import InputError, StateError
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CONSUMERS,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    Table,
    array_type,
    column,
)

TIME = datetime(2021, 11, 2, 19, 45, 26, 384000, tzinfo=UTC)
HOUR = timedelta(hours=1)


def consumer(window: int, position: datetime = TIME, name: str = "a") -> pa.Table:
    """Return a consumer that has read `window` windows."""
    row = {"name": name, "keyspace_name": "k", "table_name": "t", "position": position, "window_number": window}
    return pa.Table.from_pylist([row | {"set_timestamp": None, "updated_at": TIME}], schema=CONSUMERS.schema)


def stamps(*expired: datetime | None) -> pa.Table:
    """Return timestamps an hour apart, with their expiry times."""
    rows = [{"key": "timestamps", "time": TIME + n * HOUR, "expired": expiry} for n, expiry in enumerate(expired)]
    return pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema)


def expired(lake: Lake) -> list[Any]:
    """Return the current column, by time."""
    return lake.read(GENERATION_TIMESTAMPS).sort_by("time")["expired"].to_pylist()


def test_compare_and_set_replaces_an_expected_row(lake: Lake) -> None:
    """Replace only the row of the key, only if the column has the expected value; else commit nothing."""
    assert not lake.compare_and_set(CONSUMERS, consumer(1), ("window_number", 0))
    assert lake.read(CONSUMERS).num_rows == 0
    for name in ("a", "b"):
        lake.merge(CONSUMERS, consumer(0, name=name), update=False)
    assert lake.compare_and_set(CONSUMERS, consumer(1), ("window_number", 0))
    version = lake.version(CONSUMERS)
    assert not lake.compare_and_set(CONSUMERS, consumer(1), ("window_number", 0))
    assert lake.version(CONSUMERS) == version
    rows = lake.read(CONSUMERS).sort_by("name").to_pylist()
    assert [(row["name"], row["window_number"]) for row in rows] == [("a", 1), ("b", 0)]


def test_one_of_many_compare_and_sets_wins(lake: Lake) -> None:
    """Exactly one concurrent writer wins, and its row remains."""
    lake.merge(CONSUMERS, consumer(0), update=False)
    positions = [TIME + number * HOUR for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        won = list(
            pool.map(lambda at: lake.compare_and_set(CONSUMERS, consumer(1, at), ("window_number", 0)), positions)
        )
    assert won.count(True) == 1
    assert lake.read(CONSUMERS)["position"].to_pylist() == [positions[won.index(True)]]


def test_compare_and_set_refuses_invalid_requests(lake: Lake) -> None:
    """Refuse several rows, an unknown column, and an append-only table."""
    with pytest.raises(InputError, match="one row, not 2"):
        lake.compare_and_set(CONSUMERS, pa.concat_tables([consumer(1), consumer(1, name="b")]), ("window_number", 0))
    with pytest.raises(InputError, match="no column window"):
        lake.compare_and_set(CONSUMERS, consumer(1), ("window", 0))
    with pytest.raises(StateError, match="is append-only"):
        lake.compare_and_set(BOOTSTRAP_EVENTS, BOOTSTRAP_EVENTS.schema.empty_table(), ("kind", "join"))


def test_a_column_that_is_raised_never_falls(lake: Lake) -> None:
    """Null is less than any time; missing rows are not inserted."""
    assert lake.raise_column(GENERATION_TIMESTAMPS, stamps(TIME), "expired") == 0
    assert not lake.exists(GENERATION_TIMESTAMPS)
    lake.merge(GENERATION_TIMESTAMPS, stamps(None, TIME, TIME + HOUR), update=False)
    raised = stamps(TIME, TIME + HOUR, TIME, TIME)
    assert lake.raise_column(GENERATION_TIMESTAMPS, raised, "expired") == 2
    assert expired(lake) == [TIME, TIME + HOUR, TIME + HOUR]
    version = lake.version(GENERATION_TIMESTAMPS)
    assert lake.raise_column(GENERATION_TIMESTAMPS, raised, "expired") == 0
    assert lake.version(GENERATION_TIMESTAMPS) == version
    with pytest.raises(InputError, match="appears 2 times"):
        lake.raise_column(GENERATION_TIMESTAMPS, pa.concat_tables([stamps(TIME), stamps(TIME)]), "expired")


def test_partitions_are_measured_in_the_log(lake: Lake) -> None:
    """Rows and bytes of current files by partition; a table without partitions counts as one."""
    assert lake.partitions(STREAMS_DESCRIPTIONS_V2) == []
    for hour, count in ((0, 3), (1, 1), (0, 2)):
        ends = range(hour * 100 + count * 10, hour * 100 + count * 10 + count)
        rows = [{"time": TIME + hour * HOUR, "range_end": end, "streams": [b"0" * 16]} for end in ends]
        added = pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema)
        lake.merge(STREAMS_DESCRIPTIONS_V2, added, update=False)
    partitions = {part.key[0]: part for part in lake.partitions(STREAMS_DESCRIPTIONS_V2)}
    assert {key: part.rows for key, part in partitions.items()} == {TIME: 5, TIME + HOUR: 1}
    for key, part in partitions.items():
        files = [file.path for file in lake.data_files(STREAMS_DESCRIPTIONS_V2, [("time", "=", key)])]
        assert part.bytes == sum(Path(file).stat().st_size for file in files)
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", TIME)])
    assert [part.key for part in lake.partitions(STREAMS_DESCRIPTIONS_V2)] == [(TIME + HOUR,)]
    row = {"time": TIME, "streams": [b"0" * 16], "expired": None}
    lake.merge(STREAMS_DESCRIPTIONS, pa.Table.from_pylist([row], schema=STREAMS_DESCRIPTIONS.schema), update=False)
    (whole,) = lake.partitions(STREAMS_DESCRIPTIONS)
    assert (whole.key, whole.rows) == ((), 1)
    lake.delete(STREAMS_DESCRIPTIONS, [("time", "=", TIME)])
    assert lake.partitions(STREAMS_DESCRIPTIONS) == []


def test_the_vacuum_deletes_only_files_unneeded_for_a_week(lake: Lake) -> None:
    """An old file in no version is deleted, one removed today stays, and a vacuum without work is no commit."""
    assert lake.vacuum(GENERATION_TIMESTAMPS) == 0
    lake.merge(GENERATION_TIMESTAMPS, stamps(None), update=False)
    lake.delete(GENERATION_TIMESTAMPS, [("key", "=", "timestamps")])
    folder = Path(lake.path(GENERATION_TIMESTAMPS))
    (removed,) = folder.glob("*.parquet")
    version = lake.version(GENERATION_TIMESTAMPS)
    assert lake.vacuum(GENERATION_TIMESTAMPS) == 0
    assert lake.version(GENERATION_TIMESTAMPS) == version
    stray = folder / "part-00000-of-nobody.snappy.parquet"
    stray.write_bytes(removed.read_bytes())
    old = datetime.now(UTC).timestamp() - timedelta(days=8).total_seconds()
    os.utime(stray, (old, old))
    assert lake.vacuum(GENERATION_TIMESTAMPS) == 1
    assert (stray.exists(), removed.exists()) == (False, True)


def test_small_files_are_compacted_regularly(lake: Lake) -> None:
    """A small table has few files after any number of commits; the compaction records that no row changed."""
    for number in range(40):
        lake.merge(GENERATION_TIMESTAMPS, stamps(*[None] * (number + 1)), update=False)
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 40
    assert len(lake.data_files(GENERATION_TIMESTAMPS)) < 16
    compactions = [commit for commit in lake.commits(GENERATION_TIMESTAMPS) if commit.operation == "OPTIMIZE"]
    assert len(compactions) == 2
    assert all(commit.info is not None and not commit.info.digests for commit in compactions)
    assert not any(commit.changes for commit in compactions)
    [result] = verify_tables(lake, deep=True)
    assert (result.damage, result.unexpected, result.foreign) == ([], [], [])


def test_a_write_without_changes_compacts_no_files(lake: Lake) -> None:
    """The table stays at its version, even if other writers left many small files."""
    lake.ensure(GENERATION_TIMESTAMPS)
    rows = stamps(*[None] * 33)
    while (number := lake.version(GENERATION_TIMESTAMPS) or 0) < 32:
        write_deltalake(lake.path(GENERATION_TIMESTAMPS), rows.slice(number, 1), mode="append")
    assert lake.merge(GENERATION_TIMESTAMPS, rows.slice(31, 1), update=True).version == 32
    assert lake.version(GENERATION_TIMESTAMPS) == 32
    assert len(lake.data_files(GENERATION_TIMESTAMPS)) > 16


def test_a_compaction_does_not_undo_an_earlier_writer(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a foreign commit changed are not compacted, and both writers' rows remain."""
    compact, before = TableOptimizer.compact, [0]

    def late(self: TableOptimizer, **options: Any) -> Any:
        monkeypatch.undo()
        before[0] = lake.read(GENERATION_TIMESTAMPS).num_rows
        assert Lake(lake.root).delete(GENERATION_TIMESTAMPS, [("time", "=", TIME)]) == 1
        return compact(self, **options)

    monkeypatch.setattr(TableOptimizer, "compact", late)
    number = 0
    while not before[0]:
        number += 1
        lake.merge(GENERATION_TIMESTAMPS, stamps(*[None] * number), update=False)
    assert (number, len(expired(lake))) == (before[0], number - 1)
    assert not any(commit.operation == "OPTIMIZE" for commit in lake.commits(GENERATION_TIMESTAMPS))
    lake.merge(GENERATION_TIMESTAMPS, stamps(*[None] * number), update=False)
    assert len(expired(lake)) == number


def test_rows_are_replaced_in_the_version_that_was_read(lake: Lake) -> None:
    """Rows that pass the filter are replaced and others stay; with another version nothing happens."""
    for name in ("a", "b"):
        lake.merge(CONSUMERS, consumer(0, name=name), update=False)
    version = lake.version(CONSUMERS)
    assert not lake.replace_once(CONSUMERS, consumer(7, name="a"), [("name", "=", "a")], version and version - 1)
    assert lake.version(CONSUMERS) == version
    assert lake.replace_once(CONSUMERS, consumer(7, name="a"), [("name", "=", "a")], version)
    rows = lake.read(CONSUMERS).sort_by("name").to_pylist()
    assert [(row["name"], row["window_number"]) for row in rows] == [("a", 7), ("b", 0)]
    with pytest.raises(InputError, match="needs a filter"):
        lake.replace_once(CONSUMERS, consumer(7, name="a"), [], version)


def test_a_widened_table_gets_new_columns_at_its_end(lake: Lake) -> None:
    """New columns are null in old rows, and old columns stay; no change is no commit; another type is refused."""

    def shaped(**columns: pa.DataType) -> Table:
        fields = [column(name, kind, name, null=name != "k") for name, kind in columns.items()]
        return Table("ks", "wide", pa.schema(fields), ("k",), "A table that grows")

    first = lake.widen(shaped(k=pa.int32(), old=pa.string()))
    lake.merge(first, pa.table({"k": pa.array([1], pa.int32()), "old": ["x"]}), update=False)
    wide = lake.widen(shaped(new=array_type(pa.string()), k=pa.int32()))
    assert lake.stored_schema(wide).names == wide.schema.names == ["k", "old", "new"]
    assert lake.read(wide).to_pylist() == [{"k": 1, "old": "x", "new": None}]
    version = lake.version(wide)
    assert lake.widen(shaped(new=array_type(pa.string()), k=pa.int32())).schema.equals(wide.schema)
    assert lake.version(wide) == version
    with pytest.raises(StateError, match=r"ks\.wide\.old holds string where int64 is expected"):
        lake.widen(shaped(k=pa.int32(), old=pa.int64()))
