"""How a window is asked for: the way that makes the server look at less, the same rows by both, few requests."""

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
    """So many streams with random tokens, in no order."""
    return np.random.default_rng(7).integers(0, 256, (count, 16), dtype=np.uint8)


def test_a_full_log_with_quiet_windows_is_read_by_streams() -> None:
    """A scan would read ten million rows for a window that has a hundred; a thousand streams are ten requests."""
    made = plan(WINDOW, streams(1_000), 10_000_000, 1e-5, PAGE)
    assert (made.chosen.way, len(made.conditions)) == ("streams", 10)
    assert made.chosen.looks < made.other.looks == 10_000_128


def test_a_quiet_log_with_a_million_streams_is_scanned() -> None:
    """1,638,400 streams would be 16,384 requests, most of them for nothing; the scan takes at most 200."""
    made = plan(WINDOW, streams(1_638_400), 10_000, 0.001, PAGE)
    assert made.chosen.way == "ranges"
    assert len(made.conditions) <= 200
    assert made.other.requests == 16_384


def coming(count: int, each: int, share: float = 0.0) -> list[Next]:
    """So many windows behind the first, each over so many streams."""
    return [Next(Microseconds(30 + 10 * place), each, share) for place in range(count)]


def test_a_backlog_over_a_million_streams_is_one_scan() -> None:
    """A window's streams cost less than the scan, those of five cost more: one scan asks for the times of all five."""
    alone = plan(WINDOW, streams(1_638_400), 2_000_000, 0.0, PAGE)
    made = plan(WINDOW, streams(1_638_400), 2_000_000, 0.0, PAGE, coming=coming(4, 1_638_400))
    assert (alone.chosen.way, alone.until_us) == ("streams", WINDOW.until_us)
    assert (made.chosen.way, made.chosen.windows, made.until_us) == ("ranges", 5, 60)
    assert (made.chosen.requests, made.other.requests) == (40, 5 * 16_384)
    assert (made.chosen.looks, made.other.looks) == (2_000_040, 5 * 1_638_400)


def test_a_backlog_of_quiet_windows_of_a_full_log_is_read_by_streams() -> None:
    """Ten million rows are not read for a hundred windows of a hundred streams; the first alone is asked for."""
    made = plan(WINDOW, streams(100), 10_000_000, 1e-7, PAGE, coming=coming(99, 100, 1e-7))
    assert (made.chosen.way, made.chosen.windows, made.until_us) == ("streams", 1, WINDOW.until_us)
    assert (made.chosen.looks, made.other.looks, made.other.windows) == (101, 10_000_128, 100)


@given(st.integers(0, 5_000), st.integers(1, 300), st.lists(st.integers(0, 300), max_size=20))
def test_what_looks_at_less_is_planned_for_a_backlog(held: int, first: int, others: list[int]) -> None:
    """Of all windows together; a scan asks up to the end of the last, streams are asked for the first one's times."""
    after = [Next(Microseconds(30 + place), each, 0.0) for place, each in enumerate(others)]
    made = plan(WINDOW, streams(first), held, 0.0, PAGE, coming=after)
    scans = held + LEAST_RANGES < first + sum(others)
    assert made.chosen.way == ("ranges" if scans else "streams")
    assert made.until_us == (after[-1].until_us if scans and after else WINDOW.until_us)
    assert (made.chosen.looks, made.chosen.windows) == ((held + LEAST_RANGES, 1 + len(others)) if scans else (first, 1))


def test_each_request_asks_for_the_times_of_its_plan() -> None:
    """Half open: behind the last microsecond that was read, up to and with the last one of the plan."""
    made = plan(WINDOW, streams(2), 10**9, 0, PAGE)
    end = f'"cdc$time" < {min_timeuuid(Microseconds(made.until_us + 1))}'
    assert [condition.endswith(end) for condition in made.conditions] == [True] * len(made.places)


