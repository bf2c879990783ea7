"""The effects of topology changes in a rehearsal, compared with the rules, without any write. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from support.command_line import run
from support.files.bad_input import listing
from support.oracles import oracle

from cdc_platform.clock import Microseconds, Milliseconds, datetime_from_us
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.generations import DamageKind, RingLayout, compare_generations, generate_description
from cdc_platform.importing import parse_rehearsal
from cdc_platform.lifecycle import (
    RehearsalStart,
    StepEffect,
    rehearsal,
    start_from_lake,
    start_from_ring,
    start_with_ttls,
)
from cdc_platform.lifecycle.rehearsal import play_rehearsal
from cdc_platform.metastore import write_nodes
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, GENERATIONS

NOON = Milliseconds(1_700_000_000_000)
DELAY = 65_000
V2 = ("CDC_GENERATIONS_V2",)
HOSTS = [
    Node(UUID(int=1), (-(2**62), 5, 2**61), 4, 12, "10.0.0.1", "dc1", "r1", V2),
    Node(UUID(int=2), (0, 77), 3, 0, "10.0.0.2", "dc1", "r1", V2),
]
V2_TABLE, V1_TABLE, STREAMS_TABLE = rehearsal.MEASURED_TABLES


def play(*steps: object, start: RehearsalStart | None = None, settings: Settings | None = None) -> list[StepEffect]:
    """Return the effects of these steps, without the start."""
    return play_rehearsal(
        start or start_from_ring(Ring.of(HOSTS), NOON), parse_rehearsal(json.dumps(steps)), settings or Settings()
    )[1:]


def test_a_join_makes_the_generation_of_the_ring_after_it() -> None:
    """Ranges, streams, bytes and time after a join follow the rules."""
    (effect,) = play({"add": {"tokens": [33, -33], "shard_count": 7}})
    assert effect.generation is not None
    streams = 3 * 4 + 2 * 3 + 2 * 7
    assert (effect.nodes, effect.tokens, effect.generation.num_ranges, effect.generation.num_streams) == (
        3,
        7,
        7,
        streams,
    )
    assert effect.generation.bytes == 7 * 4 + streams * 20
    assert effect.generation.id.time_ms == NOON + DELAY
    assert effect.generation.id.uuid is not None
    assert (effect.generation.changed_share, effect.risk_ms) == (1.0, DELAY)
    assert effect.colocated == rehearsal.Colocation(1.0, 1.0)


def test_only_joins_and_repairs_create_generations() -> None:
    """Removals, resharding and time create none; each of them changes the colocation of the streams."""
    removed, resharded, waited = play(
        {"remove": "10.0.0.2"}, {"reshard": {"node": "10.0.0.1", "shards": 3}}, {"wait": 3600}
    )
    assert [effect.generation for effect in (removed, resharded, waited)] == [None] * 3
    assert (removed.excess_ranges, removed.excess_streams, removed.tokens) == (2, 6, 3)
    assert removed.colocated is not None
    assert resharded.colocated is not None
    assert removed.colocated.vnode == resharded.colocated.vnode == 1.0
    assert resharded.colocated.shard < removed.colocated.shard < 1.0
    assert waited.at_ms == NOON


def test_shard_colocation_equals_that_of_sampled_tokens() -> None:
    """The share after resharding equals that of sampled tokens and their streams."""
    (effect,) = play({"reshard": {"node": "10.0.0.1", "shard_count": 5, "ignore_msb": 3}})
    description = generate_description(RingLayout.of(Ring.of(HOSTS)), UUID(int=1))
    tokens = np.random.default_rng(2).integers(-(2**63) + 1, 2**63 - 1, 4_000, dtype=np.int64)
    after = dict.fromkeys(HOSTS[0].tokens, (5, 3)) | dict.fromkeys(HOSTS[1].tokens, (3, 0))
    colocated_count = 0
    for token, stream in zip(tokens.tolist(), description.streams_of(tokens), strict=True):
        sharding = after[min((end for end in after if end >= token), default=min(after))]
        stream_token = oracle.unpack_stream_id(stream.tobytes())[0]
        colocated_count += oracle.shard_of(token, *sharding) == oracle.shard_of(stream_token, *sharding)
    assert effect.colocated is not None
    assert effect.colocated.shard == pytest.approx(colocated_count / 4_000, abs=0.03)


def test_the_share_at_risk_while_gossip_spreads() -> None:
    """The joining node splits the other node's only vnode, and its part of the range is not with its streams."""
    alone = start_from_ring(Ring.of([Node(UUID(int=1), (0,), 1, 0, "10.0.0.1", features=V2)]), NOON)
    (effect,) = play({"add": {"tokens": [-(2**62)], "shard_count": 1}}, start=alone)
    assert effect.risk_share == pytest.approx(0.25)
    settings = Settings(ring_delay_ms=Milliseconds(5_000))
    (faster,) = play({"add": {"tokens": [-(2**62)], "shard_count": 1}}, start=alone, settings=settings)
    assert faster.risk_ms == 15_000


