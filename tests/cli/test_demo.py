"""The demo for a newcomer: from nothing to three published generations and the following acts, and a second run."""

from __future__ import annotations

import re
import shlex
import signal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import run
from support.nodes import join_request
from support.processes.nursery import Nursery
from support.worlds import installed

from cdc_platform import failpoints
from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.cli import demo_acts
from cdc_platform.cli.demo import RING_SNAPSHOTS, read_demo_joins
from cdc_platform.clock import Clock, ms_from_datetime, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import generations as metastore_generations
from cdc_platform.metastore import inbox, tablets
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLES,
)
from cdc_platform.timeline import GenerationKeys, Timeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = installed.DEMO_CLOCK


def arguments(home: Path, *options: str) -> list[str]:
    """Return the arguments of the demo on a home, with a stopped clock."""
    return ["--home", str(home), "--clock", NOW, "demo", *options]


def versions(home: Path) -> dict[str, int | None]:
    """Return the Delta version of every table, in the demo's home and in the old cluster's."""
    lakes = {name: Lake(open_home_location(home / name).lake) for name in ("", "old_cluster")}
    return {f"{name} {table}": lake.version(TABLES[table]) for name, lake in lakes.items() for table in TABLES}


@pytest.fixture(scope="module")
def home(demonstrated: Path) -> Path:
    """A home in which the demo ran once."""
    return demonstrated


def test_the_snapshots_are_three_joins_of_real_nodes() -> None:
    """Each snapshot of the live cluster adds one node with 256 vnodes of its own."""
    requests = read_demo_joins()
    assert [request.address for request in requests] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [len(request.tokens or ()) for request in requests] == [256] * len(RING_SNAPSHOTS)


@pytest.mark.spark
def test_three_generations_are_published(home: Path) -> None:
    """Every join creates a complete, published generation of its ring, five minutes apart."""
    lake = Lake(open_home_location(home).lake)
    generations = Timeline.read(lake).known
    assert [generation.published for generation in generations] == [True] * 3
    times = [generation.time_ms for generation in generations]
    assert [later - earlier for earlier, later in pairwise(times)] == [300_000, 300_000]
    ids = [generation.id for generation in generations if generation.id]
    assert [len(metastore_generations.read_v2_description(lake, generation)) for generation in ids] == [256, 512, 768]
    assert inbox.read_pending_events(lake) == []


@pytest.mark.spark
def test_dagster_shows_the_runs(home: Path) -> None:
    """The home's Dagster instance has a successful run and a partition for each join in the inbox."""
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    run_filter = RunsFilter(job_name="join", tags={".dagster/repository": "__repository__@cdc_platform"})
    with DagsterInstance.from_config(str(home / "dagster")) as instance:
        runs = instance.get_runs()
        assert {run.run_id for run in instance.get_runs(run_filter)} == {run.run_id for run in runs}
        assert {run.status for run in runs} == {DagsterRunStatus.SUCCESS}
        joined = {run.tags["dagster/partition"] for run in runs if "dagster/partition" in run.tags}
        partitions = set(instance.get_dynamic_partitions("generation"))
    lake = Lake(open_home_location(home).lake)
    names = GenerationKeys.read(lake)
    assert joined == partitions == {names.of(generation.id) for generation in Timeline.read(lake).known}


@pytest.mark.spark
def test_the_report_shows_the_streams_of_writes(home: Path) -> None:
    """Before the first switch no write has a stream; at each switch the owners change with the ring."""
    report = (home / "told").read_text(encoding="utf-8")
    assert report.count("NO_STREAM") == 3
    assert report.count("around switch") == 3
    assert "127.0.0.3 shard" in report
    assert "What to try next" in report


