"""Races: eight commands begin at once on one home, and some sequential order must explain the result."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from support.command_line import run
from support.processes.nursery import Ended, Nursery
from support.processes.orders import some_order_explains

AT = "2026-01-01T00:00:00Z"
EIGHT = range(8)
_TOLD = ("warning: ", "WARNING cdc_platform.delta.locks: Waiting for process ")
"""Beginnings of lines that are no refusal."""
Command = tuple[str, ...]
State = Any


def race(nursery: Nursery, home: Path, commands: list[Command], clock: str = AT) -> list[Ended]:
    """Run the commands at once on a home; each must succeed or be refused in one line."""
    results = nursery.race([["--home", home, "--clock", clock, *command] for command in commands])
    for result in results:
        assert result.exit_code in (0, 2), result
        lines = [line for line in result.stderr.splitlines() if not line.startswith(_TOLD)]
        assert len(lines) == (result.exit_code == 2), result.stderr
        assert "moment" not in result.stderr, "nobody is refused for being late alone"
    return results


def explained(
    rule: Callable[[State, Command], tuple[State, bool]],
    before: Hashable,
    commands: list[Command],
    results: list[Ended],
    after: Hashable,
) -> bool:
    """Return True if some order of the commands gives their results and the final state."""
    outcomes = [(command, result.exit_code == 0) for command, result in zip(commands, results, strict=True)]
    return some_order_explains(rule, before, outcomes, after)


def do(home: Path, *command: str, clock: str = AT) -> None:
    """Run a command before the race."""
    answer = run("--home", home, "--clock", clock, *command)
    assert answer.exit_code == 0, answer.stderr
