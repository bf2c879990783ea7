"""What a position has passed of each set unread: exactly the moments of that set that nobody has read yet."""

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
    """Counted one by one: behind the origin and up to the position, of sets that are not passed over, none twice."""
    order = sorted(begins)
    due = set()
    for place, begin in enumerate(order):
        end = order[place + 1] if place + 1 < len(order) else 10**6
        moments = (at for at in range(begin, end) if origin < at <= position)
        due |= {(begin, at) for at in moments if begin not in passed and at > read.get(begin, 0)}
    progress = StreamProgress("audit", origin, dict(read))
    sets = ReaderSets(order, passed=passed & begins)
    windows = list(iter_unread_windows(progress, sets, position, origin))
    found = [(each.set_us, at) for each in windows for at in range(each.after_us + 1, each.until_us + 1)]
    assert len(found) == len(set(found))
    assert set(found) == due
    assert [each.set_us for each in windows] == sorted(each.set_us for each in windows)
    assert first_unread_us(progress, sets, position) == min((each.after_us for each in windows), default=None)


def test_nothing_is_unread_while_no_set_can_be_read() -> None:
    """A log whose first generation is known and not published yet."""
    sets = ReaderSets((), awaited=Microseconds(10))
    assert list(iter_unread_windows(StreamProgress("audit"), sets, Microseconds(20), Microseconds(0))) == []
