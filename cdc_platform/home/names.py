"""Names of generations and times as users give them: text, datetimes, or integers in a stated unit.

The module imports neither numpy nor pyarrow, because the command line parses its options with it.
"""

from __future__ import annotations

import re
from datetime import datetime
from uuid import UUID

from cdc_platform.clock import (
    Microseconds,
    Milliseconds,
    is_whole_ms,
    ms_from_us,
    parse_time_ms,
    parse_time_us,
    us_from_datetime,
)
from cdc_platform.errors import InputError

LATEST, OPERATING = "latest", "operating"

GenerationName = str | Milliseconds | datetime
"""A generation's UUID, its time (text, datetime, or ms since 1970), `latest`, `operating`, or a prefix of a UUID or
time."""
TimeValue = str | Microseconds | datetime
"""A time as ISO 8601 text with a zone, as a datetime with a zone, or in µs since 1970."""

_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# The begin of a UUID. A text that looks like a year and a month is a time instead.
_UUID_PREFIX = re.compile(r"(?=.{4,35}$)(?!\d{4}-\d{2}(-|$))[0-9a-f]{1,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?", re.I)
_TIME_PREFIX = re.compile(r"\d{4}-\d{2}(-\d{2}(T\d{2}(:\d{2}(:\d{2}(\.\d{0,2})?)?)?)?)?", re.I)


def parse_generation_name(text: str) -> str | Milliseconds:
    """Return a generation's UUID in lower case, its time in ms since 1970, or another name of it as text.

    Other names are `latest`, `operating`, and prefixes of a UUID or a time with at least four characters.

    Raises:
        InputError: the text is no name of a generation.
    """
    if _UUID_PATTERN.fullmatch(text):
        return str(UUID(text))
    if text.lower() in (LATEST, OPERATING):
        return text.lower()
    if _UUID_PREFIX.fullmatch(text):
        return text.lower()
    if not text[:4].isdigit() or "-" not in text:
        raise InputError(
            f"{text!r} is neither a generation's UUID nor its time, as in 2026-01-31T12:00:00.000Z, nor the begin of "
            f"one, nor {LATEST} or {OPERATING}"
        )
    if _TIME_PREFIX.fullmatch(text):
        return text.upper()
    return parse_time_ms(text)


def normalize_generation_name(name: GenerationName) -> str | Milliseconds:
    """Return a generation's name as `parse_generation_name` does, from any of its forms.

    Raises:
        InputError: the text is no name of a generation; the time is finer than a millisecond, or has no zone.
    """
    if isinstance(name, str):
        return parse_generation_name(name)
    if not isinstance(name, datetime):
        return name
    time_us = us_from_time(name)
    if not is_whole_ms(time_us):
        raise InputError(f"time {name} is finer than a millisecond; generations start at whole milliseconds")
    return ms_from_us(time_us)


def us_from_time(time: TimeValue) -> Microseconds:
    """Return a time in µs since 1970.

    Raises:
        InputError: the text is no time, or the time has no zone.
    """
    if isinstance(time, str):
        return parse_time_us(time)
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise InputError(f"time {time} has no zone; add one, as in datetime(2026, 1, 31, tzinfo=UTC)")
    return us_from_datetime(time)
