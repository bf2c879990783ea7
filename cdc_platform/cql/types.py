"""CQL types: which values they have, how those are ordered, and what they are as bytes and as JSON.

Values are hashable Python values in one canonical form each:

| CQL | Python |
|---|---|
| ascii, text | str |
| tinyint, smallint, int, bigint, varint, counter | int |
| float, double; decimal | float (a `float` is rounded to 32 bits); Decimal |
| boolean; blob; uuid, timeuuid | bool; bytes; UUID |
| inet | IPv4Address, IPv6Address |
| date; time; timestamp | int: days since 1970; nanoseconds of the day; ms since 1970 |
| duration | `times.Duration` |
| list, tuple | tuple, in order; None for a null component of a tuple |
| set | tuple without repetitions, in the order of the element type |
| map | tuple of (key, value), in the order of the key type |
| user type | tuple of all fields, None for a null field |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from cdc_platform.cql.names import quoted
from cdc_platform.cql.scalars import (
    ASCII,
    BIGINT,
    BLOB,
    BOOLEAN,
    COUNTER,
    DATE,
    DECIMAL,
    DOUBLE,
    DURATION,
    FLOAT,
    GREGORIAN,
    INET,
    INT,
    NAN,
    SCALARS,
    SMALLINT,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMEUUID,
    TINYINT,
    UUID_TYPE,
    VARINT,
    CqlType,
    Scalar,
    Value,
    scalar,
    timeuuid_order,
    timeuuid_us,
)
from cdc_platform.errors import InputError

__all__ = [
    "ASCII",
    "BIGINT",
    "BLOB",
    "BOOLEAN",
    "COUNTER",
    "DATE",
    "DECIMAL",
    "DOUBLE",
    "DURATION",
    "FLOAT",
    "GREGORIAN",
    "INET",
    "INT",
    "MOST_DIMENSIONS",
    "NAN",
    "SCALARS",
    "SMALLINT",
    "TEXT",
    "TIME",
    "TIMESTAMP",
    "TIMEUUID",
    "TINYINT",
    "UUID_TYPE",
    "VARINT",
    "CqlType",
    "ListType",
    "MapType",
    "Scalar",
    "SetType",
    "TupleType",
    "UserType",
    "Value",
    "VectorType",
    "listed",
    "scalar",
    "timeuuid_order",
    "timeuuid_us",
]


@dataclass(frozen=True)
class _Collection(CqlType):
    @property
    def cql(self) -> str:
        return self._name if self.multicell else f"frozen<{self._name}>"

    @property
    def _name(self) -> str:
        raise NotImplementedError

    def to_bytes(self, value: Value) -> bytes:
        elements = list(self._flat(value))
        count = len(elements) // len(self.parts)
        return count.to_bytes(4, "big") + b"".join(_with_length(kind.to_bytes(element)) for kind, element in elements)

    def sort_key(self, value: Value) -> Any:
        return tuple(kind.sort_key(element) for kind, element in self._flat(value))

    def _flat(self, value: Value) -> Iterator[tuple[CqlType, Value]]:
        kind = self.parts[0]
        return ((kind, element) for element in value)


@dataclass(frozen=True)
class _OfElements(_Collection):
    """What lists and sets have in common: elements of one type."""

    _kind: ClassVar[str]

    element: CqlType
    is_frozen: bool = False

    @property
    def multicell(self) -> bool:
        return not self.is_frozen

    @property
    def _name(self) -> str:
        return f"{self._kind}<{self.element.cql}>"

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return (self.element,)

    def frozen(self) -> Self:
        return replace(self, element=self.element.frozen(), is_frozen=True)

    def replaced(self, new: UserType) -> Self:
        return replace(self, element=self.element.replaced(new))


@dataclass(frozen=True)
class ListType(_OfElements):
    """`list<V>`; where it is not frozen, its cells are keyed by timeuuid."""

    _kind = "list"

    def canonical(self, value: Value) -> Value:
        return tuple(self.element.canonical(element) for element in _elements(self, value))

    def json(self, value: Value) -> object:
        return None if value is None else [self.element.json(element) for element in value]


MOST_DIMENSIONS = 16_000
"""The most elements of a vector (cql3/cql3_type.cc, MAX_VECTOR_DIMENSION)."""


@dataclass(frozen=True)
class VectorType(ListType):
    """`vector<float, n>`: as many elements as it says, in one value, which is their bytes one behind the other."""

    dimension: int = 1

    @property
    def cql(self) -> str:
        return f"vector<{self.element.cql}, {self.dimension}>"

    def canonical(self, value: Value) -> Value:
        found = super().canonical(value)
        if len(found) != self.dimension:
            raise InputError(f"{len(found)} elements, where {self.cql} has {self.dimension}")
        return found

    def to_bytes(self, value: Value) -> bytes:
        return b"".join(map(self.element.to_bytes, value))


@dataclass(frozen=True)
class SetType(_OfElements):
    """`set<K>`."""

    _kind = "set"

    def canonical(self, value: Value) -> Value:
        elements = (self.element.canonical(element) for element in _elements(self, value))
        by_key = {self.element.sort_key(element): element for element in elements}
        return tuple(by_key[key] for key in sorted(by_key))

    def json(self, value: Value) -> object:
        if value is None:
            return None
        return [self.element.json(element) for element in sorted(value, key=self.element.sort_key)]


@dataclass(frozen=True)
class MapType(_Collection):
    """`map<K, V>`."""

    key: CqlType
    value: CqlType
    is_frozen: bool = False

    @property
    def multicell(self) -> bool:
        return not self.is_frozen

    @property
    def _name(self) -> str:
        return f"map<{self.key.cql}, {self.value.cql}>"

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return (self.key, self.value)

    def frozen(self) -> MapType:
        return MapType(self.key.frozen(), self.value.frozen(), True)

    def canonical(self, value: Value) -> Value:
        by_key: dict[Any, tuple[Value, Value]] = {}
        for key, inner in _pairs(self, value):
            name = self.key.canonical(key)
            by_key[self.key.sort_key(name)] = (name, self.value.canonical(inner))
        return tuple(by_key[key] for key in sorted(by_key))

    def json(self, value: Value) -> object:
        if value is None:
            return None
        pairs = value.items() if isinstance(value, Mapping) else value
        ordered = sorted(pairs, key=lambda pair: self.key.sort_key(pair[0]))
        return [[self.key.json(key), self.value.json(inner)] for key, inner in ordered]

    def _flat(self, value: Value) -> Iterator[tuple[CqlType, Value]]:
        for key, inner in value:
            yield self.key, key
            yield self.value, inner

    def replaced(self, new: UserType) -> MapType:
        return replace(self, key=self.key.replaced(new), value=self.value.replaced(new))


@dataclass(frozen=True)
class _Components(CqlType):
    """What tuples and user types have in common: a fixed number of components, each of which may be null.

    A value that was written before its type got another field has fewer of them.
    """

    def canonical(self, value: Value) -> Value:
        components = list(_elements(self, value))
        if len(components) > len(self.parts):
            raise InputError(f"{len(components)} components; {self.cql} has {len(self.parts)}")
        components += [None] * (len(self.parts) - len(components))
        return tuple(
            None if component is None else kind.canonical(component)
            for kind, component in zip(self.parts, components, strict=True)
        )

    def sort_key(self, value: Value) -> Any:
        return tuple(
            (0,) if component is None else (1, kind.sort_key(component))
            for kind, component in zip(self.parts, value, strict=False)
        )

    def to_bytes(self, value: Value) -> bytes:
        return b"".join(
            b"\xff\xff\xff\xff" if component is None else _with_length(kind.to_bytes(component))
            for kind, component in zip(self.parts, value, strict=False)
        )


@dataclass(frozen=True)
class TupleType(_Components):
    """`tuple<...>`, which is always one value."""

    components: tuple[CqlType, ...]

    @property
    def cql(self) -> str:
        return f"frozen<tuple<{', '.join(part.cql for part in self.components)}>>"

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return self.components

    def json(self, value: Value) -> object:
        if value is None:
            return None
        return [kind.json(component) for kind, component in zip(self.components, value, strict=True)]

    def replaced(self, new: UserType) -> TupleType:
        return TupleType(tuple(part.replaced(new) for part in self.components))


@dataclass(frozen=True)
class UserType(_Components):
    """A type made with CREATE TYPE; a field's index is its place in `fields`, and never changes."""

    keyspace: str
    name: str
    fields: tuple[tuple[str, CqlType], ...]
    is_frozen: bool = False

    @property
    def cql(self) -> str:
        name = quoted(self.name)
        return f"frozen<{name}>" if self.is_frozen else name

    @property
    def multicell(self) -> bool:
        return not self.is_frozen

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return tuple(kind for _, kind in self.fields)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields, by index."""
        return tuple(name for name, _ in self.fields)

    def frozen(self) -> UserType:
        return replace(self, fields=tuple((name, kind.frozen()) for name, kind in self.fields), is_frozen=True)

    def index_of(self, field: str) -> int:
        """The index of a field; raises InputError."""
        if field not in self.field_names:
            name = f"{self.keyspace}.{self.name}"
            raise InputError(
                f"type {name} has no field {field}; {listed(self.field_names)}", lacks=f"field {name}.{field}"
            )
        return self.field_names.index(field)

    def canonical(self, value: Value) -> Value:
        if isinstance(value, Mapping):
            named = {self.index_of(name): inner for name, inner in value.items()}
            value = tuple(named.get(index) for index in range(len(self.fields)))
        return super().canonical(value)

    def json(self, value: Value) -> object:
        if value is None:
            return None
        # A value written before a field was added is shorter than the type.
        padded = (*value, *[None] * (len(self.fields) - len(value)))
        return {name: kind.json(inner) for (name, kind), inner in zip(self.fields, padded, strict=True)}

    def replaced(self, new: UserType) -> UserType:
        if (self.keyspace, self.name) == (new.keyspace, new.name):
            return new.frozen() if self.is_frozen else new
        return replace(self, fields=tuple((name, kind.replaced(new)) for name, kind in self.fields))

    def user_types(self) -> Iterator[UserType]:
        yield self
        yield from super().user_types()


def listed(names: Iterable[str]) -> str:
    """What there is instead of an unknown name, for the end of an error."""
    known = list(names)
    return f"there is {', '.join(known)}" if known else "there is none"


def _elements(kind: CqlType, value: Value) -> Iterable[Value]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise kind.refuse(value)
    return value


def _pairs(kind: CqlType, value: Value) -> Iterable[tuple[Value, Value]]:
    pairs = value.items() if isinstance(value, Mapping) else _elements(kind, value)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise kind.refuse(value)
        yield pair


def _with_length(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
