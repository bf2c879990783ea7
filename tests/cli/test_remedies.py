"""Following the advice of `status` and `check` resolves a finding, or shows that a person is needed."""

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
"""Commands that state a fact or discard data: a sentence may name them, but advice is never such a command alone."""
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


def run_on(home: Path, clock: str, *words: str) -> Answer:
    """Run a command on the home at that time."""
    return run("--home", home, "--clock", clock, *words)


def findings(home: Path, clock: str) -> tuple[dict[str, str | None], dict[str, bool], list[str]]:
    """Run `check` and then `status`, which uses its results, and return the open findings in three parts.

    The alerts of `status`, each with its command or None if a person is needed; the failed invariants, each with
    whether `check` asks for a person; the commands that `check` advises.
    """
    check, status = run_on(home, clock, "check", "--json"), run_on(home, clock, "status", "--json")
    assert check.exit_code in (0, 1, 2), check
    assert status.exit_code in (0, 1), status
    alerts = status.json["alerts"]
    open_alerts = {f"{alert['code']}: {alert['message']}": alert["command"] for alert in alerts}
    commands_named(alerts)
    for alert in alerts:
        assert alert["advice"] is None or not alert["advice"].startswith("cdc-platform"), alert
    if check.exit_code == 2:  # nothing to check, which status must report, too
        assert not any("check" in (alert or "") for alert in open_alerts.values()), (open_alerts, check)
        return open_alerts, {}, []
    manual_lines = re.findall(r"^warning: (.*): no command resolves this by itself", check.stderr, flags=re.MULTILINE)
    manual_invariants = {name for line in manual_lines for name in line.split(", ")}
    failed = {
        line["invariant"]: line["invariant"] in manual_invariants
        for line in check.rows
        if line["passed"] is False and not line["sample"].startswith("not judged")
    }
    return open_alerts, failed, lines_of(check)


def assert_safe(line: str, home: Path) -> list[str]:
    """Assert that a line is a complete command on this home that states no fact, and return its words."""
    option, home_option, *words = words_of(line)
    assert (option, home_option) == ("--home", str(home)), line
    path = path_of(words)
    assert path not in STATES_A_FACT, line
    assert HAS_OPTIONS_THAT_DO.isdisjoint(words) or path == "bootstrap", line
    return words


@pytest.mark.grid("advice in homes", 16)
@pytest.mark.parametrize("name", MAKERS)
def test_advice_resolves_findings(name: str, tmp_path: Path) -> None:
    """Each advised command runs, and each finding that remains asks for a person."""
    make, clock = MAKERS[name]
    home = make(tmp_path)
    assert_advice_ends(home, clock)


@pytest.mark.grid("advice in damaged homes", 2)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", TABLE_NAMES)
def test_advice_about_damage_resolves_findings(healthy: Path, tmp_path: Path, table: str, damage: str) -> None:
    """For every damage to every table, files are restored or reported as permanently damaged."""
    home = shutil.copytree(healthy, tmp_path / "home")
    if not DAMAGES[damage](folder_of(home, table)):
        pytest.skip(f"{table} has nothing for {damage}")
    assert_advice_ends(home, DAMAGED_AT, table)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which every check passes, with rows in all tables."""
    return healthy_home(tmp_path_factory.mktemp("healthy"))


def normalise_alerts(alerts: dict[str, str | None]) -> dict[str, str | None]:
    """Return the alerts without the times and counts that each `check` and each commit changes."""
    return {
        message.partition(" at ")[0]
        if message.startswith("check-failed: ")
        else message.partition(": written ")[0]: command
        for message, command in alerts.items()
    }


def assert_advice_ends(home: Path, clock: str, damaged: str | None = None) -> None:
    """Follow all advice until nothing changes, and assert that each remaining finding asks for a person.

    A command may be refused because of the table that is `damaged`, which its message names. Its alert then remains.
    """
    before, manual, stopped = None, set[str](), set[str | None]()
    for _ in range(_ROUNDS):
        alerts, failed, advised = findings(home, clock)
        first_lines = [line for line in alerts.values() if line is not None] + advised
        if (now := (normalise_alerts(alerts), failed)) == before or not first_lines:
            break
        before, completed = now, {shlex.join([PROGRAM_NAME, "--home", str(home), "check"])}  # which `findings` has run
        waiting, stopped = [(line, line) for line in first_lines], set()
        while waiting:
            line, led_by = waiting.pop(0)
            if line in completed or line.startswith("nodetool") or (damaged and line.endswith("# after that")):
                continue
            completed.add(line)
            answer = run_on(home, clock, *assert_safe(line, home))
            refused = damaged is not None and damaged in answer.stderr  # the damage, which `check` names, comes first
            assert answer.exit_code in ((0, 1, 2) if refused else (0, 1)), (line, answer)
            if refused and answer.exit_code:
                stopped.add(led_by)
            if any(text.endswith("[stays-damaged]") for text in answer.stderr.splitlines()):
                manual |= {"files_whole", "rows_as_committed"}
            next_lines = lines_of(answer)
            # `check`, which names the damage, replaces a command that the mark of an observed home would refuse.
            if damaged == ONLY_OBSERVED.full_name and any(
                path_of(words_of(line_or_invariant)[2:]) == "check" for line_or_invariant in next_lines
            ):
                stopped.add(led_by)
            waiting += [(line_or_invariant, led_by) for line_or_invariant in next_lines]
    else:
        alerts, failed, _ = findings(home, clock)
    unresolved = {
        message: command
        for message, command in alerts.items()
        if command is not None and path_of(words_of(command)[2:]) != "check" and command not in stopped
    }
    assert unresolved == {}
    assert [
        line_or_invariant
        for line_or_invariant, by_person in failed.items()
        if not by_person and line_or_invariant not in manual
    ] == []


def commands_named(alerts: list[dict[str, Any]]) -> list[str]:
    """Return the commands that sentences for a person mention, after an assertion that each exists."""
    assert isinstance(program, click.Group)
    known, named = paths_of(program), []
    for alert in alerts:
        named += re.findall(r"cdc-platform [^,;:()]+", alert["advice"] or "")
    for command in named:
        words = words_of(command)[2:]
        assert {words[0], " ".join(words[:2])} & known, command
    return named


def test_sentences_name_commands_that_exist(tmp_path: Path) -> None:
    """Every command that a sentence of `status` mentions exists; the homes of timelines have more than ten."""
    named: list[str] = []
    for name in HOMES:
        make, clock = MAKERS[f"timeline {name}"]
        (tmp_path / name).mkdir()
        named += commands_named(run_on(make(tmp_path / name), clock, "status", "--json").json["alerts"])
    assert len(named) > 10
