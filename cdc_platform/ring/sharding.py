"""The shard that owns a token, and the next token that a shard owns.

All functions broadcast: a single value is an array without dimensions.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.ring.tokens import LAST_TOKEN, MINIMUM_TOKEN, Bools, Int64s, UInt64s, bias, unbias

MAX_SHARD_COUNT = 4096
"""The largest accepted shard count: far above any machine, and small enough for every product below to be exact."""
MAX_IGNORE_MSB = 31

_ALL_ONES = np.uint64(2**64 - 1)
_LOW_HALF = np.uint64(2**32 - 1)


def shard_of(tokens: ArrayLike, shard_count: ArrayLike, ignore_msb: ArrayLike) -> Int64s:
    """Return the shard (int64, broadcast shape) that owns each token on a node of `shard_count` shards.

    The position's `ignore_msb` top bits are dropped, and the rest is scaled: `(position << ignore_msb) * n >> 64`.

    Raises:
        InputError: shard_count is outside 1..4096 or ignore_msb outside 0..31.
    """
    n, msb = _check_sharding(shard_count, ignore_msb)
    return _shard_at(unbias(tokens), n, msb).view(np.int64)


def shard_starts(shard_count: int, ignore_msb: int) -> UInt64s:
    """Return each shard's first position (uint64[shard_count]) within a window of `2^(64 - ignore_msb)` positions."""
    n, msb = _check_sharding(shard_count, ignore_msb)
    return _start_in_window(np.arange(shard_count, dtype=np.uint64), n, msb)


@np.errstate(over="ignore")
def token_for_next_shard(
    tokens: ArrayLike, shard: ArrayLike, shard_count: ArrayLike, ignore_msb: ArrayLike, spans: int = 1
) -> tuple[Int64s, Bools]:
    """Find the `spans`-th boundary after each token at which `shard` begins, without wrapping around the ring.

    Return the tokens (int64), and which have no boundary before the ring ends (bool: "after all keys"; the token there
    is LAST, to be ignored). A boundary is always greater than its token. MINIMUM counts as position 0.

    Raises:
        InputError: shard, shard_count, ignore_msb or spans is out of bounds.
    """
    if spans < 1:
        raise InputError(f"spans {spans}: at least 1 boundary has to be stepped over")
    n, msb = _check_sharding(shard_count, ignore_msb)
    target = _check_shards(shard, n)
    # A node with one shard has one boundary, whatever bits it ignores.
    msb = np.where(n == 1, np.uint64(0), msb)
    positions = unbias(tokens)
    to_window = np.uint64(63) - msb  # in two steps, since a shift by 64 is undefined
    window = (positions >> np.uint64(1)) >> to_window
    window = window + np.uint64(spans) - (target > _shard_at(positions, n, msb)).astype(np.uint64)
    beyond = window >= np.uint64(1) << msb
    boundary = ((window << to_window) << np.uint64(1)) | _start_in_window(target, n, msb)
    return np.where(beyond, np.int64(LAST_TOKEN), bias(boundary)), np.asarray(beyond)


@np.errstate(over="ignore")
def first_token_for_shard(
    starts: ArrayLike, ends: ArrayLike, shards: ArrayLike, shard_count: ArrayLike, ignore_msb: ArrayLike
) -> Int64s:
    """Return the first token (int64, broadcast shape) in `(start, end]` that the shard owns, else `end`.

    `start >= end` wraps around the ring; `start == end` is the whole ring. The shard's stream has this token (design
    document 001: streams have tokens in their range, on the shard that they represent).

    Raises:
        InputError: shard, shard_count or ignore_msb is out of bounds, or an end is no key's token.
    """
    n, msb = _check_sharding(shard_count, ignore_msb)
    target = _check_shards(shards, n)
    ends = np.asarray(ends, dtype=np.int64)
    if np.any(ends == MINIMUM_TOKEN):
        raise InputError(f"range end {MINIMUM_TOKEN} is no key's token; tokens begin at {MINIMUM_TOKEN + 1}")
    first = unbias(starts) + np.uint64(1)
    length = unbias(ends) - first
    # Shards repeat every window, and the ring is a whole number of windows: the distance to the next start of a shard
    # is a difference modulo the window, also across the ring's end.
    window_mask = _ALL_ONES >> msb
    distance = (_start_in_window(target, n, msb) - (first & window_mask)) & window_mask
    distance = np.where(target == _shard_at(first, n, msb), np.uint64(0), distance)
    # Position 0 is no key's token: after the ring wraps, shard 0 begins at position 1.
    return bias(np.maximum(first + np.minimum(distance, length), np.uint64(1)))


def _shard_at(positions: UInt64s, n: UInt64s, msb: UInt64s) -> UInt64s:
    scaled = positions << msb
    # The top 64 bits of a 128-bit product, in halves: n is below 2^32, so nothing overflows.
    return ((scaled >> np.uint64(32)) * n + ((scaled & _LOW_HALF) * n >> np.uint64(32))) >> np.uint64(32)


@np.errstate(over="ignore")
def _start_in_window(shards: UInt64s, n: UInt64s, msb: UInt64s) -> UInt64s:
    """Return the smallest position of a window that belongs to each shard: `ceil(ceil(s * 2^64 / n) / 2^msb)`."""
    size, rest = _ALL_ONES // n, _ALL_ONES % n + np.uint64(1)
    whole = rest == n
    size, rest = size + whole.astype(np.uint64), np.where(whole, np.uint64(0), rest)
    start = shards * size + (shards * rest + n - np.uint64(1)) // n
    return (start + (np.uint64(1) << msb) - np.uint64(1)) >> msb


def _check_sharding(shard_count: ArrayLike, ignore_msb: ArrayLike) -> tuple[UInt64s, UInt64s]:
    if isinstance(shard_count, int) and isinstance(ignore_msb, int):
        return _check_one_sharding(shard_count, ignore_msb)
    return _check_shardings(shard_count, ignore_msb)


@lru_cache(maxsize=256)
def _check_one_sharding(shard_count: int, ignore_msb: int) -> tuple[UInt64s, UInt64s]:
    """Check a single sharding once: for the lookup of one token the check would take a third of the time."""
    n, msb = _check_shardings(shard_count, ignore_msb)
    n.flags.writeable = msb.flags.writeable = False
    return n, msb


def _check_shardings(shard_count: ArrayLike, ignore_msb: ArrayLike) -> tuple[UInt64s, UInt64s]:
    return (
        _check_within("shard_count", shard_count, 1, MAX_SHARD_COUNT),
        _check_within("ignore_msb", ignore_msb, 0, MAX_IGNORE_MSB),
    )


def _check_within(name: str, values: ArrayLike, low: int, high: int) -> UInt64s:
    array = np.asarray(values, dtype=np.int64)
    wrong = (array < low) | (array > high)
    if np.any(wrong):
        raise InputError(f"{name} {array[wrong].flat[0]} is out of range; it has to be {low} to {high}")
    return array.astype(np.uint64)


def _check_shards(shards: ArrayLike, n: UInt64s) -> UInt64s:
    array = np.asarray(shards, dtype=np.int64)
    if np.any(array < 0) or np.any(array >= n.view(np.int64)):
        raise InputError(f"shard out of range: {array.min()}..{array.max()}, shards are 0 to shard_count - 1")
    return array.astype(np.uint64)
