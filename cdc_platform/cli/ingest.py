"""`cdc-platform ingest`: ingest the CDC logs of live tables, each row exactly once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.params import CONSISTENCY, NOW, RATE, START_TIME, TABLE_NAME, TIME, SecondsRange
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, show_document, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import MAX_CDC_TTL_SECONDS, SECOND_US, Microseconds, format_us, seconds_from_us

if TYPE_CHECKING:
    from cdc_platform.ingest import (
        Estimate,
        IngestOptions,
        IngestResult,
        ReadWindow,
        ReplicationResult,
        TableOutcome,
        TableSelection,
    )
    from cdc_platform.scylla import ReadTraffic, ScyllaCluster

_DURATION = SecondsRange(0, MAX_CDC_TTL_SECONDS)


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("tables", metavar="[TABLE]...", type=TABLE_NAME, nargs=-1)
@click.option("--all", "every", is_flag=True, help="Ingest every table with a CDC log.")
@click.option("--include", metavar="PATTERN", multiple=True, help="Ingest tables like shop.* or *.orders. Repeatable.")
@click.option("--exclude", metavar="PATTERN", multiple=True, help="Leave out tables that match. Repeatable.")
@click.option("--tables", "list_file", metavar="FILE", help="TOML with include = [...] and exclude = [...].")
@click.option("--from", "start", type=START_TIME, help="Begin a log's first ingest at this time, or now.")
@click.option("--until", "until_us", type=TIME, help="Read nothing after this time, for example 2026-01-31T12:00:00Z.")
@click.option("--by", type=click.Choice(["streams", "ranges"]), help="How windows are read. [default: the cheaper way]")
@click.option(
    "--confidence", type=_DURATION, default=30.0, show_default=True, help="Seconds to stay behind the slowest clock."
)
@click.option(
    "--second-pass-after",
    type=_DURATION,
    help="Seconds after which a window is read a second time; 0: never. [default: 3/4 of the log's TTL]",
)
@click.option("--consistency", type=CONSISTENCY, help="Level at which rows are read. [default: as registered]")
@click.option("--rate", type=RATE, help="Read at most so many rows a second. [default: as registered]")
@click.option("--request-rate", type=RATE, help="Send at most so many reads of rows a second.")
@click.option("--current", is_flag=True, help="Replicate the tables themselves, too.")
@click.option("--recopy", is_flag=True, help="Copy a replicated table again, for example after a TRUNCATE.")
@json_option
@pass_session
@click.pass_context
def ingest(
    ctx: click.Context,
    session: CliSession,
    name: str,
    tables: tuple[tuple[str, str], ...],
    every: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    list_file: str | None,
    start: Any,
    until_us: Microseconds | None,
    by: Any,
    confidence: float,
    second_pass_after: float | None,
    consistency: str | None,
    rate: int | None,
    request_rate: int | None,
    current: bool,
    recopy: bool,
    as_json: bool,
) -> None:
    """Ingest new rows of the CDC log of TABLE on the cluster NAME into KS.T_scylla_cdc_log in that cluster's home.

    Each row is ingested exactly once; an interrupted run resumes where it stopped. New generations and tablets are
    followed. If nodes use a generation that clients cannot read yet, the ingest waits there and says so. Windows are
    read a second time to find late rows. Spark is started for backlogs that are too large for one process.

    Several tables share one connection and take turns, so that a backlog does not delay the others. One that fails
    does not stop them: the summary has a line for each.

    Rows that can no longer be read are recorded as a gap. The exit code is 1 while a log has an open gap, see
    `consumers gaps`, if unread rows may have expired, and if one of several tables failed. A lag of half of a log's TTL
    or more is reported.

    With --current the table KS.T is replicated as well: copied once, then updated from its log. Values that CQL does
    not return exactly are marked in its column cdc$inexact, and counted.

    \b
    Example:
      cdc-platform ingest prod shop.orders
      cdc-platform ingest prod shop.orders --current
      cdc-platform ingest prod --all --exclude 'shop.tmp_*' --from now
      cdc-platform --home .cdc-platform/clusters/prod consume shop.orders --name audit
    """
    from cdc_platform.ingest import IngestOptions, ReadPolicy, TableSelection, read_table_selection
    from cdc_platform.scylla import registry

    if bool(tables) == bool(every or include or list_file):
        raise click.UsageError("give TABLE, or select tables with --all, --include or --tables")
    if recopy and not tables:
        raise click.UsageError("--recopy takes named tables; give TABLE")
    if exclude and tables:
        raise click.UsageError("--exclude goes with --all, --include or --tables; name only the tables to ingest")
    if start is not None and until_us is not None and start != NOW and until_us < start:
        raise click.UsageError("--until is before --from; swap them")
    policy = ReadPolicy(
        _us_from_seconds(confidence), None if second_pass_after is None else _us_from_seconds(second_pass_after)
    )
    options = IngestOptions(policy, start, until_us, by, current, recopy)
    cluster = registry.find_cluster(session.open_location(), name)
    changes = {"consistency": consistency, "rows_per_second": rate, "requests_per_second": request_rate}
    given = {field: value for field, value in changes.items() if value is not None}
    cluster = replace(cluster, connection=cluster.connection.model_copy(update=given))
    if len(tables) == 1:
        _ingest_one(ctx, session, cluster, tables[0], options, as_json=as_json)
        return
    listed = TableSelection(include=()) if list_file is None else read_table_selection(Path(list_file))
    chosen = ("*",) if every else include or ()
    names = tuple(".".join(table) for table in tables)
    selection = TableSelection((*names, *chosen, *listed.include), (*exclude, *listed.exclude))
    _ingest_many(ctx, session, cluster, selection, options, as_json=as_json)


def _ingest_one(
    ctx: click.Context,
    session: CliSession,
    cluster: ScyllaCluster,
    table: tuple[str, str],
    options: IngestOptions,
    *,
    as_json: bool,
) -> None:
    from cdc_platform.cdclog import describe_gaps
    from cdc_platform.delta import Lake
    from cdc_platform.ingest import ingest_table as bring
    from cdc_platform.spark import get_task_runner

    with show_progress("ingesting"):
        done = bring(
            cluster,
            session.clock,
            *table,
            get_task_runner(),
            policy=options.policy,
            start=options.start,
            until_us=options.until_us,
            way=options.way,
            on_message=partial(warn, code="reading"),
            current=options.current,
            recopy=options.recopy,
        )
    for line in describe_gaps(Lake(cluster.open_home().lake), [done.table]):
        warn(line, code="log-gap")
    if done.lag.status.lag.code is not None:
        warn(str(done.lag), code="lag-near-ttl")
    document = _result_document(done)
    write_result(document, as_json=as_json, show=lambda: _show_result(document, done))
    ctx.exit(int(done.loses_rows))


def _ingest_many(
    ctx: click.Context,
    session: CliSession,
    cluster: ScyllaCluster,
    selection: TableSelection,
    options: IngestOptions,
    *,
    as_json: bool,
) -> None:
    from cdc_platform.cdclog import describe_gaps
    from cdc_platform.delta import Lake
    from cdc_platform.ingest import ingest_tables
    from cdc_platform.scylla import sum_traffic
    from cdc_platform.spark import get_task_runner

    def on_message(table: str, line: str) -> None:
        warn(line if not table or table in line else f"{table}: {line}", code="reading")

    with show_progress("ingesting"):
        outcomes = ingest_tables(cluster, session.clock, selection, get_task_runner(), options, on_message)
    for line in describe_gaps(Lake(cluster.open_home().lake), [outcome.table for outcome in outcomes]):
        warn(line, code="log-gap")
    rows = [_outcome_document(outcome) for outcome in outcomes]
    traffic = sum_traffic(outcome.result.traffic for outcome in outcomes if outcome.result is not None)
    document = {
        "cluster": cluster.name,
        "tables": rows,
        "rows": sum(row["rows"] for row in rows),
        "failed": [row["table"] for row in rows if row["state"] == "failed"],
        "open_gaps": [row["table"] for row in rows if row["open_gaps"]],
        "read": _traffic_document(traffic),
    }
    for outcome in outcomes:
        if outcome.result is not None and outcome.result.lag.status.lag.code is not None:
            warn(str(outcome.result.lag), code="lag-near-ttl")
        if outcome.error is not None:
            warn(f"{outcome.table} failed: {outcome.error} [{outcome.error.code}]", code="table-failed")
    view = View("table state rows late position lag_seconds open_gaps turns seconds", "Tables", essential=3)
    shown = document if as_json else {**document, "read": _describe_traffic(traffic)}
    write_result(shown, as_json=as_json, views={"tables": view})
    ctx.exit(int(not all(outcome.is_fine for outcome in outcomes)))


def _outcome_document(outcome: TableOutcome) -> dict[str, Any]:
    done, error = outcome.result, outcome.error
    waits = done is not None and done.waiting_for is not None
    return {
        "table": outcome.table,
        "state": "failed" if error is not None else "waiting" if waits else "ingested",
        "rows": 0 if done is None else done.rows,
        "late": 0 if done is None else done.late,
        "position": None if done is None else format_us(done.position_us),
        "lag_seconds": None if done is None or done.lag.lag_us is None else seconds_from_us(done.lag.lag_us),
        "lag": None if done is None else str(done.lag.status.lag),
        "second_pass": None if done is None or done.second_pass_us is None else format_us(done.second_pass_us),
        "held": None if done is None else done.waiting_for,
        "current": None if done is None or done.current is None else _current_document(done.current),
        "open_gaps": 0 if done is None else sum(gap.is_open for gap in done.gaps),
        "windows": 0 if done is None else len(done.windows),
        "requests": 0 if done is None else sum(window.requests for window in done.windows),
        "turns": outcome.turns,
        "seconds": outcome.seconds,
        "error": None if error is None else {"code": error.code, "message": str(error)},
    }


def _us_from_seconds(seconds: float) -> Microseconds:
    return Microseconds(int(seconds * SECOND_US))


def _show_result(document: dict[str, Any], done: IngestResult) -> None:
    rows = [
        window
        | {"estimated": read.chosen and read.chosen.requests}
        | {"method": "skipped" if read.chosen is None else _describe_method(read, read.chosen)}
        for window, read in zip(document["windows"], done.windows, strict=True)
    ]
    if rows:
        show_rows(rows, View("number after until rows late method requests estimated seconds generation", "Windows"))
    document["read"] = _describe_traffic(done.traffic)
    hidden = {"windows": None, "gaps": None, **({} if done.waiting_for else {"held": None})}
    show_document({name: value for name, value in document.items() if name != "current"}, hidden)
    if done.current is not None:
        show_document(_current_facts(done.current), {})


def _describe_method(window: ReadWindow, chosen: Estimate) -> str:
    if window.catch_up:
        return f"{chosen.way}, to catch up"
    if window.scanned_with is not None:
        return f"scan of {window.scanned_with}"
    return f"{chosen.way} for {chosen.windows}" if chosen.windows > 1 else chosen.way


def _current_facts(copy: ReplicationResult) -> dict[str, Any]:
    share = copy.inexact / copy.rows if copy.rows else 0.0
    return {
        "table as of": format_us(copy.as_of_us),
        "table copied": format_us(copy.copied_us) + (", now" if copy.copied_now else ""),
        "rows of the table": copy.rows,
        "inexact rows": f"{copy.inexact:,} ({share:.1%})",
        "ranges written": f"{copy.written_ranges} of {copy.ranges}, for {copy.log_rows:,} log rows",
        "rows read again": copy.reread_rows,
    }


def _current_document(now: ReplicationResult) -> dict[str, Any]:
    return {
        "as_of": format_us(now.as_of_us),
        "copied": format_us(now.copied_us),
        "copied_now": now.copied_now,
        "rows": now.rows,
        "inexact": now.inexact,
        "log_rows": now.log_rows,
        "written_ranges": now.written_ranges,
        "ranges": now.ranges,
        "reread_rows": now.reread_rows,
        "seconds": now.seconds,
    }


def _result_document(done: IngestResult) -> dict[str, Any]:
    return {
        "table": done.table,
        "rows": done.rows,
        "late": done.late,
        "late_ever": done.late_ever,
        "position": format_us(done.position_us),
        "second_pass": None if done.second_pass_us is None else format_us(done.second_pass_us),
        "lag_seconds": None if done.lag.lag_us is None else seconds_from_us(done.lag.lag_us),
        "lag": str(done.lag.status.lag),
        "held": done.waiting_for,
        "current": None if done.current is None else _current_document(done.current),
        "gaps": [gap.facts() for gap in done.gaps],
        "read": _traffic_document(done.traffic),
        "windows": [_window_document(window) for window in done.windows],
    }


def _traffic_document(traffic: ReadTraffic) -> dict[str, Any]:
    return {
        "rows": traffic.rows,
        "requests": traffic.requests,
        "seconds": traffic.seconds,
        "rows_per_second": traffic.rows_per_second,
        "requests_per_second": traffic.requests_per_second,
    }


def _describe_traffic(traffic: ReadTraffic) -> str:
    """Return what was read from the cluster, with the measured rates, for people."""
    text = f"{traffic.rows:,} rows in {traffic.requests:,} requests"
    rows, requests = traffic.rows_per_second, traffic.requests_per_second
    return text if rows is None or requests is None else f"{text}, {rows:,} rows/s and {requests:,} requests/s"


def _window_document(window: ReadWindow) -> dict[str, Any]:
    estimates = {
        name: None if estimate is None else _estimate_document(estimate)
        for name, estimate in (("chosen", window.chosen), ("alternative", window.other))
    }
    return {
        "number": window.number,
        "generation": format_us(window.set_us),
        "after": format_us(window.after_us),
        "until": format_us(window.until_us),
        **estimates,
        "requests": window.requests,
        "retries": window.retries,
        "rows": window.rows,
        "late": window.late,
        "seconds": window.seconds,
        "scanned_with": window.scanned_with,
        "catch_up": window.catch_up,
    }


def _estimate_document(each: Estimate) -> dict[str, Any]:
    return {"by": each.way, "requests": each.requests, "polls": each.looks, "windows": each.windows}
