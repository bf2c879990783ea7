"""Tablets and their stream sets (ends, streams, differences, lookups, times), compared with the oracle."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import tokens
from support.oracles import oracle, tablet_oracle
from support.oracles.tablet_oracle import SEED_FIRST_MS, SEED_FOUR, SEED_SECOND_MS, SEED_TWO

from cdc_platform.clock import Microseconds, Milliseconds, ms_from_seconds, us_from_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import StreamSet, StreamSetDifference, WriteVerdict, tablets
from cdc_platform.ring import LAST_TOKEN

TABLE = UUID(int=7)
tablet_sets = st.lists(tokens, max_size=12).map(lambda values: sorted({*values, LAST_TOKEN}))
streams = st.dictionaries(tokens, st.integers(0, 3), max_size=12).map(
    lambda values: [tablet_oracle.make(token, random) for token, random in values.items()]
)


def ids(streams_as_bytes: list[bytes]) -> np.ndarray:
    """Return streams as the platform's array."""
    return np.frombuffer(b"".join(streams_as_bytes), dtype=np.uint8).reshape(-1, 16)


def as_bytes(stream_array: np.ndarray) -> list[bytes]:
    """Return streams as the oracle's list of bytes."""
    return [stream.tobytes() for stream in stream_array]


def by_token(*stream_tokens: int) -> np.ndarray:
    """Return streams with these tokens, and random bits of zero."""
    return ids([tablet_oracle.make(token, 0) for token in stream_tokens])


@given(st.sampled_from([2**power for power in range(11)]), st.integers(0, 4))
def test_powers_of_two_stay_uniform(count: int, times: int) -> None:
    """A split of equal tablets gives equal tablets, and a merge reverses it."""
    few, many = oracle.uniform_last_tokens(count), oracle.uniform_last_tokens(count << times)
    assert tablets.split_tablet_ends(np.array(few), count << times).tolist() == many
    assert tablets.merge_tablet_ends(np.array(many), count).tolist() == few


@given(tablet_sets)
def test_a_split_halves_every_tablet(ends: list[int]) -> None:
    """A split adds one end in the middle of each tablet; a tablet of a single token cannot be split."""
    expected = tablet_oracle.halved(ends)
    if len(set(expected)) < len(expected) or expected[0] < oracle.FIRST:
        with pytest.raises(InputError, match="holds a single token"):
            tablets.split_tablet_ends(np.array(ends), 2 * len(ends))
        return
    split = tablets.split_tablet_ends(np.array(ends), 2 * len(ends))
    assert split.tolist() == expected
    assert tablets.merge_tablet_ends(split, len(ends)).tolist() == ends


@pytest.mark.parametrize(("few", "many"), [(3, 8), (5, 16), (4, 9), (2, 6)])
def test_any_power_of_two_can_be_reached(few: int, many: int) -> None:
    """If halving or merging does not lead to a power of two, the new tablets have equal sizes."""
    if many in (8, 16):
        split = tablets.split_tablet_ends(np.array(oracle.uniform_last_tokens(few)), many)
        assert split.tolist() == oracle.uniform_last_tokens(many)
    else:
        merged = tablets.merge_tablet_ends(np.array(oracle.uniform_last_tokens(many)), few)
        assert merged.tolist() == oracle.uniform_last_tokens(few)


@pytest.mark.parametrize(
    ("rule", "there", "count", "says"),
    [
        (tablets.split_tablet_ends, 4, 2, "a split makes more"),
        (tablets.merge_tablet_ends, 2, 4, "a merge makes fewer"),
        (tablets.split_tablet_ends, 4, 7, "power of two"),
        (tablets.merge_tablet_ends, 8, 3, "power of two"),
        (tablets.split_tablet_ends, 4, 0, "has 1 to"),
        (tablets.split_tablet_ends, 4, tablets.MAX_TABLETS * 2, "has 1 to"),
    ],
)
def test_counts_that_no_change_leads_to_are_refused(rule: Any, there: int, count: int, says: str) -> None:
    """The message names the number of tablets and the allowed numbers."""
    with pytest.raises(InputError, match=says):
        rule(np.array(oracle.uniform_last_tokens(there)), count)


