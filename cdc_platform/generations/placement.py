"""Where the streams of a range must lie: on the shard whose position they have, each once (design document 001).

All functions broadcast: a single value is an array without dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.ring import (
    LAST_TOKEN,
    MAX_IGNORE_MSB,
    MAX_SHARD_COUNT,
    MINIMUM_TOKEN,
    Bools,
    Int64s,
    first_token_for_shard,
    shard_of,
)

SOME_SHARD, UNKNOWN_SHARD, NO_SHARD = -1, -2, -3
"""Shards of streams whose order in their range is unknown.

The token is the first one of some shard; the sharding is unknown too, so that the stream cannot be judged; the token is
the first one of no shard.
"""


def owns_token(
    starts: ArrayLike, ends: ArrayLike, shards: ArrayLike, shard_count: ArrayLike, ignore_msb: ArrayLike
) -> Bools:
    """Return which shards own a token of the range `(start, end]` (int64, broadcast shape).

    A sharding that no node can have owns nothing: a shard outside 0..shard_count - 1, a shard_count outside 1..4096, an
    ignore_msb outside 0..31, or a range end that is no key's token.
    """
    start, end, shard, count, msb = np.broadcast_arrays(
        *map(np.asarray, (starts, ends, shards, shard_count, ignore_msb))
    )
    legal = _is_legal(end, shard, count, msb)
    if not legal.all():
        end, shard, count, msb = _replace_illegal(legal, end, shard, count, msb)
    first = first_token_for_shard(start, end, shard, count, msb)
    return legal & ((first != end) | (shard_of(end, count, msb) == shard))


def is_in_place(
    tokens: ArrayLike,
    starts: ArrayLike,
    ends: ArrayLike,
    shards: ArrayLike,
    shard_count: ArrayLike,
    ignore_msb: ArrayLike,
) -> Bools:
    """Return which tokens (int64, broadcast shape) are in the place of the shard of the range `(start, end]`.

    If the shard owns a token of the range, the token must be on that shard; otherwise it must be the range end. A
    sharding that no node can have (see `owns_token`) gives no token a place.
    """
    token, start, end, shard, count, msb = np.broadcast_arrays(
        *map(np.asarray, (tokens, starts, ends, shards, shard_count, ignore_msb))
    )
    legal = _is_legal(end, shard, count, msb)
    if not legal.all():
        end, shard, count, msb = _replace_illegal(legal, end, shard, count, msb)
    on_shard = shard_of(token, count, msb) == shard
    # Only the range end is left to a shard whose first token is the range end, so the end is its place either way.
    owns_more = first_token_for_shard(start, end, shard, count, msb) != end
    in_place = np.where(owns_more, on_shard, token == end)
    elsewhere = ~owns_more & on_shard & (token != end)
    if elsewhere.any():
        in_place |= elsewhere & (shard_of(end, count, msb) == shard)
    return legal & in_place


def find_repeated_streams(generations: Int64s, range_ends: Int64s, tokens: Int64s, randoms: Int64s) -> Bools:
    """Return which streams (bool[n]) equal an earlier stream of the same range; all columns are int64[n].

    Two streams of one range are equal if their tokens and their random bits are. Only streams with equal random bits
    are compared.
    """
    repeated = np.zeros(len(randoms), dtype=bool)
    in_order = np.sort(randoms)
    shared = in_order[1:][in_order[1:] == in_order[:-1]]
    if not len(shared):
        return repeated
    candidates = np.flatnonzero(np.isin(randoms, shared))
    keys = np.stack([column[candidates] for column in (generations, range_ends, tokens, randoms)], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    repeated[np.delete(candidates, first)] = True
    return repeated


def _is_legal(end: Int64s, shard: Int64s, count: Int64s, msb: Int64s) -> Bools:
    return (
        (shard >= 0)
        & (shard < count)
        & (count <= MAX_SHARD_COUNT)
        & (msb >= 0)
        & (msb <= MAX_IGNORE_MSB)
        & (end != MINIMUM_TOKEN)
    )


def _replace_illegal(
    legal: Bools, end: Int64s, shard: Int64s, count: Int64s, msb: Int64s
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Return the columns with values that the functions of `ring` accept in place of illegal ones."""
    return (
        np.where(legal, end, LAST_TOKEN),
        np.where(legal, shard, 0),
        np.where(legal, count, 1),
        np.where(legal, msb, 0),
    )
