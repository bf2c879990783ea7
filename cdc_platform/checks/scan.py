"""The one-pass scan of generation rows: range facts, tallies of invariants, and digests for comparison.

Range ends are sent with the code; tallies and digests come back; streams never leave the executors. Each task gathers
the facts of its ranges, and the pandera model judges them at the end of the task. The rules are the functions of `ring`
and `generations` that place and look up streams.
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
"""What is wrong with a range, as text, by invariant and row."""


@dataclass
class RangeFacts:
    """Facts of ranges in the order in which they were read: the columns `judge.FACT_COLUMNS`, int64[n], and owners.

    `explanations` describes the first ranges of each part that violate an invariant; `rows` counts all ranges.
    """

    parts: list[Mapping[str, Int64s]] = field(default_factory=list)
    owners: list[Sequence[str | None]] = field(default_factory=list)
    explanations: dict[tuple[str, int], str] = field(default_factory=dict)
    rows: int = 0

    def add(self, columns: Mapping[str, Int64s], owners: Sequence[str | None], explanations: Explanations) -> None:
        """Append the facts of further ranges; `explanations` counts rows from the first of these."""
        self.explanations.update({(name, self.rows + row): words for (name, row), words in explanations.items()})
        self.parts.append(columns)
        self.owners.append(owners)
        self.rows += len(owners)


@dataclass(frozen=True, eq=False)
class _FactFrame:
    """All facts of a task, sorted by generation and range end; `order` maps each row to its original position.

    `firsts` int64[g] are the first rows of the generations.
    """

    facts: RangeFacts
    columns: Mapping[str, Int64s]
    owners: np.ndarray
    order: Int64s
    firsts: Int64s

    def explain(self, invariant: Invariant, row: int) -> str:
        """Describe what is wrong with a range, and name its owner if known."""
        words = self.facts.explanations[invariant, int(self.order[row])]
        return words if self.owners[row] is None else f"{words} (owner {self.owners[row]})"


def judge_range_facts(facts: RangeFacts) -> Iterator[tuple[int, InvariantTally]]:
    """Yield each generation's number with its tallies of `judge.RANGE_INVARIANTS`.

    The samples are the first failing ranges on the ring.
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
    owners = np.array([owner for part_owners in facts.owners for owner in part_owners], dtype=object)[order]
    generations = columns["generation"]
    firsts = np.flatnonzero(np.append(True, generations[1:] != generations[:-1]))
    return _FactFrame(facts, columns, owners, order, firsts)


def _failed_rows(frame: _FactFrame) -> dict[str, Bools]:
    """Return the failing rows of each invariant that any row fails."""
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
        for generation, population, unjudged_count in zip(generations, populations, unjudged, strict=True):
            yield generation, InvariantTally(invariant, population, 0, unjudged=unjudged_count)
        return
    wrong = np.where(failed, frame.columns[invariant.in_range.wrong], 0)
    violations = np.add.reduceat(wrong, frame.firsts).tolist()
    rows = np.flatnonzero(failed)
    begins = np.searchsorted(rows, frame.firsts).tolist()
    ends = [*begins[1:], len(rows)]
    for generation, population, count, begin, end, unjudged_count in zip(
        generations, populations, violations, begins, ends, unjudged, strict=True
    ):
        sample_rows = rows[begin : min(end, begin + MAX_SAMPLES)].tolist()
        cases = [(int(frame.columns["range_end"][row]), frame.explain(invariant, row)) for row in sample_rows]
        yield generation, InvariantTally.of_cases(invariant, population, count, cases, unjudged_count)


# The number of streams processed at once: their columns fit the processor's second-level cache, and a numpy call takes
# longer than threads wait for Python's lock between two calls.
_STREAMS_A_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class GenerationRanges:
    """The ranges of the generation that the rows belong to: `ends` int64[n], ascending, each once."""

    ends: Int64s

    @cached_property
    def starts(self) -> Int64s:
        """Return the (exclusive) start of each range, int64[n]."""
        return range_starts(self.ends)

    def holds(self, ranks: Int64s, tokens: Int64s) -> Bools:
        """Return whether the range of each rank contains the token (int64, broadcast). No range has the minimum token.

        Positions are counted from the range's first one, so the ring's end needs no special case; a range that starts
        where it ends is the whole ring. Looking up the range of each token would take four times as long.
        """
        first = unbias(self.starts[ranks]) + np.uint64(1)
        length = unbias(self.ends[ranks]) - first
        return (unbias(tokens) - first <= length) & (tokens != MINIMUM_TOKEN)


