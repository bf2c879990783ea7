"""`cdc-platform explain`: for a key or a token and a time, where the write goes and whether it is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from cdc_platform.clock import format_us
from cdc_platform.commands.arguments import KEY, TABLE_NAME, TOKEN, WRITE_TIMESTAMP
from cdc_platform.commands.output import json_option, time_of, write_facts, write_json
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.commands.tablet_explanation import tablet_facts

if TYPE_CHECKING:
    from cdc_platform.lifecycle.explain import Explanation
    from cdc_platform.settings import Policy


@click.command()
@click.option(
    "--key", "keys", type=KEY, multiple=True, help="Partition key in hex; several are its components in order."
)
@click.option("--token", type=TOKEN, help="The token instead of a key.")
@click.option("--table", type=TABLE_NAME, help="The table: a tablet-based one has streams of its own.")
@click.option(
    "--at", type=WRITE_TIMESTAMP, help="The write's timestamp: a time, or µs since 1970. [default: the clock]"
)
@click.option(
    "--policy", type=click.Choice(["strict", "recent-past"]), help="Which writes are accepted. [default: the home's]"
)
@json_option
@pass_session
@click.pass_context
def explain(
    ctx: click.Context,
    session: Session,
    keys: tuple[bytes, ...],
    token: int | None,
    table: tuple[str, str] | None,
    at: int | None,
    policy: str | None,
    as_json: bool,
) -> None:
    """Explain where a write goes: token, generation, range, owner, shard, stream; and whether it is accepted now.

    The exit code is 1 when the write is refused.

    \b
    Example:
      cdc-platform explain --key 0x00000001 --at 2026-01-31T12:00:00Z
      cdc-platform explain --token -4442228696663692417 --policy recent-past --json
      cdc-platform explain --token 42 --table shop.orders
    """
    if bool(keys) == (token is not None):
        raise click.UsageError("name either --key, once for every component, or --token")
    home = session.open_home()
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.explain import explain as explain_write

    at_token = _token_of(keys) if token is None else token
    facts = tablet_facts(home, session.clock, table, at_token, at) if table is not None else None
    if facts is not None:
        if policy is not None:
            raise click.UsageError("--policy is for vnode-based tables; tablets know one rule")
        write_json(facts) if as_json else write_facts(facts.items())
        ctx.exit(0 if facts["accepted"] else 1)
    chosen = cast("Policy | None", policy)
    answer = explain_write(Lake(home.lake), session.clock, home.settings, at_token, at, chosen)
    facts = _facts(answer)
    if as_json:
        write_json(facts)
    else:
        _show(facts)
    if not answer.accepted:
        ctx.exit(1)


def _token_of(components: tuple[bytes, ...]) -> int:
    from cdc_platform.ring import composite_key, tokens_of_keys

    key = components[0] if len(components) == 1 else composite_key(components)
    return int(tokens_of_keys([key])[0])


def _facts(answer: Explanation) -> dict[str, object]:
    generation, place = answer.generation, answer.place
    return {
        "token": answer.token,
        "generation": generation and {"id": generation.id, "time": time_of(generation.time_ms)},
        "range_start": place and place.range_start,
        "range_end": place and place.range_end,
        "vnode_index": place and place.vnode_index,
        "owner": place and place.owner,
        "shard": place and place.shard,
        "stream_id": place and place.stream_id,
        "accepted": answer.accepted,
        "reason": answer.reason,
        "verdict": str(answer.verdict),
        "policy": answer.policy,
        "at": format_us(answer.at_us),
        "now": format_us(answer.now_us),
    }


def _show(facts: dict[str, object]) -> None:
    generation = facts.pop("generation")
    shown = dict(generation) if isinstance(generation, dict) else {"id": None, "time": None}
    lines = {"generation": shown["time"], "generation_id": shown["id"]}
    write_facts([("token", facts.pop("token")), *lines.items(), *facts.items()])
