"""Serve /health and /ready next to Dagster's UI, for supervisors and load balancers.

/health answers as long as the process serves requests. /ready names each part that the UI needs and, with status 503,
why one of them is not ready. Neither requires the UI's token, so the reasons contain no paths, addresses or rows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from cdc_platform.errors import PlatformError
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.server.auth import HEALTH_PATH, READY_PATH, AsgiApplication, AsgiReceive, AsgiScope, AsgiSend, respond

if TYPE_CHECKING:
    from dagster import DagsterInstance

_PART_TIMEOUT_SECONDS = 10.0
_JSON, _PLAIN_TEXT = "application/json", "text/plain; charset=utf-8"

ReadyCheck = Callable[[], str | None]
"""Returns why a part is not ready, or None. It runs in a thread; what it raises is a reason, too."""


class HealthApp:
    """Serves /health and /ready, and passes on all other requests. Requests that come while a part is checked share
    that check, so any number of them causes one check of each part at a time.
    """

    def __init__(self, application: AsgiApplication, parts: Mapping[str, ReadyCheck], prefix: str = "") -> None:
        self._application = application
        self._parts = parts
        self._health, self._ready = f"{prefix}{HEALTH_PATH}", f"{prefix}{READY_PATH}"
        # A thread for each part: one that hangs delays no other.
        self._threads = ThreadPoolExecutor(len(parts), "ready")
        self._running: dict[str, asyncio.Future[str | None]] = {}

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve or pass on one request."""
        if scope["type"] != "http" or scope["path"] not in (self._health, self._ready):
            await self._application(scope, receive, send)
            return
        if scope["method"] not in ("GET", "HEAD"):
            await respond(
                send, HTTPStatus.METHOD_NOT_ALLOWED, b"probes can only be read\n", "text/plain; charset=utf-8"
            )
            return
        document: dict[str, Any] = {"status": "ok"} if scope["path"] == self._health else await self._readiness()
        status = HTTPStatus.OK if document.get("ready", True) else HTTPStatus.SERVICE_UNAVAILABLE
        body = b"" if scope["method"] == "HEAD" else f"{json.dumps(document)}\n".encode()
        await respond(send, status, body, _JSON)

    async def _readiness(self) -> dict[str, Any]:
        reasons = await asyncio.gather(*(self._reason(name) for name in self._parts))
        parts = {
            name: {"ready": reason is None, "reason": reason} for name, reason in zip(self._parts, reasons, strict=True)
        }
        return {"ready": all(reason is None for reason in reasons), "parts": parts}

    async def _reason(self, name: str) -> str | None:
        """Return why a part is not ready, by the check in progress or a new one; None if it is ready."""
        running = self._running.get(name)
        if running is None or running.done():
            running = asyncio.get_running_loop().run_in_executor(self._threads, _reason_of, self._parts[name])
            self._running[name] = running
        try:
            return await asyncio.wait_for(asyncio.shield(running), _PART_TIMEOUT_SECONDS)
        except TimeoutError:
            return f"does not answer within {_PART_TIMEOUT_SECONDS:g} s"


def _reason_of(check: ReadyCheck) -> str | None:
    try:
        return check()
    except PlatformError as error:
        return f"failed with [{error.code}]"
    except Exception as error:  # noqa: BLE001 drivers of databases and stores raise their own classes
        return f"failed with {type(error).__name__}"


def home_check(home: HomeLocation) -> ReadyCheck:
    """Return a check that the home exists, is readable and has a layout that this version supports."""

    def check() -> None:
        open_home_location(home.name, create=False)

    return check


def storage_check(instance: DagsterInstance) -> ReadyCheck:
    """Return a check that Dagster's storage of runs and that of events answer a query each."""

    def check() -> None:
        instance.get_runs(limit=1)
        instance.event_log_storage.get_concurrency_keys()

    return check


def code_location_check(workspace: Any) -> ReadyCheck:
    """Return a check that every code location of a workspace context has loaded and that its server answers."""

    def check() -> str | None:
        entries = workspace.create_request_context().get_code_location_entries()
        if not entries:
            return "no code location is configured"
        for name, entry in entries.items():
            if entry.load_error is not None:
                return f"{name} failed to load; the UI shows the error"
            if entry.code_location is None:
                return f"{name} is loading"
            entry.code_location.client.ping("ready")
        return None

    return check
