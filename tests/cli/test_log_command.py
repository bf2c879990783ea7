"""The output and exit codes of `cdc-platform cql run`; tests/cdclog/script tests the effects of statements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from support.command_line import Cli, run
from support.files.bad_input import listing

from cdc_platform.cli.output import SpooledList, iterate_document_text, to_json
from cdc_platform.clock import parse_time_us
from cdc_platform.cql import us_from_timeuuid

NOW = "2026-02-02T00:00:00Z"
SCRIPT = """CREATE TYPE ks.ut (a bigint, b blob);
CREATE TABLE ks.t (pk int PRIMARY KEY, big bigint, u frozen<ut>, m map<text, decimal>, l list<uuid>)
    WITH cdc = {'enabled': true};
INSERT INTO ks.t (pk, big, u, m, l)
    VALUES (1, 9007199254740993, {b: 0xff}, {'b': 1.50, 'a': 2}, [550e8400-e29b-41d4-a716-446655440000]);
DROP TYPE IF EXISTS ks.other;"""

PLAIN = "CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true};"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A file with SCRIPT."""
    file = tmp_path / "script.cql"
    file.write_text(SCRIPT, encoding="utf-8")
    return file


def test_the_document(cli: Cli, script: Path, seeded_home: Path) -> None:
    """The JSON has statements in order with rows, tables by name, and values by convention; nothing is written."""
    before = listing(seeded_home)
    answer = cli("--clock", NOW, "cql", "run", script, "--json")
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert listing(seeded_home) == before
    created_type, table, inserted, dropped = answer.json["statements"]
    assert (created_type["statement"], created_type["accepted"], created_type["reason"], created_type["rows"]) == (
        "CREATE TYPE ks.ut (a bigint, b blob)", True, None, [],
    )  # fmt: skip
    assert (created_type["log_columns"], dropped["log_columns"]) == (None, None)
    columns = table["log_columns"]
    assert (columns["cdc$stream_id"], columns["u"], columns["m"]) == (
        "blob",
        "frozen<ut>",
        "frozen<map<text, decimal>>",
    )
    assert "log_columns" not in inserted
    (row,) = inserted["rows"]
    assert list(row) == list(columns)
    assert us_from_timeuuid(UUID(row["cdc$time"])) == parse_time_us(NOW)
    assert row["cdc$stream_id"].startswith("0x")
    assert len(row["cdc$stream_id"]) == 34
    assert (row["cdc$operation"], row["cdc$ttl"], row["cdc$end_of_batch"]) == (2, None, True)
    (key, element) = row["l"][0]
    assert (key[14], element) == ("1", "550e8400-e29b-41d4-a716-446655440000")
    value = {"big": "9007199254740993", "u": {"a": None, "b": "0xff"}, "m": [["a", "2"], ["b", "1.50"]]}
    assert {name: row[name] for name in value} == value
    rows = [{"pk": 1, "l": ["550e8400-e29b-41d4-a716-446655440000"]} | value]
    assert answer.json["tables"] == {"ks.t": {"base": rows, "replayed": rows, "missing": []}}


def test_the_text_output(cli: Cli, script: Path) -> None:
    """The text has a table per statement without empty columns, and the tables at the end."""
    answer = cli("--clock", NOW, "cql", "run", script)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert "3  INSERT INTO ks.t" in answer.stdout
    assert "cdc$operation" in answer.stdout
    assert "cdc$ttl" not in answer.stdout
    assert "rebuilt from its log: the same" in answer.stdout


def test_a_refused_write_is_reported(cli: Cli, tmp_path: Path) -> None:
    """The reason is below the statement, and the exit code is 1."""
    (tmp_path / "s.cql").write_text(
        """CREATE TABLE ks.t (pk int PRIMARY KEY) WITH cdc = {'enabled': true};
        INSERT INTO ks.t (pk) VALUES (1) USING TIMESTAMP 1"""
    )
    answer = cli("--clock", NOW, "cql", "run", tmp_path / "s.cql")
    assert answer.exit_code == 1
    assert "refused: write timestamp 1970-01-01T00:00:00.000001Z is from the past" in answer.stdout
    assert "ks.t: no rows" in answer.stdout


def test_rows_with_a_ttl_cause_a_warning(cli: Cli, tmp_path: Path) -> None:
    """A warning covers TTLs of statements and tables; a script without a TTL has none."""
    file = tmp_path / "s.cql"
    table_with_ttl = PLAIN.replace("ks.t", "ks.u").replace("WITH", "WITH default_time_to_live = 60 AND")
    text = f"{PLAIN} {table_with_ttl} INSERT INTO ks.t (pk) VALUES (1) USING TTL 60; INSERT INTO ks.u (pk) VALUES (1);"
    file.write_text(f"{text} INSERT INTO ks.t (pk) VALUES (2);")
    answer = cli("--clock", NOW, "cql", "run", file, "--json")
    (note,) = answer.json["notes"]
    assert note.startswith("2 log rows have a TTL: ")
    assert answer.stderr == f"warning: {note} [row-ttl]\n"
    file.write_text(f"{PLAIN} INSERT INTO ks.t (pk) VALUES (2);")
    assert cli("--clock", NOW, "cql", "run", file, "--json").json["notes"] == []


