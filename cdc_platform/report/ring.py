"""The ring that a generation was described for, and what changed from the generation before: in plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cdc_platform.errors import NotFound, PlatformError, StateError
from cdc_platform.generations.comparison import compare
from cdc_platform.lake.lake import Lake
from cdc_platform.pictures.rings import slices
from cdc_platform.records import descriptions, generation_data
from cdc_platform.records.ring import columns
from cdc_platform.ring import Ring
from cdc_platform.timeline import Generation
from cdc_platform.timeline.keys import Keys

CIRCLE = 100_000
"""Into so many parts the ring is cut where slices of it are told."""


def addresses(lake: Lake, keys: Keys) -> dict[str, str]:
    """The address of every node that joined here, or is in the ring, by its host ID."""
    rows = columns(lake, ["host_id", "address"])
    now = dict(zip(rows["host_id"].to_pylist(), rows["address"].to_pylist(), strict=True))
    return {join.host_id: join.address for join in keys.joins} | {host: name for host, name in now.items() if name}


def ring_of(lake: Lake, generation_id: str | None) -> Ring | None:
    """The ring that a generation was described for; None where its topology description is not here."""
    try:
        return None if generation_id is None else descriptions.described_ring(lake, generation_id)
    except StateError:
        return None


def told_ring(ring: Ring | None, before: Ring | None, names: Mapping[str, str], joins: str | None) -> dict[str, Any]:
    """A ring beside the one before it (None: not known), node by node; `joins` is the host ID of the one that is new.

    `after` and `before` are circles: from which part of `CIRCLE` on, clockwise from the least token, the ring belongs
    to which of the nodes. Empty where the ring is not known.
    """
    if ring is None:
        return {}
    rings = {"after": ring, "before": before}
    hosts = sorted({str(node.host_id) for each in rings.values() if each for node in each.nodes})
    places = {host: number for number, host in enumerate(sorted(hosts, key=lambda host: (names.get(host, ""), host)))}
    nodes: list[dict[str, Any]] = [
        {"host_id": host, "address": names.get(host, ""), "joins": host == joins, "before": None, "after": None}
        for host in places
    ]
    circles: dict[str, Any] = {}
    for when, each in rings.items():
        if each is None:
            circles[when] = None
            continue
        circles[when] = _circle(each, places)
        ranges, shares = np.bincount(each.owner_index, minlength=len(each.nodes)), _shares(each)
        for number, node in enumerate(each.nodes):
            nodes[places[str(node.host_id)]][when] = {
                "ranges": int(ranges[number]),
                "shards": node.shard_count,
                "ignore_msb": node.ignore_msb,
                "share": round(float(shares[number]), 5),
            }
    return {"nodes": nodes, **circles}


def told_change(lake: Lake, before: Generation | None, generation: Generation) -> dict[str, Any]:
    """What changed from the generation before; `unknown` says why where that cannot be told."""
    if before is None:
        return {"unknown": "No generation operated before it."}
    try:
        old, new = (_description(lake, each) for each in (before, generation))
    except PlatformError as error:
        return {"unknown": f"What changed cannot be told: {error}."}
    change = compare(old, new)
    return {
        "ranges_added": len(change.ranges_added),
        "ranges_removed": len(change.ranges_removed),
        "streams_kept": change.streams_kept,
        "changed_share": round(change.changed_share, 6),
    }


def _description(lake: Lake, generation: Generation) -> Any:
    if generation.generation_id is None:
        raise NotFound(f"generation {generation.name} is known by its time alone")
    return generation_data.description_of(lake, generation.generation_id)


def _circle(ring: Ring, places: Mapping[str, int]) -> list[tuple[int, int]]:
    """Where each owner's slices begin, in parts of `CIRCLE`, and whose they are; neighbours of one owner are one."""
    if not ring.tokens.size:
        return []
    edges, owners = slices(ring.tokens, ring.owner_index)
    starts = np.rint(edges[:-1] / (2 * np.pi) * CIRCLE).astype(int).tolist()
    found: list[tuple[int, int]] = []
    for start, owner in zip(starts, owners.tolist(), strict=True):
        place = places[str(ring.nodes[owner].host_id)]
        if found and found[-1][0] == start:  # thinner than a part
            found.pop()
        if not found or found[-1][1] != place:
            found.append((start, place))
    return found


def _shares(ring: Ring) -> np.ndarray:
    """The part (0 to 1) of all tokens that each node owns, float64[nodes]."""
    ends = ring.tokens.astype(np.float64)
    widths = np.diff(ends, prepend=ends[-1:] - 2.0**64)
    return np.bincount(ring.owner_index, weights=widths, minlength=len(ring.nodes)) / 2.0**64
