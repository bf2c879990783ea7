"""What a command leaves to do it says: a last line with the command that goes on, which is there to be run.

Every command of the program stands here once: with what it leaves and who shows it, or as one that leaves nothing.
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
    """A command that leaves something: made by `make` in a folder, which answers with what it said; what is next."""

    name: str
    make: Callable[[Path], Answer]
    following: tuple[str, ...]


def at(home: Path, ms: int, *args: str | Path) -> Answer:
    """The program on a home at a time (ms)."""
    return run("--home", home, "--clock", iso(Milliseconds(ms)), *args)


def asks(name: str, *args: str, ms: int = AT_MS) -> Callable[[Path], Answer]:
    """A command on the home of a page of questions; `{place}` in its words is the folder beside that home."""

    def make(folder: Path) -> Answer:
        place = home_for(folder, name)
        return at(place / HOME, ms, *(each.format(place=place) for each in args))

    return make


def with_orders(*args: str) -> Callable[[Path], Answer]:
    """A command on a home whose log of `shop.orders` has a row."""

    def make(folder: Path) -> Answer:
        place = home_for(folder, "just booted")
        write_files(place / "files", place)
        applied = at(place / HOME, LATER_MS, "cql", "run", str(place / "files" / "orders.cql"), "--apply")
        assert applied.exit_code == 0, applied
        return at(place / HOME, LATER_MS, *(each.format(place=place / "files") for each in args))

    return make


def queues(*args: str | Path) -> Callable[[Path], Answer]:
    """A node is queued, and then these words are asked, if there are any."""

    def make(folder: Path) -> Answer:
        queued = at(folder / "home", START_MS, "bootstrap", NODE)
        return at(folder / "home", START_MS, *args) if args else queued

    return make


def imports(folder: Path) -> Answer:
    """A generation without one of its rows is taken in as it is."""
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


def expires(*args: str, times: int = 1) -> Callable[[Path], Answer]:
    """Generations that no log needs, a month later."""

    def make(folder: Path) -> Answer:
        home = import_generations(folder)
        add_table(Lake(home / "lake"), 86_400)
        return [at(home, START_MS + 30 * DAY_MS, "expire", *args) for _ in range(times)][-1]

    return make


def switches(*args: str, answered: int = 0, seconds: int = 1) -> Callable[[Path], Answer]:
    """A switch that is prepared and that so many of its three participants have acknowledged."""

    def make(folder: Path) -> Answer:
        home = folder / "home"
        generation_id = switching(Lake(open_home_location(home).lake), answered)
        words = {"id": generation_id, "host": host(answered + 1) if answered < 3 else ""}
        return at(home, NOON_MS + seconds * 1000, *(each.format(**words) for each in args))

    return make


def cluster(*args: str) -> Callable[[Path], Answer]:
    """A cluster that nobody answers for is told of, and then these words are asked."""

    def make(folder: Path) -> Answer:
        added = run("--home", folder / "home", "cluster", "add", "prod", "--contact", "127.0.0.1:1")
        return run("--home", folder / "home", *args) if args else added

    return make


def checks(folder: Path) -> Answer:
    """A ring that the generation does not fit."""
    return at(home_for(folder, "nodes left") / HOME, AT_MS, "check")


def rehearses(folder: Path) -> Answer:
    """A join that makes a generation."""
    place = home_for(folder, "just booted")
    (place / "steps.json").write_text('[{"add": {"num_tokens": 4, "shard_count": 2}}]', encoding="utf-8")
    return at(place / HOME, AT_MS, "rehearse", place / "steps.json")


def left_by_others(folder: Path) -> Answer:
    """A file that no commit has named for longer than a week."""
    home = home_for(folder, "just booted") / HOME
    strange = home / "lake" / "platform" / "nodes" / "strange.parquet"
    strange.touch()
    os.utime(strange, (0, 0))
    return run("--home", home, "home", "maintain", "--dry-run")


LEAVING = [
    Leaves("bootstrap", queues(), ("bootstrap --finish",)),
    Leaves("bootstrap", queues("bootstrap", "--list"), ("bootstrap --finish",)),
    Leaves("import", imports, ("check",)),
    Leaves("repair", asks("nodes left", "repair"), ("repair --run",)),
    Leaves("repair", asks("nodes left", "repair", "--dry-run"), ("repair --run",)),
    Leaves("repair", asks("nodes left", "repair", "--dry-run", "--strict"), ("repair --run --strict",)),
    Leaves("rewrite", asks("half rewritten", "rewrite", "--dry-run"), ("rewrite",)),
    Leaves("rewrite", asks("half rewritten", "rewrite", "--dry-run", "--force"), ("rewrite --force",)),
    Leaves("rewrite", asks("half rewritten", "rewrite", "--clients"), ("rewrite --dry-run",)),
    Leaves("expire", expires(), ("expire",)),
    Leaves("expire", expires("--dry-run"), ("expire",)),
    Leaves("expire", asks("empty cluster", "expire", "--forecast", "3"), ("tables declare-none",)),
    Leaves(
        "tablets gc",
        asks("stream history", "tablets", "gc", "--dry-run", ms=1_785_000_000_000),
        ("tablets gc",),
    ),
    Leaves(
        "tablets gc",
        asks("stream history", "tablets", "gc", "shop.orders", "--dry-run", "--ttl", "60", ms=1_785_000_000_000),
        ("tables alter shop.orders --ttl 60", "tablets gc shop.orders"),
    ),
    Leaves("switch show", switches("switch", "show", "{id}"), ("switch ack",)),
    Leaves("switch show", switches("switch", "show"), ("switch ack",)),
    Leaves("switch ack", switches("switch", "ack", "{id}", "--node", "{host}"), ("switch ack",)),
    Leaves("switch ack", switches("switch", "ack", "{id}", "--node", "{host}", answered=2), ("switch commit",)),
    Leaves("switch commit", switches("switch", "commit", "{id}", answered=3), ("bootstrap --finish",)),
    Leaves("switch abort", switches("switch", "abort", "{id}", seconds=30), ("bootstrap --withdraw",)),
    Leaves(
        "cql run",
        asks("expiring row", "cql", "run", "{place}/with-ttl.cql", ms=FIRST_MS + 60_000),
        ("cql run {place}/with-ttl.cql --apply",),
    ),
    Leaves(
        "cql run", asks("expiring row", "cql", "run", "{place}/with-ttl.cql", ms=FIRST_MS - 60_000), ("generations",)
    ),
    Leaves(
        "log-writes", with_orders("log-writes", "shop.orders", "{place}/writes.parquet", "--batch", "one"), ("log",)
    ),
    Leaves("rehearse", rehearses, ("simulate --join 1",)),
    Leaves("rebuild", with_orders("rebuild", "shop.orders"), ("sql",)),
    Leaves("consumers remove", asks("old generations", "consumers", "remove", "audit", "ks.orders"), ("expire",)),
    Leaves(
        "verify-interval",
        asks("lost batch", "verify-interval", "2023-11-14T22:20:00Z", "2023-11-16T22:20:00Z", "--consumer", "audit"),
        ("consume ks.t --name audit",),
    ),
    Leaves("bundle", asks("just booted", "bundle", "{place}/incident.tar.gz"), ("check",)),
    Leaves("home copy", asks("just booted", "home", "copy", "{place}/.cdc-platform", "{place}/there"), ("status",)),
    Leaves("cluster add", cluster(), ("cluster test prod",)),
    Leaves("cluster test", cluster("cluster", "test", "prod"), ("cluster test prod",)),
    Leaves("cluster replace", cluster("cluster", "replace", "prod"), ("observe prod",)),
    Leaves(
        "report",
        asks("just booted", "report", "latest", "--html", "{place}/a page.html"),
        ("report --verify",),
    ),
    Leaves("check", checks, ("repair",)),
    Leaves("home maintain", left_by_others, ("home maintain",)),
]
"""What each command leaves in some home; `{place}` is a folder that only the run knows."""
ELSEWHERE = {
    "observe": ("tests/scylla/test_observe.py", "lines_of(answer)"),
    "status": ("tests/reporting/test_status.py", 'answer.json["alerts"]'),
    "export": ("tests/scylla/test_export_into_cluster.py", 'dry.json["next"]'),
    "demo": ("tests/cli/test_demo.py", "What to try next"),
}
"""What leaves something and is shown by other tests: it asks a live cluster, or has words of its own for it."""
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
"""What is done when it is done, or only shows."""


def test_every_command_leaves_something_or_nothing() -> None:
    """A new command has to say which it is, a new `--dry-run` what it leaves; no command is both."""
    assert isinstance(program, click.Group)
    leaving = {each.name for each in LEAVING}
    there = paths_of(program)
    assert there - leaving - ELSEWHERE.keys() - NOTHING == set()
    assert leaving & NOTHING == NOTHING - there == set()
    root = Path(__file__).resolve().parents[2]
    assert all(words in (root / test).read_text(encoding="utf-8") for test, words in ELSEWHERE.values())


@pytest.mark.parametrize("left", LEAVING, ids=lambda left: f"{left.name} - {left.following[0]}")
def test_what_is_left_is_said_and_can_be_run(left: Leaves, tmp_path: Path) -> None:
    """As many lines as there are things to do, each a command that exists and takes its words, on the same home."""
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
    """The commands that can only say what they would do."""
    if isinstance(command, click.Group):
        inner = ((name, command.get_command(click.Context(command), name)) for name in command.commands or ())
        return {found for name, each in inner if each for found in dry_runs(each, f"{path} {name}".strip())}
    return {path} if any("--dry-run" in each.opts for each in command.params) else set()


def test_every_dry_run_is_among_them() -> None:
    """Each `--dry-run` that there is stands in a case."""
    assert isinstance(program, click.Group)
    context = click.Context(program)
    top = ((name, program.get_command(context, name)) for name in program.list_commands(context))
    assert {found for name, each in top if each for found in dry_runs(each, name)} == {
        "expire",
        "export",
        "repair",
        "rewrite",
        "tablets gc",
        "home maintain",
    }


def test_json_has_what_is_left(tmp_path: Path) -> None:
    """Every document has it in `next`, with the command and what for."""
    home = home_for(tmp_path, "nodes left") / HOME
    told = at(home, AT_MS, "repair", "--dry-run", "--json")
    assert told.json["next"] == [{"command": f"cdc-platform --home {home} repair --run", "why": None}]
    listed = at(home, AT_MS, "check", "--json")
    assert [path_of(words_of(step["command"])) for step in listed.json["next"]] == ["repair"]
    assert not any("next: " in answer.stdout + answer.stderr for answer in (told, listed))


def test_what_is_done_leaves_no_line(tmp_path: Path) -> None:
    """A join that was taken back, a second run that marks nothing, a plan that removes nothing."""
    home = tmp_path / "home"
    event = at(home, START_MS, "bootstrap", NODE, "--json").json["event_id"]
    assert lines_of(at(home, START_MS, "bootstrap", "--withdraw", event)) == []
    (tmp_path / "others").mkdir()
    assert lines_of(expires(times=2)(tmp_path / "others")) == []
    assert lines_of(asks("just booted", "repair", "--dry-run")(tmp_path)) == []
    assert lines_of(asks("stream history", "tablets", "gc", "--dry-run", ms=1_769_950_000_000)(tmp_path)) == []


def test_what_would_be_refused_is_not_what_is_next(tmp_path: Path) -> None:
    """On a home that is only observed nothing is built: what lifts that is next."""
    home = home_for(tmp_path, "nodes left") / HOME
    observed_home.mark_as_observed(Lake(home / "lake"), Clock(), ["a row is missing"])
    dry = at(home, AT_MS, "repair", "--dry-run")
    assert dry.exit_code == 1, dry
    assert [path_of(words_of(line)) for line in lines_of(dry)] == ["check"]


def test_a_line_without_a_home_named_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes by the environment goes on by it."""
    monkeypatch.setenv("CDC_PLATFORM_HOME", str(tmp_path / "home"))
    (line,) = lines_of(run("bootstrap", NODE))
    assert line.startswith("cdc-platform bootstrap --finish ")


def test_the_lines_of_a_switch_lead_to_its_commit(tmp_path: Path) -> None:
    """Each is run as it stands, until none is an answer; the last is the commit."""
    home = home_of(tmp_path, "undecided")
    generation = run("--home", home, "switch", "show", "--json").rows[0]["generation_id"]
    seen = lines_of(at(home, FIRST_MS + 1, "switch", "show", generation))
    while " switch ack " in seen[0]:
        before = seen
        seen = lines_of(run("--clock", iso(Milliseconds(FIRST_MS + 1)), *words_of(seen[0])))
        assert seen != before
    assert seen == [f"cdc-platform --home {home} switch commit {generation}"]


def test_an_aborted_join_is_taken_back(tmp_path: Path) -> None:
    """It cannot be finished: the line that abort prints, run, leaves the inbox empty of it."""
    (line,) = lines_of(switches("switch", "abort", "{id}", seconds=30)(tmp_path))
    assert run(*words_of(line)).exit_code == 0
    assert lines_of(run("--home", tmp_path / "home", "bootstrap", "--list")) == []
