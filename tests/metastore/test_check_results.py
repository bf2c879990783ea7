"""Stored check results: the newest of each, how results of a whole and of its parts relate, and changed tables."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake, read_newest_versions
from cdc_platform.metastore import WHOLE_HOME, CheckRun, store_check_results
from cdc_platform.metastore.check_results import read_check_results, tables_changed_since
from cdc_platform.tables import JUDGEMENTS, NODES


@dataclass(frozen=True)
class AuditLine:
    """A line of an audit."""

    invariant: str
    passed: bool = True
    population: int = 3
    violations: int = 0
    message: str = "3 checked"


def begin_check(lake: Lake, second: int, scope: str = WHOLE_HOME) -> CheckRun:
    """Begin a check run at a second."""
    return CheckRun.begin(lake, Clock(Microseconds(second * 1_000_000)), "a test", scope)


def stored_results(lake: Lake) -> list[tuple[str, str, bool]]:
    """Return the stored results as invariant, scope and outcome."""
    return [(result.invariant, result.scope, result.passed) for result in read_check_results(lake)]


def test_a_home_that_was_never_judged_has_none(lake: Lake) -> None:
    """A home that was never checked has no results."""
    assert read_check_results(lake) == []


def test_the_last_result_is_stored(lake: Lake) -> None:
    """The newest result replaces the last one, with its numbers, message, entry point, time and table versions."""
    lake.ensure(NODES)
    store_check_results(begin_check(lake, 1), [AuditLine("a", False, 5, 2, "2 of 5")])
    store_check_results(begin_check(lake, 2), [AuditLine("a", False, 5, 1, "1 of 5")])
    (result,) = read_check_results(lake)
    assert (result.population, result.violations, result.message, result.entry_point) == (5, 1, "1 of 5", "a test")
    assert (result.judged_at_us, result.versions) == (2_000_000, {"platform.nodes": lake.version(NODES)})


@pytest.mark.parametrize(
    ("second", "asked_of", "stands"),
    [
        (2, WHOLE_HOME, [("a", "", True)]),
        (2, "g1", [("a", "", False), ("a", "g1", True), ("a", "g2", False)]),
        (2, "g3", [("a", "", False), ("a", "g1", False), ("a", "g2", False), ("a", "g3", True)]),
        (0, WHOLE_HOME, [("a", "", False), ("a", "g1", False), ("a", "g2", False)]),
    ],
)
def test_a_result_replaces_those_of_its_scope(
    lake: Lake, second: int, asked_of: str, stands: list[tuple[str, str, bool]]
) -> None:
    """A result of the whole replaces those of all parts, one of a part that part's; none replaces a later one."""
    for part in ("g1", "g2", WHOLE_HOME):
        store_check_results(begin_check(lake, 1, part), [AuditLine("a", passed=False)])
    store_check_results(begin_check(lake, 1, "g1"), [AuditLine("a", passed=False)])
    store_check_results(begin_check(lake, 1, "g2"), [AuditLine("a", passed=False)])
    store_check_results(begin_check(lake, second, asked_of), [AuditLine("a")])
    assert stored_results(lake) == stands


def test_of_passed_partial_results_only_the_newest_is_stored(lake: Lake) -> None:
    """Only the newest passed partial result is stored, so the table does not grow with hours and generations."""
    for hour in range(5):
        store_check_results(begin_check(lake, hour, f"hour {hour}"), [AuditLine("a")])
    assert stored_results(lake) == [("a", "hour 4", True)]


def test_a_whole_check_removes_results_without_subject(lake: Lake) -> None:
    """A run of all invariants removes results of those with no subject; other runs leave them in place."""
    store_check_results(begin_check(lake, 1), [AuditLine("a", passed=False), AuditLine("b")])
    store_check_results(begin_check(lake, 2), [AuditLine("b")])
    assert stored_results(lake) == [("a", "", False), ("b", "", True)]
    store_check_results(begin_check(lake, 3), [AuditLine("b")], all_of_them=True)
    assert stored_results(lake) == [("b", "", True)]


def test_tables_that_are_newer_are_named(lake: Lake) -> None:
    """Tables that were written, created or deleted since the run are named; storing results is no such change."""
    lake.ensure(NODES)
    store_check_results(begin_check(lake, 1), [AuditLine("a")])
    assert tables_changed_since(read_check_results(lake), read_newest_versions(lake)) == []
    row = {"host_id": "h", "address": "", "datacenter": "", "rack": "", "status": "NORMAL"}
    row |= {"tokens": [1], "shard_count": 1, "ignore_msb": 0, "features": []}
    lake.merge(NODES, pa.Table.from_pylist([row], schema=NODES.schema), update=False)
    assert tables_changed_since(read_check_results(lake), read_newest_versions(lake)) == ["platform.nodes"]
    assert tables_changed_since(read_check_results(lake), {}) == ["platform.nodes"]
    assert JUDGEMENTS.full_name in read_newest_versions(lake)


def test_versions_are_those_of_deltas_log(lake: Lake) -> None:
    """Versions are read of every table in the lake; other folders are ignored."""
    lake.ensure(NODES)
    (lake.root / "shop" / "no_table").mkdir(parents=True)
    assert read_newest_versions(lake) == {"platform.nodes": lake.version(NODES)}
