"""Tables of a store, opened by mirrors of their logs: each entry is fetched once, and what others write is seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from support.store.large_place import assert_listed_as_it_is
from support.store.s3 import S3

from cdc_platform.delta import Lake, log_mirror, table_rows, verify_tables
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.paths import LOG_FOLDER
from cdc_platform.errors import StoreFailure
from cdc_platform.storage import ObjectStorePath, get_storage_options, parse_path
from cdc_platform.tables import Table, column

COLUMNS = pa.schema([column("k", pa.int64(), ""), column("v", pa.int64(), "")])
COUNTS, OTHERS = (Table("ks", name, COLUMNS, ("k",), "") for name in ("counts", "others"))
EVERY = 10
"""A checkpoint is made of the last of so many versions."""


def counts(k: int, v: int = 0) -> pa.Table:
    """A row of the tables."""
    return pa.Table.from_pylist([{"k": k, "v": v}], schema=COUNTS.schema)


def keys(lake: Lake, table: Table = COUNTS) -> list[int]:
    """What the table has."""
    return sorted(lake.read(table)["k"].to_pylist())


def requests(s3: S3, work: Callable[[], object]) -> dict[str, int]:
    """How many requests of each verb something makes."""
    before = s3.counts()
    work()
    return {verb: more for verb, count in s3.counts().items() if (more := count - before.get(verb, 0))}


@pytest.fixture
def lake(s3: S3) -> Lake:
    """A lake with a table of some commits."""
    lake = Lake(f"{s3.bucket()}/home/lake")
    for k in range(4):
        lake.merge(COUNTS, counts(k), update=False)
    return lake


def log_of(lake: Lake, table: Table = COUNTS) -> ObjectStorePath:
    """Where its log is."""
    log = parse_path(lake.path(table)) / LOG_FOLDER
    assert isinstance(log, ObjectStorePath)
    return log


def foreign(lake: Lake, k: int, table: Table = COUNTS) -> None:
    """What somebody writes who has deltalake alone."""
    path = lake.path(table)
    write_deltalake(path, counts(k), mode="append", storage_options=get_storage_options(path))


def test_an_entry_is_fetched_once_and_a_commit_is_put_by_two_requests(s3: S3, lake: Lake) -> None:
    """A table is opened by a list and its entries; a commit by who has it open is its file and its entry."""
    fresh = Lake(str(lake.location))
    entries = len(log_of(lake).names())
    assert requests(s3, lambda: fresh.version(COUNTS)) == {"LIST GET": 1, "GET": entries}
    with fresh.table_cache.pin_versions():
        assert keys(fresh) == [0, 1, 2, 3]
        assert requests(s3, lambda: fresh.merge(COUNTS, counts(4), update=False)) == {"PUT": 2}
        assert requests(s3, lambda: keys(fresh)) == {}
    assert DeltaTable(lake.path(COUNTS), storage_options=get_storage_options(lake.path(COUNTS))).version() == entries
    assert (keys(fresh), keys(lake)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_a_block_looks_at_all_logs_by_one_request(s3: S3, lake: Lake) -> None:
    """Whatever was written to any of them by whomever in between; those that are not there are in that list as well."""
    lake.merge(OTHERS, counts(7), update=False)
    both = {COUNTS: [0, 1, 2, 3], OTHERS: [7]}
    for number in range(3):
        with lake.table_cache.pin_versions():
            assert {table: keys(lake, table) for table in both} == both
        assert requests(s3, lambda: look(lake)) == {"LIST GET": 1}
        for table, there in both.items():
            foreign(lake, 10 + number, table)
            there.append(10 + number)


def look(lake: Lake) -> None:
    """A step that asks for two tables, and one that is not there."""
    with lake.table_cache.pin_versions():
        assert None not in (lake.version(COUNTS), lake.version(OTHERS))
        assert not lake.exists(Table("ks", "none", COLUMNS, ("k",), ""))


def test_a_commit_that_another_was_before_is_not_put(lake: Lake) -> None:
    """Neither its entry nor what stands in its mirror is taken for one; the next is made behind the other's."""

    def late() -> None:
        with lake.open_for_write(COUNTS) as opened:
            foreign(lake, 8)
            write_deltalake(opened.delta, counts(9), mode="append")
            opened.publish(opened.version())

    with pytest.raises(CommitFailedError):
        late()
    assert keys(lake) == [0, 1, 2, 3, 8]
    lake.merge(COUNTS, counts(9), update=False)
    assert keys(Lake(str(lake.location))) == [0, 1, 2, 3, 8, 9]


def test_a_file_in_anothers_place_is_read_in_the_next_block(s3: S3, lake: Lake, tmp_path: Path) -> None:
    """What is kept of a file holds as long as the store lists the same; of one that is gone nothing is known."""
    files = [parse_path(path) for path in sorted(file.path for file in lake.data_files(COUNTS))]

    def read() -> list[bytes]:
        with lake.table_cache.pin_versions():
            lake.version(COUNTS)
            return [bytes(file.source().read()) for file in files]

    contents = read()
    assert requests(s3, read) == {"LIST GET": 1}
    (tmp_path / "other").write_bytes(contents[0][:-1] + b"?")
    files[0].receive(tmp_path / "other")
    assert read() == [contents[0][:-1] + b"?", *contents[1:]]
    files[1].remove()
    with pytest.raises(FileNotFoundError):
        read()


