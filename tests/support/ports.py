"""Ports of loopback, for programs that are told at which one to listen."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at on any loopback address now, each another."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def is_open(port: int) -> bool:
    """Whether somebody listens at a port."""
    with socket.socket() as door:
        return door.connect_ex(("127.0.0.1", port)) == 0
