"""Joining nodes for the tests of the lifecycle."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cdc_platform.lake.connect import ConnectServer
from cdc_platform.records.join_request import JoinRequest
from cdc_platform.sources.bootstrap_file import parse_join_request

Joining = Callable[..., JoinRequest]


def node_text(number: int, count: int = 16, shard_count: int = 4, ignore_msb: int = 12) -> str:
    """The bootstrap file of node `number`: `count` random tokens, the same whenever it is made again."""
    tokens = np.random.default_rng(number).integers(-(2**63) + 1, 2**63 - 1, count, dtype=np.int64)
    fields = {
        "host_id": str(uuid.UUID(int=number)),
        "address": f"10.0.0.{number}",
        "datacenter": "dc1",
        "rack": "r1",
        "tokens": sorted(tokens.tolist()),
        "shard_count": shard_count,
        "ignore_msb": ignore_msb,
    }
    return json.dumps(fields)


@pytest.fixture(scope="session")
def server() -> Iterator[ConnectServer]:
    """A warm Connect server, which spares each process the start of a JVM."""
    with ConnectServer(heavy=False) as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap_text() -> Callable[..., str]:
    """Make the bootstrap file of a node, see `node_text`."""
    return node_text


@pytest.fixture
def joining() -> Joining:
    """Make the request of a node, see `node_text`."""

    def make(*arguments: int, **named: int) -> JoinRequest:
        return parse_join_request(node_text(*arguments, **named))

    return make
