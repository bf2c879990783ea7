"""What every race is made of: eight commands that begin at once on one home, and whether some order explains them."""

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
"""How lines begin that refuse nobody."""
Command = tuple[str, ...]
State = Any


def race(nursery: Nursery, home: Path, commands: list[Command], clock: str = AT) -> list[Ended]:
    """Let the commands begin at once on a home; every one is taken, or refused in one line."""
    ended = nursery.race([["--home", home, "--clock", clock, *command] for command in commands])
    for each in ended:
        assert each.exit_code in (0, 2), each
        lines = [line for line in each.stderr.splitlines() if not line.startswith(_TOLD)]
        assert len(lines) == (each.exit_code == 2), each.stderr
        assert "moment" not in each.stderr, "nobody is refused for being late alone"
    return ended


def explained(
    rule: Callable[[State, Command], tuple[State, bool]],
    before: Hashable,
    commands: list[Command],
    ended: list[Ended],
    after: Hashable,
) -> bool:
    """Whether some order of the commands gives what they were told, and what is there now."""
    told = [(command, each.exit_code == 0) for command, each in zip(commands, ended, strict=True)]
    return some_order_explains(rule, before, told, after)


def do(home: Path, *command: str, clock: str = AT) -> None:
    """A command before the race."""
    answer = run("--home", home, "--clock", clock, *command)
    assert answer.exit_code == 0, answer.stderr
