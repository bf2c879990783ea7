"""The gate before the UI, on a real server: who has access, and every attempt without it."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cdc_platform.errors import InputError
from cdc_platform.server import LOOPBACK, UiAddresses, listen_on_loopback, parse_public_url
from cdc_platform.server.auth import AuthMiddleware

TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


async def protected_app(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request and greet WebSockets, as the application that the gate protects."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "inside"})


@dataclass(frozen=True)
class Served:
    """A gate that is served at a port."""

    names: UiAddresses

    @property
    def host(self) -> str:
        """Return what a browser writes into `Host`."""
        return f"{LOOPBACK}:{self.names.port}"

    def ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
        """Return status, text and headers of one response; a given `Host` counts."""
        connection = http.client.HTTPConnection(LOOPBACK, self.names.port, timeout=30)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in ({"Host": self.host} | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        result = (answer.status, answer.read().decode(), dict(answer.getheaders()))
        connection.close()
        return result

    def cookie(self) -> dict[str, str]:
        """Return the cookie that a browser gets for the printed link."""
        cookie = self.ask("GET", f"{self.names.prefix}/?token={TOKEN}", {})[2]["set-cookie"]
        return {"Cookie": cookie.partition(";")[0]}


def serve(public: str | None = None) -> Iterator[Served]:
    """Serve a gate on a separate server."""
    bound = listen_on_loopback(0)
    names = UiAddresses(bound.getsockname()[1], parse_public_url(public) if public else None)
    server = uvicorn.Server(
        uvicorn.Config(AuthMiddleware(protected_app, names, TOKEN), log_level="warning", proxy_headers=False)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield Served(names)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def local() -> Iterator[Served]:
    """A gate without a proxy."""
    yield from serve()


@pytest.fixture(scope="module")
def proxied() -> Iterator[Served]:
    """A gate behind a proxy."""
    yield from serve("https://Dagster.Example.com/cdc/")


def test_program_has_access_with_its_header(local: Served) -> None:
    """The token allows reads and changes, under either name of this machine."""
    assert local.ask("GET", "/runs", BEARER)[:2] == (200, "inside")
    assert local.ask("POST", "/graphql", BEARER | JSON)[:2] == (200, "inside")
    assert local.ask("GET", "/runs", BEARER | {"Host": f"localhost:{local.names.port}"})[0] == 200


def test_browser_gets_a_cookie_for_the_link(local: Served) -> None:
    """It is strict, hidden from scripts and not the token; the page continues without the token in its link."""
    status, text, headers = local.ask("GET", f"/?token={TOKEN}", {})
    assert (status, headers["cache-control"], headers["referrer-policy"]) == (200, "no-store", "no-referrer")
    assert 'content="0; url=/"' in text
    assert TOKEN not in text + str(headers)
    assert headers["set-cookie"].split("; ")[1:] == ["Path=/", "HttpOnly", "SameSite=Strict"]
    page = local.cookie() | {"Origin": f"http://{local.host}"}
    assert local.ask("GET", "/runs", local.cookie())[0] == 200
    assert local.ask("POST", "/graphql", page | JSON)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer "},
        {"Cookie": f"cdc-platform={TOKEN}"},
        {"X-Token": TOKEN},
    ],
)
@pytest.mark.parametrize("path", ["/", "/graphql", "/runs", "/server_info", "/logs/a.out", "/?token=wrong", "/?token="])
def test_access_requires_the_token(local: Served, path: str, headers: dict[str, str]) -> None:
    """Pages, files and queries are refused without it."""
    status, text, _ = local.ask("GET", path, headers)
    assert status == 401
    assert "requires a token" in text
    assert local.ask("POST", path, headers | JSON)[0] == 401


def test_cookie_belongs_to_one_port(local: Served) -> None:
    """Browsers send a host's cookies to all its ports: another port's cookie, or the token as one, is refused."""
    value = local.cookie()["Cookie"].partition("=")[2]
    assert local.ask("GET", "/", {"Cookie": f"cdc-platform-1={value}"})[0] == 401
    assert local.ask("GET", "/", {"Cookie": f"cdc-platform-{local.names.port}={TOKEN}"})[0] == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost", "", "[::1]"]
)
def test_other_host_name_is_refused(local: Served, host: str) -> None:
    """Its owner may point it here, and a browser cannot distinguish the sites; the token does not help."""
    status, text, _ = local.ask("GET", "/", BEARER | {"Host": host.format(port=local.names.port)})
    assert status == 421
    assert text.startswith("nothing is served under")
    assert local.ask("GET", f"/?token={TOKEN}", {"Host": host.format(port=local.names.port)})[0] == 421


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "http://127.0.0.1"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "PUT"])
def test_foreign_page_is_refused(local: Served, origin: str, method: str) -> None:
    """This holds even if the browser sends the cookie, as for a page of another port of this machine."""
    headers = local.cookie() | {"Origin": origin.format(port=local.names.port)}
    status, text, response_headers = local.ask(method, "/graphql", headers | JSON)
    assert status == 403
    assert "may not ask" in text
    assert "access-control-allow-origin" not in response_headers


def test_cookie_allows_changes_only_from_a_known_page(local: Served) -> None:
    """A browser names the requesting page whenever a request may change something."""
    assert local.ask("POST", "/graphql", local.cookie() | JSON)[0] == 403
    assert local.ask("POST", "/report_asset_materialization/a", local.cookie())[0] == 403


def test_foreign_page_loads_nothing(local: Served) -> None:
    """Pictures and scripts are refused; a link that a person follows is no such load."""
    for site in ("cross-site", "same-site"):
        loads = local.cookie() | {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        assert local.ask("GET", "/logs/a.out", loads)[0] == 403
        assert local.ask("GET", "/runs", loads | {"Sec-Fetch-Mode": "navigate"})[0] == 200
    assert local.ask("GET", "/runs", local.cookie())[2]["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize("path", ["/graphql", "/graphql/", "/%67raphql"])
def test_graphql_requires_post_and_json(local: Served, path: str) -> None:
    """Requests that any page can make a browser send run no query, and so change nothing."""
    query = f"{path}?query=mutation%7Ba%7D"
    assert local.ask("GET", query, BEARER)[:2] == (405, "GraphQL requires POST\n")
    assert local.ask("HEAD", query, BEARER)[0] == 405
    assert local.ask("GET", query, BEARER | {"Accept": "text/html"})[0] == 405
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=a", ""):
        assert local.ask("POST", query, BEARER | {"Content-Type": kind})[0] == 415
    assert local.ask("POST", path, BEARER | {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def first_message(gate: Served, **headers: str) -> str:
    """Return the first message of a WebSocket."""
    named_headers = {name.capitalize(): value for name, value in headers.items()}
    with connect(
        f"ws://{gate.host}/graphql", additional_headers=named_headers, proxy=None, open_timeout=30
    ) as connection:
        return str(connection.recv())


def test_websockets_accept_only_the_uis_own_pages(local: Served) -> None:
    """Programs with the token may connect, too."""
    cookie = local.cookie()["Cookie"]
    assert first_message(local, cookie=cookie, origin=f"http://{local.host}") == "inside"
    assert first_message(local, authorization=f"Bearer {TOKEN}") == "inside"
    refused = [
        {},
        {"cookie": cookie},
        {"cookie": cookie, "origin": "https://evil.example"},
        {"cookie": cookie, "origin": "null"},
        {"authorization": f"Bearer {TOKEN}", "origin": "https://evil.example"},
        {"origin": f"http://{local.host}"},
        {"authorization": "Bearer wrong"},
    ]
    for headers in refused:
        with pytest.raises(InvalidStatus, match="HTTP 403"):
            first_message(local, **headers)


def test_proxy_has_access_under_its_address(proxied: Served) -> None:
    """It has access under its name and path and from its pages, with a cookie for TLS only."""
    host_header = {"Host": "dagster.example.com"}
    assert proxied.names.url == "https://dagster.example.com/cdc"
    status, text, headers = proxied.ask("GET", f"/cdc/?token={TOKEN}", host_header)
    assert (status, headers["set-cookie"].endswith("; Secure")) == (200, True)
    assert 'url=/cdc/"' in text
    cookie = {"Cookie": headers["set-cookie"].partition(";")[0]}
    page = host_header | cookie | {"Origin": "https://dagster.example.com"}
    assert proxied.ask("POST", "/cdc/graphql", page | JSON)[0] == 200
    assert proxied.ask("POST", "/cdc/graphql", page | JSON | {"Host": "dagster.example.com:443"})[0] == 200
    assert proxied.ask("POST", "/cdc/graphql", page | JSON | {"Host": proxied.host})[0] == 200
    assert proxied.ask("GET", "/cdc/graphql?query=a", page)[0] == 405
    assert proxied.ask("POST", "/cdc/graphql", page | JSON | {"Origin": "http://dagster.example.com"})[0] == 403
    assert proxied.ask("GET", "/cdc/runs", cookie | {"Host": "dagster.example.com:80"})[0] == 421
    assert proxied.ask("GET", "/cdc/runs", host_header)[0] == 401
    assert not proxied.ask("GET", f"/cdc/?token={TOKEN}", {})[2]["set-cookie"].endswith("Secure")


@pytest.mark.parametrize(
    "text",
    [
        "dagster.example.com",
        "ftp://a",
        "https://",
        "https://a:b",
        "https://u:p@a",
        "https://a/?b",
        "https://a#b",
        "http://[a",
    ],
)
def test_invalid_address_is_named(text: str) -> None:
    """One line says how to write it."""
    with pytest.raises(InputError, match=re.escape("write https://HOST[:PORT][/PATH]")):
        parse_public_url(text)