@pytest.mark.spark
def test_log_rows_are_in_two_generations(home: Path) -> None:
    """Rows from before the second switch are in streams of the first generation, later ones in the second's."""
    lake = Lake(open_home_location(home).lake)
    first, second, _ = Timeline.read(lake).known
    rows = lake.read(log_table(read_table_schema(lake, "demo", "carts"))).to_pylist()
    for generation, operations in ((first, [2, 2]), (second, [0, 0, 1, 2, 3])):
        assert generation.id is not None
        streams = {
            stream.tobytes() for stream in metastore_generations.read_v2_description(lake, generation.id).streams
        }
        inside = [row for row in rows if row["cdc$stream_id"] in streams]
        assert sorted(row["cdc$operation"] for row in inside) == operations
        after = {ms_from_datetime(row["cdc$timestamp"]) >= second.time_ms for row in inside}
        assert after == {generation is second}
    assert len(rows) == 7


@pytest.mark.spark
def test_the_report_shows_the_log_and_the_rebuilt_table(home: Path) -> None:
    """Two inserts before the switch, three writes after it, and two remaining rows: bob's was deleted."""
    report = (home / "told").read_text(encoding="utf-8")
    assert len(re.findall(r"2 insert .* of join 1", report)) == 2
    assert len(re.findall(r"(0 pre-image|1 update|3 row-delete|2 insert) .* of join 2", report)) == 5
    rebuilt = report[report.index("The table rebuilt from") : report.index("Rewrite of the V1 generations")]
    assert sorted(re.findall(r"customer \w+, item \d, count \d", rebuilt)) == [
        "customer alice, item 1, count 3",
        "customer judy, item 4, count 1",
    ]


@pytest.mark.spark
def test_the_old_cluster_is_rewritten_and_expires(home: Path) -> None:
    """The oldest of three V1 generations is too old for a rewrite; it and the second expire, the newest operates."""
    report = (home / "told").read_text(encoding="utf-8")
    rewritten = report[report.index("Rewrite of the V1 generations") : report.index("The old cluster's generations")]
    assert re.findall(r"Z   (skip-\S+|rewrite) ", rewritten) == ["skip-too-old", "rewrite", "rewrite"]
    lake = Lake(open_home_location(home / "old_cluster").lake)
    (newest,) = Timeline.read(lake).known
    assert (newest.format, newest.published) == ("v1", True)
    assert len(Timeline.read(lake).removed) == 2
    assert [lake.read(table, ["time"]).num_rows for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS)] == [1, 1]
    published = lake.read(STREAMS_DESCRIPTIONS_V2).to_pylist()
    (old,) = lake.read(STREAMS_DESCRIPTIONS, ["streams"])["streams"].to_pylist()
    assert {ms_from_datetime(row["time"]) for row in published} == {newest.time_ms}
    assert sorted(stream for row in published for stream in row["streams"]) == old
    assert len(published) == 768


@pytest.mark.spark
def test_the_tablets_are_split(home: Path) -> None:
    """The table with tablets has two stream sets that share no stream."""
    lake = Lake(open_home_location(home).lake)
    created, split = tablets.read_stream_set_changes(lake, "demo", "sessions")
    assert [len(stream_set.current) for stream_set in (created, split)] == [2, 4]
    assert (len(split.closed), len(split.opened)) == (2, 4)


@pytest.mark.spark
def test_the_suggested_commands_work(home: Path) -> None:
    """Every command of the report's last list succeeds and prints something; `up` has its own tests."""
    report = (home / "told").read_text(encoding="utf-8")
    suggestions = [line.strip() for line in report[report.index("What to try next") :].splitlines()[1:]]
    commands = [shlex.split(re.split(r"   +", line)[0])[1:] for line in suggestions]
    for words in commands:
        assert words[0] == "--home"
        if words[2] != "up":
            ran = run("--clock", NOW, *words)
            assert ran.exit_code == 0, f"{words}\n{ran.stdout}{ran.stderr}"
            assert ran.stdout.strip(), words
    names = {words[2] for words in commands}
    assert names >= {"explain", "generations", "check", "expire", "tablets", "cql", "sql", "up", "--help", "rewrite"}


@pytest.mark.spark
def test_the_old_cluster_passes_its_checks(home: Path) -> None:
    """The rest of the old cluster violates no invariant, including those of the rewrite and of expiry."""
    ran = run("--home", home / "old_cluster", "--clock", NOW, "check", "--json")
    assert ran.exit_code == 0, ran.stdout
    assert {"live_generations_rewritten", "none_half_removed"} <= {line["invariant"] for line in ran.rows}


