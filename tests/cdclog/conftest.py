"""A lake with one generation that has operated since 2020, and scripts that run against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.files.cql_scripts import NOW, SINCE, Accepted, Rehearse
from support.files.export_files import ID
from support.homes.imported import home_with_generations

from cdc_platform.cdclog import ScriptResult, StatementOutcome
from cdc_platform.cdclog.script.run import dry_run_script
from cdc_platform.clock import Clock, parse_time_ms, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings


@pytest.fixture(scope="session")
def streams_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with one published generation, once for all tests, which only read it."""
    return home_with_generations(tmp_path_factory.mktemp("streams"), {ID: parse_time_ms(SINCE)})


@pytest.fixture
def rehearsed(streams_home: Path) -> Rehearse:
    """Return a function that runs a script on the home, at NOW unless another time is given."""

    def on_home(text: str, *, at: str = NOW, settings: Settings | None = None, **how: Any) -> ScriptResult:
        return dry_run_script(
            text, Lake(streams_home / "lake"), Clock(parse_time_us(at)), settings or Settings(), **how
        )

    return on_home


@pytest.fixture
def accepted(rehearsed: Rehearse) -> Accepted:
    """Like `rehearsed`, for scripts whose statements are all accepted.

    Also asserts that each log replays to its table.
    """

    def checked(text: str, **how: Any) -> list[StatementOutcome]:
        result = rehearsed(text, **how)
        assert [(outcome.statement.text, str(outcome.error)) for outcome in result.outcomes if outcome.error] == []
        for table in result.tables:
            assert table.replayed is None or table.replayed == table.base
        return result.outcomes

    return checked
