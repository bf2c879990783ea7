"""What a list of topology changes would do: generations, streams, bytes, colocation. Played in memory, nothing written.

Every effect comes from the functions that do the real thing: the ring, the layout of a generation, its timestamp, the
conditions of a repair, the rule of expiry.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cdc_platform.clock import Milliseconds, ms_of_seconds, us_of
from cdc_platform.errors import InputError
from cdc_platform.generations import GenerationId, choose_generation_timestamp, layout_of
from cdc_platform.generations.cluster_feature import nodes_without_v2
from cdc_platform.generations.colocation import Colocation, changed_share, colocation
from cdc_platform.generations.damage import Damage, known_damage, range_damage, sharding_damage
from cdc_platform.generations.expiry import LogHistory, Margins, expires_at_us
from cdc_platform.lifecycle.rehearsal.start import REHEARSALS, TABLES, KeptGeneration, Operating, Start
from cdc_platform.records import inbox
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings
from cdc_platform.sources.rehearsal_file import Add, Remove, Repair, Reshard, Step, Wait


@dataclass(frozen=True)
class Made:
    """A generation that a step makes. `bytes` are those of its description; `changed_share` (0 to 1) is the part of the
    ring whose writes go to another stream ID than before, None for the first generation.
    """

    id: GenerationId
    num_ranges: int
    num_streams: int
    bytes: int
    changed_share: float | None


@dataclass(frozen=True)
class Effect:
    """What one step does. `number` is its place in the file, 0 for the start; repeated steps share it.

    `at_ms`: when it begins. `made`: the generation that it makes. `findings`: what a repair finds.
    `nodes`, `tokens`: the ring after it. `excess_ranges`, `excess_streams`: those of the newest generation that end at
    no token of that ring any more. `colocated`: what the newest generation colocates on that ring.
    `risk_ms`: for how long the old generation still takes writes that may go by the new ring already, as gossip has
    it; `risk_share`: the share of the ring whose keys are then in another vnode than their stream.
    `kept`: bytes in each of `TABLES` after it.
    """

    number: int
    kind: str
    subject: str
    at_ms: Milliseconds
    nodes: int
    tokens: int
    made: Made | None
    findings: tuple[Damage, ...]
    excess_ranges: int
    excess_streams: int
    colocated: Colocation | None
    risk_ms: Milliseconds
    risk_share: float
    kept: dict[str, int]


@dataclass
class Rehearsal:
    """A rehearsal that is being played; `play` is the way in."""

    settings: Settings
    logs: tuple[LogHistory, ...] | None
    ring: Ring
    operating: Operating | None
    kept: list[KeptGeneration]
    now_ms: Milliseconds
    added: int = 0
    made: int = field(default=0)

    def effects(self, steps: Sequence[Step]) -> Iterator[Effect]:
        """The start as it is, then every step."""
        yield self._effect(0, "start", "", self.now_ms)
        for step in steps:
            try:
                yield from self._play(step)
            except InputError as error:
                raise InputError(f"step {step.number}: {step.kind}: {error}") from None

    def _play(self, step: Step) -> Iterator[Effect]:
        change = step.change
        if isinstance(change, Add):
            for _ in range(change.times):
                yield self._add(step, change)
        elif isinstance(change, Remove):
            yield self._remove(step, change)
        elif isinstance(change, Reshard):
            yield self._reshard(step, change)
        elif isinstance(change, Repair):
            yield self._repair(step, change)
        else:
            yield self._wait(step, change)

    def _add(self, step: Step, change: Add) -> Effect:
        self.added += 1
        zero_token = not change.tokens and not change.num_tokens
        begun, event_id = self.now_ms, uuid.UUID(int=0) if zero_token else self._event_id()
        inbox.check_room(self.ring, len(change.tokens or ()) or change.num_tokens or 0)
        tokens = change.tokens or inbox.draw_tokens(change.num_tokens or 0, self.ring, event_id)
        node = Node(
            host_id=change.host_id or uuid.uuid5(REHEARSALS, f"node {self.added}"),
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
        at_risk = 0.0 if before is None else 1 - colocation(before.layout, self.ring).vnode
        made = self._make(event_id)
        risk_ms = made.id.time_ms - begun if before is not None else Milliseconds(0)
        self.now_ms = max(self.now_ms, made.id.time_ms)
        return self._effect(step.number, "add", node.address, begun, made=made, risk_ms=risk_ms, risk_share=at_risk)

    def _remove(self, step: Step, change: Remove) -> Effect:
        gone = self._node(change.node)
        if gone.tokens and len(self.ring.nodes) - len(self.ring.zero_token_nodes) == 1:
            raise InputError(
                f"node {change.node} is the last of the ring that owns tokens; a ring has at least one such node"
            )
        self.ring = Ring.of(node for node in self.ring.nodes if node is not gone)
        return self._effect(step.number, "remove", change.node, self.now_ms)

    def _reshard(self, step: Step, change: Reshard) -> Effect:
        old = self._node(change.node)
        count = old.shard_count if change.shard_count is None else change.shard_count
        msb = old.ignore_msb if change.ignore_msb is None else change.ignore_msb
        new = replace(old, shard_count=count, ignore_msb=msb)
        self.ring = Ring.of(new if node is old else node for node in self.ring.nodes)
        return self._effect(step.number, "reshard", change.node, self.now_ms)

    def _repair(self, step: Step, change: Repair) -> Effect:
        begun, findings = self.now_ms, self._findings()
        strict = change.strict or self.settings.repair_strict
        made = None
        if any(strict or found.is_reason for found in findings):
            made = self._make(self._event_id(), always_delay=True)
            self.now_ms = max(self.now_ms, made.id.time_ms)
        subject = "strict" if strict else ""
        return self._effect(step.number, "repair", subject, begun, made=made, findings=tuple(findings))

    def _wait(self, step: Step, change: Wait) -> Effect:
        begun = self.now_ms
        self.now_ms += ms_of_seconds(change.seconds)
        return self._effect(step.number, "wait", f"{change.seconds} s", begun)

    def _findings(self) -> list[Damage]:
        if not self.ring.has_tokens:
            raise InputError(
                "no node is in the ring that owns tokens, so there are no streams to repair; add a node first"
            )
        v2_everywhere = not nodes_without_v2(self.ring.nodes)
        newest = self.operating
        findings = known_damage(None if newest is None else newest.id, v2_everywhere=v2_everywhere)
        if newest is None:
            return findings
        ends, counts, msbs = newest.layout.range_ends, newest.layout.shard_counts, newest.layout.ignore_msbs
        expected = layout_of(self.ring, v1=not v2_everywhere)
        findings += range_damage(ends, self.ring.tokens)
        return findings + sharding_damage(ends, counts, msbs, self.ring, expected)

    def _make(self, event_id: uuid.UUID, *, always_delay: bool = False) -> Made:
        """The generation for the ring as it stands now."""
        before, settings = self.operating, self.settings
        is_v1 = bool(nodes_without_v2(self.ring.nodes))
        layout = layout_of(self.ring, v1=is_v1)
        time_ms = choose_generation_timestamp(
            self.now_ms,
            max((each.time_ms for each in self.kept), default=None),
            ring_delay_ms=settings.ring_delay_ms,
            leeway_ms=settings.generation_leeway_ms,
            always_delay=always_delay or before is not None or settings.first_generation_delay,
        )
        self.operating = Operating(GenerationId(time_ms, None if is_v1 else event_id), layout, event_id)
        kept = KeptGeneration(time_ms, len(layout), layout.stream_total, is_v1)
        self.kept.append(kept)
        changed = None
        if before is not None:
            changed = changed_share(before.layout, before.streams, layout, event_id)
        size = max(kept.in_table(table) for table in TABLES[:2])
        return Made(self.operating.id, len(layout), layout.stream_total, size, changed)

    def _effect(
        self,
        number: int,
        kind: str,
        subject: str,
        at_ms: Milliseconds,
        *,
        made: Made | None = None,
        findings: tuple[Damage, ...] = (),
        risk_ms: Milliseconds = Milliseconds(0),
        risk_share: float = 0.0,
    ) -> Effect:
        self._remove_expired()
        newest = self.operating
        excess = np.zeros(0, dtype=np.int64)
        if newest is not None:
            excess = newest.layout.shard_counts[~np.isin(newest.layout.range_ends, self.ring.tokens)]
        return Effect(
            number,
            kind,
            subject,
            at_ms,
            len(self.ring.nodes),
            len(self.ring.tokens),
            made,
            findings,
            len(excess),
            int(excess.sum()),
            colocation(newest.layout, self.ring) if newest is not None and self.ring.has_tokens else None,
            risk_ms,
            risk_share,
            {table: sum(each.in_table(table) for each in self.kept) for table in TABLES},
        )

    def _remove_expired(self) -> None:
        """Forget the generations that are removed by now."""
        settings = self.settings
        if self.logs is None or not self.kept:
            return
        leeway_us, skew_us = us_of(settings.generation_leeway_ms), us_of(settings.expiry_skew_margin_ms)
        times = np.array([us_of(each.time_ms) for each in self.kept], dtype=np.int64)
        expires = expires_at_us(times, self.logs, Margins.of(settings.policy, leeway_us, skew_us))
        stays = expires > us_of(self.now_ms - settings.expiry_grace_ms)
        self.kept = [each for each, stay in zip(self.kept, stays.tolist(), strict=True) if stay]

    def _node(self, name: str) -> Node:
        found = [node for node in self.ring.nodes if name in (node.address, str(node.host_id))]
        if len(found) != 1:
            known = ", ".join(sorted(node.address or str(node.host_id) for node in self.ring.nodes)[:8])
            many = "no node" if not found else f"the address of {len(found)} nodes"
            raise InputError(f"{name} is {many} of the ring; name a host_id or an address: {known}, ...")
        return found[0]

    def _event_id(self) -> uuid.UUID:
        """The UUID of the next generation: the same whenever the same rehearsal is played."""
        self.made += 1
        return uuid.uuid5(REHEARSALS, f"generation {self.made} after {self.now_ms}")


def play(start: Start, steps: Sequence[Step], settings: Settings) -> list[Effect]:
    """The effects of all steps, the state at the start first. The same input gives the same effects.

    A step that makes a generation lasts until that operates; the others take no time, but for `wait`.

    Raises:
        InputError: a step cannot be made, say because a token has an owner; nothing else is told then.
        StateError: a generation could not start after the newest one.
    """
    played = Rehearsal(settings, start.logs, start.ring, start.operating, list(start.kept), start.now_ms)
    return list(played.effects(steps))


def first_beyond(effects: Sequence[Effect], most_bytes: int) -> dict[str, Effect]:
    """The first effect after which a table holds more than `most_bytes`, by table; the others are left out."""
    beyond: dict[str, Effect] = {}
    for effect in effects:
        for table, size in effect.kept.items():
            if size > most_bytes:
                beyond.setdefault(table, effect)
    return beyond
