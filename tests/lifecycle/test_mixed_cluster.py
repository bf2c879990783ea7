"""Joins to a cluster that does not support V2 yet: V1, limited and published for readers; then V2. On Spark.

One test follows the life of a cluster in chronological order, in one session.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.command_line import run
from support.homes.v1_tables import HOUR_MS, START_MS, old_cluster, times
from support.oracles import oracle

from cdc_platform.checks import INSERTED_INVARIANTS, PUBLISHED_INVARIANTS, audit_lake, judge_findings
from cdc_platform.checks.v1 import audit_inserted_v1, audit_published_v1
from cdc_platform.clock import Clock, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import GenerationId
from cdc_platform.generations import description as rules
from cdc_platform.home_location import open_home_location
from cdc_platform.lifecycle.join import bootstrap, publish, steps
from cdc_platform.metastore import JoinRequest, generations, inbox, read_current_ring, write_nodes
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.timeline import StreamSources, Timeline

NOON_MS = Milliseconds(1_700_000_000_000)
NOON = Clock(us_from_ms(NOON_MS))
OLD = {"features": []}
Request = Callable[..., JoinRequest]


@pytest.fixture
def request_of(bootstrap_text: Callable[..., str]) -> Request:
    """Creates the request of a node, upgraded or not."""
    from cdc_platform.importing import parse_join_request

    def make_request(number: int, *, upgraded: bool, **shape: int) -> JoinRequest:
        fields = json.loads(bootstrap_text(number, **shape)) | ({} if upgraded else OLD)
        return parse_join_request(json.dumps(fields))

    return make_request


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a V1 cell to 100 streams, so that small clusters reach the limit."""
    monkeypatch.setattr(rules, "V1_STREAM_LIMIT", 100)


def queue(lake: Lake, request: JoinRequest) -> str:
    """Queue a node and return its generation."""
    return inbox.queue_join(lake, NOON, request).generation_id


def test_the_life_of_a_cluster_through_its_upgrade(
    workers: TaskRunner, lake: Lake, request_of: Request, small_limit: None, caplog: pytest.LogCaptureFixture
) -> None:
    """V1 until the upgrade, V2 afterwards; every generation is published and explained."""
    caplog.set_level(logging.WARNING, logger="cdc_platform")
    first = steps.run_join(workers, lake, NOON, Settings(), queue(lake, request_of(1, upgraded=False, shard_count=4)))
    # An upgraded node joins a cluster with one that is not upgraded, which suffices for V1.
    second_id = queue(lake, request_of(2, upgraded=True, shard_count=7, ignore_msb=3))

    # The ledger gets its timestamp before the insert, and the process dies there.
    described = bootstrap.describe_v1_generation(workers, lake, second_id)
    assert described.warning is not None
    assert str(uuid.UUID(int=1)) in described.warning
    assert "finish the upgrade" in described.warning
    assert "cdc-platform repair" in described.warning
    assert second_id in caplog.text
    with pytest.raises(NotFound, match="insert it first"):
        bootstrap.introduce_v1_generation(lake, second_id)
    chosen = bootstrap.choose_v1_timestamp(lake, NOON, Settings(), second_id)
    assert [known.id for known in Timeline.read(lake).known] == [first.generation_id]
    later = Clock(us_from_ms(Milliseconds(NOON_MS + 3_600_000)))
    second = steps.run_join(workers, lake, later, Settings(), second_id)
    assert second.time_ms == chosen == NOON_MS + 65_001

    # The limit: 16 * 4 + 16 * 7 = 176 streams are more than 100, which leaves 100 // 32 = 3 per range.
    assert (first.num_streams, second.num_ranges, second.num_streams) == (64, 32, 96)
    ledger = {row["generation_id"]: row for row in lake.read(GENERATIONS).to_pylist()}
    assert {row["format"] for row in ledger.values()} == {"v1"}
    assert ledger[second_id]["num_streams"] == 96
    description = generations.read_generation_description(lake, GenerationId(second.time_ms))
    sharding: dict[int, tuple[int, int]] = dict.fromkeys(request_of(1, upgraded=True).tokens or (), (3, 12))
    sharding |= dict.fromkeys(request_of(2, upgraded=True).tokens or (), (3, 3))
    for row, entry in enumerate(oracle.generation(sharding)):
        tokens = [oracle.unpack_stream_id(stream.tobytes())[0] for stream in description.entry(row).streams]
        assert tokens == entry.stream_tokens
    assert description.ignore_msbs.tolist() == [sharding[end][1] for end in sorted(sharding)]

    # The joining node stores an ID without a UUID; the V2 table is empty; readers find all streams in the new tables.
    local = {row["host_id"]: row for row in lake.read(CDC_LOCAL, filters=[("key", "=", "cdc_local")]).to_pylist()}
    assert local[str(uuid.UUID(int=2))]["uuid"] is None
    assert lake.read(GENERATION_DESCRIPTIONS_V2).num_rows == 0
    published = generations.read_published_rows(lake, second.time_ms)
    assert published["range_end"].to_pylist() == sorted(sharding)
    assert b"".join(s for row in published["streams"].to_pylist() for s in row) == description.streams.tobytes()
    assert [(known.id, known.format) for known in Timeline.read(lake).known] == [
        (first.generation_id, "v1"),
        (second_id, "v1"),
    ]

    # A write finds its stream in the V1 description, by the position of its shard among the remaining streams.
    at_us = us_from_ms(second.time_ms)
    token = sorted(sharding)[5] - 1
    answer = StreamSources(lake).generations.explain(token, at_us, at_us)
    assert answer.accepted
    assert answer.place is not None
    shard = oracle.shard_of(token, 3, sharding[sorted(sharding)[5]][1])
    assert (answer.place.shard, answer.place.stream_id) == (shard, description.entry(5).streams[shard].tobytes())

    # The upgrade is complete: the next node's generation is V2, without a limit; both formats are known.
    upgraded = [replace(node, features=("CDC_GENERATIONS_V2",)) for node in read_current_ring(lake).nodes]
    write_nodes(lake, upgraded)
    third = steps.run_join(workers, lake, later, Settings(), queue(lake, request_of(3, upgraded=True, shard_count=5)))
    assert third.num_streams == 16 * (4 + 7 + 5)
    known = Timeline.read(lake).known
    assert [known_generation.format for known_generation in known] == ["v1", "v1", "v2"]
    assert all(known_generation.published for known_generation in known)
    for known_generation in known:
        assert known_generation.generation_id is not None
        assert len(generations.read_generation_description(lake, known_generation.generation_id)) == 16 * (
            known.index(known_generation) + 1
        )

    # A repetition after the ring has changed changes nothing.
    before = {table.full_name: lake.version(table) for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2)}
    streams = sorted_streams(lake, second_id)
    assert steps.run_join(workers, lake, later, Settings(), second_id) == second
    assert sorted_streams(lake, second_id) == streams
    assert before == {
        table.full_name: lake.version(table) for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2)
    }
    assert all(line.passed for line in judge_findings(audit_lake(workers, lake))), audit_lake(workers, lake)

    # The audits detect damage of the cell and of the rows derived from it.
    for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2):
        swapped = _with_first_two_streams_swapped(description)
        rows = generations.v1_cell_row if table is GENERATION_DESCRIPTIONS else generations.published_streams_rows
        lake.merge(table, rows(second.time_ms, swapped), update=True)
        inserted = {line.invariant: line for line in audit_inserted_v1(lake, second_id, INSERTED_INVARIANTS)}
        assert tuple(inserted) == INSERTED_INVARIANTS
        if table is GENERATION_DESCRIPTIONS:
            assert inserted["published_equals_description"].violations == 1
            assert inserted["shard_colocation"].violations > 0
            assert audit_published_v1(lake, second_id, PUBLISHED_INVARIANTS)[0].violations == 1
        lake.merge(table, rows(second.time_ms, description), update=True)
    assert audit_published_v1(lake, second_id, PUBLISHED_INVARIANTS)[0].violations == 0

    # Each step refuses to run before its prerequisites.
    fourth = queue(lake, request_of(4, upgraded=False))
    with pytest.raises(StateError, match="materialise topology_descriptions first"):
        bootstrap.insert_v1_description(lake, later, Settings(), fourth)
    bootstrap.describe_v1_generation(workers, lake, fourth)
    ends = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", fourth)])["range_end"].to_pylist()
    lake.delete(TOPOLOGY_DESCRIPTIONS, [("generation_id", "=", fourth), ("range_end", "in", ends[3:])])
    with pytest.raises(StateError, match="has 3 ranges, the ring has 64"):
        bootstrap.insert_v1_description(lake, later, Settings(), fourth)
    with pytest.raises(StateError, match="no timestamp yet"):
        publish.publish_v1_generation_streams(lake, fourth)


