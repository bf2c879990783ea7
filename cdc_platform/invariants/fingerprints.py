"""The streams of one generation as numbers of eight bytes: who has none of them has none of its streams.

To tell that of a generation takes a pass over its files, where to find which streams two have in common takes a shuffle
of all of them. A task makes the fingerprints itself, of the one generation's files, once a process: a file never
changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from threading import Lock

import numpy as np

from cdc_platform.generations.stream_ids import indexes_of, ordered_words
from cdc_platform.invariants.one_pass import row_streams
from cdc_platform.lake.threads import side_by_side
from cdc_platform.lake.volume import file_batches
from cdc_platform.ring.mixing import ODD
from cdc_platform.ring.tokens import Bools, UInt8s, UInt64s

_BITS_A_STREAM, _BITS_A_QUESTION = 40, 16
_AT_ONCE = 1 << 15
Part = tuple[UInt64s, np.ndarray]
"""The fingerprints (uint64[n]) of some streams, and the numbers (uint32[n]) of the ranges that they say they are of."""
_LEAST, _MOST = 10, 29
"""Powers of two: the bits of the smallest array, and of the largest, which is 64 MiB."""
_making = Lock()


class Fingerprints:
    """Of some streams, in parts as `part_of` makes them; `perhaps` and `among` say whether others are among them.

    A search for each would take a fifth of a second a million, and to sort them before it half as long. A bit for each
    answers for all but a fortieth of those that are not there. Streams of one range have theirs side by side, so that
    who asks for streams in their order finds the bits in the processor's cache: it takes a fifth of the time.
    """

    def __init__(self, made: Iterable[Part]) -> None:
        parts = list(made)
        self._numbers = np.concatenate([np.empty(0, dtype=np.uint64), *(numbers for numbers, _ in parts)])
        power = _power(len(self._numbers), _BITS_A_STREAM)
        last = max((int(ranges.max(initial=0)) for _, ranges in parts), default=0)
        self._of_range = np.uint64(max(power - last.bit_length(), 1))
        self._bits = _Bits(power)
        for numbers, ranges in parts:
            self._bits.put(self._places(numbers, ranges))

    def __len__(self) -> int:
        return len(self._numbers)

    def perhaps(self, streams: UInt8s) -> UInt64s:
        """The fingerprints of those of some streams that may be here: of those that are, and of few others."""
        numbers, ranges = part_of(streams)
        return numbers[self._bits.have(self._places(numbers, ranges))]

    def among(self, asked: UInt64s) -> int:
        """How many of some fingerprints are here."""
        power = _power(len(asked), _BITS_A_QUESTION)
        bits, shift = _Bits(power), np.uint64(64 - power)
        bits.put(asked >> shift)
        starts = range(0, len(self._numbers), _AT_ONCE)
        parts = (self._numbers[start : start + _AT_ONCE] for start in starts)
        here = np.sort(np.concatenate([asked[:0], *(part[bits.have(part >> shift)] for part in parts)]))
        if not len(here):
            return 0
        found = np.searchsorted(here, asked)
        return int((here[np.minimum(found, len(here) - 1)] == asked).sum())

    def _places(self, numbers: UInt64s, ranges: np.ndarray) -> UInt64s:
        """Where the bits of fingerprints are: by the numbers of their streams' ranges, then by themselves."""
        places = ranges.astype(np.uint64) << self._of_range
        places |= numbers >> (np.uint64(64) - self._of_range)
        places &= np.uint64((1 << self._bits.power) - 1)
        return places


class _Bits:
    """2^power bits, which are put and asked for by their places (uint64[n])."""

    def __init__(self, power: int) -> None:
        self.power = power
        self._bytes = np.zeros(1 << (power - 3), dtype=np.uint8)

    def put(self, places: UInt64s) -> None:
        np.bitwise_or.at(self._bytes, (places >> np.uint64(3)).view(np.int64), _bit(places))

    def have(self, places: UInt64s) -> Bools:
        # All places are there: to look whether they are takes as long as to look them up.
        found = self._bytes.take((places >> np.uint64(3)).view(np.int64), mode="clip")
        found &= _bit(places)
        return found != 0


def fingerprints_of(files: tuple[str, ...]) -> Fingerprints:
    """Those of all streams in some files of a generation. What is there instead of a stream has one as well."""
    with _making:  # the other threads need the same
        return _last(files)


@lru_cache(maxsize=1)
def _last(files: tuple[str, ...]) -> Fingerprints:
    # All threads wait for it: they may as well read.
    read = side_by_side(_read, files, os.cpu_count() or 1)
    return Fingerprints(chain.from_iterable(read))


def part_of(streams: UInt8s) -> Part:
    """Some streams (uint8[n, 16]) as a part of `Fingerprints`."""
    words = ordered_words(streams)
    return _of_words(words), indexes_of(words[:, 1]).astype(np.uint32)


def streams_of(files: Iterable[str]) -> Iterator[UInt8s]:
    """All streams in some files, in parts; zeros where there is something else instead of one."""
    for path in files:
        for batch in file_batches(path, ["streams"]):
            yield row_streams(batch.column("streams"))[1]


def numbers_of(streams: UInt8s) -> UInt64s:
    """The fingerprint of each stream (uint8[n, 16]) as uint64[n]; as tables keep them, so that it never changes."""
    return _of_words(ordered_words(streams))


def _of_words(words: UInt64s) -> UInt64s:
    return (words[:, 0] ^ (words[:, 1] * ODD)) * ODD


def _power(count: int, bits_each: int) -> int:
    return min(max((count * bits_each).bit_length(), _LEAST), _MOST)


def _read(path: str) -> list[Part]:
    return [part_of(streams) for streams in streams_of([path])]


def _bit(places: UInt64s) -> UInt8s:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))
