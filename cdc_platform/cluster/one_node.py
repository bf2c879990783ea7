"""Which node a session asks that is connected to one alone: that of a task of Spark, of which there may be many.

The node is the coordinator of what it is asked, and reads the others as the consistency wants. Sessions are numbered,
so that they are spread over the nodes; where one's node is down, or does not answer, it is the next one's turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cassandra.policies import HostDistance, RoundRobinPolicy
from cassandra.pool import Host


class OneNode(RoundRobinPolicy):
    """Lets the driver connect to one node; in the local datacenter, where one is named and has nodes that are up."""

    def __init__(self, number: int, datacenter: str | None) -> None:
        super().__init__()
        self._number, self._datacenter = number, datacenter
        self._cluster: Any = None

    def populate(self, cluster: Any, hosts: Iterable[Host]) -> None:
        """Take the nodes, which the driver has from a contact point."""
        self._cluster = cluster
        super().populate(cluster, hosts)

    def distance(self, host: Host) -> Any:
        """To all others nothing is opened."""
        return HostDistance.LOCAL if host == self.chosen else HostDistance.IGNORED

    def make_query_plan(self, working_keyspace: str | None = None, query: Any = None) -> list[Host]:
        """The one, then the others: they have no connection, but the driver asks one of them who is there."""
        return self._in_order()

    @property
    def chosen(self) -> Host | None:
        """The node; None where none is up."""
        return next(iter(self._in_order()), None)

    def leave(self, address: str | None) -> None:
        """Let it be the next one's turn, if this is the node; None: whichever it is."""
        chosen = self.chosen
        if address is None or (chosen is not None and str(chosen.address) == address):
            self._number += 1

    def _in_order(self) -> list[Host]:
        known = [] if self._cluster is None else self._cluster.metadata.all_hosts()
        hosts = sorted(known, key=lambda host: str(host.address))
        if not hosts:
            return []
        near = [host for host in hosts if self._datacenter in (None, host.datacenter)] or hosts
        first = self._number % len(near)
        found = [*near[first:], *near[:first], *(host for host in hosts if host not in near)]
        return [host for host in found if host in self._live_hosts]
