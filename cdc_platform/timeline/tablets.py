"""Stream source of a tablet-based table: the stream set that operates at the write's timestamp. It needs no JVM.

The rules are those of `generations.tablets`. Switches of generations do not affect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from cdc_platform.clock import Microseconds, Milliseconds, format_ms, format_us, ms_from_us, us_from_ms
from cdc_platform.delta import Lake, stream_ids_to_arrow, tokens_from_keys
from cdc_platform.errors import InputError, StateError
from cdc_platform.generations import (
    AcceptancePolicy,
    StreamSet,
    WriteDecision,
    WriteVerdict,
    get_operating_index,
    tablets,
)
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.ring import Bools
from cdc_platform.settings import Settings
from cdc_platform.timeline.streams import (
    KnownStreams,
    StreamFinder,
    StreamPeriod,
    UnreadableStreams,
    assert_accepted,
    chain_periods,
    stream_set_period,
)


@dataclass(frozen=True)
class TabletExplanation:
    """Where a write to a tablet-based table goes. Times in µs; the set and its tablet are those of the write's time.

    `tablet` is the tablet's number from 0; `range_start` is the last token before it (None for the first tablet).
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
    decision: WriteDecision

    @property
    def accepted(self) -> bool:
        """Return True if a coordinator whose clock shows `now_us` accepts the write."""
        return self.decision.verdict is WriteVerdict.OK

    def facts(self) -> dict[str, Any]:
        """Return the explanation as plain values by name, in display order."""
        return {
            "verdict": str(self.decision.verdict),
            "accepted": self.accepted,
            "reason": self.decision.reason,
            "table": self.table,
            "token": self.token,
            "at": format_us(self.at_us),
            "now": format_us(self.now_us),
            "timestamp": None if self.set_ms is None else format_ms(self.set_ms),
            "tablet": self.tablet,
            "range_start": self.range_start,
            "range_end": self.range_end,
            "stream_id": self.stream_id,
        }


