"""Evaluate terms (constants, collections, user types, function calls) and JSON documents, for a given CQL type.

JSON follows ScyllaDB 2026 (cql3/type_json.cc): numbers may be texts, map keys of other types than text are JSON in
texts, blobs begin with 0x. Numbers keep their written digits, whatever their length.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any
from uuid import UUID

from cdc_platform.clock import (
    DAY_MS,
    DAY_NS,
    MILLISECOND_US,
    Microseconds,
    Milliseconds,
    ms_from_us,
    ns_from_us,
    us_from_ms,
)
from cdc_platform.cql.ast import (
    BindMarker,
    Constant,
    FunctionCall,
    ListLiteral,
    MapLiteral,
    SetLiteral,
    Term,
    TupleLiteral,
    TypeHint,
    UserTypeLiteral,
)
from cdc_platform.cql.codec import BLOB_CONVERTIBLE_TYPES, scalar_from_bytes
from cdc_platform.cql.temporal import parse_date, parse_duration, parse_time, parse_timestamp
from cdc_platform.cql.timeuuid import make_timeuuid, max_timeuuid, min_timeuuid
from cdc_platform.cql.types import (
    BIGINT,
    BLOB,
    DATE,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMEUUID,
    UUID_TYPE,
    CqlType,
    ListType,
    MapType,
    ScalarType,
    SetType,
    TupleType,
    UserType,
    Value,
    check_digit_count,
    format_integer,
    get_scalar_type,
    parse_integer,
    shorten_value,
    us_from_timeuuid,
)
from cdc_platform.errors import InputError

_BLOB_PATTERN = re.compile(r"0x(?:[0-9a-fA-F]{2})*+")
_INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint", "varint", "counter")
_NUMBER_TYPES = (*_INTEGER_TYPES, "float", "double", "decimal", "timestamp")


class _WrittenNumber(str):
    """A number as written, which Python's float would round."""

    __slots__ = ()


def parse_json(text: str) -> Any:
    """Parse a JSON document, with numbers as written; raise InputError if it is invalid."""
    try:
        return json.loads(text, parse_float=_WrittenNumber, parse_int=_WrittenNumber, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"{shorten_value(text)!r} is no JSON at character {error.pos + 1}: {error.msg}") from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply; write it with fewer levels") from None


def format_json(document: Any) -> str:
    """Format a document of `parse_json` as JSON."""
    if isinstance(document, _WrittenNumber):
        return str(document)
    if isinstance(document, list):
        return f"[{', '.join(map(format_json, document))}]"
    if isinstance(document, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {format_json(part)}" for name, part in document.items()) + "}"
    return json.dumps(document)


def columns_from_json(text: str) -> dict[str, Any]:
    """Return the columns of a JSON object by name, in lower case unless in double quotes (cql3, json_helpers).

    Raises:
        InputError: it is no object, or names a column twice.
    """
    document = parse_json(text)
    if not isinstance(document, dict):
        raise InputError(
            f"{shorten_value(text)!r} is no JSON object; INSERT JSON takes one, as '{{\"column\": value}}'"
        )
    columns: dict[str, Any] = {}
    for key, value in document.items():
        quoted = len(key) > 1 and key[0] == key[-1] == '"'
        name = key[1:-1] if quoted else key.lower()
        if name in columns:
            raise InputError(f"the JSON names column {name} twice")
        columns[name] = value
    return columns


def value_from_json(kind: CqlType, document: Any) -> Value | None:
    """Return the canonical value of a document of `parse_json` as one of type `kind`; None for null.

    Raises:
        InputError: it is no such value.
    """
    if document is None:
        return None
    match kind:
        case ScalarType():
            return _json_scalar(kind, document)
        case MapType():
            pairs = _check_container(kind, document, dict, "an object").items()
            return kind.canonical(
                [(_json_key(kind.key, key), _json_element(kind.value, inner)) for key, inner in pairs]
            )
        case ListType() | SetType():
            return kind.canonical(
                [_json_element(kind.element, part) for part in _check_container(kind, document, list, "an array")]
            )
        case UserType():
            fields = _check_container(kind, document, dict, "an object")
            return kind.canonical(
                {name: value_from_json(kind.parts[kind.index_of(name)], fields[name]) for name in fields}
            )
        case TupleType():
            parts = _check_container(kind, document, list, "an array")
            if len(parts) > len(kind.components):
                raise InputError(f"an array of {len(parts)}, where {kind.cql} has {len(kind.components)}")
            return kind.canonical([value_from_json(of, part) for of, part in zip(kind.components, parts, strict=False)])
    raise InputError(f"there is no JSON of type {kind.cql}")


