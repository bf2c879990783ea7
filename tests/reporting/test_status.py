"""`status` on homes in every state: what it calls wrong, what it says is to be done, and that it only looks."""

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


def look(home: Path, at_ms: int, *more: str) -> Answer:
    """`status` of a home at a time (ms)."""
    return run("--home", home, "--clock", format_ms(Milliseconds(at_ms)), "status", *more)


def codes(answer: Answer) -> set[tuple[str, bool]]:
    """The codes that it names, each with whether it is wrong."""
    return {(each["code"], each["level"] == "error") for each in answer.json["alerts"]}


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
    """And the exit code is 1 exactly where one of them is wrong."""
    answer = look(home_of(tmp_path, name), at_ms, "--json")
    assert codes(answer) == expected
    assert answer.exit_code == any(wrong for _, wrong in expected)
    assert (answer.json["errors"] > 0) == any(wrong for _, wrong in expected)


def test_nodes_and_clients_are_told_apart(tmp_path: Path) -> None:
    """What operates for the nodes, and the newest that clients have been shown."""
    told = look(home_of(tmp_path, "introduced"), SECOND_MS, "--json").json["generations"]
    assert told["operating"] == {"id": uuid_of(SECOND_MS), "time": format_ms(SECOND_MS), "state": "introduced"}
    assert told["visible_to_clients"]["id"] == uuid_of(FIRST_MS)


def test_a_generation_that_does_not_fit_the_ring_is_due_for_repair(tmp_path: Path) -> None:
    """The ring has a node more than the generation was made for; `repair --dry-run` says so with exit code 1."""
    home = home_of(tmp_path, "plain")
    ring_of(Lake(home / "lake"), [1])
    clock = format_ms(FIRST_MS)
    assert run("--home", home, "--clock", clock, "repair", "--dry-run").exit_code == 0
    assert ("repair-due", True) not in codes(look(home, FIRST_MS, "--json"))
    ring_of(Lake(home / "lake"), [2])
    assert run("--home", home, "--clock", clock, "repair", "--dry-run").exit_code == 1
    answer = look(home, FIRST_MS, "--json")
    assert (answer.exit_code, ("repair-due", True) in codes(answer)) == (1, True)


def test_a_failed_check_is_told_until_it_holds(tmp_path: Path) -> None:
    """By whom, when, of what, in words; then that it is older than a table that was written since."""
    home = home_of(tmp_path, "plain")
    lake = Lake(home / "lake")

    class Line:
        invariant, population, violations, passed, message = "row_count", 2, 1, False, "1 of 2"

    class Held(Line):
        violations, passed, message = 0, True, "2 checked"

    clock = Clock(us_from_ms(FIRST_MS))
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "Dagster's run 7", "g"), [Line()])
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "cdc-platform check"), [Held()])
    assert look(home, FIRST_MS, "--json").json["alerts"] == []
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "Dagster's run 7", "g"), [Line()])
    answer = look(home, FIRST_MS, "--json")
    assert answer.exit_code == 1
    (found,) = answer.json["checks"]["failed"]
    assert found == {
        "invariant": "row_count",
        "scope": "g",
        "message": "1 of 2",
        "checked_at": format_ms(FIRST_MS),
        "entry_point": "Dagster's run 7",
    }
    check_results.store_check_results(check_results.CheckRun.begin(lake, clock, "cdc-platform check"), [Held()])
    row = {"key": "timestamps", "time": datetime_from_ms(SECOND_MS)}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema), update=False)
    answer = look(home, FIRST_MS, "--json")
    assert answer.json["checks"]["changed_tables"] == [GENERATION_TIMESTAMPS.full_name]
    assert codes(answer) == {("check-older", False), ("not-retrievable", True)}


def test_a_reader_of_what_is_gone_is_named(tmp_path: Path) -> None:
    """Its checkpoint points to a removed generation; one that has read that to its end stands in the next one."""
    home = home_of(tmp_path, "removed")
    lake = Lake(home / "lake")

    def stands_at(at_ms: int) -> Answer:
        position = datetime_from_ms(Milliseconds(at_ms))
        row = {"name": "audit", "keyspace_name": "ks", "table_name": "t", "position": position}
        row |= {"window_number": 1, "updated_at": position}
        lake.merge(CONSUMERS, pa.Table.from_pylist([row], schema=CONSUMERS.schema), update=True)
        return look(home, THIRD_MS, "--json")

    answer = stands_at(FIRST_MS + 1)
    assert ("reads-removed", True) in codes(answer)
    (reader,) = answer.json["consumers"]
    assert (reader["removed"], reader["behind_seconds"]) == (True, 7199.999)
    assert ("reads-removed", True) not in codes(stands_at(SECOND_MS))


