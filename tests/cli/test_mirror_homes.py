"""A home that mirrors a live cluster: commands and Dagster are refused or write no fact of the cluster.

The tests mirror a home in which each command would have something to do.
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
"""Commands that would create facts of a cluster, with valid arguments."""
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
"""Commands that read, or write results of readers and checks, with valid arguments."""
ELSEWHERE = {
    "cluster test": "127.0.0.1:1",
    "observe": "127.0.0.1:1",
    "ingest": "127.0.0.1:1",
    "tablets show": "ks.t has no stream sets of tablets",
}
"""Commands with a missing target, and a word of their message."""
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
"""Requests for missing targets, or for facts that nothing has reported."""
_ADVICE = re.compile(r"cdc-platform (?:--home \S+ )?([a-z]+(?: [^;,:#\[\]()\"]+)?)")
GO_ON = {"up", "watch"}
"""Commands that run until they are stopped, and write through other entry points: Dagster, and `observe`."""
DRY_RUNS = {
    "cql run": ("{place}/more.cql",),
    "repair": ("--dry-run",),
    "rewrite": ("--dry-run",),
    "expire": ("--dry-run",),
    "tablets gc": ("--dry-run",),
}
"""Commands that only report their plan, although they would be refused without the option."""
LEAVES = {
    "repair": "nodetool checkAndRepairCdcStreams  # on a node of prod; then: cdc-platform --home {around} observe prod",
    "expire": "/clusters/prod expire --cql  # for cqlsh on prod; what has gone there goes here at the next: ",
}
"""The part of the plan that remains to be done in the cluster itself."""
READ_ON = {
    *("catalogue", "changed_clusters", "changed_logs", "daily_maintenance", "hourly_audit_of_tables", "live_logs"),
    "ingest_lags",
    "hourly_logs",
    *("alerts", "failed_runs", "recovered_runs"),
}
"""Ticks that read a home, maintain its files, send alerts, or request the work of readers."""


@pytest.fixture
def mirror(made: Path, tmp_path: Path) -> Path:
    """A copy of the mirror of `prod`, so that one test's consumers do not affect another."""
    copy, home = tmp_path / "mirror", made.parents[2]
    shutil.copytree(home, copy)
    return copy / made.relative_to(home)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mirror of `prod`, in a home that registers it; a month after its generations began."""
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
    applied = run(
        "--home",
        imported,
        "--clock",
        iso(Milliseconds(NOW_MS - HOUR_MS)),
        "cql",
        "run",
        folder / "script.cql",
        "--apply",
    )
    assert applied.exit_code == 0, applied.stderr
    marked = run("--home", imported, "--clock", iso(Milliseconds(START_MS + 2 * DAY_MS + HOUR_MS)), "expire")
    assert marked.exit_code == 0, marked.stderr
    cluster = registry.add_cluster(open_home_location(folder / "main"), "prod", Connection(contacts=("127.0.0.1:1",)))
    shutil.copytree(imported / "lake", cluster.home / "lake", dirs_exist_ok=True)
    return cluster.home


def run_on_mirror(mirror: Path, *words: str, options: tuple[str, ...] = ()) -> Answer:
    """Run the program on the mirror; `{place}` in its words is the folder of the files."""
    folder = mirror.parents[2]
    return run("--home", mirror, *options, "--clock", iso(NOW_MS), *(word.format(place=folder) for word in words))


def read_cluster_versions(home: Path) -> Mapping[str, int]:
    """Return the version of every table with a fact of the cluster: logs, but not copies and rebuilt tables."""
    about_readers = {name for name, table in TABLES.items() if table.about_readers}
    versions, reader_suffixes = read_newest_versions(Lake(home / "lake")), ("_log_audit", "_rebuilt")
    return {
        name: version
        for name, version in versions.items()
        if name not in about_readers and not name.endswith(reader_suffixes)
    }


def test_every_command_is_listed_once() -> None:
    """A new command must be classified here, and a refused one is declared with the commands."""
    assert isinstance(program, click.Group)
    paths = paths_of(program)
    assert paths - REFUSED.keys() - LETS.keys() - GO_ON == set()
    assert REFUSED.keys() | LETS.keys() | GO_ON == paths
    assert REFUSED.keys() & LETS.keys() == set()


@pytest.mark.parametrize("options", [(), (WRITE_TO_OBSERVED_OPTION,)], ids=["", "with the option"])
@pytest.mark.parametrize(
    ("path", "words"),
    [*REFUSED.items(), *((path, words) for path, alternatives in MORE_REFUSED.items() for words in alternatives)],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_commands_that_create_facts_are_refused(
    path: str, words: tuple[str, ...], options: tuple[str, ...], mirror: Path
) -> None:
    """Exit code 2, one line with the reason and the remedy, no option that permits it, and no write."""
    before = read_newest_versions(Lake(mirror / "lake"))
    answer = run_on_mirror(mirror, *path.split(), *words, options=options)
    assert (answer.exit_code, answer.stdout) == (2, ""), answer
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith(f"error: {path}: this home mirrors the live cluster prod, ")
    assert f"cdc-platform --home {mirror.parents[1]} observe prod" in answer.stderr
    assert answer.stderr.endswith("[mirror]\n")
    assert read_newest_versions(Lake(mirror / "lake")) == before


@pytest.mark.parametrize(("path", "words"), LETS.items(), ids=LETS)
def test_reading_commands_write_no_fact(path: str, words: tuple[str, ...], mirror: Path) -> None:
    """The command is not refused because of the mirror, and the cluster's tables are unchanged."""
    before = read_cluster_versions(mirror)
    if "other" in words:
        run_on_mirror(mirror, "cluster", "add", *LETS["cluster add"])
    if "audit" in words:
        run_on_mirror(mirror, "consume", *LETS["consume"])
    answer = run_on_mirror(mirror, *path.split(), *words)
    assert answer.exit_code in (0, 1) or ELSEWHERE.get(path, "not there") in answer.stderr, answer
    assert "[mirror]" not in answer.stderr
    assert read_cluster_versions(mirror) == before
    refused = [line for line in lines_of(answer) if any(f" {word}" in line for word in ("expire", "tables ", "--run"))]
    assert [line for line in refused if "--dry-run" not in line] == []


