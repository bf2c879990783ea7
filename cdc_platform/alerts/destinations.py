"""The destinations of alerts: a program, a webhook, and the services that Apprise knows.

Addresses are secrets. They are read when a message is sent, and no failure names them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

from cdc_platform.clock import seconds_from_ms
from cdc_platform.errors import EnvironmentProblem, PlatformError
from cdc_platform.home_location import HomeLocation
from cdc_platform.storage import read_user_bytes

_MAX_ADDRESS_BYTES = 1 << 16
_REMEDY = "see [alerts] in settings.toml"


class Destination(Protocol):
    """Where alerts are sent. `name` identifies it in the stored state and in warnings."""

    @property
    def name(self) -> str: ...

    def send(self, document: Mapping[str, str | None]) -> str | None:
        """Send one message; return why it failed, without any address, or None.

        Raises:
            PlatformError: the destination is not set up correctly.
        """
        ...


@dataclass(frozen=True)
class Program:
    """A program that gets each message as a JSON line on its standard input."""

    home: HomeLocation
    name: str = "command"

    def send(self, document: Mapping[str, str | None]) -> str | None:
        # Imported late: with the registry of clusters it loads Delta, which no other destination needs.
        from cdc_platform.alerts.hooks import Hook

        settings = self.home.settings.alerts
        hook = Hook.find(self.home, settings.command, settings.timeout_ms)
        failure = hook.pipe(document, f"program {hook.program}")
        return None if failure is None else failure.line


@dataclass(frozen=True)
class Webhook:
    """A URL that gets each message as a JSON POST. Every status but 2xx is a failure; redirects are not followed."""

    address: Address
    timeout_seconds: float
    name: str = "webhook"

    def send(self, document: Mapping[str, str | None]) -> str | None:
        url = self.address.read()[0]
        if urlsplit(url).scheme not in ("http", "https"):
            raise EnvironmentProblem(f"{self.address.origin} has no http:// or https:// address; {_REMEDY}")
        headers = {"Content-Type": "application/json", "User-Agent": "cdc-platform"}
        try:
            request = urllib.request.Request(url, json.dumps(document).encode(), headers, method="POST")
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout_seconds):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            return f"the receiver answered {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            # The text of such an error may contain the address.
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            detail = reason.strerror if isinstance(reason, OSError) else None
            return f"the receiver was not reached ({detail or type(reason).__name__})"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error, because urllib would repeat the request as a GET without the message."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


@dataclass(frozen=True)
class Services:
    """Services such as Slack and PagerDuty, by Apprise's addresses."""

    address: Address
    timeout_seconds: float
    name: str = "apprise"

    def send(self, document: Mapping[str, str | None]) -> str | None:
        try:
            import apprise
        except ImportError:
            raise EnvironmentProblem(
                "Apprise is not installed; run: pip install 'cdc-platform[alerts]', or remove the key"
            ) from None
        with _silent_logs():
            services = apprise.Apprise()
            for url in self.address.read():
                if not services.add(self._with_options(url, document)):
                    raise EnvironmentProblem(f"{self.address.origin} has an address that Apprise does not know")
            kinds = {"error": apprise.NotifyType.FAILURE, "warning": apprise.NotifyType.WARNING}
            kind = kinds.get(document["level"] or "", apprise.NotifyType.INFO)
            if document["status"] == "resolved":
                kind = apprise.NotifyType.SUCCESS
            sent = services.notify(body=_format_text(document), title=_format_title(document), notify_type=kind)
        return None if sent else "a service did not accept the message"

    def _with_options(self, url: str, document: Mapping[str, str | None]) -> str:
        """Add the time limit, and for PagerDuty the key by which it resolves the incident."""
        options = [f"rto={self.timeout_seconds:g}", f"cto={self.timeout_seconds:g}"]
        if url.startswith("pagerduty://"):
            options += ["action=map", f"dedup={hashlib.sha256((document['key'] or '').encode()).hexdigest()}"]
        return f"{url}{'&' if '?' in url else '?'}{'&'.join(options)}"


@dataclass(frozen=True)
class Address:
    """Where a secret address is: an environment variable, or a file that only its owner can read."""

    variable: str
    file: str

    @property
    def origin(self) -> str:
        """Return what people call the place."""
        return f"environment variable {self.variable}" if self.variable else f"file {self.file}"

    def read(self) -> list[str]:
        """Return the addresses, one for each line that is not empty.

        Raises:
            EnvironmentProblem: the variable is not set; the file is missing or others can read it; there is none.
        """
        text = os.environ.get(self.variable, "") if self.variable else self._read_file(Path(self.file).expanduser())
        addresses = [line.strip() for line in text.splitlines() if line.strip()]
        if not addresses or not all(line.isprintable() for line in addresses):
            raise EnvironmentProblem(f"{self.origin} holds no address; {_REMEDY}")
        return addresses

    def _read_file(self, path: Path) -> str:
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise EnvironmentProblem(f"others can access {path}; run: chmod 0600 {path}")
            return read_user_bytes(path, _MAX_ADDRESS_BYTES, f"file {path}").decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise EnvironmentProblem(f"file {path}: {reason}; {_REMEDY}") from None
        except EnvironmentProblem:
            raise
        except PlatformError as error:
            raise EnvironmentProblem(str(error)) from None


def list_destinations(home: HomeLocation) -> list[Program | Webhook | Services]:
    """Return the destinations of a home's settings; reading this needs no secret."""
    settings = home.settings.alerts
    seconds = seconds_from_ms(settings.timeout_ms)
    destinations: list[Program | Webhook | Services] = []
    if settings.command:
        destinations.append(Program(home))
    if settings.webhook_env or settings.webhook_file:
        destinations.append(Webhook(Address(settings.webhook_env, settings.webhook_file), seconds))
    if settings.apprise_env or settings.apprise_file:
        destinations.append(Services(Address(settings.apprise_env, settings.apprise_file), seconds))
    return destinations


def read_addresses(home: HomeLocation) -> Iterator[str]:
    """Yield the secret addresses of a home's destinations that this process can read, so that texts can redact them."""
    for destination in list_destinations(home):
        if not isinstance(destination, Program):
            with suppress(EnvironmentProblem):
                yield from destination.address.read()


def _format_title(document: Mapping[str, str | None]) -> str:
    status = "resolved" if document["status"] == "resolved" else document["level"]
    return f"cdc-platform {status}: {document['key']}"


def _format_text(document: Mapping[str, str | None]) -> str:
    lines = [document["message"], f"Home: {document['home']}"]
    if document["status"] == "resolved":
        lines.append(f"Resolved at {document['resolved_at']}, open since {document['raised_at']}.")
    elif document["command"]:
        lines.append(f"Run: {document['command']}")
    return "\n".join(line for line in lines if line)


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Silence Apprise and its HTTP client, whose logs contain addresses."""
    loggers = [logging.getLogger(name) for name in ("apprise", "urllib3", "urllib3.connectionpool")]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
