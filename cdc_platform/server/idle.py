"""Decide when the idle Spark Connect server of `up` may stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from cdc_platform.clock import SECOND_MS, Milliseconds
from cdc_platform.spark_server import ServerFile

_LOOKS = 10
"""How often its connections are looked at in the time after which it sleeps: one that came and went in between is
missed, unless its client has said that it wants the server, as all of the platform's do."""


class ClientCountingServer(Protocol):
    """A server that knows how many clients it has."""

    @property
    def clients(self) -> int | None:
        """How many connections are open to it, None where the system does not say."""
        ...


class IdleMonitor:
    """Whether a server is needed, asked again and again by who keeps it running.

    `after_ms` without a wish and without a connection it is needed no more, until somebody wants it; 0 and a system
    that does not tell connections: it is needed always. `tell` tells clients again where the server is.
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
        """Whether the server is to run now. Who hears that it is not ends it before the next question."""
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
        # A client wants the server before it reads where that is: seen here, or it finds what is written here.
        self._file.withdraw()
        if self._file.wanted() != self._wanted or self._server.clients != 0:
            self._tell()
            return True
        self._asleep = True
        return False
