"""`cdc-platform demo`: run the joins of a real ring through Dagster, in one process.

The assets perform every step of a join. The further acts are in `demo_acts`, the printed report in `demo_report`.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.demo_acts import DemoJoin, get_log_switch_us
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import JOIN_TABLES, WritingCommand
from cdc_platform.clock import MINUTE_US, SECOND_US, Clock, format_us
from cdc_platform.errors import InputError, StateError

if TYPE_CHECKING:
    from dagster import DagsterInstance, ExecuteInProcessResult
    from rich.progress import Progress

    from cdc_platform.delta import Lake
    from cdc_platform.home_location import HomeLocation
    from cdc_platform.metastore import BootstrapEvent, JoinRequest

RING_SNAPSHOTS = ("ring1.json", "ring2.json", "ring3.json")
SHARD_COUNT, IGNORE_MSB = 8, 12
"""The snapshots come from a cluster without shards. These are the values of a ScyllaDB node with eight cores."""
_JOIN_INTERVAL_US = MINUTE_US * 5
REPOSITORY_TAG = ".dagster/repository"
"""The tag by which Dagster finds the runs of a repository."""
_QUIET_LOGGERS = {"console": {"config": {"log_level": "CRITICAL"}}}


@click.command(cls=WritingCommand, writes=JOIN_TABLES)
@click.option("--force", is_flag=True, help="Materialise joins that are finished once more; the same bytes come out.")
@pass_session
def demo(session: CliSession, force: bool) -> None:
    """Let three real nodes join, one after the other; then show what came of it.

    Each join's generation is described, audited for colocation, inserted, given its timestamp and published, as assets
    in Dagster. Then a table is written before and after a switch, the generations of an old cluster are rewritten and
    expire, and tablets are split. What an earlier run has finished is left as it is.

    \b
    Example:
      cdc-platform demo
      cdc-platform --home /tmp/rehearsal demo --force
    """
    from cdc_platform.cli import demo_acts, demo_report
    from cdc_platform.delta import JOIN_COMMANDS_LOCK, Lake, shared_lock

    home = session.open_location(create=True)
    lake, requests = Lake(home.lake), read_demo_joins()
    _refuse_other_content(lake, requests)
    with _progress_bar() as progress:
        # Lock before queueing: the sensor of a concurrent `up` would run the joins too.
        with shared_lock(lake, JOIN_COMMANDS_LOCK):
            joins = _run_joins(home, lake, requests, session.clock, force, progress)
        events = [join.event for join in joins]
        bar = progress.add_task("a table is written", total=3)
        demo_acts.play_log(lake, home.settings, get_log_switch_us(lake, joins))
        progress.update(bar, description="an old cluster is upgraded", advance=1)
        old = demo_acts.play_old_cluster(home, events)
        progress.update(bar, description="tablets are split", advance=1)
        demo_acts.play_tablets(lake, home.settings, events)
        _sync_catalog(home, lake)
        progress.update(bar, description="all done", advance=1)
    demo_report.write_demo_report(lake, home.settings, joins, old, session.home)


def read_demo_joins() -> list[JoinRequest]:
    """Return the joins that the ring snapshots show, oldest first."""
    from cdc_platform.importing import joins_between_snapshots, parse_ring_snapshot

    folder = files("cdc_platform") / "data" / "real_ring"
    texts = [(folder / name).read_text(encoding="utf-8") for name in RING_SNAPSHOTS]
    return joins_between_snapshots(
        [
            parse_ring_snapshot(text, name, SHARD_COUNT, IGNORE_MSB)
            for text, name in zip(texts, RING_SNAPSHOTS, strict=True)
        ]
    )


def _refuse_other_content(lake: Lake, requests: Sequence[JoinRequest]) -> None:
    """Raise if the home holds another ring, since the demo's nodes must not join it.

    Raises:
        InputError: the home has other nodes, joins or generations.
    """
    from cdc_platform.tables import BOOTSTRAP_EVENTS, GENERATION_TIMESTAMPS, GENERATIONS, NODES

    own = {str(request.host_id) for request in requests}
    others = {
        host
        for table in (NODES, BOOTSTRAP_EVENTS, GENERATIONS)
        for host in lake.read(table, ["host_id"])["host_id"].to_pylist()
        if host not in own
    }
    ledger = lake.read(GENERATIONS, ["time"]).num_rows
    if others or lake.read(GENERATION_TIMESTAMPS, ["time"]).num_rows > ledger:
        raise InputError(f"{lake.location.folder} holds another ring; give the demo a home of its own: --home DIR demo")


def _run_joins(
    home: HomeLocation, lake: Lake, requests: Sequence[JoinRequest], clock: Clock, force: bool, progress: Progress
) -> list[DemoJoin]:
    """Queue the joins five minutes apart, the last one five minutes ago, and run those that are not finished."""
    from cdc_platform.metastore import inbox

    first_us = clock.now_us() - _JOIN_INTERVAL_US * len(requests)
    clocks = [
        Clock(SECOND_US * ((first_us + _JOIN_INTERVAL_US * number) // SECOND_US)) for number in range(len(requests))
    ]
    events = [inbox.queue_join(lake, at, request) for at, request in zip(clocks, requests, strict=True)]
    waiting = {join.generation_id for join in inbox.read_pending_events(lake)}
    due = [event for event in events if force or event.generation_id in waiting]
    if not due:
        return [DemoJoin(event) for event in events]
    done: dict[str, DemoJoin] = {}
    with _force_spark(), ThreadPoolExecutor(1) as executor:
        bar = progress.add_task("starting Spark", total=len(due))
        # Import Dagster while the JVM starts: both take equally long, on different cores.
        loaded = executor.submit(importlib.import_module, "cdc_platform.definitions")
        _start_spark()
        loaded.result()
        with _open_dagster(home) as instance:
            for event, at in zip(events, clocks, strict=True):
                if event in due:
                    progress.update(bar, description=f"{event.node.address} joins")
                    done[event.generation_id] = _materialize_join(instance, home, lake, event, at)
                    progress.advance(bar)
        progress.update(bar, description="all joined")
    return [done.get(event.generation_id, DemoJoin(event)) for event in events]


@contextmanager
def _force_spark() -> Iterator[None]:
    """Run the joins on Spark, however little data there is, unless the environment variable is set already.

    The demo shows joins as they run in volume, and that Spark works on this machine.
    """
    from cdc_platform.delta import IN_PROCESS_VARIABLE

    with ExitStack() as cleanup:
        if IN_PROCESS_VARIABLE not in os.environ:
            os.environ[IN_PROCESS_VARIABLE] = "0"
            cleanup.callback(os.environ.pop, IN_PROCESS_VARIABLE, None)
        yield


def _start_spark() -> None:
    from cdc_platform.spark import get_spark_session

    get_spark_session()


def _sync_catalog(home: HomeLocation, lake: Lake) -> None:
    """Report writes from outside Dagster's runs as Dagster events, as its sensor does under `up`."""
    from cdc_platform.definitions import defs
    from cdc_platform_assets.catalog_sync.sync import sync_catalog

    with _open_dagster(home) as instance:
        sync_catalog(lake, instance, defs.get_repository_def().asset_graph, most=None)


