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

from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    ms_from_datetime,
    ms_to_datetime,
    us_of,
)
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.generations.tablets import streams_for, uniform_ends
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS
from cdc_platform.lifecycle.tablets import changes, garbage
from cdc_platform.records import cdc_tables, consumers, tablet_ledger, tablet_sets
from cdc_platform.settings import Settings
from cdc_platform.timeline.tablet_streams import TabletExplanation, TabletStreams

NAME = ("ks", "t")
DEFAULTS = Settings()
CREATION, SPLIT = Clock(us_of(Milliseconds(SEED_FIRST_MS + 5_000))), Clock(us_of(Milliseconds(SEED_SECOND_MS - 65_000)))
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
            "timestamp": ms_to_datetime(Milliseconds(time)),
            "stream_state": state,
            "stream_id": bytes.fromhex(stream),
        }
        for time, state, stream in SEED_ROWS
    ]
    listed = [{**name, "timestamp": ms_to_datetime(Milliseconds(time))} for time in (SEED_FIRST_MS, SEED_SECOND_MS)]
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist(rows, schema=TABLET_STREAMS.schema), update=False)
    lake.merge(TABLET_TIMESTAMPS, pa.Table.from_pylist(listed, schema=TABLET_TIMESTAMPS.schema), update=False)
    cdc_tables.add(lake, CREATION, *NAME, ttl_seconds=86_400, created_at_ms=Milliseconds(SEED_FIRST_MS))


def test_the_worked_example_comes_out(lake: Lake) -> None:
    """Design document 002: two tablets, split to four; times, states, order, counts and tokens are its own."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    assert shape(rows_in_order(lake)) == shape(SEED_ROWS[:4])
    assert times(lake) == [SEED_FIRST_MS]
    first = rows_in_order(lake)
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
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
    sets = tablet_sets.stream_sets(lake, *NAME)
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
    merged = changes.merge(lake, later(SPLIT, 100), DEFAULTS, *NAME, 1)
    assert merged.layout.timestamp_ms == SEED_SECOND_MS + 100_000
    newest = tablet_sets.changes(lake, *NAME)[-1]
    assert [stream.tobytes().hex() for stream in newest.closed] == SEED_FOUR
    changes.drop(lake, later(SPLIT, 200), *NAME)
    assert tablet_sets.tables(lake) == []


def test_a_new_table_can_be_written_to_at_once(lake: Lake) -> None:
    """Its first set started 5 s before it was made, and it is told of with the usual TTL."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(8))
    explained = explain(lake, CREATION, 42)
    assert (explained.decision.verdict, explained.set_ms) == ("OK", SEED_FIRST_MS)
    known = cdc_tables.find(lake, *NAME)
    assert (known.ttl_seconds, known.enabled) == (86_400, True)


def test_creating_twice_is_creating_once(lake: Lake) -> None:
    """The same call again, later, changes nothing; another one is refused, and what is there is named."""
    assert changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2), ttl_seconds=60).changed
    before = rows_in_order(lake)
    again = changes.create(lake, SPLIT, DEFAULTS, *NAME, uniform_ends(2), ttl_seconds=60)
    assert (again.changed, again.layout.timestamp_ms) == (False, SEED_FIRST_MS)
    assert rows_in_order(lake) == before
    with pytest.raises(StateError, match=r"ks\.t has 2 tablets already"):
        changes.create(lake, SPLIT, DEFAULTS, *NAME, uniform_ends(4))
    with pytest.raises(InputError, match="known already, with TTL 60 s"):
        changes.create(lake, SPLIT, DEFAULTS, *NAME, uniform_ends(2), ttl_seconds=61)


