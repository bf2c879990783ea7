"""Every command on a home in an object store: it answers as on the same home in a folder, and leaves the same rows."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import Answer, paths_of, run
from support.files.export_files import SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv
from support.homes.expiring import iso
from support.homes.questions import HOME, home_for
from support.homes.timelines import FIRST_MS
from support.nodes import node_text
from support.standin.cluster import FIRST_MS as BEGUN_MS
from support.standin.cluster import StandIn, description
from support.standin.live_log import LiveLog, defined
from support.standin.world import time_uuid
from support.store.s3 import S3
from support.worlds.switch_lake import NOON_MS, host, switching

from cdc_platform.clock import DAY_MS, MINUTE_MS, SECOND_MS, Milliseconds, us_of
from cdc_platform.commands.program import program
from cdc_platform.home import open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.versions import stored_names

_SCRIPT = """
CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TABLE shop.orders (id int PRIMARY KEY, total int) WITH cdc = {'enabled': true};
INSERT INTO shop.orders (id, total) VALUES (1, 9);
"""
_LIVE = "CREATE TABLE shop.u (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
AT_MS = Milliseconds(FIRST_MS + DAY_MS)
LATER_MS = Milliseconds(1_785_000_000_000)
SOON_MS, OVERDUE_MS = Milliseconds(NOON_MS + SECOND_MS), Milliseconds(NOON_MS + MINUTE_MS)
SWITCHING = "a switch of three nodes"
KEPT = ("log {files}/orders.cql --keep",)
READ = (*KEPT, "consume shop.orders --name audit")
ACKS = tuple(f"switch ack {{generation}} --node {host(number)}" for number in (1, 2, 3))


@dataclass(frozen=True)
class Asked:
    """A command on a home of `homes.questions`, or `SWITCHING`, at a time, behind others that have been run there.

    `{files}` is a folder of its own, `{home}` the home's name, `{generation}` that of a switch.
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
    Asked("just booted", "complete 2023-11-15T22:00:00Z 2023-11-15T23:00:00Z --consumer audit", LATER_MS, READ),
    Asked("just booted", "consume shop.orders --name audit", LATER_MS, KEPT),
    Asked("old generations", "consumers", LATER_MS),
    Asked("dead checkpoints", "consumers checkpoints {files}/cdc_progress.csv"),
    Asked("old generations", "consumers forget audit ks.orders"),
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
    Asked("just booted", "home upkeep"),
    Asked("empty cluster", "import {files}/ring.json {files}/t.csv {files}/s.csv"),
    Asked("expiring row", "log {files}/with-ttl.cql"),
    Asked("just booted", "log {files}/orders.cql --keep"),
    Asked("two hundred nodes", "rehearse {files}/one-more.json"),
    Asked("nodes left", "repair"),
    Asked("nodes left", "repair --run"),
    Asked("nodes left", "repair --dry-run"),
    Asked("just booted", "report latest --html {files}/page.html"),
    Asked("half rewritten", "rewrite"),
    Asked("half rewritten", "rewrite --dry-run"),
    Asked("skewed", "ring"),
    Asked("just booted", "sql 'SUMMARIZE nodes'"),
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
    Asked("empty cluster", "tables none"),
    Asked("stream history", "tablets create shop.other --count 2", LATER_MS),
    Asked("stream history", "tablets gc", LATER_MS),
    Asked("stream history", "tablets merge shop.orders --count 4", LATER_MS),
    Asked("stream history", "tablets resize shop.orders --ends {files}/ends.json", LATER_MS),
    Asked("stream history", "tablets show shop.orders", LATER_MS),
    Asked("stream history", "tablets split shop.orders --count 16", LATER_MS),
]
OF_A_LIVE_CLUSTER = (
    "cluster add prod --contact {contact} --user-env CDC_TEST_USER --password-env CDC_TEST_PASSWORD",
    "cluster",
    "cluster test prod",
    "observe prod",
    "observe prod",
    "watch prod --looks 1 --json",
    "ingest prod shop.u --by streams",
    "ingest prod shop.u --by streams",
    "cluster renew prod",
    "observe prod",
    "cluster remove prod",
)
"""In this order."""
ELSEWHERE = {
    "up": ("tests/stores/test_up_in_a_store.py", '"up"'),
    "demo": ("tests/support/spark/demo.py", '_run(address, "demo")'),
    "completion": ("tests/commands/test_program.py", '"completion"'),
}
"""What is shown by other files, and by which words there: it starts servers, or asks no home."""
_OWN = frozenset({"generation_id", "event_id", "id", "uuid", "streams", "content"})
"""Columns that are drawn at random, or by the names of files."""


