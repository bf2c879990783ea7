"""Descriptions, column lineage and run metadata of the join steps' assets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from logging import Logger
from typing import Any

from dagster import MetadataValue

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.lifecycle import DescribedGeneration, InsertResult, JoinContext
from cdc_platform.metastore import generations, inbox
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.timeline import GenerationKeys, Timeline
from cdc_platform_assets import reports
from cdc_platform_assets.join.plots import build_ring_plot, build_streams_plot, build_timeline_plot
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.specs import REWRITE_DECISIONS, ColumnSources, asset_key_from_table


@dataclass(frozen=True)
class StepReport:
    """The number of rows that a step wrote for its generation, and the metadata of the run."""

    rows: int
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepDocs:
    """A step as an asset: its group and description, whether it can run on Spark, and `report`, which describes a run.

    `edges` are further inputs, which the asset graph shows and which make nothing stale.
    """

    group: str
    spark: bool
    description: str
    sources: ColumnSources
    report: Callable[[JoinContext, Any, Logger], StepReport]
    edges: tuple[Table, ...] = ()


def _report_description(joining: JoinContext, made: DescribedGeneration, log: Logger) -> StepReport:
    event = inbox.find_event(joining.lake, generation_id=joining.generation_id)
    ring = made.ring_after
    if made.warning:
        log.warning(made.warning)
    metadata = {
        **({"mixed_cluster": made.warning} if made.warning else {}),
        **_link_ring_before(joining),
        "streams": made.num_streams,
        "ring": build_ring_plot(joining.lake, ring, None if event.is_repair else event.node),
        "streams_a_node_and_a_shard": build_streams_plot(joining.lake, ring),
        "nodes": build_rows_preview(("host_id", "address", "ranges", "shards", "ignore_msb"), _node_rows(ring)),
    }
    return StepReport(made.num_ranges, metadata)


def _link_ring_before(joining: JoinContext) -> dict[str, Any]:
    """Return metadata that links the ring from which a generation was made, unless the generation is the first one."""
    timed = Timeline.read(joining.lake).generations
    earlier = list(takewhile(lambda generation: generation.id != joining.generation_id, timed))
    if not earlier:
        return {}
    key = GenerationKeys.read(joining.lake).of(earlier[-1].id, earlier[-1].time_ms)
    return {"ring_before": MetadataValue.asset(asset_key_from_table(NODES)), "generation_before": key}


def _report_insert(joining: JoinContext, made: InsertResult, log: Logger) -> StepReport:
    return StepReport(made.rows, dict(made.metadata))


def _report_introduction(joining: JoinContext, time_ms: Milliseconds, log: Logger) -> StepReport:
    host = str(inbox.find_event(joining.lake, generation_id=joining.generation_id).node.host_id)
    rows = joining.lake.read(CDC_LOCAL, ["key"], [("host_id", "=", host)]).num_rows
    return StepReport(rows, {"time": format_ms(time_ms), "host_id": host})


def _report_admission(joining: JoinContext, admitted: Node, log: Logger) -> StepReport:
    columns = ["host_id", "address", "datacenter", "rack", "status", "shard_count", "ignore_msb"]
    rows = joining.lake.read(NODES, columns)
    ring = build_rows_preview(columns, (tuple(row.values()) for row in rows.sort_by("host_id").to_pylist()))
    return StepReport(rows.num_rows, {"admitted": str(admitted.host_id), "ring": ring})


def _report_streams(joining: JoinContext, made: object, log: Logger) -> StepReport:
    lake = joining.lake
    time_ms = Timeline.read(lake).find(joining.generation_id).time_ms
    rows = generations.read_published_range_ends(lake, time_ms).size
    return StepReport(rows, {"time": format_ms(time_ms)})


def _report_timestamp(joining: JoinContext, time_ms: Milliseconds, log: Logger) -> StepReport:
    timeline = build_timeline_plot(joining.lake, Timeline.read(joining.lake).known, joining.clock)
    return StepReport(1, {"time": format_ms(time_ms), "timeline": timeline, **reports.create_report_page(joining, log)})


def _node_rows(ring: Ring) -> Iterator[tuple[str, str, int, int, int]]:
    for node in ring.nodes:
        yield str(node.host_id), node.address, len(node.tokens), node.shard_count, node.ignore_msb


RING_BEFORE_JOIN = Table(
    "platform",
    "ring_before_join",
    NODES.schema,
    keys=NODES.keys,
    comment="The ring from which a generation is made: `platform.nodes` as the join before it left it",
)
"""Stands for the nodes of the previous generation, because an edge from `platform.nodes` itself would close a cycle."""

# A description is made from the current ring and the joining node.
_RING_TABLES = (BOOTSTRAP_EVENTS, NODES)
_TOKEN_COLUMNS = [(table, "tokens") for table in _RING_TABLES]
_MSB_COLUMNS = [(table, "ignore_msb") for table in _RING_TABLES]
_SHARDING_COLUMNS = [*_TOKEN_COLUMNS, *((table, "shard_count") for table in _RING_TABLES), *_MSB_COLUMNS]

STEP_DOCS: Mapping[Table, StepDocs] = {
    TOPOLOGY_DESCRIPTIONS: StepDocs(
        group="generations",
        spark=True,
        description="Generated from the current ring and the tokens of the joining node. It is deterministic: "
        "materializing it again gives the same bytes.",
        sources={
            "generation_id": [(BOOTSTRAP_EVENTS, "generation_id")],
            "range_end": _TOKEN_COLUMNS,
            "range_start": _TOKEN_COLUMNS,
            "vnode_index": _TOKEN_COLUMNS,
            "owner": [(table, "host_id") for table in _RING_TABLES],
            "streams": [(BOOTSTRAP_EVENTS, "generation_id"), *_SHARDING_COLUMNS],
            "ignore_msb": _MSB_COLUMNS,
        },
        report=_report_description,
        edges=(RING_BEFORE_JOIN,),
    ),
    GENERATION_DESCRIPTIONS_V2: StepDocs(
        group="generations",
        spark=True,
        description="The audited description, with the total number of rows in each row: readers reject an incomplete "
        "generation.",
        sources={
            "id": [(TOPOLOGY_DESCRIPTIONS, "generation_id")],
            "range_end": [(TOPOLOGY_DESCRIPTIONS, "range_end")],
            "ignore_msb": [(TOPOLOGY_DESCRIPTIONS, "ignore_msb")],
            "num_ranges": [(TOPOLOGY_DESCRIPTIONS, "range_end")],
            "streams": [(TOPOLOGY_DESCRIPTIONS, "streams")],
        },
        report=_report_insert,
    ),
    CDC_LOCAL: StepDocs(
        group="generations",
        spark=False,
        description="Gives the generation its timestamp, by default 65 s from now: twice the ring delay plus the "
        "leeway. Materializing it again keeps the timestamp.",
        sources={
            "host_id": [(BOOTSTRAP_EVENTS, "host_id")],
            "streams_timestamp": [(GENERATIONS, "time")],
            "uuid": [(GENERATION_DESCRIPTIONS_V2, "id")],
        },
        report=_report_introduction,
    ),
    NODES: StepDocs(
        group="generations",
        spark=False,
        description="Sets the joining node to NORMAL. The next node's generation is made from this ring.",
        sources={
            name: [(BOOTSTRAP_EVENTS, name)] for name in NODES.schema.names if name in BOOTSTRAP_EVENTS.schema.names
        },
        report=_report_admission,
    ),
    STREAMS_DESCRIPTIONS_V2: StepDocs(
        group="publishing",
        spark=True,
        description="Publishes the streams of the generation by range. Several nodes may publish at once: they write "
        "the same rows.",
        sources={
            "time": [(CDC_LOCAL, "streams_timestamp"), (STREAMS_DESCRIPTIONS, "time")],
            "range_end": [(GENERATION_DESCRIPTIONS_V2, "range_end"), (GENERATION_DESCRIPTIONS, "description")],
            "streams": [(GENERATION_DESCRIPTIONS_V2, "streams"), (GENERATION_DESCRIPTIONS, "description")],
        },
        report=_report_streams,
        edges=(REWRITE_DECISIONS,),
    ),
    GENERATION_TIMESTAMPS: StepDocs(
        group="publishing",
        spark=False,
        description="Publishes the timestamp of the generation, after its streams: readers rely on the streams of "
        "every timestamp that they see.",
        sources={"time": [(STREAMS_DESCRIPTIONS_V2, "time")]},
        report=_report_timestamp,
        edges=(REWRITE_DECISIONS,),
    ),
}
