"""`cdc-platform log`: show the rows of a table's CDC log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option, warn, write_table
from cdc_platform.cli.params import TABLE_NAME, TIME
from cdc_platform.cli.render import write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Microseconds, format_us
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.cql import TableSchema

_DEFAULT_LIMIT = 20


@click.command()
@click.argument("table", type=TABLE_NAME)
@click.option("--since", "since_us", type=TIME, help="Only rows written at this time or later.")
@click.option("--until", "until_us", type=TIME, help="Only rows written before this time.")
@click.option("--limit", type=click.IntRange(1), default=_DEFAULT_LIMIT, show_default=True, help="At most N rows.")
@json_option
@pass_session
def log(
    session: CliSession,
    table: tuple[str, str],
    since_us: Microseconds | None,
    until_us: Microseconds | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the newest rows of the CDC log of TABLE (keyspace.table), oldest first.

    Without --json, columns that are empty in every row are left out.

    \b
    Example:
      cdc-platform log shop.carts
      cdc-platform log shop.carts --since 2026-01-31T12:00:00Z --limit 100 --json
    """
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise InputError(f"--since {format_us(since_us)} is not before --until {format_us(until_us)}")
    lake = session.view()
    from cdc_platform.cdclog import Operation, read_table_schema, reader
    from cdc_platform.query import duckdb

    schema = read_table_schema(lake, *table)
    reader.get_log_table(lake, schema)
    with duckdb.run_duckdb_query(lake, _newest_rows_query(schema, since_us, until_us), limit=limit + 1) as result:
        names = result.names
        rows = [dict(zip(names, row, strict=True)) for row in result.values()]
    has_more = len(rows) > limit
    rows = rows[:limit][::-1]
    names_by_number = {operation.value: operation.name.lower() for operation in Operation}
    operations = [names_by_number.get(row["cdc$operation"], f"unknown ({row['cdc$operation']})") for row in rows]
    document = {
        "table": schema.full_name,
        "log": f"{schema.keyspace}.{schema.log_name}",
        "rows": [{"operation": name, "columns": row} for name, row in zip(operations, rows, strict=True)],
        "has_more": has_more,
    }
    write_result(document, as_json=as_json, show=lambda: _show_rows(schema, operations, rows, has_more))


def _newest_rows_query(schema: TableSchema, since_us: Microseconds | None, until_us: Microseconds | None) -> str:
    """Return the query for the log rows between two times, newest first, a mutation's rows in descending order."""
    from cdc_platform.delta import quote_column

    bounds = [
        f""""cdc$timestamp" {operator} TIMESTAMPTZ '{format_us(bound)}'"""
        for operator, bound in ((">=", since_us), ("<", until_us))
        if bound is not None
    ]
    where = f"WHERE {' AND '.join(bounds)} " if bounds else ""
    return (
        f"SELECT * FROM {quote_column(schema.keyspace)}.{quote_column(schema.log_name)} {where}"
        'ORDER BY "cdc$timestamp" DESC, "cdc$time" DESC, "cdc$batch_seq_no" DESC'
    )


def _show_rows(schema: TableSchema, operations: list[str], rows: list[dict[str, Any]], has_more: bool) -> None:
    """Print the rows with time, operation, TTL and the columns that any row has."""
    if not rows:
        click.echo(f"the log of {schema.full_name} has no such rows")
        return
    hidden = {"cdc$operation", "cdc$timestamp", "cdc$time", "cdc$stream_id", "cdc$end_of_batch"}
    columns = [name for name in rows[0] if name not in hidden and any(row[name] is not None for row in rows)]
    cells = [
        [row["cdc$timestamp"], operation, *(row[name] for name in columns)]
        for operation, row in zip(operations, rows, strict=True)
    ]
    write_table(f"CDC log of {schema.full_name}", ["time", "operation", *columns], cells)
    if has_more:
        warn("older rows are not shown; --limit N shows more", code="more-rows")
