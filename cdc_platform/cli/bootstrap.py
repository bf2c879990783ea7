"""`cdc-platform bootstrap`: queue a joining node, and with --run make its generation."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from cdc_platform.cli.command_hints import add_home_option_in_json
from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import json_option
from cdc_platform.cli.render import View, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.cli.write_rules import JOIN_TABLES, WritingCommand
from cdc_platform.clock import DAY_US, Clock, datetime_from_us, format_ms, format_us
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.home_location import HomeLocation
    from cdc_platform.metastore import BootstrapEvent, JoinRequest

_MAX_START_DELAY_US = DAY_US
"""Upper bound, for any settings, of the time between now and the start of a new generation."""


@click.command(cls=WritingCommand, writes=JOIN_TABLES, unless=("listed",))
@click.argument("file", required=False)
@click.option("--run", is_flag=True, help="Make the node's generation at once: describe, audit, insert, publish.")
@click.option("--list", "listed", is_flag=True, help="List the inbox: every event and its progress.")
@click.option("--finish", metavar="EVENT_ID", help="Finish the join or repair of an event.")
@click.option("--withdraw", metavar="EVENT_ID", help="Withdraw a waiting join.")
@json_option
@pass_session
def bootstrap(
    session: CliSession,
    file: str | None,
    run: bool,
    listed: bool,
    finish: str | None,
    withdraw: str | None,
    as_json: bool,
) -> None:
    """Queue the joining node that FILE describes (`-`: standard input). Queueing the same file twice is one event.

    FILE is JSON: host_id, address, datacenter, rack, tokens or num_tokens, shard_count, ignore_msb, and optionally
    features (default ["CDC_GENERATIONS_V2"]). A zero-token node has num_tokens 0; it needs no generation and joins at
    once.

    \b
    Example:
      cdc-platform bootstrap node.json --run
      cdc-platform bootstrap --list
      cdc-platform bootstrap --finish 904ce865-9c82-5920-853d-ed9a525bfa74
      cdc-platform bootstrap --withdraw 904ce865-9c82-5920-853d-ed9a525bfa74
    """
    actions = [file is not None, listed, finish is not None, withdraw is not None]
    if sum(actions) != 1 or (run and file is None):
        raise click.UsageError(
            "name either a FILE, with --run or without, or one of --list, --finish EVENT_ID and --withdraw EVENT_ID"
        )
    if listed:
        _list_inbox(session, as_json)
        return
    if withdraw is not None:
        result = _withdraw_join(session, withdraw)
    elif finish is not None:
        result = _finish_join(session, finish)
    else:
        assert file is not None
        request = _read_request(file)
        result = _join_zero_token(session, request) if request.is_zero_token else _queue_join(session, request, run)
    is_queued = file is not None and not run and "event_id" in result
    next_steps = [build_next_step("bootstrap", "--finish", result["event_id"])] if is_queued else []
    write_result(result, as_json=as_json, next_steps=next_steps)


def _read_request(file: str) -> JoinRequest:
    from cdc_platform.importing import parse_join_request, read_join_request
    from cdc_platform.storage import STANDARD_INPUT, read_standard_input

    if file != "-":
        return read_join_request(file)
    return parse_join_request(read_standard_input(), STANDARD_INPUT)


def _queue_join(session: CliSession, request: JoinRequest, run: bool) -> dict[str, object]:
    from cdc_platform.delta import JOIN_COMMANDS_LOCK, Lake, shared_lock
    from cdc_platform.metastore import inbox

    # Check before a home is created: if no generation can start after the clock, nobody could finish the event.
    _assert_start_representable(session.clock)
    with ExitStack() as locks:
        with session.making_home() as home:
            lake = Lake(home.lake)
            if run:  # Lock before queueing: the sensor of a concurrent `up` would run the join too.
                locks.enter_context(shared_lock(lake, JOIN_COMMANDS_LOCK))
            event = inbox.queue_join(lake, session.clock, request, to_run_now=run)
        return _event_facts(event) | (
            _run_join(session, home, lake, event.generation_id, "bootstrap --run") if run else {}
        )


def _join_zero_token(session: CliSession, request: JoinRequest) -> dict[str, object]:
    from cdc_platform.delta import Lake
    from cdc_platform.lifecycle import join_zero_token_node

    with session.making_home() as home:
        joined = join_zero_token_node(Lake(home.lake), request)
    generation = joined.generation
    return {
        "host_id": str(joined.node.host_id),
        "status": joined.node.status,
        "zero_token": True,
        "generation_id": None if generation is None or generation.uuid is None else str(generation.uuid),
        "time": None if generation is None else format_ms(generation.time_ms),
    }


def _event_facts(event: BootstrapEvent) -> dict[str, object]:
    return {"event_id": event.event_id, "generation_id": event.generation_id}


def _list_inbox(session: CliSession, as_json: bool) -> None:
    from cdc_platform.metastore import read_join_progress
    from cdc_platform.reporting import join_progress_facts

    joins = read_join_progress(session.lake())
    rows = add_home_option_in_json([join_progress_facts(join) for join in joins], session.home)
    next_steps = [build_next_step(*join.ends) for join in joins if join.is_next]
    views = {"events": View("event_id kind state host_id queued_at time", "Inbox")}
    write_result({"events": rows}, as_json=as_json, views=views, next_steps=next_steps)


def _finish_join(session: CliSession, event_id: str) -> dict[str, object]:
    from cdc_platform.delta import JOIN_COMMANDS_LOCK, Lake, shared_lock
    from cdc_platform.metastore import inbox

    home = session.open_location()
    lake = Lake(home.lake)
    with shared_lock(lake, JOIN_COMMANDS_LOCK):
        event = inbox.find_event(lake, event_id=event_id.lower())
        return _event_facts(event) | _run_join(session, home, lake, event.generation_id, "bootstrap --finish")


def _run_join(
    session: CliSession, home: HomeLocation, lake: Lake, generation_id: str, entry_point: str
) -> dict[str, object]:
    from cdc_platform.lifecycle import run_join
    from cdc_platform.spark import get_task_runner

    joined = run_join(get_task_runner(), lake, session.clock, home.settings, generation_id, entry_point=entry_point)
    return {
        "time": format_ms(joined.time_ms),
        "num_ranges": joined.num_ranges,
        "num_streams": joined.num_streams,
    }


def _assert_start_representable(clock: Clock) -> None:
    """Raise InputError unless a generation made now starts before the end of the year 9999."""
    now_us = clock.now_us()
    try:
        datetime_from_us(now_us + _MAX_START_DELAY_US)
    except InputError:
        raise InputError(
            f"the clock shows {format_us(now_us)}; a generation starts up to a day later, which has to be in the years"
            " 1 to 9999: set --clock back"
        ) from None


def _withdraw_join(session: CliSession, event_id: str) -> dict[str, object]:
    from cdc_platform.metastore import inbox

    lake = session.lake()
    inbox.withdraw_event(lake, session.clock, event_id.lower())
    return {"event_id": event_id.lower(), "withdrawn": True}
