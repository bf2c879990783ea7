"""The start time of a new generation."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import StateError
from cdc_platform.generations import choose_generation_timestamp, new_generation_timestamp, next_generation_timestamp


def test_timestamps_of_the_vectors(vectors: dict[str, Any]) -> None:
    """The delay is two ring delays and the leeway; without a ring delay it is zero."""
    for row in vectors["generation_timestamp_ms"]:
        chosen = new_generation_timestamp(row["now"], ring_delay_ms=row["ring_delay_ms"], add_delay=row["add_delay"])
        assert chosen == row["result"]


def test_the_defaults_and_a_generation_without_delay() -> None:
    """By default a generation starts in 65 seconds; without delay, now."""
    assert new_generation_timestamp(Milliseconds(1_000)) == 66_000
    assert new_generation_timestamp(Milliseconds(1_000), add_delay=False) == 1_000


@pytest.mark.parametrize(
    ("candidate", "last", "chosen"), [(100, None, 100), (100, 99, 100), (100, 100, 101), (100, 105, 106)]
)
def test_generations_never_start_together(candidate: Milliseconds, last: Milliseconds | None, chosen: int) -> None:
    """A candidate that is not after the newest generation moves directly after it."""
    assert next_generation_timestamp(candidate, last, slack_ms=Milliseconds(5)) == chosen


def test_a_clock_that_is_behind_is_reported() -> None:
    """Beyond the slack, the message names both times and the remedy."""
    with pytest.raises(StateError, match="clock is behind") as refused:
        next_generation_timestamp(Milliseconds(100), Milliseconds(106), slack_ms=Milliseconds(5))
    assert "1970-01-01T00:00:00.100Z" in str(refused.value)
    assert "1970-01-01T00:00:00.106Z" in str(refused.value)


@pytest.mark.parametrize(
    ("now", "last", "always", "chosen"),
    [
        (1_000, None, False, 1_000),
        (1_000, None, True, 1_250),
        (1_000, 900, False, 1_250),
        (1_000, 1_250, False, 1_251),
        (1_000, 1_500, False, 1_501),
    ],
)
def test_one_choice_from_clock_and_newest_generation(
    now: Milliseconds, last: Milliseconds | None, always: bool, chosen: int
) -> None:
    """The first generation starts at once by default; later ones start after the delay and after the newest."""
    assert (
        choose_generation_timestamp(
            now, last, ring_delay_ms=Milliseconds(100), leeway_ms=Milliseconds(50), always_delay=always
        )
        == chosen
    )


def test_no_choice_with_a_clock_that_is_behind() -> None:
    """The newest generation may be at most one delay after the candidate."""
    with pytest.raises(StateError, match="more than 250 ms later"):
        choose_generation_timestamp(
            Milliseconds(1_000),
            Milliseconds(1_501),
            ring_delay_ms=Milliseconds(100),
            leeway_ms=Milliseconds(50),
            always_delay=False,
        )