@dataclass(frozen=True, eq=False)
class GenerationRowBatch:
    """Some rows of one generation, in any order; `range_ends` has one entry per row, `streams` one per stream.

    `range_ends` int64[n] (all of them in the generation's range ends); `ignore_msbs` int64[n], -1 for null;
    `stream_counts` int64[n]; `streams` uint8[total, 16], the rows' streams concatenated. `order_known` bool[n]: if
    False, the shard of a stream is unknown, so shard colocation is not judged. `damaged` maps positions in `streams` to
    a description of what is there instead of 16 bytes; the bytes at such a position are meaningless. `owners` has the
    owner of each row, if the table has that column. `shard_counts` int64[n] are the shards of each row's owner if the
    generation must have a stream for each of them, else -1. `sharding_known` bool[n]: True if ignore_msb is the
    generation's; without it and without an order, shards of the row are not judged. None: always known.
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
        ids = decode_stream_ids(self.ids.reshape(-1, 16))
        shape = self.ids.shape[:2]
        return StreamIds(
            ids.tokens.reshape(shape),
            ids.versions.reshape(shape),
            ids.indexes.reshape(shape),
            ids.randoms.reshape(shape),
        )

    @property
    def width(self) -> int:
        return self.ids.shape[1]

    def name(self, row: int, stream: int) -> str:
        value = self.damaged.get((row, stream)) or str(StreamId(self.ids[row, stream].tobytes()))
        return f"range end {self.range_ends[row, 0]}, stream {stream} ({value})"


@dataclass(frozen=True, eq=False)
class _Examination:
    """The examination of a block for one invariant.

    bool[rows, streams] are the streams to which it applies and those that violate it; `explain` describes one
    violation.
    """

    invariant: Invariant
    among: Bools
    wrong: Bools
    explain: Callable[[int, int], str]
    unjudged: Bools | None = None


def audit_generation_rows(rows: GenerationRowBatch, ranges: GenerationRanges) -> list[InvariantTally]:
    """Return the tallies of all invariants that facts of ranges show, for some rows of a generation; none without rows.

    It does not detect a stream that is repeated in another row. That is possible only if an index is wrong or a range
    end is repeated, which stream_format or ring_covered_once reports.
    """
    facts = RangeFacts()
    add_range_facts(facts, rows, ranges)
    return [tally for _, tally in judge_range_facts(facts)]


def add_range_facts(facts: RangeFacts, rows: GenerationRowBatch, ranges: GenerationRanges, generation: int = 0) -> None:
    """Add the facts of some rows of a generation, under a number for it, one range per row."""
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
        messages: dict[tuple[str, int], str] = {}
        for look in looks:
            assert look.invariant.in_range is not None
            columns[look.invariant.in_range.among] = _counts_by_row(look.among)
            columns[look.invariant.in_range.wrong] = _counts_by_row(look.wrong)
            if look.invariant.in_range.unjudged is not None and look.unjudged is not None:
                columns[look.invariant.in_range.unjudged] = _counts_by_row(look.unjudged)
            messages.update(((look.invariant, row), words) for row, words in _explained(block, look))
        facts.add(columns, block.owners, messages)


def _add_empty_ranges(facts: RangeFacts, rows: GenerationRowBatch, ranges: GenerationRanges, generation: int) -> None:
    """Add ranges without streams: each lacks one stream, in whatever format."""
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
    messages: dict[tuple[str, int], str] = {
        (STREAM_FORMAT, row): f"range end {ends[row]} has no streams" for row in first
    }
    facts.add(columns, _row_owners(rows, empty), messages)


def _counts_by_row(streams: Bools) -> Int64s:
    """Count each row's True values: int64[n]. Nearly always all or none of them are True."""
    if streams.all():
        return np.full(len(streams), streams.shape[1])
    return np.count_nonzero(streams, axis=1) if streams.any() else np.zeros(len(streams), dtype=np.int64)


