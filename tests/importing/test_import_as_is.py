"""Exports of broken clusters need --allow-incomplete; `check` fails on them, and no command builds on them.

The exports are written from the documents, as COPY writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import run
from support.files.export_files import (
    ID,
    SNAPSHOT,
    TIME_MS,
    generation,
    streams_csv,
    tablet_streams_csv,
    tablet_timestamps_csv,
    timestamps_csv,
    v2_csv,
)

from cdc_platform.clock import Clock, us_from_ms
from cdc_platform.delta import Lake, get_home_mode
from cdc_platform.errors import InputError
from cdc_platform.importing.run import import_paths
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, TABLES

CLOCK = Clock(us_from_ms(TIME_MS))
GENERATION = generation()
RING, TIMES, STREAMS, V2 = (
    json.dumps(SNAPSHOT),
    timestamps_csv({TIME_MS: None}),
    streams_csv({TIME_MS: GENERATION}),
    v2_csv({ID: GENERATION}),
)
TABLET = ((TIME_MS, 0, "ffffffffffffffff0000000004000001"), (TIME_MS, 0, "7fffffffffffffff0000000008000001"))
TABLET_ROWS = (*TABLET, *((time, 2, stream) for time, _, stream in TABLET))
LEGACY = "0521d5ce4a4a8ca552f83d88a1ae55d2"


def first_set(text: str) -> str:
    """Return the streams of the first row of a file."""
    return text.splitlines()[1].split('"')[1]


def swapped(text: str) -> str:
    """Swap the streams of the first two rows."""
    lines = text.split("\r\n")
    first, second = (line.split('"') for line in lines[1:3])
    first[1], second[1] = second[1], first[1]
    return "\r\n".join([lines[0], '"'.join(first), '"'.join(second), *lines[3:]])


def random_ids(text: str) -> str:
    """Replace the streams of the first row by random bytes."""
    ids = ", ".join(f"0x{number:02x}" + "9b7c1d55e0a34f26b88c0e4d917f3a"[:30] for number in range(16, 20))
    return text.replace(first_set(text), "{" + ids + "}")


@dataclass(frozen=True)
class Broken:
    """Files of an incomplete cluster, the expected message, and the invariant that fails."""

    files: Mapping[str, str]
    says: str
    violates: str | None


BROKEN = {
    "a row of streams is missing": Broken(
        {"r.json": RING, "t.csv": TIMES, "s.csv": streams_csv({TIME_MS: GENERATION}, skip=frozenset([2]))},
        "rows are missing",
        "refines_vnodes",
    ),
    "a row of a description is missing": Broken(
        {"r.json": RING, "t.csv": TIMES, "d.csv": v2_csv({ID: GENERATION}, num_ranges=6, skip=frozenset([2]))},
        "num_ranges claims 6",
        "row_count",
    ),
    "streams without their time": Broken({"r.json": RING, "s.csv": STREAMS}, "without its row in", None),
    "a description of the old format": Broken(
        {"d.csv": V2.replace(first_set(V2), f"{{0x{LEGACY}}}")},
        "older than the version field",
        "stream_format",
    ),
    "streams that are swapped": Broken(
        {"r.json": RING, "t.csv": TIMES, "s.csv": swapped(STREAMS)}, "lie outside their range", "vnode_colocation"
    ),
    "streams that are random": Broken(
        {"r.json": RING, "t.csv": TIMES, "s.csv": random_ids(STREAMS)}, "lie outside their range", "vnode_colocation"
    ),
    "a range without a stream": Broken(
        {"r.json": RING, "t.csv": TIMES, "s.csv": STREAMS.replace(f'"{first_set(STREAMS)}"', "")},
        "every range has at least one",
        "refines_vnodes",
    ),
    "a tablet's stream is missing": Broken(
        {"t.csv": tablet_timestamps_csv([TIME_MS]), "s.csv": tablet_streams_csv(TABLET_ROWS[1:])},
        "rows are missing",
        "tablet_sets_add_up",
    ),
    "a stream set without current streams": Broken(
        {"t.csv": tablet_timestamps_csv([TIME_MS]), "s.csv": tablet_streams_csv(TABLET_ROWS[2:])},
        "no current streams",
        "tablet_timestamp_complete",
    ),
    "a stream set without its time": Broken(
        {"s.csv": tablet_streams_csv(TABLET_ROWS)}, "row in cdc_timestamps", "tablet_streams_timed"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for exports."""
    folder = tmp_path / "exports"
    folder.mkdir()
    return folder


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write these files into the folder, without others; return the folder."""
    for path in folder.iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, newline="")
    return folder


def versions(lake: Lake) -> dict[str, int | None]:
    """Return the version of every table."""
    return {name: lake.version(table) for name, table in TABLES.items()}


@pytest.mark.parametrize("name", BROKEN)
def test_incomplete_exports_are_refused_or_imported_as_they_are(name: str, lake: Lake, folder: Path) -> None:
    """Without --allow-incomplete one line refuses them; with it all rows are imported and the lake is marked."""
    case = BROKEN[name]
    write_files(folder, case.files)
    with pytest.raises(InputError, match=case.says) as refused:
        import_paths(lake, CLOCK, [folder])
    assert "import --allow-incomplete" in str(refused.value)
    assert set(versions(lake).values()) == {None}
    report = import_paths(lake, CLOCK, [folder], allow_incomplete=True)
    assert any(case.says in flaw for flaw in report.issues)
    observed = get_home_mode(lake).observed
    assert observed is not None
    assert observed.num_issues == len(report.issues)
    before = versions(lake)
    assert import_paths(lake, CLOCK, [folder], allow_incomplete=True).rows_written == 0
    assert versions(lake) == before


@pytest.mark.parametrize("name", [name for name, case in BROKEN.items() if case.violates])
def test_check_fails_on_incomplete_rows(name: str, tmp_path: Path, folder: Path) -> None:
    """The failed invariant is named, the exit code is 1, and the home stays only observed."""
    home = tmp_path / "home"
    assert run("--home", home, "import", "--allow-incomplete", write_files(folder, BROKEN[name].files)).exit_code == 0
    answer = run("--home", home, "check", "--json")
    assert answer.exit_code == 1
    violated = {line["invariant"] for line in answer.rows if line["violations"]}
    assert BROKEN[name].violates in violated, violated
    assert "is only observed since" in answer.stderr
    assert "only-observed" in {alert["code"] for alert in run("--home", home, "status", "--json").json["alerts"]}
    assert get_home_mode(Lake(home / "lake")).observed is not None


def test_timestamps_without_streams_are_an_issue_if_the_table_was_exported(lake: Lake, folder: Path) -> None:
    """An empty exported table shows that there are no streams; without the table this is unknown."""
    import_paths(lake, CLOCK, [write_files(folder, {"t.csv": TIMES})], allow_incomplete=True)
    assert get_home_mode(lake).observed is None
    report = import_paths(
        lake,
        CLOCK,
        [write_files(folder, {"t.csv": TIMES, "s.csv": "time,range_end,streams\r\n"})],
        allow_incomplete=True,
    )
    assert "timestamps without their streams rows" in report.issues[0]
    assert get_home_mode(lake).observed is not None


def test_truncated_file_is_refused_with_the_option(lake: Lake, folder: Path) -> None:
    """It shows a fault of the copy, not of the cluster."""
    with pytest.raises(InputError, match="half-written export"):
        import_paths(lake, CLOCK, [write_files(folder, {"t.csv": TIMES, "s.csv": STREAMS[:-9]})], allow_incomplete=True)


def test_completed_home_accepts_joins(tmp_path: Path, folder: Path) -> None:
    """After an import of the missing rows `check` passes and removes the mark; before it a join is refused."""
    home = tmp_path / "home"
    part = {
        "r.json": RING,
        "t.csv": TIMES,
        "d.csv": V2,
        "s.csv": streams_csv({TIME_MS: GENERATION}, skip=frozenset([2])),
    }
    assert run("--home", home, "import", "--allow-incomplete", write_files(folder, part)).exit_code == 0
    node = write_files(tmp_path / "exports", {"n.json": json.dumps(SNAPSHOT[0] | {"host_id": ID, "tokens": [7]})})
    refused = run("--home", home, "bootstrap", node / "n.json")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "is only observed since" in refused.stderr
    assert run("--home", home, "import", write_files(folder, part | {"s.csv": STREAMS})).exit_code == 0
    clean = run("--home", home, "check")
    assert clean.exit_code == 0, clean.stdout
    assert "no longer only observed" in clean.stderr
    assert {alert["code"] for alert in run("--home", home, "status", "--json").json["alerts"]} <= {"no-tables"}
    assert get_home_mode(Lake(home / "lake")).observed is None
    write_files(folder, {"n.json": json.dumps(SNAPSHOT[0] | {"host_id": ID, "tokens": [7]})})
    assert run("--home", home, "bootstrap", folder / "n.json").exit_code == 0


def test_flag_overrides_the_mark(tmp_path: Path, folder: Path) -> None:
    """--write-to-observed queues a join on an incomplete home."""
    home = tmp_path / "home"
    case = BROKEN["a row of streams is missing"]
    assert run("--home", home, "import", "--allow-incomplete", write_files(folder, case.files)).exit_code == 0
    write_files(folder, {"n.json": json.dumps(SNAPSHOT[0] | {"host_id": ID, "tokens": [7]})})
    command = ("bootstrap", folder / "n.json")
    assert run("--home", home, *command).exit_code == 2
    assert run("--home", home, "--write-to-observed", *command).exit_code == 0


def test_rows_of_a_partial_generation_stay_as_they_were(lake: Lake, folder: Path) -> None:
    """The lake has the export's five of six rows, each with its streams."""
    case = BROKEN["a row of streams is missing"]
    import_paths(lake, CLOCK, [write_files(folder, case.files)], allow_incomplete=True)
    stored = {row["range_end"]: sorted(row["streams"]) for row in lake.read(STREAMS_DESCRIPTIONS_V2).to_pylist()}
    expected = {
        GENERATION.entry(row).range_end: sorted(map(bytes, GENERATION.entry(row).streams))
        for row in range(6)
        if row != 2
    }
    assert stored == expected
