"""The next steps after a command: a last line with a command that can be run.

Every command of the program is listed here once: with its next step and the test that shows it, or without a next step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from support.command_line import Answer, paths_of, run
from support.files.export_files import SNAPSHOT, TIME_MS, generation, streams_csv, timestamps_csv
from support.homes.every_command import LATER_MS, write_files
from support.homes.expiring import DAY_MS, START_MS, add_table, import_generations, iso
from support.homes.questions import HOME, home_for
from support.homes.timelines import FIRST_MS, home_of
from support.next_lines import lines_of, path_of, words_of
from support.worlds.switch_lake import NOON_MS, host, switching

from cdc_platform.cli import program
from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.delta import Lake, observed_home
from cdc_platform.home_location import open_home_location

NODE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "node.json"
AT_MS = Milliseconds(FIRST_MS + DAY_MS)


@dataclass(frozen=True)
class Leaves:
    """A command with a next step: `make` runs it in a folder and returns its answer; `following` is next."""

    name: str
    make: Callable[[Path], Answer]
    following: tuple[str, ...]


def at(home: Path, ms: int, *args: str | Path) -> Answer:
    """Run the program on a home at a time (ms)."""
    return run("--home", home, "--clock", iso(Milliseconds(ms)), *args)


def ask_home(name: str, *args: str, ms: int = AT_MS) -> Callable[[Path], Answer]:
    """Return a run of a command on a named home; `{place}` in its words is the folder of that home."""

    def make(folder: Path) -> Answer:
        place = home_for(folder, name)
        return at(place / HOME, ms, *(word.format(place=place) for word in args))

    return make


def ask_with_orders(*args: str) -> Callable[[Path], Answer]:
    """Return a run of a command on a home whose log of `shop.orders` has a row."""

    def make(folder: Path) -> Answer:
        place = home_for(folder, "just booted")
        write_files(place / "files", place)
        applied = at(place / HOME, LATER_MS, "cql", "run", str(place / "files" / "orders.cql"), "--apply")
        assert applied.exit_code == 0, applied
        return at(place / HOME, LATER_MS, *(word.format(place=place / "files") for word in args))

    return make


def queue_and_ask(*args: str | Path) -> Callable[[Path], Answer]:
    """Return a run that queues a node and then runs these words, if any."""

    def make(folder: Path) -> Answer:
        queued = at(folder / "home", START_MS, "bootstrap", NODE)
        return at(folder / "home", START_MS, *args) if args else queued

    return make


def import_incomplete(folder: Path) -> Answer:
    """Import a generation without one of its rows."""
    (folder / "ring.json").write_text(json.dumps(SNAPSHOT))
    (folder / "t.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    (folder / "s.csv").write_text(streams_csv({TIME_MS: generation()}, skip=frozenset([2])), newline="")
    return run(
        "--home",
        folder / "home",
        "import",
        "--allow-incomplete",
        *(folder / n for n in ("ring.json", "t.csv", "s.csv")),
    )


def expire_old(*args: str, times: int = 1) -> Callable[[Path], Answer]:
    """Return runs of `expire` on generations that no log needs, a month later."""

    def make(folder: Path) -> Answer:
        home = import_generations(folder)
        add_table(Lake(home / "lake"), 86_400)
        return [at(home, START_MS + 30 * DAY_MS, "expire", *args) for _ in range(times)][-1]

    return make


def ask_switch(*args: str, answered: int = 0, seconds: int = 1) -> Callable[[Path], Answer]:
    """Return a run on a prepared switch that `answered` of its three participants have acknowledged."""

    def make(folder: Path) -> Answer:
        home = folder / "home"
        generation_id = switching(Lake(open_home_location(home).lake), answered)
        words = {"id": generation_id, "host": host(answered + 1) if answered < 3 else ""}
        return at(home, NOON_MS + seconds * 1000, *(word.format(**words) for word in args))

    return make


def ask_cluster(*args: str) -> Callable[[Path], Answer]:
    """Return a run that registers an unreachable cluster and then runs these words, if any."""

    def make(folder: Path) -> Answer:
        added = run("--home", folder / "home", "cluster", "add", "prod", "--contact", "127.0.0.1:1")
        return run("--home", folder / "home", *args) if args else added

    return make


def check_misfit(folder: Path) -> Answer:
    """Check a ring that the generation does not fit."""
    return at(home_for(folder, "nodes left") / HOME, AT_MS, "check")


def rehearse_join(folder: Path) -> Answer:
    """Rehearse a join that creates a generation."""
    place = home_for(folder, "just booted")
    (place / "steps.json").write_text('[{"add": {"num_tokens": 4, "shard_count": 2}}]', encoding="utf-8")
    return at(place / HOME, AT_MS, "rehearse", place / "steps.json")


def maintain_unnamed(folder: Path) -> Answer:
    """Run maintenance with a file that no commit has named for longer than a week."""
    home = home_for(folder, "just booted") / HOME
    unnamed = home / "lake" / "platform" / "nodes" / "strange.parquet"
    unnamed.touch()
    os.utime(unnamed, (0, 0))
    return run("--home", home, "home", "maintain", "--dry-run")


LEAVING = [
    Leaves("bootstrap", queue_and_ask(), ("bootstrap --finish",)),
    Leaves("bootstrap", queue_and_ask("bootstrap", "--list"), ("bootstrap --finish",)),
    Leaves("import", import_incomplete, ("check",)),
    Leaves("repair", ask_home("nodes left", "repair"), ("repair --run",)),
    Leaves("repair", ask_home("nodes left", "repair", "--dry-run"), ("repair --run",)),
    Leaves("repair", ask_home("nodes left", "repair", "--dry-run", "--strict"), ("repair --run --strict",)),
    Leaves("rewrite", ask_home("half rewritten", "rewrite", "--dry-run"), ("rewrite",)),
    Leaves("rewrite", ask_home("half rewritten", "rewrite", "--dry-run", "--force"), ("rewrite --force",)),
    Leaves("rewrite", ask_home("half rewritten", "rewrite", "--clients"), ("rewrite --dry-run",)),
    Leaves("expire", expire_old(), ("expire",)),
    Leaves("expire", expire_old("--dry-run"), ("expire",)),
    Leaves("expire", ask_home("empty cluster", "expire", "--forecast", "3"), ("tables declare-none",)),
    Leaves(
        "tablets gc",
        ask_home("stream history", "tablets", "gc", "--dry-run", ms=1_785_000_000_000),
        ("tablets gc",),
    ),
    Leaves(
        "tablets gc",
        ask_home("stream history", "tablets", "gc", "shop.orders", "--dry-run", "--ttl", "60", ms=1_785_000_000_000),
        ("tables alter shop.orders --ttl 60", "tablets gc shop.orders"),
    ),
    Leaves("switch show", ask_switch("switch", "show", "{id}"), ("switch ack",)),
    Leaves("switch show", ask_switch("switch", "show"), ("switch ack",)),
    Leaves("switch ack", ask_switch("switch", "ack", "{id}", "--node", "{host}"), ("switch ack",)),
    Leaves("switch ack", ask_switch("switch", "ack", "{id}", "--node", "{host}", answered=2), ("switch commit",)),
    Leaves("switch commit", ask_switch("switch", "commit", "{id}", answered=3), ("bootstrap --finish",)),
    Leaves("switch abort", ask_switch("switch", "abort", "{id}", seconds=30), ("bootstrap --withdraw",)),
    Leaves(
        "cql run",
        ask_home("expiring row", "cql", "run", "{place}/with-ttl.cql", ms=FIRST_MS + 60_000),
        ("cql run {place}/with-ttl.cql --apply",),
    ),
    Leaves(
        "cql run",
        ask_home("expiring row", "cql", "run", "{place}/with-ttl.cql", ms=FIRST_MS - 60_000),
        ("generations",),
    ),
    Leaves(
        "log-writes", ask_with_orders("log-writes", "shop.orders", "{place}/writes.parquet", "--batch", "one"), ("log",)
    ),
    Leaves("rehearse", rehearse_join, ("simulate --join 1",)),
    Leaves("rebuild", ask_with_orders("rebuild", "shop.orders"), ("sql",)),
    Leaves("consumers remove", ask_home("old generations", "consumers", "remove", "audit", "ks.orders"), ("expire",)),
    Leaves(
        "verify-interval",
        ask_home(
            "lost batch", "verify-interval", "2023-11-14T22:20:00Z", "2023-11-16T22:20:00Z", "--consumer", "audit"
        ),
        ("consume ks.t --name audit",),
    ),
    Leaves("bundle", ask_home("just booted", "bundle", "{place}/incident.tar.gz"), ("check",)),
    Leaves("home copy", ask_home("just booted", "home", "copy", "{place}/.cdc-platform", "{place}/there"), ("status",)),
    Leaves("cluster add", ask_cluster(), ("cluster test prod",)),
    Leaves("cluster test", ask_cluster("cluster", "test", "prod"), ("cluster test prod",)),
    Leaves("cluster replace", ask_cluster("cluster", "replace", "prod"), ("observe prod",)),
    Leaves(
        "report",
        ask_home("just booted", "report", "latest", "--html", "{place}/a page.html"),
        ("report --verify",),
    ),
    Leaves("check", check_misfit, ("repair",)),
    Leaves("home maintain", maintain_unnamed, ("home maintain",)),
]
"""The next steps of each command in some home; `{place}` is a folder that only the run knows."""
ELSEWHERE = {
    "observe": ("tests/scylla/test_observe.py", "lines_of(answer)"),
    "status": ("tests/reporting/test_status.py", 'answer.json["alerts"]'),
    "export": ("tests/scylla/test_export_into_cluster.py", 'dry.json["next"]'),
    "demo": ("tests/cli/test_demo.py", "What to try next"),
}
"""Commands with next steps in other tests: they need a live cluster, or have their own format."""
NOTHING = {
    *(
        "up",
        "watch",
        "ingest",
        "consume",
        "consumers",
        "consumers plan",
        "consumers lag",
        "consumers checkpoints",
        "consumers gaps",
    ),
    *("generations", "streams", "ring", "history", "diff", "explain", "sql", "completion", "doctor"),
    *("help", "home migrate", "log", "metrics", "simulate"),
    *("tables", "tables add", "tables alter", "tables drop", "tables declare-none", "cluster"),
    *("cluster remove", "tablets create", "tablets split", "tablets merge", "tablets resize", "tablets show"),
}
"""Commands that are complete when they end, or only read."""


def test_every_command_is_classified() -> None:
    """A new command must be classified here, a new `--dry-run` with its next step; no command is in both sets."""
    assert isinstance(program, click.Group)
    leaving = {case.name for case in LEAVING}
    paths = paths_of(program)
    assert paths - leaving - ELSEWHERE.keys() - NOTHING == set()
    assert leaving & NOTHING == NOTHING - paths == set()
    root = Path(__file__).resolve().parents[2]
    assert all(words in (root / test).read_text(encoding="utf-8") for test, words in ELSEWHERE.values())


@pytest.mark.parametrize("left", LEAVING, ids=lambda left: f"{left.name} - {left.following[0]}")
def test_every_next_step_is_printed_and_can_be_run(left: Leaves, tmp_path: Path) -> None:
    """Each next step is one line with an existing command that accepts its words, on that home."""
    answer = left.make(tmp_path)
    lines = lines_of(answer)
    assert len(lines) == len(left.following), answer
    for line, expected in zip(lines, left.following, strict=True):
        option, home, *words = words_of(line)
        assert (option, Path(home).is_dir()) == ("--home", True)
        expected_words = expected.format(place=Path(home).parent).split()
        assert words[: len(expected_words)] == expected_words
        assert words[: len(path_of(words).split())] == path_of(words).split()


def dry_runs(command: click.Command, path: str = "") -> set[str]:
    """Return the commands with a `--dry-run` option."""
    if isinstance(command, click.Group):
        inner = ((name, command.get_command(click.Context(command), name)) for name in command.commands or ())
        return {
            path_found
            for name, subcommand_or_option in inner
            if subcommand_or_option
            for path_found in dry_runs(subcommand_or_option, f"{path} {name}".strip())
        }
    return {path} if any("--dry-run" in subcommand_or_option.opts for subcommand_or_option in command.params) else set()


def test_every_dry_run_has_a_case() -> None:
    """Each `--dry-run` has a case above."""
    assert isinstance(program, click.Group)
    context = click.Context(program)
    top = ((name, program.get_command(context, name)) for name in program.list_commands(context))
    assert {path_found for name, command in top if command for path_found in dry_runs(command, name)} == {
        "expire",
        "export",
        "repair",
        "rewrite",
        "tablets gc",
        "home maintain",
    }


def test_json_has_the_next_steps(tmp_path: Path) -> None:
    """Every JSON document has `next`, with the command and its purpose."""
    home = home_for(tmp_path, "nodes left") / HOME
    planned = at(home, AT_MS, "repair", "--dry-run", "--json")
    assert planned.json["next"] == [{"command": f"cdc-platform --home {home} repair --run", "why": None}]
    listed = at(home, AT_MS, "check", "--json")
    assert [path_of(words_of(step["command"])) for step in listed.json["next"]] == ["repair"]
    assert not any("next: " in answer.stdout + answer.stderr for answer in (planned, listed))


def test_completed_work_has_no_next_step(tmp_path: Path) -> None:
    """A withdrawn join, a second run without marks, and an empty plan print no next step."""
    home = tmp_path / "home"
    event = at(home, START_MS, "bootstrap", NODE, "--json").json["event_id"]
    assert lines_of(at(home, START_MS, "bootstrap", "--withdraw", event)) == []
    (tmp_path / "others").mkdir()
    assert lines_of(expire_old(times=2)(tmp_path / "others")) == []
    assert lines_of(ask_home("just booted", "repair", "--dry-run")(tmp_path)) == []
    assert lines_of(ask_home("stream history", "tablets", "gc", "--dry-run", ms=1_769_950_000_000)(tmp_path)) == []


def test_a_refused_command_is_no_next_step(tmp_path: Path) -> None:
    """In an observed home, the next step is the command that lifts the mark."""
    home = home_for(tmp_path, "nodes left") / HOME
    observed_home.mark_as_observed(Lake(home / "lake"), Clock(), ["a row is missing"])
    dry = at(home, AT_MS, "repair", "--dry-run")
    assert dry.exit_code == 1, dry
    assert [path_of(words_of(line)) for line in lines_of(dry)] == ["check"]


def test_a_next_step_without_the_home_option_names_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who relies on the environment can continue to do so."""
    monkeypatch.setenv("CDC_PLATFORM_HOME", str(tmp_path / "home"))
    (line,) = lines_of(run("bootstrap", NODE))
    assert line.startswith("cdc-platform bootstrap --finish ")


def test_the_lines_of_a_switch_lead_to_its_commit(tmp_path: Path) -> None:
    """Each printed line is run unchanged, until all have acknowledged; the last is the commit."""
    home = home_of(tmp_path, "undecided")
    generation = run("--home", home, "switch", "show", "--json").rows[0]["generation_id"]
    lines = lines_of(at(home, FIRST_MS + 1, "switch", "show", generation))
    while " switch ack " in lines[0]:
        before = lines
        lines = lines_of(run("--clock", iso(Milliseconds(FIRST_MS + 1)), *words_of(lines[0])))
        assert lines != before
    assert lines == [f"cdc-platform --home {home} switch commit {generation}"]


def test_an_aborted_join_is_withdrawn(tmp_path: Path) -> None:
    """It cannot be finished: the line that `switch abort` prints removes it from the inbox."""
    (line,) = lines_of(ask_switch("switch", "abort", "{id}", seconds=30)(tmp_path))
    assert run(*words_of(line)).exit_code == 0
    assert lines_of(run("--home", tmp_path / "home", "bootstrap", "--list")) == []
