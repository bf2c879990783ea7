"""Click parameter types: times, tokens, keys, generations, table names.

Invalid values are usage errors, raised before a command does anything.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import click

from cdc_platform.clock import (
    MAX_CDC_TTL_SECONDS,
    MILLISECOND_US,
    ONE_US,
    SECOND_US,
    Microseconds,
    Milliseconds,
    datetime_from_us,
    format_us,
    is_whole_ms,
    ms_from_us,
    parse_time_ms,
    parse_time_us,
)
from cdc_platform.cql import parse_table_name
from cdc_platform.errors import InputError
from cdc_platform.home import parse_generation_name

# The same as in cdc_platform.ring, repeated here so that the command line starts without loading numpy.
FIRST_TOKEN, LAST_TOKEN = -(2**63) + 1, 2**63 - 1
MAX_SHARD_COUNT = 4096
MAX_IGNORE_MSB = 31

OPERATING, NOW = "operating", "now"
_EPOCH_NUMBER = re.compile(r"([+-]?\d{1,30})(s|ms|us)?", re.ASCII)
# Longer than the first group of a UUID, or with a unit.
_LONG_NUMBER = re.compile(r"\d{9,30}(s|ms|us)?|\d{1,30}(s|ms|us)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)


class ValidatedParam(click.ParamType):
    """A parameter whose text `read` converts. An InputError of `read` is a usage error that names the parameter."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except InputError as error:
            self.fail(str(error), param, ctx)

    def read(self, text: str) -> object:
        """Return the value of the text. Raises InputError."""
        raise NotImplementedError


class _TimeParam(ValidatedParam):
    """A time with a zone, or a number since 1970; as µs. Standard error shows how a number was read.

    A number is in µs, as in CQL's USING TIMESTAMP, unless it has as many digits as present times have in seconds or
    milliseconds. A unit may follow it (`1769860800s`, `5ms`, `7us`).
    """

    name = "time"

    def read(self, text: str) -> Microseconds:
        time_us = _us_from_number(text)
        if time_us is None:
            return parse_time_us(text)
        click.echo(f"{text} is read as {format_us(time_us)}", err=True)
        return time_us


def _us_from_number(text: str) -> Microseconds | None:
    """Return the time (µs) that a number stands for, or None if the text is not a number.

    Raises:
        InputError: there is no such time.
    """
    match = _EPOCH_NUMBER.fullmatch(text)
    if match is None:
        return None
    digits, unit = match.groups()
    unit = unit or {9: "s", 10: "s", 12: "ms", 13: "ms"}.get(len(digits.lstrip("+-")), "us")
    us = Microseconds(int(digits) * {"s": SECOND_US, "ms": MILLISECOND_US, "us": ONE_US}[unit])
    datetime_from_us(us)
    return us


class _GenerationTimeParam(ValidatedParam):
    """As `_TimeParam`, but no finer than milliseconds; as ms since 1970."""

    name = "time"

    def read(self, text: str) -> int:
        return _parse_ms(text)


class _CreationTimeParam(ValidatedParam):
    """As `_GenerationTimeParam`, or `now`."""

    name = "time"

    def read(self, text: str) -> int | str:
        return NOW if text.lower() == NOW else _parse_ms(text)


class _StartParam(_TimeParam):
    """As `_TimeParam`, or `now`."""

    def read(self, text: str) -> Any:
        return NOW if text.lower() == NOW else super().read(text)


def _parse_ms(text: str) -> Milliseconds:
    """Return a time in ms. Standard error shows how a number was read. Raises InputError."""
    time_us = _us_from_number(text)
    if time_us is None:
        return parse_time_ms(text)
    if not is_whole_ms(time_us):
        raise InputError(
            f"{text} is {format_us(time_us)}, which is finer than milliseconds; generations' times are not"
        )
    return ms_from_us(TIME.read(text))


class _GenerationParam(ValidatedParam):
    """A generation's UUID (lower-case text), its time (ms since 1970), or a name for one of them (text).

    A name is `latest`, `operating`, or a prefix of a UUID or a time with at least four characters, see
    `CliSession.named`.
    """

    name = "generation"

    def read(self, text: str) -> str | int:
        return _parse_ms(text) if _LONG_NUMBER.fullmatch(text) else parse_generation_name(text)


class _TokenParam(ValidatedParam):
    """A token of the ring."""

    name = "token"

    def read(self, text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise InputError(f"{text!r} is no integer; tokens are integers from {FIRST_TOKEN} to {LAST_TOKEN}")
        if not FIRST_TOKEN <= int(text) <= LAST_TOKEN:
            raise InputError(f"{text} is no key's token; tokens are integers from {FIRST_TOKEN} to {LAST_TOKEN}")
        return int(text)


class _KeyParam(ValidatedParam):
    """A serialized partition key, or one component of it: hexadecimal digits, with or without 0x."""

    name = "hex"

    def read(self, text: str) -> bytes:
        digits = text.removeprefix("0x").removeprefix("0X")
        if not re.fullmatch(r"[0-9a-fA-F]*", digits):
            raise InputError(f"{text!r} is not hexadecimal; write the key's bytes as 0x00000001")
        if len(digits) % 2:
            raise InputError(f"{text!r} has {len(digits)} hexadecimal digits; a byte has two")
        if len(digits) > 2 * 0xFFFF:
            raise InputError(f"a key of {len(digits) // 2} bytes; partition keys have at most 65535")
        return bytes.fromhex(digits)


class _TableNameParam(ValidatedParam):
    """A table as KS.T, returned as (keyspace, table). As in CQL, unquoted names are lower case."""

    name = "ks.t"

    def read(self, text: str) -> tuple[str, str]:
        return parse_table_name(text)


class SecondsRange(click.FloatRange):
    """A finite number of seconds between two bounds, which may be a fraction."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds. Refuse NaN here, since it would pass the check of any bounds."""
        try:
            is_finite = isfinite(float(str(value)))
        except ValueError:
            is_finite = False
        if not is_finite:
            self.fail(f"{value!r} is no number of seconds; write them as 30 or 0.5", param, ctx)
        return super().convert(value, param, ctx)


TIME = _TimeParam()
GENERATION_TIME = _GenerationTimeParam()
CREATION_TIME = _CreationTimeParam()
START_TIME = _StartParam()
CONSISTENCY = click.Choice(["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "LOCAL_ONE"], case_sensitive=False)
RATE = click.IntRange(1, 100_000_000)
GENERATION = _GenerationParam()
TABLE_NAME = _TableNameParam()
TOKEN = _TokenParam()
KEY = _KeyParam()
SHARDS = click.IntRange(1, MAX_SHARD_COUNT)
IGNORE_MSB = click.IntRange(0, MAX_IGNORE_MSB)
TTL = click.IntRange(0, MAX_CDC_TTL_SECONDS)
