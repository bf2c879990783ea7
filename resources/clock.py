"""The clock as a Dagster resource. It can be stopped to rehearse the past."""

from __future__ import annotations

from dagster import ConfigurableResource
from pydantic import Field

from cdc_platform.clock import Clock, parse_time_us
from cdc_platform.dagster_home import CLOCK_VARIABLE, clock_from_environment


class ClockResource(ConfigurableResource):
    """The machine's clock, or one that stands still."""

    stopped_at: str | None = Field(
        default=None,
        description=f"Stop the clock at this time, as in 2026-01-31T12:00:00Z. By default ${CLOCK_VARIABLE}, "
        "and without that the machine's clock runs.",
    )

    def clock(self) -> Clock:
        """Return the clock.

        Raises:
            InputError: `stopped_at` is not a time, or has no zone.
        """
        return Clock(parse_time_us(self.stopped_at)) if self.stopped_at else clock_from_environment()
