"""`cdc-platform ring`: the nodes of the ring as it stands. Its JSON is a ring snapshot that `import` takes."""

from __future__ import annotations

import click

from cdc_platform.commands.output import json_option, write_json, write_table
from cdc_platform.commands.session import Session, pass_session


@click.command()
@json_option
@pass_session
def ring(session: Session, as_json: bool) -> None:
    """Show the nodes of the ring as it stands.

    With --json the tokens are listed too, and the result is a ring snapshot that `cdc-platform import` takes.

    \b
    Example:
      cdc-platform ring --json > ring.json
    """
    from cdc_platform.records.ring import current_ring

    current = current_ring(session.lake())
    nodes = sorted(current.nodes, key=lambda node: str(node.host_id))
    if as_json:
        write_json(
            [
                {
                    "host_id": node.host_id,
                    "address": node.address,
                    "datacenter": node.datacenter,
                    "rack": node.rack,
                    "status": node.status,
                    "shard_count": node.shard_count,
                    "ignore_msb": node.ignore_msb,
                    "features": node.features,
                    "tokens": node.tokens,
                }
                for node in nodes
            ]
        )
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
    streams = int(current.shard_counts.sum())
    write_table(f"{len(nodes)} nodes, {len(current.tokens)} ranges, {streams} streams in a generation", columns, rows)
