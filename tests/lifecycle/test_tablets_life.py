"""The life of a table with tablets in a lake: its stream sets, their rows, refusals, drops and recreation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.oracles import oracle, tablet_oracle
from support.oracles.tablet_oracle import SEED_FIRST_MS, SEED_FOUR, SEED_ROWS, SEED_SECOND_MS, SEED_TWO

from cdc_platform.clock import Clock, Microseconds, Milliseconds, datetime_from_ms, ms_from_datetime, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.generations import find_tablet_streams, uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables, consumers
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS
from cdc_platform.timeline.tablets import TabletExplanation, TabletStreams

NAME = ("ks", "t")
DEFAULTS = Settings()
CREATION, SPLIT = (
    Clock(us_from_ms(Milliseconds(SEED_FIRST_MS + 5_000))),
    Clock(us_from_ms(Milliseconds(SEED_SECOND_MS - 65_000))),
)
DAY_US = Microseconds(86_400_000_000)


def later(clock: Clock, seconds: float) -> Clock:
    """Return the clock, this many seconds later."""
    return Clock(Microseconds(clock.now_us() + int(seconds * 1_000_000)))


def rows_in_order(lake: Lake) -> list[tuple[int, int, str]]:
    """Return every row of cdc_streams in a CQL client's order: by time and state, then by token."""
    rows = [
        (ms_from_datetime(row["timestamp"]), row["stream_state"], row["stream_id"])
        for row in lake.read(TABLET_STREAMS).to_pylist()
    ]
    return [
        (time, state, stream.hex())
        for time, state, stream in sorted(rows, key=lambda row: (*row[:2], tablet_oracle.token_of(row[2])))
    ]


def times(lake: Lake) -> list[int]:
    """Return the timestamps that readers see, in ms, newest first."""
    timestamps = lake.read(TABLET_TIMESTAMPS)["timestamp"].to_pylist()
    return sorted((ms_from_datetime(time) for time in timestamps), reverse=True)


def without_random(rows: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return rows without a stream's random bits: (time, state, token in hexadecimal)."""
    return [(time, state, stream[:16]) for time, state, stream in rows]


def write_seed(lake: Lake) -> None:
    """Write the example of design document 002 as another writer would, with its own random bits."""
    name = {"keyspace_name": NAME[0], "table_name": NAME[1]}
    rows = [
        {
            **name,
            "timestamp": datetime_from_ms(Milliseconds(time)),
            "stream_state": state,
            "stream_id": bytes.fromhex(stream),
        }
        for time, state, stream in SEED_ROWS
    ]
    listed = [{**name, "timestamp": datetime_from_ms(Milliseconds(time))} for time in (SEED_FIRST_MS, SEED_SECOND_MS)]
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist(rows, schema=TABLET_STREAMS.schema), update=False)
    lake.merge(TABLET_TIMESTAMPS, pa.Table.from_pylist(listed, schema=TABLET_TIMESTAMPS.schema), update=False)
    cdc_tables.add_cdc_table(lake, CREATION, *NAME, ttl_seconds=86_400, created_at_ms=Milliseconds(SEED_FIRST_MS))


def test_the_worked_example_is_reproduced(lake: Lake) -> None:
    """Design document 002: two tablets, split to four, with its times, states, order, counts and tokens."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    assert without_random(rows_in_order(lake)) == without_random(SEED_ROWS[:4])
    assert times(lake) == [SEED_FIRST_MS]
    first = rows_in_order(lake)
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    rows = rows_in_order(lake)
    assert without_random(rows) == without_random(SEED_ROWS)
    assert times(lake) == [SEED_SECOND_MS, SEED_FIRST_MS]
    assert rows[:4] == first
    assert {stream for _, state, stream in rows[4:] if state == 1} == {stream for _, _, stream in first}
    assert len({stream for _, _, stream in rows}) == 6
    assert all(tablet_oracle.fields_of(bytes.fromhex(stream))[:2] == (1, 0) for _, _, stream in rows)


def explain(lake: Lake, clock: Clock, token: int) -> TabletExplanation:
    """Explain a write of `token` at the clock's time."""
    return TabletStreams(lake, DEFAULTS, *NAME).explain(token, clock.now_us(), clock.now_us())


