"""A home and a Dagster instance for each test of the assets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from alembic import util
from dagster import DagsterInstance
from support.worlds.rehearsal import Rehearsal

from cdc_platform.delta import Lake
from cdc_platform.home_location import HOME_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def revisions_read_once() -> Iterator[None]:
    """Each new instance reads all revisions of Dagster's tables that there ever were: here they are kept in memory."""
    read, kept = util.load_python_file, cache(util.load_python_file)

    def read_once(folder: str, name: str) -> ModuleType:
        return read(folder, name) if name == "env.py" else kept(folder, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(util, "load_python_file", read_once)
        yield


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    """An empty platform."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    with DagsterInstance.ephemeral() as instance:
        yield Rehearsal(instance, Lake(tmp_path / "home" / "lake"))
