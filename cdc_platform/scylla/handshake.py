"""Ask a node for its options before login: CQL's OPTIONS and SUPPORTED over one short connection.

It distinguishes a server of another protocol from one that is down, and is the only source of the shards of old
versions.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cdc_platform.errors import InputError
from cdc_platform.scylla.errors import Refused, Unreachable, translate_connect_error

_VERSION, _OPTIONS, _SUPPORTED, _ERROR = 4, 0x05, 0x06, 0x00
_HEAD = struct.Struct(">BBhBi")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class NodeOptions:
    """The options that a node supports. `shards` and `ignore_msb` are None if the node is no ScyllaDB."""

    options: Mapping[str, tuple[str, ...]]

    @property
    def shards(self) -> int | None:
        """Return the node's number of shards."""
        return self._number("SCYLLA_NR_SHARDS")

    @property
    def ignore_msb(self) -> int | None:
        """Return how many most significant bits of a token the node's sharding ignores."""
        return self._number("SCYLLA_SHARDING_IGNORE_MSB")

    def _number(self, name: str) -> int | None:
        values = self.options.get(name, ())
        return int(values[0]) if values and values[0].isdigit() else None


class _ConnectionClosed(Exception):
    """The server closed the connection instead of answering."""


def probe_node(host: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> NodeOptions:
    """Ask a node which options it supports; `timeout` is in seconds, for each step.

    Raises:
        Unreachable: nothing listens or nothing answers.
        Refused: TLS or a certificate prevents the connection.
        InputError: the peer is no CQL server.
    """
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout) as plain:
            if tls is None:
                return _request_options(plain, where)
            with tls.wrap_socket(plain, server_hostname=host) as safe:
                return _request_options(safe, where)
    except _ConnectionClosed:
        if tls is None:
            raise Unreachable(
                f"{where}: the connection was closed immediately; if the node uses TLS, add --tls"
            ) from None
        # In TLS 1.3 a server that requires a certificate reports so after the client has completed the handshake.
        raise Refused(
            f"{where}: it closed the connection after the TLS handshake; if it requires a client certificate, pass "
            "--tls-cert and --tls-key"
        ) from None
    except OSError as error:
        raise translate_connect_error(error, where) from None


def _request_options(connection: socket.socket, where: str) -> NodeOptions:
    connection.sendall(_HEAD.pack(_VERSION, 0, 0, _OPTIONS, 0))
    head = _receive_exactly(connection, _HEAD.size, where)
    version, _, _, opcode, length = _HEAD.unpack(head)
    # A TLS server answers a message that is not TLS with an alert, whose first byte is 0x15.
    if head[0] == 0x15 and head[1] == 3:
        raise Unreachable(f"{where}: it accepts only TLS; add --tls")
    if version & 0x80 == 0 or version & 0x7F not in range(3, 6) or not 0 <= length <= _MAX_BYTES:
        raise InputError(f"{where}: the peer is no CQL server; check the port (CQL's is 9042)")
    body = _receive_exactly(connection, length, where)
    if opcode != _SUPPORTED:
        raise InputError(f"{where}: it answers CQL's OPTIONS with opcode {opcode}; ScyllaDB 4.3 or later is supported")
    return NodeOptions(_decode_multimap(body, where))


def _receive_exactly(connection: socket.socket, count: int, where: str) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            if received[:2] == b"\x15\x03":
                raise Unreachable(f"{where}: it accepts only TLS; add --tls")
            if received:
                raise InputError(f"{where}: the peer is no CQL server; check the port (CQL's is 9042)")
            raise _ConnectionClosed
        received += part
    return received


def _decode_multimap(body: bytes, where: str) -> dict[str, tuple[str, ...]]:
    """Decode CQL's [string multimap]: a count, then a name and a list of texts each, all with two-byte lengths."""
    at = 0

    def number() -> int:
        nonlocal at
        (value,) = struct.unpack_from(">H", body, at)
        at += 2
        return value

    def text() -> str:
        nonlocal at
        length = number()
        at += length
        return body[at - length : at].decode()

    try:
        options = {}
        for _ in range(number()):
            name = text()
            options[name] = tuple(text() for _ in range(number()))
    except (struct.error, UnicodeDecodeError):
        raise InputError(f"{where}: its list of supported options cannot be parsed; is it a CQL server?") from None
    return options