def value_to_json(kind: CqlType, value: Value | None) -> str:
    """Return a canonical value as toJson() writes it.

    Raises:
        InputError: it contains a value of a type that releases of ScyllaDB write differently.
    """
    if value is None:
        return "null"
    match kind:
        case ScalarType():
            return _scalar_to_json(kind, value)
        case MapType():
            return (
                "{"
                + ", ".join(f"{_key_to_json(kind.key, key)}: {value_to_json(kind.value, v)}" for key, v in value)
                + "}"
            )
        case ListType() | SetType():
            return f"[{', '.join(value_to_json(kind.element, part) for part in value)}]"
        case UserType():
            fields = zip(kind.fields, value, strict=False)
            return (
                "{" + ", ".join(f"{json.dumps(name)}: {value_to_json(of, part)}" for (name, of), part in fields) + "}"
            )
    return f"[{', '.join(value_to_json(of, part) for of, part in zip(kind.parts, value, strict=False))}]"


def _refuse_constant(text: str) -> Any:
    raise InputError(f'{text} is no number of JSON; write it as a text, as "{text}"')


def _check_container(kind: CqlType, document: Any, wanted: type, named: str) -> Any:
    if not isinstance(document, wanted) or isinstance(document, _WrittenNumber):
        raise InputError(f"{_shorten_json(document)} is no value of type {kind.cql}; in JSON that is {named}")
    return document


def _json_element(kind: CqlType, document: Any) -> Value:
    value = value_from_json(kind, document)
    if value is None:
        raise InputError("null is no element of a collection; leave it out")
    return value


def _json_key(kind: CqlType, key: str) -> Value:
    return kind.canonical(key) if kind.cql in ("text", "ascii") else _json_element(kind, parse_json(key))


def _json_scalar(kind: ScalarType, document: Any) -> Value:
    name = kind.name
    number = isinstance(document, _WrittenNumber)
    if isinstance(document, bool):
        if name == "boolean":
            return document
    elif isinstance(document, str):
        reader = _NUMBER_READERS.get(name) if number else _TEXT_READERS.get(name)
        if reader is not None:
            if name in _NUMBER_TYPES:
                check_digit_count(document)
            try:
                return kind.canonical(reader(str(document)))
            except (ValueError, ArithmeticError):
                pass
    raise InputError(f"{_shorten_json(document)} is no JSON value of type {kind.cql}")


def _json_integer(text: str) -> int:
    """Parse an integer, possibly with an exponent or with decimals that are zero."""
    try:
        return parse_integer(text)
    except ValueError:
        number = Decimal(text)
        if not number.is_finite() or abs(number.adjusted()) > 400 or number != number.to_integral_value():
            raise ValueError(text[:40]) from None
        return int(number)


def _json_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text[:40])
    return word == "true"


def _json_blob(text: str) -> bytes:
    if not _BLOB_PATTERN.fullmatch(text):
        raise ValueError(text[:40])
    return bytes.fromhex(text[2:])


_NUMBER_READERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(_INTEGER_TYPES, _json_integer),
    "float": float,
    "double": float,
    "decimal": Decimal,
    "timestamp": _json_integer,
}
_TEXT_READERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "varint"), parse_integer),
    "float": float,
    "double": float,
    "decimal": Decimal,
    "ascii": str,
    "text": str,
    "boolean": _json_boolean,
    "blob": _json_blob,
    "timestamp": parse_timestamp,
    "date": parse_date,
    "time": parse_time,
    "uuid": UUID,
    "timeuuid": UUID,
    "inet": ip_address,
    "duration": parse_duration,
}


def _shorten_json(document: Any) -> str:
    text = format_json(document)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _scalar_to_json(kind: ScalarType, value: Value) -> str:
    if kind.name in ("ascii", "text"):
        return json.dumps(value, ensure_ascii=False)
    if kind.name == "boolean":
        return "true" if value else "false"
    if kind.name == "blob":
        return f'"0x{value.hex()}"'
    if kind.name in _INTEGER_TYPES:
        return format_integer(value)
    if kind.name in ("uuid", "timeuuid", "inet", "date"):
        return json.dumps(str(kind.json(value)))
    raise InputError(f"toJson() of type {kind.cql} differs between releases of ScyllaDB; write the text")


def _key_to_json(kind: CqlType, key: Value) -> str:
    text = value_to_json(kind, key)
    return text if text.startswith('"') else f'"{text}"'


FROM_JSON_FUNCTION = "fromjson"
_EPOCH_DATE = 2**31
"""Dates written as integers count days from here, since they are unsigned in CQL."""

