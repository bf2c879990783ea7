"""`cdc-platform rebuild`: rebuild a base table as of a time from its log, and compare it with another table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.params import TABLE_NAME, TIME
from cdc_platform.cli.render import View, show_document, show_mark, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import REBUILT_TABLE, WritingCommand
from cdc_platform.clock import Microseconds, format_us

if TYPE_CHECKING:
    from cdc_platform.cdclog import TableComparison


@click.command(cls=WritingCommand, writes=(REBUILT_TABLE,))
@click.argument("table", type=TABLE_NAME)
@click.option("--as-of", "as_of_us", type=TIME, help="Rebuild the table as of this time. [default: now]")
@click.option("--compare", "address", metavar="PATH", help="Compare it with this Delta or Parquet table.")
@json_option
@pass_session
@click.pass_context
def rebuild(
    ctx: click.Context,
    session: CliSession,
    table: tuple[str, str],
    as_of_us: Microseconds | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Rebuild TABLE (keyspace.table) as of a time from its CDC log, into the Delta table KS.T_rebuilt of this home.

    Values whose TTL has ended by then are absent, as are deleted ones. The table is replaced in one commit. Spark is
    started for logs of more than a million rows.

    With --compare it is compared with a table that has its columns: the rows of each, how many differ, and the first
    differing keys. The exit code is 1 if any row differs.

    \b
    Example:
      cdc-platform rebuild shop.carts
      cdc-platform rebuild shop.carts --as-of 2026-01-31T12:00:00Z --compare s3://bucket/carts
      cdc-platform sql 'SELECT count(*) FROM shop.carts_rebuilt'
    """
    lake = session.lake()
    from cdc_platform.cdclog import compare_rebuilt, describe_gaps, rebuild_table
    from cdc_platform.spark import get_task_runner

    workers = get_task_runner()
    rebuilt = rebuild_table(lake, session.clock, *table, workers, as_of_us)
    for line in describe_gaps(lake, [rebuilt.table]):
        warn(line, code="log-gap")
    comparison = None if address is None else compare_rebuilt(lake, *table, address, workers)
    document: dict[str, Any] = {
        "table": rebuilt.table,
        "rebuilt": rebuilt.name,
        "as_of": format_us(rebuilt.as_of_us),
        "log_version": rebuilt.log_version,
        "rows": rebuilt.rows,
        "changed": rebuilt.changed,
        "missing": [gap.json() for gap in rebuilt.missing],
        "comparison": None if comparison is None else _comparison_document(comparison),
    }

    def show() -> None:
        show_document(document, {"comparison": None, "missing": View("what from until", "Missing from its log")})
        if comparison is not None:
            _show_comparison(rebuilt.name, comparison)

    steps = (
        [build_next_step("sql", f"SELECT * FROM {rebuilt.name}", why="shows its rows")] if comparison is None else []
    )
    write_result(document, as_json=as_json, show=show, next_steps=steps)
    ctx.exit(int(comparison is not None and not comparison.is_equal))


def _comparison_document(comparison: TableComparison) -> dict[str, Any]:
    return {
        "given": comparison.given,
        "equal": comparison.is_equal,
        "rebuilt_rows": comparison.rebuilt_rows,
        "given_rows": comparison.given_rows,
        "only_rebuilt": comparison.only_rebuilt,
        "only_given": comparison.only_given,
        "given_twice": comparison.given_twice,
        "other_values": comparison.other_values,
        "first_differences": [
            {"key": entry.key, "difference": entry.difference, "columns": list(entry.columns)}
            for entry in comparison.first
        ],
    }


def _show_comparison(name: str, comparison: TableComparison) -> None:
    if comparison.is_equal:
        show_mark(True, f"{name} has the {comparison.given_rows:,} rows of {comparison.given}")
        return
    show_mark(
        False,
        f"{name} has {comparison.rebuilt_rows:,} rows and {comparison.given} {comparison.given_rows:,}: "
        f"{comparison.only_rebuilt:,} are only rebuilt, {comparison.only_given:,} only given, "
        f"{comparison.given_twice:,} given more than once, {comparison.other_values:,} have other values",
    )
    rows = [
        {**entry, "columns": ", ".join(entry["columns"])}
        for entry in _comparison_document(comparison)["first_differences"]
    ]
    show_rows(rows, View("key difference columns", "First differing keys"))
