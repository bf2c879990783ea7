"""Search for streams that occur more than once, within a generation and across generations.

The exact search shuffles stream IDs. It covers only ranges of the same number that overlap, as an ID carries its
range number and token. For one generation against all others a pass by 8-byte fingerprints comes first, and
fingerprints of small generations are stored in a table, so a join does not open thousands of files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.checks import inventory
from cdc_platform.checks.invariants import STREAMS_UNIQUE, STREAMS_UNIQUE_ACROSS_GENERATIONS, InvariantTally
from cdc_platform.checks.inventory import InventoryGeneration, StoredGenerationRows
from cdc_platform.checks.scan import GenerationRanges, distribute_files, split_stream_lists
from cdc_platform.delta import (
    Batches,
    DataFile,
    Lake,
    TaskRows,
    TaskRunner,
    read_file_batches,
    to_int64_array,
    to_python_values,
    translate_errors,
)
from cdc_platform.generations import StreamIds, decode_stream_ids, get_vnode_indexes, stream_id_words
from cdc_platform.ring import GOLDEN_RATIO_64, MINIMUM_TOKEN, Bools, Int64s, UInt8s, UInt64s, unique_tokens
from cdc_platform.storage import map_in_threads
from cdc_platform.tables import STREAM_FINGERPRINTS

_BITS_A_STREAM, _BITS_A_QUERY = 40, 16
_CHUNK = 1 << 15
FingerprintPart = tuple[UInt64s, np.ndarray]
"""The fingerprints (uint64[n]) of some streams, and the numbers (uint32[n]) of the ranges that they say they are of."""
_MIN_POWER, _MAX_POWER = 10, 29
"""Powers of two: the bits of the smallest array, and of the largest, which is 64 MiB."""
_loading = Lock()


class StreamFingerprints:
    """Of some streams, in parts as `fingerprint_part` makes them; `perhaps` and `among` say whether others are among
    them.

    A search for each would take a fifth of a second a million, and to sort them before it half as long. A bit for each
    answers for all but a fortieth of those that are not there. Streams of one range have theirs side by side, so that
    who asks for streams in their order finds the bits in the processor's cache: it takes a fifth of the time.
    """

    def __init__(self, made: Iterable[FingerprintPart]) -> None:
        parts = list(made)
        self._numbers = np.concatenate([np.empty(0, dtype=np.uint64), *(numbers for numbers, _ in parts)])
        power = _power(len(self._numbers), _BITS_A_STREAM)
        last = max((int(ranges.max(initial=0)) for _, ranges in parts), default=0)
        self._of_range = np.uint64(max(power - last.bit_length(), 1))
        self._bits = _BitArray(power)
        for numbers, ranges in parts:
            self._bits.put(self._places(numbers, ranges))

    def __len__(self) -> int:
        return len(self._numbers)

    def perhaps(self, streams: UInt8s) -> UInt64s:
        """The fingerprints of those of some streams that may be here: of those that are, and of few others."""
        numbers, ranges = fingerprint_part(streams)
        return numbers[self._bits.have(self._places(numbers, ranges))]

    def among(self, asked: UInt64s) -> int:
        """How many of some fingerprints are here."""
        power = _power(len(asked), _BITS_A_QUERY)
        bits, shift = _BitArray(power), np.uint64(64 - power)
        bits.put(asked >> shift)
        starts = range(0, len(self._numbers), _CHUNK)
        parts = (self._numbers[start : start + _CHUNK] for start in starts)
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


class _BitArray:
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


def load_fingerprints(files: tuple[str, ...]) -> StreamFingerprints:
    """Those of all streams in some files of a generation. What is there instead of a stream has one as well."""
    with _loading:  # the other threads need the same
        return _load_last(files)


@lru_cache(maxsize=1)
def _load_last(files: tuple[str, ...]) -> StreamFingerprints:
    # All threads wait for it: they may as well read.
    read = map_in_threads(_read_fingerprint_parts, files, os.cpu_count() or 1)
    return StreamFingerprints(chain.from_iterable(read))


def fingerprint_part(streams: UInt8s) -> FingerprintPart:
    """Some streams (uint8[n, 16]) as a part of `StreamFingerprints`."""
    words = stream_id_words(streams)
    return _fingerprint_words(words), get_vnode_indexes(words[:, 1]).astype(np.uint32)


def read_streams(files: Iterable[str]) -> Iterator[UInt8s]:
    """All streams in some files, in parts; zeros where there is something else instead of one."""
    for path in files:
        for batch in read_file_batches(path, ["streams"]):
            yield split_stream_lists(batch.column("streams"))[1]


def compute_fingerprints(streams: UInt8s) -> UInt64s:
    """The fingerprint of each stream (uint8[n, 16]) as uint64[n]; as tables keep them, so that it never changes."""
    return _fingerprint_words(stream_id_words(streams))


def _fingerprint_words(words: UInt64s) -> UInt64s:
    return (words[:, 0] ^ (words[:, 1] * GOLDEN_RATIO_64)) * GOLDEN_RATIO_64


def _power(count: int, bits_each: int) -> int:
    return min(max((count * bits_each).bit_length(), _MIN_POWER), _MAX_POWER)


def _read_fingerprint_parts(path: str) -> list[FingerprintPart]:
    return [fingerprint_part(streams) for streams in read_streams([path])]


def _bit(places: UInt64s) -> UInt8s:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))


_MAX_BYTES = 1 << 16
"""Of the files of a generation that is small: some four thousand streams. Of a larger one, to open it is the least."""
MIN_GENERATIONS_A_COMMIT = 8
"""So many that were read once more are kept: a commit a join would cost more than it saves."""
_STORED_DTYPE = np.dtype("<u8")


@dataclass(frozen=True, eq=False)
class FingerprintIndex:
    """The generations (UUIDs) that need not be read, and the `fingerprints` (uint64[]) of all of their streams."""

    generations: frozenset[str]
    fingerprints: UInt64s

    def meets(self, rows: StoredGenerationRows) -> bool:
        """Whether one of them may have a stream of these rows; False proves that none has."""
        return bool(len(self.fingerprints)) and load_fingerprints(tuple(rows.paths)).among(self.fingerprints) > 0


EMPTY_INDEX = FingerprintIndex(frozenset(), np.empty(0, dtype=np.uint64))


def read_fingerprint_index(lake: Lake, besides: str) -> FingerprintIndex:
    """What is kept of the generations as their files are now, but for one."""
    rows = lake.read(STREAM_FINGERPRINTS)
    if not rows.num_rows:
        return EMPTY_INDEX
    rows = rows.filter(
        _generation_mask(rows, _indexed_generations(rows, inventory.read_representative_files(lake)) - {besides})
    )
    columns = (to_python_values(rows[name]) for name in ("generation_id", "streams", "fingerprints"))
    whole = [
        (id_, value) for id_, count, value in zip(*columns, strict=True) if len(value) == count * _STORED_DTYPE.itemsize
    ]
    joined = np.frombuffer(b"".join(value for _, value in whole), dtype=_STORED_DTYPE)
    return FingerprintIndex(frozenset(id_ for id_, _ in whole), joined.astype(np.uint64, copy=False))


def store_fingerprints(lake: Lake, at_least: int | None = None, besides: str | None = None) -> int:
    """Keep those of the small generations that lack them, where these are `at_least` so many; answers of how many.

    What is there of others than these goes with it. `besides`: one that is on its way, whose rows get other files yet.

    Raises:
        PlatformError: the lake cannot be written to.
    """
    small = {
        id_: files
        for id_, files in inventory.read_representative_files(lake).items()
        if id_ != besides and sum(file.bytes for file in files) <= _MAX_BYTES
    }
    least = max(1, MIN_GENERATIONS_A_COMMIT if at_least is None else at_least)
    if len(small) < least:
        return 0
    lacking = set(small) - _indexed_generations(lake.read(STREAM_FINGERPRINTS, ["generation_id", "files"]), small)
    if len(lacking) < least:
        return 0
    made = pa.Table.from_pylist([_index_row(id_, small[id_]) for id_ in lacking], schema=STREAM_FINGERPRINTS.schema)

    def rule(before: pa.Table) -> pa.Table:
        standing = before.filter(_generation_mask(before, _indexed_generations(before, small) - lacking))
        return pa.concat_tables([standing, made]).sort_by("generation_id")

    lake.transact(STREAM_FINGERPRINTS, rule, whole=True)
    return len(lacking)


def check_stored_fingerprints(lake: Lake) -> list[str | None]:
    """Of each generation of which they are kept, as its files are now: what is wrong with them, or None."""
    there = inventory.read_representative_files(lake)
    rows = lake.read(STREAM_FINGERPRINTS)
    told = []
    for row in rows.filter(_generation_mask(rows, _indexed_generations(rows, there))).to_pylist():
        due = _index_row(row["generation_id"], there[row["generation_id"]])
        name = f"{STREAM_FINGERPRINTS.full_name} has generation {row['generation_id']} not as its streams are"
        told.append(None if row == due else name)
    return told


def _indexed_generations(rows: pa.Table, there: Mapping[str, Sequence[DataFile]]) -> set[str]:
    """The generations of rows that are of the very files that they have."""
    of = zip(to_python_values(rows["generation_id"]), rows["files"].to_pylist(), strict=True)
    return {id_ for id_, files in of if files == _file_names(there.get(id_, ()))}


def _generation_mask(rows: pa.Table, chosen: set[str]) -> pa.Array:
    return pa.array([id_ in chosen for id_ in to_python_values(rows["generation_id"])], pa.bool_())


def _index_row(generation_id: str, files: Sequence[DataFile]) -> dict[str, Any]:
    numbers = np.concatenate(
        [np.empty(0, np.uint64), *map(compute_fingerprints, read_streams([file.path for file in files]))]
    )
    return {
        "generation_id": generation_id,
        "files": _file_names(files),
        "streams": len(numbers),
        "fingerprints": np.sort(numbers).astype(_STORED_DTYPE).tobytes(),
    }


def _file_names(files: Sequence[DataFile]) -> list[str]:
    return sorted(file.path.rpartition("/")[2] for file in files)


# What one task compares: with 64 streams a range a million of them, 16 MB.
_RANGES_A_TASK = 1 << 14
_EMITTED_SCHEMA = "part int, generation int, streams bigint, strays bigint, ids binary"
_SEARCH_SCHEMA = pa.schema(
    {
        "streams": pa.int64(),
        "strays": pa.int64(),
        "violations": pa.int64(),
        "stream": pa.binary(),
        "first": pa.int32(),
        "last": pa.int32(),
    }
)
_PASS_SCHEMA = pa.schema({"streams": pa.int64(), "strays": pa.int64(), "met": pa.int64()})
_COUNT_SCHEMA = pa.schema({"streams": pa.int64()})


@dataclass(frozen=True, eq=False)
class _SearchSide:
    """A generation's part in the search. `contested` bool[n] are the ranges whose streams others may have, None when
    all of them are looked at; `counted`: its streams are part of the population; `in_order`: none is a stray.
    """

    number: int
    ranges: GenerationRanges
    contested: Bools | None
    counted: bool
    in_order: bool = False

    @property
    def only(self) -> Int64s | None:
        """The range ends (ascending) of the rows that are looked for in files; None where all are read.

        That is so as well where all are counted, and where most are contested, as on a ring that has not changed: to
        choose would take longer.
        """
        if self.counted or not self.in_order or self.contested is None:
            return None
        if 2 * self.contested.sum() > len(self.contested):
            return None
        return self.ranges.ends[self.contested]


@dataclass(frozen=True)
class _SearchResult:
    """What a search gave: streams counted, streams outside their ranges, streams that are there more than once."""

    streams: int
    strays: int
    violations: int
    stream: str = ""
    first: int = 0
    last: int = 0


def check_unique_within(workers: TaskRunner, holding: StoredGenerationRows) -> InvariantTally:
    """streams_unique of one generation, every stream against all others: for when its indexes prove nothing."""
    side = _SearchSide(0, GenerationRanges(unique_tokens(holding.range_ends)), None, counted=True)
    found = _search(workers, {holding: side}, limit=None)
    sample = f"stream {found.stream} comes more than once" if found.violations else ""
    return InvariantTally(STREAMS_UNIQUE, found.streams, found.violations, 0, sample)


def check_unique_across(
    workers: TaskRunner,
    mine: Sequence[InventoryGeneration],
    others: Sequence[InventoryGeneration],
    in_order: Collection[InventoryGeneration] = (),
) -> InvariantTally:
    """streams_unique_across_generations: the streams of `mine` that another generation, of `mine` or `others`, has.

    Each such stream is one violation. The population is the streams of `mine`, also where there is nothing to compare
    them with. `in_order`: those of which it is known that each stream lies in its range. One Spark job for one
    generation, two for several; at most four more where streams are shared or outside their ranges.
    """
    held = [each for each in [*mine, *others] if each.rows is not None]
    limit = sum(each.rows is not None for each in mine)
    holdings = [each.rows for each in held if each.rows is not None]
    if not limit:
        return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, 0, 0)
    if len(holdings) == 1:
        return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, _count_streams(workers, holdings[0]), 0)
    known = {each.rows for each in in_order if each.rows is not None}
    sides = _search_sides(holdings, limit, known)
    if limit == 1:
        passed = _fingerprint_pass(workers, sides)
        if not passed.strays and not passed.violations:
            return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, passed.streams, 0)
    found = _search(workers, sides, limit)
    if found.strays:
        # A stream that is not in its own range may be in any range of another generation.
        found = _search(workers, _search_sides(holdings, limit, everything=True), limit)
    one, other = held[found.first].name, held[found.last].name
    sample = f"stream {found.stream} of generation {one} is in generation {other} as well" if found.violations else ""
    return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, found.streams, found.violations, 0, sample)


def contested_ranges(ends: Sequence[Int64s], limit: int) -> list[Bools]:
    """Of each generation, given by its range ends, the ranges that overlap the range of the same number in another.

    One of the two has to be below the `limit`. One against the others goes by pairs, range by range; several by
    counting those that lie before and behind: thousands of generations cost what sorting their ranges does.
    """
    if limit == 1:
        return _contested_by_pairs(ends[0], ends[1:])
    owners = np.repeat(np.arange(len(ends)), [len(each) for each in ends])
    numbers = np.concatenate([np.arange(len(each)) for each in ends])
    tokens = np.concatenate(ends)
    # What a range number and a token come to, in one number that sorts as both do.
    values, ranks = np.unique(tokens, return_inverse=True)
    to = numbers * len(values) + ranks
    since = np.where(numbers == 0, to, numbers * len(values) + np.roll(ranks, 1))
    found = np.zeros(len(tokens), dtype=bool)
    for asking, compared in ((owners < limit, np.ones_like(found)), (owners >= limit, owners < limit)):
        first, last = numbers[asking] * len(values), (numbers[asking] + 1) * len(values)
        by_end, by_start = np.sort(to[compared]), np.sort(since[compared])
        alike = np.searchsorted(by_end, last) - np.searchsorted(by_end, first)
        before = np.searchsorted(by_end, since[asking], "right") - np.searchsorted(by_end, first)
        behind = np.searchsorted(by_start, last) - np.searchsorted(by_start, to[asking])
        # The first ranges wrap: the least token is in each of them.
        others = np.where(numbers[asking] == 0, alike, alike - before - behind)
        found[asking] = others > compared[asking]
    return np.split(found, np.cumsum([len(each) for each in ends])[:-1])


def _contested_by_pairs(one: Int64s, others: Sequence[Int64s]) -> list[Bools]:
    """The same of one generation against others, as `contested` gives them."""
    mine, found = np.zeros(len(one), dtype=bool), []
    for other in others:
        both = min(len(one), len(other))
        theirs = np.zeros(len(other), dtype=bool)
        theirs[1:both] = (one[1:both] > other[: both - 1]) & (other[1:both] > one[: both - 1])
        theirs[: both > 0] = True  # the first ranges wrap: the least token is in each of them
        mine[:both] |= theirs[:both]
        found.append(theirs)
    return [mine, *found]


def count_repeated_streams(ids: UInt8s, generations: Int64s, limit: int | None) -> tuple[int, Int64s]:
    """How many violations there are among streams (uint8[n, 16]) of generations (int64[n]), and one of them.

    With a `limit`, a stream is one violation when a generation below it has the stream and another one has it as
    well; without, every repetition is one. The example is a pair of places: the first and the last holder of the
    first such stream; empty where there is none.
    """
    words = stream_id_words(ids)
    # Nearly all streams differ in their random bits, which are the first: what is left is compared in full.
    places = _places_with_equal_prefix(words[:, 1])
    words, owners = words[places], generations[places]
    order = np.lexsort((owners, words[:, 1], words[:, 0]))
    words, owners, places = words[order], owners[order], places[order]
    fresh = np.ones(len(places), dtype=bool)
    fresh[1:] = (words[1:] != words[:-1]).any(axis=1)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(places))[: len(first)] - 1
    if limit is None:
        violations, wrong = int((last - first).sum()), last > first
    else:
        wrong = (owners[first] < limit) & (owners[first] != owners[last])
        violations = int(wrong.sum())
    where = np.flatnonzero(wrong)[:1]
    return violations, places[np.concatenate([first[where], last[where]])]


def _places_with_equal_prefix(words: UInt64s) -> Int64s:
    """The places of words that have their first bits in common with another one: all that are equal, and few others.

    The last bits make room for the place of each, so that one sort of numbers, without one of places beside it, tells
    both: it takes a fifth of the time.
    """
    room = np.uint64(max(len(words).bit_length(), 1))
    placed = np.sort((words >> room << room) | np.arange(len(words), dtype=np.uint64))
    alike = placed[1:] >> room == placed[:-1] >> room
    met = placed[np.append(alike, False) | np.insert(alike, 0, False)] if len(words) else placed
    return (met & ((np.uint64(1) << room) - np.uint64(1))).astype(np.int64)


def _search_sides(
    holdings: Sequence[StoredGenerationRows],
    limit: int,
    in_order: Collection[StoredGenerationRows] = (),
    *,
    everything: bool = False,
) -> dict[StoredGenerationRows, _SearchSide]:
    ranges = [GenerationRanges(unique_tokens(holding.range_ends)) for holding in holdings]
    looked_at = [None] * len(ranges) if everything else contested_ranges([each.ends for each in ranges], limit)
    return {
        holding: _SearchSide(number, ranges[number], looked_at[number], number < limit, holding in in_order)
        for number, holding in enumerate(holdings)
    }


def _parts(sides: Mapping[StoredGenerationRows, _SearchSide]) -> int:
    looked_at = sum(
        len(side.ranges.ends) if side.contested is None else int(side.contested.sum()) for side in sides.values()
    )
    return 1 + looked_at // _RANGES_A_TASK


def _fingerprint_pass(workers: TaskRunner, sides: Mapping[StoredGenerationRows, _SearchSide]) -> _SearchResult:
    """Hold all others against the first of them, by fingerprints: no violation found is none there.

    The first is read for them alone where it is known that each of its streams lies in its range: they count it.
    """
    (first, one), *_ = sides.items()
    workers, files = workers.of_arrays(), tuple(first.paths)
    read = {holding: side for holding, side in sides.items() if side is not one or not one.in_order}
    shares = _distribute_sides(workers, read) or [[]]

    def held(share: int) -> Iterator[pa.RecordBatch]:
        found, perhaps = np.zeros(2, dtype=np.int64), []
        if one.in_order and share == 0:
            found[0] = len(load_fingerprints(files))
        for side, path in shares[share]:
            for batch in _read_side(side, path):
                streams, strays, chosen = _streams_to_compare(side, batch)
                found += streams, strays
                if not side.counted:
                    perhaps.append(load_fingerprints(files).perhaps(chosen))
        met = load_fingerprints(files).among(np.concatenate(perhaps)) if perhaps else 0
        yield pa.RecordBatch.from_arrays([pa.array([number]) for number in (*found, met)], schema=_PASS_SCHEMA)

    with translate_errors("comparing streams"):
        passed = workers.table(TaskRows(len(shares), held), _PASS_SCHEMA)
    streams, strays, met = (sum(passed[name].to_pylist()) for name in _PASS_SCHEMA.names)
    return _SearchResult(streams, strays, met)


def _distribute_sides(
    workers: TaskRunner, sides: Mapping[StoredGenerationRows, _SearchSide]
) -> list[list[tuple[_SearchSide, str]]]:
    """The files that are read, for each task."""
    needed = [(side, holding) for holding, side in sides.items() if side.only is None or len(side.only)]
    return distribute_files(workers, [(side, file) for side, holding in needed for file in holding.files])


def _search(workers: TaskRunner, sides: Mapping[StoredGenerationRows, _SearchSide], limit: int | None) -> _SearchResult:
    """Bring equal streams together and count them, see `count_repeated_streams`."""
    workers = workers.of_arrays()
    parts, shares = _parts(sides), _distribute_sides(workers, sides)
    emitted = TaskRows(
        len(shares), lambda share: chain.from_iterable(_emit_file(*file, parts) for file in shares[share])
    )
    with translate_errors("comparing streams"):
        found = _compare_parts(workers, emitted, parts, _make_comparison(limit)).to_pylist()
    streams, strays, violations = (sum(row[name] for row in found) for name in ("streams", "strays", "violations"))
    example: dict[str, Any] | None = next((row for row in found if row["violations"]), None)
    if example is None:
        return _SearchResult(streams, strays, violations)
    return _SearchResult(streams, strays, violations, f"0x{example['stream'].hex()}", example["first"], example["last"])


def _compare_parts(
    workers: TaskRunner, emitted: TaskRows, parts: int, compare: Callable[[Batches], Batches]
) -> pa.Table:
    """What `compare` finds in each of the `parts` of all that was emitted."""
    if workers.work_here(max(emitted.tasks, parts)):
        everything = TaskRows(1, lambda _: chain.from_iterable(map(emitted.batches, range(emitted.tasks))))
        return workers.table(everything.through(compare), _SEARCH_SCHEMA)
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = emitted.frame(workers.session(), _EMITTED_SCHEMA).repartition(parts, "part")
    return frame.mapInArrow(compare, from_arrow_schema(_SEARCH_SCHEMA)).toArrow()


def _emit_file(side: _SearchSide, path: str, parts: int) -> Iterator[pa.RecordBatch]:
    """The IDs of a file's contested streams, cut into parts; runs on the executors."""
    for batch in _read_side(side, path):
        yield _cut_into_parts(side, batch, parts)


