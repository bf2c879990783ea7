"""What every test may use: the vectors and the pace of the property tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from cdc_platform.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from serving import Serving

# The same examples in every run; `--hypothesis-profile thorough` looks further.
settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True, database=None)
settings.register_profile("thorough", max_examples=2000, deadline=None, database=None)
# Histories of the state machines: 500 here, 10,000 and more, others in every run, in `make test-long`.
HISTORIES = int(os.environ.get("CDC_PLATFORM_HISTORIES", "500"))
settings.register_profile(
    "histories", max_examples=HISTORIES, deadline=None, derandomize=HISTORIES <= 500, database=None
)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Values that the rules have to give, by group."""
    return json.loads((Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one embedded session of the tests."""
    from cdc_platform.lake.session import spark_session

    session = spark_session("cdc-platform tests")
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty lake of the test's own."""
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`cdc-platform up` on a home of its own, shared by the tests that look at it; started when the first one asks."""
    from serving import Serving

    shared = Serving(tmp_path_factory.mktemp("up") / "home")
    yield shared
    shared.stop()
