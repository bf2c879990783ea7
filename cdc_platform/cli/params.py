"""Click parameter types: times, tokens, keys, generations, table names.

Invalid values are usage errors before a command does anything.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any
from uuid import UUID

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

# As cdc_platform.ring has them; written down here because the command line is ready before numpy is loaded.
FIRST_TOKEN, LAST_TOKEN = -(2**63) + 1, 2**63 - 1
MAX_SHARD_COUNT = 4096
MAX_IGNORE_MSB = 31

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
LATEST, OPERATING, NOW = "latest", "operating", "now"
# The first group of a UUID at least begins otherwise than a year and a month.
_UUID_PREFIX = re.compile(r"(?=.{4,35}$)(?!\d{4}-\d{2}(-|$))[0-9a-f]{1,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?", re.I)
_TIME_PREFIX = re.compile(r"\d{4}-\d{2}(-\d{2}(T\d{2}(:\d{2}(:\d{2}(\.\d{0,2})?)?)?)?)?", re.I)
_EPOCH_NUMBER = re.compile(r"([+-]?\d{1,30})(s|ms|us)?", re.ASCII)
# As long as no first group of a UUID is.
_LONG_NUMBER = re.compile(r"\d{9,30}(s|ms|us)?|\d{1,30}(s|ms|us)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,30}", re.ASCII)


class ValidatedParam(click.ParamType):
    """A parameter whose text is read by `read`; what that refuses is a usage error that names the parameter."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except InputError as error:
            self.fail(str(error), param, ctx)

    def read(self, text: str) -> object:
        """The value of the text; raises InputError."""
        raise NotImplementedError


class _TimeParam(ValidatedParam):
    """A time with a zone, or a number since 1970, of which it is said how it was read; as µs.

    A number is µs, as CQL's USING TIMESTAMP has it, unless it has as many digits as the seconds or milliseconds of our
    time; with a unit behind it (`1769860800s`, `5ms`, `7us`) it is what that says.
    """

    name = "time"

    def read(self, text: str) -> Microseconds:
        found = _us_from_number(text)
        if found is None:
            return parse_time_us(text)
        click.echo(f"{text} is read as {format_us(found)}", err=True)
        return found


def _us_from_number(text: str) -> Microseconds | None:
    """What a number is a time of; None where it is no number. Raises InputError where there is no such time."""
    found = _EPOCH_NUMBER.fullmatch(text)
    if found is None:
        return None
    digits, unit = found.groups()
    unit = unit or {9: "s", 10: "s", 12: "ms", 13: "ms"}.get(len(digits.lstrip("+-")), "us")
    us = Microseconds(int(digits) * {"s": SECOND_US, "ms": MILLISECOND_US, "us": ONE_US}[unit])
    datetime_from_us(us)
    return us


class _GenerationTimeParam(ValidatedParam):
    """As `_TimeParam`, and no finer than milliseconds; as ms since 1970."""

    name = "time"

    def read(self, text: str) -> int:
        return _parse_ms(text)


class _CreationTimeParam(ValidatedParam):
    """As `_GenerationTimeParam`, or `now`."""

    name = "time"

    def read(self, text: str) -> int | str:
        return NOW if text.lower() == NOW else _parse_ms(text)


def _parse_ms(text: str) -> Milliseconds:
    """A time in ms; of a number it is said how it was read."""
    found = _us_from_number(text)
    if found is None:
        return parse_time_ms(text)
    if not is_whole_ms(found):
        raise InputError(f"{text} is {format_us(found)}, which is finer than milliseconds; generations' times are not")
    return ms_from_us(TIME.read(text))


class _GenerationParam(ValidatedParam):
    """A generation's UUID (lower-case text), its time (ms since 1970), or what stands for one of them (text).

    That is `latest`, `operating`, or the begin of a UUID or a time, four characters at least, see `Session.named`.
    """

    name = "generation"

    def read(self, text: str) -> str | int:
        if _UUID.fullmatch(text):
            return str(UUID(text))
        if text.lower() in (LATEST, OPERATING):
            return text.lower()
        if _UUID_PREFIX.fullmatch(text):
            return text.lower()
        if _LONG_NUMBER.fullmatch(text):
            return _parse_ms(text)
        if not text[:4].isdigit() or "-" not in text:
            raise InputError(
                f"{text!r} is neither a generation's UUID nor its time, as in 2026-01-31T12:00:00.000Z, nor the begin "
                f"of one, nor {LATEST} or {OPERATING}"
            )
        if _TIME_PREFIX.fullmatch(text):
            return text.upper()
        return parse_time_ms(text)


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
    """A table as KS.T, read as CQL reads names: unquoted ones are lower case. As (keyspace, table)."""

    name = "ks.t"

    def read(self, text: str) -> tuple[str, str]:
        return parse_table_name(text)


class SecondsRange(click.FloatRange):
    """Seconds, or a part of one: what is between two bounds, and a number at all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As any number, but for the one that is none: it is between all bounds."""
        try:
            known = isfinite(float(str(value)))
        except ValueError:
            known = False
        if not known:
            self.fail(f"{value!r} is no number of seconds; write them as 30 or 0.5", param, ctx)
        return super().convert(value, param, ctx)


TIME = _TimeParam()
GENERATION_TIME = _GenerationTimeParam()
CREATION_TIME = _CreationTimeParam()
GENERATION = _GenerationParam()
TABLE_NAME = _TableNameParam()
TOKEN = _TokenParam()
KEY = _KeyParam()
SHARDS = click.IntRange(1, MAX_SHARD_COUNT)
IGNORE_MSB = click.IntRange(0, MAX_IGNORE_MSB)
TTL = click.IntRange(0, MAX_CDC_TTL_SECONDS)
