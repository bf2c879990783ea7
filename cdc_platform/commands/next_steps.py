"""What a command leaves to do: the commands that go on, which it tells beside its result.

For people each is a line `next:` behind the result, to be pasted into a shell as it stands. In JSON an object has them
in `next`; beside a list, which has no room for them, the lines go to standard error.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from cdc_platform.commands.advice import PROGRAM, home_option, with_home
from cdc_platform.commands.output import escaped, write_json
from cdc_platform.commands.spooled import write_document

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake


@dataclass(frozen=True)
class Next:
    """A command that goes on, quoted as a shell wants it, and when or what for (`why`) where that is to be said."""

    command: str
    why: str = ""

    def __str__(self) -> str:
        """The line; what is behind the `#` no shell reads."""
        return f"{self.command}  # {self.why}" if self.why else self.command


def following(*words: object, why: str = "", home: object = None) -> Next:
    """The command of these words, on `home`, or else on the home that this command was told to work on."""
    home = home or home_option()
    place = [] if home is None else ["--home", home]
    return Next(shlex.join(str(word) for word in [PROGRAM, *place, *words]), why)


def building(lake: Lake, *words: object, why: str = "") -> Next:
    """The command of these words, which builds on the home; where that is only observed, what lets it."""
    from cdc_platform.lake.only_observed import standing

    if standing(lake) is not None:
        return following("check", why="once it is clean something is built on this home again")
    return following(*words, why=why)


def in_cluster(lake: Lake) -> list[Next]:
    """How the cluster that a lake mirrors mends its generations itself; nothing where it mirrors none."""
    from cdc_platform.lake.mirrors import MEND, cluster_of

    name = cluster_of(lake)
    if name is None:
        return []
    return [Next(MEND, f"on a node of {name}; then: {with_home(f'{PROGRAM} observe {name}', home_option())}")]


def looking_again(lake: Lake, why: str) -> Next | None:
    """A look at the cluster that a lake mirrors, from the home that knows it; None where it mirrors none."""
    from cdc_platform.lake.mirrors import cluster_of, home_around

    name = cluster_of(lake)
    return None if name is None else following("observe", name, why=why, home=home_around(lake.place.folder))


def _is_refused(step: Next) -> bool:
    """Whether a command would be refused, since its home mirrors a live cluster."""
    from cdc_platform.commands.program import makes_up
    from cdc_platform.home import location
    from cdc_platform.lake.mirrors import mirror_at

    program, *words = shlex.split(step.command)
    home, words = (words[1], words[2:]) if words[:1] == ["--home"] else (None, words)
    paths = (words[0], " ".join(words[:2])) if program == PROGRAM and words else ()
    return any(makes_up(path, words) for path in paths) and mirror_at(location(home)) is not None


def write_result(told: object, show: Callable[[], object], left: Iterable[Next], *, as_json: bool) -> None:
    """Write a result, as JSON (`told`) or for people (`show`), and what is left to do after it."""
    steps = [each for each in left if not _is_refused(each)]
    if as_json and isinstance(told, dict):
        write_document({**told, "next": [{"command": each.command, "why": each.why or None} for each in steps]})
        return
    if as_json:
        write_json(told)
    else:
        show()
    for each in steps:
        click.echo(f"next: {escaped(str(each))}", err=as_json)
