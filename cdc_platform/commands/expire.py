"""`cdc-platform expire`: the purge plan, carrying it out, and what would be kept after more nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_platform.clock import HOUR_MS
from cdc_platform.commands.advice import PROGRAM, home_option, with_home
from cdc_platform.commands.next_steps import Next, building, following, write_result
from cdc_platform.commands.output import json_option, time_of, warn, write_json, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.expiry.growth import GrowthStep
    from cdc_platform.lifecycle.expiry.purge_plan import Assumption, PlannedGeneration
    from cdc_platform.lifecycle.expiry.removal import Expired

MOST_NODES = 10_000


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show the plan; write nothing.")
@click.option("--cql", is_flag=True, help="Only print what would go as DELETEs for the cluster's own tables.")
@click.option("--forecast", type=click.IntRange(1, MOST_NODES), metavar="N", help="What is kept after N more nodes.")
@click.option("--every", type=click.IntRange(1), metavar="HOURS", help="With --forecast: hours between two joins. [24]")
@json_option
@pass_session
def expire(session: Session, dry_run: bool, cql: bool, forecast: int | None, every: int | None, as_json: bool) -> None:
    """Mark the generations of which no CDC log can hold a row any more, and remove those marked for the grace time.

    One run marks and a later one removes: the grace time (expiry_grace_ms) counts from when the mark was written, by
    this machine's clock, or between runs under --clock by theirs. A run refuses to decide by tables that do not hold
    what their commits put there, and to remove anything by a clock that is further ahead than the grace time.

    A generation that operates, or that a table's TTL, a consumer or a node's cdc_local still needs, is never touched:
    `blocked_by` names what keeps it. Files go with Delta's vacuum, seven days after their rows.

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
        _forecast(session, forecast, every or 24, as_json)
        return
    if every is not None:
        raise click.UsageError("--every goes with --forecast")
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.verified import verified
    from cdc_platform.lifecycle.expiry import purge_plan, removal

    home = session.open_home()
    lake, settings = session.view(home) if dry_run else Lake(home.lake), home.settings
    if cql:
        lake, plan = removal.verified_plan(lake, session.clock, settings)
        _warn_of_assumptions(plan)
        _statements(lake, plan, as_json)
        return
    done: Expired | None = None
    plan: Sequence[PlannedGeneration]
    if dry_run:
        plan = purge_plan.plan(verified(lake, removal.STEP), session.clock, settings)
    else:
        done = removal.expire(lake, session.clock, settings)
        plan = done.plan
    _warn_of_assumptions(plan)
    write_result([_told(each) for each in plan], lambda: _show(plan, done), _left(lake, plan, done), as_json=as_json)


def _left(lake: Lake, plan: Sequence[PlannedGeneration], done: Expired | None) -> list[Next]:
    """What a plan asks for that was only shown, or the removal of what was marked."""
    from cdc_platform.lake.mirrors import cluster_of
    from cdc_platform.lifecycle.expiry.removal import is_to_be_marked

    if done is not None:
        marked = "once the grace time has passed; expire --dry-run says when"
        return [following("expire", why=marked)] if done.marked else []
    cluster = cluster_of(lake)
    if cluster is not None:
        why = f"for cqlsh on {cluster}; what has gone there goes here at the next: {PROGRAM} observe {cluster}"
        return [following("expire", "--cql", why=why)] if any(each.action.value == "remove" for each in plan) else []
    due = any(each.action.value == "remove" or is_to_be_marked(each) for each in plan)
    return [building(lake, "expire")] if due else []


def _warn_of_assumptions(plan: Sequence[PlannedGeneration]) -> None:
    """Name what a plan assumes, and the command that states each fact."""
    from cdc_platform.lifecycle.expiry.purge_plan import assumptions

    for each in assumptions(plan):
        warn(f"{each.table} keeps generations: {each.said}; {each.do}", code="unknown-past")


def _show(plan: Sequence[PlannedGeneration], done: Expired | None) -> None:
    columns = ("time", "id", "action", "expired", "removable_at", ">rows", ">bytes in the lake", "blocked by")
    rows = [
        (
            time_of(each.time_ms),
            each.id,
            each.action.value,
            time_of(each.expired_ms),
            time_of(each.removable_ms),
            each.rows,
            each.bytes,
            "; ".join(each.reasons) or None,
        )
        for each in plan
    ]
    write_table("Purge plan" if done is None else "Expiry", columns, rows)
    if done is not None:
        click.echo(_summary(done))


