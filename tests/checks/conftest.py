"""A lake to seed for the audits."""

from __future__ import annotations

import pytest
from support.worlds.invariant_seeds import SeededLake

from cdc_platform.delta import Lake


@pytest.fixture
def seeded(lake: Lake) -> SeededLake:
    """Return an empty lake that accepts any rows."""
    return SeededLake(lake)