def test_the_first_node_of_an_empty_ring() -> None:
    """Nothing is at risk and nothing changes; the setting of the first delay applies."""
    empty = start_from_ring(Ring.of([]), NOON)
    add = {"add": {"num_tokens": 4, "shard_count": 2}}
    (effect,) = play(add, start=empty)
    assert effect.generation is not None
    assert (effect.generation.changed_share, effect.risk_ms, effect.generation.id.time_ms) == (None, 0, NOON + DELAY)
    (at_once,) = play(add, start=empty, settings=Settings(first_generation_delay=False))
    assert at_once.generation is not None
    assert at_once.generation.id.time_ms == NOON


def test_a_repair_names_its_reasons() -> None:
    """A repair is needed after a removal, but not after a join; sharding is a warning unless the repair is strict."""
    unneeded, _, repaired, _, warned, strict = play(
        {"repair": {}},
        {"remove": "10.0.0.2"},
        {"repair": {}},
        {"reshard": {"node": "10.0.0.1", "ignore_msb": 3}},
        {"repair": {}},
        {"repair": {"strict": True}},
    )
    assert (unneeded.generation, unneeded.findings) == (None, ())
    assert repaired.generation is not None
    assert {damage.condition for damage in repaired.findings} == {DamageKind.RANGE_COUNT, DamageKind.EXCESS_RANGES}
    assert (repaired.excess_ranges, repaired.risk_ms) == (0, 0)
    assert warned.generation is None
    assert [damage.condition for damage in warned.findings] == [DamageKind.IGNORE_MSB]
    assert strict.generation is not None
    assert strict.colocated == rehearsal.Colocation(1.0, 1.0)
    repeated = play(
        {"reshard": {"node": "10.0.0.1", "ignore_msb": 3}}, {"repair": {}}, settings=Settings(repair_strict=True)
    )
    assert repeated[1].generation is not None


