"""A second implementation of the rules of tablets in plain integers, one value at a time, to test the arrays.

It is written from the rules alone and shares only the names of units with the platform.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.clock import Milliseconds

FIRST = -(2**63) + 1
LAST = 2**63 - 1

SEED_FIRST_MS, SEED_SECOND_MS = Milliseconds(1_757_428_896_977), Milliseconds(1_757_429_087_820)
"""2025-09-09 14:41:36.977 and 14:44:47.820: the two stream sets in the example of design document 002."""
SEED_TWO = ["ffffffffffffffff50e84c99d4000001", "7fffffffffffffff55ebbda510000001"]
SEED_FOUR = [
    "bfffffffffffffffa67123f568000001",
    "ffffffffffffffffe28e96d4f4000001",
    "3fffffffffffffff296a1c0f24000001",
    "7fffffffffffffff9573ad2614000001",
]
SEED_ROWS = [
    *((SEED_FIRST_MS, 0, id_) for id_ in SEED_TWO),
    *((SEED_FIRST_MS, 2, id_) for id_ in SEED_TWO),
    *((SEED_SECOND_MS, 0, id_) for id_ in SEED_FOUR),
    *((SEED_SECOND_MS, 1, id_) for id_ in SEED_TWO),
    *((SEED_SECOND_MS, 2, id_) for id_ in SEED_FOUR),
]
"""`SELECT * FROM system.cdc_streams` in that example, row by row: (time in ms, stream_state, stream_id)."""


def token_of(stream: bytes) -> int:
    """Return the signed token of a stream."""
    return int.from_bytes(stream[:8], "big", signed=True)


def fields_of(stream: bytes) -> tuple[int, int, int]:
    """Return version, index and random bits of a stream."""
    low = int.from_bytes(stream[8:], "big")
    return low & 15, low >> 4 & (2**22 - 1), low >> 26


def make(token: int, random: int) -> bytes:
    """Return a stream of a tablet: version 1, index 0."""
    return (token % 2**64 << 64 | random % 2**38 << 26 | 1).to_bytes(16, "big")


def ring_order(streams: list[bytes]) -> list[bytes]:
    """Sort streams by token, then by bytes."""
    return sorted(streams, key=lambda stream: (token_of(stream), stream))


def difference(previous: list[bytes], following: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return closed and opened streams."""
    closed = [stream for stream in previous if stream not in following]
    opened = [stream for stream in following if stream not in previous]
    return ring_order(closed), ring_order(opened)


def apply(previous: list[bytes], closed: list[bytes], opened: list[bytes]) -> list[bytes]:
    """Return the next set."""
    return ring_order([stream for stream in previous if stream not in closed] + opened)


def stream_of(streams: list[bytes], token: int) -> bytes | None:
    """Return the first stream, in ring order, at or after a token."""
    return next((stream for stream in ring_order(streams) if token_of(stream) >= token), None)


def set_at(times_us: list[int], ts_us: int) -> int:
    """Return the number of the newest set that has started, -1 before the first."""
    return max((number for number, time in enumerate(times_us) if time <= ts_us), default=-1)


def base_after_gc(times_ms: Sequence[int], now_ms: int, ttl_seconds: int) -> int:
    """Return the base after garbage collection: step from the oldest set while the next one is as old as the TTL."""
    base = 0
    while ttl_seconds and base + 1 < len(times_ms) and times_ms[base + 1] <= now_ms - ttl_seconds * 1000:
        base += 1
    return base


def base_for_readers(times_ms: Sequence[int], now_ms: int, ttl_seconds: int, positions_us: Sequence[int]) -> int:
    """Return the base as `base_after_gc` does, but retain a set until every reader has reached the next one."""
    base = 0
    while (
        ttl_seconds
        and base + 1 < len(times_ms)
        and times_ms[base + 1] <= now_ms - ttl_seconds * 1000
        and all(position >= times_ms[base + 1] * 1000 for position in positions_us)
    ):
        base += 1
    return base


def halved(ends: list[int]) -> list[int]:
    """Return every tablet cut in the middle; the first begins with the first token."""
    cut = []
    before = FIRST - 1
    for end in ends:
        cut += [before + (end - before) // 2, end]
        before = end
    return cut
