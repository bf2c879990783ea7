"""Each command on a broken server prints one line with a remedy, and no traceback or secret; it stores no row.

`test_bad_clusters` has faults that only an observation finds, and `test_bad_cluster_options` has wrong values of
options.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.files.bad_input import assert_one_line, listing
from support.standin.brought import DDL, FIRST_US, GENERATIONS, LOG, SWITCH_MS, lake_of
from support.standin.cluster import FIRST_MS, NODES, PASSWORD, USER, StandIn
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.proxy import READ_TIMEOUT, UNAVAILABLE
from support.standin.silent import listening
from support.standin.versions import NEWEST, VERSIONS
from support.standin.world import OBSERVER, PLAIN, time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.home_location import open_home_location
from cdc_platform.scylla import Connection, ScyllaCluster, registry

A_SERVER = pytest.mark.grid("broken servers", 12)

COMMANDS = {
    "ingest": (("ingest", "prod", "shop.t"), 2),
    "cluster test": (("cluster", "test", "prod", "--json"), 1),
    "watch": (("watch", "prod", "--polls", "1", "--json"), 0),
}
"""Commands and their exit codes for an unreachable cluster; a watch continues and reports it as a change."""


@dataclass(frozen=True)
class NoServer:
    """An address without a CQL server, and its response to the first bytes; None if nothing listens there."""

    name: str
    says: str
    answer: bytes | None = None


NO_SERVERS = [
    NoServer("unknown host", "unknown host"),
    NoServer("wrong port", "nothing listens"),
    NoServer("HTTP", "no CQL server", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    NoServer("closes at once", "closed immediately", b""),
    NoServer("garbage", "no CQL server", bytes(range(64))),
    NoServer("a greeting that breaks off", "", b"\x84\x00\x00\x00\x06\x00\x00\x00\x30\x00\x01"),
]


@A_SERVER
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("nobody", NO_SERVERS, ids=lambda nobody: nobody.name)
def test_address_without_a_cql_server_is_one_line(nobody: NoServer, command: str, tmp_path: Path) -> None:
    """One line, printed in time, describes what the address did."""
    with listening(nobody.answer or b"") as port:
        host = "no-such-host.invalid" if nobody.name == "unknown host" else "127.0.0.1"
        contact = f"{host}:{1 if nobody.answer is None else port}"
        home = tmp_path / "home"
        registry.add_cluster(open_home_location(home), "prod", Connection(contacts=(contact,), connect_timeout=2))
        before = listing(home)
        args, code = COMMANDS[command]
        answer = run("--home", home, *args)
    assert answer.exit_code == code, answer
    assert nobody.says in _message(command, answer)
    assert listing(home) == before or command == "watch"


def _message(command: str, answer: Answer) -> str:
    """Return the message of a command."""
    if command == "ingest":
        assert_one_line(answer.stderr, "")
        return answer.stderr
    assert "Traceback" not in answer.stderr
    if command == "watch":
        (change,) = [json.loads(line) for line in answer.stdout.splitlines()]
        return change["what"]
    (failed,) = [row for row in answer.rows if not row["ok"]]
    assert failed["remedy"]
    return f"{failed['message']} {failed['remedy']}"


Happens = Callable[[StandIn, LiveLog, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """A fault of a cluster whose log is to be ingested, and the expected message."""

    name: str
    says: str
    happens: Happens
    args: tuple[str, ...] = ("prod", "shop.t")


def _user(name: str, value: str) -> Happens:
    return lambda standin, log, env: env.setenv(name, value)


def _errors(code: int) -> Happens:
    return lambda standin, log, env: standin.proxy.faults.errors.extend([code] * 1_000)


def _paused(standin: StandIn, log: LiveLog, env: pytest.MonkeyPatch) -> None:
    standin.proxy.faults.meanwhile = {1: lambda: standin.proxy.faults.paused.update(range(NODES))}


def _down(standin: StandIn, log: LiveLog, env: pytest.MonkeyPatch) -> None:
    for node in range(NODES):
        standin.proxy.kill(node)


def _version(name: str) -> Happens:
    return lambda standin, log, env: setattr(standin.proxy, "version", VERSIONS[name])


def _dropped(*tables: str) -> Happens:
    def happens(standin: StandIn, log: LiveLog, env: pytest.MonkeyPatch) -> None:
        for table in tables:
            standin.world.run(f"DROP TABLE {table}")

    return happens


def _drop_column(standin: StandIn, log: LiveLog, env: pytest.MonkeyPatch) -> None:
    standin.world.run(f'ALTER TABLE {LOG} DROP "cdc$operation"')
    standin.world.made(log.schema, FIRST_MS)


def _plain(standin: StandIn, log: LiveLog, env: pytest.MonkeyPatch) -> None:
    env.setenv(USER, PLAIN[0])
    env.setenv(PASSWORD, PLAIN[1])


FAULTS = [
    Fault("wrong password", "was rejected; check its user and password", _user(PASSWORD, "hunter2")),
    Fault("unknown user", "was rejected; check its user and password", _user(USER, "nobody")),
    Fault("a password that is not there", f"{PASSWORD} is not set", _user(PASSWORD, "")),
    Fault("permissions missing", "GRANT SELECT ON system.", _plain),
    Fault("all nodes down", "closed immediately", _down),
    Fault("nodes that hang in the middle", "--request-timeout", _paused),
    Fault("too few replicas", "replicas", _errors(UNAVAILABLE)),
    Fault("replicas that are too slow", "in time", _errors(READ_TIMEOUT)),
    Fault("a version without CDC", "no table of CDC generations", _version("4.2")),
    Fault("a plain Cassandra", "it is no ScyllaDB", _version("Cassandra")),
    Fault("a log without its table", "no table shop.t with a CDC log", _dropped("shop.t")),
    Fault("a table without its log", "no table shop.t with a CDC log", _dropped(LOG)),
    Fault("neither", "no table shop.t with a CDC log", _dropped(LOG, "shop.t")),
    Fault("a log that is none", "cdc$operation", _drop_column),
    Fault("no such keyspace", "no table shops.t with", lambda *of: None, ("prod", "shops.t")),
    Fault("capitals without quotes", "no table shop.carts with", lambda *of: None, ("prod", "Shop.Carts")),
]


@A_SERVER
@pytest.mark.cassandra
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_ingest_of_a_broken_cluster_is_one_line(
    fault: Fault, standin: StandIn, log: LiveLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command exits with code 2 and one line that has the remedy and no secret; the lake has no row or position."""
    log.write([FIRST_US + 1])
    timeout = {"request_timeout": 1.0} if "hang" in fault.name else {}
    cluster = registry.add_cluster(open_home_location(tmp_path / "home"), "prod", standin.connection(**timeout))
    fault.happens(standin, log, monkeypatch)
    answer = run("--home", tmp_path / "home", "ingest", *fault.args)
    assert (answer.exit_code, answer.stdout) == (2, ""), answer
    # A busy machine may not get a node's time within a second, which is a separate warning.
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("warning: node ")]
    assert_one_line("\n".join(lines), fault.says)
    assert "hunter2" not in answer.stderr
    assert OBSERVER[1] not in answer.stderr
    assert not lake_of(cluster).exists(log_table(log.schema))
    standin.proxy.faults.paused.clear()


