"""What `cdc-platform explain --table` says of a tablet-based table: the stream set, the tablet, the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_platform.clock import format_us
from cdc_platform.commands.output import time_of

if TYPE_CHECKING:
    from cdc_platform.clock import Clock
    from cdc_platform.home import Home


def tablet_facts(
    home: Home, clock: Clock, table: tuple[str, str], token: int, at_us: int | None
) -> dict[str, object] | None:
    """Where a write of `token` to a tablet-based table goes; None for a table whose streams are the generations'.

    Raises:
        NotFound: no such table is known.
    """
    from cdc_platform.lake.lake import Lake
    from cdc_platform.records import cdc_tables, tablet_sets

    lake = Lake(home.lake)
    if not tablet_sets.is_tablet_based(lake, *table):
        cdc_tables.find(lake, *table)
        return None
    answer = tablet_sets.explain(lake, clock, home.settings, *table, token, at_us)
    return {
        "token": answer.token,
        "table": answer.table,
        "timestamp": time_of(answer.set_ms),
        "tablet": answer.tablet,
        "range_start": answer.range_start,
        "range_end": answer.range_end,
        "stream_id": answer.stream_id,
        "accepted": answer.decision.verdict == "OK",
        "reason": answer.decision.reason,
        "verdict": str(answer.decision.verdict),
        "at": format_us(answer.at_us),
        "now": format_us(answer.now_us),
    }
