"""Serve the metrics of a home at /metrics, next to Dagster's UI and behind the same authentication.

This is an ASGI application. One thread reads the home, whose open tables it keeps. Requests that come while it reads
share its result, so any number of scrapers causes one read at a time.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

from cdc_platform.clock import Clock
from cdc_platform.home_location import HomeLocation
from cdc_platform.server.auth import AsgiApplication, AsgiReceive, AsgiScope, AsgiSend, request_headers, respond

if TYPE_CHECKING:
    from cdc_platform.metrics import HomeMetrics, Scrape

METRICS_PATH = "/metrics"
_SCRAPE_TIMEOUT_SECONDS = 30.0
_PLAIN_TEXT = "text/plain; charset=utf-8"


class MetricsApp:
    """Serves the metrics and passes on all other requests."""

    def __init__(self, application: AsgiApplication, home: HomeLocation, clock: Clock, prefix: str = "") -> None:
        self._application = application
        self._home, self._clock = home, clock
        self._path = f"{prefix}{METRICS_PATH}"
        self._reader = ThreadPoolExecutor(1, "metrics")
        self._metrics: HomeMetrics | None = None
        self._running: asyncio.Future[Scrape] | None = None

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve or pass on one request."""
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._application(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await respond(send, HTTPStatus.METHOD_NOT_ALLOWED, b"metrics can only be read\n", _PLAIN_TEXT)
            return
        from cdc_platform.metrics import format_metrics

        try:
            scrape = await asyncio.wait_for(asyncio.shield(self._scrape()), _SCRAPE_TIMEOUT_SECONDS)
        except TimeoutError:
            why = f"reading the home takes longer than {_SCRAPE_TIMEOUT_SECONDS:g} s\n".encode()
            await respond(send, HTTPStatus.SERVICE_UNAVAILABLE, why, _PLAIN_TEXT)
            return
        text, content_type = format_metrics(scrape, ",".join(request_headers(scope).get("accept", [])))
        await respond(send, HTTPStatus.OK, b"" if scope["method"] == "HEAD" else text, content_type)

    def _scrape(self) -> asyncio.Future[Scrape]:
        """Return the scrape in progress, or start one."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().run_in_executor(self._reader, self._read)
        return self._running

    def _read(self) -> Scrape:
        """Read the home, in the thread that keeps its tables open."""
        from cdc_platform.metrics import HomeMetrics

        if self._metrics is None:
            self._metrics = HomeMetrics(self._home, self._clock)
        return self._metrics.scrape()
