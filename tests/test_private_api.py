"""Private API of Dagster: how much of it is imported and where, and that its relied-on behaviour is unchanged."""

from __future__ import annotations

import ast
import inspect
import logging
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster import AssetCheckEvaluation, AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.definitions import data_version
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.event_log.base import EventLogStorage
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG
from dagster._core.utils import FuturesAwareThreadPoolExecutor, make_new_run_id
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._grpc.server import DagsterApiServer
from dagster_webserver.app import create_app_from_workspace_process_context
from support.waiting import await_true

from cdc_platform.cli import demo
from cdc_platform.server.code_server import load_migrations_once, report_ended_runs_after_outages
from cdc_platform_assets import data_versions

ROOT = Path(__file__).resolve().parent.parent
MOST_IMPORTS, MOST_MODULES = 6, 3
_STARTS_RUNS = """
import logging, sys, threading
from cdc_platform.server.code_server import fork_runs
from dagster._grpc.server import DagsterApiServer
from dagster._core.utils import FuturesAwareThreadPoolExecutor

if sys.argv[1] == "forked":
    fork_runs()
server = DagsterApiServer(threading.Event(), logging.getLogger(), FuturesAwareThreadPoolExecutor(1))
print(server._mp_ctx.get_start_method())
"""


def is_private(module: str) -> bool:
    """Return True if a module belongs to Dagster and not to its public API."""
    top, *below = module.split(".")
    return top in ("dagster", "dagster_shared", "dagster_webserver", "dagster_pyspark") and below != []


def sources() -> list[Path]:
    """Return the modules of the product."""
    return sorted(path for name in ("cdc_platform", "assets", "resources") for path in (ROOT / name).rglob("*.py"))


def private_imports() -> list[tuple[str, str]]:
    """Return each import of private API in the product: the file and the module that it imports from."""
    private = []
    for path in sorted(
        path for name in ("cdc_platform", "assets", "resources") for path in (ROOT / name).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            private += [(str(path.relative_to(ROOT)), module) for module in modules if is_private(module)]
    return private


def test_few_modules_import_private_api() -> None:
    """At most three modules import private API, at most six times, and no string names a private module."""
    private = private_imports()
    assert 0 < len(private) <= MOST_IMPORTS, private
    assert len({path for path, _ in private}) <= MOST_MODULES, private
    named = [
        (path.name, node.value)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("dagster._")
    ]
    assert named == []


def test_parameters_of_the_ui_page() -> None:
    """The UI's context has the parameters that `server.ui` passes; its page takes a context, a prefix and a rate."""
    context = inspect.signature(WorkspaceProcessContext).parameters
    assert {"instance", "workspace_load_target", "version", "read_only"} <= set(context)
    page = list(inspect.signature(create_app_from_workspace_process_context).parameters)
    assert page[:3] == ["workspace_process_context", "path_prefix", "live_data_poll_rate"]
    assert WorkspaceFileTarget(["workspace.yaml"]).paths == ["workspace.yaml"]


@pytest.mark.long("a process that imports Dagster's code server, twice")
def test_runs_are_forked_from_a_process_that_has_imported_them() -> None:
    """The code server takes the context that `server.code_server` sets under the name of Dagster's choice."""

    def starts_by(how: str) -> str:
        command = [sys.executable, "-c", _STARTS_RUNS, how]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert (starts_by("plain"), starts_by("forked")) == ("spawn", "forkserver")


def test_opening_the_storage_again_loads_no_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the storage again loads no migration scripts by `ScriptDirectory.from_config`."""
    load, loads = ScriptDirectory.from_config, list[str]()

    def count_loads(config: Config) -> ScriptDirectory:
        loads.append(config.get_main_option("script_location") or "")
        return load(config)

    monkeypatch.setattr(ScriptDirectory, "from_config", count_loads)
    load_migrations_once()
    (tmp_path / "dagster.yaml").touch()
    for _ in range(2):
        with DagsterInstance.from_config(str(tmp_path)) as instance:
            assert instance.get_runs_count() == 0
            assert instance.all_instigator_state() == []
    assert len(loads) == len(set(loads)) > 0


@pytest.mark.dagster
def test_a_run_that_ended_during_an_outage_is_reported_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of Dagster's code server that reports ended runs survives an unreadable storage."""
    monkeypatch.setattr(DagsterApiServer, "_check_for_orphaned_runs", DagsterApiServer._check_for_orphaned_runs)
    report_ended_runs_after_outages()
    run = DagsterRun(job_name="join", run_id=make_new_run_id(), status=DagsterRunStatus.STARTED)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.add_run(run)
        ref = instance.get_ref()
    history, away = tmp_path / "history", tmp_path / "away"
    history.rename(away)
    history.touch()
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join(60)
    over = threading.Event()
    server: Any = DagsterApiServer(over, logging.getLogger(), FuturesAwareThreadPoolExecutor(1))
    try:
        with server._execution_lock:
            server._executions[run.run_id] = (process, ref)
            server._termination_events[run.run_id] = threading.Event()
        await_true(lambda: "Runs that have ended cannot be reported yet" in caplog.text, 60, "a look that fails")
        history.unlink()
        away.rename(history)
        await_true(lambda: run.run_id not in server._executions, 60, "a look that reports")
    finally:
        over.set()
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        reported = instance.get_run_by_id(run.run_id)
        assert reported is not None
        assert reported.status is DagsterRunStatus.FAILURE
    assert caplog.text.count("Runs that have ended cannot be reported yet") == 1


def test_launches_pass_the_methods_that_tag_them() -> None:
    """The methods that `server.ui_audit` replaces exist; `test_ui` launches a run and a backfill through them."""
    assert list(inspect.signature(DagsterInstance.submit_run).parameters) == ["self", "run_id", "workspace"]
    assert list(inspect.signature(DagsterInstance.add_backfill).parameters) == ["self", "partition_backfill"]


def test_a_check_result_takes_its_target() -> None:
    """The constructor accepts the target's type, and the storage filters results by partition."""
    target = AssetCheckEvaluationTargetMaterializationData(storage_id=1, run_id="", timestamp=0.0)
    evaluation = AssetCheckEvaluation(
        asset_key=AssetKey("a"), check_name="b", passed=True, metadata={}, target_materialization_data=target
    )
    assert evaluation.target_materialization_data == target
    assert PartitionKeyFilter(key="p").key == "p"
    assert "partition_filter" in inspect.signature(EventLogStorage.get_latest_asset_check_execution_by_key).parameters


def test_tags_are_those_that_dagster_reads() -> None:
    """The tags of events, runs and outputs are spelled as in Dagster."""
    assert data_versions.DATA_VERSION_TAG == data_version.DATA_VERSION_TAG
    assert data_versions.USER_PROVIDED_TAG == data_version.DATA_VERSION_IS_USER_PROVIDED_TAG
    assert data_versions.CODE_VERSION_TAG == data_version.CODE_VERSION_TAG
    assert data_version.NULL_DATA_VERSION.value == data_versions.NULL_VERSION
    assert data_versions.NULL_EVENT == data_version.NULL_EVENT_POINTER
    key = AssetKey(["a", "b"])
    assert f"{data_versions.INPUT_VERSION_TAG}/{key.to_user_string()}" == data_version.get_input_data_version_tag(key)
    assert f"{data_versions.INPUT_EVENT_TAG}/{key.to_user_string()}" == data_version.get_input_event_pointer_tag(key)
    assert data_versions.WITHOUT_EVENT == SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
    assert demo.REPOSITORY_TAG == REPOSITORY_LABEL_TAG
