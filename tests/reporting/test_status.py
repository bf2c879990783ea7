"""`status` on homes in every state: errors, advice, and that it only reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import Answer, run
from support.files.export_files import SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv, v2_csv
from support.homes.timelines import FIRST_MS, HOMES, LEASE_END_MS, SECOND_MS, THIRD_MS, home_of, uuid_of
from support.worlds.switch_lake import ring_of

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import check_results
from cdc_platform.reporting import STATUS_CODES
from cdc_platform.tables import CDC_TABLES, CONSUMERS, GENERATION_TIMESTAMPS

NEVER = ("never-checked", False)


def get_status(home: Path, at_ms: int, *more: str) -> Answer:
    """Return `status` of a home at a time (ms)."""
    return run("--home", home, "--clock", format_ms(Milliseconds(at_ms)), "status", *more)


def get_codes(answer: Answer) -> set[tuple[str, bool]]:
    """Return the codes of the alerts, each with whether it is an error."""
    return {(alert["code"], alert["level"] == "error") for alert in answer.json["alerts"]}


@pytest.mark.parametrize(
    ("name", "at_ms", "expected"),
    [
        ("plain", FIRST_MS, {NEVER}),
        ("plain", FIRST_MS - 1, {NEVER, ("nothing-operates", True)}),
        ("introduced", FIRST_MS, {NEVER}),
        ("undecided", FIRST_MS + 1, {NEVER, ("switch-open", False)}),
        ("undecided", LEASE_END_MS, {NEVER, ("switch-overdue", True)}),
        ("committed", SECOND_MS, {NEVER, ("switch-open", False)}),
        ("timestamp_only", FIRST_MS, {NEVER, ("not-exported", False)}),
        ("named_by_node", FIRST_MS, {NEVER, ("not-retrievable", True)}),
        ("named_by_node", SECOND_MS, {NEVER, ("not-retrievable", True)}),
    ],
)
def test_each_state_has_its_code(tmp_path: Path, name: str, at_ms: int, expected: set[tuple[str, bool]]) -> None:
    """The exit code is 1 exactly if an alert is an error."""
    answer = get_status(home_of(tmp_path, name), at_ms, "--json")
    assert get_codes(answer) == expected
    assert answer.exit_code == any(wrong for _, wrong in expected)
    assert (answer.json["errors"] > 0) == any(wrong for _, wrong in expected)


def test_nodes_and_clients_have_separate_generations(tmp_path: Path) -> None:
    """The status has the generation that operates for nodes, and the newest that clients can see."""
    reported_generations = get_status(home_of(tmp_path, "introduced"), SECOND_MS, "--json").json["generations"]
    assert reported_generations["operating"] == {
        "id": uuid_of(SECOND_MS),
        "time": format_ms(SECOND_MS),
        "state": "introduced",
    }
    assert reported_generations["visible_to_clients"]["id"] == uuid_of(FIRST_MS)


def test_a_generation_that_does_not_fit_the_ring_is_due_for_repair(tmp_path: Path) -> None:
    """The ring has one node more than the generation; `repair --dry-run` reports it with exit code 1."""
    home = home_of(tmp_path, "plain")
    ring_of(Lake(home / "lake"), [1])
    clock = format_ms(FIRST_MS)
    assert run("--home", home, "--clock", clock, "repair", "--dry-run").exit_code == 0
    assert ("repair-due", True) not in get_codes(get_status(home, FIRST_MS, "--json"))
    ring_of(Lake(home / "lake"), [2])
    assert run("--home", home, "--clock", clock, "repair", "--dry-run").exit_code == 1
    answer = get_status(home, FIRST_MS, "--json")
    assert (answer.exit_code, ("repair-due", True) in get_codes(answer)) == (1, True)


def test_a_failed_check_is_reported_until_it_passes(tmp_path: Path) -> None:
    """The report has author, time, scope and message; after a later write, the check is older than a table."""
    home = home_of(tmp_path, "plain")
    lake = Lake(home / "lake")

    class Line:
        invariant, population, violations, passed, message = "row_count", 2, 1, False, "1 of 2"

    class Held(Line):
        violations, passed, message = 0, True, "2 checked"

    clock = Clock(us_from_ms(FIRST_MS))
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "Dagster's run 7", "g"), [Line()])
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "cdc-platform check"), [Held()])
    assert get_status(home, FIRST_MS, "--json").json["alerts"] == []
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "Dagster's run 7", "g"), [Line()])
    answer = get_status(home, FIRST_MS, "--json")
    assert answer.exit_code == 1
    (failed,) = answer.json["checks"]["failed"]
    assert failed == {
        "invariant": "row_count",
        "scope": "g",
        "message": "1 of 2",
        "checked_at": format_ms(FIRST_MS),
        "entry_point": "Dagster's run 7",
    }
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "cdc-platform check"), [Held()])
    row = {"key": "timestamps", "time": datetime_from_ms(SECOND_MS)}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema), update=False)
    answer = get_status(home, FIRST_MS, "--json")
    assert answer.json["checks"]["changed_tables"] == [GENERATION_TIMESTAMPS.full_name]
    assert get_codes(answer) == {("check-older", False), ("not-retrievable", True)}


def test_a_reader_of_a_removed_generation_is_named(tmp_path: Path) -> None:
    """Its position is in a removed generation; a reader at the end of that generation is in the next one."""
    home = home_of(tmp_path, "removed")
    lake = Lake(home / "lake")

    def get_status_at(at_ms: int) -> Answer:
        position = datetime_from_ms(Milliseconds(at_ms))
        row = {"name": "audit", "keyspace_name": "ks", "table_name": "t", "position": position}
        row |= {"window_number": 1, "updated_at": position}
        lake.merge(CONSUMERS, pa.Table.from_pylist([row], schema=CONSUMERS.schema), update=True)
        return get_status(home, THIRD_MS, "--json")

    answer = get_status_at(FIRST_MS + 1)
    assert ("reads-removed", True) in get_codes(answer)
    (reader,) = answer.json["consumers"]
    assert (reader["removed"], reader["behind_seconds"]) == (True, 7199.999)
    assert ("reads-removed", True) not in get_codes(get_status_at(SECOND_MS))


def test_an_unreadable_table_hides_no_other_section(tmp_path: Path) -> None:
    """Its section is null and an alert names it, but the ring and the generations are reported."""
    home = home_of(tmp_path, "plain")
    for file in Path(Lake(home / "lake").path(CDC_TABLES)).glob("*.parquet"):
        file.unlink()
    answer = get_status(home, FIRST_MS, "--json")
    assert (answer.exit_code, answer.json["tables"]) == (1, None)
    assert ("table-unreadable", True) in get_codes(answer)
    assert answer.json["generations"]["operating"]["id"] == uuid_of(FIRST_MS)
    assert "cannot be read" in get_status(home, FIRST_MS).stdout


def test_an_empty_home_has_one_notice(tmp_path: Path) -> None:
    """An empty home has no error and one step to take."""
    (tmp_path / "home").mkdir()
    answer = get_status(tmp_path / "home", FIRST_MS, "--json")
    assert (answer.exit_code, get_codes(answer)) == (0, {("empty-home", False)})


@pytest.mark.parametrize("brought", [True, False], ids=["imported without it", "never imported"])
def test_a_missing_description_has_one_answer(tmp_path: Path, brought: bool) -> None:
    """Status, repair, check and generations agree on whether the description is missing or was never imported."""
    files = {"ring.json": json.dumps(SNAPSHOT), "t.csv": timestamps_csv({TIME_MS: None})}
    files["s.csv"] = streams_csv({TIME_MS: generation()})
    if brought:
        files["cdc_generation_descriptions_v2.csv"] = v2_csv({})
    for name, text in files.items():
        (tmp_path / name).write_text(text, newline="")
    home = tmp_path / "home"
    at = Milliseconds(TIME_MS + 60_000)
    assert run("--home", home, "import", *(tmp_path / name for name in files)).exit_code == 0
    codes_found = {code for code, _ in get_codes(get_status(home, at, "--json"))}
    repair = run("--home", home, "--clock", format_ms(at), "repair", "--dry-run", "--json")
    (listed,) = run("--home", home, "generations", "--json").rows
    results = {line["invariant"]: line["passed"] for line in run("--home", home, "check", "--json").rows}
    if brought:
        assert {"not-described", "repair-due"} <= codes_found
        assert [reason["condition"] for reason in repair.json["reasons"]] == ["missing-data"]
        assert (repair.exit_code, listed["state"]) == (1, "published without a description")
        assert results["generations_retrievable"] is False
    else:
        assert "not-exported" in codes_found
        assert not {"not-described", "repair-due"} & codes_found
        assert (repair.exit_code, listed["state"]) == (0, "not exported, so unknown")
        assert "cannot tell without" in repair.json["undetermined"]
        assert results["generations_retrievable"] is True


def test_a_ring_without_generations_is_no_reason_to_check(tmp_path: Path) -> None:
    """Missing generations may just not be imported, so it is a notice; `check` would have nothing to check."""
    (tmp_path / "ring.json").write_text(json.dumps(SNAPSHOT))
    assert run("--home", tmp_path / "home", "import", tmp_path / "ring.json").exit_code == 0
    answer = get_status(tmp_path / "home", FIRST_MS, "--json")
    assert (answer.exit_code, get_codes(answer)) == (0, {("no-generation", False)})


@pytest.mark.parametrize("name", HOMES)
def test_the_screen_has_all_sections_and_fits(tmp_path: Path, name: str) -> None:
    """The text has every section and the advice within forty lines, and status writes no file."""
    home = home_of(tmp_path, name)
    get_status(home, SECOND_MS)  # a home that was only a folder gets its marker from the first command that opens it
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    answer = get_status(home, SECOND_MS)
    assert answer.exit_code in (0, 1)
    lines = answer.stdout.splitlines()
    assert len(lines) <= 40
    for section in ("ring", "generations", "tables", "expiry", "checks"):
        assert any(line.startswith(section) for line in lines), section
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_watch_repeats_and_ends_with_exit_code_0(tmp_path: Path) -> None:
    """One document per round until Ctrl-C, which ends with exit code 0."""
    home = home_of(tmp_path, "plain")
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "status", "--json", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rounds = 0
        while rounds < 2:
            rounds += process.stdout.readline() == "}\n"
        process.send_signal(2)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize("json_asked", [[], ["--json"]])
def test_status_loads_neither_spark_nor_pandas(tmp_path: Path, json_asked: list[str]) -> None:
    """Status therefore answers within a second, also without Java."""
    home = home_of(tmp_path, "three")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH", "SPARK_REMOTE")
    }
    command = [sys.executable, "-X", "importtime", "-m", "cdc_platform", "--home", str(home), "status", *json_asked]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert "pyarrow.lib" in loaded
    # Only pandas' name: a package that was really loaded has loaded more.
    assert {
        module for module in loaded if module.startswith(("pyspark", "py4j", "dagster", "pandas.", "pandera"))
    } == set()


def test_every_code_is_documented() -> None:
    """The documentation has each code with its anchor and level."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "status.md").read_text(encoding="utf-8")
    rows = re.findall(r'^\| <a id="([\w-]+)"></a>`([\w-]+)` \| (error|warning|notice) \|', page, flags=re.MULTILINE)
    assert {code: level for anchor, code, level in rows if anchor == code} == dict(STATUS_CODES)