_TYPES_BY_CONSTANT: Mapping[str, tuple[str, ...]] = {
    "text": ("ascii", "text", "inet", "timestamp", "date", "time"),
    "integer": (
        *("tinyint", "smallint", "int", "bigint", "varint", "counter", "float", "double", "decimal"),
        *("timestamp", "date", "time"),
    ),
    "float": ("float", "double", "decimal"),
    "boolean": ("boolean",),
    "uuid": ("uuid", "timeuuid"),
    "blob": ("blob",),
    "duration": ("duration",),
}
_SYNTAX_EXAMPLES = {
    "ascii": "a text of ASCII, as 'a'",
    "text": "a text, as 'a'",
    "inet": "an address, as '127.0.0.1'",
    "timestamp": "a time as '2026-01-31T12:00:00.000Z', or milliseconds since 1970",
    "date": "a date as '2026-01-31'",
    "time": "a time of day as '08:12:54.123456789', or nanoseconds",
    "float": "a number",
    "double": "a number",
    "decimal": "a number",
    "boolean": "true or false",
    "uuid": "a UUID, without quotes",
    "timeuuid": "a UUID of version 1, without quotes",
    "blob": "bytes as 0x0102",
    "duration": "a duration as 1d12h30m",
}


@dataclass
class ExecutionContext:
    """The moment at which a statement runs, for its functions: `now_us` (µs since 1970) and its number of drawn UUIDs.

    Random values are hashes of the moment and the count, so that the same script gives the same values.
    """

    now_us: Microseconds
    drawn: int = field(default=0)

    def draw(self) -> int:
        """Return 64 bits that differ from every other draw of the script."""
        self.drawn += 1
        digest = blake2b(f"{self.now_us}/{self.drawn}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big")


def value_from_term(term: Term, kind: CqlType, moment: ExecutionContext) -> Value:
    """Return the canonical value of a term as one of type `kind`; None for null.

    Raises:
        InputError: the term is no such value; the message says what is.
    """
    if isinstance(term, Constant):
        return _constant_value(term, kind)
    if isinstance(term, FunctionCall):
        return _evaluate_as(term, kind, moment)
    if isinstance(term, BindMarker):
        raise InputError(
            f"{'?' if term.name is None else ':' + term.name} has no value; give it one with --values FILE"
        )
    if isinstance(term, TypeHint):
        return _evaluate_as(term, kind, moment)
    if isinstance(kind, UserType):
        return _user_type_value(term, kind, moment)
    if isinstance(kind, TupleType) and isinstance(term, TupleLiteral):
        if len(term.items) > len(kind.components):
            raise InputError(f"a tuple of {len(term.items)} values, where {kind.cql} has {len(kind.components)}")
        return kind.canonical(
            [value_from_term(item, part, moment) for item, part in zip(term.items, kind.components, strict=False)]
        )
    if isinstance(kind, ListType) and isinstance(term, ListLiteral):
        return kind.canonical([element_from_term(item, kind.element, moment) for item in term.items])
    if isinstance(kind, SetType) and isinstance(term, SetLiteral):
        return kind.canonical([element_from_term(item, kind.element, moment) for item in term.items])
    if isinstance(kind, MapType) and (isinstance(term, MapLiteral) or term == SetLiteral(())):
        pairs = term.pairs if isinstance(term, MapLiteral) else ()
        return kind.canonical(
            [
                (element_from_term(key, kind.key, moment), element_from_term(inner, kind.value, moment))
                for key, inner in pairs
            ]
        )
    raise InputError(f"{_describe_term(term)} is no value of type {kind.cql}; write {_describe_syntax(kind)}")


def element_from_term(term: Term, kind: CqlType, moment: ExecutionContext) -> Value:
    """Return the value of an element of a collection, as `value_from_term` does; it is never null."""
    value = value_from_term(term, kind, moment)
    if value is None:
        raise InputError("null is no element of a collection; leave it out, or remove the element with -")
    return value


def _describe_syntax(kind: CqlType) -> str:
    """Return how a value of a type is written, for the end of an error."""
    if isinstance(kind, ListType):
        return "a list as [a, b]"
    if isinstance(kind, SetType):
        return "a set as {a, b}"
    if isinstance(kind, MapType):
        return "a map as {key: value}"
    if isinstance(kind, TupleType):
        return "a tuple as (a, b)"
    if isinstance(kind, UserType):
        return f"its fields as {{{kind.field_names[0]}: value}}"
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "counter": 64}.get(kind.cql)
    if bits is not None:
        return f"an integer from {-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}"
    return _SYNTAX_EXAMPLES.get(kind.cql, "an integer")


