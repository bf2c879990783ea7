"""Exported files equal those that a server writes of the same tables, and are imported as the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import run
from support.files.export_files import (
    ID,
    LATER_MS,
    NODES,
    OTHER_ID,
    SNAPSHOT,
    TIME_MS,
    generation,
    local_csv,
    streams_csv,
    tablet_streams_csv,
    tablet_timestamps_csv,
    timestamps_csv,
    v1_descriptions_csv,
    v1_streams_csv,
    v2_csv,
)
from support.oracles import tablet_oracle

from cdc_platform.clock import Milliseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.home_location import open_home_location
from cdc_platform.importing import LOAD_SCRIPT_FILE, export_files
from cdc_platform.importing.export import LOADED_TABLES, RING_FILE, csv_file_name
from cdc_platform.tables import CDC_LOCAL

OLD_MS = Milliseconds(TIME_MS - 86_400_000)


def texts() -> dict[str, str]:
    """Return the files of every table as a server writes them, by the names that an export has."""
    first, second, old = generation(), generation(OTHER_ID), generation("8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003")
    host = str(NODES[0].host_id)
    return {
        "system_distributed_everywhere.cdc_generation_descriptions_v2.csv": v2_csv({ID: first, OTHER_ID: second}),
        "system_distributed.cdc_generation_descriptions.csv": v1_descriptions_csv({OLD_MS: old}, {OLD_MS: TIME_MS}),
        "system_distributed.cdc_streams_descriptions.csv": v1_streams_csv({OLD_MS: old}, {OLD_MS: TIME_MS}),
        "system_distributed.cdc_streams_descriptions_v2.csv": streams_csv({TIME_MS: first, LATER_MS: second}),
        "system_distributed.cdc_generation_timestamps.csv": timestamps_csv({TIME_MS: LATER_MS, LATER_MS: None}),
        "system.cdc_streams.csv": tablet_streams_csv(
            [(TIME_MS, state, stream) for state in (0, 2) for stream in tablets()]
        ),
        "system.cdc_timestamps.csv": tablet_timestamps_csv([TIME_MS]),
        "system.cdc_local.csv": local_csv({"cdc_local": (LATER_MS, OTHER_ID)}, host),
        "ring.json": json.dumps(SNAPSHOT),
    }


def tablets() -> list[str]:
    """Return the streams of two tablets in hexadecimal, one for each half of the ring."""
    return sorted(tablet_oracle.make(last, 5).hex() for last in (-1, 2**63 - 1))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home into which all files were imported."""
    folder = tmp_path_factory.mktemp("exporting")
    (folder / "given").mkdir()
    for name, text in texts().items():
        (folder / "given" / name).write_text(text, encoding="utf-8", newline="")
    answer = run("--home", folder / "home", "import", folder / "given")
    assert answer.exit_code == 0, answer.stderr
    return folder / "home"


def test_files_equal_those_of_a_server(home: Path, tmp_path: Path) -> None:
    """Each file is equal to the byte, except for the column order of cdc_local, and a script loads them."""
    answer = run("--home", home, "export", tmp_path / "out", "--json")
    assert answer.exit_code == 0, answer.stderr
    expected = texts()
    for table in LOADED_TABLES:
        assert (tmp_path / "out" / csv_file_name(table)).read_bytes().decode() == expected[csv_file_name(table)], (
            table.full_name
        )
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {file["name"] for file in answer.json["files"]} == expected.keys() == written - {LOAD_SCRIPT_FILE}
    script = (tmp_path / "out" / LOAD_SCRIPT_FILE).read_text().splitlines()
    assert [line.split("'")[1] for line in script] == [csv_file_name(table) for table in LOADED_TABLES]
    assert script[-1] == (
        "COPY system_distributed.cdc_generation_timestamps (key, time, expired) "
        "FROM 'system_distributed.cdc_generation_timestamps.csv' WITH HEADER = true;"
    )


def test_export_is_imported_unchanged(home: Path, tmp_path: Path) -> None:
    """Another home has the same rows and the same order of streams, and exports the same bytes."""
    first, second, other = tmp_path / "first", tmp_path / "second", tmp_path / "home"
    export_files(Lake(open_home_location(home).lake), first)
    answer = run("--home", other, "import", first)
    assert answer.exit_code == 0, answer.stderr
    for table in (*LOADED_TABLES, CDC_LOCAL):
        original, imported = (Lake(open_home_location(location).lake).read(table) for location in (home, other))
        keys = [(key, "ascending") for key in table.keys]
        assert original.sort_by(keys).equals(imported.sort_by(keys)), table.full_name
    export_files(Lake(open_home_location(other).lake), second)
    assert {file.name: file.read_bytes() for file in first.iterdir()} == {
        file.name: file.read_bytes() for file in second.iterdir()
    }


def test_only_known_tables_are_written(tmp_path: Path) -> None:
    """A table that was not imported gets no file, so that another import does not count it as empty."""
    (tmp_path / RING_FILE).write_text(json.dumps(SNAPSHOT))
    (tmp_path / "t.csv").write_text(timestamps_csv({}), newline="")
    assert run("--home", tmp_path / "home", "import", tmp_path / RING_FILE, tmp_path / "t.csv").exit_code == 0
    written = export_files(Lake(open_home_location(tmp_path / "home").lake), tmp_path / "out")
    assert {file.name: file.rows for file in written} == {
        "system_distributed.cdc_generation_timestamps.csv": 0,
        RING_FILE: 2,
    }


def test_export_is_complete_and_overwrites_nothing(home: Path, tmp_path: Path) -> None:
    """An existing folder stays unchanged, and an empty home leaves no folder."""
    (tmp_path / "there").mkdir()
    answer = run("--home", home, "export", tmp_path / "there")
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert "already exists" in answer.stderr
    with pytest.raises(StateError, match="nothing to export"):
        export_files(Lake(tmp_path / "empty"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