@given(tablet_sets)
def test_ends_that_cover_the_ring_are_tablets(ends: list[int]) -> None:
    """Ascending tokens that end with the ring's last are accepted unchanged."""
    assert tablets.check_tablet_ends(ends, "ks.t").tolist() == ends


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ([], "0 tablets"),
        ([0], "has to end at 9223372036854775807"),
        ([5, 5, LAST_TOKEN], "token 5 after 5"),
        ([7, -7, LAST_TOKEN], "token -7 after 7"),
        ([-(2**63), LAST_TOKEN], "out of range"),
        ([1.5, LAST_TOKEN], "no integer"),
    ],
)
def test_other_ends_are_refused(ends: list[Any], says: str) -> None:
    """The message names the owner, the value and the rule."""
    with pytest.raises(InputError, match=says) as refused:
        tablets.check_tablet_ends(ends, "ks.t")
    assert "ks.t" in str(refused.value)


@given(tablet_sets, st.integers(0, 2**42))
def test_a_set_has_one_stream_a_tablet(ends: list[int], time_ms: Milliseconds) -> None:
    """Each stream has its tablet's last token, version 1 and index 0; equal input gives equal bytes."""
    as_oracle = as_bytes(tablets.generate_tablet_streams(TABLE, time_ms, np.array(ends)))
    assert [tablet_oracle.token_of(stream) for stream in as_oracle] == ends
    assert {tablet_oracle.fields_of(stream)[:2] for stream in as_oracle} == {(1, 0)}
    assert as_oracle == as_bytes(tablets.generate_tablet_streams(TABLE, time_ms, np.array(ends)))
    assert not set(as_oracle) & set(
        as_bytes(tablets.generate_tablet_streams(TABLE, Milliseconds(time_ms + 1), np.array(ends)))
    )
    assert not set(as_oracle) & set(as_bytes(tablets.generate_tablet_streams(UUID(int=8), time_ms, np.array(ends))))


def test_random_bits_are_spread() -> None:
    """Each of the 38 bits is set in about half of many tablets."""
    as_oracle = as_bytes(tablets.generate_tablet_streams(TABLE, Milliseconds(0), tablets.uniform_tablet_ends(4096)))
    drawn = [tablet_oracle.fields_of(stream)[2] for stream in as_oracle]
    assert len(set(drawn)) == 4096
    for bit in range(38):
        assert 1800 < sum(value >> bit & 1 for value in drawn) < 2300


@given(streams, streams)
def test_differences_are_the_oracles(previous: list[bytes], following: list[bytes]) -> None:
    """Closed and opened streams are in ring order; applied to the earlier set, they give the later set."""
    difference = tablets.compute_difference(ids(previous), ids(following))
    assert (as_bytes(difference.closed), as_bytes(difference.opened)) == tablet_oracle.difference(previous, following)
    assert as_bytes(tablets.apply_difference(ids(previous), difference)) == tablet_oracle.ring_order(following)


@given(streams, streams, st.randoms())
def test_partial_differences_are_merged_in_token_order(previous: list[bytes], drawn: list[bytes], random: Any) -> None:
    """When some streams close and some open, the new set equals the oracle's, in token order."""
    closed = [stream for stream in previous if random.random() < 0.5]
    kept_tokens = {tablet_oracle.token_of(stream) for stream in previous if stream not in closed}
    opened = [stream for stream in drawn if tablet_oracle.token_of(stream) not in kept_tokens]
    change = StreamSetDifference(ids(closed), ids(opened))
    assert as_bytes(tablets.apply_difference(ids(previous), change)) == tablet_oracle.apply(previous, closed, opened)


@pytest.mark.parametrize(
    ("closed", "opened", "following"),
    [
        ([20], [15, 25], [10, 15, 25, 30]),
        ([10, 20, 30], [5, 15, 25, 35], [5, 15, 25, 35]),
        ([10, 20, 30], [], []),
    ],
)
def test_sets_are_rebuilt_as_scylladb_does(closed: list[int], opened: list[int], following: list[int]) -> None:
    """The examples are ScyllaDB's own three, with the set {10, 20, 30}."""
    change = StreamSetDifference(by_token(*closed), by_token(*opened))
    assert tablets.get_stream_tokens(tablets.apply_difference(by_token(10, 20, 30), change)).tolist() == following


def test_differences_that_do_not_fit_are_refused() -> None:
    """The message names a closed stream that was not open, or a second stream of a tablet."""
    nothing = by_token()
    with pytest.raises(InputError, match=r"0x000000000000000f0+1 is closed but was not open"):
        tablets.apply_difference(by_token(10), StreamSetDifference(by_token(15), nothing))
    with pytest.raises(InputError, match="two streams have token 10"):
        tablets.apply_difference(by_token(10), StreamSetDifference(nothing, ids([tablet_oracle.make(10, 1)])))


