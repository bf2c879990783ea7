"""What an observation takes in of a cluster, version by version, once and whole; from a real CQL server."""

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


def look(cluster: ScyllaCluster) -> Observation:
    """Observe it as the next process would: what is known of it is read anew."""
    return run_observation(registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name), Clock())


def lake_of(cluster: ScyllaCluster) -> Lake:
    """The tables of its home."""
    return Lake(cluster.open_home().lake)


def assert_first_generation(cluster: ScyllaCluster) -> None:
    """The home's first generation is the cluster's, byte for byte and in shard order."""
    id_ = time_uuid(FIRST_MS)
    assert generations.read_generation_description(lake_of(cluster), GenerationId(FIRST_MS, id_)).equals(
        description(id_)
    )
    assert lake_of(cluster).read(UNORDERED_RANGES).num_rows == 0


def test_a_home_gets_what_the_cluster_has_and_the_same_again_writes_nothing(
    standin: StandIn, cluster: ScyllaCluster
) -> None:
    """Nodes, generation, tables with a log; then no table has a new version, and no stream is read a second time."""
    standin.world.cdc_options("shop", "orders", ttl="3600")
    seen = look(cluster)
    assert (seen.cluster_name, seen.version, seen.incomplete) == ("production", "2026.3.0", [])
    found = {node.host_id: node for node in ring.read_nodes(lake_of(cluster))}
    for node in nodes():
        mine = found[node.host_id]
        assert (mine.tokens, mine.shard_count, mine.ignore_msb) == (node.tokens, SHARDS, 12)
        assert (mine.address, mine.rack) == (node.address, node.rack)
    assert_first_generation(cluster)
    orders = cdc_tables.find_cdc_table(lake_of(cluster), "shop", "orders")
    assert (orders.enabled, orders.ttl_seconds) == (True, 3600)
    assert orders.ddl is not None
    assert "CLUSTERING ORDER BY (item ASC)" in orders.ddl
    assert not cdc_tables.find_cdc_table(lake_of(cluster), "Shop", "Carts").enabled

    of_streams = (f"WHERE time = {FIRST_MS}", f"AND id = {time_uuid(FIRST_MS)}")
    assert len([text for _, text in standin.proxy.statements if text.endswith(of_streams)]) == 4
    before = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    standin.proxy.statements.clear()
    assert look(cluster).imported.rows_written == 0
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == before
    texts = [text for _, text in standin.proxy.statements]
    assert not [text for text in texts if text.endswith(of_streams)]
    assert len(texts) < 45


def test_a_cluster_is_asked_by_select_alone_one_request_at_a_time_over_one_connection_a_node(
    standin: StandIn, cluster: ScyllaCluster
) -> None:
    """What the proxy counts: no other statement, none at once, a connection a node and the driver's control one."""
    standin.proxy.count_new_connections()
    look(cluster)
    assert standin.proxy.refused == []
    assert all(text.startswith("SELECT ") for _, text in standin.proxy.statements)
    # Before the session its control connection and its pools are asked for what the driver needs of them.
    assert standin.proxy.most_in_flight == 1
    assert sorted(standin.proxy.most_open.values()) == [1, 1, 2]
    asked = {node for node, text in standin.proxy.statements if "system.cdc_local" in text}
    assert asked == {0, 1, 2}


@pytest.mark.parametrize("version", ["5.2", "6.2", "2025.4"])
def test_versions_tell_the_same_cluster_in_their_own_tables(
    standin: StandIn, cluster: ScyllaCluster, version: str
) -> None:
    """Tokens by peers or by the topology, shards by each node or by the topology, descriptions by either table."""
    standin.proxy.version = VERSIONS[version]
    look(cluster)
    assert_first_generation(cluster)
    assert {(node.shard_count, node.ignore_msb) for node in ring.read_nodes(lake_of(cluster))} == {(SHARDS, 12)}
    assert {node.tokens for node in ring.read_current_ring(lake_of(cluster)).nodes} == {node.tokens for node in nodes()}
    # A look of the whole asks for all nodes, a glance for what one row says of all.
    asked = {text for _, text in standin.proxy.statements}
    assert ("SELECT * FROM system.topology WHERE key = 'topology'" in asked) == (version != "5.2")


