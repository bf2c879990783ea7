"""`cdc-platform rewrite`: rewrite V1 streams tables into the current ones."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import click

from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option, warn
from cdc_platform.cli.render import View, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import REWRITE_TABLES, WritingCommand
from cdc_platform.clock import format_ms

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.lifecycle import RewriteResult
    from cdc_platform.settings import Settings


@click.command(cls=WritingCommand, writes=REWRITE_TABLES, unless=("dry_run", "clients"))
@click.option("--node", "nodes", metavar="HOST_ID", type=click.UUID, multiple=True, help="Only for this node.")
@click.option("--dry-run", is_flag=True, help="List the actions and write nothing.")
@click.option("--force", is_flag=True, help="Include nodes that are marked as rewritten.")
@click.option("--clients", is_flag=True, help="Report whether clients may switch to the new tables, and from when.")
@json_option
@pass_session
@click.pass_context
def rewrite(
    ctx: click.Context,
    session: CliSession,
    nodes: tuple[UUID, ...],
    dry_run: bool,
    force: bool,
    clients: bool,
    as_json: bool,
) -> None:
    """Rewrite the generations of cdc_streams_descriptions into the tables that replaced it.

    Rewrites for every node of the ring that is not marked as rewritten, or for those named with --node. Each timestamp
    is listed with its action: rewrite, skip-too-old, skip-present or missing-data. -v prints each step.

    With --clients nothing is written. The exit code is 1 if clients may not switch, or not for all rows.

    \b
    Example:
      cdc-platform rewrite --dry-run
      cdc-platform rewrite --clients
      cdc-platform -v rewrite --node 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
    """
    from cdc_platform.delta import Lake
    from cdc_platform.lifecycle import rewrite as procedure

    home = session.open_location()
    if clients:
        if nodes or dry_run or force:
            raise click.UsageError("--clients writes nothing: omit --node, --dry-run and --force")
        ctx.exit(_write_client_readiness(Lake(home.lake), session, home.settings, as_json))
    logger = logging.getLogger(procedure.__name__)
    done = procedure.rewrite_streams_tables(
        Lake(home.lake),
        session.clock,
        home.settings,
        [str(node) for node in nodes] or None,
        dry_run=dry_run,
        force=force,
        on_message=logger.info,
    )
    if not done.decisions:
        warn(done.ended, code="nothing-to-do")
    for decision in done.missing:
        warn(f"{format_ms(decision.time_ms)}: {decision.reason}", code="not-rewritten")
    options = [part for node in nodes for part in ("--node", node)] + (["--force"] if force else [])
    next_steps = [build_next_step("rewrite", *options)] if dry_run and done.decisions else []
    document = {
        "decisions": _decision_rows(done),
        "nodes": list(done.hosts),
        "marked_as_rewritten": list(done.marked),
    }
    views = {"decisions": View("time action reason", "V1 generations", essential=3)}
    write_result(document, as_json=as_json, views=views, next_steps=next_steps)


def _write_client_readiness(lake: Lake, session: CliSession, settings: Settings, as_json: bool) -> int:
    """Print whether clients may switch. Return 1 if they may not, or not for all rows."""
    from cdc_platform.lifecycle import rewrite

    readiness = rewrite.check_client_readiness(lake, session.clock, settings)
    document = {
        "may_switch": readiness.may_switch,
        "rows_from": None if readiness.from_ms is None else format_ms(readiness.from_ms),
        "old_table": readiness.has_old_table,
        "nodes_not_marked": list(readiness.unmarked),
        "missing": [
            {"time": format_ms(generation.time_ms), "reason": generation.reason} for generation in readiness.missing
        ],
    }
    views = {"missing": View("time reason", "Generations that the new tables lack")} if document["missing"] else {}
    next_steps = [] if readiness.may_switch else [build_next_step("rewrite", "--dry-run")]
    write_result(document, as_json=as_json, views=views, next_steps=next_steps)
    return int(not readiness.may_switch)


def _decision_rows(done: RewriteResult) -> list[dict[str, object]]:
    return [
        {"time": format_ms(decision.time_ms), "action": decision.action, "reason": decision.reason}
        for decision in done.decisions
    ]
