"""`cdc-platform ingest`: ingest the CDC log of a live table, each row exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import json_option, warn, write_facts, write_json, write_table
from cdc_platform.cli.params import TABLE_NAME, TIME, SecondsRange
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import MAX_CDC_TTL_SECONDS, SECOND_US, Microseconds, format_us

if TYPE_CHECKING:
    from cdc_platform.ingest import Estimate, IngestResult, ReadWindow, ReplicationResult

_DURATION = SecondsRange(0, MAX_CDC_TTL_SECONDS)


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("table", type=TABLE_NAME)
@click.option("--until", "until_us", type=TIME, help="Read nothing after this time, for example 2026-01-31T12:00:00Z.")
@click.option("--by", type=click.Choice(["streams", "ranges"]), help="How windows are read. [default: what costs less]")
@click.option(
    "--confidence", type=_DURATION, default=30.0, show_default=True, help="Seconds to stay behind the slowest clock."
)
@click.option(
    "--second-pass-after",
    type=_DURATION,
    help="Seconds after which a window is read a second time; 0: never. [default: 3/4 of the log's TTL]",
)
@click.option("--current", is_flag=True, help="Keep TABLE itself from now on, beside its log.")
@click.option("--recopy", is_flag=True, help="Copy a table that is kept anew, for example after a TRUNCATE.")
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
    """Bring what is new in the CDC log of TABLE on the cluster NAME into KS.T_scylla_cdc_log in that cluster's home.

    Each row goes in once, whatever happens in between: a run that is killed goes on where it was. Generations and
    tablets are followed as they come. At a generation that nodes use and clients cannot read yet the log is held, and
    the answer says so. Late rows are looked for by reading windows a second time. Spark is started where there is
    more to ask for than one process does soon.

    Rows that nobody can read any more are a gap, which is recorded. The exit code is 1 while the log has one that
    nobody has accepted: `consumers gaps` lists them.

    With --current the table KS.T itself is kept as well: copied once, then brought up by its log each time. What CQL
    does not tell exactly is marked in its column cdc$inexact, and counted.

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

    cluster = registry.find_cluster(session.open_home(), name)
    policy = ReadPolicy(
        _us_from_seconds(confidence), None if second_pass_after is None else _us_from_seconds(second_pass_after)
    )
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
    if as_json:
        write_json(_result_document(done))
        ctx.exit(int(done.has_open_gaps))
    columns = (">window", "generation", "from", "to", "by", ">estimated", ">requests", ">rows", ">late", ">seconds")
    if done.windows:
        write_table("Windows", columns, [_window_row(window) for window in done.windows])
    write_facts(_result_facts(done).items())
    ctx.exit(int(done.has_open_gaps))


def _us_from_seconds(seconds: float) -> Microseconds:
    return Microseconds(int(seconds * SECOND_US))


def _window_row(window: ReadWindow) -> tuple[Any, ...]:
    chosen = window.chosen
    return (
        window.number,
        format_us(window.set_us),
        format_us(window.after_us),
        format_us(window.until_us),
        "passed over" if chosen is None else _describe_method(window, chosen),
        None if chosen is None else chosen.requests,
        window.requests,
        window.rows,
        window.late,
        window.seconds,
    )


def _describe_method(window: ReadWindow, chosen: Estimate) -> str:
    if window.catch_up:
        return f"{chosen.way}, to catch up"
    if window.scanned_with is not None:
        return f"scan of {window.scanned_with}"
    return f"{chosen.way} for {chosen.windows}" if chosen.windows > 1 else chosen.way


def _result_facts(done: IngestResult) -> dict[str, Any]:
    return (
        {
            "table": done.table,
            "rows": done.rows,
            "late": done.late,
            "late ever": done.late_ever,
            "read up to": format_us(done.position_us),
            "read again up to": None if done.second_pass_us is None else format_us(done.second_pass_us),
        }
        | ({} if done.waiting_for is None else {"held": done.waiting_for})
        | ({} if done.current is None else _current_facts(done.current))
    )


def _current_facts(now: ReplicationResult) -> dict[str, Any]:
    share = now.inexact / now.rows if now.rows else 0.0
    return {
        "table as of": format_us(now.as_of_us),
        "table copied": format_us(now.copied_us) + (", now" if now.copied_now else ""),
        "rows of the table": now.rows,
        "of which inexact": f"{now.inexact} ({share:.1%})",
        "slices written": f"{now.written_ranges} of {now.ranges}, for {now.log_rows} rows of the log",
        "rows read again": now.reread_rows,
    }


def _current_document(now: ReplicationResult) -> dict[str, Any]:
    return {
        "as_of": format_us(now.as_of_us),
        "copied": format_us(now.copied_us),
        "copied_now": now.copied_now,
        "rows": now.rows,
        "inexact": now.inexact,
        "log_rows": now.log_rows,
        "slices_written": now.written_ranges,
        "slices": now.ranges,
        "rows_read_again": now.reread_rows,
        "seconds": now.seconds,
    }


def _result_document(done: IngestResult) -> dict[str, Any]:
    return {
        "table": done.table,
        "rows": done.rows,
        "late": done.late,
        "late_ever": done.late_ever,
        "position": format_us(done.position_us),
        "again": None if done.second_pass_us is None else format_us(done.second_pass_us),
        "held": done.waiting_for,
        "current": None if done.current is None else _current_document(done.current),
        "gaps": [gap.facts() for gap in done.gaps],
        "windows": [_window_document(window) for window in done.windows],
    }


def _window_document(window: ReadWindow) -> dict[str, Any]:
    estimates = {
        name: None if estimate is None else _estimate_document(estimate)
        for name, estimate in (("chosen", window.chosen), ("instead_of", window.other))
    }
    return {
        "number": window.number,
        "generation": format_us(window.set_us),
        "after": format_us(window.after_us),
        "until": format_us(window.until_us),
        **estimates,
        "requests": window.requests,
        "rows": window.rows,
        "late": window.late,
        "seconds": window.seconds,
        "scanned_with": window.scanned_with,
        "catch_up": window.catch_up,
    }


def _estimate_document(each: Estimate) -> dict[str, Any]:
    return {"by": each.way, "requests": each.requests, "looks": each.looks, "windows": each.windows}
