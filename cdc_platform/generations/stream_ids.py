"""Stream IDs: 16 bytes, big-endian, token first, then random bits, index and version (design document 001).

Knows the layout and how random bits are drawn; which streams a generation has is `description`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.ring.tokens import MINIMUM, Bools, Int64s, UInt8s, UInt64s

STREAM_ID_BYTES = 16
VERSION = 1
"""The only version there is. IDs older than the version field have random bits in its place."""
INDEX_BITS = 22
RANDOM_BITS = 38

_VERSION_BITS = 4
_INDEX_SHIFT = _VERSION_BITS
_RANDOM_SHIFT = np.uint64(_VERSION_BITS + INDEX_BITS)
_INDEX_MASK = (1 << INDEX_BITS) - 1
_RANDOM_MASK = np.uint64((1 << RANDOM_BITS) - 1)
_WORD = np.dtype(">u8")
# Odd, hence invertible modulo 2^38: the low bits of the factors of `_mix`.
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
        return self.versions > VERSION


def encode(tokens: ArrayLike, index: ArrayLike, random: ArrayLike) -> UInt8s:
    """Stream IDs (uint8[..., 16], broadcast) of tokens (int64), vnode indexes (int64) and random bits (uint64).

    Of `random` the low 38 bits are taken, as ScyllaDB does.

    Raises:
        InputError: an index outside 0..2^22 - 1, or a token that no key has.
    """
    shape = np.broadcast_shapes(np.shape(tokens), np.shape(index), np.shape(random))
    words = np.empty((*shape, 2), dtype=_WORD)
    encode_into(words, tokens, index, random)
    return words.view(np.uint8)


def encode_into(words: UInt64s, tokens: ArrayLike, index: ArrayLike, random: ArrayLike) -> None:
    """As `encode`, into a buffer of big-endian words (`>u8[..., 2]`) that is there already."""
    tokens = np.asarray(tokens, dtype=np.int64)
    if np.any(tokens == MINIMUM):
        raise InputError(f"token {MINIMUM} is no key's token and cannot be in a stream ID")
    indexes = np.asarray(index, dtype=np.int64)
    wrong = (indexes < 0) | (indexes > _INDEX_MASK)
    if np.any(wrong):
        raise InputError(f"vnode index {indexes[wrong].flat[0]} does not fit into 22 bits; 0 to {_INDEX_MASK} do")
    low = np.asarray(random, dtype=np.uint64) << _RANDOM_SHIFT
    words[..., 0] = tokens.view(np.uint64)
    words[..., 1] = low | (indexes << _INDEX_SHIFT | VERSION).view(np.uint64)


def decode(ids: UInt8s) -> StreamIds:
    """The fields (1-D columns) of stream IDs (uint8[n, 16]). Legacy IDs are decoded too, see `StreamIds.legacy`.

    Raises:
        InputError: the IDs are not uint8[n, 16].
    """
    high, low = ordered_words(ids).T
    return StreamIds(
        tokens=high.view(np.int64),
        versions=(low & np.uint64((1 << _VERSION_BITS) - 1)).view(np.int64),
        indexes=indexes_of(low).view(np.int64),
        randoms=low >> _RANDOM_SHIFT,
    )


def indexes_of(low: UInt64s) -> UInt64s:
    """The vnode indexes in the less significant words of stream IDs, see `ordered_words`."""
    return low >> np.uint64(_INDEX_SHIFT) & np.uint64(_INDEX_MASK)


def ordered_words(ids: UInt8s) -> UInt64s:
    """Stream IDs (uint8[n, 16]) as numbers (uint64[n, 2], most significant first): what bytes order by, unsigned.

    Raises:
        InputError: the IDs are not uint8[n, 16].
    """
    if ids.dtype != np.uint8 or ids.ndim != 2 or ids.shape[1] != STREAM_ID_BYTES:
        raise InputError(f"stream IDs of shape {ids.shape} {ids.dtype}; each is {STREAM_ID_BYTES} bytes, uint8[n, 16]")
    # Columns one after the other, so that each is contiguous for those who take them apart.
    return np.asarray(np.ascontiguousarray(ids).view(_WORD), dtype=np.uint64, order="F")


def comparable(ids: UInt8s) -> np.ndarray:
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
    ranges = _mix(_mix(np.asarray(range_ends, dtype=np.int64).view(np.uint64) ^ _mix(high)) ^ low)
    numbers = np.asarray((ranges + np.asarray(shards, dtype=np.int64).view(np.uint64)) & _RANDOM_MASK)
    for factor in (_FACTOR_1, _FACTOR_2):
        numbers ^= numbers >> _HALF_RANDOM
        numbers *= factor
        numbers &= _RANDOM_MASK
    numbers ^= numbers >> _HALF_RANDOM
    return numbers


def _mix(x: UInt64s | np.uint64) -> UInt64s:
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
        return decode(np.frombuffer(self.value, dtype=np.uint8).reshape(1, STREAM_ID_BYTES))

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
        return "legacy" if self.version > VERSION else "versioned"

    def __bytes__(self) -> bytes:
        return self.value

    def __str__(self) -> str:
        return f"0x{self.value.hex()}"
