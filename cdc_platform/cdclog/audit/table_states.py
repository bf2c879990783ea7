"""Compare the stored state and a base table exported with `SELECT JSON *` with the log.

Rows are compared key by key, in memory. Only the base table has writes that were not logged, and rows whose log rows
have expired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.audit.consumers import CompletenessCheck
from cdc_platform.cdclog.audit.logs import read_logged_tables
from cdc_platform.cdclog.consumer.reader import MAX_ROWS_IN_MEMORY, get_log_table
from cdc_platform.cdclog.schema import log_table
from cdc_platform.cdclog.state.from_log import assert_full_delta
from cdc_platform.cdclog.state.model import STATE_SCHEMA
from cdc_platform.cdclog.state.mutations import decode_partition_keys, mutations_from_state
from cdc_platform.cdclog.state.store import read_state, rebuild_state, state_table
from cdc_platform.cdclog.values import encode_exact_value
from cdc_platform.checks import STATE_MATCHES_LOG, Finding
from cdc_platform.clock import Clock
from cdc_platform.cql import BaseTable, CqlType, TableSchema, Value, columns_from_json, value_from_json
from cdc_platform.delta import Lake, hash_keys
from cdc_platform.errors import InputError, StateError, Unavailable
from cdc_platform.importing import strip_session


def audit_states(lake: Lake, schema: TableSchema | None = None) -> list[Finding]:
    """Compare every stored state, or that of one table, with its log; return [] if none is stored. Read only.

    The population is the number of states. States of logs above `MAX_ROWS_IN_MEMORY` rows are named but neither
    compared nor counted. If a log is damaged its state cannot be compared, and the invariant fails.
    """
    stored = [
        table for table in (read_logged_tables(lake) if schema is None else [schema]) if _has_stored_state(lake, table)
    ]
    skipped = {table.full_name: why for table in stored if (why := _too_large(lake, table))}
    messages: list[str] = []
    count = 0
    for table in stored:
        if table.full_name in skipped:
            continue
        try:
            message = _compare_state(lake, table)
        except InputError as error:
            message = f"the state of {table.full_name} cannot be judged: {error}"
        count += message is not None
        messages += [message] if message else []
    if not count and not skipped:
        return []
    notes = [f"the state of {name} is not judged: {why}" for name, why in skipped.items()]
    return [Finding(STATE_MATCHES_LOG, count, len(messages), "; ".join([*messages[:1], *notes[:1]]))]


def _has_stored_state(lake: Lake, schema: TableSchema) -> bool:
    return schema.cdc.delta == "full" and lake.exists(state_table(schema))


def _too_large(lake: Lake, schema: TableSchema) -> str:
    rows = sum(part.rows for part in lake.partitions(log_table(schema)))
    return f"its log has {rows} rows, more than {MAX_ROWS_IN_MEMORY}" if rows > MAX_ROWS_IN_MEMORY else ""


def _compare_state(lake: Lake, schema: TableSchema) -> str | None:
    """Return a message that describes a damaged state, "" if it is intact, None if readers would not use it."""
    version = lake.version(log_table(schema))
    # Read the whole log first, so that later read errors are those of the state.
    logged = rebuild_state(lake, schema, version)
    folder = lake.path(state_table(schema))
    remedy = f"remove the folder {folder}: the next applied script creates it again"
    try:
        state = read_state(lake, schema, version)
        if not state.is_stored:
            return None
        rows = state.whole(schema)
    except Unavailable:
        raise  # unavailable is not damaged
    except (StateError, pa.ArrowException, OSError, ValueError, KeyError) as error:
        return f"the state of {schema.full_name} cannot be read ({error}); {remedy}"
    differences = _state_differences(schema, rows, logged)
    return f"the state of {schema.full_name} differs from its log: {differences}; {remedy}" if differences else ""


def _state_differences(schema: TableSchema, stored: pa.Table, logged: pa.Table) -> str:
    """Describe the differences between two states; return "" if they have the same rows."""
    columns = STATE_SCHEMA.names
    stored_hashes, logged_hashes = (set(hash_keys(state.select(columns), columns)) for state in (stored, logged))
    if stored_hashes == logged_hashes and stored.num_rows == logged.num_rows:
        return ""
    differing = [
        rows.filter(pa.array(np.array([key not in others for key in hash_keys(rows.select(columns), columns)], bool)))
        for rows, others in ((stored, logged_hashes), (logged, stored_hashes))
    ]
    foreign, missing = (state.num_rows for state in differing)
    twice = stored.num_rows - len(stored_hashes)
    text = f"{foreign} of {stored.num_rows} rows are not in the log, {missing} rows of the log are missing"
    text += f", {twice} are duplicates" if twice else ""
    keys = sorted({key for state in differing for key in state["partition"].to_pylist()})
    return f"{text}, the first in {_partition_text(schema, keys[0])}" if keys else text


def _partition_text(schema: TableSchema, key: bytes) -> str:
    (values,) = decode_partition_keys(schema, [key])
    pairs = zip(schema.partition_key, values, strict=True)
    return "the partition " + " and ".join(f"{column.name} = {value!r}" for column, value in pairs)


_Row = dict[str, Value | None]
_Key = tuple[bytes, tuple[Any, ...] | None]


def check_base_table(lake: Lake, clock: Clock, schema: TableSchema, source: str, text: str) -> CompletenessCheck:
    """Compare the rows of a file (`source` names it) with those replayed from the log.

    Raises:
        InputError: a line is not a row of the table, or the log is too large for memory.
        StateError: the log holds only keys.
        NotFound: there is no log.
    """
    count = sum(part.rows for part in lake.partitions(get_log_table(lake, schema)))
    if count > MAX_ROWS_IN_MEMORY:
        raise InputError(
            f"the log of {schema.full_name} has {count} rows, more than {MAX_ROWS_IN_MEMORY} to replay in "
            "memory; compare "
            "with cdc_platform.cdclog.replay.replay_dataframe"
        )
    assert_full_delta(schema)
    logged = mutations_from_state(schema, rebuild_state(lake, schema, lake.version(get_log_table(lake, schema))))
    replayed = _rows_by_key(schema, BaseTable(schema, logged).without_expired(clock.now_us()).selected())
    exported = _rows_by_key(schema, _read_rows(schema, source, text))
    unlogged, absent = exported.keys() - replayed.keys(), replayed.keys() - exported.keys()
    different = {
        key for key in exported.keys() & replayed.keys() if not _are_rows_equal(schema, exported[key], replayed[key])
    }
    differing = unlogged | absent | different
    summary = (
        f"of {len(exported)} rows {len(unlogged)} are not in the log, {len(different)} have other values; "
        f"{len(absent)} rows of the log are missing"
    )
    first_key = min((_key_text(schema, exported.get(key) or replayed[key]) for key in differing), default=None)
    return CompletenessCheck(
        "the base table has the rows of the log", not differing, summary + (f": key {first_key}" if first_key else "")
    )


def _are_rows_equal(schema: TableSchema, row: _Row, other: _Row) -> bool:
    """Return True if two rows have the same values."""
    return all(_are_values_equal(column.type, row[column.name], other[column.name]) for column in schema.selected)


def _are_values_equal(kind: CqlType, value: Value | None, other: Value | None) -> bool:
    """Return True if two values are equal; decimals compare as numbers, and NaN equals itself."""
    if value is None or other is None:
        return value is other
    return kind.json(value) == kind.json(other) or encode_exact_value(kind, value) == encode_exact_value(kind, other)


def _key_text(schema: TableSchema, row: _Row) -> str:
    """Format the primary key of a row as JSON."""
    keys = (*schema.partition_key, *schema.clustering_key)
    return json.dumps({key.name: key.type.json(row[key.name]) for key in keys}, default=_bytes_text)


def _bytes_text(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


_JSON_HEAD = "[json]"
_COUNT = re.compile(r"\((\d{1,12}) rows?\)", re.ASCII)


def _read_rows(schema: TableSchema, source: str, text: str) -> Iterator[_Row]:
    """Yield the rows that `cqlsh` prints for SELECT JSON, one per line, between a header and a row count.

    Raises:
        InputError: a line is not such a row, or the number of rows differs from the count, so that omitted rows would
            pass for rows that are not in the table.
    """
    types = {column.name: column.type for column in schema.selected}
    rows, counted = 0, None
    for number, line in enumerate(strip_session(text).splitlines(), 1):
        content = line.strip()
        if count := _COUNT.fullmatch(content):
            counted = (counted or 0) + int(count[1])
            continue
        if not content or content == _JSON_HEAD or not content.strip("-"):
            continue
        if not content.startswith("{"):
            raise InputError(
                f"{source}: line {number} is no row, {content[:40]!r}; export it with SELECT JSON * as cqlsh prints it"
            )
        rows += 1
        columns = columns_from_json(content)
        if columns.keys() != types.keys():
            raise InputError(
                f"{source}: line {number} has columns {', '.join(sorted(columns))}; {schema.full_name} has "
                f"{', '.join(sorted(types))}: export it with SELECT JSON *"
            )
        try:
            row = {name: value_from_json(kind, columns[name]) for name, kind in types.items()}
        except InputError as error:
            raise InputError(f"{source}, line {number}: {error}") from None
        for column in schema.partition_key:
            if row[column.name] is None:
                raise InputError(
                    f"{source}, line {number}: {column.name} of the partition key is null; no row has that"
                )
        yield row
    if counted != rows and (counted is not None or not rows):
        raise InputError(
            f"{source} has {rows} rows and tells of {counted or 'none'}: it is cut, or no export; export it again"
        )


def _rows_by_key(schema: TableSchema, rows: Iterable[_Row]) -> dict[_Key, _Row]:
    """Map rows by primary key, the serialized partition key and the clustering order.

    The clustering part is None for a static row.
    """
    by_key: dict[_Key, _Row] = {}
    for row in rows:
        clustering = [row[column.name] for column in schema.clustering_key]
        order = None if None in clustering else schema.clustering_order(clustering)
        by_key[schema.partition_bytes([row[column.name] for column in schema.partition_key]), order] = row
    return by_key
