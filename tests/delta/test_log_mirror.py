"""Tables of an object store, opened from log mirrors: each entry is fetched once, and other writers are seen."""

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
"""A checkpoint is created after this many versions."""


def counts(k: int, v: int = 0) -> pa.Table:
    """Return a row of the tables."""
    return pa.Table.from_pylist([{"k": k, "v": v}], schema=COUNTS.schema)


def keys(lake: Lake, table: Table = COUNTS) -> list[int]:
    """Return the keys of the table's rows."""
    return sorted(lake.read(table)["k"].to_pylist())


def requests(s3: S3, work: Callable[[], object]) -> dict[str, int]:
    """Return the number of requests of each verb that `work` makes."""
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


def get_log(lake: Lake, table: Table = COUNTS) -> ObjectStorePath:
    """Return the path of the table's log."""
    log = parse_path(lake.path(table)) / LOG_FOLDER
    assert isinstance(log, ObjectStorePath)
    return log


def foreign(lake: Lake, k: int, table: Table = COUNTS) -> None:
    """Append a row with deltalake alone, as a foreign writer."""
    path = lake.path(table)
    write_deltalake(path, counts(k), mode="append", storage_options=get_storage_options(path))


def test_an_entry_is_fetched_once_and_a_commit_is_put_by_two_requests(s3: S3, lake: Lake) -> None:
    """Opening a table takes one list and a GET per entry; a commit to an open table takes two PUTs."""
    fresh = Lake(str(lake.location))
    entries = len(get_log(lake).names())
    assert requests(s3, lambda: fresh.version(COUNTS)) == {"LIST GET": 1, "GET": entries}
    with fresh.table_cache.pin_versions():
        assert keys(fresh) == [0, 1, 2, 3]
        assert requests(s3, lambda: fresh.merge(COUNTS, counts(4), update=False)) == {"PUT": 2}
        assert requests(s3, lambda: keys(fresh)) == {}
    assert DeltaTable(lake.path(COUNTS), storage_options=get_storage_options(lake.path(COUNTS))).version() == entries
    assert (keys(fresh), keys(lake)) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_a_block_lists_all_logs_with_one_request(s3: S3, lake: Lake) -> None:
    """One list sees the writes of any writer to any table, and that a table is missing."""
    lake.merge(OTHERS, counts(7), update=False)
    both = {COUNTS: [0, 1, 2, 3], OTHERS: [7]}
    for number in range(3):
        with lake.table_cache.pin_versions():
            assert {table: keys(lake, table) for table in both} == both
        assert requests(s3, lambda: read_versions(lake)) == {"LIST GET": 1}
        for table, keys_present in both.items():
            foreign(lake, 10 + number, table)
            keys_present.append(10 + number)


def read_versions(lake: Lake) -> None:
    """Read the versions of two tables and of a missing one in one step."""
    with lake.table_cache.pin_versions():
        assert None not in (lake.version(COUNTS), lake.version(OTHERS))
        assert not lake.exists(Table("ks", "none", COLUMNS, ("k",), ""))


def test_a_commit_behind_another_is_not_written(lake: Lake) -> None:
    """Neither its entry nor its mirror counts as a commit; the next commit succeeds the other writer's."""

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


def test_a_replaced_file_is_read_again_in_the_next_block(s3: S3, lake: Lake, tmp_path: Path) -> None:
    """A cached file is valid while the store lists it unchanged; a removed file is not found."""
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
def test_a_checkpoint_is_written_and_used(s3: S3, lake: Lake, versions: int) -> None:
    """The next opener starts from the checkpoint, also directly after it; deltalake finds it and commits."""
    while (newest := lake.version(COUNTS)) is not None and newest < versions:
        lake.merge(COUNTS, counts(0, newest), update=True)
    checkpoint = f"{EVERY - 1:020d}.checkpoint.parquet"
    assert {checkpoint, "_last_checkpoint"} <= set(get_log(lake).names())
    fresh = Lake(str(lake.location))
    behind = max(versions - (EVERY - 1), 1)
    assert requests(s3, lambda: fresh.version(COUNTS)) == {"LIST GET": 1, "GET": 1 + behind}
    fresh.merge(COUNTS, counts(5), update=False)
    (result,) = verify_tables(lake, deep=True)
    assert (result.damage, result.unexpected, result.unread) == ([], [], 0)
    foreign(lake, 6)
    assert keys(lake) == [0, 1, 2, 3, 5, 6]


