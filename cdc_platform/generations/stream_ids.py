"""Stream IDs: encoding, decoding, restoring shard order, and detecting missing rows.

An ID has 16 bytes, big-endian: the token, 38 random bits, the vnode index, the version (design document 001). A CQL
`set<blob>` arrives sorted by unsigned bytes, but the streams of a range only have meaning in shard order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.ring import (
    FIRST_TOKEN,
    LAST_TOKEN,
    MINIMUM_TOKEN,
    Bools,
    Int64s,
    UInt8s,
    UInt64s,
    first_token_for_shard,
    shard_of,
)

STREAM_ID_BYTES = 16
STREAM_ID_VERSION = 1
"""The only version. IDs older than the version field have random bits in its place."""
INDEX_BITS = 22
RANDOM_BITS = 38

_VERSION_BITS = 4
_INDEX_SHIFT = _VERSION_BITS
_RANDOM_SHIFT = np.uint64(_VERSION_BITS + INDEX_BITS)
_INDEX_MASK = (1 << INDEX_BITS) - 1
_RANDOM_MASK = np.uint64((1 << RANDOM_BITS) - 1)
_WORD = np.dtype(">u8")
# Odd, hence invertible modulo 2^38: the low bits of the factors of `_mix_word`.
_FACTOR_1 = np.uint64(0x2D1CE4E5B9)
_FACTOR_2 = np.uint64(0x3B133111EB)
_HALF_RANDOM = np.uint64(RANDOM_BITS // 2)


@dataclass(frozen=True, eq=False)
class StreamIds:
    """The fields of many stream IDs: columns of one length, in the order of the IDs."""

    tokens: Int64s
    versions: Int64s
    indexes: Int64s
    randoms: UInt64s

    @property
    def legacy(self) -> Bools:
        """Return which IDs are older than the version field: version above 1, so index and version are meaningless."""
        return self.versions > STREAM_ID_VERSION


def encode_stream_ids(tokens: ArrayLike, index: ArrayLike, random: ArrayLike) -> UInt8s:
    """Return stream IDs (uint8[..., 16], broadcast) of tokens (int64), vnode indexes (int64) and random bits (uint64).

    Only the low 38 bits of `random` are used, as in ScyllaDB.

    Raises:
        InputError: an index outside 0..2^22 - 1, or a token that no key has.
    """
    shape = np.broadcast_shapes(np.shape(tokens), np.shape(index), np.shape(random))
    words = np.empty((*shape, 2), dtype=_WORD)
    encode_stream_ids_into(words, tokens, index, random)
    return words.view(np.uint8)


def encode_stream_ids_into(words: UInt64s, tokens: ArrayLike, index: ArrayLike, random: ArrayLike) -> None:
    """Encode stream IDs as `encode_stream_ids` does, into an existing buffer of big-endian words (`>u8[..., 2]`)."""
    tokens = np.asarray(tokens, dtype=np.int64)
    if np.any(tokens == MINIMUM_TOKEN):
        raise InputError(f"token {MINIMUM_TOKEN} is no key's token and cannot be in a stream ID")
    indexes = np.asarray(index, dtype=np.int64)
    wrong = (indexes < 0) | (indexes > _INDEX_MASK)
    if np.any(wrong):
        raise InputError(f"vnode index {indexes[wrong].flat[0]} does not fit into 22 bits; 0 to {_INDEX_MASK} do")
    low = np.asarray(random, dtype=np.uint64) << _RANDOM_SHIFT
    words[..., 0] = tokens.view(np.uint64)
    words[..., 1] = low | (indexes << _INDEX_SHIFT | STREAM_ID_VERSION).view(np.uint64)


def decode_stream_ids(ids: UInt8s) -> StreamIds:
    """Return the fields (1-D columns) of stream IDs (uint8[n, 16]). Legacy IDs are decoded too, see `StreamIds.legacy`.

    Raises:
        InputError: the IDs are not uint8[n, 16].
    """
    high, low = stream_id_words(ids).T
    return StreamIds(
        tokens=high.view(np.int64),
        versions=(low & np.uint64((1 << _VERSION_BITS) - 1)).view(np.int64),
        indexes=get_vnode_indexes(low).view(np.int64),
        randoms=low >> _RANDOM_SHIFT,
    )


def get_vnode_indexes(low: UInt64s) -> UInt64s:
    """Return the vnode indexes in the less significant words of stream IDs, see `stream_id_words`."""
    return low >> np.uint64(_INDEX_SHIFT) & np.uint64(_INDEX_MASK)


def stream_id_words(ids: UInt8s) -> UInt64s:
    """Return stream IDs (uint8[n, 16]) as numbers (uint64[n, 2], most significant first) that order like the bytes.

    Raises:
        InputError: the IDs are not uint8[n, 16].
    """
    if ids.dtype != np.uint8 or ids.ndim != 2 or ids.shape[1] != STREAM_ID_BYTES:
        raise InputError(f"stream IDs of shape {ids.shape} {ids.dtype}; each is {STREAM_ID_BYTES} bytes, uint8[n, 16]")
    # Column-major, so that each column is contiguous for callers that split them.
    return np.asarray(np.ascontiguousarray(ids).view(_WORD), dtype=np.uint64, order="F")


def as_comparable_ids(ids: UInt8s) -> np.ndarray:
    """Return streams (uint8[n, 16]) as one value each (S16[n]), which numpy orders and compares by all bytes.

    numpy strips zeros at the end, but padding to this length cannot make two different IDs equal.
    """
    return np.ascontiguousarray(ids).view(f"S{STREAM_ID_BYTES}")[:, 0]


@np.errstate(over="ignore")
def random_bits(generation_id: UUID, range_ends: ArrayLike, shards: ArrayLike) -> UInt64s:
    """Return the 38 random bits (uint64, broadcast) of the streams of one generation.

    They are a hash of the generation, the range and the shard, so generating again gives the same bytes. Within a range
    the shards' bits are a permutation of consecutive numbers, so no range contains a stream twice even if several
    shards share a token.
    """
    high, low = (np.uint64(half) for half in divmod(generation_id.int, 1 << 64))
    ranges = _mix_word(_mix_word(np.asarray(range_ends, dtype=np.int64).view(np.uint64) ^ _mix_word(high)) ^ low)
    numbers = np.asarray((ranges + np.asarray(shards, dtype=np.int64).view(np.uint64)) & _RANDOM_MASK)
    for factor in (_FACTOR_1, _FACTOR_2):
        numbers ^= numbers >> _HALF_RANDOM
        numbers *= factor
        numbers &= _RANDOM_MASK
    numbers ^= numbers >> _HALF_RANDOM
    return numbers


def _mix_word(x: UInt64s | np.uint64) -> UInt64s:
    """Apply Stafford's 64-bit finaliser: every input bit reaches every output bit."""
    x = np.asarray(x)
    with np.errstate(over="ignore"):  # modulo 2^64, in silence for arrays and with a warning for a single number
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class StreamId:
    """One stream ID. Equal if the bytes are; `str` gives the hexadecimal that CQL prints."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != STREAM_ID_BYTES:
            raise InputError(f"stream ID of {len(self.value)} bytes: 0x{self.value.hex()}; a stream ID has 16 bytes")

    @classmethod
    def from_bytes(cls, value: bytes) -> StreamId:
        """Create a stream ID from its 16 bytes.

        Raises:
            InputError: not 16 bytes.
        """
        return cls(bytes(value))

    @classmethod
    def from_hex(cls, text: str) -> StreamId:
        """Create a stream ID from 32 hexadecimal digits, with or without `0x`.

        Raises:
            InputError: `text` is no such number.
        """
        digits = text.strip().lower().removeprefix("0x")
        try:
            value = bytes.fromhex(digits)
        except ValueError:
            raise InputError(f"not a stream ID: {text!r}; it is 0x and 32 hexadecimal digits") from None
        if len(value) != STREAM_ID_BYTES:
            raise InputError(f"not a stream ID: {text!r} has {len(value)} bytes; it is 0x and 32 hexadecimal digits")
        return cls(value)

    @property
    def _fields(self) -> StreamIds:
        return decode_stream_ids(np.frombuffer(self.value, dtype=np.uint8).reshape(1, STREAM_ID_BYTES))

    @property
    def token(self) -> int:
        """Return the signed token of the first eight bytes."""
        return int(self._fields.tokens[0])

    @property
    def version(self) -> int:
        """Return the lowest four bits: 1, or any value for a legacy ID."""
        return int(self._fields.versions[0])

    @property
    def index(self) -> int:
        """Return the rank of the range among the generation's ranges; meaningless for a legacy ID."""
        return int(self._fields.indexes[0])

    @property
    def random(self) -> int:
        """Return the 38 random bits."""
        return int(self._fields.randoms[0])

    @property
    def kind(self) -> Literal["versioned", "legacy"]:
        """Return `legacy` if the ID is older than the version field."""
        return "legacy" if self.version > STREAM_ID_VERSION else "versioned"

    def __bytes__(self) -> bytes:
        return self.value

    def __str__(self) -> str:
        return f"0x{self.value.hex()}"


