"""Changes of tablets in real processes: killed at failpoints, and several at once."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from support import command_line
from support.homes.contents import contents
from support.processes.nursery import Nursery

from cdc_platform import failpoints
from cdc_platform.delta import Lake
from cdc_platform.metastore import tablets
from cdc_platform.tables import CDC_TABLE_CHANGES, CDC_TABLES, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS

TABLES = (CDC_TABLES, CDC_TABLE_CHANGES, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
CREATE = ("2026-01-01T00:00:00Z", "tablets", "create", "ks.t", "--count", "2")
SPLIT = ("2026-01-01T01:00:00Z", "tablets", "split", "ks.t", "--count", "4")
GC = ("2026-01-03T00:00:00Z", "tablets", "gc")
DROP = ("2026-01-03T00:00:00Z", "tables", "drop", "ks.t")
SCRIPTS = {"create": [CREATE], "split": [CREATE, SPLIT], "gc": [CREATE, SPLIT, GC], "drop": [CREATE, SPLIT, DROP]}
KILLS = [
    ("create", failpoints.AFTER_TABLE_CHANGE),
    ("create", failpoints.AFTER_TABLET_DECISION),
    ("create", failpoints.AFTER_TABLET_STREAMS),
    ("split", failpoints.AFTER_TABLET_DECISION),
    ("split", failpoints.AFTER_TABLET_STREAMS),
    ("gc", failpoints.AFTER_TABLET_TIMESTAMPS_REMOVED),
    ("gc", failpoints.AFTER_TABLET_STREAMS_REMOVED),
    ("drop", failpoints.AFTER_TABLET_DROP),
    ("drop", failpoints.AFTER_TABLET_DECISION),
    ("drop", failpoints.AFTER_TABLET_TIMESTAMPS_REMOVED),
]


def command(home: Path, clock: str, *words: str) -> list[str]:
    """Return the command line of a step."""
    return ["--home", str(home), "--clock", clock, *words]


def kill_step(nursery: Nursery, home: Path, step: tuple[str, ...], point: str) -> None:
    """Run a step in its own process, which dies at `point`."""
    died = nursery.run(*command(home, *step), kill_at=point)
    assert died.exit_code == -signal.SIGKILL, died.stderr


def run_step(home: Path, step: tuple[str, ...]) -> None:
    """Run a step to its end."""
    answer = command_line.run("--home", home, "--clock", *step)
    assert answer.exit_code == 0, answer.stderr


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return for each script a home in which all steps but the last are done."""
    folder = tmp_path_factory.mktemp("before")
    homes = {}
    for name, steps in SCRIPTS.items():
        homes[name] = folder / name
        homes[name].mkdir()
        for step in steps[:-1]:
            run_step(homes[name], step)
    return homes


@pytest.fixture(scope="module")
def undisturbed(before: dict[str, Path]) -> dict[str, dict[str, list[dict[str, object]]]]:
    """Return the tables' rows after each script without kills."""
    rows = {}
    for name, steps in SCRIPTS.items():
        home = before[name].with_name(f"{name}-undisturbed")
        shutil.copytree(before[name], home)
        run_step(home, steps[-1])
        rows[name] = contents(home, TABLES)
    return rows


@pytest.mark.parametrize(("script", "point"), KILLS)
def test_killed_change_is_completed_by_the_next_run(
    script: str,
    point: str,
    before: dict[str, Path],
    undisturbed: dict[str, dict[str, list[dict[str, object]]]],
    nursery: Nursery,
) -> None:
    """A change killed at any failpoint and run again leaves the same rows; in between readers see whole sets."""
    home = before[script].with_name(f"{script}-{point}")
    shutil.copytree(before[script], home)
    kill_step(nursery, home, SCRIPTS[script][-1], point)
    lake = Lake(home / "lake")
    assert contents(home, TABLES) != undisturbed[script]
    for name in tablets.read_tables_with_stream_sets(lake):
        assert all(len(stream_set.ids) in (2, 4) for stream_set in tablets.read_stream_sets(lake, *name))
    run_step(home, SCRIPTS[script][-1])
    assert contents(home, TABLES) == undisturbed[script]


def test_a_later_clock_keeps_the_time_that_was_decided(
    before: dict[str, Path], undisturbed: dict[str, dict[str, list[dict[str, object]]]], nursery: Nursery
) -> None:
    """The set's time is chosen once: a process that completes a killed split an hour later uses the same time."""
    home = before["split"].with_name("later-clock")
    shutil.copytree(before["split"], home)
    kill_step(nursery, home, SPLIT, failpoints.AFTER_TABLET_DECISION)
    run_step(home, ("2026-01-01T02:00:00Z", *SPLIT[1:]))
    assert contents(home, TABLES) == undisturbed["split"]


def test_concurrent_resizes_make_one_set(before: dict[str, Path], nursery: Nursery) -> None:
    """Three processes that split at once, each by its own clock, make one next set at one time, without error."""
    home = before["split"].with_name("race")
    shutil.copytree(before["split"], home)
    steps = [(f"2026-01-01T01:00:0{number}Z", *SPLIT[1:]) for number in range(3)]
    results = nursery.race([command(home, *step) for step in steps])
    assert [result.exit_code for result in results] == [0, 0, 0], results
    lake = Lake(home / "lake")
    sets = tablets.read_stream_set_changes(lake, "ks", "t")
    assert [(len(change.current), len(change.closed), len(change.opened)) for change in sets] == [(2, 0, 2), (4, 2, 4)]
    assert lake.read(TABLET_LAYOUTS).num_rows == 2
    assert lake.read(TABLET_STREAMS).num_rows == 14
