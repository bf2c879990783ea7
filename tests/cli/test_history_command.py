"""The command `history`: from a generation to its commits and its run, and back from the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from support.command_line import run
from support.nodes import node_text

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.delta import CommitAuthor, Lake, TaskRunner, commit_as
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATION_TIMESTAMPS
from cdc_platform.timeline import GenerationKeys

NOON = Clock(parse_time_us("2026-01-31T12:00:00Z"))
RUN = "2f9c2f6e-2b5e-4e0c-9d1c-9c1f3f0a7c11"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two queued nodes, the first of them joined by a Dagster run."""
    lake = Lake(tmp_path / "home" / "lake")
    for number in (1, 2):
        with commit_as(CommitAuthor("a test", "queueing")):
            inbox.queue_join(lake, NOON, parse_join_request(node_text(number), "a test"))
    first = GenerationKeys.read(lake).joins[0].generation_id
    with commit_as(CommitAuthor("Dagster", "join", RUN)):
        run_join(_refuse_spark(), lake, NOON, Settings(), first)
    return tmp_path / "home"


def _refuse_spark() -> TaskRunner:
    def refuse() -> NoReturn:
        raise AssertionError("a small join needs no Spark")

    return TaskRunner(refuse)


def test_a_generation_leads_to_its_run_and_back(home: Path) -> None:
    """Each row of a generation names its commit and run; the run lists those commits, and no other generation."""
    first, second = GenerationKeys.read(Lake(home / "lake")).joins
    rows = run("--home", home, "history", first.key, "--json").rows
    assert rows == run("--home", home, "history", first.generation_id[:8], "--json").rows
    assert rows == run("--home", home, "history", first.generation_id.upper(), "--json").rows
    written = {row["table"]: row for row in rows}
    assert written[BOOTSTRAP_EVENTS.full_name]["by"] == "a test queueing"
    assert written[BOOTSTRAP_EVENTS.full_name]["rows"] == 1
    commits_of_run = {(row["table"], row["version"]) for row in rows if row["run"] == RUN}
    assert GENERATION_TIMESTAMPS.full_name in {table for table, _ in commits_of_run}
    listed_by_run = {
        (row["table"], row["version"]) for row in run("--home", home, "history", "--run", RUN, "--json").rows
    }
    assert commits_of_run <= listed_by_run
    queued_rows = run("--home", home, "history", second.key, "--json").rows
    assert [(row["table"], row["run"]) for row in queued_rows] == [(BOOTSTRAP_EVENTS.full_name, None)]
    assert first.key in run("--home", home, "history", first.key).stdout


def test_a_withdrawn_generation_has_its_history(home: Path) -> None:
    """The history of a withdrawn generation has its queueing and its withdrawal."""
    lake = Lake(home / "lake")
    second = GenerationKeys.read(lake).joins[1]
    inbox.withdraw_event(lake, NOON, inbox.read_pending_events(lake)[0].event_id)
    rows = run("--home", home, "history", second.key, "--json").rows
    assert [row["rows"] for row in rows] == [1, 1]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["9_10.0.0.9_00000000"], "no join in the inbox creates generation"),
        (["nonsense"], "generations begin with"),
        (["2026-01-31T12:00:00.001Z"], "is known"),
        (["--run", "nobody"], "no table has a commit of run nobody"),
        ([], "name one of: a GENERATION"),
    ],
)
def test_unknown_names_are_refused(home: Path, asked: list[str], says: str) -> None:
    """An invalid name, and a run without a commit here, are refused in one line."""
    answer = run("--home", home, "history", *asked)
    assert answer.exit_code == 2
    assert says in answer.stderr
    assert json.dumps(answer.stdout) == '""'