def test_the_worked_example() -> None:
    """Design document 002: from two tablets to four, two streams close and four open, in ring order."""
    two, four = (ids([bytes.fromhex(text) for text in hex_streams]) for hex_streams in (SEED_TWO, SEED_FOUR))
    assert tablets.get_stream_tokens(two).tolist() == tablets.uniform_tablet_ends(2).tolist()
    assert (
        tablets.get_stream_tokens(four).tolist()
        == tablets.split_tablet_ends(tablets.uniform_tablet_ends(2), 4).tolist()
    )
    change = tablets.compute_difference(two, four[::-1])
    assert [stream.hex() for stream in as_bytes(change.closed)] == SEED_TWO
    assert [stream.hex() for stream in as_bytes(change.opened)] == SEED_FOUR
    assert as_bytes(tablets.apply_difference(two, change)) == as_bytes(four)


@given(tablet_sets, st.lists(tokens, max_size=20))
def test_a_write_gets_the_first_stream_at_or_after_its_token(ends: list[int], writes: list[int]) -> None:
    """Every token, on both sides of every tablet's end, gets that stream."""
    stream_set = StreamSet.of(
        Milliseconds(0), tablets.generate_tablet_streams(TABLE, Milliseconds(0), np.array(ends))[::-1]
    )
    lookup_tokens = [*writes, *ends, *(end + 1 for end in ends[:-1])]
    expected = [tablet_oracle.stream_of(as_bytes(stream_set.ids), token) for token in lookup_tokens]
    assert as_bytes(stream_set.streams_of(lookup_tokens)) == expected


def test_a_set_that_does_not_cover_the_ring_does_not_wrap() -> None:
    """A token after the last stream is refused instead of getting the first stream."""
    with pytest.raises(InputError, match=r"token 31: the set of 1970-01-01T00:00:00\.005Z ends at 30"):
        StreamSet.of(Milliseconds(5), by_token(10, 30)).streams_of([30, 31])
    with pytest.raises(InputError, match="no stream for token 1"):
        StreamSet.of(Milliseconds(5), by_token()).streams_of([1])


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True).map(sorted),
    st.lists(st.tuples(st.integers(-5_000, 60_000), tokens), max_size=20),
)
def test_many_writes_get_the_streams_of_their_times(
    times_ms: list[Milliseconds], writes: list[tuple[int, int]]
) -> None:
    """A write gets the newest set that started by its microsecond, or zeros and -1 before the first."""
    sets = [
        StreamSet.of(time, tablets.generate_tablet_streams(TABLE, time, tablets.uniform_tablet_ends(number + 1)))
        for number, time in enumerate(times_ms)
    ]
    stream_ids, rows = tablets.find_tablet_streams(sets, [ts for ts, _ in writes], [token for _, token in writes])
    for (ts, token), stream, row in zip(writes, stream_ids, rows.tolist(), strict=True):
        used = tablet_oracle.set_at([us_from_ms(time) for time in times_ms], Microseconds(ts))
        assert row == used
        assert stream.tobytes() == (bytes(16) if used < 0 else tablet_oracle.stream_of(as_bytes(sets[used].ids), token))


@given(
    st.lists(st.integers(0, 30_000), max_size=5, unique=True).map(sorted),
    st.integers(-1_000_000, 60_000_000),
    st.integers(0, 30_000_000),
)
def test_the_past_is_accepted_and_the_future_is_not(
    times_ms: list[Milliseconds], write_us: Microseconds, now_us: Microseconds
) -> None:
    """Beyond clock and leeway: FUTURE. Before the first set: NO_STREAM. Otherwise accepted, however old."""
    decision = tablets.decide_tablet_write(times_ms, write_us, now_us)
    used = tablet_oracle.set_at([us_from_ms(time) for time in times_ms], write_us)
    if write_us > now_us + 5_000_000:
        assert (decision.verdict, decision.generation_us) == (WriteVerdict.FUTURE, None)
    elif used < 0:
        assert (decision.verdict, decision.generation_us) == (WriteVerdict.NO_STREAM, None)
        assert "could not find any CDC stream" in decision.reason
    else:
        assert (decision.verdict, decision.generation_us) == (WriteVerdict.OK, us_from_ms(times_ms[used]))
    assert decision.first_usable_us == (us_from_ms(times_ms[0]) if times_ms else None)


