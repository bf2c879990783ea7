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
    write_table,
)
from cdc_platform.cli.params import GENERATION, OPERATING
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
    help="How much of each node's and shard's keys have their stream there too. [default of GENERATION: operating]",
)
@json_option
@pass_session
@click.pass_context
def ring(ctx: click.Context, session: CliSession, colocation: str | Milliseconds | None, as_json: bool) -> None:
    """Show the nodes of the ring as it stands.

    With --json the tokens are listed too, and the result is a ring snapshot that `cdc-platform import` takes.

    With --colocation: the share of the keys of each node and shard whose stream, by a generation, lies in the same
    vnode and on the same shard. Exact, counted from tokens, shards and the tokens of the streams. The exit code is 1
    where streams are not where their range and shard put them, or where their order is not known: see `check`.

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
        write_json(document) if as_json else _show_colocation(document)
        for line in _colocation_warnings(document):
            warn(line, code="colocation-in-doubt")
        ctx.exit(1 if _colocation_warnings(document) else 0)
    nodes = sorted(current.nodes, key=lambda node: str(node.host_id))
    if as_json:
        from cdc_platform.importing import snapshot_from_node

        write_json([snapshot_from_node(node) for node in nodes])
        return
    columns = ("host_id", "address", "datacenter", "rack", "status", ">tokens", ">shards", ">ignore_msb")
    rows = [
        (
            node.host_id,
            node.address,
            node.datacenter,
            node.rack,
            node.status,
            len(node.tokens),
            node.shard_count,
            node.ignore_msb,
        )
        for node in nodes
    ]
    streams, without = int(current.shard_counts.sum()), len(current.zero_token_nodes)
    members = f"{len(nodes)} nodes{f', {without} of them zero-token' if without else ''}"
    write_table(f"{members}, {len(current.tokens)} ranges, {streams} streams in a generation", columns, rows)


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
        raise StateError(
            "no node is in the ring yet that owns tokens, so that nothing can be colocated; import a ring snapshot "
            "first"
        )
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
            f"{changing}, and {coming} ranges of the generation are of no node here: what it colocates cannot be told "
            "yet; observe the cluster again when it has settled"
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


def _colocation_warnings(told: dict[str, Any]) -> list[str]:
    """Return why the shares may not be those of a sound generation, one line per reason."""
    lines = [] if told["misplaced_streams"] is None else [told["misplaced_streams"]]
    if told["unordered_ranges"]:
        lines.append(
            f"the shard order of {told['unordered_ranges']} ranges is not known, so that the shares of their shards "
            "cannot be told"
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


def _show_colocation(told: dict[str, Any]) -> None:
    nodes = told["nodes"]
    named = [(node["address"] or node["host_id"], node) for node in nodes]
    columns = ("node", ">shards", ">of the ring", ">same vnode", ">same shard")
    write_table(
        f"Keys whose stream lies with them, by the generation of {told['generation']['time']}",
        columns,
        [
            (name, len(node["shards"]), *(_format_percent(node[key]) for key in ("share_of_ring", *_COLOCATION_FIELDS)))
            for name, node in named
        ],
    )
    losing = [
        (name, shard) for name, node in named for shard in node["shards"] if shard["colocation"] not in (None, 1.0)
    ]
    if losing:
        rows = [
            (name, shard["shard"], _format_percent(shard["share_of_ring"]), _format_percent(shard["colocation"]))
            for name, shard in losing
        ]
        write_table("Shards that lose some", ("node", ">shard", ">of the ring", ">same shard"), rows[:_MAX_SHARDS])
        if len(rows) > _MAX_SHARDS:
            click.echo(f"and {len(rows) - _MAX_SHARDS} more: --json has them all")
    write_facts(
        [
            ("same vnode", _format_percent(told["vnode_colocation"])),
            ("same shard", _format_percent(told["shard_colocation"])),
            ("of no use", f"{told['excess_streams']} streams, of {told['excess_ranges']} ranges that end at no token"),
        ]
    )


_COLOCATION_FIELDS = ("vnode_colocation", "shard_colocation")


def _format_percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3f}%"
