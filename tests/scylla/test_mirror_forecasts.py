"""What is said on the home of a live cluster of what comes: the next node, what expires, and when, by what was seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run
from support.standin.brought import FIRST_US, GENERATIONS, SWITCH_MS, SWITCH_US
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.live_log import LiveLog
from support.standin.versions import VERSIONS
from support.standin.world import FEATURES, time_uuid

from cdc_platform.clock import HOUR_US, SECOND_US, Microseconds, Milliseconds, format_us
from cdc_platform.delta import Lake
from cdc_platform.generations import GenerationId, RingLayout, generate_description
from cdc_platform.metastore import generations, ring
from cdc_platform.ring import Ring
from cdc_platform.scylla import ScyllaCluster
from cdc_platform.tables import UNORDERED_RANGES

pytestmark = pytest.mark.cassandra

MARGIN_US = 10 * SECOND_US


def observed(cluster: ScyllaCluster, at_us: int) -> None:
    """Look at the cluster at a time."""
    answer = run("--home", cluster.home.parent.parent, "--clock", format_us(Microseconds(at_us)), "observe", "prod")
    assert answer.exit_code == 0, answer.stderr


def told(cluster: ScyllaCluster, *command: str | Path, at_us: int = SWITCH_US + HOUR_US) -> Any:
    """What a command that looks answers on the cluster's home, in JSON."""
    answer = run("--home", cluster.home, "--clock", format_us(Microseconds(at_us)), *command, "--json")
    assert answer.exit_code in (0, 1), answer.stderr
    return answer.json


def state_since(cluster: ScyllaCluster, since_us: int, at_us: int) -> None:
    """State at a time since when the TTL of now has been in force, which no look at the cluster shows."""
    words = ("tables", "alter", "shop.t", "--ttl-since", format_us(Microseconds(since_us)))
    answer = run("--home", cluster.home, "--clock", format_us(Microseconds(at_us)), *words)
    assert answer.exit_code == 0, answer.stderr


def test_the_next_node_is_rehearsed_on_the_ring_as_it_is(
    standin: StandIn, cluster: ScyllaCluster, tmp_path: Path
) -> None:
    """Ranges and streams are those that the generation of four nodes has, with the nodes' own shards."""
    there, more = nodes(3), nodes(4)[3]
    standin.world.cluster(there)
    observed(cluster, FIRST_US + HOUR_US)
    step = {"tokens": list(more.tokens), "shard_count": 7, "ignore_msb": 12, "host_id": str(more.host_id)}
    (tmp_path / "steps.json").write_text(json.dumps([{"add": step}]), encoding="utf-8")
    steps = told(cluster, "rehearse", tmp_path / "steps.json")["steps"]
    due = generate_description(RingLayout.of(Ring.of([*there, replace(more, shard_count=7)])), time_uuid(SWITCH_MS))
    assert [each["nodes"] for each in steps] == [3, 4]
    assert [each["tokens"] for each in steps] == [12, 16]
    assert (steps[1]["generation"]["num_ranges"], steps[1]["generation"]["num_streams"]) == (16, len(due.streams))
    assert steps[1]["generation"]["format"] == "v2"


def test_a_node_that_lacks_a_feature_makes_the_next_generation_one_of_the_first_format(
    standin: StandIn, cluster: ScyllaCluster, tmp_path: Path
) -> None:
    """The features of each node are those that it was observed with, by either way in which versions tell them."""
    (tmp_path / "steps.json").write_text('[{"add": {"num_tokens": 4, "shard_count": 4}}]', encoding="utf-8")
    for version in ("2026.3", "5.4"):
        standin.proxy.version = VERSIONS[version]
        for lacking in (False, True):
            has = [FEATURES[:1] if lacking and place == 1 else FEATURES for place in range(3)]
            for place, (node, names) in enumerate(zip(nodes(), has, strict=True)):
                standin.world.put(
                    "scylla.topology", key="topology", host_id=node.host_id, supported_features=set(names)
                )
                standin.world.put(f"node{place}.local", key="local", supported_features=",".join(names))
                for other in {0, 1, 2} - {place}:
                    row = {"peer": node.address, "supported_features": ",".join(names)}
                    standin.world.put(f"node{other}.peers", **row)
            if version == "5.4":
                standin.world.delete("scylla.topology", "key = %s", "topology")
            observed(cluster, FIRST_US + HOUR_US)
            seen = {node.host_id: node.features for node in ring.read_nodes(Lake(cluster.open_home().lake))}
            assert [seen[node.host_id] for node in nodes()] == [tuple(sorted(names)) for names in has]
            step = told(cluster, "rehearse", tmp_path / "steps.json")["steps"][1]
            assert step["generation"]["format"] == ("v1" if lacking else "v2")


