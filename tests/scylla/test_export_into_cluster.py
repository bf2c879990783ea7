"""A home is written into a CQL server beside production, where ScyllaDB's own client reads every change once."""

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
"""As long as `system`, so that names change places in the server's answers."""
KEYSPACES = (PREFIX, f"{PREFIX}_schema", f"{PREFIX}_distributed", "exported_shop", "exported_stock")
KEYS = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
Key = tuple[bytes, uuid.UUID, int]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> HomeLocation:
    """A home with a V1 rewrite, three joins, a tablet split and changes in two logs."""
    return open_home_location(eventful(tmp_path_factory.mktemp("eventful")))


@pytest.fixture
def target(standin: StandIn, home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScyllaCluster]:
    """The stand-in as a cluster that the home knows, by a user who may write; what was written goes at the end."""
    monkeypatch.setenv(USER, EXPORTER[0])
    monkeypatch.setenv(PASSWORD, EXPORTER[1])
    standin.proxy.writers.add(EXPORTER[0])
    yield registry.add_cluster(home, "rehearsal", standin.connection())
    for keyspace in KEYSPACES:
        standin.world.run(f"DROP KEYSPACE IF EXISTS {keyspace}")


def stored(home: HomeLocation, table: str) -> list[Key]:
    """The keys of a log in the lake, sorted."""
    lake = Lake(home.lake)
    rows = lake.read(log_table(read_table_schema(lake, *table.split("."))), list(KEYS)).to_pylist()
    return sorted((row[KEYS[0]], uuid.UUID(row[KEYS[1]]), row[KEYS[2]]) for row in rows)


def there(standin: StandIn, name: str) -> list[tuple[Any, ...]]:
    """All rows of a table of the server, sorted."""
    return sorted((tuple(row) for row in standin.world.rows(f"SELECT * FROM {name}")), key=repr)


def export(target: ScyllaCluster, home: HomeLocation, **options: Any) -> Any:
    """Export as fast as it goes."""
    return export_into_cluster(home, target, prefix=PREFIX, rate=1_000_000, **options)


def _assert_in_order(read: list[ReadChange], begun: list[Milliseconds]) -> None:
    """Generations one after the other, each with the changes of its time, and each stream by time and place."""
    assert [ms for ms, _ in groupby(each.generation_ms for each in read)] == begun
    last: dict[bytes, tuple[int, int]] = {}
    for each in read:
        at = (each.time.time, each.batch_seq_no)
        assert at > last.get(each.stream, (0, 0))
        last[each.stream] = at
        written_ms = (each.time.time - 0x01B21DD213814000) // 10_000
        assert max(ms for ms in begun if ms <= written_ms) == each.generation_ms


def _kill_within(standin: StandIn, home: HomeLocation, table: str) -> None:
    """Export in a process of its own, which is killed by SIGKILL as soon as the server has rows of a table."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home.path), "export", "--cluster", "rehearsal"]
    with subprocess.Popen([*command, "--prefix", PREFIX, "--rate", "40"], stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 90
            while not (rows := _there_yet(standin, table)) and process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            process.kill()
    assert rows, table
    assert process.returncode == -signal.SIGKILL


def _there_yet(standin: StandIn, table: str) -> list[Any]:
    try:
        return standin.world.rows(f"SELECT * FROM {table}")
    except (InvalidRequest, NoHostAvailable):
        # It is not there, or is being made.
        return []


def test_killed_and_started_again_it_is_whole_and_read_once(
    standin: StandIn, target: ScyllaCluster, home: HomeLocation
) -> None:
    """Killed within two tables, run whole, once more: the lake's rows, which ScyllaDB's client reads in order."""
    streams = f"{PREFIX}_distributed.cdc_streams_descriptions_v2"
    for table in (streams, f"{TABLE}_scylla_cdc_log"):
        _kill_within(standin, home, table)
        assert there(standin, f"{PREFIX}_distributed.cdc_generation_timestamps") == []
    part = there(standin, f"{TABLE}_scylla_cdc_log")
    done = export(target, home)
    assert set(done.keyspaces.values()) == {"marked"}
    first = {each.full_name: there(standin, each.full_name) for each in done.tables}
    assert {name: len(rows) for name, rows in first.items()} == {each.full_name: each.rows for each in done.tables}
    assert 0 < len(part) < len(first[f"{TABLE}_scylla_cdc_log"])
    export(target, home)
    assert {name: there(standin, name) for name in first} == first
    _assert_read(standin, home)
    standin.world.put(f"{PREFIX}_distributed.cdc_generation_timestamps", key="timestamps", time=1)
    with pytest.raises(StateError, match=r"has generation 1970-01-01T00:00:00\.001Z, which this home lacks"):
        export(target, home)


def _assert_read(standin: StandIn, home: HomeLocation) -> None:
    """Over a V1 rewrite, three joins and a tablet split: every change once, in order, of the generation of its time."""
    # The server cannot be told of CDC options in CQL: the base tables get them past the proxy.
    for table in (TABLE, OF_TABLETS):
        standin.world.cdc_extension(*table.split("."), enabled="true", ttl="86400")
    standin.proxy.prefix = PREFIX
    lake = Lake(home.lake)
    times = [row["time"] for row in lake.read(GENERATION_TIMESTAMPS, ["time"]).to_pylist()]
    sets = [row["timestamp"] for row in lake.read(TABLET_TIMESTAMPS, ["timestamp"]).to_pylist()]
    assert (len(times), len(sets)) == (4, 2)
    expected = {table: stored(home, table) for table in (TABLE, OF_TABLETS)}
    with ThreadPoolExecutor() as pool:
        port = standin.proxy.port
        reads = {t: pool.submit(read_log, "127.0.0.1", port, OBSERVER, t, len(rows)) for t, rows in expected.items()}
    for table, begun in ((TABLE, times), (OF_TABLETS, sets)):
        read = reads[table].result()
        assert sorted((each.stream, each.time, each.batch_seq_no) for each in read) == expected[table], table
        _assert_in_order(read, sorted(map(ms_from_datetime, begun)))
    assert standin.proxy.refused == []


def test_what_it_refuses(
    standin: StandIn, target: ScyllaCluster, home: HomeLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyspace with something else in it, the home's own cluster, ScyllaDB's keyspaces; who may not write."""
    told = run("--home", home.path, "export", "--cluster", "rehearsal", "--dry-run")
    assert told.exit_code == 2
    assert f"CREATE TABLE IF NOT EXISTS scylla.{EXPORT_MARKER_TABLE}" in told.stderr
    with pytest.raises(InputError, match="own keyspaces"):
        export_into_cluster(home, target, prefix="system")
    seen = home.path / "identity.json"
    seen.write_text(ClusterIdentity(cluster_name="x", host_ids=(nodes()[1].host_id,)).model_dump_json())
    with pytest.raises(StateError, match=r"is the cluster that this home is of: host .* at 127\.0\.0\.2"):
        export(target, home)
    seen.unlink()
    dry = run("--home", home.path, "export", "--cluster", "rehearsal", "--prefix", PREFIX, "--dry-run", "--json")
    assert dry.exit_code == 0, dry.stderr
    assert dry.json["keyspaces"] == dict.fromkeys(sorted(KEYSPACES), "new")
    next_line = f"cdc-platform --home {home.path} export --cluster rehearsal --prefix {PREFIX}"
    assert [each["command"] for each in dry.json["next"]] == [next_line]
    assert not [text for _, text in standin.proxy.statements if not text.startswith("SELECT ")]
    monkeypatch.setenv(USER, OBSERVER[0])
    monkeypatch.setenv(PASSWORD, OBSERVER[1])
    standin.proxy.writers.add(OBSERVER[0])
    with pytest.raises(StateError, match=r"role observer may not write .*GRANT CREATE, MODIFY"):
        export(target, home)
    assert standin.proxy.refused == []