def test_the_first_format_comes_with_its_descriptions(standin: StandIn, cluster: ScyllaCluster) -> None:
    """4.3 has V1 tables alone: its generation is known by its time, and its streams keep the order of shards."""
    standin.proxy.version = VERSIONS["4.3"]
    of_old = description(uuid.UUID(int=43))
    standin.world.first_format(Milliseconds(FIRST_MS - 1000), of_old)
    assert look(cluster).incomplete == []
    assert generations.read_generation_description(
        lake_of(cluster), GenerationId(Milliseconds(FIRST_MS - 1000))
    ).equals(of_old)
    assert look(cluster).imported.rows_written == 0


def test_both_formats_stand_beside_each_other_after_an_upgrade(standin: StandIn, cluster: ScyllaCluster) -> None:
    """4.4 has both: published rows without an internal table get their order from the shards of their owners."""
    standin.proxy.version = VERSIONS["4.4"]
    standin.world.first_format(Milliseconds(FIRST_MS - 1000), description(uuid.UUID(int=43)))
    seen = look(cluster)
    assert [(each.time_ms, each.unordered_ranges) for each in seen.imported.generations] == [
        (FIRST_MS, 0),
        (FIRST_MS - 1000, 0),
    ]


def test_stream_sets_of_tablets_are_taken_in_whole(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Two sets of a table, the second of which closes and opens streams."""
    table = uuid.UUID(int=7)
    first = generate_tablet_streams(table, FIRST_MS, uniform_tablet_ends(2))
    second = generate_tablet_streams(table, SECOND_MS, uniform_tablet_ends(4))
    change = compute_difference(first, second)
    standin.world.stream_set("shop", "orders", FIRST_MS, _ids(first))
    look(cluster)
    standin.world.stream_set("shop", "orders", SECOND_MS, _ids(second), _ids(change.closed), _ids(change.opened))
    seen = look(cluster)
    assert [(each.streams, each.closed, each.opened, each.new) for each in seen.imported.stream_sets] == [
        (4, 2, 4, True),
        (2, 0, 2, False),
    ]
    assert lake_of(cluster).read(TABLET_STREAMS).num_rows == 2 + 2 + 4 + 2 + 4


def test_a_generation_goes_in_when_it_is_listed_and_whole(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Rows without a timestamp are not looked at; a timestamp without all rows is told of; then it goes in."""
    world, made = standin.world, description(SECOND)
    world.generation(SECOND_MS, SECOND, made, timestamp=False)
    assert [each.time_ms for each in look(cluster).imported.generations if each.time_ms] == [FIRST_MS]

    missing = int(made.range_ends[-1])
    streams = "scylla_distributed.cdc_streams_descriptions_v2"
    world.delete(streams, "time = %s AND range_end = %s", SECOND_MS, missing)
    world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=SECOND_MS)
    home = cluster.home.parent.parent
    answer = run("--home", home, "observe", "prod")
    assert answer.exit_code == 1
    assert "half-written" in answer.stderr
    assert [path_of(words_of(line)) for line in lines_of(answer)] == ["observe", "status"]
    assert lake_of(cluster).read(GENERATION_TIMESTAMPS).num_rows == 1

    last = {stream.tobytes() for stream in made.entry(len(made) - 1).streams}
    world.put(streams, time=SECOND_MS, range_end=missing, streams=last)
    answer = run("--home", home, "observe", "prod")
    assert answer.exit_code == 0
    assert [words_of(line) for line in lines_of(answer)] == [["--home", str(cluster.home), "status"]]
    assert lake_of(cluster).read(GENERATION_TIMESTAMPS).num_rows == 2


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_a_look_left_out_is_wrong_until_it_is_whole(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A generation that lacks a row: `status` and `check` say so after the look has ended, and where to look again."""
    world, made, home = standin.world, description(SECOND), cluster.home.parent.parent
    look(cluster)
    assert lake_of(cluster).version(LEFT_OUT) is None
    world.generation(SECOND_MS, SECOND, made)
    streams, missing = "scylla_distributed.cdc_streams_descriptions_v2", int(made.range_ends[-1])
    world.delete(streams, "time = %s AND range_end = %s", SECOND_MS, missing)
    began = run("--home", home, "--clock", "2026-10-01T00:00:00Z", "observe", "prod", "--json")
    assert began.exit_code == 1
    (line,) = began.json["incomplete"]
    versions = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    assert run("--home", home, "--clock", "2026-10-01T01:00:00Z", "observe", "prod", "--json").json["incomplete"] == [
        line
    ]
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == versions

    told = run("--home", cluster.home, "status", "--json")
    assert told.exit_code == 1
    (found,) = [each for each in told.json["alerts"] if each["code"] == "left-out"]
    assert (found["level"], found["command"]) == ("error", f"cdc-platform --home {home} observe prod")
    assert found["message"] == f"skipped since 2026-10-01T00:00:00.000Z because it is incomplete in the cluster: {line}"
    judged = run("--home", cluster.home, "check", "--json")
    assert judged.exit_code == 1
    (whole,) = [each for each in judged.rows if each["invariant"] == "observed_whole"]
    assert (whole["checked"], whole["violations"], whole["sample"]) == (2, 1, line)
    assert [words_of(each) for each in lines_of(judged)] == [["--home", str(home), "observe", "prod"]]

    last = {stream.tobytes() for stream in made.entry(len(made) - 1).streams}
    world.put(streams, time=SECOND_MS, range_end=missing, streams=last)
    for place in range(NODES):
        world.put(f"node{place}.cdc_local", key="cdc_local", streams_timestamp=SECOND_MS, uuid=SECOND)
    assert run("--home", home, "observe", "prod").exit_code == 0
    assert "left-out" not in {each["code"] for each in run("--home", cluster.home, "status", "--json").json["alerts"]}
    judged = run("--home", cluster.home, "check", "--json")
    assert judged.exit_code == 0, judged.stdout
    (whole,) = [each for each in judged.rows if each["invariant"] == "observed_whole"]
    assert (whole["checked"], whole["violations"]) == (2, 0)


def test_generations_that_did_not_change_are_told_as_they_are(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Their streams are not read again, and their sizes come from the home; so does how many ranges have no order."""
    home, made = cluster.home.parent.parent, description(time_uuid(FIRST_MS))
    expected = {"num_ranges": len(made), "num_streams": len(made.streams), "unordered_ranges": 0}
    for _ in range(2):
        (told,) = run("--home", home, "observe", "prod", "--json").json["generations"]
        assert told["id"] == str(time_uuid(FIRST_MS))
        assert {name: told[name] for name in expected} == expected
    standin.proxy.version = VERSIONS["4.4"]
    standin.world.first_format(Milliseconds(FIRST_MS - 1000), description(uuid.UUID(int=43)))
    before = run("--home", home, "observe", "prod", "--json").json["generations"]
    assert len(before) == 2
    assert all(each["num_ranges"] and each["num_streams"] for each in before)


def test_a_timestamp_without_streams_is_taken_in_and_told_of(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Clusters have shown generations that are listed and empty: readers see them, each look tells, rows may come."""
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=SECOND_MS)
    for _ in range(2):
        seen = look(cluster)
        assert seen.incomplete == []
        assert any("1 timestamps without their streams rows" in each for each in seen.warnings)
    assert lake_of(cluster).read(GENERATION_TIMESTAMPS).num_rows == 2
    standin.world.generation(SECOND_MS, SECOND, description(SECOND), timestamp=False)
    assert look(cluster).warnings == []
    assert len(generations.read_published_times(lake_of(cluster))) == 2


def test_tables_with_a_log_are_told_by_one_commit(standin: StandIn, cluster: ScyllaCluster) -> None:
    """However many are new; and again where one of them is altered, one is made anew and one has gone."""
    look(cluster)
    made = [defined(f"CREATE TABLE shop.t{number} (k int PRIMARY KEY) WITH {CDC_ON};") for number in range(6)]
    for schema in made:
        standin.world.logged_table(schema, FIRST_MS)
    lake = lake_of(cluster)
    before = lake.version(CDC_TABLE_CHANGES) or 0
    assert look(cluster).tables_changed == [f"{schema.full_name} added" for schema in made]
    assert lake.version(CDC_TABLE_CHANGES) == before + 1
    standin.world.cdc_extension("shop", "t1", enabled="true", ttl="7")
    standin.world.made(made[2], Milliseconds(FIRST_MS + 1000))
    for name in (made[3].full_name, f"{made[3].keyspace}.{made[3].log_name}"):
        standin.world.run(f"DROP TABLE {name}")
    standin.world.schema_changed()
    now = ["shop.t1 altered", "shop.t2 added", "shop.t2 dropped", "shop.t3 dropped"]
    assert sorted(look(cluster).tables_changed) == now
    assert lake.version(CDC_TABLE_CHANGES) == before + 2


def test_a_log_made_anew_is_told_once_though_who_tells_dies(
    standin: StandIn, cluster: ScyllaCluster, nursery: Nursery
) -> None:
    """Its end and its new beginning are said at once: the next look completes what follows, and says neither again."""
    made, lake = defined(f"CREATE TABLE shop.t1 (k int PRIMARY KEY) WITH {CDC_ON};"), lake_of(cluster)
    standin.world.logged_table(made, FIRST_MS)
    look(cluster)
    again_ms = Milliseconds(FIRST_MS + 1000)
    standin.world.made(made, again_ms)
    standin.world.schema_changed()
    command = ["--home", cluster.home.parent.parent, "observe", "prod"]
    died = nursery.run(*command, kill_at=failpoints.AFTER_TABLE_CHANGE, environment=LOGIN)
    assert died.exit_code == -signal.SIGKILL, died.stderr
    assert cdc_tables.find_cdc_table(lake, "shop", "t1").created_at_ms == FIRST_MS
    for _ in range(2):
        look(cluster)
        said = [each.what for each in cdc_tables.read_table_changes(lake) if each.full_name == "shop.t1"]
        assert said == ["added", "dropped", "added"]
        assert cdc_tables.find_cdc_table(lake, "shop", "t1").created_at_ms == again_ms


def test_changed_options_are_noted_once(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A TTL as older versions keep it, in a blob; then another, then CDC off: each is one change of the table."""
    standin.world.cdc_extension("shop", "orders", enabled="true", ttl="600")
    look(cluster)
    assert cdc_tables.find_cdc_table(lake_of(cluster), "shop", "orders").ttl_seconds == 600
    standin.world.cdc_extension("shop", "orders", enabled="false", ttl="1200")
    assert look(cluster).tables_changed == ["shop.orders altered"]
    assert look(cluster).tables_changed == []
    found = cdc_tables.find_cdc_table(lake_of(cluster), "shop", "orders")
    assert (found.ttl_seconds, found.enabled) == (1200, False)


def test_passing_errors_and_a_dead_node_do_not_stop_it(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Overloads at random, a read timeout, one node of three down, slow answers: all of it is taken in."""
    standin.proxy.kill(2)
    standin.proxy.faults.errors = [OVERLOADED, READ_TIMEOUT]
    standin.proxy.faults.slow_seconds = 0.01
    standin.proxy.faults.error_rate = 0.02
    seen = look(cluster)
    assert standin.proxy.faults.errors == []
    assert seen.incomplete == []
    assert_first_generation(cluster)
    assert len(set(lake_of(cluster).read(CDC_LOCAL)["host_id"].to_pylist())) == 2


def test_another_cluster_under_the_name_is_refused_until_it_is_said(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Another name for itself, no host of before, a newest generation that vanished; `renew` keeps the old home."""
    look(cluster)
    world = standin.world
    world.cluster(nodes(), name="restored")
    with pytest.raises(StateError, match="calls itself restored"):
        look(cluster)
    world.empty()
    others = [replace(node, host_id=uuid.UUID(int=0xBEEF + place)) for place, node in enumerate(nodes())]
    world.cluster(others)
    with pytest.raises(StateError, match="none of its 3 hosts"):
        look(cluster)
    world.empty()
    world.cluster(nodes())
    world.generation(SECOND_MS, SECOND, description(SECOND))
    with pytest.raises(StateError, match="no longer published"):
        look(cluster)

    home = cluster.home.parent.parent
    aside = run("--home", home, "cluster", "replace", "prod", "--json").json["previous_home"]
    look(cluster)
    assert lake_of(cluster).read(GENERATION_TIMESTAMPS).num_rows == 1
    assert run("--home", aside, "generations").exit_code == 0
    assert [each["name"] for each in run("--home", home, "cluster", "--json").rows] == ["prod"]


def test_while_the_topology_changes_all_but_its_nodes_is_taken_in(standin: StandIn, cluster: ScyllaCluster) -> None:
    """A generation, a TTL, no ring that never was; the same again writes nothing, and once it settled nodes come."""
    look(cluster)
    _fourth_joins(standin)
    standin.world.cdc_options("shop", "orders", ttl="3600")
    home = cluster.home.parent.parent
    answer = run("--home", home, "observe", "prod", "--json")
    assert answer.exit_code == 0
    (warning,) = [line for line in answer.stderr.splitlines() if line.startswith("warning")]
    assert "topology is changing (write_both_read_old): nodes are as before" in warning
    assert warning.endswith("[topology-changing]")
    assert (answer.json["changing"], answer.json["incomplete"]) == ("write_both_read_old", [])
    assert [each["who"] for each in answer.json["changes"]] == [
        "table shop.orders",
        "generation 2026-09-21T15:13:20.000Z",
        "cluster",
    ]
    assert generations.read_generation_description(lake_of(cluster), GenerationId(SECOND_MS, SECOND)).equals(
        description(SECOND, nodes(4))
    )
    assert {node.host_id for node in ring.read_nodes(lake_of(cluster))} == {node.host_id for node in nodes()}
    assert cdc_tables.find_cdc_table(lake_of(cluster), "shop", "orders").ttl_seconds == 3600

    versions = {name: lake_of(cluster).version(table) for name, table in TABLES.items()}
    again = look(cluster)
    assert (again.changing, again.changes, again.imported.rows_written) == ("write_both_read_old", [], 0)
    assert {name: lake_of(cluster).version(table) for name, table in TABLES.items()} == versions

    standin.world.cluster(nodes(4)[:3], topology={"transition_state": None, "version": 8})
    standin.world.put("scylla.topology", **_row_of(nodes(4)[3]))
    seen = look(cluster)
    assert (seen.changing, len(ring.read_nodes(lake_of(cluster)))) == (None, 4)
    assert [(each.change.who, each.change.what) for each in seen.changes] == [
        (f"node {nodes(4)[3].host_id}", f"came: 4 tokens, 4 shards, ignore_msb 12, NORMAL, host {nodes(4)[3].host_id}"),
        ("cluster", "the topology has settled"),
    ]


def test_a_cluster_that_is_met_while_its_topology_changes_has_no_nodes_yet(
    standin: StandIn, cluster: ScyllaCluster
) -> None:
    """A node joins as it is seen for the first time: generations come in, nodes when they are at rest."""
    standin.world.cluster(nodes(), topology={"transition_state": "join group0"})
    seen = look(cluster)
    assert (seen.changing, seen.incomplete) == ("join group0", [])
    assert (ring.read_nodes(lake_of(cluster)), len(generations.read_published_times(lake_of(cluster)))) == ([], 1)
    for command in (["status"], ["ring"], ["repair", "--dry-run"], ["explain", "--token", "42"], ["generations"]):
        assert run("--home", cluster.home, *command).exit_code in (0, 1), command
    assert run("--home", cluster.home, "repair", "--dry-run", "--json").json["undetermined"]
    standin.world.cluster(nodes())
    standin.world.put("scylla.topology", key="topology", transition_state=None)
    assert look(cluster).changing is None
    assert len(ring.read_nodes(lake_of(cluster))) == 3


def test_what_became_other_is_history_with_who_looked(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Nodes, shards, options, definitions: each once, by whom and by which door it was seen; another home has none."""
    home, world = cluster.home.parent.parent, standin.world
    look(cluster)
    first = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert {each["who"]: each["what"] for each in first}["table shop.orders"] == "came: TTL 86400 s, CDC off"
    assert len(first) == 3 + 2 + 1
    _fourth_joins(standin)
    world.put("scylla.topology", **_row_of(nodes(4)[3]))
    world.put("scylla.topology", **_row_of(replace(nodes()[0], shard_count=8)))
    world.put("scylla.topology", key="topology", transition_state=None, version=8)
    world.cdc_options("shop", "orders", ttl="3600", preimage="full")
    assert run("--home", home, "observe", "prod").exit_code == 0
    told = run("--home", cluster.home, "history", "--cluster", "--json").rows[len(first) :]
    host = nodes(4)[3].host_id
    assert [(each["who"], each["what"]) for each in told] == [
        (f"node {host}", f"came: 4 tokens, 4 shards, ignore_msb 12, NORMAL, host {host}"),
        ("node 127.0.0.1", f"is now: 4 tokens, 8 shards, ignore_msb 12, NORMAL, host {nodes()[0].host_id}"),
        (
            "table shop.orders",
            "is now: TTL 3600 s, CDC on; its definition is another: "
            "+ cdc 'delta': 'full', + cdc 'postimage': 'false', + cdc 'preimage': 'full'",
        ),
        ("generation 2026-09-21T15:13:20.000Z", "was published, started 2026-09-21T15:13:20.000Z"),
    ]
    assert {(each["by"], each["run"]) for each in told} == {("command line observe", None)}
    assert {each["number"] for each in told} == set(range(len(first), len(first) + len(told)))
    assert all(each["seen_by"] for each in told)
    shown = run("--home", cluster.home, "history", "--cluster").stdout
    assert "command line observe" in shown
    nothing = run("--home", home, "history", "--cluster")
    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert "no live cluster was observed into this home" in nothing.stderr


def test_a_generation_of_a_node_on_its_way_in_is_not_called_wrong(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Where its rows lie, whether it fits and what it colocates is not known yet, and every door says so."""
    look(cluster)
    _fourth_joins(standin)
    look(cluster)
    observed, fourth = cluster.home, nodes(4)[3]
    at = ("--clock", "2026-10-01T00:00:00Z")
    coming = run("--home", observed, *at, "explain", "--token", str(fourth.tokens[0]), "--json").json
    assert (coming["colocated"], coming["row_location"], coming["stream_location"]) == (None, None, None)
    assert "where the row lies cannot be told yet" in coming["note"]
    assert coming["stream_id"] is not None
    known_one = run("--home", observed, *at, "explain", "--token", str(nodes()[0].tokens[0]), "--json").json
    assert (known_one["colocated"], known_one["owner"]) == (True, str(nodes()[0].host_id))

    dry = run("--home", observed, "repair", "--dry-run", "--json")
    assert (dry.exit_code, dry.json["needed"], dry.json["reasons"]) == (0, False, [])
    assert dry.json["undetermined"].startswith("cannot tell while the topology is changing since ")
    told = run("--home", observed, "status", "--json").json
    assert told["ring"]["changing"]["transition"] == "write_both_read_old"
    assert (told["repair"]["needed"], told["repair"]["reasons"]) == (None, [])
    codes = {each["code"]: each["level"] == "error" for each in told["alerts"]}
    assert codes["topology-changing"] is False
    assert "repair-due" not in codes
    shares = run("--home", observed, "ring", "--colocation", "latest")
    assert (shares.exit_code, shares.stdout) == (2, "")
    assert "4 ranges of the generation belong to nodes that are not here yet" in shares.stderr
    assert "[topology-changing]" in run("--home", observed, "ring").stderr
    judged = audit_ring_fit(lake_of(cluster))
    assert [(each.invariant, each.violations) for each in judged] == [("generations_retrievable", 0)]


def test_an_observed_home_works_with_the_commands_that_look(standin: StandIn, cluster: ScyllaCluster) -> None:
    """`explain` names the stream that the cluster's own description has; repair and expiry judge the live ring."""
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
    # A node that the generation knows nothing of, in the place of the third: a repair is due.
    standin.world.cluster([*nodes(2), replace(nodes(4)[3], address="127.0.0.3")])
    assert run("--home", home, "observe", "prod").exit_code == 0
    assert run("--home", observed, "repair", "--dry-run", "--json").json["needed"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_every_invariant_is_judged_on_an_observed_home(standin: StandIn, cluster: ScyllaCluster) -> None:
    """`check` passes what the cluster published, and says no when a range's streams are of too few shards."""
    look(cluster)
    healthy = run("--home", cluster.home, "check", "--json")
    assert healthy.exit_code == 0, healthy.stdout
    assert {each["violations"] for each in healthy.rows} == {0}
    of_few = description(SECOND, nodes(shards=SHARDS - 1))
    standin.world.generation(SECOND_MS, SECOND, of_few)
    look(cluster)
    assert run("--home", cluster.home, "repair", "--dry-run", "--strict", "--json").json["needed"]


def test_the_password_is_nowhere(
    standin: StandIn, cluster: ScyllaCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a file of the home, not in what is printed, whether it goes well or not, with --debug and without."""
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


def _fourth_joins(standin: StandIn) -> None:
    """The hours of a join: both rings are written to, and the generation with the new node's tokens is published."""
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    standin.world.put("scylla.topology", **_row_of(nodes(4)[3]) | {"node_state": "bootstrapping"})
    standin.world.generation(SECOND_MS, SECOND, description(SECOND, nodes(4)))


def _row_of(node: Node) -> dict[str, object]:
    row = {name: getattr(node, name) for name in ("host_id", "datacenter", "rack", "shard_count", "ignore_msb")}
    return {"key": "topology", "tokens": {str(each) for each in node.tokens}, "node_state": "normal", **row}


def _ids(streams: np.ndarray) -> list[bytes]:
    return [stream.tobytes() for stream in streams]
