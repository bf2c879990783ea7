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
"""The only version there is. IDs older than the version field have random bits in its place."""
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
        """Which IDs are older than the version field: version above 1, so index and version mean nothing."""
        return self.versions > STREAM_ID_VERSION


def encode_stream_ids(tokens: ArrayLike, index: ArrayLike, random: ArrayLike) -> UInt8s:
    """Stream IDs (uint8[..., 16], broadcast) of tokens (int64), vnode indexes (int64) and random bits (uint64).

    Of `random` the low 38 bits are taken, as ScyllaDB does.

    Raises:
        InputError: an index outside 0..2^22 - 1, or a token that no key has.
    """
    shape = np.broadcast_shapes(np.shape(tokens), np.shape(index), np.shape(random))
    words = np.empty((*shape, 2), dtype=_WORD)
    encode_stream_ids_into(words, tokens, index, random)
    return words.view(np.uint8)


def encode_stream_ids_into(words: UInt64s, tokens: ArrayLike, index: ArrayLike, random: ArrayLike) -> None:
    """As `encode_stream_ids`, into a buffer of big-endian words (`>u8[..., 2]`) that is there already."""
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
    """The fields (1-D columns) of stream IDs (uint8[n, 16]). Legacy IDs are decoded too, see `StreamIds.legacy`.

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
    """The vnode indexes in the less significant words of stream IDs, see `stream_id_words`."""
    return low >> np.uint64(_INDEX_SHIFT) & np.uint64(_INDEX_MASK)


def stream_id_words(ids: UInt8s) -> UInt64s:
    """Stream IDs (uint8[n, 16]) as numbers (uint64[n, 2], most significant first): what bytes order by, unsigned.

    Raises:
        InputError: the IDs are not uint8[n, 16].
    """
    if ids.dtype != np.uint8 or ids.ndim != 2 or ids.shape[1] != STREAM_ID_BYTES:
        raise InputError(f"stream IDs of shape {ids.shape} {ids.dtype}; each is {STREAM_ID_BYTES} bytes, uint8[n, 16]")
    # Columns one after the other, so that each is contiguous for those who take them apart.
    return np.asarray(np.ascontiguousarray(ids).view(_WORD), dtype=np.uint64, order="F")


def as_comparable_ids(ids: UInt8s) -> np.ndarray:
    """Streams (uint8[n, 16]) as one value each (S16[n]), which numpy orders and finds equal where all bytes are.

    numpy strips zeros at the end: of shorter ones, padded to this length, none becomes another.
    """
    return np.ascontiguousarray(ids).view(f"S{STREAM_ID_BYTES}")[:, 0]


@np.errstate(over="ignore")
def random_bits(generation_id: UUID, range_ends: ArrayLike, shards: ArrayLike) -> UInt64s:
    """The 38 random bits (uint64, broadcast) of the streams of one generation.

    A hash of the generation, the range and the shard: generating again gives the same bytes. Within a range the
    shards' bits are a permutation of consecutive numbers, so that no range holds a stream twice even where several
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
    """Stafford's 64-bit finaliser: every input bit reaches every output bit."""
    x = np.asarray(x)
    with np.errstate(over="ignore"):  # modulo 2^64, in silence for arrays and with a warning for a single number
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class StreamId:
    """One stream ID. Equal when the bytes are; `str` gives the hexadecimal that CQL prints."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != STREAM_ID_BYTES:
            raise InputError(f"stream ID of {len(self.value)} bytes: 0x{self.value.hex()}; a stream ID has 16 bytes")

    @classmethod
    def from_bytes(cls, value: bytes) -> StreamId:
        """A stream ID from its 16 bytes.

        Raises:
            InputError: not 16 bytes.
        """
        return cls(bytes(value))

    @classmethod
    def from_hex(cls, text: str) -> StreamId:
        """A stream ID from 32 hexadecimal digits, with or without `0x`.

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
        """The signed token of the first eight bytes."""
        return int(self._fields.tokens[0])

    @property
    def version(self) -> int:
        """The lowest four bits; 1, or anything for a legacy ID."""
        return int(self._fields.versions[0])

    @property
    def index(self) -> int:
        """Rank of the range among the generation's ranges; without meaning for a legacy ID."""
        return int(self._fields.indexes[0])

    @property
    def random(self) -> int:
        """The 38 random bits."""
        return int(self._fields.randoms[0])

    @property
    def kind(self) -> Literal["versioned", "legacy"]:
        """`legacy` when the ID is older than the version field."""
        return "legacy" if self.version > STREAM_ID_VERSION else "versioned"

    def __bytes__(self) -> bytes:
        return self.value

    def __str__(self) -> str:
        return f"0x{self.value.hex()}"