def test_a_server_of_5_4_tells_all_of_its_generations(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Its topology is there and empty, its V1 tables hold a generation of before, the newer one is of V2."""
    standin.proxy.version = VERSIONS["5.4"]
    standin.world.delete("scylla.topology", "key = %s", "topology")
    before = Milliseconds(FIRST_MS - 1000)
    standin.world.first_format(before, description(time_uuid(before)))
    observed(cluster, FIRST_US + HOUR_US)
    lake = Lake(cluster.open_home().lake)
    assert {(node.shard_count, node.tokens) for node in ring.read_nodes(lake)} == {(4, node.tokens) for node in nodes()}
    id_ = time_uuid(FIRST_MS)
    assert generations.read_generation_description(lake, GenerationId(FIRST_MS, id_)).equals(description(id_))
    assert generations.read_generation_description(lake, GenerationId(before)).equals(description(time_uuid(before)))
    assert lake.read(UNORDERED_RANGES).num_rows == 0
    assert [each["time"] for each in told(cluster, "generations")["generations"]] == [
        "2026-09-21T14:13:20.000Z",
        "2026-09-21T14:13:19.000Z",
    ]


def test_expiry_counts_with_the_ttls_that_were_observed(cluster: ScyllaCluster, log: LiveLog) -> None:
    """The largest while the generation operated; a past that no look has seen keeps it until somebody states it."""
    log.world.cdc_options("shop", "t", ttl="7200")
    observed(cluster, FIRST_US + 60 * SECOND_US)
    state_since(cluster, FIRST_US - HOUR_US, FIRST_US + 60 * SECOND_US)
    for at, ttl in ((SWITCH_US - HOUR_US // 2, "3600"), (SWITCH_US + HOUR_US // 2, "86400")):
        log.world.cdc_options("shop", "t", ttl=ttl)
        log.world.schema_changed()
        observed(cluster, at)
        assert told(cluster, "expire", "--dry-run")["generations"][0]["expired"] is None
        state_since(cluster, at - 60 * SECOND_US, at)
    first, second = told(cluster, "expire", "--dry-run")["generations"]
    assert first["expired"] == format_us(Microseconds(SWITCH_US + MARGIN_US + 7200 * SECOND_US))
    assert (first["action"], first["blocked_by"]) == ("keep", ["shop.t"])
    assert (second["action"], second["blocked_by"]) == ("keep", ["operates"])


def test_a_log_whose_rows_live_for_ever_holds_its_generations(cluster: ScyllaCluster, log: LiveLog) -> None:
    """TTL 0, as it was observed."""
    observed(cluster, SWITCH_US + 60 * SECOND_US)
    first, _ = told(cluster, "expire", "--dry-run", at_us=SWITCH_US + 10_000 * HOUR_US)["generations"]
    assert (first["expired"], first["action"], first["blocked_by"]) == (None, "keep", ["shop.t"])


def test_a_rehearsal_counts_with_the_ttls_that_were_observed(
    cluster: ScyllaCluster, log: LiveLog, tmp_path: Path
) -> None:
    """Each generation goes that TTL after it stopped to operate, with the margin for clocks and the grace time."""
    log.world.cdc_options("shop", "t", ttl="7200")
    observed(cluster, SWITCH_US + 60 * SECOND_US)
    state_since(cluster, FIRST_US - HOUR_US, SWITCH_US + 60 * SECOND_US)
    node = {"add": {"num_tokens": 4, "shard_count": 4}}
    kept_for = 10 + 7200 + 3600
    # The second one operates until the new node's does, 65 s after the rehearsal begins, an hour after the first.
    first, second = kept_for - 3600 - 65, kept_for
    kept = []
    for seconds in (first - 1, first, second - 1, second):
        (tmp_path / "steps.json").write_text(json.dumps([node, {"wait": seconds}]), encoding="utf-8")
        steps = told(cluster, "rehearse", tmp_path / "steps.json")["steps"]
        kept.append([each["tables"]["system_distributed.cdc_streams_descriptions_v2"] for each in steps])
    (start, joined, _), *_ = kept
    sizes = start // 2, joined - start
    assert [each[2] for each in kept] == [joined, joined - sizes[0], joined - sizes[0], sizes[1]]


def test_the_forecast_begins_with_what_is_there(cluster: ScyllaCluster, log: LiveLog) -> None:
    """Ranges and streams of the generations that were observed, and nodes like those of the ring after them."""
    log.world.cdc_options("shop", "t", ttl="3600")
    observed(cluster, SWITCH_US + 60 * SECOND_US)
    steps = told(cluster, "expire", "--forecast", "2")["forecast"]
    assert [each["num_ranges"] for each in steps] == [12, 16, 20]
    assert steps[0]["streams"] == sum(len(each.streams) for each in GENERATIONS.values())
    assert steps[0]["streams"] < steps[1]["streams"] < steps[2]["streams"]
