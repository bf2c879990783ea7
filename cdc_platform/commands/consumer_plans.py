"""`cdc-platform consumers plan` and `lag`: what a client of ScyllaDB's would have to do, before it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.commands.arguments import TABLE_NAME, TTL
from cdc_platform.commands.output import json_option, warn, write_facts, write_json, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.log.reading.clients import Client, Part, Plan

NAMES = ("go", "rust", "java", "connector", "alternator")
_F = TypeVar("_F", bound=Callable[..., Any])
_SETTINGS = {
    "confidence": "How far it stays behind the clock.",
    "window": "How much time of the log it asks for at once.",
    "cycle": "How long it waits between two reads.",
    "poll": "How often it looks for a new generation.",
    "flush": "How often it writes checkpoints; 0: with each read.",
}


def _settings(*names: str) -> Callable[[_F], _F]:
    def with_options(command: _F) -> _F:
        for name in reversed(names):
            least = 1 if name in ("window", "cycle") else 0
            kind = click.IntRange(least, 366 * DAY_SECONDS)
            command = click.option(f"--{name}", type=kind, metavar="SECONDS", help=_SETTINGS[name])(command)
        return command

    return with_options


@click.command()
@click.argument("table", type=TABLE_NAME, required=False)
@click.option("--client", "name", type=click.Choice(NAMES), default="connector", show_default=True)
@click.option("--streams", type=click.IntRange(1), metavar="N", help="Of a generation of this size, without a table.")
@click.option("--ranges", type=click.IntRange(1), metavar="N", help="With --streams: tokens of the ring. [as many]")
@click.option(
    "--more-nodes", type=click.IntRange(1, 10_000), metavar="N", help="As after N more nodes like the ring's."
)
@click.option("--ttl", type=TTL, metavar="SECONDS", help="Of the log's rows. [the table's, else 86400]")
@_settings("window", "confidence", "cycle", "flush")
@json_option
@pass_session
def plan(
    session: Session,
    table: tuple[str, str] | None,
    name: str,
    streams: int | None,
    ranges: int | None,
    more_nodes: int | None,
    ttl: int | None,
    as_json: bool,
    **settings: int | None,
) -> None:
    """How many windows, requests and checkpoints a client makes that starts without a checkpoint, and then each day.

    Of TABLE, by the generations that its log can have rows of; or of a generation of --streams, or of the ring after
    --more-nodes, that has operated for all of the TTL. Settings left out are the client's defaults.

    \b
    Example:
      cdc-platform consumers plan shop.orders --client java
      cdc-platform consumers plan --client connector --streams 73728 --ranges 1024 --ttl 86400 --window 60
      cdc-platform consumers plan --client alternator --more-nodes 10
    """
    if sum((table is not None, streams is not None, more_nodes is not None)) != 1:
        raise click.UsageError("name one of TABLE, --streams and --more-nodes: what is to be read")
    if ranges is not None and streams is None:
        raise click.UsageError("--ranges goes with --streams")
    from cdc_platform.log.reading import clients

    client = _with(clients.CLIENTS[name], settings)
    seconds, parts = _parts(session, client, table, streams, ranges, more_nodes, ttl)
    made = clients.plan(client, parts)
    told = {
        "client": asdict(client),
        "table": None if table is None else ".".join(table),
        "ttl_seconds": seconds,
        "generations": len(parts),
        "streams": parts[-1].streams,
        **asdict(made),
        "refused_by_default": made.is_refused,
    }
    if as_json:
        write_json(told)
    else:
        _show(client, made, told)
    if made.is_refused and name != "alternator":
        warn(
            f"a query names {made.streams_a_query} streams, and a server takes {clients.MOST_IN_A_QUERY} by default: "
            "raise max_partition_key_restrictions_per_query",
            code="query-too-wide",
        )


@click.command()
@click.option("--client", "name", type=click.Choice(NAMES), help="Only of this one. [all]")
@_settings("confidence", "cycle", "poll", "flush")
@json_option
def lag(name: str | None, as_json: bool, **settings: int | None) -> None:
    """How long after a generation has begun a client that has caught up sees its first rows, at most, and why.

    Settings left out are the client's defaults; for `java` and `connector` --cycle is the query window.

    \b
    Example:
      cdc-platform consumers lag
      cdc-platform consumers lag --client connector --cycle 10 --flush 10
    """
    from cdc_platform.log.reading import clients

    chosen = [_with(each, settings) for each in clients.CLIENTS.values() if name in (None, each.name)]
    rows = []
    for client in chosen:
        found = clients.lag_at_a_switch(client)
        rows.append({"client": client.name, **asdict(found), "most_s": found.most_s})
    if as_json:
        write_json(rows)
        return
    columns = ("client", ">behind the clock", ">next read", ">sees the generation", ">writes checkpoints", ">at most")
    write_table("Seconds from a generation's begin to its first row", columns, [list(row.values()) for row in rows])


def _with(client: Client, settings: dict[str, int | None]) -> Client:
    changed: dict[str, Any] = {f"{name}_s": value for name, value in settings.items() if value is not None}
    return replace(client, **changed)


def _parts(
    session: Session,
    client: Client,
    table: tuple[str, str] | None,
    streams: int | None,
    ranges: int | None,
    more_nodes: int | None,
    ttl: int | None,
) -> tuple[int, list[Part]]:
    """The TTL that counts (s), and what is to be read."""
    from cdc_platform.log.reading import ahead
    from cdc_platform.records import cdc_tables

    if table is not None:
        lake = session.lake()
        found = cdc_tables.find(lake, *table)
        seconds = found.ttl_seconds if ttl is None else ttl
        return seconds, ahead.parts_of(lake, found, client, session.clock.now_us(), seconds)
    seconds = DAY_SECONDS if ttl is None else ttl
    if streams is None:
        from cdc_platform.lifecycle.expiry import growth
        from cdc_platform.records.ring import current_ring

        assert more_nodes is not None
        ranges, streams = growth.size_after(current_ring(session.lake()), more_nodes)
    return seconds, ahead.parts_told(streams, ranges or streams, seconds, client)


def _show(client: Client, made: Plan, told: dict[str, Any]) -> None:
    asks_by_shard = client.name == "alternator"
    behind = f"{client.confidence_s} s behind the clock"
    how = f"a shard each {client.cycle_s} s" if asks_by_shard else f"windows of {client.window_s} s"
    back = f"TTL {told['ttl_seconds']} s" if client.starts_s is None else f"the last {client.starts_s} s"
    sets = f"{told['generations']} generations or stream sets"
    facts: list[tuple[str, object]] = [
        ("client", f"{client.name}: {how}, {behind}"),
        ("reads", f"{told['streams']:,} streams in {made.groups:,} groups, {sets}, {back}"),
        ("cold start", f"{made.windows:,} windows of each group, {made.requests:,} requests in all"),
        ("then", f"{made.requests_a_day:,} requests a day, {made.requests_a_day / DAY_SECONDS:,.1f} a second"),
        ("checkpoints", f"{made.checkpoints:,} kept, at most {made.checkpoint_writes_a_day:,} written a day"),
    ]
    if asks_by_shard:
        facts[2] = ("cold start", f"{made.requests:,} shards, a request for each and more where it has many rows")
        facts.append(("list of shards", f"{made.pages_of_streams:,} calls of DescribeStream each time"))
    write_facts(facts)
