"""ASGI middleware in front of Dagster's UI that checks the host name, origin and token of each request.

Dagster's webserver serves every client, and every client can run the assets' code. GraphQL is the only concept of
Dagster that this module knows.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from cdc_platform.server.addresses import UiAddresses

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
AsgiApplication = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

HEALTH_PATH, READY_PATH = "/health", "/ready"
PROBE_PATHS = (HEALTH_PATH, READY_PATH)
"""The paths that require no token: `health.HealthApp`."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_GRAPHQL_TYPES = ("application/json", "application/graphql")
_POLICY_VIOLATION = 1008
_PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class HttpRefusal:
    """The status and the reason of a refused request."""

    status: HTTPStatus
    reason: str


class AuthMiddleware:
    """Passes on requests under an accepted host name that carry the token, or the cookie that was exchanged for it.

    A browser sends the token once, with the printed link, and receives a cookie. A program sends the token with every
    request, as `Authorization: Bearer TOKEN`. The cookie alone allows no changes: the requesting page must belong to
    this UI.
    """

    def __init__(self, application: AsgiApplication, names: UiAddresses, token: str) -> None:
        self._application = application
        self._names = names
        self._token = token
        # Cookies belong to a host and not to a port, so each `up` on a machine has its own cookie name.
        self._cookie_name = f"cdc-platform-{names.port}"
        self._cookie = hmac.new(token.encode(), b"cookie of a browser", hashlib.sha256).hexdigest()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Answer or pass on one request, one WebSocket, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        headers = request_headers(scope)
        refusal = self._of_the_name(headers) or self._of_the_page(headers)
        if refusal is None and self._is_link(scope):
            await self._let_in(scope, headers, send)
            return
        if not self._is_probe(scope):
            refusal = refusal or self._of_the_token(scope, headers)
        refusal = refusal or self._of_graphql(scope, headers)
        if refusal is None:
            await self._application(scope, receive, _with_frame_options(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": refusal.reason[:120]})
        else:
            await respond(send, refusal.status, f"{refusal.reason}\n".encode(), _PLAIN_TEXT)

    def _of_the_name(self, headers: dict[str, list[str]]) -> HttpRefusal | None:
        """Refuse an unknown `Host`.

        A foreign page can map its host name to 127.0.0.1, but its requests still carry that name.
        """
        hosts = headers.get("host", [])
        if len(hosts) == 1 and hosts[0].lower() in self._names.hosts:
            return None
        requested = ", ".join(hosts) or "no name"
        return HttpRefusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"nothing is served under {requested[:100]}; cdc-platform up --public-url names a proxy",
        )

    def _of_the_page(self, headers: dict[str, list[str]]) -> HttpRefusal | None:
        origins = headers.get("origin", [])
        if any(origin.lower() not in self._names.origins for origin in origins):
            return HttpRefusal(HTTPStatus.FORBIDDEN, f"pages of {', '.join(origins)[:100]} may not ask this server")
        # Covers what a foreign page loads without a script: pictures and scripts. A link that a person follows is
        # allowed.
        foreign = {"cross-site", "same-site"} & set(headers.get("sec-fetch-site", []))
        if foreign and headers.get("sec-fetch-mode") != ["navigate"]:
            return HttpRefusal(HTTPStatus.FORBIDDEN, "pages of other sites may not load anything from this server")
        return None

    def _of_the_token(self, scope: AsgiScope, headers: dict[str, list[str]]) -> HttpRefusal | None:
        if any(_equal_in_constant_time(given, f"Bearer {self._token}") for given in headers.get("authorization", [])):
            return None
        if self._has_cookie(headers):
            changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
            if not changes or headers.get("origin"):
                return None
            return HttpRefusal(
                HTTPStatus.FORBIDDEN, "the request names no origin; programs send Authorization: Bearer TOKEN"
            )
        return HttpRefusal(
            HTTPStatus.UNAUTHORIZED,
            "this Dagster requires a token: open the link printed by cdc-platform up, or send the header "
            "Authorization: Bearer TOKEN with the token of <home>/up/ui.token",
        )

    def _of_graphql(self, scope: AsgiScope, headers: dict[str, list[str]]) -> HttpRefusal | None:
        """Refuse GraphQL by GET or form POST, which a browser would send on behalf of any page."""
        if scope["type"] != "http" or scope["path"].rstrip("/") != f"{self._names.prefix}/graphql":
            return None
        if scope["method"] != "POST":
            has_query = "query" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            return HttpRefusal(HTTPStatus.METHOD_NOT_ALLOWED, "GraphQL requires POST") if has_query else None
        kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
        if kind in _GRAPHQL_TYPES:
            return None
        return HttpRefusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"GraphQL requires JSON, not {kind[:60] or 'nothing'}")

    def _is_probe(self, scope: AsgiScope) -> bool:
        """Return True for a request that supervisors send without the token. It reads no rows and changes nothing."""
        return (
            scope["type"] == "http"
            and scope["method"] in ("GET", "HEAD")
            and scope["path"] in {f"{self._names.prefix}{path}" for path in PROBE_PATHS}
        )

    def _is_link(self, scope: AsgiScope) -> bool:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"].rstrip("/") != self._names.prefix:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and _equal_in_constant_time(given[0], self._token)

    async def _let_in(self, scope: AsgiScope, headers: dict[str, list[str]], send: AsgiSend) -> None:
        """Give the browser its cookie and forward it to an address without the token.

        This is a page and not a redirect: on a redirect a browser does not send a strict cookie if it came from another
        site.
        """
        public = self._names.public
        secure = public is not None and public.scheme == "https" and headers["host"][0].lower() in public.hosts
        cookie = f"{self._cookie_name}={self._cookie}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
        root = html.escape(f"{self._names.prefix}/", quote=True)
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={root}"><a href="{root}">Dagster</a>'
        await respond(send, HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", (b"set-cookie", cookie.encode()))

    def _has_cookie(self, headers: dict[str, list[str]]) -> bool:
        for header in headers.get("cookie", []):
            for pair in header.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == self._cookie_name and _equal_in_constant_time(value, self._cookie):
                    return True
        return False


def _equal_in_constant_time(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def request_headers(scope: AsgiScope) -> dict[str, list[str]]:
    """Return the values of each header of a request, by its name in lower case."""
    values_by_name: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        values_by_name.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return values_by_name


def _with_frame_options(send: AsgiSend) -> AsgiSend:
    """Forbid other sites to embed the UI in a frame, where they could steer clicks on it."""

    async def with_header(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"x-frame-options", b"SAMEORIGIN")]
        await send(message)

    return with_header


async def respond(send: AsgiSend, status: HTTPStatus, body: bytes, kind: str, *more: tuple[bytes, bytes]) -> None:
    """Send a whole response of a content type `kind` that no cache stores."""
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        *more,
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
