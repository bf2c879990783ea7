"""A live cluster watched: what its home holds at one look and at the next, and what became other in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from cdc_platform.clock import Clock, Microseconds, format_us
from cdc_platform.cluster import changes as telling
from cdc_platform.cluster import known
from cdc_platform.cluster.changes import LOOK, REACH
from cdc_platform.cluster.glance import last_mark
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.observing import observe
from cdc_platform.cluster.refusals import Refused, Unreachable
from cdc_platform.cluster.standing import StandingSessions
from cdc_platform.errors import PlatformError
from cdc_platform.home import Home
from cdc_platform.lake.lake import Lake
from cdc_platform.log.reading.reader import FROM_CLUSTER
from cdc_platform.records import cluster_changes, consumers
from cdc_platform.records.cluster_changes import CLUSTER, TOPOLOGY, Key


@dataclass(frozen=True)
class Change:
    """What became other in a cluster: `who` is a node, a generation, a table or the cluster.

    One that is not `fresh` was there before the watch began.
    """

    at_us: Microseconds
    cluster: str
    who: str
    what: str
    fresh: bool = True

    def document(self) -> dict[str, str]:
        """As JSON has it, and a hook."""
        return {"at": format_us(self.at_us), "cluster": self.cluster, "who": self.who, "what": self.what}


@dataclass(frozen=True)
class Look:
    """What a cluster's home holds, `state`, and what stands in the way of more, `problems`: a line each.

    Positions are how far (µs) each log was brought in.
    """

    at_us: Microseconds
    state: dict[Key, str] = field(default_factory=dict)
    problems: dict[Key, str] = field(default_factory=dict)
    positions: dict[str, Microseconds] = field(default_factory=dict)

    def named(self, kind: str) -> dict[str, str]:
        """The nodes, tables or generations by name, each with the line that says how it is."""
        return {
            who.removeprefix(f"{kind} "): how.partition("\n")[0]
            for (who, aspect), how in self.state.items()
            if who.startswith(f"{kind} ") and not aspect
        }


def looked(lake: Lake, now_us: Microseconds, problems: dict[Key, str] | None = None) -> Look:
    """What is in a home now."""
    positions = {
        f"{each.keyspace_name}.{each.table_name}": each.position_us
        for each in consumers.consumers(lake)
        if each.name == FROM_CLUSTER
    }
    return Look(now_us, telling.state_of(lake), problems or {}, positions)


def changes(name: str, before: Look, after: Look) -> list[Change]:
    """What became other in a cluster between two looks, nodes first."""
    found = telling.changes(before.state | before.problems, after.state | after.problems, after.at_us)
    return [Change(after.at_us, name, each.who, each.what) for each in found]


def unanswered(problems: dict[Key, str], error: PlatformError) -> dict[Key, str]:
    """What stands in the way after a look that failed: the rest is as it was when it was seen last."""
    if isinstance(error, (Unreachable, Refused)):
        return problems | {(CLUSTER, REACH): str(error)}
    return _answered(problems) | {(CLUSTER, LOOK): str(error)}


def _answered(problems: dict[Key, str]) -> dict[Key, str]:
    return {key: line for key, line in problems.items() if key != (CLUSTER, REACH)}


def watch(
    home: Home, name: str, clock: Clock, every_seconds: float, pause: Callable[[float], None] = time.sleep
) -> Generator[tuple[Look, list[Change]], None, None]:
    """Look at a cluster again and again, and observe it when a glance says so; never ends by itself.

    A cluster that cannot be reached is a change like others, and asked again. The first look tells all that there is.

    Raises:
        NotFound: no cluster of this name is known.
    """
    sessions = StandingSessions()
    try:
        before = _begun(Lake(known.find(home, name).open_home().lake), clock)
        there = [replace(each, fresh=False) for each in changes(name, Look(before.at_us), before)]
        while True:
            cluster = known.find(home, name)
            problems = _problems(sessions, cluster, clock, before.problems)
            now = looked(Lake(cluster.open_home().lake), clock.now_us(), problems)
            yield now, [*there, *changes(name, before, now)]
            before, there = now, []
            pause(every_seconds)
    finally:
        sessions.close()


def _begun(lake: Lake, clock: Clock) -> Look:
    """What was known before the first look."""
    changing = cluster_changes.changing(lake)
    problems = {} if changing is None else {(CLUSTER, TOPOLOGY): changing.transition}
    return looked(lake, clock.now_us(), problems)


def _problems(
    sessions: StandingSessions, cluster: KnownCluster, clock: Clock, before: dict[Key, str]
) -> dict[Key, str]:
    """Look at a cluster, and answer what stands in the way now."""
    try:
        at_a_glance = sessions.glance(cluster)
        down = telling.down(at_a_glance.down)
        if at_a_glance.mark == last_mark(cluster):  # nothing was left out then
            return telling.standing((), at_a_glance.changing) | down
        seen = observe(cluster, clock)
    except PlatformError as error:
        return unanswered(before, error)
    return telling.standing(seen.incomplete, seen.changing) | down
