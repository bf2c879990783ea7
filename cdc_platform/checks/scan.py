"""The one-pass scan of generation rows: range facts, tallies of invariants, and digests for comparison.

Range ends are sent with the code; tallies and digests come back; streams never leave the executors. Each task judges
its streams in frames, by the pandera model `models.StreamModel`, which states the invariants.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
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
from cdc_platform.generations import (
    NO_SHARD,
    SOME_SHARD,
    STREAM_ID_BYTES,
    STREAM_ID_VERSION,
    UNKNOWN_SHARD,
    StreamId,
    decode_stream_ids,
    owns_token,
)
from cdc_platform.ring import (
    MAX_IGNORE_MSB,
    MAX_SHARD_COUNT,
    MINIMUM_TOKEN,
    Bools,
    Int64s,
    UInt8s,
    first_token_for_shard,
    range_starts,
    shard_of,
    unique_tokens,
)

# Pandera takes a few milliseconds per frame, and larger frames than this leave the processor's caches.
_STREAMS_PER_FRAME = 1 << 17


@dataclass(frozen=True, eq=False)
class GenerationRanges:
    """The ranges of the generation that the rows belong to: `ends` int64[n], ascending, each once."""

    ends: Int64s

    @cached_property
    def starts(self) -> Int64s:
        """Return the (exclusive) start of each range, int64[n]."""
        return range_starts(self.ends)


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

    def part(self, begin: int, end: int) -> GenerationRowBatch:
        """Return the rows from `begin` up to `end`."""
        first = int(self.stream_counts[:begin].sum())
        last = first + int(self.stream_counts[begin:end].sum())

        def cut(column: np.ndarray | None) -> Any:
            return None if column is None else column[begin:end]

        return GenerationRowBatch(
            self.range_ends[begin:end],
            self.ignore_msbs[begin:end],
            self.stream_counts[begin:end],
            self.streams[first:last],
            self.order_known[begin:end],
            {place - first: text for place, text in self.damaged.items() if first <= place < last},
            cut(self.owners),
            cut(self.shard_counts),
            cut(self.sharding_known),
        )


@dataclass(frozen=True, eq=False)
class _FramePart:
    """Consecutive rows of one generation in a frame. `ranges` are the ranges of the whole generation."""

    generation: int
    ranges: GenerationRanges
    rows: GenerationRowBatch


@dataclass(frozen=True, eq=False)
class _RangeColumns:
    """The columns of a frame's ranges, int64[n] or bool[n]; `streams` int64[n] counts rows of the frame per range.

    A range without streams has one row, of a stream ID that is not complete. `lacks_shards`: the owner has another
    number of shards than the range has streams. `fits_as_set`: the order is unknown, but the sharding is known.
    """

    generation: Int64s
    range_start: Int64s
    range_end: Int64s
    vnode_index: Int64s
    stream_count: Int64s
    shard_count: Int64s
    ignore_msb: Int64s
    stated_msb: Int64s
    streams: Int64s
    fits_as_set: Bools
    is_unknown: Bools

    @classmethod
    def of(cls, part: _FramePart) -> _RangeColumns:
        rows, ranges = part.rows, part.ranges
        count = len(rows.range_ends)
        index = np.searchsorted(ranges.ends, rows.range_ends)
        single = rows.stream_counts == 1
        msb = np.where(single, 0, rows.ignore_msbs)  # one shard owns everything, whatever bits it ignores
        owner_shards = np.full(count, -1) if rows.shard_counts is None else rows.shard_counts
        sharding_known = np.ones(count, dtype=bool) if rows.sharding_known is None else rows.sharding_known
        shard_count = np.where(owner_shards >= 0, owner_shards, rows.stream_counts)
        legal = (
            (msb >= 0)
            & (msb <= MAX_IGNORE_MSB)
            & (rows.range_ends != MINIMUM_TOKEN)
            & (rows.stream_counts <= MAX_SHARD_COUNT)
        )
        without_order = ~(rows.order_known | single) & (shard_count == rows.stream_counts)
        return cls(
            generation=np.full(count, part.generation),
            range_start=ranges.starts[index],
            range_end=rows.range_ends,
            vnode_index=index,
            stream_count=rows.stream_counts,
            shard_count=shard_count,
            ignore_msb=msb,
            stated_msb=rows.ignore_msbs,
            streams=np.maximum(rows.stream_counts, 1),
            fits_as_set=without_order & sharding_known & legal,
            is_unknown=without_order & ~(sharding_known & legal),
        )

    @classmethod
    def joined(cls, parts: Sequence[_RangeColumns]) -> _RangeColumns:
        """Return the columns of several parts as one."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, name.name) for part in parts]) for name in fields(cls)))


