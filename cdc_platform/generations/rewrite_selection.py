"""Which V1 generations can still hold live log rows, and so have to be rewritten (design document 000, step 5).

Pure arithmetic on times in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.ring.tokens import Bools

_ALWAYS = Milliseconds(-(2**63))


@dataclass(frozen=True)
class LogLife:
    """How long a table's log rows live (`ttl_ms`, 0: for ever), and since when there are any (`created_at_ms`).

    `created_at_ms` None: that is not known, so that there may be rows of any age. `until_ms`: up to when rows were
    written that live so long; None: they still are.
    """

    ttl_ms: Milliseconds
    created_at_ms: Milliseconds | None
    until_ms: Milliseconds | None = None


def may_hold_rows(
    times_ms: ArrayLike,
    logs: Sequence[LogLife],
    now_ms: Milliseconds,
    *,
    use_creation_time: bool = False,
    clock_margin_ms: Milliseconds = Milliseconds(0),
) -> Bools:
    """Whether each generation (times int64[n], ascending) can hold rows that a log still has: bool[n].

    A generation is too old if there is a greater timestamp T such that `now - ttl > T` for every table: rows of it
    were written before T. The newest is never too old; with a TTL of 0 none is; without tables all are.

    `use_creation_time`: a log holds nothing from before it was created, whatever its TTL. `clock_margin_ms`: the
    writes of T's predecessor may have come that much later, by other clocks. With either of them T itself counts as
    too old when it is exactly at the limit, as in the servers that have this refinement.

    Raises:
        InputError: the times do not ascend, a TTL or the margin is negative.
    """
    times = np.asarray(times_ms, dtype=np.int64)
    if np.any(times[1:] <= times[:-1]):
        raise InputError("the times of V1 generations have to ascend, each once")
    if clock_margin_ms < 0 or any(log.ttl_ms < 0 for log in logs):
        raise InputError("a TTL and the clock margin are 0 or more")
    refined = use_creation_time or clock_margin_ms > 0
    live = np.zeros(len(times), dtype=bool)
    for log in logs:
        limit = oldest_live_ms([log], now_ms, use_creation_time=use_creation_time, clock_margin_ms=clock_margin_ms)
        reached = np.ones(len(times), dtype=bool)
        if limit is not None:
            reached[:-1] = times[1:] > limit if refined else times[1:] >= limit
        if log.until_ms is not None:
            reached &= times < log.until_ms + clock_margin_ms
        live |= reached
    return live


def oldest_live_ms(
    logs: Sequence[LogLife],
    now_ms: Milliseconds,
    *,
    use_creation_time: bool = False,
    clock_margin_ms: Milliseconds = Milliseconds(0),
) -> Milliseconds | None:
    """The time (ms) from which on some log (there is at least one) still has its rows; None: from the beginning."""
    limits = [
        max(
            now_ms - log.ttl_ms if log.ttl_ms else _ALWAYS,
            log.created_at_ms if use_creation_time and log.created_at_ms is not None else _ALWAYS,
        )
        for log in logs
    ]
    oldest = min(limits)
    return None if oldest == _ALWAYS else oldest - clock_margin_ms
