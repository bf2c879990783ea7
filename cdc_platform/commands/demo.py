"""`cdc-platform demo`: the main job on the real ring that ships with the project, through Dagster, in one process.

It knows the order of the story; every step of a join is an asset's. What else a generation lives through is
`demo_life`'s, what is written around a switch `demo_log`'s, and what is shown at the end `demo_report`'s.
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

from cdc_platform.clock import MINUTE_US, SECOND_US, Clock, format_us
from cdc_platform.commands.demo_joins import Join, log_switch_us
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError, StateError

if TYPE_CHECKING:
    from dagster import DagsterInstance, ExecuteInProcessResult
    from rich.progress import Progress

    from cdc_platform.home import Home
    from cdc_platform.lake.lake import Lake
    from cdc_platform.records.inbox import BootstrapEvent
    from cdc_platform.records.join_request import JoinRequest

SNAPSHOTS = ("ring1.json", "ring2.json", "ring3.json")
SHARD_COUNT, IGNORE_MSB = 8, 12
"""The snapshots come from a cluster without shards; this is what a ScyllaDB node with eight cores would have."""
_APART_US = MINUTE_US * 5
REPOSITORY_TAG = ".dagster/repository"
"""By this tag Dagster finds the runs of a repository."""
_QUIET = {"console": {"config": {"log_level": "CRITICAL"}}}


@click.command()
@click.option("--again", is_flag=True, help="Materialise joins that are finished once more; the same bytes come out.")
@pass_session
def demo(session: Session, again: bool) -> None:
    """Let three real nodes join, one after the other; then show what came of it.

    Each join's generation is described, audited for colocation, inserted, given its timestamp and published, as assets
    in Dagster. Then a table is written before and after a switch, the generations of an old cluster are rewritten and
    expire, and tablets are split. What an earlier run has finished is left as it is.

    \b
    Example:
      cdc-platform demo
      cdc-platform --home /tmp/rehearsal demo --again
    """
    from cdc_platform.commands import demo_life, demo_log, demo_report
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.turns import MAKING, busy

    home = session.open_home(create=True)
    lake, requests = Lake(home.lake), demo_joins()
    _refuse_other_content(lake, requests)
    with _progress() as progress:
        # From before they are queued: the sensor of an `up` beside this would make the joins as well.
        with busy(lake, MAKING):
            joins = _run(home, lake, requests, session.clock, again, progress)
        events = [join.event for join in joins]
        bar = progress.add_task("a table is written", total=3)
        demo_log.play(lake, home.settings, log_switch_us(lake, joins))
        progress.update(bar, description="an old cluster is upgraded", advance=1)
        old = demo_life.play_old_cluster(home, events)
        progress.update(bar, description="tablets are split", advance=1)
        demo_life.play_tablets(lake, home.settings, events)
        _tell_catalogue(home, lake)
        progress.update(bar, description="all done", advance=1)
    demo_report.write(lake, home.settings, joins, old, session.home)


def demo_joins() -> list[JoinRequest]:
    """The nodes that the snapshots show joining, oldest first."""
    from cdc_platform.sources.ring_snapshots import joins, parse_ring_snapshot

    folder = files("cdc_platform") / "data" / "real_ring"
    texts = [(folder / name).read_text(encoding="utf-8") for name in SNAPSHOTS]
    return joins(
        [parse_ring_snapshot(text, name, SHARD_COUNT, IGNORE_MSB) for text, name in zip(texts, SNAPSHOTS, strict=True)]
    )


def _refuse_other_content(lake: Lake, requests: Sequence[JoinRequest]) -> None:
    """The demo's nodes must not join somebody's ring.

    Raises:
        InputError: the home has other nodes, joins or generations.
    """
    from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, GENERATION_TIMESTAMPS, GENERATIONS, NODES

    own = {str(request.host_id) for request in requests}
    others = {
        host
        for table in (NODES, BOOTSTRAP_EVENTS, GENERATIONS)
        for host in lake.read(table, ["host_id"])["host_id"].to_pylist()
        if host not in own
    }
    ledger = lake.read(GENERATIONS, ["time"]).num_rows
    if others or lake.read(GENERATION_TIMESTAMPS, ["time"]).num_rows > ledger:
        raise InputError(f"{lake.place.folder} holds another ring; give the demo a home of its own: --home DIR demo")


def _run(
    home: Home, lake: Lake, requests: Sequence[JoinRequest], clock: Clock, again: bool, progress: Progress
) -> list[Join]:
    """Queue the joins, five minutes apart with the last some minutes ago, and run those that are not finished."""
    from cdc_platform.records import inbox

    first_us = clock.now_us() - _APART_US * len(requests)
    clocks = [Clock(SECOND_US * ((first_us + _APART_US * number) // SECOND_US)) for number in range(len(requests))]
    events = [inbox.queue(lake, at, request) for at, request in zip(clocks, requests, strict=True)]
    waiting = {join.generation_id for join in inbox.waiting(lake)}
    due = [event for event in events if again or event.generation_id in waiting]
    if not due:
        return [Join(event) for event in events]
    done: dict[str, Join] = {}
    with _everything_by_spark(), ThreadPoolExecutor(1) as beside:
        bar = progress.add_task("starting Spark", total=len(due))
        # Dagster takes as long to import as the JVM to start, on another core.
        loaded = beside.submit(importlib.import_module, "cdc_platform.definitions")
        _start_spark()
        loaded.result()
        with _dagster(home) as instance:
            for event, at in zip(events, clocks, strict=True):
                if event in due:
                    progress.update(bar, description=f"{event.node.address} joins")
                    done[event.generation_id] = _materialise(instance, home, lake, event, at)
                    progress.advance(bar)
        progress.update(bar, description="all joined")
    return [done.get(event.generation_id, Join(event)) for event in events]


@contextmanager
def _everything_by_spark() -> Iterator[None]:
    """However little there is: the demo shows the joins as they run in volume, and that Spark runs here."""
    from cdc_platform.lake.volume import IN_PROCESS_VARIABLE

    with ExitStack() as left:
        if IN_PROCESS_VARIABLE not in os.environ:
            os.environ[IN_PROCESS_VARIABLE] = "0"
            left.callback(os.environ.pop, IN_PROCESS_VARIABLE, None)
        yield


def _start_spark() -> None:
    from cdc_platform.lake.session import spark_session

    spark_session()


def _tell_catalogue(home: Home, lake: Lake) -> None:
    """What was written beside Dagster's runs becomes events there, as its sensor would make them under `up`."""
    from assets.reconcile.reconciling import reconcile
    from cdc_platform.definitions import defs

    with _dagster(home) as instance:
        reconcile(lake, instance, defs.get_repository_def().asset_graph, most=None)


