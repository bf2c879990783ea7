"""What time it is, and how times are read and written: UTC, generations in milliseconds, writes in microseconds.

The clock is a value that is handed down, so that a stopped clock (`--clock`) reaches every rule that asks for now.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cdc_platform.errors import InputError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# What ISO 8601, cqlsh and `SELECT JSON` print: a space or a T, 0 to 6 decimals, Z or an offset with or without colon.
_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?\s?(Z|[+-]\d{2}:?\d{2})?", re.IGNORECASE
)


@dataclass(frozen=True)
class Clock:
    """The platform's clock. `stopped_at_us` (µs since 1970 UTC) freezes it; None follows the machine's."""

    stopped_at_us: int | None = None

    def now_us(self) -> int:
        """Now, in µs since 1970 UTC."""
        return time.time_ns() // 1000 if self.stopped_at_us is None else self.stopped_at_us

    def now_ms(self) -> int:
        """Now, in ms since 1970 UTC."""
        return self.now_us() // 1000


def parse_time_us(text: str, *, zone_required: bool = True) -> int:
    """Read a time as µs since 1970 UTC.

    Accepts what ISO 8601, cqlsh and `SELECT JSON` print. Exports of old servers carry no zone and mean UTC:
    `zone_required=False` reads those.

    Raises:
        InputError: `text` is no time, or has no zone where one is required.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise InputError(f"not a time: {text!r}; write it as 2026-01-31T12:00:00.000Z")
    day, clock, zone = match.groups()
    if zone is None and zone_required:
        raise InputError(f"time without a zone: {text!r}; add Z for UTC, as in 2026-01-31T12:00:00.000Z")
    try:
        parsed = datetime.fromisoformat(f"{day}T{clock or '00:00'}{'Z' if zone is None else zone.upper()}")
        return (parsed - EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise InputError(f"not a time: {text!r} ({error}); write it as 2026-01-31T12:00:00.000Z") from None


def parse_time_ms(text: str, *, zone_required: bool = True) -> int:
    """Read a generation's time as ms since 1970 UTC; refuses a time finer than a millisecond."""
    us = parse_time_us(text, zone_required=zone_required)
    if us % 1000:
        raise InputError(f"time {text!r} is finer than a millisecond; generations start at whole milliseconds")
    return us // 1000


def to_datetime(us: int) -> datetime:
    """µs since 1970 as an aware UTC datetime."""
    try:
        return EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise InputError(f"time {us} µs is outside the years 1 to 9999") from None


def from_datetime(moment: datetime) -> int:
    """A datetime as µs since 1970; a naive one means UTC, as drivers and Delta readers hand it out."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // _MICROSECOND


def format_ms(ms: int) -> str:
    """ms since 1970 as ISO 8601 in UTC with three decimals: `2026-01-31T12:00:00.000Z`."""
    return to_datetime(ms * 1000).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_us(us: int) -> str:
    """µs since 1970 as ISO 8601 in UTC with six decimals; three where the last three are zero."""
    if us % 1000 == 0:
        return format_ms(us // 1000)
    return to_datetime(us).isoformat(timespec="microseconds").replace("+00:00", "Z")
