"""Watch a live cluster: compare successive states of its home, over sessions that stay open."""

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
from cdc_platform.home_location import HomeLocation
from cdc_platform.metastore import CLUSTER_SUBJECT, TOPOLOGY_ASPECT, AspectKey, cluster_changes, consumers
from cdc_platform.scylla import changes, registry
from cdc_platform.scylla.changes import LOOK, REACH
from cdc_platform.scylla.connection import Connection
from cdc_platform.scylla.errors import Refused, Unreachable
from cdc_platform.scylla.metadata_fingerprint import MetadataSnapshot, read_last_fingerprint, take_metadata_snapshot
from cdc_platform.scylla.observe import run_observation
from cdc_platform.scylla.registry import ScyllaCluster
from cdc_platform.scylla.session import ScyllaSession, open_session


class SessionPool:
    """One session per cluster. A failed session is closed and reopened at the next use; all close with the process."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Connection, ScyllaSession, ExitStack]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def take_snapshot(self, cluster: ScyllaCluster) -> MetadataSnapshot:
        """Take a metadata snapshot of a cluster.

        Raises:
            EnvironmentProblem: the cluster cannot be reached, or rejects the login.
            StateError: it is not the cluster observed before.
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
        """Close all sessions."""
        with self._lock:
            for name in list(self._open):
                self._end(name)

    def _session(self, cluster: ScyllaCluster) -> ScyllaSession:
        existing = self._open.get(cluster.name)
        if existing is not None and existing[0] != cluster.connection:
            self._end(cluster.name)
            existing = None
        if existing is None:
            stack = ExitStack()
            live = stack.enter_context(
                open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses)
            )
            self._open[cluster.name] = (cluster.connection, live, stack)
            return live
        return existing[1]

    def _end(self, name: str) -> None:
        existing = self._open.pop(name, None)
        if existing is not None:
            existing[2].close()


@dataclass(frozen=True)
class WatchedChange:
    """A change in a cluster: `who` is a node, a generation, a table or the cluster.

    A change that is not `fresh` describes the state when the watch began.
    """

    at_us: Microseconds
    cluster: str
    who: str
    what: str
    fresh: bool = True

    def document(self) -> dict[str, str]:
        """Return the change as JSON output and hooks have it."""
        return {"at": format_us(self.at_us), "cluster": self.cluster, "who": self.who, "what": self.what}


@dataclass(frozen=True)
class ClusterView:
    """A cluster's home at one time: its `state`, and the `problems` that keep it from importing more, a line each.

    `positions` are how far (µs) each log was ingested.
    """

    at_us: Microseconds
    state: dict[AspectKey, str] = field(default_factory=dict)
    problems: dict[AspectKey, str] = field(default_factory=dict)
    positions: dict[str, Microseconds] = field(default_factory=dict)

    def named(self, kind: str) -> dict[str, str]:
        """Return the nodes, tables or generations by name, each with the first line of its state."""
        return {
            who.removeprefix(f"{kind} "): how.partition("\n")[0]
            for (who, aspect), how in self.state.items()
            if who.startswith(f"{kind} ") and not aspect
        }


def read_cluster_view(lake: Lake, now_us: Microseconds, problems: dict[AspectKey, str] | None = None) -> ClusterView:
    """Return the current view of a home."""
    positions = {
        f"{consumer.keyspace_name}.{consumer.table_name}": consumer.position_us
        for consumer in consumers.read_consumers(lake)
        if consumer.name == FROM_CLUSTER
    }
    current = changes.with_ingest_lags(problems or {}, lake, now_us)
    return ClusterView(now_us, changes.read_cluster_state(lake), current, positions)


def diff_views(name: str, before: ClusterView, after: ClusterView) -> list[WatchedChange]:
    """Return what changed in a cluster between two views, nodes first."""
    differences = changes.diff_states(before.state | before.problems, after.state | after.problems, after.at_us)
    return [WatchedChange(after.at_us, name, change.who, change.what) for change in differences]


def problems_after_failure(problems: dict[AspectKey, str], error: PlatformError) -> dict[AspectKey, str]:
    """Return the problems after a failed observation; all others stay as last seen."""
    if isinstance(error, (Unreachable, Refused)):
        return problems | {(CLUSTER_SUBJECT, REACH): str(error)}
    return _without_reach_problem(problems) | {(CLUSTER_SUBJECT, LOOK): str(error)}


def _without_reach_problem(problems: dict[AspectKey, str]) -> dict[AspectKey, str]:
    return {key: line for key, line in problems.items() if key != (CLUSTER_SUBJECT, REACH)}


def watch_cluster(
    home: HomeLocation, name: str, clock: Clock, every_seconds: float, pause: Callable[[float], None] = time.sleep
) -> Generator[tuple[ClusterView, list[WatchedChange]], None, None]:
    """Take a snapshot of a cluster periodically, and observe it if its fingerprint changed; never return.

    An unreachable cluster is reported as a change and retried. The first view reports everything that the home has.

    Raises:
        NotFound: no cluster of this name is registered.
    """
    sessions = SessionPool()
    try:
        before = _initial_view(Lake(registry.find_cluster(home, name).open_home().lake), clock)
        initial = [replace(change, fresh=False) for change in diff_views(name, ClusterView(before.at_us), before)]
        while True:
            cluster = registry.find_cluster(home, name)
            problems = _find_problems(sessions, cluster, clock, before.problems)
            now = read_cluster_view(Lake(cluster.open_home().lake), clock.now_us(), problems)
            yield now, [*initial, *diff_views(name, before, now)]
            before, initial = now, []
            pause(every_seconds)
    finally:
        sessions.close()


def _initial_view(lake: Lake, clock: Clock) -> ClusterView:
    """Return the view before the first observation."""
    changing = cluster_changes.read_topology_transition(lake)
    problems = {} if changing is None else {(CLUSTER_SUBJECT, TOPOLOGY_ASPECT): changing.transition}
    return read_cluster_view(lake, clock.now_us(), problems)


def _find_problems(
    sessions: SessionPool, cluster: ScyllaCluster, clock: Clock, before: dict[AspectKey, str]
) -> dict[AspectKey, str]:
    """Observe a cluster if its fingerprint changed, and return its current problems."""
    try:
        snapshot = sessions.take_snapshot(cluster)
        down = changes.down_nodes(snapshot.down)
        if snapshot.mark == read_last_fingerprint(cluster):  # nothing was left out then
            return changes.current_problems((), snapshot.changing) | down
        seen = run_observation(cluster, clock)
    except PlatformError as error:
        return problems_after_failure(before, error)
    return changes.current_problems(seen.incomplete, seen.changing) | down
