"""Progress within sets: exactly the times of a set up to the position that no window has read are unread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cdclog import ReaderSets
from cdc_platform.cdclog.consumer.progress import StreamProgress, first_unread_us, iter_unread_windows
from cdc_platform.clock import Microseconds

pytestmark = pytest.mark.hypothesis

MOMENTS = st.integers(1, 30).map(Microseconds)


@given(
    begins=st.sets(MOMENTS, min_size=1, max_size=6),
    passed=st.sets(MOMENTS, max_size=2),
    read=st.dictionaries(MOMENTS, MOMENTS, max_size=6),
    origin=st.integers(0, 30).map(Microseconds),
    position=st.integers(0, 40).map(Microseconds),
)
def test_each_moment_of_a_set_is_read_or_found_unread(
    begins: set[Microseconds],
    passed: set[Microseconds],
    read: dict[Microseconds, Microseconds],
    origin: Microseconds,
    position: Microseconds,
) -> None:
    """Counted one by one, after the origin and up to the position, of sets that are not skipped, none twice."""
    order = sorted(begins)
    expected = set()
    for index, begin in enumerate(order):
        end = order[index + 1] if index + 1 < len(order) else 10**6
        moments = (time for time in range(begin, end) if origin < time <= position)
        expected |= {(begin, time) for time in moments if begin not in passed and time > read.get(begin, 0)}
    progress = StreamProgress("audit", origin, dict(read))
    sets = ReaderSets(order, passed=passed & begins)
    windows = list(iter_unread_windows(progress, sets, position, origin))
    unread = [(window.set_us, time) for window in windows for time in range(window.after_us + 1, window.until_us + 1)]
    assert len(unread) == len(set(unread))
    assert set(unread) == expected
    assert [window.set_us for window in windows] == sorted(window.set_us for window in windows)
    assert first_unread_us(progress, sets, position) == min((window.after_us for window in windows), default=None)


def test_nothing_is_unread_while_no_set_is_readable() -> None:
    """The first generation of the log is known and not published yet."""
    sets = ReaderSets((), awaited=Microseconds(10))
    assert list(iter_unread_windows(StreamProgress("audit"), sets, Microseconds(20), Microseconds(0))) == []
