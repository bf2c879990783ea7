"""What is kept of judgements: the last of each, which ones stand for which, and what was written since."""

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
class Said:
    """A line of an audit."""

    invariant: str
    passed: bool = True
    population: int = 3
    violations: int = 0
    message: str = "3 checked"


def look(lake: Lake, second: int, asked_of: str = WHOLE_HOME) -> CheckRun:
    """A look that begins at a second."""
    return CheckRun.begin(lake, Clock(Microseconds(second * 1_000_000)), "a test", asked_of)


def standing(lake: Lake) -> list[tuple[str, str, bool]]:
    """What stands."""
    return [(each.invariant, each.scope, each.passed) for each in read_check_results(lake)]


def test_a_home_that_was_never_judged_has_none(lake: Lake) -> None:
    """As one that an earlier program made."""
    assert read_check_results(lake) == []


def test_the_last_answer_stands(lake: Lake) -> None:
    """With its numbers, its words, its door, its time and the versions that it was given by."""
    lake.ensure(NODES)
    store_check_results(look(lake, 1), [Said("a", False, 5, 2, "2 of 5")])
    store_check_results(look(lake, 2), [Said("a", False, 5, 1, "1 of 5")])
    (found,) = read_check_results(lake)
    assert (found.population, found.violations, found.message, found.entry_point) == (5, 1, "1 of 5", "a test")
    assert (found.judged_at_us, found.versions) == (2_000_000, {"platform.nodes": lake.version(NODES)})


@pytest.mark.parametrize(
    ("second", "asked_of", "stands"),
    [
        (2, WHOLE_HOME, [("a", "", True)]),
        (2, "g1", [("a", "", False), ("a", "g1", True), ("a", "g2", False)]),
        (2, "g3", [("a", "", False), ("a", "g1", False), ("a", "g2", False), ("a", "g3", True)]),
        (0, WHOLE_HOME, [("a", "", False), ("a", "g1", False), ("a", "g2", False)]),
    ],
)
def test_an_answer_stands_for_what_it_was_asked_of(
    lake: Lake, second: int, asked_of: str, stands: list[tuple[str, str, bool]]
) -> None:
    """One about everything for all parts, one about a part for that part; none for what was looked at later."""
    for part in ("g1", "g2", WHOLE_HOME):
        store_check_results(look(lake, 1, part), [Said("a", passed=False)])
    store_check_results(look(lake, 1, "g1"), [Said("a", passed=False)])
    store_check_results(look(lake, 1, "g2"), [Said("a", passed=False)])
    store_check_results(look(lake, second, asked_of), [Said("a")])
    assert standing(lake) == stands


def test_of_passed_partial_results_only_the_newest_is_stored(lake: Lake) -> None:
    """Hours and generations come without end; the table does not grow with them."""
    for hour in range(5):
        store_check_results(look(lake, hour, f"hour {hour}"), [Said("a")])
    assert standing(lake) == [("a", "hour 4", True)]


def test_a_whole_check_removes_results_without_subject(lake: Lake) -> None:
    """When every invariant was asked, one that was not answered has nothing to judge; without that it stays."""
    store_check_results(look(lake, 1), [Said("a", passed=False), Said("b")])
    store_check_results(look(lake, 2), [Said("b")])
    assert standing(lake) == [("a", "", False), ("b", "", True)]
    store_check_results(look(lake, 3), [Said("b")], all_of_them=True)
    assert standing(lake) == [("b", "", True)]


def test_tables_that_are_newer_are_named(lake: Lake) -> None:
    """Written, made or gone since the look began; that judgements were kept is no reason to judge again."""
    lake.ensure(NODES)
    store_check_results(look(lake, 1), [Said("a")])
    assert tables_changed_since(read_check_results(lake), read_newest_versions(lake)) == []
    row = {"host_id": "h", "address": "", "datacenter": "", "rack": "", "status": "NORMAL"}
    row |= {"tokens": [1], "shard_count": 1, "ignore_msb": 0, "features": []}
    lake.merge(NODES, pa.Table.from_pylist([row], schema=NODES.schema), update=False)
    assert tables_changed_since(read_check_results(lake), read_newest_versions(lake)) == ["platform.nodes"]
    assert tables_changed_since(read_check_results(lake), {}) == ["platform.nodes"]
    assert JUDGEMENTS.full_name in read_newest_versions(lake)


def test_versions_are_those_of_deltas_log(lake: Lake) -> None:
    """Of every table that lies there, and of nothing that is none."""
    lake.ensure(NODES)
    (lake.root / "shop" / "no_table").mkdir(parents=True)
    assert read_newest_versions(lake) == {"platform.nodes": lake.version(NODES)}
