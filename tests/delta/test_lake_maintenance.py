"""What keeps a lake in order: compare and set, columns that only grow, the sizes of slices, the vacuum."""

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
    """A consumer that has read so many windows."""
    row = {"name": name, "keyspace_name": "k", "table_name": "t", "position": position, "window_number": window}
    return pa.Table.from_pylist([row | {"set_timestamp": None, "updated_at": TIME}], schema=CONSUMERS.schema)


def stamps(*expired: datetime | None) -> pa.Table:
    """Timestamps an hour apart, with when they expired."""
    rows = [{"key": "timestamps", "time": TIME + n * HOUR, "expired": each} for n, each in enumerate(expired)]
    return pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema)


def expired(lake: Lake) -> list[Any]:
    """The column as it stands, by time."""
    return lake.read(GENERATION_TIMESTAMPS).sort_by("time")["expired"].to_pylist()


def test_compare_and_set_replaces_what_is_as_expected(lake: Lake) -> None:
    """Only the row of that key, only while the column is so; nothing is inserted, and a lost one commits nothing."""
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


def test_of_many_compare_and_sets_one_is_told_that_it_won(lake: Lake) -> None:
    """Whatever the others write, the winner's row stands."""
    lake.merge(CONSUMERS, consumer(0), update=False)
    positions = [TIME + number * HOUR for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        won = list(
            pool.map(lambda at: lake.compare_and_set(CONSUMERS, consumer(1, at), ("window_number", 0)), positions)
        )
    assert won.count(True) == 1
    assert lake.read(CONSUMERS)["position"].to_pylist() == [positions[won.index(True)]]


def test_compare_and_set_refuses_what_it_cannot_mean(lake: Lake) -> None:
    """Several rows, an unknown column, a table that only grows."""
    with pytest.raises(InputError, match="one row, not 2"):
        lake.compare_and_set(CONSUMERS, pa.concat_tables([consumer(1), consumer(1, name="b")]), ("window_number", 0))
    with pytest.raises(InputError, match="no column window"):
        lake.compare_and_set(CONSUMERS, consumer(1), ("window", 0))
    with pytest.raises(StateError, match="is append-only"):
        lake.compare_and_set(BOOTSTRAP_EVENTS, BOOTSTRAP_EVENTS.schema.empty_table(), ("kind", "join"))


def test_a_column_that_is_raised_never_falls(lake: Lake) -> None:
    """Null is less than any time; rows that are gone stay gone."""
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


def test_slices_are_measured_in_the_log(lake: Lake) -> None:
    """Rows and bytes by partition, of the files that are there; a table without partitions is one slice."""
    assert lake.partitions(STREAMS_DESCRIPTIONS_V2) == []
    for hour, count in ((0, 3), (1, 1), (0, 2)):
        ends = range(hour * 100 + count * 10, hour * 100 + count * 10 + count)
        rows = [{"time": TIME + hour * HOUR, "range_end": end, "streams": [b"0" * 16]} for end in ends]
        made = pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema)
        lake.merge(STREAMS_DESCRIPTIONS_V2, made, update=False)
    found = {part.key[0]: part for part in lake.partitions(STREAMS_DESCRIPTIONS_V2)}
    assert {key: part.rows for key, part in found.items()} == {TIME: 5, TIME + HOUR: 1}
    for key, part in found.items():
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


def test_the_vacuum_takes_only_what_no_version_of_the_week_needs(lake: Lake) -> None:
    """A file that is old and in no version goes; one that was removed today stays; nothing to do is no commit."""
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


def test_small_files_are_put_together_now_and_then(lake: Lake) -> None:
    """However many commits a small table has, its rows lie in few files; the commit says that it changed no row."""
    for number in range(40):
        lake.merge(GENERATION_TIMESTAMPS, stamps(*[None] * (number + 1)), update=False)
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 40
    assert len(lake.data_files(GENERATION_TIMESTAMPS)) < 16
    gathered = [commit for commit in lake.commits(GENERATION_TIMESTAMPS) if commit.operation == "OPTIMIZE"]
    assert len(gathered) == 2
    assert all(commit.info is not None and not commit.info.digests for commit in gathered)
    assert not any(commit.changes for commit in gathered)
    [found] = verify_tables(lake, deep=True)
    assert (found.damage, found.unexpected, found.foreign) == ([], [], [])


def test_a_write_that_changes_nothing_puts_no_files_together(lake: Lake) -> None:
    """At whatever version a table is, and however many small files others have left in it, it stays at that version."""
    lake.ensure(GENERATION_TIMESTAMPS)
    rows = stamps(*[None] * 33)
    while (number := lake.version(GENERATION_TIMESTAMPS) or 0) < 32:
        write_deltalake(lake.path(GENERATION_TIMESTAMPS), rows.slice(number, 1), mode="append")
    assert lake.merge(GENERATION_TIMESTAMPS, rows.slice(31, 1), update=True).version == 32
    assert lake.version(GENERATION_TIMESTAMPS) == 32
    assert len(lake.data_files(GENERATION_TIMESTAMPS)) > 16


def test_a_writer_who_comes_first_is_not_undone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a commit from elsewhere has changed are not put together, and the rows of both writers are there."""
    compact, before = TableOptimizer.compact, [0]

    def late(self: TableOptimizer, **how: Any) -> Any:
        monkeypatch.undo()
        before[0] = lake.read(GENERATION_TIMESTAMPS).num_rows
        assert Lake(lake.root).delete(GENERATION_TIMESTAMPS, [("time", "=", TIME)]) == 1
        return compact(self, **how)

    monkeypatch.setattr(TableOptimizer, "compact", late)
    number = 0
    while not before[0]:
        number += 1
        lake.merge(GENERATION_TIMESTAMPS, stamps(*[None] * number), update=False)
    assert (number, len(expired(lake))) == (before[0], number - 1)
    assert not any(commit.operation == "OPTIMIZE" for commit in lake.commits(GENERATION_TIMESTAMPS))
    lake.merge(GENERATION_TIMESTAMPS, stamps(*[None] * number), update=False)
    assert len(expired(lake)) == number


def test_rows_are_replaced_in_the_version_that_was_looked_at(lake: Lake) -> None:
    """What passes the filters gives way to the new rows, the rest stays; from another version nothing is done."""
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


def test_a_table_is_widened_behind_its_columns(lake: Lake) -> None:
    """New columns are null in old rows, old ones stay, and nothing to do is no commit; another type is refused."""

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
