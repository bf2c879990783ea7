"""Servers that do not speak CQL: they send the same response to the first bytes of every client, and close."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def listening(answer: bytes) -> Iterator[int]:
    """Run a server that responds to the first bytes of every client with `answer` and closes; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(64)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
