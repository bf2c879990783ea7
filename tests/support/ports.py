"""Ports of loopback, for programs that listen at a given port."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Return distinct ports at which no process listens now on any loopback address."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for listener in sockets:
        listener.close()
    return ports


def is_open(port: int) -> bool:
    """Return True if a process listens at a port."""
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) == 0
