"""A home that mirrors a live cluster: every command is refused or writes no fact of it, and so is Dagster.

The mirror is made of a home in which each command would have something to do.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from dagster import DagsterInstance, SkipReason
from support.command_line import Answer, paths_of, run
from support.files.export_files import ID, SNAPSHOT
from support.homes.expiring import DAY_MS, HOUR_MS, IDS, START_MS, add_table, import_generations, iso
from support.homes.guarded import answer_of, ticks, ways_of_writing
from support.next_lines import lines_of

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.cdclog.consumer.reader import sink_table
from cdc_platform.cli import program
from cdc_platform.cli.write_rules import find_write_refusal
from cdc_platform.clock import Milliseconds
from cdc_platform.definitions import defs
from cdc_platform.delta import WRITE_TO_OBSERVED_OPTION, Lake, WriteSource, read_newest_versions, write_as
from cdc_platform.delta.home_mode import HomeIsMirror
from cdc_platform.home_location import HOME_VARIABLE, open_home_location
from cdc_platform.scylla import Connection, registry
from cdc_platform.tables import TABLES

NOW_MS = Milliseconds(START_MS + 30 * DAY_MS)
SCRIPT = """
CREATE TABLE ks.t (p int PRIMARY KEY, v int) WITH cdc = {'enabled': 'true'};
INSERT INTO ks.t (p, v) VALUES (1, 1);
"""
REFUSED = {
    "demo": (),
    "bootstrap": ("{place}/node.json",),
    "import": ("{place}/times.csv",),
    "rewrite": (),
    "repair": ("--run",),
    "expire": (),
    "tables add": ("ks.other", "--ttl", "5"),
    "tables declare-none": (),
    "tables alter": ("ks.t", "--ttl", "5"),
    "tables drop": ("ks.t",),
    "switch ack": (ID, "--node", ID),
    "switch commit": (ID,),
    "switch abort": (ID,),
    "tablets create": ("ks.t", "--count", "2"),
    "tablets split": ("ks.t", "--count", "2"),
    "tablets merge": ("ks.t", "--count", "2"),
    "tablets resize": ("ks.t", "--last-tokens", "{place}/node.json"),
    "tablets gc": (),
    "cql run": ("{place}/more.cql", "--apply"),
    "log-writes": ("ks.t", "{place}/writes.parquet", "--batch", "one"),
}
"""What makes up something of a cluster, with arguments that it takes."""
MORE_REFUSED = {
    "bootstrap": [("{place}/node.json", "--run"), ("--withdraw", ID), ("--finish", ID)],
    "repair": [(), ("--from-description",), ("--run", "--strict")],
    "import": [("{place}/ring.json",), ("--allow-incomplete", "{place}/times.csv")],
    "tables alter": [("ks.t", "--ttl", "5", "--ttl-since", "2026-01-01T00:00:00Z"), ("ks.t", "--disabled")],
}
LETS = {
    "doctor": (),
    "export": ("{place}/out",),
    "cluster": (),
    "cluster add": ("other", "--contact", "127.0.0.1:1"),
    "cluster test": ("other",),
    "cluster replace": ("other",),
    "cluster remove": ("other",),
    "observe": ("other",),
    "ingest": ("other", "ks.t"),
    "status": (),
    "metrics": (),
    "generations": (),
    "streams": (IDS[0],),
    "ring": (),
    "home maintain": (),
    "home migrate": (),
    "home copy": ("{place}/main/clusters/prod", "{place}/copy"),
    "history": (IDS[0],),
    "report": ("latest", "--html", "{place}/page.html"),
    "diff": (IDS[0], IDS[1]),
    "explain": ("--token", "5"),
    "check": (),
    "rehearse": ("{place}/steps.json",),
    "simulate": ("--seeds", "1"),
    "tables": (),
    "tablets show": ("ks.t",),
    "switch show": (),
    "consume": ("ks.t", "--name", "audit"),
    "consumers": (),
    "consumers plan": ("ks.t",),
    "consumers lag": (),
    "consumers checkpoints": ("{place}/progress.csv",),
    "consumers gaps": (),
    "verify-interval": ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "--consumer", "audit"),
    "consumers remove": ("audit", "ks.t"),
    "log": ("ks.t",),
    "rebuild": ("ks.t",),
    "help": ("explain",),
    "sql": ("SELECT count(*) FROM platform.nodes",),
    "bundle": ("{place}/bundle.tar.gz",),
    "completion": ("bash",),
}
"""What looks, or writes what readers and judges have done, with arguments that it takes."""
ELSEWHERE = {
    "cluster test": "127.0.0.1:1",
    "observe": "127.0.0.1:1",
    "ingest": "127.0.0.1:1",
    "tablets show": "ks.t has no stream sets of tablets",
}
"""Those of them that ask for something that is not there, and a word of what they say of that."""
ASKED_WRONGLY = {
    "consume": ("ks.none", "--name", "audit"),
    "consumers plan": ("ks.none",),
    "tables": ("--history",),
    "tablets show": ("ks.expired",),
    "tablets gc": ("ks.t", "--dry-run"),
    "expire": ("--forecast", "2"),
    "history": ("2020-01-01T00:00:00Z",),
    "explain": ("--token", "5", "--at", "2020-01-01T00:00:00Z"),
    "sql": ("SELECT count(*) FROM ks.none",),
    "diff": (IDS[0], ID),
    "report": ("2020-01-01T00:00:00Z", "--html", "{place}/page.html"),
    "consumers remove": ("nobody", "ks.none"),
    "cql run": ("{place}/script.cql",),
}
"""What asks for something that is not there, or for what nobody has told of."""
_ADVICE = re.compile(r"cdc-platform (?:--home \S+ )?([a-z]+(?: [^;,:#\[\]()\"]+)?)")
GO_ON = {"up", "watch"}
"""What goes on until it is ended, and comes to the lake by the doors of the others: of Dagster, and of `observe`."""
TOLD_BY = {
    "cql run": ("{place}/more.cql",),
    "repair": ("--dry-run",),
    "rewrite": ("--dry-run",),
    "expire": ("--dry-run",),
    "tablets gc": ("--dry-run",),
}
"""What only says what it would do, though it would be refused otherwise."""
LEAVES = {
    "repair": "nodetool checkAndRepairCdcStreams  # on a node of prod; then: cdc-platform --home {around} observe prod",
    "expire": "/clusters/prod expire --cql  # for cqlsh on prod; what has gone there goes here at the next: ",
}
"""What of that is left to do in the cluster itself."""
READ_ON = {
    *("catalogue", "changed_clusters", "changed_logs", "daily_maintenance", "hourly_audit_of_tables", "live_logs"),
    "ingest_lags",
    "hourly_logs",
    *("alerts", "failed_runs", "recovered_runs"),
}
"""Ticks that look at a home, keep its files up, send alerts, or ask for what readers do."""


@pytest.fixture
def mirror(made: Path, tmp_path: Path) -> Path:
    """The mirror of `prod` as it was made: what one test reads or forgets no other one finds."""
    copy, home = tmp_path / "mirror", made.parents[2]
    shutil.copytree(home, copy)
    return copy / made.relative_to(home)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mirror of `prod`, in a home that knows it; a month after its generations began."""
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "ring.json").write_text(json.dumps(SNAPSHOT))
    (folder / "node.json").write_text(json.dumps(SNAPSHOT[0] | {"host_id": ID, "tokens": [7]}))
    (folder / "steps.json").write_text('[{"wait": 5}]')
    (folder / "progress.csv").write_text("generation,application_name,table_name,stream_id,last_timestamp\n")
    (folder / "more.cql").write_text("INSERT INTO ks.t (p, v) VALUES (9, 9);")
    (folder / "script.cql").write_text(SCRIPT)
    imported = import_generations(folder)
    another = {"host_id": IDS[0], "address": "127.0.0.9", "tokens": [9]}
    (folder / "grown.json").write_text(json.dumps([*SNAPSHOT, SNAPSHOT[0] | another]))
    assert run("--home", imported, "import", folder / "grown.json").exit_code == 0
    add_table(Lake(imported / "lake"), 86_400, name="expired")
    kept = run(
        "--home",
        imported,
        "--clock",
        iso(Milliseconds(NOW_MS - HOUR_MS)),
        "cql",
        "run",
        folder / "script.cql",
        "--apply",
    )
    assert kept.exit_code == 0, kept.stderr
    marked = run("--home", imported, "--clock", iso(Milliseconds(START_MS + 2 * DAY_MS + HOUR_MS)), "expire")
    assert marked.exit_code == 0, marked.stderr
    cluster = registry.add_cluster(open_home_location(folder / "main"), "prod", Connection(contacts=("127.0.0.1:1",)))
    shutil.copytree(imported / "lake", cluster.home / "lake", dirs_exist_ok=True)
    return cluster.home


