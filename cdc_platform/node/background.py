"""A coordinator's background: what it could not read is tried again after a while, until it is read.

It has no thread and no clock of its own. A simulation calls `step` at the times that it answers with; a server gives
`run` to a thread of its own.
"""

from __future__ import annotations

from cdc_platform.clock import SECOND_US, Microseconds, seconds_of_us
from cdc_platform.node.coordinator import Coordinator
from cdc_platform.node.given import Now, Waiter

RETRY_US = SECOND_US * 5
"""How long a coordinator waits by default before it tries again to read a generation (µs)."""


class Background:
    """Retries a coordinator's pending generations, `retry_us` (µs) after each failure."""

    def __init__(
        self, coordinator: Coordinator, now_us: Now, waiter: Waiter, *, retry_us: Microseconds = RETRY_US
    ) -> None:
        self._coordinator = coordinator
        self._now_us = now_us
        self._waiter = waiter
        self._retry_us = retry_us
        self._due_us: Microseconds | None = None
        self._closed = False
        coordinator.tell(waiter.set)

    def step(self) -> Microseconds | None:
        """Try again if it is time to; answers when (µs) the next attempt is due, None while nothing is pending."""
        now_us = self._now_us()
        if not self._coordinator.pending():
            self._due_us = None
        elif self._due_us is None:
            self._due_us = now_us + self._retry_us
        elif now_us >= self._due_us:
            self._due_us = now_us + self._retry_us if self._coordinator.retry() else None
        return self._due_us

    def run(self) -> None:
        """Step by step until `close` is called, waiting with the waiter in between; for a thread that is handed in."""
        while not self._closed:
            due_us = self.step()
            self._waiter.wait(None if due_us is None else seconds_of_us(max(due_us - self._now_us(), Microseconds(0))))
            self._waiter.clear()

    def close(self) -> None:
        """Let `run` return, at the latest after the attempt it is in."""
        self._closed = True
        self._waiter.set()