def _materialize_join(
    instance: DagsterInstance, home: HomeLocation, lake: Lake, event: BootstrapEvent, at: Clock
) -> DemoJoin:
    """Run the join's job for its partition, with the clock stopped at `at`.

    Raises:
        StateError: a step failed or an invariant does not hold.
    """
    from cdc_platform_assets.join.inbox import JOIN_JOB, build_join_tags
    from cdc_platform_assets.partitions import GENERATIONS_NAME, read_generation_keys

    start = time.perf_counter()
    names = read_generation_keys(lake, instance)
    partition = names.of(event.generation_id)
    instance.add_dynamic_partitions(GENERATIONS_NAME, [partition])
    config: dict[str, Any] = {
        "loggers": _QUIET_LOGGERS,
        "resources": {
            "home": {"config": {"path": home.name}},
            "clock": {"config": {"stopped_at": format_us(at.now_us())}},
        },
    }
    tags = build_join_tags(names, event.generation_id, event.event_id) | {"dagster/partition": partition}
    result = _execute(instance, JOIN_JOB, config, tags)
    evaluations = result.get_asset_check_evaluations()
    failed = [evaluation.check_name for evaluation in evaluations if not evaluation.passed]
    if not result.success or failed:
        info = f"checks that failed: {', '.join(failed)}" if failed else _first_failure(result.all_events)
        raise StateError(f"the join of {event.node.address} did not succeed ({info}); look at it with: cdc-platform up")
    # A check that finds nothing to judge in this home reports no population.
    info = {
        evaluation.check_name: _population(evaluation.metadata)
        for evaluation in evaluations
        if "population" in evaluation.metadata
    }
    checks = {name: population for name, population in info.items() if population}
    return DemoJoin(event, time.perf_counter() - start, checks)


def _execute(
    instance: DagsterInstance, job: str, config: Mapping[str, Any], tags: Mapping[str, str]
) -> ExecuteInProcessResult:
    """Run a job in this process, tagged so that the UI lists the run with its job and on the timeline of `up`."""
    from cdc_platform.definitions import defs
    from cdc_platform.server import CODE_LOCATION

    repository = {REPOSITORY_TAG: f"{defs.get_repository_def().name}@{CODE_LOCATION}"}
    return defs.resolve_job_def(job).execute_in_process(
        run_config=config, instance=instance, tags={**tags, **repository}, raise_on_error=False
    )


def _population(metadata: Mapping[str, Any]) -> int:
    return int(metadata["population"].value)


def _first_failure(events: Sequence[Any]) -> str:
    failures = [event for event in events if event.is_step_failure]
    error = failures[0].step_failure_data.error if failures else None
    while error is not None and error.cause is not None:
        error = error.cause
    return " ".join(error.message.split()) if error is not None else "no step says why"


@contextmanager
def _open_dagster(home: HomeLocation) -> Iterator[DagsterInstance]:
    """Yield the home's Dagster instance, which is the one that `up` shows."""
    from dagster import DagsterInstance

    from cdc_platform.dagster_home import prepare_dagster_home

    with DagsterInstance.from_config(str(prepare_dagster_home(home))) as instance:
        yield instance


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Yield a progress bar on standard error. It is disabled if that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as progress:
        yield progress