def _explained(block: _Block, look: _Examination) -> Iterator[tuple[int, str]]:
    """Yield the first rows on the ring that violate an invariant, and what is wrong with their first such stream."""
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
    """Judge the pairs of row and shard in which the shard owns a token of the range.

    A stream in its place proves that its shard owns one. Only if some stream is out of place, compute the first token
    of each shard in the range.
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
    # A range that lacks a stream has no stream that could be relied on.
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
    """Return the streams (bool[streams]) of a row of unknown order whose tokens fit no shard of the range.

    The remaining streams may be in any order, so none of them counts as judged.
    """
    start, end, msb = block.starts[row, 0], block.range_ends[row, 0], block.ignore_msbs[row, 0]
    shards = np.arange(block.width)
    expected = first_token_for_shard(np.full(block.width, start), np.full(block.width, end), shards, block.width, msb)
    remaining = Counter(expected.tolist())
    wrong = np.zeros(block.width, dtype=bool)
    for stream, token in enumerate(block.fields.tokens[row].tolist()):
        remaining[token] -= 1
        wrong[stream] = remaining[token] < 0
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
    """Find repeated streams. Equal streams have equal random bits, so only those need whole IDs compared."""
    repeated = np.zeros(block.whole.shape, dtype=bool)
    in_order = np.sort(block.fields.randoms, axis=1)
    for row in np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1)):
        positions = np.flatnonzero(block.whole[row])
        _, first = np.unique(block.ids[row, positions], axis=0, return_index=True)
        repeated[row, np.delete(positions, first)] = True

    def explain(row: int, stream: int) -> str:
        return "the range has the same stream before it already"

    return _Examination(STREAMS_UNIQUE, block.whole, repeated, explain)


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
    """Return the values of the chosen rows as a column [rows, 1], or the default if there are no values."""
    return np.full((len(chosen), 1), default) if values is None else values[chosen, None]


def _damaged_in_block(rows: GenerationRowBatch, places: Int64s) -> dict[tuple[int, int], str]:
    damaged_positions = np.argwhere(np.isin(places, list(rows.damaged)))
    return {(row, stream): rows.damaged[int(places[row, stream])] for row, stream in damaged_positions.tolist()}


def _row_owners(rows: GenerationRowBatch, chosen: Int64s) -> Sequence[str | None]:
    return [None] * len(chosen) if rows.owners is None else rows.owners[chosen].tolist()


_Owner = TypeVar("_Owner")

UNKNOWN_MSB = -1
"""The value for an ignore_msb that is null, or that the table does not have."""
_TALLY_FIELDS = {
    "invariant": pa.string(),
    "population": pa.int64(),
    "violations": pa.int64(),
    "position": pa.int64(),
    "sample": pa.string(),
    "more": pa.list_(pa.struct({"position": pa.int64(), "sample": pa.string()})),
    "unjudged": pa.int64(),
}
_OUTPUT = pa.schema({"number": pa.int32(), **_TALLY_FIELDS, "digests": pa.binary()})
"""The output of a request, by its number: tallies and the digests of a file's rows; a line has one of the two."""
# The bytes of files that a task reads, counted twice if it judges their rows; fewer are not worth starting a task.
_BYTES_A_TASK = 32 << 20
# The same for threads, per file: for smaller files Python does most of the work, one thread at a time.
_BYTES_A_THREAD = 1 << 20


@dataclass(frozen=True, eq=False)
class OwnerSharding:
    """The sharding of ranges whose table does not store it: for each range end its owner's values.

    `exact`: the ranges have a stream for each of these shards. According to the current ring, a range that has not may
    lack one, or be older than its owner's shards.
    """

    range_ends: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s
    exact: bool = False


