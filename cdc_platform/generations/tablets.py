"""Stream sets of tablet-based tables: one per tablet, and the effect of splits, merges and collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID, uuid5

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.clock import (
    DEFAULT_LEEWAY_MS,
    DEFAULT_RING_DELAY_MS,
    ONE_MS,
    Microseconds,
    Milliseconds,
    format_ms,
    format_us,
    ms_from_seconds,
    us_from_ms,
)
from cdc_platform.errors import InputError
from cdc_platform.generations.acceptance import LEEWAY_US, WriteDecision, WriteVerdict, get_operating_index
from cdc_platform.generations.expiry import find_unread_generations
from cdc_platform.generations.stream_ids import (
    STREAM_ID_BYTES,
    as_comparable_ids,
    decode_stream_ids,
    encode_stream_ids,
    random_bits,
    stream_id_words,
)
from cdc_platform.ring import (
    LAST_TOKEN,
    MINIMUM_TOKEN,
    Bools,
    Int64s,
    RangeLookup,
    UInt8s,
    bias,
    check_tokens,
    unbias,
    uniform_last_tokens,
)

MAX_TABLETS = 1 << 20
"""The maximum number of tablets per table here: ten times what the largest real tables have; a set still fits memory.
"""


@dataclass(frozen=True, eq=False)
class StreamSet:
    """The streams of one table from a time on: `tokens` int64[n] ascending, `ids` uint8[n, 16] in the same order."""

    timestamp_ms: Milliseconds
    tokens: Int64s
    ids: UInt8s

    @classmethod
    def of(cls, timestamp_ms: Milliseconds, ids: UInt8s) -> StreamSet:
        """Create a set from its streams (uint8[n, 16], in any order)."""
        ordered = sort_in_ring_order(ids)
        return cls(timestamp_ms, np.ascontiguousarray(decode_stream_ids(ordered).tokens), ordered)

    @cached_property
    def _lookup(self) -> RangeLookup:
        return RangeLookup(self.tokens)

    def streams_of(self, tokens: ArrayLike) -> UInt8s:
        """Return the stream (uint8[k, 16]) of each token (int64[k]): the first one at or after it, without wrapping.

        Raises:
            InputError: a token is after the last stream, so the set does not cover the ring.
        """
        tokens = np.atleast_1d(np.asarray(tokens, dtype=np.int64))
        last = int(self.tokens[-1]) if len(self.tokens) else MINIMUM_TOKEN
        behind = tokens > last
        if behind.any():
            raise InputError(
                f"no stream for token {tokens[behind][0]}: the set of {format_ms(self.timestamp_ms)} ends at {last} "
                f"and does not cover the ring; its last tablet has to end at {LAST_TOKEN}"
            )
        return self.ids[self._lookup.row_of(tokens)]


@dataclass(frozen=True, eq=False)
class StreamSetDifference:
    """The difference from the previous set: `closed` and `opened` streams, uint8[n, 16] each, in ring order."""

    closed: UInt8s
    opened: UInt8s


def check_tablet_ends(values: Iterable[object], owner: str) -> Int64s:
    """Return the checked last tokens (int64[n]) of a table's tablets; messages name the `owner`.

    Raises:
        InputError: there are none or too many, one is no token, they do not ascend, or the ring is not covered.
    """
    ends = check_tokens(values, owner)
    if not 1 <= len(ends) <= MAX_TABLETS:
        raise InputError(f"{owner}: {len(ends)} tablets; a table has 1 to {MAX_TABLETS}")
    falls = np.flatnonzero(ends[1:] <= ends[:-1])
    if falls.size:
        at = int(falls[0])
        raise InputError(f"{owner}: token {ends[at + 1]} after {ends[at]}; tablets' last tokens ascend, each once")
    if ends[-1] != LAST_TOKEN:
        raise InputError(
            f"{owner}: the last tablet ends at {ends[-1]}; it has to end at {LAST_TOKEN} to cover the ring"
        )
    return ends


def uniform_tablet_ends(count: int) -> Int64s:
    """Return the last tokens (int64[count]) of tablets of one size.

    Raises:
        InputError: `count` is below 1 or above MAX_TABLETS.
    """
    _check_tablet_count(count)
    return uniform_last_tokens(count)


def split_tablet_ends(ends: Int64s, count: int) -> Int64s:
    """Return the last tokens of `count` tablets after a split of those that end at `ends` (int64[n]).

    If count is n times a power of two, each tablet is halved repeatedly; otherwise `count` must be a power of two, and
    the tablets are of one size.

    Raises:
        InputError: fewer tablets than there are, a count that no split leads to, or a tablet of a single token.
    """
    _check_tablet_count(count)
    if count < len(ends):
        raise InputError(f"{len(ends)} tablets cannot be split to {count}; a split makes more of them, a merge fewer")
    if _is_doubling(len(ends), count):
        while len(ends) < count:
            ends = _halve_tablets(ends)
        return ends
    return _uniform_power_of_two_ends("split", len(ends), count)


def merge_tablet_ends(ends: Int64s, count: int) -> Int64s:
    """Return the last tokens of `count` tablets after a merge of those that end at `ends` (int64[n]).

    If n is count times a power of two, neighbours are joined; otherwise `count` must be a power of two, and the tablets
    are of one size.

    Raises:
        InputError: more tablets than there are, or a count that no merge leads to.
    """
    _check_tablet_count(count)
    if count > len(ends):
        raise InputError(f"{len(ends)} tablets cannot be merged to {count}; a merge makes fewer of them, a split more")
    if _is_doubling(count, len(ends)):
        step = len(ends) // count
        return ends[step - 1 :: step].copy()
    return _uniform_power_of_two_ends("merge", len(ends), count)


def generate_tablet_streams(table_id: UUID, timestamp_ms: Milliseconds, ends: Int64s) -> UInt8s:
    """Return the streams (uint8[n, 16]) of the tablets that end at `ends`: token = last token, index 0, version 1.

    The random bits are a hash of table, time and token: generating the set again gives the same bytes, and another time
    gives other bits for every tablet.
    """
    return encode_stream_ids(ends, 0, random_bits(uuid5(table_id, str(timestamp_ms)), ends, 0))


def sort_in_ring_order(ids: UInt8s) -> UInt8s:
    """Sort streams (uint8[n, 16]) by signed token, then by their bytes."""
    high, low = stream_id_words(ids).T
    return ids[np.lexsort((low, unbias(high.view(np.int64))))]


def compute_difference(previous: UInt8s, following: UInt8s) -> StreamSetDifference:
    """Return the streams to close and to open to get from one set to the next (uint8[n, 16] each).

    They are ordered by token, then by ID. A tablet whose ends stay but whose stream changes is both closed and opened.
    """
    return StreamSetDifference(
        closed=sort_in_ring_order(previous[~isin_streams(previous, following)]),
        opened=sort_in_ring_order(following[~isin_streams(following, previous)]),
    )


def apply_difference(previous: UInt8s, change: StreamSetDifference) -> UInt8s:
    """Return the set (uint8[n, 16], in ring order) that a full or partial difference makes of the previous one.

    Raises:
        InputError: a closed stream is not in the previous set, or the new set has two streams of one token.
    """
    unknown = ~isin_streams(change.closed, previous)
    if unknown.any():
        raise InputError(f"stream 0x{change.closed[unknown][0].tobytes().hex()} is closed but was not open before")
    opened = sort_in_ring_order(change.opened)
    # Splits and merges replace every stream; the opened streams are then the whole set.
    if len(change.closed) == len(previous):
        following = opened
    else:
        remaining = sort_in_ring_order(previous[~isin_streams(previous, change.closed)])
        following = np.insert(
            remaining, np.searchsorted(get_stream_tokens(remaining), get_stream_tokens(opened)), opened, axis=0
        )
    tokens = get_stream_tokens(following)
    repeated = np.flatnonzero(tokens[1:] == tokens[:-1])
    if repeated.size:
        raise InputError(f"two streams have token {tokens[repeated[0]]}; a tablet has one stream: close the other")
    return following


def apply_difference_unchecked(previous: UInt8s | None, change: StreamSetDifference) -> UInt8s:
    """Apply a difference to the previous set without checks; the first set (None before) has its opened streams.

    Streams that a collection may have left as closed in the first set are ignored.
    """
    if previous is None:
        return sort_in_ring_order(change.opened)
    remaining = previous[~isin_streams(previous, np.concatenate([change.closed, change.opened]))]
    return sort_in_ring_order(np.concatenate([remaining, change.opened]))


def isin_streams(ids: UInt8s, others: UInt8s) -> Bools:
    """Return which of the streams (uint8[n, 16]) are among the others (bool[n])."""
    return np.isin(as_comparable_ids(ids), as_comparable_ids(others))


def first_set_timestamp(now_ms: Milliseconds, leeway_ms: Milliseconds = DEFAULT_LEEWAY_MS) -> Milliseconds:
    """Return the time (ms) of a table's first set: a leeway ago, so that it accepts writes at once."""
    return now_ms - leeway_ms