def test_the_examples_own_rows_are_read(lake: Lake) -> None:
    """Another writer's sets are read, explained and split like the platform's."""
    write_seed(lake)
    sets = metastore_tablets.read_stream_sets(lake, *NAME)
    assert [
        (stream_set.timestamp_ms, [stream.tobytes().hex() for stream in stream_set.ids]) for stream_set in sets
    ] == [
        (SEED_FIRST_MS, SEED_TWO),
        (SEED_SECOND_MS, SEED_FOUR),
    ]
    pk_0 = int(oracle.token_of(bytes(4)))
    explained = explain(lake, CREATION, pk_0)
    assert explained.stream_id is not None
    assert explained.stream_id.hex() == "ffffffffffffffff50e84c99d4000001"
    explained = explain(lake, later(SPLIT, 66), pk_0)
    assert explained.stream_id is not None
    assert explained.stream_id.hex() == "ffffffffffffffffe28e96d4f4000001"
    assert (explained.tablet, explained.range_start, explained.range_end) == (1, -(2**62) - 1, -1)
    merged = tablets.merge_tablets(lake, later(SPLIT, 100), DEFAULTS, *NAME, 1)
    assert merged.layout.timestamp_ms == SEED_SECOND_MS + 100_000
    newest = metastore_tablets.read_stream_set_changes(lake, *NAME)[-1]
    assert [stream.tobytes().hex() for stream in newest.closed] == SEED_FOUR
    tablets.drop_table_log(lake, later(SPLIT, 200), *NAME)
    assert metastore_tablets.read_tables_with_stream_sets(lake) == []


def test_a_new_table_can_be_written_to_at_once(lake: Lake) -> None:
    """Its first set started 5 s before its creation, and it is registered with the default TTL."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(8))
    explained = explain(lake, CREATION, 42)
    assert (explained.decision.verdict, explained.set_ms) == ("OK", SEED_FIRST_MS)
    known = cdc_tables.find_cdc_table(lake, *NAME)
    assert (known.ttl_seconds, known.enabled) == (86_400, True)


def test_creation_can_be_repeated(lake: Lake) -> None:
    """A later equal call changes nothing; a different one is refused, and the message names the existing tablets."""
    assert tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=60).changed
    before = rows_in_order(lake)
    repeated = tablets.create_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=60)
    assert (repeated.changed, repeated.layout.timestamp_ms) == (False, SEED_FIRST_MS)
    assert rows_in_order(lake) == before
    with pytest.raises(StateError, match=r"ks\.t has 2 tablets already"):
        tablets.create_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(4))
    with pytest.raises(InputError, match="known already, with TTL 60 s"):
        tablets.create_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=61)


def test_an_unchanged_count_creates_no_set(lake: Lake) -> None:
    """A split or merge to the current count creates no set, and the streams stay open."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    for change in (tablets.split_tablets, tablets.merge_tablets):
        assert not change(lake, SPLIT, DEFAULTS, *NAME, 2).changed
    assert not tablets.resize_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(2)).changed
    assert times(lake) == [SEED_FIRST_MS]


