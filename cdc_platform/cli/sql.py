"""`cdc-platform sql`: query the tables with DuckDB or Spark, and write rows as a table, JSON, CSV or Parquet.

Rows are written batch by batch, however many there are.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option, to_json, to_json_value, warn, write_json_rows, write_table
from cdc_platform.cli.params import ValidatedParam
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import parse_time_us
from cdc_platform.errors import InputError
from cdc_platform.storage import atomic

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc_platform.delta import Lake
    from cdc_platform.query import QueryResult, TimeTravel


@contextmanager
def stop_at_closed_pipe() -> Iterator[None]:
    """Write until the reader closes the pipe. A reader that has seen enough (`| head`) ends the command well."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Discard what is still buffered, or the interpreter would report a failed flush at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_preview(rows: QueryResult, most: int) -> None:
    """Write a table of the first `most` rows, and warn if there are more."""
    import pyarrow.types as pat

    def is_number(kind: pa.DataType) -> bool:
        return pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)

    names = [f">{name}" if is_number(kind) else name for name, kind in zip(rows.names, rows.schema.types, strict=True)]
    values = rows.values()
    first = list(islice(values, most))
    if next(values, None) is not None:
        more = "--limit N shows more, --json, --csv and --parquet all"
        warn(f"only the first {most} rows are shown; {more}", code="more-rows")
    write_table("", names, first)


def write_json_result(rows: QueryResult) -> None:
    """Write a document with an object per row."""
    names = rows.names
    objects = (dict(zip(names, row, strict=True)) for row in rows.values())
    write_json_rows("rows", map(to_json, objects))


def write_csv(rows: QueryResult) -> None:
    """Write a header and a line per row. Null is empty; lists and maps are JSON."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.names)
    for row in rows.values():
        writer.writerow(map(_csv_cell, row))


def write_parquet(rows: QueryResult, file: Path, home: Path) -> None:
    """Write a new Parquet file outside the home, and print its number of rows. It appears once all rows are in it.

    Raises:
        InputError: Parquet does not have a column's type, or another process created the file in the meantime.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([field.with_name(name) for field, name in zip(rows.schema, rows.names, strict=True)])
    count = 0
    try:
        with atomic.new_file(file, home=home) as draft, ParquetWriter(draft, schema, compression="zstd") as writer:
            for batch in rows.batches:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                count += batch.num_rows
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(f"--parquet {file}: {error}; read the column as text, with CAST(... AS VARCHAR)") from None
    click.echo(f"{count} rows in {file}")


def _csv_cell(value: Any) -> str:
    """Return a value as CSV text."""
    converted = to_json_value(value)
    if converted is None:
        return ""
    return converted if isinstance(converted, str) else json.dumps(converted, ensure_ascii=False)


_PREVIEW_ROWS = 100


class _VersionOrTimeParam(ValidatedParam):
    """A version of a table (int), or a time with a zone (the text, which is valid)."""

    name = "version|time"

    def read(self, text: str) -> int | str:
        if text.isascii() and text.isdigit():
            return int(text[:18])
        parse_time_us(text)
        return text


@click.command()
@click.argument("query")
@click.option(
    "--at", type=_VersionOrTimeParam(), help="The tables as they were: a version of the one table named, or a time."
)
@click.option("--limit", type=click.IntRange(1), help="At most that many rows. [default: 100 in a table, else all]")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Write the rows as CSV, with a header.")
@click.option("--parquet", type=click.Path(path_type=Path), metavar="FILE", help="Write the rows into a new file.")
@click.option("--spark", "on_spark", is_flag=True, help="Run it on Spark, in Spark's SQL: for volume.")
@pass_session
def sql(
    session: CliSession,
    query: str,
    at: int | str | None,
    limit: int | None,
    as_json: bool,
    as_csv: bool,
    parquet: Path | None,
    on_spark: bool,
) -> None:
    """Run a QUERY over the tables, which have ScyllaDB's own names; CDC logs are among them.

    Queries only answer: whatever would write, or read anything but the tables, is refused.

    \b
    Example:
      cdc-platform sql "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE time > '2026-01-31'"
      cdc-platform sql 'SELECT "cdc$operation", count(*) FROM shop.carts_scylla_cdc_log GROUP BY 1' --csv
      cdc-platform sql "SUMMARIZE nodes" --at 1
    """
    if not query.strip():
        raise InputError("the query is empty; write one as in: SELECT time FROM cdc_generation_timestamps")
    if as_json + as_csv + (parquet is not None) > 1:
        raise InputError("the result goes out in one form; give one of --json, --csv and --parquet")
    home = session.open_location()
    if parquet is not None:
        atomic.assert_path_free(parquet, home.path)
    is_preview = not (as_json or as_csv or parquet)
    most = _PREVIEW_ROWS + 1 if is_preview and limit is None else limit
    with stop_at_closed_pipe(), _run_query(session.lake(), query, at, most, on_spark) as rows:
        if as_json:
            write_json_result(rows)
        elif as_csv:
            write_csv(rows)
        elif parquet is not None:
            write_parquet(rows, parquet, home.path)
        else:
            write_preview(rows, _PREVIEW_ROWS if limit is None else limit)


def _run_query(
    lake: Lake, query: str, at: int | str | None, limit: int | None, on_spark: bool
) -> AbstractContextManager[QueryResult]:
    if on_spark:
        from cdc_platform.query import spark

        return spark.run_spark_query(lake, query, at=_parse_version(at), limit=limit)
    from cdc_platform.query import duckdb

    return duckdb.run_duckdb_query(lake, query, at=_parse_version(at), limit=limit)


def _parse_version(at: int | str | None) -> TimeTravel:
    from cdc_platform.query import TimeTravel

    if isinstance(at, str):
        return TimeTravel(time_us=parse_time_us(at))
    return TimeTravel(version=at)