def test_a_mixed_cluster_gets_the_first_format_within_its_limit() -> None:
    """With a node without the feature, V1 has at most 262,144 streams; after its removal a repair creates V2."""
    big = [Node(UUID(int=1), tuple(range(0, 3000, 10)), 900, 12, "10.0.0.1", features=V2)]
    first, removed, repaired = play(
        {"add": {"tokens": [7], "shard_count": 900, "features": [], "address": "old"}},
        {"remove": "old"},
        {"repair": {}},
        start=start_from_ring(Ring.of(big), NOON),
    )
    assert first.generation is not None
    assert (first.generation.id.format, first.generation.num_streams) == ("v1", 301 * (262_144 // 301))
    assert first.stored_bytes[V1_TABLE] == first.generation.bytes
    assert first.colocated is not None
    assert first.colocated.shard < first.colocated.vnode == 1.0
    assert removed.stored_bytes[V1_TABLE] == first.generation.bytes
    assert repaired.generation is not None
    assert (repaired.generation.id.format, repaired.generation.num_streams) == ("v2", 300 * 900)
    assert DamageKind.V1_FORMAT in {damage.condition for damage in repaired.findings}


def test_tables_retain_generations_with_possible_rows() -> None:
    """A generation is removed after its successor's start, the TTL and the grace time, to the millisecond."""
    start = start_with_ttls(start_from_ring(Ring.of(HOSTS), NOON), [3600, 60])
    add = {"add": {"num_tokens": 4, "shard_count": 2}}
    settings = Settings(expiry_skew_margin_ms=Milliseconds(0))
    wait = 3600 + 3600  # the TTL and the grace time
    joined, almost, expired = play(add, {"wait": wait - 1}, {"wait": 1}, start=start, settings=settings)
    assert joined.generation is not None
    before = 5 * 4 + (3 * 4 + 2 * 3) * 20
    assert joined.stored_bytes == {
        V2_TABLE: before + joined.generation.bytes,
        V1_TABLE: 0,
        STREAMS_TABLE: before + joined.generation.bytes,
    }
    assert almost.stored_bytes == joined.stored_bytes
    assert expired.stored_bytes == {
        V2_TABLE: joined.generation.bytes,
        V1_TABLE: 0,
        STREAMS_TABLE: joined.generation.bytes,
    }
    forever = play(add, {"wait": 10**9}, start=start_with_ttls(start, [3600, 0]), settings=settings)
    assert forever[1].stored_bytes == joined.stored_bytes
    assert play(add, {"wait": 10**9}, settings=settings)[1].stored_bytes == joined.stored_bytes


def test_the_first_step_beyond_a_bound() -> None:
    """The first step is found for each table; a table within the bound has none."""
    effects = play({"add": {"num_tokens": 8, "shard_count": 4, "times": 5}})
    bound = effects[2].stored_bytes[V2_TABLE]
    assert rehearsal.first_effects_above(effects, bound) == {V2_TABLE: effects[3], STREAMS_TABLE: effects[3]}
    assert rehearsal.first_effects_above(effects, 10**12) == {}


def test_equal_rehearsals_have_equal_effects() -> None:
    """Drawn tokens and UUIDs are reproducible; another step before them changes them."""
    add = {"add": {"num_tokens": 16, "shard_count": 4, "times": 3}}
    assert play(add) == play(add)
    assert play({"wait": 1}, add)[-1].generation != play(add)[-1].generation


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([{"remove": "10.0.0.9"}], "step 1: remove: 10.0.0.9 is no node of the ring; name a host_id or an address"),
        ([{"wait": 1}, {"reshard": {"node": "x", "shards": 1}}], "step 2: reshard: x is no node"),
        ([{"add": {"tokens": [5], "shard_count": 1}}], "step 1: add: token 5 is owned by both"),
        ([{"add": {"num_tokens": 1, "shard_count": 1, "address": "10.0.0.1"}}], "is a node's of the ring already"),
        ([{"remove": "10.0.0.1"}, {"remove": "10.0.0.2"}], "step 2: remove: node 10.0.0.2 is the last of the ring"),
        ([{"add": {"num_tokens": 4_194_304, "shard_count": 1}}], "make more than 4194304 ranges"),
    ],
)
def test_impossible_steps_are_refused(steps: list[object], says: str) -> None:
    """The message names the step and the reason."""
    with pytest.raises(InputError, match=says):
        play(*steps)


def make_home(home: Path) -> Lake:
    """Return the lake of a home with two hosts and an imported generation with foreign streams."""
    lake = Lake(home / "lake")
    description = generate_description(RingLayout.of(Ring.of(HOSTS)), UUID(int=0xA))
    rows = [
        {
            "id": str(UUID(int=0xA)),
            "range_end": description.entry(row).range_end,
            "ignore_msb": description.entry(row).ignore_msb,
            "num_ranges": len(description),
            "streams": [stream.tobytes() for stream in description.entry(row).streams],
        }
        for row in range(len(description))
    ]
    created_at = datetime_from_us(Microseconds((NOON - 86_400_000) * 1000))
    ledger = {
        "generation_id": str(UUID(int=0xA)),
        "time": created_at,
        "num_ranges": len(description),
        "num_streams": len(description.streams),
        "created_at": created_at,
        "published_at": created_at,
    }
    lake.merge(GENERATION_DESCRIPTIONS_V2, pa.Table.from_pylist(rows), update=False)
    lake.merge(GENERATIONS, pa.Table.from_pylist([ledger]), update=False)
    write_nodes(lake, HOSTS)
    (home / "platform.json").write_text('{"layout": 1}\n', encoding="utf-8")
    return lake