UNKNOWN_IGNORE_MSB = -1
"""Stands for an ignore_msb that is not known, in columns of int64."""


@dataclass(frozen=True, eq=False)
class RestoredOrder:
    """Streams put back: `streams` uint8[total, 16]; `order_known` bool[n] a range; `settled` bool[total] a position.

    Positions that are not settled hold, in unsigned byte order, the streams left over. A range's order is known when
    every position that a write can reach is settled. Shards that own nothing in the range take no writes, and their
    streams all have the range end's token: which of them comes first means nothing. That is so in almost every range
    of a large ring, whose 64 shards don't all own a piece of each. A position that is settled may be relied on even
    in a range whose order is not known.
    """

    streams: UInt8s
    order_known: Bools
    settled: Bools


def restore_shard_order(start: int, end: int, streams: UInt8s, ignore_msb: int | None) -> tuple[UInt8s, bool]:
    """The streams (uint8[k, 16], any order) of the range `(start, end]` in shard order, and whether that is certain.

    It is not when `ignore_msb` is None (and k > 1), when a stream is not where its shard's stream lies, or when the
    shard that owns the range end owns nothing before it and another shard owns nothing at all: their streams have
    the same token. What is certain is put in place even then; the rest keeps unsigned byte order. A single stream is
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
    """As `restore_shard_order`, for many ranges at once: columns int64[n], streams one range after the other.

    An ignore_msb of UNKNOWN (-1) stands for one that is not known.

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
    given = np.where(msbs == UNKNOWN_IGNORE_MSB, 0, msbs)
    shards = np.arange(len(streams)) - first[rows]
    expected = first_token_for_shard(starts[rows], ends[rows], shards, counts[rows], given[rows])
    told = (msbs != UNKNOWN_IGNORE_MSB) | (counts == 1)
    source = _find_certain_sources(words, rows, first, counts, given, ends, expected, told)
    settled = source >= 0
    settled_sources = source[settled]
    left = np.ones(len(streams), dtype=bool)
    left[settled_sources] = False
    source[~settled] = _sort_by_bytes(words, rows, np.flatnonzero(left))
    # One stream left for one place can only belong there, if it also lies where that place's stream lies.
    open_places = np.bincount(rows[~settled], minlength=len(counts))
    tokens = decode_stream_ids(streams).tokens[source]
    settled |= (open_places == 1)[rows] & (tokens == expected)
    settled |= (counts == 1)[rows]
    reached = (expected != ends[rows]) | (shard_of(ends[rows], counts[rows], given[rows]) == shards) | ~told[rows]
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
    told: Bools,
) -> Int64s:
    """For each place the stream that belongs there beyond doubt, or -1."""
    tokens = words[:, 0].view(np.int64)
    place = first[rows] + shard_of(tokens, counts[rows], msbs[rows])
    fits = (tokens == expected[place]) & (tokens != ends[rows]) & told[rows]
    claims = np.bincount(place[fits], minlength=len(words))
    fits &= claims[place] == 1
    source = np.full(len(words), -1, dtype=np.int64)
    source[place[fits]] = np.flatnonzero(fits)
    return source


def _sort_by_bytes(words: UInt64s, rows: Int64s, streams: Int64s) -> Int64s:
    """Indexes of streams, sorted by range and then as unsigned bytes."""
    return streams[np.lexsort((words[streams, 1], words[streams, 0], rows[streams]))]


def explain_missing_rows(range_ends: Int64s, offsets: Int64s, streams: UInt8s) -> str | None:
    """Why a generation has to have more rows than these, in words; None where its IDs do not tell.

    `range_ends` int64[n] ascending; the streams (uint8[k, 16]) of range i begin at `offsets[i]` (int64[n + 1]). The
    index of a stream is the rank of its row. A range's streams begin right after the end of the range before, so that
    the first range, which wraps, tells the last range end. IDs that are not of version 1 tell nothing.
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
    # A single row with index 0 is too little to tell that its index is a rank.
    if len(range_ends) == 1 or not np.array_equal(indexes, ranks):
        return None
    last = int(range_ends[-1])
    expected = FIRST_TOKEN if last == LAST_TOKEN else last + 1
    begin = min(ids.tokens[: offsets[1]].tolist(), key=_distance_from(expected))
    if begin != expected and _is_between(begin, last, int(range_ends[0])):
        return (
            f"its first range begins with token {begin}, so its last range ends right before; the last row there is"
            f" ends with {last}"
        )
    return None


def _distance_from(start: int) -> Callable[[int], int]:
    return lambda token: (token - start) % (1 << 64)


def _is_between(token: int, start: int, end: int) -> bool:
    """Whether the token lies in `(start, end]`, walking the ring upwards."""
    from_start = _distance_from(start + 1)
    return from_start(token) <= from_start(end)
