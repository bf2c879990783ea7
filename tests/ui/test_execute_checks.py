"""*Execute all* of the Checks tab, launched over GraphQL as the UI does, without a partition, or for one check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetCheckKey, AssetKey, DagsterInstance
from dagster._core.event_api import PartitionKeyFilter
from deltalake import DeltaTable, write_deltalake
from support.homes.foreign import rows_of
from support.nodes import join_request
from support.ports import free_ports

from cdc_platform.clock import MINUTE_US, Clock, parse_time_us
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.partitions import GENERATIONS_NAME
from cdc_platform_assets.specs import asset_key_from_table

pytestmark = pytest.mark.long("a UI and a code server of Dagster's, which import it for seconds")
GRAPH = defs.get_repository_def().asset_graph
ASSET = asset_key_from_table(STREAMS_DESCRIPTIONS_V2)
LAUNCH = """mutation ($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
STATUS = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
REPOSITORY = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"


@dataclass(frozen=True)
class Ui:
    """A UI for a home with two generations."""

    port: int
    lake: Lake
    instance: DagsterInstance

    def ask(self, query: str, **variables: Any) -> Any:
        """Return the UI's answer to its own page, repeating the request until the UI listens."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql", body, {"Content-Type": "application/json"}
        )
        for _ in range(600):
            try:
                with urllib.request.urlopen(request, timeout=200) as answer:
                    return json.load(answer)["data"]
            except urllib.error.URLError:
                time.sleep(0.2)
        raise AssertionError("the UI does not listen")

    def execute(self, checks: list[AssetCheckKey]) -> str:
        """Launch checks as the Checks tab does, wait for the run, and return its status."""
        (repository,) = self.ask(REPOSITORY)["repositoriesOrError"]["nodes"]
        keys = [{"assetKey": {"path": key.asset_key.path}, "name": key.name} for key in checks]
        params = {
            "mode": "default",
            "executionMetadata": {"tags": []},
            "runConfigData": "{}",
            "selector": {
                "repositoryLocationName": repository["location"]["name"],
                "repositoryName": repository["name"],
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [],
                "assetCheckSelection": keys,
            },
        }
        launched = self.ask(LAUNCH, params=params)["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        status = "QUEUED"
        while status not in ("SUCCESS", "FAILURE", "CANCELED"):
            time.sleep(0.2)
            status = self.ask(STATUS, id=launched["run"]["runId"])["runOrError"]["status"]
        return status

    def results(self, checks: list[AssetCheckKey], partition: str) -> dict[str, str]:
        """Return the newest result of each check on a partition."""
        records = self.instance.event_log_storage.get_latest_asset_check_execution_by_key(
            checks, partition_filter=PartitionKeyFilter(key=partition)
        )
        return {key.name: record.status.value for key, record in records.items()}


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """Two generations, created by the command line and shown by Dagster's own UI."""
    folder = tmp_path_factory.mktemp("ui")
    lake = Lake(folder / "home" / "lake")
    for number in (1, 2):
        clock = Clock(parse_time_us("2026-01-31T12:00:00Z") + MINUTE_US * 10 * number)
        event = inbox.queue_join(lake, clock, join_request(number, 4, 2))
        run_join(TaskRunner.alone(), lake, clock, Settings(), event.generation_id)
    (folder / "dagster").mkdir()
    # No daemon that takes runs from a queue is needed.
    launcher = "run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}\n"
    settings = f"telemetry: {{enabled: false}}\n{launcher}"
    (folder / "dagster" / "dagster.yaml").write_text(settings, encoding="utf-8")
    (folder / "shown.py").write_text("from cdc_platform.definitions import defs\n", encoding="utf-8")
    (port,) = free_ports(1)
    command = ["dagster_webserver", "--port", str(port), "--python-file", str(folder / "shown.py")]
    homes = {"DAGSTER_HOME": str(folder / "dagster"), "CDC_PLATFORM_HOME": str(folder / "home")}
    with DagsterInstance.from_config(str(folder / "dagster")) as instance:
        sync_catalog(lake, instance, GRAPH, most=None)
        running = subprocess.Popen(
            [sys.executable, "-m", *command], env=os.environ | homes, cwd=Path(__file__).parents[2]
        )
        try:
            yield Ui(port, lake, instance)
        finally:
            running.terminate()
            running.wait(60)


def checks_of(asset: AssetKey) -> list[AssetCheckKey]:
    """Return all checks of an asset."""
    return sorted((key for key in GRAPH.asset_check_keys if key.asset_key == asset), key=lambda key: key.name)


def test_execute_all_checks_every_partition(ui: Ui) -> None:
    """Each partition has its own results; a foreign row fails one partition and the run, not the other partition."""
    checks = checks_of(ASSET)
    first, second = ui.instance.get_dynamic_partitions(GENERATIONS_NAME)
    assert ui.execute(checks) == "SUCCESS"
    passed = dict.fromkeys((key.name for key in checks), "SUCCEEDED")
    assert ui.results(checks, first) == ui.results(checks, second) == passed
    folder = ui.lake.path(STREAMS_DESCRIPTIONS_V2)
    rows = sorted(rows_of(Path(folder)), key=lambda row: row["time"])
    schema = pa.schema(DeltaTable(folder).schema())
    foreign = rows[0] | {"range_end": rows[0]["range_end"] + 1}
    write_deltalake(folder, pa.Table.from_pylist([foreign], schema=schema), mode="append")
    assert ui.execute(checks) == "FAILURE", "published_equals_description blocks"
    red = {"published_equals_description", "rows_as_committed", "commits_known"}
    assert ui.results(checks, first) == passed | dict.fromkeys(red, "FAILED")
    assert ui.results(checks, second) == passed


def test_single_check_is_executed_alone(ui: Ui) -> None:
    """It checks every partition, and the other checks' results stay."""
    (single,) = (key for key in checks_of(asset_key_from_table(STREAMS_DESCRIPTIONS_V2)) if key.name == "files_whole")
    before = {key: ui.instance.event_log_storage.get_asset_check_execution_history(key, 5) for key in checks_of(ASSET)}
    assert ui.execute([single]) == "SUCCESS"
    after = {key: ui.instance.event_log_storage.get_asset_check_execution_history(key, 5) for key in checks_of(ASSET)}
    assert {key for key in before if [r.id for r in before[key]] != [r.id for r in after[key]]} == {single}
