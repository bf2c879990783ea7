"""The audit of tables as they are stored: files, rows and commits, whatever the rows mean. No Spark.

What is wrong with a table is `lake.verification`'s to find; what its rows have to be is asked by the other families.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from cdc_platform.errors import EnvironmentProblem, NotFound, PlatformError, one_line
from cdc_platform.invariants.families import Family
from cdc_platform.invariants.findings import COMMITS_KNOWN, FILES_WHOLE, ROWS_AS_COMMITTED, Finding
from cdc_platform.lake.reads import recording_reads
from cdc_platform.lake.verification import Verified

_SHOWN = 3
"""Complaints that a line names; the others are counted."""
_NOT_JUDGED = "not judged: "


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


def not_judged(family: Family, tables: Collection[str], why: str = "") -> list[Finding]:
    """The lines of a family that cannot be judged, since it depends on tables that are damaged."""
    depends = f"depends on {', '.join(sorted(tables))}" if tables else ""
    said = f"{_NOT_JUDGED}{f'{depends} ({why})' if depends and why else depends or why}"
    return [Finding(name, 0, 0, said) for name in family.invariants]


def is_judged(line: Finding) -> bool:
    """Return whether a line says more than that the tables it depends on are damaged, as `not_judged` does."""
    return bool(line.population or line.violations) or not line.sample.startswith(_NOT_JUDGED)


Audit = Callable[[], list[Finding] | None]
"""The audit of a family; None where there is nothing that it could be asked of."""


def findings_of(family: Family, audit: Audit, tables: Sequence[Verified]) -> list[Finding] | None:
    """Return what an audit finds in a lake, given how its tables are stored.

    A family that reads a table whose log is damaged is not judged, even if its audit has an answer. A family whose
    audit fails over what it reads is not judged either: the tables that are not as the platform left them are named.

    Raises:
        NotFound: what the audit was asked about is not there, and no table is damaged or changed by a stranger.
        EnvironmentProblem: the machine lacks something, or the store does not answer, and no table is damaged.
        Exception: the audit has a defect: all tables that it read are as the platform left them.
    """
    unreadable = {each.name for each in tables if each.damage}
    with recording_reads() as read:
        try:
            findings = audit()
        except Exception as error:  # whatever the rows are, the other families are judged
            causes = ((unreadable | _changed(tables, error)) & read) or unreadable
            if not causes and (not isinstance(error, PlatformError) or isinstance(error, _NOT_OF_ROWS)):
                raise
            return not_judged(family, causes, _described(error))
    # A damaged data file fails its readers. A damaged log can be read as if the table were an older one.
    unreadable = {each.name for each in tables if each.is_unreadable}
    return not_judged(family, unreadable & read) if unreadable & read else findings


_NOT_OF_ROWS = (NotFound, EnvironmentProblem)
"""Errors that rows can cause, and that mostly have other causes."""


def _changed(tables: Sequence[Verified], error: Exception) -> set[str]:
    """The tables whose rows a stranger has changed, as far as that can cause an error."""
    if isinstance(error, EnvironmentProblem):
        return set()
    is_missing = isinstance(error, NotFound)
    return {each.name for each in tables if each.strange or each.foreign or (each.accepted and not is_missing)}


def _described(error: Exception) -> str:
    return (
        one_line(str(error)) if isinstance(error, PlatformError) else f"{type(error).__name__}: {one_line(str(error))}"
    )


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
