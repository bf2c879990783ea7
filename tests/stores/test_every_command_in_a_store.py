"""Every command on a home in an object store: it answers as on the same home in a folder, and leaves the same rows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import Answer, paths_of, run
from support.files.export_files import SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv
from support.homes.expiring import iso
from support.homes.questions import HOME, home_for
from support.homes.timelines import FIRST_MS, home_of
from support.nodes import node_text
from support.store.s3 import S3
from support.worlds.switch_lake import host

from cdc_platform.clock import DAY_MS, Milliseconds
from cdc_platform.commands.program import program
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.versions import stored_names

_SCRIPT = """
CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TABLE shop.orders (id int PRIMARY KEY, total int) WITH cdc = {'enabled': true};
INSERT INTO shop.orders (id, total) VALUES (1, 9);
"""
AT_MS = Milliseconds(FIRST_MS + DAY_MS)
LATER_MS = Milliseconds(1_785_000_000_000)


@dataclass(frozen=True)
class Asked:
    """A command on a home of `homes.questions` or `homes.timelines` at a time; `{files}` is a folder of its own."""

    path: str
    home: str
    words: tuple[str, ...]
    ms: Milliseconds = AT_MS

    def __str__(self) -> str:
        return " ".join(self.words)


def _asked(home: str, words: str, ms: Milliseconds = AT_MS) -> Asked:
    split = tuple(words.split())
    known = paths_of(program)  # type: ignore[arg-type]
    path = next(" ".join(split[:count]) for count in (2, 1) if " ".join(split[:count]) in known)
    return Asked(path, home, split, ms)


CASES = [
    _asked("empty cluster", "bootstrap {files}/node.json --run"),
    _asked("empty cluster", "bootstrap {files}/node.json"),
    _asked("just booted", "bootstrap --list"),
    _asked("just booted", "bundle {files}/incident.tar.gz"),
    _asked("nodes left", "check --deep"),
    _asked("gossiped alone", "check"),
    _asked("just booted", "cluster"),
    _asked("just booted", "cluster add prod --contact 127.0.0.1:1"),
    _asked("just booted", "complete 2023-11-14T22:20:00Z 2023-11-14T23:20:00Z"),
    _asked("just booted", "consume ks.t --name other"),
    _asked("old generations", "consumers", LATER_MS),
    _asked("dead checkpoints", "consumers checkpoints {files}/checkpoints.csv"),
    _asked("old generations", "consumers forget audit ks.orders"),
    _asked("old generations", "consumers lag", LATER_MS),
    _asked("just booted", "consumers plan ks.t --workers 2"),
    _asked("old generations", "diff"),
    _asked("just booted", "doctor"),
    _asked("old generations", "expire", LATER_MS),
    _asked("old generations", "expire --dry-run", LATER_MS),
    _asked("just booted", "explain --token 42"),
    _asked("just booted", "export {files}/exported"),
    _asked("old generations", "generations"),
    _asked("old generations", "history"),
    _asked("just booted", "home copy {home} {files}/copied"),
    _asked("empty cluster", "import {files}/ring.json {files}/t.csv {files}/s.csv"),
    _asked("empty cluster", "log {files}/with-ttl.cql"),
    _asked("just booted", "log {files}/orders.cql --keep"),
    _asked("two hundred nodes", "rehearse --nodes 1"),
    _asked("nodes left", "repair"),
    _asked("nodes left", "repair --run"),
    _asked("nodes left", "repair --dry-run"),
    _asked("just booted", "report latest"),
    _asked("half rewritten", "rewrite"),
    _asked("half rewritten", "rewrite --dry-run"),
    _asked("skewed", "ring"),
    _asked("just booted", "sql SUMMARIZE.nodes"),
    _asked("just booted", "status"),
    _asked("just booted", "streams latest"),
    _asked("undecided", "switch show", FIRST_MS),
    _asked("undecided", "switch abort {generation}", FIRST_MS),
    _asked("undecided", f"switch ack {{generation}} --node {host(1)}", FIRST_MS),
    _asked("undecided", "switch commit {generation}", FIRST_MS),
    _asked("old generations", "tables", LATER_MS),
    _asked("just booted", "tables add ks.other --ttl 60"),
    _asked("just booted", "tables alter ks.t --ttl 60"),
    _asked("just booted", "tables drop ks.t"),
    _asked("empty cluster", "tables none"),
    _asked("stream history", "tablets create shop.other --tablets 2", LATER_MS),
    _asked("stream history", "tablets gc", LATER_MS),
    _asked("stream history", "tablets merge shop.orders", LATER_MS),
    _asked("stream history", "tablets resize shop.orders 4", LATER_MS),
    _asked("stream history", "tablets show shop.orders", LATER_MS),
    _asked("stream history", "tablets split shop.orders", LATER_MS),
]
ELSEWHERE = {
    "up": "tests/stores/test_leases.py",
    "demo": "tests/support/spark/demo.py",
    **dict.fromkeys(("ingest", "observe", "watch"), "tests/stores/test_homes_of_clusters.py"),
    **dict.fromkeys(("cluster remove", "cluster renew", "cluster test"), "tests/stores/test_homes_of_clusters.py"),
    "completion": "tests/commands/test_program.py",
}
"""What is shown by other files: it starts servers, asks a live cluster, or asks no home."""
_OWN = frozenset({"generation_id", "event_id", "id", "uuid", "content", "versions", "mark", "streams", "value"})
"""Columns that are drawn at random, or by the names of files."""


def test_every_command_stands_here() -> None:
    """A new command says what it does in a store, or which file shows it."""
    known = paths_of(program)  # type: ignore[arg-type]
    assert {each.path for each in CASES} | ELSEWHERE.keys() == known
    root = Path(__file__).resolve().parents[2]
    assert [file for file in ELSEWHERE.values() if not (root / file).is_file()] == []


@pytest.mark.grid("commands in a store", 6)
@pytest.mark.parametrize("asked", CASES, ids=str)
def test_it_answers_as_in_a_folder(asked: Asked, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same exit code and the same words but for what is drawn; afterwards the tables have the same rows."""
    monkeypatch.setenv("COLUMNS", "160")
    place = tmp_path / "place"
    place.mkdir()
    folder = home_of(place, asked.home) if asked.home == "undecided" else home_for(place, asked.home) / HOME
    stored = f"{s3.bucket()}/home"
    copied = run("--home", folder, "home", "copy", folder, stored)
    assert copied.exit_code == 0, copied
    said = {}
    for home, name in ((str(folder), "here"), (stored, "there")):
        files = tmp_path / name
        files.mkdir()
        _write_files(files, folder.parent)
        said[name] = _words(_ask(asked, home, files), home, files)
    assert said["there"] == said["here"]
    assert _rows(Lake(f"{stored}/lake")) == _rows(Lake(folder / "lake"))