def test_tablets_as_asked_for_stay(lake: Lake) -> None:
    """A split to the count that is there makes no set: the streams stay open."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    for change in (changes.split, changes.merge):
        assert not change(lake, SPLIT, DEFAULTS, *NAME, 2).changed
    assert not changes.resize(lake, SPLIT, DEFAULTS, *NAME, uniform_ends(2)).changed
    assert times(lake) == [SEED_FIRST_MS]


@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_history_of_resizes_holds_together(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """After any splits, merges and resizes: sets add up, each closes all before it, times grow, tokens are the ends."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    clock = CREATION
    ends = [oracle.uniform_last_tokens(data.draw(st.sampled_from([1, 2, 4])))]
    changes.create(lake, clock, DEFAULTS, *NAME, np.array(ends[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        clock = later(clock, data.draw(st.sampled_from([-30.0, 0.001, 300.0])))
        there = len(ends[-1])
        what = data.draw(st.sampled_from(["split", "merge", "resize"]))
        if what == "split" and any(end - before == 1 for before, end in pairwise(ends[-1])):
            with pytest.raises(InputError, match="holds a single token and cannot be split"):
                changes.split(lake, clock, DEFAULTS, *NAME, there * 2)
        elif what == "split":
            changes.split(lake, clock, DEFAULTS, *NAME, there * 2)
            ends.append(tablet_oracle.halved(ends[-1]))
        elif what == "merge" and there % 2 == 0:
            changes.merge(lake, clock, DEFAULTS, *NAME, there // 2)
            ends.append(ends[-1][1::2])
        else:
            ends.append(sorted({*data.draw(st.lists(st.integers(-9, 9), max_size=4)), 2**40, oracle.LAST}))
            changes.resize(lake, clock, DEFAULTS, *NAME, np.array(ends[-1]))
            if ends[-1] == ends[-2]:
                ends.pop()
    previous: list[bytes] = []
    for number, each in enumerate(tablet_sets.changes(lake, *NAME)):
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
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(1))
    for count in (2, 4, 8):
        changes.split(lake, CREATION, DEFAULTS, *NAME, count)
    first = CREATION.now_ms() + 65_000
    assert times(lake) == [first + 2, first + 1, first, SEED_FIRST_MS]


def test_writes_in_volume_get_the_streams_of_their_times(lake: Lake) -> None:
    """Before the first set none, then each set's own, to the microsecond of the switch."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    random = np.random.default_rng(1)
    tokens = random.integers(oracle.FIRST, oracle.LAST, 1000)
    bounds = [
        us_of(Milliseconds(SEED_FIRST_MS)) - 1,
        us_of(Milliseconds(SEED_FIRST_MS)),
        us_of(Milliseconds(SEED_SECOND_MS)) - 1,
        us_of(Milliseconds(SEED_SECOND_MS)),
    ]
    ts = random.choice(bounds, 1000)
    sets = changes.stream_sets(lake, *NAME)
    found, rows = streams_for(sets, ts, tokens)
    for time, token, stream, row in zip(ts.tolist(), tokens.tolist(), found, rows.tolist(), strict=True):
        assert row == {bounds[0]: -1, bounds[1]: 0, bounds[2]: 0, bounds[3]: 1}[time]
        streams = [each.tobytes() for each in sets[row].ids] if row >= 0 else []
        assert stream.tobytes() == (tablet_oracle.stream_of(streams, token) if row >= 0 else bytes(16))


def test_tables_do_not_touch_each_other(lake: Lake) -> None:
    """Tables of one name in two keyspaces have their own sets, streams and histories."""
    for keyspace in ("a", "b"):
        changes.create(lake, CREATION, DEFAULTS, keyspace, "t", uniform_ends(2))
    changes.split(lake, SPLIT, DEFAULTS, "a", "t", 4)
    changes.drop(lake, SPLIT, "b", "t")
    assert tablet_sets.tables(lake) == [("a", "t")]
    assert [len(each.ids) for each in tablet_sets.stream_sets(lake, "a", "t")] == [2, 4]


def test_unknown_tables_are_named(lake: Lake) -> None:
    """Whatever is asked of a table without tablets: not found, and how to make them."""
    asked = [
        lambda: changes.split(lake, SPLIT, DEFAULTS, *NAME, 4),
        lambda: tablet_sets.stream_sets(lake, *NAME),
        lambda: garbage.plan(lake, SPLIT, *NAME),
        lambda: changes.drop(lake, SPLIT, *NAME),
    ]
    for ask in asked:
        with pytest.raises(NotFound, match=r"ks\.t"):
            ask()


def test_sets_go_when_no_log_can_hold_their_rows(lake: Lake) -> None:
    """A set goes when the next one is as old as the TTL; the new base opens its whole set and closes nothing."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    expiry = Clock(us_of(Milliseconds(SEED_SECOND_MS)) + DAY_US)
    assert garbage.due(lake, later(expiry, -0.001)) == []
    assert garbage.collect(lake, later(expiry, -0.001), *NAME).removed_ms == ()
    assert len(rows_in_order(lake)) == 14
    assert [each.removed_ms for each in garbage.due(lake, expiry)] == [(SEED_FIRST_MS,)]
    assert len(times(lake)) == 2
    assert garbage.collect(lake, expiry, *NAME).base_ms == SEED_SECOND_MS
    assert shape(rows_in_order(lake)) == [row for row in shape(SEED_ROWS[4:]) if row[1] != 1]
    assert times(lake) == [SEED_SECOND_MS]
    versions = [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)]
    assert garbage.collect(lake, later(expiry, 9e6), *NAME).removed_ms == ()
    assert [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)] == versions
    changes.merge(lake, later(expiry, 9e6), DEFAULTS, *NAME, 2)
    assert [len(each.closed) for each in tablet_sets.changes(lake, *NAME)] == [0, 4]


def test_a_base_of_partial_differences_opens_its_whole_set(lake: Lake) -> None:
    """Where a set opened only some of its streams, becoming the base opens those that stayed as well."""
    name = {"keyspace_name": NAME[0], "table_name": NAME[1]}
    kept, old, new = (tablet_oracle.make(token, 1) for token in (oracle.LAST, 0, 5))
    states = {1_000: {0: [old, kept], 2: [old, kept]}, 2_000: {0: [new, kept], 1: [old], 2: [new]}}
    rows = [
        {**name, "timestamp": ms_to_datetime(Milliseconds(time)), "stream_state": state, "stream_id": stream}
        for time, some in states.items()
        for state, streams in some.items()
        for stream in streams
    ]
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist(rows, schema=TABLET_STREAMS.schema), update=False)
    listed = [{**name, "timestamp": ms_to_datetime(Milliseconds(time))} for time in states]
    lake.merge(TABLET_TIMESTAMPS, pa.Table.from_pylist(listed, schema=TABLET_TIMESTAMPS.schema), update=False)
    cdc_tables.add(lake, Clock(Microseconds(10_000_000)), *NAME, ttl_seconds=5)
    garbage.collect(lake, Clock(Microseconds(10_000_000)), *NAME)
    assert [(state, stream) for _, state, stream in rows_in_order(lake)] == [
        (0, new.hex()),
        (0, kept.hex()),
        (2, new.hex()),
        (2, kept.hex()),
    ]