@dataclass(frozen=True, eq=False)
class _StreamFrame:
    """The streams of some ranges: `columns` are those of `StreamModel`.

    `offsets` int64[n + 1] are the rows of the frame where ranges begin; `part_begins` the first range of each part.
    """

    parts: Sequence[_FramePart]
    ranges: _RangeColumns
    offsets: Int64s
    part_begins: Int64s
    columns: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, parts: Sequence[_FramePart]) -> _StreamFrame:
        ranges = _RangeColumns.joined([_RangeColumns.of(part) for part in parts])
        offsets = np.append(0, np.cumsum(ranges.streams))
        part_begins = np.append(0, np.cumsum([len(part.rows.range_ends) for part in parts]))[:-1]
        ids, is_complete = _stream_ids(parts)
        decoded = decode_stream_ids(ids)
        by_range = {
            name: np.repeat(getattr(ranges, name), ranges.streams)
            for name in (
                *("generation", "range_start", "range_end", "vnode_index"),
                *("stream_count", "shard_count", "ignore_msb"),
            )
        }
        columns = by_range | {
            "shard": _shards(ranges, offsets, decoded.tokens, is_complete),
            "is_complete": is_complete,
            "token": decoded.tokens,
            "version": decoded.versions,
            "index": decoded.indexes,
            "random": decoded.randoms.view(np.int64),
        }
        return cls(parts, ranges, offsets, part_begins, columns)

    def tallies(self) -> Iterator[tuple[int, InvariantTally]]:
        """Yield the tallies of each part by generation, as the model judges the streams."""
        from cdc_platform.checks.models import StreamModel

        failed = judge.failed_rows(StreamModel, self.columns)
        complete = self.columns["is_complete"]
        judged = {
            VNODE_COLOCATION: complete,
            SHARD_COLOCATION: _judged_by_shard(self.columns, failed.get(SHARD_COLOCATION)),
            STREAM_FORMAT: np.ones(len(complete), dtype=bool),
            STREAMS_UNIQUE: complete,
        }
        unjudged = complete & (self.columns["shard"] == UNKNOWN_SHARD)
        for invariant, among in judged.items():
            wrong = failed.get(invariant)
            counts = (
                self._count(among),
                [0] * len(self.parts) if wrong is None else self._count(wrong),
                self._count(unjudged) if invariant == SHARD_COLOCATION else [0] * len(self.parts),
            )
            for number, (population, violations, unknown) in enumerate(zip(*counts, strict=True)):
                cases = [] if wrong is None or not violations else self._cases(invariant, wrong, number)
                tally = InvariantTally.of_cases(invariant, population, violations, cases, unknown)
                yield self.parts[number].generation, tally

    def _count(self, rows: Bools) -> list[int]:
        """Count rows (bool[streams]) by part."""
        if len(self.parts) == 1:
            return [int(np.count_nonzero(rows))]
        return np.add.reduceat(rows, self.offsets[self.part_begins], dtype=np.int64).tolist()

    def _cases(self, invariant: Invariant, wrong: Bools, number: int) -> list[tuple[int, str]]:
        """Describe the first failing stream of the first failing ranges of a part, in the order of the ring."""
        first = int(self.part_begins[number])
        last = first + len(self.parts[number].rows.range_ends)
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        streams = begin + np.flatnonzero(wrong[begin:end])
        ranges = np.searchsorted(self.offsets, streams, side="right") - 1
        ranges, firsts = np.unique(ranges, return_index=True)
        order = np.argsort(self.ranges.range_end[ranges], kind="stable")[:MAX_SAMPLES]
        return [
            (int(self.ranges.range_end[row]), self._describe(invariant, number, row, int(streams[at])))
            for row, at in zip(ranges[order].tolist(), firsts[order].tolist(), strict=True)
        ]

    def _describe(self, invariant: Invariant, number: int, row: int, at: int) -> str:
        """Describe what is wrong with a stream, and name the owner of its range if known."""
        rows = self.parts[number].rows
        own_row = row - int(self.part_begins[number])
        stream = {name: column[at].item() for name, column in self.columns.items()}
        stream["stated_msb"] = int(self.ranges.stated_msb[row])
        position = at - int(self.offsets[row])
        text = f"range end {stream['range_end']} has no streams"
        if stream["stream_count"]:
            in_batch = int(rows.stream_counts[:own_row].sum()) + position
            value = rows.damaged.get(in_batch) or str(StreamId(rows.streams[in_batch].tobytes()))
            reason = _EXPLANATIONS[invariant](stream)
            text = f"range end {stream['range_end']}, stream {position} ({value}): {reason}"
        owner = None if rows.owners is None else rows.owners[own_row]
        return text if owner is None else f"{text} (owner {owner})"


