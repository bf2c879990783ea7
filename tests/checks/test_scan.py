"""The audit of rows without Spark: each rule compared with the oracle, and a violation for each check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import rings, tokens
from support.oracles import oracle
from support.worlds.invariant_seeds import (
    CROWDED,
    OWNERS,
    Row,
    generation_rows,
    row_tallies,
    row_violations,
    with_low_bits,
    with_token,
)

from cdc_platform.checks import STREAM_FORMAT, VNODE_COLOCATION, Finding, judge_findings
from cdc_platform.checks.invariants import SHARD_COLOCATION, STREAMS_UNIQUE
from cdc_platform.checks.scan import GenerationRanges
from cdc_platform.ring import RangeLookup, is_in_range

WRAPPING = 0
BUSY = 1
"""The index of a range in which each of the four shards owns a token."""


def owns_something(row: Row, shard: int) -> bool:
    """Return True if the shard owns a token of the range, by the oracle."""
    count, msb = len(row["streams"]), row["ignore_msb"]
    first = oracle.first_token_for_shard(row["range_start"], row["range_end"], shard, count, msb)
    return oracle.shard_of(first, count, msb) == shard


def counts_by_oracle(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """Return population and violations of both colocations, one stream at a time, by the oracle."""
    vnode = shard = pairs = streams = 0
    for row in rows:
        for number, stream in enumerate(row["streams"]):
            token = oracle.unpack_stream_id(stream)[0]
            owned = owns_something(row, number)
            fits = oracle.shard_of(token, len(row["streams"]), row["ignore_msb"]) == number
            streams += 1
            pairs += owned
            vnode += not oracle.in_range(row["range_start"], row["range_end"], token)
            shard += not (fits if owned else token == row["range_end"])
    return {VNODE_COLOCATION: (streams, vnode), SHARD_COLOCATION: (pairs, shard)}


@given(st.lists(tokens, min_size=1, max_size=8, unique=True).map(sorted), st.lists(tokens, min_size=1, max_size=8))
def test_the_range_that_holds_a_token_is_the_one_that_a_lookup_finds(ends: list[int], asked: list[int]) -> None:
    """Exactly one range contains a token, possibly the wrapping one; none has the minimum token, which no key has."""
    ranges, probes = GenerationRanges(np.array(ends)), [*asked, *ends, *(end + 1 for end in ends if end < 2**63 - 1)]
    contains = is_in_range(np.array(probes)[:, None], ranges.starts[None], ranges.ends[None])
    rows = RangeLookup(np.array(ends)).row_of(np.array(probes))
    assert contains.tolist() == [[rank == row for rank in range(len(ends))] for row in rows.tolist()]
    assert not is_in_range(np.array([-(2**63)]), ranges.starts, ranges.ends).any()


def counts_by_audit(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """Return population and violations of both colocations, by the audit."""
    tallies = row_tallies(rows)
    return {name: (tallies[name].population, tallies[name].violations) for name in (VNODE_COLOCATION, SHARD_COLOCATION)}


@given(owners=rings())
def test_a_sound_generation_has_no_violation(owners: dict[int, tuple[int, int]]) -> None:
    """Generated rows pass on any ring, and only pairs of a shard and a range with an owned token are counted."""
    rows = generation_rows(owners)
    assert row_violations(rows) == {}
    assert counts_by_audit(rows) == counts_by_oracle(rows)


@given(owners=rings(), data=st.data())
def test_tokens_anywhere_are_judged_as_the_oracle_judges_them(
    owners: dict[int, tuple[int, int]], data: st.DataObject
) -> None:
    """Streams with arbitrary tokens break exactly the colocations that the oracle finds one by one."""
    rows = generation_rows(owners)
    for row in rows:
        for number in data.draw(st.sets(st.integers(0, len(row["streams"]) - 1))):
            row["streams"][number] = with_token(row["streams"][number], data.draw(tokens))
    assert counts_by_audit(rows) == counts_by_oracle(rows)


def token_outside_on_its_shard(rows: list[Row], number: int, stream: int) -> int:
    """Return a token outside a row's range that is on the shard of a stream."""
    row = rows[number]
    random = np.random.default_rng(7)
    while True:
        token = int(random.integers(oracle.FIRST, oracle.LAST))
        outside = not oracle.in_range(row["range_start"], row["range_end"], token)
        if outside and oracle.shard_of(token, len(row["streams"]), row["ignore_msb"]) == stream:
            return token


def change(rows: list[Row], number: int, stream: int, **how: Any) -> None:
    """Give a stream another token, version or index."""
    old = rows[number]["streams"][stream]
    rows[number]["streams"][stream] = with_token(old, how["token"]) if "token" in how else with_low_bits(old, **how)


