"""The warning of commands that go by the nodes of a live cluster whose topology was changing when it was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_platform.commands.output import warn

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake


def warn_of_changing(lake: Lake) -> None:
    """Say that the nodes are those of before, where they are."""
    from cdc_platform.records.cluster_changes import changing

    found = changing(lake)
    if found is not None:
        warn(f"{found}: the nodes here are those of before", code="topology-changing")
