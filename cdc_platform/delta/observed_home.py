"""Refuse writes into a home that is only observed or mirrors a cluster, or whose storage cannot take them.

An observed home was imported incomplete. `platform.only_observed` records the time and the reason, and the platform
derives nothing from such a home. Blocks that import or check the cluster's state use `access.allow_writes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.delta import access
from cdc_platform.delta.access import WRITE_TO_OBSERVED_OPTION, allow_writes, are_writes_allowed
from cdc_platform.errors import StateError
from cdc_platform.storage import write_check
from cdc_platform.tables import ONLY_OBSERVED, Table

if TYPE_CHECKING:
    from cdc_platform.delta.lake import Lake
    from cdc_platform.tables import Table


class HomeIsObserved(StateError):
    """The lake is only observed, and a step would have derived data from it; nothing was written."""

    code = "only-observed"


@dataclass(frozen=True)
class ObservedStatus:
    """The time (µs) since when a lake is only observed, the number of its import issues, and the first of them."""

    since_us: Microseconds
    flaws: int
    because: str


def get_observed_status(lake: Lake) -> ObservedStatus | None:
    """Return why the lake is only observed; None if it is not, or if it mirrors a cluster.

    For a lake that never was, this takes one lookup.
    """
    if access.get_mirrored_cluster(lake) is not None or not lake.exists(ONLY_OBSERVED):
        return None
    open_ = [row for row in lake.read(ONLY_OBSERVED).to_pylist() if row["lifted_at"] is None]
    if not open_:
        return None
    first = min(open_, key=lambda row: row["since"])
    return ObservedStatus(us_from_datetime(first["since"]), sum(row["flaws"] for row in open_), first["because"])


def assert_write_allowed(lake: Lake, what: str, table: Table | None = None) -> None:
    """Raise an error unless a commit, to a table if given, is allowed in this lake; `what` names the step.

    Raises:
        HomeIsObserved: the commit would derive data from an observed home.
        HomeIsMirror: the commit would invent part of the live cluster that the lake mirrors.
    """
    if access.get_mirrored_cluster(lake) is not None:
        access.assert_mirror_write_allowed(lake, table, what)
        return
    status = None if are_writes_allowed() else get_observed_status(lake)
    if status is not None:
        more = "" if status.flaws == 1 else f" and {status.flaws - 1} more"
        raise HomeIsObserved(
            f"{what}: this home is only observed since {format_us(status.since_us)}, when it was imported as it is "
            f"({status.because}{more}); import what is missing until cdc-platform check is clean, or build on it all "
            f"the same with: cdc-platform {WRITE_TO_OBSERVED_OPTION} ..."
        )


def mark_as_observed(lake: Lake, clock: Clock, flaws: Sequence[str]) -> None:
    """Mark the lake as only observed, with its import issues; repeating it changes nothing."""

    def rule(before: pa.Table) -> pa.Table | None:
        if any(row["lifted_at"] is None and row["because"] == flaws[0] for row in before.to_pylist()):
            return None
        now = datetime_from_us(clock.now_us())
        row = {"since": now, "flaws": len(flaws), "because": flaws[0], "lifted_at": None}
        return pa.Table.from_pylist([row], schema=ONLY_OBSERVED.schema)

    with allow_writes():
        lake.transact(ONLY_OBSERVED, rule)


def lift_observed_mark(lake: Lake, clock: Clock) -> bool:
    """Lift the mark, after everything in the lake was found sound; return True if the lake was only observed."""
    if get_observed_status(lake) is None:
        return False

    def rule(before: pa.Table) -> pa.Table | None:
        now = datetime_from_us(clock.now_us())
        rows = [row | {"lifted_at": row["lifted_at"] or now} for row in before.to_pylist()]
        return pa.Table.from_pylist(rows, schema=ONLY_OBSERVED.schema)

    with allow_writes():
        lake.transact(ONLY_OBSERVED, rule)
    return True


def assert_table_writable(lake: Lake, what: str, table: Table, size: int = 0) -> None:
    """Raise an error unless `size` bytes may be written into a table of a lake; `what` names the step.

    Raises:
        HomeIsObserved, HomeIsMirror: as `assert_write_allowed`.
        Unavailable: the disk is full.
        NoConditionalWrites: the store would let two concurrent writers both succeed.
    """
    assert_write_allowed(lake, what, table)
    write_check.assert_storage_writable(lake.place, size, what)
