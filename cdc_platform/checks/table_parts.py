"""Results of the stored-table invariants for one part of a table: what is shown on a partition of its asset.

A part that was not looked at has no result that passed, whatever the other parts are like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cdc_platform.checks.invariants import COMMITS_KNOWN, FILES_WHOLE, ROWS_AS_COMMITTED, STORAGE_FAMILY, Invariant
from cdc_platform.checks.judge import CheckResult
from cdc_platform.delta import ALL_PARTS, Lake, PartSelector, TableVerification, row_hash, verify_tables
from cdc_platform.errors import PlatformError
from cdc_platform.metastore import CheckRun, StoredComplaint, TableCheck, store_table_checks
from cdc_platform.tables import Table

_INVARIANT_BY_KIND = {"damage": FILES_WHOLE, "unexpected": ROWS_AS_COMMITTED, "foreign": COMMITS_KNOWN}
_MAX_SAMPLES = 3


def record_verifications(run: CheckRun, verifications: Iterable[TableVerification]) -> str | None:
    """Store the verifications of a check run by part. Return why that failed, if it did."""
    try:
        store_table_checks(run, map(_check_from_verification, verifications))
    except (PlatformError, OSError) as error:
        return str(error)
    return None


def name_part(table: Table, where: PartSelector) -> str:
    """Return the name of the part of a table whose part columns have their values in `where`.

    It is `ALL_PARTS` if `where` selects the whole table.
    """
    if not where or not table.part_columns:
        return ALL_PARTS
    return row_hash.partition_name_from_values(table.part_columns, where)


def judge_part(check: TableCheck, part: str | None) -> list[CheckResult]:
    """Return one result per stored-table invariant for a part of a table, or for the whole table (`ALL_PARTS`).

    A result is unknown if the part could not be judged: its rows were not read, no commit records their digest, one
    of its files is damaged, or it is not known which part it is (None).
    """
    return [_judge(check, part, invariant) for invariant in STORAGE_FAMILY.invariants]


def merge_results(judged: Sequence[Sequence[CheckResult]]) -> list[CheckResult]:
    """Return one result per stored-table invariant for parts of several tables, given the results of each.

    A violation in one of them is a violation. Otherwise the result is unknown if one of them could not be judged.
    """
    if len(judged) == 1:
        return list(judged[0])
    return [_merge_lines(lines) for lines in zip(*judged, strict=True)]


def _merge_lines(lines: Sequence[CheckResult]) -> CheckResult:
    invariant = lines[0].invariant
    failed, unknown = [line for line in lines if line.failed], [line for line in lines if line.unknown]
    population = sum(line.population for line in lines)
    if failed:
        more = [f"and {len(failed) - _MAX_SAMPLES} more tables"] * (len(failed) > _MAX_SAMPLES)
        sample = "; ".join([*(line.sample for line in failed[:_MAX_SAMPLES]), *more])
        return CheckResult(invariant, population, sum(line.violations for line in failed), sample)
    if unknown:
        return CheckResult(invariant, 0, 0, unknown[0].sample, unknown=True)
    return CheckResult(invariant, population, 0, passed=True)


def _judge(check: TableCheck, part: str | None, invariant: Invariant) -> CheckResult:
    population = {FILES_WHOLE: check.files, COMMITS_KNOWN: check.commits}.get(invariant, check.partitions)
    if invariant is ROWS_AS_COMMITTED and part != ALL_PARTS:
        population = 1
    messages = _complaints_about(check, part, invariant)
    if messages:
        more = [f"and {len(messages) - _MAX_SAMPLES} more"] * (len(messages) > _MAX_SAMPLES)
        sample = "; ".join([*messages[:_MAX_SAMPLES], *more])
        return CheckResult(invariant, max(population, len(messages)), len(messages), sample)
    unknown = _describe_unknown(check, part, invariant)
    if unknown:
        return CheckResult(invariant, 0, 0, f"not judged: {unknown}", unknown=True)
    return CheckResult(invariant, population, 0, passed=True)


def _complaints_about(check: TableCheck, part: str | None, invariant: Invariant) -> list[str]:
    about = [line for line in check.complaints if line.invariant == invariant]
    messages = [line.message for line in about if part == ALL_PARTS or line.part in (part, ALL_PARTS)]
    return list(dict.fromkeys(messages))


def _describe_unknown(check: TableCheck, part: str | None, invariant: Invariant) -> str:
    """Return why an invariant without complaints could not be judged for a part; empty if it was judged."""
    if part is None and check.complaints:
        return "the tables that tell its rows apart cannot be read"
    if invariant is FILES_WHOLE:
        return ""
    if check.version is None:
        return "the log of the table cannot be read"
    if invariant is COMMITS_KNOWN:
        return "" if check.commits else "no commit of the table has a CommitInfo"
    if _complaints_about(check, part, FILES_WHOLE):
        return "a file is damaged"
    for partitions, why in (
        (check.unread, "large partitions are read by their own checks and by: cdc-platform check --deep"),
        (check.undigested, "its rows are from before commits recorded digests"),
    ):
        # A table without Delta partitions is one partition, with an empty name.
        if partitions if part in (ALL_PARTS, None) else {part, ""} & partitions:
            return why
    return ""


def _check_from_verification(verified: TableVerification) -> TableCheck:
    return TableCheck(
        verified.name,
        verified.version,
        verified.files,
        verified.partitions,
        verified.commits,
        tuple(
            StoredComplaint(complaint.part, str(_INVARIANT_BY_KIND[complaint.kind]), complaint.message)
            for complaint in verified.complaints
        ),
        frozenset(verified.unread_parts),
        frozenset(verified.undigested_parts),
    )


def verify_part(lake: Lake, run: CheckRun, table: Table, parts: Sequence[str | None]) -> TableCheck | None:
    """Verify parts of one table, reading their rows however large they are; store and return the verification.

    Return None if the table does not exist.
    """
    named = [part for part in parts if part is not None and part != ALL_PARTS]
    partitions = named if table.partition_by and len(named) == len(parts) else None
    found = verify_tables(lake, deep=True, names={table.full_name}, partitions=partitions)
    if not found:
        return None
    record_verifications(run, found)
    return _check_from_verification(found[0])