@pytest.mark.spark
def test_the_second_run_needs_no_java(home: Path, program: Path, tmp_path: Path) -> None:
    """A second run without JVM or network leaves everything unchanged and prints an equal report."""
    before = versions(home)
    ran = installed.run(program, tmp_path, *arguments(home), JAVA_HOME=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert versions(home) == before
    assert ran.stdout.count("finished before") == 3
    report = (home / "told").read_text(encoding="utf-8")
    second_report = ran.stdout[ran.stdout.index("Streams of three keys") :]
    assert [part for part in second_report.split("\n\n") if part not in report] == []


ACTS = """
import sys
from cli.test_demo import play_acts
play_acts(sys.argv[1])
"""


def play_acts(folder: str | Path) -> None:
    """Play the acts that need no Spark, in a home with queued joins."""
    home = open_home_location(folder)
    lake = Lake(home.lake)
    events = [inbox.queue_join(lake, Clock(parse_time_us(NOW)), request) for request in read_demo_joins()]
    demo_acts.play_old_cluster(home, events)
    demo_acts.play_tablets(lake, home.settings, events)


def read_all_rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return every row that the acts wrote, except the inbox, whose generations are random."""
    lakes = {name: Lake(folder / name / "lake") for name in ("", "old_cluster")}
    return {
        f"{name} {table.full_name}": lake.read(table).sort_by([(key, "ascending") for key in table.keys]).to_pylist()
        for name, lake in lakes.items()
        for table in TABLES.values()
        if table is not BOOTSTRAP_EVENTS
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows after undisturbed acts."""
    folder = tmp_path_factory.mktemp("undisturbed")
    play_acts(folder)
    return read_all_rows(folder)


@pytest.mark.grid("kills of demo steps", 1)
@pytest.mark.parametrize(
    "point", [failpoints.AFTER_REWRITTEN_STREAMS, failpoints.AFTER_TIMESTAMP_REMOVAL, failpoints.AFTER_TABLET_DECISION]
)
def test_killed_acts_are_completed_by_the_next_run(
    tmp_path: Path, undisturbed: dict[str, list[dict[str, Any]]], point: str, nursery: Nursery
) -> None:
    """After a kill in the middle of an act, the next run leaves the rows of an undisturbed run."""
    killed = nursery.run("-c", ACTS, tmp_path, kill_at=point)
    assert killed.exit_code == -signal.SIGKILL
    assert read_all_rows(tmp_path) != undisturbed
    play_acts(tmp_path)
    assert read_all_rows(tmp_path) == undisturbed


@pytest.mark.spark
@pytest.mark.long("three generations made once more on Spark")
def test_a_forced_run_gives_equal_bytes_and_times(home: Path, spark: SparkSession) -> None:
    """With --force, every generation retains its streams and its timestamp."""
    lake = Lake(open_home_location(home).lake)
    before = Timeline.read(lake).known
    descriptions = [
        metastore_generations.read_v2_description(lake, generation.id) for generation in before if generation.id
    ]
    ran = run(*arguments(home, "--force"))
    assert ran.exit_code == 0, ran.stderr
    assert Timeline.read(lake).known == before
    for old, generation in zip(descriptions, before, strict=True):
        assert generation.id is not None
        assert old.equals(metastore_generations.read_v2_description(lake, generation.id))


def test_a_home_with_another_ring_is_refused(tmp_path: Path) -> None:
    """In a home with other nodes the demo refuses in one line with exit code 2."""
    lake = Lake(open_home_location(tmp_path).lake)
    inbox.queue_join(lake, Clock(), join_request(4, 3))
    ran = run(*arguments(tmp_path))
    assert ran.exit_code == 2
    assert ran.stderr.strip().count("\n") == 0
    assert "another ring" in ran.stderr
    assert len(inbox.read_pending_events(lake)) == 1
