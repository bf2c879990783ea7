"""Live clusters in Dagster: observed when they change; their logs are first ingested by hand, then by a schedule."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import AssetKey, SkipReason, TableMetadataValue
from support.standin.cluster import FIRST_MS, PASSWORD, StandIn, description, nodes
from support.standin.kept_table import in_lake, old
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.live_table import LiveTable
from support.standin.world import OBSERVER, time_uuid
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.alerts import read_open_alerts
from cdc_platform.cdclog import log_table
from cdc_platform.clock import Clock, Microseconds, Milliseconds, format_ms, us_from_ms, us_from_seconds
from cdc_platform.definitions import defs
from cdc_platform.delta import CommitAuthor, Lake, TaskRunner, commit_as
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.ingest import ingest_table
from cdc_platform.reporting import read_home_status
from cdc_platform.scylla import ScyllaCluster, SessionPool, registry, run_observation
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.cluster.ingest import INGEST_JOB, request_scheduled_ingests
from cdc_platform_assets.cluster.observations import (
    OBSERVE_JOB,
    build_hook_callback,
    changed_clusters,
    request_observations,
)
from cdc_platform_assets.partitions import CLUSTERS_NAME, INGESTED_LOGS_NAME

pytestmark = pytest.mark.cassandra

DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
SECOND_MS = Milliseconds(FIRST_MS + 3_600_000)
MOMENT = "2026-11-22T12:00:00+00:00"


@pytest.fixture
def sessions() -> Iterator[SessionPool]:
    """Return a pool of sessions, which are closed with the test."""
    pool = SessionPool()
    yield pool
    pool.close()


@pytest.fixture
def home(rehearsal: Rehearsal) -> HomeLocation:
    """Return the home that the assets use."""
    return open_home_location(rehearsal.lake.root.parent)


@pytest.fixture
def cluster(standin: StandIn, home: HomeLocation) -> ScyllaCluster:
    """Register the stand-in under a name."""
    return registry.add_cluster(home, "prod", standin.connection())


def run_job(rehearsal: Rehearsal, job: str, partition: str) -> bool:
    """Run a job for a partition; return whether it succeeded."""
    result = defs.resolve_job_def(job).execute_in_process(
        run_config=QUIET, instance=rehearsal.instance, partition_key=partition, raise_on_error=False
    )
    return result.success


def test_without_a_cluster_the_sensor_names_the_command(
    rehearsal: Rehearsal, home: HomeLocation, sessions: SessionPool
) -> None:
    """The sensor runs by default, so that a new cluster is observed without further steps."""
    assert changed_clusters.default_status.value == "RUNNING"
    result = request_observations(home, rehearsal.instance, sessions)
    assert not result.run_requests
    assert "no cluster is registered; register one with: cdc-platform cluster add" in str(result.skip_reason)


def test_a_cluster_is_observed_when_it_changes(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster, sessions: SessionPool
) -> None:
    """A new cluster gets a partition and a run, an unchanged one none, and one with an altered schema another run."""
    first = request_observations(home, rehearsal.instance, sessions)
    (added,) = first.dynamic_partitions_requests or []
    assert list(added.partition_keys) == ["prod"]
    assert [request.partition_key for request in first.run_requests or []] == ["prod"]
    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    standin.proxy.statements.clear()
    second = request_observations(home, rehearsal.instance, sessions)
    assert not second.run_requests
    assert "prod has not changed" in str(second.skip_reason)
    assert len(standin.proxy.statements) <= 5
    tomorrow = datetime.now(UTC) + timedelta(days=1, minutes=1)
    (daily,) = request_observations(home, rehearsal.instance, sessions, moment=tomorrow).run_requests or []
    (next_day,) = (
        request_observations(home, rehearsal.instance, sessions, moment=tomorrow + timedelta(days=1)).run_requests or []
    )
    assert daily.run_key != next_day.run_key
    standin.world.schema_changed()
    assert len(request_observations(home, rehearsal.instance, sessions).run_requests or []) == 1
    for node in range(3):
        standin.proxy.kill(node)
    result = request_observations(home, rehearsal.instance, sessions)
    assert not result.run_requests
    assert "prod" in str(result.skip_reason)
    assert not run_job(rehearsal, OBSERVE_JOB, "prod")


def test_tables_get_partitions_as_they_appear(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster, sessions: SessionPool
) -> None:
    """The sensor adds them by itself; the schedule starts those that the cluster's `tables.toml` selects."""
    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])

    def tick() -> list[str]:
        result = request_observations(home, rehearsal.instance, sessions)
        added = [key for request in result.dynamic_partitions_requests or [] for key in request.partition_keys]
        rehearsal.instance.add_dynamic_partitions(INGESTED_LOGS_NAME, added)
        return added

    assert tick() == []
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    assert tick() == ["prod/Shop.Carts", "prod/shop.orders"]
    LiveLog(standin.world, defined(DDL), {FIRST_MS: description(time_uuid(FIRST_MS))}).make()
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    assert tick() == ["prod/shop.t"]
    assert isinstance(request_scheduled_ingests(home, rehearsal.instance, MOMENT), SkipReason)
    registry.get_selection_path(home, "prod").write_text('include = ["shop.*"]\nexclude = ["*.orders"]\n')
    requests = request_scheduled_ingests(home, rehearsal.instance, MOMENT)
    assert isinstance(requests, list)
    assert [request.partition_key for request in requests] == ["prod/shop.t"]


