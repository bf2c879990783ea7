"""The one pass of an audit: every row is read once, judged where it is, and compact partial results come back.

Range ends travel with the code, tallies and digests come back; streams never leave the executors. A task makes facts of
all its ranges, which the pandera model of facts judges as the task ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.invariants.comparison import Digests, row_digests
from cdc_platform.invariants.facts import Facts, judged
from cdc_platform.invariants.findings import Tally, add_up
from cdc_platform.invariants.inventory import Holding
from cdc_platform.invariants.rows import RangeEnds, Rows, add_facts
from cdc_platform.lake.arrow import compute, fixed_bytes, int64s
from cdc_platform.lake.files import DataFile
from cdc_platform.lake.translate import translated
from cdc_platform.lake.volume import TaskRows, Workers, file_batches
from cdc_platform.ring.tokens import Int64s, UInt8s, distinct

_Holder = TypeVar("_Holder")

NO_MSB = -1
"""Stands for an ignore_msb that is null, or that the table does not have."""
_TALLY = {
    "invariant": pa.string(),
    "population": pa.int64(),
    "violations": pa.int64(),
    "place": pa.int64(),
    "sample": pa.string(),
    "more": pa.list_(pa.struct({"place": pa.int64(), "sample": pa.string()})),
    "unjudged": pa.int64(),
}
_OUTPUT = pa.schema({"number": pa.int32(), **_TALLY, "digests": pa.binary()})
"""What comes back of a reading, by its number: tallies, and the digests of a file's rows; a line has one of both."""
# Bytes of files that a task reads, twice those whose rows it judges; fewer are not worth the start of a task.
_WORK_A_TASK = 32 << 20
# The same of threads, in files of as much: of smaller ones Python does most, which is one thread's at a time.
_WORK_A_THREAD = 1 << 20


@dataclass(frozen=True, eq=False)
class Sharding:
    """What is known of ranges whose table does not say it: for each range end its owner's values.

    `exact`: the ranges have a stream for each of these shards. By the ring as it stands a range that has not may lack
    one, or be older than its owner's shards.
    """

    range_ends: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Reading:
    """What the pass is to do with one generation's rows in one table.

    `judged`: audit each row; `compared`: bring back a digest of each row, with `as_sets` also one for which the order
    of the streams does not count. `sharding` where the table has no ignore_msb of its own.
    """

    holding: Holding
    judged: bool = False
    compared: bool = False
    as_sets: bool = False
    sharding: Sharding | None = None


@dataclass
class PassResult:
    """What came back, by holding: tallies by invariant, and digests."""

    tallies: dict[Holding, dict[str, Tally]] = field(default_factory=dict)
    digests: dict[Holding, Digests] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Task:
    """What a worker needs to know of a generation's rows; small, and sent with the code."""

    number: int
    own_msb: bool
    own_owners: bool
    ranges: RangeEnds
    unordered: Int64s
    sharding: Sharding | None
    judged: bool
    compared: bool
    as_sets: bool


def run(workers: Workers, readings: Sequence[Reading]) -> PassResult:
    """Read the rows of all `readings` once, in one Spark job at most."""
    result, workers = PassResult(), workers.of_arrays()
    if not readings:
        return result
    tasks = [_task(number, reading) for number, reading in enumerate(readings)]
    files = [(task, file) for task, reading in zip(tasks, readings, strict=True) for file in reading.holding.files]
    shares = shared_out(workers, files, lambda task: 1 + task.judged)
    audited = TaskRows(len(shares), lambda share: _audit(shares[share]))
    with translated("auditing"):
        parts = workers.table(audited, _OUTPUT).to_pylist()
    by_number: dict[int, list[dict[str, Any]]] = {number: [] for number in range(len(readings))}
    for part in parts:
        by_number[part["number"]].append(part)
    for number, reading in enumerate(readings):
        mine = by_number[number]
        if reading.judged:
            found = [_tally(part) for part in mine if part["invariant"] is not None]
            result.tallies[reading.holding] = add_up(found)
        if reading.compared:
            result.digests[reading.holding] = _digests(reading.holding, [part["digests"] for part in mine])
    return result


def shared_out(
    workers: Workers, files: Sequence[tuple[_Holder, DataFile]], weight: Callable[[_Holder], int] = lambda _: 1
) -> list[list[tuple[_Holder, str]]]:
    """Paths of files, with whatever is known of them, as workers are to read them: about the same work for each.

    `weight` says how much work a byte of a holder's files is. How many there are the table's log tells: a store would
    have to be asked once for each.
    """
    work = [(file.bytes * weight(holder), holder, file.path) for holder, file in files]
    of_tasks = sum(size for size, *_ in work)
    of_threads = sum(size for size, *_ in work if size >= _WORK_A_THREAD)
    parts = workers.parts(1 + of_tasks // _WORK_A_TASK, 1 + of_threads // _WORK_A_THREAD)
    shares: list[list[tuple[_Holder, str]]] = [[] for _ in range(parts)]
    loads = [(0, number) for number in range(len(shares))]
    # The largest first, each to who has the least so far.
    for size, holder, path in sorted(work, key=lambda one: one[0], reverse=True):
        load, number = heapq.heappop(loads)
        shares[number].append((holder, path))
        heapq.heappush(loads, (load + size, number))
    return [share for share in shares if share]


def row_streams(lists: pa.Array) -> tuple[Int64s, UInt8s, dict[int, bytes | None]]:
    """Lengths int64[n], -1 where there is no list, and streams uint8[total, 16] of a column of lists.

    What is there instead of 16 bytes comes by its place; the bytes at such a place are zeros.
    """
    lengths = int64s(compute.list_value_length(lists), -1)
    values = lists.flatten()
    wrong = np.flatnonzero(np.asarray(compute.fill_null(compute.binary_length(values), -1)) != STREAM_ID_BYTES)
    if not len(wrong):
        return lengths, fixed_bytes(values), {}
    damaged = {place: values[place].as_py() for place in wrong.tolist()}
    whole = [bytes(STREAM_ID_BYTES) if place in damaged else value for place, value in enumerate(values.to_pylist())]
    return lengths, np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES), damaged


