"""The audit of tables as they are stored: files, rows and commits, whatever the rows mean. No Spark.

What is wrong with a table is `lake.verification`'s to find; what its rows have to be is asked by the other families.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cdc_platform.invariants.families import Family
from cdc_platform.invariants.findings import COMMITS_KNOWN, FILES_WHOLE, ROWS_AS_COMMITTED, Finding
from cdc_platform.lake.verification import Verified

_SHOWN = 3
"""Complaints that a line names; the others are counted."""


def audit_stored(found: Sequence[Verified]) -> list[Finding]:
    """What is wrong with the tables, in words; no line where nothing of its kind is there to be judged."""
    damage, foreign = (each.damage for each in found), (each.foreign for each in found)
    left, unknown = sum(each.left for each in found), sum(each.unknown for each in found)
    apart = [f"{left} large slices were not read, --deep reads them"] * bool(left)
    apart += [f"{unknown} slices are from before commits had digests"] * bool(unknown)
    taken = [said for each in found for said in each.accepted]
    unnamed = [said for each in found for said in each.unnamed]
    lines = [
        Finding(FILES_WHOLE, sum(each.files for each in found), *_told(damage, always=unnamed)),
        Finding(ROWS_AS_COMMITTED, sum(each.slices for each in found), *_told((each.strange for each in found), apart)),
        Finding(COMMITS_KNOWN, sum(each.commits for each in found), *_told(foreign, always=taken)),
    ]
    return [line for line in lines if line.population or line.violations]


def not_judged(family: Family, damaged: Collection[str], why: str = "") -> list[Finding]:
    """The lines of a family whose audit cannot be made, as tables are damaged that it reads."""
    said = f"not judged, as {', '.join(sorted(damaged))} cannot be read{why and f' ({why})'}"
    return [Finding(name, 0, 0, said) for name in family.invariants]


def _told(
    complaints: Iterable[Sequence[str]], apart: Sequence[str] = (), *, always: Sequence[str] = ()
) -> tuple[int, str]:
    """How many complaints, and the first in words; `apart` is said where there is none, `always` behind them."""
    every = [line for some in complaints for line in some]
    said = _first(every) or list(apart)
    return len(every), "; ".join([*said, *_first(always)])


def _first(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]
