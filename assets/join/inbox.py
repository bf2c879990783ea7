"""The inbox: a job queues a joining node, and a sensor asks for the join of whoever is first in it.

No Spark in here: what waits is read from Delta in milliseconds.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dagster import (
    AssetExecutionContext,
    Config,
    DagsterInstance,
    DefaultSensorStatus,
    MaterializeResult,
    OpExecutionContext,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    in_process_executor,
    job,
    op,
    sensor,
)
from pydantic import Field

from assets.code import code_version
from assets.declared import key, pool, table_asset
from assets.events import Asked, event, told_apart, written
from assets.failures import RETRIES, in_one_line
from assets.join.asked import content_of, joined_generation
from assets.partitions import GENERATIONS, NAME, asked, keys
from assets.runs import Attempt, attempt
from assets.told import Stopwatch, few_rows, materialized
from assets.whole_homes import on_whole_homes
from cdc_platform.errors import NotFound
from cdc_platform.generations.cluster_feature import CDC_GENERATIONS_V2
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.lake.tables import GENERATIONS as LEDGER
from cdc_platform.lake.turns import MAKING, is_busy
from cdc_platform.lifecycle.join.bootstrap import join_zero_token
from cdc_platform.records import inbox
from cdc_platform.records.inbox import WaitingJoin
from cdc_platform.records.join_request import JoinRequest
from cdc_platform.sources.bootstrap_file import parse_join_request
from cdc_platform.timeline.keys import Keys
from resources.clock import ClockResource
from resources.home import HomeResource

CODE = ("cdc_platform.records.inbox",)
JOIN_JOB = "join"
BOOTSTRAP_JOB = "bootstrap"
LAUNCHPAD = f"/locations/cdc_platform/jobs/{BOOTSTRAP_JOB}/playground"
"""Where the UI has the launchpad of that job."""
MOST_NEW_PARTITIONS = 1000
"""Partitions that one tick adds: a tick stays short however many events wait."""


class JoiningNode(Config):
    """A node that is to be queued, as in the file of `cdc-platform bootstrap FILE`. Without a host_id nothing is."""

    host_id: str = Field(default="", description="UUID of the node; empty: nothing is queued, the inbox is reported")
    address: str = Field(default="10.0.0.4", description="address of the node")
    datacenter: str = Field(default="datacenter1", description="datacenter of the node")
    rack: str = Field(default="rack1", description="rack of the node")
    tokens: list[str] = Field(
        default=[], description="its tokens, in quotes: a browser would round integers beyond 2^53; else num_tokens"
    )
    num_tokens: int = Field(
        default=16,
        description="how many tokens to draw, where none are named; 0: a zero-token node",
    )
    shard_count: int = Field(default=4, description="shards of the node, 1 to 4096")
    ignore_msb: int = Field(default=12, description="ignored most significant bits, 0 to 31; usually 12")
    features: list[str] = Field(default=[CDC_GENERATIONS_V2], description="cluster features")

    def request(self) -> JoinRequest | None:
        """The checked request, or None where no host is given.

        Raises:
            InputError: a field is out of its bounds.
        """
        if not self.host_id:
            return None
        given = self.model_dump(exclude={"num_tokens" if self.tokens else "tokens"})
        return parse_join_request(json.dumps(given), "the run's config")


@table_asset(
    BOOTSTRAP_EVENTS,
    group="inbox",
    spark=False,
    partitions=GENERATIONS,
    code=CODE,
    description="Each event is a partition: that of the generation that it makes. To queue a node, open the launchpad "
    f"of the job [{BOOTSTRAP_JOB}]({LAUNCHPAD}), type the host_id of the node and look at the other fields; the same "
    "node twice is one event. The sensor `waiting_joins` adds the partition of every event and asks for the joins one "
    "at a time. Materialising a partition writes nothing: it reports its event.",
)
def bootstrap_events(context: AssetExecutionContext, home: HomeResource) -> MaterializeResult:
    """Report the events of generations."""
    watch, lake = Stopwatch(), home.lake()
    with in_one_line():
        partitions = asked(context, "events")
        if len(partitions) == 1:
            content = content_of(lake, partitions[0], BOOTSTRAP_EVENTS)
            return materialized(lake, content, rows=1, watch=watch, sources={})
        contents = {name: content_of(lake, name, BOOTSTRAP_EVENTS) for name in partitions if _has_event(lake, name)}
    return told_apart(context, {name: (each, written(lake, each.part)) for name, each in contents.items()}, ())


@op(pool=pool(BOOTSTRAP_EVENTS), retry_policy=RETRIES)
def queue_node(context: OpExecutionContext, config: JoiningNode, home: HomeResource, clock: ClockResource) -> None:
    """Queue the node of the config, if there is one, and report what waits."""
    lake = home.lake()
    told: dict[str, Any] = {}
    with in_one_line():
        request = config.request()
        if request is None:
            context.log.warning("Nothing is queued: type the host_id of the node that is to join.")
        elif request.is_zero_token:
            joined = join_zero_token(lake, request)
            context.log.info(f"Node {joined.node.host_id} has no tokens: it joined, and no generation is made.")
            told = {"host_id": str(joined.node.host_id), "status": joined.node.status}
        else:
            queued = inbox.queue(lake, clock.clock(), request)
            context.log.info(f"Event {queued.event_id}: generation {queued.generation_id} waits.")
            _tell_event(context, lake, queued)
            told = {"event_id": queued.event_id, "generation_id": queued.generation_id}
        waiting = inbox.waiting(lake)
    names = keys(lake, context.instance)
    rows = [
        (number, names.of(join.generation_id), join.host_id, join.event_id) for number, join in enumerate(waiting, 1)
    ]
    queue = few_rows(("turn", "generation", "host_id", "event_id"), rows)
    context.add_output_metadata(told | {"waiting": len(waiting), "queue": queue})


@job(
    name=BOOTSTRAP_JOB,
    description="Queue a joining node: open the launchpad and type its host_id into the example.",
    executor_def=in_process_executor,
)
def bootstrap() -> None:
    """Queue one node."""
    queue_node()


def _tell_event(context: OpExecutionContext, lake: Lake, queued: inbox.BootstrapEvent) -> None:
    """Make the partition of an event, and say that this run has written it."""
    partition = keys(lake, context.instance).of(queued.generation_id)
    context.instance.add_dynamic_partitions(NAME, [partition])
    told = {"event_id": queued.event_id, "generation_id": queued.generation_id}
    content = replace(content_of(lake, partition, BOOTSTRAP_EVENTS), rows=1, told=told)
    named = Asked(key(BOOTSTRAP_EVENTS), (), code_version(*CODE))
    context.log_event(event(context.instance, named, partition, content, written(lake, content.part)))


def _has_event(lake: Lake, partition: str) -> bool:
    try:
        joined_generation(lake, partition)
    except NotFound:
        return False
    return True


def next_join(lake: Lake, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """What a tick asks for: partitions for the events that wait, and a run for the first of them.

    All of it follows from the tables and from the runs that there are; a lost cursor loses nothing. The cursor only
    says at which versions nothing was unfinished, so that a quiet platform's ticks read no rows.
    """
    versions = f"{lake.version(BOOTSTRAP_EVENTS)}/{lake.version(LEDGER)}"
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since every join was finished", cursor=versions)
    waiting = inbox.waiting(lake)
    if not waiting:
        return SensorResult(skip_reason="no node waits to join", cursor=versions)
    names = keys(lake, instance)
    partitions = _missing_partitions(instance, names, waiting)
    added = [GENERATIONS.build_add_request(partitions)] if partitions else []
    if is_busy(lake, MAKING):
        said = f"a command makes joins here, and is left to it; {len(waiting)} wait"
        return SensorResult(skip_reason=said, dynamic_partitions_requests=added)
    # A command that has ended since has finished what waited when this was read.
    if inbox.waiting(lake)[:1] != waiting[:1]:
        return SensorResult(skip_reason="the first in the inbox has just joined", dynamic_partitions_requests=added)
    found = _request(instance, names, waiting[0])
    if isinstance(found, str):
        return SensorResult(skip_reason=f"{found}; {len(waiting)} wait", dynamic_partitions_requests=added)
    return SensorResult(run_requests=[found], dynamic_partitions_requests=added)


@sensor(
    name="waiting_joins",
    job_name=JOIN_JOB,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description="Adds a partition for every node that waits to join; asks for the join of the one whose turn it is. "
    "A sensor and not an automation condition, because joins are taken one at a time in the order of the inbox.",
)
@on_whole_homes
def waiting_joins(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """`next_join` on this home and this instance."""
    return next_join(home.lake(), context.instance, context.cursor)


def _missing_partitions(instance: DagsterInstance, names: Keys, waiting: Sequence[WaitingJoin]) -> list[str]:
    there = set(instance.get_dynamic_partitions(NAME))
    missing = [name for join in waiting if (name := names.of(join.generation_id)) not in there]
    return missing[:MOST_NEW_PARTITIONS]


def _request(instance: DagsterInstance, names: Keys, join: WaitingJoin) -> RunRequest | str:
    """The run that this join needs now, or why none is asked for."""
    generation_id, partition = join.generation_id, names.of(join.generation_id)
    tags = tags_of(names, generation_id, join.event_id)
    wish = attempt(instance, JOIN_JOB, generation_id, partition=partition, any_job=True, tags=tags)
    if wish.active is not None:
        return f"generation {generation_id} is being joined by run {wish.active.run_id}"
    return wish.request or _given_up(join, wish)


def tags_of(names: Keys, generation_id: str, event_id: str) -> dict[str, str]:
    """The tags of a run that makes a generation: who looks for its runs finds them by generation, node or event."""
    return {
        "cdc_platform/event_id": event_id,
        "cdc_platform/generation": generation_id,
        "cdc_platform/node": names.by_generation[generation_id].address,
    }


def _given_up(join: WaitingJoin, wish: Attempt) -> str:
    return (
        f"the join of generation {join.generation_id} did not succeed in {len(wish.ended)} runs, the last is "
        f"{wish.ended[0].run_id}: "
        "mend what it names and materialise the partition by hand, or take the event back with: "
        f"cdc-platform bootstrap --withdraw {join.event_id}"
    )
