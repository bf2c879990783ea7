"""Forecasts on the home of a live cluster use observed data: the next node, what expires, and when."""

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


def observe(cluster: ScyllaCluster, at_us: int) -> None:
    """Observe the cluster at a time (µs)."""
    answer = run("--home", cluster.home.parent.parent, "--clock", format_us(Microseconds(at_us)), "observe", "prod")
    assert answer.exit_code == 0, answer.stderr


def read_json(cluster: ScyllaCluster, *command: str | Path, at_us: int = SWITCH_US + HOUR_US) -> Any:
    """Return the JSON of a read-only command on the cluster's home."""
    answer = run("--home", cluster.home, "--clock", format_us(Microseconds(at_us)), *command, "--json")
    assert answer.exit_code in (0, 1), answer.stderr
    return answer.json


def state_since(cluster: ScyllaCluster, since_us: int, at_us: int) -> None:
    """State at `at_us` (µs) since when the current TTL has applied, which no observation shows."""
    words = ("tables", "alter", "shop.t", "--ttl-since", format_us(Microseconds(since_us)))
    answer = run("--home", cluster.home, "--clock", format_us(Microseconds(at_us)), *words)
    assert answer.exit_code == 0, answer.stderr


def test_next_node_is_rehearsed_on_the_observed_ring(standin: StandIn, cluster: ScyllaCluster, tmp_path: Path) -> None:
    """Ranges and streams equal those of the generation of four nodes, with the nodes' own shards."""
    existing, added = nodes(3), nodes(4)[3]
    standin.world.cluster(existing)
    observe(cluster, FIRST_US + HOUR_US)
    step = {"tokens": list(added.tokens), "shard_count": 7, "ignore_msb": 12, "host_id": str(added.host_id)}
    (tmp_path / "steps.json").write_text(json.dumps([{"add": step}]), encoding="utf-8")
    steps = read_json(cluster, "rehearse", tmp_path / "steps.json")["steps"]
    expected = generate_description(
        RingLayout.of(Ring.of([*existing, replace(added, shard_count=7)])), time_uuid(SWITCH_MS)
    )
    assert [step["nodes"] for step in steps] == [3, 4]
    assert [step["tokens"] for step in steps] == [12, 16]
    assert (steps[1]["generation"]["num_ranges"], steps[1]["generation"]["num_streams"]) == (16, len(expected.streams))
    assert steps[1]["generation"]["format"] == "v2"


def test_node_without_a_feature_makes_the_next_generation_v1(
    standin: StandIn, cluster: ScyllaCluster, tmp_path: Path
) -> None:
    """Each node has its observed features, whichever of the two ways a version reports them."""
    (tmp_path / "steps.json").write_text('[{"add": {"num_tokens": 4, "shard_count": 4}}]', encoding="utf-8")
    for version in ("2026.3", "5.4"):
        standin.proxy.version = VERSIONS[version]
        for missing in (False, True):
            features = [FEATURES[:1] if missing and index == 1 else FEATURES for index in range(3)]
            for index, (node, names) in enumerate(zip(nodes(), features, strict=True)):
                standin.world.put(
                    "scylla.topology", key="topology", host_id=node.host_id, supported_features=set(names)
                )
                standin.world.put(f"node{index}.local", key="local", supported_features=",".join(names))
                for other in {0, 1, 2} - {index}:
                    row = {"peer": node.address, "supported_features": ",".join(names)}
                    standin.world.put(f"node{other}.peers", **row)
            if version == "5.4":
                standin.world.delete("scylla.topology", "key = %s", "topology")
            observe(cluster, FIRST_US + HOUR_US)
            observed = {node.host_id: node.features for node in ring.read_nodes(Lake(cluster.open_home().lake))}
            assert [observed[node.host_id] for node in nodes()] == [tuple(sorted(names)) for names in features]
            step = read_json(cluster, "rehearse", tmp_path / "steps.json")["steps"][1]
            assert step["generation"]["format"] == ("v1" if missing else "v2")