@dataclass(frozen=True, eq=False)
class ScanRequest:
    """What the scan does with one generation's rows in one table.

    `audited`: audit each row; `compared`: return a digest of each row, with `as_sets` also one that ignores the order
    of the streams. `sharding`: used if the table has no ignore_msb of its own.
    """

    holding: StoredGenerationRows
    audited: bool = False
    compared: bool = False
    as_sets: bool = False
    sharding: OwnerSharding | None = None


@dataclass
class ScanResult:
    """The results by holding: tallies by invariant, and digests."""

    tallies: dict[StoredGenerationRows, dict[str, InvariantTally]] = field(default_factory=dict)
    digests: dict[StoredGenerationRows, RangeDigests] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _ScanTask:
    """What a worker needs to know about a generation's rows; small, and sent with the code."""

    number: int
    own_msb: bool
    own_owners: bool
    ranges: GenerationRanges
    unordered: Int64s
    sharding: OwnerSharding | None
    audited: bool
    compared: bool
    as_sets: bool


def run_scan(workers: TaskRunner, readings: Sequence[ScanRequest]) -> ScanResult:
    """Read the rows of all `readings` once, in at most one Spark job."""
    result, workers = ScanResult(), workers.of_arrays()
    if not readings:
        return result
    tasks = [_scan_task(number, reading) for number, reading in enumerate(readings)]
    files = [(task, file) for task, reading in zip(tasks, readings, strict=True) for file in reading.holding.files]
    shares = distribute_files(workers, files, lambda task: 1 + task.audited)
    audited = TaskRows(len(shares), lambda share: _scan_files(shares[share]))
    with translate_errors("auditing"):
        parts = workers.table(audited, _OUTPUT).to_pylist()
    by_number: dict[int, list[dict[str, Any]]] = {number: [] for number in range(len(readings))}
    for part in parts:
        by_number[part["number"]].append(part)
    for number, reading in enumerate(readings):
        request_parts = by_number[number]
        if reading.audited:
            tallies = [_tally_from_row(part) for part in request_parts if part["invariant"] is not None]
            result.tallies[reading.holding] = sum_tallies(tallies)
        if reading.compared:
            result.digests[reading.holding] = _range_digests(
                reading.holding, [part["digests"] for part in request_parts]
            )
    return result


def distribute_files(
    workers: TaskRunner, files: Sequence[tuple[_Owner, DataFile]], weight: Callable[[_Owner], int] = lambda _: 1
) -> list[list[tuple[_Owner, str]]]:
    """Distribute the paths of files, with their holders, to workers: about the same work for each.

    `weight` is the work per byte of a holder's files. Sizes come from the table's log, because a store would need one
    request per file.
    """
    work = [(file.bytes * weight(holder), holder, file.path) for holder, file in files]
    of_tasks = sum(size for size, *_ in work)
    of_threads = sum(size for size, *_ in work if size >= _BYTES_A_THREAD)
    parts = workers.parts(1 + of_tasks // _BYTES_A_TASK, 1 + of_threads // _BYTES_A_THREAD)
    shares: list[list[tuple[_Owner, str]]] = [[] for _ in range(parts)]
    loads = [(0, number) for number in range(len(shares))]
    # Assign the largest first, each to the worker with the least work so far.
    for size, holder, path in sorted(work, key=lambda one: one[0], reverse=True):
        load, number = heapq.heappop(loads)
        shares[number].append((holder, path))
        heapq.heappush(loads, (load + size, number))
    return [share for share in shares if share]


def split_stream_lists(lists: pa.Array) -> tuple[Int64s, UInt8s, dict[int, bytes | None]]:
    """Return lengths int64[n] (-1 if there is no list) and streams uint8[total, 16] of a column of lists.

    Also return the values that are not 16 bytes, by position; the bytes at such a position are zeros.
    """
    lengths = to_int64_array(compute.list_value_length(lists), -1)
    values = lists.flatten()
    wrong = np.flatnonzero(np.asarray(compute.fill_null(compute.binary_length(values), -1)) != STREAM_ID_BYTES)
    if not len(wrong):
        return lengths, stream_ids_to_numpy(values), {}
    damaged = {position: values[position].as_py() for position in wrong.tolist()}
    whole = [
        bytes(STREAM_ID_BYTES) if position in damaged else value for position, value in enumerate(values.to_pylist())
    ]
    return lengths, np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES), damaged


