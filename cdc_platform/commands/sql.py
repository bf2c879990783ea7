"""`cdc-platform sql`: a query over the tables under their own names, embedded or on Spark, as a table or a document."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform import drafts
from cdc_platform.clock import parse_time_us
from cdc_platform.commands.arguments import Checked
from cdc_platform.commands.output import json_option
from cdc_platform.commands.query_results import (
    until_closed,
    write_csv,
    write_parquet,
    write_rows,
    write_shown,
)
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake
    from cdc_platform.query.names import At
    from cdc_platform.query.rows import Rows

_SHOWN = 100


class _At(Checked):
    """A version of a table (int), or a time with a zone, as text that was found to be one."""

    name = "version|time"

    def read(self, text: str) -> int | str:
        if text.isascii() and text.isdigit():
            return int(text[:18])
        parse_time_us(text)
        return text


@click.command()
@click.argument("query")
@click.option("--at", type=_At(), help="The tables as they were: a version of the one table named, or a time.")
@click.option("--limit", type=click.IntRange(1), help="At most that many rows. [default: 100 in a table, else all]")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Write the rows as CSV, with a header.")
@click.option("--parquet", type=click.Path(path_type=Path), metavar="FILE", help="Write the rows into a new file.")
@click.option("--spark", "on_spark", is_flag=True, help="Run it on Spark, in Spark's SQL: for volume.")
@pass_session
def sql(
    session: Session,
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
    home = session.open_home()
    if parquet is not None:
        drafts.assert_free(parquet, home.path)
    shown = not (as_json or as_csv or parquet)
    most = _SHOWN + 1 if shown and limit is None else limit
    with until_closed(), _answer(session.lake(), query, at, most, on_spark) as rows:
        if as_json:
            write_rows(rows)
        elif as_csv:
            write_csv(rows)
        elif parquet is not None:
            write_parquet(rows, parquet, home.path)
        else:
            write_shown(rows, _SHOWN if limit is None else limit)


def _answer(
    lake: Lake, query: str, at: int | str | None, limit: int | None, on_spark: bool
) -> AbstractContextManager[Rows]:
    if on_spark:
        from cdc_platform.query import spark

        return spark.answer(lake, query, at=_moment(at), limit=limit)
    from cdc_platform.query import embedded

    return embedded.answer(lake, query, at=_moment(at), limit=limit)


def _moment(at: int | str | None) -> At:
    from cdc_platform.query.names import At

    if isinstance(at, str):
        return At(time_us=parse_time_us(at))
    return At(version=at)
