"""Resources of assets: a clock that can stop, a home that is opened late, and a Spark session started on demand."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._core.storage.tags import MAX_RUNTIME_SECONDS_TAG

from cdc_platform import dagster_home
from cdc_platform.clock import parse_time_us
from cdc_platform.dagster_home import CLOCK_VARIABLE, INSTANCE_FILE, prepare_dagster_home
from cdc_platform.errors import InputError
from cdc_platform.home_location import HOME_VARIABLE, open_home_location
from cdc_platform_assets.run_requests import REQUESTED_RUN_TAGS
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

NOON, LATER = "2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"


def test_the_clock_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured time overrides the environment's; without both the machine's clock runs."""
    monkeypatch.delenv(CLOCK_VARIABLE, raising=False)
    assert ClockResource().clock().stopped_at_us is None
    monkeypatch.setenv(CLOCK_VARIABLE, LATER)
    assert ClockResource().clock().now_us() == parse_time_us(LATER)
    assert ClockResource(stopped_at=NOON).clock().now_us() == parse_time_us(NOON)
    with pytest.raises(InputError, match="without a zone"):
        ClockResource(stopped_at="2026-01-31T12:00:00").clock()


def test_the_home_is_the_configured_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configured path overrides the environment's; nothing is created before it is used."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "environment"))
    resource = HomeResource(path=str(tmp_path / "configured"))
    assert list(tmp_path.iterdir()) == []
    assert resource.lake().root == tmp_path / "configured" / "lake"
    assert HomeResource().home().path == tmp_path / "environment"
    assert resource.settings().ring_delay_ms == 30_000


def test_changed_dagster_settings_stay(tmp_path: Path) -> None:
    """The project's settings are copied once, and changes that a person makes in the copy stay."""
    home = open_home_location(tmp_path)
    settings = prepare_dagster_home(home) / INSTANCE_FILE
    assert "enabled: false" in settings.read_text(encoding="utf-8")
    settings.write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    prepare_dagster_home(home)
    assert settings.read_text(encoding="utf-8") == "telemetry: {enabled: false}\n"


def test_unchanged_dagster_settings_of_an_earlier_version_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an older home would never get the limits of runs and of stored ticks."""
    home = open_home_location(tmp_path)
    settings = prepare_dagster_home(home) / INSTANCE_FILE
    current = settings.read_text(encoding="utf-8")
    earlier = current.replace("  max_runtime_seconds: 86400", "  # max_runtime_seconds: 86400")
    monkeypatch.setattr(dagster_home, "_EARLIER_INSTANCE_FILES", {hashlib.sha256(earlier.encode()).hexdigest()})
    settings.write_text(earlier, encoding="utf-8")
    prepare_dagster_home(home)
    assert settings.read_text(encoding="utf-8") == current


def test_the_instance_ends_hanging_runs(tmp_path: Path) -> None:
    """Monitoring is on with a limit for every run, and its tag has the name that sensors' requests use."""
    folder = prepare_dagster_home(open_home_location(tmp_path))
    with DagsterInstance.from_config(str(folder)) as instance:
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_runtime_seconds == 86_400
    assert REQUESTED_RUN_TAGS[MAX_RUNTIME_SECONDS_TAG] == str(6 * 3_600)


def test_the_spark_resource_starts_nothing_on_creation() -> None:
    """Creating the resource starts neither a JVM nor a session."""
    code = (
        "from cdc_platform_resources.spark import SparkResource; SparkResource(); import sys; "
        "from pyspark import SparkContext; "
        "from pyspark.sql import SparkSession; "
        "print(SparkContext._gateway is None, SparkSession.getActiveSession() is None)"
    )
    root = Path(__file__).resolve().parents[2]
    completed = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["True", "True"]
