"""Serve plots, report pages and the pages of invariants next to Dagster's UI, and generate missing pages on request.

This is an ASGI application. Its content security policy prevents everything that it serves from running code. A page
has one address, by its generation's key; every other name redirects to it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from cdc_platform.home_location import HomeLocation
from cdc_platform.plots import ui_files
from cdc_platform.server.auth import AsgiApplication, AsgiReceive, AsgiScope, AsgiSend
from cdc_platform.server.invariant_page import render_invariant_page

_CONTENT_TYPES = {".png": "image/png", ".html": "text/html; charset=utf-8"}
_PLAIN_TEXT = "text/plain; charset=utf-8"
_PAGE_SECONDS = 180
_CONTENT_SECURITY_POLICY = b"sandbox; default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class _FileResponse:
    """The response: the bytes of a file, the address that a page redirects to, or the reason why there is neither."""

    content: bytes = b""
    address: str = ""
    why: str = ""


class HomeFilesApp:
    """Serves files below `ui_files` and passes on all other requests; with `store_pages`, stores generated pages."""

    def __init__(
        self, application: AsgiApplication, home: HomeLocation, prefix: str = "", *, store_pages: bool = True
    ) -> None:
        self._application = application
        self._home = home
        self._prefix = prefix
        self._store_pages = store_pages
        self._one_at_a_time = asyncio.Lock()
        self._by_key: set[Path] = set()
        """Pages known to be named by the key of their generation, which never changes."""

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve or pass on one request."""
        below = f"{self._prefix}/{ui_files.UI_FOLDER}/"
        if scope["type"] != "http" or not scope["path"].startswith(below):
            await self._application(scope, receive, send)
            return
        file = ui_files.file_from_address(self._home.path, scope["path"].removeprefix(self._prefix))
        if scope["method"] not in ("GET", "HEAD"):
            await _respond(send, HTTPStatus.METHOD_NOT_ALLOWED, b"it can be looked at\n", _PLAIN_TEXT, "no-store")
            return
        page = self._invariant_page(scope["path"])
        if page is not None:
            page = b"" if scope["method"] == "HEAD" else page
            await _respond(send, HTTPStatus.OK, page, _CONTENT_TYPES[".html"], "no-cache")
            return
        response = _FileResponse(why="there is no such file") if file is None else await self._find(file)
        if response.address:
            location = f"{response.address}\n".encode()
            await _respond(
                send, HTTPStatus.FOUND, location, _PLAIN_TEXT, "no-store", (b"location", response.address.encode())
            )
        elif response.why or file is None:
            await _respond(send, HTTPStatus.NOT_FOUND, f"{response.why}\n".encode(), _PLAIN_TEXT, "no-store")
        else:
            content = b"" if scope["method"] == "HEAD" else response.content
            cache_control = "private, max-age=31536000, immutable" if file.suffix == ".png" else "no-cache"
            await _respond(send, HTTPStatus.OK, content, _CONTENT_TYPES[file.suffix], cache_control)

    def _invariant_page(self, path: str) -> bytes | None:
        name = ui_files.invariant_from_address(path.removeprefix(self._prefix))
        page = None if name is None else render_invariant_page(name)
        return None if page is None else page.encode()

    async def _find(self, file: Path) -> _FileResponse:
        if file.suffix == ".html" and file not in self._by_key:
            async with self._one_at_a_time:
                return await self._make(file)
        try:
            return _FileResponse(await asyncio.to_thread(file.read_bytes))
        except FileNotFoundError:
            if file.suffix == ".html":
                self._by_key.discard(file)
                return await self._find(file)
            return _FileResponse(why="this plot was deleted; materialize its asset again")

    async def _make(self, file: Path) -> _FileResponse:
        """Generate a page or resolve its generation's key, in a process that returns its memory when it ends."""
        name = ui_files.generation_key_from_name(file.name)
        command = [sys.executable, "-m", "cdc_platform.server.report_page", "--home", self._home.name]
        process = await asyncio.create_subprocess_exec(
            *command,
            *(["--store"] if self._store_pages else []),
            "--",
            name,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_PAGE_SECONDS):
                output, errors = await process.communicate()
        except TimeoutError:
            return _FileResponse(
                why=f"generating the page took longer than {_PAGE_SECONDS} s; use: cdc-platform report"
            )
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        line, _, content = output.partition(b"\n")
        page = ui_files.report_file(self._home.path, line.decode(errors="replace")) if process.returncode == 0 else None
        if page is None:
            return _FileResponse(why=errors.decode(errors="replace").strip()[-500:] or "there is no page for it")
        if page.file != file:
            return _FileResponse(address=f"{self._prefix}/{ui_files.UI_FOLDER}/{ui_files.UI_REPORTS}/{page.file.name}")
        if self._store_pages:
            self._by_key.add(file)
        return _FileResponse(content)


async def _respond(
    send: AsgiSend, status: HTTPStatus, body: bytes, kind: str, cache_control: str, *more: tuple[bytes, bytes]
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", cache_control.encode()),
        (b"content-security-policy", _CONTENT_SECURITY_POLICY),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
