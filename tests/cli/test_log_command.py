"""`cdc-platform cql run`: what it prints and how it leaves; what statements do is tested in tests/cdclog/script."""

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
    """Statements in order with their rows, tables by name, values as the conventions have them; nothing is written."""
    before = listing(seeded_home)
    answer = cli("--clock", NOW, "cql", "run", script, "--json")
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert listing(seeded_home) == before
    made, table, inserted, dropped = answer.json["statements"]
    assert (made["statement"], made["accepted"], made["reason"], made["rows"]) == (
        "CREATE TYPE ks.ut (a bigint, b blob)", True, None, [],
    )  # fmt: skip
    assert (made["log_columns"], dropped["log_columns"]) == (None, None)
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


def test_what_people_read(cli: Cli, script: Path) -> None:
    """A table a statement without the columns in which nothing is, and the tables at the end."""
    answer = cli("--clock", NOW, "cql", "run", script)
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert "3  INSERT INTO ks.t" in answer.stdout
    assert "cdc$operation" in answer.stdout
    assert "cdc$ttl" not in answer.stdout
    assert "rebuilt from its log: the same" in answer.stdout


def test_a_refused_write_is_told(cli: Cli, tmp_path: Path) -> None:
    """Below its statement, with exit code 1."""
    (tmp_path / "s.cql").write_text(
        """CREATE TABLE ks.t (pk int PRIMARY KEY) WITH cdc = {'enabled': true};
        INSERT INTO ks.t (pk) VALUES (1) USING TIMESTAMP 1"""
    )
    answer = cli("--clock", NOW, "cql", "run", tmp_path / "s.cql")
    assert answer.exit_code == 1
    assert "refused: write timestamp 1970-01-01T00:00:00.000001Z is from the past" in answer.stdout
    assert "ks.t: no rows" in answer.stdout


def test_a_ttl_that_passes_leaves_no_row_and_that_is_said(cli: Cli, tmp_path: Path) -> None:
    """Of the statement's TTL and of the table's; nothing is said of a script without."""
    file = tmp_path / "s.cql"
    mine = PLAIN.replace("ks.t", "ks.u").replace("WITH", "WITH default_time_to_live = 60 AND")
    text = f"{PLAIN} {mine} INSERT INTO ks.t (pk) VALUES (1) USING TTL 60; INSERT INTO ks.u (pk) VALUES (1);"
    file.write_text(f"{text} INSERT INTO ks.t (pk) VALUES (2);")
    answer = cli("--clock", NOW, "cql", "run", file, "--json")
    (note,) = answer.json["notes"]
    assert note.startswith("2 log rows have a TTL: ")
    assert answer.stderr == f"warning: {note} [row-ttl]\n"
    file.write_text(f"{PLAIN} INSERT INTO ks.t (pk) VALUES (2);")
    assert cli("--clock", NOW, "cql", "run", file, "--json").json["notes"] == []


def test_exit_codes(cli: Cli, tmp_path: Path) -> None:
    """1 where a statement was passed over, 2 where one was wrong; each is marked, and counted by kind."""
    file = tmp_path / "s.cql"
    file.write_text(f"{PLAIN} CREATE INDEX ON ks.t (v); INSERT INTO ks.t (pk) VALUES (1);")
    answer = cli("--clock", NOW, "cql", "run", file, "--json")
    assert answer.exit_code == 1
    marks = [(each["kind"], each["outcome"], each["accepted"]) for each in answer.json["statements"]]
    assert marks == [
        ("CREATE TABLE", "done", True), ("CREATE INDEX", "passed over", False), ("INSERT", "done", True),
    ]  # fmt: skip
    assert answer.json["summary"]["passed over"] == {"CREATE INDEX": 1}
    shown = cli("--clock", NOW, "cql", "run", file)
    assert shown.exit_code == 1
    assert "passed over: an index is derived from" in shown.stdout
    assert "CREATE INDEX   passed over" in shown.stdout
    strict = cli("--clock", NOW, "cql", "run", file, "--strict")
    assert (strict.exit_code, strict.stdout) == (2, "")
    assert "line 1, column 84: found 'INDEX'; expected" in strict.stderr
    file.write_text(f"{PLAIN} CREATE INDEX ON ks.t (v); COPY ks.t FROM 'x.csv'; INSERT INTO ks.t (pk) VALUES (1);")
    wrong = cli("--clock", NOW, "cql", "run", file, "--json")
    assert wrong.exit_code == 2
    assert [each["outcome"] for each in wrong.json["statements"]] == ["done", "passed over", "wrong", "done"]
    assert "statement 3 (line 1): COPY FROM is not done" in wrong.stderr


