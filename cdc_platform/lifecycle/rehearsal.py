"""Rehearsal of topology changes in memory: generations, streams, bytes and colocation. Nothing is written.

Every effect comes from the functions that do the real work: ring, layout, timestamp, repair conditions, expiry rule.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cdc_platform.clock import Microseconds, Milliseconds, ms_from_seconds, us_from_ms, us_from_seconds
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.generations import (
    CdcSettingsChange,
    ClockMargins,
    Colocation,
    GenerationDamage,
    GenerationId,
    LogTtlHistory,
    RingLayout,
    StreamOrigin,
    build_log_ttl_history,
    choose_generation_timestamp,
    compute_changed_share,
    compute_colocation,
    estimate_rows_bytes,
    estimate_v1_cell_bytes,
    expires_at_us,
    find_id_damage,
    find_nodes_without_v2,
    find_range_damage,
    find_sharding_damage,
    get_ring_layout,
)
from cdc_platform.importing import AddNodes, RehearsalFileStep, RemoveNode, RepairStreams, ReshardNode, WaitSeconds
from cdc_platform.lifecycle import expiry
from cdc_platform.metastore import cdc_tables, generations, inbox, read_current_ring
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2
from cdc_platform.timeline import Timeline, read_generation_sizes

REHEARSAL_NAMESPACE = uuid.UUID("b51d2c3e-0c36-5a6e-9d67-6f1f6b7d1c02")
"""The namespace of the UUIDs that a rehearsal draws, so that the same rehearsal gives the same result."""

MEASURED_TABLES = (
    GENERATION_DESCRIPTIONS_V2.full_name,
    GENERATION_DESCRIPTIONS.full_name,
    STREAMS_DESCRIPTIONS_V2.full_name,
)
"""The tables whose sizes a rehearsal reports: V2 and V1 descriptions, and the streams that readers get."""


@dataclass(frozen=True, eq=False)
class RehearsedOperation:
    """The newest generation of a rehearsal, the layout from which its streams were generated, and the streams."""

    id: GenerationId
    layout: RingLayout
    streams: StreamOrigin


@dataclass(frozen=True)
class StoredGeneration:
    """A generation with rows in the tables: its start (ms), its size, and whether its format is V1."""

    time_ms: Milliseconds
    num_ranges: int
    num_streams: int
    is_v1: bool

    def in_table(self, table: str) -> int:
        """Return the bytes that the generation occupies in a table."""
        if table == STREAMS_DESCRIPTIONS_V2.full_name:
            return estimate_rows_bytes(self.num_ranges, self.num_streams)
        if self.is_v1:
            return (
                estimate_v1_cell_bytes(self.num_ranges, self.num_streams)
                if table == GENERATION_DESCRIPTIONS.full_name
                else 0
            )
        return (
            estimate_rows_bytes(self.num_ranges, self.num_streams)
            if table == GENERATION_DESCRIPTIONS_V2.full_name
            else 0
        )


@dataclass(frozen=True)
class RehearsalStart:
    """The initial state of a rehearsal. `operating` None: no generation; `now_ms` is the clock of the first step.

    `logs` are the logs that can hold rows of old generations; None if no TTLs are known, so that nothing is removed.
    """

    ring: Ring
    operating: RehearsedOperation | None
    stored: tuple[StoredGeneration, ...]
    now_ms: Milliseconds
    logs: tuple[LogTtlHistory, ...] | None = None


def start_from_lake(lake: Lake, now_ms: Milliseconds) -> RehearsalStart:
    """Return a start with the current ring, its newest generation, all stored generations, and the logs' TTLs.

    Raises:
        NotFound, StateError: the newest generation cannot be read; `repair` reports more.
    """
    timeline = Timeline.read(lake)
    operating = None
    if timeline.newest is not None:
        newest = timeline.newest.gossiped
        description = generations.read_generation_description(lake, newest)
        layout = RingLayout(
            description.range_ends, description.range_starts, description.stream_counts, description.ignore_msbs
        )
        operating = RehearsedOperation(newest, layout, description)
    stored = tuple(
        StoredGeneration(size.time_ms, size.num_ranges, size.num_streams, size.is_v1)
        for size in read_generation_sizes(lake)
    )
    logs = tuple(expiry.read_generation_log_histories(lake).values()) if cdc_tables.read_table_changes(lake) else None
    return RehearsalStart(read_current_ring(lake), operating, stored, now_ms, logs)


def start_with_ttls(start: RehearsalStart, ttl_seconds: Sequence[int]) -> RehearsalStart:
    """Return a start with other logs: one per TTL, which has always existed. TTL 0 means that rows never expire."""
    logs = (
        build_log_ttl_history(
            [CdcSettingsChange(Microseconds(0), Microseconds(0), enabled=True, ttl_us=us_from_seconds(ttl))]
        )
        for ttl in ttl_seconds
    )
    return replace(start, logs=tuple(log for log in logs if log is not None))


def start_from_ring(ring: Ring, now_ms: Milliseconds) -> RehearsalStart:
    """Return a start from a ring alone; its generation is assumed to be the one that the ring would get now."""
    if not ring.has_tokens:
        return RehearsalStart(ring, None, (), now_ms)
    is_v1 = bool(find_nodes_without_v2(ring.nodes))
    layout, event_id = get_ring_layout(ring, v1=is_v1), uuid.uuid5(REHEARSAL_NAMESPACE, "the generation at the start")
    id = GenerationId(now_ms, None if is_v1 else event_id)
    stored = StoredGeneration(now_ms, len(layout), layout.stream_total, is_v1)
    return RehearsalStart(ring, RehearsedOperation(id, layout, event_id), (stored,), now_ms)


@dataclass(frozen=True)
class RehearsedGeneration:
    """A generation that a step makes.

    `bytes` is the size of its description. `changed_share` (0 to 1) is the part of the ring whose writes go to another
    stream ID than before, None for the first generation.
    """

    id: GenerationId
    num_ranges: int
    num_streams: int
    bytes: int
    changed_share: float | None


@dataclass(frozen=True)
class StepEffect:
    """The effect of one step.

    `number` is the step's position in the file, 0 for the start; the repetitions of a step share it. `at_ms` is when it
    begins, `generation` the generation that it makes, and `findings` the damage that a repair finds. `nodes` and
    `tokens` describe the ring after it.

    `excess_ranges` and `excess_streams` count the ranges of the newest generation that no longer end at a token of that
    ring, and their streams. `colocated` is the colocation of the newest generation on that ring. `risk_ms` is how long
    the old generation still receives writes while gossip may already route them by the new ring; `risk_share` is the
    share of the ring whose keys are then in another vnode than their stream.

    `stored_bytes` is the bytes in each of `MEASURED_TABLES` after the step.
    """

    number: int
    kind: str
    subject: str
    at_ms: Milliseconds
    nodes: int
    tokens: int
    generation: RehearsedGeneration | None
    findings: tuple[GenerationDamage, ...]
    excess_ranges: int
    excess_streams: int
    colocated: Colocation | None
    risk_ms: Milliseconds
    risk_share: float
    stored_bytes: dict[str, int]


@dataclass
class _RehearsalRun:
    """The state of a running rehearsal; call `play_rehearsal` to run one."""

    settings: Settings
    logs: tuple[LogTtlHistory, ...] | None
    ring: Ring
    operating: RehearsedOperation | None
    stored: list[StoredGeneration]
    now_ms: Milliseconds
    added: int = 0
    events: int = field(default=0)

    def effects(self, steps: Sequence[RehearsalFileStep]) -> Iterator[StepEffect]:
        """Yield the state at the start, then the effect of every step."""
        yield self._effect(0, "start", "", self.now_ms)
        for step in steps:
            try:
                yield from self._play(step)
            except InputError as error:
                raise InputError(f"step {step.number}: {step.kind}: {error}") from None

    def _play(self, step: RehearsalFileStep) -> Iterator[StepEffect]:
        change = step.change
        if isinstance(change, AddNodes):
            for _ in range(change.times):
                yield self._add(step, change)
        elif isinstance(change, RemoveNode):
            yield self._remove(step, change)
        elif isinstance(change, ReshardNode):
            yield self._reshard(step, change)
        elif isinstance(change, RepairStreams):
            yield self._repair(step, change)
        else:
            yield self._wait(step, change)

    def _add(self, step: RehearsalFileStep, change: AddNodes) -> StepEffect:
        self.added += 1
        zero_token = not change.tokens and not change.num_tokens
        begun, event_id = self.now_ms, uuid.UUID(int=0) if zero_token else self._event_id()
        inbox.check_token_limit(self.ring, len(change.tokens or ()) or change.num_tokens or 0)
        tokens = change.tokens or inbox.draw_tokens(change.num_tokens or 0, self.ring, event_id)
        node = Node(
            host_id=change.host_id or uuid.uuid5(REHEARSAL_NAMESPACE, f"node {self.added}"),
            tokens=tuple(tokens),
            shard_count=change.shard_count,
            ignore_msb=change.ignore_msb,
            address=change.address or f"added-{self.added}",
            datacenter=change.datacenter,
            rack=change.rack,
            features=change.features,
        )
        if change.address and any(change.address == other.address for other in self.ring.nodes):
            raise InputError(f"address {change.address} is a node's of the ring already; give the new one its own")
        before = self.operating
        if not node.tokens and not self.ring.has_tokens:
            raise InputError(f"node {node.address} has no tokens; the first node of a ring owns tokens")
        self.ring = self.ring.join(node)
        if not node.tokens:
            return self._effect(step.number, "add", node.address, begun)
        at_risk = 0.0 if before is None else 1 - compute_colocation(before.layout, self.ring).vnode
        generation = self._make(event_id)
        risk_ms = generation.id.time_ms - begun if before is not None else Milliseconds(0)
        self.now_ms = max(self.now_ms, generation.id.time_ms)
        return self._effect(
            step.number, "add", node.address, begun, generation=generation, risk_ms=risk_ms, risk_share=at_risk
        )

    def _remove(self, step: RehearsalFileStep, change: RemoveNode) -> StepEffect:
        removed = self._node(change.node)
        if removed.tokens and len(self.ring.nodes) - len(self.ring.zero_token_nodes) == 1:
            raise InputError(
                f"node {change.node} is the last of the ring that owns tokens; a ring has at least one such node"
            )
        self.ring = Ring.of(node for node in self.ring.nodes if node is not removed)
        return self._effect(step.number, "remove", change.node, self.now_ms)

    def _reshard(self, step: RehearsalFileStep, change: ReshardNode) -> StepEffect:
        old = self._node(change.node)
        count = old.shard_count if change.shard_count is None else change.shard_count
        msb = old.ignore_msb if change.ignore_msb is None else change.ignore_msb
        new = replace(old, shard_count=count, ignore_msb=msb)
        self.ring = Ring.of(new if node is old else node for node in self.ring.nodes)
        return self._effect(step.number, "reshard", change.node, self.now_ms)

    def _repair(self, step: RehearsalFileStep, change: RepairStreams) -> StepEffect:
        begun, findings = self.now_ms, self._findings()
        strict = change.strict or self.settings.repair_strict
        generation = None
        if any(strict or damage.is_reason for damage in findings):
            generation = self._make(self._event_id(), always_delay=True)
            self.now_ms = max(self.now_ms, generation.id.time_ms)
        subject = "strict" if strict else ""
        return self._effect(step.number, "repair", subject, begun, generation=generation, findings=tuple(findings))

    def _wait(self, step: RehearsalFileStep, change: WaitSeconds) -> StepEffect:
        begun = self.now_ms
        self.now_ms += ms_from_seconds(change.seconds)
        return self._effect(step.number, "wait", f"{change.seconds} s", begun)

    def _findings(self) -> list[GenerationDamage]:
        if not self.ring.has_tokens:
            raise InputError(
                "no node is in the ring that owns tokens, so there are no streams to repair; add a node first"
            )
        v2_everywhere = not find_nodes_without_v2(self.ring.nodes)
        newest = self.operating
        findings = find_id_damage(None if newest is None else newest.id, v2_everywhere=v2_everywhere)
        if newest is None:
            return findings
        ends, counts, msbs = newest.layout.range_ends, newest.layout.shard_counts, newest.layout.ignore_msbs
        expected = get_ring_layout(self.ring, v1=not v2_everywhere)
        findings += find_range_damage(ends, self.ring.tokens)
        return findings + find_sharding_damage(ends, counts, msbs, self.ring, expected)

    def _make(self, event_id: uuid.UUID, *, always_delay: bool = False) -> RehearsedGeneration:
        """Make the generation for the current ring."""
        before, settings = self.operating, self.settings
        is_v1 = bool(find_nodes_without_v2(self.ring.nodes))
        layout = get_ring_layout(self.ring, v1=is_v1)
        time_ms = choose_generation_timestamp(
            self.now_ms,
            max((generation.time_ms for generation in self.stored), default=None),
            ring_delay_ms=settings.ring_delay_ms,
            leeway_ms=settings.generation_leeway_ms,
            always_delay=always_delay or before is not None or settings.first_generation_delay,
        )
        self.operating = RehearsedOperation(GenerationId(time_ms, None if is_v1 else event_id), layout, event_id)
        stored = StoredGeneration(time_ms, len(layout), layout.stream_total, is_v1)
        self.stored.append(stored)
        changed = None
        if before is not None:
            changed = compute_changed_share(before.layout, before.streams, layout, event_id)
        size = max(stored.in_table(table) for table in MEASURED_TABLES[:2])
        return RehearsedGeneration(self.operating.id, len(layout), layout.stream_total, size, changed)

    def _effect(
        self,
        number: int,
        kind: str,
        subject: str,
        at_ms: Milliseconds,
        *,
        generation: RehearsedGeneration | None = None,
        findings: tuple[GenerationDamage, ...] = (),
        risk_ms: Milliseconds = Milliseconds(0),
        risk_share: float = 0.0,
    ) -> StepEffect:
        self._remove_expired()
        newest = self.operating
        excess = np.zeros(0, dtype=np.int64)
        if newest is not None:
            excess = newest.layout.shard_counts[~np.isin(newest.layout.range_ends, self.ring.tokens)]
        return StepEffect(
            number,
            kind,
            subject,
            at_ms,
            len(self.ring.nodes),
            len(self.ring.tokens),
            generation,
            findings,
            len(excess),
            int(excess.sum()),
            compute_colocation(newest.layout, self.ring) if newest is not None and self.ring.has_tokens else None,
            risk_ms,
            risk_share,
            {table: sum(generation.in_table(table) for generation in self.stored) for table in MEASURED_TABLES},
        )

    def _remove_expired(self) -> None:
        """Remove the generations that would have been removed by now."""
        settings = self.settings
        if self.logs is None or not self.stored:
            return
        leeway_us, skew_us = us_from_ms(settings.generation_leeway_ms), us_from_ms(settings.expiry_skew_margin_ms)
        times = np.array([us_from_ms(generation.time_ms) for generation in self.stored], dtype=np.int64)
        expires = expires_at_us(times, self.logs, ClockMargins.of(settings.policy, leeway_us, skew_us))
        remains = expires > us_from_ms(self.now_ms - settings.expiry_grace_ms)
        self.stored = [generation for generation, stay in zip(self.stored, remains.tolist(), strict=True) if stay]

    def _node(self, name: str) -> Node:
        nodes = [node for node in self.ring.nodes if name in (node.address, str(node.host_id))]
        if len(nodes) != 1:
            known = ", ".join(sorted(node.address or str(node.host_id) for node in self.ring.nodes)[:8])
            many = "no node" if not nodes else f"the address of {len(nodes)} nodes"
            raise InputError(f"{name} is {many} of the ring; name a host_id or an address: {known}, ...")
        return nodes[0]

    def _event_id(self) -> uuid.UUID:
        """Draw the UUID of the next generation, the same one whenever the same rehearsal runs."""
        self.events += 1
        return uuid.uuid5(REHEARSAL_NAMESPACE, f"generation {self.events} after {self.now_ms}")


def play_rehearsal(start: RehearsalStart, steps: Sequence[RehearsalFileStep], settings: Settings) -> list[StepEffect]:
    """Return the state at the start and the effects of all steps. The same input gives the same effects.

    A step that makes a generation lasts until the generation operates. All other steps except `wait` take no time.

    Raises:
        InputError: a step is impossible, for example because a token has an owner; no effects are returned.
        StateError: a generation could not start after the newest one.
    """
    played = _RehearsalRun(settings, start.logs, start.ring, start.operating, list(start.stored), start.now_ms)
    return list(played.effects(steps))


def first_effects_above(effects: Sequence[StepEffect], most_bytes: int) -> dict[str, StepEffect]:
    """Return the first effect after which a table holds more than `most_bytes`, by table, without tables below it."""
    effects_by_table: dict[str, StepEffect] = {}
    for effect in effects:
        for table, size in effect.stored_bytes.items():
            if size > most_bytes:
                effects_by_table.setdefault(table, effect)
    return effects_by_table
