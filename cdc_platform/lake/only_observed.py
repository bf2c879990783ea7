"""A lake that is only observed: what was taken in as it is is not whole, and nothing is built on it.

`platform.only_observed` says since when and why. Every commit asks here first; what shows the cluster as it is, and
judges it, says so with `looking.looking_on`. A lake that mirrors a live cluster has rules of its own, in `mirrors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, format_us, from_datetime, to_datetime
from cdc_platform.errors import StateError
from cdc_platform.lake import mirrors
from cdc_platform.lake.looking import OPTION, is_looking, looking_on
from cdc_platform.lake.tables import ONLY_OBSERVED, Table

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake


class OnlyObserved(StateError):
    """The lake is only observed, and a step would have built on it; nothing was written."""

    code = "only-observed"


@dataclass(frozen=True)
class Standing:
    """Since when (µs) a lake is only observed, how many things in it were found not whole, and the first of them."""

    since_us: Microseconds
    flaws: int
    because: str


def standing(lake: Lake) -> Standing | None:
    """Why the lake is only observed; None where it is not, or mirrors a cluster. One that never was is one look."""
    if mirrors.cluster_of(lake) is not None or not lake.exists(ONLY_OBSERVED):
        return None
    open_ = [row for row in lake.read(ONLY_OBSERVED).to_pylist() if row["lifted_at"] is None]
    if not open_:
        return None
    first = min(open_, key=lambda row: row["since"])
    return Standing(from_datetime(first["since"]), sum(row["flaws"] for row in open_), first["because"])


def assert_may_write(lake: Lake, what: str, table: Table | None = None) -> None:
    """Hold that a commit, to a table if one is given, may be made in this lake; `what` is being done.

    Raises:
        OnlyObserved: it would build on what is only observed.
        OnlyMirrors: it would make up something of the live cluster that the lake mirrors.
    """
    if mirrors.cluster_of(lake) is not None:
        mirrors.assert_seen(lake, table, what)
        return
    found = None if is_looking() else standing(lake)
    if found is not None:
        more = "" if found.flaws == 1 else f" and {found.flaws - 1} more"
        raise OnlyObserved(
            f"{what}: this home is only observed since {format_us(found.since_us)}, when it was imported as it is "
            f"({found.because}{more}); import what is missing until cdc-platform check is clean, or build on it all "
            f"the same with: cdc-platform {OPTION} ..."
        )


def mark(lake: Lake, clock: Clock, flaws: Sequence[str]) -> None:
    """Say that the lake is only observed from now on, for what is not whole in it; the same again changes nothing."""

    def rule(before: pa.Table) -> pa.Table | None:
        if any(row["lifted_at"] is None and row["because"] == flaws[0] for row in before.to_pylist()):
            return None
        now = to_datetime(clock.now_us())
        row = {"since": now, "flaws": len(flaws), "because": flaws[0], "lifted_at": None}
        return pa.Table.from_pylist([row], schema=ONLY_OBSERVED.schema)

    with looking_on():
        lake.transact(ONLY_OBSERVED, rule)


def lift(lake: Lake, clock: Clock) -> bool:
    """Say that the lake may be built on again, since everything in it was found good; whether it was only observed."""
    if standing(lake) is None:
        return False

    def rule(before: pa.Table) -> pa.Table | None:
        now = to_datetime(clock.now_us())
        rows = [row | {"lifted_at": row["lifted_at"] or now} for row in before.to_pylist()]
        return pa.Table.from_pylist(rows, schema=ONLY_OBSERVED.schema)

    with looking_on():
        lake.transact(ONLY_OBSERVED, rule)
    return True
