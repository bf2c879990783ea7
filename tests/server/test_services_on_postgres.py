"""Dagster's separate services with storage in a real Postgres: joins, a dead daemon, an outage."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter, job, op
from support.receiver import receiving
from support.waiting import await_true
from support.worlds.postgres import PASSWORD, Postgres
from support.worlds.rehearsal import node_config
from support.worlds.services import Services, request

from cdc_platform import dagster_home
from cdc_platform.clock import Clock
from cdc_platform.dagster_home import INSTANCE_FILE, POSTGRES_VARIABLES, prepare_dagster_home
from cdc_platform.delta import JOINS_LOCK, Lake, lake_lock
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.server.dagster_watch import STORAGE_SECONDS, DagsterWatch
from cdc_platform.tables import GENERATION_TIMESTAMPS
from cdc_platform_assets.alerts import build_run_alert
from cdc_platform_assets.failures import read_run_failure

SECONDS = 300
PARTS = ("home", "code_location", "storage")
_EVENTS = """{ logsForRun(runId: "%s") { ... on EventConnection { events {
    __typename ... on MessageEvent { message } } } } }"""
_RUNS = '{ runsOrError(filter: {pipelineName: "join"}) { ... on Runs { results { runId status } } } }'


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A Postgres server for this module."""
    with tempfile.TemporaryDirectory(prefix="cdc-postgres-") as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def postgres_home(tmp_path: Path) -> HomeLocation:
    """A home whose settings select Postgres."""
    home = open_home_location(tmp_path / "home")
    (home.path / "settings.toml").write_text('dagster_storage = "postgres"\n', encoding="utf-8")
    return open_home_location(home.path)


def runs(port: int) -> list[dict[str, Any]]:
    """Return the joins' runs as a webserver shows them."""
    _, document = request(port, "/graphql", _RUNS)
    return document["data"]["runsOrError"]["results"] if document else []


def statuses(port: int) -> set[str]:
    """Return the statuses of the joins' runs."""
    return {run["status"] for run in runs(port)}


def await_runs(port: int, is_found: Callable[[], bool], subject: str) -> None:
    """Wait for runs; a failure shows all of them."""
    try:
        await_true(is_found, SECONDS, subject)
    except AssertionError as error:
        raise AssertionError(f"{error}: {runs(port)}") from None


def await_worker(port: int) -> int:
    """Return the ID of the process of the newest join's run, once its step has begun."""
    run_id = runs(port)[0]["runId"]
    pids: list[int] = []

    def has_begun() -> bool:
        _, document = request(port, "/graphql", _EVENTS % run_id)
        events = document["data"]["logsForRun"]["events"] if document else []
        pids[:] = [int(pid) for event in events for pid in re.findall(r"\(pid: (\d+)\)", event.get("message", ""))]
        return any(event["__typename"] == "ExecutionStepStartEvent" for event in events)

    await_true(has_begun, SECONDS, "the first step of a join")
    return pids[0]


def monitor_often(home: HomeLocation) -> None:
    """Let Dagster free the pools of ended runs at once. By default that takes two minutes."""
    settings = prepare_dagster_home(home) / INSTANCE_FILE
    text, count = re.subn("(?<=poll_interval_seconds: )30|(?<=run_end_seconds: )60", "1", settings.read_text("utf-8"))
    assert count == 2
    settings.write_text(text, encoding="utf-8")


def assert_outage_is_an_alert(home: HomeLocation) -> None:
    """Assert that each failed run is a warning about its repetition, and that no pool is occupied."""
    with DagsterInstance.from_config(str(home.dagster)) as instance:
        failed = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE]))
        assert failed
        for run in failed:
            alert = build_run_alert(instance, run, home)
            assert alert.level == "warning", alert
            assert alert.message.endswith("; it is repeated until it succeeds"), alert
        storage = instance.event_log_storage
        for pool in storage.get_concurrency_keys():
            assert not storage.get_concurrency_info(pool).active_run_ids & {run.run_id for run in failed}


