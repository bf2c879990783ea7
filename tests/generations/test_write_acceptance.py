"""The operating generation, a node's memory, and accepted writes under both policies."""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import oracle

from cdc_platform.clock import SECOND_US, Microseconds
from cdc_platform.errors import InputError, WriteRefused
from cdc_platform.generations import (
    AcceptancePolicy,
    CdcMetadata,
    RingLayout,
    TopologyDescription,
    WriteVerdict,
    decide_write,
    generate_description,
    get_operating_index,
)
from cdc_platform.ring import range_starts

S = SECOND_US
NOW = Microseconds(100 * S)
POLICIES: list[AcceptancePolicy] = ["strict", "recent-past"]


def description(number: int = 0) -> TopologyDescription:
    """Return a generation of three ranges, identified by its number."""
    ends = np.array([-100, 0, 100 + number])
    return generate_description(RingLayout(ends, range_starts(ends), np.full(3, 2), np.full(3, 12)), UUID(int=number))


DESCRIPTION = description()


def test_writes_of_the_vectors(vectors: dict[str, Any]) -> None:
    """The rule of 2024, by the history and by a node that learned of it."""
    for row in vectors["write_acceptance_HEAD_rules"]:
        known = {g["ts"]: DESCRIPTION if g["has_data"] else None for g in row["generations_us"]}
        decision = CdcMetadata.of(known, policy="recent-past").decide(row["write_ts_us"], row["now_us"])
        assert (decision.verdict, decision.generation_us) == (row["verdict"], row["generation_us"]), row["name"]
        model = oracle.Known("recent-past", read={g["ts"]: g["has_data"] for g in row["generations_us"]})
        assert model.lookup(row["write_ts_us"], row["now_us"]) == (row["verdict"], row["generation_us"])


times = st.integers(0, 30).map(lambda second: second * S) | st.integers(0, 30 * S)
steps = st.tuples(st.sampled_from(["insert", "prepare", "decide", "get", "known"]), times, st.integers(0, 3 * S))


@pytest.mark.parametrize("policy", POLICIES)
@given(plan=st.lists(steps, min_size=1, max_size=30))
def test_a_node_behaves_as_the_model(policy: AcceptancePolicy, plan: list[tuple[str, int, int]]) -> None:
    """Whatever the node learns, in any order, while its clock advances, its memory and answers equal the model's."""
    node, model, now = CdcMetadata(policy=policy), oracle.Known(policy), 5 * S
    for action, ts, passed in plan:
        now += passed
        if action == "insert":
            assert node.insert(Microseconds(ts), DESCRIPTION, Microseconds(now)) == model.insert(ts, now)
        elif action == "prepare":
            assert node.prepare(Microseconds(ts), Microseconds(now)) == model.prepare(ts, now)
        elif action == "known":
            assert node.known_or_obsolete(Microseconds(ts), Microseconds(now)) == model.known_or_obsolete(ts, now)
        else:
            expected = model.lookup(ts, now)
            model.forget(now)
            decision = node.decide(Microseconds(ts), Microseconds(now))
            assert (decision.verdict, decision.generation_us) == expected
            if action == "get":
                assert answer(node, Microseconds(ts), Microseconds(now)) == expected[0]
            else:
                node.drop_unused(Microseconds(now))
        assert node.times_us == tuple(sorted(model.read))
        assert node.generation_used_at(Microseconds(ts)) == model.used_at(ts)
        assert node.streams_available(Microseconds(now)) == (model.used_at(now) is not None)


def answer(node: CdcMetadata, ts: Microseconds, now: Microseconds) -> str:
    """Return the verdict of a lookup."""
    try:
        assert len(node.get_stream(ts, 7, now)) == 16
    except WriteRefused as refused:
        return refused.verdict
    return "OK"


@given(st.lists(times, unique=True), times, times, st.sampled_from(POLICIES))
def test_the_first_usable_time_is_usable(
    known: list[Microseconds], ts: Microseconds, now: Microseconds, policy: AcceptancePolicy
) -> None:
    """A write at the named time is accepted, now or once that generation operates; an earlier one is not."""
    known.sort()
    first = decide_write(known, ts, now, policy=policy).first_usable_us
    assert (first is None) == (not known)
    if first is not None:
        assert decide_write(known, first, max(now, first), policy=policy).verdict == "OK"
        for earlier in (first - 1, first - S, 0):
            if earlier < first:
                assert decide_write(known, Microseconds(earlier), now, policy=policy).verdict != "OK"


