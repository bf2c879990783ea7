"""CQL dates, times of day, timestamps and durations as text, in ranges wider than those of Python's `datetime`.

Dates are days since 1970-01-01, times of day are nanoseconds, timestamps are ms since 1970 UTC.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from cdc_platform.clock import (
    DAY_MS,
    HOUR_NS,
    HOUR_SECONDS,
    MICROSECOND_NS,
    MILLISECOND_NS,
    MINUTE_MS,
    MINUTE_NS,
    SECOND_MS,
    SECOND_NS,
    Milliseconds,
)
from cdc_platform.errors import InputError

_UNITS = (("h", HOUR_NS), ("m", MINUTE_NS), ("s", SECOND_NS), ("ms", MILLISECOND_NS), ("us", MICROSECOND_NS))
_DURATION_SIZES = {
    "y": (12, 0, 0),
    "mo": (1, 0, 0),
    "w": (0, 7, 0),
    "d": (0, 1, 0),
    **{unit: (0, 0, size) for unit, size in _UNITS},
    "µs": (0, 0, MICROSECOND_NS),
    "ns": (0, 0, 1),
}
_DATE = re.compile(r"([+-]?\d{4,7})-(\d{2})-(\d{2})", re.ASCII)
_TIME = re.compile(r"(\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?", re.ASCII)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,7}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,3}0{0,6})?)?))?\s?(Z|UTC|[+-]\d{2}(?::?\d{2})?)?",
    re.ASCII | re.IGNORECASE,
)
_DURATION_PART = re.compile(r"(\d+)(y|mo|w|d|h|ms|us|µs|ns|m|s)", re.ASCII | re.IGNORECASE)
_ISO_DURATION = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.ASCII | re.IGNORECASE
)
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
"""A date or a timestamp may be a number in quotes, which means the same as without them (types/types.cc)."""
_EPOCH_DATE = 2**31
_MAX_DURATION_CHARACTERS = 256
"""The longest text of a duration: every unit, each with a count far beyond its type's range."""
_ISO_UNITS = ("y", "mo", "w", "d", "h", "m", "s")


class Duration(NamedTuple):
    """A CQL duration: three counts of one sign, since months and days have no fixed length."""

    months: int
    days: int
    nanoseconds: int

    def __str__(self) -> str:
        """Format as CQL does: `1y2mo3d4h5m6s7ms8us9ns`, a minus before a negative one, `0s` for none."""
        years, months = divmod(abs(self.months), 12)
        remaining = abs(self.nanoseconds)
        counts = [(years, "y"), (months, "mo"), (abs(self.days), "d")]
        for unit, size in (*_UNITS, ("ns", 1)):
            count, remaining = divmod(remaining, size)
            counts.append((count, unit))
        text = "".join(f"{count}{unit}" for count, unit in counts if count)
        return f"{'-' if min(self) < 0 else ''}{text or '0s'}"


def parse_duration(text: str) -> Duration:
    """Parse `1d12h30m` or `P1DT12H30M`, either with an optional minus before it.

    Raises:
        InputError: `text` is no duration.
    """
    if len(text) > _MAX_DURATION_CHARACTERS:
        raise InputError(
            f"{text[:20]}... has {len(text)} characters; write a duration of at most "
            f"{_MAX_DURATION_CHARACTERS}, as 1d12h30m"
        )
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text)
    parts = _duration_parts(body)
    if not parts:
        raise InputError(f"{text!r} is no duration; write it as 1d12h30m or P1DT12H30M")
    sums = [sum(sign * count * _DURATION_SIZES[unit][index] for count, unit in parts) for index in range(3)]
    return Duration(*sums)


def _duration_parts(body: str) -> list[tuple[int, str]]:
    iso = _ISO_DURATION.fullmatch(body)
    if iso is not None:
        return [(int(count), unit) for count, unit in zip(iso.groups(), _ISO_UNITS, strict=True) if count is not None]
    parts = _DURATION_PART.findall(body)
    if "".join(count + unit for count, unit in parts) != body:
        return []
    return [(int(count), unit.lower()) for count, unit in parts]


def days_from_date(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a day of the proleptic Gregorian calendar.

    Raises:
        InputError: no such day exists.
    """
    leap = 2000 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 else 2001
    try:
        datetime(leap, month, day)
    except ValueError:
        raise InputError(f"there is no day {month:02}-{day:02} in the year {year}") from None
    # Years that begin in March have the leap day at their end.
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def date_from_days(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of a day since 1970-01-01; the inverse of `days_from_date`."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def format_date(days: int) -> str:
    """Format a date as ISO 8601; years of more than four digits, and those before the year 0, with a sign."""
    year, month, day = date_from_days(days)
    year_text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{year_text}-{month:02}-{day:02}"


def format_time(nanoseconds: int) -> str:
    """Format a time of day as ISO 8601, with no, six or nine decimals as needed."""
    seconds, fraction = divmod(nanoseconds, SECOND_NS)
    text = f"{seconds // HOUR_SECONDS:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction == 0:
        return text
    return f"{text}.{fraction:09}" if fraction % MICROSECOND_NS else f"{text}.{fraction // MICROSECOND_NS:06}"


def format_timestamp(ms: Milliseconds) -> str:
    """Format a timestamp as ISO 8601 in UTC with three decimals."""
    days, remaining = divmod(ms, DAY_MS)
    seconds, decimals = divmod(remaining, SECOND_MS)
    return f"{format_date(days)}T{format_time(seconds * SECOND_NS)}.{decimals:03}Z"


def parse_date(text: str) -> int:
    """Parse `2026-01-31` as days since 1970-01-01, or a number of days as CQL counts them; raises InputError."""
    if _INTEGER.fullmatch(text):
        return int(text) - _EPOCH_DATE
    match = _DATE.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is no date; write it as 2026-01-31")
    return days_from_date(int(match[1]), int(match[2]), int(match[3]))


def parse_time(text: str) -> int:
    """Parse `08:12:54.123456789` as nanoseconds of the day; raises InputError."""
    match = _TIME.fullmatch(text)
    hours, minutes, seconds = (int(match[group] or 0) for group in (1, 2, 3)) if match else (24, 0, 0)
    if match is None or hours > 23 or minutes > 59 or seconds > 59:
        raise InputError(f"{text!r} is no time of day; write it as 08:12:54.123456789")
    return ((hours * 60 + minutes) * 60 + seconds) * SECOND_NS + int((match[4] or "0").ljust(9, "0"))


def parse_timestamp(text: str) -> Milliseconds:
    """Parse `2026-01-31T12:00:00.000Z`, and CQL's other forms, as ms since 1970; without a zone it is UTC.

    A number is that many ms (types/types.cc, timestamp_from_string).

    Raises:
        InputError: `text` is no timestamp, or finer than a millisecond.
    """
    if _INTEGER.fullmatch(text.strip()):
        return Milliseconds(int(text))
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r} is no timestamp; write it as 2026-01-31T12:00:00.000Z")
    day, clock, zone = match.groups()
    minutes = 0
    if zone is not None and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        minutes = (int(digits[:2]) * 60 + int(digits[2:])) * (-1 if zone[0] == "-" else 1)
    of_day = Milliseconds(parse_time(clock) // MILLISECOND_NS if clock else 0)
    return DAY_MS * parse_date(day) + of_day - MINUTE_MS * minutes
