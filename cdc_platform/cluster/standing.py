"""Sessions with clusters that stay open from one look to the next, each opened when it is needed first."""

from __future__ import annotations

import atexit
import threading
from contextlib import ExitStack

from cdc_platform.cluster import known
from cdc_platform.cluster.connection import Connection
from cdc_platform.cluster.glance import Glance, glance
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.session import LiveCluster, connected
from cdc_platform.errors import PlatformError


class StandingSessions:
    """One session a cluster. One that fails is closed, and opened anew at the next look; all end with the process."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Connection, LiveCluster, ExitStack]] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)

    def glance(self, cluster: KnownCluster) -> Glance:
        """A glance at a cluster.

        Raises:
            EnvironmentProblem: it cannot be reached, or does not let us in.
            StateError: it is another cluster than before.
        """
        with self._lock:
            try:
                seen = glance(self._session(cluster))
            except PlatformError:
                self._end(cluster.name)
                raise
        known.assert_same(cluster, seen.identity)
        return seen

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            for name in list(self._open):
                self._end(name)

    def _session(self, cluster: KnownCluster) -> LiveCluster:
        standing = self._open.get(cluster.name)
        if standing is not None and standing[0] != cluster.connection:
            self._end(cluster.name)
            standing = None
        if standing is None:
            stack = ExitStack()
            live = stack.enter_context(connected(cluster.name, cluster.connection, known_nodes=cluster.node_addresses))
            self._open[cluster.name] = (cluster.connection, live, stack)
            return live
        return standing[1]

    def _end(self, name: str) -> None:
        standing = self._open.pop(name, None)
        if standing is not None:
            standing[2].close()