def test_every_command_stands_here() -> None:
    """A new command says what it does in a store, or which file shows it."""
    known = paths_of(program)
    live = {path_of(line) for line in OF_A_LIVE_CLUSTER}
    assert {path_of(each.line) for each in CASES} | live | ELSEWHERE.keys() == known
    root = Path(__file__).resolve().parents[2]
    assert all(words in (root / file).read_text(encoding="utf-8") for file, words in ELSEWHERE.values())


@pytest.mark.grid("commands in a store", 3)
@pytest.mark.parametrize("asked", CASES, ids=str)
def test_it_answers_as_in_a_folder(asked: Asked, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same exit code and the same words but for what is drawn; afterwards the tables have the same rows."""
    monkeypatch.setenv("COLUMNS", "160")
    place = tmp_path / "place"
    place.mkdir()
    if asked.home == SWITCHING:
        folder = open_home(place / HOME).path
        switching(Lake(folder / "lake"))
    else:
        folder = home_for(place, asked.home) / HOME
    _write_files(tmp_path / "before", folder.parent)
    for line in asked.behind:
        assert _ask(line, asked.ms, str(folder), tmp_path / "before").exit_code == 0, line
    stored = f"{s3.bucket()}/home"
    copied = run("--home", folder, "home", "copy", folder, stored)
    assert copied.exit_code == 0, copied
    said = {}
    for home, name in ((str(folder), "here"), (stored, "there")):
        _write_files(tmp_path / name, folder.parent)
        answer = _ask(asked.line, asked.ms, home, tmp_path / name)
        assert answer.exit_code in (0, 1), answer  # two refusals show nothing
        said[name] = _words(answer, home, tmp_path / name)
    assert said["there"] == said["here"]
    assert _rows(Lake(f"{stored}/lake")) == _rows(Lake(folder / "lake"))


@pytest.mark.cassandra
def test_a_live_cluster_is_taken_in_as_into_a_folder(
    s3: S3, standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observed, watched, its log brought in, renewed and removed: the same words, and the same rows in its home."""
    monkeypatch.setenv("COLUMNS", "160")
    log = LiveLog(standin.world, defined(_LIVE), {BEGUN_MS: description(time_uuid(BEGUN_MS))}).make()
    log.write([us_of(BEGUN_MS) + place for place in range(20)])
    contact = standin.connection().contacts[0]
    said, found = {}, {}
    for home, name in ((str(tmp_path / "home"), "here"), (f"{s3.bucket()}/home", "there")):
        said[name] = []
        for line in OF_A_LIVE_CLUSTER:
            words = shlex.split(line.format(contact=contact))
            answer = run("--home", home, "--clock", iso(Milliseconds(BEGUN_MS + MINUTE_MS)), *words)
            assert answer.exit_code in (0, 1), answer
            said[name].append((line, *_words(answer, home, tmp_path)))
            if line.startswith("ingest"):
                found[name] = _rows(Lake(f"{home}/clusters/prod/lake"))
    assert said["there"] == said["here"]
    assert found["there"] == found["here"]
    assert len(found["here"]["shop.u_scylla_cdc_log"]) == len(log.written_keys())


def path_of(line: str) -> str:
    """The command itself, of the words of its line."""
    words, known = line.split(), paths_of(program)
    return next(path for path in (" ".join(words[:2]), words[0]) if path in known)


def _ask(line: str, ms: Milliseconds, home: str, files: Path) -> Answer:
    generation = ""
    if "{generation}" in line:
        generation = run("--home", home, "switch", "show", "--json").json[0]["generation_id"]
    words = [word.format(files=files, home=home, generation=generation) for word in shlex.split(line)]
    return run("--home", home, "--clock", iso(ms), *words)


def _write_files(files: Path, beside: Path) -> None:
    """What the commands are given, in a new folder, with what the page of the home has beside it."""
    files.mkdir()
    (files / "node.json").write_text(node_text(9, 4, 2), encoding="utf-8")
    (files / "ends.json").write_text(json.dumps([0, 2**63 - 1]), encoding="utf-8")
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
    text = re.sub(r"\.(until|since)-\w+", "", text)  # a folder is moved aside, in a store what follows is
    return answer.exit_code, re.sub(r"─+|\d+(\.\d+)? (s|ms|KiB|MiB|B)\b|\b\d+\.\d{1,3}$", "-", text, flags=re.MULTILINE)


def _rows(lake: Lake) -> dict[str, list[str]]:
    found = {}
    for keyspace, name in stored_names(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        some = lake.read_version(table, lake.version(table) or 0).to_pylist()
        kept = ({n: v for n, v in row.items() if n not in _OWN} for row in some)
        found[f"{keyspace}.{name}"] = sorted(repr(sorted(row.items())) for row in kept)
    return found
