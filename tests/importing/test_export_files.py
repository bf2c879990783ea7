"""Exporting: the files are those that a server writes of the same tables, and come in again as the same rows."""

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
    """Files of every table, as a server writes them, by the names that an export has."""
    new, newer, old = generation(), generation(OTHER_ID), generation("8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003")
    host = str(NODES[0].host_id)
    return {
        "system_distributed_everywhere.cdc_generation_descriptions_v2.csv": v2_csv({ID: new, OTHER_ID: newer}),
        "system_distributed.cdc_generation_descriptions.csv": v1_descriptions_csv({OLD_MS: old}, {OLD_MS: TIME_MS}),
        "system_distributed.cdc_streams_descriptions.csv": v1_streams_csv({OLD_MS: old}, {OLD_MS: TIME_MS}),
        "system_distributed.cdc_streams_descriptions_v2.csv": streams_csv({TIME_MS: new, LATER_MS: newer}),
        "system_distributed.cdc_generation_timestamps.csv": timestamps_csv({TIME_MS: LATER_MS, LATER_MS: None}),
        "system.cdc_streams.csv": tablet_streams_csv(
            [(TIME_MS, state, each) for state in (0, 2) for each in tablets()]
        ),
        "system.cdc_timestamps.csv": tablet_timestamps_csv([TIME_MS]),
        "system.cdc_local.csv": local_csv({"cdc_local": (LATER_MS, OTHER_ID)}, host),
        "ring.json": json.dumps(SNAPSHOT),
    }


def tablets() -> list[str]:
    """The streams of two tablets, in hexadecimal: one for each half of the ring."""
    return sorted(tablet_oracle.make(last, 5).hex() for last in (-1, 2**63 - 1))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home into which all of them came in."""
    folder = tmp_path_factory.mktemp("exporting")
    (folder / "given").mkdir()
    for name, text in texts().items():
        (folder / "given" / name).write_text(text, encoding="utf-8", newline="")
    ran = run("--home", folder / "home", "import", folder / "given")
    assert ran.exit_code == 0, ran.stderr
    return folder / "home"


def test_the_files_are_as_a_server_writes_them(home: Path, tmp_path: Path) -> None:
    """Every table's, to the last byte but for the order of columns in cdc_local; and a script that loads them."""
    ran = run("--home", home, "export", tmp_path / "out", "--json")
    assert ran.exit_code == 0, ran.stderr
    given = texts()
    for table in LOADED_TABLES:
        assert (tmp_path / "out" / csv_file_name(table)).read_bytes().decode() == given[csv_file_name(table)], (
            table.full_name
        )
    there = {file.name for file in (tmp_path / "out").iterdir()}
    assert {each["name"] for each in ran.json["files"]} == given.keys() == there - {LOAD_SCRIPT_FILE}
    script = (tmp_path / "out" / LOAD_SCRIPT_FILE).read_text().splitlines()
    assert [line.split("'")[1] for line in script] == [csv_file_name(table) for table in LOADED_TABLES]
    assert script[-1] == (
        "COPY system_distributed.cdc_generation_timestamps (key, time, expired) "
        "FROM 'system_distributed.cdc_generation_timestamps.csv' WITH HEADER = true;"
    )


def test_what_was_exported_comes_in_as_it_was(home: Path, tmp_path: Path) -> None:
    """Another home has the same rows in every table, the order of streams included, and exports the same bytes."""
    first, second, other = tmp_path / "first", tmp_path / "second", tmp_path / "home"
    export_files(Lake(open_home_location(home).lake), first)
    ran = run("--home", other, "import", first)
    assert ran.exit_code == 0, ran.stderr
    for table in (*LOADED_TABLES, CDC_LOCAL):
        here, there = (Lake(open_home_location(each).lake).read(table) for each in (home, other))
        keys = [(key, "ascending") for key in table.keys]
        assert here.sort_by(keys).equals(there.sort_by(keys)), table.full_name
    export_files(Lake(open_home_location(other).lake), second)
    assert {file.name: file.read_bytes() for file in first.iterdir()} == {
        file.name: file.read_bytes() for file in second.iterdir()
    }


def test_only_what_is_there_is_written(tmp_path: Path) -> None:
    """A table that was not brought in is no file, so that who imports it does not take it for empty."""
    (tmp_path / RING_FILE).write_text(json.dumps(SNAPSHOT))
    (tmp_path / "t.csv").write_text(timestamps_csv({}), newline="")
    assert run("--home", tmp_path / "home", "import", tmp_path / RING_FILE, tmp_path / "t.csv").exit_code == 0
    written = export_files(Lake(open_home_location(tmp_path / "home").lake), tmp_path / "out")
    assert {each.name: each.rows for each in written} == {
        "system_distributed.cdc_generation_timestamps.csv": 0,
        RING_FILE: 2,
    }


def test_nothing_is_written_over_and_nothing_half(home: Path, tmp_path: Path) -> None:
    """A folder that is there is left alone, and a home without anything leaves none."""
    (tmp_path / "there").mkdir()
    ran = run("--home", home, "export", tmp_path / "there")
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    assert "already exists" in ran.stderr
    with pytest.raises(StateError, match="nothing to export"):
        export_files(Lake(tmp_path / "empty"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
