"""Expiry in a lake: blockers of generations, marks, the order of removal, and the history afterwards."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.command_line import run
from support.files.export_files import generation
from support.homes.expiring import (
    DAY_MS,
    GRACE_MS,
    HOUR_MS,
    IDS,
    RANGES,
    SKEW_MS,
    START_MS,
    TIMES_MS,
    add_table,
    at,
    expire,
    import_generations,
    iso,
    mark,
    write,
)

from cdc_platform.checks import uniqueness
from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_ms,
    datetime_from_us,
    format_us,
    ms_from_datetime,
    system_time_us,
    us_from_ms,
)
from cdc_platform.delta import Lake
from cdc_platform.errors import ClockRefused, NotFound, StateError
from cdc_platform.lifecycle import PlannedGeneration, expiry, forecast
from cdc_platform.lifecycle.join import publish
from cdc_platform.metastore import cdc_tables, consumers, expiry_marks, generations
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    EXPIRY_MARKS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    REMOVED_GENERATIONS,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLES,
    TABLET_TIMESTAMPS,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
)
from cdc_platform.timeline import StreamSources, Timeline

SETTINGS = Settings()
FAR_MS = Milliseconds(START_MS + 300 * DAY_MS)
GONE_MS = [time + DAY_MS + SKEW_MS for time in TIMES_MS]
"""When rows with a TTL of 0 s are expired: T(k+1) plus the margin."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with four generations and no tables, created once."""
    return import_generations(tmp_path_factory.mktemp("imported"))


@pytest.fixture
def lake(imported: Path, tmp_path: Path) -> Lake:
    """A copy of that home's lake."""
    shutil.copytree(imported, tmp_path / "home")
    return Lake(tmp_path / "home" / "lake")


def plan_by_id(
    lake: Lake, now_ms: Milliseconds = FAR_MS, settings: Settings = SETTINGS
) -> dict[str | None, PlannedGeneration]:
    """Return the plan by generation ID."""
    return {
        planned_generation.id: planned_generation
        for planned_generation in expiry.plan_expiry(lake, at(now_ms), settings)
    }


def blocked(lake: Lake, now_ms: Milliseconds = FAR_MS) -> list[tuple[str, ...]]:
    """Return the blockers of each generation, oldest first."""
    return [planned_generation.blocked_by for planned_generation in expiry.plan_expiry(lake, at(now_ms), SETTINGS)]


def read_expired_times(lake: Lake) -> dict[int, int | None]:
    """Return `expired` of each listed generation by its time, both in ms."""
    return {
        ms_from_datetime(row["time"]): row["expired"] and ms_from_datetime(row["expired"])
        for row in lake.read(GENERATION_TIMESTAMPS).to_pylist()
    }


def test_the_plan_names_every_generation_and_when_it_expires(lake: Lake) -> None:
    """Expiry is T(k+1), margin and TTL; removal a grace time after the mark; rows and bytes cover all tables."""
    add_table(lake, 3600)
    mark(lake, Milliseconds(FAR_MS - DAY_MS))
    plan = expiry.plan_expiry(lake, at(FAR_MS), SETTINGS)
    assert [(planned.id, planned.time_ms) for planned in plan] == list(zip(IDS, TIMES_MS, strict=True))
    for planned, gone_ms in zip(plan[:3], GONE_MS, strict=False):
        assert (planned.expired_ms, planned.removable_ms) == (gone_ms + HOUR_MS, FAR_MS - DAY_MS + GRACE_MS)
        assert (planned.blocked_by, planned.action, planned.marked_ms) == ((), "remove", planned.expired_ms)
        assert planned.rows == 2 * RANGES + 1
        partition_bytes = {part.key[0]: part.bytes for part in lake.partitions(GENERATION_DESCRIPTIONS_V2)}
        assert planned.bytes > partition_bytes[planned.id] > 500
    newest = plan[3]
    assert (newest.expired_ms, newest.removable_ms, newest.blocked_by) == (None, None, ("operates",))


