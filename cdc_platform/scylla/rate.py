"""Measure the reads of log and table rows in a session, and hold them to a rate by token buckets.

A bucket fills at the rate, up to one second's worth, and starts empty. A request takes one token. The rows of a page
are known when it arrives, so they are taken then, into debt if need be; the next request waits until the debt is paid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

_PAGES_A_SECOND = 4
"""Pages are small enough that a second's rows take as many of them: several may be in flight."""

_NEGLIGIBLE = 1e-6
"""Missing tokens that are rounding errors; waiting for them might not end."""


class TokenBucket:
    """A token bucket of `rate` tokens per second that holds at most one second's worth, and may go into debt."""

    def __init__(
        self, rate: float, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate, self._now, self._sleep = rate, now, sleep
        self._tokens, self._filled_at = 0.0, now()
        self._lock = threading.Lock()

    def take(self, tokens: float) -> None:
        """Take tokens, into debt if there are not enough."""
        with self._lock:
            self._fill()
            self._tokens -= tokens

    def await_tokens(self, tokens: float) -> None:
        """Wait until the bucket has so many tokens, 0 for no debt."""
        while True:
            with self._lock:
                self._fill()
                missing = tokens - self._tokens
            if missing <= _NEGLIGIBLE:
                return
            self._sleep(missing / self._rate)

    def _fill(self) -> None:
        now = self._now()
        self._tokens = min(self._rate, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now


@dataclass
class ReadTraffic:
    """Requests (one per page) and rows that a session read, and the seconds from the first request to the last page."""

    requests: int = 0
    rows: int = 0
    seconds: float = 0.0

    def plus(self, other: ReadTraffic) -> ReadTraffic:
        """Return the traffic of both."""
        return ReadTraffic(
            self.requests + other.requests, self.rows + other.rows, round(self.seconds + other.seconds, 3)
        )

    @property
    def rows_per_second(self) -> float | None:
        """Return the measured rate of rows; None if nothing was read."""
        return round(self.rows / self.seconds, 1) if self.seconds else None

    @property
    def requests_per_second(self) -> float | None:
        """Return the measured rate of requests; None if nothing was read."""
        return round(self.requests / self.seconds, 1) if self.seconds else None


def sum_traffic(parts: Iterable[ReadTraffic]) -> ReadTraffic:
    """Return the traffic of several reads, one after the other."""
    return reduce(ReadTraffic.plus, parts, ReadTraffic())


class ReadMeter:
    """Counts the pages and rows that a session reads, and delays its requests to keep to the rates, if given."""

    def __init__(self, rows_per_second: int | None, requests_per_second: int | None) -> None:
        self._rows_rate = rows_per_second
        self._rows = None if rows_per_second is None else TokenBucket(rows_per_second)
        self._requests = None if requests_per_second is None else TokenBucket(requests_per_second)
        self._traffic, self._first_at = ReadTraffic(), 0.0

    @property
    def is_limited(self) -> bool:
        """Return True if a rate is given."""
        return self._rows is not None or self._requests is not None

    def limit_page(self, rows: int) -> int:
        """Return the size of a page, `rows` or less."""
        return rows if self._rows_rate is None else max(1, min(rows, self._rows_rate // _PAGES_A_SECOND))

    def await_request(self) -> None:
        """Wait until a request may be sent, and count it."""
        if self._rows is not None:
            self._rows.await_tokens(0)
        if self._requests is not None:
            self._requests.await_tokens(1)
            self._requests.take(1)
        if not self._traffic.requests:
            self._first_at = time.monotonic()
        self._traffic.requests += 1

    def count_page(self, rows: int) -> None:
        """Count the rows of a page that arrived."""
        if self._rows is not None:
            self._rows.take(rows)
        self._traffic.rows += rows
        self._traffic.seconds = round(time.monotonic() - self._first_at, 3)

    @contextmanager
    def measure(self) -> Iterator[ReadTraffic]:
        """Yield what is read within the block, counted as it happens."""
        self._traffic = ReadTraffic()
        yield self._traffic
