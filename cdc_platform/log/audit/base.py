"""Whether a base table, as a cluster answers `SELECT JSON *`, is what its log amounts to: for batches that all lost.

Rows are compared as JSON, key by key, at the time of the clock. It is for tables that fit into memory; what the log was
never told of, and rows whose log rows have expired, are in the base table alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cdc_platform.clock import Clock
from cdc_platform.cql.base_table import BaseTable
from cdc_platform.cql.json_values import columns_of, from_json
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import InputError
from cdc_platform.lake.lake import Lake
from cdc_platform.log.audit.wholeness import Held
from cdc_platform.log.reading.reader import ROWS_AT_ONCE, log_of
from cdc_platform.log.state.kept import logged_state
from cdc_platform.log.state.of_log import assert_full_delta
from cdc_platform.log.state.of_mutations import mutations_of

_Rows = dict[str, dict[str, Any]]


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
    told = _by_key(schema, BaseTable(schema, logged).without_expired(clock.now_us()).rows())
    there = _by_key(schema, _read(schema, source, text))
    unlogged, gone = there.keys() - told.keys(), told.keys() - there.keys()
    other = {key for key in there.keys() & told.keys() if there[key] != told[key]}
    wrong = sorted(unlogged | gone | other)
    found = (
        f"of {len(there)} rows {len(unlogged)} are not in the log, {len(other)} are otherwise there; "
        f"{len(gone)} that the log tells of are gone"
    )
    return Held("the base table is what the log tells", not wrong, found + (f": key {wrong[0]}" if wrong else ""))


def _read(schema: TableSchema, source: str, text: str) -> Iterator[dict[str, Any]]:
    """The rows of what `cqlsh` prints of SELECT JSON: a line each, between a head and a count."""
    types = {column.name: column.type for column in schema.selected}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip().startswith("{"):
            continue
        columns = columns_of(line.strip())
        if columns.keys() != types.keys():
            raise InputError(
                f"{source}: line {number} has columns {', '.join(sorted(columns))}; {schema.full_name} has "
                f"{', '.join(sorted(types))}: export it with SELECT JSON *"
            )
        yield {name: kind.json(from_json(kind, columns[name])) for name, kind in types.items()}


def _by_key(schema: TableSchema, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> _Rows:
    names = [column.name for column in (*schema.partition_key, *schema.clustering_key)]
    return {json.dumps({name: row[name] for name in names}): row for row in rows}