UNKNOWN_IGNORE_MSB = -1
"""The value of an unknown ignore_msb in columns of int64."""


@dataclass(frozen=True, eq=False)
class RestoredOrder:
    """Streams in restored order: `streams` uint8[total, 16]; `order_known` bool[n] by range; `settled` bool[total].

    Positions that are not settled hold the remaining streams, in unsigned byte order. A range's order is known if every
    position that a write can reach is settled. Shards that own nothing in the range receive no writes, and their
    streams all have the range end's token, so their order does not matter. That applies to almost every range of a
    large ring, whose 64 shards don't all own a piece of each. A settled position is reliable even in a range whose
    order is not known.
    """

    streams: UInt8s
    order_known: Bools
    settled: Bools


def restore_shard_order(start: int, end: int, streams: UInt8s, ignore_msb: int | None) -> tuple[UInt8s, bool]:
    """Return the streams (uint8[k, 16], any order) of `(start, end]` in shard order, and whether the order is certain.

    It is uncertain if `ignore_msb` is None (and k > 1), if a stream is not where its shard's stream lies, or if the
    shard that owns the range end owns nothing before it and another shard owns nothing at all: their streams have the
    same token. Certain streams are put in place even then; the rest stays in unsigned byte order. A single stream is
    always in order.

    Raises:
        InputError: the streams are not uint8[k, 16] with 1 <= k <= 4096, or ignore_msb is out of bounds.
    """
    known = UNKNOWN_IGNORE_MSB if ignore_msb is None else ignore_msb
    restored = restore_shard_orders([start], [end], [len(streams)], streams, [known])
    return restored.streams, bool(restored.order_known[0])


