"""Foreign pages in a browser with the UI's cookie change nothing, whatever kind of request they send.

The pages come from another port of the same host, from another name of this machine, and from a name that gets the UI's
own address after its page was loaded. Chromium sends their requests; each requests a separate change from Dagster.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page
from support.processes.chromium import chromium
from support.worlds.serving import Serving

pytestmark = [pytest.mark.spark, pytest.mark.browser, pytest.mark.timeout(600)]

REBOUND = "rebound.test"
"""A name that the browser resolves to 127.0.0.1, as after a DNS server has changed its answer."""
REFUSED = {400, 401, 403, 405, 415, 421}
CHANGE = 'mutation { setConcurrencyLimit(concurrencyKey: "%s", limit: 7) }'
EMPTY = "<!doctype html><title>foreign</title><body></body>"
_KEYS = "{ instance { concurrencyLimits { concurrencyKey } } }"

# What a page does by script, one `way` at a time; it ends once all requests are sent, and answered if the page sees
# that.
ATTACK = """async ({way, ui, change}) => {
  const endpoint = `${ui}/graphql`;
  const body = JSON.stringify({query: change});
  const asked = `${endpoint}?query=${encodeURIComponent(change)}`;
  const shown = (element, address) => new Promise((resolve) => {
    element.onload = element.onerror = resolve;
    element.src = address;
    document.body.append(element);
    setTimeout(resolve, 5000);
  });
  const form = (method, encoding, fields, target) => {
    const made = document.createElement("form");
    Object.assign(made, {method, action: endpoint, enctype: encoding, target});
    for (const [name, value] of Object.entries(fields)) {
      const field = document.createElement("input");
      Object.assign(field, {type: "hidden", name, value});
      made.append(field);
    }
    document.body.append(made);
    made.submit();
    return new Promise((resolve) => setTimeout(resolve, 700));
  };
  const frame = () => {
    const made = document.createElement("iframe");
    made.name = "inside";
    document.body.append(made);
    return made.name;
  };
  const tried = (options, address = endpoint) =>
    fetch(address, {credentials: "include", ...options}).then((answer) => answer.status, () => "failed");
  const socket = (protocol, first) => new Promise((resolve) => {
    const open = new WebSocket(endpoint.replace("http", "ws"), protocol);
    open.onopen = () => {
      open.send(JSON.stringify({type: "connection_init", payload: {}}));
      open.send(JSON.stringify({id: "1", type: first, payload: {query: change}}));
      setTimeout(resolve, 700);
    };
    open.onclose = open.onerror = resolve;
  });
  // In text/plain a form writes NAME=VALUE: together they are one JSON document.
  const [head, tail] = [body.slice(0, -1) + ', "x": "', '"}'];
  const ways = {
    "form": () => form("post", "application/x-www-form-urlencoded", {query: change}, frame()),
    "form of text": () => form("post", "text/plain", {[head]: tail}, frame()),
    "form of parts": () => form("post", "multipart/form-data", {query: change, operations: body}, frame()),
    "form by GET": () => form("get", "application/x-www-form-urlencoded", {query: change}, frame()),
    "form in a new window": () => form("post", "text/plain", {[head]: tail}, "_blank"),
    "fetch": () => tried({method: "POST", headers: {"Content-Type": "application/json"}, body}),
    "fetch without asking": () => tried({method: "POST", mode: "no-cors", body}),
    "fetch of a form": () => tried({method: "POST", mode: "no-cors", body: new URLSearchParams({query: change})}),
    "fetch by GET": () => tried({mode: "no-cors"}, asked),
    "beacon": () => { navigator.sendBeacon(endpoint, body); return new Promise((r) => setTimeout(r, 700)); },
    "picture": () => shown(new Image(), asked),
    "script": () => shown(document.createElement("script"), asked),
    "frame": () => shown(document.createElement("iframe"), asked),
    "window": () => { window.open(asked); return new Promise((resolve) => setTimeout(resolve, 700)); },
    "socket": () => socket("graphql-ws", "start"),
    "newer socket": () => socket("graphql-transport-ws", "subscribe"),
  };
  if (way === null) return Object.keys(ways);
  return await ways[way]();
}"""
# The UI's own page requests the same kind of change, which Dagster makes.
OWN = """async ({change}) => (await fetch("/graphql", {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({query: change}),
})).status"""


class _Foreign(BaseHTTPRequestHandler):
    """An empty page for every address."""

    def do_GET(self) -> None:
        body = EMPTY.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for which the rebound name is this machine."""
    # Without the browser's own protection of local addresses, which other browsers do not have: the gate must suffice.
    unguarded = "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests"
    with chromium(f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1", unguarded) as started:
        yield started


@pytest.fixture(scope="module")
def foreign_port() -> Iterator[int]:
    """The port of the foreign pages' server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture
def logged_in(browser: Browser, serving: Serving) -> Iterator[BrowserContext]:
    """A browser that has the UI's cookie under each of its names."""
    context = browser.new_context()
    token = serving.start()["link"].partition("?")[2]
    for name in ("127.0.0.1", "localhost"):
        page = context.new_page()
        page.goto(f"{_named(serving, name)}/?{token}")
        page.wait_for_url("**/overview/**")
        page.close()
    assert {cookie.get("domain") for cookie in context.cookies()} == {"127.0.0.1", "localhost"}
    yield context
    context.close()


def _named(serving: Serving, name: str) -> str:
    return serving.start()["url"].replace("127.0.0.1", name)


def limited_keys(serving: Serving) -> set[str]:
    """Return the keys with limits in Dagster, which show the changes that were made."""
    request = urllib.request.Request(
        f"{serving.start()['url']}/graphql",
        json.dumps({"query": _KEYS}).encode(),
        {"Content-Type": "application/json", **serving.header},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        limits = json.load(answer)["data"]["instance"]["concurrencyLimits"]
    return {limit["concurrencyKey"] for limit in limits}


def attack(context: BrowserContext, page: Page, ui: str, way: str, key: str) -> tuple[list[str], set[int]]:
    """Let a page send one kind of request; return the requested addresses of the UI, and the response statuses.

    The browser reports no status of responses that a page may not see (an invalid picture, a preflight request).
    """
    addresses: list[str] = []
    statuses: set[int] = set()
    host = ui.partition("//")[2]

    def is_ui_address(address: str) -> bool:
        return address.partition("//")[2].startswith(f"{host}/")

    context.on("request", lambda event: addresses.append(event.url) if is_ui_address(event.url) else None)
    page.on("websocket", lambda event: addresses.append(event.url) if is_ui_address(event.url) else None)
    context.on("response", lambda event: statuses.add(event.status) if is_ui_address(event.url) else None)
    page.evaluate(ATTACK, {"way": way, "ui": ui, "change": CHANGE % key})
    return addresses, statuses


ORIGINS = {
    "another port": ("127.0.0.1", "127.0.0.1"),
    "another name": ("localhost", "127.0.0.1"),
    "a rebound name": (REBOUND, REBOUND),
    "a name that asks for the UI's": (REBOUND, "127.0.0.1"),
}
"""The host name of the foreign page, and the name under which it requests the UI."""


@pytest.mark.grid("foreign pages", 1)
@pytest.mark.parametrize("where", ORIGINS)
def test_foreign_page_changes_nothing(
    logged_in: BrowserContext, serving: Serving, foreign_port: int, where: str
) -> None:
    """Forms, fetches, pictures, frames, windows and sockets of a foreign page are sent and refused."""
    name, ui_name = ORIGINS[where]
    ui, own_port = _named(serving, ui_name), serving.start()["url"].rpartition(":")[2]
    page_port = own_port if name == ui_name == REBOUND else str(foreign_port)
    address = f"http://{name}:{page_port}/foreign"
    if page_port == own_port:  # the page came from another server, before the name got the UI's address
        logged_in.route(address, lambda route: route.fulfill(body=EMPTY, content_type="text/html"))
    before = limited_keys(serving)
    page = logged_in.new_page()
    page.goto(address)
    for way in page.evaluate(ATTACK, {"way": None, "ui": ui, "change": ""}):
        key = f"{where}, {way}"
        sent, statuses = attack(logged_in, page, ui, way, key)
        assert sent, f"{key}: nothing was sent"
        assert statuses <= REFUSED, (key, statuses)
        assert page.url == address
    assert limited_keys(serving) == before


def test_own_page_makes_the_same_change(logged_in: BrowserContext, serving: Serving) -> None:
    """As a control, a page of the UI makes the change that the attacks request."""
    page = logged_in.new_page()
    page.goto(f"{serving.start()['url']}/overview/activity")
    assert page.evaluate(OWN, {"change": CHANGE % "own page"}) == 200
    assert "own page" in limited_keys(serving)
