"""`cdc-platform explain`: show the token, generation, stream and acceptance of a write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from cdc_platform.cli.output import json_option, write_facts
from cdc_platform.cli.params import KEY, TABLE_NAME, TIME, TOKEN
from cdc_platform.cli.render import format_field, get_label, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Microseconds

if TYPE_CHECKING:
    from cdc_platform.generations import AcceptancePolicy


@click.command()
@click.option(
    "--key", "keys", type=KEY, multiple=True, help="Partition key in hex; several are its components in order."
)
@click.option(
    "--pk", "typed", multiple=True, metavar="VALUE", help="Partition key as in CQL, with --table. Repeatable."
)
@click.option("--token", type=TOKEN, help="The token instead of a key.")
@click.option("--table", type=TABLE_NAME, help="The table; tablet-based tables have their own streams.")
@click.option(
    "--at",
    type=TIME,
    help="The write's timestamp: a time, or s, ms or µs since 1970. [default: the clock]",
)
@click.option(
    "--policy",
    type=click.Choice(["strict", "recent-past", "both"]),
    help="The policy that decides; the other is shown, too. [default: the home's]",
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

    If shards or tokens have changed since the generation was made, the row and its stream are on different shards now;
    both are shown. The exit code is 1 if the write is refused, or if its stream is missing or not where its range and
    shard put it (STREAM_UNKNOWN, STREAM_MISPLACED).

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
    chosen = None if policy == "both" else cast("AcceptancePolicy | None", policy)
    if chosen is not None and not home.stream_source(table).in_generations:
        raise click.UsageError("--policy is for vnode-based tables; tablets know one rule")
    answer = home.explain(key=typed or keys or None, token=token, table=table, at=at, policy=chosen)
    document = answer.facts()
    write_result(document, as_json=as_json, show=lambda: _show_explanation(document))
    ctx.exit(0 if answer.accepted else 1)


def _show_explanation(document: dict[str, Any]) -> None:
    """Print the verdict, then the placement, one fact per line. Skip what is unknown or follows from another line."""
    answer, color = ("accepted", "green") if document["accepted"] else ("refused", "red")
    click.secho(f"{answer}: {document['verdict']}", fg=color, bold=True)
    write_facts(_explanation_facts(document))


def _explanation_facts(document: dict[str, Any]) -> Iterator[tuple[str, object]]:
    if not document["accepted"]:
        yield "reason", document["reason"]
    if document.get("note"):
        yield "note", document["note"]
    yield "token", document["token"]
    yield "written at", document["at"]
    if document["now"] != document["at"]:
        yield "clock", document["now"]
    for name in ("table", "timestamp", "generation"):
        if document.get(name) is not None:
            yield get_label(name), format_field(name, document[name])
    if document["range_end"] is not None:
        start = "the ring's begin" if document["range_start"] is None else document["range_start"]
        kind, index = ("tablet", document["tablet"]) if "tablet" in document else ("vnode", document["vnode_index"])
        yield "range", f"after {start} up to {document['range_end']}, {kind} {index}"
    yield "stream", document["stream_id"] or "unknown"
    if document.get("owner") is not None:
        yield "owner", _format_owner(document)
    if document.get("colocated") is False:
        yield "row is on", _format_owner(document["row_location"])
        yield "stream is on", _format_owner(document["stream_location"])
    for policy, other in document.get("other_policies", {}).items():
        same = other["verdict"] == document["verdict"]
        yield f"by {policy}", other["verdict"] if same else f"{other['verdict']}: {other['reason']}"


def _format_owner(owner: dict[str, Any]) -> str:
    return f"{'unknown shard' if owner['shard'] is None else 'shard ' + str(owner['shard'])} of {owner['owner']}"
