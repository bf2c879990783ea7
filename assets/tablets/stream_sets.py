"""Tablets and stream sets, one partition per table, audited before a set is published. No Spark."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    Config,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)
from pydantic import Field

from cdc_platform.checks import TABLET_FAMILY, TABLET_TIMESTAMP_COMPLETE, audit_tablet_table, audit_tablets
from cdc_platform.clock import Clock, format_ms
from cdc_platform.delta import Lake, list_part_files
from cdc_platform.errors import InputError
from cdc_platform.generations import check_tablet_ends, merge_tablet_ends, split_tablet_ends, uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import TabletLayoutChange
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS, Table
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import FamilyFindings, check_specs, evaluate_checks, select_with_own_checks
from cdc_platform_assets.data_versions import (
    PartitionContent,
    read_partition_content,
)
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.metadata import (
    build_replaced_metadata,
    build_rows_preview,
)
from cdc_platform_assets.partitions import TABLET_TABLE_PARTITIONS, table_from_partition
from cdc_platform_assets.specs import ColumnSources, asset_key_from_table, pool_from_table, table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

TABLETS_JOB = "tablets"
_STREAM_INVARIANTS = tuple(name for name in TABLET_FAMILY.invariants if name != TABLET_TIMESTAMP_COMPLETE)
_LINEAGE: ColumnSources = {name: [(TABLET_LAYOUTS, name)] for name in ("keyspace_name", "table_name", "timestamp")}
_STREAM_LINEAGE: ColumnSources = {
    **_LINEAGE,
    "stream_id": [(TABLET_LAYOUTS, "table_id"), (TABLET_LAYOUTS, "timestamp"), (TABLET_LAYOUTS, "last_tokens")],
}
_TIMESTAMP_LINEAGE: ColumnSources = {
    name: [(TABLET_STREAMS, name)] for name in ("keyspace_name", "table_name", "timestamp")
}


BaseTableName = tuple[str, str]
StepOutput = tuple[int, dict[str, Any]]
"""The number of rows that a step wrote, and its metadata."""


class Tablets(Config):
    """The tablets that a table gets. Without both, nothing changes."""

    count: int | None = Field(default=None, description="number of tablets; splits or merges existing ones")
    ends: list[str] | None = Field(
        default=None, description="their last tokens instead, quoted because browsers round integers above 2^53"
    )
    ttl_seconds: int | None = Field(default=None, description="TTL of a new log; default: 86400")


_CODE_MODULES = ("cdc_platform.lifecycle.tablets", "cdc_platform.generations.tablets")


@table_asset(
    TABLET_LAYOUTS,
    group="tablets",
    spark=False,
    partitions=TABLET_TABLE_PARTITIONS,
    code=_CODE_MODULES,
    description="Materializing it with `count` or `ends` in its config creates, splits or merges the tablets of a "
    "table; the same request twice is one change. Without config it reports past changes.",
)
def tablet_layouts(
    context: AssetExecutionContext, config: Tablets, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Decide the tablets of tables."""
    lake = home.lake()

    def decided(name: BaseTableName) -> StepOutput:
        if config.count is not None or config.ends is not None:
            change = _decide_change(lake, clock.clock(), home.settings(), name, config)
            context.log.info(f"{'Decided' if change.changed else 'Already decided'}: change {change.layout.number}.")
        return describe_layouts(lake, name)

    return _materialize_partitions(context, lake, TABLET_LAYOUTS, decided, {})


