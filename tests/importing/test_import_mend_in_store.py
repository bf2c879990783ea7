"""The files of an import restore its damaged rows in a store to the bit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import Answer, run
from support.files.export_files import ID, OTHER_ID
from support.homes.imported import export_of_generations
from support.store.s3 import S3

from cdc_platform.clock import ms_from_us, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.storage import ObjectStorePath, parse_path
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
    Table,
)

DAMAGE = pytest.mark.grid("damage to imported rows", 2)
DAMAGED = (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, UNORDERED_RANGES, GENERATIONS)
TIMES_MS = {
    ID: ms_from_us(parse_time_us("2026-01-31T12:10:00Z")),
    OTHER_ID: ms_from_us(parse_time_us("2026-01-31T13:30:00Z")),
}


def remove(path: ObjectStorePath) -> None:
    """Remove the object."""
    path.remove()


def flip(path: ObjectStorePath) -> None:
    """Change one byte of the object."""
    content = bytearray(path.read())
    content[40] ^= 0xFF
    path.put(bytes(content))


class Imported:
    """A home in a store with two imported generations, and the files of the import."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.files = address, export_of_generations(folder, TIMES_MS)
        done = self.run("import", *self.files)
        assert done.exit_code == 0, done

    def run(self, *words: str | Path) -> Answer:
        """Run a command on the home."""
        return run("--home", self.address, *words)

    def file(self, table: Table) -> ObjectStorePath:
        """Return a data file of a table."""
        path = parse_path(min(file.path for file in Lake(f"{self.address}/lake").data_files(table)))
        assert isinstance(path, ObjectStorePath)
        return path

    def rows(self) -> dict[str, list[str]]:
        """Return all rows of the tables that are damaged here."""
        lake = Lake(f"{self.address}/lake")
        return {table.full_name: sorted(map(repr, lake.read(table).to_pylist())) for table in DAMAGED}


def results_of_checks(home: Imported) -> dict[str, bool]:
    """Return whether each invariant holds in a deep check."""
    return {row["invariant"]: row["passed"] for row in home.run("check", "--deep", "--json").rows}


@pytest.fixture
def imported(s3: S3, tmp_path: Path) -> Imported:
    """A home with two imported generations."""
    return Imported(f"{s3.bucket()}/home", tmp_path)


@DAMAGE
@pytest.mark.parametrize("harm", [remove, flip])
def test_files_of_the_import_restore_damaged_rows(imported: Imported, harm: Callable[[ObjectStorePath], None]) -> None:
    """`check` names table, version and file, `repair` names the command, which restores the rows and is in history."""
    clean = results_of_checks(imported)
    before, damaged = imported.rows(), []
    for table in (GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, UNORDERED_RANGES):
        damaged.append((table, Lake(f"{imported.address}/lake").version(table), imported.file(table)))
    for _, _, path in damaged:
        harm(path)
    check = imported.run("check", "--deep", "--json")
    (sample,) = (row["sample"] for row in check.rows if row["invariant"] == "files_whole")
    assert (check.exit_code, any(path.name in sample for _, _, path in damaged)) == (1, True), sample
    plan = imported.run("repair", "--from-description", "--dry-run", "--json")
    assert plan.exit_code == 1
    for table, version, path in damaged:
        (line,) = (line for line in plan.json["unrepaired"] if line.startswith(table.full_name) and path.name in line)
        assert f"version {version}" in line
    assert "import --repair FILES" in " ".join(plan.json["unrepaired"])
    restoration = imported.run("import", "--repair", *imported.files, "--json")
    assert (restoration.exit_code, restoration.json["unrepaired"]) == (0, []), restoration
    assert {row["table"] for row in restoration.json["restored"]} == {table.full_name for table, _, _ in damaged}
    assert imported.rows() == before
    assert results_of_checks(imported) == clean
    newest = Lake(f"{imported.address}/lake").commits(GENERATION_TIMESTAMPS)[0]
    assert newest.info is not None
    assert (newest.info.author.entry_point, newest.info.author.command) == ("command line", "import")
    repeated = imported.run("import", "--repair", *imported.files, "--json")
    assert (repeated.exit_code, repeated.json["restored"]) == (0, [])


