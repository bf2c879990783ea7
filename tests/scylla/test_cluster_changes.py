"""The description of a changed table in a live cluster."""

from __future__ import annotations

import pytest

from cdc_platform.clock import Microseconds
from cdc_platform.scylla.changes import diff_states

STATE = "TTL 60 s, CDC on\nv int\ncdc 'delta': 'full'"
FIRST, LATER = (f"\naltered last at 2026-01-31T12:0{minute}:00.000Z" for minute in (0, 5))
WORDS = {
    "altered, and as before": (FIRST, LATER, "was altered last at 2026-01-31T12:05:00.000Z, and looks as before"),
    "of a home of before": ("", FIRST, "is known by now to have been altered last at 2026-01-31T12:00:00.000Z"),
    "with another column": (FIRST, f"\nw int{LATER}", "its definition is another: + w int"),
}


@pytest.mark.parametrize(("before", "after", "words"), WORDS.values(), ids=WORDS)
def test_description_of_an_altered_table(before: str, after: str, words: str) -> None:
    """It has the visible change, or the time of the last alteration if nothing else changed."""
    key = ("table shop.t", "")
    (change,) = diff_states({key: STATE + before}, {key: STATE + after}, Microseconds(0))
    assert change.what == words
