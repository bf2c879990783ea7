"""Joins in real processes that are killed at failpoints, and two that publish at once, through the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from support.homes.contents import contents
from support.processes.nursery import Nursery

from cdc_platform import failpoints
from cdc_platform.delta import IN_PROCESS_VARIABLE, Lake
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
)

# A second start may differ only in when a row was written and into which files.
BOOKKEEPING = {"created_at", "published_at", "judged_at", "content"}


def command(home: Path, file: Path, *options: str) -> list[str]:
    """Return the command that queues the node in `file`."""
    return ["--home", str(home), *options, "bootstrap", str(file)]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, bootstrap_text: Callable[..., str], nursery: Nursery) -> Path:
    """Create a home in which one node has joined and another is queued."""
    folder = tmp_path_factory.mktemp("waiting")
    for number, options in ((1, ["--run"]), (2, [])):
        file = folder / f"node{number}.json"
        file.write_text(bootstrap_text(number), encoding="utf-8")
        done = nursery.run(*command(folder / "home", file, "--clock", f"2026-01-01T0{number}:00:00Z"), *options)
        assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def undisturbed(waiting: Path, nursery: Nursery) -> dict[str, list[dict[str, object]]]:
    """Return the tables' rows after an undisturbed join of the queued node."""
    home = waiting / "undisturbed"
    shutil.copytree(waiting / "home", home)
    done = nursery.run(*command(home, waiting / "node2.json", "--clock", "2026-01-01T03:00:00Z"), "--run")
    assert done.exit_code == 0, done.stderr
    return contents(home, without=BOOKKEEPING)


@pytest.mark.parametrize("point", failpoints.JOIN_POINTS)
def test_killed_join_is_completed_by_the_next_start(
    point: str, waiting: Path, undisturbed: dict[str, list[dict[str, object]]], nursery: Nursery
) -> None:
    """A join killed at any failpoint and started again leaves the same bytes in every table and one timestamp."""
    home = waiting / point
    shutil.copytree(waiting / "home", home)
    first = [*command(home, waiting / "node2.json", "--clock", "2026-01-01T03:00:00Z"), "--run"]
    assert nursery.run(*first, kill_at=point).exit_code == -signal.SIGKILL
    assert contents(home, without=BOOKKEEPING) != undisturbed
    # Once the timestamp is chosen, a later clock must not choose another one.
    later = "3" if point in (failpoints.AFTER_DESCRIPTION, failpoints.AFTER_V2_INSERT) else "4"
    again = [*command(home, waiting / "node2.json", "--clock", f"2026-01-01T0{later}:00:00Z"), "--run"]
    done = nursery.run(*again)
    assert done.exit_code == 0, done.stderr
    assert contents(home, without=BOOKKEEPING) == undisturbed


@pytest.mark.parametrize("point", failpoints.JOIN_POINTS)
def test_no_generation_is_published_before_an_earlier_one(
    point: str, waiting: Path, bootstrap_text: Callable[..., str], nursery: Nursery
) -> None:
    """Another node's join is refused until the killed one is published, so readers see generations in order."""
    home, file = waiting / f"order-{point}", waiting / f"order-{point}.json"
    shutil.copytree(waiting / "home", home)
    file.write_text(bootstrap_text(3), encoding="utf-8")
    lake = Lake(home / "lake")

    def assert_oldest_first() -> None:
        times = sorted(lake.read(GENERATIONS)["time"].to_pylist())
        published = sorted(lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist())
        assert published == times[: len(published)]

    killed = [*command(home, waiting / "node2.json", "--clock", "2026-01-01T03:00:00Z"), "--run"]
    assert nursery.run(*killed, kill_at=point).exit_code == -signal.SIGKILL
    assert_oldest_first()
    later = [*command(home, file, "--clock", "2026-01-01T04:00:00Z"), "--run"]
    refused = nursery.run(*later)
    if point != failpoints.AFTER_PUBLISHED:
        assert refused.exit_code == 2
        assert "[join-unfinished]" in refused.stderr
    assert_oldest_first()
    assert nursery.run(*killed).exit_code == 0
    assert nursery.run(*later).exit_code == 0
    assert_oldest_first()
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 3


