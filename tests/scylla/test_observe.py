"""An observation imports a cluster's metadata completely and once, from every version, through a real CQL server."""

from __future__ import annotations

import signal
import uuid
from dataclasses import replace

import numpy as np
import pytest
from support.command_line import run
from support.next_lines import lines_of, path_of, words_of
from support.processes.nursery import Nursery
from support.standin.cluster import FIRST_MS, NODES, PASSWORD, SHARDS, USER, StandIn, description, nodes
from support.standin.live_log import defined
from support.standin.proxy import OVERLOADED, READ_TIMEOUT
from support.standin.versions import VERSIONS
from support.standin.world import OBSERVER, time_uuid

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationId, uniform_tablet_ends
from cdc_platform.generations.tablets import compute_difference, generate_tablet_streams
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle import audit_ring_fit
from cdc_platform.metastore import cdc_tables, generations, ring
from cdc_platform.ring import Node
from cdc_platform.scylla import Observation, ScyllaCluster, registry, run_observation
from cdc_platform.tables import (
    CDC_LOCAL,
    CDC_TABLE_CHANGES,
    GENERATION_TIMESTAMPS,
    LEFT_OUT,
    TABLES,
    TABLET_STREAMS,
    UNORDERED_RANGES,
)

pytestmark = pytest.mark.cassandra

SECOND_MS = FIRST_MS + Milliseconds(3_600_000)
SECOND = time_uuid(SECOND_MS)
LOGIN = {USER: OBSERVER[0], PASSWORD: OBSERVER[1]}
CDC_ON = "cdc = {'enabled': 'true', 'ttl': '60'}"


def observe(cluster: ScyllaCluster) -> Observation:
    """Observe the cluster as a new process does, without cached state."""
    return run_observation(registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock())


def open_lake(cluster: ScyllaCluster) -> Lake:
    """Return the tables of the cluster's home."""
    return Lake(cluster.open_home().lake)


def assert_first_generation(cluster: ScyllaCluster) -> None:
    """Assert that the home's first generation equals the cluster's, byte for byte and in shard order."""
    id_ = time_uuid(FIRST_MS)
    assert generations.read_generation_description(open_lake(cluster), GenerationId(FIRST_MS, id_)).equals(
        description(id_)
    )
    assert open_lake(cluster).read(UNORDERED_RANGES).num_rows == 0


