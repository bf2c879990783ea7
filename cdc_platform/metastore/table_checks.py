"""The last verification of each stored table: complaints by part of the table, and what was not read.

A verification that does not read a partition proves nothing about its rows: an earlier complaint about them stays, and
so does an earlier proof as long as the table has no newer version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from cdc_platform.clock import Microseconds, datetime_from_us, us_from_datetime
from cdc_platform.delta import Lake
from cdc_platform.metastore.check_results import CheckRun
from cdc_platform.tables import TABLE_CHECKS


class StoredComplaint(NamedTuple):
    """A complaint about a part of a table, or about all parts (`delta.ALL_PARTS`)."""

    part: str
    invariant: str
    message: str


@dataclass(frozen=True)
class TableCheck:
    """The verification of a table by `entry_point`, begun at `judged_at_us` (µs). `version`: None without a log.

    `files`, `partitions` and `commits` count what was checked. `unread` are the Delta partitions whose rows were not
    read, `undigested` those without a digest in any commit.
    """

    table: str
    version: int | None
    files: int
    partitions: int
    commits: int
    complaints: tuple[StoredComplaint, ...]
    unread: frozenset[str]
    undigested: frozenset[str]
    entry_point: str = ""
    judged_at_us: Microseconds = Microseconds(0)


def store_table_checks(run: CheckRun, checks: Iterable[TableCheck]) -> None:
    """Store the verifications of a check run; those of a run that began later remain.

    Raises:
        PlatformError: the lake cannot be written to.
    """
    new = {check.table: replace(check, entry_point=run.entry_point, judged_at_us=run.begun_us) for check in checks}

    def rule(before: pa.Table) -> pa.Table:
        stored = {check.table: check for check in map(_from_row, before.to_pylist())}
        for name, check in new.items():
            old = stored.get(name)
            if old is None or old.judged_at_us <= check.judged_at_us:
                stored[name] = check if old is None else _with_earlier_proofs(check, old)
        return pa.Table.from_pylist([_to_row(check) for check in stored.values()], schema=TABLE_CHECKS.schema)

    if new:
        run.lake.transact(TABLE_CHECKS, rule, whole=True)


def read_table_checks(lake: Lake) -> dict[str, TableCheck]:
    """Return the last verification of each table, by its name."""
    return {check.table: check for check in map(_from_row, lake.read(TABLE_CHECKS).to_pylist())}


def _with_earlier_proofs(check: TableCheck, old: TableCheck) -> TableCheck:
    """Add to a verification what an earlier one proved about partitions that this one did not read."""
    unread = check.unread
    if old.version == check.version:
        unread &= old.unread
    repeated = [
        complaint
        for complaint in old.complaints
        if complaint.part in check.unread and not _is_about(complaint, check.complaints)
    ]
    return replace(check, unread=unread, complaints=(*check.complaints, *repeated))


def _is_about(complaint: StoredComplaint, others: Collection[StoredComplaint]) -> bool:
    return any((other.part, other.invariant) == (complaint.part, complaint.invariant) for other in others)


def _to_row(check: TableCheck) -> dict[str, Any]:
    return {
        "table_name": check.table,
        "version": check.version,
        "files": check.files,
        "partitions": check.partitions,
        "commits": check.commits,
        "parts": [complaint.part for complaint in check.complaints],
        "invariants": [complaint.invariant for complaint in check.complaints],
        "said": [complaint.message for complaint in check.complaints],
        "unread": sorted(check.unread),
        "undigested": sorted(check.undigested),
        "door": check.entry_point,
        "judged_at": datetime_from_us(check.judged_at_us),
    }


def _from_row(row: dict[str, Any]) -> TableCheck:
    return TableCheck(
        row["table_name"],
        row["version"],
        row["files"],
        row["partitions"],
        row["commits"],
        tuple(map(StoredComplaint, row["parts"], row["invariants"], row["said"])),
        frozenset(row["unread"]),
        frozenset(row["undigested"]),
        row["door"],
        us_from_datetime(row["judged_at"]),
    )