@pytest.mark.parametrize("versions", [EVERY - 1, EVERY, EVERY + 2])
def test_a_checkpoint_is_put_and_opened_at(s3: S3, lake: Lake, versions: int) -> None:
    """By whoever opens the table next, also who writes right behind it; deltalake finds it too, and commits on it."""
    while (newest := lake.version(COUNTS)) is not None and newest < versions:
        lake.merge(COUNTS, counts(0, newest), update=True)
    checkpoint = f"{EVERY - 1:020d}.checkpoint.parquet"
    assert {checkpoint, "_last_checkpoint"} <= set(log_of(lake).names())
    fresh = Lake(str(lake.location))
    behind = max(versions - (EVERY - 1), 1)
    assert requests(s3, lambda: fresh.version(COUNTS)) == {"LIST GET": 1, "GET": 1 + behind}
    fresh.merge(COUNTS, counts(5), update=False)
    (found,) = verify_tables(lake, deep=True)
    assert (found.damage, found.unexpected, found.unread) == ([], [], 0)
    foreign(lake, 6)
    assert keys(lake) == [0, 1, 2, 3, 5, 6]


def test_what_has_expired_goes_from_the_log_where_a_checkpoint_is_made(lake: Lake) -> None:
    """As it does in a folder: where the table keeps entries for no time, none from before the checkpoint is left."""
    path = lake.path(COUNTS)
    DeltaTable(path, storage_options=get_storage_options(path)).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 seconds"}
    )
    while (newest := lake.version(COUNTS)) is not None and newest < EVERY:
        lake.merge(COUNTS, counts(0, newest), update=True)
    left = [name for name in log_of(lake).names() if name.endswith(".json")]
    assert left == [f"{version:020d}.json" for version in (EVERY - 1, EVERY)]
    assert keys(Lake(str(lake.location))) == [0, 1, 2, 3]


def test_what_cannot_be_mirrored_is_opened_at_the_store(s3: S3, lake: Lake, tmp_path: Path) -> None:
    """A checkpoint in parts is read by deltalake itself; of a damaged one it says what is wrong."""
    path, log = lake.path(COUNTS), log_of(lake)
    DeltaTable(path, storage_options=get_storage_options(path)).create_checkpoint()
    newest = lake.version(COUNTS)
    assert newest is not None
    whole = log / f"{newest:020d}.checkpoint.parquet"
    content = whole.read()
    (tmp_path / "part").write_bytes(content)
    (log / f"{newest:020d}.checkpoint.{1:010d}.{1:010d}.parquet").receive(tmp_path / "part")
    for file in (whole, log / "_last_checkpoint"):
        file.remove()
    fresh = Lake(str(lake.location))
    assert keys(fresh) == [0, 1, 2, 3]
    assert fresh.table_cache.get_newest(path).mirror is None
    fresh.merge(COUNTS, counts(4), update=False)
    assert keys(lake) == [0, 1, 2, 3, 4]


def test_a_process_that_was_forked_has_mirrors_of_its_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens tables anew, and leaves the folders of the other alone; each goes with the table that it is of."""
    path = lake.path(COUNTS)
    mine = lake.table_cache.get_newest(path)
    folder = folder_of(mine)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        theirs = lake.table_cache.get_newest(path)
        assert (theirs is mine, folder_of(theirs).parent == folder.parent) == (False, False)
        del mine
    other = folder_of(theirs)
    assert folder.exists()
    assert other.exists()
    del theirs
    lake.table_cache.get_newest(path)
    assert other.exists()
    log_mirror._discard_folder(other.parent, os.getpid())


def folder_of(opened: OpenTable) -> Path:
    """The folder of a table's mirror."""
    assert opened.mirror is not None
    return opened.mirror.folder


def test_a_folder_of_a_large_place_is_listed_as_it_is(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a page holds, and in whatever order folders are asked for: what a list of the folder alone says."""
    lake = parse_path(f"{s3.bucket()}/lake")
    assert isinstance(lake, ObjectStorePath)
    assert_listed_as_it_is(lake, monkeypatch)


@pytest.mark.parametrize(
    ("gone", "due"),
    [
        ([2], "version 2 of its log is gone"),
        ([1, 2], "versions 1 to 2 of its log are gone"),
        ([0, 1], "the first entries of its log are gone"),
    ],
)
def test_a_log_with_a_gap_is_one_line(lake: Lake, gone: list[int], due: str) -> None:
    """Which entries it lacks, and what tells the rest."""
    for version in gone:
        (log_of(lake) / f"{version:020d}.json").remove()
    with pytest.raises(StoreFailure, match=rf"^opening ks.counts: {due}; cdc-platform check --deep [^\n]*$"):
        Lake(str(lake.location)).read(COUNTS)


@pytest.mark.parametrize(("harm", "due"), [("remove", "gone"), ("cut", "cut off")])
def test_a_data_file_that_cannot_be_read_is_one_line(
    lake: Lake, harm: str, due: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which file, and what is wrong with it, where the rows are more than are read as a whole."""
    monkeypatch.setattr(table_rows, "_SMALL_BYTES", 0)
    file = parse_path(lake.data_files(COUNTS)[0].path)
    assert isinstance(file, ObjectStorePath)
    content = file.read()
    file.remove() if harm == "remove" else file.put(content[: len(content) // 2])
    with pytest.raises(StoreFailure) as told:
        Lake(str(lake.location)).read(COUNTS)
    assert "\n" not in str(told.value)
    assert str(told.value).startswith("reading ks.counts: ")
    assert f"{file.name} is {due}; cdc-platform check --deep names what else is" in str(told.value)


def test_a_log_that_is_damaged_is_told_as_it_lies_there(lake: Lake) -> None:
    """An entry that is no JSON: what is wrong is said of the store, and of no folder of this machine."""
    entry = log_of(lake) / f"{2:020d}.json"
    entry.remove()
    entry.create(b"{")
    with pytest.raises(DeltaError) as told:
        Lake(str(lake.location)).table_cache.get_newest(lake.path(COUNTS))
    assert "/tmp" not in str(told.value)