def test_rows_that_never_expire_keep_their_sets(lake: Lake) -> None:
    """TTL 0: nothing is ever collected."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2), ttl_seconds=0)
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    assert garbage.collect(lake, later(SPLIT, 1e9), *NAME).removed_ms == ()
    assert garbage.due(lake, later(SPLIT, 1e9)) == []


def read_up_to(lake: Lake, name: str, position_us: Microseconds, table: str = "t") -> None:
    """Register a consumer of the table with this position."""
    consumers.register(lake, CREATION, name, "ks", table, position_us=position_us)


def test_a_set_waits_for_those_who_read_it(lake: Lake) -> None:
    """Past its TTL a set stays for each consumer of the table before the next set, who is named; then it goes."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    changes.split(lake, later(SPLIT, 60), DEFAULTS, *NAME, 8)
    third_ms = SEED_SECOND_MS + Milliseconds(60_000)
    over = Clock(us_of(Milliseconds(third_ms)) + DAY_US)
    read_up_to(lake, "slow", Microseconds(us_of(Milliseconds(SEED_SECOND_MS)) - 1))
    read_up_to(lake, "quick", Microseconds(us_of(Milliseconds(third_ms)) - 1))
    read_up_to(lake, "elsewhere", Microseconds(0), table="u")
    versions = [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)]
    for found in (garbage.plan(lake, over, *NAME), garbage.collect(lake, over, *NAME), *garbage.due(lake, over)):
        assert (found.base_ms, found.removed_ms, found.at_risk_ms) == (SEED_FIRST_MS, (), ())
        held = {each.consumer.name: each.sets_ms for each in found.held_back}
        assert held == {"slow": (SEED_FIRST_MS, SEED_SECOND_MS), "quick": (SEED_SECOND_MS,)}
    assert [lake.version(table) for table in (TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)] == versions
    slow = consumers.find(lake, "slow", *NAME)
    moved = {
        "position_us": us_of(Milliseconds(SEED_SECOND_MS)),
        "set_timestamp_us": us_of(Milliseconds(SEED_SECOND_MS)),
    }
    consumers.advance(lake, CREATION, slow, **moved, expected_window=0)
    (found,) = garbage.due(lake, over)
    assert (found.base_ms, found.removed_ms) == (SEED_SECOND_MS, (SEED_FIRST_MS,))
    assert str(found.held_back[1]) == (
        "1 stream set is held back by consumer slow of ks.t, which has read up to 2025-09-09T14:44:47.820Z"
    )
    garbage.collect(lake, over, *NAME)
    assert times(lake) == [third_ms, SEED_SECOND_MS]
    for name in ("slow", "quick"):
        consumers.forget(lake, name, *NAME)
    assert garbage.collect(lake, over, *NAME).removed_ms == (SEED_SECOND_MS,)
    assert times(lake) == [third_ms]


