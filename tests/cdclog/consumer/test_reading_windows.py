"""Windows of reading: every time is in exactly one, none spans two generations, none exceeds the horizon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cdclog import ReaderSets, Window, next_window
from cdc_platform.clock import Microseconds
from cdc_platform.errors import StateError

times = st.integers(1, 60)


@given(st.sets(times, min_size=1, max_size=5), st.lists(times, min_size=1, max_size=8), st.none() | st.integers(1, 9))
def test_every_time_is_in_one_window_of_its_generation(
    begins: set[Microseconds], horizons: list[int], longest: Microseconds | None
) -> None:
    """This holds however often the reader returns, and however far the clock has moved."""
    sets, position, number = ReaderSets(sorted(begins)), 0, 0
    read: list[int] = []
    for horizon in sorted(horizons):
        while (
            window := next_window(sets, Microseconds(position), number, Microseconds(horizon), longest_us=longest)
        ) is not None:
            number += 1
            assert window.number == number
            assert window.after_us >= position
            assert window.until_us <= horizon
            covered = range(window.after_us + 1, window.until_us + 1)
            assert {max(begin for begin in begins if begin <= time) for time in covered} == {window.set_us}
            assert longest is None or len(covered) <= longest
            read += covered
            position = window.until_us
    assert read == list(range(min(begins), max(horizons) + 1))


def test_a_generation_includes_its_start_and_excludes_its_end() -> None:
    """Its last microsecond belongs to it, the next one's first does not."""
    sets = ReaderSets([Microseconds(10), Microseconds(20)])
    assert next_window(sets, Microseconds(0), 0, Microseconds(100)) == Window(
        1, Microseconds(10), Microseconds(9), Microseconds(19)
    )
    assert next_window(sets, Microseconds(19), 1, Microseconds(100)) == Window(
        2, Microseconds(20), Microseconds(19), Microseconds(100)
    )
    assert next_window(sets, Microseconds(19), 1, Microseconds(19)) is None
    assert next_window(sets, Microseconds(5), 0, Microseconds(9)) is None
    assert next_window(ReaderSets([]), Microseconds(0), 0, Microseconds(100)) is None


def test_a_generation_discovered_late_still_splits_windows() -> None:
    """A generation that appears behind the position changes later windows, but none that was read."""
    assert next_window(ReaderSets([Microseconds(10)]), Microseconds(9), 0, Microseconds(30)) == Window(
        1, Microseconds(10), Microseconds(9), Microseconds(30)
    )
    assert next_window(
        ReaderSets([Microseconds(10), Microseconds(40)]), Microseconds(30), 1, Microseconds(50)
    ) == Window(2, Microseconds(10), Microseconds(30), Microseconds(39))


def test_a_removed_generation_is_never_skipped_silently() -> None:
    """It is an error while it is next or partly read; once it is read it no longer matters."""
    sets = ReaderSets([Microseconds(20), Microseconds(30)], [Microseconds(10)])
    for position in (0, 9, 15, 18):
        with pytest.raises(StateError, match="has been removed"):
            next_window(sets, Microseconds(position), 3, Microseconds(100))
    assert next_window(sets, Microseconds(19), 3, Microseconds(100)) == Window(
        4, Microseconds(20), Microseconds(19), Microseconds(29)
    )