@pytest.mark.parametrize(("path", "words"), DRY_RUNS.items(), ids=DRY_RUNS)
def test_dry_runs_report_their_plan_without_a_refused_command(path: str, words: tuple[str, ...], mirror: Path) -> None:
    """A dry run answers as in any home; the remaining steps are for the cluster."""
    before = read_newest_versions(Lake(mirror / "lake"))
    answer = run_on_mirror(mirror, *path.split(), *words)
    assert answer.exit_code in (0, 1), answer
    remaining = LEAVES[path].format(around=mirror.parents[1]) if path in LEAVES else ""
    assert [remaining in line for line in lines_of(answer)] == [True] * (path in LEAVES)
    assert read_newest_versions(Lake(mirror / "lake")) == before


def find_commands(answer: Answer) -> list[str]:
    """Return the commands that an answer names, each up to the end of its words."""
    text = " ".join(f"{answer.stdout} {answer.stderr}".replace("│", " ").split())
    return [command.removesuffix(".") for command in _ADVICE.findall(text)]


def is_refused_here(home: Path, command: str) -> bool:
    """Return True if a home refuses a command that an answer names."""
    assert isinstance(program, click.Group)
    return find_write_refusal(program, ["--home", str(home), *command.split()]) is not None


@pytest.mark.parametrize("observed", [True, False], ids=["observed", "never observed"])
def test_no_answer_names_a_refused_command(mirror: Path, tmp_path: Path, observed: bool) -> None:
    """Every command that an answer advises, also about missing targets, is permitted in the mirror."""
    shutil.copytree(mirror.parents[2], tmp_path / "place")
    home = tmp_path / "place" / "main" / "clusters" / "prod"
    if not observed:
        shutil.rmtree(home / "lake")
    requests = [(path, words) for group in (LETS, DRY_RUNS, ASKED_WRONGLY) for path, words in group.items()]
    requests += [("tablets show", ("ks.none",)), ("expire", ("--cql",)), ("streams", ("latest",))]
    refused, count = [], 0
    for path, words in requests:
        answer = run_on_mirror(home, *path.split(), *words)
        commands = find_commands(answer)
        count += len(commands)
        refused += [(path, words, command) for command in commands if is_refused_here(home, command)]
    assert refused == []
    assert count > 10


