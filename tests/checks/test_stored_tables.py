"""Whatever a stranger does to whichever table is found, and named: rows, files, entries of the log. No JVM."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.homes.every_table import LOGS, every_table
from support.homes.foreign import changed_row, doubled_row, removed_row, rows_of

from cdc_platform.checks import (
    COMMITS_KNOWN,
    FILES_WHOLE,
    ROWS_AS_COMMITTED,
    STORAGE_FAMILY,
    audit_stored,
    judge_findings,
)
from cdc_platform.delta import Lake, TableVerification, verify_tables
from cdc_platform.tables import NODES, TABLES, TOPOLOGY_DESCRIPTIONS

EVERY = (*TABLES, *LOGS)
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with rows in every table, which nobody but the platform has written."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def one(home: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of one table, in a lake that has no other."""
    keyspace, _, name = request.param.partition(".")
    return shutil.copytree(home / "lake" / keyspace / name, tmp_path / keyspace / name)


def data_file(folder: Path) -> Path:
    """A file that the newest version has."""
    return Path(next(iter(DeltaTable(folder).file_uris())))


def flip(path: Path, place: int) -> None:
    """One byte becomes another one."""
    content = bytearray(path.read_bytes())
    content[place] ^= 0x5A
    path.write_bytes(content)


def entry(folder: Path, version: int) -> Path:
    """The file of a commit."""
    return folder / "_delta_log" / f"{version:020d}.json"


def damage_entry(folder: Path) -> None:
    """Half of the newest commit is gone."""
    path = entry(folder, DeltaTable(folder).version())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# Each with the lines that have to tell of it.
CHANGES: dict[str, tuple[Change, set[str]]] = {
    "row removed": (removed_row, {ROWS_AS_COMMITTED, COMMITS_KNOWN}),
    "row changed": (changed_row, {ROWS_AS_COMMITTED, COMMITS_KNOWN}),
    "row doubled": (doubled_row, {ROWS_AS_COMMITTED, COMMITS_KNOWN}),
    "file cut off": (lambda folder: _cut(data_file(folder)), {FILES_WHOLE}),
    "file missing": (lambda folder: data_file(folder).unlink(), {FILES_WHOLE}),
    "log entry damaged": (damage_entry, {FILES_WHOLE}),
    "log entry missing": (lambda folder: entry(folder, DeltaTable(folder).version() - 1).unlink(), {FILES_WHOLE}),
    "oldest log entry missing": (lambda folder: entry(folder, 0).unlink(), {FILES_WHOLE}),
    "checkpoint gone with what it stands for": (lambda folder: _forget(folder, keep=False), {FILES_WHOLE}),
    "checkpoint cut off": (lambda folder: _cut(_forget(folder, keep=True)), {FILES_WHOLE}),
    "a name of a checkpoint that is gone": (lambda folder: checkpointed(folder).unlink(), {FILES_WHOLE}),
    "log gone": (lambda folder: shutil.rmtree(folder / "_delta_log"), {FILES_WHOLE}),
}


def checkpointed(folder: Path) -> Path:
    """Make a checkpoint of the newest version; answers with its file."""
    opened = DeltaTable(folder)
    opened.create_checkpoint()
    return folder / "_delta_log" / f"{opened.version():020d}.checkpoint.parquet"


def _forget(folder: Path, *, keep: bool) -> Path:
    """Remove the entries that a new checkpoint stands for, and that too unless it is to be kept."""
    path = checkpointed(folder)
    for version in range(int(path.name[:20])):
        entry(folder, version).unlink()
    if not keep:
        path.unlink()
    return path


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def complaints(found: list[TableVerification]) -> dict[str, str]:
    """The lines that do not pass, with what they say."""
    lines = audit_stored(found)
    return {line.invariant: line.sample for line in judge_findings(lines, STORAGE_FAMILY.due(lines)) if not line.passed}


def test_every_table_has_rows_and_nothing_is_wrong(home: Path) -> None:
    """The control: the home that no stranger touched is clean, all of it was judged, and no table lacks rows."""
    found = verify_tables(Lake(home / "lake"), deep=True)
    assert complaints(found) == {}
    assert {each.name for each in found} >= {*EVERY}
    assert [each.name for each in found if each.unknown or each.unread or not each.commits] == []
    lake = Lake(home / "lake")
    assert [name for name, table in TABLES.items() if not lake.read(table).num_rows] == []


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("one", EVERY, indirect=True)
def test_what_a_stranger_does_to_a_table_is_found(one: Path, change: str, tmp_path: Path) -> None:
    """By the name of the table, in the lines that are about such things and in no others."""
    act, due = CHANGES[change]
    act(one)
    found = complaints(verify_tables(Lake(tmp_path)))
    assert found.keys() == due
    assert all(f"{one.parent.name}.{one.name}" in said for said in found.values()), found


