"""A real HTTP server on loopback that records posted documents."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """The posted documents in order, with their paths. `statuses` are the next responses; then it responds with 200."""

    url: str
    posted: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Run a receiver until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            if status == 200:
                receiver.posted.append(json.loads(body))
                receiver.paths.append(self.path)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
