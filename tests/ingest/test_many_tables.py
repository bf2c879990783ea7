"""An ingest of many tables shares one session and one read of generations, alternates fairly, and prints a summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.command_line import run
from support.standin.brought import FIRST_US, GENERATIONS, NOW_US, SWITCH_MS, SWITCH_US, lake_of
from support.standin.cluster import StandIn
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.world import time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import TaskRunner
from cdc_platform.errors import NotFound
from cdc_platform.ingest import IngestOptions, TableOutcome, TableSelection, ingest_tables, turns
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra

ALL = {"Shop.Carts", "shop.a", "shop.b", "shop.c", "shop.orders"}
"""All tables, including those that the stand-in always has."""
ABC = TableSelection(("shop.?",))
_GENERATION_TIMES = "system_distributed.cdc_generation_timestamps"


def create_log(standin: StandIn, name: str, ttl: int = 0) -> LiveLog:
    """Create an empty log of a table like `shop.t`."""
    cdc = f"WITH cdc = {{'enabled': 'true', 'ttl': '{ttl}'}}"
    ddl = f"CREATE TABLE shop.{name} (p int, k int, v int, PRIMARY KEY (p, k)) {cdc};"
    return LiveLog(standin.world, defined(ddl), GENERATIONS).make()


@pytest.fixture
def logs(standin: StandIn) -> dict[str, LiveLog]:
    """Three tables with rows in both generations."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    created = {name: create_log(standin, name) for name in ("a", "b", "c")}
    for offset, log in enumerate(created.values()):
        log.write([FIRST_US + 1 + offset, SWITCH_US + 1 + offset])
    return created


def bring_all(
    cluster: ScyllaCluster, workers: TaskRunner, selection: TableSelection | None = None, **options: object
) -> dict[str, TableOutcome]:
    """Ingest the selected tables, by default all; return the outcomes by table."""
    chosen = dataclasses.replace(IngestOptions(), **options)  # pyrefly: ignore[bad-argument-type]
    outcomes = ingest_tables(
        cluster, Clock(NOW_US), selection or TableSelection(), workers, chosen, lambda table, line: None
    )
    return {outcome.table: outcome for outcome in outcomes}


def assert_equal(cluster: ScyllaCluster, logs: Iterable[LiveLog]) -> None:
    """Assert that each log is in the lake, each row once."""
    for log in logs:
        assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()


def test_all_tables_share_a_session_and_one_read_of_generations(
    standin: StandIn, cluster: ScyllaCluster, logs: dict[str, LiveLog], workers: TaskRunner
) -> None:
    """Three tables cost as many reads of the published generations as one does, and no more connections."""
    bring_all(cluster, workers)
    assert_equal(cluster, logs.values())

    def count_reads(selection: TableSelection) -> int:
        standin.proxy.statements.clear()
        standin.proxy.count_new_connections()
        outcomes = bring_all(cluster, workers, selection)
        assert all(outcome.is_fine for outcome in outcomes.values())
        return sum(_GENERATION_TIMES in text for _, text in standin.proxy.statements)

    assert count_reads(TableSelection()) == count_reads(TableSelection(("shop.a",))) > 0
    assert max(standin.proxy.most_open.values()) <= 2


def test_new_table_is_included(
    standin: StandIn, cluster: ScyllaCluster, logs: dict[str, LiveLog], workers: TaskRunner
) -> None:
    """The next run includes a new table without any other command."""
    assert set(bring_all(cluster, workers)) == ALL
    logs["d"] = create_log(standin, "d")
    logs["d"].write([SWITCH_US + 9])
    assert bring_all(cluster, workers)["shop.d"].result is not None
    assert_equal(cluster, logs.values())


