"""The streams of a tablet-based table: those of its stream set that operates at the write's timestamp. No JVM.

The rules are those of `generations.tablets`; a switch of generations is nothing to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, format_ms, format_us, us_of
from cdc_platform.errors import InputError, StateError
from cdc_platform.generations import Decision, Policy, Verdict, tablets
from cdc_platform.generations.tablets import StreamSet
from cdc_platform.lake.arrow import stream_ids, tokens_of_column
from cdc_platform.lake.lake import Lake
from cdc_platform.records import tablet_ledger, tablet_rows, tablet_sets
from cdc_platform.settings import Settings
from cdc_platform.timeline.periods import KnownStreams, Period, Unreadable, one_after_another, set_period
from cdc_platform.timeline.stream_source import StreamsOf, assert_accepted


@dataclass(frozen=True)
class TabletExplanation:
    """Where a write to a tablet-based table goes. Times in µs; the set and its tablet are those of the write's time.

    `tablet` is the tablet's number from 0, `range_start` the last token before it (none before the first one).
    """

    table: str
    token: int
    at_us: Microseconds
    now_us: Microseconds
    set_ms: Milliseconds | None
    tablet: int | None
    range_start: int | None
    range_end: int | None
    stream_id: bytes | None
    decision: Decision

    @property
    def accepted(self) -> bool:
        """Whether a coordinator whose clock shows `now_us` takes the write."""
        return self.decision.verdict is Verdict.OK

    def facts(self) -> dict[str, Any]:
        """The answer in plain values by name, in the order in which people read it."""
        return {
            "token": self.token,
            "table": self.table,
            "timestamp": None if self.set_ms is None else format_ms(self.set_ms),
            "tablet": self.tablet,
            "range_start": self.range_start,
            "range_end": self.range_end,
            "stream_id": self.stream_id,
            "accepted": self.accepted,
            "reason": self.decision.reason,
            "verdict": str(self.decision.verdict),
            "at": format_us(self.at_us),
            "now": format_us(self.now_us),
        }


@dataclass(frozen=True)
class TabletStreams:
    """The source of one table. `given` are its sets where the lake does not have them."""

    lake: Lake
    settings: Settings
    keyspace: str
    table: str
    given: Sequence[StreamSet] | None = None

    @cached_property
    def sets(self) -> Sequence[StreamSet]:
        """Its stream sets, oldest first.

        Raises:
            StateError: a timestamp has no streams, or rows are damaged.
        """
        return self.given or tablet_sets.stream_sets(self.lake, self.keyspace, self.table)

    @property
    def in_generations(self) -> bool:
        """No."""
        return False

    def decide(self, write_ts_us: Microseconds, now_us: Microseconds) -> Decision:
        """See `StreamSource`."""
        times_ms = [each.timestamp_ms for each in self.sets]
        return tablets.decide_write(times_ms, write_ts_us, now_us, leeway_us=us_of(self.settings.generation_leeway_ms))

    def stream_of(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> bytes:
        """See `StreamSource`."""
        assert_accepted(self.decide(write_ts_us, now_us))
        return tablets.streams_for(self.sets, [write_ts_us], [token])[0][0].tobytes()

    def explain(
        self, token: int, at_us: Microseconds, now_us: Microseconds, policy: Policy | None = None
    ) -> TabletExplanation:
        """See `StreamSource`.

        Raises:
            InputError: a policy is given, of which tablets know none; or the set does not cover the ring.
        """
        if policy is not None:
            raise InputError("a policy is for vnode-based tables; tablets know one rule")
        decision = self.decide(at_us, now_us)
        streams, rows = tablets.streams_for(self.sets, [at_us], [token])
        name = f"{self.keyspace}.{self.table}"
        if rows[0] < 0:
            return TabletExplanation(name, token, at_us, now_us, None, None, None, None, None, decision)
        used = self.sets[int(rows[0])]
        number = int(np.searchsorted(used.tokens, token))
        start = int(used.tokens[number - 1]) if number else None
        end = int(used.tokens[number])
        return TabletExplanation(
            name, token, at_us, now_us, used.timestamp_ms, number, start, end, streams[0].tobytes(), decision
        )

    def finder(self) -> StreamsOf:
        """See `StreamSource`. Null before the first set."""
        return partial(_streams, self.sets)

    def periods(self) -> list[Period]:
        """See `StreamSource`: the sets that there are; what was before them, back to the creation, was removed."""
        try:
            found = [set_period(us_of(each.timestamp_ms), _SetStreams(each)) for each in self.sets]
        except StateError as error:
            times = tablet_rows.listed_times(self.lake, self.keyspace, self.table)
            return one_after_another(set_period(us_of(time), Unreadable(str(error))) for time in times)
        created = [
            us_of(each.timestamp_ms)
            for each in tablet_ledger.layouts(self.lake, self.keyspace, self.table)
            if each.kind == tablet_ledger.CREATED and each.timestamp_ms is not None
        ]
        if created and created[-1] < found[0].begin_us:
            gone = Unreadable(f"the stream set of {format_us(created[-1])} was removed")
            found.insert(0, set_period(created[-1], gone, removed=True))
        return one_after_another(found)

    def is_complete(self, begin_us: Microseconds) -> bool:
        """See `StreamSource`: a set comes with its streams."""
        return True


@dataclass(frozen=True)
class _SetStreams:
    """The streams of a set, which it has with it."""

    of: StreamSet

    def read(self) -> KnownStreams:
        """The streams: one a tablet."""
        ordered = np.zeros(len(self.of.tokens), dtype=bool)
        offsets = np.arange(len(self.of.tokens) + 1)
        return KnownStreams(self.of.tokens, offsets, self.of.ids, ordered, self.of.streams_of)


def _streams(sets: Sequence[StreamSet], keys: pa.Array, timestamps: pa.Array) -> pa.Array:
    """The stream IDs of the newest set at each time; null before the first."""
    ids, chosen = tablets.streams_for(sets, timestamps.to_numpy(zero_copy_only=False), tokens_of_column(keys))
    return stream_ids(ids, chosen >= 0)
