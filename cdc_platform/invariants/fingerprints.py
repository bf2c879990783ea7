"""The streams of one generation as numbers of eight bytes: who has none of them has none of its streams.

To tell that of a generation takes a pass over its files, where to find which streams two have in common takes a shuffle
of all of them. A task makes the fingerprints itself, of the one generation's files, once a process: a file never
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from threading import Lock

import numpy as np

from cdc_platform.generations.stream_ids import ordered_words
from cdc_platform.invariants.one_pass import row_streams
from cdc_platform.lake.volume import file_batches
from cdc_platform.ring.tokens import UInt8s, UInt64s

_MIXING = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without a pattern: what is multiplied by it differs in its first bits where it differs anywhere."""
_BITS_A_STREAM = 40
_LEAST, _MOST = 10, 29
"""Powers of two: the bits of the smallest array, and of the largest, which is 64 MiB."""
_making = Lock()


class Fingerprints:
    """Of some streams, in parts (uint8[n, 16]); `met` says whether others are among them.

    A search for each would take a fifth of a second a million. A bit for each, at the place that its first bits name,
    answers for all but a fortieth of those that are not there.
    """

    def __init__(self, streams: Iterable[UInt8s]) -> None:
        self._sorted = np.concatenate([np.empty(0, dtype=np.uint64), *map(numbers_of, streams)])
        self._sorted.sort()
        power = min(max((len(self._sorted) * _BITS_A_STREAM).bit_length(), _LEAST), _MOST)
        self._shift = np.uint64(64 - power)
        self._bits = np.zeros(1 << (power - 3), dtype=np.uint8)
        places = self._sorted >> self._shift
        np.bitwise_or.at(self._bits, places >> np.uint64(3), _bit(places))

    def met(self, streams: UInt8s) -> int:
        """How many of some streams have a fingerprint that is here: 0 proves that none of them is."""
        return self.among(numbers_of(streams))

    def among(self, asked: UInt64s) -> int:
        """How many of some fingerprints are here."""
        places = asked >> self._shift
        asked = asked[(self._bits[places >> np.uint64(3)] & _bit(places)) != 0]
        found = np.searchsorted(self._sorted, asked)
        return int((self._sorted[np.minimum(found, len(self._sorted) - 1)] == asked).sum()) if len(asked) else 0


def fingerprints_of(files: tuple[str, ...]) -> Fingerprints:
    """Those of all streams in some files of a generation. What is there instead of a stream has one as well."""
    with _making:  # the other threads need the same
        return _last(files)


@lru_cache(maxsize=1)
def _last(files: tuple[str, ...]) -> Fingerprints:
    return Fingerprints(streams_of(files))


def streams_of(files: Iterable[str]) -> Iterator[UInt8s]:
    """All streams in some files, in parts; zeros where there is something else instead of one."""
    for path in files:
        for batch in file_batches(path, ["streams"]):
            yield row_streams(batch.column("streams"))[1]


def numbers_of(streams: UInt8s) -> UInt64s:
    """The fingerprint of each stream (uint8[n, 16]) as uint64[n]; as tables keep them, so that it never changes."""
    words = ordered_words(streams)
    return (words[:, 0] ^ (words[:, 1] * _MIXING)) * _MIXING


def _bit(places: UInt64s) -> UInt8s:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))
