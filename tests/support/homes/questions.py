"""Homes that have the problems of which the pages of docs/questions tell, by the name that stands in a page's head.

Each is a folder of its own, in which the page's commands run: the home is `.cdc-platform` in it, files lie beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
from support.homes import expiring

from cdc_platform.clock import Milliseconds, us_of
from cdc_platform.lake.lake import Lake
from cdc_platform.records import cdc_tables, consumers
from cdc_platform.records.ring import put_nodes
from cdc_platform.ring import Node

HOME = ".cdc-platform"


def home_for(folder: Path, name: str) -> Path:
    """Make the home of a page in `folder`; answers with the folder of its own in which its commands run."""
    place = folder / name.replace(" ", "_")
    place.mkdir()
    PROBLEMS[name](place)
    return place


def _lake(place: Path) -> Lake:
    return Lake(place / HOME / "lake")


def _node(number: int, tokens: int, shards: int) -> Node:
    drawn = np.random.default_rng(number).integers(-(2**63) + 1, 2**63 - 1, tokens, dtype=np.int64)
    features = ("CDC_GENERATIONS_V2",)
    return Node(UUID(int=number), tuple(drawn.tolist()), shards, 12, f"10.0.0.{number}", "dc1", "r1", features)


def empty_cluster(place: Path) -> None:
    """One node of 256 tokens and two shards; nobody has said anything of tables."""
    put_nodes(_lake(place), [_node(1, 256, 2)])


def old_generations(place: Path) -> None:
    """Four generations, a day apart, and a table that lowered its TTL in the second one."""
    imported = expiring.import_generations(place)
    imported.rename(place / HOME)
    lake = _lake(place)
    expiring.add_table(lake, 2 * 86_400, name="orders")
    changed = Milliseconds(expiring.TIMES_MS[1] + expiring.HOUR_MS)
    cdc_tables.alter(lake, expiring.at(changed), "ks", "orders", ttl_seconds=3600)
    consumers.register(
        lake, expiring.at(expiring.START_MS), "audit", "ks", "orders", position_us=us_of(expiring.TIMES_MS[2])
    )


PROBLEMS: dict[str, Callable[[Path], None]] = {
    make.__name__.replace("_", " "): make
    for make in (
        empty_cluster,
        old_generations,
    )
}