def _materialise(instance: DagsterInstance, home: Home, lake: Lake, event: BootstrapEvent, at: Clock) -> Join:
    """Run the join's job for its partition, at a time of its own.

    Raises:
        StateError: a step failed or an invariant does not hold.
    """
    from assets.join.inbox import JOIN_JOB, tags_of
    from assets.partitions import NAME, keys

    start = time.perf_counter()
    names = keys(lake, instance)
    partition = names.of(event.generation_id)
    instance.add_dynamic_partitions(NAME, [partition])
    config: dict[str, Any] = {
        "loggers": _QUIET,
        "resources": {
            "home": {"config": {"path": home.name}},
            "clock": {"config": {"stopped_at": format_us(at.now_us())}},
        },
    }
    tags = tags_of(names, event.generation_id, event.event_id) | {"dagster/partition": partition}
    result = _execute(instance, JOIN_JOB, config, tags)
    evaluations = result.get_asset_check_evaluations()
    failed = [evaluation.check_name for evaluation in evaluations if not evaluation.passed]
    if not result.success or failed:
        told = f"checks that failed: {', '.join(failed)}" if failed else _first_failure(result.all_events)
        raise StateError(f"the join of {event.node.address} did not succeed ({told}); look at it with: cdc-platform up")
    # Checks of what this home has nothing of say no number.
    told = {each.check_name: _population(each.metadata) for each in evaluations if "population" in each.metadata}
    checks = {name: population for name, population in told.items() if population}
    return Join(event, time.perf_counter() - start, checks)


def _execute(
    instance: DagsterInstance, job: str, config: Mapping[str, Any], tags: Mapping[str, str]
) -> ExecuteInProcessResult:
    """Run a job in this process. A tag lets the UI list the run with its job and on the timeline of `up`."""
    from cdc_platform.definitions import defs
    from cdc_platform.serving.parts import LOCATION

    repository = {REPOSITORY_TAG: f"{defs.get_repository_def().name}@{LOCATION}"}
    return defs.resolve_job_def(job).execute_in_process(
        run_config=config, instance=instance, tags={**tags, **repository}, raise_on_error=False
    )


def _population(told: Mapping[str, Any]) -> int:
    return int(told["population"].value)


def _first_failure(events: Sequence[Any]) -> str:
    failures = [event for event in events if event.is_step_failure]
    error = failures[0].step_failure_data.error if failures else None
    while error is not None and error.cause is not None:
        error = error.cause
    return " ".join(error.message.split()) if error is not None else "no step says why"


@contextmanager
def _dagster(home: Home) -> Iterator[DagsterInstance]:
    """The Dagster instance of the home: what `up` shows."""
    from dagster import DagsterInstance

    from cdc_platform.dagster_home import dagster_home

    with DagsterInstance.from_config(str(dagster_home(home))) as instance:
        yield instance


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error, for people who watch; in a pipe there is none."""
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
