"""The UI serves only named pictures and pages of a home, runs nothing in them, and creates missing pages."""

from __future__ import annotations

import asyncio
import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.files.bad_input import listing
from support.nodes import node_text

from cdc_platform.checks import invariants
from cdc_platform.clock import Clock, format_ms, parse_time_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.plots import ui_files
from cdc_platform.server.auth import AsgiReceive, AsgiScope, AsgiSend
from cdc_platform.server.home_files import HomeFilesApp
from cdc_platform.settings import Settings
from cdc_platform.timeline import GenerationKeys, Timeline

PNG = b"\x89PNG and the rest"


def request(
    home: Path, path: str, *, method: str = "GET", prefix: str = "", keeps: bool = True
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a response; status 0 means that the UI gets the request."""
    sent: list[Any] = []

    async def ui(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        sent.append({"status": 0, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def send_request() -> None:
        await HomeFilesApp(ui, HomeLocation(home), prefix, store_pages=keeps)(
            {"type": "http", "method": method, "path": path}, receive, send
        )

    asyncio.run(send_request())
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return int(sent[0]["status"]), headers, b"".join(part.get("body", b"") for part in sent)


def test_picture_is_stored_once_and_served(tmp_path: Path) -> None:
    """Equal bytes are one file; its response has the right type and can run nothing."""
    stored = ui_files.store_plot(tmp_path, PNG)
    assert ui_files.store_plot(tmp_path, PNG) == stored
    status, headers, body = request(tmp_path, stored.address)
    assert (status, body, headers["content-type"]) == (200, PNG, "image/png")
    assert "sandbox" in headers["content-security-policy"]
    assert request(tmp_path, stored.address, method="HEAD")[2] == b""
    assert request(tmp_path, stored.address, method="POST")[0] == 405
    assert len(list(stored.file.parent.iterdir())) == 1


def test_address_behind_a_proxy_has_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's link below `up --public-url` leads through the proxy."""
    monkeypatch.setenv(ui_files.UI_PREFIX_VARIABLE, "/cdc")
    stored = ui_files.store_plot(tmp_path, PNG)
    assert stored.address.startswith("/cdc/shown/pictures/")
    assert request(tmp_path, stored.address, prefix="/cdc")[2] == PNG
    assert request(tmp_path, stored.address)[0] == 0


@pytest.mark.parametrize(
    "path",
    [
        "/shown/pictures/../../settings.toml",
        "/shown/pictures/%2e%2e/settings.toml",
        "/shown/reports/../pictures/x.html",
        "/shown/reports/.html",
        "/shown/reports/-rf.html",
        "/shown/settings.toml",
        "/shown/other/x.html",
        "/shown/pictures/x.html",
        "/shown/pictures/0123456789abcdef0123456789abcdef.png",
        "/shown/",
    ],
)
def test_nothing_else_of_a_home_is_served(tmp_path: Path, path: str) -> None:
    """Other names, other folders and paths out of them give 404."""
    (tmp_path / "settings.toml").write_text("secret", encoding="utf-8")
    ui_files.store_plot(tmp_path, PNG)
    status, _, body = request(tmp_path, path)
    assert (status, b"secret" in body) == (404, False)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a generation that a join created."""
    home = tmp_path_factory.mktemp("shown") / "home"
    open_home_location(home, create=True)
    lake, noon = Lake(home / "lake"), Clock(parse_time_us("2026-01-31T12:00:00Z"))
    inbox.queue_join(lake, noon, parse_join_request(node_text(1), "a test"))
    (join,) = GenerationKeys.read(lake).joins
    run_join(TaskRunner.alone(), lake, noon, Settings(), join.generation_id)
    return home


@pytest.fixture
def home(joined: Path, tmp_path: Path) -> Path:
    """A copy of it, without a page."""
    shutil.copytree(joined, tmp_path / "home")
    return tmp_path / "home"


def test_missing_page_is_created(home: Path) -> None:
    """The first request for a page creates it, and later ones get the stored file."""
    (join,) = GenerationKeys.read(Lake(home / "lake")).joins
    page = ui_files.report_file(home, join.key)
    assert page is not None
    status, headers, body = request(home, page.address)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert join.key.encode() in body
    assert body == page.file.read_bytes()
    assert request(home, page.address) == (status, headers, body)


@pytest.mark.parametrize("form", ["latest", "operating", "uuid", "begin", "time", "date", "minute", "other node"])
def test_other_names_redirect_to_the_key(home: Path, form: str) -> None:
    """This holds even if the home has a page of that name, which may be outdated; no file is created."""
    lake = Lake(home / "lake")
    (join,) = GenerationKeys.read(lake).joins
    time = format_ms(Timeline.read(lake).known[0].time_ms)
    name = {
        "uuid": join.generation_id,
        "begin": join.generation_id[:6],
        "time": time.replace(":", "-"),
        "date": time[:10],
        "minute": time[:16].replace(":", "-"),
        "other node": join.key.replace("10.0.0", "192.168.0"),
    }.get(form, form)
    page = ui_files.report_file(home, join.key)
    assert page is not None
    assert f"{name}.html" != page.file.name
    page.file.parent.mkdir(parents=True)
    (page.file.parent / f"{name}.html").write_text("an old page", encoding="utf-8")
    before = listing(home)
    for prefix in ("", "/cdc"):
        for method in ("GET", "HEAD"):
            status, headers, body = request(home, f"{prefix}/shown/reports/{name}.html", prefix=prefix, method=method)
            assert (status, headers["location"]) == (302, f"{prefix}/shown/reports/{join.key}.html")
            assert (headers["cache-control"], b"an old page" in body) == ("no-store", False)
    assert listing(home) == before


def test_read_only_ui_creates_no_file(home: Path) -> None:
    """It still shows the page, and serves a stored page unchanged."""
    (join,) = GenerationKeys.read(Lake(home / "lake")).joins
    page = ui_files.report_file(home, join.key)
    assert page is not None
    before = listing(home)
    status, _, body = request(home, page.address, keeps=False)
    assert (status, join.key.encode() in body) == (200, True)
    assert request(home, "/shown/reports/latest.html", keeps=False)[0] == 302
    assert listing(home) == before
    page.file.parent.mkdir(parents=True)
    page.file.write_bytes(b"as it was")
    assert request(home, page.address, keeps=False)[2] == b"as it was"


def test_page_of_an_unknown_generation_has_the_reason(tmp_path: Path) -> None:
    """The page has the command's error message."""
    status, _, body = request(tmp_path / "nowhere", "/shown/reports/9_nobody_00000000.html")
    assert (status, b"error:" in body) == (404, True)


@pytest.mark.parametrize(
    "key",
    [
        "12_10.0.0.4_5f0c3c5e",
        "2026-01-31T12:00:00.384Z",
        "2026-01-31T12:00",
        "2026-01-31T12:00:01",
        "2026-01",
        "5f0c3c5e-3f6f-4f6e-9a57-0d8b1f1f2a10",
    ],
)
def test_page_is_named_after_its_generation(tmp_path: Path, key: str) -> None:
    """The file name leads back to the generation, for every kind of name."""
    page = ui_files.report_file(tmp_path, key)
    assert page is not None
    assert ui_files.generation_key_from_name(page.file.name) == key
    assert ui_files.report_file(tmp_path, "../../x") is None


@pytest.mark.parametrize("prefix", ["", "/cdc"])
def test_every_invariant_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """A result in the UI links it, below a proxy too; an unknown name has no page."""
    monkeypatch.setenv(ui_files.UI_PREFIX_VARIABLE, prefix)
    for name, invariant in invariants.INVARIANTS_BY_NAME.items():
        status, headers, body = request(tmp_path, ui_files.invariant_address(name), prefix=prefix)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        text = re.sub(r"<[^>]+>", "", html.unescape(body.decode()))
        assert invariant.meaning.replace("`", "") in text
        assert invariant.family.page in text
    assert request(tmp_path, ui_files.invariant_address("no_such_thing"), prefix=prefix)[0] == 404
    assert request(tmp_path, ui_files.invariant_address("row_count"), prefix=prefix, method="HEAD")[2] == b""
