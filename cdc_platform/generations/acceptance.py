"""Acceptance of writes: the generation that operates at a time, and a node's memory of generations.

Times are µs since 1970 UTC.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.clock import DEFAULT_LEEWAY_MS, ONE_US, Microseconds, format_us, us_from_ms
from cdc_platform.errors import InputError, WriteRefused
from cdc_platform.generations.description import TopologyDescription
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.ring import Int64s, UInt8s

AcceptancePolicy = Literal["strict", "recent-past"]
LEEWAY_US = us_from_ms(DEFAULT_LEEWAY_MS)
_FEW_GENERATIONS = 16

_log = logging.getLogger(__name__)


class WriteVerdict(StrEnum):
    """The result of the acceptance rule for a write."""

    OK = "OK"
    FUTURE = "FUTURE"
    """Too far ahead of the clock: the generation that will operate then cannot be known."""
    PAST = "PAST"
    """Too old. `strict`: before the generation that operates now. `recent-past`: older than the leeway, too."""
    NO_STREAM = "NO_STREAM"
    """No known generation operates at that time."""
    NOT_RETRIEVED = "NOT_RETRIEVED"
    """The generation is known by its ID, but its description has not been read."""
    UNDECIDED = "UNDECIDED"
    """It needs the decision on a generation switch, which is not known."""
    STREAM_UNKNOWN = "STREAM_UNKNOWN"
    """The rule accepts its timestamp, but its stream is unknown. Only `explain` returns this."""
    STREAM_MISPLACED = "STREAM_MISPLACED"
    """The rule accepts its timestamp, but range and shard put its stream elsewhere. Only `explain` returns this."""


@dataclass(frozen=True)
class UndecidedSwitch:
    """A generation switch without a known decision: writes from `lease_end_us` on need it. Times in µs."""

    generation_id: str
    since_us: Microseconds
    lease_end_us: Microseconds


@dataclass(frozen=True)
class WriteDecision:
    """The verdict on a write timestamp. Times in µs.

    `generation_us` is the generation that the write belongs to (for OK and NOT_RETRIEVED). `first_usable_us` is the
    earliest write timestamp that is accepted now, or that will be once a known later generation operates; None if no
    generation is known, or the write waits for a decision. `reason` is one line for people.
    """

    verdict: WriteVerdict
    generation_us: Microseconds | None
    reason: str
    first_usable_us: Microseconds | None


def get_operating_index(gen_times_us: ArrayLike, ts_us: ArrayLike) -> Int64s:
    """Return the index (int64, shape of `ts_us`) of the generation that operates at each time; -1 before the first.

    `gen_times_us` is int64[g] ascending. A generation operates from its timestamp to just before the next one's.
    """
    times, write_times = np.asarray(gen_times_us, dtype=np.int64), np.asarray(ts_us, dtype=np.int64)
    if len(times) > _FEW_GENERATIONS:
        return np.asarray(np.searchsorted(times, write_times, side="right") - 1)
    # For unordered times a binary search mispredicts half of its comparisons; counting takes a sixth of the time.
    index = np.full(write_times.shape, -1, dtype=np.int8)
    for time in times:
        index += write_times >= time
    return index.astype(np.int64)


def decide_write(
    gen_times_us: Sequence[Microseconds],
    write_ts_us: Microseconds,
    now_us: Microseconds,
    *,
    leeway_us: Microseconds = LEEWAY_US,
    policy: AcceptancePolicy = "strict",
    retrieved: Sequence[bool] | None = None,
    undecided: Sequence[UndecidedSwitch] = (),
) -> WriteDecision:
    """Decide whether a coordinator whose clock shows `now_us` accepts a write of `write_ts_us`.

    `gen_times_us` ascend; `retrieved` says whose description is available (all, if None). `strict` is the documents'
    rule: [T, C + leeway) with T the start of the generation that operates at the clock's time C. `recent-past` also
    accepts writes to the previous generation while they are younger than the leeway. From the first lease end of the
    `undecided` switches on, no write is accepted.
    """
    _check_policy(policy)
    moment = _WriteAttempt(gen_times_us, write_ts_us, now_us, leeway_us)
    verdict = moment.strict() if policy == "strict" else moment.recent_past()
    row = bisect_right(gen_times_us, write_ts_us) - 1
    if verdict is WriteVerdict.OK and retrieved is not None and not retrieved[row]:
        verdict = WriteVerdict.NOT_RETRIEVED
    first_undecided = min(undecided, key=lambda switch: switch.lease_end_us, default=None)
    if verdict is WriteVerdict.OK and first_undecided is not None and write_ts_us >= first_undecided.lease_end_us:
        return WriteDecision(WriteVerdict.UNDECIDED, None, _explain_undecided(first_undecided, moment), None)
    first = moment.first_usable_strict() if policy == "strict" else moment.first_usable_recent_past()
    generation = gen_times_us[row] if verdict in (WriteVerdict.OK, WriteVerdict.NOT_RETRIEVED) else None
    return WriteDecision(verdict, generation, _explain_decision(verdict, moment, generation, first, policy), first)


@dataclass(frozen=True)
class _WriteAttempt:
    """A write timestamp and a clock, to compare with the known generations."""

    times: Sequence[Microseconds]
    ts: Microseconds
    now: Microseconds
    leeway: Microseconds

    def used_at(self, time: Microseconds) -> Microseconds | None:
        row = bisect_right(self.times, time) - 1
        return self.times[row] if row >= 0 else None

    def strict(self) -> WriteVerdict:
        if self.ts >= self.now + self.leeway:
            return WriteVerdict.FUTURE
        current = self.used_at(self.now)
        if current is None:
            return WriteVerdict.NO_STREAM
        return WriteVerdict.PAST if self.ts < current else WriteVerdict.OK

    def recent_past(self) -> WriteVerdict:
        if self.ts > self.now + self.leeway:
            return WriteVerdict.FUTURE
        if self.ts <= self.now - self.leeway:
            settled = self.used_at(self.now - self.leeway)
            if settled is None or self.ts < settled or self.used_at(self.now) != settled:
                return WriteVerdict.PAST
        return WriteVerdict.NO_STREAM if self.used_at(self.ts) is None else WriteVerdict.OK

    def first_usable_strict(self) -> Microseconds | None:
        current = self.used_at(self.now)
        return current if current is not None else self.first

    def first_usable_recent_past(self) -> Microseconds | None:
        settled = self.used_at(self.now - self.leeway)
        if settled is None:
            return self.first
        return settled if self.used_at(self.now) == settled else self.now - self.leeway + ONE_US

    @property
    def first(self) -> Microseconds | None:
        return self.times[0] if self.times else None


def _explain_decision(
    verdict: WriteVerdict,
    moment: _WriteAttempt,
    generation: Microseconds | None,
    first: Microseconds | None,
    policy: AcceptancePolicy,
) -> str:
    write, now = f"write timestamp {format_us(moment.ts)}", format_us(moment.now)
    if verdict is WriteVerdict.OK and generation is not None:
        return f"accepted: {write} at {now} belongs to the generation of {format_us(generation)}"
    if verdict is WriteVerdict.NOT_RETRIEVED and generation is not None:
        return (
            f"{write} belongs to the generation of {format_us(generation)}, whose description could not be read yet; "
            "import its description and write again"
        )
    if verdict is WriteVerdict.FUTURE:
        bound = f"{'before' if policy == 'strict' else 'at most'} {format_us(moment.now + moment.leeway)}"
        return (
            f"{write} is from the future: at {now} it has to be {bound} (clock and leeway), because the streams of"
            " later times are not known; let the server choose the timestamp or set the client's clock right"
        )
    if verdict is WriteVerdict.NO_STREAM:
        usable = "no generation is known yet; let a node join" if first is None else f"write from {format_us(first)} on"
        return f"could not find any CDC stream for {write} (clock: {now}): no generation operates then; {usable}"
    usable = "" if first is None else f": at {now} it has to be {format_us(first)} or later"
    return (
        f"{write} is from the past{usable}, because streams of earlier generations may no longer be colocated with "
        f"the base writes; let the server choose the timestamp or set the client's clock right"
    )


def _explain_undecided(switch: UndecidedSwitch, moment: _WriteAttempt) -> str:
    return (
        f"a generation switch is undecided since {format_us(switch.since_us)}; write timestamp {format_us(moment.ts)}"
        f" may belong to generation {switch.generation_id}, writes before {format_us(switch.lease_end_us)} (the first"
        " lease end) do not: write again once it is committed or aborted; look at:"
        f" cdc-platform switch show {switch.generation_id}"
    )


class CdcMetadata:
    """The generations that a node knows: prepared ones by timestamp only, the others with their description.

    Create one per node and policy. Not thread-safe.
    """

    def __init__(self, leeway_us: Microseconds = LEEWAY_US, policy: AcceptancePolicy = "strict") -> None:
        _check_policy(policy)
        self.leeway_us = leeway_us
        self.policy: AcceptancePolicy = policy
        self._times: list[Microseconds] = []
        self._descriptions: dict[Microseconds, TopologyDescription | None] = {}
        self._last_lookup_us: Microseconds | None = None

    @classmethod
    def of(
        cls,
        generations: Mapping[Microseconds, TopologyDescription | None],
        leeway_us: Microseconds = LEEWAY_US,
        policy: AcceptancePolicy = "strict",
    ) -> CdcMetadata:
        """Create metadata of all `generations` (µs -> description, None if only prepared), to explain the past."""
        metadata = cls(leeway_us, policy)
        metadata._times = sorted(generations)
        metadata._descriptions = dict(generations)
        return metadata

    @property
    def times_us(self) -> tuple[Microseconds, ...]:
        """Return the timestamps of the known generations, ascending."""
        return tuple(self._times)

    def generation_used_at(self, ts_us: Microseconds) -> Microseconds | None:
        """Return the timestamp of the known generation that operates at `ts_us`, or None."""
        row = bisect_right(self._times, ts_us) - 1
        return self._times[row] if row >= 0 else None

    def streams_available(self, now_us: Microseconds) -> bool:
        """Return True if a generation operates now, even if only its ID is known."""
        return self.generation_used_at(now_us) is not None

    def known_or_obsolete(self, ts_us: Microseconds, now_us: Microseconds) -> bool:
        """Return True if nothing remains to be learned about generation `ts_us`.

        That is so if its description is known, or if a later one already operated a leeway ago.
        """
        row = bisect_left(self._times, ts_us)
        if row < len(self._times) and self._times[row] == ts_us:
            if self._descriptions[ts_us] is not None:
                return True
            row += 1
        return row < len(self._times) and self._times[row] <= now_us - self.leeway_us

    def prepare(self, ts_us: Microseconds, now_us: Microseconds) -> bool:
        """Record that generation `ts_us` exists, so that its writes are refused until its description is inserted.

        Return True if its description must still be read.
        """
        if self.known_or_obsolete(ts_us, now_us):
            return False
        if ts_us not in self._descriptions:
            self._put(ts_us, None)
            self._warn_if_late(ts_us)
        return True

    def insert(self, ts_us: Microseconds, description: TopologyDescription, now_us: Microseconds) -> bool:
        """Insert the description of generation `ts_us`, and drop generations that no write can belong to any more.

        Return False if the generation was known or is obsolete.
        """
        if self.known_or_obsolete(ts_us, now_us):
            return False
        self.drop_unused(now_us)
        self._put(ts_us, description)
        return True

    def drop_unused(self, now_us: Microseconds) -> None:
        """Drop the generations before the one that operated a leeway ago."""
        keep = max(bisect_right(self._times, now_us - self.leeway_us) - 1, 0)
        for ts_us in self._times[:keep]:
            del self._descriptions[ts_us]
        del self._times[:keep]

    def decide(
        self, write_ts_us: Microseconds, now_us: Microseconds, *, undecided: Sequence[UndecidedSwitch] = ()
    ) -> WriteDecision:
        """Return the verdict on a write; changes nothing, so it can explain the past as well."""
        retrieved = [self._descriptions[ts_us] is not None for ts_us in self._times]
        return decide_write(
            self._times,
            write_ts_us,
            now_us,
            leeway_us=self.leeway_us,
            policy=self.policy,
            retrieved=retrieved,
            undecided=undecided,
        )

    def get_stream(
        self, write_ts_us: Microseconds, token: int, now_us: Microseconds, *, undecided: Sequence[UndecidedSwitch] = ()
    ) -> bytes:
        """Return the ID (16 bytes) of the stream for a write of `token`.

        Raises:
            WriteRefused: the write is not accepted at `now_us`; its verdict and message say why and what to do.
        """
        self.drop_unused(now_us)
        decision = self.decide(write_ts_us, now_us, undecided=undecided)
        description = self._descriptions.get(decision.generation_us) if decision.generation_us is not None else None
        if decision.verdict is not WriteVerdict.OK or description is None:
            raise WriteRefused(decision.verdict, decision.reason)
        self._last_lookup_us = write_ts_us
        return description.streams_of(token)[0].tobytes()

    def streams_for(self, ts_us: ArrayLike, tokens: ArrayLike) -> tuple[UInt8s, Int64s]:
        """Return streams for many past writes: timestamps and tokens (int64[n]) to uint8[n, 16] and int64[n].

        The second is the index in `times_us` of the generation that operates at each timestamp, -1 if there is none;
        the stream is then sixteen zeros. Acceptance is not checked, because the writes have been made.

        Raises:
            InputError: the description of a needed generation is not known.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        rows = get_operating_index(self._times, ts_us)
        streams = np.zeros((len(tokens), STREAM_ID_BYTES), dtype=np.uint8)
        for row in np.unique(rows[rows >= 0]):
            time = self._times[row]
            description = self._descriptions[time]
            if description is None:
                raise InputError(f"the description of the generation of {format_us(time)} is not known; read it first")
            selected = rows == row
            if selected.all():
                return description.streams_of(tokens), rows
            streams[selected] = description.streams_of(tokens[selected])
        return streams, rows

    def _put(self, ts_us: Microseconds, description: TopologyDescription | None) -> None:
        if ts_us not in self._descriptions:
            self._times.insert(bisect_left(self._times, ts_us), ts_us)
        self._descriptions[ts_us] = description

    def _warn_if_late(self, ts_us: Microseconds) -> None:
        last = self._last_lookup_us
        if last is not None and self.generation_used_at(last) == ts_us:
            _log.error(
                "learned of the generation of %s only after a write of %s had taken a stream of the one before;"
                " the stream of that write may be the wrong one",
                format_us(ts_us),
                format_us(last),
            )


def _check_policy(policy: str) -> None:
    if policy not in ("strict", "recent-past"):
        raise InputError(f"unknown acceptance policy {policy!r}; it is strict or recent-past")
