"""A number of 64 bits of each row, made of the encoding of its columns word by word, on whole columns at once.

A word is eight bytes of an encoding, little-endian, the last one of a run filled up with zeros; `mixed` spreads the
bits of a word (see `ring/mixing.py`), K is 0x9E3779B97F4A7C15, and all sums are modulo 2^64.

* The number of a run of bytes is the sum of `mixed(word + K (place + 1))` over its words, by their places from 0; that
  of no bytes is 0.
* A column puts in what `encoding` makes of its value; parts of one width that are neighbours are one part. Each part
  puts `mixed(number ^ key)` into the row, or nothing where its number is 0; the key is BLAKE2b (8 bytes, little-endian)
  of the part's place from 0, a space and the column's name. A null puts nothing, so that a column that a table gets
  later changes no number.
* The number of a row is `mixed(sum + K)`.

Two rows that differ have the same number once in 2^64 pairs. Who wants to can make such a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from cdc_platform.lake import encoding
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.encoding import Piece
from cdc_platform.ring.mixing import ODD, mixed
from cdc_platform.ring.tokens import Bools, UInt64s

# What is worked on at once stays in a core's cache.
_ROWS_AT_ONCE = 1 << 15
_WORDS_AT_ONCE = 1 << 15
_FEW_WORDS = 8


def row_numbers(rows: pa.Table) -> np.ndarray:
    """The number (uint64[n]) of each row, of its columns' names and values."""
    starts = range(0, rows.num_rows, _ROWS_AT_ONCE)
    parts = [_numbers(rows.slice(start, _ROWS_AT_ONCE)) for start in starts]
    return np.concatenate([np.empty(0, dtype=np.uint64), *parts])


def _numbers(rows: pa.Table) -> np.ndarray:
    found = np.full(rows.num_rows, ODD)
    waiting: list[tuple[UInt64s, np.uint64]] = []
    for name in rows.schema.names:
        values = encoding.one_array(rows[name])
        if values.null_count == len(values):
            continue
        given = np.asarray(compute.is_valid(values)) if values.null_count else None
        pieces = encoding.side_by_side(encoding.pieces_of(values if given is None else values.drop_null()))
        for place, piece in enumerate(pieces):
            waiting.append((_in_rows(_of_piece(piece), given), _key(name, place)))
            # Of few rows all parts are spread at once: each of numpy's calls takes a microsecond, whatever it works on.
            if len(waiting) * rows.num_rows >= _WORDS_AT_ONCE:
                found += _spread(waiting)
                waiting.clear()
    return mixed(found + _spread(waiting) if waiting else found)


def _in_rows(numbers: UInt64s, given: Bools | None) -> UInt64s:
    """The numbers of the values that are given, a row each; 0 of those that are not."""
    if given is None:
        return numbers
    found = np.zeros(len(given), dtype=np.uint64)
    found[given] = numbers
    return found


@lru_cache(maxsize=1 << 12)
def _key(name: str, place: int) -> np.uint64:
    return np.frombuffer(blake2b(f"{place} {name}".encode(), digest_size=8).digest(), dtype=np.uint64)[0]


def _spread(parts: Sequence[tuple[UInt64s, np.uint64]]) -> UInt64s:
    """What some parts put into their rows: their numbers, one for all rows or one for each, and each part's key."""
    numbers = np.empty((len(parts), max(len(each) for each, _ in parts)), dtype=np.uint64)
    for place, (each, _) in enumerate(parts):
        numbers[place] = each
    spread = mixed(numbers ^ np.array([key for _, key in parts])[:, None])
    if not numbers.all():
        spread[numbers == 0] = 0
    return spread.sum(axis=0, dtype=np.uint64)


def _of_piece(piece: Piece) -> np.ndarray:
    """A number of the bytes of each run, word by word, or of all of them where they are the same; 0 of none."""
    if isinstance(piece, np.ndarray):
        return _of_equal(piece)
    data, bounds = encoding.ragged(piece)
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
    totals = np.append(np.uint64(0), np.cumsum(mixed(taken + _keys(places))))
    return totals[ends] - totals[ends - words]


def _of_equal(runs: np.ndarray) -> np.ndarray:
    """The same of runs of one width."""
    words = _words(runs)
    if len(words) > 1 and (words == words[0]).all():
        words = words[:1]  # as most times to live are
    count, width = words.shape
    keys = _first_keys(width)
    if count * width <= _WORDS_AT_ONCE:
        return mixed(words + keys).sum(axis=1, dtype=np.uint64)
    found = np.zeros(count, dtype=np.uint64)
    if width <= _FEW_WORDS:
        for place in range(width):
            found += mixed(words[:, place] + keys[place : place + 1])
        return found
    at_once = max(1, _WORDS_AT_ONCE // width)
    for start in range(0, count, at_once):
        found[start : start + at_once] = mixed(words[start : start + at_once] + keys).sum(axis=1, dtype=np.uint64)
    return found


def _words(runs: np.ndarray) -> np.ndarray:
    """Runs of one width (uint8[n, width]) as words (uint64[n, words])."""
    count, width = runs.shape
    if width % 8:
        padded = np.zeros((count, width + -width % 8), dtype=np.uint8)
        padded[:, :width] = runs
        runs = padded
    return np.ascontiguousarray(runs).view(np.uint64) if width else np.empty((count, 0), dtype=np.uint64)


@lru_cache(maxsize=64)
def _first_keys(count: int) -> np.ndarray:
    return _keys(np.arange(count))


def _keys(places: np.ndarray) -> np.ndarray:
    return (places + 1).astype(np.uint64) * ODD
