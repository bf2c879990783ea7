"""Damaged rows that were imported, in a store: the files that they came from bring them back, to the bit."""

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

A_HARM = pytest.mark.grid("damage to imported rows", 2)
DAMAGED = (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, UNORDERED_RANGES, GENERATIONS)
TIMES_MS = {
    ID: ms_from_us(parse_time_us("2026-01-31T12:10:00Z")),
    OTHER_ID: ms_from_us(parse_time_us("2026-01-31T13:30:00Z")),
}


def remove(place: ObjectStorePath) -> None:
    """It is gone."""
    place.remove()


def flip(place: ObjectStorePath) -> None:
    """A byte of it is another one."""
    content = bytearray(place.read())
    content[40] ^= 0xFF
    place.put(bytes(content))


class Imported:
    """A home in a store with two generations that were imported, and the files that they came from."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.files = address, export_of_generations(folder, TIMES_MS)
        done = self.run("import", *self.files)
        assert done.exit_code == 0, done

    def run(self, *words: str | Path) -> Answer:
        """A command on it."""
        return run("--home", self.address, *words)

    def file(self, table: Table) -> ObjectStorePath:
        """A data file of a table."""
        place = parse_path(min(file.path for file in Lake(f"{self.address}/lake").data_files(table)))
        assert isinstance(place, ObjectStorePath)
        return place

    def rows(self) -> dict[str, list[str]]:
        """All rows, of the tables that are damaged here."""
        lake = Lake(f"{self.address}/lake")
        return {each.full_name: sorted(map(repr, lake.read(each).to_pylist())) for each in DAMAGED}


def passed(home: Imported) -> dict[str, bool]:
    """Which invariants hold of it, read to the last byte."""
    return {each["invariant"]: each["passed"] for each in home.run("check", "--deep", "--json").rows}


@pytest.fixture
def imported(s3: S3, tmp_path: Path) -> Imported:
    """Such a home."""
    return Imported(f"{s3.bucket()}/home", tmp_path)


@A_HARM
@pytest.mark.parametrize("harm", [remove, flip])
def test_the_same_files_restore_damaged_rows(imported: Imported, harm: Callable[[ObjectStorePath], None]) -> None:
    """Check names table, version and file, repair the way, the way mends, check is clean, and the history has it."""
    clean = passed(imported)
    before, places = imported.rows(), []
    for table in (GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, UNORDERED_RANGES):
        places.append((table, Lake(f"{imported.address}/lake").version(table), imported.file(table)))
    for _, _, place in places:
        harm(place)
    checked = imported.run("check", "--deep", "--json")
    (said,) = (each["sample"] for each in checked.rows if each["invariant"] == "files_whole")
    assert (checked.exit_code, any(place.name in said for _, _, place in places)) == (1, True), said
    told = imported.run("repair", "--from-description", "--dry-run", "--json")
    assert told.exit_code == 1
    for table, version, place in places:
        (line,) = (line for line in told.json["unrepaired"] if line.startswith(table.full_name) and place.name in line)
        assert f"version {version}" in line
    assert "import --repair FILES" in " ".join(told.json["unrepaired"])
    mended = imported.run("import", "--repair", *imported.files, "--json")
    assert (mended.exit_code, mended.json["unrepaired"]) == (0, []), mended
    assert {each["table"] for each in mended.json["restored"]} == {table.full_name for table, _, _ in places}
    assert imported.rows() == before
    assert passed(imported) == clean
    newest = Lake(f"{imported.address}/lake").commits(GENERATION_TIMESTAMPS)[0]
    assert newest.info is not None
    assert (newest.info.author.entry_point, newest.info.author.command) == ("command line", "import")
    again = imported.run("import", "--repair", *imported.files, "--json")
    assert (again.exit_code, again.json["restored"]) == (0, [])


@A_HARM
@pytest.mark.parametrize("harm", [remove, flip])
def test_rows_of_the_ledger_come_back_with_the_moment_of_their_import(
    imported: Imported, harm: Callable[[ObjectStorePath], None]
) -> None:
    """No file has it: the log tells its millisecond, and the digest of the rows which microsecond it was."""
    before, clean = imported.rows(), passed(imported)
    harm(imported.file(GENERATIONS))
    assert passed(imported) != clean
    mended = imported.run("import", "--repair", *imported.files, "--json")
    assert (mended.exit_code, mended.json["unrepaired"]) == (0, []), mended
    assert [each["table"] for each in mended.json["restored"]] == [GENERATIONS.full_name]
    assert imported.rows() == before
    assert passed(imported) == clean


def test_two_imports_come_back_each_with_its_moment(s3: S3, tmp_path: Path) -> None:
    """Each lost file has the rows of one, at a moment of its own."""
    (tmp_path / "first").mkdir()
    first = export_of_generations(tmp_path / "first", {ID: TIMES_MS[ID]})
    address = f"{s3.bucket()}/home"
    assert run("--home", address, "import", *first).exit_code == 0
    home = Imported(address, tmp_path)
    before = home.rows()
    for file in Lake(f"{address}/lake").data_files(GENERATIONS):
        parse_path(file.path).remove()
    mended = home.run("import", "--repair", *home.files, "--json")
    assert (mended.exit_code, mended.json["unrepaired"]) == (0, []), mended
    assert home.rows() == before


def test_files_of_a_later_export_restore_the_rows(imported: Imported, tmp_path: Path) -> None:
    """They have one generation more, which is not taken in."""
    before = imported.rows()
    remove(imported.file(GENERATIONS))
    (tmp_path / "later").mkdir()
    more = {ID.replace("8d3f", "9d3f"): ms_from_us(parse_time_us("2026-01-31T15:00:00Z"))}
    mended = imported.run("import", "--repair", *export_of_generations(tmp_path / "later", TIMES_MS | more), "--json")
    assert (mended.exit_code, mended.json["unrepaired"]) == (0, []), mended
    assert imported.rows() == before


def test_rows_of_several_moments_stay_damaged(imported: Imported) -> None:
    """As imports of before entered them, each row for itself: one line says what is missing, and nothing is put in."""
    lake = Lake(f"{imported.address}/lake")
    rows = lake.read(GENERATIONS)
    moments = [row["created_at"] + timedelta(seconds=place) for place, row in enumerate(rows.to_pylist())]
    kind = GENERATIONS.schema.field("created_at")
    place = rows.schema.get_field_index(kind.name)
    lake.merge(GENERATIONS, rows.set_column(place, kind, pa.array(moments, kind.type)), update=True)
    remove(imported.file(GENERATIONS))
    version = lake.version(GENERATIONS)
    mended = imported.run("import", "--repair", *imported.files, "--json")
    assert (mended.exit_code, mended.json["restored"]) == (1, [])
    (line,) = mended.json["unrepaired"]
    assert line.endswith("the log does not show when an import entered them")
    assert lake.version(GENERATIONS) == version


def test_other_files_put_nothing_in(imported: Imported, tmp_path: Path) -> None:
    """Those of another generation have none of the rows; what only the moment of the import says stays damaged too."""
    remove(imported.file(GENERATION_DESCRIPTIONS_V2))
    remove(imported.file(GENERATIONS))
    (tmp_path / "other").mkdir()
    other = export_of_generations(tmp_path / "other", {OTHER_ID: TIMES_MS[OTHER_ID]})
    versions = [Lake(f"{imported.address}/lake").version(each) for each in (GENERATION_DESCRIPTIONS_V2, GENERATIONS)]
    mended = imported.run("import", "--repair", *other, "--json")
    assert (mended.exit_code, mended.json["restored"]) == (1, [])
    reasons = sorted(line.rpartition("; ")[2] for line in mended.json["unrepaired"])
    assert reasons == ["the files do not give the lost rows", "the files have no rows of this partition"]
    assert versions == [
        Lake(f"{imported.address}/lake").version(each) for each in (GENERATION_DESCRIPTIONS_V2, GENERATIONS)
    ]
