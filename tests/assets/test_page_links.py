"""The auditor's page beside a published timestamp: made once, left to whoever opens it where it costs much."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.nodes import node_text

from assets import reports
from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.lifecycle.join.joining import run_join
from cdc_platform.lifecycle.join.step import Joining
from cdc_platform.records import inbox
from cdc_platform.settings import Settings
from cdc_platform.sources.bootstrap_file import parse_join_request
from cdc_platform.timeline.keys import Keys

LOG = logging.getLogger("a run")


def test_a_page_is_made_once_and_no_run_fails_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Large tables leave it to whoever opens the link, a full disk to a warning; one that is there stays as it is."""
    lake, clock = Lake(tmp_path / "home" / "lake"), Clock(parse_time_us("2026-01-31T12:00:00Z"))
    inbox.queue(lake, clock, parse_join_request(node_text(1), "a test"))
    (join,) = Keys.read(lake).joins
    run_join(Workers.alone(), lake, clock, Settings(), join.generation_id)
    joining = Joining(lake, clock, Settings(), join.generation_id, Workers.alone(), "a test")
    page = tmp_path / "home" / "shown" / "reports" / f"{join.key}.html"
    with monkeypatch.context() as large:
        large.setattr(reports, "MOST_BYTES", 0)
        links = reports.made(joining, LOG)
    assert (links["report"].value, page.exists()) == (f"/shown/reports/{join.key}.html", False)
    assert links["report_file"].value == str(page)
    (tmp_path / "home" / "shown").write_text("no folder", encoding="utf-8")
    assert reports.made(joining, LOG) == links
    assert "the auditor's page was not made" in caplog.text
    (tmp_path / "home" / "shown").unlink()
    assert reports.made(joining, LOG) == links
    first = page.read_bytes()
    assert reports.made(Joining(lake, Clock(), Settings(), join.generation_id, None, "a test"), LOG) == links
    assert page.read_bytes() == first
