"""Streams that are there more than once: within a generation whose indexes are wrong, and across generations.

Exact, at the price of a shuffle of stream IDs. Across generations the price is paid only for streams that another
generation could have at all: an ID carries the number of its range and its token, so both generations must have a
range of that number and the two must overlap. After most changes of the ring hardly any do. Of a generation of which it
is known that each of its streams lies in its own range, only the ranges that are compared are read. One generation
against all others pays a pass over their files, and the shuffle only where that finds a stream that two may have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.generations.stream_ids import StreamIds, decode, ordered_words
from cdc_platform.invariants.findings import STREAMS_UNIQUE, STREAMS_UNIQUE_ACROSS_GENERATIONS, Tally
from cdc_platform.invariants.fingerprints import fingerprints_of
from cdc_platform.invariants.inventory import HeldGeneration, Holding
from cdc_platform.invariants.one_pass import row_streams, shared_out
from cdc_platform.invariants.rows import RangeEnds
from cdc_platform.lake.arrow import int64s
from cdc_platform.lake.translate import translated
from cdc_platform.lake.volume import Batches, TaskRows, Workers, file_batches
from cdc_platform.ring import MINIMUM
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s, UInt64s, distinct

# What one task compares: with 64 streams a range a million of them, 16 MB.
_RANGES_A_TASK = 1 << 14
_EMITTED = "part int, generation int, streams bigint, strays bigint, ids binary"
_FOUND = pa.schema(
    {
        "streams": pa.int64(),
        "strays": pa.int64(),
        "violations": pa.int64(),
        "stream": pa.binary(),
        "first": pa.int32(),
        "last": pa.int32(),
    }
)
_PASSED = pa.schema({"streams": pa.int64(), "strays": pa.int64(), "met": pa.int64()})
_COUNTED = pa.schema({"streams": pa.int64()})


@dataclass(frozen=True, eq=False)
class _Side:
    """A generation's part in the search. `contested` bool[n] are the ranges whose streams others may have, None when
    all of them are looked at; `counted`: its streams are part of the population; `in_order`: none is a stray.
    """

    number: int
    ranges: RangeEnds
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
class _Found:
    """What a search gave: streams counted, streams outside their ranges, streams that are there more than once."""

    streams: int
    strays: int
    violations: int
    stream: str = ""
    first: int = 0
    last: int = 0


def within(workers: Workers, holding: Holding) -> Tally:
    """streams_unique of one generation, every stream against all others: for when its indexes prove nothing."""
    side = _Side(0, RangeEnds(distinct(holding.range_ends)), None, counted=True)
    found = _search(workers, {holding: side}, limit=None)
    sample = f"stream {found.stream} comes more than once" if found.violations else ""
    return Tally(STREAMS_UNIQUE, found.streams, found.violations, 0, sample)


def across(
    workers: Workers,
    mine: Sequence[HeldGeneration],
    others: Sequence[HeldGeneration],
    in_order: Collection[HeldGeneration] = (),
) -> Tally:
    """streams_unique_across_generations: the streams of `mine` that another generation, of `mine` or `others`, has.

    Each such stream is one violation. The population is the streams of `mine`, also where there is nothing to compare
    them with. `in_order`: those of which it is known that each stream lies in its range. One Spark job for one
    generation, two for several; at most four more where streams are shared or outside their ranges.
    """
    held = [each for each in [*mine, *others] if each.rows is not None]
    limit = sum(each.rows is not None for each in mine)
    holdings = [each.rows for each in held if each.rows is not None]
    if not limit:
        return Tally(STREAMS_UNIQUE_ACROSS_GENERATIONS, 0, 0)
    if len(holdings) == 1:
        return Tally(STREAMS_UNIQUE_ACROSS_GENERATIONS, _count(workers, holdings[0]), 0)
    known = {each.rows for each in in_order if each.rows is not None}
    sides = _sides(holdings, limit, known)
    if limit == 1:
        passed = _pass(workers, sides)
        if not passed.strays and not passed.violations:
            return Tally(STREAMS_UNIQUE_ACROSS_GENERATIONS, passed.streams, 0)
    found = _search(workers, sides, limit)
    if found.strays:
        # A stream that is not in its own range may be in any range of another generation.
        found = _search(workers, _sides(holdings, limit, everything=True), limit)
    one, other = held[found.first].name, held[found.last].name
    sample = f"stream {found.stream} of generation {one} is in generation {other} as well" if found.violations else ""
    return Tally(STREAMS_UNIQUE_ACROSS_GENERATIONS, found.streams, found.violations, 0, sample)


def contested(ends: Sequence[Int64s], limit: int) -> list[Bools]:
    """Of each generation, given by its range ends, the ranges that overlap the range of the same number in another.

    One of the two has to be below the `limit`. One against the others goes by pairs, range by range; several by
    counting those that lie before and behind: thousands of generations cost what sorting their ranges does.
    """
    if limit == 1:
        return _contested_by(ends[0], ends[1:])
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


def _contested_by(one: Int64s, others: Sequence[Int64s]) -> list[Bools]:
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


def repeated(ids: UInt8s, generations: Int64s, limit: int | None) -> tuple[int, Int64s]:
    """How many violations there are among streams (uint8[n, 16]) of generations (int64[n]), and one of them.

    With a `limit`, a stream is one violation when a generation below it has the stream and another one has it as
    well; without, every repetition is one. The example is a pair of places: the first and the last holder of the
    first such stream; empty where there is none.
    """
    words = ordered_words(ids)
    # Nearly all streams differ in their random bits, which are the first: what is left is compared in full.
    places = _alike(words[:, 1])
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


def _alike(words: UInt64s) -> Int64s:
    """The places of words that have their first bits in common with another one: all that are equal, and few others.

    The last bits make room for the place of each, so that one sort of numbers, without one of places beside it, tells
    both: it takes a fifth of the time.
    """
    room = np.uint64(max(len(words).bit_length(), 1))
    placed = np.sort((words >> room << room) | np.arange(len(words), dtype=np.uint64))
    alike = placed[1:] >> room == placed[:-1] >> room
    met = placed[np.append(alike, False) | np.insert(alike, 0, False)] if len(words) else placed
    return (met & ((np.uint64(1) << room) - np.uint64(1))).astype(np.int64)


def _sides(
    holdings: Sequence[Holding], limit: int, in_order: Collection[Holding] = (), *, everything: bool = False
) -> dict[Holding, _Side]:
    ranges = [RangeEnds(distinct(holding.range_ends)) for holding in holdings]
    looked_at = [None] * len(ranges) if everything else contested([each.ends for each in ranges], limit)
    return {
        holding: _Side(number, ranges[number], looked_at[number], number < limit, holding in in_order)
        for number, holding in enumerate(holdings)
    }


def _parts(sides: Mapping[Holding, _Side]) -> int:
    looked_at = sum(
        len(side.ranges.ends) if side.contested is None else int(side.contested.sum()) for side in sides.values()
    )
    return 1 + looked_at // _RANGES_A_TASK


def _pass(workers: Workers, sides: Mapping[Holding, _Side]) -> _Found:
    """Hold all others against the first of them, by fingerprints: no violation found is none there.

    The first is read for them alone where it is known that each of its streams lies in its range: they count it.
    """
    (first, one), *_ = sides.items()
    workers, files = workers.of_arrays(), tuple(first.paths)
    read = {holding: side for holding, side in sides.items() if side is not one or not one.in_order}
    shares = _shares(workers, read) or [[]]

    def held(share: int) -> Iterator[pa.RecordBatch]:
        found, perhaps = np.zeros(2, dtype=np.int64), []
        if one.in_order and share == 0:
            found[0] = len(fingerprints_of(files))
        for side, path in shares[share]:
            for batch in _read(side, path):
                streams, strays, chosen = _looked_at(side, batch)
                found += streams, strays
                if not side.counted:
                    perhaps.append(fingerprints_of(files).perhaps(chosen))
        met = fingerprints_of(files).among(np.concatenate(perhaps)) if perhaps else 0
        yield pa.RecordBatch.from_arrays([pa.array([number]) for number in (*found, met)], schema=_PASSED)

    with translated("comparing streams"):
        passed = workers.table(TaskRows(len(shares), held), _PASSED)
    streams, strays, met = (sum(passed[name].to_pylist()) for name in _PASSED.names)
    return _Found(streams, strays, met)


def _shares(workers: Workers, sides: Mapping[Holding, _Side]) -> list[list[tuple[_Side, str]]]:
    """The files that are read, for each task."""
    needed = [(side, holding) for holding, side in sides.items() if side.only is None or len(side.only)]
    return shared_out(workers, [(side, file) for side, holding in needed for file in holding.files])


def _search(workers: Workers, sides: Mapping[Holding, _Side], limit: int | None) -> _Found:
    """Bring equal streams together and count them, see `repeated`."""
    workers = workers.of_arrays()
    parts, shares = _parts(sides), _shares(workers, sides)
    emitted = TaskRows(len(shares), lambda share: chain.from_iterable(_emitted(*file, parts) for file in shares[share]))
    with translated("comparing streams"):
        found = _together(workers, emitted, parts, _comparer(limit)).to_pylist()
    streams, strays, violations = (sum(row[name] for row in found) for name in ("streams", "strays", "violations"))
    example: dict[str, Any] | None = next((row for row in found if row["violations"]), None)
    if example is None:
        return _Found(streams, strays, violations)
    return _Found(streams, strays, violations, f"0x{example['stream'].hex()}", example["first"], example["last"])


def _together(workers: Workers, emitted: TaskRows, parts: int, compare: Callable[[Batches], Batches]) -> pa.Table:
    """What `compare` finds in each of the `parts` of all that was emitted."""
    if workers.work_here(max(emitted.tasks, parts)):
        everything = TaskRows(1, lambda _: chain.from_iterable(map(emitted.batches, range(emitted.tasks))))
        return workers.table(everything.through(compare), _FOUND)
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = emitted.frame(workers.session(), _EMITTED).repartition(parts, "part")
    return frame.mapInArrow(compare, from_arrow_schema(_FOUND)).toArrow()


def _emitted(side: _Side, path: str, parts: int) -> Iterator[pa.RecordBatch]:
    """The IDs of a file's contested streams, cut into parts; runs on the executors."""
    for batch in _read(side, path):
        yield _cut(side, batch, parts)


