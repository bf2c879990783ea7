"""Checks of table states against the log: the stored state, and a base table exported with `SELECT JSON *`.

Rows are compared key by key, in memory. Writes that were not logged, and rows whose log rows have expired, are in the
base table alone.
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
    """Hold every kept state, or that of one table, against its log; nothing where none is kept. Nothing is written.

    Counts states. Those of logs above `MAX_ROWS_IN_MEMORY` rows are not judged: they are named, and not counted. One
    whose
    log is damaged cannot be judged, so that the invariant does not hold.
    """
    there = [
        each for each in (read_logged_tables(lake) if schema is None else [schema]) if _has_stored_state(lake, each)
    ]
    left = {each.full_name: why for each in there if (why := _too_large(lake, each))}
    wrong: list[str] = []
    count = 0
    for each in there:
        if each.full_name in left:
            continue
        try:
            said = _compare_state(lake, each)
        except InputError as error:
            said = f"the state of {each.full_name} cannot be judged: {error}"
        count += said is not None
        wrong += [said] if said else []
    if not count and not left:
        return []
    apart = [f"the state of {name} is not judged: {why}" for name, why in left.items()]
    return [Finding(STATE_MATCHES_LOG, count, len(wrong), "; ".join([*wrong[:1], *apart[:1]]))]


def _has_stored_state(lake: Lake, schema: TableSchema) -> bool:
    return schema.cdc.delta == "full" and lake.exists(state_table(schema))


def _too_large(lake: Lake, schema: TableSchema) -> str:
    rows = sum(part.rows for part in lake.slices(log_table(schema)))
    return f"its log has {rows} rows, more than {MAX_ROWS_IN_MEMORY}" if rows > MAX_ROWS_IN_MEMORY else ""


def _compare_state(lake: Lake, schema: TableSchema) -> str | None:
    """What is wrong with a kept state, in words; None where nobody would go on from it."""
    version = lake.version(log_table(schema))
    # First, since it reads all of the log: what cannot be read behind it is the state's.
    logged = rebuild_state(lake, schema, version)
    folder = lake.path(state_table(schema))
    mend = f"remove the folder {folder}: the next script that is kept makes it anew"
    try:
        kept = read_state(lake, schema, version)
        if not kept.beside:
            return None
        whole = kept.whole(schema)
    except Unavailable:
        raise  # what cannot be read now is not damaged
    except (StateError, pa.ArrowException, OSError, ValueError, KeyError) as error:
        return f"the state of {schema.full_name} cannot be read ({error}); {mend}"
    wrong = _state_differences(schema, whole, logged)
    return f"the state of {schema.full_name} is not what its log tells: {wrong}; {mend}" if wrong else ""


def _state_differences(schema: TableSchema, kept: pa.Table, logged: pa.Table) -> str:
    """What tells two states apart, in words; nothing where they have the same rows."""
    columns = STATE_SCHEMA.names
    mine, told = (set(hash_keys(each.select(columns), columns)) for each in (kept, logged))
    if mine == told and kept.num_rows == logged.num_rows:
        return ""
    apart = [
        rows.filter(pa.array(np.array([key not in others for key in hash_keys(rows.select(columns), columns)], bool)))
        for rows, others in ((kept, told), (logged, mine))
    ]
    foreign, lacking = (each.num_rows for each in apart)
    twice = kept.num_rows - len(mine)
    found = (
        f"{foreign} of {kept.num_rows} rows are not the log's, {lacking} of the log's are missing, {twice} come twice"
    )
    keys = sorted({key for each in apart for key in each["partition"].to_pylist()})
    return f"{found}, the first in {_partition_text(schema, keys[0])}" if keys else found


def _partition_text(schema: TableSchema, key: bytes) -> str:
    (values,) = decode_partition_keys(schema, [key])
    pairs = zip(schema.partition_key, values, strict=True)
    return "the partition " + " and ".join(f"{each.name} = {value!r}" for each, value in pairs)


_Row = dict[str, Value | None]
_Key = tuple[bytes, tuple[Any, ...] | None]


def check_base_table(lake: Lake, clock: Clock, schema: TableSchema, source: str, text: str) -> CompletenessCheck:
    """Compare the rows of a file (`source` names it) with those that the log amounts to.

    Raises:
        InputError: a line is no row of the table, or the log is too large for memory.
        StateError: the log holds keys alone.
        NotFound: there is no log.
    """
    count = sum(part.rows for part in lake.slices(get_log_table(lake, schema)))
    if count > MAX_ROWS_IN_MEMORY:
        raise InputError(
            f"the log of {schema.full_name} has {count} rows, more than {MAX_ROWS_IN_MEMORY} to replay in "
            "memory; compare "
            "with cdc_platform.cdclog.replay.replay_dataframe"
        )
    assert_full_delta(schema)
    logged = mutations_from_state(schema, rebuild_state(lake, schema, lake.version(get_log_table(lake, schema))))
    told = _rows_by_key(schema, BaseTable(schema, logged).without_expired(clock.now_us()).selected())
    there = _rows_by_key(schema, _read_rows(schema, source, text))
    unlogged, gone = there.keys() - told.keys(), told.keys() - there.keys()
    other = {key for key in there.keys() & told.keys() if not _are_rows_equal(schema, there[key], told[key])}
    wrong = unlogged | gone | other
    found = (
        f"of {len(there)} rows {len(unlogged)} are not in the log, {len(other)} are otherwise there; "
        f"{len(gone)} that the log tells of are gone"
    )
    first = min((_key_text(schema, there.get(key) or told[key]) for key in wrong), default=None)
    return CompletenessCheck(
        "the base table is what the log tells", not wrong, found + (f": key {first}" if first else "")
    )


def _are_rows_equal(schema: TableSchema, row: _Row, other: _Row) -> bool:
    """Return True if two rows have the same values."""
    return all(_are_values_equal(column.type, row[column.name], other[column.name]) for column in schema.selected)


def _are_values_equal(kind: CqlType, value: Value | None, other: Value | None) -> bool:
    """Compare decimals by their number, and NaN as equal to itself, which Python does not."""
    if value is None or other is None:
        return value is other
    return kind.json(value) == kind.json(other) or encode_exact_value(kind, value) == encode_exact_value(kind, other)


def _key_text(schema: TableSchema, row: _Row) -> str:
    """The primary key of a row as JSON."""
    keys = (*schema.partition_key, *schema.clustering_key)
    return json.dumps({key.name: key.type.json(row[key.name]) for key in keys}, default=_bytes_text)


def _bytes_text(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


_JSON_HEAD = "[json]"
_COUNT = re.compile(r"\((\d{1,12}) rows?\)", re.ASCII)


def _read_rows(schema: TableSchema, source: str, text: str) -> Iterator[_Row]:
    """The rows of what `cqlsh` prints of SELECT JSON: a line each, between a head and a count.

    Raises:
        InputError: a line is none of these, or there are not as many rows as were counted: what is left out would pass
            for rows that are not in the table.
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
    """Rows by their primary keys: partitions by the bytes of theirs, rows by what orders them; a static row by None."""
    found: dict[_Key, _Row] = {}
    for row in rows:
        clustering = [row[column.name] for column in schema.clustering_key]
        of_row = None if None in clustering else schema.clustering_order(clustering)
        found[schema.partition_bytes([row[column.name] for column in schema.partition_key]), of_row] = row
    return found