def _constant_value(term: Constant, kind: CqlType) -> Value:
    if term.kind == "null":
        return None
    if not isinstance(kind, ScalarType) or kind.name not in _TYPES_BY_CONSTANT[term.kind]:
        raise InputError(f"{_shorten_text(term.text)} is no value of type {kind.cql}; write {_describe_syntax(kind)}")
    reader = _CONSTANT_READERS.get((term.kind, kind.name))
    if term.kind == "integer" and not term.value and term.text.startswith("-") and kind.name in ("float", "double"):
        # An integer has no signed zero; a number read from the same text has.
        return kind.canonical(-0.0)
    try:
        return kind.canonical(term.value if reader is None else reader(term.value))
    except InputError as error:
        reason = str(error) if reader is not None and term.kind == "text" else "that is no value of it"
        raise InputError(
            f"{_shorten_text(term.text)} for type {kind.cql}: {reason}; write {_describe_syntax(kind)}"
        ) from None


def _parse_address(text: str) -> Value:
    try:
        return ip_address(text)
    except ValueError:
        raise InputError(f"{text!r} is no address") from None


_CONSTANT_READERS: Mapping[tuple[str, str], Callable[[Value], Value]] = {
    ("text", "inet"): _parse_address,
    ("text", "timestamp"): parse_timestamp,
    ("text", "date"): parse_date,
    ("text", "time"): parse_time,
    ("integer", "date"): lambda number: number - _EPOCH_DATE,
    ("integer", "decimal"): Decimal,
    ("float", "float"): float,
    ("float", "double"): float,
    ("float", "decimal"): lambda number: number if isinstance(number, Decimal) else Decimal(number),
}


def _user_type_value(term: Term, kind: UserType, moment: ExecutionContext) -> Value:
    if isinstance(term, TupleLiteral):
        items = dict(zip(kind.field_names, term.items, strict=False))
        if len(term.items) > len(kind.fields):
            raise InputError(f"{len(term.items)} fields, where type {kind.name} has {len(kind.fields)}")
    elif isinstance(term, UserTypeLiteral):
        items = dict(term.fields)
        if len(items) < len(term.fields):
            raise InputError(f"a field is given twice in {_describe_term(term)} of type {kind.name}")
    elif term == SetLiteral(()):
        items = {}
    else:
        raise InputError(f"{_describe_term(term)} is no value of type {kind.cql}; write {_describe_syntax(kind)}")
    values = {name: value_from_term(item, kind.parts[kind.index_of(name)], moment) for name, item in items.items()}
    return kind.canonical(values)


def _describe_term(term: Term) -> str:
    if isinstance(term, Constant):
        return _shorten_text(term.text)
    if isinstance(term, FunctionCall):
        return f"{term.name}()"
    if isinstance(term, TypeHint):
        return f"({term.type.name.name}) ..."
    names: dict[type, str] = {ListLiteral: "a list", SetLiteral: "a set", MapLiteral: "a map", TupleLiteral: "a tuple"}
    return names.get(type(term), "a value with named fields")


