"""Dagster's services apart from each other, with their storage in a real Postgres: joins, a dead daemon, an outage."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import await_true
from support.worlds.postgres import PASSWORD, Postgres
from support.worlds.rehearsal import node_config
from support.worlds.services import Services, request

from cdc_platform import dagster_home
from cdc_platform.clock import Clock
from cdc_platform.dagster_home import INSTANCE_FILE, POSTGRES_VARIABLES, prepare_dagster_home
from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.tables import GENERATION_TIMESTAMPS

SECONDS = 200
PARTS = ("home", "code_location", "storage")
_RUNS = '{ runsOrError(filter: {pipelineName: "join"}) { ... on Runs { results { runId status } } } }'


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server of this module."""
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
@pytest.mark.timeout(900)
@pytest.mark.long("four services of Dagster, three joins, and an outage of Postgres")
@pytest.mark.skipif(sys.platform != "linux", reason="sockets are inherited as in a unit of systemd")
def test_joins_survive_the_daemon_and_postgres(postgres: Postgres, postgres_home: HomeLocation) -> None:
    """Two webservers show one history; a killed daemon and an outage of Postgres delay a join and repeat none."""
    with tempfile.TemporaryDirectory(prefix="cdc-run-") as folder:
        services = Services(postgres_home.path, Path(folder), postgres.create_database("services"))
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
            postgres.stop()
            for port in ports:
                reasons = ready(port)
                assert reasons is not None
                assert [name for name, reason in reasons.items() if reason] == ["storage"]
                assert request(port, "/health")[0] == 200
            queue(postgres_home, 3)
            postgres.start()
            for port in ports:
                await_true(lambda port=port: ready(port) == dict.fromkeys(PARTS), SECONDS, "a webserver that recovers")

            def third_join() -> bool:
                services.restart_ended()
                return published(postgres_home) == 3

            await_true(third_join, SECONDS, "the join after the outage")
            await_true(lambda: {run["status"] for run in runs(ports[0])} == {"SUCCESS"}, SECONDS, "the end of all runs")
            assert runs(ports[0]) == runs(ports[1])
            assert len(runs(ports[0])) == 3
            assert not list((postgres_home.dagster / "history").glob("*.db"))
            stored = [path for path in postgres_home.path.rglob("*") if path.is_file()]
            assert not [path for path in stored if PASSWORD.encode() in path.read_bytes()]
        finally:
            services.stop()


def queue(home: HomeLocation, number: int) -> None:
    """Queue the join of a node."""
    inbox.queue_join(Lake(home.lake), Clock(), JoinRequest.model_validate(node_config(number)))


def test_the_setting_selects_postgres(postgres_home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """And back; settings that a person has changed stay, and no secret is written."""
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
    """The library and each variable, by name, before anything is written."""
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