def _scan_task(number: int, reading: ScanRequest) -> _ScanTask:
    rows = reading.holding
    return _ScanTask(
        number,
        "ignore_msb" in rows.table.schema.names,
        reading.audited and "owner" in rows.table.schema.names,
        GenerationRanges(unique_tokens(rows.range_ends)),
        rows.unordered,
        reading.sharding,
        reading.audited,
        reading.compared,
        reading.as_sets,
    )


def _scan_files(files: Sequence[tuple[_ScanTask, str]]) -> Iterator[pa.RecordBatch]:
    """Scan the files of a task; runs on the executors."""
    facts = RangeFacts()
    for task, path in files:
        digests = list(_scan_file(task, path, facts))
        if task.compared:
            joined = np.concatenate(digests, axis=1) if digests else np.empty((4, 0), dtype=np.int64)
            yield _output_line(task.number, {"digests": pa.array([joined.tobytes()], pa.binary())})
    lines = [{"number": number, **_tally_to_row(tally)} for number, tally in judge_range_facts(facts)]
    yield pa.RecordBatch.from_pylist(lines, _OUTPUT)


def _scan_file(task: _ScanTask, path: str, facts: RangeFacts) -> Iterator[np.ndarray]:
    """Add the facts of a file's ranges, and yield the digests of its rows, one batch at a time."""
    columns = ["range_end", *["ignore_msb"] * task.own_msb, *["owner"] * task.own_owners, "streams"]
    for batch in read_file_batches(path, columns):
        ends = to_int64_array(batch.column("range_end"), -(2**63))
        own_msb = batch.column("ignore_msb") if task.own_msb else pa.nulls(len(ends), pa.int8())
        msbs = to_int64_array(own_msb, UNKNOWN_MSB)
        lengths, streams, damaged = split_stream_lists(batch.column("streams"))
        if task.audited:
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
    damaged_texts = {position: _damaged_text(value) for position, value in damaged.items()}
    rows = GenerationRowBatch(ends, msbs, counts, streams, order_known, damaged_texts)
    if task.sharding is None:
        return rows
    msbs, shard_counts = _owner_sharding(task.sharding, ends)
    known = shard_counts == counts
    expected_counts = shard_counts if task.sharding.exact else None
    return replace(
        rows,
        ignore_msbs=np.where(known, msbs, UNKNOWN_MSB),
        order_known=order_known & known,
        shard_counts=expected_counts,
        sharding_known=known,
    )


def _owner_sharding(sharding: OwnerSharding, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Return the ignore_msb of each range's owner, and its shards; UNKNOWN_MSB and -1 if no node owns the range."""
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
    """Return one output line about a request, with the other columns null."""
    columns = {"number": pa.array([number], pa.int32()), **columns}
    filled = [
        columns[output_field.name] if output_field.name in columns else pa.nulls(1, output_field.type)
        for output_field in _OUTPUT
    ]
    return pa.RecordBatch.from_arrays(filled, schema=_OUTPUT)


def _tally_to_row(tally: InvariantTally) -> dict[str, Any]:
    """Return a tally as an output line."""
    return vars(tally) | {"more": [{"position": position, "sample": sample} for position, sample in tally.more]}


def _tally_from_row(line: dict[str, Any]) -> InvariantTally:
    """Restore a tally; the inverse of `_tally_to_row`."""
    more = tuple((case["position"], case["sample"]) for case in line["more"])
    fields: dict[str, Any] = {name: line[name] for name in _TALLY_FIELDS if name != "more"}
    return InvariantTally(**fields, more=more)


def _range_digests(holding: StoredGenerationRows, parts: Sequence[bytes | None]) -> RangeDigests:
    columns = [np.frombuffer(part, dtype=np.int64).reshape(4, -1) for part in parts if part is not None]
    rows = np.concatenate(columns, axis=1)
    ends, msbs, ordered, unordered = rows[:, np.argsort(rows[0], kind="stable")]
    return RangeDigests(ends, msbs, ordered, unordered, holding.unordered)
