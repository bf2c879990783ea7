"""`check` with damaged or missing files names them and still checks everything else. No JVM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.command_line import Answer, run
from support.homes.every_table import every_table
from support.next_lines import lines_of

from cdc_platform.checks import (
    COMMITS_KNOWN,
    FILES_WHOLE,
    GENERATION_FAMILY,
    HOUR_FAMILY,
    INVARIANT_FAMILIES,
    SWITCH_FAMILY,
)
from cdc_platform.tables import GENERATION_SWITCHES, NODES, STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS, Table

NOW = "2026-11-01T14:00:15Z"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with rows in every table."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def home(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of such a home for one test; the start of a JVM fails."""

    def refuse_jvm() -> None:
        raise AssertionError("a JVM was started")

    monkeypatch.setattr("cdc_platform.spark.session.get_spark_session", refuse_jvm)
    return shutil.copytree(clean, tmp_path / "home")


def check(home: Path, *options: str) -> Answer:
    """Run `check` on the home at a time at which everything passes."""
    return run("--home", home, "--clock", NOW, "check", *options)


def get_file(home: Path, table: Table) -> Path:
    """Return a data file of a table."""
    return Path(next(iter(DeltaTable(home / "lake" / table.keyspace / table.name).file_uris())))


@pytest.mark.parametrize("table", [TOPOLOGY_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2], ids=lambda table: table.name)
def test_a_damaged_file_is_reported_and_other_families_are_checked(home: Path, table: Table) -> None:
    """No generation can be checked, but switches and hours are; the exit code is 1."""
    path = get_file(home, table)
    path.write_bytes(path.read_bytes()[:-9])
    answer = check(home, "--json")
    assert (answer.exit_code, len(lines_of(answer))) == (1, 1), answer.stderr
    manual_lines = [line.partition(":")[2] for line in answer.stderr.splitlines() if not line.startswith("next: ")]
    assert [line.strip()[:15] for line in manual_lines] == ["observed_whole:"], answer.stderr
    lines = {line["invariant"]: line for line in answer.rows}
    assert path.name in lines[FILES_WHOLE]["sample"]
    assert table.full_name in lines[FILES_WHOLE]["sample"]
    reason = f"not judged: depends on {table.full_name}"
    assert [lines[name]["sample"] for name in GENERATION_FAMILY.invariants] == [reason] * len(
        GENERATION_FAMILY.invariants
    )
    assert all(lines[name]["passed"] for family in (SWITCH_FAMILY, HOUR_FAMILY) for name in family.invariants)
    assert lines[COMMITS_KNOWN]["passed"]


@pytest.mark.parametrize("table", [GENERATION_SWITCHES, NODES], ids=lambda table: table.name)
def test_a_damaged_table_log_stops_no_other_check(home: Path, table: Table) -> None:
    """Each audit that needs the table reports that it was skipped, and one finding names the file."""
    folder = home / "lake" / table.keyspace / table.name / "_delta_log"
    newest = max(folder.glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:50])
    answer = check(home, "--json")
    assert (answer.exit_code, len(lines_of(answer))) == (1, 1), answer.stderr
    manual_lines = [line.partition(":")[2] for line in answer.stderr.splitlines() if not line.startswith("next: ")]
    assert [line.strip()[:15] for line in manual_lines] == ["observed_whole:"], answer.stderr
    lines = {line["invariant"]: line for line in answer.rows}
    assert f"{table.full_name}: _delta_log/{newest.name} is damaged" in lines[FILES_WHOLE]["sample"]
    assert any(table.full_name in line["sample"] for line in answer.rows if line["invariant"] != FILES_WHOLE)
    assert {line for family in INVARIANT_FAMILIES for line in family.invariants if line in lines} >= {
        *SWITCH_FAMILY.invariants
    }


def test_a_damaged_generation_is_reported_by_name(home: Path) -> None:
    """A check of one generation prints a line instead of a worker's stack trace."""
    path = get_file(home, STREAMS_DESCRIPTIONS_V2)
    path.unlink()
    files = pa.table(
        DeltaTable(home / "lake/system_distributed/cdc_streams_descriptions_v2").get_add_actions(flatten=True)
    )
    (time,) = (file["partition.time"] for file in files.to_pylist() if file["path"].endswith(path.name))
    answer = check(home, f"{time:%Y-%m-%dT%H:%M:%S.%fZ}")
    assert answer.exit_code == 1, answer.stderr
    assert path.name[:20] in answer.stdout
