"""ScyllaDB's own cqlsh loads the files of `export`, and the server then has the same rows as the home."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.homes.exported import eventful
from support.standin.cluster import StandIn

from cdc_platform.cdclog import StoredLog, list_stored_logs
from cdc_platform.clock import Clock, Milliseconds, format_ms, ms_from_datetime
from cdc_platform.cql import quote_name
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.importing import LOAD_SCRIPT_FILE
from cdc_platform.importing.export import LOADED_TABLES

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(600)]

KEYSPACES = ("exported_shop", "exported_stock", "exported_odd")
ODD = "exported_odd.told"
ODD_DDL = """
CREATE KEYSPACE exported_odd WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TYPE exported_odd.pair (a int, "B" text);
CREATE TABLE exported_odd.told (
    p text, k int, t text, b blob, n varint, d decimal, f double, u uuid, day date, hour time, at timestamp, o boolean,
    i inet, m map<text, text>, s set<text>, l list<text>, x frozen<pair>, y pair,
    z frozen<tuple<int, text>>, PRIMARY KEY (p, k)
) WITH cdc = {'enabled': 'true', 'ttl': '86400'};
"""
TEXTS = (
    *("plain", "", " ", " a", "a ", "it's", "'a'", "'a", "a'", 'a "quoted" one', "a,b", "tab\there", "'", "''"),
    *("\\", "\\n", '\\\\\\"', '\\"', "ends with \\", '"', '""', "<null>-", "NULL", "null", "{a: 1}", "[1]", "(1)"),
    *("0x00", "%", "é", "日本", "🙂", "# no comment", "a;b", "1", "true", "NaN"),
)
INSIDE = tuple(text for text in TEXTS if "\\" not in text)
"""Texts for collections, in which some versions of cqlsh misread a backslash."""


def literal(text: str) -> str:
    """Return a text as a CQL literal."""
    return "'" + text.replace("'", "''") + "'"


def statements() -> str:
    """Return statements with each odd text as key, value, in collections and in user types; extreme numbers; nulls."""
    lines = []
    for number, text in enumerate(TEXTS):
        value, other = literal(text), literal(INSIDE[-1 - number % len(INSIDE)])
        key = literal(INSIDE[number % len(INSIDE)])
        columns = "p, k, t, m, s, l, x, y, z"
        values = (
            f"{literal(text or 'e')}, {number}, {value}, {{{key}: {other}}}, {{{key}, {other}}}, [{key}, {other}],"
            f' {{a: 1, "B": {key}}}, {{a: 2, "B": {key}}}, (1, {key})'
        )
        lines.append(f"INSERT INTO {ODD} ({columns}) VALUES ({values});")
    plain = "p, k, b, n, d, f, u, day, hour, at, o, i"
    lines += [
        f"INSERT INTO {ODD} ({plain}) VALUES ('n', 1, 0x00ff, {10**40}, 1.50, -0.1, {UUID}, '2026-02-28',"
        f" '23:59:59.999999999', {AT}, true, '127.0.0.1');",
        f"INSERT INTO {ODD} ({plain}) VALUES ('n', 2, 0x, -{10**40}, -1e-9, NaN, {UUID}, '1970-01-01', '00:00:00', 0,"
        " false, '::1');",
        f"INSERT INTO {ODD} ({plain}) VALUES ('n', 3, null, 0, 0, Infinity, null, '9999-12-31', null, -1, null, null);",
        f"DELETE t, m FROM {ODD} WHERE p = 'plain' AND k = 0;",
        f"UPDATE {ODD} SET l = l + ['x'], s = s - {{'a,b'}}, y.a = 3 WHERE p = 'a,b' AND k = 5;",
        f"DELETE FROM {ODD} WHERE p = 'n' AND k > 1;",
    ]  # fmt: skip
    return "\n".join(lines)


UUID, AT = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de003", 1_790_000_000_123


BREAKS = (("t", "'a\nb'"), ("s", "{'a\r'}"), ("m", "{'a': 'b\r\n'}"), ("l", "['\\']"), ("t", "'\\'"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with all kinds of generations, two plain logs, and one log of odd values."""
    folder = tmp_path_factory.mktemp("copied")
    path = eventful(folder)
    for text in (ODD_DDL, statements()):
        (folder / "odd.cql").write_text(text, encoding="utf-8")
        at = format_ms(Milliseconds(Clock().now_ms()))
        answer = run("--home", path, "--clock", at, "cql", "run", folder / "odd.cql", "--apply")
        assert answer.exit_code == 0, answer.stderr
    return path


