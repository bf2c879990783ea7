"""A home with the stand-in under a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.standin.cluster import StandIn

from cdc_platform.cluster import known
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.home import open_home


@pytest.fixture
def cluster(standin: StandIn, tmp_path: Path) -> KnownCluster:
    """The stand-in under the name `prod`, in a home of the test's own."""
    return known.add(open_home(tmp_path / "home"), "prod", standin.connection())