@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_history_of_resizes_holds_together(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """After any resizes, each set closes all earlier streams, times grow, and tokens are the tablets' ends."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    clock = CREATION
    ends = [oracle.uniform_last_tokens(data.draw(st.sampled_from([1, 2, 4])))]
    tablets.create_tablets(lake, clock, DEFAULTS, *NAME, np.array(ends[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        clock = later(clock, data.draw(st.sampled_from([-30.0, 0.001, 300.0])))
        tablet_count = len(ends[-1])
        change = data.draw(st.sampled_from(["split", "merge", "resize"]))
        if change == "split" and any(end - before == 1 for before, end in pairwise(ends[-1])):
            with pytest.raises(InputError, match="holds a single token and cannot be split"):
                tablets.split_tablets(lake, clock, DEFAULTS, *NAME, tablet_count * 2)
        elif change == "split":
            tablets.split_tablets(lake, clock, DEFAULTS, *NAME, tablet_count * 2)
            ends.append(tablet_oracle.halved(ends[-1]))
        elif change == "merge" and tablet_count % 2 == 0:
            tablets.merge_tablets(lake, clock, DEFAULTS, *NAME, tablet_count // 2)
            ends.append(ends[-1][1::2])
        else:
            ends.append(sorted({*data.draw(st.lists(st.integers(-9, 9), max_size=4)), 2**40, oracle.LAST}))
            tablets.resize_tablets(lake, clock, DEFAULTS, *NAME, np.array(ends[-1]))
            if ends[-1] == ends[-2]:
                ends.pop()
    previous: list[bytes] = []
    for number, stream_set in enumerate(metastore_tablets.read_stream_set_changes(lake, *NAME)):
        current, closed, opened = (
            [stream.tobytes() for stream in streams]
            for streams in (stream_set.current, stream_set.closed, stream_set.opened)
        )
        assert [tablet_oracle.token_of(stream) for stream in current] == ends[number]
        assert (closed, opened) == (previous, current)
        assert current == tablet_oracle.apply(previous, closed, opened)
        previous = current
    assert len(times(lake)) == len(ends) == len(set(times(lake)))


def test_times_grow_with_a_stopped_clock(lake: Lake) -> None:
    """A set starts after the last one, whatever the clock shows."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(1))
    for count in (2, 4, 8):
        tablets.split_tablets(lake, CREATION, DEFAULTS, *NAME, count)
    first = CREATION.now_ms() + 65_000
    assert times(lake) == [first + 2, first + 1, first, SEED_FIRST_MS]


def test_many_writes_get_the_stream_of_their_time(lake: Lake) -> None:
    """Writes before the first set get none, others their set's stream, to the microsecond of the switch."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    random = np.random.default_rng(1)
    tokens = random.integers(oracle.FIRST, oracle.LAST, 1000)
    bounds = [
        us_from_ms(Milliseconds(SEED_FIRST_MS)) - 1,
        us_from_ms(Milliseconds(SEED_FIRST_MS)),
        us_from_ms(Milliseconds(SEED_SECOND_MS)) - 1,
        us_from_ms(Milliseconds(SEED_SECOND_MS)),
    ]
    ts = random.choice(bounds, 1000)
    sets = metastore_tablets.read_stream_sets(lake, *NAME)
    stream_ids, rows = find_tablet_streams(sets, ts, tokens)
    for time, token, stream, row in zip(ts.tolist(), tokens.tolist(), stream_ids, rows.tolist(), strict=True):
        assert row == {bounds[0]: -1, bounds[1]: 0, bounds[2]: 0, bounds[3]: 1}[time]
        streams = [stream_id.tobytes() for stream_id in sets[row].ids] if row >= 0 else []
        assert stream.tobytes() == (tablet_oracle.stream_of(streams, token) if row >= 0 else bytes(16))


def test_tables_are_independent(lake: Lake) -> None:
    """Tables of one name in two keyspaces have their own sets, streams and histories."""
    for keyspace in ("a", "b"):
        tablets.create_tablets(lake, CREATION, DEFAULTS, keyspace, "t", uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, "a", "t", 4)
    tablets.drop_table_log(lake, SPLIT, "b", "t")
    assert metastore_tablets.read_tables_with_stream_sets(lake) == [("a", "t")]
    assert [len(stream_set.ids) for stream_set in metastore_tablets.read_stream_sets(lake, "a", "t")] == [2, 4]


def test_unknown_tables_are_named(lake: Lake) -> None:
    """A request for a table without tablets is not found, and the message names the remedy."""
    requests = [
        lambda: tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4),
        lambda: metastore_tablets.read_stream_sets(lake, *NAME),
        lambda: tablets.plan_tablet_collection(lake, SPLIT, *NAME),
        lambda: tablets.drop_table_log(lake, SPLIT, *NAME),
    ]
    for request in requests:
        with pytest.raises(NotFound, match=r"ks\.t"):
            request()


def test_sets_are_removed_when_no_log_can_have_their_rows(lake: Lake) -> None:
    """A set is removed when its successor is as old as the TTL; the new base opens its whole set."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    expiry = Clock(us_from_ms(Milliseconds(SEED_SECOND_MS)) + DAY_US)
    assert tablets.read_due_collections(lake, later(expiry, -0.001)) == []
    assert tablets.collect_tablet_sets(lake, later(expiry, -0.001), *NAME).removed_ms == ()
    assert len(rows_in_order(lake)) == 14
    assert [planned.removed_ms for planned in tablets.read_due_collections(lake, expiry)] == [(SEED_FIRST_MS,)]
    assert len(times(lake)) == 2
    assert tablets.collect_tablet_sets(lake, expiry, *NAME).base_ms == SEED_SECOND_MS
    assert without_random(rows_in_order(lake)) == [row for row in without_random(SEED_ROWS[4:]) if row[1] != 1]
    assert times(lake) == [SEED_SECOND_MS]
    versions = [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)]
    assert tablets.collect_tablet_sets(lake, later(expiry, 9e6), *NAME).removed_ms == ()
    assert [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)] == versions
    tablets.merge_tablets(lake, later(expiry, 9e6), DEFAULTS, *NAME, 2)
    assert [len(planned.closed) for planned in metastore_tablets.read_stream_set_changes(lake, *NAME)] == [0, 4]


