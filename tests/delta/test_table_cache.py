"""The cache of open tables: it sees other writers' commits and detects a table that replaced another."""

from __future__ import annotations

import pickle
import random
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from cdc_platform.delta import Lake, table_rows
from cdc_platform.delta.files import OPERATORS, Filter, filters_sql
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.table_cache import TableCache
from cdc_platform.delta.table_rows import read_rows, read_small_table
from cdc_platform.tables import CHECKPOINT_EVERY


def rows(*numbers: int) -> pa.Table:
    """Return a table of one column."""
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers(opened: TableCache, path: Path) -> list[int]:
    """Return the numbers in the newest version."""
    return sorted(opened.get_newest(str(path)).delta.to_pyarrow_table()["n"].to_pylist())


def queried(path: Path, schema: pa.Schema, filters: Sequence[Filter] = ()) -> pa.Table:
    """Return the rows by a query, whose engine shares no code with the reading of small files."""
    sql = f"SELECT {', '.join(schema.names)} FROM t WHERE {filters_sql(filters)}"
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute(sql).read_all()).cast(schema)


def test_commits_of_other_writers_are_seen(tmp_path: Path) -> None:
    """Each foreign commit is seen, also several at once and after a checkpoint."""
    opened, path = TableCache(), tmp_path / "t"
    write_deltalake(path, rows(1))
    assert numbers(opened, path) == [1]
    first = opened.get_newest(str(path))
    assert opened.get_newest(str(path)) is first
    write_deltalake(path, rows(2), mode="append")
    assert numbers(opened, path) == [1, 2]
    for number in range(3, 15):
        write_deltalake(path, rows(number), mode="append")
    DeltaTable(path).create_checkpoint()
    write_deltalake(path, rows(15), mode="overwrite")
    assert numbers(opened, path) == [15]


def test_a_replaced_table_is_detected(tmp_path: Path) -> None:
    """A removed table is not found; a recreated one, at a lower or equal version, yields its own rows."""
    opened, path = TableCache(), tmp_path / "t"
    write_deltalake(path, rows(1))
    write_deltalake(path, rows(2), mode="append")
    assert numbers(opened, path) == [1, 2]
    shutil.rmtree(path)
    with pytest.raises(TableNotFoundError):
        opened.get_newest(str(path))
    write_deltalake(path, rows(7))
    assert numbers(opened, path) == [7]
    other = tmp_path / "other"
    write_deltalake(other, rows(8))
    shutil.rmtree(path)
    other.rename(path)
    assert numbers(opened, path) == [8]


