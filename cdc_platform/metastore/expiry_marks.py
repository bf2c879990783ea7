"""Expiry marks of generations by two clocks: the owner of `platform.expiry_marks`.

The grace time of a mark written by the machine's clock is measured with the machine's clock. A mark written under
`--clock` belongs to a rehearsal: later runs under `--clock` use their own clock, other runs the machine's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    ceil_ms_from_us,
    datetime_from_ms,
    datetime_from_us,
    ms_from_datetime,
    system_time_us,
    us_from_datetime,
    us_from_ms,
)
from cdc_platform.delta import Lake
from cdc_platform.tables import EXPIRY_MARKS


@dataclass(frozen=True)
class ExpiryMark:
    """The mark of a generation that expired at `expired_ms`, written at `marked_us` by the clock of the run."""

    expired_ms: Milliseconds
    marked_us: Microseconds
    machine_marked_us: Microseconds

    @property
    def is_rehearsed(self) -> bool:
        """Return True if the mark was written under an explicitly given clock."""
        return self.marked_us != self.machine_marked_us

    def removable_ms(self, grace_ms: Milliseconds) -> Milliseconds:
        """Return the end (ms) of the grace time by the clock of a run."""
        return max(self.expired_ms, ceil_ms_from_us(self.marked_us)) + grace_ms

    def has_passed(self, clock: Clock, grace_ms: Milliseconds) -> bool:
        """Return True if the grace time is over for a run with this clock."""
        if clock.now_us() < us_from_ms(self.removable_ms(grace_ms)):
            return False
        is_rehearsal = self.is_rehearsed and clock.is_stopped
        return is_rehearsal or system_time_us() >= self.machine_marked_us + us_from_ms(grace_ms)


def read_expiry_marks(lake: Lake) -> dict[Milliseconds, ExpiryMark]:
    """Return the marks by the generation's time (ms)."""
    return {
        ms_from_datetime(row["time"]): ExpiryMark(
            ms_from_datetime(row["expired"]),
            us_from_datetime(row["marked_at"]),
            us_from_datetime(row["machine_marked_at"]),
        )
        for row in lake.read(EXPIRY_MARKS).to_pylist()
    }


def write_expiry_marks(lake: Lake, clock: Clock, expired_ms: Iterable[tuple[Milliseconds, Milliseconds]]) -> int:
    """Mark generations, given as (time, expired) in ms, as of now; return the number of new or replaced marks."""
    machine = system_time_us()
    marked = clock.now_us() if clock.is_stopped else machine
    rows = [
        {
            "time": datetime_from_ms(time_ms),
            "expired": datetime_from_ms(expiry_ms),
            "marked_at": datetime_from_us(marked),
            "machine_marked_at": datetime_from_us(machine),
        }
        for time_ms, expiry_ms in expired_ms
    ]
    if not rows:
        return 0
    done = lake.merge(EXPIRY_MARKS, pa.Table.from_pylist(rows, schema=EXPIRY_MARKS.schema), update=True)
    return done.inserted + done.updated
