"""The mark of an observed home: when it was imported incomplete, and what was missing.

An observed home was imported with `--allow-incomplete`. `platform.only_observed` records the time and the reason;
`home_mode` says what may be written until a check lifts the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.clock import Clock, datetime_from_us, us_from_datetime
from cdc_platform.delta.home_mode import ObservedStatus, get_home_mode
from cdc_platform.tables import ONLY_OBSERVED

if TYPE_CHECKING:
    from cdc_platform.delta.lake import Lake


def read_observed_status(lake: Lake) -> ObservedStatus | None:
    """Return why the lake is marked as only observed; None without a mark."""
    if not lake.exists(ONLY_OBSERVED):
        return None
    open_ = [row for row in lake.read(ONLY_OBSERVED).to_pylist() if row["lifted_at"] is None]
    if not open_:
        return None
    first = min(open_, key=lambda row: row["since"])
    return ObservedStatus(us_from_datetime(first["since"]), sum(row["flaws"] for row in open_), first["because"])


def mark_as_observed(lake: Lake, clock: Clock, flaws: Sequence[str]) -> None:
    """Mark the lake as only observed, with its import issues; repeating it changes nothing."""

    def rule(before: pa.Table) -> pa.Table | None:
        if any(row["lifted_at"] is None and row["because"] == flaws[0] for row in before.to_pylist()):
            return None
        now = datetime_from_us(clock.now_us())
        row = {"since": now, "flaws": len(flaws), "because": flaws[0], "lifted_at": None}
        return pa.Table.from_pylist([row], schema=ONLY_OBSERVED.schema)

    lake.transact(ONLY_OBSERVED, rule)


def lift_observed_mark(lake: Lake, clock: Clock) -> bool:
    """Lift the mark, after everything in the lake was found sound; return True if the lake was only observed."""
    if get_home_mode(lake).observed is None:
        return False

    def rule(before: pa.Table) -> pa.Table | None:
        now = datetime_from_us(clock.now_us())
        rows = [row | {"lifted_at": row["lifted_at"] or now} for row in before.to_pylist()]
        return pa.Table.from_pylist(rows, schema=ONLY_OBSERVED.schema)

    lake.transact(ONLY_OBSERVED, rule)
    return True
