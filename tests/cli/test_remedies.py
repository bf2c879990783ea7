"""Advice ends: whoever runs what `status` and `check` advise resolves a finding, or learns that a person is needed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from support.command_line import Answer, paths_of, run
from support.homes.damaged import DAMAGES, TABLE_NAMES, folder_of, healthy_home
from support.homes.questions import HOME, PROBLEMS, home_for
from support.homes.timelines import FIRST_MS, HOMES, home_of
from support.next_lines import lines_of, path_of, words_of

from cdc_platform.cli import program
from cdc_platform.cli.commands import PROGRAM_NAME
from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.tables import ONLY_OBSERVED

_DAY_MS = 86_400_000
DAMAGED_AT = "2026-11-01T14:00:15Z"
_LATER = "2026-02-05T00:00:00Z"
_ROUNDS = 6
STATES_A_FACT = frozenset(
    {
        "tables add",
        "tables alter",
        "tables drop",
        "tables declare-none",
        "consumers remove",
        "cluster remove",
        "cluster replace",
    }
)
"""Commands that state a fact or discard something: a sentence may name them, and no advice is such a command alone."""
HAS_OPTIONS_THAT_DO = frozenset({"--accept", "--undo", "--withdraw"})

MAKERS: dict[str, tuple[Callable[[Path], Path], str]] = {
    **{
        name: (
            lambda folder, name=name: home_for(folder, name) / HOME,
            _LATER
            if name in ("stream history", "tablets split", "old generations")
            else format_ms(Milliseconds(FIRST_MS + _DAY_MS)),
        )
        for name in PROBLEMS
    },
    **{
        f"timeline {name}": (
            lambda folder, name=name: home_of(folder, name),
            format_ms(Milliseconds(FIRST_MS + _DAY_MS)),
        )
        for name in HOMES
    },
}


def asked(home: Path, clock: str, *words: str) -> Answer:
    """Run a command on the home at that time."""
    return run("--home", home, "--clock", clock, *words)


def findings(home: Path, clock: str) -> tuple[dict[str, str | None], dict[str, bool], list[str]]:
    """Run `check` and then `status`, which knows what that found, and return what is open, in three parts.

    The matters of `status`, each with its command or None where a person is needed; the failed invariants, each with
    whether `check` asks for a person; the commands that `check` advises.
    """
    check, status = asked(home, clock, "check", "--json"), asked(home, clock, "status", "--json")
    assert check.exit_code in (0, 1, 2), check
    assert status.exit_code in (0, 1), status
    alerts = status.json["alerts"]
    matters = {f"{each['code']}: {each['message']}": each["command"] for each in alerts}
    commands_named(alerts)
    for each in alerts:
        assert each["advice"] is None or not each["advice"].startswith("cdc-platform"), each
    if check.exit_code == 2:  # there is nothing to judge, which status must know as well
        assert not any("check" in (each or "") for each in matters.values()), (matters, check)
        return matters, {}, []
    by_hand = re.findall(r"^warning: (.*): no command resolves this by itself", check.stderr, flags=re.MULTILINE)
    named = {name for line in by_hand for name in line.split(", ")}
    failed = {
        line["invariant"]: line["invariant"] in named
        for line in check.rows
        if line["passed"] is False and not line["sample"].startswith("not judged")
    }
    return matters, failed, lines_of(check)


def assert_safe(line: str, home: Path) -> list[str]:
    """Hold that a line is a command of the program on this home, complete, that states no fact; return its words."""
    option, place, *words = words_of(line)
    assert (option, place) == ("--home", str(home)), line
    path = path_of(words)
    assert path not in STATES_A_FACT, line
    assert HAS_OPTIONS_THAT_DO.isdisjoint(words) or path == "bootstrap", line
    return words


@pytest.mark.grid("advice in homes", 16)
@pytest.mark.parametrize("name", MAKERS)
def test_advice_leads_to_an_end(name: str, tmp_path: Path) -> None:
    """Each advised command runs; in the end no finding is left for which nothing but a command was named."""
    make, clock = MAKERS[name]
    home = make(tmp_path)
    assert_ends(home, clock)


@pytest.mark.grid("advice in damaged homes", 2)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", TABLE_NAMES)
def test_advice_about_damage_leads_to_an_end(healthy: Path, tmp_path: Path, table: str, damage: str) -> None:
    """The same for every kind of damage to every table: files are restored, or the line says that they stay damaged."""
    home = shutil.copytree(healthy, tmp_path / "home")
    if not DAMAGES[damage](folder_of(home, table)):
        pytest.skip(f"{table} has nothing for {damage}")
    assert_ends(home, DAMAGED_AT, table)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which every check holds, with rows in all tables."""
    return healthy_home(tmp_path_factory.mktemp("healthy"))