MISSING = {
    "system.topology": None,
    "system.versions": None,
    "system.scylla_local": None,
    "system.cdc_local": None,
    "system.cdc_generations_v3": None,
    "system.cdc_timestamps": None,
    "system.cdc_streams": None,
    "system_schema.scylla_tables": None,
    "system_schema.scylla_keyspaces": None,
    "system_schema.types": "system_schema.types",
    "system_schema.columns": "system_schema.columns",
    "system_schema.tables": "system_schema.tables",
    "system_distributed.cdc_generation_timestamps": None,
    "system_distributed.cdc_streams_descriptions_v2": "cdc_streams_descriptions_v2",
}
"""The message if one table is missing, or None if the others are enough."""


@A_SERVER
@pytest.mark.cassandra
@pytest.mark.parametrize("table", MISSING)
def test_missing_table_is_replaced_by_others_or_named(table: str, standin: StandIn, cluster: ScyllaCluster) -> None:
    """No version is without just one of these tables."""
    # An observation imports what the other tables have, or names the missing one.
    standin.proxy.version = replace(NEWEST, tables=NEWEST.tables - {table})
    before = listing(cluster.home.parent.parent)
    answer = run("--home", cluster.home.parent.parent, "observe", "prod")
    says = MISSING[table]
    if says is None:
        assert answer.exit_code == 0, answer
        return
    assert answer.exit_code == 2, answer
    assert_one_line(answer.stderr, says)
    assert listing(cluster.home.parent.parent) == before


@pytest.mark.cassandra
def test_names_that_need_quotes_are_ingested(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Keyspace, table and columns may have capitals and be reserved words of CQL."""
    ddl = DDL.replace("shop.t", '"Shop"."Order"').replace("v int", '"Select" int')
    log = LiveLog(standin.world, defined(ddl), GENERATIONS).make()
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    log.write([FIRST_US + 1, FIRST_US + 2], Select=[7, 8])
    home = cluster.home.parent.parent
    for way in ("streams", "ranges"):
        done = run("--home", home, "ingest", "prod", '"Shop"."Order"', "--by", way)
        assert done.exit_code == 0, done
    rows = lake_of(cluster).read(log_table(log.schema))
    assert keys_of(rows) == log.written_keys()
    assert sorted(rows["Select"].to_pylist()) == [7, 8]
    unquoted = run("--home", home, "ingest", "prod", "Shop.Order")
    assert unquoted.exit_code == 2
    assert_one_line(unquoted.stderr, """names with capitals are written in double quotes: '"Shop"."Order"'""")


@pytest.mark.cassandra
def test_missing_permission_on_a_log_is_a_grant_statement(
    standin: StandIn, cluster: ScyllaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other permissions are granted; after the printed statement has run unchanged, the ingest succeeds."""
    log = LiveLog(standin.world, defined(DDL.replace("shop.t", '"Shop"."Order"')), GENERATIONS).make()
    log.write([FIRST_US + 1])
    home = cluster.home.parent.parent
    keyspaces = ("scylla", "scylla_distributed", *(f"node{node}" for node in range(NODES)))
    granted = [f"GRANT SELECT ON KEYSPACE {keyspace} TO {PLAIN[0]}" for keyspace in keyspaces]
    ingest = ("--home", home, "ingest", "prod", '"Shop"."Order"')
    try:
        for statement in granted:
            standin.world.run(statement)
        monkeypatch.setenv(USER, PLAIN[0])
        monkeypatch.setenv(PASSWORD, PLAIN[1])
        answer = run(*ingest)
        assert answer.exit_code == 2, answer
        grant = 'GRANT SELECT ON "Shop"."Order_scylla_cdc_log" TO plain'
        assert_one_line(answer.stderr, grant)
        granted.append(grant)
        standin.world.run(grant)
        done = run(*ingest)
        assert done.exit_code == 0, done
        assert keys_of(lake_of(cluster).read(log_table(log.schema))) == log.written_keys()
    finally:
        for statement in granted:
            standin.world.run(statement.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
        # Every plain role may read these; other tests need them.
        for node in range(NODES):
            for table in ("local", "peers"):
                standin.world.run(f"GRANT SELECT ON TABLE node{node}.{table} TO {PLAIN[0]}")