@pytest.mark.parametrize("way", ["streams", "ranges"])
def test_a_way_that_is_asked_for_is_taken(way: Way) -> None:
    """Whatever it costs."""
    assert plan(WINDOW, streams(10), 0, 0, PAGE, way).chosen.way == way


@given(st.integers(1, 350))
def test_every_stream_is_asked_for_once(count: int) -> None:
    """At most a hundred in one IN, which is what a server takes."""
    given_ = streams(count)
    made = plan(WINDOW, by_token(given_), 10**9, 0, PAGE)
    asked = [re.findall(r"0x([0-9a-f]{32})", text) for text in made.conditions]
    assert max(map(len, asked)) <= 100
    assert sorted(text for some in asked for text in some) == sorted(each.tobytes().hex() for each in given_)


@given(st.integers(0, 10**9))
def test_ranges_cover_the_ring_without_overlap(held: int) -> None:
    """Left open and right closed, from before the first token to the last, in a bounded number of parts."""
    made = plan(WINDOW, streams(2), held, 0, PAGE, "ranges")
    bounds = [tuple(map(int, re.findall(r"> (-?\d+) AND .* <= (-?\d+)", text)[0])) for text in made.conditions]
    assert bounds[0][0] == -(2**63)
    assert bounds[-1][1] == 2**63 - 1
    assert all(low < high for low, high in bounds)
    assert [low for low, _ in bounds[1:]] == [high for _, high in bounds[:-1]]
    assert len(bounds) <= MOST_RANGES


def test_bounds_are_microseconds_half_open() -> None:
    """A window ends with the last timeuuid of its last microsecond, and begins behind that of the one before."""
    (text,) = plan(WINDOW, streams(2), 10**9, 0, PAGE).conditions
    low, high = re.findall(r'"cdc\$time" >= (\S+) AND "cdc\$time" < (\S+)', text)[0]
    assert (low, high) == (str(min_timeuuid(Microseconds(11))), str(min_timeuuid(Microseconds(21))))
    assert max_timeuuid(Microseconds(20)).time + 1 == min_timeuuid(Microseconds(21)).time


def test_streams_of_a_request_are_neighbours() -> None:
    """Sorted by their signed tokens."""
    tokens = [int.from_bytes(each.tobytes()[:8], "big", signed=True) for each in by_token(streams(50))]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize(
    ("rows", "streams_a_request"),
    [(0, MAX_STREAMS_A_REQUEST), (20 * PAGE, 50), (10**9, MIN_STREAMS_A_REQUEST)],
)
def test_a_request_names_the_streams_that_fill_a_page(rows: int, streams_a_request: int) -> None:
    """A quiet window is read by few requests; a window with many rows by many, so that several are in flight."""
    made = plan(WINDOW, streams(1_000), rows, 1.0, PAGE, "streams")
    assert len(made.conditions) == -(-1_000 // streams_a_request)


@pytest.mark.parametrize("way", ["streams", "ranges"])
@pytest.mark.parametrize("rows", [0, LOOKS_A_TASK - 2_000, 3 * LOOKS_A_TASK, 10**9])
def test_tasks_are_planned_by_rows(rows: int, way: Way) -> None:
    """However many streams there are; no request is in two tasks, none is left out, and no task is empty."""
    made = plan(WINDOW, streams(1_000), rows, 1.0, PAGE, way)
    tasks = made.tasks()
    assert [condition for task in tasks for condition in task] == made.conditions
    assert all(tasks)
    assert len(tasks) == max(1, min(len(made.conditions), -(-made.chosen.looks // LOOKS_A_TASK)))
    assert len(tasks) == 1 or rows >= LOOKS_A_TASK


def test_laps_add_up_to_the_whole() -> None:
    """Whatever happens between two of them, to the millisecond that each is rounded to."""
    before = time.monotonic()
    watch = LapTimer()
    created = time.monotonic()
    laps = [watch.lap() for _ in range(100)]
    time.sleep(0.01)
    ended = time.monotonic()
    laps.append(watch.lap())
    assert ended - created - 0.001 <= sum(laps) <= time.monotonic() - before + 0.001