def lasting(matters: dict[str, str | None]) -> dict[str, str | None]:
    """Return the matters without what each `check` and each commit changes: the times and the counts of judgements."""
    return {
        said.partition(" at ")[0] if said.startswith("check-failed: ") else said.partition(": written ")[0]: do
        for said, do in matters.items()
    }


def assert_ends(home: Path, clock: str, damaged: str | None = None) -> None:
    """Follow all advice until nothing changes; hold that whatever is left then asks for a person.

    A command may be refused over the table that is `damaged`, which it names. The work that led to it stays then.
    """
    before, by_hand, stopped = None, set[str](), set[str | None]()
    for _ in range(_ROUNDS):
        matters, failed, advised = findings(home, clock)
        first = [line for line in matters.values() if line is not None] + advised
        if (now := (lasting(matters), failed)) == before or not first:
            break
        before, done = now, {shlex.join([PROGRAM_NAME, "--home", str(home), "check"])}  # which `findings` has run
        waiting, stopped = [(line, line) for line in first], set()
        while waiting:
            line, led_by = waiting.pop(0)
            if line in done or line.startswith("nodetool") or (damaged and line.endswith("# after that")):
                continue
            done.add(line)
            answer = asked(home, clock, *assert_safe(line, home))
            refused = damaged is not None and damaged in answer.stderr  # the damage, which `check` names, comes first
            assert answer.exit_code in ((0, 1, 2) if refused else (0, 1)), (line, answer)
            if refused and answer.exit_code:
                stopped.add(led_by)
            if any(text.endswith("[stays-damaged]") for text in answer.stderr.splitlines()):
                by_hand |= {"files_whole", "rows_as_committed"}
            following = lines_of(answer)
            # `check`, which names the damage, replaces a command that the mark of an observed home would refuse.
            if damaged == ONLY_OBSERVED.full_name and any(path_of(words_of(each)[2:]) == "check" for each in following):
                stopped.add(led_by)
            waiting += [(each, led_by) for each in following]
    else:
        matters, failed, _ = findings(home, clock)
    circles = {
        said: do
        for said, do in matters.items()
        if do is not None and path_of(words_of(do)[2:]) != "check" and do not in stopped
    }
    assert circles == {}
    assert [each for each, by_person in failed.items() if not by_person and each not in by_hand] == []


def commands_named(matters: list[dict[str, Any]]) -> list[str]:
    """Return the commands that sentences for a person name in passing; hold that the program has each of them."""
    assert isinstance(program, click.Group)
    known, named = paths_of(program), []
    for each in matters:
        named += re.findall(r"cdc-platform [^,;:()]+", each["advice"] or "")
    for command in named:
        words = words_of(command)[2:]
        assert {words[0], " ".join(words[:2])} & known, command
    return named


def test_sentences_name_commands_that_exist(tmp_path: Path) -> None:
    """In every home, as `findings` holds; in those of timelines there are some."""
    named: list[str] = []
    for name in HOMES:
        make, clock = MAKERS[f"timeline {name}"]
        (tmp_path / name).mkdir()
        named += commands_named(asked(make(tmp_path / name), clock, "status", "--json").json["alerts"])
    assert len(named) > 10
