"""Whether a base table, as a cluster answers `SELECT JSON *`, is what its log amounts to: for batches that all lost.

Rows are compared as JSON, key by key, at the time of the clock. It is for tables that fit into memory; what the log was
never told of, and rows whose log rows have expired, are in the base table alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from cdc_platform.clock import Clock
from cdc_platform.cql.base_table import BaseTable
from cdc_platform.cql.json_values import columns_of, from_json
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.types import CqlType, Value
from cdc_platform.errors import InputError
from cdc_platform.lake.lake import Lake
from cdc_platform.log.audit.wholeness import Held
from cdc_platform.log.exact import encoded
from cdc_platform.log.reading.reader import ROWS_AT_ONCE, log_of
from cdc_platform.log.state.kept import logged_state
from cdc_platform.log.state.of_log import assert_full_delta
from cdc_platform.log.state.of_mutations import mutations_of
from cdc_platform.sources.printed_rows import without_session

_Row = dict[str, Value | None]
_Key = tuple[bytes, tuple[Any, ...] | None]


def judge_base(lake: Lake, clock: Clock, schema: TableSchema, source: str, text: str) -> Held:
    """Compare the rows of a file (`source` names it) with those that the log amounts to.

    Raises:
        InputError: a line is no row of the table, or the log is too large for memory.
        StateError: the log holds keys alone.
        NotFound: there is no log.
    """
    count = sum(part.rows for part in lake.slices(log_of(lake, schema)))
    if count > ROWS_AT_ONCE:
        raise InputError(
            f"the log of {schema.full_name} has {count} rows, more than {ROWS_AT_ONCE} to replay in memory; compare "
            "with cdc_platform.log.replay.on_spark.replayed"
        )
    assert_full_delta(schema)
    logged = mutations_of(schema, logged_state(lake, schema, lake.version(log_of(lake, schema))))
    told = _by_key(schema, BaseTable(schema, logged).without_expired(clock.now_us()).selected())
    there = _by_key(schema, _read(schema, source, text))
    unlogged, gone = there.keys() - told.keys(), told.keys() - there.keys()
    other = {key for key in there.keys() & told.keys() if not _same(schema, there[key], told[key])}
    wrong = unlogged | gone | other
    found = (
        f"of {len(there)} rows {len(unlogged)} are not in the log, {len(other)} are otherwise there; "
        f"{len(gone)} that the log tells of are gone"
    )
    first = min((_shown_key(schema, there.get(key) or told[key]) for key in wrong), default=None)
    return Held("the base table is what the log tells", not wrong, found + (f": key {first}" if first else ""))


def _same(schema: TableSchema, row: _Row, other: _Row) -> bool:
    """Return True if two rows have the same values."""
    return all(_is_same(column.type, row[column.name], other[column.name]) for column in schema.selected)


def _is_same(kind: CqlType, value: Value | None, other: Value | None) -> bool:
    """Compare decimals by their number, and NaN as equal to itself, which Python does not."""
    if value is None or other is None:
        return value is other
    return kind.json(value) == kind.json(other) or encoded(kind, value) == encoded(kind, other)


def _shown_key(schema: TableSchema, row: _Row) -> str:
    """The primary key of a row as JSON."""
    keys = (*schema.partition_key, *schema.clustering_key)
    return json.dumps({key.name: key.type.json(row[key.name]) for key in keys}, default=_shown)


def _shown(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


_HEAD = "[json]"
_COUNT = re.compile(r"\((\d{1,12}) rows?\)", re.ASCII)


def _read(schema: TableSchema, source: str, text: str) -> Iterator[_Row]:
    """The rows of what `cqlsh` prints of SELECT JSON: a line each, between a head and a count.

    Raises:
        InputError: a line is none of these, or there are not as many rows as were counted: what is left out would pass
            for rows that are not in the table.
    """
    types = {column.name: column.type for column in schema.selected}
    rows, counted = 0, None
    for number, line in enumerate(without_session(text).splitlines(), 1):
        content = line.strip()
        if count := _COUNT.fullmatch(content):
            counted = (counted or 0) + int(count[1])
            continue
        if not content or content == _HEAD or not content.strip("-"):
            continue
        if not content.startswith("{"):
            raise InputError(
                f"{source}: line {number} is no row, {content[:40]!r}; export it with SELECT JSON * as cqlsh prints it"
            )
        rows += 1
        columns = columns_of(content)
        if columns.keys() != types.keys():
            raise InputError(
                f"{source}: line {number} has columns {', '.join(sorted(columns))}; {schema.full_name} has "
                f"{', '.join(sorted(types))}: export it with SELECT JSON *"
            )
        try:
            row = {name: from_json(kind, columns[name]) for name, kind in types.items()}
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


def _by_key(schema: TableSchema, rows: Iterable[_Row]) -> dict[_Key, _Row]:
    """Rows by their primary keys: partitions by the bytes of theirs, rows by what orders them; a static row by None."""
    found: dict[_Key, _Row] = {}
    for row in rows:
        clustering = [row[column.name] for column in schema.clustering_key]
        of_row = None if None in clustering else schema.clustering_order(clustering)
        found[schema.partition_bytes([row[column.name] for column in schema.partition_key]), of_row] = row
    return found
