"""Attributes of items in ScyllaDB's Alternator tables, as DynamoDB's JSON.

Alternator stores all attributes outside of the key in one column, `:attrs map<text, blob>`. A value is a type byte and
a payload: for S, B, BOOL and N the bytes of CQL's text, blob, boolean and decimal; for all other types their JSON. The
format is that of `alternator/serialization.cc` and `.hh` of ScyllaDB. Values that do not follow it stay visible: their
JSON has the single key `undecoded`, which is no type of DynamoDB, with the reason and the bytes.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from cdc_platform.errors import InputError

KEYSPACE_PREFIX = "alternator_"
"""The prefix of the keyspace of an Alternator table; the rest is the name of the table."""
ATTRIBUTES = ":attrs"
"""The column with the attributes of an item that are no key."""
ATTRIBUTES_TYPE, DECODED_ATTRIBUTES_TYPE = "map<text, blob>", "map<text, text>"
"""The column's type in the cluster, and in a home that decodes it."""
UNDECODED = "undecoded"
"""The key of a value that does not follow the format; its fields are `reason` and `bytes` (base64)."""
HASHED = "hmac"
"""The key of a hashed value, as base64."""
COLUMN_TYPES: Mapping[str, str] = {
    "S": "text",
    "N": "decimal",
    "B": "blob",
    "BOOL": "boolean",
    "SS": "set of text",
    "NS": "set of decimal",
    "BS": "set of blob",
}
"""DynamoDB's types that an attribute may have as a column, and what the column has."""

_S, _B, _BOOL, _N, _JSON, _VECTOR = range(6)
_SETS = ("SS", "NS", "BS")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_MAX_SCALE = 10_000
"""Scales beyond this are written with an exponent; Alternator's own numbers need at most 168 decimals."""


def is_alternator_keyspace(keyspace: str) -> bool:
    """Return True if a keyspace has this name as one of an Alternator table."""
    return keyspace.startswith(KEYSPACE_PREFIX) and len(keyspace) > len(KEYSPACE_PREFIX)


def is_attributes_column(keyspace: str, name: str, cql_type: str) -> bool:
    """Return True if a column of a table in this keyspace holds Alternator's attributes, as the cluster has them."""
    return is_alternator_keyspace(keyspace) and name == ATTRIBUTES and cql_type.replace(" ", "") == "map<text,blob>"


def parse_attribute_type(text: str) -> str:
    """Return the type that an attribute is declared with.

    Raises:
        InputError: no column can have the type.
    """
    if text not in COLUMN_TYPES:
        raise InputError(
            f"{text!r} is no type of a column with an attribute; choose {', '.join(COLUMN_TYPES)}. Values of L, M and "
            "NULL are in the column item"
        )
    return text


def value_to_json(value: bytes) -> str:
    """Return a stored attribute value as DynamoDB's JSON, compact; see the module for values that are malformed."""
    try:
        return _decode(value)
    except _MalformedError as error:
        return json.dumps(
            {UNDECODED: {"reason": str(error), "bytes": b64encode(value).decode()}}, separators=(",", ":")
        )


class _MalformedError(ValueError):
    """A value does not follow the format; the message says why."""


def _decode(value: bytes) -> str:
    if not value:
        raise _MalformedError("no type byte")
    kind, payload = value[0], value[1:]
    if kind == _S:
        return f'{{"S":{_text_json(payload)}}}'
    if kind == _N:
        return f'{{"N":"{format_number(payload)}"}}'
    if kind == _B:
        return f'{{"B":"{b64encode(payload).decode()}"}}'
    if kind == _BOOL:
        if payload not in (b"\0", b"\1"):
            raise _MalformedError(f"a boolean of {len(payload)} bytes that is neither 0 nor 1")
        return '{"BOOL":true}' if payload == b"\1" else '{"BOOL":false}'
    if kind == _JSON:
        return _check_json(payload)
    if kind == _VECTOR:
        return _vector_json(payload)
    raise _MalformedError(f"unknown type byte {kind}")


