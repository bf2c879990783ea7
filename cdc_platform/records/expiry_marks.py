"""When each generation was marked as expired, by two clocks: its grace time counts from then.

A mark that the machine's clock wrote needs the grace time to pass by the machine's clock. One that was written under
`--clock` is a rehearsal's: later runs under `--clock` count its grace time by their clock, a run without it by the
machine's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    from_datetime,
    machine_us,
    ms_from_datetime,
    ms_not_before,
    ms_to_datetime,
    to_datetime,
    us_of,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import EXPIRY_MARKS


@dataclass(frozen=True)
class Mark:
    """The mark of a generation's expiry at `expired_ms`, written at `marked_us` by the clock of the run."""

    expired_ms: Milliseconds
    marked_us: Microseconds
    machine_marked_us: Microseconds

    @property
    def is_rehearsed(self) -> bool:
        """Whether it was written under a clock that was handed in."""
        return self.marked_us != self.machine_marked_us

    def removable_ms(self, grace_ms: Milliseconds) -> Milliseconds:
        """When the grace time is over by the clock of a run."""
        return max(self.expired_ms, ms_not_before(self.marked_us)) + grace_ms

    def has_passed(self, clock: Clock, grace_ms: Milliseconds) -> bool:
        """Whether the grace time is over for a run with this clock."""
        if clock.now_us() < us_of(self.removable_ms(grace_ms)):
            return False
        is_rehearsal = self.is_rehearsed and clock.is_stopped
        return is_rehearsal or machine_us() >= self.machine_marked_us + us_of(grace_ms)


def marks(lake: Lake) -> dict[Milliseconds, Mark]:
    """The marks by the generation's time (ms)."""
    return {
        ms_from_datetime(row["time"]): Mark(
            ms_from_datetime(row["expired"]), from_datetime(row["marked_at"]), from_datetime(row["machine_marked_at"])
        )
        for row in lake.read(EXPIRY_MARKS).to_pylist()
    }


def write(lake: Lake, clock: Clock, expired_ms: Iterable[tuple[Milliseconds, Milliseconds]]) -> int:
    """Mark generations, given as (time, expired) in ms, now; answers how many marks are new or were replaced."""
    machine = machine_us()
    marked = clock.now_us() if clock.is_stopped else machine
    rows = [
        {
            "time": ms_to_datetime(time_ms),
            "expired": ms_to_datetime(each_ms),
            "marked_at": to_datetime(marked),
            "machine_marked_at": to_datetime(machine),
        }
        for time_ms, each_ms in expired_ms
    ]
    if not rows:
        return 0
    done = lake.merge(EXPIRY_MARKS, pa.Table.from_pylist(rows, schema=EXPIRY_MARKS.schema), update=True)
    return done.inserted + done.updated
