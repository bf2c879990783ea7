"""Append named batches of base writes, from a Delta or Parquet table, to a table's log: each batch exactly once.

The commit that appends a batch stores its name and a hash of its content as transaction numbers of the log. So a batch
is in the log as a whole or not at all, a repetition finds the numbers, and other content under the name is refused.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.audit.logs import audit_logs, read_logged_tables
from cdc_platform.cdclog.consumer.reader import get_log_table
from cdc_platform.cdclog.dataframe import (
    ROWS_PER_FILE,
    LoggedWrites,
    append_writes,
    append_writes_in_process,
    get_stream_lookup,
)
from cdc_platform.cdclog.ddl import read_table_schema
from cdc_platform.cdclog.encoder import Operation
from cdc_platform.cdclog.fingerprint import fingerprint_values
from cdc_platform.cdclog.schema import log_table, typed_writes_schema
from cdc_platform.checks import Finding
from cdc_platform.clock import HOUR_US, Microseconds, datetime_from_us, format_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import (
    SCRIPTS_LOCK,
    Batches,
    Lake,
    TaskRows,
    TaskRunner,
    UserTable,
    compute,
    exclusive,
    open_user_table,
    translate_errors,
)
from cdc_platform.errors import InputError, StateError
from cdc_platform.metastore import TABLE_DROPPED, cdc_tables, consumers
from cdc_platform.spark import arrow_to_spark_schema
from cdc_platform.tables import KEPT_SCRIPTS, TIMESTAMP
from cdc_platform.timeline import StreamSources

MAX_BAD_WRITES = 1_000
"""The most bad writes that a refusal names; it counts all."""
_BAD_WRITES_A_TASK = 100
_MAX_TASKS_IN_PROCESS = 4
"""Batches of at most so many files of a log (1,000,000 writes) are encoded in the process, without Spark."""
_MAX_BYTES_IN_PROCESS = 1 << 28
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_HASH_BITS = np.uint64((1 << 62) - 1)
_WRITE_COLUMNS = ("operation", "timestamp", "ttl")


class InvalidWrites(InputError):
    """A batch has writes that fail the model of its table. Nothing was appended.

    `bad` counts them by check, `writes` are the first of them (`MAX_BAD_WRITES`), by time.
    """

    code = "invalid-writes"

    def __init__(self, message: str, bad: Mapping[str, int], writes: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.bad = bad
        self.writes = writes


@dataclass(frozen=True)
class PassedConsumer:
    """A consumer that has read its log beyond the first write of a batch, and so does not read all of its rows."""

    name: str
    position_us: Microseconds


@dataclass(frozen=True)
class AppendedBatch:
    """A batch in a log. `appended` is False if it already was in it. Times are those of its writes (µs)."""

    table: str
    batch: str
    source: str
    writes: int
    log_rows: int
    appended: bool
    first_us: Microseconds | None
    last_us: Microseconds | None
    passed: tuple[PassedConsumer, ...] = ()


@dataclass(frozen=True)
class _Content:
    """What one pass over a batch finds: its writes, their hash, the times (µs) of the first and the last."""

    writes: int
    hash: int
    first_us: Microseconds | None
    last_us: Microseconds | None


def hour_batch_name(hour_us: Microseconds) -> str:
    """Return the name of the batch with the writes of an hour."""
    return f"hour-{datetime_from_us(hour_us):%Y-%m-%d-%H:%M}"


def append_batch(lake: Lake, keyspace: str, table: str, address: str, name: str, workers: TaskRunner) -> AppendedBatch:
    """Append the log rows of all writes in the table at `address` to the log of a table, as the batch `name`.

    The columns are those of the base table by their stored names, `timestamp` (a time, or int64 in µs), and optionally
    `ttl` (s; null: that of the table), `operation` (default: 2, insert) and the others of `typed_writes_schema`. All
    writes are validated by the table's `WriteModel` before any is appended.

    Raises:
        InvalidWrites: a write fails a check.
        InputError: the name is invalid, a column is missing, unknown or of another type, or the log has a batch of this
            name with other content.
        NotFound: the table or its log is not known, or nothing is at `address`.
        StateError: the table has no log, or an interrupted script has to finish first.
        ConflictError: another process has held the lock of scripts for too long, or other writers kept winning.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name of a batch: it has up to 128 letters, digits and _ . : -, and begins with a letter "
            "or a digit"
        )
    return _append(lake, keyspace, table, address, name, workers, None)


