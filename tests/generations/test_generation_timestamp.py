"""When a new generation starts to operate."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_platform.errors import StateError
from cdc_platform.generations import new_generation_timestamp, next_generation_timestamp


def test_timestamps_of_the_vectors(vectors: dict[str, Any]) -> None:
    """The delay is two ring delays and the leeway; without a ring delay there is none."""
    for row in vectors["generation_timestamp_ms"]:
        chosen = new_generation_timestamp(row["now"], ring_delay_ms=row["ring_delay_ms"], add_delay=row["add_delay"])
        assert chosen == row["result"]


def test_the_defaults_and_a_generation_without_delay() -> None:
    """65 seconds from now, or now."""
    assert new_generation_timestamp(1_000) == 66_000
    assert new_generation_timestamp(1_000, add_delay=False) == 1_000


@pytest.mark.parametrize(
    ("candidate", "last", "chosen"), [(100, None, 100), (100, 99, 100), (100, 100, 101), (100, 105, 106)]
)
def test_generations_never_start_together(candidate: int, last: int | None, chosen: int) -> None:
    """A candidate that is not after the newest generation moves just behind it."""
    assert next_generation_timestamp(candidate, last, slack_ms=5) == chosen


def test_a_clock_that_is_behind_is_told() -> None:
    """Beyond the slack both times and the mend are named."""
    with pytest.raises(StateError, match="clock is behind") as refused:
        next_generation_timestamp(100, 106, slack_ms=5)
    assert "1970-01-01T00:00:00.100Z" in str(refused.value)
    assert "1970-01-01T00:00:00.106Z" in str(refused.value)
