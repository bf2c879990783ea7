"""Clocks that are off: each has an offset from the simulated time, a drift, and jumps both ways."""

from __future__ import annotations

from cdc_platform.clock import Microseconds
from cdc_platform.simulation.scheduler import Scheduler

PARTS_PER_MILLION = 1_000_000


class SimulatedClock:
    """A clock that shows the simulated time, plus its offset, plus its drift (µs a second) since it was last set."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.set_offset(Microseconds(0))

    def set_offset(self, offset_us: Microseconds, drift_ppm: int = 0) -> None:
        """Make the clock jump, forward or back, to this distance (µs) from the simulated time, and drift from there."""
        self._offset_us = offset_us
        self._drift_ppm = drift_ppm
        self._set_at_us = self._scheduler.now_us

    def now_us(self) -> Microseconds:
        """Return what the clock shows (µs since 1970 UTC)."""
        now_us = self._scheduler.now_us
        drift_us = (now_us - self._set_at_us) * self._drift_ppm // PARTS_PER_MILLION
        return Microseconds(now_us + self._offset_us + drift_us)