def test_a_mark_follows_expiry_and_removal_the_grace_time(lake: Lake) -> None:
    """Both are exact to the millisecond; without a mark nothing is removed, however long ago it expired."""
    add_table(lake, 3600)
    expired = GONE_MS[0] + HOUR_MS
    clock_times = [Milliseconds(now) for now in (expired - 1, expired, expired + GRACE_MS - 1, expired + GRACE_MS)]
    assert [plan_by_id(lake, now)[IDS[0]].action for now in clock_times] == ["keep", "mark", "mark", "mark"]
    assert plan_by_id(lake)[IDS[0]].action == "mark"
    assert mark(lake, Milliseconds(expired)) == 1
    assert [plan_by_id(lake, now)[IDS[0]].action for now in clock_times] == ["keep", "mark", "mark", "remove"]
    assert plan_by_id(lake, Milliseconds(expired - 1))[IDS[0]].blocked_by == ("ks.t",)
    longer = Settings(expiry_grace_ms=Milliseconds(GRACE_MS + 1))
    assert plan_by_id(lake, Milliseconds(expired + GRACE_MS), longer)[IDS[0]].action == "mark"


def test_the_grace_time_counts_from_the_mark(lake: Lake) -> None:
    """A run does not remove generations that it marks itself, nor does another run within the grace time."""
    add_table(lake, 3600)
    result = expiry.expire_generations(lake, at(FAR_MS), SETTINGS)
    assert (result.marked, result.removed) == (3, ())
    assert {planned.removable_ms for planned in result.plan[:3]} == {FAR_MS + GRACE_MS}
    for later in (0, GRACE_MS - 1):
        result = expiry.expire_generations(lake, at(Milliseconds(FAR_MS + later)), SETTINGS)
        assert (result.marked, result.removed) == (0, ())
    assert len(expiry.expire_generations(lake, at(Milliseconds(FAR_MS + GRACE_MS)), SETTINGS).removed) == 3


def test_without_a_grace_time_marking_and_removing_are_two_runs(lake: Lake) -> None:
    """In a home with `expiry_grace_ms = 0`, the first run marks and the second removes."""
    add_table(lake, 3600)
    none = Settings(expiry_grace_ms=Milliseconds(0))
    assert [len(expiry.expire_generations(lake, at(FAR_MS), none).removed) for _ in range(2)] == [0, 3]


def test_a_mark_by_the_machine_clock_waits_for_the_machine_clock(lake: Lake) -> None:
    """A given clock shortens no real grace time, and a mark from a rehearsal starts a real one."""
    add_table(lake, 3600)
    real, ahead = Clock(), Clock(Microseconds(system_time_us() + us_from_ms(GRACE_MS) - 1_000_000))
    assert expiry.expire_generations(lake, real, SETTINGS).marked == 3
    assert [expiry.expire_generations(lake, clock, SETTINGS).removed for clock in (real, ahead)] == [(), ()]
    for time_ms, expiry_mark in expiry_marks.read_expiry_marks(lake).items():
        assert expiry_mark.marked_us == expiry_mark.machine_marked_us
        hour_ago = datetime_from_us(Microseconds(expiry_mark.marked_us - us_from_ms(GRACE_MS)))
        row = {"time": time_ms, "expired": expiry_mark.expired_ms, "marked_at": hour_ago, "machine_marked_at": hour_ago}
        write(lake, EXPIRY_MARKS, row)
    assert len(expiry.expire_generations(lake, real, SETTINGS).removed) == 3


def test_the_mark_of_a_rehearsal_starts_a_real_grace_time(lake: Lake) -> None:
    """A run without a given clock does not remove at once what a run with one marked."""
    add_table(lake, 3600)
    mark(lake, FAR_MS)
    assert expiry.expire_generations(lake, Clock(), SETTINGS).removed == ()
    assert len(expiry.expire_generations(lake, at(Milliseconds(FAR_MS + GRACE_MS)), SETTINGS).removed) == 3