def test_a_changing_topology_is_observed_once_and_its_nodes_after_it_has_settled(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster, sessions: SessionPool
) -> None:
    """The run succeeds, reports unchanged nodes and lets the sensor rest; its event lists the other changes."""
    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    second = time_uuid(SECOND_MS)
    standin.world.generation(SECOND_MS, second, description(second, nodes(4)))
    assert len(request_observations(home, rehearsal.instance, sessions).run_requests or []) == 1
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    assert not request_observations(home, rehearsal.instance, sessions).run_requests
    event = rehearsal.instance.get_latest_materialization_event(AssetKey(["platform", "observed_cluster"]))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    assert metadata["topology"].value == (
        "the topology is changing (write_both_read_old): nodes are as before, and are taken in when it has settled"
    )
    changes = metadata["changes"]
    assert isinstance(changes, TableMetadataValue)
    change_rows = [dict(record.data) for record in changes.records]
    assert [record["who"] for record in change_rows] == ["generation 2026-09-21T15:13:20.000Z", "cluster"]

    standin.world.put("scylla.topology", key="topology", transition_state=None)
    assert len(request_observations(home, rehearsal.instance, sessions).run_requests or []) == 1
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    assert not request_observations(home, rehearsal.instance, sessions).run_requests


def test_the_configured_hook_receives_each_change_once(
    rehearsal: Rehearsal,
    home: HomeLocation,
    standin: StandIn,
    cluster: ScyllaCluster,
    sessions: SessionPool,
    tmp_path: Path,
) -> None:
    """The hook gets observed changes and outages; a repeated tick sends nothing twice; a wrong hook loses nothing."""
    received, warnings = tmp_path / "told", list[str]()
    program = tmp_path / "hook.sh"

    def tick(name: Path = program) -> list[tuple[str, str]]:
        (home.path / "settings.toml").write_text(f'cluster_hook = "{name}"\n', encoding="utf-8")
        received.write_text("", encoding="utf-8")
        for _ in range(2):
            hook = build_hook_callback(open_home_location(home.path), Clock(), warnings.append)
            request_observations(home, rehearsal.instance, sessions, hook)
        changes = [json.loads(line) for line in received.read_text(encoding="utf-8").splitlines()]
        assert {change["cluster"] for change in changes} <= {"prod"}
        return [(change["who"], change["what"]) for change in changes]

    def alerts() -> list[tuple[str | None, str | None]]:
        return [(change["key"], change["command"]) for change in read_open_alerts(home)]

    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])
    assert tick() == []
    assert [f"hook '{program}': there is no such program, or name another"] * 2 == warnings
    program.write_text(f"#!/bin/sh\ncat >> '{received}'\n", encoding="utf-8")
    program.chmod(0o700)
    assert tick() == []
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    assert len(warnings) == 2
    assert tick(tmp_path / "none") == []
    assert len(warnings) == 4
    assert [who for who, _ in tick()] == [
        *(f"node {node.address}" for node in nodes()),
        "table Shop.Carts",
        "table shop.orders",
        f"generation {format_ms(FIRST_MS)}",
    ]
    assert tick() == []
    for node in range(3):
        standin.proxy.kill(node)
    ((who, message),) = tick()
    assert (who, message[:5]) == ("cluster", "prod,")
    assert tick() == []
    assert alerts() == [("cluster/prod/cluster", f"cdc-platform cluster test prod --home {home.path}")]
    standin.proxy.faults.down.clear()
    assert tick() == [("cluster", "answers again")]
    assert (len(warnings), alerts()) == (4, [])