def test_a_consumer_holds_nothing_that_could_not_go(lake: Lake) -> None:
    """Before the TTL is over, and with rows that never expire, nobody is named."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2), ttl_seconds=0)
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    read_up_to(lake, "slow", Microseconds(0))
    assert garbage.plan(lake, later(SPLIT, 1e9), *NAME).held_back == ()
    cdc_tables.alter(lake, SPLIT, *NAME, ttl_seconds=86_400)
    assert (
        garbage.plan(lake, Clock(Microseconds(us_of(Milliseconds(SEED_SECOND_MS)) + DAY_US - 1000)), *NAME).held_back
        == ()
    )
    assert garbage.due(lake, Clock(Microseconds(us_of(Milliseconds(SEED_SECOND_MS)) + DAY_US - 1000))) == []


def test_a_lowered_ttl_is_warned_of(lake: Lake) -> None:
    """By ScyllaDB's rule the set goes; that rows of it can be there, written under the larger TTL, is said."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    lowered = later(SPLIT, 300)
    cdc_tables.alter(lake, lowered, *NAME, ttl_seconds=60)
    found = garbage.plan(lake, lowered, *NAME)
    assert (found.removed_ms, found.at_risk_ms) == ((SEED_FIRST_MS,), (SEED_FIRST_MS,))
    found = garbage.plan(lake, Clock(us_of(Milliseconds(SEED_SECOND_MS)) + DAY_US), *NAME)
    assert (found.removed_ms, found.at_risk_ms) == ((SEED_FIRST_MS,), ())


def test_disabled_tables_keep_their_sets(lake: Lake) -> None:
    """CDC off and on again: the log and its streams are the same; a new table must be on."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    before = rows_in_order(lake)
    cdc_tables.alter(lake, SPLIT, *NAME, enabled=False)
    assert rows_in_order(lake) == before
    attached = changes.enable(lake, later(SPLIT, 1), DEFAULTS, *NAME)
    assert attached is not None
    assert not attached.changed
    assert cdc_tables.find(lake, *NAME).enabled
    assert rows_in_order(lake) == before
    cdc_tables.add(lake, SPLIT, "ks", "off", ttl_seconds=60, enabled=False)
    with pytest.raises(StateError, match=r"CDC is off for ks\.off"):
        changes.create(lake, SPLIT, DEFAULTS, "ks", "off", uniform_ends(2))


def test_a_dropped_log_takes_its_sets_along_and_a_new_one_has_new_streams(lake: Lake) -> None:
    """Nothing of it is left; enabled again the table has the same tablets, the same TTL and other streams."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2), ttl_seconds=70)
    old = rows_in_order(lake)
    changes.drop(lake, CREATION, *NAME)
    assert (rows_in_order(lake), times(lake), tablet_sets.tables(lake)) == ([], [], [])
    with pytest.raises(NotFound):
        changes.drop(lake, CREATION, *NAME)
    made = changes.enable(lake, CREATION, DEFAULTS, *NAME)
    assert made is not None
    assert made.changed
    assert shape(rows_in_order(lake)) == shape(old)
    assert not {stream for *_, stream in rows_in_order(lake)} & {stream for *_, stream in old}
    assert cdc_tables.find(lake, *NAME).ttl_seconds == 70


