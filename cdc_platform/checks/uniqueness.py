"""Search for streams that occur more than once, within a generation and across generations.

The exact search shuffles stream IDs. It covers only overlapping ranges with the same number, because an ID contains its
range number and token. For one generation against all others, a pass by 8-byte fingerprints comes first. Fingerprints
of small generations are stored in a table, so that a join does not open thousands of files.
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
from cdc_platform.ring import GOLDEN_RATIO_64, MINIMUM_TOKEN, Bools, Int64s, UInt8s, UInt64s, is_in_range, unique_tokens
from cdc_platform.storage import map_in_threads
from cdc_platform.tables import STREAM_FINGERPRINTS

_BITS_A_STREAM, _BITS_A_QUERY = 40, 16
_CHUNK = 1 << 15
FingerprintPart = tuple[UInt64s, np.ndarray]
"""The fingerprints (uint64[n]) of some streams, and the range numbers (uint32[n]) in their IDs."""
_MIN_POWER, _MAX_POWER = 10, 29
"""Powers of two: the bits of the smallest array, and of the largest, which is 64 MiB."""
_loading = Lock()


class StreamFingerprints:
    """Fingerprints of streams, from parts that `fingerprint_part` makes, with tests for membership.

    A binary search for each would take a fifth of a second per million, and sorting before it half as long. One bit for
    each answers for all but a fortieth of those that are absent. Streams of one range have adjacent bits, so that
    queries in ring order find the bits in the processor's cache, which takes a fifth of the time.
    """

    def __init__(self, parts: Iterable[FingerprintPart]) -> None:
        parts = list(parts)  # iterated twice
        self._numbers = np.concatenate([np.empty(0, dtype=np.uint64), *(numbers for numbers, _ in parts)])
        power = _power(len(self._numbers), _BITS_A_STREAM)
        last = max((int(ranges.max(initial=0)) for _, ranges in parts), default=0)
        self._range_shift = np.uint64(max(power - last.bit_length(), 1))
        self._bits = _BitArray(power)
        for numbers, ranges in parts:
            self._bits.put(self._places(numbers, ranges))

    def __len__(self) -> int:
        return len(self._numbers)

    def filter_candidates(self, streams: UInt8s) -> UInt64s:
        """Return the fingerprints of the streams that may be here: of those that are, and of few others."""
        numbers, ranges = fingerprint_part(streams)
        return numbers[self._bits.have(self._places(numbers, ranges))]

    def count_present(self, wanted: UInt64s) -> int:
        """Return how many of some fingerprints are here."""
        power = _power(len(wanted), _BITS_A_QUERY)
        bits, shift = _BitArray(power), np.uint64(64 - power)
        bits.put(wanted >> shift)
        starts = range(0, len(self._numbers), _CHUNK)
        parts = (self._numbers[start : start + _CHUNK] for start in starts)
        present = np.sort(np.concatenate([wanted[:0], *(part[bits.have(part >> shift)] for part in parts)]))
        if not len(present):
            return 0
        positions = np.searchsorted(present, wanted)
        return int((present[np.minimum(positions, len(present) - 1)] == wanted).sum())

    def _places(self, numbers: UInt64s, ranges: np.ndarray) -> UInt64s:
        """Return the positions of fingerprints' bits: by range number, then by the fingerprints themselves."""
        positions = ranges.astype(np.uint64) << self._range_shift
        positions |= numbers >> (np.uint64(64) - self._range_shift)
        positions &= np.uint64((1 << self._bits.power) - 1)
        return positions


class _BitArray:
    """2^power bits that are set and tested by their positions (uint64[n])."""

    def __init__(self, power: int) -> None:
        self.power = power
        self._bytes = np.zeros(1 << (power - 3), dtype=np.uint8)

    def put(self, places: UInt64s) -> None:
        np.bitwise_or.at(self._bytes, (places >> np.uint64(3)).view(np.int64), _bit(places))

    def have(self, places: UInt64s) -> Bools:
        # All positions are valid; checking them takes as long as looking them up.
        bits = self._bytes.take((places >> np.uint64(3)).view(np.int64), mode="clip")
        bits &= _bit(places)
        return bits != 0


