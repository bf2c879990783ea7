"""The timeuuids of a log: `cdc$time` of a write timestamp, with low bits that are the same whenever it is made again.

It knows the layout of version 1 UUIDs; how they are ordered is `types`' business.
"""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

from cdc_platform.cql.types import GREGORIAN
from cdc_platform.errors import InputError

VERSION = 1
FIRST_US = -GREGORIAN // 10
"""The least time (µs since 1970) that a timeuuid can hold."""
LAST_US = ((1 << 60) - 1 - GREGORIAN) // 10 - 1
"""The greatest time (µs since 1970) that a timeuuid can hold."""
_LOWEST = 0x8080808080808080
"""The least low half in the order of timeuuids, whose low bytes are signed."""
_HIGHEST = 0x7F7F7F7F7F7F7F7F
_VARIANT = 0x8000000000000000
_VARIANT_MASK = 0x3FFFFFFFFFFFFFFF


def timeuuid(us: int, low: int, steps: int = 0) -> UUID:
    """The timeuuid of a time (µs since 1970, and `steps` of 100 ns) whose low half is `low`, as it stands.

    Raises:
        InputError: the time is outside of what a timeuuid can hold, 1582-10-15 to 5236-03-31.
    """
    if not FIRST_US <= us <= LAST_US:
        raise InputError(f"{us} µs cannot be the time of a timeuuid, which reaches from 1582-10-15 to 5236-03-31")
    ticks = us * 10 + steps + GREGORIAN
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | VERSION << 12 | ticks >> 48
    return UUID(int=high << 64 | low)


def log_time(us: int, *identity: bytes) -> UUID:
    """`cdc$time` of a log mutation: the time is the write's (µs since 1970), the low half a hash of `identity`.

    A write that is logged again has the same identity and so the same bytes; two writes of one time differ.
    """
    digest = blake2b(digest_size=8)
    for part in identity:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return timeuuid(us, int.from_bytes(digest.digest(), "big") & _VARIANT_MASK | _VARIANT)


def earliest(us: int) -> UUID:
    """The least timeuuid of a time (µs since 1970), as `minTimeuuid` of CQL."""
    return timeuuid(us, _LOWEST)


def latest(us: int) -> UUID:
    """The greatest timeuuid of a time (µs since 1970): a microsecond has ten steps of 100 ns."""
    return timeuuid(us, _HIGHEST, steps=9)
