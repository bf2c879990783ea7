"""A home with all that consumers encounter: a V1 rewrite, three joins, a tablet split, and changes throughout."""

from __future__ import annotations

import json
from pathlib import Path

from support.command_line import run
from support.homes.v1_tables import nodes, old_cluster
from support.nodes import node_fields

from cdc_platform.clock import MINUTE_MS, Clock, Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location

TABLE, OF_TABLETS = "exported_shop.orders", "exported_stock.items"
CHANGES = 12
"""Changes of each table between two events."""
_KEYSPACES = """
CREATE KEYSPACE exported_shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE KEYSPACE exported_stock WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}
    AND tablets = {'enabled': true, 'initial': 2};
"""
_TABLE = """
CREATE TABLE {table} (p int, k int, v int, tags set<text>, PRIMARY KEY (p, k))
    WITH cdc = {{'enabled': 'true', 'ttl': '86400'}};
"""


def eventful(folder: Path) -> Path:
    """Create the home; it begins forty minutes ago, and its last change is one minute old."""
    home = folder / "home"
    begun = Milliseconds(Clock().now_ms() - 40 * MINUTE_MS)
    lake = Lake(open_home_location(home).lake)
    members = nodes(2, tokens=2)
    old_cluster(lake, [begun], members=members, tables=())
    _statements(home, folder, begun + MINUTE_MS, _KEYSPACES + _TABLE.format(table=TABLE))
    _write(home, folder, begun + 2 * MINUTE_MS, TABLE)
    _run(home, begun + 4 * MINUTE_MS, "rewrite")
    _run(home, begun + 5 * MINUTE_MS, "tablets", "create", OF_TABLETS, "--count", "2")
    _statements(home, folder, begun + 5 * MINUTE_MS, _TABLE.format(table=OF_TABLETS))
    _write(home, folder, begun + 7 * MINUTE_MS, OF_TABLETS)
    _run(home, begun + 9 * MINUTE_MS, "tablets", "split", OF_TABLETS, "--count", "4")
    _write(home, folder, begun + 11 * MINUTE_MS, OF_TABLETS)
    for number in (1, 2, 3):
        at = begun + (4 + 7 * number) * MINUTE_MS
        tokens = [number * 1_111_111_111_111_111_111, -number * 2_222_222_222_222_222_222]
        fields = node_fields(number + 10, tokens=tokens, features=["CDC_GENERATIONS_V2"])
        file = folder / f"node{number}.json"
        file.write_text(json.dumps(fields), encoding="utf-8")
        _run(home, at, "bootstrap", str(file), "--run")
        _write(home, folder, at + 3 * MINUTE_MS, TABLE)
    return home


def _write(home: Path, folder: Path, at: int, table: str) -> None:
    """Write single rows, batches and deletions, each at its own time, from a minute before to a minute after `at`."""
    lines = []
    for number in range(CHANGES):
        when = (at + (number - CHANGES // 2) * 5_000) * 1_000
        key = f"p = {number % 5} AND k = {number}"
        if number % 3 == 2:
            lines.append(f"DELETE FROM {table} USING TIMESTAMP {when} WHERE {key};")
            continue
        row = f"INSERT INTO {table} (p, k, v, tags) VALUES ({number % 5}, {number}, {number}, {{'a', 't{number}'}})"
        lines.append(f"{row} USING TIMESTAMP {when};")
    _statements(home, folder, at + MINUTE_MS, "\n".join(lines))


def _statements(home: Path, folder: Path, at: int, text: str) -> None:
    file = folder / "statements.cql"
    file.write_text(text, encoding="utf-8")
    _run(home, at, "cql", "run", str(file), "--apply")


def _run(home: Path, at: int, *words: str) -> None:
    answer = run("--home", home, "--clock", format_ms(Milliseconds(at)), *words)
    assert answer.exit_code == 0, (words, answer.stdout, answer.stderr)