def _statements(lake: Lake, plan: Sequence[PlannedGeneration], as_json: bool) -> None:
    """The plan as CQL, to be run with cqlsh; what is not to be told by a statement stands in comments."""
    from cdc_platform.lifecycle.expiry.purge_statements import purges

    found = purges(lake, plan)
    if as_json:
        told = ((time_of(each.generation.time_ms), each) for each in found)
        document = [{"id": each.generation.id, "time": time, "statements": each.statements} for time, each in told]
        write_json(document)
        return
    click.echo("-- For cqlsh, in this order: who reads meanwhile sees a generation that is whole, or none.")
    click.echo(
        "CONSISTENCY QUORUM;" if found else "-- Nothing may be removed now; expire --dry-run says what keeps what."
    )
    for each in plan:
        for assumption in each.assumptions:
            click.echo(f"-- generation {time_of(each.time_ms)} is kept: {_with_remedy(assumption)}")
    for each in found:
        name = f"generation {time_of(each.generation.time_ms)} {each.generation.id or ''}".strip()
        click.echo(f"-- {name}: since {time_of(each.generation.expired_ms)} no log can hold a row of it")
        for statement in each.statements:
            click.echo(statement)


def _told(each: PlannedGeneration) -> dict[str, object]:
    return {
        "id": each.id,
        "time": time_of(each.time_ms),
        "expired": time_of(each.expired_ms),
        "removable_at": time_of(each.removable_ms),
        "blocked_by": list(each.blocked_by),
        "reasons": [*each.reasons, *(with_home(assumption.do, home_option()) for assumption in each.assumptions)],
        "rows": each.rows,
        "bytes": each.bytes,
        "bytes_in_lake": each.bytes,
        "action": each.action.value,
    }


def _with_remedy(assumption: Assumption) -> str:
    return with_home(f"{assumption.table}: {assumption.said}; {assumption.do}", home_option())


def _summary(done: Expired) -> str:
    rows, size = (sum(getattr(each, name) for each in done.removed) for name in ("rows", "bytes"))
    finished = f", finished {done.finished} removals of an earlier run" if done.finished else ""
    return (
        f"marked {done.marked} generations, removed {len(done.removed)} with {rows:,} rows ({size:,} bytes in the lake)"
        f"{finished}; vacuum deleted {done.vacuumed} files"
    )


def _forecast(session: Session, nodes: int, hours: int, as_json: bool) -> None:
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.mirrors import mend
    from cdc_platform.lifecycle.expiry import growth, purge_plan
    from cdc_platform.records import no_tables

    home = session.open_home()
    lake = Lake(home.lake)
    steps = growth.forecast(lake, session.clock, home.settings, nodes, every_ms=HOUR_MS * hours)
    left: list[Next] = []
    _warn_of_assumptions(purge_plan.plan(lake, session.clock, home.settings))
    if not no_tables.are_told(lake):
        left.append(following("tables", "none", why="if no table has a log; otherwise tables add KS.T --ttl SECONDS"))
        told = "do so with: cdc-platform tables add KS.T --ttl SECONDS, or cdc-platform tables none"
        warn(
            f"nobody has said which tables have a CDC log, so nothing expires here; {mend(lake, told)}",
            code="no-tables",
        )
    first = next((step for step in steps if step.is_known_to_abort), None)
    if first is not None:
        left.append(following("expire", "--dry-run", why="what could go before that"))
    write_result([_step(each) for each in steps], lambda: _show_steps(steps, nodes, hours), left, as_json=as_json)


def _step(step: GrowthStep) -> dict[str, object]:
    return {
        "nodes": step.nodes,
        "num_ranges": step.num_ranges,
        "num_streams": step.num_streams,
        "streams": step.streams,
        "bytes": step.bytes,
        "bytes_in_lake": step.bytes,
        "published_bytes_in_scylladb": step.published_bytes,
        "known_to_abort": step.is_known_to_abort,
        "streams_with_expiry": step.streams_with_expiry,
        "bytes_with_expiry": step.bytes_with_expiry,
        "bytes_in_lake_with_expiry": step.bytes_with_expiry,
    }


def _show_steps(steps: Sequence[GrowthStep], nodes: int, hours: int) -> None:
    from cdc_platform.lifecycle.expiry import growth

    columns = (">more nodes", ">ranges", ">streams of the newest", ">streams kept", ">in ScyllaDB", ">in the lake")
    columns += (">with expiry", ">in the lake")
    shown = [step for step in steps if step.nodes in _few(nodes)]
    write_table(
        f"Kept, a node every {hours} h: streams, and bytes of what ScyllaDB publishes and of all tables in the lake",
        columns,
        [
            (
                step.nodes,
                step.num_ranges,
                step.num_streams,
                step.streams,
                step.published_bytes,
                step.bytes,
                step.streams_with_expiry,
                step.bytes_with_expiry,
            )
            for step in shown
        ],
    )
    first = next((step for step in steps if step.is_known_to_abort), None)
    if first is not None:
        click.echo(
            f"after {first.nodes} more nodes cdc_streams_descriptions_v2 holds {first.published_bytes:,} bytes in "
            f"ScyllaDB: with {growth.KNOWN_ABORT_BYTES:,} the 97th node of an empty cluster aborted at its start "
            "(scylladb#24727)"
        )


def _few(nodes: int) -> set[int]:
    """About twenty steps of the way, with both ends."""
    return {0, *range(0, nodes, max(1, nodes // 20)), nodes}
