"""The pauses between retries: one policy for sensors, schedules and alerts.

A retry waits 30 seconds after the first failure and twice as long after each further one, up to half an hour. An outage
of minutes therefore costs minutes, and one of days costs 48 attempts a day.
"""

from __future__ import annotations

from cdc_platform.clock import MINUTE_US, SECOND_US, Microseconds

FIRST_PAUSE_US = SECOND_US * 30
LONGEST_PAUSE_US = MINUTE_US * 30


def retry_pause_us(failures: int) -> Microseconds:
    """Return how long (µs) to wait after this many consecutive failures; 0 without any."""
    if failures <= 0:
        return Microseconds(0)
    return min(FIRST_PAUSE_US * 2 ** min(failures - 1, 10), LONGEST_PAUSE_US)
