"""`cdc-platform switch`: show two-phase switches, and acknowledge, commit or abort one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import format_optional_ms, json_option
from cdc_platform.cli.params import GENERATION
from cdc_platform.cli.render import View, show_document, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import SWITCH_TABLES, WritingCommand
from cdc_platform.clock import Milliseconds

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.generations import GenerationSwitch

DECIDED_BY = "cdc-platform switch"
"""The value of `decided_by` for a decision made by hand."""


@click.group()
def switch() -> None:
    """Show the two-phase switches of generations, and decide one manually.

    With two_phase_switch = true in settings.toml a join prepares its generation, every node acknowledges it with a
    lease, and then it is committed. After the deadline a switch with missing acknowledgements can be aborted.

    \b
    Example:
      cdc-platform switch show
      cdc-platform switch ack 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de --node 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
    """


@switch.command()
@click.argument("generation", type=GENERATION, required=False)
@json_option
@pass_session
def show(session: CliSession, generation: str | Milliseconds | None, as_json: bool) -> None:
    """Show the switch to GENERATION, or list all switches.

    GENERATION is its UUID or, once committed, its time. The list starts with the newest switch.

    \b
    Example:
      cdc-platform switch show --json
    """
    from cdc_platform.metastore import switches

    lake = session.lake()
    if generation is not None:
        _write_switch(lake, switches.find_switch(lake, session.named(generation)), as_json)
        return
    listed = switches.read_switches(lake)[::-1]
    next_steps = [step for entry in switches.read_unfinished_switches(lake) for step in _switch_next_steps(lake, entry)]
    documents = [_switch_document(entry) for entry in listed]
    rows = [_switch_row(document) for document in documents]
    view = View("generation_id phase acknowledged participants deadline prepared_at time", "Generation switches")
    write_result({"switches": documents}, as_json=as_json, show=lambda: show_rows(rows, view), next_steps=next_steps)


@switch.command(cls=WritingCommand, writes=SWITCH_TABLES)
@click.argument("generation", type=GENERATION)
@click.option("--node", type=click.UUID, required=True, metavar="HOST_ID", help="The participant that acknowledges.")
@json_option
@pass_session
def ack(session: CliSession, generation: str | Milliseconds, node: object, as_json: bool) -> None:
    """Acknowledge GENERATION for one participant.

    Reads all of it, and prints the lease. Acknowledging again changes nothing.

    \b
    Example:
      cdc-platform switch ack 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de --node 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
    """
    from cdc_platform.lifecycle import switch
    from cdc_platform.metastore import switches

    home, lake = session.open_location(), session.lake()
    generation_id = switches.find_switch(lake, session.named(generation)).generation_id
    done = switch.acknowledge_switch(lake, session.clock, home.settings, generation_id, [str(node)])
    _write_switch(lake, done, as_json)


@switch.command(cls=WritingCommand, writes=SWITCH_TABLES)
@click.argument("generation", type=GENERATION)
@json_option
@pass_session
def commit(session: CliSession, generation: str | Milliseconds, as_json: bool) -> None:
    """Commit the switch to GENERATION.

    All participants must have acknowledged it. It starts at the last end of a lease, plus the margin. The
    generation is entered under its time, and its node keeps its ID; the join then publishes it as always.

    \b
    Example:
      cdc-platform switch commit 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de
    """
    from cdc_platform.delta import get_verified_lake
    from cdc_platform.lifecycle import JoinContext, run_introduce_step, switch
    from cdc_platform.metastore import switches
    from cdc_platform.spark import get_task_runner

    home, lake = session.open_location(), session.lake()
    deciding = get_verified_lake(lake, switch.COMMIT_STEP)
    generation_id = switches.find_switch(deciding, session.named(generation)).generation_id
    done = switch.commit_switch(deciding, session.clock, home.settings, generation_id, DECIDED_BY)
    run_introduce_step(
        JoinContext(lake, session.clock, home.settings, generation_id, get_task_runner(), "switch commit")
    )
    _write_switch(lake, done, as_json)


@switch.command(cls=WritingCommand, writes=SWITCH_TABLES)
@click.argument("generation", type=GENERATION)
@json_option
@pass_session
def abort(session: CliSession, generation: str | Milliseconds, as_json: bool) -> None:
    """Abort the switch to GENERATION after its deadline.

    Refused unless acknowledgements are missing. The previous generation stays in use.

    \b
    Example:
      cdc-platform switch abort 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de
    """
    from cdc_platform.delta import get_verified_lake
    from cdc_platform.lifecycle import switch
    from cdc_platform.metastore import switches

    lake = session.lake()
    deciding = get_verified_lake(lake, switch.ABORT_STEP)
    generation_id = switches.find_switch(deciding, session.named(generation)).generation_id
    _write_switch(lake, switch.abort_switch(deciding, session.clock, generation_id, DECIDED_BY), as_json)


def _switch_document(switch: GenerationSwitch) -> dict[str, Any]:
    return {
        "generation_id": switch.generation_id,
        "phase": str(switch.phase),
        "time": format_optional_ms(switch.time_ms),
        "initiator": switch.initiator,
        "participants": list(switch.participants),
        "acknowledged": [{"host_id": host, "lease_end": format_optional_ms(end)} for host, end in switch.leases],
        "missing": list(switch.missing),
        "prepared_at": format_optional_ms(switch.prepared_at_ms),
        "deadline": format_optional_ms(switch.deadline_ms),
        "decided_at": format_optional_ms(switch.decided_at_ms),
        "decided_by": switch.decided_by,
    }


def _write_switch(lake: Lake, switch: GenerationSwitch, as_json: bool) -> None:
    document = _switch_document(switch)
    row = _switch_row(document)
    next_steps = _switch_next_steps(lake, switch)
    write_result(document, as_json=as_json, show=lambda: show_document(row, {}), next_steps=next_steps)


def _switch_row(document: dict[str, Any]) -> dict[str, Any]:
    """Return a switch for people: participants and acknowledgements as counts."""
    return document | {name: len(document[name]) for name in ("participants", "acknowledged")}


def _switch_next_steps(lake: Lake, switch: GenerationSwitch) -> list[NextStep]:
    """Return the command that continues a switch: a missing acknowledgement, its decision, or the rest of its join."""
    from cdc_platform.generations import SwitchPhase
    from cdc_platform.metastore import read_join_progress

    if switch.phase is SwitchPhase.PREPARING and switch.missing:
        return [build_next_step("switch", "ack", switch.generation_id, "--node", switch.missing[0])]
    if switch.phase is SwitchPhase.PREPARING:
        return [build_next_step("switch", "commit", switch.generation_id)]
    joins = [join for join in read_join_progress(lake) if join.generation_id == switch.generation_id and join.is_open]
    return [build_next_step(*join.ends) for join in joins]