def load_fingerprints(files: tuple[str, ...]) -> StreamFingerprints:
    """Return the fingerprints of all streams in files of a generation, including those of damaged values."""
    with _loading:  # the other threads need the same files
        return _load_last(files)


@lru_cache(maxsize=1)
def _load_last(files: tuple[str, ...]) -> StreamFingerprints:
    # All other threads wait for this result, so use them to read.
    read = map_in_threads(_read_fingerprint_parts, files, os.cpu_count() or 1)
    return StreamFingerprints(chain.from_iterable(read))


def fingerprint_part(streams: UInt8s) -> FingerprintPart:
    """Return the streams (uint8[n, 16]) as a part of `StreamFingerprints`."""
    words = stream_id_words(streams)
    return _fingerprint_words(words), get_vnode_indexes(words[:, 1]).astype(np.uint32)


def read_streams(files: Iterable[str]) -> Iterator[UInt8s]:
    """Yield all streams of the files in parts, with zeros for damaged values."""
    for path in files:
        for batch in read_file_batches(path, ["streams"]):
            yield split_stream_lists(batch.column("streams"))[1]


def compute_fingerprints(streams: UInt8s) -> UInt64s:
    """Return the fingerprint of each stream (uint8[n, 16]) as uint64[n]. Tables store it, so it never changes."""
    return _fingerprint_words(stream_id_words(streams))


def _fingerprint_words(words: UInt64s) -> UInt64s:
    return (words[:, 0] ^ (words[:, 1] * GOLDEN_RATIO_64)) * GOLDEN_RATIO_64


def _power(count: int, bits_per_item: int) -> int:
    return min(max((count * bits_per_item).bit_length(), _MIN_POWER), _MAX_POWER)


def _read_fingerprint_parts(path: str) -> list[FingerprintPart]:
    return [fingerprint_part(streams) for streams in read_streams([path])]


def _bit(places: UInt64s) -> UInt8s:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))


_MAX_BYTES = 1 << 16
"""The size of the files of a small generation, some four thousand streams. For a larger one, opening is a minor cost.
"""
MIN_GENERATIONS_A_COMMIT = 8
"""How many newly read generations justify storing: one commit per join would cost more than it saves."""
_STORED_DTYPE = np.dtype("<u8")


@dataclass(frozen=True, eq=False)
class FingerprintIndex:
    """The generations (UUIDs) that need not be read, and the `fingerprints` (uint64[]) of all of their streams."""

    generations: frozenset[str]
    fingerprints: UInt64s

    def may_share_stream(self, rows: StoredGenerationRows) -> bool:
        """Return True if one of them may have a stream of these rows; False proves that none has."""
        return (
            bool(len(self.fingerprints)) and load_fingerprints(tuple(rows.paths)).count_present(self.fingerprints) > 0
        )


EMPTY_INDEX = FingerprintIndex(frozenset(), np.empty(0, dtype=np.uint64))


def read_fingerprint_index(lake: Lake, besides: str | None) -> FingerprintIndex:
    """Return the stored fingerprints that match the current files of generations other than `besides`."""
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
    """Store fingerprints of small generations that lack them, if at least `at_least` do; return how many.

    This also removes the stored fingerprints of other generations. `besides`: a generation in progress, whose files
    will still change.

    Raises:
        PlatformError: the lake cannot be written to.
    """
    small = {
        id_: files
        for id_, files in inventory.read_representative_files(lake).items()
        if id_ != besides and sum(file.bytes for file in files) <= _MAX_BYTES
    }
    minimum = max(1, MIN_GENERATIONS_A_COMMIT if at_least is None else at_least)
    if len(small) < minimum:
        return 0
    missing = set(small) - _indexed_generations(lake.read(STREAM_FINGERPRINTS, ["generation_id", "files"]), small)
    if len(missing) < minimum:
        return 0
    new_rows = pa.Table.from_pylist([_index_row(id_, small[id_]) for id_ in missing], schema=STREAM_FINGERPRINTS.schema)

    def rule(before: pa.Table) -> pa.Table:
        remaining = before.filter(_generation_mask(before, _indexed_generations(before, small) - missing))
        return pa.concat_tables([remaining, new_rows]).sort_by("generation_id")

    lake.transact(STREAM_FINGERPRINTS, rule, whole=True)
    return len(missing)


