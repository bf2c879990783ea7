"""The HTTP server of the UI: uvicorn's, which by itself looks ten times a second whether it has been asked to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

TICK_SECONDS = 1.0
"""How often answers get another date."""


class PageServer(uvicorn.Server):
    """Looks once a second, and at once when it is asked to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wake: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        """Serve until it is asked to end."""
        asked, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(asked.set)
        # To uvicorn it is every tenth of its ticks, at which it also does what it does once a second.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), TICK_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's, which says that it is to end; and look."""
        super().handle_exit(sig, frame)
        self._wake()
