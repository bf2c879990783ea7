"""The one Spark pass of an audit: every row is read once, judged where it is, and compact partial results come back.

Range ends travel with the code, tallies and digests come back; streams never leave the executors. What a row has to
fulfil is in `rows`; which rows are read, and what the results mean, is `audit`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from cdc_platform.invariants.comparison import Digests
from cdc_platform.invariants.findings import Tally, add_up
from cdc_platform.invariants.inventory import Holding, file_name
from cdc_platform.invariants.rows import RangeEnds, Rows, audit_rows
from cdc_platform.lake.arrow import compute, fixed_bytes
from cdc_platform.lake.translate import translated
from cdc_platform.ring.tokens import Int64s, UInt8s

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Holder = TypeVar("_Holder")

NO_MSB = -1
"""Stands for an ignore_msb that is null, or that the table does not have."""
_TALLY = {
    "invariant": pa.string(),
    "population": pa.int64(),
    "violations": pa.int64(),
    "place": pa.int64(),
    "sample": pa.string(),
}
_DIGEST = {"range_end": pa.int64(), "ignore_msb": pa.int8(), "ordered": pa.int64(), "unordered": pa.int64()}
_OUTPUT = pa.schema({"file": pa.string(), **_TALLY, **_DIGEST})
"""What comes back: rows that are a tally, and rows that are the digest of a row; the columns of the other are null."""


@dataclass(frozen=True, eq=False)
class Sharding:
    """What is known from the ring of ranges whose table does not say it: for each range end its owner's values."""

    range_ends: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s


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
    """What a worker needs to know of a generation; small, and sent with the code."""

    files: tuple[str, ...]
    ranges: RangeEnds
    unordered: Int64s
    sharding: Sharding | None
    compared: bool


def run(spark: SparkSession, readings: Sequence[Reading]) -> PassResult:
    """Read the rows of all `readings` once, in one Spark job."""
    result = PassResult()
    if not readings:
        return result
    of_file = {file_name(path): reading for reading in readings for path in reading.holding.files}
    with translated("auditing"):
        frames = [_results(spark, group) for group in _groups(readings)]
        parts = reduce(lambda one, other: one.unionByName(other), frames).toArrow()
    tallies = parts.filter(compute.is_valid(parts["invariant"])).select(["file", *_TALLY]).to_pylist()
    found: dict[Holding, list[Tally]] = {reading.holding: [] for reading in readings if reading.judged}
    for row in tallies:
        found[of_file[row.pop("file")].holding].append(Tally(**row))
    result.tallies = {holding: add_up(some) for holding, some in found.items()}
    rows = parts.filter(compute.is_null(parts["invariant"])).select(["file", *_DIGEST]).combine_chunks()
    files = rows["file"].combine_chunks().dictionary_encode()
    owners = [of_file[file].holding for file in files.dictionary.to_pylist()]
    codes = np.asarray(files.indices)
    for holding in (reading.holding for reading in readings if reading.compared):
        mine = np.isin(codes, [code for code, owner in enumerate(owners) if owner is holding])
        result.digests[holding] = _digests(holding, rows.filter(pa.array(mine)))
    return result


def generation_rows(spark: SparkSession, holdings: Sequence[Holding]) -> DataFrame:
    """The rows of generations in one table: file (its name), range_end, ignore_msb (null where there is none), streams.

    The files are those of the table's log, read as the Parquet that they are: Delta's own reader takes a Spark job
    for each table before the first row is read.
    """
    from pyspark.sql import functions as F

    own_msb = "ignore_msb" in holdings[0].table.schema.names
    schema = f"range_end bigint, {'ignore_msb tinyint, ' if own_msb else ''}streams array<binary>"
    rows = spark.read.schema(schema).parquet(*(path for holding in holdings for path in holding.files))
    msb = F.col("ignore_msb") if own_msb else F.lit(None).cast("tinyint").alias("ignore_msb")
    return rows.select(F.col("_metadata.file_name").alias("file"), "range_end", msb, "streams")


def by_generation(batch: pa.RecordBatch, holders: Mapping[str, _Holder]) -> Iterator[tuple[_Holder, pa.RecordBatch]]:
    """A batch of `generation_rows`, taken apart: whose rows they are (`holders` by file), and those rows."""
    files = batch.column("file").dictionary_encode()
    owners = [holders[file] for file in files.dictionary.to_pylist()]
    codes = np.asarray(files.indices)
    for owner in dict.fromkeys(owners):
        mine = np.flatnonzero(np.isin(codes, [code for code, each in enumerate(owners) if each is owner]))
        yield owner, batch if len(mine) == len(codes) else batch.take(pa.array(mine))


def row_streams(lists: pa.Array) -> tuple[Int64s, UInt8s, dict[int, str]]:
    """Counts int64[n] and streams uint8[total, 16] of a column of lists; what is not 16 bytes is named by its place."""
    counts = _numbers(compute.list_value_length(lists), 0)
    values = lists.flatten()
    lengths = _numbers(compute.binary_length(values), -1)
    wrong = np.flatnonzero(lengths != 16)
    if not len(wrong):
        return counts, fixed_bytes(values), {}
    damaged = {place: _shown(values[place].as_py()) for place in wrong.tolist()}
    blank = bytes(16)
    whole = [blank if place in damaged else value for place, value in enumerate(values.to_pylist())]
    return counts, np.frombuffer(b"".join(whole), dtype=np.uint8).reshape(-1, 16), damaged