def test_a_log_that_was_dropped_behind_the_tablets_back_is_noticed(lake: Lake) -> None:
    """Dropped, and even told of again, without a word to the tablets: its sets are left over, and go."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    cdc_tables.drop(lake, SPLIT, *NAME)
    assert [each.full_name for each in tablet_ledger.unfinished(lake)] == ["ks.t"]
    cdc_tables.add(lake, SPLIT, *NAME, ttl_seconds=60)
    with pytest.raises(NotFound, match="has no tablets"):
        changes.split(lake, SPLIT, DEFAULTS, *NAME, 4)
    changes.finish_all(lake, SPLIT)
    assert (rows_in_order(lake), times(lake), tablet_ledger.unfinished(lake)) == ([], [], [])
    changes.create(lake, later(SPLIT, 10), DEFAULTS, *NAME, uniform_ends(4))
    assert len(rows_in_order(lake)) == 8
    assert tablet_ledger.unfinished(lake) == []


def test_a_decision_of_somebody_else_is_joined_or_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two resizes decided at once: the same one is one set; of two that differ the loser is told."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    stale = tablet_ledger.newest_layout(lake, *NAME)
    won = changes.split(lake, SPLIT, DEFAULTS, *NAME, 4).layout
    monkeypatch.setattr(changes, "live", lambda *_: stale)
    joined = changes.split(lake, later(SPLIT, 7), DEFAULTS, *NAME, 4).layout
    assert (joined.number, joined.timestamp_ms) == (won.number, won.timestamp_ms)
    with pytest.raises(ConflictError, match="got other tablets from another process"):
        changes.split(lake, later(SPLIT, 7), DEFAULTS, *NAME, 8)
    assert times(lake) == [SEED_SECOND_MS, SEED_FIRST_MS]
    assert len(rows_in_order(lake)) == 14


def test_a_timestamp_waits_for_all_of_its_streams(lake: Lake) -> None:
    """A set of which rows are missing is not published; written whole, it is."""
    decided = changes.decide_create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(4)).layout
    with pytest.raises(StateError, match="0 of the 4 streams"):
        changes.publish_timestamp(lake, decided)
    changes.write_streams(lake, decided)
    lake.delete(TABLET_STREAMS, [("stream_id", "=", bytes.fromhex(rows_in_order(lake)[0][2]))])
    with pytest.raises(StateError, match="3 of the 4 streams"):
        changes.publish_timestamp(lake, decided)
    changes.finish(lake, CREATION, *NAME)
    assert times(lake) == [SEED_FIRST_MS]
    assert len(rows_in_order(lake)) == 8


def test_damaged_sets_are_not_read(lake: Lake) -> None:
    """A timestamp without streams, and rows that hold no stream ID, are errors that say so."""
    changes.create(lake, CREATION, DEFAULTS, *NAME, uniform_ends(2))
    short = {"timestamp": ms_to_datetime(Milliseconds(SEED_FIRST_MS)), "stream_state": 0, "stream_id": b"short"}
    row = {"keyspace_name": NAME[0], "table_name": NAME[1], **short}
    lake.merge(TABLET_STREAMS, pa.Table.from_pylist([row], schema=TABLET_STREAMS.schema), update=False)
    with pytest.raises(StateError, match=r"1 rows of system\.cdc_streams hold no stream ID"):
        tablet_sets.stream_sets(lake, *NAME)
    lake.delete(TABLET_STREAMS, [("stream_state", "=", 0)])
    with pytest.raises(StateError, match="has no current streams"):
        tablet_sets.stream_sets(lake, *NAME)
