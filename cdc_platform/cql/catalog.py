"""Catalog of the keyspaces, types and tables that a script has defined so far, and the resolution of names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cdc_platform.cql.ast import QualifiedName, TypeName
from cdc_platform.cql.names import LOG_SUFFIX, check_name
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.types import (
    COUNTER,
    FLOAT,
    MAX_DIMENSIONS,
    SCALAR_TYPES,
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserType,
    VectorType,
    get_scalar_type,
    list_alternatives,
)
from cdc_platform.errors import InputError, NotFound, UnknownTable

_COLLECTION_PARAMETERS = {"list": 1, "set": 1, "map": 2}


@dataclass
class Keyspace:
    """A keyspace: its types and tables by name, and its tables' number of tablets, None without tablets.

    `declared` is True if a statement created it, so that it is known whether it has tablets.
    """

    name: str
    tablets: int | None = None
    declared: bool = False
    types: dict[str, UserType] = field(default_factory=dict)
    tables: dict[str, TableSchema] = field(default_factory=dict)


@dataclass
class Catalog:
    """All keyspaces by name, and the one chosen by USE."""

    keyspaces: dict[str, Keyspace] = field(default_factory=dict)
    in_use: str | None = None

    def qualified(self, name: QualifiedName) -> tuple[str, str]:
        """Return the keyspace and the name that a name means; raise InputError if no keyspace is given or in use."""
        keyspace = name.keyspace or self.in_use
        if keyspace is None:
            raise InputError(f"{name.name} has no keyspace and none is in use; write keyspace.{name.name}, or USE one")
        return keyspace, name.name

    def keyspace(self, name: str) -> Keyspace:
        """Return the keyspace of a name; raises NotFound."""
        keyspace = self.keyspaces.get(name)
        if keyspace is None:
            known = list_alternatives(self.keyspaces)
            raise NotFound(f"unknown keyspace {name}; {known}; make it with CREATE KEYSPACE", lacks=f"keyspace {name}")
        return keyspace

    def making(self, name: str) -> Keyspace:
        """Return the keyspace in which to create something; create an undeclared one with defaults, without tablets.

        Raises:
            InputError: the name is not valid for a keyspace.
        """
        if name not in self.keyspaces:
            check_name(name, "keyspace")
        return self.keyspaces.setdefault(name, Keyspace(name))

    def tables(self) -> Iterator[TableSchema]:
        """Yield every table."""
        for keyspace in self.keyspaces.values():
            yield from keyspace.tables.values()

    def has_table(self, name: QualifiedName) -> bool:
        """Return True if a table of that name exists."""
        keyspace, table = self.qualified(name)
        return keyspace in self.keyspaces and table in self.keyspaces[keyspace].tables

    def table(self, name: QualifiedName) -> TableSchema:
        """Return the table that a name means.

        Raises:
            NotFound: no such table exists.
            InputError: it is a CDC log, which no statement may change.
        """
        keyspace, table = self.qualified(name)
        tables = self.keyspaces[keyspace].tables if keyspace in self.keyspaces else {}
        if table in tables:
            return tables[table]
        if table.removesuffix(LOG_SUFFIX) in tables:
            raise InputError(f"{keyspace}.{table} is a CDC log; its rows come from writes to the base table alone")
        name_of_table = f"table {keyspace}.{table}"
        raise UnknownTable(f"unknown {name_of_table}; {list_alternatives(tables)}", lacks=name_of_table)

    def base_of_log(self, name: QualifiedName) -> TableSchema | None:
        """Return the base table if a name is that of its log; None for any other name."""
        keyspace, table = self.qualified(name)
        tables = self.keyspaces[keyspace].tables if keyspace in self.keyspaces else {}
        is_log = table.endswith(LOG_SUFFIX) and table not in tables
        return tables.get(table.removesuffix(LOG_SUFFIX)) if is_log else None

    def put(self, schema: TableSchema) -> None:
        """Store this table under its name."""
        self.making(schema.keyspace).tables[schema.name] = schema

    def type_of(self, written: TypeName, keyspace: str) -> CqlType:
        """Return the type that is written in a table or type of `keyspace`.

        Raises:
            InputError: it is unknown, or composed in a way that CQL does not allow.
        """
        name, parameters = written.name.name, written.parameters
        if written.name.keyspace is None:
            if name == "frozen":
                return self._frozen(parameters, keyspace)
            if name == "tuple":
                return TupleType(
                    tuple(self._part(part, keyspace, name).frozen() for part in _check_parameters(parameters))
                )
            if name in _COLLECTION_PARAMETERS:
                return self._collection(name, parameters, keyspace)
            if name == "vector":
                return self._vector(written, keyspace)
        user_type = self._user_type(written.name, keyspace)
        if parameters:
            raise InputError(f"type {name} takes no parameters")
        if user_type is not None:
            return user_type
        if written.name.keyspace is not None or (name not in SCALAR_TYPES and name != "varchar"):
            where = written.name.keyspace or keyspace
            raise InputError(
                f"unknown type {name}; it is no type of CQL, and of the types of keyspace {where} "
                f"{list_alternatives(self._types(where))}",
                lacks=f"type {where}.{name}",
            )
        return get_scalar_type(name)

    def _user_type(self, name: QualifiedName, keyspace: str) -> UserType | None:
        if name.keyspace not in (None, keyspace):
            raise InputError(f"{name.keyspace}.{name.name} is a type of another keyspace; use one of {keyspace}")
        return self._types(keyspace).get(name.name)

    def _types(self, keyspace: str) -> dict[str, UserType]:
        return self.keyspaces[keyspace].types if keyspace in self.keyspaces else {}

    def _frozen(self, parameters: tuple[TypeName, ...], keyspace: str) -> CqlType:
        if len(parameters) != 1:
            raise InputError("frozen takes one type, as in frozen<list<int>>")
        (inner,) = parameters
        kind = self._melted(inner, keyspace)
        if not kind.parts:
            raise InputError(f"{kind.cql} cannot be frozen; frozen is for collections, tuples and user types")
        return kind.frozen()

    def _melted(self, written: TypeName, keyspace: str) -> CqlType:
        """Return the type inside of frozen<>, which freezes everything in it."""
        if written.name == QualifiedName(None, "frozen"):
            return self._frozen(written.parameters, keyspace)
        frozen = TypeName(QualifiedName(None, "frozen"))
        parameters = tuple(
            frozen._replace(parameters=(part,)) if self._is_melting(part, keyspace) else part
            for part in written.parameters
        )
        return self.type_of(written._replace(parameters=parameters), keyspace)

    def _is_melting(self, written: TypeName, keyspace: str) -> bool:
        name = written.name.name
        return name in _COLLECTION_PARAMETERS or (name != "frozen" and name in self._types(keyspace))

    def _collection(self, name: str, parameters: tuple[TypeName, ...], keyspace: str) -> CqlType:
        if len(parameters) != _COLLECTION_PARAMETERS[name]:
            example = "map<int, text>" if name == "map" else f"{name}<int>"
            raise InputError(
                f"{name} takes {_COLLECTION_PARAMETERS[name]} type(s), not {len(parameters)}, as in {example}"
            )
        parts = [self._part(part, keyspace, name) for part in parameters]
        for part in parts:
            if part.multicell:
                raise InputError(f"{part.cql} inside of {name}<> has to be frozen: frozen<{part.cql}>")
        if name != "list" and not parts[0].comparable:
            raise InputError(f"{parts[0].cql} has no order, so it cannot be a key of a map or an element of a set")
        if name == "list":
            return ListType(parts[0])
        return SetType(parts[0]) if name == "set" else MapType(parts[0], parts[1])

    def _vector(self, written: TypeName, keyspace: str) -> CqlType:
        dimension = written.dimension
        if dimension is None or len(written.parameters) != 1:
            raise InputError("vector takes a type and a number, as in vector<float, 3>")
        element = self.type_of(written.parameters[0], keyspace)
        if element != FLOAT:
            raise InputError(f"vector<{element.cql}, {dimension}> is not supported; vectors here are of float")
        if not 1 <= dimension <= MAX_DIMENSIONS:
            raise InputError(f"vector<float, {dimension}>: its dimension is from 1 to {MAX_DIMENSIONS}")
        return VectorType(element, True, dimension)

    def _part(self, written: TypeName, keyspace: str, owner: str) -> CqlType:
        part = self.type_of(written, keyspace)
        if part == COUNTER:
            raise InputError(f"counters cannot be inside of {owner}<>; a counter is a column of its own")
        return part


def _check_parameters(parameters: tuple[TypeName, ...]) -> tuple[TypeName, ...]:
    if not parameters:
        raise InputError("tuple takes at least one type, as in tuple<int, text>")
    return parameters
