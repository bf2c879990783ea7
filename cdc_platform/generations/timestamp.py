"""The choice of the time at which a new generation starts to operate, in ms since 1970 UTC.

Pure arithmetic; the clock and the generations that are there already are handed in.
"""

from __future__ import annotations

from cdc_platform.clock import ONE_MS, Milliseconds, format_ms
from cdc_platform.errors import ClockRefused
from cdc_platform.limits import LEEWAY_MS, RING_DELAY_MS


def new_generation_timestamp(
    now_ms: Milliseconds,
    *,
    ring_delay_ms: Milliseconds = RING_DELAY_MS,
    leeway_ms: Milliseconds = LEEWAY_MS,
    add_delay: bool = True,
) -> Milliseconds:
    """The timestamp (ms) for a generation that is about to be introduced at `now_ms`.

    Twice the ring delay and the leeway from now, so that every node hears of the generation before it operates
    (design document 001: "a minute or two"). Without `add_delay`, or with a ring delay of 0, it operates at once.
    """
    return now_ms + ring_delay_ms * 2 + leeway_ms if add_delay and ring_delay_ms else now_ms


def choose_generation_timestamp(
    now_ms: Milliseconds,
    last_ms: Milliseconds | None,
    *,
    ring_delay_ms: Milliseconds,
    leeway_ms: Milliseconds,
    always_delay: bool,
) -> Milliseconds:
    """The timestamp (ms) of the generation that is introduced at `now_ms`, after the newest one at `last_ms`.

    The very first has no delay unless `always_delay`: there is nobody who would have to hear of it in time.

    Raises:
        StateError: the clock is behind the newest generation by more than the delay.
    """
    candidate = new_generation_timestamp(
        now_ms, ring_delay_ms=ring_delay_ms, leeway_ms=leeway_ms, add_delay=always_delay or last_ms is not None
    )
    return next_generation_timestamp(candidate, last_ms, ring_delay_ms * 2 + leeway_ms)


def next_generation_timestamp(
    candidate_ms: Milliseconds, last_ms: Milliseconds | None, slack_ms: Milliseconds
) -> Milliseconds:
    """The candidate, moved behind the newest generation (`last_ms`) if need be: generations never start together.

    Raises:
        StateError: the newest generation is more than `slack_ms` after the candidate, so the clock cannot be right.
    """
    if last_ms is None:
        return candidate_ms
    if last_ms - candidate_ms > slack_ms:
        raise ClockRefused(
            f"the new generation would start at {format_ms(candidate_ms)}, but the newest one starts at"
            f" {format_ms(last_ms)}, more than {slack_ms} ms later: this clock is behind, or that of the newest one"
            " was ahead; set it right, or wait, and run again"
        )
    return max(candidate_ms, last_ms + ONE_MS)