COLUMNS = {
    "whole": (pa.int64(), [-(2**63), -1, 0, 7, 2**63 - 1]),
    "small": (pa.int32(), [-(2**31), 0, 7]),
    "text": (pa.string(), ["", "a", "B", "o'hara", "\u00e9", "z"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\x7f\x80", b"\xff"]),
    "time": (pa.timestamp("us", "UTC"), [datetime(1969, 12, 31, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 1, 5, UTC)]),
    "truth": (pa.bool_(), [True, False]),
}


def test_filters_of_small_tables_equal_a_query(tmp_path: Path) -> None:
    """Each operator on each type, with nulls and random rows, passes the rows that SQL passes."""
    draw = random.Random(7)
    schema = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
    records = [{name: draw.choice([None, *values]) for name, (_, values) in COLUMNS.items()} for _ in range(200)]
    write_deltalake(tmp_path / "t", pa.Table.from_pylist(records, schema=schema))
    opened = TableCache().get_newest(str(tmp_path / "t"))
    assert read_small_table(opened) is not None
    tried = 0
    for name, (kind, values) in COLUMNS.items():
        for operator in OPERATORS:
            for value in values:
                if kind == pa.bool_() and operator in ("<", "<=", ">", ">="):
                    continue
                operand = [value, draw.choice(values)] if operator in ("in", "not in") else value
                filters = [(name, operator, operand), ("whole", "not in", draw.choice([[], [7], [0, 7]]))]
                expected = queried(tmp_path / "t", schema, filters).to_pylist()
                assert read_rows(opened, schema, filters).to_pylist() == expected, filters
                tried += len(expected) > 0
        for operator in ("in", "not in"):
            expected = queried(tmp_path / "t", schema, [(name, operator, [])]).num_rows
            assert read_rows(opened, schema, [(name, operator, [])]).num_rows == expected
    assert tried > 100


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("name", ["small", "text", "time"])
def test_small_partitioned_tables_are_read_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nulls: bool
) -> None:
    """The rows equal a query's; the query engine runs only if a partition value is null or an empty text."""
    draw, path = random.Random(11), tmp_path / "t"
    schema = pa.schema([(name_of_column, kind) for name_of_column, (kind, _) in COLUMNS.items()])
    records = [
        {name_of_column: draw.choice([None, *values]) for name_of_column, (_, values) in COLUMNS.items()}
        for _ in range(120)
    ]
    chosen = [row for row in records if nulls or row[name]]
    for part in (chosen[::2], chosen[1::2]):
        write_deltalake(path, pa.Table.from_pylist(part, schema=schema), mode="append", partition_by=[name])
    expected = sorted(map(repr, queried(path, schema).to_pylist()))
    assert len(expected) == len(chosen) > 20
    querying, queries = table_rows._query_rows, list[object]()
    monkeypatch.setattr(table_rows, "_query_rows", lambda *filters: queries.append(filters) or querying(*filters))
    opened = TableCache().get_newest(str(path))
    assert sorted(map(repr, read_rows(opened, schema).to_pylist())) == expected
    assert len(queries) == nulls
    filters = [("whole", "=", 7)]
    matching = read_rows(opened, schema, filters)
    assert matching.num_rows == queried(path, schema, filters).num_rows > 0


def test_rows_of_large_tables_are_not_cached(tmp_path: Path) -> None:
    """The rows of a small table are cached until its next version; those of a large table are not cached."""
    opened, path = TableCache(), tmp_path / "t"
    write_deltalake(path, rows(1))
    few = read_small_table(opened.get_newest(str(path)))
    assert few is not None
    assert read_small_table(opened.get_newest(str(path))) is few
    write_deltalake(path, rows(2), mode="append")
    assert read_rows(opened.get_newest(str(path)), few.schema).num_rows == 2
    write_deltalake(path, rows(*random.Random(1).choices(range(2**62), k=200_000)), mode="append")
    assert read_small_table(opened.get_newest(str(path))) is None
    little = read_rows(opened.get_newest(str(path)), few.schema, [("n", "<=", 2)])
    assert little.num_rows >= 2
    write_deltalake(path, rows(1), mode="append")
    assert read_rows(opened.get_newest(str(path)), few.schema, [("n", "<=", 2)]).num_rows == little.num_rows + 1


def test_a_table_is_reopened_after_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own and foreign checkpoints each cause one reopening; every version's rows equal those of a new reader."""
    opened, path, openings = TableCache(), tmp_path / "t", list[int]()
    write_deltalake(path, rows(0), configuration={"delta.checkpointInterval": str(CHECKPOINT_EVERY)})
    first = opened.get_newest(str(path))
    open_whole = OpenTable._open

    def counted(self: OpenTable, version: int | None) -> None:
        open_whole(self, version)
        openings.append(self.version())

    monkeypatch.setattr(OpenTable, "_open", counted)
    for number in range(1, 35):
        write_deltalake(opened.get_newest(str(path)).delta if number % 3 else path, rows(number), mode="append")
        assert opened.get_newest(str(path)) is first
        assert sorted(read_rows(first, rows().schema)["n"].to_pylist()) == list(range(number + 1))
    assert openings == [9, 19, 29]
    assert first.version() == DeltaTable(path).version()


def test_cleaned_logs_are_reopened(tmp_path: Path) -> None:
    """If the log lost commits that the table had open, the checkpoint supplies the rest."""
    opened, path = TableCache(), tmp_path / "t"
    write_deltalake(path, rows(1))
    assert numbers(opened, path) == [1]
    write_deltalake(path, rows(2), mode="append")
    DeltaTable(path).create_checkpoint()
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    assert numbers(opened, path) == [1, 2]


def test_a_written_table_stays_at_its_version(tmp_path: Path) -> None:
    """Reads in the block see the version being written, and after a revalidation a newer one beside it."""
    opened, path = TableCache(), tmp_path / "t"
    write_deltalake(path, rows(1))
    opened.get_newest(str(path))
    with opened.open_for_write(str(path)) as mine:
        write_deltalake(path, rows(2), mode="append")
        assert opened.get_newest(str(path)) is mine
        opened.revalidate()
        assert opened.get_newest(str(path)).version() == 1
        assert mine.version() == 0
    assert opened.get_newest(str(path)).version() == 1


def test_a_nested_write_of_a_table_makes_the_outer_one_conflict(tmp_path: Path) -> None:
    """Each write has the version that it read, so the outer commit is not the next version."""
    opened, path = TableCache(), tmp_path / "t"
    write_deltalake(path, rows(1))
    none = CommitProperties(max_commit_retries=0)

    def nested() -> None:
        with opened.open_for_write(str(path)) as outer:
            with opened.open_for_write(str(path)) as inner:
                write_deltalake(inner.delta, rows(2), mode="append", commit_properties=none)
            assert (outer.version(), inner.version(), opened.get_newest(str(path)) is inner) == (0, 1, True)
            write_deltalake(outer.delta, rows(3), mode="overwrite", commit_properties=none)

    with pytest.raises(CommitFailedError):
        nested()
    assert numbers(opened, path) == [1, 2]


def test_each_thread_and_process_has_its_own(tmp_path: Path) -> None:
    """One thread uses a table at a time; a pickled lake carries no open tables."""
    lake, path = Lake(tmp_path), tmp_path / "t"
    write_deltalake(path, rows(1))
    opened = TableCache()
    mine, theirs = opened.get_newest(str(path)), []
    thread = threading.Thread(target=lambda: theirs.append(opened.get_newest(str(path))))
    thread.start()
    thread.join()
    assert theirs[0] is not mine
    assert pickle.loads(pickle.dumps(lake)).root == lake.root
