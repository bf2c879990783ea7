"""Decide when the idle Spark Connect server of `up` may stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from cdc_platform.clock import SECOND_MS, Milliseconds
from cdc_platform.spark_server import ServerFile

_CHECKS = 10
"""The number of connection checks within the idle time.

A connection that opens and closes between two checks is missed, unless its client requested the server, as all of the
platform's clients do.
"""


class ClientCountingServer(Protocol):
    """A server that knows its number of clients."""

    @property
    def clients(self) -> int | None:
        """Return the number of open connections, or None if the system does not report it."""
        ...


class IdleMonitor:
    """Decides whether a server is needed. The caller that keeps the server running asks repeatedly.

    After `after_ms` without a request and without a connection the server is no longer needed, until a client requests
    it. It is always needed if `after_ms` is 0 or the system does not report connections. `publish` shows
    clients the server's address again.
    """

    def __init__(
        self,
        file: ServerFile,
        server: ClientCountingServer,
        after_ms: Milliseconds,
        publish: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._server = server
        self._after = after_ms / SECOND_MS
        self._publish = publish
        self._clock = clock
        self._busy_at = self._checked_at = clock()
        self._last_request = file.last_request()
        self._asleep = False

    def needed(self) -> bool:
        """Return True if the server must run now. On False the caller stops the server before it asks again."""
        if not self._after:
            return True
        now = self._clock()
        last_request = self._file.last_request()
        if last_request != self._last_request:
            self._last_request, self._busy_at, self._asleep = last_request, now, False
        if self._asleep:
            return False
        if now - self._checked_at >= self._after / _CHECKS:
            self._checked_at = now
            if self._server.clients != 0:
                self._busy_at = now
        if now - self._busy_at < self._after:
            return True
        # A client requests the server before it reads its address. Either this check sees the request, or the client
        # reads the withdrawal.
        self._file.withdraw()
        if self._file.last_request() != self._last_request or self._server.clients != 0:
            self._publish()
            return True
        self._asleep = True
        return False