@pytest.mark.parametrize("grace_ms", [0, GRACE_MS])
def test_a_clock_ahead_of_the_machine_removes_nothing(lake: Lake, grace_ms: int) -> None:
    """If the clock is ahead by more than the grace time, the message names both times, and no table changes."""
    add_table(lake, 3600)
    settings = Settings(expiry_grace_ms=Milliseconds(grace_ms))
    mark(lake, Milliseconds(FAR_MS - grace_ms), settings)
    versions = {name: lake.version(table) for name, table in TABLES.items()}
    clock = Clock(Microseconds(system_time_us() + us_from_ms(Milliseconds(grace_ms)) + 60_000_000))
    with pytest.raises(ClockRefused, match=f"clock says {format_us(clock.now_us())} and this machine's 20..-"):
        expiry.expire_generations(lake, clock, settings)
    assert {name: lake.version(table) for name, table in TABLES.items()} == versions
    assert [planned.action for planned in expiry.plan_expiry(lake, clock, settings)][:3] == ["remove"] * 3


def test_without_registered_tables_nothing_is_removed(lake: Lake) -> None:
    """Without any registered table nothing expires; after the last table was dropped, generations may expire."""
    result = expire(lake, FAR_MS)
    assert (result.marked, result.removed) == (0, ())
    assert {planned.expired_ms for planned in result.plan} == {None}
    assert blocked(lake)[0] == (expiry.UNKNOWN_TABLES,)
    add_table(lake, 0)
    assert blocked(lake)[0] == ("ks.t",)
    assert plan_by_id(lake)[IDS[0]].expired_ms is None
    cdc_tables.drop_cdc_table(lake, at(FAR_MS), "ks", "t")
    assert blocked(lake) == [(), (), (), ("operates",)]


def test_current_and_future_generations_are_retained(lake: Lake) -> None:
    """The TTLs have no effect on them, and an unpublished generation ends no other."""
    add_table(lake, 1)
    assert blocked(lake, Milliseconds(TIMES_MS[1])) == [("ks.t",), ("operates",), ("starts later",), ("starts later",)]
    assert blocked(lake, Milliseconds(TIMES_MS[0] - 1))[0] == ("starts later",)
    own_id = str(uuid.uuid4())
    row = {"generation_id": own_id, "time": FAR_MS - DAY_MS, "num_ranges": 1, "num_streams": 1, "created_at": FAR_MS}
    write(lake, GENERATIONS, row)
    assert blocked(lake)[3:] == [("operates",), ("not published",)]
    assert plan_by_id(lake)[own_id].expired_ms is None


def test_consumers_retain_unread_generations(lake: Lake) -> None:
    """Consumers block by name; a consumer of a table with tablets reads no generation."""
    add_table(lake, 1)
    consumers.register_consumer(
        lake, at(START_MS), "audit", "ks", "t", position_us=Microseconds(us_from_ms(Milliseconds(TIMES_MS[2])) - 1)
    )
    consumers.register_consumer(lake, at(START_MS), "late", "ks", "t", position_us=Microseconds(0))
    assert blocked(lake)[:3] == [("late",), ("audit", "late"), ("audit", "late")]
    assert "audit of ks.t has read up to 2026-01-02T23:59:59.999999Z" in plan_by_id(lake)[IDS[1]].reasons[0]
    expire(lake, FAR_MS)
    assert read_expired_times(lake) == dict.fromkeys(TIMES_MS)
    write(lake, TABLET_TIMESTAMPS, {"keyspace_name": "ks", "table_name": "t", "timestamp": START_MS})
    assert blocked(lake)[0] == ()
    assert plan_by_id(lake)[IDS[0]].expired_ms == GONE_MS[0]


def test_a_lowered_or_raised_ttl_counts_from_its_change(lake: Lake) -> None:
    """Every generation waits for the TTLs that applied while it operated."""
    add_table(lake, 10 * 86_400)
    cdc_tables.alter_cdc_table(lake, at(Milliseconds(START_MS + 31 * DAY_MS)), "ks", "t", ttl_seconds=60)
    assert plan_by_id(lake)[IDS[0]].expired_ms == GONE_MS[0] + 10 * DAY_MS
    other_lake = Lake(lake.root.parent / "other")
    shutil.copytree(lake.root / "system_distributed", other_lake.root / "system_distributed")
    for when, ttl in ((TIMES_MS[0] + HOUR_MS, 60), (TIMES_MS[2] + HOUR_MS, 0)):
        if not cdc_tables.read_cdc_tables(other_lake):
            clock_before = at(Milliseconds(TIMES_MS[0] - 1))
            cdc_tables.add_cdc_table(other_lake, clock_before, "ks", "t", ttl_seconds=86_400, created_now=True)
        cdc_tables.alter_cdc_table(other_lake, at(Milliseconds(when)), "ks", "t", ttl_seconds=ttl)
    expiries = [planned.expired_ms for planned in expiry.plan_expiry(other_lake, at(FAR_MS), SETTINGS)]
    assert expiries == [GONE_MS[0] + DAY_MS, GONE_MS[1] + 60_000, None, None]
    expire(other_lake, FAR_MS)
    assert sorted(read_expired_times(other_lake)) == [TIMES_MS[2], TIMES_MS[3]]


