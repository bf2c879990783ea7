"""The demo as a newcomer runs it: from nothing to three published generations, and again without anything to do."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import run

from cdc_platform.clock import Clock
from cdc_platform.commands.demo import SNAPSHOTS, demo_joins
from cdc_platform.home import open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle import inbox, reading
from cdc_platform.sources.bootstrap_file import parse_join_request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = "2026-01-31T12:00:00Z"


def arguments(home: Path, *options: str) -> list[str]:
    """The demo on a home, with its clock stopped."""
    return ["--home", str(home), "--clock", NOW, "demo", *options]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A home in which the demo ran once."""
    path = tmp_path_factory.mktemp("demo") / "home"
    ran = run(*arguments(path))
    assert ran.exit_code == 0, ran.stderr
    (path / "told").write_text(ran.stdout, encoding="utf-8")
    return path


def test_the_snapshots_are_three_joins_of_real_nodes() -> None:
    """Each snapshot of the live cluster has one node more than the one before, with 256 vnodes of its own."""
    requests = demo_joins()
    assert [request.address for request in requests] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [len(request.tokens or ()) for request in requests] == [256] * len(SNAPSHOTS)


@pytest.mark.spark
def test_three_generations_are_published(home: Path) -> None:
    """Every join made a generation of the ring it found, five minutes apart, each complete and published."""
    lake = Lake(open_home(home).lake)
    generations = reading.known_generations(lake)
    assert [generation.published for generation in generations] == [True] * 3
    times = [generation.time_ms for generation in generations]
    assert [later - earlier for earlier, later in pairwise(times)] == [300_000, 300_000]
    ids = [generation.id for generation in generations if generation.id]
    assert [len(reading.read_description(lake, generation)) for generation in ids] == [256, 512, 768]
    assert inbox.waiting(lake) == []


@pytest.mark.spark
def test_dagster_shows_the_runs(home: Path) -> None:
    """The home's Dagster instance has a successful run and a partition for each join, and the inbox they came from."""
    from dagster import DagsterInstance, DagsterRunStatus
    from dagster._core.instance import InstanceRef

    with DagsterInstance.from_ref(InstanceRef.from_dir(str(home / "dagster"))) as instance:
        runs = instance.get_runs()
        assert {run.status for run in runs} == {DagsterRunStatus.SUCCESS}
        joined = {run.tags["dagster/partition"] for run in runs if "dagster/partition" in run.tags}
        partitions = set(instance.get_dynamic_partitions("generation"))
    assert (
        joined == partitions == {generation.id for generation in reading.known_generations(Lake(open_home(home).lake))}
    )


@pytest.mark.spark
def test_the_report_says_where_writes_go(home: Path) -> None:
    """Before the first switch nothing takes a write; at each switch the owners change as the ring says they do."""
    told = (home / "told").read_text(encoding="utf-8")
    assert told.count("NO_STREAM") == 3
    assert told.count("around switch") == 3
    assert "127.0.0.3 shard" in told
    assert "What to try next" in told


@pytest.mark.spark
def test_the_second_run_needs_no_java(home: Path, tmp_path: Path) -> None:
    """What is finished is left as it is: run again at once, without JVM or network, the report is the same."""
    command = [sys.executable, "-m", "cdc_platform", *arguments(home)]
    env = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("finished before") == 3
    switches = ran.stdout[ran.stdout.index("Where writes") :]
    assert switches in (home / "told").read_text(encoding="utf-8")


@pytest.mark.spark
def test_again_gives_the_same_bytes_and_times(home: Path) -> None:
    """Materialised once more, every generation keeps its streams and its timestamp."""
    lake = Lake(open_home(home).lake)
    before = reading.known_generations(lake)
    described = [reading.read_description(lake, generation.id) for generation in before if generation.id]
    ran = run(*arguments(home, "--again"))
    assert ran.exit_code == 0, ran.stderr
    assert reading.known_generations(lake) == before
    for old, generation in zip(described, before, strict=True):
        assert generation.id is not None
        assert old.equals(reading.read_description(lake, generation.id))


def test_somebodys_ring_is_left_alone(tmp_path: Path) -> None:
    """In a home with other nodes the demo refuses, with one line and exit code 2."""
    lake = Lake(open_home(tmp_path).lake)
    request = parse_join_request(
        '{"host_id": "5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10", "address": "10.0.0.4", "datacenter": "dc1", "rack": "r1",'
        ' "tokens": [1, 2, 3], "shard_count": 4, "ignore_msb": 12}'
    )
    inbox.queue(lake, Clock(), request)
    ran = run(*arguments(tmp_path))
    assert ran.exit_code == 2
    assert ran.stderr.strip().count("\n") == 0
    assert "another ring" in ran.stderr
    assert len(inbox.waiting(lake)) == 1