def sorted_streams(lake: Lake, generation_id: str) -> list[dict[str, object]]:
    """Return the rows of a topology description, sorted by range end."""
    where = [("generation_id", "=", generation_id)]
    return lake.read(TOPOLOGY_DESCRIPTIONS, filters=where).sort_by("range_end").to_pylist()


def _with_first_two_streams_swapped(description: rules.TopologyDescription) -> rules.TopologyDescription:
    streams = description.streams.copy()
    streams[[0, 1]] = streams[[1, 0]]
    assert not np.array_equal(streams, description.streams)
    return rules.TopologyDescription(
        description.range_ends, description.stream_counts, description.ignore_msbs, streams
    )


def test_check_covers_a_cluster_with_v1_only(workers: TaskRunner, tmp_path: Path) -> None:
    """After a rewrite every invariant has rows to check and passes; after a change of one stream `check` fails."""
    home = tmp_path / "home"
    lake = Lake(open_home_location(home).lake)
    descriptions = old_cluster(lake, times(2))
    now = format_ms(Milliseconds(START_MS + 2 * HOUR_MS))
    assert run("--home", home, "--clock", now, "rewrite").exit_code == 0
    good = run("--home", home, "--clock", now, "check", "--json")
    assert good.exit_code == 0, good.stdout
    lines = {line["invariant"]: line for line in good.rows}
    assert (lines["published_equals_description"]["checked"], lines["row_count"]["checked"]) == (24, 2)
    assert lines["live_generations_rewritten"]["checked"] == 2
    one = run("--home", home, "check", format_ms(Milliseconds(times(2)[0])), "--json")
    assert {line["invariant"]: line["checked"] for line in one.rows}["published_equals_description"] == 12
    publish.write_published_streams(
        lake, Milliseconds(times(2)[0]), _with_first_two_streams_swapped(descriptions[times(2)[0]])
    )
    bad = run("--home", home, "--clock", now, "check", "--json")
    assert bad.exit_code == 1
    assert {line["invariant"] for line in bad.rows if line["violations"]} >= {"published_equals_description"}
