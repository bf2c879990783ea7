"""The rules of tablets once more, one value at a time and in plain integers: what the arrays are held against.

Written from the rules alone; shares no code with the platform but the names of its units.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.clock import Milliseconds

FIRST = -(2**63) + 1
LAST = 2**63 - 1

SEED_FIRST_MS, SEED_SECOND_MS = Milliseconds(1_757_428_896_977), Milliseconds(1_757_429_087_820)
"""2025-09-09 14:41:36.977 and 14:44:47.820: the two stream sets of design document 002's example."""
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
"""`SELECT * FROM system.cdc_streams` of that example, row by row: (time in ms, stream_state, stream_id)."""


def token_of(stream: bytes) -> int:
    """The signed token of a stream."""
    return int.from_bytes(stream[:8], "big", signed=True)


def fields_of(stream: bytes) -> tuple[int, int, int]:
    """Version, index and random bits of a stream."""
    low = int.from_bytes(stream[8:], "big")
    return low & 15, low >> 4 & (2**22 - 1), low >> 26


def make(token: int, random: int) -> bytes:
    """A stream of a tablet: version 1, index 0."""
    return (token % 2**64 << 64 | random % 2**38 << 26 | 1).to_bytes(16, "big")


def ring_order(streams: list[bytes]) -> list[bytes]:
    """By token, then by bytes."""
    return sorted(streams, key=lambda stream: (token_of(stream), stream))


def difference(previous: list[bytes], following: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Closed and opened streams."""
    closed = [stream for stream in previous if stream not in following]
    opened = [stream for stream in following if stream not in previous]
    return ring_order(closed), ring_order(opened)


def apply(previous: list[bytes], closed: list[bytes], opened: list[bytes]) -> list[bytes]:
    """The next set."""
    return ring_order([stream for stream in previous if stream not in closed] + opened)


def stream_of(streams: list[bytes], token: int) -> bytes | None:
    """The first stream, in ring order, at or after a token."""
    return next((stream for stream in ring_order(streams) if token_of(stream) >= token), None)


def set_at(times_us: list[int], ts_us: int) -> int:
    """The number of the newest set that has started, -1 before the first."""
    return max((number for number, time in enumerate(times_us) if time <= ts_us), default=-1)


def base_after_gc(times_ms: Sequence[int], now_ms: int, ttl_seconds: int) -> int:
    """Step by step from the oldest, as long as the next one is as old as the TTL."""
    base = 0
    while ttl_seconds and base + 1 < len(times_ms) and times_ms[base + 1] <= now_ms - ttl_seconds * 1000:
        base += 1
    return base


def base_for_readers(times_ms: Sequence[int], now_ms: int, ttl_seconds: int, positions_us: Sequence[int]) -> int:
    """As `base_after_gc`, but a set is left behind only when every reader has come to the one after it."""
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
    """Every tablet cut in the middle; the first begins with the first token."""
    cut = []
    before = FIRST - 1
    for end in ends:
        cut += [before + (end - before) // 2, end]
        before = end
    return cut