@table_asset(
    TABLET_STREAMS,
    group="tablets",
    spark=False,
    deps=[asset_key_from_table(TABLET_LAYOUTS)],
    partitions=TABLET_TABLE_PARTITIONS,
    sources=_STREAM_LINEAGE,
    code=_CODE_MODULES,
    description="Stream sets of the tablets: state 0 current, 1 closed, 2 opened streams. Materializing it writes the "
    "set of the newest layout, and removes the sets of a dropped log.",
)
def cdc_streams(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Write the decided stream sets of tables."""
    lake = home.lake()

    def streams(name: BaseTableName) -> StepOutput:
        newest = metastore_tablets.read_live_layout(lake, *name)
        if newest is None:
            tablets.finish_tablet_change(lake, clock.clock(), *name)
        else:
            tablets.write_set_streams(lake, newest)
        return len(metastore_tablets.read_stream_rows(lake, *name).ids), {}

    return _materialize_partitions(context, lake, TABLET_STREAMS, streams, _STREAM_LINEAGE)


@table_asset(
    TABLET_TIMESTAMPS,
    group="tablets",
    spark=False,
    deps=[asset_key_from_table(TABLET_STREAMS)],
    partitions=TABLET_TABLE_PARTITIONS,
    sources=_TIMESTAMP_LINEAGE,
    code=_CODE_MODULES,
    description="Publishes the timestamp of a stream set, after its streams. Its metadata names consumers that keep "
    "old sets from being removed.",
)
def cdc_timestamps(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Publish the timestamps of the decided stream sets of tables."""
    lake = home.lake()

    def published(name: BaseTableName) -> StepOutput:
        newest = metastore_tablets.read_live_layout(lake, *name)
        if newest is not None:
            tablets.publish_set_timestamp(lake, newest)
        return describe_stream_sets(lake, clock.clock(), name)

    return _materialize_partitions(context, lake, TABLET_TIMESTAMPS, published, _TIMESTAMP_LINEAGE)


def describe_layouts(lake: Lake, name: BaseTableName) -> StepOutput:
    """Return the number of a table's tablet changes, and the changes as metadata."""
    known = metastore_tablets.read_tablet_layouts(lake, *name)
    rows = (
        (
            layout.number,
            layout.kind,
            "" if layout.timestamp_ms is None else format_ms(layout.timestamp_ms),
            len(layout.last_tokens),
        )
        for layout in reversed(known)
    )
    return len(known), {"changes": build_rows_preview(("number", "kind", "timestamp", "tablets"), rows)}


def describe_stream_sets(lake: Lake, clock: Clock, name: BaseTableName) -> StepOutput:
    """Return the number of a table's stream sets, and as metadata the sets and what keeps old ones."""
    sets = (
        metastore_tablets.read_stream_set_changes(lake, *name)[::-1]
        if metastore_tablets.has_stream_sets(lake, *name)
        else []
    )
    collections = [due for due in tablets.read_due_collections(lake, clock) if (due.keyspace, due.table) == name]
    rows = ((format_ms(row.timestamp_ms), len(row.current), len(row.closed), len(row.opened)) for row in sets)
    metadata: dict[str, Any] = {"sets": build_rows_preview(("timestamp", "current", "closed", "opened"), rows)}
    held_back = [str(blocker) for due in collections for blocker in due.held_back]
    return len(sets), metadata | ({"held_back": "; ".join(held_back)} if held_back else {})


def _materialize_partitions(
    context: AssetExecutionContext,
    lake: Lake,
    table: Table,
    make: Callable[[BaseTableName], StepOutput],
    sources: ColumnSources,
) -> MaterializeResult:
    """Materialize the requested partitions. Each partition is the rows of one base table."""

    def write(partition: str) -> PartitionContent:
        name = table_from_partition(partition)
        part = GenerationRows(table, {"keyspace_name": name[0], "table_name": name[1]})
        before = list_part_files(lake, table, part.where)
        rows, metadata = make(name)
        return read_partition_content(lake, part, rows, metadata | build_replaced_metadata(lake, before))

    inputs = context.assets_def.asset_deps[context.asset_key]
    return materialize_partitions(context, lake, "tablets", write, sources=sources, inputs=inputs)


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_streams",
    specs=check_specs(TABLET_STREAMS, _STREAM_INVARIANTS, TABLET_TABLE_PARTITIONS),
    pool=pool_from_table(TABLET_STREAMS),
)
def audit_cdc_streams(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge the stream sets of one table before the timestamp of the newest is published."""
    yield from _evaluate_tablet_checks(context, home.lake(), clock.clock(), TABLET_STREAMS)


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_timestamps",
    specs=check_specs(TABLET_TIMESTAMPS, [TABLET_TIMESTAMP_COMPLETE], TABLET_TABLE_PARTITIONS),
    pool=pool_from_table(TABLET_TIMESTAMPS),
)
def audit_cdc_timestamps(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge that every published timestamp has its streams."""
    yield from _evaluate_tablet_checks(context, home.lake(), clock.clock(), TABLET_TIMESTAMPS)


TABLET_ASSETS = [tablet_layouts, cdc_streams, cdc_timestamps]

change_tablets = define_asset_job(
    TABLETS_JOB,
    selection=select_with_own_checks(*TABLET_ASSETS),
    description="Changes the tablets of a table as its config says, audits the new stream set and publishes it. "
    "Without config it finishes an interrupted change.",
    executor_def=in_process_executor,
)


def _evaluate_tablet_checks(
    context: AssetCheckExecutionContext, lake: Lake, clock: Clock, table: Table
) -> Iterator[AssetCheckResult]:
    """Yield the results of the tablet audits of the requested tables, or of all.

    A dropped log without stream sets passes. A table whose stream sets are not written yet has no verdict.
    """

    def audit(partition: str | None) -> FamilyFindings:
        if partition is None:
            return [(TABLET_FAMILY, audit_tablets(lake))]
        name = table_from_partition(partition)
        findings = audit_tablet_table(lake, *name)
        layouts = metastore_tablets.read_tablet_layouts(lake, *name)
        if not findings and (not layouts or metastore_tablets.read_live_layout(lake, *name) is not None):
            findings = TABLET_FAMILY.not_judged("no stream set of the table was written yet")
        return [(TABLET_FAMILY, findings)]

    yield from evaluate_checks(context, table, lake, clock, audit)


def _decide_change(
    lake: Lake, clock: Clock, settings: Settings, name: tuple[str, str], config: Tablets
) -> TabletLayoutChange:
    if config.count is not None and config.ends is not None:
        raise InputError("both count and ends are given; give one of them")
    existing = metastore_tablets.read_live_layout(lake, *name)
    if config.ends is not None:
        ends = check_tablet_ends(_parse_tokens(config.ends), ".".join(name))
    elif config.count is None:
        raise InputError("neither count nor ends is given")
    elif existing is None:
        ends = uniform_tablet_ends(config.count)
    else:
        rule = split_tablet_ends if config.count >= len(existing.last_tokens) else merge_tablet_ends
        ends = rule(existing.last_tokens, config.count)
    if existing is None:
        return tablets.decide_tablet_creation(lake, clock, settings, *name, ends, ttl_seconds=config.ttl_seconds)
    return tablets.decide_tablet_resize(lake, clock, settings, *name, lambda _: ends)


def _parse_tokens(texts: Sequence[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise InputError(f"ends: {error}; tokens are integers in quotes") from None
