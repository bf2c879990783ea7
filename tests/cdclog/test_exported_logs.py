"""Logs as files: they have the dialect of cqlsh and the values of the log, and the same home gives the same bytes."""

from __future__ import annotations

import csv
from pathlib import Path

from support.command_line import run

SCRIPT = """
CREATE KEYSPACE exports WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TYPE exports.place (street text, number int);
CREATE TABLE exports.t (p text, k int, words list<text>, m map<text, int>, home frozen<place>, pair tuple<int, text>,
    b blob, note text, d date, at timestamp, f double, PRIMARY KEY (p, k))
    WITH cdc = {'enabled': 'true', 'ttl': '0'} AND CLUSTERING ORDER BY (k DESC);
INSERT INTO exports.t (p, k, m, home, pair, b, d, at, f) VALUES
    ('say "no", \\', 1, {'it''s': 1}, {street: 'a, b', number: null}, (null, 'x'), 0x00ff, '2026-01-31',
     '2026-01-31T12:00:00.123Z', NaN) USING TIMESTAMP 1769860000000000;
INSERT INTO exports.t (p, k, note, d, at) VALUES ('q', 2, '', '20000-01-01', '20000-01-01T00:00:00Z')
    USING TIMESTAMP 1769860000000001;
"""


def test_exported_values_are_readable_by_cqlsh(tmp_path: Path) -> None:
    """Quotes, commas, nested nulls, empty texts and far dates are exported; two exports are equal byte by byte."""
    home, script = tmp_path / "home", tmp_path / "script.cql"
    script.write_text(SCRIPT, encoding="utf-8")
    node = tmp_path / "node.json"
    node.write_text(NODE, encoding="utf-8")
    early = ("--clock", "2026-01-31T11:00:00Z")
    assert run("--home", home, *early, "bootstrap", node, "--run").exit_code == 0
    applied = run("--home", home, "--clock", "2026-01-31T12:00:00Z", "cql", "run", script, "--apply")
    assert applied.exit_code == 0, applied.stdout + applied.stderr
    for name in ("one", "two"):
        exported = run("--home", home, "export", tmp_path / name, "--json")
        assert exported.exit_code == 0, exported.stderr
    first_files, second_files = (contents(tmp_path / name) for name in ("one", "two"))
    assert first_files == second_files
    name = "logs/exports.t_scylla_cdc_log.csv"
    assert {file_row["name"]: file_row["rows"] for file_row in exported.json["files"]}[name] == 2
    # cqlsh's dialect has a backslash before a quote.
    lines = (tmp_path / "one" / name).read_text(encoding="utf-8").splitlines()
    first, second = csv.DictReader(lines, doublequote=False, escapechar="\\")
    assert first["p"] == 'say "no", \\'
    assert {column: first[column] for column in ("k", "m", "home", "pair", "b", "d", "f", "words")} == {
        "k": "1",
        "m": "{'it''s': 1}",
        "home": "{street: 'a, b', number: <null>}",
        "pair": "(<null>, 'x')",
        "b": "0x00ff",
        "d": "2026-01-31",
        "f": "NaN",
        "words": "<null>",
    }
    assert (first["at"], second["at"]) == ("1769860800123", "568971820800000")
    assert (second["note"], second["m"], second["cdc$operation"], second["cdc$end_of_batch"]) == (
        "",
        "<null>",
        "2",
        "True",
    )
    assert list(first)[:3] == ["cdc$stream_id", "cdc$time", "cdc$batch_seq_no"]
    assert list(first)[3:] == sorted(list(first)[3:])
    definitions = (tmp_path / "one" / "logs" / "tables.cql").read_text(encoding="utf-8").splitlines()
    assert [line.split("(")[0] for line in definitions] == [
        "CREATE TYPE IF NOT EXISTS exports.place ",
        "CREATE TABLE IF NOT EXISTS exports.t ",
        "CREATE TABLE IF NOT EXISTS exports.t_scylla_cdc_log ",
    ]
    assert "cdc" not in definitions[1]
    load_statements = (tmp_path / "one" / "load.cql").read_text(encoding="utf-8").splitlines()
    assert load_statements[0].startswith(
        'COPY exports.t_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", '
    )
    assert load_statements[0].endswith(f"FROM '{name}' WITH HEADER = true AND NULL = '<null>';")
    imported = run("--home", tmp_path / "other", "import", tmp_path / "one")
    assert imported.exit_code == 0, imported.stderr
    assert run("--home", tmp_path / "other", "tables", "--json").rows == []


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of every file below a folder."""
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


NODE = """{"host_id": "00000000-0000-0000-0000-00000000000a", "address": "10.0.0.1", "datacenter": "dc1", "rack": "r1",
"tokens": [1, 2000], "shard_count": 2, "ignore_msb": 12}"""
