"""`cdc-platform repair`: is the latest generation still fit for the ring; if not, a new one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

import click

from cdc_platform.clock import format_ms
from cdc_platform.commands.next_steps import Next, building, following, in_cluster, write_result
from cdc_platform.commands.output import json_option, warn, write_facts, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.generations.damage import Damage
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.repair.checkup import Checkup


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what is wrong; write nothing.")
@click.option("--run", is_flag=True, help="Make the new generation at once: describe, audit, insert, publish.")
@click.option(
    "--strict/--no-strict", default=None, help="Repair for warnings too. [default: repair_strict of settings]"
)
@click.option("--from-description", is_flag=True, help="Make damaged rows of generations anew; asks for no generation.")
@click.option("--node", type=click.UUID, metavar="HOST_ID", help="The node that makes it. [default: the first]")
@json_option
@pass_session
@click.pass_context
def repair(
    ctx: click.Context,
    session: Session,
    dry_run: bool,
    run: bool,
    strict: bool | None,
    from_description: bool,
    node: UUID | None,
    as_json: bool,
) -> None:
    """Check whether the latest generation still fits the ring, and ask for a new one where it does not.

    Queued like a join, or made at once with --run. Calls at the same time make one generation. With --dry-run the
    exit code is 1 where a repair is needed, and 0 where that cannot be told by the tables that were brought here.

    With --from-description no generation is asked for: rows of generations whose files are damaged or gone are made
    anew, the same to the last bit, since streams follow from the generation's UUID and the ring. The exit code is 1
    where something stays damaged, with --dry-run where anything is.

    \b
    Example:
      cdc-platform repair --dry-run
      cdc-platform repair --run --strict
      cdc-platform repair --from-description
    """
    if dry_run and run:
        raise click.UsageError("--dry-run writes nothing and --run makes a generation; choose one")
    if from_description:
        if run or node is not None or strict is not None:
            raise click.UsageError("--from-description makes no generation; of the other options it takes --dry-run")
        ctx.exit(_refill(session, dry_run=dry_run, as_json=as_json))
    from cdc_platform.lake.turns import MAKING, busy
    from cdc_platform.lifecycle.join import joining
    from cdc_platform.lifecycle.repair import checkup as repairing

    home = session.open_home()
    lake = session.lake()
    strict = home.settings.repair_strict if strict is None else strict
    checkup = repairing.check(lake, strict=strict)
    result = _told(checkup, strict)
    # From before it is asked for: the sensor of an `up` beside this would make the generation as well.
    with busy(lake, MAKING) if run else nullcontext():
        if not dry_run:
            event = repairing.ask(lake, session.clock, checkup, node)
            if event is None and run and checkup.latest is not None:
                event = joining.unjudged(lake, checkup.latest.time_ms)
            if event is not None:
                result |= {"event_id": event.event_id, "generation_id": event.generation_id}
            if event is not None and run:
                result |= _run(session, event.generation_id)
    asked = "event_id" in result or (dry_run and checkup.needed)
    left = _left(lake, checkup, strict) if asked and not run else []
    write_result(result, lambda: _write(checkup, result), left, as_json=as_json)
    if dry_run:
        ctx.exit(int(checkup.needed))


def _refill(session: Session, *, dry_run: bool, as_json: bool) -> int:
    """Make damaged rows anew, or say which those are; answers with the exit code."""
    from cdc_platform.lake.only_observed import assert_may_write
    from cdc_platform.lake.session import workers
    from cdc_platform.lake.verification import stray_pointers
    from cdc_platform.lifecycle.join import refill

    lake = session.lake()
    if not dry_run:
        assert_may_write(lake, "making rows of generations anew")
        for pointer in stray_pointers(lake):
            pointer.remove()
    found = refill.damaged(lake)
    done, left = ([], found.rest) if dry_run else refill.mend(workers(), lake, found)
    made = [(what, None) for what in found.lacking] if dry_run else done
    rows = [(what.table.full_name, what.entry.generation_id, what.slice, version) for what, version in made]
    columns = ("table", "generation", "slice", "version")
    result = {"made": [dict(zip(columns, row, strict=True)) for row in rows], "left": left}
    title = "Rows that can be made anew" if dry_run else "Rows made anew"
    ways = [following("repair", "--from-description")] if dry_run and rows else []
    write_result(result, lambda: write_table(title, columns, rows), ways, as_json=as_json)
    for line in left:
        warn(line, code="stays-damaged")
    return int(bool(left or (dry_run and rows)))


def _left(lake: Lake, checkup: Checkup, strict: bool) -> list[Next]:
    from cdc_platform.lake.mirrors import cluster_of

    if cluster_of(lake) is not None:
        return [] if checkup.blocked_by else in_cluster(lake)
    made = building(lake, "repair", "--run", *(["--strict"] if strict else []))
    if not checkup.blocked_by:
        return [made]
    # What blocks it is a join that is not finished, or a node that only an import or an observation shows at rest.
    return [following("bootstrap", "--list", why=checkup.blocked_by[0]), Next(made.command, "after that")]


def _run(session: Session, generation_id: str) -> dict[str, object]:
    from cdc_platform.lake.session import workers
    from cdc_platform.lifecycle.join.joining import run_join

    home = session.open_home()
    made = run_join(workers(), session.lake(), session.clock, home.settings, generation_id, door="repair --run")
    return {"time": format_ms(made.time_ms), "num_ranges": made.num_ranges, "num_streams": made.num_streams}


def _told(checkup: Checkup, strict: bool) -> dict[str, object]:
    latest = checkup.latest
    return {
        "needed": checkup.needed,
        "reasons": _lines(checkup.reasons),
        "warnings": _lines(checkup.warnings),
        "strict": strict,
        "blocked_by": checkup.blocked_by,
        "cannot_tell": checkup.cannot_tell,
        "latest": latest and {"id": latest.uuid, "time": format_ms(latest.time_ms), "format": latest.format},
    }


def _lines(findings: Sequence[Damage]) -> list[dict[str, str]]:
    return [{"condition": each.condition.value, "detail": each.detail} for each in findings]


def _write(checkup: Checkup, result: dict[str, object]) -> None:
    needed: object = checkup.cannot_tell or checkup.needed
    shown = {"latest": None if checkup.latest is None else str(checkup.latest), "needed": needed}
    made = ("event_id", "generation_id", "time", "num_ranges", "num_streams")
    write_facts([*shown.items(), *((name, result[name]) for name in made if name in result)])
    kinds = (("reason", checkup.reasons), ("warning", checkup.warnings))
    rows = [(kind, each.condition.value, each.detail) for kind, found in kinds for each in found]
    if rows:
        write_table("", ("", "condition", "detail"), rows)
    for line in checkup.blocked_by:
        warn(f"blocked: {line}", code="repair-blocked")