def test_observation_imports_everything_and_repeats_nothing(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The first observation imports nodes, generation and tables with a log."""
    # The second writes no new version of a table and reads no stream again.
    standin.world.cdc_options("shop", "orders", ttl="3600")
    observation = observe(cluster)
    assert (observation.cluster_name, observation.version, observation.incomplete) == ("production", "2026.3.0", [])
    stored = {node.host_id: node for node in ring.read_nodes(open_lake(cluster))}
    for node in nodes():
        copy = stored[node.host_id]
        assert (copy.tokens, copy.shard_count, copy.ignore_msb) == (node.tokens, SHARDS, 12)
        assert (copy.address, copy.rack) == (node.address, node.rack)
    assert_first_generation(cluster)
    orders = cdc_tables.find_cdc_table(open_lake(cluster), "shop", "orders")
    assert (orders.enabled, orders.ttl_seconds) == (True, 3600)
    assert orders.ddl is not None
    assert "CLUSTERING ORDER BY (item ASC)" in orders.ddl
    assert not cdc_tables.find_cdc_table(open_lake(cluster), "Shop", "Carts").enabled

    end_of_query = (f"WHERE time = {FIRST_MS}", f"AND id = {time_uuid(FIRST_MS)}")
    assert len([text for _, text in standin.proxy.statements if text.endswith(end_of_query)]) == 4
    before = {name: open_lake(cluster).version(table) for name, table in TABLES.items()}
    standin.proxy.statements.clear()
    assert observe(cluster).imported.rows_written == 0
    assert {name: open_lake(cluster).version(table) for name, table in TABLES.items()} == before
    texts = [text for _, text in standin.proxy.statements]
    assert not [text for text in texts if text.endswith(end_of_query)]
    assert len(texts) < 45


def test_observation_sends_one_select_at_a_time_per_connection(standin: StandIn, cluster: ScyllaCluster) -> None:
    """An observation opens one connection per node and the driver's control connection."""
    # The proxy counts no other statement and no concurrent requests.
    standin.proxy.count_new_connections()
    observe(cluster)
    assert standin.proxy.refused == []
    assert all(text.startswith("SELECT ") for _, text in standin.proxy.statements)
    # Before the session the driver requests what it needs itself over its control connection and its pools.
    assert standin.proxy.most_in_flight == 1
    assert sorted(standin.proxy.most_open.values()) == [1, 1, 2]
    queried = {node for node, text in standin.proxy.statements if "system.cdc_local" in text}
    assert queried == {0, 1, 2}


@pytest.mark.parametrize("version", ["5.2", "6.2", "2025.4"])
def test_all_versions_give_the_same_cluster(standin: StandIn, cluster: ScyllaCluster, version: str) -> None:
    """The ring and the generation are the same, whichever tables a version has."""
    # Tokens are in peers or the topology, shards at each node or in the topology, descriptions in either table.
    standin.proxy.version = VERSIONS[version]
    observe(cluster)
    assert_first_generation(cluster)
    assert {(node.shard_count, node.ignore_msb) for node in ring.read_nodes(open_lake(cluster))} == {(SHARDS, 12)}
    assert {node.tokens for node in ring.read_current_ring(open_lake(cluster)).nodes} == {
        node.tokens for node in nodes()
    }
    # A full observation queries all nodes; a metadata fingerprint reads the one row that covers all of them.
    queries = {text for _, text in standin.proxy.statements}
    assert ("SELECT * FROM system.topology WHERE key = 'topology'" in queries) == (version != "5.2")


def test_first_format_is_imported_with_its_descriptions(standin: StandIn, cluster: ScyllaCluster) -> None:
    """4.3 has only V1 tables: a generation is identified by its time, and its streams stay in shard order."""
    standin.proxy.version = VERSIONS["4.3"]
    v1_generation = description(uuid.UUID(int=43))
    standin.world.first_format(Milliseconds(FIRST_MS - 1000), v1_generation)
    assert observe(cluster).incomplete == []
    assert generations.read_generation_description(
        open_lake(cluster), GenerationId(Milliseconds(FIRST_MS - 1000))
    ).equals(v1_generation)
    assert observe(cluster).imported.rows_written == 0


def test_both_formats_are_imported_after_an_upgrade(standin: StandIn, cluster: ScyllaCluster) -> None:
    """4.4 has both formats. The shards of their owners order published rows that have no internal table."""
    standin.proxy.version = VERSIONS["4.4"]
    standin.world.first_format(Milliseconds(FIRST_MS - 1000), description(uuid.UUID(int=43)))
    observation = observe(cluster)
    assert [(generation.time_ms, generation.unordered_ranges) for generation in observation.imported.generations] == [
        (FIRST_MS, 0),
        (FIRST_MS - 1000, 0),
    ]


def test_stream_sets_of_tablets_are_imported_completely(standin: StandIn, cluster: ScyllaCluster) -> None:
    """The second set of a table closes and opens streams."""
    table = uuid.UUID(int=7)
    first = generate_tablet_streams(table, FIRST_MS, uniform_tablet_ends(2))
    second = generate_tablet_streams(table, SECOND_MS, uniform_tablet_ends(4))
    change = compute_difference(first, second)
    standin.world.stream_set("shop", "orders", FIRST_MS, _ids(first))
    observe(cluster)
    standin.world.stream_set("shop", "orders", SECOND_MS, _ids(second), _ids(change.closed), _ids(change.opened))
    observation = observe(cluster)
    assert [
        (stream_set.streams, stream_set.closed, stream_set.opened, stream_set.new)
        for stream_set in observation.imported.stream_sets
    ] == [
        (4, 2, 4, True),
        (2, 0, 2, False),
    ]
    assert open_lake(cluster).read(TABLET_STREAMS).num_rows == 2 + 2 + 4 + 2 + 4


def test_generation_is_imported_once_listed_and_complete(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Rows without a timestamp are ignored; a timestamp without all rows is reported."""
    # The generation is imported once it is complete.
    world, generation = standin.world, description(SECOND)
    world.generation(SECOND_MS, SECOND, generation, timestamp=False)
    assert [imported.time_ms for imported in observe(cluster).imported.generations if imported.time_ms] == [FIRST_MS]

    missing = int(generation.range_ends[-1])
    streams = "scylla_distributed.cdc_streams_descriptions_v2"
    world.delete(streams, "time = %s AND range_end = %s", SECOND_MS, missing)
    world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=SECOND_MS)
    home = cluster.home.parent.parent
    answer = run("--home", home, "observe", "prod")
    assert answer.exit_code == 1
    assert "half-written" in answer.stderr
    assert [path_of(words_of(line)) for line in lines_of(answer)] == ["observe", "status"]
    assert open_lake(cluster).read(GENERATION_TIMESTAMPS).num_rows == 1

    last = {stream.tobytes() for stream in generation.entry(len(generation) - 1).streams}
    world.put(streams, time=SECOND_MS, range_end=missing, streams=last)
    answer = run("--home", home, "observe", "prod")
    assert answer.exit_code == 0
    assert [words_of(line) for line in lines_of(answer)] == [["--home", str(cluster.home), "status"]]
    assert open_lake(cluster).read(GENERATION_TIMESTAMPS).num_rows == 2


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_incomplete_observation_is_reported_until_it_is_complete(standin: StandIn, cluster: ScyllaCluster) -> None:
    """`status` and `check` name a generation with a missing row, and the command that observes it again."""
    world, generation, home = standin.world, description(SECOND), cluster.home.parent.parent
    observe(cluster)
    assert open_lake(cluster).version(LEFT_OUT) is None
    world.generation(SECOND_MS, SECOND, generation)
    streams, missing = "scylla_distributed.cdc_streams_descriptions_v2", int(generation.range_ends[-1])
    world.delete(streams, "time = %s AND range_end = %s", SECOND_MS, missing)
    first = run("--home", home, "--clock", "2026-10-01T00:00:00Z", "observe", "prod", "--json")
    assert first.exit_code == 1
    (line,) = first.json["incomplete"]
    versions = {name: open_lake(cluster).version(table) for name, table in TABLES.items()}
    assert run("--home", home, "--clock", "2026-10-01T01:00:00Z", "observe", "prod", "--json").json["incomplete"] == [
        line
    ]
    assert {name: open_lake(cluster).version(table) for name, table in TABLES.items()} == versions

    status = run("--home", cluster.home, "status", "--json")
    assert status.exit_code == 1
    (alert,) = [entry for entry in status.json["alerts"] if entry["code"] == "left-out"]
    assert (alert["level"], alert["command"]) == ("error", f"cdc-platform --home {home} observe prod")
    assert alert["message"] == f"skipped since 2026-10-01T00:00:00.000Z because it is incomplete in the cluster: {line}"
    checks = run("--home", cluster.home, "check", "--json")
    assert checks.exit_code == 1
    (result,) = [entry for entry in checks.rows if entry["invariant"] == "observed_whole"]
    assert (result["checked"], result["violations"], result["sample"]) == (2, 1, line)
    assert [words_of(entry) for entry in lines_of(checks)] == [["--home", str(home), "observe", "prod"]]

    last = {stream.tobytes() for stream in generation.entry(len(generation) - 1).streams}
    world.put(streams, time=SECOND_MS, range_end=missing, streams=last)
    for node in range(NODES):
        world.put(f"node{node}.cdc_local", key="cdc_local", streams_timestamp=SECOND_MS, uuid=SECOND)
    assert run("--home", home, "observe", "prod").exit_code == 0
    assert "left-out" not in {entry["code"] for entry in run("--home", cluster.home, "status", "--json").json["alerts"]}
    checks = run("--home", cluster.home, "check", "--json")
    assert checks.exit_code == 0, checks.stdout
    (result,) = [entry for entry in checks.rows if entry["invariant"] == "observed_whole"]
    assert (result["checked"], result["violations"]) == (2, 0)


def test_unchanged_generations_are_reported_from_the_home(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Their streams are not reread; their sizes and their numbers of unordered ranges come from the home."""
    home, generation = cluster.home.parent.parent, description(time_uuid(FIRST_MS))
    expected = {"num_ranges": len(generation), "num_streams": len(generation.streams), "unordered_ranges": 0}
    for _ in range(2):
        (reported,) = run("--home", home, "observe", "prod", "--json").json["generations"]
        assert reported["id"] == str(time_uuid(FIRST_MS))
        assert {name: reported[name] for name in expected} == expected
    standin.proxy.version = VERSIONS["4.4"]
    standin.world.first_format(Milliseconds(FIRST_MS - 1000), description(uuid.UUID(int=43)))
    before = run("--home", home, "observe", "prod", "--json").json["generations"]
    assert len(before) == 2
    assert all(generation_row["num_ranges"] and generation_row["num_streams"] for generation_row in before)


def test_timestamp_without_streams_is_imported_with_a_warning(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Clusters have listed empty generations: readers see them, each observation warns, and rows may follow."""
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=SECOND_MS)
    for _ in range(2):
        observation = observe(cluster)
        assert observation.incomplete == []
        assert any("1 timestamps without their streams rows" in warning for warning in observation.warnings)
    assert open_lake(cluster).read(GENERATION_TIMESTAMPS).num_rows == 2
    standin.world.generation(SECOND_MS, SECOND, description(SECOND), timestamp=False)
    assert observe(cluster).warnings == []
    assert len(generations.read_published_times(open_lake(cluster))) == 2


def test_table_changes_are_one_commit(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Any number of new tables is one commit, as are one altered, one recreated and one dropped table."""
    observe(cluster)
    schemas = [defined(f"CREATE TABLE shop.t{number} (k int PRIMARY KEY) WITH {CDC_ON};") for number in range(6)]
    for schema in schemas:
        standin.world.logged_table(schema, FIRST_MS)
    lake = open_lake(cluster)
    before = lake.version(CDC_TABLE_CHANGES) or 0
    assert observe(cluster).tables_changed == [f"{schema.full_name} added" for schema in schemas]
    assert lake.version(CDC_TABLE_CHANGES) == before + 1
    standin.world.cdc_extension("shop", "t1", enabled="true", ttl="7")
    standin.world.made(schemas[2], Milliseconds(FIRST_MS + 1000))
    for name in (schemas[3].full_name, f"{schemas[3].keyspace}.{schemas[3].log_name}"):
        standin.world.run(f"DROP TABLE {name}")
    standin.world.schema_changed()
    changes = ["shop.t1 altered", "shop.t2 added", "shop.t2 dropped", "shop.t3 dropped"]
    assert sorted(observe(cluster).tables_changed) == changes
    assert lake.version(CDC_TABLE_CHANGES) == before + 2


def test_recreated_log_is_recorded_once_despite_a_kill(
    standin: StandIn, cluster: ScyllaCluster, nursery: Nursery
) -> None:
    """One commit has the drop and the creation; the run after a kill completes the rest without repeating them."""
    schema, lake = defined(f"CREATE TABLE shop.t1 (k int PRIMARY KEY) WITH {CDC_ON};"), open_lake(cluster)
    standin.world.logged_table(schema, FIRST_MS)
    observe(cluster)
    recreated_ms = Milliseconds(FIRST_MS + 1000)
    standin.world.made(schema, recreated_ms)
    standin.world.schema_changed()
    command = ["--home", cluster.home.parent.parent, "observe", "prod"]
    died = nursery.run(*command, kill_at=failpoints.AFTER_TABLE_CHANGE, environment=LOGIN)
    assert died.exit_code == -signal.SIGKILL, died.stderr
    assert cdc_tables.find_cdc_table(lake, "shop", "t1").created_at_ms == FIRST_MS
    for _ in range(2):
        observe(cluster)
        changes = [change.what for change in cdc_tables.read_table_changes(lake) if change.full_name == "shop.t1"]
        assert changes == ["added", "dropped", "added"]
        assert cdc_tables.find_cdc_table(lake, "shop", "t1").created_at_ms == recreated_ms


def test_changed_options_are_recorded_once(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A TTL in an older version's blob, another TTL, and CDC off are one change of the table each."""
    standin.world.cdc_extension("shop", "orders", enabled="true", ttl="600")
    observe(cluster)
    assert cdc_tables.find_cdc_table(open_lake(cluster), "shop", "orders").ttl_seconds == 600
    standin.world.cdc_extension("shop", "orders", enabled="false", ttl="1200")
    assert observe(cluster).tables_changed == ["shop.orders altered"]
    assert observe(cluster).tables_changed == []
    table = cdc_tables.find_cdc_table(open_lake(cluster), "shop", "orders")
    assert (table.ttl_seconds, table.enabled) == (1200, False)


def test_observation_survives_temporary_errors_and_a_dead_node(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Random overloads, a read timeout, one of three nodes down and slow responses leave the import complete."""
    standin.proxy.kill(2)
    standin.proxy.faults.errors = [OVERLOADED, READ_TIMEOUT]
    standin.proxy.faults.slow_seconds = 0.01
    standin.proxy.faults.error_rate = 0.02
    observation = observe(cluster)
    assert standin.proxy.faults.errors == []
    assert observation.incomplete == []
    assert_first_generation(cluster)
    assert len(set(open_lake(cluster).read(CDC_LOCAL)["host_id"].to_pylist())) == 2


def test_replaced_cluster_is_refused_until_it_is_registered(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Another cluster name, no known host, or a vanished newest generation is refused."""
    # `cluster replace` preserves the old home.
    observe(cluster)
    world = standin.world
    world.cluster(nodes(), name="restored")
    with pytest.raises(StateError, match="calls itself restored"):
        observe(cluster)
    world.empty()
    others = [replace(node, host_id=uuid.UUID(int=0xBEEF + index)) for index, node in enumerate(nodes())]
    world.cluster(others)
    with pytest.raises(StateError, match="none of its 3 hosts"):
        observe(cluster)
    world.empty()
    world.cluster(nodes())
    world.generation(SECOND_MS, SECOND, description(SECOND))
    with pytest.raises(StateError, match="no longer published"):
        observe(cluster)

    home = cluster.home.parent.parent
    previous_home = run("--home", home, "cluster", "replace", "prod", "--json").json["previous_home"]
    observe(cluster)
    assert open_lake(cluster).read(GENERATION_TIMESTAMPS).num_rows == 1
    assert run("--home", previous_home, "generations").exit_code == 0
    assert [cluster_row["name"] for cluster_row in run("--home", home, "cluster", "--json").rows] == ["prod"]


def test_everything_but_nodes_is_imported_during_a_topology_change(standin: StandIn, cluster: ScyllaCluster) -> None:
    """An observation imports a generation and a TTL, but no transitional ring."""
    # A repetition writes nothing, and nodes follow once the topology has settled.
    observe(cluster)
    _start_join_of_fourth_node(standin)
    standin.world.cdc_options("shop", "orders", ttl="3600")
    home = cluster.home.parent.parent
    answer = run("--home", home, "observe", "prod", "--json")
    assert answer.exit_code == 0
    (warning,) = [line for line in answer.stderr.splitlines() if line.startswith("warning")]
    assert "topology is changing (write_both_read_old): nodes are as before" in warning
    assert warning.endswith("[topology-changing]")
    assert (answer.json["changing"], answer.json["incomplete"]) == ("write_both_read_old", [])
    assert [change["who"] for change in answer.json["changes"]] == [
        "table shop.orders",
        "generation 2026-09-21T15:13:20.000Z",
        "cluster",
    ]
    assert generations.read_generation_description(open_lake(cluster), GenerationId(SECOND_MS, SECOND)).equals(
        description(SECOND, nodes(4))
    )
    assert {node.host_id for node in ring.read_nodes(open_lake(cluster))} == {node.host_id for node in nodes()}
    assert cdc_tables.find_cdc_table(open_lake(cluster), "shop", "orders").ttl_seconds == 3600

    versions = {name: open_lake(cluster).version(table) for name, table in TABLES.items()}
    repeated = observe(cluster)
    assert (repeated.changing, repeated.changes, repeated.imported.rows_written) == ("write_both_read_old", [], 0)
    assert {name: open_lake(cluster).version(table) for name, table in TABLES.items()} == versions

    standin.world.cluster(nodes(4)[:3], topology={"transition_state": None, "version": 8})
    standin.world.put("scylla.topology", **_row_of(nodes(4)[3]))
    settled = observe(cluster)
    assert (settled.changing, len(ring.read_nodes(open_lake(cluster)))) == (None, 4)
    assert [(change.change.who, change.change.what) for change in settled.changes] == [
        (f"node {nodes(4)[3].host_id}", f"came: 4 tokens, 4 shards, ignore_msb 12, NORMAL, host {nodes(4)[3].host_id}"),
        ("cluster", "the topology has settled"),
    ]


def test_first_observation_during_a_topology_change_has_no_nodes(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Generations are imported while a node joins; nodes are imported once the topology has settled."""
    standin.world.cluster(nodes(), topology={"transition_state": "join group0"})
    observation = observe(cluster)
    assert (observation.changing, observation.incomplete) == ("join group0", [])
    assert (ring.read_nodes(open_lake(cluster)), len(generations.read_published_times(open_lake(cluster)))) == ([], 1)
    for command in (["status"], ["ring"], ["repair", "--dry-run"], ["explain", "--token", "42"], ["generations"]):
        assert run("--home", cluster.home, *command).exit_code in (0, 1), command
    assert run("--home", cluster.home, "repair", "--dry-run", "--json").json["undetermined"]
    standin.world.cluster(nodes())
    standin.world.put("scylla.topology", key="topology", transition_state=None)
    assert observe(cluster).changing is None
    assert len(ring.read_nodes(open_lake(cluster))) == 3


def test_history_has_each_change_and_its_observer(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Changes of nodes, shards, options and definitions appear once, with user and entry point."""
    # A home that is no mirror has no such history.
    home, world = cluster.home.parent.parent, standin.world
    observe(cluster)
    first = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert {change["who"]: change["what"] for change in first}["table shop.orders"] == "came: TTL 86400 s, CDC off"
    assert len(first) == 3 + 2 + 1
    _start_join_of_fourth_node(standin)
    world.put("scylla.topology", **_row_of(nodes(4)[3]))
    world.put("scylla.topology", **_row_of(replace(nodes()[0], shard_count=8)))
    world.put("scylla.topology", key="topology", transition_state=None, version=8)
    world.cdc_options("shop", "orders", ttl="3600", preimage="full")
    assert run("--home", home, "observe", "prod").exit_code == 0
    changes = run("--home", cluster.home, "history", "--cluster", "--json").rows[len(first) :]
    host = nodes(4)[3].host_id
    assert [(change["who"], change["what"]) for change in changes] == [
        (f"node {host}", f"came: 4 tokens, 4 shards, ignore_msb 12, NORMAL, host {host}"),
        ("node 127.0.0.1", f"is now: 4 tokens, 8 shards, ignore_msb 12, NORMAL, host {nodes()[0].host_id}"),
        (
            "table shop.orders",
            "is now: TTL 3600 s, CDC on; its definition is another: "
            "+ cdc 'delta': 'full', + cdc 'postimage': 'false', + cdc 'preimage': 'full'",
        ),
        ("generation 2026-09-21T15:13:20.000Z", "was published, started 2026-09-21T15:13:20.000Z"),
    ]
    assert {(change["by"], change["run"]) for change in changes} == {("command line observe", None)}
    assert {change["number"] for change in changes} == set(range(len(first), len(first) + len(changes)))
    assert all(change["seen_by"] for change in changes)
    screen = run("--home", cluster.home, "history", "--cluster").stdout
    assert "command line observe" in screen
    other_home = run("--home", home, "history", "--cluster")
    assert (other_home.exit_code, other_home.stdout) == (2, "")
    assert "no live cluster was observed into this home" in other_home.stderr


def test_generation_of_a_joining_node_is_no_error(standin: StandIn, cluster: ScyllaCluster) -> None:
    """During a join every command reports that row locations, the generation's fit and its colocation are unknown."""
    observe(cluster)
    _start_join_of_fourth_node(standin)
    observe(cluster)
    observed, fourth = cluster.home, nodes(4)[3]
    at = ("--clock", "2026-10-01T00:00:00Z")
    joining = run("--home", observed, *at, "explain", "--token", str(fourth.tokens[0]), "--json").json
    assert (joining["colocated"], joining["row_location"], joining["stream_location"]) == (None, None, None)
    assert "where the row lies cannot be told yet" in joining["note"]
    assert joining["stream_id"] is not None
    known = run("--home", observed, *at, "explain", "--token", str(nodes()[0].tokens[0]), "--json").json
    assert (known["colocated"], known["owner"]) == (True, str(nodes()[0].host_id))

    dry = run("--home", observed, "repair", "--dry-run", "--json")
    assert (dry.exit_code, dry.json["needed"], dry.json["reasons"]) == (0, False, [])
    assert dry.json["undetermined"].startswith("cannot tell while the topology is changing since ")
    status = run("--home", observed, "status", "--json").json
    assert status["ring"]["changing"]["transition"] == "write_both_read_old"
    assert (status["repair"]["needed"], status["repair"]["reasons"]) == (None, [])
    codes = {entry["code"]: entry["level"] == "error" for entry in status["alerts"]}
    assert codes["topology-changing"] is False
    assert "repair-due" not in codes
    shares = run("--home", observed, "ring", "--colocation", "latest")
    assert (shares.exit_code, shares.stdout) == (2, "")
    assert "4 ranges of the generation belong to nodes that are not here yet" in shares.stderr
    assert "[topology-changing]" in run("--home", observed, "ring").stderr
    results = audit_ring_fit(open_lake(cluster))
    assert [(entry.invariant, entry.violations) for entry in results] == [("generations_retrievable", 0)]


def test_read_only_commands_work_on_an_observed_home(standin: StandIn, cluster: ScyllaCluster) -> None:
    """`explain` names the stream of the cluster's own description; repair and expiry evaluate the live ring."""
    standin.world.cdc_options("shop", "orders", ttl="3600")
    home = cluster.home.parent.parent
    assert run("--home", home, "observe", "prod").exit_code == 0
    observed = cluster.home
    for token in (-(2**62), 0, 2**62):
        at = "2026-10-01T00:00:00Z"
        answer = run("--home", observed, "--clock", at, "explain", "--token", str(token), "--json").json
        expected = description(time_uuid(FIRST_MS)).streams_of(np.array([token]))[0].tobytes()
        assert answer["stream_id"] == f"0x{expected.hex()}"
    assert not run("--home", observed, "repair", "--dry-run", "--json").json["needed"]
    assert run("--home", observed, "expire", "--dry-run").exit_code == 0
    # The third node is replaced by one that the generation does not have, so a repair is due.
    standin.world.cluster([*nodes(2), replace(nodes(4)[3], address="127.0.0.3")])
    assert run("--home", home, "observe", "prod").exit_code == 0
    assert run("--home", observed, "repair", "--dry-run", "--json").json["needed"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_every_invariant_is_judged_on_an_observed_home(standin: StandIn, cluster: ScyllaCluster) -> None:
    """`check` passes on what the cluster published; a repair is due if a range has streams of too few shards."""
    observe(cluster)
    healthy = run("--home", cluster.home, "check", "--json")
    assert healthy.exit_code == 0, healthy.stdout
    assert {row["violations"] for row in healthy.rows} == {0}
    too_few = description(SECOND, nodes(shards=SHARDS - 1))
    standin.world.generation(SECOND_MS, SECOND, too_few)
    observe(cluster)
    assert run("--home", cluster.home, "repair", "--dry-run", "--strict", "--json").json["needed"]


def test_password_is_not_written_or_printed(
    standin: StandIn, cluster: ScyllaCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither files of the home nor output contain it, after success or failure, with --debug and without."""
    home = cluster.home.parent.parent
    secrets = [OBSERVER[1], "wrong-but-secret"]
    texts = [run("--home", home, "--debug", "-v", "observe", "prod")]
    monkeypatch.setenv("CDC_TEST_PASSWORD", secrets[1])
    texts += [run("--home", home, "--debug", "-v", *command, "prod") for command in (["observe"], ["cluster", "test"])]
    captured = capfd.readouterr()
    printed = "".join(text.stdout + text.stderr for text in texts) + captured.out + captured.err
    assert [text.exit_code for text in texts] == [0, 2, 1]
    assert not any(secret in printed for secret in secrets)
    files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not any(secret.encode() in content for content in files for secret in secrets)


def _start_join_of_fourth_node(standin: StandIn) -> None:
    """Start a join: both rings are written to, and the generation with the new node's tokens is published."""
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    standin.world.put("scylla.topology", **_row_of(nodes(4)[3]) | {"node_state": "bootstrapping"})
    standin.world.generation(SECOND_MS, SECOND, description(SECOND, nodes(4)))


def _row_of(node: Node) -> dict[str, object]:
    row = {name: getattr(node, name) for name in ("host_id", "datacenter", "rack", "shard_count", "ignore_msb")}
    return {"key": "topology", "tokens": {str(token) for token in node.tokens}, "node_state": "normal", **row}


def _ids(streams: np.ndarray) -> list[bytes]:
    return [stream.tobytes() for stream in streams]
