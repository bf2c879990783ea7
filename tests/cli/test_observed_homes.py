"""A home that is only observed: writing commands are refused, reading ones answer, and Dagster requests no run.

An import of streams with a missing row marks the home.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest
from dagster import SkipReason
from support.command_line import paths_of, run
from support.files.export_files import ID, SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv
from support.homes.guarded import answer_of, ticks, ways_of_writing

from cdc_platform.cli import program
from cdc_platform.cli.commands import COMMANDS
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake, get_home_mode, lift_observed_mark
from cdc_platform.delta.home_mode import HomeIsObserved
from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.tables import GENERATIONS, TABLES

BUILDING = {
    "demo": (),
    "bootstrap": ("{node}",),
    "rewrite": (),
    "repair": (),
    "expire": (),
    "consume": ("ks.t", "--name", "a"),
    "consumers remove": ("a", "ks.t"),
    "log-writes": ("ks.t", "{node}", "--batch", "a"),
    "rebuild": ("ks.t",),
    "switch ack": (ID, "--node", ID),
    "switch commit": (ID,),
    "switch abort": (ID,),
    "tablets create": ("ks.t", "--count", "2"),
    "tablets split": ("ks.t", "--count", "2"),
    "tablets merge": ("ks.t", "--count", "2"),
    "tablets resize": ("ks.t", "--last-tokens", "{node}"),
    "tablets gc": (),
    "cql run": ("{node}", "--apply"),
}
"""Every command that writes, with valid arguments."""
LOOKING = {
    *(
        "up",
        "doctor",
        "import",
        "export",
        "observe",
        "ingest",
        "status",
        "metrics",
        "watch",
        "generations",
        "help",
        "log",
        "streams",
        "ring",
        "history",
        "diff",
    ),
    *("explain", "check", "rehearse", "sql", "bundle", "completion", "consumers", "switch show", "tablets show"),
    *("simulate",),
    *(
        "verify-interval",
        "consumers plan",
        "consumers lag",
        "consumers checkpoints",
        "consumers gaps",
        "report",
        "home copy",
        "home maintain",
        "home migrate",
    ),
    *("tables", "tables add", "tables declare-none", "tables alter", "tables drop"),
    *("cluster", "cluster add", "cluster list", "cluster test", "cluster remove", "cluster replace"),
}
"""Every command that reads or checks a cluster, accepts facts of it, or writes to a live cluster's own home."""
LOOKING_TICKS = {
    "alerts",
    "failed_runs",
    "recovered_runs",
    "catalogue",
    "changed_clusters",
    "changed_logs",
    "hourly_audit_of_tables",
    "daily_maintenance",
    "ingest_lags",
    "live_logs",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that is only observed."""
    folder = tmp_path_factory.mktemp("observed")
    (folder / "ring.json").write_text(json.dumps(SNAPSHOT))
    (folder / "node.json").write_text(json.dumps(SNAPSHOT[0] | {"host_id": ID, "tokens": [7]}))
    (folder / "t.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    (folder / "s.csv").write_text(streams_csv({TIME_MS: generation()}, skip=frozenset([2])), newline="")
    files = [folder / name for name in ("ring.json", "t.csv", "s.csv")]
    assert run("--home", folder / "home", "import", "--allow-incomplete", *files).exit_code == 0
    return folder / "home"


def read_versions(home: Path) -> dict[str, int | None]:
    """Return the version of every table."""
    lake = Lake(home / "lake")
    return {name: lake.version(table) for name, table in TABLES.items()}


def test_every_command_writes_or_reads() -> None:
    """A new command must be classified here; the two sets are disjoint."""
    assert isinstance(program, click.Group)
    paths = paths_of(program)
    assert {path.split()[0] for path in paths} == set(COMMANDS)
    assert paths - BUILDING.keys() - LOOKING == set()
    assert BUILDING.keys() & LOOKING == set()


@pytest.mark.parametrize("path", BUILDING)
def test_a_writing_command_is_refused(path: str, home: Path) -> None:
    """Exit code 2, one line with the reason and the remedy, and no write."""
    before = read_versions(home)
    arguments = [word.format(node=home.parent / "node.json") for word in BUILDING[path]]
    answer = run("--home", home, *path.split(), *arguments)
    assert (answer.exit_code, answer.stdout) == (2, ""), answer
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith(f"error: {path}: this home is only observed since")
    assert "cdc-platform --write-to-observed" in answer.stderr
    assert read_versions(home) == before


@pytest.mark.parametrize("path", ["rewrite", "repair", "expire", "tablets gc"])
def test_a_dry_run_is_permitted(path: str, home: Path) -> None:
    """With --dry-run nothing is written, so nothing is refused."""
    before = read_versions(home)
    assert "only observed" not in run("--home", home, *path.split(), "--dry-run").stderr
    assert read_versions(home) == before


@pytest.mark.parametrize("command", [("generations",), ("ring",), ("status",), ("explain", "--token", "5"), ("check",)])
def test_a_reading_command_answers(command: tuple[str, ...], home: Path) -> None:
    """A damaged home can be read."""
    assert run("--home", home, *command).exit_code in (0, 1)


def test_every_commit_is_refused(home: Path) -> None:
    """The lake itself refuses every write, with Spark or without, also those that no command makes."""
    lake, before = Lake(home / "lake"), read_versions(home)
    for attempt in ways_of_writing(lake):
        with pytest.raises(HomeIsObserved):
            attempt()
    assert read_versions(home) == before


@pytest.mark.parametrize("name", sorted(set(ticks()) - LOOKING_TICKS))
def test_a_tick_requests_no_run(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sensor and schedule whose runs would write skips with the reason."""
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    answer = answer_of(name)
    assert isinstance(answer, SkipReason)
    assert "only observed since" in (answer.skip_message or "")


def test_reading_ticks_exist() -> None:
    """Ticks that only report or check are listed, so a new one must be classified."""
    assert set(ticks()) >= LOOKING_TICKS


def test_the_mark_is_lifted_once(home: Path, tmp_path: Path) -> None:
    """Lifting reports whether a mark existed; afterwards the lake accepts commits."""
    shutil.copytree(home / "lake", tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    assert lift_observed_mark(lake, Clock())
    assert get_home_mode(lake).observed is None
    assert not lift_observed_mark(lake, Clock())
    lake.ensure(GENERATIONS)
