"""`cdc-platform ring`: show the nodes of the ring and its colocation, as a table or as a ring snapshot."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import (
    format_optional_ms,
    json_option,
    warn,
    warn_if_topology_changing,
    write_facts,
    write_json,
)
from cdc_platform.cli.params import GENERATION, OPERATING
from cdc_platform.cli.render import View, format_percent, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Milliseconds

if TYPE_CHECKING:
    from cdc_platform.home import ColocationReport

_MAX_SHARDS = 64


@click.command()
@click.option(
    "--colocation",
    metavar="[GENERATION]",
    type=GENERATION,
    is_flag=False,
    flag_value=OPERATING,
    help="Show the share of colocated keys per node and shard. [default of GENERATION: operating]",
)
@json_option
@pass_session
@click.pass_context
def ring(ctx: click.Context, session: CliSession, colocation: str | Milliseconds | None, as_json: bool) -> None:
    """Show the nodes of the current ring.

    --json writes a ring snapshot with all tokens, which `cdc-platform import` reads.

    --colocation shows, for each node and shard, the share of keys whose stream is in the same vnode and on the same
    shard, counted exactly from tokens and shards. The exit code is 1 if streams are misplaced or their order is
    unknown: see `check`.

    \b
    Example:
      cdc-platform ring --json > ring.json
      cdc-platform ring --colocation
      cdc-platform ring --colocation latest --json
    """
    home = session.open_home()
    current = home.ring()
    document = None if colocation is None else _colocation_document(home.colocation(colocation))
    warn_if_topology_changing(home.lake)
    if document is not None:
        write_result(document, as_json=as_json, show=lambda: _show_colocation(document))
        for line in _colocation_warnings(document):
            warn(line, code="colocation-in-doubt")
        ctx.exit(1 if _colocation_warnings(document) else 0)
    from cdc_platform.importing import snapshot_from_node

    nodes = [snapshot_from_node(node) for node in sorted(current.nodes, key=lambda node: str(node.host_id))]
    if as_json:
        write_json(nodes)  # a list, since this is the format of a ring snapshot
        return
    streams, without = int(current.shard_counts.sum()), len(current.zero_token_nodes)
    members = f"{len(nodes)} nodes{f', {without} of them zero-token' if without else ''}"
    title = f"{members}; {len(current.tokens):,} ranges and {streams:,} streams in a generation"
    rows = [node | {"tokens": len(node["tokens"])} for node in nodes]
    show_rows(rows, View("host_id address datacenter rack status tokens shard_count ignore_msb", title))


def _colocation_document(report: ColocationReport) -> dict[str, Any]:
    return {
        "generation": {"id": report.generation.id, "time": format_optional_ms(report.generation.time_ms)},
        "vnode_colocation": report.vnode_colocation,
        "shard_colocation": report.shard_colocation,
        "nodes": [asdict(node) for node in report.nodes],
        "excess_ranges": report.excess_ranges,
        "excess_streams": report.excess_streams,
        "misplaced_streams": report.misplaced_streams,
        "unordered_ranges": report.unordered_ranges,
    }


def _colocation_warnings(document: dict[str, Any]) -> list[str]:
    """Return why the shares may not be those of a sound generation, one line per reason."""
    lines = [] if document["misplaced_streams"] is None else [document["misplaced_streams"]]
    if document["unordered_ranges"]:
        lines.append(
            f"the stream order of {document['unordered_ranges']} ranges is unknown, so the shares of their shards may "
            "be wrong"
        )
    return lines


def _show_colocation(document: dict[str, Any]) -> None:
    names = {node["host_id"]: node["address"] or node["host_id"] for node in document["nodes"]}
    nodes = [node | {"node": names[node["host_id"]], "shards": len(node["shards"])} for node in document["nodes"]]
    title = f"Keys whose stream is on the same vnode or shard, by the generation of {document['generation']['time']}"
    show_rows(nodes, View("node shards share_of_ring vnode_colocation shard_colocation", title))
    losing = [
        {"node": names[node["host_id"]], **shard}
        for node in document["nodes"]
        for shard in node["shards"]
        if shard["colocation"] not in (None, 1.0)
    ]
    if losing:
        show_rows(losing[:_MAX_SHARDS], View("node shard share_of_ring colocation", "Shards that are not colocated"))
    if len(losing) > _MAX_SHARDS:
        click.echo(f"and {len(losing) - _MAX_SHARDS} more; --json lists all")
    write_facts(
        [
            ("same vnode", format_percent(document["vnode_colocation"])),
            ("same shard", format_percent(document["shard_colocation"])),
            ("unused", f"{document['excess_streams']} streams in {document['excess_ranges']} ranges without a token"),
        ]
    )
