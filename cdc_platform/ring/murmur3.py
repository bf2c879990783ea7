"""Tokens of partition keys: murmur3 x64 128 in the variant of Cassandra and ScyllaDB, for columns of keys.

`mix_bits` is a fast hash of integers for comparisons inside one process. No store and no cluster uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.ring.tokens import LAST_TOKEN, MINIMUM_TOKEN, Int64s, UInt8s, UInt64s

GOLDEN_RATIO_64 = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without a pattern: its multiples differ in their first bits, and no two up to 2^64 are equal."""


def mix_bits(numbers: UInt64s) -> UInt64s:
    """Return each number (uint64[n]) with every bit spread over all bits (Stafford's finaliser), without collisions."""
    shifted = numbers >> np.uint64(30)
    mixed = numbers ^ shifted
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_SIGNS = np.uint64(0x0101010101010101)
# Entries 8 to 16 mask the first 0 to 8 bytes of a word; entries before them mask none, entries after them all.
_FIRST_BYTES = np.array([2 ** (8 * min(max(count, 0), 8)) - 1 for count in range(-8, 16)], dtype=np.uint64)
# A chunk's columns fit into the processor's second-level cache; long keys make a chunk shorter.
_CHUNK_KEYS = 1 << 14
_CHUNK_BYTES = 1 << 22
_MANY_BLOCKS = 1 << 15
"""Below this many blocks in a key, the numbers of blocks fit into two bytes."""


def tokens_from_keys(keys: Sequence[bytes]) -> Int64s:
    """Return the tokens (int64[n]) of serialized partition keys."""
    offsets = np.zeros(len(keys) + 1, dtype=np.int64)
    np.cumsum([len(key) for key in keys], out=offsets[1:])
    return tokens_from_buffer(np.frombuffer(b"".join(keys), dtype=np.uint8), offsets)


def tokens_from_buffer(values: UInt8s, offsets: ArrayLike) -> Int64s:
    """Return the tokens (int64[n]) of keys in Arrow's binary layout.

    Key i is `values[offsets[i]:offsets[i + 1]]`, with values uint8[] and offsets int[n + 1]. The token is the signed
    first half of the hash; the hash that equals MINIMUM becomes LAST. The empty key has token 0, as in ScyllaDB.

    Raises:
        InputError: the offsets decrease or exceed the buffer.
    """
    tokens = hash128(values, offsets)[0].view(np.int64)
    tokens[tokens == MINIMUM_TOKEN] = LAST_TOKEN
    return tokens


def hash128(values: UInt8s, offsets: ArrayLike, seed: int = 0) -> tuple[UInt64s, UInt64s]:
    """Return both halves (uint64[n] each) of the hash of keys in a buffer laid out as for `tokens_from_buffer`."""
    offsets = np.asarray(offsets, dtype=np.int64)
    _check_layout(values, offsets)
    h1 = np.full(len(offsets) - 1, seed, dtype=np.uint64)
    h2 = h1.copy()
    for chunk in _chunks(offsets):
        keys = slice(chunk.start, chunk.stop)
        base = offsets[chunk.start]
        words = _words_from_bytes(values[base : offsets[chunk.stop]])
        begins = offsets[keys] - base
        _hash(words, begins, offsets[chunk.start + 1 : chunk.stop + 1] - base - begins, h1[keys], h2[keys])
    return h1, h2


def serialize_composite_key(components: Sequence[bytes]) -> bytes:
    """Return the serialized partition key of several columns: each `uint16 length | bytes | 0x00`.

    Raises:
        InputError: a component is longer than 65,535 bytes.
    """
    _check_length(max(map(len, components), default=0))
    return b"".join(len(component).to_bytes(2, "big") + component + b"\x00" for component in components)


def serialize_composite_keys(components: Sequence[tuple[UInt8s, ArrayLike]]) -> tuple[UInt8s, Int64s]:
    """Serialize composite keys, as `serialize_composite_key` does, for columns laid out as for `tokens_from_buffer`.

    Raises:
        InputError: a component is longer than 65,535 bytes; offsets differ in number, decrease or exceed their buffer.
    """
    columns = [(values, np.asarray(offsets, dtype=np.int64)) for values, offsets in components]
    for values, offsets in columns:
        _check_layout(values, offsets)
    if len({len(offsets) for _, offsets in columns}) != 1:
        raise InputError("the components of composite keys have one value each for every key")
    lengths = [np.diff(offsets) for _, offsets in columns]
    _check_length(max(int(length.max(initial=0)) for length in lengths))
    offsets = np.zeros(len(lengths[0]) + 1, dtype=np.int64)
    np.cumsum(sum(lengths) + 3 * len(columns), out=offsets[1:])
    keys = np.zeros(offsets[-1], dtype=np.uint8)
    at = offsets[:-1]
    for (values, bounds), length in zip(columns, lengths, strict=True):
        keys[at], keys[at + 1] = length >> 8, length & 0xFF
        data = values[bounds[0] : bounds[-1]]
        keys[np.repeat(at + 2 + bounds[0] - bounds[:-1], length) + np.arange(len(data))] = data
        at = at + length + 3
    return keys, offsets


def _check_length(longest: int) -> None:
    if longest > 0xFFFF:
        raise InputError(f"key component of {longest} bytes; a composite key's components have at most 65535")


def _check_layout(values: UInt8s, offsets: Int64s) -> None:
    if values.dtype != np.uint8 or values.ndim != 1 or offsets.ndim != 1 or len(offsets) == 0:
        raise InputError("keys are laid out as uint8[] values and int[n + 1] offsets")
    if offsets[0] < 0 or offsets[-1] > len(values) or np.any(offsets[1:] < offsets[:-1]):
        raise InputError(f"key offsets fall or leave the buffer of {len(values)} bytes")


