"""The rows in which two tables differ, told by a number of 64 bits of each row: what is in both need not be digested.

Whoever writes a slice anew for a few changed rows takes away nearly what it adds, and the digest of a row costs a
microsecond, where its number costs a sixth of that. It is made of the same encoding as the digest (see `digests`), so
that equal rows have equal numbers, whatever files they come from.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa

from cdc_platform.lake.digests import Piece, encoded, ragged
from cdc_platform.ring.mixing import mixed

_ODD = np.uint64(0x9E3779B97F4A7C15)
_ROWS_AT_ONCE = 1 << 15
_FEW = 512
"""So few rows are digested in the time in which they are compared."""


def differing(one: pa.Table, other: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of each that the other has not, or not as often. Of columns with the same names, in any types.

    Two rows that differ count as equal once in 2^64 pairs.
    """
    if min(one.num_rows, other.num_rows) <= _FEW:
        return one, other
    mine, theirs = _counted(row_numbers(one)), _counted(row_numbers(other))
    return one.filter(pa.array(_lacking(mine, theirs))), other.filter(pa.array(_lacking(theirs, mine)))


def row_numbers(rows: pa.Table) -> np.ndarray:
    """A number (uint64[n]) of each row: of its columns' names and values; a null says nothing."""
    starts = range(0, rows.num_rows, _ROWS_AT_ONCE)
    parts = [_numbers(rows.slice(start, _ROWS_AT_ONCE)) for start in starts]
    return np.concatenate([np.empty(0, dtype=np.uint64), *parts])


def _numbers(rows: pa.Table) -> np.ndarray:
    found = np.zeros(rows.num_rows, dtype=np.uint64)
    for name, pieces in encoded(rows):
        for place, piece in enumerate(pieces):
            key = np.frombuffer(blake2b(f"{place} {name}".encode(), digest_size=8).digest(), dtype=np.uint64)
            values = _of_piece(piece)
            found += np.where(values == 0, values, mixed(values ^ key))
    return mixed(found)


def _lacking(numbers: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which numbers (bool) are not among the known ones; both in order first, since a search in order is fast."""
    if not len(known):
        return np.ones(len(numbers), dtype=bool)
    order, known = np.argsort(numbers), np.sort(known)
    asked = numbers[order]
    lacking = np.empty(len(numbers), dtype=bool)
    lacking[order] = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] != asked
    return lacking


def _counted(numbers: np.ndarray) -> np.ndarray:
    """Numbers of which none comes twice: the second of two that are equal is another one."""
    placed = np.sort(numbers)
    fresh = np.append(True, placed[1:] != placed[:-1])
    if fresh.all():
        return numbers
    order = np.argsort(numbers, kind="stable")
    places = np.arange(len(placed))
    times = places - np.maximum.accumulate(np.where(fresh, places, 0))
    counted = np.empty_like(numbers)
    counted[order] = placed + times.astype(np.uint64) * _ODD
    return counted


def _of_piece(piece: Piece) -> np.ndarray:
    """A number of the bytes of each run, word by word, or of all of them where they are the same; 0 of none."""
    if isinstance(piece, np.ndarray):
        return _of_equal(piece)
    data, bounds = ragged(piece)
    lengths = np.diff(bounds)
    if len(lengths) and (lengths == lengths[0]).all():
        return _of_equal(data[bounds[0] : bounds[-1]].reshape(len(lengths), -1))
    words = (lengths + 7) // 8
    ends = np.cumsum(words)
    runs = np.repeat(np.arange(len(words)), words)
    places = np.arange(len(runs)) - (ends - words)[runs]
    padded = np.append(data, np.zeros(8, dtype=np.uint8))
    begins = bounds[:-1][runs] + 8 * places
    # Eight bytes from any place on: numpy reads a word that begins anywhere.
    taken = np.ndarray((len(padded) - 7,), dtype=np.uint64, buffer=padded, strides=(1,))[begins]
    left = np.minimum(lengths[runs] - 8 * places, 8).astype(np.uint64)
    taken &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.uint64(8) * left)
    totals = np.append(np.uint64(0), np.cumsum(_of_words(taken, places)))
    return totals[ends] - totals[ends - words]


def _of_equal(runs: np.ndarray) -> np.ndarray:
    count, width = runs.shape
    words = -(-width // 8)
    padded = np.zeros((count, 8 * words), dtype=np.uint8)
    padded[:, :width] = runs
    whole = padded.view(np.uint64)
    if count and (whole == whole[0]).all():
        whole = whole[:1]  # as most times to live are
    found = np.zeros(len(whole), dtype=np.uint64)
    for place in range(words):
        found += _of_words(whole[:, place], np.full(1, place))
    return found


def _of_words(words: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Each word with its place in its run."""
    return mixed(words + (places + 1).astype(np.uint64) * _ODD)
