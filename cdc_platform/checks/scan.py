"""The one-pass scan of generation rows: range facts, tallies of invariants, and digests for comparison.

Range ends travel with the code; tallies and digests come back; streams never leave the executors. Each task gathers
the facts of its ranges, and the pandera model judges them as the task ends. The rules are the functions of `ring` and
`generations` that place and look up streams.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from cdc_platform.checks import judge
from cdc_platform.checks.invariants import (
    MAX_SAMPLES,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    VNODE_COLOCATION,
    Invariant,
    InvariantTally,
    sum_tallies,
)
from cdc_platform.checks.inventory import StoredGenerationRows
from cdc_platform.checks.ranges import RangeDigests, digest_stream_lists
from cdc_platform.delta import (
    DataFile,
    TaskRows,
    TaskRunner,
    compute,
    read_file_batches,
    stream_ids_to_numpy,
    to_int64_array,
    translate_errors,
)
from cdc_platform.generations import STREAM_ID_BYTES, STREAM_ID_VERSION, StreamId, StreamIds, decode_stream_ids
from cdc_platform.ring import (
    LAST_TOKEN,
    MAX_IGNORE_MSB,
    MAX_SHARD_COUNT,
    MINIMUM_TOKEN,
    Bools,
    Int64s,
    UInt8s,
    first_token_for_shard,
    range_starts,
    shard_of,
    unbias,
    unique_tokens,
)

Explanations = Mapping[tuple[str, int], str]
"""What is wrong with a range, in words, by invariant and row."""


@dataclass
class RangeFacts:
    """Facts of ranges in the order in which they were read: the columns of `models.FACTS`, int64[n], and owners.

    `said` has words for the first ranges of each part that break an invariant; `rows` counts all ranges.
    """

    parts: list[Mapping[str, Int64s]] = field(default_factory=list)
    owners: list[Sequence[str | None]] = field(default_factory=list)
    said: dict[tuple[str, int], str] = field(default_factory=dict)
    rows: int = 0

    def add(self, columns: Mapping[str, Int64s], owners: Sequence[str | None], said: Explanations) -> None:
        """Put the facts of further ranges behind those that are there; `said` counts rows from the first of these."""
        self.said.update({(name, self.rows + row): words for (name, row), words in said.items()})
        self.parts.append(columns)
        self.owners.append(owners)
        self.rows += len(owners)


@dataclass(frozen=True, eq=False)
class _FactFrame:
    """All facts of a task by generation, and in each as the ranges lie on the ring; `order` is where each row was.

    `firsts` int64[g] are the first rows of the generations.
    """

    facts: RangeFacts
    columns: Mapping[str, Int64s]
    owners: np.ndarray
    order: Int64s
    firsts: Int64s

    def said(self, invariant: Invariant, row: int) -> str:
        """What is wrong with a range, and whose it is where that is known."""
        words = self.facts.said[invariant, int(self.order[row])]
        return words if self.owners[row] is None else f"{words} (owner {self.owners[row]})"


def judge_range_facts(facts: RangeFacts) -> Iterator[tuple[int, InvariantTally]]:
    """Each generation, by the number that its facts have, with its tallies of `models.IN_RANGES`.

    The samples are the first ranges on the ring that fail.
    """
    if not facts.rows:
        return
    frame = _sorted_facts(facts)
    failed = _failed_rows(frame)
    for invariant in judge.RANGE_INVARIANTS:
        yield from _tallies(invariant, frame, failed.get(invariant))


def _sorted_facts(facts: RangeFacts) -> _FactFrame:
    columns = {name: np.concatenate([part[name] for part in facts.parts]) for name in judge.FACT_COLUMNS}
    order = np.lexsort((columns["range_end"], columns["generation"]))
    columns = {name: column[order] for name, column in columns.items()}
    owners = np.array([owner for some in facts.owners for owner in some], dtype=object)[order]
    generations = columns["generation"]
    firsts = np.flatnonzero(np.append(True, generations[1:] != generations[:-1]))
    return _FactFrame(facts, columns, owners, order, firsts)


def _failed_rows(frame: _FactFrame) -> dict[str, Bools]:
    """The rows that fail the check of each invariant that any row fails."""
    failures = judge.find_failures(judge.facts_model(), {name: frame.columns[name] for name in judge.JUDGED_COLUMNS})
    failed = {failure.invariant: failure.rows for failure in failures if failure.invariant is not None}
    kinds = {column.dtype for column in frame.columns.values()}
    assert (kinds, len(failed)) == ({np.dtype(np.int64)}, len(failures)), "facts are made in the columns of their model"
    return failed


def _tallies(invariant: Invariant, frame: _FactFrame, failed: Bools | None) -> Iterator[tuple[int, InvariantTally]]:
    assert invariant.in_range is not None
    generations = frame.columns["generation"][frame.firsts].tolist()
    populations = np.add.reduceat(frame.columns[invariant.in_range.among], frame.firsts).tolist()
    unjudged = [0] * len(generations)
    if invariant.in_range.unjudged is not None:
        unjudged = np.add.reduceat(frame.columns[invariant.in_range.unjudged], frame.firsts).tolist()
    if failed is None:
        for generation, population, left in zip(generations, populations, unjudged, strict=True):
            yield generation, InvariantTally(invariant, population, 0, unjudged=left)
        return
    wrong = np.where(failed, frame.columns[invariant.in_range.wrong], 0)
    violations = np.add.reduceat(wrong, frame.firsts).tolist()
    rows = np.flatnonzero(failed)
    begins = np.searchsorted(rows, frame.firsts).tolist()
    ends = [*begins[1:], len(rows)]
    for generation, population, count, begin, end, left in zip(
        generations, populations, violations, begins, ends, unjudged, strict=True
    ):
        shown = rows[begin : min(end, begin + MAX_SAMPLES)].tolist()
        cases = [(int(frame.columns["range_end"][row]), frame.said(invariant, row)) for row in shown]
        yield generation, InvariantTally.of_cases(invariant, population, count, cases, left)


# Streams worked on at once: their columns stay in the processor's second-level cache, and a call of numpy takes longer
# than threads wait for Python's lock between two of them.
_STREAMS_A_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class GenerationRanges:
    """The ranges of the generation that the rows belong to: `ends` int64[n], ascending, each once."""

    ends: Int64s

    @cached_property
    def starts(self) -> Int64s:
        """The (exclusive) start of each range, int64[n]."""
        return range_starts(self.ends)

    def holds(self, ranks: Int64s, tokens: Int64s) -> Bools:
        """Whether the range of each rank has the token (int64, broadcast). The minimum token is in none: no key has it.

        Positions are counted from the range's first one on, so that the ring's end is no case of its own; the range
        that starts where it ends is the whole ring. To look up the range of each token takes four times as long.
        """
        first = unbias(self.starts[ranks]) + np.uint64(1)
        length = unbias(self.ends[ranks]) - first
        return (unbias(tokens) - first <= length) & (tokens != MINIMUM_TOKEN)


@dataclass(frozen=True, eq=False)
class GenerationRowBatch:
    """Some rows of one generation, in any order; `range_ends` has one entry a row, `streams` one a stream.

    `range_ends` int64[n] (all of them in the generation's range ends); `ignore_msbs` int64[n], -1 for null;
    `stream_counts` int64[n]; `streams` uint8[total, 16], the rows' streams one after the other. `order_known` bool[n]:
    where it is False the shard of a stream cannot be told, so that shard colocation is not judged. `damaged` says by
    place in `streams` what is there instead of 16 bytes; the bytes at such a place mean nothing. `owners` has the
    owner of each row, where the table says it. `shard_counts` int64[n] are the shards of each row's owner where the
    generation has to have a stream for each of them, else -1. `sharding_known` bool[n]: whether ignore_msb is that of
    the generation; without it and without an order nothing is judged of the row's shards. None: it always is.
    """

    range_ends: Int64s
    ignore_msbs: Int64s
    stream_counts: Int64s
    streams: UInt8s
    order_known: Bools
    damaged: Mapping[int, str] = field(default_factory=dict)
    owners: np.ndarray | None = None
    shard_counts: Int64s | None = None
    sharding_known: Bools | None = None


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows with the same number of streams: columns are [rows, 1] or [rows, streams]."""

    range_ends: Int64s
    starts: Int64s
    ranks: Int64s
    ignore_msbs: Int64s
    order_known: Bools
    ids: UInt8s
    whole: Bools
    damaged: Mapping[tuple[int, int], str]
    owners: Sequence[str | None]
    shard_counts: Int64s
    sharding_known: Bools

    @cached_property
    def fields(self) -> StreamIds:
        found = decode_stream_ids(self.ids.reshape(-1, 16))
        shape = self.ids.shape[:2]
        return StreamIds(
            found.tokens.reshape(shape),
            found.versions.reshape(shape),
            found.indexes.reshape(shape),
            found.randoms.reshape(shape),
        )

    @property
    def width(self) -> int:
        return self.ids.shape[1]

    def name(self, row: int, stream: int) -> str:
        value = self.damaged.get((row, stream)) or str(StreamId(self.ids[row, stream].tobytes()))
        return f"range end {self.range_ends[row, 0]}, stream {stream} ({value})"


@dataclass(frozen=True, eq=False)
class _Examination:
    """What a block says of one invariant: bool[rows, streams] are the streams that it is asked of and those that break
    it; `explain` says of one why it does.
    """

    invariant: Invariant
    among: Bools
    wrong: Bools
    explain: Callable[[int, int], str]
    unjudged: Bools | None = None


def audit_generation_rows(rows: GenerationRowBatch, ranges: GenerationRanges) -> list[InvariantTally]:
    """The tallies of what facts of ranges tell, for some rows of a generation; none without rows.

    Whether a stream comes again in another row is not seen here: it can only where an index is wrong or a range end
    comes twice, and then stream_format or ring_covered_once tells.
    """
    facts = RangeFacts()
    add_range_facts(facts, rows, ranges)
    return [tally for _, tally in judge_range_facts(facts)]


def add_range_facts(facts: RangeFacts, rows: GenerationRowBatch, ranges: GenerationRanges, generation: int = 0) -> None:
    """Add the facts of some rows of a generation, under a number for it, a range a row."""
    _add_empty_ranges(facts, rows, ranges, generation)
    for block in _blocks(rows, ranges):
        inside = ranges.holds(block.ranks, block.fields.tokens)
        looks = (
            _vnode_colocation(block, inside),
            _shard_colocation(block, inside),
            _stream_format(block),
            _streams_unique(block),
        )
        columns = {
            "generation": np.full(len(block.range_ends), generation),
            "range_end": block.range_ends[:, 0],
            "index": block.ranks[:, 0],
            "streams": np.full(len(block.range_ends), block.width),
        }
        said: dict[tuple[str, int], str] = {}
        for look in looks:
            assert look.invariant.in_range is not None
            columns[look.invariant.in_range.among] = _counts_by_row(look.among)
            columns[look.invariant.in_range.wrong] = _counts_by_row(look.wrong)
            if look.invariant.in_range.unjudged is not None and look.unjudged is not None:
                columns[look.invariant.in_range.unjudged] = _counts_by_row(look.unjudged)
            said.update(((look.invariant, row), words) for row, words in _explained(block, look))
        facts.add(columns, block.owners, said)


def _add_empty_ranges(facts: RangeFacts, rows: GenerationRowBatch, ranges: GenerationRanges, generation: int) -> None:
    """A range without streams lacks one, in whatever format."""
    empty = np.flatnonzero(rows.stream_counts == 0)
    if not len(empty):
        return
    ends = rows.range_ends[empty]
    nothing, one = np.zeros_like(ends), np.ones_like(ends)
    assert STREAM_FORMAT.in_range is not None
    columns = dict.fromkeys(judge.FACT_COLUMNS, nothing) | {
        "generation": np.full(len(empty), generation),
        "range_end": ends,
        "index": np.searchsorted(ranges.ends, ends),
        STREAM_FORMAT.in_range.among: one,
        STREAM_FORMAT.in_range.wrong: one,
    }
    first = np.argsort(ends, kind="stable")[:MAX_SAMPLES].tolist()
    said: dict[tuple[str, int], str] = {(STREAM_FORMAT, row): f"range end {ends[row]} has no streams" for row in first}
    facts.add(columns, _row_owners(rows, empty), said)


def _counts_by_row(streams: Bools) -> Int64s:
    """How many of each row's streams are so: int64[n]. Nearly always it is all or none of them."""
    if streams.all():
        return np.full(len(streams), streams.shape[1])
    return np.count_nonzero(streams, axis=1) if streams.any() else np.zeros(len(streams), dtype=np.int64)


def _explained(block: _Block, look: _Examination) -> Iterator[tuple[int, str]]:
    """The first rows on the ring that break an invariant, and what is wrong with the first stream that does."""
    if not look.wrong.any():
        return
    rows = np.flatnonzero(look.wrong.any(axis=1))
    for row in rows[np.argsort(block.range_ends[rows, 0], kind="stable")][:MAX_SAMPLES].tolist():
        stream = int(np.argmax(look.wrong[row]))
        yield row, f"{block.name(row, stream)}: {look.explain(row, stream)}"


def _vnode_colocation(block: _Block, inside: Bools) -> _Examination:
    def explain(row: int, stream: int) -> str:
        token, start, end = block.fields.tokens[row, stream], block.starts[row, 0], block.range_ends[row, 0]
        return f"its token {token} is outside its range ({start}, {end}]"

    return _Examination(VNODE_COLOCATION, block.whole, block.whole & ~inside, explain)


def _shard_colocation(block: _Block, inside: Bools) -> _Examination:
    """Counted are the pairs of row and shard in which the shard owns a token of the range.

    That it does is proven by its stream where that is in place; only where some stream is not, the first token of the
    shards in the range has to be found.
    """
    msbs = np.where(block.width == 1, 0, block.ignore_msbs)  # one shard owns everything, whatever bits it ignores
    legal = (
        (msbs >= 0) & (msbs <= MAX_IGNORE_MSB) & (block.range_ends != MINIMUM_TOKEN) & (block.width <= MAX_SHARD_COUNT)
    )
    lacking = (block.shard_counts >= 0) & (block.shard_counts != block.width)
    positional = (block.order_known | (block.width == 1)) & ~lacking
    judged = positional & block.whole
    judgeable = judged & legal
    width = min(block.width, MAX_SHARD_COUNT)
    bits = np.where(legal, msbs, 0)
    shards = np.arange(block.width)
    on_shard = shard_of(block.fields.tokens, width, bits) == shards
    owns = judgeable & on_shard & inside
    wrong = judged & ~legal
    if not owns.all():
        ends = np.where(legal, block.range_ends, LAST_TOKEN)
        first = first_token_for_shard(block.starts, ends, np.minimum(shards, width - 1), width, bits)
        owns = judgeable & ((first != ends) | (shard_of(ends, width, bits) == shards))
        wrong |= judgeable & np.where(owns, ~on_shard, block.fields.tokens != ends)
    as_sets = ~positional & ~lacking & block.sharding_known & legal
    for row in np.flatnonzero(as_sets[:, 0]).tolist():
        owns[row] = wrong[row] = _misplaced_in_set(block, row) & block.whole[row]
    # A range that lacks a stream has none that could be relied on.
    owns, wrong = owns | (lacking & block.whole), wrong | (lacking & block.whole)
    unjudged = ~positional & ~lacking & ~as_sets & block.whole

    def explain(row: int, stream: int) -> str:
        if lacking[row, 0]:
            return f"the range has {block.width} streams, and its owner has {block.shard_counts[row, 0]} shards"
        if as_sets[row, 0]:
            return f"its token {block.fields.tokens[row, stream]} is not where a shard of the range begins"
        if not legal[row, 0]:
            msb = "null" if block.ignore_msbs[row, 0] == -1 else block.ignore_msbs[row, 0]
            return f"its shard cannot be told from ignore_msb {msb} and {block.width} shards"
        if not owns[row, stream]:
            return f"shard {stream} owns nothing in the range, so its token has to be the range end"
        shard = shard_of(block.fields.tokens[row, stream], width, bits[row, 0])
        return f"its token {block.fields.tokens[row, stream]} is on shard {shard}, not on shard {stream}"

    return _Examination(SHARD_COLOCATION, owns, wrong, explain, np.broadcast_to(unjudged, owns.shape))


def _misplaced_in_set(block: _Block, row: int) -> Bools:
    """The streams (bool[streams]) of a row of unknown order that no shard of the range has, by their tokens.

    Those that are left may be in any order, so that none of them is counted as judged.
    """
    start, end, msb = block.starts[row, 0], block.range_ends[row, 0], block.ignore_msbs[row, 0]
    shards = np.arange(block.width)
    due = first_token_for_shard(np.full(block.width, start), np.full(block.width, end), shards, block.width, msb)
    left = Counter(due.tolist())
    wrong = np.zeros(block.width, dtype=bool)
    for stream, token in enumerate(block.fields.tokens[row].tolist()):
        left[token] -= 1
        wrong[stream] = left[token] < 0
    return wrong


def _stream_format(block: _Block) -> _Examination:
    fields = block.fields
    wrong = (fields.versions != STREAM_ID_VERSION) | (fields.indexes != block.ranks) | ~block.whole

    def explain(row: int, stream: int) -> str:
        if not block.whole[row, stream]:
            return "a stream ID has 16 bytes"
        if fields.versions[row, stream] > STREAM_ID_VERSION:
            return f"a legacy stream ID: its version is {fields.versions[row, stream]}, not {STREAM_ID_VERSION}"
        if fields.versions[row, stream] != STREAM_ID_VERSION:
            return f"its version is {fields.versions[row, stream]}, not {STREAM_ID_VERSION}"
        return f"its index is {fields.indexes[row, stream]}, the range is number {block.ranks[row, 0]}"

    return _Examination(STREAM_FORMAT, np.ones(wrong.shape, dtype=bool), wrong, explain)


def _streams_unique(block: _Block) -> _Examination:
    """Streams that are equal have equal random bits: only rows in which some are need a look at whole IDs."""
    again = np.zeros(block.whole.shape, dtype=bool)
    in_order = np.sort(block.fields.randoms, axis=1)
    for row in np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1)):
        places = np.flatnonzero(block.whole[row])
        _, first = np.unique(block.ids[row, places], axis=0, return_index=True)
        again[row, np.delete(places, first)] = True

    def explain(row: int, stream: int) -> str:
        return "the range has the same stream before it already"

    return _Examination(STREAMS_UNIQUE, block.whole, again, explain)


