"""A home and a Dagster instance for each test of the assets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance
from support.worlds.rehearsal import Rehearsal

from cdc_platform.home import VARIABLE
from cdc_platform.lake.lake import Lake


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    """An empty platform."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "home"))
    with DagsterInstance.ephemeral() as instance:
        yield Rehearsal(instance, Lake(tmp_path / "home" / "lake"))
