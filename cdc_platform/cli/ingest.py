"""`cdc-platform ingest`: ingest the CDC log of a live table, each row exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.params import TABLE_NAME, TIME, SecondsRange
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, show_document, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import MAX_CDC_TTL_SECONDS, SECOND_US, Microseconds, format_us, seconds_from_us

if TYPE_CHECKING:
    from cdc_platform.ingest import Estimate, IngestResult, ReadWindow, ReplicationResult

_DURATION = SecondsRange(0, MAX_CDC_TTL_SECONDS)


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("table", type=TABLE_NAME)
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
@click.option("--current", is_flag=True, help="Replicate TABLE itself, too.")
@click.option("--recopy", is_flag=True, help="Copy a replicated table again, for example after a TRUNCATE.")
@json_option
@pass_session
@click.pass_context
def ingest(
    ctx: click.Context,
    session: CliSession,
    name: str,
    table: tuple[str, str],
    until_us: Microseconds | None,
    by: Any,
    confidence: float,
    second_pass_after: float | None,
    current: bool,
    recopy: bool,
    as_json: bool,
) -> None:
    """Ingest new rows of the CDC log of TABLE on the cluster NAME into KS.T_scylla_cdc_log in that cluster's home.

    Each row is ingested exactly once; an interrupted run resumes where it stopped. New generations and tablets are
    followed. If nodes use a generation that clients cannot read yet, the ingest waits there and says so. Windows are
    read a second time to find late rows. Spark is started for backlogs that are too large for one process.

    Rows that can no longer be read are recorded as a gap. The exit code is 1 while the log has an open gap, see
    `consumers gaps`, and if unread rows may have expired. A lag of half of the log's TTL or more is reported.

    With --current the table KS.T is replicated as well: copied once, then updated from its log. Values that CQL does
    not return exactly are marked in its column cdc$inexact, and counted.

    \b
    Example:
      cdc-platform ingest prod shop.orders
      cdc-platform ingest prod shop.orders --current
      cdc-platform --home .cdc-platform/clusters/prod consume shop.orders --name audit
    """
    from cdc_platform.cdclog import describe_gaps
    from cdc_platform.delta import Lake
    from cdc_platform.ingest import ReadPolicy
    from cdc_platform.ingest import ingest_table as bring
    from cdc_platform.scylla import registry
    from cdc_platform.spark import get_task_runner

    cluster = registry.find_cluster(session.open_location(), name)
    policy = ReadPolicy(
        _us_from_seconds(confidence), None if second_pass_after is None else _us_from_seconds(second_pass_after)
    )
    with show_progress("ingesting"):
        done = bring(
            cluster,
            session.clock,
            *table,
            get_task_runner(),
            policy=policy,
            until_us=until_us,
            way=by,
            on_message=partial(warn, code="reading"),
            current=current,
            recopy=recopy,
        )
    for line in describe_gaps(Lake(cluster.open_home().lake), [done.table]):
        warn(line, code="log-gap")
    if done.lag.status.lag.code is not None:
        warn(str(done.lag), code="lag-near-ttl")
    document = _result_document(done)
    write_result(document, as_json=as_json, show=lambda: _show_result(document, done))
    ctx.exit(int(done.loses_rows))


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
        "windows": [_window_document(window) for window in done.windows],
    }


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