def test_exit_codes(cli: Cli, tmp_path: Path) -> None:
    """1 for a skipped statement, 2 for a wrong one; each is marked and counted by kind."""
    file = tmp_path / "s.cql"
    file.write_text(f"{PLAIN} CREATE INDEX ON ks.t (v); INSERT INTO ks.t (pk) VALUES (1);")
    answer = cli("--clock", NOW, "cql", "run", file, "--json")
    assert answer.exit_code == 1
    marks = [
        (statement["kind"], statement["outcome"], statement["accepted"]) for statement in answer.json["statements"]
    ]
    assert marks == [
        ("CREATE TABLE", "done", True), ("CREATE INDEX", "passed over", False), ("INSERT", "done", True),
    ]  # fmt: skip
    assert answer.json["summary"]["passed over"] == {"CREATE INDEX": 1}
    printed = cli("--clock", NOW, "cql", "run", file)
    assert printed.exit_code == 1
    assert "passed over: an index is derived from" in printed.stdout
    assert "CREATE INDEX   passed over" in printed.stdout
    strict = cli("--clock", NOW, "cql", "run", file, "--strict")
    assert (strict.exit_code, strict.stdout) == (2, "")
    assert "line 1, column 84: found 'INDEX'; expected" in strict.stderr
    file.write_text(f"{PLAIN} CREATE INDEX ON ks.t (v); COPY ks.t FROM 'x.csv'; INSERT INTO ks.t (pk) VALUES (1);")
    wrong = cli("--clock", NOW, "cql", "run", file, "--json")
    assert wrong.exit_code == 2
    assert [statement["outcome"] for statement in wrong.json["statements"]] == ["done", "passed over", "wrong", "done"]
    assert "statement 3 (line 1): COPY FROM is not done" in wrong.stderr


def test_the_result_of_a_conditional_write(cli: Cli, tmp_path: Path) -> None:
    """The JSON and the text have the result; a write that is not applied has exit code 0."""
    file = tmp_path / "s.cql"
    file.write_text(f"{PLAIN} INSERT INTO ks.t (pk, v) VALUES (1, 2); UPDATE ks.t SET v = 3 WHERE pk = 1 IF v = 1;")
    answer = cli("--clock", NOW, "cql", "run", file, "--json")
    assert answer.exit_code == 0
    last = answer.json["statements"][-1]
    assert (last["outcome"], last["accepted"], last["rows"]) == ("not applied", False, [])
    assert last["result"] == [{"[applied]": False, "v": 2}]
    printed = cli("--clock", NOW, "cql", "run", file)
    assert "\n [applied]   v\n" in printed.stdout
    assert "not applied: a condition of IF does not hold" in printed.stdout


def test_definitions_are_stored_without_spark(tmp_path: Path) -> None:
    """A script that writes no rows starts no JVM; the next script finds its table."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "s.cql").write_text("CREATE TABLE ks.t (pk int PRIMARY KEY, v text) WITH cdc = {'enabled': true};")
    assert run("--home", home, "cql", "run", tmp_path / "s.cql", "--apply", "--json").exit_code == 0
    assert (home / "lake" / "ks" / "t_scylla_cdc_log").is_dir()
    second = run("--home", home, "cql", "run", tmp_path / "s.cql", "--apply")
    assert (second.exit_code, second.stdout) == (2, "")
    assert "table ks.t exists already" in second.stderr
    (tmp_path / "s.cql").write_text("ALTER TABLE ks.t ADD w int;")
    (altered,) = run("--home", home, "cql", "run", tmp_path / "s.cql", "--json").json["statements"]
    assert list(altered["log_columns"])[-4:] == ["v", "cdc$deleted_v", "w", "cdc$deleted_w"]


def test_a_rehearsal_loads_no_spark(seeded_home: Path, script: Path) -> None:
    """Neither PySpark nor Dagster is imported without --apply."""
    code = (
        "import sys, json; from cdc_platform.cli.main import program\n"
        f"try: program.main(['--home', {str(seeded_home)!r}, '--clock', {NOW!r}, 'log', {str(script)!r}])\n"
        "except SystemExit: print(json.dumps(sorted({'pyspark', 'dagster'} & set(sys.modules))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout.splitlines()[-1]) == []


def test_a_spooled_document_equals_one_in_memory() -> None:
    """Spooled statements are written exactly like a document in memory."""
    values = [{"a": [1, {"b": "é\u2028\x07"}], "n": "9" * 20}, {}, []]
    spooled = SpooledList()
    for value in values:
        spooled.append(value)
    for spooled_list, in_memory in ((spooled, values), (SpooledList(), [])):
        assert "".join(iterate_document_text({"x": spooled_list, "y": {"z": [1]}})) == to_json(
            {"x": in_memory, "y": {"z": [1]}}, indent=2
        )


def test_the_first_statements_are_shown_and_those_that_failed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a long script, people see the first statements and those that failed."""
    monkeypatch.setattr("cdc_platform.cli.cql._MAX_STATEMENTS", 2)
    file = tmp_path / "long.cql"
    file.write_text(f"{PLAIN} {'INSERT INTO ks.t (pk) VALUES (1);' * 3} GRANT ALL ON ks.t TO x;", encoding="utf-8")
    answer = cli("--clock", NOW, "cql", "run", file)
    assert [line.split()[0] for line in answer.stdout.splitlines() if line[:1].isdigit()] == ["1", "2", "5"]
    assert "2 more statements are not shown" in answer.stderr
