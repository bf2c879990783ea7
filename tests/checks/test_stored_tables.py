"""Any change to any table from outside is found and named: rows, files and log entries. No JVM."""

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
    """Create a home with rows in every table, written by the platform alone."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def one(home: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return the folder of one table, in a lake that has no other."""
    keyspace, _, name = request.param.partition(".")
    return shutil.copytree(home / "lake" / keyspace / name, tmp_path / keyspace / name)


def data_file(folder: Path) -> Path:
    """Return a data file of the newest version."""
    return Path(next(iter(DeltaTable(folder).file_uris())))


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x5A
    path.write_bytes(content)


def entry(folder: Path, version: int) -> Path:
    """Return the file of a commit."""
    return folder / "_delta_log" / f"{version:020d}.json"


def damage_entry(folder: Path) -> None:
    """Truncate the newest commit to half its size."""
    path = entry(folder, DeltaTable(folder).version())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# Each change with the invariants that have to report it.
CHANGES: dict[str, tuple[Change, set[str]]] = {
    "row removed": (removed_row, {ROWS_AS_COMMITTED, COMMITS_KNOWN}),
    "row changed": (changed_row, {ROWS_AS_COMMITTED, COMMITS_KNOWN}),
    "row doubled": (doubled_row, {ROWS_AS_COMMITTED, COMMITS_KNOWN}),
    "file cut off": (lambda folder: _truncate(data_file(folder)), {FILES_WHOLE}),
    "file missing": (lambda folder: data_file(folder).unlink(), {FILES_WHOLE}),
    "log entry damaged": (damage_entry, {FILES_WHOLE}),
    "log entry missing": (lambda folder: entry(folder, DeltaTable(folder).version() - 1).unlink(), {FILES_WHOLE}),
    "oldest log entry missing": (lambda folder: entry(folder, 0).unlink(), {FILES_WHOLE}),
    "checkpoint gone with what it stands for": (lambda folder: _remove_log_entries(folder, keep=False), {FILES_WHOLE}),
    "checkpoint cut off": (lambda folder: _truncate(_remove_log_entries(folder, keep=True)), {FILES_WHOLE}),
    "a name of a checkpoint that is gone": (lambda folder: create_checkpoint(folder).unlink(), {FILES_WHOLE}),
    "log gone": (lambda folder: shutil.rmtree(folder / "_delta_log"), {FILES_WHOLE}),
}


def create_checkpoint(folder: Path) -> Path:
    """Create a checkpoint of the newest version; return its file."""
    opened = DeltaTable(folder)
    opened.create_checkpoint()
    return folder / "_delta_log" / f"{opened.version():020d}.checkpoint.parquet"


def _remove_log_entries(folder: Path, *, keep: bool) -> Path:
    """Remove the log entries that a new checkpoint replaces, and the checkpoint itself unless `keep` is set."""
    path = create_checkpoint(folder)
    for version in range(int(path.name[:20])):
        entry(folder, version).unlink()
    if not keep:
        path.unlink()
    return path


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def failed_invariants(verifications: list[TableVerification]) -> dict[str, str]:
    """Return the invariants that do not pass, with their samples."""
    findings = audit_stored(verifications)
    return {
        line.invariant: line.sample
        for line in judge_findings(findings, STORAGE_FAMILY.due(findings))
        if not line.passed
    }


def test_every_table_has_rows_and_passes(home: Path) -> None:
    """Control: an untouched home passes, all of it is judged, and no table is empty."""
    verifications = verify_tables(Lake(home / "lake"), deep=True)
    assert failed_invariants(verifications) == {}
    assert {verification.name for verification in verifications} >= {*EVERY}
    assert [
        verification.name
        for verification in verifications
        if verification.unknown or verification.unread or not verification.commits
    ] == []
    lake = Lake(home / "lake")
    assert [name for name, table in TABLES.items() if not lake.read(table).num_rows] == []


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("one", EVERY, indirect=True)
def test_a_change_from_outside_is_found(one: Path, change: str, tmp_path: Path) -> None:
    """The table is named by the invariants that cover the change, and by no others."""
    apply, expected = CHANGES[change]
    apply(one)
    failures = failed_invariants(verify_tables(Lake(tmp_path)))
    assert failures.keys() == expected
    assert all(f"{one.parent.name}.{one.name}" in sample for sample in failures.values()), failures