def test_a_stored_expiry_time_only_moves_later(lake: Lake) -> None:
    """A late registered table moves the time later; a dropped one does not move it earlier."""
    add_table(lake, 3600)
    first = GONE_MS[0] + HOUR_MS
    assert expiry.expire_generations(lake, at(Milliseconds(first)), SETTINGS).marked == 1
    assert read_expired_times(lake)[TIMES_MS[0]] == first
    assert expiry.expire_generations(lake, at(Milliseconds(first)), SETTINGS).marked == 0
    add_table(lake, 7200, name="late")
    result = expiry.expire_generations(lake, at(Milliseconds(first + GRACE_MS - 1)), SETTINGS)
    assert (result.marked, result.removed) == (1, ())
    assert read_expired_times(lake)[TIMES_MS[0]] == GONE_MS[0] + 2 * HOUR_MS
    for name in ("t", "late"):
        cdc_tables.drop_cdc_table(lake, at(Milliseconds(START_MS + 40 * DAY_MS)), "ks", name)
    assert plan_by_id(lake, Milliseconds(first))[IDS[0]].blocked_by == ("late writes",)
    assert plan_by_id(lake, Milliseconds(first))[IDS[0]].expired_ms == GONE_MS[0] + 2 * HOUR_MS
    assert plan_by_id(lake, Milliseconds(first))[IDS[1]].expired_ms == GONE_MS[1]


def write_to_all_tables(lake: Lake) -> None:
    """Write the first generation also to the tables that a join and an upgrade fill."""
    description = generation(IDS[0])
    entries = [description.entry(row) for row in range(len(description))]
    write(
        lake,
        TOPOLOGY_DESCRIPTIONS,
        *(
            {
                "generation_id": IDS[0],
                "range_end": entry.range_end,
                "range_start": entry.range_start,
                "vnode_index": row,
                "owner": str(uuid.UUID(int=1)),
                "streams": [bytes(stream) for stream in entry.streams],
                "ignore_msb": entry.ignore_msb,
            }
            for row, entry in enumerate(entries)
        ),
    )
    streams = [bytes(stream) for entry in entries for stream in entry.streams]
    write(lake, STREAMS_DESCRIPTIONS, {"time": TIMES_MS[0], "streams": streams})
    cell = [
        {
            "token_range_end": entry.range_end,
            "streams": [bytes(stream) for stream in entry.streams],
            "sharding_ignore_msb": entry.ignore_msb,
        }
        for entry in entries
    ]
    write(lake, GENERATION_DESCRIPTIONS, {"time": TIMES_MS[0], "description": cell})


def count_rows_of_first(lake: Lake) -> dict[str, int]:
    """Return the number of rows of the first generation in each table."""
    filters = {
        GENERATION_TIMESTAMPS: ("time", datetime_from_ms(Milliseconds(TIMES_MS[0]))),
        STREAMS_DESCRIPTIONS_V2: ("time", datetime_from_ms(Milliseconds(TIMES_MS[0]))),
        STREAMS_DESCRIPTIONS: ("time", datetime_from_ms(Milliseconds(TIMES_MS[0]))),
        GENERATION_DESCRIPTIONS: ("time", datetime_from_ms(Milliseconds(TIMES_MS[0]))),
        GENERATION_DESCRIPTIONS_V2: ("id", IDS[0]),
        TOPOLOGY_DESCRIPTIONS: ("generation_id", IDS[0]),
        STREAM_FINGERPRINTS: ("generation_id", IDS[0]),
    }
    counts = {
        table.name: lake.read(table, [name], [(name, "=", value)]).num_rows for table, (name, value) in filters.items()
    }
    marks = lake.read(UNORDERED_RANGES, ["generation"])["generation"].to_pylist()
    return counts | {"marks": sum(name in (IDS[0], iso(Milliseconds(TIMES_MS[0]))) for name in marks)}