def check_stored_fingerprints(lake: Lake) -> list[str | None]:
    """Return, for each generation with stored fingerprints of its current files, what is wrong with them, or None."""
    files = inventory.read_representative_files(lake)
    rows = lake.read(STREAM_FINGERPRINTS)
    results = []
    for row in rows.filter(_generation_mask(rows, _indexed_generations(rows, files))).to_pylist():
        expected = _index_row(row["generation_id"], files[row["generation_id"]])
        name = f"{STREAM_FINGERPRINTS.full_name} has generation {row['generation_id']} not as its streams are"
        results.append(None if row == expected else name)
    return results


def _indexed_generations(rows: pa.Table, current_files: Mapping[str, Sequence[DataFile]]) -> set[str]:
    """Return the generations whose rows are of exactly their current files."""
    indexed = zip(to_python_values(rows["generation_id"]), rows["files"].to_pylist(), strict=True)
    return {id_ for id_, files in indexed if files == _file_names(current_files.get(id_, ()))}


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


# The ranges that one task compares: with 64 streams per range these are a million streams, 16 MB.
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
    """A generation's part in the search.

    `contested` bool[n] are the ranges whose streams others may have, None if all of them are searched; `counted`: its
    streams are part of the population; `in_order`: none of its streams is outside its range.
    """

    number: int
    ranges: GenerationRanges
    contested: Bools | None
    counted: bool
    in_order: bool = False

    @property
    def only(self) -> Int64s | None:
        """Return the range ends (ascending) of the rows to read from files, or None to read all.

        All are read if all are counted, and if most are contested, as on an unchanged ring, where choosing would take
        longer.
        """
        if self.counted or not self.in_order or self.contested is None:
            return None
        if 2 * self.contested.sum() > len(self.contested):
            return None
        return self.ranges.ends[self.contested]


@dataclass(frozen=True)
class _SearchResult:
    """The result of a search: streams counted, streams outside their ranges, streams that occur more than once."""

    streams: int
    strays: int
    violations: int
    stream: str = ""
    first: int = 0
    last: int = 0


def check_unique_within(workers: TaskRunner, holding: StoredGenerationRows) -> InvariantTally:
    """Check streams_unique of one generation by comparing every stream, for use when its indexes prove nothing."""
    side = _SearchSide(0, GenerationRanges(unique_tokens(holding.range_ends)), None, counted=True)
    result = _search(workers, {holding: side}, limit=None)
    sample = f"stream {result.stream} comes more than once" if result.violations else ""
    return InvariantTally(STREAMS_UNIQUE, result.streams, result.violations, 0, sample)


def check_unique_across(
    workers: TaskRunner,
    mine: Sequence[InventoryGeneration],
    others: Sequence[InventoryGeneration],
    in_order: Collection[InventoryGeneration] = (),
) -> InvariantTally:
    """Check streams_unique_across_generations: the streams of `mine` that another generation of `mine` or `others` has.

    Each such stream is one violation. The population is the streams of `mine`, even if there is nothing to compare them
    with. `in_order`: generations whose streams are known to lie in their ranges. It runs one Spark job for one
    generation, two for several, and at most four more if streams are shared or outside their ranges.
    """
    with_rows = [generation for generation in [*mine, *others] if generation.rows is not None]
    limit = sum(generation.rows is not None for generation in mine)
    holdings = [generation.rows for generation in with_rows if generation.rows is not None]
    if not limit:
        return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, 0, 0)
    if len(holdings) == 1:
        return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, _count_streams(workers, holdings[0]), 0)
    known = {generation.rows for generation in in_order if generation.rows is not None}
    sides = _search_sides(holdings, limit, known)
    if limit == 1:
        passed = _fingerprint_pass(workers, sides)
        if not passed.strays and not passed.violations:
            return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, passed.streams, 0)
    result = _search(workers, sides, limit)
    if result.strays:
        # A stream outside its own range may be in any range of another generation.
        result = _search(workers, _search_sides(holdings, limit, everything=True), limit)
    one, other = with_rows[result.first].name, with_rows[result.last].name
    sample = f"stream {result.stream} of generation {one} is in generation {other} as well" if result.violations else ""
    return InvariantTally(STREAMS_UNIQUE_ACROSS_GENERATIONS, result.streams, result.violations, 0, sample)


