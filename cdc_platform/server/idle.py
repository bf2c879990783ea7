"""Decide when the idle Spark Connect server of `up` may stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from cdc_platform.clock import SECOND_MS, Milliseconds
from cdc_platform.spark_server import ServerFile

_LOOKS = 10
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
    it. It is always needed if `after_ms` is 0 or the system does not report connections. `tell` publishes the server's
    address to clients again.
    """

    def __init__(
        self,
        file: ServerFile,
        server: ClientCountingServer,
        after_ms: Milliseconds,
        tell: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._server = server
        self._after = after_ms / SECOND_MS
        self._tell = tell
        self._clock = clock
        self._busy_at = self._looked_at = clock()
        self._wanted = file.wanted()
        self._asleep = False

    def needed(self) -> bool:
        """Return True if the server must run now. On False the caller stops the server before it asks again."""
        if not self._after:
            return True
        now = self._clock()
        wanted = self._file.wanted()
        if wanted != self._wanted:
            self._wanted, self._busy_at, self._asleep = wanted, now, False
        if self._asleep:
            return False
        if now - self._looked_at >= self._after / _LOOKS:
            self._looked_at = now
            if self._server.clients != 0:
                self._busy_at = now
        if now - self._busy_at < self._after:
            return True
        # A client requests the server before it reads its address. Either this check sees the request, or the client
        # reads the withdrawal.
        self._file.withdraw()
        if self._file.wanted() != self._wanted or self._server.clients != 0:
            self._tell()
            return True
        self._asleep = True
        return False