def test_server_of_5_4_gives_all_its_generations(standin: StandIn, cluster: ScyllaCluster) -> None:
    """Its topology is empty; its V1 tables have an earlier generation, and the newer one is V2."""
    standin.proxy.version = VERSIONS["5.4"]
    standin.world.delete("scylla.topology", "key = %s", "topology")
    before = Milliseconds(FIRST_MS - 1000)
    standin.world.first_format(before, description(time_uuid(before)))
    observe(cluster, FIRST_US + HOUR_US)
    lake = Lake(cluster.open_home().lake)
    assert {(node.shard_count, node.tokens) for node in ring.read_nodes(lake)} == {(4, node.tokens) for node in nodes()}
    id_ = time_uuid(FIRST_MS)
    assert generations.read_generation_description(lake, GenerationId(FIRST_MS, id_)).equals(description(id_))
    assert generations.read_generation_description(lake, GenerationId(before)).equals(description(time_uuid(before)))
    assert lake.read(UNORDERED_RANGES).num_rows == 0
    assert [generation["time"] for generation in read_json(cluster, "generations")["generations"]] == [
        "2026-09-21T14:13:20.000Z",
        "2026-09-21T14:13:19.000Z",
    ]


def test_expiry_uses_observed_ttls(cluster: ScyllaCluster, log: LiveLog) -> None:
    """The largest TTL while the generation operated counts."""
    # A generation whose past TTLs were not observed stays until a user states them.
    log.world.cdc_options("shop", "t", ttl="7200")
    observe(cluster, FIRST_US + 60 * SECOND_US)
    state_since(cluster, FIRST_US - HOUR_US, FIRST_US + 60 * SECOND_US)
    for at, ttl in ((SWITCH_US - HOUR_US // 2, "3600"), (SWITCH_US + HOUR_US // 2, "86400")):
        log.world.cdc_options("shop", "t", ttl=ttl)
        log.world.schema_changed()
        observe(cluster, at)
        assert read_json(cluster, "expire", "--dry-run")["generations"][0]["expired"] is None
        state_since(cluster, at - 60 * SECOND_US, at)
    first, second = read_json(cluster, "expire", "--dry-run")["generations"]
    assert first["expired"] == format_us(Microseconds(SWITCH_US + MARGIN_US + 7200 * SECOND_US))
    assert (first["action"], first["blocked_by"]) == ("keep", ["shop.t"])
    assert (second["action"], second["blocked_by"]) == ("keep", ["operates"])


def test_log_without_ttl_keeps_its_generations(cluster: ScyllaCluster, log: LiveLog) -> None:
    """The observed TTL is 0."""
    observe(cluster, SWITCH_US + 60 * SECOND_US)
    first, _ = read_json(cluster, "expire", "--dry-run", at_us=SWITCH_US + 10_000 * HOUR_US)["generations"]
    assert (first["expired"], first["action"], first["blocked_by"]) == (None, "keep", ["shop.t"])


def test_rehearsal_uses_observed_ttls(cluster: ScyllaCluster, log: LiveLog, tmp_path: Path) -> None:
    """A rehearsal removes each generation its TTL, the clock margin and the grace time after it stops operating."""
    log.world.cdc_options("shop", "t", ttl="7200")
    observe(cluster, SWITCH_US + 60 * SECOND_US)
    state_since(cluster, FIRST_US - HOUR_US, SWITCH_US + 60 * SECOND_US)
    node = {"add": {"num_tokens": 4, "shard_count": 4}}
    retained_s = 10 + 7200 + 3600
    # The second generation operates until the new node's one does, 65 s after the rehearsal begins, an hour after the
    # first.
    first, second = retained_s - 3600 - 65, retained_s
    table_sizes = []
    for seconds in (first - 1, first, second - 1, second):
        (tmp_path / "steps.json").write_text(json.dumps([node, {"wait": seconds}]), encoding="utf-8")
        steps = read_json(cluster, "rehearse", tmp_path / "steps.json")["steps"]
        table_sizes.append([step["tables"]["system_distributed.cdc_streams_descriptions_v2"] for step in steps])
    (start, joined, _), *_ = table_sizes
    sizes = start // 2, joined - start
    assert [step[2] for step in table_sizes] == [joined, joined - sizes[0], joined - sizes[0], sizes[1]]


def test_forecast_begins_with_the_observed_generations(cluster: ScyllaCluster, log: LiveLog) -> None:
    """It begins with the observed ranges and streams, and adds nodes like those of the ring."""
    log.world.cdc_options("shop", "t", ttl="3600")
    observe(cluster, SWITCH_US + 60 * SECOND_US)
    steps = read_json(cluster, "expire", "--forecast", "2")["forecast"]
    assert [item["num_ranges"] for item in steps] == [12, 16, 20]
    assert steps[0]["streams"] == sum(len(item.streams) for item in GENERATIONS.values())
    assert steps[0]["streams"] < steps[1]["streams"] < steps[2]["streams"]