def contested_ranges(ends: Sequence[Int64s], limit: int) -> list[Bools]:
    """Return, for each generation (given by its range ends), the ranges that overlap one of the same number in another.

    One of the two generations must be below the `limit`. One against the others is compared in pairs, range by range.
    Several are compared by counting the ranges before and after, so thousands of generations cost as much as sorting.
    """
    if limit == 1:
        return _contested_by_pairs(ends[0], ends[1:])
    owners = np.repeat(np.arange(len(ends)), [len(generation_ends) for generation_ends in ends])
    numbers = np.concatenate([np.arange(len(generation_ends)) for generation_ends in ends])
    tokens = np.concatenate(ends)
    # Combine range number and token into one number with the same order.
    values, ranks = np.unique(tokens, return_inverse=True)
    to = numbers * len(values) + ranks
    since = np.where(numbers == 0, to, numbers * len(values) + np.roll(ranks, 1))
    contested = np.zeros(len(tokens), dtype=bool)
    for asking, compared in ((owners < limit, np.ones_like(contested)), (owners >= limit, owners < limit)):
        first, last = numbers[asking] * len(values), (numbers[asking] + 1) * len(values)
        by_end, by_start = np.sort(to[compared]), np.sort(since[compared])
        same_number = np.searchsorted(by_end, last) - np.searchsorted(by_end, first)
        before = np.searchsorted(by_end, since[asking], "right") - np.searchsorted(by_end, first)
        after = np.searchsorted(by_start, last) - np.searchsorted(by_start, to[asking])
        # The first ranges wrap: the least token is in each of them.
        others = np.where(numbers[asking] == 0, same_number, same_number - before - after)
        contested[asking] = others > compared[asking]
    return np.split(contested, np.cumsum([len(generation_ends) for generation_ends in ends])[:-1])


def _contested_by_pairs(one: Int64s, others: Sequence[Int64s]) -> list[Bools]:
    """Return the contested ranges of one generation against others, as `contested_ranges` does."""
    contested_here, contested = np.zeros(len(one), dtype=bool), []
    for other in others:
        both = min(len(one), len(other))
        theirs = np.zeros(len(other), dtype=bool)
        theirs[1:both] = (one[1:both] > other[: both - 1]) & (other[1:both] > one[: both - 1])
        theirs[: both > 0] = True  # the first ranges wrap: the least token is in each of them
        contested_here[:both] |= theirs[:both]
        contested.append(theirs)
    return [contested_here, *contested]


def count_repeated_streams(ids: UInt8s, generations: Int64s, limit: int | None) -> tuple[int, Int64s]:
    """Return the number of violations among streams (uint8[n, 16]) of generations (int64[n]), and an example.

    With a `limit`, a stream is one violation if a generation below it and another one have it; without, every
    repetition is one. The example is a pair of positions, the first and the last holder of the first such stream; empty
    if there is none.
    """
    words = stream_id_words(ids)
    # Nearly all streams differ in their random bits, so only the rest is compared in full.
    positions = _places_with_equal_prefix(words[:, 1])
    words, owners = words[positions], generations[positions]
    order = np.lexsort((owners, words[:, 1], words[:, 0]))
    words, owners, positions = words[order], owners[order], positions[order]
    fresh = np.ones(len(positions), dtype=bool)
    fresh[1:] = (words[1:] != words[:-1]).any(axis=1)
    first = np.flatnonzero(fresh)
    last = np.append(first[1:], len(positions))[: len(first)] - 1
    if limit is None:
        violations, wrong = int((last - first).sum()), last > first
    else:
        wrong = (owners[first] < limit) & (owners[first] != owners[last])
        violations = int(wrong.sum())
    where = np.flatnonzero(wrong)[:1]
    return violations, positions[np.concatenate([first[where], last[where]])]