def test_an_incomplete_observation_fails_its_check(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster
) -> None:
    """The run observes and judges; incomplete data of the cluster fails a check of its partition and is in `status`."""
    time_ms = Milliseconds(FIRST_MS + 3_600_000)
    created = description(time_uuid(time_ms))
    standin.world.generation(time_ms, time_uuid(time_ms), created)
    standin.world.delete(
        "scylla_distributed.cdc_streams_descriptions_v2",
        "time = %s AND range_end = %s",
        time_ms,
        int(created.range_ends[-1]),
    )
    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])
    result = defs.resolve_job_def(OBSERVE_JOB).execute_in_process(
        run_config=QUIET, instance=rehearsal.instance, partition_key="prod", raise_on_error=False
    )
    assert result.success
    (evaluation,) = result.get_asset_check_evaluations()
    assert (evaluation.check_name, evaluation.passed) == ("observed_whole", False)
    found_alerts = read_home_status(Lake(home.lake), Clock(), home.settings).alerts
    assert [alert.command for alert in found_alerts if alert.code == "check-failed"] == ["cdc-platform observe prod"]


def test_a_log_is_started_by_hand_and_continued_by_the_schedule(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster
) -> None:
    """All logs get partitions, started ones get runs; every row is there once, and a wrong name is refused."""
    log = LiveLog(standin.world, defined(DDL), {FIRST_MS: description(time_uuid(FIRST_MS))}).make()
    log.write([us_from_ms(FIRST_MS) + 1, us_from_ms(FIRST_MS) + 2])
    assert isinstance(request_scheduled_ingests(home, rehearsal.instance, MOMENT), SkipReason)
    rehearsal.instance.add_dynamic_partitions(INGESTED_LOGS_NAME, ["prod/shop.t", "prod/shop", "prod/shop.none"])
    assert run_job(rehearsal, INGEST_JOB, "prod/shop.t")
    lake = Lake(cluster.open_home().lake)
    assert keys_of(lake.read(log_table(log.schema))) == log.written_keys()
    requests = request_scheduled_ingests(home, rehearsal.instance, MOMENT)
    assert isinstance(requests, list)
    assert [request.partition_key for request in requests] == ["prod/shop.t"]
    assert "prod/shop.orders" in rehearsal.instance.get_dynamic_partitions(INGESTED_LOGS_NAME)
    assert not run_job(rehearsal, INGEST_JOB, "prod/shop")
    assert not run_job(rehearsal, INGEST_JOB, "prod/shop.none")


