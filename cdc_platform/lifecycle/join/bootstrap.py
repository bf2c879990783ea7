"""Bootstrap of a node: describe its generation, insert the description, choose its timestamp, admit the node.

V2 chooses the timestamp after the insert, as late as possible. V1 chooses it first, because it is the key of the data.
Spark tasks generate the rows of a description where they write them, about a million streams (16 MB) per task.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, datetime_from_us, format_ms
from cdc_platform.delta import (
    JOINS_LOCK,
    Lake,
    TaskRows,
    TaskRunner,
    exclusive,
    flatten_stream_lists,
    stream_lists_to_arrow,
)
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import (
    CDC_GENERATIONS_V2,
    GenerationId,
    RingLayout,
    TopologyDescription,
    choose_generation_timestamp,
    find_nodes_without_v2,
    generate_streams,
    get_ring_layout,
    supports_v2,
)
from cdc_platform.lifecycle import switch
from cdc_platform.metastore import (
    STATUS_NORMAL,
    JoinRequest,
    cdc_local,
    generations,
    inbox,
    read_current_ring,
    read_node_features,
    switches,
    write_nodes,
)
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings
from cdc_platform.spark import frames
from cdc_platform.tables import GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, GENERATIONS, TOPOLOGY_DESCRIPTIONS
from cdc_platform.timeline import Timeline

# One task generates about a million streams: 16 MB of stream IDs, a second of one core including the write.
_STREAMS_A_TASK = 1 << 20
# One Arrow batch: 4 MB of stream IDs, which stay in the CPU cache between generation and write.
_STREAMS_A_BATCH = 1 << 18


def description_rows(ring: Ring, generation_id: str, layout: RingLayout | None = None) -> TaskRows:
    """Return rows of `platform.topology_descriptions` for a generation over `ring`, generated on the executors.

    Only the layout (by default that of the ring) is sent, a few bytes per range; the streams are generated where they
    are written.
    """
    layout = RingLayout.of(ring) if layout is None else layout
    owners = np.array([str(node.host_id) for node in ring.nodes])
    bounds = _cut_bounds(layout.shard_counts, _STREAMS_A_TASK)
    return TaskRows(
        len(bounds) - 1, _description_batches(layout, owners, ring.owner_index, uuid.UUID(generation_id), bounds)
    )


def v2_description_rows(rows: TaskRows, generation_id: str, num_ranges: int) -> TaskRows:
    """Return rows of the V2 descriptions from rows that have at least range_end, ignore_msb and streams."""
    return rows.map(to_v2_batch(generation_id, num_ranges))


def to_v2_batch(generation_id: str, num_ranges: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that converts a batch of such rows into rows of the V2 descriptions."""

    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {
            "id": pa.repeat(generation_id, batch.num_rows),
            "num_ranges": pa.repeat(pa.scalar(num_ranges, pa.int32()), batch.num_rows),
            **{name: batch.column(name) for name in ("range_end", "ignore_msb", "streams")},
        }
        return pa.RecordBatch.from_pydict({name: columns[name] for name in GENERATION_DESCRIPTIONS_V2.schema.names})

    return change