def _read(side: _Side, path: str) -> Batches:
    return file_batches(path, ["range_end", "streams"], None if side.only is None else ("range_end", side.only))


def _looked_at(side: _Side, rows: pa.RecordBatch) -> tuple[int, int, UInt8s]:
    """Of rows of a generation: how many of their streams are counted, how many are strays, and those to compare."""
    lengths, streams, damaged = row_streams(rows.column("streams"))
    whole = np.ones(len(streams), dtype=bool)
    whole[list(damaged)] = False
    # A null, which only a foreign writer can leave, is the minimum token, which no key has.
    ends = int64s(rows.column("range_end"), MINIMUM)
    places, lengths = np.searchsorted(side.ranges.ends, ends), np.maximum(lengths, 0)
    strays, chosen = 0, whole
    if side.contested is not None:
        if not side.contested[places].all():
            chosen = whole & np.repeat(side.contested[places], lengths)
        if not side.in_order:
            strays = int((_outside(side.ranges, places, lengths, decode(streams)) & whole).sum())
    # Nearly always all of them are, and a copy of them would take as long as to compare them.
    compared = streams if chosen is whole and not damaged else streams[chosen]
    return len(streams) - len(damaged) if side.counted else 0, strays, compared


def _outside(ranges: RangeEnds, places: Int64s, lengths: Int64s, streams: StreamIds) -> Bools:
    """Which streams are not of the range of their row: rows of so many, whose ranges are at these places."""
    tokens, indexes = streams.tokens, streams.indexes
    if len(lengths) and lengths[0] > 0 and (lengths == lengths[0]).all():
        # As on a ring of equal nodes: what is of a range is worked out once for all of its streams.
        tokens, indexes, ranks = tokens.reshape(-1, lengths[0]), indexes.reshape(-1, lengths[0]), places[:, None]
    else:
        ranks = np.repeat(places, lengths)
    return ((indexes != ranks) | ~ranges.holds(ranks, tokens)).ravel()


