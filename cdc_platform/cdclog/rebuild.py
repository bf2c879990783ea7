"""Rebuild a base table as of a time from its log, into a Delta table of the home, and compare it with a given table.

The rebuilt table is replaced in one commit that records the time and the log's version. Rebuilding the same again
writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.column_codec import encode_canonical_partition_keys, encode_column, encode_partition_keys
from cdc_platform.cdclog.consumer.reader import MAX_ROWS_IN_MEMORY, get_log_table
from cdc_platform.cdclog.ddl import read_table_schema
from cdc_platform.cdclog.gaps import OptionGap, find_table_gaps
from cdc_platform.cdclog.replay import replay_batches, replay_dataframe
from cdc_platform.cdclog.schema import WRITTEN_AT, with_stored_names
from cdc_platform.cdclog.state.from_log import assert_full_delta
from cdc_platform.cdclog.state.select import select_schema
from cdc_platform.cdclog.values import to_canonical_values
from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us
from cdc_platform.cql import Column, TableSchema, UserType
from cdc_platform.delta import (
    Filter,
    Lake,
    TaskRows,
    TaskRunner,
    UserTable,
    compute,
    filter_rows,
    normalize_filters,
    open_user_table,
    tokens_from_keys,
    translate_errors,
)
from cdc_platform.errors import ConflictError, InputError
from cdc_platform.metastore import cdc_tables
from cdc_platform.spark import apply_by_key, arrow_to_spark_schema, frames, limit_batch_bytes, quote_spark_name
from cdc_platform.tables import Table, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_DIFFERENCES = 20
"""The most differing keys that a comparison names; it counts all."""
_NUMBER, _AS_OF, _LOG_VERSION = (f"cdc-platform/rebuilt/{name}" for name in ("number", "as-of", "log-version"))
_MAX_BYTES_IN_PROCESS = 1 << 27
_SIDE = "cdc$side"
_MAX_TIED = 1_000


@dataclass(frozen=True)
class RebuiltTable:
    """A base table as of a time (µs), rebuilt from a version of its log into the Delta table `name`.

    `changed` is False if the table already was as of that time and version. `missing` is what the log lacks.
    """

    table: str
    name: str
    as_of_us: Microseconds
    log_version: int
    rows: int
    changed: bool
    missing: tuple[OptionGap, ...]


@dataclass(frozen=True)
class DifferingKey:
    """A primary key, as JSON, and how its rows differ: `only rebuilt`, `only given`, `given twice`, `other values`.

    `columns` are those with other values.
    """

    key: str
    difference: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableComparison:
    """The numbers of rows of a rebuilt and a given table, of those that differ, and the first differing keys.

    Keys are in the order of their tokens, as in a SELECT.
    """

    given: str
    rebuilt_rows: int
    given_rows: int
    only_rebuilt: int
    only_given: int
    given_twice: int
    other_values: int
    first: tuple[DifferingKey, ...]

    @property
    def is_equal(self) -> bool:
        """Return True if both tables have the same rows."""
        return not (self.only_rebuilt or self.only_given or self.given_twice or self.other_values)


REBUILT_SUFFIX = "_rebuilt"
"""The suffix of the names of rebuilt tables."""


def rebuilt_table(schema: TableSchema) -> Table:
    """Return the Delta table of a rebuilt base table: the columns of `SELECT *`, with their types in its log."""
    stored = with_stored_names(schema)
    fields = [column(field.name, field.type, "as SELECT returns it", null=True) for field in select_schema(schema)]
    return Table(
        schema.keyspace,
        f"{schema.name}{REBUILT_SUFFIX}",
        pa.schema(fields),
        keys=tuple(key.name for key in (*stored.partition_key, *stored.clustering_key)),
        comment=f"{schema.full_name} as of a time, rebuilt from its log",
        about_readers=True,
    )


def rebuild_table(
    lake: Lake, clock: Clock, keyspace: str, table: str, workers: TaskRunner, as_of_us: Microseconds | None = None
) -> RebuiltTable:
    """Rebuild a base table as of `as_of_us` (µs; None: now) from its log.

    The rows are those of all writes up to that time, without the cells whose TTL has ended by then; a TTL counts from
    the write's timestamp. Rows before the table's last truncation count only as of a time before it. Logs of up to
    `MAX_ROWS_IN_MEMORY` rows are replayed in this process, larger ones on Spark.

    Raises:
        InputError: the time is in the future, or a row of the log is invalid, or a batch of it is incomplete.
        NotFound: the table, its definition or its log is not known.
        StateError: the log has only keys.
        ConflictError: another process has rebuilt the table in the meantime.
    """
    schema = read_table_schema(lake, keyspace, table)
    assert_full_delta(schema)
    log = get_log_table(lake, schema)
    as_of = clock.now_us() if as_of_us is None else as_of_us
    if as_of > clock.now_us():
        raise InputError(
            f"{format_us(as_of)} is in the future, and writes up to then may still come; it is now "
            f"{format_us(clock.now_us())}"
        )
    version = lake.version(log)
    assert version is not None
    target = rebuilt_table(schema)
    numbers = {_AS_OF: int(as_of), _LOG_VERSION: version}
    changed = lake.transactions(target, numbers) != numbers or not _has_columns(lake, target)
    if changed:
        transaction = (_NUMBER, (lake.transaction(target, _NUMBER) or 0) + 1)
        if not lake.exists(target):
            lake.ensure(target)
        rows = _replayed_rows(lake, schema, log, version, as_of, workers)
        with translate_errors(f"rebuilding {schema.full_name}"):
            frames.replace_all_rows(*rows, transaction, numbers)
        if lake.transactions(target, numbers) != numbers:
            raise ConflictError(f"another process has rebuilt {schema.full_name} in the meantime; run it again")
    return RebuiltTable(
        schema.full_name,
        target.full_name,
        as_of,
        version,
        sum(part.rows for part in lake.partitions(target)),
        changed,
        _missing_writes(lake, schema, as_of),
    )


def read_rebuilt_table(lake: Lake, schema: TableSchema) -> RebuiltTable | None:
    """Return how a table was last rebuilt, or None if it never was; `changed` is False."""
    target = rebuilt_table(schema)
    numbers = lake.transactions(target, (_AS_OF, _LOG_VERSION))
    if _AS_OF not in numbers:
        return None
    as_of = Microseconds(numbers[_AS_OF])
    return RebuiltTable(
        schema.full_name,
        target.full_name,
        as_of,
        numbers[_LOG_VERSION],
        sum(part.rows for part in lake.partitions(target)),
        changed=False,
        missing=_missing_writes(lake, schema, as_of),
    )


def _missing_writes(lake: Lake, schema: TableSchema, as_of: Microseconds) -> tuple[OptionGap, ...]:
    """Return what the log of a table lacks of the writes up to a time."""
    gaps = find_table_gaps(schema, cdc_tables.read_table_changes(lake))
    return tuple(gap for gap in gaps if _precedes(gap, as_of))


def compare_rebuilt(lake: Lake, keyspace: str, table: str, address: str, workers: TaskRunner) -> TableComparison:
    """Compare the rebuilt table with the Delta or Parquet table at `address`, which has its columns in any order.

    Values are equal if their bytes in CQL's protocol are. Large tables are compared on Spark.

    Raises:
        InputError: the given table lacks a column or has one in another type, or a value is not of its type.
        NotFound: there is no rebuilt table, or nothing is at `address`.
        StateError: as `open_user_table`.
    """
    schema = read_table_schema(lake, keyspace, table)
    wanted = select_schema(schema)
    given = open_user_table(address)
    rebuilt = open_user_table(lake.path(rebuilt_table(schema)))
    sides = (_sided(rebuilt, wanted, rebuilt=True), _sided(given, wanted, rebuilt=False))
    compare = partial(_compare_part, schema, address)
    with translate_errors(f"comparing {schema.full_name} with {address}"):
        if rebuilt.bytes + given.bytes <= _MAX_BYTES_IN_PROCESS and workers.runs_in_process(1):
            batches = [batch for rows in sides for number in range(rows.tasks) for batch in rows.batches(number)]
            parts = list(compare(pa.Table.from_batches(batches, _sided_schema(wanted))))
        else:
            parts = _compare_on_spark(schema, sides, wanted, compare, workers)
    return _sum_parts(address, [line for part in parts for line in part.to_pylist()])


def _precedes(gap: OptionGap, as_of: Microseconds) -> bool:
    return gap.since_us is None or gap.since_us <= as_of


def _has_columns(lake: Lake, table: Table) -> bool:
    return lake.stored_schema(table).equals(table.schema.remove_metadata())


def _row_filters(schema: TableSchema, as_of: Microseconds) -> list[Filter]:
    """Return the filters for the log rows that a table as of a time consists of."""
    filters: list[Filter] = [(WRITTEN_AT, "<=", datetime_from_us(as_of))]
    if schema.truncated_us is not None and schema.truncated_us <= as_of:
        filters.append((WRITTEN_AT, ">=", datetime_from_us(schema.truncated_us)))
    return filters


def _replayed_rows(
    lake: Lake, schema: TableSchema, log: Table, version: int, as_of: Microseconds, workers: TaskRunner
) -> tuple[TaskRunner, Lake, Table, Any]:
    """Return where and into which table to write which rows."""
    target, filters = rebuilt_table(schema), _row_filters(schema, as_of)
    count = sum(part.rows for part in lake.partitions(log))
    if count <= MAX_ROWS_IN_MEMORY and workers.runs_in_process(1):
        rows = filter_rows(lake.read_version(log, version), normalize_filters(log, filters))
        batches = list(replay_batches(schema, rows, as_of)) if rows.num_rows else []
        return TaskRunner.alone(), lake, target, TaskRows(1 if batches else 0, lambda _: iter(batches))
    session = workers.session()
    changes = frames.read_table_frame(session, lake, log, version)
    for name, operator, value in filters:
        changes = changes.filter(f"{quote_spark_name(name)} {operator} TIMESTAMP '{value.isoformat(sep=' ')}'")
    return workers, lake, target, replay_dataframe(schema, changes, now_us=as_of)


def _sided_schema(wanted: pa.Schema) -> pa.Schema:
    return pa.schema([*wanted, pa.field(_SIDE, pa.bool_())])


def _sided(table: UserTable, wanted: pa.Schema, *, rebuilt: bool) -> TaskRows:
    """Return the rows of a table with a column that says whether they are rebuilt."""

    def mark(batch: pa.RecordBatch) -> pa.RecordBatch:
        side = pa.array(np.full(len(batch), rebuilt))
        return pa.RecordBatch.from_arrays([*batch.columns, side], schema=_sided_schema(wanted))

    return table.rows(wanted).map(mark)


def _compare_on_spark(
    schema: TableSchema,
    sides: Sequence[TaskRows],
    wanted: pa.Schema,
    compare: Callable[[pa.Table], Iterator[pa.RecordBatch]],
    workers: TaskRunner,
) -> list[pa.RecordBatch]:
    session, stored = workers.session(), with_stored_names(schema)
    columns = arrow_to_spark_schema(_sided_schema(wanted))
    one, other = (rows.frame(session, columns) for rows in sides)
    frame: DataFrame = one.unionAll(other)

    def keys(batch: pa.RecordBatch) -> pa.Array:
        return _partition_keys(stored, batch)

    with limit_batch_bytes(session):
        result = apply_by_key(frame, keys, compare, arrow_to_spark_schema(_PART_SCHEMA)).toArrow()
    return result.to_batches()


def _partition_keys(stored: TableSchema, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    for key in stored.partition_key:
        if rows.column(key.name).null_count:
            raise InputError(f"{rows.column(key.name).null_count} rows have no {key.name}; it is in the partition key")
    columns = [_one_array(rows.column(key.name)) for key in stored.partition_key]
    try:
        return encode_partition_keys(stored, columns)
    except InputError:
        return encode_canonical_partition_keys(stored, columns)


def _one_array(values: Any) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


_PART_SCHEMA = pa.schema(
    {
        "rebuilt_rows": pa.int64(),
        "given_rows": pa.int64(),
        "only_rebuilt": pa.int64(),
        "only_given": pa.int64(),
        "given_twice": pa.int64(),
        "other_values": pa.int64(),
        "first": pa.string(),
    }
)


def _compare_part(schema: TableSchema, address: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the comparison of all rows of some partitions of both tables, as a row of `_PART_SCHEMA`."""
    rows = rows.combine_chunks()
    if not rows.num_rows:
        return
    stored = with_stored_names(schema)
    rebuilt = np.asarray(_one_array(rows[_SIDE]))
    partitions = _partition_keys(stored, rows)
    codes = {item.name: _value_codes(address, item, _one_array(rows[item.name])) for item in stored.selected}
    number = _number_keys([codes[key.name] for key in (*stored.partition_key, *stored.clustering_key)])
    counts = [np.bincount(number[rebuilt == side], minlength=number.max() + 1) for side in (True, False)]
    row_of = [np.full(number.max() + 1, -1), np.full(number.max() + 1, -1)]
    for side in (0, 1):
        mine = np.flatnonzero(rebuilt == (side == 0))
        row_of[side][number[mine][::-1]] = mine[::-1]
    both = (row_of[0] >= 0) & (row_of[1] >= 0)
    regular = [item.name for item in stored.selected if not item.is_key]
    differs = {
        name: both & (codes[name][np.maximum(row_of[0], 0)] != codes[name][np.maximum(row_of[1], 0)])
        for name in regular
    }
    other = np.logical_or.reduce(list(differs.values())) if differs else np.zeros(len(both), bool)
    kinds = {
        "only rebuilt": (row_of[0] >= 0) & ~both,
        "only given": (row_of[1] >= 0) & ~both,
        "given twice": counts[1] > 1,
        "other values": other,
    }
    bad = np.flatnonzero(np.logical_or.reduce(list(kinds.values())))
    of_key = np.where(row_of[0] >= 0, row_of[0], row_of[1])
    first = _first_rows(stored, rows, partitions, of_key[bad])
    described = []
    for row in first:
        key = number[row]
        kind = next(name for name, mask in kinds.items() if mask[key])
        columns = tuple(name for name in regular if kind == "other values" and differs[name][key])
        described.append(
            {"token": _token(partitions, row), **asdict(DifferingKey(_key_text(stored, rows, row), kind, columns))}
        )
    line = {
        "rebuilt_rows": int(rebuilt.sum()),
        "given_rows": int((~rebuilt).sum()),
        **{name.replace(" ", "_"): int(mask.sum()) for name, mask in kinds.items()},
        "first": json.dumps(described),
    }
    yield pa.RecordBatch.from_pylist([line], schema=_PART_SCHEMA)


