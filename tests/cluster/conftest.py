"""A home with the stand-in under a name, and a table there whose log is empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.standin.brought import DDL, GENERATIONS, SWITCH_MS
from support.standin.cluster import StandIn
from support.standin.live_log import LiveLog, defined
from support.standin.world import time_uuid

from cdc_platform.cluster import known
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.home import open_home


@pytest.fixture
def cluster(standin: StandIn, tmp_path: Path) -> KnownCluster:
    """The stand-in under the name `prod`, in a home of the test's own."""
    return known.add(open_home(tmp_path / "home"), "prod", standin.connection())


@pytest.fixture
def log(standin: StandIn) -> LiveLog:
    """`shop.t` with an empty log, and a second generation an hour after the first."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    return LiveLog(standin.world, defined(DDL), GENERATIONS).make()
