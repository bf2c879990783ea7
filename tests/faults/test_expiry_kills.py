"""Expiry in real processes: killed at each failpoint and run again, and two processes at once."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from support.command_line import run
from support.homes.contents import contents
from support.homes.expiring import DAY_MS, GRACE_MS, IDS, RANGES, TIMES_MS, add_table, import_generations, iso, mark
from support.processes.nursery import Nursery

from cdc_platform import failpoints
from cdc_platform.clock import Milliseconds
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import expiry
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
)
from cdc_platform.timeline import Timeline

NOW = iso(Milliseconds(TIMES_MS[2] + DAY_MS // 2))
"""At this time the first generation may be removed, the second has expired, and the third operates."""
MARKED_MS = Milliseconds(TIMES_MS[2] + DAY_MS // 2 - GRACE_MS)
"""At this time an earlier run marked the first generation."""


def command(home: Path) -> list[str]:
    """Return the command line of one run."""
    return ["--home", str(home), "--clock", NOW, "expire", "--json"]


def finish(home: Path) -> None:
    """Run the expiry to its end."""
    done = run(*command(home))
    assert done.exit_code == 0, done.stderr


@pytest.fixture(scope="module")
def due(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home in which one generation may be removed and another has expired."""
    home = import_generations(tmp_path_factory.mktemp("due"))
    add_table(Lake(home / "lake"), 23 * 1800)
    assert mark(Lake(home / "lake"), MARKED_MS) == 1
    return home


@pytest.fixture(scope="module")
def undisturbed(due: Path) -> dict[str, list[dict[str, object]]]:
    """Return the tables' rows after an undisturbed run."""
    home = due.parent / "undisturbed"
    shutil.copytree(due, home)
    finish(home)
    assert [generation.id for generation in Timeline.read(Lake(home / "lake")).known] == list(IDS[1:])
    return contents(home)


@pytest.mark.parametrize("point", failpoints.EXPIRY_POINTS)
def test_killed_expiry_is_completed_by_the_next_run(
    point: str, due: Path, undisturbed: dict[str, list[dict[str, object]]], nursery: Nursery
) -> None:
    """After a kill readers see a whole generation or none; the next run leaves the same rows as an undisturbed one."""
    home, lake = due.parent / point, Lake(due.parent / point / "lake")
    shutil.copytree(due, home)
    assert nursery.run(*command(home), kill_at=point).exit_code == -signal.SIGKILL
    assert contents(home) != undisturbed
    listed = lake.read(GENERATION_TIMESTAMPS).num_rows == 4
    streams = lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 4 * RANGES
    described = lake.read(GENERATION_DESCRIPTIONS_V2).num_rows == 4 * RANGES
    order = [listed, streams, described]
    assert order == sorted(order)
    assert len(Timeline.read(lake).known) == (4 if listed else 3)
    assert [removal.id for removal in expiry.read_unfinished_removals(lake)] == ([] if listed else [IDS[0]])
    finish(home)
    assert contents(home) == undisturbed
    assert expiry.read_unfinished_removals(lake) == []


def test_two_concurrent_expiries_leave_one_result(
    due: Path, undisturbed: dict[str, list[dict[str, object]]], nursery: Nursery
) -> None:
    """Two processes that remove one generation at once leave one result and raise no error."""
    home = due.parent / "race"
    shutil.copytree(due, home)
    results = nursery.race([command(home), command(home)])
    assert [result.exit_code for result in results] == [0, 0], results
    assert contents(home) == undisturbed
    assert Lake(home / "lake").read(REMOVED_GENERATIONS).num_rows == 1