def test_a_rehearsal_starts_from_the_lake_and_changes_nothing(tmp_path: Path) -> None:
    """Ring, newest generation and stored generations come from the tables, and no byte of the home changes."""
    home = tmp_path / "home"
    lake = make_home(home)
    start = start_from_lake(lake, NOON)
    assert start.operating is not None
    assert start.operating.id.uuid == UUID(int=0xA)
    assert [(stored.num_ranges, stored.num_streams) for stored in start.stored] == [(5, 18)]
    steps = tmp_path / "steps.json"
    steps.write_text(
        json.dumps([{"add": {"tokens": [33], "shard_count": 2}}, {"remove": "10.0.0.1"}]), encoding="utf-8"
    )
    before = listing(home)
    options = ("rehearse", steps, "--json", "--max-bytes", "500", "--picture", tmp_path / "r.png")
    answer = run("--home", home, "--clock", "2023-11-14T22:13:20Z", *options)
    assert answer.exit_code == 0, answer.stderr
    result = answer.json
    assert [step["change"] for step in result["steps"]] == ["start", "add", "remove"]
    assert result["steps"][1]["generation"]["time"] == "2023-11-14T22:14:25.000Z"
    assert result["steps"][1]["generation"]["changed_share"] == 1.0
    assert [(entry["table"], entry["step"]) for entry in result["over_limit"]] == [(V2_TABLE, 1), (STREAMS_TABLE, 1)]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "add added-1" in run("--home", home, "rehearse", steps).stdout
    assert listing(home) == before


def test_the_change_from_an_imported_generation_is_a_full_comparison(tmp_path: Path) -> None:
    """The streams come from the lake, not from the UUID, so the share equals that of a full comparison."""
    lake = make_home(tmp_path / "home")
    start = start_from_lake(lake, NOON)
    (effect,) = play({"add": {"tokens": [33], "shard_count": 2}}, start=start)
    ring = Ring.of([*HOSTS, Node(UUID(int=3), (33,), 2, 12)])
    assert effect.generation is not None
    assert effect.generation.id.uuid is not None
    assert start.operating is not None
    assert not isinstance(start.operating.streams, UUID)
    comparison = compare_generations(
        start.operating.streams, generate_description(RingLayout.of(ring), effect.generation.id.uuid)
    )
    assert effect.generation.changed_share == comparison.changed_share


def test_a_ring_from_a_file_needs_no_home(tmp_path: Path) -> None:
    """A snapshot from the project's data, with shards from the command line, needs no home and creates none."""
    ring = Path(rehearsal.__file__).parents[1] / "data" / "real_ring" / "ring3.json"
    steps = '[{"add": {"num_tokens": 256, "shards": 8}}, {"repair": {}}]'
    home = tmp_path / "none"
    options = ("--ring", ring, "--shards", "8", "--ignore-msb", "12", "--ttl", "86400", "--json")
    answer = run("--home", home, "rehearse", "-", *options, stdin=steps)
    assert answer.exit_code == 0, answer.stderr
    assert answer.json["assumed_generation"] is True
    assert [step["tokens"] for step in answer.json["steps"]] == [768, 1024, 1024]
    assert not home.exists()


def test_a_large_cluster_is_played_without_its_streams() -> None:
    """Thirty joins of 256 vnodes and 64 shards: 491,520 streams in the last generation, and all in the tables."""
    effects = play(
        {"add": {"num_tokens": 256, "shard_count": 64, "times": 30}}, start=start_from_ring(Ring.of([]), NOON)
    )
    last = effects[-1]
    assert last.generation is not None
    assert (last.generation.num_ranges, last.generation.num_streams) == (30 * 256, 30 * 256 * 64)
    assert last.generation.bytes == 30 * 256 * (4 + 64 * 20)
    assert last.stored_bytes[V2_TABLE] == sum(number * 256 * (4 + 64 * 20) for number in range(1, 31))
    assert last.colocated == rehearsal.Colocation(1.0, 1.0)
