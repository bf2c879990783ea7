"""The auditor's page beside a published timestamp: written once, and left to the link's first reader if it is large."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.nodes import node_text

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import JoinContext, run_join
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.timeline import GenerationKeys
from cdc_platform_assets import reports

LOG = logging.getLogger("a run")


def test_a_page_is_written_once_and_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Large tables leave the page to the link's first reader, a full disk causes a warning, an existing page stays."""
    lake, clock = Lake(tmp_path / "home" / "lake"), Clock(parse_time_us("2026-01-31T12:00:00Z"))
    inbox.queue_join(lake, clock, parse_join_request(node_text(1), "a test"))
    (join,) = GenerationKeys.read(lake).joins
    run_join(TaskRunner.alone(), lake, clock, Settings(), join.generation_id)
    joining = JoinContext(lake, clock, Settings(), join.generation_id, TaskRunner.alone(), "a test")
    page = tmp_path / "home" / "shown" / "reports" / f"{join.key}.html"
    with monkeypatch.context() as large:
        large.setattr(reports, "MAX_REPORT_BYTES", 0)
        links = reports.create_report_page(joining, LOG)
    assert (links["report"].value, page.exists()) == (f"/shown/reports/{join.key}.html", False)
    assert links["report_file"].value == str(page)
    (tmp_path / "home" / "shown").write_text("no folder", encoding="utf-8")
    assert reports.create_report_page(joining, LOG) == links
    assert "the auditor's page was not made" in caplog.text
    (tmp_path / "home" / "shown").unlink()
    assert reports.create_report_page(joining, LOG) == links
    first_content = page.read_bytes()
    assert (
        reports.create_report_page(JoinContext(lake, Clock(), Settings(), join.generation_id, None, "a test"), LOG)
        == links
    )
    assert page.read_bytes() == first_content