def test_a_base_of_partial_differences_opens_its_whole_set(lake: Lake) -> None:
    """If a set opened only some streams, it opens the remaining ones, too, when it becomes the base."""
    name = {"keyspace_name": NAME[0], "table_name": NAME[1]}
    remaining, old, new = (tablet_oracle.make(token, 1) for token in (oracle.LAST, 0, 5))
    states = {1_000: {0: [old, remaining], 2: [old, remaining]}, 2_000: {0: [new, remaining], 1: [old], 2: [new]}}
    rows = [
        {**name, "timestamp": datetime_from_ms(Milliseconds(time)), "stream_state": state, "stream_id": stream}
        for time, streams_by_state in states.items()
        for state, streams in streams_by_state.items()
        for stream in streams
    ]
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist(rows, schema=TABLET_STREAMS.schema), update=False)
    listed = [{**name, "timestamp": datetime_from_ms(Milliseconds(time))} for time in states]
    lake.merge(TABLET_TIMESTAMPS, pa.Table.from_pylist(listed, schema=TABLET_TIMESTAMPS.schema), update=False)
    cdc_tables.add_cdc_table(lake, Clock(Microseconds(10_000_000)), *NAME, ttl_seconds=5)
    tablets.collect_tablet_sets(lake, Clock(Microseconds(10_000_000)), *NAME)
    assert [(state, stream) for _, state, stream in rows_in_order(lake)] == [
        (0, new.hex()),
        (0, remaining.hex()),
        (2, new.hex()),
        (2, remaining.hex()),
    ]


def test_rows_that_never_expire_retain_their_sets(lake: Lake) -> None:
    """With a TTL of 0 no set is collected."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=0)
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    assert tablets.collect_tablet_sets(lake, later(SPLIT, 1e9), *NAME).removed_ms == ()
    assert tablets.read_due_collections(lake, later(SPLIT, 1e9)) == []


def read_up_to(lake: Lake, name: str, position_us: Microseconds, table: str = "t") -> None:
    """Register a consumer of the table with this position."""
    consumers.register_consumer(lake, CREATION, name, "ks", table, position_us=position_us)


def test_a_set_waits_for_its_readers(lake: Lake) -> None:
    """After its TTL, a set stays while a named consumer has not reached the next set."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    tablets.split_tablets(lake, later(SPLIT, 60), DEFAULTS, *NAME, 8)
    third_ms = SEED_SECOND_MS + Milliseconds(60_000)
    clock_after_ttl = Clock(us_from_ms(Milliseconds(third_ms)) + DAY_US)
    read_up_to(lake, "slow", Microseconds(us_from_ms(Milliseconds(SEED_SECOND_MS)) - 1))
    read_up_to(lake, "quick", Microseconds(us_from_ms(Milliseconds(third_ms)) - 1))
    read_up_to(lake, "elsewhere", Microseconds(0), table="u")
    versions = [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)]
    for plan in (
        tablets.plan_tablet_collection(lake, clock_after_ttl, *NAME),
        tablets.collect_tablet_sets(lake, clock_after_ttl, *NAME),
        *tablets.read_due_collections(lake, clock_after_ttl),
    ):
        assert (plan.base_ms, plan.removed_ms, plan.at_risk_ms) == (SEED_FIRST_MS, (), ())
        blocked_sets = {blocker.consumer.name: blocker.sets_ms for blocker in plan.held_back}
        assert blocked_sets == {"slow": (SEED_FIRST_MS, SEED_SECOND_MS), "quick": (SEED_SECOND_MS,)}
    assert [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)] == versions
    slow = consumers.find_consumer(lake, "slow", *NAME)
    moved = {
        "position_us": us_from_ms(Milliseconds(SEED_SECOND_MS)),
        "set_timestamp_us": us_from_ms(Milliseconds(SEED_SECOND_MS)),
    }
    consumers.advance_consumer(lake, CREATION, slow, **moved, expected_window=0)
    (plan,) = tablets.read_due_collections(lake, clock_after_ttl)
    assert (plan.base_ms, plan.removed_ms) == (SEED_SECOND_MS, (SEED_FIRST_MS,))
    assert str(plan.held_back[1]) == (
        "1 stream set is held back by consumer slow of ks.t, which has read up to 2025-09-09T14:44:47.820Z"
    )
    tablets.collect_tablet_sets(lake, clock_after_ttl, *NAME)
    assert times(lake) == [third_ms, SEED_SECOND_MS]
    for name in ("slow", "quick"):
        consumers.forget_consumer(lake, name, *NAME)
    assert tablets.collect_tablet_sets(lake, clock_after_ttl, *NAME).removed_ms == (SEED_SECOND_MS,)
    assert times(lake) == [third_ms]


