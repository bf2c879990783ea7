"""Commands to run after a command: the lines `next:`, and the JSON field `next`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click

from cdc_platform.cli.command_hints import add_home_option, get_home_option
from cdc_platform.cli.commands import PROGRAM_NAME

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.errors import PlatformError


@dataclass(frozen=True)
class NextStep:
    """A command to run next, quoted for a shell, and when or why to run it (`why`, empty if that is obvious)."""

    command: str
    why: str = ""

    def __str__(self) -> str:
        """Return the line to print. A shell ignores what follows the `#`."""
        return f"{self.command}  # {self.why}" if self.why else self.command


def build_next_step(*words: object, why: str = "", home: object = None) -> NextStep:
    """Return the command made of `words`, for `home` or else for the home of the running command."""
    home = home or get_home_option()
    home_option = [] if home is None else ["--home", home]
    return NextStep(shlex.join(str(word) for word in [PROGRAM_NAME, *home_option, *words]), why)


def build_cluster_repair_steps(lake: Lake) -> list[NextStep]:
    """Return the step with which the mirrored cluster repairs its own generations; empty without a mirror."""
    from cdc_platform.delta import REPAIR_STREAMS_COMMAND, get_mirrored_cluster

    name = get_mirrored_cluster(lake)
    if name is None:
        return []
    return [
        NextStep(
            REPAIR_STREAMS_COMMAND,
            f"on a node of {name}; then: {add_home_option(f'{PROGRAM_NAME} observe {name}', get_home_option())}",
        )
    ]


def build_observe_step(lake: Lake, why: str) -> NextStep | None:
    """Return the command that observes the mirrored cluster, from the home that knows it; None without a mirror."""
    from cdc_platform.delta import get_mirrored_cluster, get_registering_home

    name = get_mirrored_cluster(lake)
    return (
        None
        if name is None
        else build_next_step("observe", name, why=why, home=get_registering_home(lake.location.folder))
    )


def replace_refused_steps(steps: Iterable[NextStep]) -> list[NextStep]:
    """Return the steps without those that their home would refuse. In an observed home `check` replaces them."""
    from cdc_platform.delta import HomeIsObserved

    allowed: dict[NextStep, None] = {}
    for step in steps:
        refusal = _find_refusal(step)
        if refusal is None:
            allowed[step] = None
        elif isinstance(refusal, HomeIsObserved):
            allowed[build_next_step("check", why="when it passes, the home can be written to again")] = None
    return list(allowed)


def _find_refusal(step: NextStep) -> PlatformError | None:
    """Return the error with which a home would refuse a step, None if it would not or the command is another program's.

    `--write-to-observed` does not count, since the next command would need it again.
    """
    from cdc_platform.cli.write_rules import find_write_refusal

    name, *words = shlex.split(step.command)
    program = cast("click.Group", click.get_current_context().find_root().command)
    return find_write_refusal(program, words) if name == PROGRAM_NAME else None
