"""What helps against a failed invariant: the command that has something to do about it, or the page for a person.

A command is advised only where it would do something. `repair` answers "not needed" for whatever a new generation would
not change, so its own check is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import TYPE_CHECKING

from cdc_platform.commands.next_steps import Next, following, looking_again
from cdc_platform.invariants.findings import (
    COMMITS_KNOWN,
    FAMILIES,
    FILES_WHOLE,
    FIT,
    GENERATIONS,
    LOG_GAPS_ACCEPTED,
    OBSERVED_WHOLE,
    PUBLISHED_EQUALS_DESCRIPTION,
    ROWS_AS_COMMITTED,
    TIMESTAMP_COMPLETE,
)
from cdc_platform.invariants.stored import is_judged

if TYPE_CHECKING:
    from cdc_platform.invariants.judge import Judgement
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.join.refill import Damaged
    from cdc_platform.lifecycle.repair.checkup import Checkup

OF_FILES = (FILES_WHOLE, ROWS_AS_COMMITTED)
OF_PUBLISHED = (PUBLISHED_EQUALS_DESCRIPTION, TIMESTAMP_COMPLETE)


def remedies(lake: Lake, failed: Iterable[Judgement]) -> tuple[list[Next], list[str]]:
    """Return the commands that help against failed invariants, and a sentence for each that needs a person.

    Damage of files comes first. Invariants that were not judged because of it need nothing of their own.
    """
    failed = sorted(failed, key=lambda line: line.invariant not in OF_FILES)
    if failed and failed[0].invariant in OF_FILES:
        failed = [line for line in failed if is_judged(line)]
    checkup, damaged = cache(lambda: _checkup(lake)), cache(lambda: _damaged(lake))
    commands: dict[str, Next] = {}
    people: dict[str, list[str]] = {}
    for line in failed:
        command = _command(lake, line, checkup, damaged)
        if command is not None:
            commands.setdefault(command.command, command)
        else:
            people.setdefault(page_of(line.invariant) or "docs/generations.md", []).append(line.invariant)
    sentences = [
        f"{', '.join(names)}: no command resolves this by itself, see {page}{_choice(names)}"
        for page, names in people.items()
    ]
    return list(commands.values()), sentences


def _choice(invariants: Collection[str]) -> str:
    """Return the choice that a person has about a foreign commit."""
    if COMMITS_KNOWN not in invariants:
        return ""
    return ": check --undo TABLE@VERSION takes a foreign commit back, check --accept TABLE@VERSION lets it stay"


def page_of(invariant: str) -> str | None:
    """Return the page of the docs that explains an invariant, whose name is its code."""
    return next((family.page for family in FAMILIES if invariant in family.invariants), None)


def _command(
    lake: Lake,
    line: Judgement,
    checkup: Callable[[], Checkup | None],
    damaged: Callable[[], Damaged | None],
) -> Next | None:
    why = f"{line.invariant}: {page_of(line.invariant)}"
    if line.invariant == LOG_GAPS_ACCEPTED:
        return following("consumers", "gaps", why=why)
    if line.invariant == OBSERVED_WHOLE:
        return looking_again(lake, why)
    if line.invariant in (*OF_FILES, *OF_PUBLISHED):
        found = damaged()
        # Of files it says what is to be done about each that it cannot restore.
        if found is not None and (found.lacking or line.invariant in OF_FILES):
            return following("repair", "--from-description", "--dry-run", why=why)
    if line.invariant not in (*FIT.invariants, *GENERATIONS.invariants):
        return None
    fit = checkup()
    if fit is None or not (fit.reasons or fit.warnings):
        return None
    return following("repair", "--dry-run", *([] if fit.reasons else ["--strict"]), why=why)


def _checkup(lake: Lake) -> Checkup | None:
    """Return what `repair` would find; None where it cannot tell."""
    from cdc_platform.lifecycle.repair import checkup

    try:
        return checkup.check(lake)
    except Exception:  # noqa: BLE001 of a damaged home: what the rows are is reported already
        return None


def _damaged(lake: Lake) -> Damaged | None:
    """Return what `repair --from-description` finds; None where it is refused."""
    from cdc_platform.lifecycle.join import refill

    try:
        return refill.damaged(lake)
    except Exception:  # noqa: BLE001 as above
        return None
