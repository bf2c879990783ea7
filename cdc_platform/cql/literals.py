"""What the terms of a statement are worth as values of a type: constants, collections, user types, functions.

The rules of CQL for which constant fits which type live here, with the errors that say what does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from ipaddress import ip_address

from cdc_platform.clock import DAY_MS, DAY_NS, MILLISECOND_US, Microseconds, Milliseconds, ms_of, ns_of, us_of
from cdc_platform.cql.blobs import READABLE, value_of_bytes
from cdc_platform.cql.json_values import from_json, parsed, to_json
from cdc_platform.cql.statements import (
    Call,
    Constant,
    Hinted,
    ListLiteral,
    MapLiteral,
    Marker,
    SetLiteral,
    Term,
    TupleLiteral,
    UserLiteral,
)
from cdc_platform.cql.times import parse_date, parse_time, parse_timestamp
from cdc_platform.cql.timeuuid import earliest, latest, timeuuid
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
    Scalar,
    SetType,
    TupleType,
    UserType,
    Value,
    scalar,
    timeuuid_us,
)
from cdc_platform.errors import InputError

FROM_JSON = "fromjson"
_EPOCH_DATE = 2**31
"""Dates that are written as integers count days from here, since CQL has them unsigned."""

_FITTING: Mapping[str, tuple[str, ...]] = {
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
_WRITTEN = {
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
class Moment:
    """When a statement runs, for its functions: `now_us` (µs since 1970) and how many UUIDs it has drawn.

    What looks random is a hash of the moment and the count, so that the same script gives the same values.
    """

    now_us: Microseconds
    drawn: int = field(default=0)

    def draw(self) -> int:
        """64 bits that no other draw of any statement of the script has."""
        self.drawn += 1
        digest = blake2b(f"{self.now_us}/{self.drawn}".encode(), digest_size=8)
        return int.from_bytes(digest.digest(), "big")


def value_of(term: Term, kind: CqlType, moment: Moment) -> Value:
    """The canonical value of a term as one of type `kind`; None for null.

    Raises:
        InputError: the term is no such value; the message says what is.
    """
    if isinstance(term, Constant):
        return _constant(term, kind)
    if isinstance(term, Call):
        return _called(term, kind, moment)
    if isinstance(term, Marker):
        raise InputError(
            f"{'?' if term.name is None else ':' + term.name} has no value; give it one with --values FILE"
        )
    if isinstance(term, Hinted):
        return _called(term, kind, moment)
    if isinstance(kind, UserType):
        return _user_value(term, kind, moment)
    if isinstance(kind, TupleType) and isinstance(term, TupleLiteral):
        if len(term.items) > len(kind.components):
            raise InputError(f"a tuple of {len(term.items)} values, where {kind.cql} has {len(kind.components)}")
        return kind.canonical(
            [value_of(item, part, moment) for item, part in zip(term.items, kind.components, strict=False)]
        )
    if isinstance(kind, ListType) and isinstance(term, ListLiteral):
        return kind.canonical([element_of(item, kind.element, moment) for item in term.items])
    if isinstance(kind, SetType) and isinstance(term, SetLiteral):
        return kind.canonical([element_of(item, kind.element, moment) for item in term.items])
    if isinstance(kind, MapType) and (isinstance(term, MapLiteral) or term == SetLiteral(())):
        pairs = term.pairs if isinstance(term, MapLiteral) else ()
        return kind.canonical(
            [(element_of(key, kind.key, moment), element_of(inner, kind.value, moment)) for key, inner in pairs]
        )
    raise InputError(f"{_shape(term)} is no value of type {kind.cql}; write {written(kind)}")


def element_of(term: Term, kind: CqlType, moment: Moment) -> Value:
    """As `value_of`, for an element of a collection, which is never null."""
    value = value_of(term, kind, moment)
    if value is None:
        raise InputError("null is no element of a collection; leave it out, or remove the element with -")
    return value


def written(kind: CqlType) -> str:
    """How a value of a type is written, for the end of an error."""
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
    return _WRITTEN.get(kind.cql, "an integer")


def _constant(term: Constant, kind: CqlType) -> Value:
    if term.kind == "null":
        return None
    if not isinstance(kind, Scalar) or kind.name not in _FITTING[term.kind]:
        raise InputError(f"{_short(term.text)} is no value of type {kind.cql}; write {written(kind)}")
    reader = _READERS.get((term.kind, kind.name))
    if term.kind == "integer" and not term.value and term.text.startswith("-") and kind.name in ("float", "double"):
        # An integer has no zero with a sign; a number that is read from the same text has.
        return kind.canonical(-0.0)
    try:
        return kind.canonical(term.value if reader is None else reader(term.value))
    except InputError as error:
        told = str(error) if reader is not None and term.kind == "text" else "that is no value of it"
        raise InputError(f"{_short(term.text)} for type {kind.cql}: {told}; write {written(kind)}") from None


def _address(text: str) -> Value:
    try:
        return ip_address(text)
    except ValueError:
        raise InputError(f"{text!r} is no address") from None


_READERS: Mapping[tuple[str, str], Callable[[Value], Value]] = {
    ("text", "inet"): _address,
    ("text", "timestamp"): parse_timestamp,
    ("text", "date"): parse_date,
    ("text", "time"): parse_time,
    ("integer", "date"): lambda number: number - _EPOCH_DATE,
    ("integer", "decimal"): Decimal,
    ("float", "float"): float,
    ("float", "double"): float,
    ("float", "decimal"): lambda number: number if isinstance(number, Decimal) else Decimal(number),
}


def _user_value(term: Term, kind: UserType, moment: Moment) -> Value:
    if isinstance(term, TupleLiteral):
        items = dict(zip(kind.field_names, term.items, strict=False))
        if len(term.items) > len(kind.fields):
            raise InputError(f"{len(term.items)} fields, where type {kind.name} has {len(kind.fields)}")
    elif isinstance(term, UserLiteral):
        items = dict(term.fields)
        if len(items) < len(term.fields):
            raise InputError(f"a field is given twice in {_shape(term)} of type {kind.name}")
    elif term == SetLiteral(()):
        items = {}
    else:
        raise InputError(f"{_shape(term)} is no value of type {kind.cql}; write {written(kind)}")
    values = {name: value_of(item, kind.parts[kind.index_of(name)], moment) for name, item in items.items()}
    return kind.canonical(values)


def _shape(term: Term) -> str:
    if isinstance(term, Constant):
        return _short(term.text)
    if isinstance(term, Call):
        return f"{term.name}()"
    if isinstance(term, Hinted):
        return f"({term.type.name.name}) ..."
    names: dict[type, str] = {ListLiteral: "a list", SetLiteral: "a set", MapLiteral: "a map", TupleLiteral: "a tuple"}
    return names.get(type(term), "a value with named fields")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


# Functions: what each takes, what it gives, and how it comes to that.


def _as_timestamp(value: Value, kind: CqlType) -> Milliseconds:
    if kind == TIMEUUID:
        return ms_of(timeuuid_us(value))
    return DAY_MS * value if kind == DATE else value


def _to_blob(_: Moment, value: Value, kind: CqlType) -> Value:
    return kind.to_bytes(value)


def _of_blob(kind: Scalar) -> Callable[[Moment, Value, CqlType], Value]:
    return lambda _moment, value, _kind: value_of_bytes(kind, value)


_Function = Callable[[Moment, Value, CqlType], Value]
_FUNCTIONS: Mapping[str, tuple[tuple[CqlType, ...], CqlType, _Function]] = {
    "uuid": ((), UUID_TYPE, lambda moment, _value, _kind: _random_uuid(moment)),
    "now": ((), TIMEUUID, lambda moment, _value, _kind: _now(moment)),
    "currenttimeuuid": ((), TIMEUUID, lambda moment, _value, _kind: _now(moment)),
    "currenttimestamp": ((), TIMESTAMP, lambda moment, _value, _kind: ms_of(moment.now_us)),
    "currentdate": ((), DATE, lambda moment, _value, _kind: ms_of(moment.now_us) // DAY_MS),
    "currenttime": ((), TIME, lambda moment, _value, _kind: ns_of(moment.now_us) % DAY_NS),
    "totimestamp": ((TIMEUUID, DATE), TIMESTAMP, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "todate": ((TIMEUUID, TIMESTAMP), DATE, lambda _moment, value, kind: _as_timestamp(value, kind) // DAY_MS),
    "tounixtimestamp": ((TIMEUUID, TIMESTAMP, DATE), BIGINT, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "dateof": ((TIMEUUID,), TIMESTAMP, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "unixtimestampof": ((TIMEUUID,), BIGINT, lambda _moment, value, kind: _as_timestamp(value, kind)),
    "mintimeuuid": ((TIMESTAMP,), TIMEUUID, lambda _moment, value, _kind: earliest(us_of(value))),
    "maxtimeuuid": (
        (TIMESTAMP,),
        TIMEUUID,
        lambda _moment, value, _kind: latest(us_of(value) + MILLISECOND_US - Microseconds(1)),
    ),
    "tojson": (READABLE, TEXT, lambda _moment, value, kind: to_json(kind, value)),
    **{f"{kind.name}asblob": ((kind,), BLOB, _to_blob) for kind in READABLE},
    "varcharasblob": ((TEXT,), BLOB, _to_blob),
    **{f"blobas{kind.name}": ((BLOB,), kind, _of_blob(kind)) for kind in READABLE},
    "blobasvarchar": ((BLOB,), TEXT, _of_blob(TEXT)),
}


def _random_uuid(moment: Moment) -> uuid.UUID:
    return uuid.UUID(int=moment.draw() << 64 | moment.draw(), version=4)


def _now(moment: Moment) -> uuid.UUID:
    return timeuuid(moment.now_us, moment.draw() & (1 << 62) - 1 | 1 << 63)


def _called(call: Call | Hinted, kind: CqlType, moment: Moment) -> Value:
    if isinstance(call, Call) and call.name == FROM_JSON:
        if len(call.arguments) != 1:
            raise InputError(f"fromJson() takes one text of JSON, not {len(call.arguments)} arguments")
        text = value_of(call.arguments[0], TEXT, moment)
        return None if text is None else from_json(kind, parsed(text))
    value, given = _result(call, moment)
    fits = given == kind or (given == TIMEUUID and kind == UUID_TYPE) or (given == BIGINT and kind == TIMESTAMP)
    if not fits:
        raise InputError(f"{_shape(call)} gives a {given.cql}, which is no value of type {kind.cql}")
    return value


def _result(call: Call | Hinted, moment: Moment) -> tuple[Value, CqlType]:
    if isinstance(call, Hinted):
        kind = _hint(call)
        return value_of(call.term, kind, moment), kind
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
    value, kind = _argument(call.arguments[0], takes, moment)
    return (None if value is None else function(moment, value, kind)), gives


def _hint(hinted: Hinted) -> CqlType:
    """The scalar type of a hint; of others no statement that writes has need."""
    name = hinted.type.name
    if hinted.type.parameters or name.keyspace is not None:
        raise InputError(f"({name.name}) in front of a value is no scalar type; write the value alone")
    return scalar(name.name)


def _argument(term: Term, takes: tuple[CqlType, ...], moment: Moment) -> tuple[Value, CqlType]:
    if isinstance(term, Call | Hinted):
        value, given = _result(term, moment)
        if given not in takes:
            raise InputError(f"{_shape(term)} gives a {given.cql}; what is wanted here is {_choices(takes)}")
        return value, given
    for kind in takes:
        try:
            return value_of(term, kind, moment), kind
        except InputError:
            continue
    raise InputError(f"{_shape(term)} is no value of type {_choices(takes)}")


def _choices(kinds: tuple[CqlType, ...]) -> str:
    return " or ".join(kind.cql for kind in kinds)