def test_what_the_client_of_a_transaction_gets(cli: Cli, tmp_path: Path) -> None:
    """In the document and for people; one that is not applied leaves exit code 0."""
    file = tmp_path / "s.cql"
    file.write_text(f"{PLAIN} INSERT INTO ks.t (pk, v) VALUES (1, 2); UPDATE ks.t SET v = 3 WHERE pk = 1 IF v = 1;")
    answer = cli("--clock", NOW, "cql", "run", file, "--json")
    assert answer.exit_code == 0
    last = answer.json["statements"][-1]
    assert (last["outcome"], last["accepted"], last["rows"]) == ("not applied", False, [])
    assert last["result"] == [{"[applied]": False, "v": 2}]
    shown = cli("--clock", NOW, "cql", "run", file)
    assert "\n [applied]   v\n" in shown.stdout
    assert "not applied: a condition of IF does not hold" in shown.stdout


def test_definitions_are_kept_without_spark(tmp_path: Path) -> None:
    """A script that writes no rows starts no JVM; the next one finds its table."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "s.cql").write_text("CREATE TABLE ks.t (pk int PRIMARY KEY, v text) WITH cdc = {'enabled': true};")
    assert run("--home", home, "cql", "run", tmp_path / "s.cql", "--apply", "--json").exit_code == 0
    assert (home / "lake" / "ks" / "t_scylla_cdc_log").is_dir()
    again = run("--home", home, "cql", "run", tmp_path / "s.cql", "--apply")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "table ks.t exists already" in again.stderr
    (tmp_path / "s.cql").write_text("ALTER TABLE ks.t ADD w int;")
    (altered,) = run("--home", home, "cql", "run", tmp_path / "s.cql", "--json").json["statements"]
    assert list(altered["log_columns"])[-4:] == ["v", "cdc$deleted_v", "w", "cdc$deleted_w"]


def test_a_rehearsal_loads_no_spark(seeded_home: Path, script: Path) -> None:
    """Neither PySpark nor Dagster is imported for it."""
    code = (
        "import sys, json; from cdc_platform.cli.main import program\n"
        f"try: program.main(['--home', {str(seeded_home)!r}, '--clock', {NOW!r}, 'log', {str(script)!r}])\n"
        "except SystemExit: print(json.dumps(sorted({'pyspark', 'dagster'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_document_of_many_statements_is_the_same_text() -> None:
    """Statements that wait in a file are written as a document in memory is."""
    values = [{"a": [1, {"b": "é\u2028\x07"}], "n": "9" * 20}, {}, []]
    spooled = SpooledList()
    for each in values:
        spooled.append(each)
    for given, held in ((spooled, values), (SpooledList(), [])):
        assert "".join(iterate_document_text({"x": given, "y": {"z": [1]}})) == to_json(
            {"x": held, "y": {"z": [1]}}, indent=2
        )


def test_the_first_statements_are_shown_and_those_that_failed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of long scripts people see the begin, and behind it what was not done."""
    monkeypatch.setattr("cdc_platform.cli.cql._MAX_STATEMENTS", 2)
    file = tmp_path / "long.cql"
    file.write_text(f"{PLAIN} {'INSERT INTO ks.t (pk) VALUES (1);' * 3} GRANT ALL ON ks.t TO x;", encoding="utf-8")
    answer = cli("--clock", NOW, "cql", "run", file)
    assert [line.split()[0] for line in answer.stdout.splitlines() if line[:1].isdigit()] == ["1", "2", "5"]
    assert "2 more statements are not shown" in answer.stderr