def _chunks(offsets: Int64s) -> Iterator[range]:
    lo, count = 0, len(offsets) - 1
    while lo < count:
        by_bytes = int(np.searchsorted(offsets, offsets[lo] + _CHUNK_BYTES, side="right")) - 1
        hi = min(count, lo + _CHUNK_KEYS, max(by_bytes, lo + 1))
        yield range(lo, hi)
        lo = hi


def _words_from_bytes(values: UInt8s) -> UInt64s:
    """Return the bytes as little-endian words, followed by two words of zeros so that any load stays inside."""
    words = np.zeros(len(values) // 8 + 3, dtype="<u8")
    words.view(np.uint8)[: len(values)] = values
    return words.astype(np.uint64, copy=False)


def _hash(words: UInt64s, begins: Int64s, lengths: Int64s, h1: UInt64s, h2: UInt64s) -> None:
    """Hash keys into `h1` and `h2`, which hold the seed; process body blocks as long as any key has one left."""
    blocks = lengths >> 4
    longest, shortest = int(blocks.max()), int(blocks.min())
    if longest != shortest:
        # Two-byte numbers are sorted by their digits (radix sort), in a fraction of the time.
        order = np.argsort(-(blocks.astype(np.int16) if longest < _MANY_BLOCKS else blocks), kind="stable")
        sorted1, sorted2 = h1[order], h2[order]
        _hash_sorted(words, begins[order], lengths[order], sorted1, sorted2)
        h1[order], h2[order] = sorted1, sorted2
    else:
        _hash_sorted(words, begins, lengths, h1, h2)


def _hash_sorted(words: UInt64s, begins: Int64s, lengths: Int64s, h1: UInt64s, h2: UInt64s) -> None:
    """Hash keys, as `_hash` does, sorted with the longest first: keys with a block left are always the leading ones."""
    blocks = lengths >> 4
    for block in range(int(blocks[0])):
        live = slice(0, int(np.searchsorted(-blocks, -block, side="left")))
        at = begins[live] + 16 * block
        _mix_body(h1[live], h2[live], *_load(words, at, 2))
    _mix_tail(words, begins + 16 * blocks, lengths & 15, h1, h2)
    size = lengths.astype(np.uint64)
    h1 ^= size
    h2 ^= size
    h1 += h2
    h2 += h1
    _finish(h1)
    _finish(h2)
    h1 += h2
    h2 += h1


def _load(words: UInt64s, at: Int64s, count: int) -> list[UInt64s]:
    """Load `count` consecutive words of eight bytes, little-endian, from each byte offset."""
    index = at >> 3
    loaded = [words.take(index)]
    shift = ((at & 7) << 3).astype(np.uint64)
    if not shift.any():
        return loaded + [words.take(index + position) for position in range(1, count)]
    # A shift by 64 is undefined, so it is done in two steps.
    rest = np.uint64(63) - shift
    for position in range(count):
        index += 1
        following = words.take(index)
        loaded[position] >>= shift
        high = following << np.uint64(1)
        high <<= rest
        loaded[position] |= high
        loaded.append(following)
    return loaded[:count]


def _mix_body(h1: UInt64s, h2: UInt64s, k1: UInt64s, k2: UInt64s) -> None:
    h1 ^= _scramble1(k1)
    _rotate(h1, 27)
    h1 += h2
    h1 *= np.uint64(5)
    h1 += np.uint64(0x52DCE729)
    h2 ^= _scramble2(k2)
    _rotate(h2, 31)
    h2 += h1
    h2 *= np.uint64(5)
    h2 += np.uint64(0x38495AB5)


def _mix_tail(words: UInt64s, at: Int64s, left: Int64s, h1: UInt64s, h2: UInt64s) -> None:
    """Mix in the last `left` (0 to 15) bytes of each key; absent bytes are zeros and mix to zero."""
    most = int(left.max())
    if most == 0:
        return
    loaded = _load(words, at, 2 if most > 8 else 1)
    if most > 8:
        h2 ^= _scramble2(_sign_extended(_mask_tail(loaded[1], left, 8)))
    h1 ^= _scramble1(_sign_extended(_mask_tail(loaded[0], left, 0)))


def _mask_tail(words: UInt64s, left: Int64s, before: int) -> UInt64s:
    """Mask each word to its bytes of a key's last `left` (0 to 15); earlier words have `before` of them."""
    words &= _FIRST_BYTES[8 - before :].take(left)
    return words


def _sign_extended(words: UInt64s) -> UInt64s:
    """XOR the tail's bytes as Cassandra does: widen each as a *signed* byte before shifting it to its position.

    A negative byte flips every bit above it, so a byte ends up flipped if an odd number of the bytes below it are
    negative.
    """
    negative = words >> np.uint64(7)
    negative &= _SIGNS
    if not negative.any():
        return words
    negative <<= np.uint64(8)
    for step in (8, 16, 32):
        negative ^= negative << np.uint64(step)
    negative *= np.uint64(0xFF)
    words ^= negative
    return words


def _scramble1(k: UInt64s) -> UInt64s:
    k *= _C1
    _rotate(k, 31)
    k *= _C2
    return k


def _scramble2(k: UInt64s) -> UInt64s:
    k *= _C2
    _rotate(k, 33)
    k *= _C1
    return k


def _rotate(x: UInt64s, bits: int) -> None:
    high = x << np.uint64(bits)
    x >>= np.uint64(64 - bits)
    x |= high


def _finish(h: UInt64s) -> None:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h ^= h >> np.uint64(33)
        h *= np.uint64(factor)
    h ^= h >> np.uint64(33)
