"""The plan of a window takes the way that makes the server look at less, in few requests, for the same rows."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cdclog import Window
from cdc_platform.clock import Microseconds
from cdc_platform.cql import min_timeuuid
from cdc_platform.cql.timeuuid import max_timeuuid
from cdc_platform.ingest.cluster_log import LapTimer
from cdc_platform.ingest.planner import (
    LEAST_RANGES,
    LOOKS_A_TASK,
    MAX_STREAMS_A_REQUEST,
    MIN_STREAMS_A_REQUEST,
    MOST_RANGES,
    Next,
    Way,
    by_token,
    plan,
)

WINDOW = Window(1, Microseconds(0), Microseconds(10), Microseconds(20))
PAGE = 5_000


def streams(count: int) -> np.ndarray:
    """Return `count` streams with random tokens, unsorted."""
    return np.random.default_rng(7).integers(0, 256, (count, 16), dtype=np.uint8)


def test_full_log_with_quiet_windows_is_read_by_streams() -> None:
    """A scan would read ten million rows for a window that has a hundred; a thousand streams are ten requests."""
    planned = plan(WINDOW, streams(1_000), 10_000_000, 1e-5, PAGE)
    assert (planned.chosen.way, len(planned.conditions)) == ("streams", 10)
    assert planned.chosen.looks < planned.other.looks == 10_000_128


def test_quiet_log_with_a_million_streams_is_scanned() -> None:
    """1,638,400 streams would be 16,384 requests, most of them without rows; the scan takes at most 200."""
    planned = plan(WINDOW, streams(1_638_400), 10_000, 0.001, PAGE)
    assert planned.chosen.way == "ranges"
    assert len(planned.conditions) <= 200
    assert planned.other.requests == 16_384


def next_windows(count: int, stream_count: int, share: float = 0.0) -> list[Next]:
    """Return `count` windows after the first, each over as many streams as `each` says."""
    return [Next(Microseconds(30 + 10 * index), stream_count, share) for index in range(count)]


def test_backlog_over_a_million_streams_is_one_scan() -> None:
    """Streams cost less than a scan for one window and more for five, so one scan covers all five."""
    alone = plan(WINDOW, streams(1_638_400), 2_000_000, 0.0, PAGE)
    planned = plan(WINDOW, streams(1_638_400), 2_000_000, 0.0, PAGE, coming=next_windows(4, 1_638_400))
    assert (alone.chosen.way, alone.until_us) == ("streams", WINDOW.until_us)
    assert (planned.chosen.way, planned.chosen.windows, planned.until_us) == ("ranges", 5, 60)
    assert (planned.chosen.requests, planned.other.requests) == (40, 5 * 16_384)
    assert (planned.chosen.looks, planned.other.looks) == (2_000_040, 5 * 1_638_400)


def test_backlog_of_quiet_windows_in_a_full_log_is_read_by_streams() -> None:
    """A hundred windows of a hundred streams do not justify a scan of ten million rows."""
    # The plan covers only the first window.
    planned = plan(WINDOW, streams(100), 10_000_000, 1e-7, PAGE, coming=next_windows(99, 100, 1e-7))
    assert (planned.chosen.way, planned.chosen.windows, planned.until_us) == ("streams", 1, WINDOW.until_us)
    assert (planned.chosen.looks, planned.other.looks, planned.other.windows) == (101, 10_000_128, 100)


@given(st.integers(0, 5_000), st.integers(1, 300), st.lists(st.integers(0, 300), max_size=20))
def test_a_backlog_is_planned_the_cheaper_way(held: int, first: int, others: list[int]) -> None:
    """The cheaper way for all windows together wins; a scan covers them all, streams cover the first."""
    after = [Next(Microseconds(30 + index), stream_count, 0.0) for index, stream_count in enumerate(others)]
    planned = plan(WINDOW, streams(first), held, 0.0, PAGE, coming=after)
    scans = held + LEAST_RANGES < first + sum(others)
    assert planned.chosen.way == ("ranges" if scans else "streams")
    assert planned.until_us == (after[-1].until_us if scans and after else WINDOW.until_us)
    assert (planned.chosen.looks, planned.chosen.windows) == (
        (held + LEAST_RANGES, 1 + len(others)) if scans else (first, 1)
    )


def test_each_request_has_the_times_of_its_plan() -> None:
    """The interval begins after the last microsecond read and includes the plan's last one."""
    planned = plan(WINDOW, streams(2), 10**9, 0, PAGE)
    end = f'"cdc$time" < {min_timeuuid(Microseconds(planned.until_us + 1))}'
    assert [condition.endswith(end) for condition in planned.conditions] == [True] * len(planned.places)


