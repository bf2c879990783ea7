"""A share of a simulated year with faults, through Dagster's sensors and schedules (see `support.soak`).

`CDC_PLATFORM_SOAK` is the share; `make test-exhaustive` runs 58 days.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from support.processes.clocks import COMPILERS
from support.soak.plan import FAULTS, Plan
from support.soak.year import run_soak

from cdc_platform.definitions import defs

SHARE = float(os.environ.get("CDC_PLATFORM_SOAK", "0.01"))
PLAN = (
    Plan(SHARE, seed=21, tick_hours=22, dagster_every=10)
    if SHARE < 0.1
    else Plan(SHARE, tick_hours=24, dagster_every=20, joins_per_day=1, fault_share=0.025)
)
"""This seed gives one hundredth of a year all kinds of faults. Few ticks and Dagster runs save CPU time."""
pytestmark = pytest.mark.timeout(900 if SHARE < 0.1 else 36_000)


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a soak; return its final state."""
    if not COMPILERS:
        pytest.skip("a clock that can be moved is made by a C compiler (cc)")
    return run_soak(tmp_path_factory.mktemp("soak") / "soak", PLAN)


@pytest.mark.long("3.6 days of a platform with 20 joins")
def test_every_invariant_holds_and_no_work_is_pending(soak: dict[str, Any]) -> None:
    """After kills, full disks and outages each row is once in the log and in its copy; no alert or run is open."""
    result = soak["result"]
    assert result["violations"] == []
    assert result["passed"] >= 40
    assert set(result["waiting"].values()) == {0}, result["waiting"]
    assert result["alerts"] == []
    for table, (written, logged, copied) in result["rows"].items():
        assert (logged, copied) == (written, written), table
        assert written > 0, table


def test_every_kind_of_fault_occurred(soak: dict[str, Any]) -> None:
    """Each kind of fault strikes at least once, and each kill starts a new process."""
    if not soak["is_mounted"]:
        pytest.skip("no file system can be mounted here, so the disk was never full")
    assert {name for name in soak["counts"] if name.startswith("fault: ")} == {f"fault: {kind}" for kind in FAULTS}
    assert soak["lives"] > 1
    assert any(" raised " in name or name.startswith("failed runs") for name in soak["counts"])


def test_dagster_and_commands_share_the_work(soak: dict[str, Any]) -> None:
    """Dagster and commands both perform joins and hours; removals, the rewrite and maintenance run in Dagster."""
    jobs = ("join", "consume_hours", "expire", "rewrite", "maintenance", "tablet_gc")
    # Counts of a killed process are lost, and maintenance removes old runs.
    counted = {name.removeprefix("runs of ") for name in soak["counts"] if name.startswith("runs of ")}
    assert set(jobs) - soak["result"]["runs"].keys() - counted == set()
    assert {"commands for join", "commands for consume_hours"} <= soak["counts"].keys()


def test_every_sensor_and_schedule_ticked(soak: dict[str, Any]) -> None:
    """Sensors on runs tick with runs; all others have a reason or a request."""
    repository = defs.get_repository_def()
    names = {definition.name for definition in (*repository.sensor_defs, *repository.schedule_defs)}
    assert soak["result"]["reasons"].keys() == names - {"failed_runs", "recovered_runs"}


@pytest.mark.skipif(SHARE < 0.1, reason="old versions of tables stay for seven days, and commits for thirty")
@pytest.mark.parametrize("figure", ["lake_files", "lake_bytes", "dagster_files", "temporary_bytes", "memory_bytes"])
def test_growth_does_not_accelerate(soak: dict[str, Any], figure: str) -> None:
    """The last third adds at most 1.5 times as much as the middle third."""
    values = [record[figure] for record in soak["records"]]
    third = len(values) // 3
    middle, last = values[2 * third] - values[third], values[-1] - values[2 * third]
    assert last <= max(middle, 0) * 1.5 + 0.05 * max(values), json.dumps(values)


def test_plan_depends_on_its_seed_alone() -> None:
    """A plan depends on its seed alone, so a failed soak can be repeated; another seed has other faults."""
    hours = range(Plan(0.1).hours)
    assert [Plan(0.1).fault(hour) for hour in hours] == [Plan(0.1).fault(hour) for hour in hours]
    assert [Plan(0.1).fault(hour) for hour in hours] != [Plan(0.1, seed=2).fault(hour) for hour in hours]
    joins = [action["number"] for hour in hours for action in Plan(0.1).actions(hour) if action["kind"] == "join"]
    assert joins == list(range(Plan(0.1).joins))
    assert Plan(1).hours == 8_760
    assert Plan(1).joins == 2_000