def _cut_bounds(stream_counts: np.ndarray, size: int) -> np.ndarray:
    """Return row bounds that cut a description into pieces of about `size` streams, int64[pieces + 1]."""
    totals = np.cumsum(stream_counts)
    pieces = max(1, -(-int(totals[-1]) // size)) if totals.size else 1
    inner = np.searchsorted(totals, totals[-1] * np.arange(1, pieces) / pieces) if totals.size else []
    return np.unique(np.concatenate([[0], inner, [totals.size]]).astype(np.int64))


def _description_batches(
    layout: RingLayout, owners: np.ndarray, owner_index: np.ndarray, generation_id: uuid.UUID, bounds: np.ndarray
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def batches(task: int) -> Iterator[pa.RecordBatch]:
        first, last = int(bounds[task]), int(bounds[task + 1])
        cuts = first + _cut_bounds(layout.shard_counts[first:last], _STREAMS_A_BATCH)
        for lo, hi in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            yield _description_batch(layout, owners[owner_index[lo:hi]], generation_id, lo, hi)

    return batches


def _description_batch(
    layout: RingLayout, owners: np.ndarray, generation_id: uuid.UUID, lo: int, hi: int
) -> pa.RecordBatch:
    counts, streams = generate_streams(layout, generation_id, lo, hi)
    columns = {
        "generation_id": pa.repeat(str(generation_id), hi - lo),
        "range_end": pa.array(layout.range_ends[lo:hi]),
        "range_start": pa.array(layout.range_starts[lo:hi]),
        "vnode_index": pa.array(np.arange(lo, hi, dtype=np.int32)),
        "owner": pa.array(owners),
        "streams": stream_lists_to_arrow(counts, streams),
        "ignore_msb": pa.array(layout.ignore_msbs[lo:hi].astype(np.int8)),
    }
    schema = TOPOLOGY_DESCRIPTIONS.schema
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], names=schema.names)


@dataclass(frozen=True)
class DescribedGeneration:
    """The result of `describe_generation`: the ring without and with the joining node, and the table's version.

    `warning` says what to do after the upgrade if the cluster does not understand V2 yet.
    """

    ring_before: Ring
    ring_after: Ring
    num_ranges: int
    num_streams: int
    version: int
    warning: str | None = None


def read_rings(lake: Lake, generation_id: str) -> tuple[Ring, Ring]:
    """Return the ring before and after the join that introduces this generation; a repair does not change the ring.

    Until the generation has its timestamp, this is the current ring. After that, it is the ring from which the
    description was made, so that materialising it again gives the same bytes even if the ring has changed since.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        InputError: the node cannot join the current ring, for example because a token has an owner by now.
    """
    event = inbox.find_event(lake, generation_id=generation_id)
    joining = replace(event.node, status=STATUS_NORMAL)
    introduced = generations.read_generation_time_ms(lake, generation_id) is not None
    if introduced and is_v1_generation(lake, generation_id):
        # The limit on streams may have changed the node's facts in the event, so only the description is authoritative.
        after = generations.read_described_ring(lake, generation_id)
        if event.is_repair:
            return after, after
        return Ring.of(node for node in after.nodes if node.host_id != joining.host_id), after
    if event.is_repair:
        ring = generations.read_described_ring(lake, generation_id) if introduced else read_current_ring(lake)
        return ring, ring
    if not introduced:
        ring = read_current_ring(lake)
        before = Ring.of(node for node in ring.nodes if node.host_id != joining.host_id)
        return before, before.join(joining)
    after = generations.read_described_ring(lake, generation_id, joining)
    return Ring.of(node for node in after.nodes if node.host_id != joining.host_id), after


def is_v1_generation(lake: Lake, generation_id: str) -> bool:
    """Return True if the generation has the V1 format or, while it has no timestamp, would get it.

    Raises:
        NotFound: no bootstrap event introduces this generation.
    """
    id_ = generations.read_generation_id(lake, generation_id)
    if id_ is not None:
        return id_.format == "v1"
    understood = [*read_node_features(lake), inbox.find_event(lake, generation_id=generation_id).node.features]
    return not all(map(supports_v2, understood))


def mixed_cluster_warning(ring: Ring) -> str | None:
    """Return a warning with its remedy if a generation is introduced while some nodes do not understand V2."""
    v1_nodes = find_nodes_without_v2(ring.nodes)
    if not v1_nodes:
        return None
    fewer = get_ring_layout(ring, v1=False).stream_total - get_ring_layout(ring, v1=True).stream_total
    loss = f", with {fewer} streams fewer than there are shards, which loses shard colocation" if fewer else ""
    return (
        f"{len(v1_nodes)} of {len(ring.nodes)} nodes lack the feature {CDC_GENERATIONS_V2}, the first "
        f"{v1_nodes[0].host_id}: the generation is introduced in the first format{loss}; finish the upgrade of the "
        "cluster, then bootstrap a node or run: cdc-platform repair"
    )


@dataclass(frozen=True)
class ZeroTokenJoin:
    """A zero-token node of the ring, and the newest generation, which it learned; None if there is none."""

    node: Node
    generation: GenerationId | None


@exclusive(JOINS_LOCK)
def join_zero_token_node(lake: Lake, request: JoinRequest) -> ZeroTokenJoin:
    """Admit a zero-token node at once. It makes no generation, and learns the newest one before it becomes a member.

    The same request again changes nothing.

    Raises:
        InputError: the host is in the ring, or waits to join, with other content.
        StateError: no node owns tokens yet, or a switch is undecided in which it would not participate.
    """
    assert request.is_zero_token
    node = inbox.node_from_request(request, (), STATUS_NORMAL)
    ring = read_current_ring(lake)
    if node in ring.nodes:
        return ZeroTokenJoin(node, cdc_local.read_node_generation_id(lake, node.host_id))
    inbox.assert_new_host(node.host_id, inbox.read_future_ring(lake))
    if not ring.has_tokens:
        raise StateError(
            f"host {node.host_id} has no tokens, and no node of the ring owns any yet; the first node of a cluster "
            "owns tokens: give it num_tokens"
        )
    unfinished = switches.read_unfinished_switches(lake)
    if unfinished:
        raise StateError(
            f"host {node.host_id} cannot join while nodes switch to generation {unfinished[0].generation_id}, which "
            f"it would not learn of; run: cdc-platform switch show {unfinished[0].generation_id}"
        )
    newest = Timeline.read(lake).newest
    learned = None if newest is None else newest.gossiped
    if learned is not None:
        cdc_local.store_introduced_generation_id(lake, node.host_id, learned, joins=True)
    write_nodes(lake, [node])
    return ZeroTokenJoin(node, learned)


def describe_generation(
    workers: TaskRunner, lake: Lake, generation_id: str, layout: Callable[[Ring], RingLayout] = RingLayout.of
) -> DescribedGeneration:
    """Write the topology description of a joining node's generation; every range ends with a token of the new ring.

    `layout` derives, from the ring after the join, the layout from which the streams are generated.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the current ring.
    """
    inbox.assert_next_event(lake, generation_id)
    before, after = read_rings(lake, generation_id)
    made_from = layout(after)
    rows = description_rows(after, generation_id, made_from)
    version = frames.replace_partition(workers, lake, TOPOLOGY_DESCRIPTIONS, rows, {"generation_id": generation_id})
    failpoints.kill_if_selected(failpoints.AFTER_DESCRIPTION)
    return DescribedGeneration(before, after, after.tokens.size, made_from.stream_total, version)


def insert_descriptions(workers: TaskRunner, lake: Lake, generation_id: str) -> int:
    """Insert the audited description as V2 descriptions, each row with `num_ranges`; return the table's version.

    Raises:
        StateError: the description is missing or does not have one row per range of the ring after the join.
    """
    inbox.assert_next_event(lake, generation_id)
    expected = read_rings(lake, generation_id)[1].tokens
    assert_described(lake, generation_id, expected)
    described = frames.get_verified_partition_rows(lake, TOPOLOGY_DESCRIPTIONS, {"generation_id": generation_id})
    rows = described.changed(to_v2_batch(generation_id, int(expected.size)))
    version = frames.replace_partition(workers, lake, GENERATION_DESCRIPTIONS_V2, rows, {"id": generation_id})
    failpoints.kill_if_selected(failpoints.AFTER_V2_INSERT)
    return version


def assert_described(lake: Lake, generation_id: str, expected: np.ndarray) -> None:
    """Check that the topology description of a generation has exactly these range ends (int64[n], ascending).

    Raises:
        StateError: it has others, or none.
    """
    described = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", generation_id)])
    ends = np.sort(described["range_end"].to_numpy())
    if not np.array_equal(ends, expected):
        raise StateError(
            f"generation {generation_id}: its topology description has {ends.size} ranges, the ring has "
            f"{expected.size}; materialise topology_descriptions first"
        )


@exclusive(JOINS_LOCK)
def introduce_generation(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Milliseconds:
    """Assign the inserted generation its timestamp (ms), as late as possible and once; store its ID at its node.

    The ledger decides: the first process to write the generation's row determines the timestamp, and all others use it.

    Raises:
        StateError: some of its V2 descriptions are missing, or the clock is behind the newest generation.
    """
    event = inbox.find_event(lake, generation_id=generation_id)
    num_ranges = generations.read_v2_range_ends(lake, generation_id).size
    chosen = generations.read_generation_time_ms(lake, generation_id)
    if chosen is None:
        inbox.assert_next_event(lake, generation_id)
        after = read_rings(lake, generation_id)[1]
        hosts = [str(node.host_id) for node in after.nodes]
        chosen = switch.run_switch(lake, clock, settings, generation_id, str(event.node.host_id), hosts)
        if chosen is None:
            chosen = _choose_timestamp(lake, clock, settings, always_delay=event.is_repair)
        _enter_ledger(lake, clock, chosen, event, num_ranges, int(after.shard_counts.sum()))
        failpoints.kill_if_selected(failpoints.AFTER_SWITCH_LEDGER)
        chosen = generations.read_generation_time_ms(lake, generation_id)
    assert chosen is not None
    id_ = GenerationId(chosen, uuid.UUID(generation_id))
    cdc_local.store_introduced_generation_id(lake, event.node.host_id, id_, joins=not event.is_repair)
    failpoints.kill_if_selected(failpoints.AFTER_TIMESTAMP)
    return chosen


@exclusive(JOINS_LOCK)
def choose_v1_timestamp(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Milliseconds:
    """Assign a V1 generation its timestamp (ms) once; its data is inserted under that key.

    Raises:
        StateError: an earlier join is unfinished, or the clock is behind the newest generation.
    """
    event = inbox.find_event(lake, generation_id=generation_id)
    chosen = generations.read_generation_time_ms(lake, generation_id)
    if chosen is None:
        inbox.assert_next_event(lake, generation_id)
        layout = get_ring_layout(read_rings(lake, generation_id)[1], v1=True)
        chosen = _choose_timestamp(lake, clock, settings, always_delay=event.is_repair)
        _enter_ledger(lake, clock, chosen, event, len(layout), layout.stream_total, "v1")
        chosen = generations.read_generation_time_ms(lake, generation_id)
    assert chosen is not None
    return chosen


def introduce_v1_generation(lake: Lake, generation_id: str) -> Milliseconds:
    """Store the ID of a V1 generation at its node; return its timestamp (ms).

    The timestamp was chosen before the insert; the ID is refused without its data.

    Raises:
        NotFound: it was not inserted yet.
    """
    event = inbox.find_event(lake, generation_id=generation_id)
    id_ = generations.read_generation_id(lake, generation_id)
    if id_ is None:
        raise NotFound(f"generation {generation_id} has no V1 description; insert it first")
    generations.read_generation_range_ends(lake, id_)
    cdc_local.store_introduced_generation_id(lake, event.node.host_id, id_, joins=not event.is_repair)
    failpoints.kill_if_selected(failpoints.AFTER_TIMESTAMP)
    return id_.time_ms


def admit_node(lake: Lake, generation_id: str) -> Node:
    """Make the joining node a NORMAL node of the ring; a repair does not change the ring.

    Raises:
        StateError: its generation has no timestamp yet, and the ring must not grow before nodes know the generation.
    """
    event = inbox.find_event(lake, generation_id=generation_id)
    node = replace(event.node, status=STATUS_NORMAL)
    if generations.read_generation_time_ms(lake, generation_id) is None:
        raise StateError(f"generation {generation_id} has no timestamp yet; materialise cdc_local first")
    if not event.is_repair and generations.read_published_at_ms(lake, generation_id) is None:
        write_nodes(lake, [node])
    return node


def _choose_timestamp(lake: Lake, clock: Clock, settings: Settings, *, always_delay: bool) -> Milliseconds:
    return choose_generation_timestamp(
        clock.now_ms(),
        Timeline.read(lake).last_assigned_ms,
        ring_delay_ms=settings.ring_delay_ms,
        leeway_ms=settings.generation_leeway_ms,
        always_delay=always_delay or settings.first_generation_delay,
    )


def _enter_ledger(
    lake: Lake,
    clock: Clock,
    time_ms: Milliseconds,
    event: inbox.BootstrapEvent,
    num_ranges: int,
    num_streams: int,
    format: str | None = None,
) -> None:
    row = {
        "generation_id": event.generation_id,
        "time": datetime_from_ms(time_ms),
        "host_id": str(event.node.host_id),
        "event_id": event.event_id,
        "num_ranges": num_ranges,
        "num_streams": num_streams,
        "created_at": datetime_from_us(clock.now_us()),
        "published_at": None,
        "format": format,
    }
    lake.merge(GENERATIONS, pa.Table.from_pylist([row], schema=GENERATIONS.schema), update=False)


log = logging.getLogger(__name__)


def describe_v1_generation(workers: TaskRunner, lake: Lake, generation_id: str) -> DescribedGeneration:
    """Write the topology description within the limit on streams, like `describe_generation`, and add a warning.

    The warning is None if every node understands V2, or if the generation already has its timestamp.
    """
    described = describe_generation(workers, lake, generation_id, lambda ring: get_ring_layout(ring, v1=True))
    # For an introduced generation, the nodes' features at the time are no longer known.
    introduced = generations.read_generation_id(lake, generation_id) is not None
    warning = None if introduced else mixed_cluster_warning(described.ring_after)
    if warning:
        log.warning("Generation %s: %s", generation_id, warning)
    return replace(described, warning=warning)


def insert_v1_description(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Milliseconds:
    """Choose the timestamp (ms) of a described generation, insert it as the one row of that time, and return it.

    A repeated call uses the timestamp already chosen. The duration of the insert reduces the time left to inform the
    other nodes, which is why V2 has the opposite order. No Spark, because the limit on its streams bounds a description
    to a few MB.

    Raises:
        StateError: the description is missing or not as committed, an earlier join is unfinished, or another generation
            has the same time.
    """
    inbox.assert_next_event(lake, generation_id)
    ring = read_rings(lake, generation_id)[1]
    assert_described(lake, generation_id, ring.tokens)
    frames.assert_partition_as_committed(
        TaskRunner.alone(), lake, TOPOLOGY_DESCRIPTIONS, {"generation_id": generation_id}
    )
    description = read_topology_description(lake, generation_id)
    time_ms = choose_v1_timestamp(lake, clock, settings, generation_id)
    failpoints.kill_if_selected(failpoints.AFTER_V1_TIMESTAMP)
    lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(time_ms, description), update=False)
    cell = generations.read_v1_cell(lake, time_ms)
    if cell is None or not generations.parse_v1_cell(time_ms, cell).equals(description):
        raise StateError(
            f"generation {generation_id}: cdc_generation_descriptions has another generation at "
            f"{format_ms(time_ms)}; withdraw the join with bootstrap --withdraw, or import into another --home"
        )
    failpoints.kill_if_selected(failpoints.AFTER_V1_INSERT)
    return time_ms


def read_topology_description(lake: Lake, generation_id: str) -> TopologyDescription:
    """Return the generated description from `platform.topology_descriptions`.

    Raises:
        StateError: a row of it is damaged.
    """
    columns = ["range_end", "ignore_msb", "streams"]
    rows = lake.read(TOPOLOGY_DESCRIPTIONS, columns, [("generation_id", "=", generation_id)])
    rows = rows.sort_by("range_end").combine_chunks()
    try:
        counts, streams = flatten_stream_lists(rows["streams"])
        return TopologyDescription(rows["range_end"].to_numpy(), counts, rows["ignore_msb"].to_numpy(), streams)
    except InputError as error:
        raise StateError(
            f"generation {generation_id}: its topology description is damaged: {error}; materialise it again"
        ) from None