def test_expired_entries_leave_the_log_with_a_checkpoint(lake: Lake) -> None:
    """With a log retention of zero, no entry before the checkpoint remains, as in a folder."""
    path = lake.path(COUNTS)
    DeltaTable(path, storage_options=get_storage_options(path)).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 seconds"}
    )
    while (newest := lake.version(COUNTS)) is not None and newest < EVERY:
        lake.merge(COUNTS, counts(0, newest), update=True)
    remaining = [name for name in get_log(lake).names() if name.endswith(".json")]
    assert remaining == [f"{version:020d}.json" for version in (EVERY - 1, EVERY)]
    assert keys(Lake(str(lake.location))) == [0, 1, 2, 3]


def test_a_log_that_cannot_be_mirrored_is_opened_at_the_store(s3: S3, lake: Lake, tmp_path: Path) -> None:
    """deltalake itself reads a checkpoint in parts."""
    path, log = lake.path(COUNTS), get_log(lake)
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


def test_a_forked_process_has_its_own_mirrors(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork opens tables again and leaves the parent's folders alone; a mirror's folder goes with its table."""
    path = lake.path(COUNTS)
    mine = lake.table_cache.get_newest(path)
    folder = get_mirror_folder(mine)
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        theirs = lake.table_cache.get_newest(path)
        assert (theirs is mine, get_mirror_folder(theirs).parent == folder.parent) == (False, False)
        del mine
    other = get_mirror_folder(theirs)
    assert folder.exists()
    assert other.exists()
    del theirs
    lake.table_cache.get_newest(path)
    assert other.exists()
    log_mirror._discard_folder(other.parent, os.getpid())


def get_mirror_folder(opened: OpenTable) -> Path:
    """Return the folder of a table's mirror."""
    assert opened.mirror is not None
    return opened.mirror.folder


def test_a_folder_of_a_large_prefix_is_listed_correctly(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any page size and any order of requests, the list equals that of the folder alone."""
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
    """The message names the missing entries and the command that reports the rest."""
    for version in gone:
        (get_log(lake) / f"{version:020d}.json").remove()
    with pytest.raises(StoreFailure, match=rf"^opening ks.counts: {due}; cdc-platform check --deep [^\n]*$"):
        Lake(str(lake.location)).read(COUNTS)


@pytest.mark.parametrize(("harm", "due"), [("remove", "gone"), ("cut", "cut off")])
def test_a_data_file_that_cannot_be_read_is_one_line(
    lake: Lake, harm: str, due: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the file and its damage, if the table is too large to be read as a whole."""
    monkeypatch.setattr(table_rows, "_SMALL_BYTES", 0)
    file = parse_path(lake.data_files(COUNTS)[0].path)
    assert isinstance(file, ObjectStorePath)
    content = file.read()
    file.remove() if harm == "remove" else file.put(content[: len(content) // 2])
    with pytest.raises(StoreFailure) as refused:
        Lake(str(lake.location)).read(COUNTS)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("reading ks.counts: ")
    assert f"{file.name} is {due}; cdc-platform check --deep names what else is" in str(refused.value)


def test_a_damaged_log_entry_is_reported_with_its_store(lake: Lake) -> None:
    """An entry that is not JSON is reported for the store, without a folder of this machine."""
    entry = get_log(lake) / f"{2:020d}.json"
    entry.remove()
    entry.create(b"{")
    with pytest.raises(DeltaError) as refused:
        Lake(str(lake.location)).table_cache.get_newest(lake.path(COUNTS))
    assert "/tmp" not in str(refused.value)