def test_a_removed_generation_leaves_only_its_removal_record(lake: Lake) -> None:
    """Rows in both formats and marks are removed; other generations keep their rows, and the ledger its time."""
    write_to_all_tables(lake)
    uniqueness.store_fingerprints(lake, at_least=1)
    add_table(lake, 1)
    before = {table.full_name: lake.read(table).num_rows for table in TABLES.values()}
    assert set(count_rows_of_first(lake).values()) == {1, RANGES} | {count_rows_of_first(lake)["marks"]}
    mark(lake, Milliseconds(GONE_MS[0] + 1000))
    size = plan_by_id(lake)[IDS[0]]
    assert size.rows == 3 * RANGES + 1 + 2
    result = expiry.expire_generations(lake, at(Milliseconds(GONE_MS[0] + 1000 + GRACE_MS)), SETTINGS)
    assert [removed.id for removed in result.removed] == [IDS[0]]
    assert set(count_rows_of_first(lake).values()) == {0}
    after = {table.full_name: lake.read(table).num_rows for table in TABLES.values()}
    assert after[STREAMS_DESCRIPTIONS_V2.full_name] == before[STREAMS_DESCRIPTIONS_V2.full_name] - RANGES
    assert after[GENERATIONS.full_name] == before[GENERATIONS.full_name] == 4
    note = lake.read(REMOVED_GENERATIONS).to_pylist()
    assert [(row["generation_id"], row["rows"], row["bytes"]) for row in note] == [(IDS[0], size.rows, size.bytes)]


def test_a_second_run_changes_nothing(lake: Lake) -> None:
    """No table gets a new version."""
    add_table(lake, 1)
    expire(lake, FAR_MS)
    versions = {name: lake.version(table) for name, table in TABLES.items()}
    result = expire(lake, FAR_MS)
    assert (result.marked, result.removed, result.finished, result.vacuumed) == (0, (), 0, 0)
    assert {name: lake.version(table) for name, table in TABLES.items()} == versions


def test_a_removed_generation_is_remembered(lake: Lake) -> None:
    """The gap in the timeline remains: the earlier generation is not extended, and the removed is not recreated."""
    add_table(lake, 1)
    consumers.register_consumer(lake, at(START_MS), "late", "ks", "t", position_us=Microseconds(0))
    cdc_tables.add_cdc_table(lake, at(Milliseconds(TIMES_MS[0] + 1)), "ks", "short", ttl_seconds=0, created_now=True)
    cdc_tables.alter_cdc_table(lake, at(Milliseconds(TIMES_MS[0] + 2)), "ks", "short", ttl_seconds=1)
    consumers.forget_consumer(lake, "late", "ks", "t")
    expire(lake, FAR_MS)
    assert [generation_entry.id for generation_entry in Timeline.read(lake).known] == [IDS[0], IDS[3]]
    assert [generation_entry.removed_ms for generation_entry in Timeline.read(lake).generations] == [
        None,
        FAR_MS,
        FAR_MS,
        None,
    ]
    for name in (IDS[1], TIMES_MS[1]):
        with pytest.raises(NotFound, match="was removed at"):
            Timeline.read(lake).find(name)
    with pytest.raises(StateError, match="not made again"):
        generations.read_generation_id(lake, IDS[1])
    assert plan_by_id(lake)[IDS[0]].time_ms == TIMES_MS[0]
    explained = run(
        "--home", lake.root.parent, "explain", "--token", "1", "--at", iso(Milliseconds(TIMES_MS[1] + 1)), "--json"
    )
    assert (explained.exit_code, explained.json["generation"]["id"], explained.json["stream_id"]) == (1, IDS[1], None)
    assert "was removed with its streams" in explained.json["note"]