def test_one_table_that_cannot_be_read_keeps_no_other_section_back(tmp_path: Path) -> None:
    """The section is null, the matter names it, and the ring and the generations are told all the same."""
    home = home_of(tmp_path, "plain")
    for file in Path(Lake(home / "lake").path(CDC_TABLES)).glob("*.parquet"):
        file.unlink()
    answer = look(home, FIRST_MS, "--json")
    assert (answer.exit_code, answer.json["tables"]) == (1, None)
    assert ("table-unreadable", True) in codes(answer)
    assert answer.json["generations"]["operating"]["id"] == uuid_of(FIRST_MS)
    assert "cannot be read" in look(home, FIRST_MS).stdout


def test_an_empty_home_says_how_to_begin(tmp_path: Path) -> None:
    """Nothing is wrong with it, and it is one thing that is to be done."""
    (tmp_path / "home").mkdir()
    answer = look(tmp_path / "home", FIRST_MS, "--json")
    assert (answer.exit_code, codes(answer)) == (0, {("empty-home", False)})


@pytest.mark.parametrize("brought", [True, False], ids=["imported without it", "never imported"])
def test_a_missing_description_has_one_answer(tmp_path: Path, brought: bool) -> None:
    """Status, repair, check and generations agree on whether the description is missing or was never imported."""
    write = {"ring.json": json.dumps(SNAPSHOT), "t.csv": timestamps_csv({TIME_MS: None})}
    write["s.csv"] = streams_csv({TIME_MS: generation()})
    if brought:
        write["cdc_generation_descriptions_v2.csv"] = v2_csv({})
    for name, text in write.items():
        (tmp_path / name).write_text(text, newline="")
    home = tmp_path / "home"
    at = Milliseconds(TIME_MS + 60_000)
    assert run("--home", home, "import", *(tmp_path / name for name in write)).exit_code == 0
    found = {code for code, _ in codes(look(home, at, "--json"))}
    repair = run("--home", home, "--clock", format_ms(at), "repair", "--dry-run", "--json")
    (listed,) = run("--home", home, "generations", "--json").rows
    judged = {line["invariant"]: line["passed"] for line in run("--home", home, "check", "--json").rows}
    if brought:
        assert {"not-described", "repair-due"} <= found
        assert [each["condition"] for each in repair.json["reasons"]] == ["missing-data"]
        assert (repair.exit_code, listed["state"]) == (1, "published without a description")
        assert judged["generations_retrievable"] is False
    else:
        assert "not-exported" in found
        assert not {"not-described", "repair-due"} & found
        assert (repair.exit_code, listed["state"]) == (0, "not exported, so unknown")
        assert "cannot tell without" in repair.json["undetermined"]
        assert judged["generations_retrievable"] is True


def test_a_ring_without_generations_is_no_reason_to_check(tmp_path: Path) -> None:
    """What is missing may only not have been imported, so it is a notice; `check` would have nothing to judge."""
    (tmp_path / "ring.json").write_text(json.dumps(SNAPSHOT))
    assert run("--home", tmp_path / "home", "import", tmp_path / "ring.json").exit_code == 0
    answer = look(tmp_path / "home", FIRST_MS, "--json")
    assert (answer.exit_code, codes(answer)) == (0, {("no-generation", False)})


@pytest.mark.parametrize("name", HOMES)
def test_the_screen_has_all_sections_and_fits(tmp_path: Path, name: str) -> None:
    """Every section by its name, what is to be done below, in forty lines; and looking writes no file."""
    home = home_of(tmp_path, name)
    look(home, SECOND_MS)  # a home that was only a folder gets its marker from whoever opens it first
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    answer = look(home, SECOND_MS)
    assert answer.exit_code in (0, 1)
    lines = answer.stdout.splitlines()
    assert len(lines) <= 40
    for section in ("ring", "generations", "tables", "expiry", "checks"):
        assert any(line.startswith(section) for line in lines), section
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before


def test_watching_looks_again_and_ends_well(tmp_path: Path) -> None:
    """A document a round, until Ctrl-C, which is exit code 0: waiting was the work."""
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
def test_it_loads_neither_spark_nor_pandas(tmp_path: Path, json_asked: list[str]) -> None:
    """So it answers within a second, and where there is no Java at all."""
    home = home_of(tmp_path, "three")
    bare = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH", "SPARK_REMOTE")}
    command = [sys.executable, "-X", "importtime", "-m", "cdc_platform", "--home", str(home), "status", *json_asked]
    result = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert "pyarrow.lib" in loaded
    # Of pandas the name alone: a package that was really loaded has loaded more.
    assert {each for each in loaded if each.startswith(("pyspark", "py4j", "dagster", "pandas.", "pandera"))} == set()


def test_every_code_has_its_place_in_the_docs() -> None:
    """With its anchor and its level."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "status.md").read_text(encoding="utf-8")
    rows = re.findall(r'^\| <a id="([\w-]+)"></a>`([\w-]+)` \| (error|warning|notice) \|', page, flags=re.MULTILINE)
    assert {code: level for anchor, code, level in rows if anchor == code} == dict(STATUS_CODES)