@dataclass
class StreamAudit:
    """An audit of the streams of generations' rows: `StreamModel` judges them in frames of a bounded size."""

    _waiting: list[_FramePart] = field(default_factory=list)
    _streams: int = 0
    _tallies: dict[int, dict[str, InvariantTally]] = field(default_factory=dict)

    def add(self, rows: GenerationRowBatch, ranges: GenerationRanges, generation: int = 0) -> None:
        """Add some rows of a generation, under a number for it."""
        counts = np.maximum(rows.stream_counts, 1)
        frames = np.cumsum(counts) // _STREAMS_PER_FRAME
        begins = [0, *(np.flatnonzero(np.diff(frames)) + 1).tolist()]
        for begin, end in pairwise([*begins, len(counts)]):
            part = rows if len(begins) == 1 else rows.part(begin, end)
            if len(part.range_ends):
                self._waiting.append(_FramePart(generation, ranges, part))
                self._streams += int(counts[begin:end].sum())
            if self._streams >= _STREAMS_PER_FRAME:
                self._judge()

    def finish(self) -> Iterator[tuple[int, InvariantTally]]:
        """Yield each generation's number with its tallies of the invariants that `StreamModel` states."""
        self._judge()
        for generation, tallies in self._tallies.items():
            for tally in tallies.values():
                yield generation, tally

    def _judge(self) -> None:
        if self._waiting:
            for generation, tally in _StreamFrame.of(self._waiting).tallies():
                known = self._tallies.setdefault(generation, {})
                known |= sum_tallies([tally, *([known[tally.invariant]] if tally.invariant in known else [])])
        self._waiting, self._streams = [], 0


def audit_generation_rows(rows: GenerationRowBatch, ranges: GenerationRanges) -> list[InvariantTally]:
    """Return the tallies of the invariants that `StreamModel` states, for some rows of a generation; none without rows.

    It does not detect a stream that is repeated in another row. That is possible only if an index is wrong or a range
    end is repeated, which stream_format or ring_covered_once reports.
    """
    audit = StreamAudit()
    audit.add(rows, ranges)
    return [tally for _, tally in audit.finish()]


def _stream_ids(parts: Sequence[_FramePart]) -> tuple[UInt8s, Bools]:
    """Return the stream IDs (uint8[streams, 16]) of a frame and which of them are complete (bool[streams])."""
    ids: list[UInt8s] = []
    complete: list[Bools] = []
    for part in parts:
        rows = part.rows
        streams, whole = rows.streams, np.ones(len(rows.streams), dtype=bool)
        if rows.damaged:
            whole[list(rows.damaged)] = False
        empty = np.flatnonzero(rows.stream_counts == 0)
        if len(empty):
            places = np.cumsum(rows.stream_counts)[empty]
            streams = np.insert(streams, places, 0, axis=0)
            whole = np.insert(whole, places, False)
        ids.append(streams)
        complete.append(whole)
    return (ids[0], complete[0]) if len(ids) == 1 else (np.concatenate(ids), np.concatenate(complete))


def _shards(ranges: _RangeColumns, offsets: Int64s, tokens: Int64s, is_complete: Bools) -> Int64s:
    """Return each stream's shard, int64[streams]: its position in the range, unless the order is unknown."""
    shards = np.arange(len(tokens)) - np.repeat(offsets[:-1], ranges.streams)
    if ranges.is_unknown.any():
        shards[np.repeat(ranges.is_unknown, ranges.streams)] = UNKNOWN_SHARD
    for row in np.flatnonzero(ranges.fits_as_set).tolist():
        streams = slice(int(offsets[row]), int(offsets[row + 1]))
        fits = _fit_as_set(ranges, row, tokens[streams])
        shards[streams] = np.where(fits | ~is_complete[streams], SOME_SHARD, NO_SHARD)
    return shards


def _fit_as_set(ranges: _RangeColumns, row: int, tokens: Int64s) -> Bools:
    """Return which tokens (bool[streams]) of a range of unknown order are the first of a shard, one for each shard."""
    width = len(tokens)
    start, end, msb = ranges.range_start[row], ranges.range_end[row], ranges.ignore_msb[row]
    expected = first_token_for_shard(np.full(width, start), np.full(width, end), np.arange(width), width, msb)
    remaining = Counter(expected.tolist())
    fits = np.zeros(width, dtype=bool)
    for stream, token in enumerate(tokens.tolist()):
        remaining[token] -= 1
        fits[stream] = remaining[token] >= 0
    return fits