def ask(mirror: Path, *words: str, options: tuple[str, ...] = ()) -> Answer:
    """The program on the mirror; `{place}` in its words is the folder of the files."""
    place = mirror.parents[2]
    return run("--home", mirror, *options, "--clock", iso(NOW_MS), *(word.format(place=place) for word in words))


def of_cluster(home: Path) -> Mapping[str, int]:
    """The version of every table with a fact of the cluster: logs are among them, copies and rebuilt tables are not."""
    own = {name for name, table in TABLES.items() if table.about_readers}
    found, of_readers = read_newest_versions(Lake(home / "lake")), ("_log_audit", "_rebuilt")
    return {name: version for name, version in found.items() if name not in own and not name.endswith(of_readers)}


def test_every_command_stands_here_once() -> None:
    """A new command has to say which it is, and a refused one is declared where commands are."""
    assert isinstance(program, click.Group)
    there = paths_of(program)
    assert there - REFUSED.keys() - LETS.keys() - GO_ON == set()
    assert REFUSED.keys() | LETS.keys() | GO_ON == there
    assert REFUSED.keys() & LETS.keys() == set()


@pytest.mark.parametrize("options", [(), (WRITE_TO_OBSERVED_OPTION,)], ids=["", "with the option"])
@pytest.mark.parametrize(
    ("path", "words"),
    [*REFUSED.items(), *((path, words) for path, several in MORE_REFUSED.items() for words in several)],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_what_makes_something_up_is_refused(
    path: str, words: tuple[str, ...], options: tuple[str, ...], mirror: Path
) -> None:
    """Exit code 2, one line that says why and what to do, no option lets it, and nothing was written."""
    before = read_newest_versions(Lake(mirror / "lake"))
    answer = ask(mirror, *path.split(), *words, options=options)
    assert (answer.exit_code, answer.stdout) == (2, ""), answer
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith(f"error: {path}: this home mirrors the live cluster prod, ")
    assert f"cdc-platform --home {mirror.parents[1]} observe prod" in answer.stderr
    assert answer.stderr.endswith("[mirror]\n")
    assert read_newest_versions(Lake(mirror / "lake")) == before


@pytest.mark.parametrize(("path", "words"), LETS.items(), ids=LETS)
def test_what_looks_or_reads_on_writes_no_fact(path: str, words: tuple[str, ...], mirror: Path) -> None:
    """It is not refused for where it is, and the tables that tell of the cluster are as they were."""
    before = of_cluster(mirror)
    if "other" in words:
        ask(mirror, "cluster", "add", *LETS["cluster add"])
    if "audit" in words:
        ask(mirror, "consume", *LETS["consume"])
    answer = ask(mirror, *path.split(), *words)
    assert answer.exit_code in (0, 1) or ELSEWHERE.get(path, "not there") in answer.stderr, answer
    assert "[mirror]" not in answer.stderr
    assert of_cluster(mirror) == before
    refused = [line for line in lines_of(answer) if any(f" {each}" in line for each in ("expire", "tables ", "--run"))]
    assert [line for line in refused if "--dry-run" not in line] == []


@pytest.mark.parametrize(("path", "words"), TOLD_BY.items(), ids=TOLD_BY)
def test_what_would_be_done_is_told_and_no_line_leads_to_a_refusal(
    path: str, words: tuple[str, ...], mirror: Path
) -> None:
    """A dry run answers as in any home; what it leaves is done in the cluster."""
    before = read_newest_versions(Lake(mirror / "lake"))
    answer = ask(mirror, *path.split(), *words)
    assert answer.exit_code in (0, 1), answer
    left = LEAVES[path].format(around=mirror.parents[1]) if path in LEAVES else ""
    assert [left in line for line in lines_of(answer)] == [True] * (path in LEAVES)
    assert read_newest_versions(Lake(mirror / "lake")) == before


def advised(answer: Answer) -> list[str]:
    """The commands that an answer names, each as far as its words go."""
    both = " ".join(f"{answer.stdout} {answer.stderr}".replace("│", " ").split())
    return [each.removesuffix(".") for each in _ADVICE.findall(both)]


def is_refused_here(home: Path, command: str) -> bool:
    """Whether a home refuses a command that is named somewhere."""
    assert isinstance(program, click.Group)
    return find_write_refusal(program, ["--home", str(home), *command.split()]) is not None


@pytest.mark.parametrize("observed", [True, False], ids=["observed", "never observed"])
def test_nothing_that_is_said_names_a_command_that_is_refused(mirror: Path, tmp_path: Path, observed: bool) -> None:
    """Whatever is asked there, also of what is not there: what its answers say to do can be done there."""
    shutil.copytree(mirror.parents[2], tmp_path / "place")
    home = tmp_path / "place" / "main" / "clusters" / "prod"
    if not observed:
        shutil.rmtree(home / "lake")
    asked = [(path, words) for told in (LETS, TOLD_BY, ASKED_WRONGLY) for path, words in told.items()]
    asked += [("tablets show", ("ks.none",)), ("expire", ("--cql",)), ("streams", ("latest",))]
    wrong, said = [], 0
    for path, words in asked:
        answer = ask(home, *path.split(), *words)
        named = advised(answer)
        said += len(named)
        wrong += [(path, words, each) for each in named if is_refused_here(home, each)]
    assert wrong == []
    assert said > 10


def test_the_same_home_beside_it_is_no_mirror(mirror: Path, tmp_path: Path) -> None:
    """What is refused here would have been done: on a copy, which `home copy` makes no mirror of, it is."""
    assert ask(mirror, "home", "copy", str(mirror), str(tmp_path / "copy")).exit_code == 0
    for words in (["expire"], ["tables", "alter", "ks.t", "--ttl", "5"], ["bootstrap", "{place}/node.json"]):
        place = mirror.parents[2]
        done = run("--home", tmp_path / "copy", "--clock", iso(NOW_MS), *(word.format(place=place) for word in words))
        assert done.exit_code == 0, done


def test_status_says_what_the_cluster_has_to_do(mirror: Path) -> None:
    """Nothing that it says to do is refused here."""
    told = ask(mirror, "status", "--json").json["alerts"]
    assert told
    for each in told:
        assert not any(
            word in f"{each['command']} {each['advice']}"
            for word in ("expire", "tables", "import", "--run", "bootstrap")
        ), each


def test_an_empty_mirror_waits_for_a_look(tmp_path: Path) -> None:
    """What is to be done about it is to observe."""
    cluster = registry.add_cluster(open_home_location(tmp_path), "prod", Connection(contacts=("127.0.0.1:1",)))
    told = run("--home", cluster.home, "status", "--json").json["alerts"]
    assert [(each["code"], each["command"]) for each in told] == [
        ("empty-home", f"cdc-platform --home {tmp_path} observe prod")
    ]


def test_the_lake_itself_asks_table_by_table(mirror: Path, tmp_path: Path) -> None:
    """Every declared table, a log and a copy of a reader: facts come by what saw them alone, in whatever block."""
    shutil.copytree(mirror, tmp_path / "prod")
    lake = Lake(tmp_path / "prod" / "lake")
    schema = read_table_schema(lake, "ks", "t")
    log, sink = log_table(schema), sink_table(schema, "audit")
    assert not log.about_readers
    for table in (*TABLES.values(), log, sink):
        rows = table.schema.empty_table()
        if table.about_readers:
            lake.ensure(table)
            continue
        with pytest.raises(HomeIsMirror, match="mirrors the live cluster prod"), write_as(WriteSource.STATED):
            lake.append_once(table, rows, {"a": 1}, None)
        with write_as(WriteSource.OBSERVED):
            assert lake.append_once(table, rows, {"a": 1}, None)


def test_no_way_of_writing_goes_by(mirror: Path) -> None:
    """The lake refuses each of its own ways."""
    lake, before = Lake(mirror / "lake"), read_newest_versions(Lake(mirror / "lake"))
    for attempt in ways_of_writing(lake):
        with pytest.raises(HomeIsMirror):
            attempt()
    assert read_newest_versions(Lake(mirror / "lake")) == before


@pytest.mark.parametrize("name", sorted(set(ticks()) - READ_ON))
def test_a_tick_that_would_build_asks_for_nothing(name: str, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sensor and schedule whose runs would be refused skips, and says why."""
    monkeypatch.setenv(HOME_VARIABLE, str(mirror))
    answer = answer_of(name)
    assert isinstance(answer, SkipReason)
    assert (answer.skip_message or "").startswith("this home mirrors the live cluster prod")


def test_ticks_that_read_on_are_still_there() -> None:
    """Those that look or ask for what readers do are named, so that a new one has to say which it is."""
    assert set(ticks()) >= READ_ON


@pytest.mark.parametrize("name", ["plan_expiry", "expire", "check_and_repair_streams"])
def test_a_job_that_is_started_by_hand_fails_in_one_line(
    name: str, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first commit is refused, and no table has a new version."""
    monkeypatch.setenv(HOME_VARIABLE, str(mirror))
    before = read_newest_versions(Lake(mirror / "lake"))
    with DagsterInstance.ephemeral() as instance:
        done = defs.resolve_job_def(name).execute_in_process(instance=instance, raise_on_error=False)
    assert not done.success
    assert read_newest_versions(Lake(mirror / "lake")) == before
