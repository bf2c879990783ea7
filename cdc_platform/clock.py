"""Clock, time parsing and formatting, unit conversions, and ScyllaDB's time limits.

Generations use milliseconds, writes use microseconds. The clock is a value that callers pass down, so `--clock` stops
it for every rule. Only this module converts units; elsewhere a time carries its unit in its name and type.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

from cdc_platform.errors import ClockRefused, InputError

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray

    class _Time(int):
        """A time or span in one unit, for the type checker only: it rejects other units, and a count keeps the unit."""

        # An int adds to any int and compares with any object. A time does not.
        def __add__(self, other: Self) -> Self: ...  # pyrefly: ignore[bad-override]
        def __radd__(self, other: Self) -> Self: ...  # pyrefly: ignore[bad-override]
        def __sub__(self, other: Self) -> Self: ...  # pyrefly: ignore[bad-override]
        def __rsub__(self, other: Self) -> Self: ...  # pyrefly: ignore[bad-override]
        def __neg__(self) -> Self: ...
        def __mul__(self, other: int) -> Self: ...
        @overload
        def __floordiv__(self, other: Self) -> int: ...
        @overload
        def __floordiv__(self, other: int) -> Self: ...
        def __floordiv__(self, other: int) -> int: ...
        def __mod__(self, other: int) -> Self: ...
        def __hash__(self) -> int: ...
        def __eq__(self, other: Self) -> bool: ...  # pyrefly: ignore[bad-override]
        def __ne__(self, other: Self) -> bool: ...  # pyrefly: ignore[bad-override]
        def __lt__(self, other: Self) -> bool: ...  # pyrefly: ignore[bad-override]
        def __le__(self, other: Self) -> bool: ...  # pyrefly: ignore[bad-override]
        def __gt__(self, other: Self) -> bool: ...  # pyrefly: ignore[bad-override]
        def __ge__(self, other: Self) -> bool: ...  # pyrefly: ignore[bad-override]

    class Milliseconds(_Time): ...

    class Microseconds(_Time): ...

else:
    # JSON, Arrow, pydantic and numpy receive plain ints.
    Milliseconds = Microseconds = int

ONE_MS = Milliseconds(1)
SECOND_MS = Milliseconds(1_000)
MINUTE_MS = SECOND_MS * 60
HOUR_MS = MINUTE_MS * 60
DAY_MS = HOUR_MS * 24
ONE_US = Microseconds(1)
MILLISECOND_US = Microseconds(1_000)
SECOND_US = MILLISECOND_US * 1_000
MINUTE_US = SECOND_US * 60
HOUR_US = MINUTE_US * 60
DAY_US = HOUR_US * 24
MICROSECOND_NS = 1_000
MILLISECOND_NS = MICROSECOND_NS * 1_000
SECOND_NS = MILLISECOND_NS * 1_000
MINUTE_NS = SECOND_NS * 60
HOUR_NS = MINUTE_NS * 60
DAY_NS = HOUR_NS * 24
HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The formats of ISO 8601, cqlsh and `SELECT JSON`: a space or a T, 0 to 6 decimals, Z or an offset with or without
# colon.
_TIME_PATTERN = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?\s?(Z|[+-]\d{2}:?\d{2})?", re.IGNORECASE
)


@dataclass(frozen=True)
class Clock:
    """The platform's clock. `stopped_at_us` (µs since 1970 UTC) freezes it; None follows the machine's clock."""

    stopped_at_us: Microseconds | None = None

    def now_us(self) -> Microseconds:
        """Return the current time in µs since 1970 UTC."""
        return system_time_us() if self.stopped_at_us is None else self.stopped_at_us

    def now_ms(self) -> Milliseconds:
        """Return the current time in ms since 1970 UTC."""
        return ms_from_us(self.now_us())

    @property
    def is_stopped(self) -> bool:
        """Return True if the clock is frozen and does not follow the machine's clock."""
        return self.stopped_at_us is not None

    def assert_not_ahead(self, by_ms: Milliseconds, step: str) -> None:
        """Refuse an irreversible step if this clock is ahead of the machine's by more than `by_ms`.

        Raises:
            ClockRefused: the clock is too far ahead. The message names both times.
        """
        now_us, machine = self.now_us(), system_time_us()
        if now_us > machine + us_from_ms(by_ms):
            raise ClockRefused(
                f"the clock says {format_us(now_us)} and this machine's {format_us(machine)}: {step} is refused where "
                f"the clock is ahead by more than the grace time of {seconds_from_ms(by_ms):g} s (expiry_grace_ms in "
                "settings.toml); add --dry-run to see what would go by then"
            )