def _read_side(side: _SearchSide, path: str) -> Batches:
    return read_file_batches(path, ["range_end", "streams"], None if side.only is None else ("range_end", side.only))


def _streams_to_compare(side: _SearchSide, rows: pa.RecordBatch) -> tuple[int, int, UInt8s]:
    """Of rows of a generation: how many of their streams are counted, how many are strays, and those to compare."""
    lengths, streams, damaged = split_stream_lists(rows.column("streams"))
    whole = np.ones(len(streams), dtype=bool)
    whole[list(damaged)] = False
    # A null, which only a foreign writer can leave, is the minimum token, which no key has.
    ends = to_int64_array(rows.column("range_end"), MINIMUM_TOKEN)
    places, lengths = np.searchsorted(side.ranges.ends, ends), np.maximum(lengths, 0)
    strays, chosen = 0, whole
    if side.contested is not None:
        if not side.contested[places].all():
            chosen = whole & np.repeat(side.contested[places], lengths)
        if not side.in_order:
            strays = int((_strays(side.ranges, places, lengths, decode_stream_ids(streams)) & whole).sum())
    # Nearly always all of them are, and a copy of them would take as long as to compare them.
    compared = streams if chosen is whole and not damaged else streams[chosen]
    return len(streams) - len(damaged) if side.counted else 0, strays, compared