def _judged_by_shard(columns: Mapping[str, np.ndarray], wrong: Bools | None) -> Bools:
    """Return the streams that shard_colocation counts: those of shards that own a token of the range.

    A stream in its place is on its shard only if that shard owns a token. Streams of ranges with too few or too many
    streams, and streams that fit no shard, count too.
    """
    shard, token = columns["shard"], columns["token"]
    positional = columns["is_complete"] & (shard >= 0)
    judged = positional.copy()
    right = positional if wrong is None else positional & ~wrong
    count, msb = columns["shard_count"], columns["ignore_msb"]
    if not right.all():
        count, msb = np.where(right, count, 1), np.where(right, msb, 0)
    judged &= right & (shard_of(token, count, msb) == shard)
    if wrong is not None:
        rows = np.flatnonzero(wrong)
        at = {name: columns[name][rows] for name in columns}
        owned = owns_token(at["range_start"], at["range_end"], at["shard"], at["shard_count"], at["ignore_msb"])
        judged[rows] = owned | (at["shard_count"] != at["stream_count"]) | (at["shard"] == NO_SHARD)
    return judged


def _explain_vnode_colocation(stream: Mapping[str, int]) -> str:
    return f"its token {stream['token']} is outside its range ({stream['range_start']}, {stream['range_end']}]"


def _explain_shard_colocation(stream: Mapping[str, int]) -> str:
    token, shard, count, msb = stream["token"], stream["shard"], stream["shard_count"], stream["ignore_msb"]
    if stream["stream_count"] != count:
        return f"the range has {stream['stream_count']} streams, and its owner has {count} shards"
    if shard == NO_SHARD:
        return f"its token {token} is not where a shard of the range begins"
    if not 0 <= msb <= MAX_IGNORE_MSB or count > MAX_SHARD_COUNT or stream["range_end"] == MINIMUM_TOKEN:
        stated = "null" if stream["stated_msb"] == UNKNOWN_MSB else stream["stated_msb"]
        return f"its shard cannot be determined from ignore_msb {stated} and {count} shards"
    if not owns_token(stream["range_start"], stream["range_end"], shard, count, msb):
        return f"shard {shard} owns nothing in the range, so its token has to be the range end"
    return f"its token {token} is on shard {shard_of(token, count, msb)}, not on shard {shard}"


def _explain_stream_format(stream: Mapping[str, int]) -> str:
    if not stream["is_complete"]:
        return "a stream ID has 16 bytes"
    if stream["version"] > STREAM_ID_VERSION:
        return f"a legacy stream ID: its version is {stream['version']}, not {STREAM_ID_VERSION}"
    if stream["version"] != STREAM_ID_VERSION:
        return f"its version is {stream['version']}, not {STREAM_ID_VERSION}"
    return f"its index is {stream['index']}, the range is number {stream['vnode_index']}"


def _explain_streams_unique(stream: Mapping[str, int]) -> str:
    return "an earlier stream of the range is the same"


_EXPLANATIONS: Mapping[str, Callable[[Mapping[str, int]], str]] = {
    VNODE_COLOCATION: _explain_vnode_colocation,
    SHARD_COLOCATION: _explain_shard_colocation,
    STREAM_FORMAT: _explain_stream_format,
    STREAMS_UNIQUE: _explain_streams_unique,
}
"""The words for a stream that fails the check of an invariant, by the columns of its row."""


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
    result, workers = ScanResult(), workers.for_arrays()
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
    audit = StreamAudit()
    for task, path in files:
        digests = list(_scan_file(task, path, audit))
        if task.compared:
            joined = np.concatenate(digests, axis=1) if digests else np.empty((4, 0), dtype=np.int64)
            yield _output_line(task.number, {"digests": pa.array([joined.tobytes()], pa.binary())})
    lines = [{"number": number, **_tally_to_row(tally)} for number, tally in audit.finish()]
    yield pa.RecordBatch.from_pylist(lines, _OUTPUT)


def _scan_file(task: _ScanTask, path: str, audit: StreamAudit) -> Iterator[np.ndarray]:
    """Audit the rows of a file, and yield the digests of its rows, one batch at a time."""
    columns = ["range_end", *["ignore_msb"] * task.own_msb, *["owner"] * task.own_owners, "streams"]
    for batch in read_file_batches(path, columns):
        ends = to_int64_array(batch.column("range_end"), -(2**63))
        own_msb = batch.column("ignore_msb") if task.own_msb else pa.nulls(len(ends), pa.int8())
        msbs = to_int64_array(own_msb, UNKNOWN_MSB)
        lengths, streams, damaged = split_stream_lists(batch.column("streams"))
        if task.audited:
            owners = np.array(batch.column("owner").to_pylist(), dtype=object) if task.own_owners else None
            rows = _generation_row_batch(task, ends, msbs, lengths, streams, damaged)
            audit.add(replace(rows, owners=owners), task.ranges, task.number)
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
