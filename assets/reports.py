"""Auditor's page of a published timestamp: generated in the run that publishes it, and linked in its metadata."""

from __future__ import annotations

from logging import Logger
from typing import Any

from dagster import MetadataValue
from pyarrow import ArrowException

from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import local_state_folder
from cdc_platform.lifecycle import JoinContext
from cdc_platform.plots import ui_files
from cdc_platform.reporting import ReportSource, make_page
from cdc_platform.storage import atomic
from cdc_platform.timeline import GenerationKeys, get_generation_names

MAX_REPORT_BYTES = 8 << 20
"""Building a page reads all tables that hold its generation. If they are larger, the page is made when it is opened."""


def build_report_link(lake: Lake, key: str) -> dict[str, Any]:
    """Return metadata that links a generation's page in the UI of `cdc-platform up`, which makes the page if needed."""
    page = ui_files.report_file(local_state_folder(lake.location.folder), key)
    if page is None:
        return {}
    return {"report": MetadataValue.url(page.address), "report_file": MetadataValue.path(str(page.file))}


def create_report_page(joining: JoinContext, log: Logger) -> dict[str, Any]:
    """Make the page of a newly published generation, unless it exists, and return its link as metadata.

    A page is for people only, so a failure is logged and does not fail the run.
    """
    lake = joining.lake
    keys = GenerationKeys.read(lake)
    names = get_generation_names(lake, keys, joining.generation_id)
    page = ui_files.report_file(local_state_folder(lake.location.folder), names.key)
    if page is None or names.time_ms is None:
        return {}
    size = sum(partition.bytes for part in names.parts() for partition in lake.partitions(part.table))
    if size <= MAX_REPORT_BYTES and not page.file.exists():
        try:
            _, text = make_page(ReportSource(lake, joining.clock, joining.settings), [names])
            page.file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text_atomically(page.file, text)
        except (PlatformError, ArrowException, OSError, ValueError) as error:
            log.warning(f"the auditor's page was not made, and will be when it is opened: {error}")
    return build_report_link(lake, names.key)
