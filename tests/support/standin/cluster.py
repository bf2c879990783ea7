"""The whole stand-in: a Cassandra, its proxy, and the contents of the cluster. It starts once per test run."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from support.ports import free_ports
from support.standin.proxy import Proxy
from support.standin.server import CassandraServer
from support.standin.world import World, time_uuid

from cdc_platform.clock import Milliseconds
from cdc_platform.generations import RingLayout, TopologyDescription, generate_description
from cdc_platform.ring import Node, Ring
from cdc_platform.scylla import Connection

NODES = 3
SHARDS = 4
USER, PASSWORD = "CDC_TEST_USER", "CDC_TEST_PASSWORD"
FIRST_MS = Milliseconds(1_790_000_000_000)
"""The start of the first generation of the tests, long enough ago for every clock here."""


class StandIn:
    """A cluster of three nodes that answers as ScyllaDB does."""

    def __init__(self, folder: Path) -> None:
        self.server = CassandraServer(folder)
        self.world = World(self.server.port, NODES)
        self.proxy = Proxy(self.server.port, free_ports(1)[0], NODES, SHARDS)

    def stop(self) -> None:
        """Stop everything."""
        self.proxy.stop()
        self.world.stop()
        self.server.stop()

    def reset(self, kept: Collection[str] = ()) -> None:
        """Reset to an empty cluster of three nodes with one generation, without counts and faults.

        A test that will create tables of another test may retain them with `kept` if they are the same.
        """
        self.proxy.reset()
        if self.world.changed:
            self.world.empty(kept)
            self.world.cluster(nodes())
            self.world.generation(FIRST_MS, time_uuid(FIRST_MS), description(time_uuid(FIRST_MS)))
            self.world.changed = False

    def connection(self, **changes: object) -> Connection:
        """Return the connection to it, with user and password from the environment."""
        values = {
            "contacts": (f"127.0.0.1:{self.proxy.port}",),
            "user_env": USER,
            "password_env": PASSWORD,
            "connect_timeout": 20.0,
            "request_timeout": 20.0,
        }
        return Connection.model_validate(values | changes)


def nodes(count: int = NODES, tokens: int = 4, shards: int = SHARDS) -> list[Node]:
    """Return nodes at 127.0.0.1, .2, ... with random tokens that are always the same."""
    created = []
    for index in range(count):
        drawn = np.random.default_rng(index).integers(-(2**63) + 1, 2**63 - 1, tokens)
        host = uuid.UUID(int=0xC0FFEE_0000_4000_8000_000000000000 + index)
        address = f"127.0.0.{index + 1}"
        created.append(Node(host, tuple(drawn.tolist()), shards, 12, address, "datacenter1", f"rack{index}"))
    return created


def description(id_: uuid.UUID, of: Sequence[Node] | None = None) -> TopologyDescription:
    """Return a generation of the nodes' ring."""
    return generate_description(RingLayout.of(Ring.of(nodes() if of is None else of)), id_)