def test_the_leeway_is_included() -> None:
    """A write exactly one leeway ahead is accepted; one microsecond later it is not."""
    assert (
        tablets.decide_tablet_write([Milliseconds(0)], Microseconds(15_000_000), Microseconds(10_000_000)).verdict
        is WriteVerdict.OK
    )
    assert (
        tablets.decide_tablet_write([Milliseconds(0)], Microseconds(15_000_001), Microseconds(10_000_000)).verdict
        is WriteVerdict.FUTURE
    )


@given(st.integers(0, 10**12), st.integers(-(10**6), 10**6), st.integers(0, 60_000))
def test_times_of_sets(now_ms: Milliseconds, last_from_now_ms: Milliseconds, ring_delay_ms: Milliseconds) -> None:
    """The first set starts 5 s ago; later ones after the last, and late enough for all nodes to learn of them."""
    last_ms = now_ms + last_from_now_ms
    assert tablets.first_set_timestamp(now_ms) == now_ms - 5_000
    expected = max(now_ms + 2 * ring_delay_ms + 5_000, last_ms + 1)
    assert tablets.next_set_timestamp(now_ms, last_ms, ring_delay_ms=ring_delay_ms) == expected


def test_the_worked_examples_times() -> None:
    """The sets of the worked example start 5 s before the creation, and 65 s after the split's decision."""
    assert tablets.first_set_timestamp(Milliseconds(SEED_FIRST_MS + 5_000)) == SEED_FIRST_MS
    assert (
        tablets.next_set_timestamp(Milliseconds(SEED_SECOND_MS - 65_000), Milliseconds(SEED_FIRST_MS)) == SEED_SECOND_MS
    )


def test_gc_retains_the_sets_of_the_vectors(vectors: dict[str, list[dict[str, Any]]]) -> None:
    """The base after a garbage collection is ScyllaDB's."""
    now_ms = Milliseconds(10**9)
    for case in vectors["tablet_gc_new_base"]:
        times = [now_ms - ms_from_seconds(age) for age in case["entries_s_ago"]]
        assert tablets.first_set_index_after_gc(times, now_ms, case["ttl_s"]) == case["new_base_index"]


@pytest.mark.parametrize(("ttl", "base"), [(80, 0), (70, 1), (50, 1), (15, 2), (5, 3), (0, 0)])
def test_gc_at_the_turning_points(ttl: int, base: int) -> None:
    """A set is removed when its successor's age equals the TTL; with a TTL of 0 none is removed."""
    times = [Milliseconds(10**6 - age * 1000) for age in (90, 70, 40, 10)]
    assert tablets.first_set_index_after_gc(times, Milliseconds(10**6), ttl) == base


@given(st.lists(st.integers(0, 200_000), max_size=8, unique=True).map(sorted), st.integers(0, 300))
def test_gc_is_the_oracles(times_ms: list[Milliseconds], ttl: int) -> None:
    """For any history and TTL, also with future sets, the oldest retained set is the oracle's."""
    assert tablets.first_set_index_after_gc(times_ms, Milliseconds(150_000), ttl) == tablet_oracle.base_after_gc(
        times_ms, Milliseconds(150_000), ttl
    )


@given(
    st.lists(st.integers(0, 200_000), max_size=8, unique=True).map(sorted),
    st.integers(0, 300),
    st.lists(st.integers(-1, 200_001_000), max_size=3),
    st.data(),
)
def test_readers_retain_the_sets_that_the_oracles_retain(
    times_ms: list[Milliseconds], ttl: int, some: list[int], data: Any
) -> None:
    """For any history, TTL and readers, also around a set's first microsecond, the oldest retained set is right."""
    around = [us_from_ms(time) + by for time in times_ms for by in (-1, 0, 1)]
    positions = some + (data.draw(st.lists(st.sampled_from(around), max_size=2)) if around else [])
    unread = [tablets.oldest_unread_set_index(times_ms, Microseconds(position)) for position in positions]
    base = min([tablets.first_set_index_after_gc(times_ms, Milliseconds(150_000), ttl), *unread])
    assert base == tablet_oracle.base_for_readers(times_ms, Milliseconds(150_000), ttl, positions)


def test_a_reader_has_read_a_set_when_it_reaches_the_next() -> None:
    """Exact to the microsecond; a reader never has read the newest set, and without sets the index is 0."""
    indexes = [
        tablets.oldest_unread_set_index([Milliseconds(100), Milliseconds(200), Milliseconds(300)], Microseconds(at))
        for at in (0, 199_999, 200_000, 299_999, 300_000, 10**9)
    ]
    assert indexes == [0, 0, 1, 1, 2, 2]
    assert tablets.oldest_unread_set_index([], Microseconds(5)) == 0
