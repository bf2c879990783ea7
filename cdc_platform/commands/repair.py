"""`cdc-platform repair`: is the latest generation still fit for the ring; if not, a new one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING
from uuid import UUID

import click

from cdc_platform.clock import format_ms
from cdc_platform.commands.next_steps import Next, building, following, write_result
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
    node: UUID | None,
    as_json: bool,
) -> None:
    """Check whether the latest generation still fits the ring, and ask for a new one where it does not.

    Queued like a join, or made at once with --run. Calls at the same time make one generation. With --dry-run the
    exit code is 1 where a repair is needed, and 0 where that cannot be told by the tables that were brought here.

    \b
    Example:
      cdc-platform repair --dry-run
      cdc-platform repair --run --strict
    """
    if dry_run and run:
        raise click.UsageError("--dry-run writes nothing and --run makes a generation; choose one")
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


def _left(lake: Lake, checkup: Checkup, strict: bool) -> list[Next]:
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