@DAMAGE
@pytest.mark.parametrize("harm", [remove, flip])
def test_ledger_rows_are_restored_with_the_time_of_their_import(
    imported: Imported, harm: Callable[[ObjectStorePath], None]
) -> None:
    """No file has that time: the log has its millisecond, and the digest of the rows determines the microsecond."""
    before, clean = imported.rows(), results_of_checks(imported)
    harm(imported.file(GENERATIONS))
    assert results_of_checks(imported) != clean
    restoration = imported.run("import", "--repair", *imported.files, "--json")
    assert (restoration.exit_code, restoration.json["unrepaired"]) == (0, []), restoration
    assert [row["table"] for row in restoration.json["restored"]] == [GENERATIONS.full_name]
    assert imported.rows() == before
    assert results_of_checks(imported) == clean


def test_two_imports_are_restored_each_with_its_time(s3: S3, tmp_path: Path) -> None:
    """Each lost file has the rows of one import, with a time of its own."""
    (tmp_path / "first").mkdir()
    first = export_of_generations(tmp_path / "first", {ID: TIMES_MS[ID]})
    address = f"{s3.bucket()}/home"
    assert run("--home", address, "import", *first).exit_code == 0
    home = Imported(address, tmp_path)
    before = home.rows()
    for file in Lake(f"{address}/lake").data_files(GENERATIONS):
        parse_path(file.path).remove()
    restoration = home.run("import", "--repair", *home.files, "--json")
    assert (restoration.exit_code, restoration.json["unrepaired"]) == (0, []), restoration
    assert home.rows() == before


def test_files_of_a_later_export_restore_the_rows(imported: Imported, tmp_path: Path) -> None:
    """They have one more generation, which is not imported."""
    before = imported.rows()
    remove(imported.file(GENERATIONS))
    (tmp_path / "later").mkdir()
    later = {ID.replace("8d3f", "9d3f"): ms_from_us(parse_time_us("2026-01-31T15:00:00Z"))}
    restoration = imported.run(
        "import", "--repair", *export_of_generations(tmp_path / "later", TIMES_MS | later), "--json"
    )
    assert (restoration.exit_code, restoration.json["unrepaired"]) == (0, []), restoration
    assert imported.rows() == before


def test_rows_of_several_import_times_stay_damaged(imported: Imported) -> None:
    """Earlier releases imported each row at its own time; one line says what is missing, and nothing is written."""
    lake = Lake(f"{imported.address}/lake")
    rows = lake.read(GENERATIONS)
    times = [row["created_at"] + timedelta(seconds=index) for index, row in enumerate(rows.to_pylist())]
    kind = GENERATIONS.schema.field("created_at")
    index = rows.schema.get_field_index(kind.name)
    lake.merge(GENERATIONS, rows.set_column(index, kind, pa.array(times, kind.type)), update=True)
    remove(imported.file(GENERATIONS))
    version = lake.version(GENERATIONS)
    restoration = imported.run("import", "--repair", *imported.files, "--json")
    assert (restoration.exit_code, restoration.json["restored"]) == (1, [])
    (line,) = restoration.json["unrepaired"]
    assert line.endswith("the log does not show when an import entered them")
    assert lake.version(GENERATIONS) == version


def test_other_files_restore_nothing(imported: Imported, tmp_path: Path) -> None:
    """Files of another generation have none of the rows, nor the time of the import."""
    remove(imported.file(GENERATION_DESCRIPTIONS_V2))
    remove(imported.file(GENERATIONS))
    (tmp_path / "other").mkdir()
    other = export_of_generations(tmp_path / "other", {OTHER_ID: TIMES_MS[OTHER_ID]})
    versions = [Lake(f"{imported.address}/lake").version(table) for table in (GENERATION_DESCRIPTIONS_V2, GENERATIONS)]
    restoration = imported.run("import", "--repair", *other, "--json")
    assert (restoration.exit_code, restoration.json["restored"]) == (1, [])
    reasons = sorted(line.rpartition("; ")[2] for line in restoration.json["unrepaired"])
    assert reasons == ["the files do not give the lost rows", "the files have no rows of this partition"]
    assert versions == [
        Lake(f"{imported.address}/lake").version(table) for table in (GENERATION_DESCRIPTIONS_V2, GENERATIONS)
    ]
