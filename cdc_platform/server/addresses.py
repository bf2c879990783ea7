"""Addresses under which the UI may be requested, and the socket that it listens on.

A page of another site can make a browser request any address, so only these host names are served.
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
    """Where a proxy in front of the UI answers: `scheme://host[:port][/prefix]`. Made by `parse_public_url`."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def hosts(self) -> frozenset[str]:
        """What a browser may write into `Host`: without the port where it is the scheme's own."""
        named = {f"{self.host}:{self.port}"}
        return frozenset(named | {self.host} if self.port == _DEFAULT_PORTS[self.scheme] else named)

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return f"{self.scheme}://{min(self.hosts, key=len)}{self.prefix}"


def parse_public_url(text: str) -> PublicUrl:
    """The address of a proxy, as a person writes it.

    Raises:
        InputError: it is no http or https address, or has more than a host, a port and a path.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"--public-url {text!r}: {error}; it is written https://HOST[:PORT][/PATH]") from None
    unfit = parts.username or parts.password or parts.query or parts.fragment
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or unfit:
        raise InputError(f"--public-url {text!r} is no address of a proxy; it is written https://HOST[:PORT][/PATH]")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return PublicUrl(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/"))


@dataclass(frozen=True)
class UiAddresses:
    """Under which names the UI may be asked for, at a port of loopback and by way of a proxy."""

    port: int
    public: PublicUrl | None = None

    @cached_property
    def hosts(self) -> frozenset[str]:
        """What may be in `Host`."""
        local = {f"{name}:{self.port}" for name in _LOCAL_NAMES}
        return frozenset(local | self.public.hosts if self.public else local)

    @cached_property
    def origins(self) -> frozenset[str]:
        """What may be in `Origin`: the pages of the UI itself."""
        local = {f"http://{name}:{self.port}" for name in _LOCAL_NAMES}
        there = {f"{self.public.scheme}://{host}" for host in self.public.hosts} if self.public else set()
        return frozenset(local | there)

    @property
    def prefix(self) -> str:
        """The path below which all of it is, empty where it is the root."""
        return self.public.prefix if self.public else ""

    @property
    def local_url(self) -> str:
        """The address on this machine, without a slash at its end."""
        return f"http://{LOOPBACK}:{self.port}{self.prefix}"

    @property
    def url(self) -> str:
        """The address that a person opens."""
        return self.public.url if self.public else self.local_url


def await_code_server(workspace: Path) -> None:
    """Wait until the code server of a workspace file listens: before, Dagster would take it for broken.

    Raises:
        TimeoutError: it does not.
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
    """A socket that listens on a port of loopback, 0 for any: whoever holds it has the port, before anything is served.

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
