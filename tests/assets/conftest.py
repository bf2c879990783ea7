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
    """Cache the revisions of Dagster's tables in memory, because each new instance reads all of them."""
    load, load_cached = util.load_python_file, cache(util.load_python_file)

    def load_revision(folder: str, name: str) -> ModuleType:
        return load(folder, name) if name == "env.py" else load_cached(folder, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(util, "load_python_file", load_revision)
        yield


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    """Return an empty platform."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    with DagsterInstance.ephemeral() as instance:
        yield Rehearsal(instance, Lake(tmp_path / "home" / "lake"))