def _text_json(payload: bytes) -> str:
    try:
        return json.dumps(payload.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        raise _MalformedError("text that is no UTF-8") from None


def format_number(payload: bytes) -> str:
    """Return a CQL decimal's bytes (scale int32, unscaled varint) as Alternator's clients see the number, exactly.

    Decimals have no zeros at their end. Zero is 0.

    Raises:
        ValueError: the bytes are no decimal.
    """
    if len(payload) < 5:
        raise _MalformedError(f"a number of {len(payload)} bytes")
    (scale,) = struct.unpack_from(">i", payload)
    return format_decimal(int.from_bytes(payload[4:], "big", signed=True), scale)


def format_decimal(unscaled: int, scale: int) -> str:
    """Return `unscaled` / 10**`scale` as Alternator's clients see the number."""
    if unscaled == 0:
        return "0"
    sign, digits = "-" if unscaled < 0 else "", str(abs(unscaled))
    if abs(scale) > _MAX_SCALE:
        return f"{sign}{digits}E{-scale}"
    if scale <= 0:
        return f"{sign}{digits}{'0' * -scale}"
    digits = digits.rjust(scale + 1, "0")
    decimals = digits[-scale:].rstrip("0")
    return f"{sign}{digits[:-scale]}{'.' + decimals if decimals else ''}"


def _vector_json(payload: bytes) -> str:
    if len(payload) % 4:
        raise _MalformedError(f"a vector of {len(payload)} bytes, which is no multiple of 4")
    numbers = struct.unpack(f">{len(payload) // 4}f", payload)
    if not all(map(math.isfinite, numbers)):
        raise _MalformedError("a vector with a number that is not finite")
    return f'{{"FLOAT32VECTOR":[{",".join(map(_format_float, numbers))}]}}'


def _format_float(number: float) -> str:
    """Return the shortest text that reads as the same 32-bit float."""
    return next(text for digits in range(1, 18) if _is_same_float(text := f"{number:.{digits}g}", number))


def _is_same_float(text: str, number: float) -> bool:
    try:
        return struct.unpack(">f", struct.pack(">f", float(text)))[0] == number
    except OverflowError:
        return False


def _check_json(payload: bytes) -> str:
    """Return stored JSON, character by character, once it is known to be one value of DynamoDB."""
    try:
        text = payload.decode()
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        _check_value(value)
    except _MalformedError:
        raise
    except UnicodeDecodeError:
        raise _MalformedError("JSON that is no UTF-8") from None
    except RecursionError:
        raise _MalformedError("JSON that is nested too deeply") from None
    except ValueError:
        raise _MalformedError("payload that is no JSON") from None
    return text


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _MalformedError("JSON with a key that occurs twice")
    return members


def _refuse_constant(name: str) -> None:
    raise _MalformedError(f"JSON with {name}")


def _check_value(value: Any) -> None:
    if not isinstance(value, dict) or len(value) != 1:
        raise _MalformedError("JSON that is not one value with its type")
    ((kind, content),) = value.items()
    if kind in _SETS:
        if not isinstance(content, list) or not content:
            raise _MalformedError(f"{kind} that is no set with elements")
        for element in content:
            _check_scalar(kind[0], element)
    elif kind == "L":
        if not isinstance(content, list):
            raise _MalformedError("L that is no list")
        for element in content:
            _check_value(element)
    elif kind == "M":
        if not isinstance(content, dict):
            raise _MalformedError("M that is no map")
        for element in content.values():
            _check_value(element)
    elif kind in ("BOOL", "NULL"):
        if not isinstance(content, bool):
            raise _MalformedError(f"{kind} that is neither true nor false")
    elif kind == "FLOAT32VECTOR":
        if not isinstance(content, list) or not all(type(element) in (int, float) for element in content):
            raise _MalformedError("FLOAT32VECTOR that is no list of numbers")
    else:
        _check_scalar(kind, content)


def _check_scalar(kind: str, content: Any) -> None:
    if kind not in ("S", "N", "B"):
        raise _MalformedError(f"unknown type {kind[:40]!r}")
    if not isinstance(content, str):
        raise _MalformedError(f"{kind} that is no text")
    if kind == "N" and _NUMBER.fullmatch(content) is None:
        raise _MalformedError("N that is no number")
    if kind == "B":
        try:
            b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise _MalformedError("B that is no base64") from None


def is_undecoded(text: str) -> bool:
    """Return True if a value, as JSON, stands for bytes that do not follow the format."""
    return text.startswith(f'{{"{UNDECODED}":')


def column_value(kind: str, text: str | None) -> Any:
    """Return an attribute's value (its JSON) as a column of a declared type has it; None for a value of another type.

    Numbers are text, exactly as stored; binaries are bytes; sets are lists in stored order.
    """
    if text is None:
        return None
    content = json.loads(text).get(kind)
    if content is None:
        return None
    if kind == "B":
        return b64decode(content)
    return [b64decode(element) for element in content] if kind == "BS" else content