def test_the_strict_window_is_half_open() -> None:
    """[T, C + leeway): the documented rule at both ends, compared with the later rule."""
    gens = [S * 50, S * 98]
    timestamps = [98 * S - 1, 98 * S, 105 * S - 1, 105 * S, 105 * S + 1]
    strict = [decide_write(gens, Microseconds(ts), NOW).verdict for ts in timestamps]
    assert strict == ["PAST", "OK", "OK", "FUTURE", "FUTURE"]
    recent = [decide_write(gens, Microseconds(ts), NOW, policy="recent-past").verdict for ts in timestamps]
    assert recent == ["OK", "OK", "OK", "OK", "FUTURE"]


def test_a_write_before_the_first_generation() -> None:
    """The message has the text that users search for, the write's time and the first usable time."""
    for policy in POLICIES:
        node = CdcMetadata(policy=policy)
        assert "no generation is known" in node.decide(NOW, NOW).reason
        node.insert(Microseconds(160 * S), DESCRIPTION, NOW)
        with pytest.raises(WriteRefused, match="could not find any CDC stream") as refused:
            node.get_stream(NOW, 7, NOW)
        assert refused.value.verdict == WriteVerdict.NO_STREAM
        assert "1970-01-01T00:01:40.000Z" in str(refused.value)
        assert "write from 1970-01-01T00:02:40.000Z on" in str(refused.value)
        assert node.decide(NOW, NOW).first_usable_us == 160 * S


@pytest.mark.parametrize(
    ("policy", "ts", "verdict", "named"),
    [
        ("strict", NOW + 5 * S, "FUTURE", "before 1970-01-01T00:01:45.000Z"),
        ("recent-past", NOW + 5 * S + 1, "FUTURE", "at most 1970-01-01T00:01:45.000Z"),
        ("strict", 60 * S, "PAST", "1970-01-01T00:01:38.000Z or later"),
        ("recent-past", 60 * S, "PAST", "1970-01-01T00:01:35.000001Z or later"),
        ("strict", 102 * S, "NOT_RETRIEVED", "generation of 1970-01-01T00:01:42.000Z"),
    ],
)
def test_refusals_name_time_bound_and_remedy(
    policy: AcceptancePolicy, ts: Microseconds, verdict: str, named: str
) -> None:
    """The refusal is one line with the write, the clock or the generation, and the remedy."""
    known = {S * 50: DESCRIPTION, S * 98: DESCRIPTION, S * 102: None}
    decision = CdcMetadata.of(known, policy=policy).decide(ts, NOW)
    assert decision.verdict == verdict
    assert named in decision.reason
    assert ";" in decision.reason
    assert "\n" not in decision.reason


def test_explaining_the_past_forgets_nothing() -> None:
    """A history answers for any past clock and retains every generation."""
    history = CdcMetadata.of({Microseconds(second * S): description(second) for second in (10, 50, 90)})
    for ts, generation in ((10 * S, 10 * S), (49 * S, 10 * S), (50 * S, 50 * S), (200 * S, 90 * S)):
        assert history.decide(Microseconds(ts), Microseconds(ts)).generation_us == generation
    assert history.times_us == (10 * S, 50 * S, 90 * S)


def test_a_lookup_returns_the_stream_of_the_operating_generation() -> None:
    """Before, at and after a switch, the write gets the stream of the generation that operates at its time."""
    old, new = description(1), description(2)
    node = CdcMetadata()
    assert node.insert(Microseconds(50 * S), old, NOW)
    assert node.insert(Microseconds(102 * S), new, NOW)
    picked = [node.get_stream(Microseconds(ts), 7, NOW) for ts in (NOW, 102 * S - 1, 102 * S)]
    assert picked == [bytes(d.streams_of([7])[0]) for d in (old, old, new)]


