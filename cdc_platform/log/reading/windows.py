"""Which part of a log a consumer reads next: windows of time, none of which reaches over the end of a generation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cdc_platform.clock import ONE_US, Microseconds, format_us
from cdc_platform.errors import StateError


@dataclass(frozen=True)
class Window:
    """The rows with `after_us` < timestamp <= `until_us`, all in the generation or set that began at `set_us`.

    `passed`: none of them is read, because that generation is passed over.
    """

    number: int
    set_us: Microseconds
    after_us: Microseconds
    until_us: Microseconds
    passed: bool = False


@dataclass(frozen=True)
class Sets:
    """The generations, or a table's stream sets, by the time (µs) at which each begins.

    `seen` are those that readers have been shown, `removed` those that were there once. `awaited` is the first that
    they have not been shown and will be, None where there is none. `passed` are those of `seen` that are passed over,
    as they have no streams.
    """

    seen: Sequence[Microseconds]
    removed: Collection[Microseconds] = ()
    awaited: Microseconds | None = None
    passed: Collection[Microseconds] = ()


def next_window(
    sets: Sets,
    position_us: Microseconds,
    windows: int,
    horizon_us: Microseconds,
    *,
    longest_us: Microseconds | None = None,
) -> Window | None:
    """The window after `position_us` (everything at or before it is read) in number `windows` + 1; None for none yet.

    It ends with its generation, one µs before the next one begins, after `longest_us`, or at `horizon_us`, whichever
    is first. Before the first generation there is nothing to read, and nothing yet of one that is awaited.

    Raises:
        StateError: what comes next is in a generation that has been removed.
    """
    begins = sorted({*sets.seen, *sets.removed})
    if not begins:
        return None
    if sets.awaited is not None:
        horizon_us = min(horizon_us, sets.awaited - ONE_US)
    after = max(position_us, begins[0] - ONE_US)
    place = bisect_right(begins, after + ONE_US) - 1
    end = begins[place + 1] - ONE_US if place + 1 < len(begins) else horizon_us
    until = min(end, horizon_us, end if longest_us is None else after + longest_us)
    if until <= after:
        return None
    if begins[place] not in set(sets.seen):
        raise StateError(
            f"the rows from {format_us(after + ONE_US)} to {format_us(end)} were in the generation of"
            f" {format_us(begins[place])}, which has been removed: a reader at {format_us(position_us)} has lost them;"
            " forget the consumer and register it anew behind them"
        )
    return Window(windows + 1, begins[place], after, until, begins[place] in sets.passed)
