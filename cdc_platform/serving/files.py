"""Pictures and pages of a home, served beside Dagster's UI and behind its gate; a page that is not there is made.

An ASGI application around the UI's. What it serves can run nothing in a browser, whoever has written it.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from pathlib import Path

from cdc_platform import shown
from cdc_platform.home import Home
from cdc_platform.serving.gate import Application, Receive, Scope, Send

_KINDS = {".png": "image/png", ".html": "text/html; charset=utf-8"}
_PAGE_SECONDS = 180
_INERT = b"sandbox; default-src 'none'; style-src 'unsafe-inline'"


class ShownFiles:
    """Answers what is asked for below `shown`, and passes on everything else."""

    def __init__(self, application: Application, home: Home, prefix: str = "") -> None:
        self._application = application
        self._home = home
        self._prefix = prefix
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        below = f"{self._prefix}/{shown.FOLDER}/"
        if scope["type"] != "http" or not scope["path"].startswith(below):
            await self._application(scope, receive, send)
            return
        file = shown.found(self._home.path, scope["path"].removeprefix(self._prefix))
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, HTTPStatus.METHOD_NOT_ALLOWED, b"it can be looked at\n", "text/plain", "no-store")
            return
        why = "there is no such file" if file is None else await self._missing(file)
        if file is None or why:
            await _answer(send, HTTPStatus.NOT_FOUND, f"{why}\n".encode(), "text/plain; charset=utf-8", "no-store")
            return
        content = b"" if scope["method"] == "HEAD" else await asyncio.to_thread(file.read_bytes)
        kept = "private, max-age=31536000, immutable" if file.suffix == ".png" else "no-cache"
        await _answer(send, HTTPStatus.OK, content, _KINDS[file.suffix], kept)

    async def _missing(self, file: Path) -> str:
        """Why a file is not there and cannot be made; empty where it is there."""
        if file.exists():
            return ""
        if file.suffix != ".html":
            return "this picture is gone; materialise its asset again for a new one"
        async with self._one_at_a_time:
            return "" if file.exists() else await self._make(file)

    async def _make(self, file: Path) -> str:
        """Make a page in a process of its own, whose memory goes with it; why it cannot be made, or nothing."""
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cdc_platform", "--home", self._home.name, "report", shown.key_of(file.name)]
        making = await asyncio.create_subprocess_exec(
            *command, "--html", str(file), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_PAGE_SECONDS):
                _, said = await making.communicate()
        except TimeoutError:
            return f"it takes longer than {_PAGE_SECONDS} s; make it with: cdc-platform report"
        finally:
            if making.returncode is None:
                making.kill()
                await making.wait()
        return "" if file.exists() else said.decode(errors="replace").strip()[-500:]


async def _answer(send: Send, status: HTTPStatus, body: bytes, kind: str, kept: str) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", kept.encode()),
        (b"content-security-policy", _INERT),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
