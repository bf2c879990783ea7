"""Audits of tables as they are stored: files, rows and commits, whatever the rows mean. No Spark.

`delta.verify` finds the damage. A family whose audit fails on damaged tables is reported as not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from cdc_platform.checks.invariants import COMMITS_KNOWN, FILES_WHOLE, ROWS_AS_COMMITTED, Finding, InvariantFamily
from cdc_platform.delta import TableVerification, track_reads
from cdc_platform.errors import EnvironmentProblem, NotFound, PlatformError, to_one_line

_MAX_COMPLAINTS = 3
"""The number of complaints that a finding names; the others are only counted."""
_NOT_JUDGED = "not judged: "


def audit_stored(verifications: Sequence[TableVerification]) -> list[Finding]:
    """Return findings on the damage of tables; no finding of a kind for which there is nothing to judge."""
    damage, foreign = (
        (verification.damage for verification in verifications),
        (verification.foreign for verification in verifications),
    )
    unread, unknown = (
        sum(verification.unread for verification in verifications),
        sum(verification.unknown for verification in verifications),
    )
    notes = [f"{unread} large slices were not read, --deep reads them"] * bool(unread)
    notes += [f"{unknown} slices are from before commits had digests"] * bool(unknown)
    accepted = [message for verification in verifications for message in verification.accepted]
    unnamed = [message for verification in verifications for message in verification.unnamed]
    lines = [
        Finding(
            FILES_WHOLE, sum(verification.files for verification in verifications), *_summarize(damage, always=unnamed)
        ),
        Finding(
            ROWS_AS_COMMITTED,
            sum(verification.partitions for verification in verifications),
            *_summarize((verification.unexpected for verification in verifications), notes),
        ),
        Finding(
            COMMITS_KNOWN,
            sum(verification.commits for verification in verifications),
            *_summarize(foreign, always=accepted),
        ),
    ]
    return [line for line in lines if line.population or line.violations]


def not_judged_findings(family: InvariantFamily, tables: Collection[str], why: str = "") -> list[Finding]:
    """Return the findings of a family that cannot be judged because it depends on damaged tables."""
    depends = f"depends on {', '.join(sorted(tables))}" if tables else ""
    reason = f"{_NOT_JUDGED}{f'{depends} ({why})' if depends and why else depends or why}"
    return [Finding(name, 0, 0, reason) for name in family.invariants]


def is_judged(line: Finding) -> bool:
    """Return True unless the finding only says that its tables are damaged, as those of `not_judged_findings` do."""
    return bool(line.population or line.violations) or not line.sample.startswith(_NOT_JUDGED)


FamilyAudit = Callable[[], list[Finding] | None]
"""The audit of a family; it returns None if there is nothing to audit."""


def run_family_audit(
    family: InvariantFamily, audit: FamilyAudit, tables: Sequence[TableVerification]
) -> list[Finding] | None:
    """Return what an audit finds in a lake, given how its tables are stored.

    A family that reads a table with a damaged log is not judged, even if its audit returns findings. A family whose
    audit fails on what it reads is not judged either; its findings name the tables that are not as the platform left
    them.

    Raises:
        NotFound: what is audited does not exist, and no table is damaged or changed by a foreign writer.
        EnvironmentProblem: the machine lacks something, or the store does not answer, and no table is damaged.
        Exception: the audit has a defect: all tables that it read are as the platform left them.
    """
    unreadable = {table.name for table in tables if table.damage}
    with track_reads() as read:
        try:
            findings = audit()
        except Exception as error:  # the other families are judged, whatever the rows are
            causes = ((unreadable | _foreign_tables(tables, error)) & read) or unreadable
            if not causes and (not isinstance(error, PlatformError) or isinstance(error, _UNRELATED_ERRORS)):
                raise
            return not_judged_findings(family, causes, _error_text(error))
    # A damaged data file makes its readers fail. A damaged log can read as an older version of the table.
    unreadable = {table.name for table in tables if table.is_unreadable}
    return not_judged_findings(family, unreadable & read) if unreadable & read else findings


_UNRELATED_ERRORS = (NotFound, EnvironmentProblem)
"""Errors that rows can cause, but that usually have other causes."""


def _foreign_tables(tables: Sequence[TableVerification], error: Exception) -> set[str]:
    """Return the tables that a foreign writer changed, if that can cause the error."""
    if isinstance(error, EnvironmentProblem):
        return set()
    is_missing = isinstance(error, NotFound)
    return {table.name for table in tables if table.unexpected or table.foreign or (table.accepted and not is_missing)}


def _error_text(error: Exception) -> str:
    return (
        to_one_line(str(error))
        if isinstance(error, PlatformError)
        else f"{type(error).__name__}: {to_one_line(str(error))}"
    )


def _summarize(
    complaints: Iterable[Sequence[str]], apart: Sequence[str] = (), *, always: Sequence[str] = ()
) -> tuple[int, str]:
    """Return the number of complaints and their text; `apart` is used if there are none, `always` is appended."""
    all_complaints = [line for table_complaints in complaints for line in table_complaints]
    parts = _first_complaints(all_complaints) or list(apart)
    return len(all_complaints), "; ".join([*parts, *_first_complaints(always)])


def _first_complaints(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - _MAX_COMPLAINTS} more"] if len(lines) > _MAX_COMPLAINTS else []
    return [*lines[:_MAX_COMPLAINTS], *more]