def _places_with_equal_prefix(words: UInt64s) -> Int64s:
    """Return the positions of words whose first bits equal another one's: all equal words, and few others.

    The last bits store each word's position, so that one sort of numbers returns both, without sorting positions too.
    It takes a fifth of the time.
    """
    position_bits = np.uint64(max(len(words).bit_length(), 1))
    with_positions = np.sort((words >> position_bits << position_bits) | np.arange(len(words), dtype=np.uint64))
    equal_to_next = with_positions[1:] >> position_bits == with_positions[:-1] >> position_bits
    repeated = (
        with_positions[np.append(equal_to_next, False) | np.insert(equal_to_next, 0, False)]
        if len(words)
        else with_positions
    )
    return (repeated & ((np.uint64(1) << position_bits) - np.uint64(1))).astype(np.int64)


def _search_sides(
    holdings: Sequence[StoredGenerationRows],
    limit: int,
    in_order: Collection[StoredGenerationRows] = (),
    *,
    everything: bool = False,
) -> dict[StoredGenerationRows, _SearchSide]:
    ranges = [GenerationRanges(unique_tokens(holding.range_ends)) for holding in holdings]
    contested = (
        [None] * len(ranges)
        if everything
        else contested_ranges([generation_ranges.ends for generation_ranges in ranges], limit)
    )
    return {
        holding: _SearchSide(number, ranges[number], contested[number], number < limit, holding in in_order)
        for number, holding in enumerate(holdings)
    }


def _parts(sides: Mapping[StoredGenerationRows, _SearchSide]) -> int:
    compared = sum(
        len(side.ranges.ends) if side.contested is None else int(side.contested.sum()) for side in sides.values()
    )
    return 1 + compared // _RANGES_A_TASK


def _fingerprint_pass(workers: TaskRunner, sides: Mapping[StoredGenerationRows, _SearchSide]) -> _SearchResult:
    """Compare all others with the first generation by fingerprints. Finding no violation proves that there is none.

    If each stream of the first generation is known to lie in its range, its fingerprints also count its streams.
    """
    (first, one), *_ = sides.items()
    workers, files = workers.for_arrays(), tuple(first.paths)
    sides_to_read = {holding: side for holding, side in sides.items() if side is not one or not one.in_order}
    shares = _distribute_sides(workers, sides_to_read) or [[]]

    def held(share: int) -> Iterator[pa.RecordBatch]:
        counts, perhaps = np.zeros(2, dtype=np.int64), []
        if one.in_order and share == 0:
            counts[0] = len(load_fingerprints(files))
        for side, path in shares[share]:
            for batch in _read_side(side, path):
                streams, strays, chosen = _streams_to_compare(side, batch)
                counts += streams, strays
                if not side.counted:
                    perhaps.append(load_fingerprints(files).filter_candidates(chosen))
        met = load_fingerprints(files).count_present(np.concatenate(perhaps)) if perhaps else 0
        yield pa.RecordBatch.from_arrays([pa.array([number]) for number in (*counts, met)], schema=_PASS_SCHEMA)

    with translate_errors("comparing streams"):
        passed = workers.table(TaskRows(len(shares), held), _PASS_SCHEMA)
    streams, strays, met = (sum(passed[name].to_pylist()) for name in _PASS_SCHEMA.names)
    return _SearchResult(streams, strays, met)


def _distribute_sides(
    workers: TaskRunner, sides: Mapping[StoredGenerationRows, _SearchSide]
) -> list[list[tuple[_SearchSide, str]]]:
    """Return the files to read, for each task."""
    needed = [(side, holding) for holding, side in sides.items() if side.only is None or len(side.only)]
    return distribute_files(workers, [(side, file) for side, holding in needed for file in holding.files])


def _search(workers: TaskRunner, sides: Mapping[StoredGenerationRows, _SearchSide], limit: int | None) -> _SearchResult:
    """Bring equal streams together and count them, see `count_repeated_streams`."""
    workers = workers.for_arrays()
    parts, shares = _parts(sides), _distribute_sides(workers, sides)
    emitted = TaskRows(
        len(shares), lambda share: chain.from_iterable(_emit_file(*file, parts) for file in shares[share])
    )
    with translate_errors("comparing streams"):
        rows = _compare_parts(workers, emitted, parts, _make_comparison(limit)).to_pylist()
    streams, strays, violations = (sum(row[name] for row in rows) for name in ("streams", "strays", "violations"))
    example: dict[str, Any] | None = next((row for row in rows if row["violations"]), None)
    if example is None:
        return _SearchResult(streams, strays, violations)
    return _SearchResult(streams, strays, violations, f"0x{example['stream'].hex()}", example["first"], example["last"])


