"""Run every command that needs no live cluster on a home in which it has work to do."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from support.command_line import Answer, paths_of, run
from support.files.export_files import SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv
from support.homes.expiring import iso
from support.homes.questions import HOME, home_for
from support.homes.timelines import FIRST_MS
from support.nodes import node_text
from support.worlds.switch_lake import NOON_MS, host, switching

from cdc_platform.cli import program
from cdc_platform.clock import DAY_MS, MINUTE_MS, SECOND_MS, Milliseconds
from cdc_platform.delta import Lake, list_stored_tables
from cdc_platform.home_location import open_home_location
from cdc_platform.tables import Table

_SCRIPT = """
CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TABLE shop.orders (id int PRIMARY KEY, total int) WITH cdc = {'enabled': true};
INSERT INTO shop.orders (id, total) VALUES (1, 9);
"""
AT_MS = Milliseconds(FIRST_MS + DAY_MS)
LATER_MS = Milliseconds(1_785_000_000_000)
SOON_MS, OVERDUE_MS = Milliseconds(NOON_MS + SECOND_MS), Milliseconds(NOON_MS + MINUTE_MS)
SWITCHING = "a switch of three nodes"
KEPT = ("cql run {files}/orders.cql --apply",)
READ = (*KEPT, "consume shop.orders --name audit")
ACKS = tuple(f"switch ack {{generation}} --node {host(number)}" for number in (1, 2, 3))


@dataclass(frozen=True)
class Asked:
    """A command on a home of `homes.questions` or on `SWITCHING`, at a time, after other commands.

    `{files}` is the command's own folder, `{home}` the home's name, `{generation}` the generation of a switch.
    """

    home: str
    line: str
    ms: Milliseconds = AT_MS
    behind: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.line


CASES = [
    Asked("empty cluster", "bootstrap {files}/node.json --run"),
    Asked("empty cluster", "bootstrap {files}/node.json"),
    Asked("just booted", "bootstrap --list"),
    Asked("just booted", "bundle {files}/incident.tar.gz"),
    Asked("nodes left", "check --deep"),
    Asked("gossiped alone", "check"),
    Asked("just booted", "cluster"),
    Asked("just booted", "cluster add prod --contact 127.0.0.1:1"),
    Asked("just booted", "verify-interval 2023-11-15T22:00:00Z 2023-11-15T23:00:00Z --consumer audit", LATER_MS, READ),
    Asked("just booted", "consume shop.orders --name audit", LATER_MS, KEPT),
    Asked("old generations", "consumers", LATER_MS),
    Asked("dead checkpoints", "consumers checkpoints {files}/cdc_progress.csv"),
    Asked("old generations", "consumers remove audit ks.orders"),
    Asked("old generations", "consumers gaps", LATER_MS),
    Asked("old generations", "consumers lag", LATER_MS),
    Asked("just booted", "consumers plan ks.t --client java"),
    Asked("old generations", "diff 2026-01-01T00:00:00Z latest"),
    Asked("just booted", "doctor"),
    Asked("old generations", "expire", LATER_MS),
    Asked("old generations", "expire --dry-run", LATER_MS),
    Asked("just booted", "explain --token 42"),
    Asked("just booted", "export {files}/exported"),
    Asked("old generations", "generations"),
    Asked("old generations", "history latest"),
    Asked("just booted", "home copy {home} {files}/copied"),
    Asked("just booted", "home maintain"),
    Asked("just booted", "home migrate"),
    Asked("empty cluster", "import {files}/ring.json {files}/t.csv {files}/s.csv"),
    Asked("expiring row", "cql run {files}/with-ttl.cql"),
    Asked("just booted", "cql run {files}/orders.cql --apply"),
    Asked("just booted", "log shop.orders", LATER_MS, KEPT),
    Asked("just booted", "log-writes shop.orders {files}/writes.parquet --batch one", LATER_MS, KEPT),
    Asked("just booted", "log-writes shop.orders {files}/writes.parquet --hourly", LATER_MS, KEPT),
    Asked("just booted", "rebuild shop.orders", LATER_MS, KEPT),
    Asked("just booted", "rebuild shop.orders --compare {files}/orders.parquet", LATER_MS, KEPT),
    Asked("two hundred nodes", "rehearse {files}/one-more.json"),
    Asked("just booted", "simulate --seeds 2"),
    Asked("nodes left", "repair"),
    Asked("nodes left", "repair --run"),
    Asked("nodes left", "repair --dry-run"),
    Asked("just booted", "report latest --html {files}/page.html"),
    Asked("half rewritten", "rewrite"),
    Asked("half rewritten", "rewrite --dry-run"),
    Asked("skewed", "ring"),
    Asked("just booted", "sql 'SUMMARIZE nodes'"),
    Asked("just booted", "metrics"),
    Asked("just booted", "status"),
    Asked("just booted", "streams latest"),
    Asked(SWITCHING, "switch show", SOON_MS),
    Asked(SWITCHING, "switch abort {generation}", OVERDUE_MS),
    Asked(SWITCHING, ACKS[0], SOON_MS),
    Asked(SWITCHING, "switch commit {generation}", SOON_MS, ACKS),
    Asked("old generations", "tables", LATER_MS),
    Asked("just booted", "tables add ks.other --ttl 60"),
    Asked("just booted", "tables alter ks.t --ttl 60"),
    Asked("just booted", "tables drop ks.t"),
    Asked("empty cluster", "tables declare-none"),
    Asked("stream history", "tablets create shop.other --count 2", LATER_MS),
    Asked("stream history", "tablets gc", LATER_MS),
    Asked("stream history", "tablets merge shop.orders --count 4", LATER_MS),
    Asked("stream history", "tablets resize shop.orders --last-tokens {files}/ends.json", LATER_MS),
    Asked("stream history", "tablets show shop.orders", LATER_MS),
    Asked("stream history", "tablets split shop.orders --count 16", LATER_MS),
]

_OWN = frozenset({"generation_id", "event_id", "id", "uuid", "streams", "content", "machine_marked_at"})
"""Columns with random values, names of files or the machine's time."""