def restore_shard_orders(
    range_starts: ArrayLike, range_ends: ArrayLike, stream_counts: ArrayLike, streams: UInt8s, ignore_msbs: ArrayLike
) -> RestoredOrder:
    """Restore the shard order of many ranges as `restore_shard_order` does: columns int64[n], streams concatenated.

    UNKNOWN_IGNORE_MSB (-1) is an ignore_msb that is not known.

    Raises:
        InputError: the columns don't fit each other, or a sharding is out of bounds.
    """
    starts, ends, counts, msbs = (
        np.asarray(c, dtype=np.int64) for c in (range_starts, range_ends, stream_counts, ignore_msbs)
    )
    words = stream_id_words(streams)
    if counts.sum() != len(streams) or np.any(counts < 1):
        raise InputError(f"{len(streams)} streams for ranges of {counts.sum()}; every range has at least one stream")
    rows = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    known_msbs = np.where(msbs == UNKNOWN_IGNORE_MSB, 0, msbs)
    shards = np.arange(len(streams)) - first[rows]
    expected = first_token_for_shard(starts[rows], ends[rows], shards, counts[rows], known_msbs[rows])
    is_sharding_known = (msbs != UNKNOWN_IGNORE_MSB) | (counts == 1)
    source = _find_certain_sources(words, rows, first, counts, known_msbs, ends, expected, is_sharding_known)
    settled = source >= 0
    settled_sources = source[settled]
    unassigned = np.ones(len(streams), dtype=bool)
    unassigned[settled_sources] = False
    source[~settled] = _sort_by_bytes(words, rows, np.flatnonzero(unassigned))
    # A range's last stream belongs to its last open position, provided that it lies where that position's stream lies.
    open_counts = np.bincount(rows[~settled], minlength=len(counts))
    tokens = decode_stream_ids(streams).tokens[source]
    settled |= (open_counts == 1)[rows] & (tokens == expected)
    settled |= (counts == 1)[rows]
    reached = (
        (expected != ends[rows])
        | (shard_of(ends[rows], counts[rows], known_msbs[rows]) == shards)
        | ~is_sharding_known[rows]
    )
    order_known = np.bincount(rows[~settled & reached], minlength=len(counts)) == 0
    return RestoredOrder(np.ascontiguousarray(streams)[source], order_known, settled)


