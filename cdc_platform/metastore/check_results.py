"""The last result of each invariant, with the table versions against which it was checked.

A result for the whole home replaces all partial ones that began before it. Of partial results that passed, only the
newest is stored, because hours and generations arrive without end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, us_from_datetime
from cdc_platform.delta import Lake, read_newest_versions
from cdc_platform.tables import CLUSTER_CHANGES, JUDGEMENTS, ONLY_OBSERVED, TABLE_CHECKS

WHOLE_HOME = ""
"""The subject of a check that covers the whole home."""
_BOOKKEEPING_TABLES = {table.full_name for table in (JUDGEMENTS, TABLE_CHECKS, ONLY_OBSERVED, CLUSTER_CHANGES)}
"""The tables that record results or observation times. No invariant is about them."""
_Key = tuple[str, str]


@dataclass(frozen=True)
class CheckRun:
    """A check run that has begun: its entry point, its begin (µs), and the table versions at that time.

    `scope` is a generation, a table of the cluster or an hour as people name it, or `WHOLE_HOME`.
    """

    lake: Lake
    entry_point: str
    scope: str
    begun_us: Microseconds
    versions: Mapping[str, int]

    @classmethod
    def begin(cls, lake: Lake, clock: Clock, entry_point: str, scope: str = WHOLE_HOME) -> CheckRun:
        """Begin a check run, before it reads anything: the run may not have covered rows that are written later."""
        now = clock.now_us()
        return cls(
            lake,
            entry_point,
            scope,
            now,
            {n: v for n, v in read_newest_versions(lake).items() if n != JUDGEMENTS.full_name},
        )


class InvariantOutcome(Protocol):
    """The outcome of one invariant in an audit: the number of items checked, the violations, and whether it passed."""

    @property
    def invariant(self) -> str: ...
    @property
    def population(self) -> int: ...
    @property
    def violations(self) -> int: ...
    @property
    def passed(self) -> bool: ...
    @property
    def message(self) -> str: ...


@dataclass(frozen=True)
class StoredCheckResult:
    """A stored result. `judged_at_us` (µs) is the begin of its check run."""

    invariant: str
    scope: str
    population: int
    violations: int
    passed: bool
    message: str
    entry_point: str
    judged_at_us: Microseconds
    versions: Mapping[str, int]


def store_check_results(judging: CheckRun, lines: Iterable[InvariantOutcome], *, all_of_them: bool = False) -> None:
    """Store the results of a check run.

    Results of a run that began later remain. `all_of_them` means that the run covered every invariant; results of
    invariants that are not among `lines` are then obsolete and are deleted.

    Raises:
        PlatformError: the lake cannot be written to.
    """
    rows = [_row(judging, line) for line in lines]
    checked = {row["invariant"] for row in rows}

    def rule(before: pa.Table) -> pa.Table:
        remaining = {
            _key(row): row for row in before.to_pylist() if not _is_replaced(row, judging, checked, all_of_them)
        }
        return pa.Table.from_pylist(
            [*remaining.values(), *(row for row in rows if _key(row) not in remaining)], schema=JUDGEMENTS.schema
        )

    if rows:
        judging.lake.transact(JUDGEMENTS, rule, whole=True)


def read_check_results(lake: Lake) -> list[StoredCheckResult]:
    """Return every stored result, by invariant and subject; a home that was never checked has none."""
    results = [
        StoredCheckResult(
            row["invariant"],
            row["asked_of"],
            row["population"],
            row["violations"],
            row["passed"],
            row["said"],
            row["door"],
            us_from_datetime(row["judged_at"]),
            dict(zip(row["tables"], row["versions"], strict=True)),
        )
        for row in lake.read(JUDGEMENTS).to_pylist()
    ]
    return sorted(results, key=lambda each: (each.invariant, each.scope))


def tables_changed_since(found: Iterable[StoredCheckResult], now: Mapping[str, int]) -> list[str]:
    """Return the tables, by name, whose version in `now` differs from the version of any of the results."""
    return sorted(
        {
            name
            for result in found
            for name in {*result.versions, *now} - _BOOKKEEPING_TABLES
            if result.versions.get(name) != now.get(name)
        }
    )


def _is_replaced(row: Mapping[str, Any], judging: CheckRun, answered: Collection[str], all_of_them: bool) -> bool:
    """Return True if this run replaces a stored row."""
    if us_from_datetime(row["judged_at"]) > judging.begun_us:
        return False
    if judging.scope == WHOLE_HOME:
        return all_of_them or row["invariant"] in answered
    # Hours and generations arrive without end, so of passed partial results only the newest is stored.
    is_passed_partial = row["passed"] and row["asked_of"] != WHOLE_HOME
    return row["invariant"] in answered and (is_passed_partial or row["asked_of"] == judging.scope)


def _key(row: Mapping[str, Any]) -> _Key:
    return row["invariant"], row["asked_of"]


def _row(judging: CheckRun, line: InvariantOutcome) -> dict[str, Any]:
    return {
        "invariant": str(line.invariant),
        "asked_of": judging.scope,
        "population": line.population,
        "violations": line.violations,
        "passed": line.passed,
        "said": line.message,
        "door": judging.entry_point,
        "judged_at": datetime_from_us(judging.begun_us),
        "tables": list(judging.versions),
        "versions": list(judging.versions.values()),
    }
