"""Rewrites that are killed at failpoints, and several at once: real processes through the command line. No Spark."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from support.homes.contents import contents
from support.homes.v1_tables import HOUR_MS, START_MS, description, expected, nodes, old_cluster, published, times
from support.processes.nursery import Nursery

from cdc_platform import failpoints
from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.tables import GENERATION_TIMESTAMPS

NOW = format_ms(Milliseconds(START_MS + 10 * HOUR_MS))


def command(home: Path, *options: str) -> list[str]:
    """Return the rewrite's command line, with a stopped clock."""
    return ["--home", str(home), "--clock", NOW, "rewrite", "--json", *options]


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """Create a folder with an upgraded cluster's home, `home`, and one with an undisturbed rewrite, `done`."""
    folder = tmp_path_factory.mktemp("upgraded")
    old_cluster(Lake(open_home_location(folder / "home").lake), times(3), without_data=times(3)[:1])
    shutil.copytree(folder / "home", folder / "done")
    done = nursery.run(*command(folder / "done"))
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.mark.parametrize("point", failpoints.REWRITE_POINTS)
def test_killed_rewrite_is_completed_by_the_next_run(point: str, upgraded: Path, nursery: Nursery) -> None:
    """After a kill no reader sees a timestamp without its rows and no node is marked; the next run completes it."""
    home = upgraded / point
    shutil.copytree(upgraded / "home", home)
    killed = nursery.run(*command(home), kill_at=point)
    assert killed.exit_code == -signal.SIGKILL, killed.stderr
    lake, done = Lake(home / "lake"), Lake(upgraded / "done" / "lake")
    for time in lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist():
        assert published(lake, ms_from_datetime(time)) == published(done, ms_from_datetime(time))
    assert contents(home)["system.cdc_local"] == []
    again = nursery.run(*command(home))
    assert again.exit_code == 0, again.stderr
    assert contents(home) == contents(upgraded / "done")


def test_concurrent_rewrites_leave_one_result(upgraded: Path, nursery: Nursery) -> None:
    """One process per node and one for all nodes at once leave the same rows without duplicates or errors."""
    home = upgraded / "race"
    shutil.copytree(upgraded / "home", home)
    options = [*(["--node", str(node.host_id)] for node in nodes(3)), []]
    results = nursery.race([command(home, *more) for more in options])
    assert [result.exit_code for result in results] == [0] * len(options), results
    assert contents(home) == contents(upgraded / "done")
    lake = Lake(home / "lake")
    for time_ms in times(3)[1:]:
        assert published(lake, Milliseconds(time_ms)) == expected(description(Milliseconds(time_ms), nodes(3)))