def _groups(readings: Sequence[Reading]) -> list[list[Reading]]:
    """Readings that one scan serves: of one table, with the same columns."""
    groups: dict[tuple[str, bool, bool, bool], list[Reading]] = {}
    for reading in readings:
        columns = (reading.judged, reading.compared, reading.as_sets)
        groups.setdefault((reading.holding.table.full_name, *columns), []).append(reading)
    return list(groups.values())


def _results(spark: SparkSession, group: list[Reading]) -> DataFrame:
    """What becomes of the rows of a scan. Only rows that are judged go through Python."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    first = group[0]
    # A hash skips nulls and does not see where a list ends: the number of streams goes in as well.
    count = F.coalesce(F.size("streams"), F.lit(-1))
    nothing = F.lit(None).cast("bigint")
    ordered = F.xxhash64("streams", count) if first.compared else nothing
    unordered = F.xxhash64(F.array_sort("streams"), count) if first.as_sets else nothing
    rows = generation_rows(spark, [reading.holding for reading in group])
    rows = rows.withColumns({"ordered": ordered, "unordered": unordered})
    schema = from_arrow_schema(_OUTPUT)
    if first.judged:
        tasks = {file_name(path): task for reading in group for task in [_task(reading)] for path in task.files}
        return rows.mapInArrow(_worker(tasks), schema)
    empty = {each.name: F.lit(None).cast(each.dataType) for each in schema if each.name in _TALLY}
    return rows.withColumns(empty).select(*_OUTPUT.names)


def _task(reading: Reading) -> _Task:
    held = reading.holding
    return _Task(held.files, RangeEnds(np.unique(held.range_ends)), held.unordered, reading.sharding, reading.compared)


def _worker(tasks: Mapping[str, _Task]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that runs on the executors: a partition's batches in, its digests and tallies out."""

    def audit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tallies: dict[_Task, dict[str, Tally]] = {}
        for batch in batches:
            for task, part in by_generation(batch, tasks):
                found = audit_rows(_rows(part, task), task.ranges)
                tallies[task] = add_up([*tallies.get(task, {}).values(), *found])
                if task.compared:
                    yield _output({name: part.column(name) for name in ("file", *_DIGEST)}, part.num_rows)
        for task, found in tallies.items():
            yield _tally_batch(task, list(found.values()))

    return audit


def _rows(batch: pa.RecordBatch, task: _Task) -> Rows:
    ends = _numbers(batch.column("range_end"), -(2**63))
    counts, streams, damaged = row_streams(batch.column("streams"))
    msbs = _numbers(batch.column("ignore_msb"), NO_MSB)
    order_known = ~np.isin(ends, task.unordered)
    if task.sharding is not None:
        msbs, known = _msbs_of_owners(task.sharding, ends, counts)
        order_known &= known
    return Rows(ends, msbs, counts, streams, order_known, damaged)


def _msbs_of_owners(sharding: Sharding, ends: Int64s, counts: Int64s) -> tuple[Int64s, np.ndarray]:
    """The ignore_msb of each range's owner, and whether it is known: its owner has a shard for each of the streams."""
    if not len(sharding.range_ends):
        return np.full(len(ends), NO_MSB), np.zeros(len(ends), dtype=bool)
    at = np.minimum(np.searchsorted(sharding.range_ends, ends), len(sharding.range_ends) - 1)
    known = (sharding.range_ends[at] == ends) & (sharding.shard_counts[at] == counts)
    return np.where(known, sharding.ignore_msbs[at], NO_MSB), known


def _shown(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"0x{value[:24].hex()}{'...' if len(value) > 24 else ''}, {len(value)} bytes"


def _numbers(column: pa.Array, null: int) -> Int64s:
    return np.asarray(compute.fill_null(column.cast(pa.int64()), null), dtype=np.int64)


def _tally_batch(task: _Task, found: Sequence[Tally]) -> pa.RecordBatch:
    columns = {name: pa.array([getattr(tally, name) for tally in found], kind) for name, kind in _TALLY.items()}
    return _output({"file": pa.repeat(file_name(task.files[0]), len(found)), **columns}, len(found))


def _output(columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
    filled = [columns[each.name] if each.name in columns else pa.nulls(rows, each.type) for each in _OUTPUT]
    return pa.RecordBatch.from_arrays(filled, schema=_OUTPUT)


def _digests(holding: Holding, rows: pa.Table) -> Digests:
    columns = [_numbers(rows[name].combine_chunks(), NO_MSB) for name in _DIGEST]
    order = np.argsort(columns[0], kind="stable")
    ends, msbs, ordered, unordered = (column[order] for column in columns)
    return Digests(ends, msbs, ordered, unordered, holding.unordered)
