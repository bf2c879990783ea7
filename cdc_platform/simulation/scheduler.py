"""A discrete-event scheduler: simulated time in whole µs, one thread, events in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from cdc_platform.clock import Microseconds


class Scheduler:
    """A queue of events. Events of one time run in the order in which they were scheduled."""

    def __init__(self, start_us: Microseconds) -> None:
        self.now_us = start_us
        self.steps = 0
        self._queue: list[tuple[Microseconds, int, Callable[..., object], tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, time_us: Microseconds, action: Callable[..., object], *arguments: Any) -> None:
        """Run `action(*arguments)` at a time (µs); at once if that has passed."""
        self._scheduled += 1
        heapq.heappush(self._queue, (max(time_us, self.now_us), self._scheduled, action, arguments))

    def after(self, delay_us: Microseconds, action: Callable[..., object], *arguments: Any) -> None:
        """Run `action(*arguments)` after a delay (µs)."""
        self.at(self.now_us + delay_us, action, *arguments)

    def run(self, until_us: Microseconds) -> None:
        """Run all events up to and including `until_us` (µs), then set the time to it."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            self.now_us, _, action, arguments = heapq.heappop(queue)
            self.steps += 1
            action(*arguments)
        self.now_us = until_us
