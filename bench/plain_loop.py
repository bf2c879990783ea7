"""The rules of stream generation as a plain loop over ranges and shards with Python integers.

This is the floor of the row `generating-alone`: the same rules and the same bytes, without numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

_TWO_63 = 1 << 63
_TWO_64 = 1 << 64
_TWO_38 = 1 << 38


def shard_of(token: int, shard_count: int, ignore_msb: int) -> int:
    """Return the shard that owns `token`."""
    return ((((token + _TWO_63) << ignore_msb) % _TWO_64) * shard_count) >> 64


def shard_start(shard: int, shard_count: int, ignore_msb: int) -> int:
    """Return the first unbiased token of a shard within one repetition of the shards."""
    start = ((shard << 64) // shard_count) >> ignore_msb
    while shard_of(start - _TWO_63, shard_count, ignore_msb) != shard:
        start += 1
    return start


def next_token_of(token: int, shard: int, starts: Sequence[int], shard_count: int, ignore_msb: int) -> int | None:
    """Return the first token after `token` at which `shard` begins; None beyond the last token."""
    wraps = shard <= shard_of(token, shard_count, ignore_msb)
    if ignore_msb == 0:
        return None if wraps else starts[shard] - _TWO_63
    repetition = ((token + _TWO_63) >> (64 - ignore_msb)) + wraps
    if repetition >= 1 << ignore_msb:
        return None
    return (repetition << (64 - ignore_msb) | starts[shard]) - _TWO_63


def first_token(start: int, end: int, shard: int, starts: Sequence[int], shard_count: int, ignore_msb: int) -> int:
    """Return the first token in `(start, end]`, around the ring, that `shard` owns, or `end` if it owns none."""
    if start < end:
        token: int | None = start + 1
        if shard_of(start + 1, shard_count, ignore_msb) != shard:
            token = next_token_of(start + 1, shard, starts, shard_count, ignore_msb)
        return end if token is None else min(token, end)
    if start != _TWO_63 - 1:
        token = start + 1
        if shard_of(token, shard_count, ignore_msb) != shard:
            token = next_token_of(token, shard, starts, shard_count, ignore_msb)
        if token is not None:
            return token
    return first_token(-_TWO_63, end, shard, starts, shard_count, ignore_msb)


def mix(x: int) -> int:
    """Apply Stafford's 64-bit finaliser."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _TWO_64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _TWO_64
    return x ^ (x >> 31)


def random_bits(range_hash: int, shard: int) -> int:
    """Return the 38 random bits of one stream."""
    bits = (range_hash + shard) % _TWO_38
    bits = (bits ^ bits >> 19) * 0x2D1CE4E5B9 % _TWO_38
    bits = (bits ^ bits >> 19) * 0x3B133111EB % _TWO_38
    return bits ^ bits >> 19


def generate(
    range_starts: Sequence[int],
    range_ends: Sequence[int],
    lo: int,
    hi: int,
    shard_count: int,
    ignore_msb: int,
    generation_id: UUID,
) -> list[list[bytes]]:
    """Return the streams of ranges lo..hi-1 of a ring, 16 bytes each, in shard order."""
    generation_hash = mix(generation_id.int >> 64)
    starts = [shard_start(shard, shard_count, ignore_msb) for shard in range(shard_count)]
    description = []
    for index in range(lo, hi):
        start, end = range_starts[index], range_ends[index]
        range_hash = mix(mix(end % _TWO_64 ^ generation_hash) ^ generation_id.int % _TWO_64)
        streams = []
        for shard in range(shard_count):
            token = first_token(start, end, shard, starts, shard_count, ignore_msb)
            low = 1 | index << 4 | random_bits(range_hash, shard) << 26
            streams.append(((token % _TWO_64) << 64 | low).to_bytes(16, "big"))
        description.append(streams)
    return description