@pytest.fixture
def loaded(standin: StandIn, home: Path, tmp_path: Path) -> Iterator[Path]:
    """The exported folder after cqlsh has loaded all of it into the stand-in's server."""
    for table in LOADED_TABLES:
        standin.world.run(f"TRUNCATE {server_name(table.full_name)}")
    answer = run("--home", home, "export", tmp_path / "out")
    assert answer.exit_code == 0, answer.stderr
    out = tmp_path / "out"
    for keyspace in KEYSPACES:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        standin.world.run(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}")
    # The server has ScyllaDB's tables under other names; only those are changed.
    script = out / LOAD_SCRIPT_FILE
    script.write_text("".join(rename_copy(line) for line in script.read_text().splitlines(keepends=True)))
    for file in (out / "logs" / "tables.cql", script):
        cqlsh(standin, out, file)
    yield out
    for keyspace in KEYSPACES:
        standin.world.run(f"DROP KEYSPACE {keyspace}")


def server_name(name: str) -> str:
    """Return the name of a table in the stand-in's server."""
    return name.replace("system", "scylla", 1)


def rename_copy(line: str) -> str:
    """Make a COPY load the table that the stand-in's server has instead."""
    return line.replace("COPY system", "COPY scylla", 1)


def cqlsh(standin: StandIn, folder: Path, script: Path) -> None:
    """Run a script with cqlsh."""
    connection = [
        "127.0.0.1",
        str(standin.server.port),
        "-u",
        "cassandra",
        "-p",
        "cassandra",
        "--request-timeout",
        "60",
    ]
    command = [Path(sys.executable).parent / "cqlsh", *connection, "-f", script]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    errors = [line for line in (result.stdout + result.stderr).splitlines() if "rror" in line or "Failed" in line]
    assert not errors


@pytest.mark.long("cqlsh, which starts processes of its own for each table")
def test_loaded_rows_equal_those_of_the_home(standin: StandIn, home: Path, loaded: Path) -> None:
    """Every column of ScyllaDB's own tables and the bytes of every log value are equal."""
    lake = Lake(open_home_location(home).lake)
    compared = 0
    for table in LOADED_TABLES:
        rows = standin.world.far_rows(f"SELECT * FROM {server_name(table.full_name)}")
        loaded_rows = sorted(repr({name: plain(name, row[name]) for name in table.schema.names}) for row in rows)
        expected = [
            {name: plain(name, row[name]) for name in table.schema.names} for row in lake.read(table).to_pylist()
        ]
        assert loaded_rows == sorted(map(repr, expected)), table.full_name
        compared += len(expected)
    assert compared > 20
    logs = {log.schema.keyspace: log for log in list_stored_logs(lake)}
    assert logs.keys() == set(KEYSPACES)
    for log in logs.values():
        names = ", ".join(quote_name(column.name) for column in log.columns)
        rows = standin.world.bytes_of(f"SELECT {names} FROM {log.schema.keyspace}.{log.schema.log_name}")
        types = [column.type for column in log.columns]
        for number, (loaded_row, stored_row) in enumerate(zip(sorted(rows), sorted(as_bytes(log)), strict=True)):
            both = zip(types, log.columns, loaded_row, stored_row, strict=True)
            differences = [(kind.cql, column.name, a, b) for kind, column, a, b in both if a != b]
            assert not differences, (number, differences)


def test_values_that_cqlsh_misreads_cause_a_warning(home: Path, tmp_path: Path) -> None:
    """One line per file has the number of such rows; files without them are not named."""
    copy = tmp_path / "home"
    assert run("home", "copy", home, copy).exit_code == 0
    rows = (f"INSERT INTO {ODD} (p, k, {name}) VALUES ('lines', 1, {value});" for name, value in BREAKS)
    (tmp_path / "more.cql").write_text("\n".join(rows), encoding="utf-8", newline="")
    assert run("--home", copy, "cql", "run", tmp_path / "more.cql", "--apply").exit_code == 0
    answer = run("--home", copy, "export", tmp_path / "out")
    (line,) = answer.stderr.splitlines()
    assert f"logs/{ODD}_scylla_cdc_log.csv has 4 rows with line breaks, or with backslashes in collections" in line
    assert line.endswith("[not-for-cqlsh]")


def as_bytes(log: StoredLog) -> list[tuple[bytes | None, ...]]:
    """Return the serialized values of the lake's log."""
    return [
        tuple(
            None if value is None else column.type.to_bytes(value)
            for column, value in zip(log.columns, row, strict=True)
        )
        for row in log.values()
    ]


def plain(name: str, value: Any) -> Any:
    """Return a value of either side in a comparable form: times in ms, sets in order."""
    if isinstance(value, datetime):
        return ms_from_datetime(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return [plain("", item) for item in value.values()]
    if name == "streams":
        return sorted(value)
    return [plain("", item) for item in value] if isinstance(value, list | tuple) else value
