"""The inbox: materialising it queues a joining node, and a sensor asks for the join of whoever is first in it.

No Spark in here: what waits is read from Delta in milliseconds.
"""

import json
from collections.abc import Sequence

import pandas as pd  # noqa: F401 pyarrow imports it with its first array: better as the location loads than in a tick
from dagster import (
    AssetExecutionContext,
    AssetSelection,
    Config,
    DagsterInstance,
    DefaultSensorStatus,
    MaterializeResult,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    define_asset_job,
    in_process_executor,
    sensor,
)
from pydantic import Field

from assets.declared import table_asset
from assets.failures import in_one_line
from assets.partitions import GENERATIONS, NAME
from assets.runs import Attempt, attempt
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.lake.tables import GENERATIONS as LEDGER
from cdc_platform.records import inbox
from cdc_platform.records.inbox import WaitingJoin
from cdc_platform.records.join_request import JoinRequest
from cdc_platform.sources.bootstrap_file import parse_join_request
from resources.clock import ClockResource
from resources.home import HomeResource

JOIN_JOB = "join"
MOST_NEW_PARTITIONS = 1000
"""Partitions that one tick adds: a tick stays short however many events wait."""

_EXAMPLE = """\
ops:
  platform__bootstrap_events:
    config:
      host_id: 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
      address: 10.0.0.4
      datacenter: datacenter1
      rack: rack1
      num_tokens: 16
      shard_count: 4
      ignore_msb: 12
"""


class JoiningNode(Config):
    """A node that is to be queued, as in the file of `cdc-platform bootstrap FILE`. Nothing given, nothing queued."""

    host_id: str | None = Field(default=None, description="UUID of the node")
    address: str | None = Field(default=None, description="address of the node")
    datacenter: str | None = Field(default=None, description="datacenter of the node")
    rack: str | None = Field(default=None, description="rack of the node")
    tokens: list[str] | None = Field(
        default=None, description="its tokens, in quotes: a browser would round integers beyond 2^53"
    )
    num_tokens: int | None = Field(default=None, description="how many tokens to draw, where none are named")
    shard_count: int | None = Field(default=None, description="shards of the node, 1 to 4096")
    ignore_msb: int | None = Field(default=None, description="ignored most significant bits, 0 to 31; usually 12")
    features: list[str] | None = Field(default=None, description="cluster features; by default CDC_GENERATIONS_V2")

    def request(self) -> JoinRequest | None:
        """The checked request, or None where no field is given.

        Raises:
            InputError: a field is missing or out of its bounds.
        """
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        return parse_join_request(json.dumps(given), "the run's config") if given else None


@table_asset(
    BOOTSTRAP_EVENTS,
    group="inbox",
    spark=False,
    description="Materialise it with a node in its config (*Materialize* > *Open launchpad*) and the node is "
    "queued; the same node twice is one event. Without config it reports what waits. "
    "The sensor `waiting_joins` adds a partition for every event and asks for the joins one at a time.\n\n"
    f"```yaml\n{_EXAMPLE}```",
)
def bootstrap_events(
    context: AssetExecutionContext, config: JoiningNode, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Queue the node of the config, if there is one, and report the inbox."""
    watch, lake = Stopwatch(), home.lake()
    told = {}
    with in_one_line():
        request = config.request()
        if request is not None:
            event = inbox.queue(lake, clock.clock(), request)
            context.log.info(f"Event {event.event_id}: generation {event.generation_id} waits.")
            told = {"event_id": event.event_id, "generation_id": event.generation_id}
        waiting = inbox.waiting(lake)
    rows = [(number, join.host_id, join.generation_id, join.event_id) for number, join in enumerate(waiting, 1)]
    told |= {"waiting": len(waiting), "queue": few_rows(("turn", "host_id", "generation_id", "event_id"), rows)}
    rows_now = lake.read(BOOTSTRAP_EVENTS, ["event_id"]).num_rows
    return materialized(lake.version(BOOTSTRAP_EVENTS), rows=rows_now, watch=watch, sources={}, told=told)


bootstrap = define_asset_job(
    "bootstrap",
    selection=AssetSelection.assets(bootstrap_events),
    description="Queue a joining node: give it in the launchpad, as the description of its asset shows.",
    executor_def=in_process_executor,
)


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
    partitions = _missing_partitions(instance, waiting)
    added = [GENERATIONS.build_add_request(partitions)] if partitions else []
    found = _request(instance, waiting[0])
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
def waiting_joins(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """`next_join` on this home and this instance."""
    return next_join(home.lake(), context.instance, context.cursor)


def _missing_partitions(instance: DagsterInstance, waiting: Sequence[WaitingJoin]) -> list[str]:
    there = set(instance.get_dynamic_partitions(NAME))
    missing = [join.generation_id for join in waiting if join.generation_id not in there]
    return missing[:MOST_NEW_PARTITIONS]


def _request(instance: DagsterInstance, join: WaitingJoin) -> RunRequest | str:
    """The run that this join needs now, or why none is asked for."""
    generation_id, tags = join.generation_id, {"cdc_platform/event_id": join.event_id}
    wish = attempt(instance, JOIN_JOB, generation_id, partition=generation_id, any_job=True, tags=tags)
    if wish.active is not None:
        return f"generation {generation_id} is being joined by run {wish.active.run_id}"
    return wish.request or _given_up(join, wish)


def _given_up(join: WaitingJoin, wish: Attempt) -> str:
    return (
        f"the join of generation {join.generation_id} did not succeed in {len(wish.ended)} runs, the last is "
        f"{wish.ended[0].run_id}: "
        "mend what it names and materialise the partition by hand, or take the event back with: "
        f"cdc-platform bootstrap --withdraw {join.event_id}"
    )