def test_a_replica_of_a_log_with_keys_alone_follows_in_a_run(
    rehearsal: Rehearsal, standin: StandIn, cluster: ScyllaCluster
) -> None:
    """A run updates the replica by a row that the log names as written and one that it names as deleted."""
    schema = defined(DDL.replace("'ttl'", "'delta': 'keys', 'ttl'"))
    first = {FIRST_MS: description(time_uuid(FIRST_MS))}
    table = LiveTable(standin.world, schema, first, random.Random(7)).make()
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    # A run reads up to half a minute ago.
    ago = Microseconds(Clock().now_us() - us_from_seconds(60))
    done = ingest_table(cluster, Clock(), "shop", "t", TaskRunner.alone(), until_us=ago, current=True)
    assert done.current is not None
    assert done.current.rows == 1
    table.world.run(f"INSERT INTO shop.t (p, k, v) VALUES (2, 2, 2) USING TIMESTAMP {ago + 1}")
    table.world.run(f"DELETE FROM shop.t USING TIMESTAMP {ago + 2} WHERE p = 1 AND k = 1")
    table.log({"p": 2}, ago + 1, [{"cdc$operation": 2, "k": 2}])
    table.log({"p": 1}, ago + 2, [{"cdc$operation": 3, "k": 1}])
    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])
    rehearsal.instance.add_dynamic_partitions(INGESTED_LOGS_NAME, ["prod/shop.t"])
    assert run_job(rehearsal, INGEST_JOB, "prod/shop.t")
    assert set(table.rows()) == {(2, 2)}
    assert in_lake(cluster, table)[0] == table.rows()


def test_events_of_commands_match_those_of_runs(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster
) -> None:
    """An observation and an ingest of the command line get events; a run adds only metadata of that run."""
    log = LiveLog(standin.world, defined(DDL), {FIRST_MS: description(time_uuid(FIRST_MS))}).make()
    log.write([us_from_ms(FIRST_MS) + 1])
    with commit_as(CommitAuthor("command line", "observe")):
        run_observation(cluster, Clock())
        ingest_table(cluster, Clock(), "shop", "t", TaskRunner.alone())
    graph = defs.get_repository_def().asset_graph
    sync_catalog(rehearsal.lake, rehearsal.instance, graph, clusters=registry.list_clusters(home), most=None)
    only_runs = {
        "observed_cluster": {"version", "topology", "changes", "left_out"},
        "ingested_log": {"late_rows", "second_pass_up_to", "windows"},
    }
    for name, job, partition in (
        ("observed_cluster", OBSERVE_JOB, "prod"),
        ("ingested_log", INGEST_JOB, "prod/shop.t"),
    ):
        metadata = []
        for _ in range(2):
            record = rehearsal.instance.get_latest_data_version_record(
                AssetKey(["platform", name]), is_source=False, partition_key=partition
            )
            assert record is not None
            event = record.event_log_entry.asset_materialization
            assert event is not None
            metadata.append(event.metadata)
            assert run_job(rehearsal, job, partition)
        assert metadata[0]["kind"].value == "command"
        assert metadata[1].keys() - metadata[0].keys() == only_runs[name] | {"seconds"}


def test_dagsters_storage_contains_no_secret(
    rehearsal: Rehearsal, home: HomeLocation, standin: StandIn, cluster: ScyllaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After accepted and rejected logins, no event, tag or setting of a run contains the password."""
    LiveLog(standin.world, defined(DDL), {FIRST_MS: description(time_uuid(FIRST_MS))}).make()
    rehearsal.instance.add_dynamic_partitions(CLUSTERS_NAME, ["prod"])
    rehearsal.instance.add_dynamic_partitions(INGESTED_LOGS_NAME, ["prod/shop.t"])
    assert run_job(rehearsal, OBSERVE_JOB, "prod")
    assert run_job(rehearsal, INGEST_JOB, "prod/shop.t")
    monkeypatch.setenv(PASSWORD, "wrong-but-secret")
    assert not run_job(rehearsal, OBSERVE_JOB, "prod")
    runs = rehearsal.instance.get_runs()
    events = [str(event) for dagster_run in runs for event in rehearsal.instance.all_logs(dagster_run.run_id)]
    stored = "\n".join(
        [*events, *map(str, runs), *(f"{dagster_run.tags} {dagster_run.run_config}" for dagster_run in runs)]
    )
    assert "user observer was rejected" in stored
    assert OBSERVER[1] not in stored
    assert "wrong-but-secret" not in stored
