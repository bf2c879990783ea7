"""`cdc-platform repair`: check the latest generation against the ring and regenerate it if it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from cdc_platform.cli.next_steps import (
    NextStep,
    build_cluster_repair_steps,
    build_next_step,
)
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.render import View, show_document, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import JOIN_TABLES, WritingCommand
from cdc_platform.clock import format_ms

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.generations import GenerationDamage
    from cdc_platform.lifecycle import RepairCheck


@click.command(cls=WritingCommand, writes=JOIN_TABLES, unless=("dry_run",))
@click.option("--dry-run", is_flag=True, help="Report what is wrong and write nothing.")
@click.option("--run", is_flag=True, help="Make the new generation at once: describe, audit, insert, publish.")
@click.option(
    "--strict/--no-strict", default=None, help="Repair for warnings too. [default: repair_strict of settings]"
)
@click.option("--from-description", is_flag=True, help="Restore damaged rows of generations instead.")
@click.option("--node", type=click.UUID, metavar="HOST_ID", help="The node that makes it. [default: the first]")
@json_option
@pass_session
@click.pass_context
def repair(
    ctx: click.Context,
    session: CliSession,
    dry_run: bool,
    run: bool,
    strict: bool | None,
    from_description: bool,
    node: UUID | None,
    as_json: bool,
) -> None:
    """Check the latest generation against the ring, and request a new one if it does not fit.

    The request is queued like a join; --run makes the generation at once. Concurrent calls make one generation. With
    --dry-run the exit code is 1 if a repair is needed, and 0 if the imported tables cannot show that.

    --from-description restores damaged rows of generations bit for bit, since streams follow from the generation's
    UUID and the ring. The exit code is 1 if rows stay damaged, with --dry-run if any are damaged.

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
        ctx.exit(_restore_rows(session, dry_run=dry_run, as_json=as_json))
    from cdc_platform.delta import JOIN_COMMANDS_LOCK, shared_lock
    from cdc_platform.lifecycle import repair as repairing
    from cdc_platform.lifecycle import steps

    home = session.open_location()
    lake = session.lake()
    strict = home.settings.repair_strict if strict is None else strict
    checkup = repairing.check_newest_generation(lake, strict=strict)
    result = _check_document(checkup, strict)
    # Lock before queueing: the sensor of a concurrent `up` would make the generation too.
    with shared_lock(lake, JOIN_COMMANDS_LOCK) if run else nullcontext():
        if not dry_run:
            event = repairing.queue_needed_repair(lake, session.clock, checkup, node)
            if event is None and run and checkup.latest is not None:
                event = steps.find_unjudged_event(lake, checkup.latest.time_ms)
            if event is not None:
                result |= {"event_id": event.event_id, "generation_id": event.generation_id}
            if event is not None and run:
                result |= _run_repair(session, event.generation_id)
    is_pending = "event_id" in result or (dry_run and checkup.needed)
    next_steps = _repair_next_steps(lake, checkup, strict) if is_pending and not run else []
    for line in checkup.blocked_by:
        warn(f"blocked: {line}", code="repair-blocked")
    write_result(result, as_json=as_json, show=lambda: _show_check(result), next_steps=next_steps)
    if dry_run:
        ctx.exit(int(checkup.needed))


def _restore_rows(session: CliSession, *, dry_run: bool, as_json: bool) -> int:
    """Restore damaged rows, or with `dry_run` list those that can be restored. Return the exit code."""
    from cdc_platform.delta import get_home_mode, list_stray_checkpoint_pointers
    from cdc_platform.lifecycle import restore
    from cdc_platform.spark import get_task_runner

    lake = session.lake()
    if not dry_run:
        get_home_mode(lake).check_write(None, "restoring rows of generations")
        for pointer in list_stray_checkpoint_pointers(lake):
            pointer.remove()
    damaged = restore.find_damaged_generations(lake)
    done, remaining = ([], damaged.rest) if dry_run else restore.restore_generations(get_task_runner(), lake, damaged)
    restored = [(what, None) for what in damaged.restorable] if dry_run else done
    rows = [
        {
            "table": what.table.full_name,
            "generation": what.entry.generation_id,
            "partition": what.name,
            "version": version,
        }
        for what, version in restored
    ]
    title = "Rows that can be restored" if dry_run else "Restored rows"
    views = {"restored": View("table generation partition version", title), "unrepaired": None}
    next_steps = [build_next_step("repair", "--from-description")] if dry_run and rows else []
    write_result({"restored": rows, "unrepaired": remaining}, as_json=as_json, views=views, next_steps=next_steps)
    for line in remaining:
        warn(line, code="stays-damaged")
    return int(bool(remaining or (dry_run and rows)))


def _repair_next_steps(lake: Lake, checkup: RepairCheck, strict: bool) -> list[NextStep]:
    from cdc_platform.delta import get_mirrored_cluster

    if get_mirrored_cluster(lake) is not None:
        return [] if checkup.blocked_by else build_cluster_repair_steps(lake)
    run_step = build_next_step("repair", "--run", *(["--strict"] if strict else []))
    if not checkup.blocked_by:
        return [run_step]
    # Blocked by an unfinished join, or by a node that only an import or an observation can show at rest.
    return [build_next_step("bootstrap", "--list", why=checkup.blocked_by[0]), NextStep(run_step.command, "after that")]


def _run_repair(session: CliSession, generation_id: str) -> dict[str, object]:
    from cdc_platform.lifecycle import run_join
    from cdc_platform.spark import get_task_runner

    home = session.open_location()
    joined = run_join(
        get_task_runner(), session.lake(), session.clock, home.settings, generation_id, entry_point="repair --run"
    )
    return {"time": format_ms(joined.time_ms), "num_ranges": joined.num_ranges, "num_streams": joined.num_streams}


def _check_document(checkup: RepairCheck, strict: bool) -> dict[str, Any]:
    latest = checkup.latest
    return {
        "needed": checkup.needed,
        "reasons": _findings_document(checkup.reasons),
        "warnings": _findings_document(checkup.warnings),
        "strict": strict,
        "blocked_by": checkup.blocked_by,
        "undetermined": checkup.undetermined,
        "latest": latest and {"id": latest.uuid, "time": format_ms(latest.time_ms), "format": latest.format},
    }


def _findings_document(findings: Sequence[GenerationDamage]) -> list[dict[str, str]]:
    return [{"condition": finding.condition.value, "detail": finding.detail} for finding in findings]


def _show_check(result: dict[str, Any]) -> None:
    """Print whether a repair is needed, the generation that it made, and the findings."""
    facts = {"latest": result["latest"], "needed": result["undetermined"] or result["needed"]}
    fields = ("event_id", "generation_id", "time", "num_ranges", "num_streams")
    show_document(facts | {name: result[name] for name in fields if name in result}, {})
    rows = [
        {"kind": kind, **finding}
        for kind, findings in (("reason", result["reasons"]), ("warning", result["warnings"]))
        for finding in findings
    ]
    if rows:
        show_rows(rows, View("kind condition detail", essential=3))
