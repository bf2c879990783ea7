"""Run every command in homes with one damaged table: no command crashes, and `check` names the table. No JVM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.command_line import Answer, paths_of, run
from support.files.export_files import SNAPSHOT, TIME_MS, tablet_streams_csv, tablet_timestamps_csv
from support.homes.damaged import (
    BESIDE_LOGS,
    DAMAGES,
    FOREIGN,
    OF_ROWS,
    TABLE_NAMES,
    entries,
    folder_of,
    healthy_home,
)
from support.nodes import node_text

from cdc_platform.checks import COMMITS_KNOWN, FILES_WHOLE, ROWS_AS_COMMITTED
from cdc_platform.cli import program
from cdc_platform.clock import parse_time_us
from cdc_platform.tables import TABLES

NOW = "2026-11-01T14:00:15Z"
OF_STORED_TABLES = {FILES_WHOLE, ROWS_AS_COMMITTED, COMMITS_KNOWN}
GENERATION, OLDER = "32745f62-9671-4f5a-b2df-8f21381fd6ec", "2026-10-10T00:00:00.384Z"
SWITCH, NODE = "43bd93cb-acc0-4a02-ab72-940c31cc2ae8", "11111111-1111-4111-8111-111111111111"
JOIN = "45f41484-ea5e-5251-9ae8-f932f3ca0196"
COMMANDS: dict[str, tuple[str, ...]] = {
    "bootstrap": ("--list", "{in}/node.json"),
    "bundle": ("{out}/bundle.tar.gz",),
    "check": ("", "latest", "--deep"),
    "verify-interval": ("2026-11-01T12:30:00Z 2026-11-01T13:00:00Z --consumer audit",),
    "consume": ("shop.carts --name audit", "tabs.sessions --name feed"),
    "consumers": ("",),
    "consumers gaps": ("",),
    "consumers remove": ("audit shop.carts",),
    "consumers lag": ("",),
    "consumers plan": ("shop.carts",),
    "diff": (f"{OLDER} {GENERATION}",),
    "expire": ("--dry-run", "--cql", ""),
    "explain": ("--token 42", "--pk ada --table shop.carts", "--token 42 --table tabs.sessions"),
    "export": ("{out}/exported",),
    "generations": ("",),
    "history": ("", "latest", "--table shop.carts"),
    "home copy": ("{home} {out}/copy",),
    "home maintain": ("--dry-run", ""),
    "home migrate": ("",),
    "import": ("{in}/ring.json --shards 3 --ignore-msb 12",),
    "cql run": ("{in}/script.cql", "{in}/script.cql --apply"),
    "log": ("shop.carts",),
    "metrics": ("",),
    "log-writes": ("shop.carts {in}/writes.parquet --batch one",),
    "rebuild": ("shop.carts",),
    "rehearse": ("{in}/steps.json",),
    "simulate": ("--seeds 1",),
    "repair": ("--dry-run", "--from-description --dry-run", "--from-description"),
    "report": ("latest --html {out}/report.html",),
    "rewrite": ("--dry-run", "--clients"),
    "ring": ("", "--colocation", "--json"),
    "sql": ('SELECT * FROM {keyspace}."{table}"',),
    "status": ("", "--json"),
    "streams": (GENERATION,),
    "switch abort": (SWITCH,),
    "switch ack": (f"{SWITCH} {NODE}",),
    "switch commit": (SWITCH,),
    "switch show": ("", SWITCH),
    "tables": ("",),
    "tables add": ("shop.new --ttl 60",),
    "tables alter": ("shop.orders --ttl 60",),
    "tables drop": ("shop.orders",),
    "tables declare-none": ("",),
    "tablets create": ("tabs.new --count 4 --ttl 60",),
    "tablets gc": ("--dry-run", ""),
    "tablets merge": ("tabs.sessions",),
    "tablets resize": ("tabs.sessions --last-tokens {in}/ends.json",),
    "tablets show": ("tabs.sessions",),
    "tablets split": ("tabs.sessions",),
}
"""Every command that reads tables of a home, with its arguments. The tests run each of them in a damaged home."""
ELSEWHERE = {
    *("cluster", "cluster add", "cluster remove", "cluster replace", "cluster test", "ingest", "observe", "watch"),
    *("completion", "consumers checkpoints", "demo", "doctor", "help", "up"),
}
"""Commands that query a live cluster, serve, or read no table of the given home."""
CASES = [(table, damage) for table in TABLE_NAMES for damage in DAMAGES]


_SCHEMA = """
CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '1'};
CREATE TABLE ks.u (id int PRIMARY KEY, v text) WITH cdc = {'enabled': true, 'ttl': 3600};
"""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home that passes every check, with rows in all tables and states beside its logs."""
    return healthy_home(tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def verdicts(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of `check` in the healthy home, by invariant."""
    home = shutil.copytree(healthy, tmp_path_factory.mktemp("checked") / "home")
    answer = check(home)
    assert answer.exit_code == 0, answer
    return {line["invariant"]: line for line in answer.rows}


@pytest.fixture
def home(healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the test's own copy of the healthy home; starting a JVM fails the test."""

    def started() -> None:
        raise AssertionError("a JVM was started")

    monkeypatch.setattr("cdc_platform.spark.session.get_spark_session", started)
    return shutil.copytree(healthy, tmp_path / "home")


def check(home: Path, *options: str) -> Answer:
    """Run `check` at a time at which the healthy home passes every check."""
    return run("--home", home, "--clock", NOW, "check", "--json", *options)


def damage_table(home: Path, table: str, damage: str) -> None:
    """Damage a table of a home, or skip the test if the table does not have what this damage needs."""
    if not DAMAGES[damage](folder_of(home, table)):
        pytest.skip(f"{table} has nothing for {damage}")


def test_every_table_and_command_is_covered(healthy: Path) -> None:
    """The tests damage every declared table, log and state, and run every command that is not listed as `ELSEWHERE`."""
    stored = {f"{path.parent.parent.name}.{path.parent.name}" for path in healthy.glob("lake/*/*/_delta_log")}
    assert stored == set(TABLE_NAMES) >= {*TABLES, *BESIDE_LOGS}
    assert {*COMMANDS, *ELSEWHERE} == paths_of(program)
    assert len(DAMAGES) > 30


@pytest.mark.grid("damaged tables", 16)
@pytest.mark.parametrize(("table", "damage"), CASES)
def test_check_names_the_damaged_table_and_judges_the_others(
    home: Path, verdicts: dict[str, Any], table: str, damage: str
) -> None:
    """`check` exits with 1, names the damaged table, and judges everything that does not depend on it as before."""
    damage_table(home, table, damage)
    answer = check(home)
    assert answer.exit_code == 1, answer.stderr
    assert_no_backtrace(answer)
    lines = {line["invariant"]: line for line in answer.rows}
    stored = [lines[name]["sample"] for name in OF_STORED_TABLES if not lines[name]["passed"]]
    assert any(table in sample for sample in stored), lines
    others = {name: line for name, line in lines.items() if name not in OF_STORED_TABLES}
    names = (table, table.replace("..", ".").partition("_scylla_cdc_log")[0])

    def unexplained(line: dict[str, Any]) -> bool:
        return line["passed"] or not any(name in line["sample"] for name in names)

    assert [line for line in others.values() if "not judged" in line["sample"] and unexplained(line)] == []
    if damage not in OF_ROWS:  # no row has changed, so each verdict is as before or "not judged"
        assert others.keys() >= verdicts.keys() - OF_STORED_TABLES
        changed = [line for name, line in others.items() if line != verdicts.get(name)]
        assert [line for line in changed if unexplained(line)] == []


@pytest.mark.grid("foreign commits undone", 6)
@pytest.mark.parametrize(("table", "damage"), [case for case in CASES if case[1] in FOREIGN and ".." not in case[0]])
def test_undoing_a_foreign_commit_leaves_a_sound_home(home: Path, table: str, damage: str) -> None:
    """`check --undo` removes any foreign commit, even from a table that cannot be opened; `check` then passes."""
    damage_table(home, table, damage)
    newest = entries(folder_of(home, table))[-1]
    words = ("--undo", f"{table}@{int(newest.stem)}", "--reason", "it is none of ours")
    undone = run("--home", home, "--clock", NOW, "check", *words)
    assert undone.exit_code == 0, undone
    answer = check(home)
    assert answer.exit_code == 0, answer
    again = run("--home", home, "--clock", NOW, "check", *words)
    assert again.exit_code == 2, "it is taken back once"


def test_rows_whose_removal_was_accepted_come_back_with_an_import(tmp_path: Path) -> None:
    """Importing again restores tablet streams that a foreign program deleted, after that commit was accepted."""
    home, exports = tmp_path / "home", exports_of_tablets(tmp_path)
    folder = home / "lake" / "system" / "cdc_streams"
    for words in (("tables", "add", "ks.t", "--ttl", "60"), ("import", str(exports)), ("check",)):
        assert run("--home", home, *words).exit_code == 0, words
    before = run("--home", home, "tablets", "show", "ks.t", "--json").rows
    assert DAMAGES["emptied"](folder)
    assert run("--home", home, "check").exit_code == 1
    accepted = f"system.cdc_streams@{int(entries(folder)[-1].stem)}"
    for words in (("check", "--accept", accepted, "--reason", "gone"), ("import", str(exports)), ("check",)):
        answer = run("--home", home, *words)
        assert answer.exit_code == 0, answer
    assert run("--home", home, "tablets", "show", "ks.t", "--json").rows == before


@pytest.mark.parametrize("damage", ["garbage-entry", "bytes-entry", "cut-entry", "empty-entry"])
def test_an_unreadable_entry_is_moved_aside_and_imported_again(tmp_path: Path, damage: str) -> None:
    """`check --undo` moves the platform's own unreadable entry aside; repeating the import restores the table."""
    home, schema, exports = tmp_path / "home", tmp_path / "schema.cql", exports_of_tablets(tmp_path)
    schema.write_text(_SCHEMA, encoding="utf-8")
    for words in (("tables", "add", "ks.t", "--ttl", "60"), ("import", str(exports)), ("import", str(schema))):
        answer = run("--home", home, "--clock", "2026-01-02T06:00:00Z", *words)
        assert answer.exit_code == 0, answer
    before = run("--home", home, "tables", "--json").rows
    folder = folder_of(home, "platform.cdc_tables")
    newest = int(entries(folder)[-1].stem)
    assert DAMAGES[damage](folder)
    checked = run("--home", home, "check", "--json")
    assert checked.exit_code == 1
    assert any(f"check --undo platform.cdc_tables@{newest}" in line["sample"] for line in checked.rows)
    for words in (
        ("check", "--undo", f"platform.cdc_tables@{newest}", "--reason", "garbage"),
        ("import", str(schema)),
    ):
        answer = run("--home", home, "--clock", "2026-01-02T06:00:00Z", *words)
        assert answer.exit_code == 0, answer
    assert run("--home", home, "tables", "--json").rows == before
    assert [line for line in run("--home", home, "check", "--json").rows if not line["passed"]] == []
    assert len(list((home / "damaged" / "platform.cdc_tables").iterdir())) == 1


def test_a_move_that_died_before_its_record_is_recorded(tmp_path: Path) -> None:
    """If a process dies after moving an entry but before recording the move, the next run records it once."""
    home, table = tmp_path / "home", "platform.cdc_table_changes"
    for name in ("ks.t", "ks.u"):
        assert run("--home", home, "tables", "add", name, "--ttl", "60").exit_code == 0
    newest = entries(folder_of(home, table))[-1]
    newest.write_bytes(b"garbage")
    (home / "damaged" / table).mkdir(parents=True)
    newest.rename(home / "damaged" / table / f"{newest.name}.{'0' * 16}")
    words = ("check", "--undo", f"{table}@{int(newest.stem)}", "--reason", "garbage", "--json")
    done = run("--home", home, *words)
    assert (done.exit_code, len(done.json["moved"])) == (0, 1), done
    assert int(entries(folder_of(home, table))[-1].stem) == int(newest.stem)
    again = run("--home", home, *words)
    assert (again.exit_code, "is the platform's own" in again.stderr) == (2, True), again


def test_commits_of_the_platform_are_not_undone(home: Path) -> None:
    """The platform refuses to undo its own commits and foreign commits before its later writes, and changes nothing."""
    folder = folder_of(home, "platform.cdc_table_changes")
    own = int(entries(folder)[-1].stem)
    assert DAMAGES["foreign-row"](folder)
    assert run("--home", home, "--clock", NOW, "tables", "add", "shop.new", "--ttl", "60").exit_code == 0
    before = committed(home)
    for version, message in ((own, "is the platform's own"), (own + 1, "has written"), (own + 99, "has no commit")):
        words = ("check", "--undo", f"platform.cdc_table_changes@{version}", "--reason", "it is none of ours")
        answer = run("--home", home, *words)
        assert (answer.exit_code, message in answer.stderr) == (2, True), answer
    assert committed(home) == before


@pytest.mark.grid("commands in damaged homes", 2)
@pytest.mark.parametrize(("table", "damage"), CASES)
def test_no_command_crashes_over_a_damaged_table(
    healthy: Path, home: Path, tmp_path: Path, table: str, damage: str
) -> None:
    """Each command prints at most one error and exits with 0, 1 or 2; after 2 no table or file has changed."""
    damage_table(home, table, damage)
    broken = home.rename(tmp_path / "broken")
    for command, line in ((name, each) for name, lines in COMMANDS.items() for each in lines):
        where = shutil.copytree(broken, tmp_path / "home")
        answer = run_command(where, tmp_path, command, line, table)
        context = f"{command} {line}: {answer.exit_code} {answer.stderr}"
        assert answer.exit_code in (0, 1, 2), context
        assert sum(output_line.startswith("error: ") for output_line in answer.stderr.splitlines()) <= 1, context
        assert_no_backtrace(answer)
        if answer.exit_code == 2:
            assert committed(where) == committed(broken), context
            assert [path for path in (tmp_path / "out").iterdir() if path.is_file()] == [], context
        shutil.rmtree(where)


def exports_of_tablets(folder: Path) -> Path:
    """Create a folder with an export of one stream set of a table with tablets."""
    exports = folder / "exports"
    exports.mkdir()
    one, other = (f"{number:016x}{1:016x}" for number in (2**62, 2**63 - 1))
    rows = [(TIME_MS, state, stream) for state in (0, 2) for stream in (one, other)]
    (exports / "streams.csv").write_text(tablet_streams_csv(rows), encoding="utf-8")
    (exports / "timestamps.csv").write_text(tablet_timestamps_csv([TIME_MS]), encoding="utf-8")
    return exports


def run_command(home: Path, folder: Path, command: str, line: str, table: str) -> Answer:
    """Run a command with its arguments on a home; its output files go into a new folder `out`."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    inputs = folder / "in"
    inputs.mkdir(exist_ok=True)
    (inputs / "ring.json").write_text(json.dumps(SNAPSHOT))
    (inputs / "node.json").write_text(node_text(99))
    (inputs / "ends.json").write_text(json.dumps([-5, 2**63 - 1]))
    (inputs / "steps.json").write_text('[{"wait": 5}]')
    (inputs / "script.cql").write_text("INSERT INTO shop.visits (page, seen) VALUES ('b', 1);\n")
    writes = {"customer": ["c"], "item": pa.array([1], pa.int32()), "count": pa.array([1], pa.int32())}
    parquet.write_table(pa.table({"timestamp": [parse_time_us(NOW)]} | writes), inputs / "writes.parquet")
    keyspace, _, name = table.partition(".")
    named = {"in": inputs, "out": folder / "out", "home": home, "keyspace": keyspace, "table": name}
    words = [line] if command == "sql" else line.split()
    return run("--home", home, "--clock", NOW, *command.split(), *(word.format(**named) for word in words))


def committed(home: Path) -> dict[str, list[str]]:
    """Return the names of the entries in every table's log."""
    logs = sorted((home / "lake").glob("*/*/_delta_log"))
    return {str(log.relative_to(home)): sorted(path.name for path in log.iterdir()) for log in logs if log.is_dir()}


def assert_no_backtrace(answer: Answer) -> None:
    """Assert that the output shows no stack trace of Python or of a library."""
    for text in (answer.stdout, answer.stderr):
        assert "Traceback" not in text
        assert "<unknown>" not in text
        assert "start_thread" not in text
