"""The auditor's page in Chromium, wide, narrow and printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.nodes import node_text
from support.processes.chromium import chromium

from cdc_platform.clock import MINUTE_US, Clock, parse_time_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.reporting import ReportSource, make_page
from cdc_platform.settings import Settings
from cdc_platform.timeline import GenerationKeys, get_generation_names

NOON = Clock(parse_time_us("2026-01-31T12:00:00Z"))
_WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


@pytest.mark.browser
def test_page_is_readable_wide_narrow_and_on_paper(tmp_path: Path) -> None:
    """It requests nothing, fits the window, begins with its verdict, and prints on a few sheets."""
    lake = Lake(tmp_path / "lake")
    for number in (1, 2):
        inbox.queue_join(lake, NOON, parse_join_request(node_text(number), "a test"))
        join = GenerationKeys.read(lake).joins[-1]
        run_join(
            TaskRunner.alone(), lake, Clock(NOON.now_us() + MINUTE_US * 10 * number), Settings(), join.generation_id
        )
    names = get_generation_names(lake, GenerationKeys.read(lake), join.generation_id)
    (tmp_path / "page.html").write_text(make_page(ReportSource(lake, NOON, Settings()), [names])[1], encoding="utf-8")
    with chromium() as browser:
        context = browser.new_context(offline=True)
        requests: list[str] = []
        context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto((tmp_path / "page.html").as_uri())
            assert page.evaluate(_WIDTHS) == [width, width]
            assert page.get_by_text("All 13 checks passed").is_visible()
            assert page.locator("figure svg").count() == 2
            box = page.locator("figure svg").first.bounding_box()
            assert box is not None
            assert box["width"] > 150
        paper = page.pdf(prefer_css_page_size=True)
        assert set(requests) == {(tmp_path / "page.html").as_uri()}
    assert 3 <= paper.count(b"/Type /Page\n") <= 9
