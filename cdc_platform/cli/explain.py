"""`cdc-platform explain`: show the token, generation, stream and acceptance of a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from cdc_platform.cli.output import json_option, write_facts, write_json
from cdc_platform.cli.params import KEY, TABLE_NAME, TIME, TOKEN
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Microseconds

if TYPE_CHECKING:
    from cdc_platform.delta import Lake
    from cdc_platform.home_location import HomeLocation
    from cdc_platform.settings import Policy
    from cdc_platform.timeline import StreamSource


@click.command()
@click.option(
    "--key", "keys", type=KEY, multiple=True, help="Partition key in hex; several are its components in order."
)
@click.option(
    "--pk", "typed", multiple=True, metavar="VALUE", help="Partition key as CQL has it; goes with --table. As --key."
)
@click.option("--token", type=TOKEN, help="The token instead of a key.")
@click.option("--table", type=TABLE_NAME, help="The table: a tablet-based one has streams of its own.")
@click.option(
    "--at",
    type=TIME,
    help="The write's timestamp: a time, or s, ms or µs since 1970. [default: the clock]",
)
@click.option(
    "--policy",
    type=click.Choice(["strict", "recent-past", "both"]),
    help="Whose answer counts; the other stands beside it. both, the default: the home's counts.",
)
@json_option
@pass_session
@click.pass_context
def explain(
    ctx: click.Context,
    session: CliSession,
    keys: tuple[bytes, ...],
    typed: tuple[str, ...],
    token: int | None,
    table: tuple[str, str] | None,
    at: Microseconds | None,
    policy: str | None,
    as_json: bool,
) -> None:
    """Explain where a write goes: token, generation, range, owner, shard, stream; and whether it is accepted now.

    Beside what the generation was made for stands where the ring as it is puts the base row and the stream: the two
    differ when shards or tokens have changed since. The exit code is 1 when the write is refused, and when its stream
    cannot be told or is not where its range and shard put it: then the verdict is STREAM_UNKNOWN or STREAM_MISPLACED.

    \b
    Example:
      cdc-platform explain --key 0x00000001 --at 2026-01-31T12:00:00Z
      cdc-platform explain --pk alice --table shop.customers --at 1769860800
      cdc-platform explain --token -4442228696663692417 --policy recent-past --json
      cdc-platform explain --token 42 --table shop.orders
    """
    if sum((bool(keys), bool(typed), token is not None)) != 1:
        raise click.UsageError("name either --key or --pk, once for every component, or --token")
    if typed and table is None:
        raise click.UsageError("--pk needs --table KS.T, whose types the key has")
    home = session.open_home()
    if typed and table is not None:
        keys = (_typed_key(session, table, typed),)
    at_token = _token_from_key(keys) if token is None else token
    policy = None if policy == "both" else policy
    source = _stream_source(session.view(home), home, table)
    if policy is not None and not source.in_generations:
        raise click.UsageError("--policy is for vnode-based tables; tablets know one rule")
    now_us = session.clock.now_us()
    answer = source.explain(at_token, now_us if at is None else at, now_us, cast("Policy | None", policy))
    write_json(answer.facts()) if as_json else _show_explanation(answer.facts())
    ctx.exit(0 if answer.accepted else 1)


def _stream_source(lake: Lake, home: HomeLocation, table: tuple[str, str] | None) -> StreamSource:
    """Return the source of the streams for writes to a table, or the generations' source if `table` is None.

    Raises:
        NotFound: no such table is known.
    """
    from cdc_platform.metastore import cdc_tables
    from cdc_platform.timeline import StreamSources

    sources = StreamSources(lake, home.settings)
    if table is None:
        return sources.generations
    source = sources.of(*table)
    if source.in_generations:
        cdc_tables.find_cdc_table(sources.lake, *table)
    return source


def _typed_key(session: CliSession, table: tuple[str, str], texts: tuple[str, ...]) -> bytes:
    from cdc_platform.cdclog import read_table_schema
    from cdc_platform.cql import ExecutionContext, parse_partition_key

    return parse_partition_key(
        read_table_schema(session.lake(), *table), texts, ExecutionContext(session.clock.now_us())
    )


def _token_from_key(components: tuple[bytes, ...]) -> int:
    from cdc_platform.ring import serialize_composite_key, tokens_from_keys

    key = components[0] if len(components) == 1 else serialize_composite_key(components)
    return int(tokens_from_keys([key])[0])


def _show_explanation(facts: dict[str, Any]) -> None:
    lines: list[tuple[str, object]] = []
    for name, value in facts.items():
        if name in ("row_lies", "stream_lies"):
            if value is not None and facts["colocated"] is False:
                lines.append((name.replace("_", " "), f"shard {value['shard']} of {value['owner']}"))
        elif name == "other_policies":
            for other, explanation in value.items():
                lines.append((f"by {other}", f"{explanation['verdict']}  {explanation['reason']}"))
        elif name == "generation":
            generation = value or {"id": None, "time": None}
            lines += [("generation", generation["time"]), ("generation_id", generation["id"])]
        else:
            lines.append((name, value))
    write_facts(lines)
