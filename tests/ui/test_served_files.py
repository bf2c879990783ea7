"""Pictures and pages of a home beside the UI: named files alone are served, nothing in them runs, pages are made."""

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


def asked(
    home: Path, path: str, *, method: str = "GET", prefix: str = "", keeps: bool = True
) -> tuple[int, dict[str, str], bytes]:
    """What is answered: status, headers, body; 0 where it is passed on to the UI."""
    sent: list[Any] = []

    async def ui(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        sent.append({"status": 0, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def once() -> None:
        await HomeFilesApp(ui, HomeLocation(home), prefix, store_pages=keeps)(
            {"type": "http", "method": method, "path": path}, receive, send
        )

    asyncio.run(once())
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return int(sent[0]["status"]), headers, b"".join(part.get("body", b"") for part in sent)


def test_a_picture_is_kept_once_and_served(tmp_path: Path) -> None:
    """The same bytes are one file; it is served as what it is, and can run nothing."""
    kept = ui_files.store_plot(tmp_path, PNG)
    assert ui_files.store_plot(tmp_path, PNG) == kept
    status, headers, body = asked(tmp_path, kept.address)
    assert (status, body, headers["content-type"]) == (200, PNG, "image/png")
    assert "sandbox" in headers["content-security-policy"]
    assert asked(tmp_path, kept.address, method="HEAD")[2] == b""
    assert asked(tmp_path, kept.address, method="POST")[0] == 405
    assert len(list(kept.file.parent.iterdir())) == 1


def test_behind_a_proxy_the_address_has_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link of a run below `up --public-url` leads through the proxy."""
    monkeypatch.setenv(ui_files.UI_PREFIX_VARIABLE, "/cdc")
    kept = ui_files.store_plot(tmp_path, PNG)
    assert kept.address.startswith("/cdc/shown/pictures/")
    assert asked(tmp_path, kept.address, prefix="/cdc")[2] == PNG
    assert asked(tmp_path, kept.address)[0] == 0


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
    """Other names, other folders and ways out of them are answered with 404."""
    (tmp_path / "settings.toml").write_text("secret", encoding="utf-8")
    ui_files.store_plot(tmp_path, PNG)
    status, _, body = asked(tmp_path, path)
    assert (status, b"secret" in body) == (404, False)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a generation that a join has made, and one of another home's import without a join."""
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


def test_a_page_that_is_not_there_is_made(home: Path) -> None:
    """The first who opens the link of a page gets it made; of no generation there is none, and why is said."""
    (join,) = GenerationKeys.read(Lake(home / "lake")).joins
    page = ui_files.report_file(home, join.key)
    assert page is not None
    status, headers, body = asked(home, page.address)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert join.key.encode() in body
    assert body == page.file.read_bytes()
    assert asked(home, page.address) == (status, headers, body)


@pytest.mark.parametrize("form", ["latest", "operating", "uuid", "begin", "time", "date", "minute", "other node"])
def test_every_other_name_redirects_to_the_key(home: Path, form: str) -> None:
    """Also where a page of that name is in the home, which may be another generation's by now; no file is made."""
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
            status, headers, body = asked(home, f"{prefix}/shown/reports/{name}.html", prefix=prefix, method=method)
            assert (status, headers["location"]) == (302, f"{prefix}/shown/reports/{join.key}.html")
            assert (headers["cache-control"], b"an old page" in body) == ("no-store", False)
    assert listing(home) == before


def test_a_ui_that_is_read_only_makes_no_file(home: Path) -> None:
    """It shows the page all the same, and one that is there as it is."""
    (join,) = GenerationKeys.read(Lake(home / "lake")).joins
    page = ui_files.report_file(home, join.key)
    assert page is not None
    before = listing(home)
    status, _, body = asked(home, page.address, keeps=False)
    assert (status, join.key.encode() in body) == (200, True)
    assert asked(home, "/shown/reports/latest.html", keeps=False)[0] == 302
    assert listing(home) == before
    page.file.parent.mkdir(parents=True)
    page.file.write_bytes(b"as it was")
    assert asked(home, page.address, keeps=False)[2] == b"as it was"


def test_a_page_of_no_generation_says_why(tmp_path: Path) -> None:
    """What the command says is what a reader of the link is told."""
    status, _, body = asked(tmp_path / "nowhere", "/shown/reports/9_nobody_00000000.html")
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
def test_a_page_is_named_after_its_generation(tmp_path: Path, key: str) -> None:
    """From the name of a file back to the generation, whichever way it is named."""
    page = ui_files.report_file(tmp_path, key)
    assert page is not None
    assert ui_files.generation_key_from_name(page.file.name) == key
    assert ui_files.report_file(tmp_path, "../../x") is None


@pytest.mark.parametrize("prefix", ["", "/cdc"])
def test_every_invariant_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """A result in the UI links it, below a proxy too; a name that no invariant has is no page."""
    monkeypatch.setenv(ui_files.UI_PREFIX_VARIABLE, prefix)
    for name, invariant in invariants.INVARIANTS_BY_NAME.items():
        status, headers, body = asked(tmp_path, ui_files.invariant_address(name), prefix=prefix)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        text = re.sub(r"<[^>]+>", "", html.unescape(body.decode()))
        assert invariant.meaning.replace("`", "") in text
        assert invariant.family.page in text
    assert asked(tmp_path, ui_files.invariant_address("no_such_thing"), prefix=prefix)[0] == 404
    assert asked(tmp_path, ui_files.invariant_address("row_count"), prefix=prefix, method="HEAD")[2] == b""
