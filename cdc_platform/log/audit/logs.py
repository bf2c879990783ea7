"""The audit of CDC logs: which there are, and the tallies of their parts as one line an invariant.

The rules are `invariants.log_rows`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from cdc_platform.cql.schema import TableSchema
from cdc_platform.invariants.findings import (
    LOG_INVARIANTS,
    LOG_ROW_COLOCATED,
    LOG_STREAM_OPERATES,
    Finding,
    Tally,
    add_up,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.log.audit import one_pass
from cdc_platform.log.audit.rows import NOT_JUDGED, LogRows, audit_log_rows
from cdc_platform.log.log_table import log_table
from cdc_platform.records import cdc_tables
from cdc_platform.timeline import Period, StreamSources

_TALLY = pa.schema(
    {
        "invariant": pa.string(),
        "population": pa.int64(),
        "violations": pa.int64(),
        "place": pa.int64(),
        "sample": pa.string(),
    }
)


def logged_tables(lake: Lake) -> list[TableSchema]:
    """The tables that have a log in the lake, by name.

    Raises:
        StateError: the definition of a table is damaged.
    """
    told = [table for table in cdc_tables.cdc_tables(lake) if table.ddl is not None]
    if not told:
        return []
    # The grammar takes as long to load as small tables to be read.
    from cdc_platform.cql.catalog import Catalog
    from cdc_platform.log.ddl import known_tables

    return [schema for schema in known_tables(Catalog(), told) if lake.exists(log_table(schema))]


def audit_logs(lake: Lake, workers: Workers) -> list[Finding]:
    """Audit the rows of all logs: a line an invariant, and none where no log has a row."""
    return _lines(tally for schema in logged_tables(lake) for tally in _of_log(lake, schema, workers))


def audit_log(lake: Lake, schema: TableSchema, workers: Workers) -> list[Finding]:
    """Audit the rows of one log; see `audit_logs`."""
    return _lines(_of_log(lake, schema, workers))


def _of_log(lake: Lake, schema: TableSchema, workers: Workers) -> Iterable[Tally]:
    judged = partial(_judged, StreamSources(lake).of(schema.keyspace, schema.name).periods())
    return [Tally(**row) for row in one_pass.run(lake, schema, workers, judged, _TALLY)]


def _judged(known: Sequence[Period], rows: LogRows) -> pa.RecordBatch:
    """The tallies of one part; runs where the part is read."""
    totals = add_up(audit_log_rows(rows, known))
    return pa.RecordBatch.from_pylist([vars(tally) for tally in totals.values()], schema=_TALLY)


def _lines(tallies: Iterable[Tally]) -> list[Finding]:
    totals = add_up(tallies)
    if not any(tally.population for tally in totals.values()):
        return []
    return [_line(name, totals) for name in LOG_INVARIANTS]


def _line(name: str, totals: Mapping[str, Tally]) -> Finding:
    """An invariant's line; where rows of removed generations could not be judged it says how many."""
    tally = totals.get(name, Tally(name, 0, 0))
    sample, left_out = tally.sample, totals[NOT_JUDGED].population
    if left_out and not sample and name in (LOG_STREAM_OPERATES, LOG_ROW_COLOCATED):
        sample = f"{left_out} rows are of generations that were removed, whose streams nobody knows: not judged"
    elif not tally.population:
        sample = sample or "nothing was checked: no row says when and where it was written"
    return Finding(name, tally.population, tally.violations, sample)
