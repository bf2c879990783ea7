"""`cdc-platform expire`: show or execute the purge plan, and forecast table growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_platform.cli.command_hints import add_home_option, get_home_option
from cdc_platform.cli.commands import PROGRAM_NAME
from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import format_optional_ms, json_option, warn
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, show_document, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import EXPIRY_TABLES, WritingCommand
from cdc_platform.clock import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_platform.delta import Lake
    from cdc_platform.lifecycle import ExpiryAssumption, ExpiryResult, GrowthStep, PlannedGeneration

MAX_FORECAST_NODES = 10_000


@click.command(cls=WritingCommand, writes=EXPIRY_TABLES, unless=("dry_run", "cql", "forecast"))
@click.option("--dry-run", is_flag=True, help="Show the plan and write nothing.")
@click.option("--cql", is_flag=True, help="Print the removals as DELETEs for the cluster's own tables.")
@click.option(
    "--forecast", type=click.IntRange(1, MAX_FORECAST_NODES), metavar="N", help="Forecast the size after N more nodes."
)
@click.option(
    "--join-interval", type=click.IntRange(1), metavar="HOURS", help="With --forecast: hours between two joins. [24]"
)
@json_option
@pass_session
def expire(
    session: CliSession, dry_run: bool, cql: bool, forecast: int | None, join_interval: int | None, as_json: bool
) -> None:
    """Mark expired generations, and remove those that were marked before the grace time.

    A generation has expired when no CDC log can hold a row of it. One run marks and a later one removes: the grace
    time (expiry_grace_ms) starts with the mark, by this machine's clock, or between runs under --clock by theirs. A
    run is refused if tables differ from their commits, or if the clock is ahead by more than the grace time.

    A generation that operates, or that a table's TTL, a consumer or a node's cdc_local still needs, stays:
    `blocked_by` names the reason. Delta's vacuum deletes files seven days after their rows.

    \b
    Example:
      cdc-platform expire --dry-run --json
      cdc-platform expire --cql > purge.cql
      cdc-platform expire
      cdc-platform expire --forecast 100
    """
    if forecast is not None:
        if dry_run or cql:
            raise click.UsageError("--forecast changes nothing: leave --dry-run and --cql out")
        _write_forecast(session, forecast, join_interval or 24, as_json)
        return
    if join_interval is not None:
        raise click.UsageError("--join-interval goes with --forecast")
    from cdc_platform.delta import Lake, get_verified_lake
    from cdc_platform.lifecycle import expiry

    home = session.open_location()
    lake, settings = session.view() if dry_run else Lake(home.lake), home.settings
    if cql:
        lake, plan = expiry.read_verified_plan(lake, session.clock, settings)
        _warn_of_assumptions(plan)
        _write_statements(lake, plan, as_json)
        return
    done: ExpiryResult | None = None
    plan: Sequence[PlannedGeneration]
    if dry_run:
        plan = expiry.plan_expiry(get_verified_lake(lake, expiry.EXPIRY_STEP), session.clock, settings)
    else:
        with show_progress("removing expired generations"):
            done = expiry.expire_generations(lake, session.clock, settings)
        plan = done.plan
    _warn_of_assumptions(plan)
    document: dict[str, object] = {"generations": [_plan_document(generation) for generation in plan]}
    if done is not None:
        document |= {
            "marked": done.marked,
            "removed": len(done.removed),
            "removed_rows": sum(generation.rows for generation in done.removed),
            "removed_bytes_in_lake": sum(generation.bytes for generation in done.removed),
            "finished_removals": done.finished,
            "vacuumed_files": done.vacuumed,
        }
    view = View("time action reasons removable_at id rows bytes_in_lake", "Purge plan" if done is None else "Expiry")

    def show() -> None:
        # Warnings name the commands that state the assumed facts.
        rows = [_plan_document(generation) | {"reasons": generation.reasons} for generation in plan]
        show_document({**document, "generations": rows}, {"generations": view})

    write_result(document, as_json=as_json, show=show, next_steps=_expire_next_steps(lake, plan, done))


def _expire_next_steps(lake: Lake, plan: Sequence[PlannedGeneration], done: ExpiryResult | None) -> list[NextStep]:
    """Return the command that executes a plan only shown so far, or that later removes what was marked."""
    from cdc_platform.delta import get_mirrored_cluster
    from cdc_platform.lifecycle import needs_mark

    if done is not None:
        marked = "once the grace time has passed; expire --dry-run says when"
        return [build_next_step("expire", why=marked)] if done.marked else []
    cluster = get_mirrored_cluster(lake)
    if cluster is not None:
        why = f"for cqlsh on {cluster}; what has gone there goes here at the next: {PROGRAM_NAME} observe {cluster}"
        return (
            [build_next_step("expire", "--cql", why=why)]
            if any(generation.action.value == "remove" for generation in plan)
            else []
        )
    due = any(generation.action.value == "remove" or needs_mark(generation) for generation in plan)
    return [build_next_step("expire")] if due else []


def _warn_of_assumptions(plan: Sequence[PlannedGeneration]) -> None:
    """Warn of each assumption of a plan, and name the command that states the fact."""
    from cdc_platform.lifecycle import plan_assumptions

    for assumption in plan_assumptions(plan):
        warn(f"{assumption.table} keeps generations: {assumption.message}; {assumption.remedy}", code="unknown-past")


def _write_statements(lake: Lake, plan: Sequence[PlannedGeneration], as_json: bool) -> None:
    """Write the plan as CQL for cqlsh, or as JSON. CQL comments name the generations and what keeps them."""
    from cdc_platform.lifecycle import generate_purge_statements

    purges = generate_purge_statements(lake, plan)
    if as_json:
        rows = [
            {
                "id": entry.generation.id,
                "time": format_optional_ms(entry.generation.time_ms),
                "statements": entry.statements,
            }
            for entry in purges
        ]
        write_result({"generations": rows}, as_json=True)
        return
    click.echo("-- For cqlsh, in this order, so that readers see a complete generation or none.")
    click.echo(
        "CONSISTENCY QUORUM;" if purges else "-- Nothing may be removed now; expire --dry-run says what keeps what."
    )
    for entry in plan:
        for assumption in entry.assumptions:
            click.echo(f"-- generation {format_optional_ms(entry.time_ms)} stays: {_assumption_text(assumption)}")
    for entry in purges:
        name = f"generation {format_optional_ms(entry.generation.time_ms)} {entry.generation.id or ''}".strip()
        click.echo(f"-- {name}: since {format_optional_ms(entry.generation.expired_ms)} no log can hold a row of it")
        for statement in entry.statements:
            click.echo(statement)


def _plan_document(each: PlannedGeneration) -> dict[str, object]:
    return {
        "id": each.id,
        "time": format_optional_ms(each.time_ms),
        "expired": format_optional_ms(each.expired_ms),
        "removable_at": format_optional_ms(each.removable_ms),
        "blocked_by": list(each.blocked_by),
        "reasons": [
            *each.reasons,
            *(add_home_option(assumption.remedy, get_home_option()) for assumption in each.assumptions),
        ],
        "rows": each.rows,
        "bytes_in_lake": each.bytes,
        "action": each.action.value,
    }


def _assumption_text(assumption: ExpiryAssumption) -> str:
    return add_home_option(f"{assumption.table}: {assumption.message}; {assumption.remedy}", get_home_option())


def _write_forecast(session: CliSession, nodes: int, hours: int, as_json: bool) -> None:
    from cdc_platform.delta import Lake, choose_remedy
    from cdc_platform.lifecycle import expiry, forecast
    from cdc_platform.metastore import cdc_tables

    home = session.open_location()
    lake = Lake(home.lake)
    steps = forecast.forecast_growth(lake, session.clock, home.settings, nodes, every_ms=HOUR_MS * hours)
    next_steps: list[NextStep] = []
    _warn_of_assumptions(expiry.plan_expiry(lake, session.clock, home.settings))
    if not cdc_tables.are_cdc_tables_known(lake):
        next_steps.append(
            build_next_step(
                "tables", "declare-none", why="if no table has a log; otherwise tables add KS.T --ttl SECONDS"
            )
        )
        remedy = "do so with: cdc-platform tables add KS.T --ttl SECONDS, or cdc-platform tables declare-none"
        warn(
            f"no CDC-enabled tables are registered, so nothing expires; {choose_remedy(lake, remedy)}",
            code="no-tables",
        )
    first = next((step for step in steps if step.is_known_to_abort), None)
    if first is not None:
        next_steps.append(build_next_step("expire", "--dry-run", why="what could go before that"))
    rows = [_forecast_document(step) for step in steps]
    write_result(
        {"forecast": rows},
        as_json=as_json,
        show=lambda: _show_forecast(rows, first, nodes, hours),
        next_steps=next_steps,
    )


def _forecast_document(step: GrowthStep) -> dict[str, object]:
    return {
        "nodes": step.nodes,
        "num_ranges": step.num_ranges,
        "num_streams": step.num_streams,
        "streams": step.streams,
        "bytes_in_lake": step.bytes,
        "bytes_in_scylladb": step.published_bytes,
        "known_to_abort": step.is_known_to_abort,
        "streams_with_expiry": step.streams_with_expiry,
        "bytes_in_lake_with_expiry": step.bytes_with_expiry,
    }


def _show_forecast(rows: list[dict[str, object]], first: GrowthStep | None, nodes: int, hours: int) -> None:
    from cdc_platform.lifecycle import forecast

    sampled = _sampled_steps(nodes)
    view = View(
        "nodes num_ranges newest_streams all_streams bytes_in_scylladb bytes_in_lake streams_with_expiry "
        "bytes_in_lake_with_expiry",
        f"Growth with a new node every {hours} h: what ScyllaDB publishes, and what the lake stores",
    )
    show_rows(
        [
            row | {"newest_streams": row["num_streams"], "all_streams": row["streams"]}
            for row in rows
            if row["nodes"] in sampled
        ],
        view,
    )
    if first is not None:
        click.echo(
            f"after {first.nodes} more nodes cdc_streams_descriptions_v2 holds {first.published_bytes:,} bytes in "
            f"ScyllaDB: with {forecast.KNOWN_ABORT_BYTES:,} the 97th node of an empty cluster aborted at its start "
            "(scylladb#24727)"
        )


def _sampled_steps(nodes: int) -> set[int]:
    """Return about twenty node counts from 0 to `nodes`, both ends included."""
    return {0, *range(0, nodes, max(1, nodes // 20)), nodes}
