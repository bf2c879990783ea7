"""`cdc-platform ring`: show the nodes of the ring and its colocation, as a table or as a ring snapshot."""

from __future__ import annotations

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
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    from cdc_platform.generations import RingLayout
    from cdc_platform.ring import Int64s, Ring

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
    from cdc_platform.metastore import read_current_ring

    current = read_current_ring(session.view())
    document = None if colocation is None else _colocation_document(session, current, colocation)
    warn_if_topology_changing(session.lake())
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


def _colocation_document(session: CliSession, current: Ring, name: str | Milliseconds) -> dict[str, Any]:
    """Return what a generation colocates on the current ring, as shares from 0 to 1.

    Raises:
        NotFound: the generation or its description is not here.
        StateError: there is no ring, the description is incomplete, or the topology is changing and the generation has
            ranges of nodes that are not here yet.
    """
    import numpy as np

    from cdc_platform.generations import RingLayout, decode_stream_ids, find_misplaced_streams
    from cdc_platform.metastore import cluster_changes, read_generation_description, read_unordered_ranges
    from cdc_platform.timeline import Timeline

    if not current.has_tokens:
        raise StateError("no node in the ring owns tokens; import a ring snapshot first")
    lake = session.lake()
    generation = Timeline.read(lake).find(session.named(name))
    description = read_generation_description(lake, generation.gossiped)
    layout = RingLayout(
        description.range_ends, description.range_starts, description.stream_counts, description.ignore_msbs
    )
    coming = int((~np.isin(layout.range_ends, current.tokens)).sum())
    changing = cluster_changes.read_topology_transition(lake)
    if coming and changing is not None:
        raise StateError(
            f"{changing}, and {coming} ranges of the generation belong to nodes that are not here yet; observe the "
            "cluster again when its topology is stable"
        )
    excess = layout.shard_counts[~np.isin(layout.range_ends, current.tokens)]
    damage = find_misplaced_streams(description)
    return {
        "generation": {"id": generation.id, "time": format_optional_ms(generation.time_ms)},
        **_colocation_shares(layout, current, decode_stream_ids(description.streams).tokens),
        "excess_ranges": len(excess),
        "excess_streams": int(excess.sum()),
        "misplaced_streams": damage[0].detail if damage else None,
        "unordered_ranges": len(read_unordered_ranges(lake, generation.gossiped)),
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


def _colocation_shares(layout: RingLayout, current: Ring, streams: Int64s) -> dict[str, Any]:
    from cdc_platform.generations import compute_colocation_by_shard

    colocation = compute_colocation_by_shard(layout, current, streams)
    everything = sum(colocation.tokens.tolist())
    rows = list(zip(colocation.shards.tolist(), colocation.tokens.tolist(), colocation.on_shard.tolist(), strict=True))
    nodes = []
    for number, node in enumerate(current.nodes):
        mine = [row for row, owner in zip(rows, colocation.nodes.tolist(), strict=True) if owner == number]
        owned = sum(tokens for _, tokens, _ in mine)
        nodes.append(
            {
                "host_id": node.host_id,
                "address": node.address,
                "share_of_ring": owned / everything,
                "vnode_colocation": _ratio(int(colocation.in_vnode[number]), owned),
                "shard_colocation": _ratio(sum(same for _, _, same in mine), owned),
                "shards": [
                    {"shard": shard, "share_of_ring": tokens / everything, "colocation": _ratio(same, tokens)}
                    for shard, tokens, same in mine
                ],
            }
        )
    return {
        "vnode_colocation": _ratio(sum(colocation.in_vnode.tolist()), everything),
        "shard_colocation": _ratio(sum(colocation.on_shard.tolist()), everything),
        "nodes": nodes,
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


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
