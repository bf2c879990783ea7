"""Tablet-based tables, a partition a table: their tablets, their stream sets, and the audit before a set is published.

No Spark: a set is as small as a table has tablets. The steps are `lifecycle.tablets`'.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    Config,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)
from pydantic import Field

from assets.checks import Found, check_specs, judged
from assets.declared import Sources, key, pool, table_asset
from assets.events import held, told_apart, written
from assets.failures import in_one_line
from assets.partitions import TABLET_TABLES, asked, table_name
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.clock import Clock, format_ms
from cdc_platform.errors import InputError
from cdc_platform.generations.tablets import merged_ends, split_ends, tablet_ends, uniform_ends
from cdc_platform.invariants.findings import TABLET_TIMESTAMP_COMPLETE, TABLETS
from cdc_platform.invariants.tablets import audit_tablet_table, audit_tablets
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS, Table
from cdc_platform.lifecycle.tablets import changes, garbage
from cdc_platform.records import tablet_ledger, tablet_rows, tablet_sets
from cdc_platform.records.tablet_ledger import TabletChange
from cdc_platform.settings import Settings
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource

TABLETS_JOB = "tablets"
_STREAM_INVARIANTS = tuple(name for name in TABLETS.invariants if name != TABLET_TIMESTAMP_COMPLETE)
_SOURCES: Sources = {name: [(TABLET_LAYOUTS, name)] for name in ("keyspace_name", "table_name", "timestamp")}
_STREAM_SOURCES: Sources = {
    **_SOURCES,
    "stream_id": [(TABLET_LAYOUTS, "table_id"), (TABLET_LAYOUTS, "timestamp"), (TABLET_LAYOUTS, "last_tokens")],
}
_TIMESTAMP_SOURCES: Sources = {name: [(TABLET_STREAMS, name)] for name in ("keyspace_name", "table_name", "timestamp")}


Name = tuple[str, str]
Made = tuple[int, dict[str, Any]]
"""How many rows a step has left, and what else there is to tell."""


class Tablets(Config):
    """The tablets that a table is to have. Nothing given, nothing decided."""

    count: int | None = Field(default=None, description="how many; a split or a merge where the table has some already")
    ends: list[str] | None = Field(
        default=None, description="their last tokens instead, in quotes: a browser would round integers beyond 2^53"
    )
    ttl_seconds: int | None = Field(default=None, description="TTL of a new log; by default 86400")


_CODE = ("cdc_platform.lifecycle.tablets", "cdc_platform.generations.tablets")


@table_asset(
    TABLET_LAYOUTS,
    group="tablets",
    spark=False,
    partitions=TABLET_TABLES,
    code=_CODE,
    description="Materialise it with `count` or `ends` in its config (*Materialize* > *Open launchpad*) and the "
    "table's next tablets are decided: created, split or merged. The same again is one change. Without config it "
    "reports the changes that there were.",
)
def tablet_layouts(
    context: AssetExecutionContext, config: Tablets, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Decide the tablets of tables."""
    lake = home.lake()

    def decided(name: Name) -> Made:
        if config.count is not None or config.ends is not None:
            change = _decide(lake, clock.clock(), home.settings(), name, config)
            context.log.info(f"{'Decided' if change.changed else 'There already'}: change {change.layout.number}.")
        known = tablet_ledger.layouts(lake, *name)
        rows = (
            (
                each.number,
                each.kind,
                "" if each.timestamp_ms is None else format_ms(each.timestamp_ms),
                len(each.last_tokens),
            )
            for each in reversed(known)
        )
        return len(known), {"changes": few_rows(("number", "kind", "timestamp", "tablets"), rows)}

    return _made(context, lake, TABLET_LAYOUTS, decided, {})