def test_generations_without_writers_are_removed() -> None:
    """A lookup and an insert drop exactly the generations before the one that operated one leeway ago."""
    node = CdcMetadata()
    for second in (10, 20, 90, 98):
        node.insert(Microseconds(second * S), DESCRIPTION, Microseconds(12 * S))
    node.get_stream(NOW, 7, NOW)
    assert node.times_us == (90 * S, 98 * S)
    assert not node.insert(Microseconds(20 * S), DESCRIPTION, NOW)
    node.insert(Microseconds(110 * S), DESCRIPTION, Microseconds(104 * S))
    assert node.times_us == (98 * S, 110 * S)


def test_a_prepared_generation_refuses_its_writes_until_it_is_read() -> None:
    """The node prefers safety to availability until it has read the description."""
    node = CdcMetadata()
    node.insert(Microseconds(50 * S), DESCRIPTION, NOW)
    assert node.prepare(Microseconds(99 * S), NOW)
    assert node.prepare(Microseconds(99 * S), NOW)
    with pytest.raises(WriteRefused, match="could not be read"):
        node.get_stream(NOW, 7, NOW)
    assert node.insert(Microseconds(99 * S), DESCRIPTION, NOW)
    assert not node.prepare(Microseconds(99 * S), NOW)
    node.get_stream(NOW, 7, NOW)


def test_a_generation_is_obsolete_a_leeway_after_its_successor_starts() -> None:
    """Exact to the microsecond; a known generation needs no retrieval."""
    node = CdcMetadata()
    node.insert(Microseconds(95 * S), DESCRIPTION, Microseconds(90 * S))
    assert not node.known_or_obsolete(Microseconds(94 * S), Microseconds(NOW - 1))
    assert node.known_or_obsolete(Microseconds(94 * S), NOW)
    assert node.known_or_obsolete(Microseconds(95 * S), Microseconds(90 * S))
    assert not node.known_or_obsolete(Microseconds(96 * S), NOW)


def test_learning_of_a_generation_too_late_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An error is logged if a write has already used a stream of the earlier generation."""
    node = CdcMetadata()
    node.insert(Microseconds(50 * S), DESCRIPTION, NOW)
    node.get_stream(NOW, 7, NOW)
    with caplog.at_level(logging.ERROR):
        node.prepare(Microseconds(NOW + S), NOW)
        assert caplog.messages == []
        node.prepare(Microseconds(99 * S), NOW)
    assert "1970-01-01T00:01:39.000Z" in caplog.text


@given(st.lists(times, unique=True).map(sorted), st.lists(times))
def test_columns_of_times(gens: list[int], asked: list[int]) -> None:
    """The function returns the index of the last generation not after each time, or -1."""
    assert get_operating_index(gens, asked).tolist() == [bisect_right(gens, ts) - 1 for ts in asked]


def test_streams_for_columns_of_writes() -> None:
    """Many writes over several generations get the streams of single lookups, and none before the first generation."""
    generations = {S * second: description(second) for second in (10, 20, 30)}
    history = CdcMetadata.of(generations)
    draw = np.random.default_rng(3)
    ts, tokens = draw.integers(5 * S, 40 * S, 500), draw.integers(-300, 300, 500)
    streams, rows = history.streams_for(ts, tokens)
    for write, token, stream, row in zip(ts.tolist(), tokens.tolist(), streams, rows.tolist(), strict=True):
        if write < 10 * S:
            assert row == -1
            assert not stream.any()
        else:
            assert history.times_us[row] == history.generation_used_at(write)
            assert np.array_equal(stream, generations[history.times_us[row]].streams_of([token])[0])
    one, _ = history.streams_for(np.full(3, 25 * S), tokens[:3])
    assert np.array_equal(one, generations[S * 20].streams_of(tokens[:3]))


def test_writes_of_a_generation_that_was_not_read_are_refused() -> None:
    """A column of writes is not answered partially."""
    with pytest.raises(InputError, match="00:00:20"):
        CdcMetadata.of({Microseconds(10 * S): DESCRIPTION, Microseconds(20 * S): None}).streams_for(
            [15 * S, 25 * S], [0, 0]
        )


def test_unknown_policies_are_refused() -> None:
    """Both the class and the rule refuse an unknown policy."""
    with pytest.raises(InputError, match="strict or recent-past"):
        CdcMetadata(policy="lenient")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(InputError, match="strict or recent-past"):
        decide_write([], Microseconds(0), Microseconds(0), policy="lenient")  # pyrefly: ignore[bad-argument-type]