def next_set_timestamp(
    now_ms: Milliseconds,
    last_ms: Milliseconds,
    *,
    ring_delay_ms: Milliseconds = DEFAULT_RING_DELAY_MS,
    leeway_ms: Milliseconds = DEFAULT_LEEWAY_MS,
) -> Milliseconds:
    """Return the time (ms) of the set after the one of `last_ms`: late enough for every node to hear of it before."""
    return max(now_ms + ring_delay_ms * 2 + leeway_ms, last_ms + ONE_MS)


def first_set_index_after_gc(times_ms: Sequence[Milliseconds], now_ms: Milliseconds, ttl_seconds: int) -> int:
    """Return the index of the oldest set that must be retained, of sets that start at `times_ms` (ascending).

    A set can be removed when the next one has operated for the TTL of the log, because no row of it is left. TTL 0:
    rows stay for ever.
    """
    if ttl_seconds == 0 or not times_ms:
        return 0
    return max(int(get_operating_index(times_ms, now_ms - ms_from_seconds(ttl_seconds))), 0)


def oldest_unread_set_index(times_ms: Sequence[Milliseconds], position_us: Microseconds) -> int:
    """Return the index of the oldest set that a reader has not finished, of sets that start at `times_ms` (ascending).

    The reader is at `position_us` (everything up to it is read) and has finished a set when it has reached the next
    one, by the same rule as for generations.
    """
    return (
        int(np.argmax(find_unread_generations(us_from_ms(np.asarray(times_ms, dtype=np.int64)), position_us)))
        if times_ms
        else 0
    )