def test_a_consumer_retains_nothing_that_was_never_removable(lake: Lake) -> None:
    """Before the end of the TTL, and with a TTL of 0, no consumer is named."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=0)
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    read_up_to(lake, "slow", Microseconds(0))
    assert tablets.plan_tablet_collection(lake, later(SPLIT, 1e9), *NAME).held_back == ()
    cdc_tables.alter_cdc_table(lake, SPLIT, *NAME, ttl_seconds=86_400)
    assert (
        tablets.plan_tablet_collection(
            lake, Clock(Microseconds(us_from_ms(Milliseconds(SEED_SECOND_MS)) + DAY_US - 1000)), *NAME
        ).held_back
        == ()
    )
    assert (
        tablets.read_due_collections(
            lake, Clock(Microseconds(us_from_ms(Milliseconds(SEED_SECOND_MS)) + DAY_US - 1000))
        )
        == []
    )


def test_a_lowered_ttl_causes_a_warning(lake: Lake) -> None:
    """ScyllaDB's rule removes the set; the plan warns that its rows with the higher TTL may be live."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    lowered = later(SPLIT, 300)
    cdc_tables.alter_cdc_table(lake, lowered, *NAME, ttl_seconds=60)
    plan = tablets.plan_tablet_collection(lake, lowered, *NAME)
    assert (plan.removed_ms, plan.at_risk_ms) == ((SEED_FIRST_MS,), (SEED_FIRST_MS,))
    plan = tablets.plan_tablet_collection(lake, Clock(us_from_ms(Milliseconds(SEED_SECOND_MS)) + DAY_US), *NAME)
    assert (plan.removed_ms, plan.at_risk_ms) == ((SEED_FIRST_MS,), ())


def test_disabled_tables_retain_their_sets(lake: Lake) -> None:
    """After disabling and enabling CDC, the log has its earlier streams; a new table must be enabled."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    before = rows_in_order(lake)
    cdc_tables.alter_cdc_table(lake, SPLIT, *NAME, enabled=False)
    assert rows_in_order(lake) == before
    attached = tablets.enable_table_log(lake, later(SPLIT, 1), DEFAULTS, *NAME)
    assert attached is not None
    assert not attached.changed
    assert cdc_tables.find_cdc_table(lake, *NAME).enabled
    assert rows_in_order(lake) == before
    cdc_tables.add_cdc_table(lake, SPLIT, "ks", "off", ttl_seconds=60, enabled=False)
    with pytest.raises(StateError, match=r"CDC is off for ks\.off"):
        tablets.create_tablets(lake, SPLIT, DEFAULTS, "ks", "off", uniform_tablet_ends(2))


def test_dropping_a_log_removes_its_sets_and_a_new_log_gets_new_streams(lake: Lake) -> None:
    """Nothing remains; enabled again, the table has its earlier tablets and TTL, and other streams."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=70)
    old = rows_in_order(lake)
    tablets.drop_table_log(lake, CREATION, *NAME)
    assert (rows_in_order(lake), times(lake), metastore_tablets.read_tables_with_stream_sets(lake)) == ([], [], [])
    with pytest.raises(NotFound):
        tablets.drop_table_log(lake, CREATION, *NAME)
    created = tablets.enable_table_log(lake, CREATION, DEFAULTS, *NAME)
    assert created is not None
    assert created.changed
    assert without_random(rows_in_order(lake)) == without_random(old)
    assert not {stream for *_, stream in rows_in_order(lake)} & {stream for *_, stream in old}
    assert cdc_tables.find_cdc_table(lake, *NAME).ttl_seconds == 70