def _ask(asked: Asked, home: str, files: Path) -> Answer:
    generation = ""
    if any("{generation}" in word for word in asked.words):
        generation = run("--home", home, "switch", "show", "--json").json[0]["generation_id"]
    words = [word.format(files=files, home=home, generation=generation) for word in asked.words]
    words = [word.replace("SUMMARIZE.", "SUMMARIZE ") for word in words]
    return run("--home", home, "--clock", iso(asked.ms), *words)


def _write_files(files: Path, beside: Path) -> None:
    """What the commands are given, with what the page of the home has beside it."""
    (files / "node.json").write_text(node_text(9, 4, 2), encoding="utf-8")
    (files / "orders.cql").write_text(_SCRIPT, encoding="utf-8")
    (files / "ring.json").write_text(json.dumps(SNAPSHOT), encoding="utf-8")
    (files / "t.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    (files / "s.csv").write_text(streams_csv({TIME_MS: generation()}), newline="")
    for path in beside.iterdir():
        if path.is_file():
            (files / path.name).write_bytes(path.read_bytes())


def _words(answer: Answer, home: str, files: Path) -> tuple[int, str]:
    """What a command said, without what no two homes have in common."""
    text = "\n".join(" ".join(line.split()) for line in (answer.stdout + answer.stderr).splitlines())
    for known, name in ((home, "HOME"), (str(files), "FILES")):
        text = text.replace(known, name)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    return answer.exit_code, re.sub(r"─+|\d+(\.\d+)? (s|ms|KiB|MiB|B)\b", "-", text)


def _rows(lake: Lake) -> dict[str, list[str]]:
    found = {}
    for keyspace, name in stored_names(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        some = lake.read_version(table, lake.version(table) or 0).to_pylist()
        kept = ({n: v for n, v in row.items() if n not in _OWN and not n.endswith(("_id", "_at"))} for row in some)
        found[f"{keyspace}.{name}"] = sorted(repr(sorted(row.items())) for row in kept)
    return found