@table_asset(
    TABLET_STREAMS,
    group="tablets",
    spark=False,
    deps=[key(TABLET_LAYOUTS)],
    partitions=TABLET_TABLES,
    sources=_STREAM_SOURCES,
    code=_CODE,
    description="The stream set of the tablets that were decided: state 0 its streams, 1 those it closes, 2 those it "
    "opens. The random bits of a stream are a hash of table, time and token, so that written again it is the same. "
    "The sets of a log that was dropped are removed.",
)
def cdc_streams(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Write the decided stream sets of tables."""
    lake = home.lake()

    def streams(name: Name) -> Made:
        newest = tablet_ledger.live(lake, *name)
        if newest is None:
            changes.finish(lake, clock.clock(), *name)
        else:
            changes.write_streams(lake, newest)
        return len(tablet_rows.stream_rows(lake, *name).ids), {}

    return _made(context, lake, TABLET_STREAMS, streams, _STREAM_SOURCES)


@table_asset(
    TABLET_TIMESTAMPS,
    group="tablets",
    spark=False,
    deps=[key(TABLET_STREAMS)],
    partitions=TABLET_TABLES,
    sources=_TIMESTAMP_SOURCES,
    code=_CODE,
    description="Readers that see a timestamp rely on all of its streams; so it is written last. The metadata names "
    "the consumers that hold back sets which could go but for them.",
)
def cdc_timestamps(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Publish the timestamps of the decided stream sets of tables."""
    lake = home.lake()

    def published(name: Name) -> Made:
        newest = tablet_ledger.live(lake, *name)
        if newest is not None:
            changes.publish_timestamp(lake, newest)
        sets = tablet_sets.changes(lake, *name)[::-1] if tablet_sets.has_sets(lake, *name) else []
        over = [each for each in garbage.due(lake, clock.clock()) if (each.keyspace, each.table) == name]
        rows = ((format_ms(each.timestamp_ms), len(each.current), len(each.closed), len(each.opened)) for each in sets)
        told: dict[str, Any] = {"sets": few_rows(("timestamp", "current", "closed", "opened"), rows)}
        held_back = [str(held) for each in over for held in each.held_back]
        return len(sets), told | ({"held_back": "; ".join(held_back)} if held_back else {})

    return _made(context, lake, TABLET_TIMESTAMPS, published, _TIMESTAMP_SOURCES)


def _made(
    context: AssetExecutionContext, lake: Lake, table: Table, make: Callable[[Name], Made], sources: Sources
) -> MaterializeResult:
    """Make the partitions that are asked for, each of which is the rows of one base table."""
    watch, made = Stopwatch(), {}
    with in_one_line():
        partitions = asked(context, "tablets")
        for partition in partitions:
            name = table_name(partition)
            rows, told = make(name)
            part = Part(table, {"keyspace_name": name[0], "table_name": name[1]})
            content = replace(held(lake, part), rows=rows, told=told)
            if len(partitions) == 1:
                return materialized(lake, content, rows=rows, watch=watch, sources=sources, told=told)
            made[partition] = content, written(lake, part)
    return told_apart(context, made, context.assets_def.asset_deps[context.asset_key])


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_streams",
    specs=check_specs(TABLET_STREAMS, _STREAM_INVARIANTS, TABLET_TABLES),
    pool=pool(TABLET_STREAMS),
)
def audit_cdc_streams(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge the stream sets of one table, before the newest one's timestamp tells readers to come."""
    yield from _judged(context, home.lake(), clock.clock(), TABLET_STREAMS)


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_timestamps",
    specs=check_specs(TABLET_TIMESTAMPS, [TABLET_TIMESTAMP_COMPLETE], TABLET_TABLES),
    pool=pool(TABLET_TIMESTAMPS),
)
def audit_cdc_timestamps(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge that no timestamp is to be seen without its streams."""
    yield from _judged(context, home.lake(), clock.clock(), TABLET_TIMESTAMPS)


TABLET_ASSETS = [tablet_layouts, cdc_streams, cdc_timestamps]

change_tablets = define_asset_job(
    TABLETS_JOB,
    selection=AssetSelection.assets(*TABLET_ASSETS),
    description="Decides the tablets that its config names, audits their stream set and publishes it; without config "
    "it finishes what was decided and left. Each step is idempotent.",
    executor_def=in_process_executor,
)


def _judged(context: AssetCheckExecutionContext, lake: Lake, clock: Clock, table: Table) -> Iterator[AssetCheckResult]:
    """The results of the audits of some tables, or of all; where there are no sets nothing is held against them."""

    def audit(partition: str | None) -> Found:
        findings = audit_tablets(lake) if partition is None else audit_tablet_table(lake, *table_name(partition))
        return [(TABLETS, findings)]

    yield from judged(context, table, lake, clock, audit)


def _decide(lake: Lake, clock: Clock, settings: Settings, name: tuple[str, str], config: Tablets) -> TabletChange:
    if config.count is not None and config.ends is not None:
        raise InputError("both count and ends are there; give one of them")
    there = tablet_ledger.live(lake, *name)
    if config.ends is not None:
        ends = tablet_ends(_whole_numbers(config.ends), ".".join(name))
    elif config.count is None:
        raise InputError("neither count nor ends is there")
    elif there is None:
        ends = uniform_ends(config.count)
    else:
        rule = split_ends if config.count >= len(there.last_tokens) else merged_ends
        ends = rule(there.last_tokens, config.count)
    if there is None:
        return changes.decide_create(lake, clock, settings, *name, ends, ttl_seconds=config.ttl_seconds)
    return changes.decide_resize(lake, clock, settings, *name, lambda _: ends)


def _whole_numbers(texts: Sequence[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise InputError(f"ends: {error}; tokens are integers in quotes") from None