def test_a_cluster_that_is_observed_is_production(
    standin: StandIn, target: ScyllaCluster, home: HomeLocation, tmp_path: Path
) -> None:
    """By its name or another, from its home or the one beside, and when it is forgotten: nothing without marks."""
    shutil.copytree(home.path, tmp_path / "home")
    mine = open_home_location(tmp_path / "home")
    prod = registry.add_cluster(mine, "prod", target.connection)
    assert run("--home", mine.path, "observe", "prod").exit_code == 0
    beside = registry.add_cluster(mine, "beside", target.connection.model_copy(update={"page_rows": 7}))
    shutil.copytree(mine.lake, beside.open_home().lake, dirs_exist_ok=True)

    def refused(cluster: ScyllaCluster, by: HomeLocation = mine) -> None:
        with pytest.raises(
            StateError,
            match="observed here, as prod.*CREATE KEYSPACE IF NOT EXISTS beside WITH .*" + EXPORT_MARKER_TABLE,
        ):
            export(cluster, by)

    told = run("--home", mine.path, "export", "--cluster", "prod", "--prefix", PREFIX)
    assert told.exit_code == 2
    assert "prod is a cluster that is observed here, as prod" in told.stderr
    assert told.stderr.count("\n") == 1
    refused(registry.find_cluster(mine, "prod"))
    refused(target)
    refused(target, beside.open_home())
    registry.remove_cluster(mine, "prod")
    refused(target)
    standin.world.cluster([replace(each, host_id=uuid.UUID(int=0xBEEF + n)) for n, each in enumerate(nodes())])
    with pytest.raises(StateError, match="observed here, as prod"):
        export(replace(prod, identity=ClusterIdentity(cluster_name="production", host_ids=())), mine)
    standin.world.cluster(nodes())
    assert not [text for _, text in standin.proxy.statements if not text.startswith("SELECT ")]
    there = {row.keyspace_name for row in standin.world.rows("SELECT keyspace_name FROM system_schema.keyspaces")}
    assert there.isdisjoint(KEYSPACES)

    for name in KEYSPACES:
        standin.world.run(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        standin.world.run(f"CREATE TABLE {name}.{EXPORT_MARKER_TABLE} (key text PRIMARY KEY)")
    assert set(export(target, mine, run=False).keyspaces.values()) == {"marked"}


def test_one_module_writes_to_clusters() -> None:
    """No other takes the driver's session, and none else has words that CQL writes by."""
    root = Path(__file__).resolve().parents[2] / "cdc_platform"
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    assert {name for name, text in texts.items() if "live.driver" in text} == {"scylla/export.py"}
    of_clusters = {name: text for name, text in texts.items() if name.startswith(("scylla/", "ingest/"))}
    writing = ('"INSERT ', '"UPDATE ', '"DELETE ', '"TRUNCATE ', '"DROP ', '"ALTER ', '"BATCH ')
    assert {name for name, text in of_clusters.items() if any(word in text for word in writing)} == {"scylla/export.py"}
