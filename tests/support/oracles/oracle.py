"""A second implementation of the rules in plain Python integers, one value at a time, to test the platform's arrays.

It is written from the rules alone and shares no code with the platform.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

FIRST = -(2**63) + 1
LAST = 2**63 - 1
MASK = 2**64 - 1

# -- murmur3 ----------------------------------------------------------------------------------------------------------


def _rotl(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def _fmix(x: int) -> int:
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def murmur3(key: bytes, seed: int = 0) -> tuple[int, int]:
    """Return both halves of murmur3 x64 128, with the tail's bytes sign-extended."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    whole = len(key) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = (int.from_bytes(key[i : i + 8], "little") for i in (at, at + 8))
        h1 ^= _rotl(k1 * c1 & MASK, 31) * c2 & MASK
        h1 = (_rotl(h1, 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 ^= _rotl(k2 * c2 & MASK, 33) * c1 & MASK
        h2 = (_rotl(h2, 31) + h1) * 5 + 0x38495AB5 & MASK
    k1 = k2 = 0
    for i, byte in enumerate(key[whole:]):
        signed = (byte - 256 if byte > 127 else byte) << 8 * (i % 8) & MASK
        k1, k2 = (k1 ^ signed, k2) if i < 8 else (k1, k2 ^ signed)
    h2 ^= _rotl(k2 * c2 & MASK, 33) * c1 & MASK
    h1 ^= _rotl(k1 * c1 & MASK, 31) * c2 & MASK
    h1, h2 = h1 ^ len(key), h2 ^ len(key)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    h1, h2 = _fmix(h1), _fmix(h2)
    h1 = h1 + h2 & MASK
    return h1, h2 + h1 & MASK


def token_of(key: bytes) -> int:
    """Return the token of a serialized partition key."""
    half = murmur3(key)[0]
    signed = half - 2**64 if half >= 2**63 else half
    return LAST if signed == -(2**63) else signed


# -- sharding ---------------------------------------------------------------------------------------------------------


def shard_of(token: int, shard_count: int, ignore_msb: int) -> int:
    """Return the shard that owns a token."""
    return _shard_at(token + 2**63, shard_count, ignore_msb)


def _shard_at(position: int, shard_count: int, ignore_msb: int) -> int:
    return ((position << ignore_msb) % 2**64) * shard_count >> 64


def shard_starts(shard_count: int, ignore_msb: int) -> list[int]:
    """Return the start of each shard in a window: estimated by division, then moved up until the shard owns it."""
    if shard_count == 1:
        return [0]
    starts = []
    for shard in range(shard_count):
        start = (shard * 2**64 // shard_count) >> ignore_msb
        while _shard_at(start, shard_count, ignore_msb) != shard:
            start += 1
        starts.append(start)
    return starts


def token_for_next_shard(token: int, shard: int, shard_count: int, ignore_msb: int, spans: int = 1) -> int | None:
    """Return the next boundary after `token` at which `shard` begins; None for "after all keys"."""
    if shard_count == 1:
        ignore_msb = 0
    position = token + 2**63
    own = _shard_at(position, shard_count, ignore_msb)
    start = shard_starts(shard_count, ignore_msb)[shard]
    if ignore_msb == 0:
        return None if spans > 1 or shard <= own else start - 2**63
    window = (position >> (64 - ignore_msb)) + spans - (1 if shard > own else 0)
    return None if window >= 2**ignore_msb else (window << (64 - ignore_msb) | start) - 2**63


def first_token_for_shard(start: int, end: int, shard: int, shard_count: int, ignore_msb: int) -> int:
    """Return the first token of `(start, end]` that the shard owns, else `end`."""

    def walk(after: int, last: int | None) -> int | None:
        token: int | None = after + 1
        if shard_of(after + 1, shard_count, ignore_msb) != shard:
            token = token_for_next_shard(after + 1, shard, shard_count, ignore_msb)
        if token is None or (last is not None and token > last):
            return last
        return token

    if start < end:
        first = walk(start, end)
    else:
        first = walk(start, None) if start != LAST else None
        if first is None:
            first = walk(-(2**63), end)
    assert first is not None
    return first


def uniform_last_tokens(count: int) -> list[int]:
    """Return the last tokens of `count` tablets of equal size."""
    return [i * (2**64 - 1) // count - 2**63 for i in range(1, count + 1)]


# -- streams and generations ----------------------------------------------------------------------------------------


def pack_stream_id(token: int, index: int, random: int) -> bytes:
    """Return the 16 bytes of a stream ID of version 1."""
    low = 1 | index << 4 | (random & (2**38 - 1)) << 26
    return token.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big")


def unpack_stream_id(value: bytes) -> tuple[int, int, int, int]:
    """Return token, version, index and random bits of a stream ID."""
    low = int.from_bytes(value[8:], "big")
    return int.from_bytes(value[:8], "big", signed=True), low & 15, low >> 4 & 0x3FFFFF, low >> 26


@dataclass(frozen=True)
class Entry:
    """One range of a generation with the tokens of its streams, in shard order."""

    start: int
    end: int
    ignore_msb: int
    stream_tokens: list[int]


def generation(owners: dict[int, tuple[int, int]]) -> list[Entry]:
    """Return the entries for a ring of token -> (shard_count, ignore_msb) of its owner."""
    tokens = sorted(owners)
    entries = []
    for i, end in enumerate(tokens):
        start = tokens[i - 1]
        shard_count, ignore_msb = owners[end]
        streams = [first_token_for_shard(start, end, j, shard_count, ignore_msb) for j in range(shard_count)]
        entries.append(Entry(start, end, ignore_msb, streams))
    return entries


def pick(entries: list[Entry], token: int) -> tuple[int, int]:
    """Return the entry and the index in its streams that a token is mapped to."""
    row = bisect_left([entry.end for entry in entries], token) % len(entries)
    return row, shard_of(token, len(entries[row].stream_tokens), entries[row].ignore_msb)


def in_range(start: int, end: int, token: int) -> bool:
    """Return True if `(start, end]` contains a token; the range wraps around if it starts at or after its end."""
    return start < token <= end if start < end else token > start or token <= end


def limit_for_v1(counts: list[int]) -> list[int]:
    """Return the number of streams of each range after a V1 description is limited to the size of one cell."""
    limit = max(262144, len(counts))
    return counts if sum(counts) <= limit else [min(count, limit // len(counts)) for count in counts]


# -- which generation operates --------------------------------------------------------------------------------------


@dataclass
class Known:
    """The generations that a node knows (timestamp in µs -> is the description read), and the acceptance rules."""

    policy: str = "strict"
    leeway: int = 5_000_000
    read: dict[int, bool] = field(default_factory=dict)

    def used_at(self, time: int) -> int | None:
        """Return the generation with the greatest timestamp not after `time`."""
        return max((ts for ts in self.read if ts <= time), default=None)

    def known_or_obsolete(self, ts: int, now: int) -> bool:
        """Return True if nothing about `ts` remains to be learned."""
        times = sorted(self.read)
        at = bisect_left(times, ts)
        if at < len(times) and times[at] == ts:
            if self.read[ts]:
                return True
            at += 1
        return at < len(times) and times[at] <= now - self.leeway

    def prepare(self, ts: int, now: int) -> bool:
        """Record a timestamp."""
        if self.known_or_obsolete(ts, now):
            return False
        self.read.setdefault(ts, False)
        return True

    def insert(self, ts: int, now: int) -> bool:
        """Record a timestamp and that its description was read."""
        if self.known_or_obsolete(ts, now):
            return False
        self.forget(now)
        self.read[ts] = True
        return True

    def forget(self, now: int) -> None:
        """Drop the generations before the one that operated a leeway ago."""
        keep = self.used_at(now - self.leeway)
        if keep is not None:
            self.read = {ts: read for ts, read in self.read.items() if ts >= keep}

    def lookup(self, ts: int, now: int) -> tuple[str, int | None]:
        """Return verdict and generation of a write."""
        if ts >= now + self.leeway if self.policy == "strict" else ts > now + self.leeway:
            return "FUTURE", None
        refused = self._refused_strict(ts, now) if self.policy == "strict" else self._refused_recent_past(ts, now)
        if refused:
            return refused, None
        used = self.used_at(ts)
        if used is None:
            return "NO_STREAM", None
        return ("OK" if self.read[used] else "NOT_RETRIEVED"), used

    def _refused_strict(self, ts: int, now: int) -> str | None:
        current = self.used_at(now)
        if current is None:
            return "NO_STREAM"
        return "PAST" if ts < current else None

    def _refused_recent_past(self, ts: int, now: int) -> str | None:
        self.forget(now)
        if ts > now - self.leeway:
            return None
        settled = self.used_at(now - self.leeway)
        if settled is None or ts < settled:
            return "PAST"
        times = sorted(self.read)
        after = times[bisect_right(times, settled) :]
        return "PAST" if after and after[0] <= now else None
