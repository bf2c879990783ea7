"""Pictures and pages of a home, served beside Dagster's UI and behind its gate; a page that is not there is made.

An ASGI application around the UI's. What it serves can run nothing in a browser, whoever has written it. A page has one
address, by its generation's key: every other name of the generation, which may be another's tomorrow, redirects there.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from cdc_platform import shown
from cdc_platform.home import Home
from cdc_platform.serving.gate import Application, Receive, Scope, Send

_KINDS = {".png": "image/png", ".html": "text/html; charset=utf-8"}
_PLAIN = "text/plain; charset=utf-8"
_PAGE_SECONDS = 180
_INERT = b"sandbox; default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class _Found:
    """What is answered: the bytes of a file, the address of a page under its own name, or why there is neither."""

    content: bytes = b""
    address: str = ""
    why: str = ""


class ShownFiles:
    """Answers what is asked for below `shown`, and passes on everything else. `keeps`: pages that it makes stay."""

    def __init__(self, application: Application, home: Home, prefix: str = "", *, keeps: bool = True) -> None:
        self._application = application
        self._home = home
        self._prefix = prefix
        self._keeps = keeps
        self._one_at_a_time = asyncio.Lock()
        self._by_key: set[Path] = set()
        """Pages that were found to be named by the key of their generation, which never changes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        below = f"{self._prefix}/{shown.FOLDER}/"
        if scope["type"] != "http" or not scope["path"].startswith(below):
            await self._application(scope, receive, send)
            return
        file = shown.found(self._home.path, scope["path"].removeprefix(self._prefix))
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, HTTPStatus.METHOD_NOT_ALLOWED, b"it can be looked at\n", _PLAIN, "no-store")
            return
        found = _Found(why="there is no such file") if file is None else await self._find(file)
        if found.address:
            there = f"{found.address}\n".encode()
            await _answer(send, HTTPStatus.FOUND, there, _PLAIN, "no-store", (b"location", found.address.encode()))
        elif found.why or file is None:
            await _answer(send, HTTPStatus.NOT_FOUND, f"{found.why}\n".encode(), _PLAIN, "no-store")
        else:
            content = b"" if scope["method"] == "HEAD" else found.content
            kept = "private, max-age=31536000, immutable" if file.suffix == ".png" else "no-cache"
            await _answer(send, HTTPStatus.OK, content, _KINDS[file.suffix], kept)

    async def _find(self, file: Path) -> _Found:
        if file.suffix == ".html" and file not in self._by_key:
            async with self._one_at_a_time:
                return await self._make(file)
        try:
            return _Found(await asyncio.to_thread(file.read_bytes))
        except FileNotFoundError:
            if file.suffix == ".html":
                self._by_key.discard(file)
                return await self._find(file)
            return _Found(why="this picture is gone; materialise its asset again for a new one")

    async def _make(self, file: Path) -> _Found:
        """Have the page of a name made, or its generation's key found, in a process whose memory goes with it."""
        name = shown.key_of(file.name)
        command = [sys.executable, "-m", "cdc_platform.serving.report_page", "--home", self._home.name]
        making = await asyncio.create_subprocess_exec(
            *command,
            *(["--keep"] if self._keeps else []),
            "--",
            name,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_PAGE_SECONDS):
                made, said = await making.communicate()
        except TimeoutError:
            return _Found(why=f"it takes longer than {_PAGE_SECONDS} s; make it with: cdc-platform report")
        finally:
            if making.returncode is None:
                making.kill()
                await making.wait()
        line, _, content = made.partition(b"\n")
        page = shown.report(self._home.path, line.decode(errors="replace")) if making.returncode == 0 else None
        if page is None:
            return _Found(why=said.decode(errors="replace").strip()[-500:] or "there is no page of it")
        if page.file != file:
            return _Found(address=f"{self._prefix}/{shown.FOLDER}/{shown.REPORTS}/{page.file.name}")
        if self._keeps:
            self._by_key.add(file)
        return _Found(content)


async def _answer(
    send: Send, status: HTTPStatus, body: bytes, kind: str, kept: str, *more: tuple[bytes, bytes]
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", kept.encode()),
        (b"content-security-policy", _INERT),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