def _strays(ranges: GenerationRanges, places: Int64s, lengths: Int64s, streams: StreamIds) -> Bools:
    """Which streams are not of the range of their row: rows of so many, whose ranges are at these places."""
    tokens, indexes = streams.tokens, streams.indexes
    if len(lengths) and lengths[0] > 0 and (lengths == lengths[0]).all():
        # As on a ring of equal nodes: what is of a range is worked out once for all of its streams.
        tokens, indexes, ranks = tokens.reshape(-1, lengths[0]), indexes.reshape(-1, lengths[0]), places[:, None]
    else:
        ranks = np.repeat(places, lengths)
    return ((indexes != ranks) | ~ranges.holds(ranks, tokens)).ravel()


def _cut_into_parts(side: _SearchSide, rows: pa.RecordBatch, parts: int) -> pa.RecordBatch:
    streams, strays, ids = _streams_to_compare(side, rows)
    part = (decode_stream_ids(ids).randoms % np.uint64(parts)).astype(np.uint16 if parts <= 1 << 16 else np.int64)
    ids = ids[np.argsort(part, kind="stable")] if parts > 1 else ids
    bounds = np.append(0, np.cumsum(np.bincount(part, minlength=parts))).tolist()
    cut = [ids[lo:hi].tobytes() for lo, hi in pairwise(bounds)]
    columns = {
        "part": pa.array(range(parts), pa.int32()),
        "generation": pa.repeat(pa.scalar(side.number, pa.int32()), parts),
        # Counted once, not in every part.
        "streams": pa.array([streams] + [0] * (parts - 1)),
        "strays": pa.array([strays] + [0] * (parts - 1)),
        "ids": pa.array(cut, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _make_comparison(limit: int | None) -> Callable[[Batches], Batches]:
    """The function that runs where the parts of all generations come together."""

    def compare(batches: Batches) -> Batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
        ids = np.frombuffer(b"".join(row["ids"] for row in rows), dtype=np.uint8).reshape(-1, 16)
        owners = np.repeat([row["generation"] for row in rows], [len(row["ids"]) // 16 for row in rows])
        violations, pair = count_repeated_streams(ids, owners.astype(np.int64), limit)
        first, last = pair.tolist() if violations else (None, None)
        columns = {
            "streams": pa.array([sum(row["streams"] for row in rows)], pa.int64()),
            "strays": pa.array([sum(row["strays"] for row in rows)], pa.int64()),
            "violations": pa.array([violations], pa.int64()),
            "stream": pa.array([None if first is None else ids[first].tobytes()], pa.binary()),
            "first": pa.array([None if first is None else owners[first]], pa.int32()),
            "last": pa.array([None if last is None else owners[last]], pa.int32()),
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_SEARCH_SCHEMA)

    return compare


def _count_streams(workers: TaskRunner, holding: StoredGenerationRows) -> int:
    """How many streams a generation has."""
    workers = workers.of_arrays()
    shares = distribute_files(workers, [(None, file) for file in holding.files])

    def count(share: int) -> Iterator[pa.RecordBatch]:
        for _, path in shares[share]:
            for batch in read_file_batches(path, ["streams"]):
                yield pa.RecordBatch.from_pydict({"streams": pa.array([len(batch.column("streams").flatten())])})

    with translate_errors("counting streams"):
        counted = workers.table(TaskRows(len(shares), count), _COUNT_SCHEMA)
    return sum(counted["streams"].to_pylist())