def _compare_parts(
    workers: TaskRunner, emitted: TaskRows, parts: int, compare: Callable[[Batches], Batches]
) -> pa.Table:
    """Return the results of `compare` for each of the `parts` of all emitted rows."""
    if workers.runs_in_process(max(emitted.tasks, parts)):
        everything = TaskRows(1, lambda _: chain.from_iterable(map(emitted.batches, range(emitted.tasks))))
        return workers.table(everything.through(compare), _SEARCH_SCHEMA)
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = emitted.frame(workers.session(), _EMITTED_SCHEMA).repartition(parts, "part")
    return frame.mapInArrow(compare, from_arrow_schema(_SEARCH_SCHEMA)).toArrow()


def _emit_file(side: _SearchSide, path: str, parts: int) -> Iterator[pa.RecordBatch]:
    """Yield the IDs of a file's contested streams, cut into parts; runs on the executors."""
    for batch in _read_side(side, path):
        yield _cut_into_parts(side, batch, parts)


def _read_side(side: _SearchSide, path: str) -> Batches:
    return read_file_batches(path, ["range_end", "streams"], None if side.only is None else ("range_end", side.only))


def _streams_to_compare(side: _SearchSide, rows: pa.RecordBatch) -> tuple[int, int, UInt8s]:
    """Return the number of counted streams, the number outside their ranges, and the streams to compare."""
    lengths, streams, damaged = split_stream_lists(rows.column("streams"))
    whole = np.ones(len(streams), dtype=bool)
    whole[list(damaged)] = False
    # A null, which only a foreign writer can leave, becomes the minimum token, which no key has.
    ends = to_int64_array(rows.column("range_end"), MINIMUM_TOKEN)
    ranks, lengths = np.searchsorted(side.ranges.ends, ends), np.maximum(lengths, 0)
    strays, chosen = 0, whole
    if side.contested is not None:
        if not side.contested[ranks].all():
            chosen = whole & np.repeat(side.contested[ranks], lengths)
        if not side.in_order:
            strays = int((_strays(side.ranges, ranks, lengths, decode_stream_ids(streams)) & whole).sum())
    # Nearly always all of them are compared, and copying them would take as long as comparing them.
    compared = streams if chosen is whole and not damaged else streams[chosen]
    return len(streams) - len(damaged) if side.counted else 0, strays, compared


def _strays(ranges: GenerationRanges, places: Int64s, lengths: Int64s, streams: StreamIds) -> Bools:
    """Return which streams are outside the range of their row.

    `lengths` are the rows' stream counts, `places` the ranks of their ranges.
    """
    tokens, indexes = streams.tokens, streams.indexes
    if len(lengths) and lengths[0] > 0 and (lengths == lengths[0]).all():
        # As on a ring of equal nodes: compute the range's values once for all of its streams.
        tokens, indexes, ranks = tokens.reshape(-1, lengths[0]), indexes.reshape(-1, lengths[0]), places[:, None]
    else:
        ranks = np.repeat(places, lengths)
    return ((indexes != ranks) | ~is_in_range(tokens, ranges.starts[ranks], ranges.ends[ranks])).ravel()


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
    """Return the function that compares each part of all generations together."""

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
    """Return the number of streams of a generation."""
    workers = workers.for_arrays()
    shares = distribute_files(workers, [(None, file) for file in holding.files])

    def count(share: int) -> Iterator[pa.RecordBatch]:
        for _, path in shares[share]:
            for batch in read_file_batches(path, ["streams"]):
                yield pa.RecordBatch.from_pydict({"streams": pa.array([len(batch.column("streams").flatten())])})

    with translate_errors("counting streams"):
        counted = workers.table(TaskRows(len(shares), count), _COUNT_SCHEMA)
    return sum(counted["streams"].to_pylist())
