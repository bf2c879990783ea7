"""`cdc-platform switch`: where the two-phase switches stand, and acknowledging, committing or aborting one by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Milliseconds
from cdc_platform.commands.arguments import GENERATION
from cdc_platform.commands.next_steps import Next, following, write_result
from cdc_platform.commands.output import json_option, time_of, write_facts, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.generations.switch import Switch
    from cdc_platform.lake.lake import Lake

BY = "cdc-platform switch"
"""What `decided_by` says of a decision made by hand."""


@click.group()
def switch() -> None:
    """Look at the two-phase switches of generations, and decide one by hand.

    With two_phase_switch = true in settings.toml a join prepares its generation, every node acknowledges it with a
    lease, and then it is committed; after the deadline without all answers anybody may abort it.

    \b
    Example:
      cdc-platform switch show
      cdc-platform switch ack 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de --node 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
    """


@switch.command()
@click.argument("generation", type=GENERATION, required=False)
@json_option
@pass_session
def show(session: Session, generation: str | Milliseconds | None, as_json: bool) -> None:
    """Show the switch to GENERATION (its UUID or, once committed, its time); without one list all, newest first.

    \b
    Example:
      cdc-platform switch show --json
    """
    from cdc_platform.records import switches

    lake = session.lake()
    if generation is not None:
        _write(lake, switches.find(lake, session.named(generation)), as_json)
        return
    listed = switches.switches(lake)[::-1]
    columns = ("generation", "phase", ">acknowledged", ">participants", "prepared", "deadline", "time")
    rows = [
        (
            each.generation_id,
            str(each.phase),
            len(each.leases),
            len(each.participants),
            time_of(each.prepared_at_ms),
            time_of(each.deadline_ms),
            time_of(each.time_ms),
        )
        for each in listed
    ]
    left = [step for each in switches.unfinished(lake) for step in _left(lake, each)]
    told = [_facts(each) for each in listed]
    write_result(told, lambda: write_table("Generation switches", columns, rows), left, as_json=as_json)


@switch.command()
@click.argument("generation", type=GENERATION)
@click.option("--node", type=click.UUID, required=True, metavar="HOST_ID", help="The participant that acknowledges.")
@json_option
@pass_session
def ack(session: Session, generation: str | Milliseconds, node: object, as_json: bool) -> None:
    """Acknowledge GENERATION for one participant: read the whole of it, promise, and answer with the lease.

    Acknowledging again changes nothing.

    \b
    Example:
      cdc-platform switch ack 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de --node 5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10
    """
    from cdc_platform.lifecycle.switch import register
    from cdc_platform.records import switches

    home, lake = session.open_home(), session.lake()
    generation_id = switches.find(lake, session.named(generation)).generation_id
    done = register.acknowledge(lake, session.clock, home.settings, generation_id, [str(node)])
    _write(lake, done, as_json)


@switch.command()
@click.argument("generation", type=GENERATION)
@json_option
@pass_session
def commit(session: Session, generation: str | Milliseconds, as_json: bool) -> None:
    """Commit the switch to GENERATION: all have acknowledged; its time is the last lease end and the margin.

    The generation is entered under its time, and its node keeps its ID; the join then publishes it as always.

    \b
    Example:
      cdc-platform switch commit 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de
    """
    from cdc_platform.lake.session import workers
    from cdc_platform.lake.verified import verified
    from cdc_platform.lifecycle.join.joining import introduce
    from cdc_platform.lifecycle.join.step import Joining
    from cdc_platform.lifecycle.switch import register
    from cdc_platform.records import switches

    home, lake = session.open_home(), session.lake()
    deciding = verified(lake, register.COMMIT)
    generation_id = switches.find(deciding, session.named(generation)).generation_id
    done = register.commit(deciding, session.clock, home.settings, generation_id, BY)
    introduce(Joining(lake, session.clock, home.settings, generation_id, workers(), "switch commit"))
    _write(lake, done, as_json)


@switch.command()
@click.argument("generation", type=GENERATION)
@json_option
@pass_session
def abort(session: Session, generation: str | Milliseconds, as_json: bool) -> None:
    """Abort the switch to GENERATION: its deadline has passed and answers are missing. The old generation goes on.

    \b
    Example:
      cdc-platform switch abort 8bfcb1e8-4c5b-4a21-9d2f-3f6ad3f5c1de
    """
    from cdc_platform.lake.verified import verified
    from cdc_platform.lifecycle.switch import register
    from cdc_platform.records import switches

    lake = session.lake()
    deciding = verified(lake, register.ABORT)
    generation_id = switches.find(deciding, session.named(generation)).generation_id
    _write(lake, register.abort(deciding, session.clock, generation_id, BY), as_json)


def _facts(switch: Switch) -> dict[str, object]:
    return {
        "generation_id": switch.generation_id,
        "phase": str(switch.phase),
        "time": time_of(switch.time_ms),
        "initiator": switch.initiator,
        "participants": list(switch.participants),
        "acknowledged": [{"host_id": host, "lease_end": time_of(end)} for host, end in switch.leases],
        "missing": list(switch.missing),
        "prepared_at": time_of(switch.prepared_at_ms),
        "deadline": time_of(switch.deadline_ms),
        "decided_at": time_of(switch.decided_at_ms),
        "decided_by": switch.decided_by,
    }


def _write(lake: Lake, switch: Switch, as_json: bool) -> None:
    facts = _facts(switch)
    leases = ", ".join(f"{host} (lease until {time_of(end)})" for host, end in switch.leases)
    hosts = {"participants": len(switch.participants), "missing": ", ".join(switch.missing) or None}
    shown = facts | hosts | {"acknowledged": leases or None}
    write_result(facts, lambda: write_facts(shown.items()), _left(lake, switch), as_json=as_json)


def _left(lake: Lake, switch: Switch) -> list[Next]:
    """What goes on with a switch: an answer that is missing, its decision, or the join that it is part of."""
    from cdc_platform.generations.switch import Phase
    from cdc_platform.records.join_progress import progress

    if switch.phase is Phase.PREPARING and switch.missing:
        return [following("switch", "ack", switch.generation_id, "--node", switch.missing[0])]
    if switch.phase is Phase.PREPARING:
        return [following("switch", "commit", switch.generation_id)]
    joins = [each for each in progress(lake) if each.generation_id == switch.generation_id and each.is_open]
    return [following(*each.ends) for each in joins]