@pytest.mark.parametrize("way", ["streams", "ranges"])
def test_requested_way_is_used(way: Way) -> None:
    """The cost does not matter then."""
    assert plan(WINDOW, streams(10), 0, 0, PAGE, way).chosen.way == way


@given(st.integers(1, 350))
def test_every_stream_is_asked_for_once(count: int) -> None:
    """One IN has at most a hundred streams, which is what a server accepts."""
    all_streams = streams(count)
    planned = plan(WINDOW, by_token(all_streams), 10**9, 0, PAGE)
    requested = [re.findall(r"0x([0-9a-f]{32})", text) for text in planned.conditions]
    assert max(map(len, requested)) <= 100
    assert sorted(text for texts in requested for text in texts) == sorted(
        stream.tobytes().hex() for stream in all_streams
    )


@given(st.integers(0, 10**9))
def test_ranges_cover_the_ring_without_overlap(held: int) -> None:
    """The ranges are left open and right closed, cover all tokens, and are limited in number."""
    planned = plan(WINDOW, streams(2), held, 0, PAGE, "ranges")
    bounds = [tuple(map(int, re.findall(r"> (-?\d+) AND .* <= (-?\d+)", text)[0])) for text in planned.conditions]
    assert bounds[0][0] == -(2**63)
    assert bounds[-1][1] == 2**63 - 1
    assert all(low < high for low, high in bounds)
    assert [low for low, _ in bounds[1:]] == [high for _, high in bounds[:-1]]
    assert len(bounds) <= MOST_RANGES


def test_bounds_are_microseconds_half_open() -> None:
    """A window ends with the last timeuuid of its last microsecond, and begins after that of the previous one."""
    (text,) = plan(WINDOW, streams(2), 10**9, 0, PAGE).conditions
    low, high = re.findall(r'"cdc\$time" >= (\S+) AND "cdc\$time" < (\S+)', text)[0]
    assert (low, high) == (str(min_timeuuid(Microseconds(11))), str(min_timeuuid(Microseconds(21))))
    assert max_timeuuid(Microseconds(20)).time + 1 == min_timeuuid(Microseconds(21)).time


def test_streams_of_a_request_are_neighbours() -> None:
    """Streams are sorted by their signed tokens."""
    tokens = [int.from_bytes(stream.tobytes()[:8], "big", signed=True) for stream in by_token(streams(50))]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize(
    ("rows", "streams_a_request"),
    [(0, MAX_STREAMS_A_REQUEST), (20 * PAGE, 50), (10**9, MIN_STREAMS_A_REQUEST)],
)
def test_request_has_as_many_streams_as_fill_a_page(rows: int, streams_a_request: int) -> None:
    """A quiet window takes few requests; a window with many rows takes many, so that several are in flight."""
    planned = plan(WINDOW, streams(1_000), rows, 1.0, PAGE, "streams")
    assert len(planned.conditions) == -(-1_000 // streams_a_request)


@pytest.mark.parametrize("way", ["streams", "ranges"])
@pytest.mark.parametrize("rows", [0, LOOKS_A_TASK - 2_000, 3 * LOOKS_A_TASK, 10**9])
def test_tasks_are_planned_by_rows(rows: int, way: Way) -> None:
    """The number of streams does not matter; each request is in exactly one task, and no task is empty."""
    planned = plan(WINDOW, streams(1_000), rows, 1.0, PAGE, way)
    tasks = planned.tasks()
    assert [condition for task in tasks for condition in task] == planned.conditions
    assert all(tasks)
    assert len(tasks) == max(1, min(len(planned.conditions), -(-planned.chosen.looks // LOOKS_A_TASK)))
    assert len(tasks) == 1 or rows >= LOOKS_A_TASK


def test_laps_add_up_to_the_whole() -> None:
    """The sum includes all time between two laps, to the millisecond that each is rounded to."""
    before = time.monotonic()
    watch = LapTimer()
    created = time.monotonic()
    laps = [watch.lap() for _ in range(100)]
    time.sleep(0.01)
    ended = time.monotonic()
    laps.append(watch.lap())
    assert ended - created - 0.001 <= sum(laps) <= time.monotonic() - before + 0.001
