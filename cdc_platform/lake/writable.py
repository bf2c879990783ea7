"""Whether a lake may be written to: every write asks, before it leaves anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_platform.lake import contract, only_observed

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.tables import Table


def assert_writable(lake: Lake, what: str, table: Table, size: int = 0) -> None:
    """Hold that so many bytes may be written into a table of a lake; `what` is being done.

    Raises:
        OnlyObserved, OnlyMirrors: nothing is built on what is only observed, and nothing made up in a mirror.
        Unavailable: there is no room.
        NoConditionalWrites: its store lets two writers both win.
    """
    only_observed.assert_may_write(lake, what, table)
    contract.assert_fit(lake.place, size, what)