def _find_certain_sources(
    words: UInt64s,
    rows: Int64s,
    first: Int64s,
    counts: Int64s,
    msbs: Int64s,
    ends: Int64s,
    expected: Int64s,
    ordered: Bools,
) -> Int64s:
    """Return, for each position, the index of the stream that certainly belongs there, or -1."""
    tokens = words[:, 0].view(np.int64)
    position = first[rows] + shard_of(tokens, counts[rows], msbs[rows])
    fits = (tokens == expected[position]) & (tokens != ends[rows]) & ordered[rows]
    claims = np.bincount(position[fits], minlength=len(words))
    fits &= claims[position] == 1
    source = np.full(len(words), -1, dtype=np.int64)
    source[position[fits]] = np.flatnonzero(fits)
    return source


def _sort_by_bytes(words: UInt64s, rows: Int64s, streams: Int64s) -> Int64s:
    """Return the indexes of streams, sorted by range and then as unsigned bytes."""
    return streams[np.lexsort((words[streams, 1], words[streams, 0], rows[streams]))]


def explain_missing_rows(range_ends: Int64s, offsets: Int64s, streams: UInt8s) -> str | None:
    """Return why a generation must have more rows than these, or None if its IDs do not show it.

    `range_ends` int64[n] ascending; the streams (uint8[k, 16]) of range i begin at `offsets[i]` (int64[n + 1]). The
    index of a stream is the rank of its row. A range's streams begin right after the end of the previous range, so the
    first range, which wraps, shows the last range end. IDs that are not of version 1 show nothing.
    """
    ids = decode_stream_ids(streams)
    first = offsets[:-1]
    if np.any(ids.versions != STREAM_ID_VERSION) or np.any(
        np.repeat(ids.indexes[first], np.diff(offsets)) != ids.indexes
    ):
        return None
    ranks = np.arange(len(range_ends))
    indexes = ids.indexes[first]
    if np.any(indexes >= len(range_ends)):
        row = int(np.argmax(indexes != ranks))
        return f"the range that ends with {range_ends[row]} has index {indexes[row]} and is row {row}"
    # A single row with index 0 does not prove that its index is a rank.
    if len(range_ends) == 1 or not np.array_equal(indexes, ranks):
        return None
    last = int(range_ends[-1])
    expected = FIRST_TOKEN if last == LAST_TOKEN else last + 1
    begin = min(ids.tokens[: offsets[1]].tolist(), key=_distance_from(expected))
    if begin != expected and _is_between(begin, last, int(range_ends[0])):
        return (
            f"its first range begins with token {begin}, so its last range must end right before it; the last "
            f"existing row ends with {last}"
        )
    return None


def _distance_from(start: int) -> Callable[[int], int]:
    return lambda token: (token - start) % (1 << 64)


def _is_between(token: int, start: int, end: int) -> bool:
    """Return True if the token lies in `(start, end]`, walking the ring upwards."""
    from_start = _distance_from(start + 1)
    return from_start(token) <= from_start(end)