def test_a_node_that_names_a_generation_blocks_its_removal(lake: Lake) -> None:
    """The plan names the node as a blocker; a node that left the ring blocks nothing."""
    add_table(lake, 1)
    host = str(uuid.UUID(int=7))
    write(lake, CDC_LOCAL, {"host_id": host, "key": "cdc_local", "streams_timestamp": TIMES_MS[1], "uuid": IDS[1]})
    assert blocked(lake)[:3] == [(), (host,), ()]
    assert [removed.id for removed in expire(lake, FAR_MS).removed] == [IDS[0], IDS[2]]
    node = {"host_id": host, "address": "a", "datacenter": "d", "rack": "r", "tokens": [1], "features": []}
    write(lake, NODES, node | {"status": "LEFT", "shard_count": 1, "ignore_msb": 0})
    assert [removed.id for removed in expire(lake, FAR_MS).removed] == [IDS[1]]


def test_first_format_generations_that_were_never_rewritten_expire_too(lake: Lake) -> None:
    """They have no timestamp to mark; their own two rows are removed."""
    write_to_all_tables(lake)
    old = START_MS - 10 * DAY_MS
    cell = lake.read(GENERATION_DESCRIPTIONS).to_pylist()[0] | {"time": old}
    write(lake, GENERATION_DESCRIPTIONS, cell)
    write(lake, STREAMS_DESCRIPTIONS, {"time": old, "streams": [b"\0" * 16]})
    add_table(lake, 1, created_ms=Milliseconds(old))
    mark(lake, Milliseconds(old + 19 * DAY_MS))
    (first, *_) = expiry.plan_expiry(lake, at(Milliseconds(old + 20 * DAY_MS)), SETTINGS)
    assert (first.time_ms, first.id, first.rows, first.action) == (old, None, 2, "remove")
    assert first.expired_ms == TIMES_MS[0] + SKEW_MS + 1000
    expire(lake, FAR_MS)
    assert lake.read(STREAMS_DESCRIPTIONS).num_rows == lake.read(GENERATION_DESCRIPTIONS).num_rows == 0
    assert expiry.read_unfinished_removals(lake) == []


