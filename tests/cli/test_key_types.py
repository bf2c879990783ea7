"""Keys of every type, as partition keys and clustering columns, in each command that prints or reads keys.

The statements and the rows of SELECT JSON follow ScyllaDB's formats and are written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Answer, run
from support.files.export_files import ID
from support.homes.imported import home_with_generations

from cdc_platform.clock import parse_time_ms
from cdc_platform.cql.types import SCALAR_TYPES

SINCE, NOW, END = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-02T01:00:00Z"
TIME = "8a1f5e00-e76e-11f0-8a18-72d0d745d1db"


@dataclass(frozen=True)
class Key:
    """A key: its CQL constant, its form in SELECT JSON, and its form for `--pk` if that differs."""

    constant: str
    shown: str
    typed: str | None = None


KEYS: dict[str, tuple[Key, ...]] = {
    "ascii": (Key("'a b'", '"a b"', "a b"), Key("'o''clock'", '"o\'clock"', "o'clock")),
    "bigint": (Key("-9223372036854775808", "-9223372036854775808"), Key("9007199254740993", "9007199254740993")),
    "blob": (Key("0x00ff", '"0x00ff"'), Key("0x2c22277c", '"0x2c22277c"')),
    "boolean": (Key("true", "true"), Key("false", "false")),
    "date": (Key("'2026-01-01'", '"2026-01-01"', "2026-01-01"), Key("'1969-12-31'", '"1969-12-31"')),
    "decimal": (Key("1.50", "1.50"), Key("-1E-10", "-1E-10"), Key("1E+5", "1E+5")),
    "double": (Key("0.1", "0.1"), Key("-0.0", "-0.0"), Key("NaN", '"NaN"'), Key("1e300", "1e300")),
    "float": (Key("1.1", "1.1"), Key("1e-10", "1e-10"), Key("-Infinity", '"-Infinity"')),
    "inet": (Key("'10.0.0.1'", '"10.0.0.1"', "10.0.0.1"), Key("'2001:db8::1'", '"2001:db8::1"', "2001:db8::1")),
    "int": (Key("-1", "-1"), Key("2147483647", "2147483647")),
    "smallint": (Key("-32768", "-32768"), Key("7", "7")),
    "text": (
        Key("'ü€𐍈 \"quoted\", a=b; -- {x}'", json.dumps('ü€𐍈 "quoted", a=b; -- {x}')),
        Key("'a\\b|c\nd'", json.dumps("a\\b|c\nd")),
        Key("'select'", '"select"', "select"),
    ),
    "time": (
        Key("'02:30:00'", '"02:30:00.000000000"', "02:30:00"),
        Key("'23:59:59.999999999'", '"23:59:59.999999999"'),
    ),
    "timestamp": (
        Key("'2026-01-01T00:00:00.5Z'", '"2026-01-01 00:00:00.500Z"', "2026-01-01T00:00:00.5Z"),
        Key("-1", '"1969-12-31 23:59:59.999Z"'),
        Key("4611686018427387904", "4611686018427387904"),
    ),
    "timeuuid": (Key(TIME, f'"{TIME}"'), Key(TIME.replace("8a18", "ff18"), f'"{TIME.replace("8a18", "ff18")}"')),
    "tinyint": (Key("-128", "-128"), Key("127", "127")),
    "uuid": (Key("11111111-1111-1111-1111-111111111111", '"11111111-1111-1111-1111-111111111111"'), Key(ID, f'"{ID}"')),
    "varint": (Key(f"1{'0' * 40}", f"1{'0' * 40}"), Key("-3", "-3")),
    "frozen<list<decimal>>": (Key("[1.10, 2]", "[1.10, 2]"), Key("[]", "[]")),
    "frozen<set<text>>": (Key("{'b', 'a b'}", '["a b", "b"]'), Key("{}", "[]")),
    "frozen<map<int, uuid>>": (Key(f"{{2: {ID}, 1: {ID}}}", f'{{"1": "{ID}", "2": "{ID}"}}'),),
    "frozen<tuple<int, text, blob>>": (
        Key("(1, null, 0x00)", '[1, null, "0x00"]'),
        Key("(2, 'a', null)", '[2, "a", null]'),
    ),
    'frozen<"Kw">': (
        Key("{\"Select\": 1, b: 'x'}", '{"Select": 1, "b": "x"}'),
        Key("{b: 'y'}", '{"Select": null, "b": "y"}'),
    ),
    "frozen<vector<float, 2>>": (Key("[0.5, -1.5]", "[0.5, -1.5]"),),
}
NO_KEYS = {"counter", "duration"}
KINDS = list(KEYS)
NAMES = {kind: f"t{number}" for number, kind in enumerate(KINDS)}


def test_every_key_type_is_listed() -> None:
    """A new type needs its keys here."""
    assert {kind for kind in KEYS if "<" not in kind} == set(SCALAR_TYPES) - NO_KEYS


def statements() -> Iterator[str]:
    """Yield statements for two tables per type, with a row for each key."""
    yield "CREATE KEYSPACE ks;"
    yield 'CREATE TYPE ks."Kw" ("Select" int, b text);'
    for number, (kind, keys) in enumerate(KEYS.items()):
        order = "DESC" if number % 2 else "ASC"
        name = NAMES[kind]
        yield f"CREATE TABLE ks.p{name} (k {kind} PRIMARY KEY, v int) WITH cdc = {{'enabled': true}};"
        yield (
            f'CREATE TABLE ks.c{name} (p int, "K" {kind}, v int, PRIMARY KEY (p, "K"))'
            f" WITH cdc = {{'enabled': true}} AND CLUSTERING ORDER BY (\"K\" {order});"
        )
        for value, key in enumerate(keys):
            yield f"INSERT INTO ks.p{name} (k, v) VALUES ({key.constant}, {value});"
            yield f'INSERT INTO ks.c{name} (p, "K", v) VALUES (1, {key.constant}, {value});'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with all tables, each read by a consumer."""
    folder = tmp_path_factory.mktemp("keys")
    home_with_tables = home_with_generations(folder, {ID: parse_time_ms(SINCE)})
    script = folder / "keys.cql"
    script.write_text("\n".join(statements()), encoding="utf-8")
    answer = run("--home", home_with_tables, "--clock", NOW, "cql", "run", script, "--apply", "--json")
    assert answer.exit_code == 0, answer
    tables = answer.json["tables"]
    assert len(tables) == 2 * len(KEYS)
    for kind, keys in KEYS.items():
        for table in (f"ks.p{NAMES[kind]}", f"ks.c{NAMES[kind]}"):
            assert len(tables[table]["base"]) == len(keys), kind
            assert tables[table]["replayed"] == tables[table]["base"], kind
            consumed = run("--home", home_with_tables, "--clock", END, "consume", table, "--name", "audit")
            assert consumed.exit_code == 0, consumed
    return home_with_tables


