"""How the steps of a join are shown: the words of their assets, where columns come from, and what a run of each tells.

What a step does is declared in `cdc_platform.lifecycle.join.formats`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import Logger
from typing import Any

from assets import reports
from assets.declared import Sources
from assets.join.drawn import drawn_ring, drawn_streams, drawn_timeline
from assets.told import few_rows
from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.lake.tables import (
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
from cdc_platform.lifecycle.join.bootstrap import Described
from cdc_platform.lifecycle.join.formats import Inserted
from cdc_platform.lifecycle.join.step import Joining
from cdc_platform.records import descriptions, inbox
from cdc_platform.ring import Node, Ring
from cdc_platform.timeline import Timeline


@dataclass(frozen=True)
class Told:
    """How many rows of its generation a step left, and what else there is to tell."""

    rows: int
    told: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """A step as an asset: its group and words, whether it makes volume on Spark, and what `tell` says of a run."""

    group: str
    spark: bool
    description: str
    sources: Sources
    tell: Callable[[Joining, Any, Logger], Told]


def _description(joining: Joining, made: Described, log: Logger) -> Told:
    event = inbox.event(joining.lake, generation_id=joining.generation_id)
    ring = made.ring_after
    if made.warning:
        log.warning(made.warning)
    told = {
        **({"mixed_cluster": made.warning} if made.warning else {}),
        "streams": made.num_streams,
        "ring": drawn_ring(joining.lake, ring, None if event.is_repair else event.node),
        "streams_a_node_and_a_shard": drawn_streams(joining.lake, ring),
        "nodes": few_rows(("host_id", "address", "ranges", "shards", "ignore_msb"), _nodes(ring)),
    }
    return Told(made.num_ranges, told)


def _inserted(joining: Joining, made: Inserted, log: Logger) -> Told:
    return Told(made.rows, dict(made.told))


def _introduced(joining: Joining, time_ms: Milliseconds, log: Logger) -> Told:
    host = str(inbox.event(joining.lake, generation_id=joining.generation_id).node.host_id)
    rows = joining.lake.read(CDC_LOCAL, ["key"], [("host_id", "=", host)]).num_rows
    return Told(rows, {"time": format_ms(time_ms), "host_id": host})


def _admitted(joining: Joining, admitted: Node, log: Logger) -> Told:
    columns = ["host_id", "address", "datacenter", "rack", "status", "shard_count", "ignore_msb"]
    rows = joining.lake.read(NODES, columns)
    ring = few_rows(columns, (tuple(row.values()) for row in rows.sort_by("host_id").to_pylist()))
    return Told(rows.num_rows, {"admitted": str(admitted.host_id), "ring": ring})


def _published(joining: Joining, made: object, log: Logger) -> Told:
    lake = joining.lake
    time_ms = Timeline.read(lake).find(joining.generation_id).time_ms
    rows = descriptions.published_range_ends(lake, time_ms).size
    return Told(rows, {"time": format_ms(time_ms)})


def _announced(joining: Joining, time_ms: Milliseconds, log: Logger) -> Told:
    timeline = drawn_timeline(joining.lake, Timeline.read(joining.lake).known, joining.clock)
    return Told(1, {"time": format_ms(time_ms), "timeline": timeline, **reports.made(joining, log)})


def _nodes(ring: Ring) -> Iterator[tuple[str, str, int, int, int]]:
    for node in ring.nodes:
        yield str(node.host_id), node.address, len(node.tokens), node.shard_count, node.ignore_msb


# A description is made from the ring as it stood and the node that joins. The ring is no dependency: it is what the
# join before has left, and a dependency would close a circle with the one that this join leaves.
_MAKERS = (BOOTSTRAP_EVENTS, NODES)
_TOKENS = [(table, "tokens") for table in _MAKERS]
_MSB = [(table, "ignore_msb") for table in _MAKERS]
_SHARDING = [*_TOKENS, *((table, "shard_count") for table in _MAKERS), *_MSB]

SHOWN: Mapping[Table, Shown] = {
    TOPOLOGY_DESCRIPTIONS: Shown(
        group="generations",
        spark=True,
        description="Generated from the ring as it stands and the tokens of the node whose turn it is. The random "
        "bits of a stream ID are a hash of generation, range and shard: materialised again, it has the same bytes.",
        sources={
            "generation_id": [(BOOTSTRAP_EVENTS, "generation_id")],
            "range_end": _TOKENS,
            "range_start": _TOKENS,
            "vnode_index": _TOKENS,
            "owner": [(table, "host_id") for table in _MAKERS],
            "streams": [(BOOTSTRAP_EVENTS, "generation_id"), *_SHARDING],
            "ignore_msb": _MSB,
        },
        tell=_description,
    ),
    GENERATION_DESCRIPTIONS_V2: Shown(
        group="generations",
        spark=True,
        description="The audited description, each row with the number of rows that the whole has: a reader that "
        "finds fewer refuses the generation.",
        sources={
            "id": [(TOPOLOGY_DESCRIPTIONS, "generation_id")],
            "range_end": [(TOPOLOGY_DESCRIPTIONS, "range_end")],
            "ignore_msb": [(TOPOLOGY_DESCRIPTIONS, "ignore_msb")],
            "num_ranges": [(TOPOLOGY_DESCRIPTIONS, "range_end")],
            "streams": [(TOPOLOGY_DESCRIPTIONS, "streams")],
        },
        tell=_inserted,
    ),
    CDC_LOCAL: Shown(
        group="generations",
        spark=False,
        description="The inserted generation gets its timestamp, by default 65 s from now: twice the ring delay and "
        "the leeway. The timestamp is chosen once; materialised again, the same one comes out.",
        sources={
            "host_id": [(BOOTSTRAP_EVENTS, "host_id")],
            "streams_timestamp": [(GENERATIONS, "time")],
            "uuid": [(GENERATION_DESCRIPTIONS_V2, "id")],
        },
        tell=_introduced,
    ),
    NODES: Shown(
        group="generations",
        spark=False,
        description="The node that introduces the generation becomes NORMAL. The generation of the next node is "
        "made from this ring.",
        sources={
            name: [(BOOTSTRAP_EVENTS, name)] for name in NODES.schema.names if name in BOOTSTRAP_EVENTS.schema.names
        },
        tell=_admitted,
    ),
    STREAMS_DESCRIPTIONS_V2: Shown(
        group="publishing",
        spark=True,
        description="Nodes race to publish and any number may: the rows are the same. Streams are in shard order.",
        sources={
            "time": [(CDC_LOCAL, "streams_timestamp"), (STREAMS_DESCRIPTIONS, "time")],
            "range_end": [(GENERATION_DESCRIPTIONS_V2, "range_end"), (GENERATION_DESCRIPTIONS, "description")],
            "streams": [(GENERATION_DESCRIPTIONS_V2, "streams"), (GENERATION_DESCRIPTIONS, "description")],
        },
        tell=_published,
    ),
    GENERATION_TIMESTAMPS: Shown(
        group="publishing",
        spark=False,
        description="Readers that see a timestamp rely on all of its streams rows; so it is written last.",
        sources={"time": [(STREAMS_DESCRIPTIONS_V2, "time")]},
        tell=_announced,
    ),
}
