"""Fixtures of tests with a live cluster: the registered cluster, a log and a table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.standin.brought import DDL, GENERATIONS, SWITCH_MS
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.live_log import LiveLog, defined
from support.standin.live_table import LiveTable
from support.standin.world import time_uuid

from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import ScyllaCluster, registry


@pytest.fixture
def cluster(standin: StandIn, tmp_path: Path) -> ScyllaCluster:
    """Register the stand-in as `prod` in the test's own home."""
    return registry.add_cluster(open_home_location(tmp_path / "home"), "prod", standin.connection())


@pytest.fixture
def log(standin: StandIn) -> LiveLog:
    """Create `shop.t` with an empty log, and a second generation an hour after the first."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    return LiveLog(standin.world, defined(DDL), GENERATIONS).make()


TABLE = "CREATE TABLE shop.t (p int, k int, v int, l list<int>, m map<int, int>, PRIMARY KEY (p, k))"


@pytest.fixture
def table(standin: StandIn) -> LiveTable:
    """Create `shop.t` with two keys, a value, a list and a map, and an empty log."""
    schema = defined(f"{TABLE} WITH cdc = {{'enabled': 'true', 'ttl': '0'}};")
    standin.proxy.collections, standin.proxy.lists = {"l", "m"}, {"l"}
    return LiveTable(standin.world, schema, {FIRST_MS: description(time_uuid(FIRST_MS))}, random.Random(7)).make()
