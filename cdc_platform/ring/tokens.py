"""Tokens: signed 64-bit places on the ring, and the same places counted from 0 as unsigned numbers ("positions").

Knows which tokens are legal and how the two countings turn into each other; which key has which token is `murmur3`'s.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdc_platform.errors import InputError

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
UInt8s = NDArray[np.uint8]
Bools = NDArray[np.bool_]

MINIMUM = -(2**63)
"""Before all keys; no key has it, and the hash that would give it gives LAST instead."""
FIRST = MINIMUM + 1
"""The smallest token of a key."""
LAST = 2**63 - 1
"""The largest token of a key."""

_SIGN = np.uint64(1 << 63)
_MAX_TABLETS = 1 << 31


def unbias(tokens: ArrayLike) -> UInt64s:
    """Signed tokens (int64, any shape) as positions from 0 (uint64): `token + 2^63`. MINIMUM is position 0."""
    return np.bitwise_xor(np.asarray(tokens, dtype=np.int64).view(np.uint64), _SIGN)


def bias(positions: ArrayLike) -> Int64s:
    """Positions (uint64, any shape) as signed tokens (int64): the inverse of `unbias`, nothing normalised."""
    return np.bitwise_xor(np.asarray(positions, dtype=np.uint64), _SIGN).view(np.int64)


def legal_tokens(values: Iterable[object], owner: str) -> Int64s:
    """The tokens of one owner, checked, as int64[] in the order given.

    Raises:
        InputError: a value is no integer or is outside FIRST..LAST; `owner` names whose it is.
    """
    given = values.tolist() if isinstance(values, np.ndarray) and values.dtype == np.int64 else list(values)
    # Python's own whole numbers, all of which are tokens, are what a ring is made of again and again.
    whole = [value for value in given if type(value) is int]
    if whole and len(whole) == len(given) and min(whole) >= FIRST and max(whole) <= LAST:
        return np.array(whole, dtype=np.int64)
    tokens: list[int] = []
    for value in given:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise InputError(f"{owner}: token {value!r} is no integer; tokens are whole numbers {FIRST}..{LAST}")
        if not FIRST <= value <= LAST:
            raise InputError(f"{owner}: token {value} is out of range; tokens are whole numbers {FIRST}..{LAST}")
        tokens.append(int(value))
    return np.array(tokens, dtype=np.int64)


def range_starts(range_ends: ArrayLike) -> Int64s:
    """Starts (exclusive) of the ranges that end at `range_ends` (int64[n] ascending): each the end before it.

    Range 0 wraps from the last end; the only range of a single token starts where it ends and is the whole ring.
    """
    return np.roll(np.asarray(range_ends, dtype=np.int64), 1)


def distinct(*tokens: ArrayLike) -> Int64s:
    """Each of the tokens (int64[] each) once, ascending. np.unique gives the same, but hashes, thirty times as long."""
    found = np.sort(np.concatenate([np.asarray(some, dtype=np.int64) for some in tokens]))
    return found[np.append(True, found[1:] != found[:-1])] if len(found) else found


def are_among(tokens: ArrayLike, known: Int64s) -> Bools:
    """Which of some tokens (int64[n]) are there among others (int64[m], ascending). np.isin gives the same, but hashes,
    and its first call of a process loads np.ma, which takes as long as to open ten tables.
    """
    asked = np.asarray(tokens, dtype=np.int64)
    if not len(known):
        return np.zeros(len(asked), dtype=bool)
    return known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] == asked


def uniform_last_tokens(count: int) -> Int64s:
    """Last tokens (int64[count] ascending) of `count` tablets of equal size; the last one is LAST.

    Tablet i of 1..count ends at position `floor(i * (2^64 - 1) / count)`.

    Raises:
        InputError: `count` is below 1 or above 2^31.
    """
    if not 1 <= count <= _MAX_TABLETS:
        raise InputError(f"{count} tablets: a table has 1 to {_MAX_TABLETS} tablets")
    size, rest = divmod(2**64 - 1, count)
    numbers = np.arange(1, count + 1, dtype=np.uint64)
    return bias(numbers * np.uint64(size) + numbers * np.uint64(rest) // np.uint64(count))