def test_failing_table_does_not_stop_the_others(
    standin: StandIn, cluster: ScyllaCluster, logs: dict[str, LiveLog]
) -> None:
    """The summary has one line per table, and the exit code is 1."""
    home = cluster.home.parent.parent
    assert run("--home", home, "observe", "prod").exit_code == 0
    standin.world.run('ALTER TABLE shop.b_scylla_cdc_log RENAME "cdc$batch_seq_no" TO gone')
    answer = run("--home", home, "ingest", "prod", "--all", "--json")
    assert answer.exit_code == 1
    rows = {row["table"]: row for row in answer.json["tables"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "shop.a": "ingested",
        "shop.b": "failed",
        "shop.c": "ingested",
        "shop.orders": "ingested",
        "Shop.Carts": "ingested",
    }
    assert answer.json["failed"] == ["shop.b"]
    assert rows["shop.b"]["error"]["code"]
    assert_equal(cluster, [logs["a"], logs["c"]])
    screen = run("--home", home, "ingest", "prod", "--all")
    assert screen.exit_code == 1
    lines = dict(line.split()[:2] for line in screen.stdout.splitlines() if line.startswith((" shop.", " Shop.")))
    assert lines == {name: "failed" if name == "shop.b" else "ingested" for name in ALL}
    assert "warning: shop.b failed: " in screen.stderr


def test_backlog_of_one_table_does_not_delay_the_others(
    standin: StandIn,
    cluster: ScyllaCluster,
    logs: dict[str, LiveLog],
    workers: TaskRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tables are read before the one with a backlog is complete."""
    monkeypatch.setattr(turns, "_FIRST_TURN_US", Microseconds(600_000_000))
    monkeypatch.setattr(turns, "_MAX_GROWTH", 2.0)
    logs["a"].write([FIRST_US + minute * 60_000_000 for minute in range(1, 110)])
    outcomes = bring_all(cluster, workers, ABC)
    assert_equal(cluster, logs.values())
    assert {outcome.turns for outcome in outcomes.values()} != {1}
    queried = [text.split(" FROM ")[1].split()[0] for _, text in standin.proxy.statements if "_cdc_log WHERE" in text]
    order = [name for index, name in enumerate(queried) if index == 0 or queried[index - 1] != name]
    assert order[:3] == ["shop.a_scylla_cdc_log", "shop.b_scylla_cdc_log", "shop.c_scylla_cdc_log"]
    assert order[3:6] == order[:3]
    rows = {name: outcome.result and outcome.result.rows for name, outcome in outcomes.items()}
    assert rows == {"shop.a": 111, "shop.b": 2, "shop.c": 2}


def test_unreachable_cluster_is_not_retried_for_every_table(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, logs: dict[str, LiveLog]
) -> None:
    """After three tables without a response, the others fail with the same error."""
    for name in ("d", "e", "f"):
        create_log(standin, name)
    assert all(outcome.is_fine for outcome in bring_all(cluster, workers, ABC).values())
    standin.proxy.faults.pages_asked = 0
    for log in logs.values():
        log.write([SWITCH_US + 50])
    proxy = standin.proxy

    def kill() -> None:
        for node in range(3):
            proxy.kill(node)

    proxy.faults.meanwhile[1] = kill
    outcomes = list(
        ingest_tables(
            cluster,
            Clock(Microseconds(NOW_US + 60_000_000)),
            ABC,
            workers,
            IngestOptions(),
            lambda table, line: None,
        )
    )
    assert {type(outcome.error).__name__ for outcome in outcomes} == {"Unreachable"}
    assert [outcome.turns for outcome in outcomes] == [1, 1, 1, 0, 0, 0]


def test_named_table_without_a_log_fails_alone(
    cluster: ScyllaCluster, logs: dict[str, LiveLog], workers: TaskRunner
) -> None:
    """A misspelt name is an error."""
    outcomes = bring_all(cluster, workers, TableSelection(("shop.a", "shop.bb")))
    assert outcomes["shop.a"].is_fine
    assert isinstance(outcomes["shop.bb"].error, NotFound)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--all",), ALL),
        (("--include", "shop.[ab]"), {"shop.a", "shop.b"}),
        (("--include", "*.c", "--include", "shop.a"), {"shop.a", "shop.c"}),
        (("--all", "--exclude", "shop.b"), ALL - {"shop.b"}),
        (("--tables", "{dir}/list.toml"), {"shop.a", "shop.orders"}),
        (("--tables", "{dir}/list.toml", "--include", "shop.b"), {"shop.a", "shop.b"}),
        (("shop.a", "shop.c"), {"shop.a", "shop.c"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_tables_are_selected(
    cluster: ScyllaCluster, logs: dict[str, LiveLog], tmp_path: Path, arguments: tuple[str, ...], expected: set[str]
) -> None:
    """Names and patterns select tables, as arguments and in a file."""
    (tmp_path / "list.toml").write_text('include = ["shop.*"]\nexclude = ["*.b", "*.c"]\n')
    options = [argument.replace("{dir}", str(tmp_path)) for argument in arguments]
    if "--include" in options and "--tables" in options:
        (tmp_path / "list.toml").write_text('include = ["shop.a"]\n')
    answer = run("--home", cluster.home.parent.parent, "ingest", "prod", *options, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert {row["table"] for row in answer.json["tables"]} == expected


def test_empty_selection_is_refused(cluster: ScyllaCluster, logs: dict[str, LiveLog]) -> None:
    """The message names the command that lists the tables."""
    answer = run("--home", cluster.home.parent.parent, "ingest", "prod", "--include", "other.*")
    assert answer.exit_code == 2
    assert "no table of prod with a CDC log matches other.*" in answer.stderr
    assert "cdc-platform cluster test prod" in answer.stderr.replace(f" --home {cluster.home.parent.parent}", "")