def test_a_copy_of_the_mirror_is_no_mirror(mirror: Path, tmp_path: Path) -> None:
    """In a copy made by `home copy`, which is no mirror, the refused commands succeed."""
    assert run_on_mirror(mirror, "home", "copy", str(mirror), str(tmp_path / "copy")).exit_code == 0
    for words in (["expire"], ["tables", "alter", "ks.t", "--ttl", "5"], ["bootstrap", "{place}/node.json"]):
        base = mirror.parents[2]
        result = run("--home", tmp_path / "copy", "--clock", iso(NOW_MS), *(word.format(place=base) for word in words))
        assert result.exit_code == 0, result


def test_status_advises_no_refused_command(mirror: Path) -> None:
    """No advice of `status` is refused here."""
    alerts = run_on_mirror(mirror, "status", "--json").json["alerts"]
    assert alerts
    for alert in alerts:
        assert not any(
            word in f"{alert['command']} {alert['advice']}"
            for word in ("expire", "tables", "import", "--run", "bootstrap")
        ), alert


def test_an_empty_mirror_advises_to_observe(tmp_path: Path) -> None:
    """The advice for an empty mirror is `observe`."""
    cluster = registry.add_cluster(open_home_location(tmp_path), "prod", Connection(contacts=("127.0.0.1:1",)))
    alerts = run("--home", cluster.home, "status", "--json").json["alerts"]
    assert [(alert["code"], alert["command"]) for alert in alerts] == [
        ("empty-home", f"cdc-platform --home {tmp_path} observe prod")
    ]


def test_the_lake_checks_each_table(mirror: Path, tmp_path: Path) -> None:
    """For every declared table, a log and a reader's copy, only an observed write may change facts."""
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


def test_every_way_of_writing_is_refused(mirror: Path) -> None:
    """The lake refuses each of its own methods."""
    lake, before = Lake(mirror / "lake"), read_newest_versions(Lake(mirror / "lake"))
    for attempt in ways_of_writing(lake):
        with pytest.raises(HomeIsMirror):
            attempt()
    assert read_newest_versions(Lake(mirror / "lake")) == before


@pytest.mark.parametrize("name", sorted(set(ticks()) - READ_ON))
def test_a_tick_that_would_write_requests_no_run(name: str, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sensor and schedule whose runs would be refused skips with the reason."""
    monkeypatch.setenv(HOME_VARIABLE, str(mirror))
    answer = answer_of(name)
    assert isinstance(answer, SkipReason)
    assert (answer.skip_message or "").startswith("this home mirrors the live cluster prod")


def test_reading_ticks_exist() -> None:
    """Ticks that read or serve readers are listed, so a new one must be classified."""
    assert set(ticks()) >= READ_ON


@pytest.mark.parametrize("name", ["plan_expiry", "expire", "check_and_repair_streams"])
def test_a_manually_started_job_fails(name: str, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first commit is refused, and no table has a new version."""
    monkeypatch.setenv(HOME_VARIABLE, str(mirror))
    before = read_newest_versions(Lake(mirror / "lake"))
    with DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def(name).execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    assert read_newest_versions(Lake(mirror / "lake")) == before
