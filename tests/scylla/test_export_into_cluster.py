"""A home is written into a CQL server next to production, where ScyllaDB's own client reads every change once."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import NoHostAvailable
from support.command_line import run
from support.homes.exported import OF_TABLETS, TABLE, eventful
from support.standin.cluster import PASSWORD, USER, StandIn, nodes
from support.standin.java_client import ReadChange, read_log
from support.standin.world import EXPORTER, OBSERVER

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.clock import Milliseconds, ms_from_datetime
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.scylla import ScyllaCluster, export_into_cluster, registry
from cdc_platform.scylla.export import EXPORT_MARKER_TABLE
from cdc_platform.scylla.registry import ClusterIdentity
from cdc_platform.tables import GENERATION_TIMESTAMPS, TABLET_TIMESTAMPS

pytestmark = pytest.mark.cassandra

PREFIX = "beside"
"""As long as `system`, so that names can be swapped in the server's responses."""
KEYSPACES = (PREFIX, f"{PREFIX}_schema", f"{PREFIX}_distributed", "exported_shop", "exported_stock")
KEYS = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
Key = tuple[bytes, uuid.UUID, int]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> HomeLocation:
    """A home with a V1 rewrite, three joins, a tablet split and changes in two logs."""
    return open_home_location(eventful(tmp_path_factory.mktemp("eventful")))


@pytest.fixture
def target(standin: StandIn, home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScyllaCluster]:
    """The stand-in as a registered cluster with a user who may write; the written keyspaces are dropped at the end."""
    monkeypatch.setenv(USER, EXPORTER[0])
    monkeypatch.setenv(PASSWORD, EXPORTER[1])
    standin.proxy.writers.add(EXPORTER[0])
    yield registry.add_cluster(home, "rehearsal", standin.connection())
    for keyspace in KEYSPACES:
        standin.world.run(f"DROP KEYSPACE IF EXISTS {keyspace}")


def read_keys(home: HomeLocation, table: str) -> list[Key]:
    """Return the sorted keys of a log in the lake."""
    lake = Lake(home.lake)
    rows = lake.read(log_table(read_table_schema(lake, *table.split("."))), list(KEYS)).to_pylist()
    return sorted((row[KEYS[0]], uuid.UUID(row[KEYS[1]]), row[KEYS[2]]) for row in rows)


def server_rows(standin: StandIn, name: str) -> list[tuple[Any, ...]]:
    """Return all rows of a table of the server, sorted."""
    return sorted((tuple(row) for row in standin.world.rows(f"SELECT * FROM {name}")), key=repr)


def export(target: ScyllaCluster, home: HomeLocation, **options: Any) -> Any:
    """Export without a rate limit."""
    return export_into_cluster(home, target, prefix=PREFIX, rate=1_000_000, **options)


def _assert_in_order(read: list[ReadChange], starts: list[Milliseconds]) -> None:
    """Assert that generations follow each other, each with its own changes, and that each stream is in order."""
    assert [ms for ms, _ in groupby(change.generation_ms for change in read)] == starts
    last: dict[bytes, tuple[int, int]] = {}
    for change in read:
        at = (change.time.time, change.batch_seq_no)
        assert at > last.get(change.stream, (0, 0))
        last[change.stream] = at
        written_ms = (change.time.time - 0x01B21DD213814000) // 10_000
        assert max(ms for ms in starts if ms <= written_ms) == change.generation_ms


