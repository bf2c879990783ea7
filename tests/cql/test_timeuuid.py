"""Timeuuids of the log: the write's time, CQL's order, and a deterministic low half."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import RFC_4122, UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    MAX_TIMEUUID_US,
    MIN_TIMEUUID_US,
    make_log_timeuuid,
    make_timeuuid,
    min_timeuuid,
    ticks_from_high_half,
    timeuuid_high_half,
    timeuuid_low_half,
    us_from_timeuuid,
)
from cdc_platform.cql.timeuuid import max_timeuuid
from cdc_platform.cql.types import timeuuid_sort_key
from cdc_platform.errors import InputError

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())["timeuuid_micros"]
times = st.integers(MIN_TIMEUUID_US, MAX_TIMEUUID_US)
lows = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["timeuuid"])
def test_the_time_is_that_of_the_vectors(vector: dict) -> None:
    """In both directions: the time of a timeuuid, and the timeuuid of a time and a low half."""
    given_uuid = UUID(vector["timeuuid"])
    us = int(vector["micros"])
    assert us_from_timeuuid(given_uuid) == us
    assert make_timeuuid(Microseconds(us), given_uuid.int & (2**64 - 1)) == given_uuid


@given(times, lows, st.integers(0, 9))
def test_any_time_goes_in_and_comes_out(us: Microseconds, low: int, steps: int) -> None:
    """Python's reading of the 60-bit time agrees, and steps of 100 ns stay within the microsecond."""
    timeuuid = make_timeuuid(us, low, steps)
    assert timeuuid.bytes[6] >> 4 == 1
    assert timeuuid.time == us * 10 + steps + 0x01B21DD213814000
    assert us_from_timeuuid(timeuuid) == us


@given(st.lists(st.tuples(times, lows), min_size=1, max_size=20))
def test_many_at_once_are_as_one(given_times: list[tuple[int, int]]) -> None:
    """In uint64 arrays the halves equal those of Python's UUID, with the highest bits, and so does their time."""
    ticks = np.array([us * 10 + 0x01B21DD213814000 for us, _ in given_times], dtype=np.uint64)
    high, low = timeuuid_high_half(ticks), timeuuid_low_half(np.array([low for _, low in given_times], dtype=np.uint64))
    timeuuids = [UUID(int=int(a) << 64 | int(b)) for a, b in zip(high, low, strict=True)]
    assert {timeuuid.version for timeuuid in timeuuids} == {1}
    assert {timeuuid.variant for timeuuid in timeuuids} == {RFC_4122}
    assert [timeuuid.time for timeuuid in timeuuids] == ticks_from_high_half(high).tolist() == ticks.tolist()


@pytest.mark.parametrize("us", [MIN_TIMEUUID_US - 1, MAX_TIMEUUID_US + 1, -(2**63), 2**63 - 1])
def test_a_time_out_of_range_is_refused(us: Microseconds) -> None:
    """The time is neither wrapped nor truncated."""
    with pytest.raises(InputError, match=str(us)):
        make_timeuuid(us, 0)


@given(times, times, lows, lows)
def test_the_order_is_time_first_then_signed_bytes(
    us: Microseconds, other: Microseconds, low: int, other_low: int
) -> None:
    """The minimum and maximum of a time enclose all of its timeuuids, and none of another time."""
    first, second = make_timeuuid(us, low), make_timeuuid(other, other_low)
    assert timeuuid_sort_key(min_timeuuid(us)) <= timeuuid_sort_key(first) <= timeuuid_sort_key(max_timeuuid(us))
    signed = [
        tuple(byte - 256 if byte > 127 else byte for byte in number.to_bytes(8, "big")) for number in (low, other_low)
    ]
    assert (timeuuid_sort_key(first) < timeuuid_sort_key(second)) == ((us, signed[0]) < (other, signed[1]))


def test_a_log_time_is_a_function_of_the_logged_write() -> None:
    """Equal identities give equal bytes, ambiguous concatenations differ, and the variant is RFC 4122's."""
    timeuuid = make_log_timeuuid(Microseconds(1_606_390_225_588_947), b"ks", b"t")
    assert timeuuid == make_log_timeuuid(Microseconds(1_606_390_225_588_947), b"ks", b"t")
    assert timeuuid == UUID("c72c7c3e-2fda-11eb-" + str(timeuuid)[19:])
    assert timeuuid != make_log_timeuuid(Microseconds(1_606_390_225_588_947), b"k", b"st")
    assert timeuuid.variant == RFC_4122
    assert timeuuid.version == 1
