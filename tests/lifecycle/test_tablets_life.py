"""The life of a tablet-based table on a real lake: its sets, their rows, what is refused, dropped and made again."""

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
    """The clock, so many seconds on."""
    return Clock(Microseconds(clock.now_us() + int(seconds * 1_000_000)))


def rows_in_order(lake: Lake) -> list[tuple[int, int, str]]:
    """Every row of cdc_streams as a CQL client gets it: by time and state, then by token."""
    rows = [
        (ms_from_datetime(row["timestamp"]), row["stream_state"], row["stream_id"])
        for row in lake.read(TABLET_STREAMS).to_pylist()
    ]
    return [
        (time, state, stream.hex())
        for time, state, stream in sorted(rows, key=lambda row: (*row[:2], tablet_oracle.token_of(row[2])))
    ]


def times(lake: Lake) -> list[int]:
    """The timestamps that readers see, in ms, newest first."""
    found = lake.read(TABLET_TIMESTAMPS)["timestamp"].to_pylist()
    return sorted((ms_from_datetime(time) for time in found), reverse=True)


def shape(rows: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Rows without what is random in a stream: (time, state, token in hexadecimal)."""
    return [(time, state, stream[:16]) for time, state, stream in rows]


def put_seed(lake: Lake) -> None:
    """The example of design document 002 as another writer would leave it, with its own random bits."""
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


def test_the_worked_example_comes_out(lake: Lake) -> None:
    """Design document 002: two tablets, split to four; times, states, order, counts and tokens are its own."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    assert shape(rows_in_order(lake)) == shape(SEED_ROWS[:4])
    assert times(lake) == [SEED_FIRST_MS]
    first = rows_in_order(lake)
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    rows = rows_in_order(lake)
    assert shape(rows) == shape(SEED_ROWS)
    assert times(lake) == [SEED_SECOND_MS, SEED_FIRST_MS]
    assert rows[:4] == first
    assert {stream for _, state, stream in rows[4:] if state == 1} == {stream for _, _, stream in first}
    assert len({stream for _, _, stream in rows}) == 6
    assert all(tablet_oracle.fields_of(bytes.fromhex(stream))[:2] == (1, 0) for _, _, stream in rows)


def explain(lake: Lake, clock: Clock, token: int) -> TabletExplanation:
    """Explain a write of `token` that is made now."""
    return TabletStreams(lake, DEFAULTS, *NAME).explain(token, clock.now_us(), clock.now_us())


def test_the_examples_own_rows_are_read(lake: Lake) -> None:
    """Sets that another writer made are read, explained and split like those of the platform."""
    put_seed(lake)
    sets = metastore_tablets.read_stream_sets(lake, *NAME)
    assert [(each.timestamp_ms, [stream.tobytes().hex() for stream in each.ids]) for each in sets] == [
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
    """Its first set started 5 s before it was made, and it is told of with the usual TTL."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(8))
    explained = explain(lake, CREATION, 42)
    assert (explained.decision.verdict, explained.set_ms) == ("OK", SEED_FIRST_MS)
    known = cdc_tables.find_cdc_table(lake, *NAME)
    assert (known.ttl_seconds, known.enabled) == (86_400, True)


def test_creating_twice_is_creating_once(lake: Lake) -> None:
    """The same call again, later, changes nothing; another one is refused, and what is there is named."""
    assert tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=60).changed
    before = rows_in_order(lake)
    again = tablets.create_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=60)
    assert (again.changed, again.layout.timestamp_ms) == (False, SEED_FIRST_MS)
    assert rows_in_order(lake) == before
    with pytest.raises(StateError, match=r"ks\.t has 2 tablets already"):
        tablets.create_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(4))
    with pytest.raises(InputError, match="known already, with TTL 60 s"):
        tablets.create_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=61)


def test_tablets_as_asked_for_stay(lake: Lake) -> None:
    """A split to the count that is there makes no set: the streams stay open."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    for change in (tablets.split_tablets, tablets.merge_tablets):
        assert not change(lake, SPLIT, DEFAULTS, *NAME, 2).changed
    assert not tablets.resize_tablets(lake, SPLIT, DEFAULTS, *NAME, uniform_tablet_ends(2)).changed
    assert times(lake) == [SEED_FIRST_MS]


@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_history_of_resizes_holds_together(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """After any splits, merges and resizes: sets add up, each closes all before it, times grow, tokens are the ends."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    clock = CREATION
    ends = [oracle.uniform_last_tokens(data.draw(st.sampled_from([1, 2, 4])))]
    tablets.create_tablets(lake, clock, DEFAULTS, *NAME, np.array(ends[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        clock = later(clock, data.draw(st.sampled_from([-30.0, 0.001, 300.0])))
        there = len(ends[-1])
        what = data.draw(st.sampled_from(["split", "merge", "resize"]))
        if what == "split" and any(end - before == 1 for before, end in pairwise(ends[-1])):
            with pytest.raises(InputError, match="holds a single token and cannot be split"):
                tablets.split_tablets(lake, clock, DEFAULTS, *NAME, there * 2)
        elif what == "split":
            tablets.split_tablets(lake, clock, DEFAULTS, *NAME, there * 2)
            ends.append(tablet_oracle.halved(ends[-1]))
        elif what == "merge" and there % 2 == 0:
            tablets.merge_tablets(lake, clock, DEFAULTS, *NAME, there // 2)
            ends.append(ends[-1][1::2])
        else:
            ends.append(sorted({*data.draw(st.lists(st.integers(-9, 9), max_size=4)), 2**40, oracle.LAST}))
            tablets.resize_tablets(lake, clock, DEFAULTS, *NAME, np.array(ends[-1]))
            if ends[-1] == ends[-2]:
                ends.pop()
    previous: list[bytes] = []
    for number, each in enumerate(metastore_tablets.read_stream_set_changes(lake, *NAME)):
        current, closed, opened = (
            [stream.tobytes() for stream in some] for some in (each.current, each.closed, each.opened)
        )
        assert [tablet_oracle.token_of(stream) for stream in current] == ends[number]
        assert (closed, opened) == (previous, current)
        assert current == tablet_oracle.apply(previous, closed, opened)
        previous = current
    assert len(times(lake)) == len(ends) == len(set(times(lake)))


def test_a_stopped_clock_still_makes_times_grow(lake: Lake) -> None:
    """A set starts after the last one, whatever the clock says."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(1))
    for count in (2, 4, 8):
        tablets.split_tablets(lake, CREATION, DEFAULTS, *NAME, count)
    first = CREATION.now_ms() + 65_000
    assert times(lake) == [first + 2, first + 1, first, SEED_FIRST_MS]


def test_writes_in_volume_get_the_streams_of_their_times(lake: Lake) -> None:
    """Before the first set none, then each set's own, to the microsecond of the switch."""
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
    found, rows = find_tablet_streams(sets, ts, tokens)
    for time, token, stream, row in zip(ts.tolist(), tokens.tolist(), found, rows.tolist(), strict=True):
        assert row == {bounds[0]: -1, bounds[1]: 0, bounds[2]: 0, bounds[3]: 1}[time]
        streams = [each.tobytes() for each in sets[row].ids] if row >= 0 else []
        assert stream.tobytes() == (tablet_oracle.stream_of(streams, token) if row >= 0 else bytes(16))


def test_tables_do_not_touch_each_other(lake: Lake) -> None:
    """Tables of one name in two keyspaces have their own sets, streams and histories."""
    for keyspace in ("a", "b"):
        tablets.create_tablets(lake, CREATION, DEFAULTS, keyspace, "t", uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, "a", "t", 4)
    tablets.drop_table_log(lake, SPLIT, "b", "t")
    assert metastore_tablets.read_tables_with_stream_sets(lake) == [("a", "t")]
    assert [len(each.ids) for each in metastore_tablets.read_stream_sets(lake, "a", "t")] == [2, 4]


def test_unknown_tables_are_named(lake: Lake) -> None:
    """Whatever is asked of a table without tablets: not found, and how to make them."""
    asked = [
        lambda: tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4),
        lambda: metastore_tablets.read_stream_sets(lake, *NAME),
        lambda: tablets.plan_tablet_collection(lake, SPLIT, *NAME),
        lambda: tablets.drop_table_log(lake, SPLIT, *NAME),
    ]
    for ask in asked:
        with pytest.raises(NotFound, match=r"ks\.t"):
            ask()


def test_sets_go_when_no_log_can_hold_their_rows(lake: Lake) -> None:
    """A set goes when the next one is as old as the TTL; the new base opens its whole set and closes nothing."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    expiry = Clock(us_from_ms(Milliseconds(SEED_SECOND_MS)) + DAY_US)
    assert tablets.read_due_collections(lake, later(expiry, -0.001)) == []
    assert tablets.collect_tablet_sets(lake, later(expiry, -0.001), *NAME).removed_ms == ()
    assert len(rows_in_order(lake)) == 14
    assert [each.removed_ms for each in tablets.read_due_collections(lake, expiry)] == [(SEED_FIRST_MS,)]
    assert len(times(lake)) == 2
    assert tablets.collect_tablet_sets(lake, expiry, *NAME).base_ms == SEED_SECOND_MS
    assert shape(rows_in_order(lake)) == [row for row in shape(SEED_ROWS[4:]) if row[1] != 1]
    assert times(lake) == [SEED_SECOND_MS]
    versions = [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)]
    assert tablets.collect_tablet_sets(lake, later(expiry, 9e6), *NAME).removed_ms == ()
    assert [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)] == versions
    tablets.merge_tablets(lake, later(expiry, 9e6), DEFAULTS, *NAME, 2)
    assert [len(each.closed) for each in metastore_tablets.read_stream_set_changes(lake, *NAME)] == [0, 4]


def test_a_base_of_partial_differences_opens_its_whole_set(lake: Lake) -> None:
    """Where a set opened only some of its streams, becoming the base opens those that stayed as well."""
    name = {"keyspace_name": NAME[0], "table_name": NAME[1]}
    kept, old, new = (tablet_oracle.make(token, 1) for token in (oracle.LAST, 0, 5))
    states = {1_000: {0: [old, kept], 2: [old, kept]}, 2_000: {0: [new, kept], 1: [old], 2: [new]}}
    rows = [
        {**name, "timestamp": datetime_from_ms(Milliseconds(time)), "stream_state": state, "stream_id": stream}
        for time, some in states.items()
        for state, streams in some.items()
        for stream in streams
    ]
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist(rows, schema=TABLET_STREAMS.schema), update=False)
    listed = [{**name, "timestamp": datetime_from_ms(Milliseconds(time))} for time in states]
    lake.merge(TABLET_TIMESTAMPS, pa.Table.from_pylist(listed, schema=TABLET_TIMESTAMPS.schema), update=False)
    cdc_tables.add_cdc_table(lake, Clock(Microseconds(10_000_000)), *NAME, ttl_seconds=5)
    tablets.collect_tablet_sets(lake, Clock(Microseconds(10_000_000)), *NAME)
    assert [(state, stream) for _, state, stream in rows_in_order(lake)] == [
        (0, new.hex()),
        (0, kept.hex()),
        (2, new.hex()),
        (2, kept.hex()),
    ]


def test_rows_that_never_expire_keep_their_sets(lake: Lake) -> None:
    """TTL 0: nothing is ever collected."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=0)
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    assert tablets.collect_tablet_sets(lake, later(SPLIT, 1e9), *NAME).removed_ms == ()
    assert tablets.read_due_collections(lake, later(SPLIT, 1e9)) == []


def read_up_to(lake: Lake, name: str, position_us: Microseconds, table: str = "t") -> None:
    """Register a consumer of the table with this position."""
    consumers.register_consumer(lake, CREATION, name, "ks", table, position_us=position_us)


def test_a_set_waits_for_its_readers(lake: Lake) -> None:
    """Past its TTL a set stays for each consumer of the table before the next set, who is named; then it goes."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    tablets.split_tablets(lake, later(SPLIT, 60), DEFAULTS, *NAME, 8)
    third_ms = SEED_SECOND_MS + Milliseconds(60_000)
    over = Clock(us_from_ms(Milliseconds(third_ms)) + DAY_US)
    read_up_to(lake, "slow", Microseconds(us_from_ms(Milliseconds(SEED_SECOND_MS)) - 1))
    read_up_to(lake, "quick", Microseconds(us_from_ms(Milliseconds(third_ms)) - 1))
    read_up_to(lake, "elsewhere", Microseconds(0), table="u")
    versions = [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)]
    for found in (
        tablets.plan_tablet_collection(lake, over, *NAME),
        tablets.collect_tablet_sets(lake, over, *NAME),
        *tablets.read_due_collections(lake, over),
    ):
        assert (found.base_ms, found.removed_ms, found.at_risk_ms) == (SEED_FIRST_MS, (), ())
        held = {each.consumer.name: each.sets_ms for each in found.held_back}
        assert held == {"slow": (SEED_FIRST_MS, SEED_SECOND_MS), "quick": (SEED_SECOND_MS,)}
    assert [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)] == versions
    slow = consumers.find_consumer(lake, "slow", *NAME)
    moved = {
        "position_us": us_from_ms(Milliseconds(SEED_SECOND_MS)),
        "set_timestamp_us": us_from_ms(Milliseconds(SEED_SECOND_MS)),
    }
    consumers.advance_consumer(lake, CREATION, slow, **moved, expected_window=0)
    (found,) = tablets.read_due_collections(lake, over)
    assert (found.base_ms, found.removed_ms) == (SEED_SECOND_MS, (SEED_FIRST_MS,))
    assert str(found.held_back[1]) == (
        "1 stream set is held back by consumer slow of ks.t, which has read up to 2025-09-09T14:44:47.820Z"
    )
    tablets.collect_tablet_sets(lake, over, *NAME)
    assert times(lake) == [third_ms, SEED_SECOND_MS]
    for name in ("slow", "quick"):
        consumers.forget_consumer(lake, name, *NAME)
    assert tablets.collect_tablet_sets(lake, over, *NAME).removed_ms == (SEED_SECOND_MS,)
    assert times(lake) == [third_ms]


def test_a_consumer_retains_nothing_that_was_never_removable(lake: Lake) -> None:
    """Before the TTL is over, and with rows that never expire, nobody is named."""
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


def test_a_lowered_ttl_is_warned_of(lake: Lake) -> None:
    """By ScyllaDB's rule the set goes; that rows of it can be there, written under the larger TTL, is said."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    lowered = later(SPLIT, 300)
    cdc_tables.alter_cdc_table(lake, lowered, *NAME, ttl_seconds=60)
    found = tablets.plan_tablet_collection(lake, lowered, *NAME)
    assert (found.removed_ms, found.at_risk_ms) == ((SEED_FIRST_MS,), (SEED_FIRST_MS,))
    found = tablets.plan_tablet_collection(lake, Clock(us_from_ms(Milliseconds(SEED_SECOND_MS)) + DAY_US), *NAME)
    assert (found.removed_ms, found.at_risk_ms) == ((SEED_FIRST_MS,), ())


def test_disabled_tables_keep_their_sets(lake: Lake) -> None:
    """CDC off and on again: the log and its streams are the same; a new table must be on."""
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
    """Nothing of it is left; enabled again the table has the same tablets, the same TTL and other streams."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2), ttl_seconds=70)
    old = rows_in_order(lake)
    tablets.drop_table_log(lake, CREATION, *NAME)
    assert (rows_in_order(lake), times(lake), metastore_tablets.read_tables_with_stream_sets(lake)) == ([], [], [])
    with pytest.raises(NotFound):
        tablets.drop_table_log(lake, CREATION, *NAME)
    made = tablets.enable_table_log(lake, CREATION, DEFAULTS, *NAME)
    assert made is not None
    assert made.changed
    assert shape(rows_in_order(lake)) == shape(old)
    assert not {stream for *_, stream in rows_in_order(lake)} & {stream for *_, stream in old}
    assert cdc_tables.find_cdc_table(lake, *NAME).ttl_seconds == 70


def test_a_log_that_was_dropped_behind_the_tablets_back_is_noticed(lake: Lake) -> None:
    """Dropped, and even told of again, without a word to the tablets: its sets are left over, and go."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    cdc_tables.drop_cdc_table(lake, SPLIT, *NAME)
    assert [each.full_name for each in metastore_tablets.read_unfinished_layouts(lake)] == ["ks.t"]
    cdc_tables.add_cdc_table(lake, SPLIT, *NAME, ttl_seconds=60)
    with pytest.raises(NotFound, match="has no tablets"):
        tablets.split_tablets(lake, SPLIT, DEFAULTS, *NAME, 4)
    tablets.finish_tablet_changes(lake, SPLIT)
    assert (rows_in_order(lake), times(lake), metastore_tablets.read_unfinished_layouts(lake)) == ([], [], [])
    tablets.create_tablets(lake, later(SPLIT, 10), DEFAULTS, *NAME, uniform_tablet_ends(4))
    assert len(rows_in_order(lake)) == 8
    assert metastore_tablets.read_unfinished_layouts(lake) == []


def test_another_processs_decision_is_adopted_or_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two resizes decided at once: the same one is one set; of two that differ the loser is told."""
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
    """A set of which rows are missing is not published; written whole, it is."""
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
    """A timestamp without streams, and rows that hold no stream ID, are errors that say so."""
    tablets.create_tablets(lake, CREATION, DEFAULTS, *NAME, uniform_tablet_ends(2))
    short = {"timestamp": datetime_from_ms(Milliseconds(SEED_FIRST_MS)), "stream_state": 0, "stream_id": b"short"}
    row = {"keyspace_name": NAME[0], "table_name": NAME[1], **short}
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist([row], schema=TABLET_STREAMS.schema), update=False)
    with pytest.raises(StateError, match=r"1 rows of system\.cdc_streams hold no stream ID"):
        metastore_tablets.read_stream_sets(lake, *NAME)
    lake.delete(TABLET_STREAMS, [("stream_state", "=", 0)])
    with pytest.raises(StateError, match="has no current streams"):
        metastore_tablets.read_stream_sets(lake, *NAME)