@pytest.mark.parametrize("number", [WRAPPING, BUSY])
def test_a_token_outside_its_range_breaks_vnode_colocation_alone(number: int) -> None:
    """A stream of the right shard lies in a foreign range, also for the wrapping range."""
    rows = generation_rows()
    change(rows, number, 2, token=token_outside_on_its_shard(rows, number, 2))
    assert row_violations(rows) == {VNODE_COLOCATION: 1}
    sample = row_tallies(rows)[VNODE_COLOCATION].sample
    assert sample.startswith(f"range end {rows[number]['range_end']}, stream 2 (0x")
    assert "outside its range" in sample


def test_the_range_start_is_outside_and_the_range_end_inside() -> None:
    """Ranges exclude their start and include their end."""
    rows = generation_rows({-100: (1, 0), 100: (1, 0)})
    change(rows, 1, 0, token=100)
    assert row_violations(rows) == {}
    change(rows, 1, 0, token=-100)
    assert row_violations(rows) == {VNODE_COLOCATION: 1}


def test_every_token_but_the_minimum_is_inside_the_only_range() -> None:
    """The range of a single token is the whole ring, and no key has the minimum token."""
    rows = generation_rows({5: (1, 0)})
    for token in (oracle.FIRST, 5, 6, oracle.LAST):
        change(rows, 0, 0, token=token)
        assert row_violations(rows) == {}
    change(rows, 0, 0, token=-(2**63))
    assert row_violations(rows) == {VNODE_COLOCATION: 1}


def test_a_token_of_another_shard_breaks_shard_colocation_alone() -> None:
    """The token is inside the range, but on another shard than the stream's index."""
    rows = generation_rows()
    change(rows, BUSY, 2, token=oracle.unpack_stream_id(rows[BUSY]["streams"][1])[0])
    assert row_violations(rows) == {SHARD_COLOCATION: 1}
    assert "is on shard 1, not on shard 2" in row_tallies(rows)[SHARD_COLOCATION].sample


def test_streams_in_the_order_of_their_bytes_break_shard_colocation_alone() -> None:
    """Sorting the streams keeps them equal as a set, but assigns them to other shards."""
    rows = generation_rows({100: (4, 0)})
    rows[0]["streams"].sort()
    assert set(row_violations(rows)) == {SHARD_COLOCATION}


def test_a_shard_that_owns_nothing_has_the_range_end_as_token() -> None:
    """Any other token of the range is a violation, although the population does not count the stream."""
    rows = generation_rows()
    idle = next(shard for shard in range(8) if not owns_something(rows[CROWDED], shard))
    population = row_tallies(rows)[SHARD_COLOCATION].population
    change(rows, CROWDED, idle, token=rows[CROWDED]["range_end"] - 1)
    assert row_violations(rows) == {SHARD_COLOCATION: 1}
    assert row_tallies(rows)[SHARD_COLOCATION].population == population
    assert "owns nothing in the range" in row_tallies(rows)[SHARD_COLOCATION].sample


@pytest.mark.parametrize("ignore_msb", [-1, 32])
def test_invalid_sharding_breaks_shard_colocation_alone(ignore_msb: int) -> None:
    """Without a valid ignore_msb no shard can be computed."""
    rows = generation_rows()
    rows[BUSY]["ignore_msb"] = ignore_msb
    assert row_violations(rows) == {SHARD_COLOCATION: 4}


def test_too_many_streams_are_a_violation() -> None:
    """No row makes the audit itself fail: 5000 streams are 5000 violations."""
    rows = generation_rows({5: (1, 0)})
    rows[0]["streams"] = [oracle.pack_stream_id(5, 0, number) for number in range(5000)]
    assert row_violations(rows) == {SHARD_COLOCATION: 5000}


def test_unordered_ranges_are_excluded_from_shard_colocation() -> None:
    """A range that an import could not order is no violation and not in the population."""
    rows = generation_rows({100: (4, 0)})
    rows[0]["streams"].sort()
    assert row_violations(rows, unordered=(100,)) == {}
    assert row_tallies(rows, unordered=(100,))[SHARD_COLOCATION].population == 0


def test_the_only_stream_of_a_range_is_always_in_order() -> None:
    """A single shard owns everything, whatever bits are ignored and whatever an import knows of the order."""
    rows = generation_rows({100: (1, 0)})
    rows[0]["ignore_msb"] = -1
    assert row_tallies(rows, unordered=(100,))[SHARD_COLOCATION].population == 1
    assert row_violations(rows) == {}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"version": 0}, "version is 0"),
        ({"version": 2}, "legacy"),
        ({"version": 15}, "legacy"),
        ({"index": 0}, "index is 0, the range is number 1"),
        ({"index": 2**22 - 1}, "index is 4194303"),
    ],
)
def test_a_wrong_field_breaks_stream_format_alone(how: dict[str, int], told: str) -> None:
    """Every stream needs version 1 and the rank of its range end as index."""
    rows = generation_rows()
    change(rows, BUSY, 3, **how)
    assert row_violations(rows) == {STREAM_FORMAT: 1}
    assert told in row_tallies(rows)[STREAM_FORMAT].sample