def run_later(home: Path, *words: object) -> Answer:
    """Return the answer of a command an hour later."""
    return run("--home", home, "--clock", END, *map(str, words))


def expected_rows(kind: str, clustered: bool) -> list[str]:
    """Return the rows of a table in the form of SELECT JSON."""
    head = '"p": 1, "\\"K\\"": ' if clustered else '"k": '
    return [f'{{{head}{key.shown}, "v": {value}}}' for value, key in enumerate(KEYS[kind])]


@pytest.mark.grid("keys of every type compared", 12)
@pytest.mark.parametrize("clustered", [False, True], ids=["partition", "clustering"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_base_table_is_compared_by_its_keys(home: Path, kind: str, clustered: bool, tmp_path: Path) -> None:
    """The log matches the base table; a missing row and a row with another value are found and named."""
    table, file = f"ks.{'c' if clustered else 'p'}{NAMES[kind]}", tmp_path / "base.txt"
    rows = expected_rows(kind, clustered)

    def complete(lines: list[str]) -> Answer:
        file.write_text("\n".join(["", " [json]", "---", *lines, "", f"({len(lines)} rows)", ""]), encoding="utf-8")
        command = ("verify-interval", SINCE, "2026-01-02T00:30:00Z", "--consumer", "audit", "--table", table)
        return run_later(home, *command, "--base", file, "--json")

    answer = complete(rows)
    assert (answer.exit_code, answer.json["verified"]) == (0, True), answer
    for lines, message in (
        (rows[1:], "1 rows of the log are missing"),
        ([rows[0].replace('"v": 0', '"v": 9'), *rows[1:]], "1 have other values"),
    ):
        answer = complete(lines)
        (wrong,) = [result for result in answer.json["checks"] if not result["passed"]]
        assert answer.exit_code == 1
        assert message in wrong["detail"]
        assert f'"{"K" if clustered else "k"}": ' in wrong["detail"].partition("key ")[2]


@pytest.mark.grid("keys of every type explained", 12)
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_is_explained_with_the_stream_of_its_rows(home: Path, kind: str) -> None:
    """`explain --pk` names the stream in which the log has the row of that constant."""
    table = f"ks.p{NAMES[kind]}"
    query = f'SELECT v, "cdc$stream_id" AS stream FROM {table}_scylla_cdc_log'
    streams = {row["v"]: row["stream"] for row in run_later(home, "sql", query, "--json").rows}
    for value, key in enumerate(KEYS[kind]):
        for typed in {key.constant, key.typed or key.constant}:
            answer = run_later(
                home, "explain", "--pk", typed, "--table", table, "--at", NOW, "--policy", "recent-past", "--json"
            )
            assert answer.json["stream_id"] == streams[value], (typed, answer)


@pytest.mark.grid("keys of every type shown", 8)
@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_printed_and_matched(home: Path, kind: str, tmp_path: Path) -> None:
    """`sql` prints keys in every form, and further writes match existing rows without duplicates."""
    for table in (f"ks.p{NAMES[kind]}", f"ks.c{NAMES[kind]}"):
        for suffix in ("scylla_cdc_log", "scylla_cdc_log_audit"):
            for form in ((), ("--json",), ("--csv",)):
                answer = run_later(home, "sql", f"SELECT * FROM {table}_{suffix}", *form)
                assert answer.exit_code == 0, answer
        column = '"K"' if "c" in table[3] else "k"
        where = "p = 1 AND " if "c" in table[3] else ""
        script = tmp_path / f"{table}.cql"
        writes = [f"UPDATE {table} SET v = 7 WHERE {where}{column} = {key.constant};" for key in KEYS[kind]]
        script.write_text("\n".join(writes), encoding="utf-8")
        answer = run_later(home, "cql", "run", script, "--json")
        assert answer.exit_code == 0, answer
        result: dict[str, Any] = answer.json["tables"][table]
        assert [row["v"] for row in result["base"]] == [7] * len(KEYS[kind])
        assert result["replayed"] == result["base"]
        assert run_later(home, "cql", "run", script).exit_code == 0


def test_the_home_is_exported_and_passes_its_checks(home: Path, tmp_path: Path) -> None:
    """Each exported log has all of its rows, and every row equals its commit."""
    answer = run_later(home, "export", tmp_path / "exported", "--json")
    assert answer.exit_code == 0, answer
    rows = {file["name"]: file["rows"] for file in answer.json["files"]}
    for kind, keys in KEYS.items():
        for table in (f"ks.p{NAMES[kind]}", f"ks.c{NAMES[kind]}"):
            assert rows[f"logs/{table}_scylla_cdc_log.csv"] == len(keys)
    results = run_later(home, "check", "--deep", "--json")
    assert [line["invariant"] for line in results.rows if line["passed"] is False] == []
