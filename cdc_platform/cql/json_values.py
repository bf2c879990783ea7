"""JSON and CQL: what a JSON document is worth as a value of a type, and how toJson() writes one.

The rules are ScyllaDB's (2026, cql3/type_json.cc): numbers may stand in texts, keys of maps that are no texts are JSON
in texts, blobs begin with 0x. Numbers are taken as they are written, whatever their length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from ipaddress import ip_address
from typing import Any
from uuid import UUID

from cdc_platform.cql.scalars import assert_convertible, integer_of_text, integer_text, shortened
from cdc_platform.cql.times import parse_date, parse_duration, parse_time, parse_timestamp
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, TupleType, UserType, Value
from cdc_platform.errors import InputError

_BLOB = re.compile(r"0x(?:[0-9a-fA-F]{2})*+")
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "varint", "counter")
_NUMBERS = (*_INTEGERS, "float", "double", "decimal", "timestamp")


class _Number(str):
    """A number as it was written, which Python's float would round."""

    __slots__ = ()


def parsed(text: str) -> Any:
    """A JSON document, its numbers as they are written; raises InputError where it is none."""
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"{shortened(text)!r} is no JSON at character {error.pos + 1}: {error.msg}") from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply; write it with fewer levels") from None


def written_json(document: Any) -> str:
    """A document of `parsed` as JSON again."""
    if isinstance(document, _Number):
        return str(document)
    if isinstance(document, list):
        return f"[{', '.join(map(written_json, document))}]"
    if isinstance(document, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {written_json(part)}" for name, part in document.items()) + "}"
    return json.dumps(document)


def columns_of(text: str) -> dict[str, Any]:
    """The columns of a JSON object by name: in lower case, but for those in double quotes (cql3, json_helpers).

    Raises:
        InputError: it is no object, or names a column twice.
    """
    document = parsed(text)
    if not isinstance(document, dict):
        raise InputError(f"{shortened(text)!r} is no JSON object; INSERT JSON takes one, as '{{\"column\": value}}'")
    found: dict[str, Any] = {}
    for key, value in document.items():
        quoted = len(key) > 1 and key[0] == key[-1] == '"'
        name = key[1:-1] if quoted else key.lower()
        if name in found:
            raise InputError(f"the JSON names column {name} twice")
        found[name] = value
    return found


def from_json(kind: CqlType, document: Any) -> Value | None:
    """The canonical value of a document of `parsed` as one of type `kind`; None for null.

    Raises:
        InputError: it is no such value.
    """
    if document is None:
        return None
    match kind:
        case Scalar():
            return _scalar(kind, document)
        case MapType():
            pairs = _are(kind, document, dict, "an object").items()
            return kind.canonical([(_key(kind.key, key), _element(kind.value, inner)) for key, inner in pairs])
        case ListType() | SetType():
            return kind.canonical([_element(kind.element, part) for part in _are(kind, document, list, "an array")])
        case UserType():
            fields = _are(kind, document, dict, "an object")
            return kind.canonical({name: from_json(kind.parts[kind.index_of(name)], fields[name]) for name in fields})
        case TupleType():
            parts = _are(kind, document, list, "an array")
            if len(parts) > len(kind.components):
                raise InputError(f"an array of {len(parts)}, where {kind.cql} has {len(kind.components)}")
            return kind.canonical([from_json(of, part) for of, part in zip(kind.components, parts, strict=False)])
    raise InputError(f"there is no JSON of type {kind.cql}")


def to_json(kind: CqlType, value: Value | None) -> str:
    """A canonical value as toJson() writes it.

    Raises:
        InputError: it holds one of a type whose spelling differs between releases of ScyllaDB.
    """
    if value is None:
        return "null"
    match kind:
        case Scalar():
            return _scalar_json(kind, value)
        case MapType():
            return "{" + ", ".join(f"{_key_json(kind.key, key)}: {to_json(kind.value, v)}" for key, v in value) + "}"
        case ListType() | SetType():
            return f"[{', '.join(to_json(kind.element, part) for part in value)}]"
        case UserType():
            fields = zip(kind.fields, value, strict=False)
            return "{" + ", ".join(f"{json.dumps(name)}: {to_json(of, part)}" for (name, of), part in fields) + "}"
    return f"[{', '.join(to_json(of, part) for of, part in zip(kind.parts, value, strict=False))}]"


def _no_constant(text: str) -> Any:
    raise InputError(f'{text} is no number of JSON; write it as a text, as "{text}"')


def _are(kind: CqlType, document: Any, wanted: type, named: str) -> Any:
    if not isinstance(document, wanted) or isinstance(document, _Number):
        raise InputError(f"{_shown(document)} is no value of type {kind.cql}; in JSON that is {named}")
    return document


def _element(kind: CqlType, document: Any) -> Value:
    value = from_json(kind, document)
    if value is None:
        raise InputError("null is no element of a collection; leave it out")
    return value


def _key(kind: CqlType, key: str) -> Value:
    return kind.canonical(key) if kind.cql in ("text", "ascii") else _element(kind, parsed(key))


def _scalar(kind: Scalar, document: Any) -> Value:
    name = kind.name
    number = isinstance(document, _Number)
    if isinstance(document, bool):
        if name == "boolean":
            return document
    elif isinstance(document, str):
        reader = _OF_NUMBER.get(name) if number else _OF_TEXT.get(name)
        if reader is not None:
            if name in _NUMBERS:
                assert_convertible(document)
            try:
                return kind.canonical(reader(str(document)))
            except (ValueError, ArithmeticError):
                pass
    raise InputError(f"{_shown(document)} is no JSON value of type {kind.cql}")


def _integer(text: str) -> int:
    """An integer, also one with an exponent or with decimals that are zero."""
    try:
        return integer_of_text(text)
    except ValueError:
        number = Decimal(text)
        if not number.is_finite() or abs(number.adjusted()) > 400 or number != number.to_integral_value():
            raise ValueError(text[:40]) from None
        return int(number)


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text[:40])
    return word == "true"


def _blob(text: str) -> bytes:
    if not _BLOB.fullmatch(text):
        raise ValueError(text[:40])
    return bytes.fromhex(text[2:])


_OF_NUMBER: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "float": float,
    "double": float,
    "decimal": Decimal,
    "timestamp": _integer,
}
_OF_TEXT: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "varint"), integer_of_text),
    "float": float,
    "double": float,
    "decimal": Decimal,
    "ascii": str,
    "text": str,
    "boolean": _boolean,
    "blob": _blob,
    "timestamp": parse_timestamp,
    "date": parse_date,
    "time": parse_time,
    "uuid": UUID,
    "timeuuid": UUID,
    "inet": ip_address,
    "duration": parse_duration,
}


def _shown(document: Any) -> str:
    text = written_json(document)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _scalar_json(kind: Scalar, value: Value) -> str:
    if kind.name in ("ascii", "text"):
        return json.dumps(value, ensure_ascii=False)
    if kind.name == "boolean":
        return "true" if value else "false"
    if kind.name == "blob":
        return f'"0x{value.hex()}"'
    if kind.name in _INTEGERS:
        return integer_text(value)
    if kind.name in ("uuid", "timeuuid", "inet", "date"):
        return json.dumps(str(kind.json(value)))
    raise InputError(f"toJson() of type {kind.cql} differs between releases of ScyllaDB; write the text")


def _key_json(kind: CqlType, key: Value) -> str:
    text = to_json(kind, key)
    return text if text.startswith('"') else f'"{text}"'