@pytest.mark.parametrize("stream", [b"", b"\x01" * 15, b"\x01" * 17])
def test_a_stream_that_is_not_16_bytes_breaks_stream_format_alone(stream: bytes) -> None:
    """The sample shows its bytes, and the other streams of the range keep their index."""
    rows = generation_rows()
    rows[BUSY]["streams"][1] = stream
    assert row_violations(rows) == {STREAM_FORMAT: 1}
    assert f"stream 1 (0x{stream.hex()})" in row_tallies(rows)[STREAM_FORMAT].sample


def test_damaged_streams_are_not_taken_for_equal_ones() -> None:
    """Two invalid stream IDs are two violations of the format, not a repetition."""
    rows = generation_rows()
    rows[BUSY]["streams"][1] = rows[BUSY]["streams"][2] = b"\x01" * 3
    assert row_violations(rows) == {STREAM_FORMAT: 2}


def test_a_range_without_streams_breaks_stream_format_alone() -> None:
    """An empty list violates the format."""
    rows = generation_rows()
    rows[BUSY]["streams"] = []
    assert row_violations(rows) == {STREAM_FORMAT: 1}
    assert row_tallies(rows)[STREAM_FORMAT].sample == "range end -1000 has no streams"


def test_a_stream_twice_in_a_range_breaks_streams_unique_alone() -> None:
    """Shards that own nothing share a token, so only random bits distinguish their streams."""
    rows = generation_rows()
    one, other = [shard for shard in range(8) if not owns_something(rows[CROWDED], shard)][:2]
    rows[CROWDED]["streams"][other] = rows[CROWDED]["streams"][one]
    assert row_violations(rows) == {STREAMS_UNIQUE: 1}
    assert f"stream {other} (0x" in row_tallies(rows)[STREAMS_UNIQUE].sample


def test_equal_random_bits_alone_are_no_repetition() -> None:
    """Streams with other tokens are different streams."""
    rows = generation_rows()
    rows[BUSY]["streams"] = [
        oracle.pack_stream_id(oracle.unpack_stream_id(stream)[0], BUSY, 77) for stream in rows[BUSY]["streams"]
    ]
    assert row_violations(rows) == {}


def test_the_first_violation_on_the_ring_is_the_sample() -> None:
    """The order of the rows does not matter."""
    rows = generation_rows()
    for number in (4, 2):
        change(rows, number, 0, version=0)
    for order in (rows, rows[::-1]):
        assert "range end 0, stream 0 " in row_tallies(order)[STREAM_FORMAT].sample
    assert row_violations(rows) == {STREAM_FORMAT: 2}


def test_many_rows_are_audited_in_chunks_with_one_result() -> None:
    """More streams than one chunk takes, of two alternating widths, give one result."""
    ends = np.arange(3000) * 2**50
    rows = generation_rows({int(end): (3 + 13 * (number % 2), 12) for number, end in enumerate(ends)})
    change(rows, 2999, 5, version=0)
    change(rows, 1, 5, index=7)
    tallies = row_tallies(rows)
    assert tallies[STREAM_FORMAT].population == 1500 * (3 + 16)
    assert tallies[STREAM_FORMAT].violations == 2
    assert tallies[STREAM_FORMAT].sample.startswith(f"range end {2**50}, stream 5 ")


def test_no_rows_pass_nothing() -> None:
    """An audit of no rows leaves every invariant unchecked, which fails."""
    tallies = row_tallies([])
    findings = [Finding(name, tally.population, tally.violations) for name, tally in tallies.items()]
    names = (VNODE_COLOCATION, SHARD_COLOCATION, STREAM_FORMAT, STREAMS_UNIQUE)
    assert [line.passed for line in judge_findings(findings, names)] == [False] * 4


def test_the_seeded_ring_has_the_needed_ranges() -> None:
    """The ring of these tests has a wrapping range, busy ranges, and one in which most shards own nothing."""
    rows = generation_rows()
    assert sum(owns_something(rows[CROWDED], shard) for shard in range(8)) < 6
    assert all(owns_something(rows[BUSY], shard) for shard in range(4))
    assert [row["range_end"] for row in rows] == sorted(OWNERS)
