"""The bootstrap inbox: a job that queues a joining node, and a sensor that requests the first waiting join."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dagster import (
    AssetExecutionContext,
    Config,
    DagsterInstance,
    DagsterInvalidConfigError,
    DefaultSensorStatus,
    MaterializeResult,
    OpExecutionContext,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    config_mapping,
    graph,
    in_process_executor,
    job,
    op,
    sensor,
)
from pydantic import Field

from cdc_platform.delta import JOIN_COMMANDS_LOCK, Lake, is_shared_lock_held
from cdc_platform.errors import InputError, NotFound
from cdc_platform.generations import CDC_GENERATIONS_V2
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import join_zero_token_node
from cdc_platform.metastore import JoinRequest, PendingEvent, inbox
from cdc_platform.tables import BOOTSTRAP_EVENTS
from cdc_platform.tables import GENERATIONS as LEDGER
from cdc_platform.timeline import GenerationKeys
from cdc_platform_assets.data_versions import (
    KIND_METADATA_KEY,
    AssetEventSpec,
    build_partition_event,
    find_last_write,
)
from cdc_platform_assets.failures import RETRY_POLICY, platform_errors_as_failures
from cdc_platform_assets.join.partition_keys import get_joined_generation_id, read_step_content
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.partitions import (
    GENERATION_PARTITIONS,
    GENERATIONS_NAME,
    read_generation_keys,
)
from cdc_platform_assets.run_requests import read_versions, request_run, skip_unless_writable
from cdc_platform_assets.specs import asset_key_from_table, compute_code_version, pool_from_table, table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

INBOX_CODE_MODULES = ("cdc_platform.metastore.inbox",)
JOIN_JOB = "join"
BOOTSTRAP_JOB = "bootstrap"
LAUNCHPAD_PATH = f"/locations/cdc_platform/jobs/{BOOTSTRAP_JOB}/playground"
"""The UI path of that job's launchpad."""
MAX_NEW_PARTITIONS = 1000
"""The most partitions that one tick adds, so that a tick stays short however many events wait."""


class JoiningNode(Config):
    """The node to queue, as in the file of `cdc-platform bootstrap FILE`."""

    host_id: str = Field(description="UUID of the node, as daf4e510-781a-4f03-aaae-27df6ee7796f")
    address: str = Field(default="10.0.0.4", description="address of the node")
    datacenter: str = Field(default="datacenter1", description="datacenter of the node")
    rack: str = Field(default="rack1", description="rack of the node")
    tokens: list[str] = Field(
        default=[], description="its tokens, quoted because browsers round integers above 2^53; default: num_tokens"
    )
    num_tokens: int = Field(
        default=16,
        description="number of random tokens if `tokens` is empty; 0: a zero-token node",
    )
    shard_count: int = Field(default=4, description="shards of the node, 1 to 4096")
    ignore_msb: int = Field(default=12, description="ignored most significant bits, 0 to 31; usually 12")
    features: list[str] = Field(default=[CDC_GENERATIONS_V2], description="cluster features")

    def request(self) -> JoinRequest:
        """Return the checked request.

        Raises:
            InputError: a field is out of its bounds.
        """
        given = self.model_dump(exclude={"num_tokens" if self.tokens else "tokens"})
        return parse_join_request(json.dumps(given), "the run's config")


@table_asset(
    BOOTSTRAP_EVENTS,
    group="inbox",
    spark=False,
    partitions=GENERATION_PARTITIONS,
    code=INBOX_CODE_MODULES,
    description="One partition per queued node: the generation that its join creates. Queue a node in the launchpad "
    f"of the job [{BOOTSTRAP_JOB}]({LAUNCHPAD_PATH}). Materializing a partition reports its event and writes nothing.",
)
def bootstrap_events(context: AssetExecutionContext, home: HomeResource) -> MaterializeResult:
    """Report the events of generations."""
    lake = home.lake()
    return materialize_partitions(
        context,
        lake,
        "events",
        lambda partition: replace(read_step_content(lake, partition, BOOTSTRAP_EVENTS), rows=1),
        select=lambda partitions: [partition for partition in partitions if _has_event(lake, partition)],
    )


@op(pool=pool_from_table(BOOTSTRAP_EVENTS), retry_policy=RETRY_POLICY)
def add_to_inbox(context: OpExecutionContext, config: JoiningNode, home: HomeResource, clock: ClockResource) -> None:
    """Queue the node of the config, and report the inbox."""
    lake = home.lake()
    metadata: dict[str, Any] = {}
    with platform_errors_as_failures():
        request = config.request()
        if request.is_zero_token:
            joined = join_zero_token_node(lake, request)
            context.log.info(f"Node {joined.node.host_id} has no tokens: it joined without a new generation.")
            metadata = {"host_id": str(joined.node.host_id), "status": joined.node.status}
        else:
            queued = inbox.queue_join(lake, clock.clock(), request)
            context.log.info(f"Event {queued.event_id}: queued generation {queued.generation_id}.")
            _log_event(context, lake, queued)
            metadata = {"event_id": queued.event_id, "generation_id": queued.generation_id}
        waiting = inbox.read_pending_events(lake)
    names = read_generation_keys(lake, context.instance)
    rows = [
        (number, names.of(join.generation_id), join.host_id, join.event_id) for number, join in enumerate(waiting, 1)
    ]
    queue = build_rows_preview(("position", "generation", "host_id", "event_id"), rows)
    context.add_output_metadata(metadata | {"waiting": len(waiting), "queue": queue})