def test_a_log_dropped_without_its_tablets_is_detected(lake: Lake) -> None:
    """The sets of a log that was dropped, and even registered again, are left over and removed."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    cdc_tables.drop_cdc_table(lake, SPLIT, *NAME)
    assert [layout.full_name for layout in metastore_tablets.read_unfinished_layouts(lake)] == ["ks.t"]
    cdc_tables.add_cdc_table(lake, SPLIT, *NAME, ttl_seconds=60)
    with pytest.raises(NotFound, match="has no tablets"):
        tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    tablets.finish_tablet_changes(lake, SPLIT)
    assert (rows_in_order(lake), times(lake), metastore_tablets.read_unfinished_layouts(lake)) == ([], [], [])
    tablets.create_tablets(lake, later(SPLIT, 10), DEFAULTS, *NAME, uniform_tablet_ends(4))
    assert len(rows_in_order(lake)) == 8
    assert metastore_tablets.read_unfinished_layouts(lake) == []


def test_another_process_decision_is_adopted_or_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two concurrent resizes, an equal one joins the first, and a different one raises a conflict."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    stale = metastore_tablets.read_newest_layout(lake, *NAME)
    won = tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4).layout
    monkeypatch.setattr(tablets, "read_live_layout", lambda *_: stale)
    joined = tablets.split_tablets(lake, later(SPLIT, 7), DEFAULTS, *NAME, 4).layout
    assert (joined.number, joined.timestamp_ms) == (won.number, won.timestamp_ms)
    with pytest.raises(ConflictError, match="got other tablets from another process"):
        tablets.split_tablets(lake, later(SPLIT, 7), DEFAULTS, *NAME, 8)
    assert times(lake) == [SEED_SECOND_MS, SEED_FIRST_MS]
    assert len(rows_in_order(lake)) == 14


def test_a_timestamp_waits_for_all_of_its_streams(lake: Lake) -> None:
    """A set with missing rows is not published until all its rows are written."""
    decided = tablets.decide_tablet_creation(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(4)).layout
    with pytest.raises(StateError, match="0 of the 4 streams"):
        tablets.publish_set_timestamp(lake, decided)
    tablets.write_set_streams(lake, decided)
    lake.delete(TABLET_STREAMS, [("stream_id", "=", bytes.fromhex(rows_in_order(lake)[0][2]))])
    with pytest.raises(StateError, match="3 of the 4 streams"):
        tablets.publish_set_timestamp(lake, decided)
    tablets.finish_tablet_change(lake, CREATION, *NAME)
    assert times(lake) == [SEED_FIRST_MS]
    assert len(rows_in_order(lake)) == 8


def test_damaged_sets_are_not_read(lake: Lake) -> None:
    """A timestamp without streams and rows without a valid stream ID raise errors."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    short = {"timestamp": datetime_from_ms(Milliseconds(SEED_FIRST_MS)), "stream_state": 0, "stream_id": b"short"}
    row = {"keyspace_name": NAME[0], "table_name": NAME[1], **short}
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist([row], schema=TABLET_STREAMS.schema), update=False)
    with pytest.raises(StateError, match=r"1 rows of system\.cdc_streams hold no stream ID"):
        metastore_tablets.read_stream_sets(lake, *NAME)
    lake.delete(TABLET_STREAMS, [("stream_state", "=", 0)])
    with pytest.raises(StateError, match="has no current streams"):
        metastore_tablets.read_stream_sets(lake, *NAME)