@pytest.fixture
def watched(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The rows of the first generation that a reader sees after every commit of an expiry."""
    row_counts: list[dict[str, Any]] = []
    write_to_all_tables(lake)
    add_table(lake, 1)
    delete = Lake.delete

    def delete_and_count(self: Lake, table: Any, filters: Any) -> int:
        removed = delete(self, table, filters)
        row_counts.append(count_rows_of_first(lake))
        return removed

    monkeypatch.setattr(Lake, "delete", delete_and_count)
    return row_counts


def test_a_reader_in_between_sees_a_whole_generation_or_none(lake: Lake, watched: list[dict[str, Any]]) -> None:
    """If the timestamp exists, all streams do; if the description is gone, so are the streams."""
    expire(lake, FAR_MS)
    assert len(watched) >= 6
    for row_counts in watched:
        listed, streams = row_counts["cdc_generation_timestamps"], row_counts["cdc_streams_descriptions_v2"]
        described = row_counts["cdc_generation_descriptions_v2"]
        assert streams == RANGES or not listed
        assert described == RANGES or not streams
        assert row_counts["cdc_streams_descriptions"] == 0
    assert set(watched[-1].values()) == {0}


def test_ten_thousand_generations_are_planned_without_their_streams(tmp_path: Path) -> None:
    """The plan needs times and tables alone; the lake has no data file of a generation."""
    lake = Lake(tmp_path / "lake")
    times = [START_MS + number * HOUR_MS for number in range(10_000)]
    write(lake, GENERATION_TIMESTAMPS, *({"key": "timestamps", "time": time, "expired": None} for time in times))
    for number in range(20):
        add_table(lake, 86_400 + number, name=f"t{number}", created_ms=START_MS - DAY_MS)
    plan = expiry.plan_expiry(lake, at(Milliseconds(times[-1])), SETTINGS)
    assert sum(planned.action == "mark" for planned in plan) == 10_000 - 1 - 25


def test_the_forecast_equals_the_growth_by_joins(lake: Lake) -> None:
    """Ranges and streams grow by the average node; with expiry, only generations with possible rows remain."""
    with pytest.raises(StateError, match="import a ring snapshot"):
        forecast.forecast_growth(lake, at(FAR_MS), SETTINGS, 2, every_ms=DAY_MS)
    for number in (1, 2):
        node = {"host_id": str(uuid.UUID(int=number)), "address": "a", "datacenter": "d", "rack": "r", "features": []}
        tokens = [number * 10, number * 10 + 1]
        write(lake, NODES, node | {"status": "NORMAL", "tokens": tokens, "shard_count": 3, "ignore_msb": 0})
    streams = sum(len(generation(IDS[0]).entry(row).streams) for row in range(RANGES))
    steps = forecast.forecast_growth(lake, at(FAR_MS), SETTINGS, 3, every_ms=DAY_MS)
    assert [(forecast_step.num_ranges, forecast_step.num_streams) for forecast_step in steps] == [
        (4, 12),
        (6, 18),
        (8, 24),
        (10, 30),
    ]
    assert [forecast_step.streams for forecast_step in steps] == [4 * streams + more for more in (0, 18, 42, 72)]
    assert [forecast_step.streams_with_expiry for forecast_step in steps] == [
        forecast_step.streams for forecast_step in steps
    ]
    # A length and 16 bytes for each stream, a count for each range; the published table never shrinks.
    ranges = [4 * RANGES + more for more in (0, 6, 14, 24)]
    published = [20 * forecast_step.streams + 4 * count for forecast_step, count in zip(steps, ranges, strict=True)]
    assert [forecast_step.published_bytes for forecast_step in steps] == published
    size = sum(
        part.bytes for table in (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2) for part in lake.partitions(table)
    )
    assert (steps[0].bytes, steps[3].bytes) == (size, round(size * (4 * streams + 72) / (4 * streams)))
    add_table(lake, 3600)
    steps = forecast.forecast_growth(lake, at(FAR_MS), SETTINGS, 3, every_ms=DAY_MS)
    # One node joins at each step, and the previous generation expires a little more than two hours later, before the
    # next step.
    assert [forecast_step.streams_with_expiry for forecast_step in steps] == [streams, streams + 18, 18 + 24, 24 + 30]


def test_nodes_learn_of_a_published_generation(lake: Lake) -> None:
    """Every node of the ring gets the newest generation; none goes back, and a node that left gets nothing."""
    hosts = [str(uuid.UUID(int=number)) for number in (1, 2, 3)]
    for host, status in zip(hosts, ("NORMAL", "NORMAL", "LEFT"), strict=True):
        node = {"host_id": host, "address": "a", "datacenter": "d", "rack": "r", "features": [], "tokens": [1]}
        write(lake, NODES, node | {"status": status, "shard_count": 1, "ignore_msb": 0})
    for host, index in zip(hosts, (0, 2, 0), strict=True):
        row = {"host_id": host, "key": "cdc_local", "streams_timestamp": TIMES_MS[index], "uuid": IDS[index]}
        write(lake, CDC_LOCAL, row)
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", datetime_from_ms(Milliseconds(TIMES_MS[1])))])
    for _ in range(2):
        assert publish.publish_generation_timestamp(lake, at(FAR_MS), IDS[1]) == TIMES_MS[1]
    stored_ids = {row["host_id"]: row["uuid"] for row in lake.read(CDC_LOCAL).to_pylist()}
    assert stored_ids == dict(zip(hosts, (IDS[1], IDS[2], IDS[0]), strict=True))


def test_writes_to_a_removed_generation_get_no_stream(lake: Lake) -> None:
    """Such a write gets neither a stream of the previous generation nor one of the next."""
    add_table(lake, 1)
    consumers.register_consumer(
        lake, at(START_MS), "late", "ks", "t", position_us=us_from_ms(Milliseconds(TIMES_MS[1]))
    )
    keys = pa.array([b"key"] * 3, pa.binary())
    write_times = pa.array([us_from_ms(Milliseconds(time)) + 1 for time in TIMES_MS[:3]], pa.int64())
    assert StreamSources(lake).generations.finder()(keys, write_times).null_count == 0
    expire(lake, FAR_MS)
    streams = StreamSources(lake).generations.finder()(keys, write_times)
    assert [stream is None for stream in streams.to_pylist()] == [True, False, False]