def _kill_within(standin: StandIn, home: HomeLocation, table: str) -> None:
    """Export in another process, and kill it with SIGKILL as soon as the server has rows of a table."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home.path), "export", "--cluster", "rehearsal"]
    with subprocess.Popen([*command, "--prefix", PREFIX, "--rate", "40"], stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 90
            while (
                not (rows := _rows_if_table_exists(standin, table))
                and process.poll() is None
                and time.monotonic() < until
            ):
                time.sleep(0.02)
        finally:
            process.kill()
    assert rows, table
    assert process.returncode == -signal.SIGKILL


def _rows_if_table_exists(standin: StandIn, table: str) -> list[Any]:
    try:
        return standin.world.rows(f"SELECT * FROM {table}")
    except (InvalidRequest, NoHostAvailable):
        # The table does not exist yet.
        return []


def test_export_is_complete_after_kills(standin: StandIn, target: ScyllaCluster, home: HomeLocation) -> None:
    """After two kills and two complete runs the server has the lake's rows; ScyllaDB's client reads them in order."""
    streams = f"{PREFIX}_distributed.cdc_streams_descriptions_v2"
    for table in (streams, f"{TABLE}_scylla_cdc_log"):
        _kill_within(standin, home, table)
        assert server_rows(standin, f"{PREFIX}_distributed.cdc_generation_timestamps") == []
    part = server_rows(standin, f"{TABLE}_scylla_cdc_log")
    done = export(target, home)
    assert set(done.keyspaces.values()) == {"marked"}
    first = {table_result.full_name: server_rows(standin, table_result.full_name) for table_result in done.tables}
    assert {name: len(rows) for name, rows in first.items()} == {
        table_result.full_name: table_result.rows for table_result in done.tables
    }
    assert 0 < len(part) < len(first[f"{TABLE}_scylla_cdc_log"])
    export(target, home)
    assert {name: server_rows(standin, name) for name in first} == first
    _assert_read(standin, home)
    standin.world.put(f"{PREFIX}_distributed.cdc_generation_timestamps", key="timestamps", time=1)
    with pytest.raises(StateError, match=r"has generation 1970-01-01T00:00:00\.001Z, which this home lacks"):
        export(target, home)


def _assert_read(standin: StandIn, home: HomeLocation) -> None:
    """Assert that the client reads each change once, in order and from the generation of its time.

    The history has a V1 rewrite, three joins and a tablet split.
    """
    # CQL cannot set the server's CDC options, so the base tables get them without the proxy.
    for table in (TABLE, OF_TABLETS):
        standin.world.cdc_extension(*table.split("."), enabled="true", ttl="86400")
    standin.proxy.prefix = PREFIX
    lake = Lake(home.lake)
    times = [row["time"] for row in lake.read(GENERATION_TIMESTAMPS, ["time"]).to_pylist()]
    sets = [row["timestamp"] for row in lake.read(TABLET_TIMESTAMPS, ["timestamp"]).to_pylist()]
    assert (len(times), len(sets)) == (4, 2)
    expected = {table: read_keys(home, table) for table in (TABLE, OF_TABLETS)}
    with ThreadPoolExecutor() as pool:
        port = standin.proxy.port
        reads = {t: pool.submit(read_log, "127.0.0.1", port, OBSERVER, t, len(rows)) for t, rows in expected.items()}
    for table, starts in ((TABLE, times), (OF_TABLETS, sets)):
        read = reads[table].result()
        assert sorted((change.stream, change.time, change.batch_seq_no) for change in read) == expected[table], table
        _assert_in_order(read, sorted(map(ms_from_datetime, starts)))
    assert standin.proxy.refused == []


def test_export_refusals(
    standin: StandIn, target: ScyllaCluster, home: HomeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyspace with other content, the home's own cluster and ScyllaDB's keyspaces are refused."""
    # So is a role without permission to write.
    answer = run("--home", home.path, "export", "--cluster", "rehearsal", "--dry-run")
    assert answer.exit_code == 2
    assert f"CREATE TABLE IF NOT EXISTS scylla.{EXPORT_MARKER_TABLE}" in answer.stderr
    with pytest.raises(InputError, match="own keyspaces"):
        export_into_cluster(home, target, prefix="system")
    identity = home.path / "identity.json"
    identity.write_text(ClusterIdentity(cluster_name="x", host_ids=(nodes()[1].host_id,)).model_dump_json())
    with pytest.raises(StateError, match=r"is the cluster that this home is of: host .* at 127\.0\.0\.2"):
        export(target, home)
    identity.unlink()
    dry = run("--home", home.path, "export", "--cluster", "rehearsal", "--prefix", PREFIX, "--dry-run", "--json")
    assert dry.exit_code == 0, dry.stderr
    assert dry.json["keyspaces"] == dict.fromkeys(sorted(KEYSPACES), "new")
    next_line = f"cdc-platform --home {home.path} export --cluster rehearsal --prefix {PREFIX}"
    assert [line["command"] for line in dry.json["next"]] == [next_line]
    assert not [text for _, text in standin.proxy.statements if not text.startswith("SELECT ")]
    monkeypatch.setenv(USER, OBSERVER[0])
    monkeypatch.setenv(PASSWORD, OBSERVER[1])
    standin.proxy.writers.add(OBSERVER[0])
    with pytest.raises(StateError, match=r"role observer may not write .*GRANT CREATE, MODIFY"):
        export(target, home)
    assert standin.proxy.refused == []


