"""Watch a live cluster: compare what its home holds from one look to the next, over sessions that stay open."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from cdc_platform.cdclog import FROM_CLUSTER
from cdc_platform.clock import Clock, Microseconds, format_us
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.home import Home
from cdc_platform.metastore import CLUSTER_SUBJECT, TOPOLOGY_ASPECT, AspectKey, cluster_changes, consumers
from cdc_platform.scylla import changes as telling
from cdc_platform.scylla import registry
from cdc_platform.scylla.changes import LOOK, REACH
from cdc_platform.scylla.connection import Connection
from cdc_platform.scylla.errors import Refused, Unreachable
from cdc_platform.scylla.metadata_fingerprint import MetadataSnapshot, read_last_fingerprint, take_metadata_snapshot
from cdc_platform.scylla.observe import run_observation
from cdc_platform.scylla.registry import ScyllaCluster
from cdc_platform.scylla.session import ScyllaSession, open_session


class SessionPool:
    """One session a cluster. One that fails is closed, and opened anew at the next look; all end with the process."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Connection, ScyllaSession, ExitStack]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def glance(self, cluster: ScyllaCluster) -> MetadataSnapshot:
        """A glance at a cluster.

        Raises:
            EnvironmentProblem: it cannot be reached, or does not let us in.
            StateError: it is another cluster than before.
        """
        with self._lock:
            try:
                seen = take_metadata_snapshot(self._session(cluster))
            except PlatformError:
                self._end(cluster.name)
                raise
        registry.assert_same_cluster(cluster, seen.identity)
        return seen

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            for name in list(self._open):
                self._end(name)

    def _session(self, cluster: ScyllaCluster) -> ScyllaSession:
        standing = self._open.get(cluster.name)
        if standing is not None and standing[0] != cluster.connection:
            self._end(cluster.name)
            standing = None
        if standing is None:
            stack = ExitStack()
            live = stack.enter_context(
                open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses)
            )
            self._open[cluster.name] = (cluster.connection, live, stack)
            return live
        return standing[1]

    def _end(self, name: str) -> None:
        standing = self._open.pop(name, None)
        if standing is not None:
            standing[2].close()


@dataclass(frozen=True)
class WatchedChange:
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
class ClusterView:
    """What a cluster's home holds, `state`, and what stands in the way of more, `problems`: a line each.

    Positions are how far (µs) each log was brought in.
    """

    at_us: Microseconds
    state: dict[AspectKey, str] = field(default_factory=dict)
    problems: dict[AspectKey, str] = field(default_factory=dict)
    positions: dict[str, Microseconds] = field(default_factory=dict)

    def named(self, kind: str) -> dict[str, str]:
        """The nodes, tables or generations by name, each with the line that says how it is."""
        return {
            who.removeprefix(f"{kind} "): how.partition("\n")[0]
            for (who, aspect), how in self.state.items()
            if who.startswith(f"{kind} ") and not aspect
        }


def read_cluster_view(lake: Lake, now_us: Microseconds, problems: dict[AspectKey, str] | None = None) -> ClusterView:
    """What is in a home now."""
    positions = {
        f"{each.keyspace_name}.{each.table_name}": each.position_us
        for each in consumers.read_consumers(lake)
        if each.name == FROM_CLUSTER
    }
    return ClusterView(now_us, telling.read_cluster_state(lake), problems or {}, positions)


def diff_views(name: str, before: ClusterView, after: ClusterView) -> list[WatchedChange]:
    """What became other in a cluster between two looks, nodes first."""
    found = telling.diff_states(before.state | before.problems, after.state | after.problems, after.at_us)
    return [WatchedChange(after.at_us, name, each.who, each.what) for each in found]


def problems_after_failure(problems: dict[AspectKey, str], error: PlatformError) -> dict[AspectKey, str]:
    """What stands in the way after a look that failed: the rest is as it was when it was seen last."""
    if isinstance(error, (Unreachable, Refused)):
        return problems | {(CLUSTER_SUBJECT, REACH): str(error)}
    return _without_reach_problem(problems) | {(CLUSTER_SUBJECT, LOOK): str(error)}


def _without_reach_problem(problems: dict[AspectKey, str]) -> dict[AspectKey, str]:
    return {key: line for key, line in problems.items() if key != (CLUSTER_SUBJECT, REACH)}


def watch_cluster(
    home: Home, name: str, clock: Clock, every_seconds: float, pause: Callable[[float], None] = time.sleep
) -> Generator[tuple[ClusterView, list[WatchedChange]], None, None]:
    """Look at a cluster again and again, and observe it when a glance says so; never ends by itself.

    A cluster that cannot be reached is a change like others, and asked again. The first look tells all that there is.

    Raises:
        NotFound: no cluster of this name is known.
    """
    sessions = SessionPool()
    try:
        before = _initial_view(Lake(registry.find_cluster(home, name).open_home().lake), clock)
        there = [replace(each, fresh=False) for each in diff_views(name, ClusterView(before.at_us), before)]
        while True:
            cluster = registry.find_cluster(home, name)
            problems = _find_problems(sessions, cluster, clock, before.problems)
            now = read_cluster_view(Lake(cluster.open_home().lake), clock.now_us(), problems)
            yield now, [*there, *diff_views(name, before, now)]
            before, there = now, []
            pause(every_seconds)
    finally:
        sessions.close()


def _initial_view(lake: Lake, clock: Clock) -> ClusterView:
    """What was known before the first look."""
    changing = cluster_changes.read_topology_transition(lake)
    problems = {} if changing is None else {(CLUSTER_SUBJECT, TOPOLOGY_ASPECT): changing.transition}
    return read_cluster_view(lake, clock.now_us(), problems)


def _find_problems(
    sessions: SessionPool, cluster: ScyllaCluster, clock: Clock, before: dict[AspectKey, str]
) -> dict[AspectKey, str]:
    """Look at a cluster, and answer what stands in the way now."""
    try:
        at_a_glance = sessions.glance(cluster)
        down = telling.down_nodes(at_a_glance.down)
        if at_a_glance.mark == read_last_fingerprint(cluster):  # nothing was left out then
            return telling.current_problems((), at_a_glance.changing) | down
        seen = run_observation(cluster, clock)
    except PlatformError as error:
        return problems_after_failure(before, error)
    return telling.current_problems(seen.incomplete, seen.changing) | down