@pytest.mark.parametrize("one", ["platform.cdc_tables", TOPOLOGY_DESCRIPTIONS.full_name], indirect=True)
@pytest.mark.long("150 looks at a home")
def test_a_byte_that_is_another_one_is_seen(one: Path, tmp_path: Path) -> None:
    """Wherever it lies in a small file: it is told, or what is read is what was written."""
    path = data_file(one)
    whole, rows = path.read_bytes(), sorted(map(str, rows_of(one)))
    told = 0
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        flip(path, place)
        found = complaints(verify_tables(Lake(tmp_path)))
        if found:
            told += 1
            assert all(f"{one.parent.name}.{one.name}" in said for said in found.values())
        else:
            assert sorted(map(str, rows_of(one))) == rows
        path.write_bytes(whole)
    assert told > 20


@pytest.mark.parametrize("one", [NODES.full_name], indirect=True)
def test_a_change_that_is_hidden_in_a_file_is_found(one: Path, tmp_path: Path) -> None:
    """Without any commit: a file of the same length and number of rows, whole in itself, with another value in it."""
    path = data_file(one)
    size, rows = path.stat().st_size, pq.read_table(path)
    racks = pa.array([rack[::-1] + "?" for rack in rows["rack"].to_pylist()], pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("rack"), "rack", racks), path)
    for log in (one / "_delta_log").glob("*.json"):
        text = log.read_text(encoding="utf-8")
        log.write_text(text.replace(f'"size":{size}', f'"size":{path.stat().st_size}'), encoding="utf-8")
    found = complaints(verify_tables(Lake(tmp_path)))
    said = f"{NODES.full_name} has other rows than its commits recorded, in version {DeltaTable(one).version()}: "
    assert found.keys() == {ROWS_AS_COMMITTED}
    assert found[ROWS_AS_COMMITTED].startswith(said)
    assert path.name in found[ROWS_AS_COMMITTED]


@pytest.mark.parametrize("one", [NODES.full_name], indirect=True)
def test_upkeep_by_others_is_no_change(one: Path, tmp_path: Path) -> None:
    """A stranger who puts files together leaves the rows as they are: nothing is said."""
    opened = DeltaTable(one)
    opened.optimize.compact()
    assert opened.version() > 0
    assert complaints(verify_tables(Lake(tmp_path))) == {}


def test_large_slices_are_left_to_a_deep_look(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is counted and told; its files are looked for all the same."""
    monkeypatch.setattr("cdc_platform.delta.verification.FILES_READ", 5)
    lake = Lake(home / "lake")
    found = verify_tables(lake)
    assert sum(each.unread for each in found) > 20
    assert sum(each.partitions for each in found) <= 5
    [line] = [line for line in audit_stored(found) if line.invariant == ROWS_AS_COMMITTED]
    assert "--deep reads them" in line.sample
    assert sum(each.unread for each in verify_tables(lake, deep=True)) == 0


@pytest.mark.parametrize("one", [NODES.full_name], indirect=True)
def test_a_log_that_delta_has_shortened_is_whole(one: Path, tmp_path: Path) -> None:
    """Entries that a checkpoint stands for may be gone, from the first one on; a gap behind it may not."""
    table, lake = TABLES[NODES.full_name], Lake(tmp_path)
    rows = lake.read(table)
    for rack in ("r8", "r9"):
        moved = rows.set_column(rows.schema.get_field_index("rack"), "rack", pa.array([rack] * rows.num_rows))
        lake.merge(table, moved, update=True)
    DeltaTable(one).create_checkpoint()
    newest = DeltaTable(one).version()
    for version in range(newest):
        entry(one, version).unlink()
    assert complaints(verify_tables(lake)) == {}
    assert verify_tables(lake)[0].unknown == 0
    lake.merge(table, rows, update=True)
    assert complaints(verify_tables(lake)) == {}
    checkpoint = next((one / "_delta_log").glob("*.checkpoint.parquet"))
    _cut(checkpoint)
    assert f"{NODES.full_name}: its log cannot be read" in complaints(verify_tables(lake))[FILES_WHOLE]
    checkpoint.unlink()
    assert f"_delta_log/{newest - 1:020d}.json is missing" in complaints(verify_tables(lake))[FILES_WHOLE]
