"""Audits of tables as they are stored: files, rows and commits, whatever the rows mean. No Spark.

`delta.verify` finds the damage. A family whose audit fails on damaged tables is reported as not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from cdc_platform.checks.invariants import COMMITS_KNOWN, FILES_WHOLE, ROWS_AS_COMMITTED, Finding, InvariantFamily
from cdc_platform.delta import TableVerification, track_reads
from cdc_platform.errors import EnvironmentProblem, NotFound, PlatformError, to_one_line

_MAX_COMPLAINTS = 3
"""Complaints that a line names; the others are counted."""
_NOT_JUDGED = "not judged: "


def audit_stored(found: Sequence[TableVerification]) -> list[Finding]:
    """What is wrong with the tables, in words; no line where nothing of its kind is there to be judged."""
    damage, foreign = (each.damage for each in found), (each.foreign for each in found)
    left, unknown = sum(each.left for each in found), sum(each.unknown for each in found)
    apart = [f"{left} large slices were not read, --deep reads them"] * bool(left)
    apart += [f"{unknown} slices are from before commits had digests"] * bool(unknown)
    taken = [said for each in found for said in each.accepted]
    unnamed = [said for each in found for said in each.unnamed]
    lines = [
        Finding(FILES_WHOLE, sum(each.files for each in found), *_summarize(damage, always=unnamed)),
        Finding(
            ROWS_AS_COMMITTED, sum(each.slices for each in found), *_summarize((each.strange for each in found), apart)
        ),
        Finding(COMMITS_KNOWN, sum(each.commits for each in found), *_summarize(foreign, always=taken)),
    ]
    return [line for line in lines if line.population or line.violations]


def not_judged_findings(family: InvariantFamily, tables: Collection[str], why: str = "") -> list[Finding]:
    """The lines of a family that cannot be judged, since it depends on tables that are damaged."""
    depends = f"depends on {', '.join(sorted(tables))}" if tables else ""
    said = f"{_NOT_JUDGED}{f'{depends} ({why})' if depends and why else depends or why}"
    return [Finding(name, 0, 0, said) for name in family.invariants]


def is_judged(line: Finding) -> bool:
    """Return whether a line says more than that the tables it depends on are damaged, as `not_judged_findings` does."""
    return bool(line.population or line.violations) or not line.sample.startswith(_NOT_JUDGED)


FamilyAudit = Callable[[], list[Finding] | None]
"""The audit of a family; None where there is nothing that it could be asked of."""


def run_family_audit(
    family: InvariantFamily, audit: FamilyAudit, tables: Sequence[TableVerification]
) -> list[Finding] | None:
    """Return what an audit finds in a lake, given how its tables are stored.

    A family that reads a table whose log is damaged is not judged, even if its audit has an answer. A family whose
    audit fails over what it reads is not judged either: the tables that are not as the platform left them are named.

    Raises:
        NotFound: what the audit was asked about is not there, and no table is damaged or changed by a stranger.
        EnvironmentProblem: the machine lacks something, or the store does not answer, and no table is damaged.
        Exception: the audit has a defect: all tables that it read are as the platform left them.
    """
    unreadable = {each.name for each in tables if each.damage}
    with track_reads() as read:
        try:
            findings = audit()
        except Exception as error:  # whatever the rows are, the other families are judged
            causes = ((unreadable | _foreign_tables(tables, error)) & read) or unreadable
            if not causes and (not isinstance(error, PlatformError) or isinstance(error, _UNRELATED_ERRORS)):
                raise
            return not_judged_findings(family, causes, _error_text(error))
    # A damaged data file fails its readers. A damaged log can be read as if the table were an older one.
    unreadable = {each.name for each in tables if each.is_unreadable}
    return not_judged_findings(family, unreadable & read) if unreadable & read else findings


_UNRELATED_ERRORS = (NotFound, EnvironmentProblem)
"""Errors that rows can cause, and that mostly have other causes."""


def _foreign_tables(tables: Sequence[TableVerification], error: Exception) -> set[str]:
    """The tables whose rows a stranger has changed, as far as that can cause an error."""
    if isinstance(error, EnvironmentProblem):
        return set()
    is_missing = isinstance(error, NotFound)
    return {each.name for each in tables if each.strange or each.foreign or (each.accepted and not is_missing)}


def _error_text(error: Exception) -> str:
    return (
        to_one_line(str(error))
        if isinstance(error, PlatformError)
        else f"{type(error).__name__}: {to_one_line(str(error))}"
    )


def _summarize(
    complaints: Iterable[Sequence[str]], apart: Sequence[str] = (), *, always: Sequence[str] = ()
) -> tuple[int, str]:
    """How many complaints, and the first in words; `apart` is said where there is none, `always` behind them."""
    every = [line for some in complaints for line in some]
    said = _first_complaints(every) or list(apart)
    return len(every), "; ".join([*said, *_first_complaints(always)])


def _first_complaints(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _MAX_COMPLAINTS} more"] if len(lines) > _MAX_COMPLAINTS else []
    return [*lines[:_MAX_COMPLAINTS], *more]