def _value_codes(address: str, item: Column, values: Any) -> np.ndarray:
    """Return numbers (int64) that are equal where the values have the same bytes in CQL; -1: null."""
    valid = _has_value(item, values)
    codes = np.full(len(values), -1, dtype=np.int64)
    if valid.any():
        try:
            encoded = encode_column(item.type, values.filter(pa.array(valid)))
        except ValueError as error:
            raise InputError(f"column {item.name} of {address}: {error}") from None
        codes[valid] = np.asarray(encoded.dictionary_encode().indices, dtype=np.int64)
    return codes


def _has_value(item: Column, values: Any) -> np.ndarray:
    """Return which values (bool) a SELECT shows: a collection without elements is null, unless it is frozen."""
    valid = np.asarray(compute.is_valid(values))
    if not item.type.multicell:
        return valid
    if isinstance(item.type, UserType):
        return valid & np.logical_or.reduce([np.asarray(compute.is_valid(part)) for part in values.flatten()])
    return valid & (np.diff(np.asarray(values.offsets)) > 0)


def _number_keys(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number (int64) from 0 for each row, equal for rows with equal codes in all columns."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for codes in columns:
        combined = number * (codes.max() + 2) + codes + 1
        number = np.unique(combined, return_inverse=True)[1].astype(np.int64)
    return number


def _first_rows(stored: TableSchema, rows: pa.Table, partitions: pa.Array, chosen: np.ndarray) -> list[int]:
    """Return the first `MAX_DIFFERENCES` of some rows, in the order of a SELECT."""
    if not len(chosen):
        return []
    tokens = tokens_from_keys(partitions.take(pa.array(chosen)))
    limit = np.sort(tokens)[min(MAX_DIFFERENCES, len(tokens)) - 1]
    candidates = chosen[tokens <= limit][:_MAX_TIED].tolist()
    taken = rows.take(pa.array(candidates))
    clusterings = zip(*(to_canonical_values(key.type, taken[key.name]) for key in stored.clustering_key), strict=True)
    orders = [
        (_token(partitions, row), partitions[row].as_py(), () if None in values else stored.clustering_order(values))
        for row, values in zip(candidates, [*clusterings] or [()] * len(candidates), strict=True)
    ]
    return [candidates[index] for index in sorted(range(len(candidates)), key=orders.__getitem__)[:MAX_DIFFERENCES]]


def _token(partitions: pa.Array, row: int) -> int:
    return int(tokens_from_keys(partitions.slice(row, 1))[0])


def _key_text(stored: TableSchema, rows: pa.Table, row: int) -> str:
    keys = (*stored.partition_key, *stored.clustering_key)
    values = {key.name: rows[key.name][row].as_py() for key in keys}
    return json.dumps(values, default=lambda value: f"0x{value.hex()}" if isinstance(value, bytes) else str(value))


def _sum_parts(address: str, lines: Sequence[dict[str, Any]]) -> TableComparison:
    first = sorted((entry for line in lines for entry in json.loads(line["first"])), key=lambda entry: entry["token"])
    keys = [DifferingKey(entry["key"], entry["difference"], tuple(entry["columns"])) for entry in first]
    counts = {name: sum(line[name] for line in lines) for name in _PART_SCHEMA.names if name != "first"}
    return TableComparison(address, **counts, first=tuple(keys[:MAX_DIFFERENCES]))