def _blocks(rows: GenerationRowBatch, ranges: GenerationRanges) -> Iterator[_Block]:
    offsets = np.cumsum(rows.stream_counts) - rows.stream_counts
    ranks = np.searchsorted(ranges.ends, rows.range_ends)
    whole = np.ones(len(rows.streams), dtype=bool)
    whole[list(rows.damaged)] = False
    for width in np.unique(rows.stream_counts[rows.stream_counts > 0]).tolist():
        alike = np.flatnonzero(rows.stream_counts == width)
        step = max(1, _STREAMS_A_CHUNK // width)
        for chunk in (alike[at : at + step] for at in range(0, len(alike), step)):
            places = offsets[chunk, None] + np.arange(width)
            adjacent = chunk[-1] - chunk[0] == len(chunk) - 1
            taken = slice(places[0, 0], places[-1, -1] + 1) if adjacent else places.ravel()
            shape = (len(chunk), width)
            yield _Block(
                range_ends=rows.range_ends[chunk, None],
                starts=ranges.starts[ranks[chunk], None],
                ranks=ranks[chunk, None],
                ignore_msbs=rows.ignore_msbs[chunk, None],
                order_known=rows.order_known[chunk, None],
                ids=rows.streams[taken].reshape(*shape, 16),
                whole=whole[taken].reshape(shape),
                damaged=_damaged_in_block(rows, places) if rows.damaged else {},
                owners=_row_owners(rows, chunk),
                shard_counts=_column(rows.shard_counts, chunk, -1),
                sharding_known=_column(rows.sharding_known, chunk, True),
            )


def _column(values: np.ndarray | None, chosen: Int64s, default: int | bool) -> np.ndarray:
    """Values of chosen rows as a column [rows, 1]; the default where there are none."""
    return np.full((len(chosen), 1), default) if values is None else values[chosen, None]


def _damaged_in_block(rows: GenerationRowBatch, places: Int64s) -> dict[tuple[int, int], str]:
    found = np.argwhere(np.isin(places, list(rows.damaged)))
    return {(row, stream): rows.damaged[int(places[row, stream])] for row, stream in found.tolist()}


def _row_owners(rows: GenerationRowBatch, chosen: Int64s) -> Sequence[str | None]:
    return [None] * len(chosen) if rows.owners is None else rows.owners[chosen].tolist()


_Owner = TypeVar("_Owner")

UNKNOWN_MSB = -1
"""Stands for an ignore_msb that is null, or that the table does not have."""
_TALLY_FIELDS = {
    "invariant": pa.string(),
    "population": pa.int64(),
    "violations": pa.int64(),
    "place": pa.int64(),
    "sample": pa.string(),
    "more": pa.list_(pa.struct({"place": pa.int64(), "sample": pa.string()})),
    "unjudged": pa.int64(),
}
_OUTPUT = pa.schema({"number": pa.int32(), **_TALLY_FIELDS, "digests": pa.binary()})
"""What comes back of a reading, by its number: tallies, and the digests of a file's rows; a line has one of both."""
# Bytes of files that a task reads, twice those whose rows it judges; fewer are not worth the start of a task.
_BYTES_A_TASK = 32 << 20
# The same of threads, in files of as much: of smaller ones Python does most, which is one thread's at a time.
_BYTES_A_THREAD = 1 << 20


@dataclass(frozen=True, eq=False)
class OwnerSharding:
    """What is known of ranges whose table does not say it: for each range end its owner's values.

    `exact`: the ranges have a stream for each of these shards. By the ring as it stands a range that has not may lack
    one, or be older than its owner's shards.
    """

    range_ends: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s
    exact: bool = False


@dataclass(frozen=True, eq=False)
class ScanRequest:
    """What the pass is to do with one generation's rows in one table.

    `judged`: audit each row; `compared`: bring back a digest of each row, with `as_sets` also one for which the order
    of the streams does not count. `sharding` where the table has no ignore_msb of its own.
    """

    holding: StoredGenerationRows
    judged: bool = False
    compared: bool = False
    as_sets: bool = False
    sharding: OwnerSharding | None = None


@dataclass
class ScanResult:
    """What came back, by holding: tallies by invariant, and digests."""

    tallies: dict[StoredGenerationRows, dict[str, InvariantTally]] = field(default_factory=dict)
    digests: dict[StoredGenerationRows, RangeDigests] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _ScanTask:
    """What a worker needs to know of a generation's rows; small, and sent with the code."""

    number: int
    own_msb: bool
    own_owners: bool
    ranges: GenerationRanges
    unordered: Int64s
    sharding: OwnerSharding | None
    judged: bool
    compared: bool
    as_sets: bool


def run_scan(workers: TaskRunner, readings: Sequence[ScanRequest]) -> ScanResult:
    """Read the rows of all `readings` once, in one Spark job at most."""
    result, workers = ScanResult(), workers.of_arrays()
    if not readings:
        return result
    tasks = [_scan_task(number, reading) for number, reading in enumerate(readings)]
    files = [(task, file) for task, reading in zip(tasks, readings, strict=True) for file in reading.holding.files]
    shares = distribute_files(workers, files, lambda task: 1 + task.judged)
    audited = TaskRows(len(shares), lambda share: _scan_files(shares[share]))
    with translate_errors("auditing"):
        parts = workers.table(audited, _OUTPUT).to_pylist()
    by_number: dict[int, list[dict[str, Any]]] = {number: [] for number in range(len(readings))}
    for part in parts:
        by_number[part["number"]].append(part)
    for number, reading in enumerate(readings):
        mine = by_number[number]
        if reading.judged:
            found = [_tally_from_row(part) for part in mine if part["invariant"] is not None]
            result.tallies[reading.holding] = sum_tallies(found)
        if reading.compared:
            result.digests[reading.holding] = _range_digests(reading.holding, [part["digests"] for part in mine])
    return result


def distribute_files(
    workers: TaskRunner, files: Sequence[tuple[_Owner, DataFile]], weight: Callable[[_Owner], int] = lambda _: 1
) -> list[list[tuple[_Owner, str]]]:
    """Paths of files, with whatever is known of them, as workers are to read them: about the same work for each.

    `weight` says how much work a byte of a holder's files is. How many there are the table's log tells: a store would
    have to be asked once for each.
    """
    work = [(file.bytes * weight(holder), holder, file.path) for holder, file in files]
    of_tasks = sum(size for size, *_ in work)
    of_threads = sum(size for size, *_ in work if size >= _BYTES_A_THREAD)
    parts = workers.parts(1 + of_tasks // _BYTES_A_TASK, 1 + of_threads // _BYTES_A_THREAD)
    shares: list[list[tuple[_Owner, str]]] = [[] for _ in range(parts)]
    loads = [(0, number) for number in range(len(shares))]
    # The largest first, each to who has the least so far.
    for size, holder, path in sorted(work, key=lambda one: one[0], reverse=True):
        load, number = heapq.heappop(loads)
        shares[number].append((holder, path))
        heapq.heappush(loads, (load + size, number))
    return [share for share in shares if share]


def split_stream_lists(lists: pa.Array) -> tuple[Int64s, UInt8s, dict[int, bytes | None]]:
    """Lengths int64[n], -1 where there is no list, and streams uint8[total, 16] of a column of lists.

    What is there instead of 16 bytes comes by its place; the bytes at such a place are zeros.
    """
    lengths = to_int64_array(compute.list_value_length(lists), -1)
    values = lists.flatten()
    wrong = np.flatnonzero(np.asarray(compute.fill_null(compute.binary_length(values), -1)) != STREAM_ID_BYTES)
    if not len(wrong):
        return lengths, stream_ids_to_numpy(values), {}
    damaged = {place: values[place].as_py() for place in wrong.tolist()}
    whole = [bytes(STREAM_ID_BYTES) if place in damaged else value for place, value in enumerate(values.to_pylist())]
    return lengths, np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES), damaged


def _scan_task(number: int, reading: ScanRequest) -> _ScanTask:
    held = reading.holding
    return _ScanTask(
        number,
        "ignore_msb" in held.table.schema.names,
        reading.judged and "owner" in held.table.schema.names,
        GenerationRanges(unique_tokens(held.range_ends)),
        held.unordered,
        reading.sharding,
        reading.judged,
        reading.compared,
        reading.as_sets,
    )


def _scan_files(files: Sequence[tuple[_ScanTask, str]]) -> Iterator[pa.RecordBatch]:
    """What the files of a task have to say; runs on the executors."""
    facts = RangeFacts()
    for task, path in files:
        digests = list(_scan_file(task, path, facts))
        if task.compared:
            joined = np.concatenate(digests, axis=1) if digests else np.empty((4, 0), dtype=np.int64)
            yield _output_line(task.number, {"digests": pa.array([joined.tobytes()], pa.binary())})
    lines = [{"number": number, **_tally_to_row(tally)} for number, tally in judge_range_facts(facts)]
    yield pa.RecordBatch.from_pylist(lines, _OUTPUT)


def _scan_file(task: _ScanTask, path: str, facts: RangeFacts) -> Iterator[np.ndarray]:
    """Add the facts of a file's ranges, and give the digests of its rows, a batch at a time."""
    columns = ["range_end", *["ignore_msb"] * task.own_msb, *["owner"] * task.own_owners, "streams"]
    for batch in read_file_batches(path, columns):
        ends = to_int64_array(batch.column("range_end"), -(2**63))
        own_msb = batch.column("ignore_msb") if task.own_msb else pa.nulls(len(ends), pa.int8())
        msbs = to_int64_array(own_msb, UNKNOWN_MSB)
        lengths, streams, damaged = split_stream_lists(batch.column("streams"))
        if task.judged:
            owners = np.array(batch.column("owner").to_pylist(), dtype=object) if task.own_owners else None
            rows = _generation_row_batch(task, ends, msbs, lengths, streams, damaged)
            add_range_facts(facts, replace(rows, owners=owners), task.ranges, task.number)
        if task.compared:
            yield np.stack([ends, msbs, *digest_stream_lists(lengths, streams, damaged, as_sets=task.as_sets)])


def _generation_row_batch(
    task: _ScanTask,
    ends: Int64s,
    msbs: Int64s,
    lengths: Int64s,
    streams: UInt8s,
    damaged: Mapping[int, bytes | None],
) -> GenerationRowBatch:
    counts = np.maximum(lengths, 0)
    order_known = ~np.isin(ends, task.unordered)
    shown = {place: _damaged_text(value) for place, value in damaged.items()}
    rows = GenerationRowBatch(ends, msbs, counts, streams, order_known, shown)
    if task.sharding is None:
        return rows
    msbs, shard_counts = _owner_sharding(task.sharding, ends)
    known = shard_counts == counts
    due = shard_counts if task.sharding.exact else None
    return replace(
        rows,
        ignore_msbs=np.where(known, msbs, UNKNOWN_MSB),
        order_known=order_known & known,
        shard_counts=due,
        sharding_known=known,
    )


def _owner_sharding(sharding: OwnerSharding, ends: Int64s) -> tuple[Int64s, Int64s]:
    """The ignore_msb of each range's owner, and its shards; NO_MSB and -1 where no node owns the range."""
    if not len(sharding.range_ends):
        return np.full(len(ends), UNKNOWN_MSB), np.full(len(ends), -1)
    at = np.minimum(np.searchsorted(sharding.range_ends, ends), len(sharding.range_ends) - 1)
    owned = sharding.range_ends[at] == ends
    return np.where(owned, sharding.ignore_msbs[at], UNKNOWN_MSB), np.where(owned, sharding.shard_counts[at], -1)


def _damaged_text(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"0x{value[:24].hex()}{'...' if len(value) > 24 else ''}, {len(value)} bytes"


def _output_line(number: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """One line about a reading, in which the other columns are null."""
    columns = {"number": pa.array([number], pa.int32()), **columns}
    filled = [columns[each.name] if each.name in columns else pa.nulls(1, each.type) for each in _OUTPUT]
    return pa.RecordBatch.from_arrays(filled, schema=_OUTPUT)


def _tally_to_row(tally: InvariantTally) -> dict[str, Any]:
    """A tally as a line."""
    return vars(tally) | {"more": [{"place": place, "sample": sample} for place, sample in tally.more]}


def _tally_from_row(line: dict[str, Any]) -> InvariantTally:
    """The inverse of `_tally_to_row`."""
    more = tuple((case["place"], case["sample"]) for case in line["more"])
    told: dict[str, Any] = {name: line[name] for name in _TALLY_FIELDS if name != "more"}
    return InvariantTally(**told, more=more)


def _range_digests(holding: StoredGenerationRows, parts: Sequence[bytes | None]) -> RangeDigests:
    columns = [np.frombuffer(part, dtype=np.int64).reshape(4, -1) for part in parts if part is not None]
    rows = np.concatenate(columns, axis=1)
    ends, msbs, ordered, unordered = rows[:, np.argsort(rows[0], kind="stable")]
    return RangeDigests(ends, msbs, ordered, unordered, holding.unordered)