def test_observed_cluster_is_production(
    standin: StandIn, target: ScyllaCluster, home: HomeLocation, tmp_path: Path
) -> None:
    """Without marks an export to it is refused: by another name, from another home, and after removal."""
    shutil.copytree(home.path, tmp_path / "home")
    copy = open_home_location(tmp_path / "home")
    prod = registry.add_cluster(copy, "prod", target.connection)
    assert run("--home", copy.path, "observe", "prod").exit_code == 0
    beside = registry.add_cluster(copy, "beside", target.connection.model_copy(update={"page_rows": 7}))
    shutil.copytree(copy.lake, beside.open_home().lake, dirs_exist_ok=True)

    def refused(cluster: ScyllaCluster, source: HomeLocation = copy) -> None:
        with pytest.raises(
            StateError,
            match="observed here, as prod.*CREATE KEYSPACE IF NOT EXISTS beside WITH .*" + EXPORT_MARKER_TABLE,
        ):
            export(cluster, source)

    answer = run("--home", copy.path, "export", "--cluster", "prod", "--prefix", PREFIX)
    assert answer.exit_code == 2
    assert "prod is a cluster that is observed here, as prod" in answer.stderr
    assert answer.stderr.count("\n") == 1
    refused(registry.find_cluster(copy, "prod"))
    refused(target)
    refused(target, beside.open_home())
    registry.remove_cluster(copy, "prod")
    refused(target)
    standin.world.cluster([replace(node, host_id=uuid.UUID(int=0xBEEF + n)) for n, node in enumerate(nodes())])
    with pytest.raises(StateError, match="observed here, as prod"):
        export(replace(prod, identity=ClusterIdentity(cluster_name="production", host_ids=())), copy)
    standin.world.cluster(nodes())
    assert not [text for _, text in standin.proxy.statements if not text.startswith("SELECT ")]
    keyspaces = {row.keyspace_name for row in standin.world.rows("SELECT keyspace_name FROM system_schema.keyspaces")}
    assert keyspaces.isdisjoint(KEYSPACES)

    for name in KEYSPACES:
        standin.world.run(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        standin.world.run(f"CREATE TABLE {name}.{EXPORT_MARKER_TABLE} (key text PRIMARY KEY)")
    assert set(export(target, copy, run=False).keyspaces.values()) == {"marked"}


def test_one_module_writes_to_clusters() -> None:
    """No other module uses the driver's session or has CQL words that write."""
    root = Path(__file__).resolve().parents[2] / "cdc_platform"
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    assert {name for name, text in texts.items() if "live.driver" in text} == {"scylla/export.py"}
    cluster_modules = {name: text for name, text in texts.items() if name.startswith(("scylla/", "ingest/"))}
    writing = ('"INSERT ', '"UPDATE ', '"DELETE ', '"TRUNCATE ', '"DROP ', '"ALTER ', '"BATCH ')
    assert {name for name, text in cluster_modules.items() if any(word in text for word in writing)} == {
        "scylla/export.py"
    }