def _cut(side: _Side, rows: pa.RecordBatch, parts: int) -> pa.RecordBatch:
    streams, strays, ids = _looked_at(side, rows)
    part = (decode(ids).randoms % np.uint64(parts)).astype(np.uint16 if parts <= 1 << 16 else np.int64)
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


def _comparer(limit: int | None) -> Callable[[Batches], Batches]:
    """The function that runs where the parts of all generations come together."""

    def compare(batches: Batches) -> Batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
        ids = np.frombuffer(b"".join(row["ids"] for row in rows), dtype=np.uint8).reshape(-1, 16)
        owners = np.repeat([row["generation"] for row in rows], [len(row["ids"]) // 16 for row in rows])
        violations, pair = repeated(ids, owners.astype(np.int64), limit)
        first, last = pair.tolist() if violations else (None, None)
        columns = {
            "streams": pa.array([sum(row["streams"] for row in rows)], pa.int64()),
            "strays": pa.array([sum(row["strays"] for row in rows)], pa.int64()),
            "violations": pa.array([violations], pa.int64()),
            "stream": pa.array([None if first is None else ids[first].tobytes()], pa.binary()),
            "first": pa.array([None if first is None else owners[first]], pa.int32()),
            "last": pa.array([None if last is None else owners[last]], pa.int32()),
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_FOUND)

    return compare


def _count(workers: Workers, holding: Holding) -> int:
    """How many streams a generation has."""
    workers = workers.of_arrays()
    shares = shared_out(workers, [(None, file) for file in holding.files])

    def count(share: int) -> Iterator[pa.RecordBatch]:
        for _, path in shares[share]:
            for batch in file_batches(path, ["streams"]):
                yield pa.RecordBatch.from_pydict({"streams": pa.array([len(batch.column("streams").flatten())])})

    with translated("counting streams"):
        counted = workers.table(TaskRows(len(shares), count), _COUNTED)
    return sum(counted["streams"].to_pylist())