@pytest.mark.spark
def test_join_killed_while_writing_streams_is_completed(
    waiting: Path, undisturbed: dict[str, list[dict[str, object]]], nursery: Nursery
) -> None:
    """Killing a join with uncommitted data files leaves the table unchanged; the next start needs no Spark."""
    home = waiting / "in-streams"
    shutil.copytree(waiting / "home", home)
    streams = Path(Lake(home / "lake").path(STREAMS_DESCRIPTIONS_V2))
    before = Lake(home / "lake").version(STREAMS_DESCRIPTIONS_V2)
    program = [sys.executable, "-m", "cdc_platform"]
    first = [*program, *command(home, waiting / "node2.json", "--clock", "2026-01-01T03:00:00Z"), "--run"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    with subprocess.Popen(
        first, env=environment | {IN_PROCESS_VARIABLE: "0"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        # A writer's files lie in a folder beside the table until all are written.
        while process.poll() is None and not any(streams.parent.glob(f".{streams.name}.*")):
            time.sleep(0.001)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert Lake(home / "lake").version(STREAMS_DESCRIPTIONS_V2) == before
    again = [*command(home, waiting / "node2.json", "--clock", "2026-01-01T04:00:00Z"), "--run"]
    done = nursery.run(*again)
    assert done.exit_code == 0, done.stderr
    assert contents(home, without=BOOKKEEPING) == undisturbed


def test_two_nodes_publish_one_generation_at_once(
    waiting: Path, undisturbed: dict[str, list[dict[str, object]]], nursery: Nursery
) -> None:
    """Two processes that complete one join at once leave one result without duplicates or errors."""
    home = waiting / "race"
    shutil.copytree(waiting / "home", home)
    first = [*command(home, waiting / "node2.json", "--clock", "2026-01-01T03:00:00Z"), "--run"]
    assert nursery.run(*first, kill_at=failpoints.AFTER_TIMESTAMP).exit_code == -signal.SIGKILL
    results = nursery.race([first, first])
    assert [result.exit_code for result in results] == [0, 0], results
    assert contents(home, without=BOOKKEEPING) == undisturbed
    lake = Lake(home / "lake")
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == lake.read(GENERATIONS).num_rows == 2
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows == 16 + 32


@pytest.mark.parametrize("point", failpoints.V1_JOIN_POINTS)
def test_a_killed_join_of_a_mixed_cluster_keeps_its_timestamp(
    point: str, waiting: Path, bootstrap_text: Callable[..., str], nursery: Nursery
) -> None:
    """In the first format the timestamp precedes the data; after a kill between or behind them both are reused."""
    home = waiting / point
    shutil.copytree(waiting / "home", home)
    file = waiting / f"{point}.json"
    # Withdraw the queued node; a node that is not upgraded replaces it.
    event = Lake(home / "lake").read(BOOTSTRAP_EVENTS, filters=[("host_id", "=", str(uuid.UUID(int=2)))]).to_pylist()[0]
    assert nursery.run("--home", home, "bootstrap", "--withdraw", event["event_id"]).exit_code == 0
    file.write_text(json.dumps(json.loads(bootstrap_text(3)) | {"features": []}), encoding="utf-8")
    at_three, at_four = ([*command(home, file, "--clock", f"2026-01-01T0{hour}:00:00Z"), "--run"] for hour in (3, 4))
    assert nursery.run(*at_three, kill_at=point).exit_code == -signal.SIGKILL
    lake = Lake(home / "lake")
    (chosen,) = lake.read(GENERATIONS, filters=[("format", "=", "v1")])["time"].to_pylist()
    assert lake.read(GENERATION_DESCRIPTIONS).num_rows == (point == failpoints.AFTER_V1_INSERT)
    assert chosen not in lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist()
    done = nursery.run(*at_four)
    assert done.exit_code == 0, done.stderr
    assert lake.read(GENERATION_DESCRIPTIONS)["time"].to_pylist() == [chosen]
    assert chosen in lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist()
    assert lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", chosen)]).num_rows == 32