def _task(number: int, reading: Reading) -> _Task:
    held = reading.holding
    return _Task(
        number,
        "ignore_msb" in held.table.schema.names,
        reading.judged and "owner" in held.table.schema.names,
        RangeEnds(distinct(held.range_ends)),
        held.unordered,
        reading.sharding,
        reading.judged,
        reading.compared,
        reading.as_sets,
    )


def _audit(files: Sequence[tuple[_Task, str]]) -> Iterator[pa.RecordBatch]:
    """What the files of a task have to say; runs on the executors."""
    facts = Facts()
    for task, path in files:
        digests = list(_read(task, path, facts))
        if task.compared:
            joined = np.concatenate(digests, axis=1) if digests else np.empty((4, 0), dtype=np.int64)
            yield _output(task.number, {"digests": pa.array([joined.tobytes()], pa.binary())})
    lines = [{"number": number, **_told(tally)} for number, tally in judged(facts)]
    yield pa.RecordBatch.from_pylist(lines, _OUTPUT)


def _read(task: _Task, path: str, facts: Facts) -> Iterator[np.ndarray]:
    """Add the facts of a file's ranges, and give the digests of its rows, a batch at a time."""
    columns = ["range_end", *["ignore_msb"] * task.own_msb, *["owner"] * task.own_owners, "streams"]
    for batch in file_batches(path, columns):
        ends = int64s(batch.column("range_end"), -(2**63))
        own_msb = batch.column("ignore_msb") if task.own_msb else pa.nulls(len(ends), pa.int8())
        msbs = int64s(own_msb, NO_MSB)
        lengths, streams, damaged = row_streams(batch.column("streams"))
        if task.judged:
            owners = np.array(batch.column("owner").to_pylist(), dtype=object) if task.own_owners else None
            rows = _rows(task, ends, msbs, lengths, streams, damaged)
            add_facts(facts, replace(rows, owners=owners), task.ranges, task.number)
        if task.compared:
            yield np.stack([ends, msbs, *row_digests(lengths, streams, damaged, as_sets=task.as_sets)])


def _rows(
    task: _Task,
    ends: Int64s,
    msbs: Int64s,
    lengths: Int64s,
    streams: UInt8s,
    damaged: Mapping[int, bytes | None],
) -> Rows:
    counts = np.maximum(lengths, 0)
    order_known = ~np.isin(ends, task.unordered)
    shown = {place: _shown(value) for place, value in damaged.items()}
    rows = Rows(ends, msbs, counts, streams, order_known, shown)
    if task.sharding is None:
        return rows
    msbs, shard_counts = _owners(task.sharding, ends)
    known = shard_counts == counts
    due = shard_counts if task.sharding.exact else None
    return replace(
        rows,
        ignore_msbs=np.where(known, msbs, NO_MSB),
        order_known=order_known & known,
        shard_counts=due,
        sharding_known=known,
    )


def _owners(sharding: Sharding, ends: Int64s) -> tuple[Int64s, Int64s]:
    """The ignore_msb of each range's owner, and its shards; NO_MSB and -1 where no node owns the range."""
    if not len(sharding.range_ends):
        return np.full(len(ends), NO_MSB), np.full(len(ends), -1)
    at = np.minimum(np.searchsorted(sharding.range_ends, ends), len(sharding.range_ends) - 1)
    owned = sharding.range_ends[at] == ends
    return np.where(owned, sharding.ignore_msbs[at], NO_MSB), np.where(owned, sharding.shard_counts[at], -1)


def _shown(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"0x{value[:24].hex()}{'...' if len(value) > 24 else ''}, {len(value)} bytes"


def _output(number: int, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """One line about a reading, in which the other columns are null."""
    columns = {"number": pa.array([number], pa.int32()), **columns}
    filled = [columns[each.name] if each.name in columns else pa.nulls(1, each.type) for each in _OUTPUT]
    return pa.RecordBatch.from_arrays(filled, schema=_OUTPUT)


def _told(tally: Tally) -> dict[str, Any]:
    """A tally as a line."""
    return vars(tally) | {"more": [{"place": place, "sample": sample} for place, sample in tally.more]}


def _tally(line: dict[str, Any]) -> Tally:
    """The inverse of `_told`."""
    more = tuple((case["place"], case["sample"]) for case in line["more"])
    told: dict[str, Any] = {name: line[name] for name in _TALLY if name != "more"}
    return Tally(**told, more=more)


def _digests(holding: Holding, parts: Sequence[bytes | None]) -> Digests:
    columns = [np.frombuffer(part, dtype=np.int64).reshape(4, -1) for part in parts if part is not None]
    rows = np.concatenate(columns, axis=1)
    ends, msbs, ordered, unordered = rows[:, np.argsort(rows[0], kind="stable")]
    return Digests(ends, msbs, ordered, unordered, holding.unordered)