@dataclass(frozen=True)
class TabletStreams:
    """The source of one table. `assigned_sets` are its sets if they are not in the lake."""

    lake: Lake
    settings: Settings
    keyspace: str
    table: str
    assigned_sets: Sequence[StreamSet] | None = None

    @property
    def sets(self) -> Sequence[StreamSet]:
        """Return its stream sets, oldest first.

        Raises:
            StateError: a timestamp has rows and no current streams, or rows are damaged.
        """
        return self._known[0]

    @cached_property
    def _known(self) -> tuple[Sequence[StreamSet], Sequence[Milliseconds]]:
        """Return the sets, and the published timestamps (ms) without a single row of streams."""
        if self.assigned_sets is not None:
            return self.assigned_sets, ()
        return metastore_tablets.read_stream_sets_and_empty_timestamps(self.lake, self.keyspace, self.table)

    @cached_property
    def _times(self) -> _SetTimes:
        sets, empty = self._known
        return _SetTimes(sorted([*(stream_set.timestamp_ms for stream_set in sets), *empty]), frozenset(empty))

    @property
    def in_generations(self) -> bool:
        """Return False."""
        return False

    def decide(self, write_ts_us: Microseconds, now_us: Microseconds) -> WriteDecision:
        """See `StreamSource`."""
        leeway_us = us_from_ms(self.settings.generation_leeway_ms)
        decision = tablets.decide_tablet_write(self._times.all_ms, write_ts_us, now_us, leeway_us=leeway_us)
        if decision.generation_us is None or ms_from_us(decision.generation_us) not in self._times.empty_ms:
            return decision
        reason = self._times.refusal(f"{self.keyspace}.{self.table}", write_ts_us, decision.generation_us)
        return replace(decision, verdict=WriteVerdict.NOT_RETRIEVED, reason=reason)

    def stream_of(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> bytes:
        """See `StreamSource`."""
        assert_accepted(self.decide(write_ts_us, now_us))
        return tablets.find_tablet_streams(self.sets, [write_ts_us], [token])[0][0].tobytes()

    def explain(
        self, token: int, at_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy | None = None
    ) -> TabletExplanation:
        """See `StreamSource`.

        Raises:
            InputError: a policy is given, although tablets have none; or the set does not cover the ring.
        """
        if policy is not None:
            raise InputError("policies apply to vnode-based tables; tablets have a single rule")
        decision = self.decide(at_us, now_us)
        streams, rows = tablets.find_tablet_streams(self.sets, [at_us], [token])
        name = f"{self.keyspace}.{self.table}"
        if rows[0] < 0 or self._times.in_empty([at_us]).any():
            return TabletExplanation(name, token, at_us, now_us, None, None, None, None, None, decision)
        used = self.sets[int(rows[0])]
        number = int(np.searchsorted(used.tokens, token))
        start = int(used.tokens[number - 1]) if number else None
        end = int(used.tokens[number])
        return TabletExplanation(
            name, token, at_us, now_us, used.timestamp_ms, number, start, end, streams[0].tobytes(), decision
        )

    def finder(self) -> StreamFinder:
        """See `StreamSource`. Null before the first set. A write at a time without streams raises StateError."""
        return partial(_find_streams, f"{self.keyspace}.{self.table}", self.sets, self._times)

    def periods(self) -> list[StreamPeriod]:
        """See `StreamSource`. The period from the log's creation to the first existing set counts as removed."""
        try:
            periods = self._periods()
        except StateError as error:
            name = (self.keyspace, self.table)
            return chain_periods(
                stream_set_period(
                    us_from_ms(time),
                    UnreadableStreams(str(error)),
                    empty=not metastore_tablets.has_stream_rows(self.lake, *name, time),
                )
                for time in metastore_tablets.read_set_timestamps(self.lake, *name)
            )
        created = [
            us_from_ms(layout.timestamp_ms)
            for layout in metastore_tablets.read_tablet_layouts(self.lake, self.keyspace, self.table)
            if layout.kind == metastore_tablets.LAYOUT_CREATED and layout.timestamp_ms is not None
        ]
        if created and periods and created[-1] < periods[0].begin_us:
            gone = UnreadableStreams(f"the stream set of {format_us(created[-1])} was removed")
            periods.insert(0, stream_set_period(created[-1], gone, removed=True))
        return chain_periods(periods)

    def _periods(self) -> list[StreamPeriod]:
        sets, empty = self._known
        none = UnreadableStreams(f"{self.keyspace}.{self.table} has a stream set without a row of streams")
        periods = [stream_set_period(us_from_ms(item.timestamp_ms), _SetStreamReader(item)) for item in sets]
        periods += [stream_set_period(us_from_ms(time), none, empty=True) for time in empty]
        return sorted(periods, key=lambda each: each.begin_us)

    def is_complete(self, begin_us: Microseconds) -> bool:
        """See `StreamSource`. Checks that its streams reach the end of the ring and match the recorded difference."""
        return self.assigned_sets is not None or metastore_tablets.is_stream_set_complete(
            self.lake, self.keyspace, self.table, ms_from_us(begin_us)
        )


@dataclass(frozen=True)
class _SetTimes:
    """The timestamps (ms) of a table's stream sets, ascending, and those without a single row of streams."""

    all_ms: Sequence[Milliseconds]
    empty_ms: frozenset[Milliseconds]

    def in_empty(self, at_us: ArrayLike) -> Bools:
        """Return which times (µs) belong to a set without streams."""
        rows = get_operating_index([us_from_ms(time) for time in self.all_ms], at_us)
        empty = np.array([time in self.empty_ms for time in self.all_ms] + [False])
        return empty[rows]

    def refusal(self, table: str, write_ts_us: Microseconds, set_us: Microseconds) -> str:
        """Return why a write has no stream."""
        return (
            f"write timestamp {format_us(write_ts_us)} belongs to the stream set of {format_us(set_us)} of {table},"
            " which is listed without a row of streams; import its rows and write again"
        )


@dataclass(frozen=True)
class _SetStreamReader:
    """Reader of the streams of a set that it carries."""

    of: StreamSet

    def read(self) -> KnownStreams:
        """Return the streams, one per tablet."""
        ordered = np.zeros(len(self.of.tokens), dtype=bool)
        offsets = np.arange(len(self.of.tokens) + 1)
        return KnownStreams(self.of.tokens, offsets, self.of.ids, ordered, self.of.streams_of)


def _find_streams(
    table: str, sets: Sequence[StreamSet], times: _SetTimes, keys: pa.Array, timestamps: pa.Array
) -> pa.Array:
    """Return the stream IDs of the newest set at each time; null before the first."""
    when = timestamps.to_numpy(zero_copy_only=False)
    if times.empty_ms and (empty := times.in_empty(when)).any():
        first = Microseconds(int(when[empty][0]))
        set_us = max(us_from_ms(time) for time in times.all_ms if us_from_ms(time) <= first)
        raise StateError(times.refusal(table, first, set_us))
    ids, chosen = tablets.find_tablet_streams(sets, when, tokens_from_keys(keys))
    return stream_ids_to_arrow(ids, chosen >= 0)
