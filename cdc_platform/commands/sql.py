"""`cdc-platform sql`: Spark SQL over every table under its own name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from cdc_platform.commands.output import json_option, warn, write_json, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.tables import Table

_SHOWN = 100
_LOG_SUFFIX = "_scylla_cdc_log"


@click.command()
@click.argument("query")
@click.option("--limit", type=click.IntRange(1), help="At most that many rows. [default: 100 in a table, all in JSON]")
@json_option
@pass_session
def sql(session: Session, query: str, limit: int | None, as_json: bool) -> None:
    """Run a QUERY over the tables, which have ScyllaDB's own names; CDC logs are among them.

    \b
    Example:
      cdc-platform sql "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE time > '2026-01-31'"
      cdc-platform sql 'SELECT `cdc$operation`, count(*) FROM shop.carts_scylla_cdc_log GROUP BY 1'
    """
    if not query.strip():
        raise InputError("the query is empty; write one as in: SELECT time FROM cdc_generation_timestamps")
    lake = session.lake()
    from cdc_platform.lake import frames
    from cdc_platform.lake.session import spark_session
    from cdc_platform.lake.translate import translated

    spark = spark_session()
    _quieten_query_errors()
    frames.register(spark, lake, _named(lake, query))
    with translated("the query"):
        result = spark.sql(query)
        if not as_json and limit is None:
            result = result.limit(_SHOWN + 1)
        elif limit is not None:
            result = result.limit(limit)
        rows = result.toArrow()
    _write(rows, limit, as_json)


def _named(lake: Lake, query: str) -> list[Table]:
    """The tables that the query can mean; all of them where it names none, as SHOW TABLES does.

    Naming a table in the catalog costs Spark a tenth of a second, and all of them more than most queries.
    """
    from cdc_platform.lake.tables import TABLES

    text = query.lower()
    declared = list(TABLES.values())
    named = [table for table in declared if table.name in text]
    if named and _LOG_SUFFIX not in text:
        return named
    from cdc_platform.log.audit.logs import logged_tables
    from cdc_platform.log.log_table import log_table

    logs = [log_table(schema) for schema in logged_tables(lake)]
    named += [table for table in logs if table.name.lower() in text]
    return named or [*declared, *logs]


def _quieten_query_errors() -> None:
    """PySpark logs a page of JVM stack for every query that is wrong; the one line that is raised says as much."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _write(rows: pa.Table, limit: int | None, as_json: bool) -> None:
    names = _distinct(rows.column_names)
    if as_json:
        values = zip(*(_values(column) for column in rows.columns), strict=True)
        write_json([dict(zip(names, row, strict=True)) for row in values])
        return
    if limit is None and rows.num_rows > _SHOWN:
        warn(f"only the first {_SHOWN} rows are shown; --limit N shows more, --json all")
        rows = rows.slice(0, _SHOWN)
    numbers = [_is_number(field.type) for field in rows.schema]
    columns = [f">{name}" if number else name for name, number in zip(names, numbers, strict=True)]
    write_table("", columns, zip(*(_values(column) for column in rows.columns), strict=True))


def _values(column: pa.ChunkedArray) -> list[object]:
    """The column's values; maps as lists of [key, value] in key order."""
    import pyarrow as pa

    values = column.to_pylist()
    if pa.types.is_map(column.type):
        return [None if entries is None else sorted(entries, key=lambda entry: entry[0]) for entries in values]
    return values


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _distinct(names: list[str]) -> list[str]:
    """Column names, the second of one name with a number after it, so that a JSON object holds both."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return distinct