def published(home: HomeLocation) -> int:
    """Return the number of published generations."""
    return Lake(home.lake).read(GENERATION_TIMESTAMPS).num_rows


def ready(port: int) -> dict[str, str | None] | None:
    """Return the reason of each part of /ready, or None without an answer."""
    status, document = request(port, "/ready")
    if not status:
        return None
    reasons = {name: part["reason"] for name, part in document["parts"].items()}
    assert (status == 200) == (not any(reasons.values()))
    return reasons


@pytest.mark.dagster
@pytest.mark.processes
@pytest.mark.timeout(1500)
@pytest.mark.long("four services of Dagster, four joins, and an outage of Postgres during one of them")
@pytest.mark.skipif(sys.platform != "linux", reason="sockets are inherited as in a unit of systemd")
def test_joins_survive_the_daemon_and_postgres(
    postgres: Postgres, postgres_home: HomeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed daemon and an outage that ends a running join repeat no join, and two webservers show one history."""
    environment = postgres.create_database("services")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monitor_often(postgres_home)
    with tempfile.TemporaryDirectory(prefix="cdc-run-") as folder:
        services = Services(postgres_home.path, Path(folder), environment)
        try:
            services.start_code_server()
            services.start_daemon()
            ports = [services.start_ui("ui-1"), services.start_ui("ui-2")]
            for port in ports:
                await_true(lambda port=port: ready(port) == dict.fromkeys(PARTS), SECONDS, "a webserver")
            queue(postgres_home, 1)
            await_true(lambda: published(postgres_home) == 1, SECONDS, "the first join")
            queue(postgres_home, 2)
            await_true(lambda: len(runs(ports[0])) == 2, SECONDS, "the start of the second join")
            services.kill("daemon")
            services.start_daemon()
            await_true(lambda: published(postgres_home) == 2, SECONDS, "the join after the daemon was killed")
            await_runs(ports[0], lambda: statuses(ports[0]) == {"SUCCESS"}, "the end of the second join")
            with lake_lock(Lake(postgres_home.lake), JOINS_LOCK):
                queue(postgres_home, 3)
                await_runs(ports[0], lambda: "STARTED" in statuses(ports[0]), "the start of the third join")
                worker = await_worker(ports[0])
                postgres.stop()
            await_true(lambda: not Path(f"/proc/{worker}").exists(), SECONDS, "the end of the third join's worker")
            for port in ports:
                reasons = ready(port)
                assert reasons is not None
                assert [name for name, reason in reasons.items() if reason] == ["storage"]
                assert request(port, "/health")[0] == 200
            queue(postgres_home, 4)
            postgres.start()
            for port in ports:
                await_true(lambda port=port: ready(port) == dict.fromkeys(PARTS), SECONDS, "a webserver that recovers")

            def all_joined() -> bool:
                services.restart_ended()
                return published(postgres_home) == 4 and statuses(ports[0]) <= {"SUCCESS", "FAILURE"}

            await_runs(ports[0], all_joined, "the joins after the outage")
            assert runs(ports[0]) == runs(ports[1])
            assert [run["status"] for run in runs(ports[0])].count("SUCCESS") == 4
            assert_outage_is_an_alert(postgres_home)
            assert not list((postgres_home.dagster / "history").glob("*.db"))
            stored = [path for path in postgres_home.path.rglob("*") if path.is_file()]
            assert not [path for path in stored if PASSWORD.encode() in path.read_bytes()]
        finally:
            services.stop()


def test_outage_of_postgres_is_an_alert(
    postgres: Postgres, postgres_home: HomeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert is sent once although the outage stops Dagster's sensors, has no password, and is resolved after it."""
    for name, value in postgres.create_database("alerts").items():
        monkeypatch.setenv(name, value)
    folder = prepare_dagster_home(postgres_home)
    now = 0.0
    with receiving() as receiver:
        monkeypatch.setenv("HOOK_URL", receiver.url)
        with (postgres_home.path / "settings.toml").open("a", encoding="utf-8") as settings:
            settings.write('[alerts]\nwebhook_env = "HOOK_URL"\n')
        watch = DagsterWatch(postgres_home, lambda: DagsterInstance.from_config(str(folder)), monotonic=lambda: now)
        assert watch.check() == []
        postgres.stop()
        try:
            now += STORAGE_SECONDS
            (alert,) = watch.check()
        finally:
            postgres.start()
        assert alert.key == "dagster/storage"
        assert f"port {postgres.port} failed: Connection refused" in alert.message
        assert "SQL" not in alert.message
        assert watch.check() == []
    assert [(message["key"], message["status"]) for message in receiver.posted] == [
        ("dagster/storage", "open"),
        ("dagster/storage", "resolved"),
    ]
    assert PASSWORD not in json.dumps(receiver.posted)


@pytest.mark.dagster
@pytest.mark.parametrize("ended_by", ["server", "client"])
def test_lost_connection_to_postgres_is_an_outage(postgres: Postgres, ended_by: str) -> None:
    """A run that fails because either side closed its connection is repeated until it succeeds."""
    psycopg2: Any = pytest.importorskip("psycopg2")
    host, port, user, password, name = postgres.create_database(f"ended_by_{ended_by}").values()
    options = {"host": host, "port": port, "user": user, "password": password, "dbname": name}

    @op
    def use_lost_connection() -> None:
        connection, other = psycopg2.connect(**options), psycopg2.connect(**options)
        if ended_by == "client":
            connection.close()
        else:
            other.cursor().execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        other.close()
        connection.cursor().execute("SELECT 1")

    @job
    def using() -> None:
        use_lost_connection()

    with DagsterInstance.ephemeral() as instance:
        result = using.execute_in_process(instance=instance, raise_on_error=False)
        failure = read_run_failure(instance, result.run_id)
    assert failure.recovery == "outage", failure


def queue(home: HomeLocation, number: int) -> None:
    """Queue the join of a node."""
    inbox.queue_join(Lake(home.lake), Clock(), JoinRequest.model_validate(node_config(number)))


def test_setting_selects_postgres(postgres_home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also selects SQLite again; a user's changes of settings stay, and no secret is written."""
    for name in POSTGRES_VARIABLES:
        monkeypatch.setenv(name, f"value of {name}")
    settings = prepare_dagster_home(postgres_home) / INSTANCE_FILE
    text = settings.read_text(encoding="utf-8")
    assert all(f"{{env: {name}}}" in text for name in POSTGRES_VARIABLES)
    assert "value of" not in text
    (postgres_home.path / "settings.toml").unlink()
    sqlite = open_home_location(postgres_home.path)
    prepare_dagster_home(sqlite)
    assert "storage:" not in settings.read_text(encoding="utf-8")
    assert text.startswith(settings.read_text(encoding="utf-8"))
    settings.write_text(f"# of a person\n{text}", encoding="utf-8")
    prepare_dagster_home(sqlite)
    assert settings.read_text(encoding="utf-8").startswith("# of a person")


def test_missing_postgres_is_one_line(postgres_home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the library or each variable, before anything is written."""
    for name in POSTGRES_VARIABLES:
        monkeypatch.setenv(name, "value")
    monkeypatch.delenv("DAGSTER_PG_PASSWORD")
    monkeypatch.setenv("DAGSTER_PG_DB", "")
    with pytest.raises(EnvironmentProblem, match="the environment lacks DAGSTER_PG_PASSWORD, DAGSTER_PG_DB; set them"):
        prepare_dagster_home(postgres_home)
    monkeypatch.setattr(dagster_home, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentProblem, match=r"is not installed; install cdc-platform\[postgres\]$"):
        prepare_dagster_home(postgres_home)
    assert list(postgres_home.dagster.iterdir()) == []