def path_of(line: str) -> str:
    """Return the command itself from the words of its line."""
    words, paths = line.split(), paths_of(program)
    return next(path for path in (" ".join(words[:2]), words[0]) if path in paths)


def home_of(case: Asked, folder_of_home: Path) -> Path:
    """Create the home of a case in a folder, before the commands that the case runs first."""
    if case.home != SWITCHING:
        return home_for(folder_of_home, case.home) / HOME
    folder = open_home_location(folder_of_home / HOME).path
    switching(Lake(folder / "lake"))
    return folder


def words_of(line: str, ms: Milliseconds, home: str, files: Path) -> list[str]:
    """Return the program's arguments for a command at a time."""
    generation = ""
    if "{generation}" in line:
        generation = run("--home", home, "switch", "show", "--json").rows[0]["generation_id"]
    words = [word.format(files=files, home=home, generation=generation) for word in shlex.split(line)]
    return ["--home", home, "--clock", iso(ms), *words]


def ask(line: str, ms: Milliseconds, home: str, files: Path) -> Answer:
    """Run a command on a home at a time."""
    return run(*words_of(line, ms, home, files))


def write_files(files: Path, beside: Path) -> None:
    """Write the commands' input files into a new folder, with the files that the home's page has beside it."""
    files.mkdir()
    (files / "node.json").write_text(node_text(9, 4, 2), encoding="utf-8")
    (files / "ends.json").write_text(json.dumps([0, 2**63 - 1]), encoding="utf-8")
    (files / "orders.cql").write_text(_SCRIPT, encoding="utf-8")
    ids = {"id": pa.array([1, 2], pa.int32()), "total": pa.array([9, 5], pa.int32())}
    parquet.write_table(pa.table(ids), files / "orders.parquet")
    times = pa.array([LATER_MS * 1000 - 5, LATER_MS * 1000 - 4], pa.timestamp("us", "UTC"))
    parquet.write_table(pa.table(ids | {"timestamp": times}), files / "writes.parquet")
    (files / "ring.json").write_text(json.dumps(SNAPSHOT), encoding="utf-8")
    (files / "t.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    (files / "s.csv").write_text(streams_csv({TIME_MS: generation()}), newline="")
    for path in beside.iterdir():
        if path.is_file():
            (files / path.name).write_bytes(path.read_bytes())


def rows_of(lake: Lake) -> dict[str, list[str]]:
    """Return every row of every table of a lake, without random values."""
    rows_by_table = {}
    for keyspace, name in list_stored_tables(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        stored_rows = lake.read_version(table, lake.version(table) or 0).to_pylist()
        compared = ({n: v for n, v in row.items() if n not in _OWN} for row in stored_rows)
        rows_by_table[f"{keyspace}.{name}"] = sorted(repr(sorted(row.items())) for row in compared)
    return rows_by_table