@config_mapping
def check_node(val: JoiningNode) -> dict[str, Any]:
    """Return the config of the op, after a check that the launchpad and every launch make before there is a run.

    Raises:
        DagsterInvalidConfigError: a field is out of its bounds. Its message is one line.
    """
    try:
        val.request()
    except InputError as error:
        # Dagster shows this one as it is. It would wrap any other error in text of its own.
        raise DagsterInvalidConfigError(str(error), [], val.model_dump()) from None
    return {"add_to_inbox": {"config": val.model_dump()}}


@graph(config=check_node)
def queue_node() -> None:
    """Check the node of the config and queue it."""
    add_to_inbox()


@job(
    name=BOOTSTRAP_JOB,
    description="Queues a joining node. Open the launchpad and enter its host_id; queueing the same node twice is one "
    "event.",
    executor_def=in_process_executor,
)
def bootstrap() -> None:
    """Queue one node."""
    queue_node()


def _log_event(context: OpExecutionContext, lake: Lake, queued: inbox.BootstrapEvent) -> None:
    """Add the partition of a queued event, and log that this run wrote it."""
    partition = read_generation_keys(lake, context.instance).of(queued.generation_id)
    context.instance.add_dynamic_partitions(GENERATIONS_NAME, [partition])
    metadata = {KIND_METADATA_KEY: "python", "event_id": queued.event_id, "generation_id": queued.generation_id}
    content = replace(read_step_content(lake, partition, BOOTSTRAP_EVENTS), rows=1, metadata=metadata)
    spec = AssetEventSpec(asset_key_from_table(BOOTSTRAP_EVENTS), (), compute_code_version(*INBOX_CODE_MODULES))
    context.log_event(
        build_partition_event(context.instance, spec, partition, content, find_last_write(lake, content.part))
    )


def _has_event(lake: Lake, partition: str) -> bool:
    try:
        get_joined_generation_id(lake, partition)
    except NotFound:
        return False
    return True


def request_join(lake: Lake, instance: DagsterInstance, cursor: str | None) -> SensorResult:
    """Request partitions for all pending events and a run for the first of them.

    Everything is derived from the tables and from existing runs, so a lost cursor loses nothing. The cursor only names
    the versions at which nothing was unfinished, so that ticks of a quiet platform read no rows.
    """
    versions = read_versions(lake, (BOOTSTRAP_EVENTS, LEDGER))
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since the inbox was empty", cursor=versions)
    waiting = inbox.read_pending_events(lake)
    if not waiting:
        return SensorResult(skip_reason="the inbox is empty", cursor=versions)
    names = read_generation_keys(lake, instance)
    partitions = _missing_partitions(instance, names, waiting)
    added = [GENERATION_PARTITIONS.build_add_request(partitions)] if partitions else []
    if is_shared_lock_held(lake, JOIN_COMMANDS_LOCK):
        reason = f"a command is running joins in this home; {len(waiting)} queued"
        return SensorResult(skip_reason=reason, dynamic_partitions_requests=added)
    # A command that has ended since may have finished what was pending when this was read.
    if inbox.read_pending_events(lake)[:1] != waiting[:1]:
        return SensorResult(
            skip_reason="the first node of the inbox has just joined", dynamic_partitions_requests=added
        )
    result = _request_join_run(instance, names, waiting[0])
    if isinstance(result, str):
        return SensorResult(skip_reason=f"{result}; {len(waiting)} queued", dynamic_partitions_requests=added)
    return SensorResult(run_requests=[result], dynamic_partitions_requests=added)


@sensor(
    name="waiting_joins",
    job_name=JOIN_JOB,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every 5 seconds, adds a partition for every queued node, and requests the join of the first one. "
    "Joins run one at a time, in the order of the inbox.",
)
@skip_unless_writable
def waiting_joins(context: SensorEvaluationContext, home: HomeResource) -> SensorResult:
    """Run `request_join` on this home and instance."""
    return request_join(home.lake(), context.instance, context.cursor)


def _missing_partitions(instance: DagsterInstance, names: GenerationKeys, waiting: Sequence[PendingEvent]) -> list[str]:
    existing = set(instance.get_dynamic_partitions(GENERATIONS_NAME))
    missing = [name for join in waiting if (name := names.of(join.generation_id)) not in existing]
    return missing[:MAX_NEW_PARTITIONS]


def _request_join_run(instance: DagsterInstance, names: GenerationKeys, join: PendingEvent) -> RunRequest | str:
    """Return the run request that this join needs now, or the reason why there is none."""
    generation_id, partition = join.generation_id, names.of(join.generation_id)
    tags = build_join_tags(names, generation_id, join.event_id)
    attempt = request_run(instance, JOIN_JOB, generation_id, partition=partition, any_job=True, tags=tags)
    withdraw = f"cdc-platform bootstrap --withdraw {join.event_id}"
    remedy = f"materialize the partition by hand, or withdraw the event with: {withdraw}"
    return attempt.request or attempt.skip_reason(f"join generation {generation_id}", remedy) or ""


def build_join_tags(names: GenerationKeys, generation_id: str, event_id: str) -> dict[str, str]:
    """Return the tags of a run that makes a generation, by which its runs are found by generation, node or event."""
    return {
        "cdc_platform/event_id": event_id,
        "cdc_platform/generation": generation_id,
        "cdc_platform/node": names.by_generation[generation_id].address,
    }
