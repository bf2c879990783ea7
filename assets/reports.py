"""The auditor's page of a published timestamp: made in the run that publishes it, linked from what is told of it."""

from __future__ import annotations

from logging import Logger
from typing import Any

from dagster import MetadataValue
from pyarrow import ArrowException

from cdc_platform import drafts, shown
from cdc_platform.errors import PlatformError
from cdc_platform.home import state_folder
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.join.step import Joining
from cdc_platform.report.making import make
from cdc_platform.report.record import Home
from cdc_platform.timeline.keys import Keys
from cdc_platform.timeline.parts import names_of

MOST_BYTES = 8 << 20
"""A page reads all tables that hold its generation. Where those are larger, it is made when somebody opens it."""


def linked(lake: Lake, key: str) -> dict[str, Any]:
    """The page of a generation as metadata: its address in the UI of `cdc-platform up`, which makes it if need be."""
    page = shown.report(state_folder(lake.place.folder), key)
    if page is None:
        return {}
    return {"report": MetadataValue.url(page.address), "report_file": MetadataValue.path(str(page.file))}


def made(joining: Joining, log: Logger) -> dict[str, Any]:
    """Make the page of a generation that has just been published, unless it has one; its link as metadata.

    A page is for people, and no run fails over it.
    """
    lake = joining.lake
    keys = Keys.read(lake)
    names = names_of(lake, keys, joining.generation_id)
    page = shown.report(state_folder(lake.place.folder), names.key)
    if page is None or names.time_ms is None:
        return {}
    size = sum(each.bytes for part in names.parts() for each in lake.slices(part.table))
    if size <= MOST_BYTES and not page.file.exists():
        try:
            _, text = make(Home(lake, joining.clock, joining.settings), [names])
            page.file.parent.mkdir(parents=True, exist_ok=True)
            drafts.write(page.file, text)
        except (PlatformError, ArrowException, OSError, ValueError) as error:
            log.warning(f"the auditor's page was not made, and will be when it is opened: {error}")
    return linked(lake, names.key)
