"""Audits of the rows of CDC logs, and counts of what a log contains.

One pass reads each row once, one interval of time per task, so that batches stay whole. Spark reads large logs; logs
of at most two tasks (1,000,000 rows, two seconds) are read in the process, as Spark would take longer to start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.column_codec import encode_canonical_partition_keys, encode_partition_keys
from cdc_platform.cdclog.encoder import Operation
from cdc_platform.cdclog.schema import EXACT, WRITTEN_AT, log_table, with_stored_names
from cdc_platform.cdclog.values import may_be_out_of_range
from cdc_platform.checks import (
    LOG_BATCH_COMPLETE,
    LOG_BATCH_ENDED,
    LOG_INVARIANTS,
    LOG_ROW_COLOCATED,
    LOG_STREAM_OPERATES,
    LOG_TIME_IN_BOUNDS,
    LOG_TIMESTAMP_IS_TIME,
    Finding,
    InvariantTally,
    sum_tallies,
)
from cdc_platform.clock import Microseconds, format_us, us_from_datetime
from cdc_platform.cql import GREGORIAN_OFFSET, TIMEUUID_VERSION, TableSchema, ticks_from_high_half
from cdc_platform.delta import (
    STATISTICS_ROUNDING_US,
    Lake,
    TaskRows,
    TaskRunner,
    compute,
    read_file_batches,
    stream_ids_to_numpy,
    tokens_from_keys,
    translate_errors,
)
from cdc_platform.errors import InputError, PlatformError
from cdc_platform.generations import STREAM_ID_BYTES, decode_stream_ids, get_operating_index
from cdc_platform.metastore import cdc_tables
from cdc_platform.ring import Bools, Int64s, UInt8s, UInt64s
from cdc_platform.timeline import KnownStreams, StreamPeriod, StreamSources

UNJUDGED_TALLY = "log_rows_not_judged"
"""Not an invariant: the tally of rows whose generation was removed, so that their streams are unknown."""
NULL_TIME = -(2**63)
"""Represents a null cdc$timestamp."""
_MAX_ROWS_SHOWN = 6


@dataclass(frozen=True, eq=False)
class LogAuditRows:
    """Rows of one table's log, in columns.

    `times` (uint64[n, 2]) are the two halves of cdc$time, `times_us` (int64[n], µs) is the time in it, and `timed` is
    true for timeuuids. `written_us` is cdc$timestamp. `streams` is uint8[n, 16]; `whole` is true for streams of 16
    bytes. `tokens` are those of the base rows; `keyed` is true if no key column is null. `numbers` are cdc$batch_seq_no
    and `operations` cdc$operation, -1 for null. `ended` is cdc$end_of_batch.
    """

    table: str
    times: UInt64s
    times_us: Int64s
    timed: Bools
    written_us: Int64s
    streams: UInt8s
    whole: Bools
    tokens: Int64s
    keyed: Bools
    numbers: Int64s
    operations: Int64s
    ended: Bools

    def __len__(self) -> int:
        return len(self.times_us)

    def name(self, row: int) -> str:
        """Format a row for messages."""
        return f"{self.table}: row {self.numbers[row]} of batch {self.batch(row)}"

    def batch(self, row: int) -> str:
        """Format the batch of a row for messages."""
        high, low = (int(half) for half in self.times[row])
        stream = f"0x{self.streams[row].tobytes().hex()}" if self.whole[row] else "no stream"
        return f"{UUID(int=high << 64 | low)} in {stream}"


def audit_log_rows(rows: LogAuditRows, periods: Sequence[StreamPeriod]) -> Iterator[InvariantTally]:
    """Yield the tallies of all invariants of a log. `rows` must hold all rows of each time, so that batches are whole.

    Rows without a time are checked by log_time_in_bounds only. The streams of rows of a removed generation are not
    checked.
    """
    chosen = get_operating_index([period.begin_us for period in periods], rows.times_us)
    chosen[~rows.timed] = -1
    yield _check_times(rows, periods, chosen)
    yield _check_timestamps(rows)
    removed = np.array([*(period.removed for period in periods), False])[chosen]
    yield InvariantTally(UNJUDGED_TALLY, int(removed.sum()), 0)
    for number in np.unique(chosen[(chosen >= 0) & ~removed]).tolist():
        yield from _check_streams(rows, np.flatnonzero(chosen == number), periods[number])
    yield from _check_batches(rows)


def _check_times(rows: LogAuditRows, periods: Sequence[StreamPeriod], chosen: Int64s) -> InvariantTally:
    begin = f"{periods[0].name} is the first" if periods else "no generation is known"

    def explain(row: int) -> str:
        if not rows.timed[row]:
            return "cdc$time is no timeuuid"
        return f"nothing operates at {format_us(Microseconds(rows.times_us[row]))}; {begin}"

    return _tally(LOG_TIME_IN_BOUNDS, rows, len(rows), chosen < 0, explain)


def _check_timestamps(rows: LogAuditRows) -> InvariantTally:
    def explain(row: int) -> str:
        at = Microseconds(rows.written_us[row])
        text = "null" if at == NULL_TIME else format_us(at)
        return f"cdc$timestamp is {text}, the time in cdc$time {format_us(Microseconds(rows.times_us[row]))}"

    wrong = rows.timed & (rows.written_us != rows.times_us)
    return _tally(LOG_TIMESTAMP_IS_TIME, rows, int(rows.timed.sum()), wrong, explain)


def _check_streams(rows: LogAuditRows, mine: Int64s, period: StreamPeriod) -> Iterator[InvariantTally]:
    """Check the rows (by number) of one period against its streams."""
    foreign, misplaced = np.zeros((2, len(rows)), dtype=bool)
    try:
        known = period.streams()
        # Almost every row is in the stream that the rule gives; look up only the others.
        usual = rows.keyed[mine] & rows.whole[mine]
        usual[usual] = (known.assign(rows.tokens[mine[usual]]) == rows.streams[mine[usual]]).all(axis=1)
    except PlatformError as error:
        foreign[mine] = True
        why = f"its stream cannot be looked up: {error}"
        # Without the streams neither invariant can be checked.
        for invariant in (LOG_STREAM_OPERATES, LOG_ROW_COLOCATED):
            yield _tally(invariant, rows, len(mine), foreign, lambda _: why)
        return
    others = mine[~usual]
    among, colocated = _match_streams(rows, others, known)
    foreign[others] = ~among
    misplaced[others] = among & ~colocated
    yield _tally(LOG_STREAM_OPERATES, rows, len(mine), foreign, lambda _: f"its stream is none of {period.name}")

    def explain(row: int) -> str:
        if not rows.keyed[row]:
            return "a key column of the base row is null"
        expected = known.assign(rows.tokens[row : row + 1])[0].tobytes().hex()
        return f"the stream of its base row's token {rows.tokens[row]} is 0x{expected}"

    yield _tally(LOG_ROW_COLOCATED, rows, len(mine) - int(foreign.sum()), misplaced, explain)


def _match_streams(rows: LogAuditRows, numbers: Int64s, known: KnownStreams) -> tuple[Bools, Bools]:
    """Return which rows have a stream of the period, and which of these have one that fits their key."""
    ids = rows.streams[numbers]
    ranges = known.range_of(decode_stream_ids(ids).tokens)
    in_period = rows.whole[numbers] & known.has(ids, ranges)
    expected = known.range_of(rows.tokens[numbers])
    return in_period, in_period & rows.keyed[numbers] & (expected == ranges) & known.by_range[expected]


def _check_batches(rows: LogAuditRows) -> Iterator[InvariantTally]:
    """Check the batches of all rows that have a time and a stream."""
    identified = np.flatnonzero(rows.timed & rows.whole)
    words = rows.streams[identified].view(">u8").astype(np.uint64)
    times = rows.times[identified]
    columns = (rows.numbers[identified], words[:, 1], words[:, 0], times[:, 1], times[:, 0])
    order = np.lexsort(columns)
    begins = np.ones(len(identified), dtype=bool)
    for column in columns[1:]:
        begins[1:] &= column[order][1:] == column[order][:-1]
    begins[1:] ^= True
    firsts = np.flatnonzero(begins)
    sizes = np.diff(firsts, append=len(identified))
    ordered = identified[order]
    positions = np.arange(len(identified)) - np.repeat(firsts, sizes)
    last = np.zeros(len(identified), dtype=bool)
    last[firsts + sizes - 1] = True
    wrong = rows.numbers[ordered] != positions
    misplaced = rows.ended[ordered] != last
    for invariant, broken in ((LOG_BATCH_COMPLETE, wrong), (LOG_BATCH_ENDED, misplaced)):
        bad = np.logical_or.reduceat(broken, firsts) if len(firsts) else np.zeros(0, dtype=bool)
        yield _batch_tally(
            invariant, rows, [ordered[start : start + size] for start, size in _bad_spans(firsts, sizes, bad)], len(bad)
        )


def _bad_spans(firsts: Int64s, sizes: Int64s, bad: Bools) -> Iterator[tuple[int, int]]:
    return zip(firsts[bad].tolist(), sizes[bad].tolist(), strict=True)


def _batch_tally(invariant: str, rows: LogAuditRows, bad: Sequence[Int64s], population: int) -> InvariantTally:
    """Return the tally of batches; each bad batch is given as the numbers of its rows."""
    if not bad:
        return InvariantTally(invariant, population, 0)
    first = min(bad, key=lambda numbers: int(rows.times_us[numbers[0]]))
    listed = ", ".join(
        f"{rows.numbers[row]}{' (end)' if rows.ended[row] else ''}" for row in first[:_MAX_ROWS_SHOWN].tolist()
    ) + (", ..." if len(first) > _MAX_ROWS_SHOWN else "")
    rule = "it has to be 0 to n - 1" if invariant == LOG_BATCH_COMPLETE else "the last one, and only it, is the end"
    sample = f"{rows.table}: batch {rows.batch(int(first[0]))} has rows {listed}; {rule}"
    return InvariantTally(invariant, population, len(bad), int(rows.times_us[first[0]]), sample)


def _tally(
    invariant: str, rows: LogAuditRows, population: int, wrong: Bools, explain: Callable[[int], str]
) -> InvariantTally:
    """Return the tally of rows; the earliest violation is the sample."""
    numbers = np.flatnonzero(wrong)
    if not len(numbers):
        return InvariantTally(invariant, population, 0)
    first = int(numbers[np.argmin(rows.times_us[numbers])])
    return InvariantTally(
        invariant, population, len(numbers), int(rows.times_us[first]), f"{rows.name(first)}: {explain(first)}"
    )


_METADATA_COLUMNS = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$end_of_batch", WRITTEN_AT)
_NIBBLES = np.full(256, 255, dtype=np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _NIBBLES[list(_digits)] = np.arange(16)
_HYPHENS = (8, 13, 18, 23)
_HEX_POSITIONS = [position for position in range(36) if position not in _HYPHENS]
_NO_UUID = "-" * 36


@dataclass(frozen=True)
class LogPart:
    """The rows of a log with `from_us` <= cdc$timestamp < `before_us` (µs, None for no bound), and their files.

    Rows without a cdc$timestamp are in the part that has no lower bound.
    """

    paths: tuple[str, ...]
    from_us: Microseconds | None
    before_us: Microseconds | None

    def clip(self, from_us: Microseconds, before_us: Microseconds) -> LogPart | None:
        """Return the rows of the part between two times; None if it has none."""
        first = from_us if self.from_us is None else max(from_us, self.from_us)
        end = before_us if self.before_us is None else min(before_us, self.before_us)
        return LogPart(self.paths, first, end) if first < end else None


def split_log(lake: Lake, schema: TableSchema, rows_a_part: int) -> list[LogPart]:
    """Split a log into parts of about as many rows each; all rows of one time are in one part."""
    files = [
        (path, _bound_us(low), _bound_us(high), rows)
        for path, low, high, rows in lake.bounded_files(log_table(schema), WRITTEN_AT)
    ]
    return list(_split_by_time(files, rows_a_part))


def _bound_us(bound: datetime | None) -> Microseconds | None:
    return None if bound is None else us_from_datetime(bound)


def _split_by_time(
    files: Sequence[tuple[str, Microseconds | None, Microseconds | None, int]], rows_a_part: int
) -> Iterator[LogPart]:
    spans = [
        (low - STATISTICS_ROUNDING_US, high + STATISTICS_ROUNDING_US, rows)
        for _, low, high, rows in files
        if low is not None and high is not None
    ]
    bounds = [None, *_cut_times(spans, rows_a_part), None]
    for lower, upper in pairwise(bounds):
        paths = [
            path
            for path, low, high, _ in files
            if (low is None or upper is None or low - STATISTICS_ROUNDING_US < upper)
            and (high is None or lower is None or high + STATISTICS_ROUNDING_US >= lower)
        ]
        if paths:
            yield LogPart(tuple(paths), lower, upper)


def _cut_times(spans: Sequence[tuple[int, int, int]], rows_a_part: int) -> list[Microseconds]:
    """Return the times (µs, ascending) that cut evenly filled files into parts of about as many rows each."""
    count = sum(rows for *_, rows in spans)
    targets = np.arange(rows_a_part, count, rows_a_part)
    if not len(targets):
        return []
    lows, highs, rows = np.array(spans, dtype=np.float64).T
    edges, positions = np.unique(np.concatenate([lows, highs]), return_inverse=True)
    density = np.bincount(positions, np.concatenate([rows / (highs - lows), -rows / (highs - lows)]))
    cumulative = np.concatenate([[0.0], np.cumsum(np.cumsum(density)[:-1] * np.diff(edges))])
    return sorted({Microseconds(int(cut)) for cut in np.interp(targets, cumulative, edges)})


def read_log_part(schema: TableSchema, part: LogPart) -> LogAuditRows:
    """Read the rows of a part as columns."""
    schema = with_stored_names(schema)
    names = [*_METADATA_COLUMNS, *(column.name for column in schema.partition_key)]
    if any(may_be_out_of_range(column.type) for column in schema.partition_key):
        names.append(EXACT)
    fields = log_table(schema, exact=True).schema
    batches = [_empty_rows(schema)]
    for path in part.paths:
        for batch in read_file_batches(path, names):
            # Only files since the first out-of-range value have the column for exact values.
            present = [name for name in names if name in batch.schema.names]
            arrays = [batch.column(name).cast(fields.field(name).type) for name in present]
            whole = pa.RecordBatch.from_arrays(arrays, names=present)
            chosen = whole.filter(pa.array(_rows_inside(part, whole.column(WRITTEN_AT))))
            if chosen.num_rows:
                batches.append(_rows_from_batch(schema, chosen))
    members = [name for name in LogAuditRows.__dataclass_fields__ if name != "table"]
    return LogAuditRows(
        schema.full_name, **{name: np.concatenate([getattr(rows, name) for rows in batches]) for name in members}
    )


def _rows_inside(part: LogPart, written: pa.Array) -> Bools:
    times_us = _timestamps_us(written)
    known = times_us != NULL_TIME
    inside = known if part.from_us is not None else np.ones(len(times_us), dtype=bool)
    if part.from_us is not None:
        inside = inside & (times_us >= part.from_us)
    return inside if part.before_us is None else inside & (times_us < part.before_us)


def _timestamps_us(column: pa.Array) -> Int64s:
    return np.asarray(compute.fill_null(column.cast(pa.int64()), NULL_TIME), dtype=np.int64)


def _integers(column: pa.Array) -> Int64s:
    return np.asarray(compute.fill_null(column.cast(pa.int64()), -1), dtype=np.int64)


def _empty_rows(schema: TableSchema) -> LogAuditRows:
    fields = log_table(schema).schema
    names = [*_METADATA_COLUMNS, *(column.name for column in schema.partition_key)]
    return _rows_from_batch(
        schema, pa.RecordBatch.from_arrays([pa.array([], fields.field(name).type) for name in names], names=names)
    )


def _rows_from_batch(schema: TableSchema, batch: pa.RecordBatch) -> LogAuditRows:
    times, timed = timeuuid_words(batch.column("cdc$time"))
    streams, whole = _stream_array(batch.column("cdc$stream_id"))
    tokens, keyed = _base_tokens(schema, batch)
    return LogAuditRows(
        schema.full_name,
        times,
        _timeuuid_us(times),
        timed,
        _timestamps_us(batch.column(WRITTEN_AT)),
        streams,
        whole,
        tokens,
        keyed,
        _integers(batch.column("cdc$batch_seq_no")),
        _integers(batch.column("cdc$operation")),
        np.asarray(compute.fill_null(batch.column("cdc$end_of_batch"), False)),
    )


def timeuuid_words(column: pa.Array) -> tuple[UInt64s, Bools]:
    """Return UUID texts as their halves (uint64[n, 2], 0 for null), and which are of version 1 (bool[n])."""
    long = np.asarray(compute.fill_null(compute.equal(compute.binary_length(column), 36), False))
    if not long.all():
        column = compute.if_else(pa.array(long), column, pa.scalar(_NO_UUID, pa.string()))
    flat = np.frombuffer(b"".join(column.cast(pa.binary()).to_pylist()), dtype=np.uint8).reshape(-1, 36)
    nibbles = _NIBBLES[flat[:, _HEX_POSITIONS]]
    valid = (nibbles < 16).all(axis=1) & (flat[:, _HYPHENS] == ord("-")).all(axis=1)
    packed: Any = np.where(valid[:, None], nibbles[:, ::2] << 4 | nibbles[:, 1::2], 0).astype(np.uint8)
    words = np.ascontiguousarray(packed).view(">u8").astype(np.uint64)
    return words, valid & ((words[:, 0] >> np.uint64(12) & np.uint64(15)) == TIMEUUID_VERSION)


def _timeuuid_us(words: UInt64s) -> Int64s:
    """Return the times (µs since 1970) in timeuuids."""
    return (ticks_from_high_half(words[:, 0]).astype(np.int64) - GREGORIAN_OFFSET) // 10


def _stream_array(column: pa.Array) -> tuple[np.ndarray, Bools]:
    whole = np.asarray(compute.fill_null(compute.equal(compute.binary_length(column), STREAM_ID_BYTES), False))
    if not whole.all():
        column = compute.if_else(pa.array(whole), column, pa.scalar(bytes(STREAM_ID_BYTES), pa.binary()))
    return stream_ids_to_numpy(column), whole


def _base_tokens(schema: TableSchema, batch: pa.RecordBatch) -> tuple[Int64s, Bools]:
    """Return the tokens of the base rows, and which of them have a whole key."""
    columns = [batch.column(column.name) for column in schema.partition_key]
    keyed = np.logical_and.reduce([np.asarray(compute.is_valid(column)) for column in columns])
    tokens = np.zeros(len(keyed), dtype=np.int64)
    if keyed.any():
        tokens[keyed] = tokens_from_keys(_serialized_keys(schema, batch.filter(pa.array(keyed))))
    return tokens, keyed


def _serialized_keys(schema: TableSchema, batch: pa.RecordBatch) -> pa.Array:
    """Serialize the keys by column where the types allow it, otherwise row by row."""
    columns = [batch.column(column.name) for column in schema.partition_key]
    exact = batch.column(EXACT) if EXACT in batch.schema.names else None
    if exact is not None and exact.null_count < len(exact):
        return encode_canonical_partition_keys(schema, columns, exact)
    try:
        return encode_partition_keys(schema, columns)
    except InputError:
        return encode_canonical_partition_keys(schema, columns)


ROWS_A_TASK = 500_000
"""Approximate number of rows that a task reads."""
MAX_TASKS_IN_PROCESS = 2
"""Logs of at most this many tasks are read in the process: this takes 2 s, and Spark would take longer to start."""


def scan_log(
    lake: Lake,
    schema: TableSchema,
    workers: TaskRunner,
    look: Callable[[LogAuditRows], pa.RecordBatch],
    result_schema: pa.Schema,
    between: tuple[Microseconds, Microseconds] | None = None,
) -> list[dict[str, Any]]:
    """Return what `look` reports for each part of a log, as rows of `result_schema`.

    All rows of one time are in one part. With `between`, only rows from the first time (µs) to before the second are
    read. `look` is pickled and sent to executors if the log is large.
    """
    parts = split_log(lake, schema, ROWS_A_TASK)
    if between is not None:
        parts = [inside for part in parts if (inside := part.clip(*between)) is not None]
    looked = TaskRows(len(parts), partial(_scan_part, schema, look, parts))
    with translate_errors(f"reading {log_table(schema).full_name}"):
        return workers.at_least(MAX_TASKS_IN_PROCESS).table(looked, result_schema).to_pylist()


def _scan_part(
    schema: TableSchema, look: Callable[[LogAuditRows], pa.RecordBatch], parts: Sequence[LogPart], number: int
) -> Iterator[pa.RecordBatch]:
    yield look(read_log_part(schema, parts[number]))


_TALLY_SCHEMA = pa.schema(
    {
        "invariant": pa.string(),
        "population": pa.int64(),
        "violations": pa.int64(),
        "position": pa.int64(),
        "sample": pa.string(),
    }
)


def read_logged_tables(lake: Lake) -> list[TableSchema]:
    """Return the tables that have a log in the lake, by name.

    Raises:
        StateError: the definition of a table is damaged.
    """
    defined = [table for table in cdc_tables.read_cdc_tables(lake) if table.ddl is not None]
    if not defined:
        return []
    # Loading the grammar takes as long as reading small tables.
    from cdc_platform.cdclog.ddl import load_table_schemas
    from cdc_platform.cql import Catalog

    return [schema for schema in load_table_schemas(Catalog(), defined) if lake.exists(log_table(schema))]


def audit_logs(
    lake: Lake,
    workers: TaskRunner,
    schemas: Sequence[TableSchema] | None = None,
    between: tuple[Microseconds, Microseconds] | None = None,
) -> list[Finding]:
    """Audit the rows of all logs, or of some: one finding per invariant, none if no log has a row.

    `between` are the first time (µs) of the audited rows, and the time after the last.
    """
    tables = read_logged_tables(lake) if schemas is None else schemas
    return _log_findings(tally for schema in tables for tally in _log_tallies(lake, schema, workers, between))


def audit_log(lake: Lake, schema: TableSchema, workers: TaskRunner) -> list[Finding]:
    """Audit the rows of one log; see `audit_logs`."""
    return _log_findings(_log_tallies(lake, schema, workers))


def _log_tallies(
    lake: Lake,
    schema: TableSchema,
    workers: TaskRunner,
    between: tuple[Microseconds, Microseconds] | None = None,
) -> Iterable[InvariantTally]:
    audit_part = partial(_part_tallies, StreamSources(lake).of(schema.keyspace, schema.name).periods())
    rows = scan_log(lake, schema, workers, audit_part, _TALLY_SCHEMA, between)
    return [InvariantTally(**row) for row in rows]


def _part_tallies(known: Sequence[StreamPeriod], rows: LogAuditRows) -> pa.RecordBatch:
    """Return the tallies of one part; runs in the process that reads the part."""
    totals = sum_tallies(audit_log_rows(rows, known))
    return pa.RecordBatch.from_pylist([vars(tally) for tally in totals.values()], schema=_TALLY_SCHEMA)


def _log_findings(tallies: Iterable[InvariantTally]) -> list[Finding]:
    totals = sum_tallies(tallies)
    if not any(tally.population for tally in totals.values()):
        return []
    return [_log_finding(name, totals) for name in LOG_INVARIANTS]


def _log_finding(name: str, totals: Mapping[str, InvariantTally]) -> Finding:
    """Return the finding of an invariant, with the number of unchecked rows of removed generations."""
    tally = totals.get(name, InvariantTally(name, 0, 0))
    sample, left_out = tally.sample, totals[UNJUDGED_TALLY].population
    if left_out and not sample and name in (LOG_STREAM_OPERATES, LOG_ROW_COLOCATED):
        sample = f"{left_out} rows are of generations that were removed, whose streams nobody knows: not judged"
    elif not tally.population:
        sample = sample or "nothing was checked: no row says when and where it was written"
    return Finding(name, tally.population, tally.violations, sample)


_COUNT_SCHEMA = pa.schema({"period": pa.int64(), "operation": pa.int64(), "rows": pa.int64(), "newest_us": pa.int64()})


@dataclass(frozen=True)
class LogContents:
    """The counts of one log. Times in µs.

    `by_period` counts rows by the start of their generation or stream set, None for rows outside all of them.
    `by_operation` counts rows by operation. `newest_us` is None if no row has a timestamp.
    """

    rows: int
    bytes: int
    newest_us: Microseconds | None
    by_period: dict[Microseconds | None, int]
    by_operation: dict[str, int]


def count_log_contents(lake: Lake, schema: TableSchema, workers: TaskRunner) -> LogContents:
    """Count the rows of a log by period and operation."""
    begins = [item.begin_us for item in StreamSources(lake).of(schema.keyspace, schema.name).periods()]
    counts = scan_log(lake, schema, workers, partial(_count_part, begins), _COUNT_SCHEMA)
    by_period, by_operation = Counter[int](), Counter[int]()
    for item in counts:
        by_period[item["period"]] += item["rows"]
        by_operation[item["operation"]] += item["rows"]
    return LogContents(
        sum(by_period.values()),
        sum(item.bytes for item in lake.partitions(log_table(schema))),
        max((item["newest_us"] for item in counts if item["newest_us"] is not None), default=None),
        {None if index < 0 else begins[index]: by_period[index] for index in sorted(by_period)},
        {_operation_name(code): by_operation[code] for code in sorted(by_operation)},
    )


def _count_part(begins: Sequence[int], rows: LogAuditRows) -> pa.RecordBatch:
    """Count the rows of a part by period and operation."""
    period = get_operating_index(begins, rows.times_us)
    period[~rows.timed] = -1
    pairs, which, counts = np.unique(
        np.stack([period, rows.operations], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    newest = np.full(len(pairs), np.iinfo(np.int64).min)
    np.maximum.at(newest, which.reshape(-1), np.where(rows.timed, rows.times_us, np.iinfo(np.int64).min))
    columns = [pairs[:, 0], pairs[:, 1], counts, pa.array(newest, mask=newest == np.iinfo(np.int64).min)]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=_COUNT_SCHEMA)


def _operation_name(code: int) -> str:
    known = {int(operation): operation.name.lower() for operation in Operation}
    return known.get(code, f"unknown ({code})")