def parse_time_us(text: str, *, zone_required: bool = True) -> Microseconds:
    """Parse a time as µs since 1970 UTC.

    Accepts the formats of ISO 8601, cqlsh and `SELECT JSON`. Exports of old servers carry no zone and mean UTC;
    `zone_required=False` accepts those.

    Raises:
        InputError: `text` is not a time, or lacks a required zone.
    """
    match = _TIME_PATTERN.fullmatch(text.strip())
    if match is None:
        raise InputError(f"not a time: {text!r}; write it as 2026-01-31T12:00:00.000Z")
    day, clock, zone = match.groups()
    if zone is None and zone_required:
        raise InputError(f"time without a zone: {text!r}; add Z for UTC, as in 2026-01-31T12:00:00.000Z")
    try:
        parsed = datetime.fromisoformat(f"{day}T{clock or '00:00'}{'Z' if zone is None else zone.upper()}")
        return Microseconds((parsed - EPOCH) // _MICROSECOND)
    except (ValueError, OverflowError) as error:
        raise InputError(f"not a time: {text!r} ({error}); write it as 2026-01-31T12:00:00.000Z") from None


def parse_time_ms(text: str, *, zone_required: bool = True) -> Milliseconds:
    """Parse a generation's time as ms since 1970 UTC.

    Raises:
        InputError: `text` is not a time, lacks a zone if one is required, or is finer than a millisecond.
    """
    us = parse_time_us(text, zone_required=zone_required)
    if not is_whole_ms(us):
        raise InputError(f"time {text!r} is finer than a millisecond; generations start at whole milliseconds")
    return ms_from_us(us)


@overload
def us_from_ms(ms: Milliseconds) -> Microseconds: ...
@overload
def us_from_ms(ms: NDArray[np.int64]) -> NDArray[np.int64]: ...
def us_from_ms(ms: Any) -> Any:
    """Convert milliseconds to microseconds; arrays (int64) elementwise."""
    return ms * 1_000


@overload
def ms_from_us(us: Microseconds) -> Milliseconds: ...
@overload
def ms_from_us(us: NDArray[np.int64]) -> NDArray[np.int64]: ...
def ms_from_us(us: Any) -> Any:
    """Return the millisecond that contains `us`, rounded down, also before 1970; arrays (int64) elementwise."""
    return us // 1_000


def ceil_ms_from_us(us: Microseconds) -> Milliseconds:
    """Return the first whole millisecond at or after `us`."""
    return -ms_from_us(-us)


def is_whole_ms(us: Microseconds) -> bool:
    """Return True if `us` has no digits below a millisecond."""
    return us_from_ms(ms_from_us(us)) == us


def ns_from_us(us: Microseconds) -> int:
    """Convert microseconds to nanoseconds, the unit of CQL's times of day."""
    return us * MICROSECOND_NS


def ms_from_seconds(seconds: int) -> Milliseconds:
    """Convert whole seconds, the unit of TTLs, to milliseconds."""
    return SECOND_MS * seconds


def us_from_seconds(seconds: int) -> Microseconds:
    """Convert whole seconds, the unit of TTLs, to microseconds."""
    return SECOND_US * seconds


def seconds_from_ms(ms: Milliseconds) -> float:
    """Convert milliseconds to seconds, for waits and for display."""
    return ms / 1_000


def seconds_from_us(us: Microseconds) -> float:
    """Convert microseconds to seconds, for waits and for display."""
    return us / 1_000_000


def system_time_us() -> Microseconds:
    """Return the machine's time in µs since 1970 UTC, even if the platform's clock is stopped."""
    return Microseconds(time.time_ns() // 1_000)


def datetime_from_us(us: Microseconds) -> datetime:
    """Convert µs since 1970 to an aware UTC datetime.

    Raises:
        InputError: the time is outside the years 1 to 9999.
    """
    try:
        return EPOCH + timedelta(microseconds=us)
    except OverflowError:
        raise InputError(f"time {us} µs is outside the years 1 to 9999") from None


def us_from_datetime(moment: datetime) -> Microseconds:
    """Convert a datetime to µs since 1970. A naive one means UTC, as drivers and Delta readers return it."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Microseconds((aware - EPOCH) // _MICROSECOND)


def datetime_from_ms(ms: Milliseconds) -> datetime:
    """Convert ms since 1970 to an aware UTC datetime."""
    return datetime_from_us(us_from_ms(ms))


def ms_from_datetime(moment: datetime) -> Milliseconds:
    """Convert a datetime to ms since 1970, rounded down. A naive one means UTC."""
    return ms_from_us(us_from_datetime(moment))


def format_ms(ms: Milliseconds) -> str:
    """Format ms since 1970 as ISO 8601 in UTC with three decimals: `2026-01-31T12:00:00.000Z`."""
    return datetime_from_ms(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cql_timestamp_literal(ms: Milliseconds) -> str:
    """Format ms since 1970 as a literal that every version accepts: three decimals and no Z (scylladb#7997)."""
    return format_ms(ms).replace("T", " ").replace("Z", "+0000")


def format_us(us: Microseconds) -> str:
    """Format µs since 1970 as ISO 8601 in UTC with six decimals, or three if the last three are zero."""
    if is_whole_ms(us):
        return format_ms(ms_from_us(us))
    return datetime_from_us(us).isoformat(timespec="microseconds").replace("+00:00", "Z")


DEFAULT_RING_DELAY_MS = SECOND_MS * 30
"""The default of the longest time until every node has learned of a ring change."""
DEFAULT_LEEWAY_MS = SECOND_MS * 5
"""The default of how far ahead of its clock a coordinator accepts writes."""
MAX_CDC_TTL_SECONDS = 2**31 - 1
"""The largest TTL in seconds that CQL's `cdc = {'ttl': ...}` accepts."""