def decide_tablet_write(
    set_times_ms: Sequence[Milliseconds],
    write_ts_us: Microseconds,
    now_us: Microseconds,
    *,
    leeway_us: Microseconds = LEEWAY_US,
) -> WriteDecision:
    """Decide whether a write of `write_ts_us` (µs) gets a stream of the sets that start at `set_times_ms` (ascending).

    A timestamp beyond clock and leeway is refused; a past one never is, however old, if a set operated then.
    """
    times_us = [us_from_ms(time) for time in set_times_ms]
    row = int(get_operating_index(times_us, write_ts_us))
    first = times_us[0] if times_us else None
    write, now = f"write timestamp {format_us(write_ts_us)}", format_us(now_us)
    if write_ts_us > now_us + leeway_us:
        reason = (
            f"{write} is from the future: at {now} it has to be at most {format_us(now_us + leeway_us)} (clock and"
            " leeway), because the tablets of later times are not known; let the server choose the timestamp"
        )
        return WriteDecision(WriteVerdict.FUTURE, None, reason, first)
    if row < 0:
        usable = "the table has no stream set" if first is None else f"write from {format_us(first)} on"
        return WriteDecision(
            WriteVerdict.NO_STREAM, None, f"could not find any CDC stream for {write} (clock: {now}); {usable}", first
        )
    reason = f"accepted: {write} at {now} belongs to the stream set of {format_us(times_us[row])}"
    return WriteDecision(WriteVerdict.OK, times_us[row], reason, first)


def find_tablet_streams(sets: Sequence[StreamSet], ts_us: ArrayLike, tokens: ArrayLike) -> tuple[UInt8s, Int64s]:
    """Return streams for many writes: timestamps (µs) and tokens (int64[n]) to uint8[n, 16] and int64[n].

    The second is the index of the set (`sets` are oldest first) that operates at each timestamp, -1 if there is none;
    the stream is then sixteen zeros. Acceptance is not checked, because the writes have been made.

    Raises:
        InputError: a needed set does not cover the ring.
    """
    tokens = np.asarray(tokens, dtype=np.int64)
    rows = get_operating_index([us_from_ms(stream_set.timestamp_ms) for stream_set in sets], ts_us)
    streams = np.zeros((len(tokens), STREAM_ID_BYTES), dtype=np.uint8)
    for row in np.unique(rows[rows >= 0]):
        selected = rows == row
        if selected.all():
            return sets[row].streams_of(tokens), rows
        streams[selected] = sets[row].streams_of(tokens[selected])
    return streams, rows


def _check_tablet_count(count: int) -> None:
    if not 1 <= count <= MAX_TABLETS:
        raise InputError(f"{count} tablets; a table has 1 to {MAX_TABLETS}")


def _is_doubling(few: int, many: int) -> bool:
    """Return True if `many` is `few` times a power of two."""
    times, rest = divmod(many, few)
    return rest == 0 and times & (times - 1) == 0


def _uniform_power_of_two_ends(what: str, ends: int, count: int) -> Int64s:
    if count & (count - 1):
        raise InputError(
            f"{ends} tablets and a {what} to {count}: it has to be a power of two, or {ends} "
            f"{'times' if what == 'split' else 'divided by'} one; for other tablets give their last tokens"
        )
    return uniform_tablet_ends(count)


def _halve_tablets(ends: Int64s) -> Int64s:
    """Return the ends with one added in the middle of each tablet; an odd tablet's second half is one token larger."""
    positions = unbias(ends)
    # The first tablet starts after the minimum, which is position 0 and no key's token.
    sizes = np.diff(positions, prepend=np.uint64(0))
    half = sizes >> np.uint64(1)
    if not half.all():
        raise InputError(f"the tablet that ends at {ends[half == 0][0]} holds a single token and cannot be split")
    return np.column_stack([bias(positions - sizes + half), ends]).ravel()


def get_stream_tokens(ids: UInt8s) -> Int64s:
    """Return the tokens (int64[n]) of streams (uint8[n, 16])."""
    return decode_stream_ids(ids).tokens