@pytest.mark.parametrize("one", ["platform.cdc_tables", TOPOLOGY_DESCRIPTIONS.full_name], indirect=True)
@pytest.mark.long("150 looks at a home")
def test_a_changed_byte_is_detected(one: Path, tmp_path: Path) -> None:
    """A changed byte anywhere in a small file is reported, or the rows read are those that were written."""
    path = data_file(one)
    whole, rows = path.read_bytes(), sorted(map(str, rows_of(one)))
    reported = 0
    for offset in range(0, len(whole), max(1, len(whole) // 150)):
        flip(path, offset)
        failures = failed_invariants(verify_tables(Lake(tmp_path)))
        if failures:
            reported += 1
            assert all(f"{one.parent.name}.{one.name}" in sample for sample in failures.values())
        else:
            assert sorted(map(str, rows_of(one))) == rows
        path.write_bytes(whole)
    assert reported > 20


@pytest.mark.parametrize("one", [NODES.full_name], indirect=True)
def test_a_change_hidden_in_a_file_is_found(one: Path, tmp_path: Path) -> None:
    """A file replaced without a commit, with the same length and row count but another value, is found."""
    path = data_file(one)
    size, rows = path.stat().st_size, pq.read_table(path)
    racks = pa.array([rack[::-1] + "?" for rack in rows["rack"].to_pylist()], pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("rack"), "rack", racks), path)
    for log in (one / "_delta_log").glob("*.json"):
        text = log.read_text(encoding="utf-8")
        log.write_text(text.replace(f'"size":{size}', f'"size":{path.stat().st_size}'), encoding="utf-8")
    failures = failed_invariants(verify_tables(Lake(tmp_path)))
    expected = f"{NODES.full_name} has other rows than its commits recorded, in version {DeltaTable(one).version()}: "
    assert failures.keys() == {ROWS_AS_COMMITTED}
    assert failures[ROWS_AS_COMMITTED].startswith(expected)
    assert path.name in failures[ROWS_AS_COMMITTED]


@pytest.mark.parametrize("one", [NODES.full_name], indirect=True)
def test_maintenance_by_others_is_no_change(one: Path, tmp_path: Path) -> None:
    """Compaction by another program leaves the rows unchanged and is not reported."""
    opened = DeltaTable(one)
    opened.optimize.compact()
    assert opened.version() > 0
    assert failed_invariants(verify_tables(Lake(tmp_path))) == {}


def test_large_partitions_are_left_to_a_deep_check(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped partitions are counted and reported; the existence of their files is checked all the same."""
    monkeypatch.setattr("cdc_platform.delta.verification.FILES_READ", 5)
    lake = Lake(home / "lake")
    verifications = verify_tables(lake)
    assert sum(verification.unread for verification in verifications) > 20
    assert sum(verification.partitions for verification in verifications) <= 5
    [finding] = [finding for finding in audit_stored(verifications) if finding.invariant == ROWS_AS_COMMITTED]
    assert "--deep reads them" in finding.sample
    assert sum(verification.unread for verification in verify_tables(lake, deep=True)) == 0


@pytest.mark.parametrize("one", [NODES.full_name], indirect=True)
def test_a_log_that_delta_shortened_passes(one: Path, tmp_path: Path) -> None:
    """Entries that a checkpoint replaces may be gone, from the first one on; a gap after it may not."""
    table, lake = TABLES[NODES.full_name], Lake(tmp_path)
    rows = lake.read(table)
    for rack in ("r8", "r9"):
        changed = rows.set_column(rows.schema.get_field_index("rack"), "rack", pa.array([rack] * rows.num_rows))
        lake.merge(table, changed, update=True)
    DeltaTable(one).create_checkpoint()
    newest = DeltaTable(one).version()
    for version in range(newest):
        entry(one, version).unlink()
    assert failed_invariants(verify_tables(lake)) == {}
    assert verify_tables(lake)[0].unknown == 0
    lake.merge(table, rows, update=True)
    assert failed_invariants(verify_tables(lake)) == {}
    checkpoint = next((one / "_delta_log").glob("*.checkpoint.parquet"))
    _truncate(checkpoint)
    assert f"{NODES.full_name}: its log cannot be read" in failed_invariants(verify_tables(lake))[FILES_WHOLE]
    checkpoint.unlink()
    assert f"_delta_log/{newest - 1:020d}.json is missing" in failed_invariants(verify_tables(lake))[FILES_WHOLE]
