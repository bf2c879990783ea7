"""A live cluster watched: what its home holds at one look and at the next, and what became other in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from cdc_platform.clock import Clock, Microseconds, Milliseconds, format_ms, format_us, us_of
from cdc_platform.cluster import known
from cdc_platform.cluster.glance import last_mark
from cdc_platform.cluster.observing import observe
from cdc_platform.cluster.standing import StandingSessions
from cdc_platform.errors import PlatformError
from cdc_platform.home import Home
from cdc_platform.lake.lake import Lake
from cdc_platform.log.reading.reader import FROM_CLUSTER
from cdc_platform.records import cdc_tables, consumers, ring, tablet_rows
from cdc_platform.timeline.timeline import Timeline


@dataclass(frozen=True)
class Change:
    """What became other: `who` is a node, a generation, a table or the cluster."""

    at_us: Microseconds
    who: str
    what: str

    def document(self) -> dict[str, str]:
        """As JSON has it."""
        return {"at": format_us(self.at_us), "who": self.who, "what": self.what}


@dataclass(frozen=True)
class Look:
    """What a cluster's home holds. Positions are how far (µs) each log was brought in; `problem` is a line."""

    at_us: Microseconds
    nodes: dict[str, str] = field(default_factory=dict)
    generations: tuple[Milliseconds, ...] = ()
    sets: frozenset[tuple[str, Milliseconds]] = frozenset()
    tables: dict[str, str] = field(default_factory=dict)
    positions: dict[str, Microseconds] = field(default_factory=dict)
    problem: str | None = None


def looked(lake: Lake, now_us: Microseconds, problem: str | None = None) -> Look:
    """What is in a home now."""
    nodes = {
        node.address or str(node.host_id): f"{len(node.tokens)} tokens, {node.shard_count} shards, {node.status}"
        for node in ring.members(lake)
    }
    tables = {
        each.full_name: f"TTL {each.ttl_seconds} s, CDC {'on' if each.enabled else 'off'}"
        for each in cdc_tables.cdc_tables(lake)
    }
    sets = frozenset((".".join(name), time_ms) for name, time_ms in tablet_rows.listed_sets(lake))
    positions = {
        f"{each.keyspace_name}.{each.table_name}": each.position_us
        for each in consumers.consumers(lake)
        if each.name == FROM_CLUSTER
    }
    times = tuple(each.time_ms for each in Timeline.read(lake).generations if each.published)
    return Look(now_us, nodes, times, sets, tables, positions, problem)


def changes(before: Look, after: Look) -> list[Change]:
    """What became other between two looks, nodes first."""
    found: list[tuple[str, str]] = []
    for kind, old, new in (("node", before.nodes, after.nodes), ("table", before.tables, after.tables)):
        found += [(f"{kind} {name}", f"came: {new[name]}") for name in sorted(new.keys() - old.keys())]
        found += [(f"{kind} {name}", "went") for name in sorted(old.keys() - new.keys())]
        both = sorted(old.keys() & new.keys())
        found += [(f"{kind} {name}", f"is now: {new[name]}") for name in both if old[name] != new[name]]
    for time_ms in sorted(set(after.generations) - set(before.generations)):
        starts = "starts" if us_of(time_ms) > after.at_us else "started"
        found.append((f"generation {format_ms(time_ms)}", f"was published, {starts} {format_ms(time_ms)}"))
    for time_ms in sorted(set(before.generations) - set(after.generations)):
        found.append((f"generation {format_ms(time_ms)}", "is no longer published"))
    for name, time_ms in sorted(after.sets - before.sets):
        found.append((f"table {name}", f"has a stream set from {format_ms(time_ms)} on"))
    # One failure has many words, and those of a cluster that is down change from look to look.
    if (before.problem is None) != (after.problem is None):
        found.append(("cluster", after.problem or "answers again"))
    return [Change(after.at_us, who, what) for who, what in found]


def watch(
    home: Home, name: str, clock: Clock, every_seconds: float, pause: Callable[[float], None] = time.sleep
) -> Generator[tuple[Look, list[Change]], None, None]:
    """Look at a cluster again and again, and observe it when a glance says so; never ends by itself.

    A cluster that cannot be reached is a change like others, and asked again.

    Raises:
        NotFound: no cluster of this name is known.
    """
    sessions, before = StandingSessions(), None
    try:
        while True:
            cluster = known.find(home, name)
            problem = None
            try:
                if sessions.glance(cluster).mark != last_mark(cluster):
                    seen = observe(cluster, clock)
                    problem = "; ".join(seen.incomplete) or None
            except PlatformError as error:
                problem = str(error)
            now = looked(Lake(cluster.open_home().lake), clock.now_us(), problem)
            yield now, changes(before or Look(now.at_us), now)
            before = now
            pause(every_seconds)
    finally:
        sessions.close()