def _shorten_text(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


# Functions: argument types, result type and implementation.


def _as_timestamp(value: Value, kind: CqlType) -> Milliseconds:
    if kind == TIMEUUID:
        return ms_from_us(us_from_timeuuid(value))
    return DAY_MS * value if kind == DATE else value


def _to_blob(_: ExecutionContext, value: Value, kind: CqlType) -> Value:
    return kind.to_bytes(value)


def _from_blob(kind: ScalarType) -> Callable[[ExecutionContext, Value, CqlType], Value]:
    return lambda _moment, value, _kind: scalar_from_bytes(kind, value)


_Function = Callable[[ExecutionContext, Value, CqlType], Value]
_FUNCTIONS: Mapping[str, tuple[tuple[CqlType, ...], CqlType, _Function]] = {
    "uuid": ((), UUID_TYPE, lambda moment, _value, _kind: _random_uuid(moment)),
    "now": ((), TIMEUUID, lambda moment, _value, _kind: _now_timeuuid(moment)),
    "currenttimeuuid": ((), TIMEUUID, lambda moment, _value, _kind: _now_timeuuid(moment)),
    "currenttimestamp": ((), TIMESTAMP, lambda moment, _value, _kind: ms_from_us(moment.now_us)),
    "currentdate": ((), DATE, lambda moment, _value, _kind: ms_from_us(moment.now_us) // DAY_MS),
    "currenttime": ((), TIME, lambda moment, _value, _kind: ns_from_us(moment.now_us) % DAY_NS),
    "totimestamp": ((TIMEUUID, DATE), TIMESTAMP, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "todate": ((TIMEUUID, TIMESTAMP), DATE, lambda _moment, value, kind: _as_timestamp(value, kind) // DAY_MS),
    "tounixtimestamp": ((TIMEUUID, TIMESTAMP, DATE), BIGINT, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "dateof": ((TIMEUUID,), TIMESTAMP, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "unixtimestampof": ((TIMEUUID,), BIGINT, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "mintimeuuid": ((TIMESTAMP,), TIMEUUID, lambda _moment, value, _kind: min_timeuuid(us_from_ms(value))),
    "maxtimeuuid": (
        (TIMESTAMP,),
        TIMEUUID,
        lambda _moment, value, _kind: max_timeuuid(us_from_ms(value) + MILLISECOND_US - Microseconds(1)),
    ),
    "tojson": (BLOB_CONVERTIBLE_TYPES, TEXT, lambda _moment, value, kind: value_to_json(kind, value)),
    **{f"{kind.name}asblob": ((kind,), BLOB, _to_blob) for kind in BLOB_CONVERTIBLE_TYPES},
    "varcharasblob": ((TEXT,), BLOB, _to_blob),
    **{f"blobas{kind.name}": ((BLOB,), kind, _from_blob(kind)) for kind in BLOB_CONVERTIBLE_TYPES},
    "blobasvarchar": ((BLOB,), TEXT, _from_blob(TEXT)),
}


def _random_uuid(moment: ExecutionContext) -> uuid.UUID:
    return uuid.UUID(int=moment.draw() << 64 | moment.draw(), version=4)


def _now_timeuuid(moment: ExecutionContext) -> uuid.UUID:
    return make_timeuuid(moment.now_us, moment.draw() & (1 << 62) - 1 | 1 << 63)


def _evaluate_as(call: FunctionCall | TypeHint, kind: CqlType, moment: ExecutionContext) -> Value:
    if isinstance(call, FunctionCall) and call.name == FROM_JSON_FUNCTION:
        if len(call.arguments) != 1:
            raise InputError(f"fromJson() takes one text of JSON, not {len(call.arguments)} arguments")
        text = value_from_term(call.arguments[0], TEXT, moment)
        return None if text is None else value_from_json(kind, parse_json(text))
    value, result_kind = _evaluate_call(call, moment)
    fits = (
        result_kind == kind
        or (result_kind == TIMEUUID and kind == UUID_TYPE)
        or (result_kind == BIGINT and kind == TIMESTAMP)
    )
    if not fits:
        raise InputError(f"{_describe_term(call)} gives a {result_kind.cql}, which is no value of type {kind.cql}")
    return value


def _evaluate_call(call: FunctionCall | TypeHint, moment: ExecutionContext) -> tuple[Value, CqlType]:
    if isinstance(call, TypeHint):
        kind = _hinted_type(call)
        return value_from_term(call.term, kind, moment), kind
    if call.name not in _FUNCTIONS:
        plain = [name for name in _FUNCTIONS if "blob" not in name]
        raise InputError(
            f"unknown function {call.name}; there is {', '.join(plain)}, and of each type its intAsBlob and blobAsInt"
        )
    takes, gives, function = _FUNCTIONS[call.name]
    if len(call.arguments) != bool(takes):
        raise InputError(
            f"{call.name}() takes {'one argument' if takes else 'no arguments'}, not {len(call.arguments)}"
        )
    if not takes:
        return function(moment, None, gives), gives
    value, kind = _evaluate_argument(call.arguments[0], takes, moment)
    return (None if value is None else function(moment, value, kind)), gives


def _hinted_type(hinted: TypeHint) -> CqlType:
    """Return the scalar type of a hint; no write needs hints of other types."""
    name = hinted.type.name
    if hinted.type.parameters or name.keyspace is not None:
        raise InputError(f"({name.name}) in front of a value is no scalar type; write the value alone")
    return get_scalar_type(name.name)


def _evaluate_argument(term: Term, takes: tuple[CqlType, ...], moment: ExecutionContext) -> tuple[Value, CqlType]:
    if isinstance(term, FunctionCall | TypeHint):
        value, result_kind = _evaluate_call(term, moment)
        if result_kind not in takes:
            raise InputError(f"{_describe_term(term)} gives a {result_kind.cql}; expected {_join_types(takes)}")
        return value, result_kind
    for kind in takes:
        try:
            return value_from_term(term, kind, moment), kind
        except InputError:
            continue
    raise InputError(f"{_describe_term(term)} is no value of type {_join_types(takes)}")


def _join_types(kinds: tuple[CqlType, ...]) -> str:
    return " or ".join(kind.cql for kind in kinds)
