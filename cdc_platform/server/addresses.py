"""Addresses under which the UI accepts requests, and the socket that it listens on.

A page of another site can make a browser request any address, so the UI serves only these host names.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from cdc_platform.errors import InputError

CODE_SERVER_SECONDS = 180
_POLL_SECONDS = 0.1
LOOPBACK = "127.0.0.1"
_LOCAL_NAMES = (LOOPBACK, "localhost")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class PublicUrl:
    """The address of a proxy in front of the UI: `scheme://host[:port][/prefix]`. Created by `parse_public_url`."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def hosts(self) -> frozenset[str]:
        """Return the values that a browser may send in `Host`. The port is optional if it is the scheme's default."""
        with_port = {f"{self.host}:{self.port}"}
        return frozenset(with_port | {self.host} if self.port == _DEFAULT_PORTS[self.scheme] else with_port)

    @property
    def url(self) -> str:
        """Return the address without a trailing slash."""
        return f"{self.scheme}://{min(self.hosts, key=len)}{self.prefix}"


def parse_public_url(text: str) -> PublicUrl:
    """Parse the address of a proxy as a person writes it.

    Raises:
        InputError: the text is not an http or https address, or has more than a host, a port and a path.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"--public-url {text!r}: {error}; write https://HOST[:PORT][/PATH]") from None
    unfit = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or unfit:
        raise InputError(f"--public-url {text!r} is no proxy address; write https://HOST[:PORT][/PATH]")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return PublicUrl(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/"))


@dataclass(frozen=True)
class UiAddresses:
    """The names under which the UI accepts requests: at a loopback port, and through a proxy."""

    port: int
    public: PublicUrl | None = None

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Return the accepted values of `Host`."""
        local = {f"{name}:{self.port}" for name in _LOCAL_NAMES}
        return frozenset(local | self.public.hosts if self.public else local)

    @cached_property
    def origins(self) -> frozenset[str]:
        """Return the accepted values of `Origin`, which are the pages of the UI itself."""
        local = {f"http://{name}:{self.port}" for name in _LOCAL_NAMES}
        proxied = {f"{self.public.scheme}://{host}" for host in self.public.hosts} if self.public else set()
        return frozenset(local | proxied)

    @property
    def prefix(self) -> str:
        """Return the path prefix of the UI, empty for the root."""
        return self.public.prefix if self.public else ""

    @property
    def local_url(self) -> str:
        """Return the address on this machine, without a trailing slash."""
        return f"http://{LOOPBACK}:{self.port}{self.prefix}"

    @property
    def url(self) -> str:
        """Return the address that a person opens."""
        return self.public.url if self.public else self.local_url


def await_code_server(workspace: Path) -> None:
    """Wait until the code server of a workspace file listens. Dagster would report it as broken before that.

    Raises:
        TimeoutError: the code server does not listen in time.
    """
    path = json.loads(workspace.read_text(encoding="utf-8"))["load_from"][0]["grpc_server"]["socket"]
    deadline = time.monotonic() + CODE_SERVER_SECONDS
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"the code server at {path} does not listen after {CODE_SERVER_SECONDS} s")


def listen_on_loopback(port: int) -> socket.socket:
    """Open a listening socket at a loopback port, 0 for any. Holding it reserves the port before anything is served.

    Raises:
        OSError: the port is taken.
    """
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((LOOPBACK, port))
        bound.listen(2048)
    except OSError:
        bound.close()
        raise
    return bound