def append_hour(
    lake: Lake, keyspace: str, table: str, address: str, hour_us: Microseconds, workers: TaskRunner
) -> AppendedBatch:
    """Append the writes of the hour that begins at `hour_us` (µs) as a batch, see `append_batch`.

    An hour without a write is no batch: it can be appended later.

    Raises:
        InputError: `hour_us` is no whole hour, a write has no timestamp, or as `append_batch`.
    """
    if hour_us % HOUR_US:
        raise InputError(f"{format_us(hour_us)} is not the start of an hour; name a whole hour, in UTC")
    return _append(lake, keyspace, table, address, hour_batch_name(hour_us), workers, hour_us)


def list_hours(address: str, workers: TaskRunner) -> list[Microseconds]:
    """Return the hours (start, µs) in which the writes of the table at `address` lie, in order.

    Raises:
        InputError, NotFound, StateError: as `append_batch`.
    """
    table = open_user_table(address)
    rows = _normalized(table, pa.schema([_time_field(table)]), None)

    def hours(batches: Batches) -> Batches:
        for batch in batches:
            times = np.asarray(compute.drop_null(batch.column("timestamp")))
            yield pa.RecordBatch.from_arrays([pa.array(np.unique(times // HOUR_US))], schema=_HOUR_SCHEMA)

    with translate_errors(f"reading {address}"):
        found = workers.at_least(_MAX_TASKS_IN_PROCESS).table(rows.through(hours), _HOUR_SCHEMA)
    return [Microseconds(hour * HOUR_US) for hour in sorted(set(found["hour"].to_pylist()))]


_HOUR_SCHEMA = pa.schema({"hour": pa.int64()})


def audit_appended_hour(lake: Lake, workers: TaskRunner, hour_us: Microseconds | None) -> list[Finding]:
    """Audit the rows of an hour in each log to which writes of it were appended; None: all rows of all logs."""
    if hour_us is None:
        return audit_logs(lake, workers)
    name = hour_batch_name(hour_us)
    schemas = [
        schema
        for schema in read_logged_tables(lake)
        if lake.transaction(log_table(schema), _application(lake, schema, name)) is not None
    ]
    return audit_logs(lake, workers, schemas, (hour_us, Microseconds(hour_us + HOUR_US)))


@exclusive(SCRIPTS_LOCK)
def _append(
    lake: Lake,
    keyspace: str,
    table: str,
    address: str,
    name: str,
    workers: TaskRunner,
    hour_us: Microseconds | None,
) -> AppendedBatch:
    schema = read_table_schema(lake, keyspace, table)
    log = get_log_table(lake, schema)
    if not schema.cdc.enabled:
        raise StateError(f"{schema.full_name} has no CDC log; enable it with WITH cdc = {{'enabled': true}}")
    _refuse_unfinished_script(lake)
    source = open_user_table(address)
    rows = _normalized(source, _write_columns(schema, source), hour_us)
    content = _inspect(lake, schema, rows, f"{address}, batch {name}", workers)
    result = AppendedBatch(schema.full_name, name, address, content.writes, 0, False, content.first_us, content.last_us)
    application = _application(lake, schema, name)
    numbers = {application: 1, f"{application}/content": content.hash}
    if _find_appended(lake, schema, name, numbers) or (hour_us is not None and not content.writes):
        return result
    before = _count_rows(lake, schema)
    # Read first: a consumer that reads on while rows are appended may read them.
    passed = _find_passed_consumers(lake, schema, content)
    if not _append_rows(lake, schema, source, rows, content, numbers, application, workers):
        # Another process, on a file system without locks, was faster.
        _find_appended(lake, schema, name, numbers)
        return result
    assert lake.exists(log)
    return replace(result, appended=True, log_rows=_count_rows(lake, schema) - before, passed=passed)


def _append_rows(
    lake: Lake,
    schema: TableSchema,
    source: UserTable,
    rows: TaskRows,
    content: _Content,
    numbers: Mapping[str, int],
    application: str,
    workers: TaskRunner,
) -> bool:
    files = max(1, -(-content.writes // ROWS_PER_FILE))
    transaction = (application, numbers[application])
    beside = {name: number for name, number in numbers.items() if name != application}
    stored = LoggedWrites.read(lake, schema)
    in_process = workers.at_least(_MAX_TASKS_IN_PROCESS).runs_in_process(files)
    if in_process and source.bytes <= _MAX_BYTES_IN_PROCESS:
        whole = typed_writes_schema(schema)
        batches = [_fill(batch, whole) for number in range(rows.tasks) for batch in rows.batches(number)]
        return append_writes_in_process(
            lake, schema, pa.Table.from_batches(batches, whole), transaction, beside, stored
        )
    columns = arrow_to_spark_schema(_normalized_schema(_write_columns(schema, source)))
    with translate_errors(f"reading {source.address}"):
        frame = rows.frame(workers.session(), columns)
    return append_writes(lake, schema, frame, files=files, transaction=transaction, beside=beside, stored=stored)


def _application(lake: Lake, schema: TableSchema, name: str) -> str:
    """Return the application under which the log stores a batch: a log that was made again has none of the batches."""
    changes = cdc_tables.read_table_changes(lake)
    drops = sum(change.full_name == schema.full_name and change.what == TABLE_DROPPED for change in changes)
    return f"cdc-platform/writes/{drops}/{schema.log_since_us or 0}/{name}"


def _find_appended(lake: Lake, schema: TableSchema, name: str, numbers: Mapping[str, int]) -> bool:
    """Return True if the log has the batch; raise InputError if it has other content under the name."""
    stored = lake.transactions(log_table(schema), numbers)
    if stored and stored != dict(numbers):
        raise InputError(
            f"the log of {schema.full_name} already has a batch {name} with other content; nothing was appended: "
            "append the other writes as a batch of another name"
        )
    return bool(stored)


def _refuse_unfinished_script(lake: Lake) -> None:
    finished = lake.read(KEPT_SCRIPTS, ["finished_at"])["finished_at"]
    if finished.null_count:
        raise StateError(
            "an interrupted script has to finish first, since it starts from the logs as they are; apply any script, "
            "which finishes it: cdc-platform cql run FILE.cql --apply"
        )


def _find_passed_consumers(lake: Lake, schema: TableSchema, content: _Content) -> tuple[PassedConsumer, ...]:
    return tuple(
        PassedConsumer(consumer.name, consumer.position_us)
        for consumer in consumers.read_consumers(lake)
        if consumer.key[1:] == (schema.keyspace, schema.name)
        and content.first_us is not None
        and consumer.position_us >= content.first_us
    )


def _count_rows(lake: Lake, schema: TableSchema) -> int:
    return sum(part.rows for part in lake.partitions(log_table(schema)))


def _write_columns(schema: TableSchema, source: UserTable) -> pa.Schema:
    """Return the columns of typed writes that a table has.

    Raises:
        InputError: it has other columns, or lacks one that every write needs.
    """
    known = typed_writes_schema(schema)
    clashing = sorted({column.name.lower() for column in schema.columns} & {*_WRITE_COLUMNS})
    if clashing:
        raise InputError(
            f"{schema.full_name} has a column {clashing[0]}, by which a table of writes names something else; write to "
            "it with CQL statements: cdc-platform cql run FILE.cql --apply"
        )
    unknown = [name for name in source.schema.names if name not in known.names]
    if unknown:
        raise InputError(
            f"{source.address} has columns that no write to {schema.full_name} has: {', '.join(unknown)}; leave them "
            f"out, or name them as in {', '.join(known.names)}"
        )
    needed = ["timestamp", *(key.name for key in schema.partition_key)]
    missing = [name for name in needed if name not in source.schema.names]
    if missing:
        raise InputError(f"{source.address} has no column {', '.join(missing)}; every write needs one")
    fields = [_time_field(source) if field.name == "timestamp" else field for field in known]
    return pa.schema([field for field in fields if field.name in source.schema.names])


def _time_field(source: UserTable) -> pa.Field:
    """Return the column of the writes' times as it is read: a time where the table has one, else an integer."""
    if "timestamp" not in source.schema.names:
        raise InputError(f"{source.address} has no column timestamp; every write needs one")
    is_time = pat.is_timestamp(source.schema.field("timestamp").type)
    return pa.field("timestamp", TIMESTAMP if is_time else pa.int64())


def _normalized_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of writes as they are encoded: times are integers, and every write has an operation."""
    fields = [pa.field(field.name, pa.int64()) if field.name == "timestamp" else field for field in columns]
    return pa.schema([*([] if "operation" in columns.names else [pa.field("operation", pa.int8())]), *fields])


def _normalized(source: UserTable, columns: pa.Schema, hour_us: Microseconds | None) -> TaskRows:
    """Return the writes of a table, or those of an hour, in the columns of `_normalized_schema`."""
    schema = _normalized_schema(columns)

    def normalize(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays["timestamp"] = arrays["timestamp"].cast(pa.int64())
        inserts = pa.array(np.full(len(batch), int(Operation.INSERT), dtype=np.int8))
        whole = pa.RecordBatch.from_arrays([arrays.get(name, inserts) for name in schema.names], schema=schema)
        if hour_us is None:
            return whole
        times = arrays["timestamp"]
        if times.null_count:
            raise InputError(
                f"{times.null_count} writes of {source.address} have no timestamp, so they are in no hour; append them "
                "as a named batch, which names each"
            )
        inside = compute.and_(compute.greater_equal(times, hour_us), compute.less(times, hour_us + HOUR_US))
        return whole.filter(inside)

    return source.rows(columns).map(normalize)


def _fill(batch: pa.RecordBatch, whole: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return pa.RecordBatch.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(len(batch), field.type) for field in whole],
        schema=whole,
    )


_INSPECTION_SCHEMA = pa.schema(
    {
        "writes": pa.int64(),
        "hash": pa.int64(),
        "first_us": pa.int64(),
        "last_us": pa.int64(),
        "bad": pa.string(),
        "samples": pa.string(),
    }
)


def _inspect(lake: Lake, schema: TableSchema, rows: TaskRows, what: str, workers: TaskRunner) -> _Content:
    """Validate all writes of a batch, and hash them.

    Raises:
        InvalidWrites: a write fails a check.
    """
    from cdc_platform.cdclog.write_model import OperatingTimes

    get_stream_lookup(lake, schema)  # raises StateError
    periods = StreamSources(lake).of(schema.keyspace, schema.name).periods()
    times = OperatingTimes(
        np.array([period.begin_us for period in periods], dtype=np.int64),
        np.array([not (period.removed or period.empty) for period in periods], dtype=bool),
    )
    whole = typed_writes_schema(schema)

    def inspect(batches: Batches) -> Iterator[pa.RecordBatch]:
        from cdc_platform.cdclog.write_model import WriteModel

        model, left = WriteModel(schema, times), _BAD_WRITES_A_TASK
        for batch in batches:
            if not batch.num_rows:
                continue
            bad, samples = model.find_bad_writes(_fill(batch, whole), left)
            left -= len(samples)
            stamps = compute.min_max(batch.column("timestamp"))
            total = int(fingerprint_values(batch).sum() & _HASH_BITS)
            line = {
                "writes": batch.num_rows,
                "hash": total,
                "first_us": stamps["min"].as_py(),
                "last_us": stamps["max"].as_py(),
                "bad": json.dumps(bad) if bad else None,
                "samples": json.dumps([asdict(sample) for sample in samples]) if samples else None,
            }
            yield pa.RecordBatch.from_pylist([line], schema=_INSPECTION_SCHEMA)

    with translate_errors(f"reading {what}"):
        lines = workers.at_least(_MAX_TASKS_IN_PROCESS).table(rows.through(inspect), _INSPECTION_SCHEMA).to_pylist()
    bad = sum((Counter(json.loads(line["bad"])) for line in lines if line["bad"]), Counter[str]())
    count = sum(line["writes"] for line in lines)
    if bad:
        samples = [sample for line in lines for sample in json.loads(line["samples"] or "[]")]
        raise _invalid_writes(what, count, bad, samples)
    hash_ = sum(line["hash"] for line in lines) & int(_HASH_BITS)
    firsts = [line["first_us"] for line in lines if line["first_us"] is not None]
    lasts = [line["last_us"] for line in lines if line["last_us"] is not None]
    return _Content(count, hash_, min(firsts, default=None), max(lasts, default=None))


def _invalid_writes(what: str, count: int, bad: Counter[str], samples: list[dict[str, Any]]) -> InvalidWrites:
    samples.sort(key=lambda sample: (sample["timestamp_us"] is not None, sample["timestamp_us"] or 0, sample["key"]))
    shown = samples[:MAX_BAD_WRITES]
    first = shown[0]
    return InvalidWrites(
        f"{what}: {bad.total():,} of {count:,} writes are invalid, and nothing was appended; the first has the key "
        f"{first['key']}: {first['reason']}",
        dict(sorted(bad.items())),
        shown,
    )
