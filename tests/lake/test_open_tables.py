"""Open tables: whoever writes in between is seen, and a table that was put into another's place is not taken for it."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import TableNotFoundError

from cdc_platform.lake.lake import Lake
from cdc_platform.lake.open_tables import OpenTables


def rows(*numbers: int) -> pa.Table:
    """A table of one column."""
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers(opened: OpenTables, path: Path) -> list[int]:
    """What the newest version holds."""
    return sorted(opened.newest(str(path)).to_pyarrow_table()["n"].to_pylist())


def test_whoever_writes_in_between_is_seen(tmp_path: Path) -> None:
    """Each commit of a foreign writer, also several at once and behind a checkpoint."""
    opened, path = OpenTables(), tmp_path / "t"
    write_deltalake(path, rows(1))
    assert numbers(opened, path) == [1]
    first = opened.newest(str(path))
    assert opened.newest(str(path)) is first
    write_deltalake(path, rows(2), mode="append")
    assert numbers(opened, path) == [1, 2]
    for number in range(3, 15):
        write_deltalake(path, rows(number), mode="append")
    OpenTables().newest(str(path)).create_checkpoint()
    write_deltalake(path, rows(15), mode="overwrite")
    assert numbers(opened, path) == [15]


def test_a_table_in_anothers_place_is_not_taken_for_it(tmp_path: Path) -> None:
    """Removed it is not found; made anew, at a lower or at the same version, its own rows are read."""
    opened, path = OpenTables(), tmp_path / "t"
    write_deltalake(path, rows(1))
    write_deltalake(path, rows(2), mode="append")
    assert numbers(opened, path) == [1, 2]
    shutil.rmtree(path)
    with pytest.raises(TableNotFoundError):
        opened.newest(str(path))
    write_deltalake(path, rows(7))
    assert numbers(opened, path) == [7]
    other = tmp_path / "other"
    write_deltalake(other, rows(8))
    shutil.rmtree(path)
    other.rename(path)
    assert numbers(opened, path) == [8]


def test_cleaned_logs_are_opened_anew(tmp_path: Path) -> None:
    """Where commits that were open are gone from the log, the checkpoint tells the rest."""
    opened, path = OpenTables(), tmp_path / "t"
    write_deltalake(path, rows(1))
    assert numbers(opened, path) == [1]
    write_deltalake(path, rows(2), mode="append")
    OpenTables().newest(str(path)).create_checkpoint()
    (path / "_delta_log" / f"{0:020d}.json").unlink()
    assert numbers(opened, path) == [1, 2]


def test_a_table_that_was_taken_stays_at_its_version(tmp_path: Path) -> None:
    """Who writes on a version must not find it a newer one because somebody reads meanwhile."""
    opened, path = OpenTables(), tmp_path / "t"
    write_deltalake(path, rows(1))
    opened.newest(str(path))
    mine = opened.taken(str(path))
    write_deltalake(path, rows(2), mode="append")
    assert opened.newest(str(path)).version() == 1
    assert mine.version() == 0
    opened.give_back(str(path), mine)
    assert opened.newest(str(path)) is mine
    assert mine.version() == 1


def test_each_thread_and_process_has_its_own(tmp_path: Path) -> None:
    """A table is used by one thread at a time; a lake that travels takes none along."""
    lake, path = Lake(tmp_path), tmp_path / "t"
    write_deltalake(path, rows(1))
    opened = OpenTables()
    mine, theirs = opened.newest(str(path)), []
    thread = threading.Thread(target=lambda: theirs.append(opened.newest(str(path))))
    thread.start()
    thread.join()
    assert theirs[0] is not mine
    assert pickle.loads(pickle.dumps(lake)).root == lake.root
