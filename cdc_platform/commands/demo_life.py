"""Two acts of the demo beside its joins: an old cluster's generations to their end, and a tablet-based table.

It knows when each step happens, on clocks that stand; what the steps do is `lifecycle`'s. No Spark. The old cluster has
a home of its own, inside of the demo's: its generations would otherwise come before the first join's.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc_platform.clock import (
    DAY_MS,
    DAY_SECONDS,
    HOUR_MS,
    MINUTE_US,
    Clock,
    Milliseconds,
    format_ms,
    ms_of,
    ms_to_datetime,
    us_of,
)
from cdc_platform.errors import ClockRefused

if TYPE_CHECKING:
    from cdc_platform.generations import TopologyDescription
    from cdc_platform.home import Home
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.upgrade.rewrite import RewriteDecision
    from cdc_platform.records.inbox import BootstrapEvent
    from cdc_platform.ring import Node
    from cdc_platform.settings import Settings

OLD_HOME = "old_cluster"
"""The folder of the old cluster's home, in the home of the demo."""
ORDERS = ("demo", "orders")
"""The old cluster's table with CDC."""
ORDERS_TTL_SECONDS = DAY_SECONDS
SESSIONS = ("demo", "sessions")
"""The tablet-based table."""
FIRST_TABLETS, LATER_TABLETS = 2, 4
# With a TTL of a day: the first was superseded long before the upgrade, the second a few hours before it.
_JOINED_AGO_MS = (DAY_MS * 30, DAY_MS * 9, DAY_MS * 2)
_UPGRADED_AFTER_MS = HOUR_MS * 4
_SPLIT_AFTER_US = MINUTE_US


@dataclass(frozen=True)
class OldCluster:
    """The old cluster as it is at the end. `decided`: what the rewrite did, empty where an earlier run has done it."""

    home: Home
    lake: Lake
    clock: Clock
    decided: Sequence[RewriteDecision] = ()


def play_old_cluster(home: Home, events: Sequence[BootstrapEvent]) -> OldCluster:
    """Let the demo's nodes have joined in the first format, be upgraded, rewrite, and lose what has expired.

    All times follow from when the demo was first run, so that a run that died is gone on with. Nothing expires by a
    clock that is ahead of this machine's: removal is refused there, in a demo too.
    """
    from cdc_platform.home import open_home
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.expiry import removal
    from cdc_platform.lifecycle.upgrade import rewrite
    from cdc_platform.records import cdc_local

    old = open_home(home.path / OLD_HOME)
    lake, settings = Lake(old.lake), old.settings
    now_ms = ms_of(events[0].created_at_us)
    times = [now_ms - ago for ago in _JOINED_AGO_MS]
    decided: Sequence[RewriteDecision] = ()
    if not cdc_local.marked_hosts(lake):
        _write_first_format(lake, events, times)
        upgraded = Clock(us_of(times[-1] + _UPGRADED_AFTER_MS))
        decided = rewrite.rewrite(lake, upgraded, settings).decisions
    clock = Clock(us_of(now_ms))
    if _is_to_expire(lake, times[0]):
        # One run marks, and a grace time later another one removes.
        with suppress(ClockRefused):
            for run in (Clock(us_of(now_ms - settings.expiry_grace_ms)), clock):
                removal.expire(lake, run, settings)
    return OldCluster(old, lake, clock, decided)


def play_tablets(lake: Lake, settings: Settings, events: Sequence[BootstrapEvent]) -> None:
    """Make the tablet-based table and split its tablets a minute later; what was made of it since stays."""
    from cdc_platform.generations.tablets import uniform_ends
    from cdc_platform.lifecycle.tablets import changes
    from cdc_platform.records import tablet_ledger

    made_us = events[0].created_at_us
    newest = tablet_ledger.newest_layout(lake, *SESSIONS)
    if newest is None:
        changes.create(lake, Clock(made_us), settings, *SESSIONS, uniform_ends(FIRST_TABLETS))
    if newest is None or newest.kind == tablet_ledger.CREATED:
        changes.split(lake, Clock(made_us + _SPLIT_AFTER_US), settings, *SESSIONS, LATER_TABLETS)
    changes.finish(lake, Clock(made_us + _SPLIT_AFTER_US), *SESSIONS)


def _write_first_format(lake: Lake, events: Sequence[BootstrapEvent], times: Sequence[Milliseconds]) -> None:
    """What the old servers have left: a generation a join in both V1 tables, the nodes, their newest generation."""
    import pyarrow as pa

    from cdc_platform.generations import GenerationId, RingLayout, generate, limit_streams_for_v1
    from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS
    from cdc_platform.records import cdc_local, cdc_tables, generation_data
    from cdc_platform.records.ring import NORMAL, put_nodes
    from cdc_platform.ring import Ring

    nodes: list[Node] = [replace(event.node, status=NORMAL) for event in events]
    cdc_tables.add(lake, Clock(us_of(times[0])), *ORDERS, ttl_seconds=ORDERS_TTL_SECONDS, created_at_ms=times[0])
    for count, time_ms in enumerate(times, 1):
        layout = limit_streams_for_v1(RingLayout.of(Ring.of(nodes[:count])))
        description = generate(layout, uuid.uuid5(nodes[count - 1].host_id, format_ms(time_ms)))
        lake.merge(GENERATION_DESCRIPTIONS, generation_data.cell_row(time_ms, description), update=False)
        row = {"time": ms_to_datetime(time_ms), "streams": _as_a_set(description), "expired": None}
        rows = pa.Table.from_pylist([row], schema=STREAMS_DESCRIPTIONS.schema)
        lake.merge(STREAMS_DESCRIPTIONS, rows, update=False)
    cdc_local.keep_first(lake, [node.host_id for node in nodes], GenerationId(times[-1]))
    put_nodes(lake, nodes, update=False)


def _as_a_set(description: TopologyDescription) -> list[bytes]:
    """All streams as CQL shows a set of blobs: sorted as bytes, so that ranges and shards cannot be told any more."""
    return sorted(stream.tobytes() for stream in description.streams)


def _is_to_expire(lake: Lake, oldest_ms: Milliseconds) -> bool:
    """Whether the demo's removal was not made, or not to its end."""
    from cdc_platform.lifecycle.expiry import removal
    from cdc_platform.records import removals

    return oldest_ms not in removals.noted(lake) or bool(removal.unfinished(lake))
