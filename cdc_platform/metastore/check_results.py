"""The last result of each invariant, with the table versions that it was checked against.

A result for the whole home replaces all partial ones that began before it. Of partial results that passed only the
newest is stored, because hours and generations arrive without end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, us_from_datetime
from cdc_platform.delta import Lake, allow_writes, read_newest_versions
from cdc_platform.tables import CLUSTER_CHANGES, JUDGEMENTS, ONLY_OBSERVED

WHOLE_HOME = ""
"""What an invariant is asked of where it is asked of all that there is."""
_BOOKKEEPING_TABLES = {JUDGEMENTS.full_name, ONLY_OBSERVED.full_name, CLUSTER_CHANGES.full_name}
"""The tables in which it is kept what came of it, or what was seen when: they say nothing that could be judged."""
_Key = tuple[str, str]


@dataclass(frozen=True)
class CheckRun:
    """A look at a lake that has begun: by which `door`, when (µs), and the versions that the tables had then.

    `asked_of` is a generation, a table of the cluster or an hour, as people name it; or EVERYTHING.
    """

    lake: Lake
    door: str
    asked_of: str
    begun_us: Microseconds
    versions: Mapping[str, int]

    @classmethod
    def begin(cls, lake: Lake, clock: Clock, door: str, asked_of: str = WHOLE_HOME) -> CheckRun:
        """Begin a look, before anything is read for it: what is written later was not judged, or not all of it."""
        now = clock.now_us()
        return cls(
            lake,
            door,
            asked_of,
            now,
            {n: v for n, v in read_newest_versions(lake).items() if n != JUDGEMENTS.full_name},
        )


class InvariantOutcome(Protocol):
    """What an audit says of one invariant: how much was looked at, how much breaks it, whether that is good."""

    @property
    def invariant(self) -> str: ...
    @property
    def population(self) -> int: ...
    @property
    def violations(self) -> int: ...
    @property
    def passed(self) -> bool: ...
    @property
    def said(self) -> str: ...


@dataclass(frozen=True)
class StoredCheckResult:
    """A judgement that was kept. `judged_at_us` (µs): when the look began that it came of."""

    invariant: str
    asked_of: str
    population: int
    violations: int
    passed: bool
    said: str
    door: str
    judged_at_us: Microseconds
    versions: Mapping[str, int]


def store_check_results(judging: CheckRun, lines: Iterable[InvariantOutcome], *, all_of_them: bool = False) -> None:
    """Keep what a look has found.

    What a look that began later has kept stays. `all_of_them`: every invariant was asked, so what is not among them
    has nothing to be asked of any more, and goes.

    Raises:
        PlatformError: the lake cannot be written to.
    """
    rows = [_row(judging, line) for line in lines]
    answered = {row["invariant"] for row in rows}

    def rule(before: pa.Table) -> pa.Table:
        standing = {
            _key(row): row for row in before.to_pylist() if not _is_replaced(row, judging, answered, all_of_them)
        }
        return pa.Table.from_pylist(
            [*standing.values(), *(row for row in rows if _key(row) not in standing)], schema=JUDGEMENTS.schema
        )

    if rows:
        # What was found is said of every home.
        with allow_writes():
            judging.lake.transact(JUDGEMENTS, rule, whole=True)


def read_check_results(lake: Lake) -> list[StoredCheckResult]:
    """Every judgement that stands, by invariant and what it was asked of; none in a home that was never judged."""
    found = [
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
    return sorted(found, key=lambda each: (each.invariant, each.asked_of))


def tables_changed_since(found: Iterable[StoredCheckResult], now: Mapping[str, int]) -> list[str]:
    """The tables, by name, that have another version `now` than when some of the judgements were made."""
    return sorted(
        {
            name
            for each in found
            for name in {*each.versions, *now} - _BOOKKEEPING_TABLES
            if each.versions.get(name) != now.get(name)
        }
    )


def _is_replaced(row: Mapping[str, Any], judging: CheckRun, answered: Collection[str], all_of_them: bool) -> bool:
    """Whether a row that is there is answered anew."""
    if us_from_datetime(row["judged_at"]) > judging.begun_us:
        return False
    if judging.asked_of == WHOLE_HOME:
        return all_of_them or row["invariant"] in answered
    # Hours and generations come without end.
    held = row["passed"] and row["asked_of"] != WHOLE_HOME
    return row["invariant"] in answered and (held or row["asked_of"] == judging.asked_of)


def _key(row: Mapping[str, Any]) -> _Key:
    return row["invariant"], row["asked_of"]


def _row(judging: CheckRun, line: InvariantOutcome) -> dict[str, Any]:
    return {
        "invariant": str(line.invariant),
        "asked_of": judging.asked_of,
        "population": line.population,
        "violations": line.violations,
        "passed": line.passed,
        "said": line.said,
        "door": judging.door,
        "judged_at": datetime_from_us(judging.begun_us),
        "tables": list(judging.versions),
        "versions": list(judging.versions.values()),
    }
