"""checkAndRepairCdcStreams on a lake: each condition, the permitted states, and concurrent calls. No Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from cdc_platform.clock import Clock, Microseconds, Milliseconds, datetime_from_ms, datetime_from_us
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound, StateError, Unavailable
from cdc_platform.generations import DamageKind, GenerationId, RingLayout, TopologyDescription, generate_description
from cdc_platform.importing.run import import_paths
from cdc_platform.lifecycle import repair
from cdc_platform.metastore import JoinRequest, generations, inbox, read_current_ring, write_nodes
from cdc_platform.metastore.ring import node_rows
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    NODES,
)

NOON = Clock(stopped_at_us=Microseconds(1_700_000_000_000_000))
T1 = Milliseconds(1_600_000_000_000)
GENERATION = UUID(int=0xA)
V2 = ("CDC_GENERATIONS_V2",)
HOSTS = [
    Node(UUID(int=1), (-(2**62), 5, 2**61), 4, 12, "10.0.0.1", "dc1", "r1", V2),
    Node(UUID(int=2), (0, 77), 3, 0, "10.0.0.2", "dc1", "r1", V2),
]


def describe(lake: Lake, nodes: list[Node] = HOSTS, generation: UUID = GENERATION, time_ms: Milliseconds = T1) -> None:
    """Write a generation for these nodes to the ledger and the V2 table."""
    description = generate_description(RingLayout.of(Ring.of(nodes)), generation)
    rows = [
        {
            "id": str(generation),
            "range_end": description.entry(row).range_end,
            "ignore_msb": description.entry(row).ignore_msb,
            "num_ranges": len(description),
            "streams": [stream.tobytes() for stream in description.entry(row).streams],
        }
        for row in range(len(description))
    ]
    lake.merge(GENERATION_DESCRIPTIONS_V2, pa.Table.from_pylist(rows), update=True)
    published_at = datetime_from_ms(time_ms)
    ledger = {
        "generation_id": str(generation),
        "time": published_at,
        "num_ranges": len(description),
        "num_streams": len(description.streams),
        "created_at": published_at,
        "published_at": published_at,
    }
    lake.merge(GENERATIONS, pa.Table.from_pylist([ledger]), update=True)


@pytest.fixture
def repaired(lake: Lake) -> Lake:
    """A lake with a ring of two nodes and their generation."""
    describe(lake)
    write_nodes(lake, HOSTS)
    return lake


def conditions(lake: Lake, *, strict: bool = False, streams: bool = True) -> list[str]:
    """Return the conditions that require a repair."""
    return [
        damage.condition.value
        for damage in repair.check_newest_generation(lake, strict=strict, streams=streams).reasons
    ]


def test_a_generation_that_fits_needs_no_repair(repaired: Lake) -> None:
    """A sound generation has no damage, and no repair is queued."""
    result = repair.check_newest_generation(repaired, strict=True)
    assert (result.needed, result.reasons, result.warnings) == (False, (), ())
    assert result.latest == GenerationId(T1, GENERATION)
    assert repair.queue_needed_repair(repaired, NOON, result) is None
    assert not repaired.exists(BOOTSTRAP_EVENTS)


def test_a_ring_without_a_generation_needs_a_repair(lake: Lake) -> None:
    """Condition a: a ring without streams, as after an upgrade from a version without CDC."""
    write_nodes(lake, HOSTS)
    assert conditions(lake) == ["no-generation"]


def test_v1_is_replaced_once_every_node_supports_v2(lake: Lake) -> None:
    """Condition b: the latest ID has no UUID, which is right while one node lacks the feature."""
    description = generate_description(RingLayout.of(Ring.of(HOSTS)), GENERATION)
    lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(T1, description), update=True)
    row = {"host_id": str(UUID(int=1)), "key": "cdc_local", "streams_timestamp": datetime_from_ms(T1), "uuid": None}
    lake.merge(CDC_LOCAL, pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), update=True)
    lake.merge(NODES, node_rows([HOSTS[0], replace(HOSTS[1], features=())]), update=True)
    assert repair.check_newest_generation(lake).latest == GenerationId(T1)
    assert conditions(lake, strict=True) == []
    write_nodes(lake, HOSTS)
    assert conditions(lake) == ["v1-format"]


def test_partial_data_is_damage(repaired: Lake) -> None:
    """Condition c: a row is missing, by num_ranges."""
    repaired.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", 5)])
    result = repair.check_newest_generation(repaired)
    assert [damage.condition.value for damage in result.reasons] == ["unreadable"]
    assert "num_ranges claims 5 rows, 4 are there" in result.reasons[0].detail


def test_an_invalid_stream_id_is_damage(repaired: Lake) -> None:
    """Condition c: all rows exist, and one stream has 15 bytes."""
    where = [("id", "=", str(GENERATION)), ("range_end", "=", 5)]
    row = repaired.read(GENERATION_DESCRIPTIONS_V2, filters=where).to_pylist()[0]
    row["streams"][0] = row["streams"][0][:15]
    rows = pa.Table.from_pylist([row], schema=GENERATION_DESCRIPTIONS_V2.schema)
    repaired.merge(GENERATION_DESCRIPTIONS_V2, rows, update=True)
    result = repair.check_newest_generation(repaired)
    assert [damage.condition.value for damage in result.reasons] == ["unreadable"]
    assert "is damaged" in result.reasons[0].detail


def test_a_ring_is_imported_while_a_repair_waits(repaired: Lake, tmp_path: Path) -> None:
    """The repair is for the new ring, even if its requesting node is gone and its tokens have another owner."""
    repaired.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", 5)])
    assert repair.queue_needed_repair(repaired, NOON, repair.check_newest_generation(repaired)) is not None
    fields = ("address", "datacenter", "rack", "shard_count", "ignore_msb")
    other = {name: getattr(HOSTS[0], name) for name in fields}
    other |= {"host_id": str(UUID(int=9)), "tokens": list(HOSTS[0].tokens)}
    (tmp_path / "ring.json").write_text(json.dumps([other]), encoding="utf-8")
    import_paths(repaired, NOON, [tmp_path / "ring.json"])
    assert [node.host_id for node in read_current_ring(repaired).nodes] == [UUID(int=9)]
    assert len(inbox.read_pending_events(repaired)) == 1


def test_missing_data_is_damage(repaired: Lake) -> None:
    """Condition d: the ID is known and has no rows at all."""
    repaired.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", str(GENERATION))])
    assert conditions(repaired) == ["missing-data"]


@pytest.mark.parametrize("streams", [True, False])
def test_another_number_of_tokens(repaired: Lake, streams: bool) -> None:
    """Conditions e and f: a node left, or joined unannounced; reading streams is not necessary."""
    repaired.delete(NODES, [("host_id", "=", str(UUID(int=2)))])
    assert conditions(repaired, streams=streams) == ["range-count"]
    assert [
        damage.condition.value for damage in repair.check_newest_generation(repaired, streams=streams).warnings
    ] == ["excess-ranges"]
    other = replace(HOSTS[1], host_id=UUID(int=3), tokens=(0, 78))
    write_nodes(repaired, [other])
    assert conditions(repaired, streams=streams) == ["uncovered-tokens"]


def test_other_sharding_is_a_warning_unless_the_check_is_strict(repaired: Lake) -> None:
    """ScyllaDB ignores a node with other shards; a strict check repairs it."""
    write_nodes(repaired, [replace(HOSTS[1], shard_count=5, ignore_msb=1)])
    result = repair.check_newest_generation(repaired)
    assert (result.needed, {damage.condition.value for damage in result.warnings}) == (
        False,
        {"shard-count", "ignore-msb"},
    )
    assert repair.queue_needed_repair(repaired, NOON, result) is None
    assert set(conditions(repaired, strict=True)) == {"shard-count", "ignore-msb"}


def test_temporarily_unreadable_data_needs_no_repair(repaired: Lake) -> None:
    """A timeout or a denied permission raises an error without a repair; another read error counts as damage."""

    def unreachable(lake: Lake, id: GenerationId) -> TopologyDescription:
        raise Unavailable("reading: Permission denied (os error 13)")

    def misconfigured(lake: Lake, id: GenerationId) -> TopologyDescription:
        raise StateError("reading: a connection is told of, and it is none of a file system")

    with pytest.raises(Unavailable, match="no new generation is created"):
        repair.check_newest_generation(repaired, reader=unreachable)
    assert [damage.condition for damage in repair.check_newest_generation(repaired, reader=misconfigured).reasons] == [
        DamageKind.UNREADABLE
    ]


def test_the_newest_stored_id_is_the_latest(repaired: Lake) -> None:
    """A node that learned of a later generation decides, although the ledger lacks it."""
    row = {
        "host_id": str(UUID(int=2)),
        "key": "cdc_local",
        "streams_timestamp": datetime_from_us(Microseconds((T1 + 1) * 1000)),
        "uuid": str(UUID(int=0xB)),
    }
    repaired.merge(CDC_LOCAL, pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), update=True)
    result = repair.check_newest_generation(repaired)
    assert result.latest == GenerationId(Milliseconds(T1 + 1), UUID(int=0xB))
    assert conditions(repaired) == ["missing-data"]


def test_every_node_must_be_normal_or_left(repaired: Lake, joining: Callable[..., JoinRequest]) -> None:
    """A node in another state, also a joining one, blocks the repair; a node that left does not."""
    left_node = replace(HOSTS[1], status="LEFT")
    write_nodes(repaired, [left_node])
    result = repair.check_newest_generation(repaired)
    assert (result.needed, result.blocked_by) == (True, ())
    leaving = replace(HOSTS[1], status="LEAVING")
    write_nodes(repaired, [leaving])
    with pytest.raises(StateError, match=r"NORMAL or LEFT .* is in state LEAVING"):
        repair.queue_needed_repair(repaired, NOON, repair.check_newest_generation(repaired))
    write_nodes(repaired, [left_node])
    inbox.queue_join(repaired, NOON, joining(7))
    with pytest.raises(StateError, match=r"0007 is in state JOINING; finish its join"):
        repair.queue_needed_repair(repaired, NOON, repair.check_newest_generation(repaired))


def test_a_second_request_is_the_first_repair(repaired: Lake) -> None:
    """Equal damage in an unchanged ring is one event, whichever node asks; after a withdrawal a new one is possible."""
    repaired.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", 5)])
    result = repair.check_newest_generation(repaired)
    first = repair.queue_needed_repair(repaired, NOON, result)
    assert first is not None
    assert (first.kind, first.node.host_id) == (inbox.REPAIR_EVENT, UUID(int=1))
    assert repair.queue_needed_repair(repaired, Clock(), result, UUID(int=2)) == first
    assert [event.generation_id for event in inbox.read_pending_events(repaired)] == [first.generation_id]
    inbox.withdraw_event(repaired, NOON, first.event_id)
    second = repair.queue_needed_repair(repaired, NOON, result)
    assert second is not None
    assert second.generation_id != first.generation_id
    with pytest.raises(NotFound, match="is no node of the ring"):
        repair.queue_needed_repair(repaired, NOON, result, UUID(int=99))


def test_a_queued_repair_covers_a_changed_ring(repaired: Lake) -> None:
    """The repair uses the ring at its start, so a second event would only add a generation for that ring."""
    repaired.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", 5)])
    first = repair.queue_needed_repair(repaired, NOON, repair.check_newest_generation(repaired))
    repaired.delete(NODES, [("host_id", "=", str(UUID(int=2)))])
    assert repair.queue_needed_repair(repaired, NOON, repair.check_newest_generation(repaired)) == first


def test_a_join_waits_for_a_repair_which_claims_no_tokens(repaired: Lake, joining: Callable[..., JoinRequest]) -> None:
    """The node that requested the repair is in the ring already and does not block a joining node."""
    repaired.delete(GENERATION_DESCRIPTIONS_V2, [("range_end", "=", 5)])
    queued_repair = repair.queue_needed_repair(repaired, NOON, repair.check_newest_generation(repaired))
    assert queued_repair is not None
    joined = inbox.queue_join(repaired, NOON, joining(7))
    with pytest.raises(
        StateError, match=f"a repair .event {queued_repair.event_id}.* comes first; finish it with repair --run"
    ):
        inbox.assert_next_event(repaired, joined.generation_id)
    assert repair.check_newest_generation(repaired).blocked_by == ()


def test_concurrent_requests_queue_one_repair(repaired: Lake) -> None:
    """Three processes find the damage at once: one event, one generation, and one answer for all."""
    repaired.delete(NODES, [("host_id", "=", str(UUID(int=2)))])
    code = (
        "import sys\n"
        "from cdc_platform.clock import Clock\n"
        "from cdc_platform.delta.lake import Lake\n"
        "from cdc_platform.lifecycle import repair\n"
        "lake = Lake(sys.argv[1])\n"
        "found = repair.check_newest_generation(lake)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(repair.queue_needed_repair(lake, Clock(), found).generation_id)\n"
    )
    command = [sys.executable, "-c", code, str(repaired.root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 3, outputs
    assert len({out for out, _ in outputs}) == 1
    assert repaired.read(BOOTSTRAP_EVENTS).num_rows == 1


def test_a_lake_without_a_ring_has_nothing_to_repair(lake: Lake) -> None:
    """Without a node in the ring the request is invalid."""
    with pytest.raises(StateError, match="no node is in the ring"):
        repair.check_newest_generation(lake)


def test_repair_in_json(repaired: Lake, tmp_path: Path) -> None:
    """The JSON has `needed`, reasons and warnings with their conditions, and the latest generation."""
    from support.command_line import run

    (repaired.root.parent / "platform.json").write_text('{"layout": 1}\n', encoding="utf-8")
    write_nodes(repaired, [replace(HOSTS[1], shard_count=5)])
    result = run("--home", repaired.root.parent, "repair", "--dry-run", "--json").json
    assert (result["needed"], result["reasons"], result["strict"]) == (False, [], False)
    assert [line["condition"] for line in result["warnings"]] == ["shard-count"]
    assert result["latest"] == {"id": str(GENERATION), "time": "2020-09-13T12:26:40.000Z", "format": "v2"}
    (repaired.root.parent / "settings.toml").write_text("repair_strict = true\n", encoding="utf-8")
    strict = run("--home", repaired.root.parent, "repair", "--dry-run", "--json").json
    assert (strict["needed"], [line["condition"] for line in strict["reasons"]]) == (True, ["shard-count"])
    assert not repaired.exists(BOOTSTRAP_EVENTS)
    queued = run("--home", repaired.root.parent, "repair", "--json")
    assert json.loads(queued.stdout)["generation_id"] == inbox.read_pending_events(repaired)[0].generation_id
    assert "shard-count" in run("--home", repaired.root.parent, "repair", "--dry-run").stdout
