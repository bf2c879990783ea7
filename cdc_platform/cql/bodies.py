"""The rules of the grammar as records of `statements`: what a parsed statement says, with its literals read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from lark import Token, Transformer, v_args

from cdc_platform.cql import statements as s
from cdc_platform.cql.names import RESERVED
from cdc_platform.cql.scalars import assert_convertible, integer_of_text
from cdc_platform.cql.times import parse_duration
from cdc_platform.errors import InputError

MOST_NAMED = 12
"""Columns that an error names."""


@v_args(inline=True)
class Bodies(Transformer[Token, Any]):
    """Each rule of the grammar as its record in `statements`."""

    def statement(self, body: s.Body) -> s.Body:
        return body

    # Names

    def name(self, token: Token) -> str:
        if token.type == "QUOTED_IDENTIFIER":
            return token[1:-1].replace('""', '"')
        if token.lower() in RESERVED:
            raise InputError(f"{token} is a reserved word; put it in double quotes to use it as a name")
        return token.lower()

    def qualified(self, first: str, second: str | None) -> s.Name:
        return s.Name(None, first) if second is None else s.Name(first, second)

    def names(self, *names: str) -> tuple[str, ...]:
        return names

    def type(self, name: s.Name, *parameters: s.TypeName | None) -> s.TypeName:
        return s.TypeName(name, tuple(parameter for parameter in parameters if parameter is not None))

    def set_type(self, element: s.TypeName) -> s.TypeName:
        return s.TypeName(s.Name(None, "set"), (element,))

    def vector_type(self, name: s.Name, element: s.TypeName, dimension: Token) -> s.TypeName:
        return s.TypeName(name, (element,), int(dimension))

    # Keyspaces, types, tables

    def read(self, _: Token) -> s.Read:
        return s.Read()

    def use(self, keyspace: str) -> s.Use:
        return s.Use(keyspace)

    def truncate(self, name: s.Name) -> s.Truncate:
        return s.Truncate(name)

    def if_exists(self) -> bool:
        return True

    def if_not_exists(self) -> bool:
        return True

    def drop(self, what: Token, if_exists: bool | None, name: s.Name) -> s.Drop:
        kinds: dict[str, s.Dropped] = {"DROPPED_TABLE": "table", "DROPPED_TYPE": "type", "DROPPED_KEYSPACE": "keyspace"}
        return s.Drop(kinds[what.type], name, bool(if_exists))

    def create_keyspace(
        self, exists: bool | None, name: str, properties: tuple[s.TableProperty, ...] | None
    ) -> s.CreateKeyspace:
        return s.CreateKeyspace(name, bool(exists), properties or ())

    def create_index(
        self,
        exists: bool | None,
        name: str | None,
        table: s.Name,
        columns: tuple[str, ...],
        class_name: Token,
        _: tuple[s.TableProperty, ...] | None,
    ) -> s.CreateIndex:
        return s.CreateIndex(name, table, columns, str(class_name)[1:-1], bool(exists))

    def targets_of_index(self, *columns: str | None) -> tuple[str, ...]:
        return tuple(column for column in columns if column is not None)

    def target_of_index(self, column: str) -> str:
        return column

    def part_of_column(self, _: str, column: str) -> str:
        return column

    def partition_of_index(self, _: tuple[str, ...]) -> None:
        return None

    def drop_index(self, exists: bool | None, name: s.Name) -> s.DropIndex:
        return s.DropIndex(name, bool(exists))

    def create_type(self, exists: bool | None, name: s.Name, fields: tuple[Any, ...]) -> s.CreateType:
        return s.CreateType(name, bool(exists), fields)

    def add_fields(self, name: s.Name, fields: tuple[Any, ...]) -> s.AddFields:
        return s.AddFields(name, fields)

    def rename_fields(self, name: s.Name, renames: tuple[Any, ...]) -> s.RenameFields:
        return s.RenameFields(name, renames)

    def fields(self, *fields: tuple[str, s.TypeName]) -> tuple[Any, ...]:
        return fields

    def field(self, name: str, kind: s.TypeName) -> tuple[str, s.TypeName]:
        return name, kind

    def renames(self, *renames: tuple[str, str]) -> tuple[Any, ...]:
        return renames

    def rename(self, old: str, new: str) -> tuple[str, str]:
        return old, new

    def create_table(
        self,
        exists: bool | None,
        name: s.Name,
        parts: tuple[s.ColumnDefinition | s.PrimaryKey, ...],
        properties: tuple[s.TableProperty, ...] | None,
    ) -> s.CreateTable:
        columns = tuple(part for part in parts if isinstance(part, s.ColumnDefinition))
        keys = tuple(part for part in parts if isinstance(part, s.PrimaryKey))
        return s.CreateTable(name, bool(exists), columns, keys, properties or ())

    def table_parts(self, *parts: s.ColumnDefinition | s.PrimaryKey) -> tuple[Any, ...]:
        return parts

    def column_definition(
        self, name: str, kind: s.TypeName, static: Token | None, row_ttl: bool | None, primary: bool | None
    ) -> s.ColumnDefinition:
        return s.ColumnDefinition(name, kind, static is not None, bool(primary), bool(row_ttl))

    def primary_mark(self) -> bool:
        return True

    def primary_key(self, partition: tuple[str, ...], *clustering: str) -> s.PrimaryKey:
        return s.PrimaryKey(partition, clustering)

    def partition_key(self, *names: str) -> tuple[str, ...]:
        return names

    def add_columns(self, name: s.Name, columns: tuple[s.ColumnDefinition, ...]) -> s.AddColumns:
        return s.AddColumns(name, columns)

    def added(self, *columns: s.ColumnDefinition) -> tuple[s.ColumnDefinition, ...]:
        return columns

    def added_column(self, name: str, kind: s.TypeName, static: Token | None) -> s.ColumnDefinition:
        return s.ColumnDefinition(name, kind, static is not None)

    def drop_columns(self, name: s.Name, columns: tuple[str, ...], _: s.Term | None) -> s.DropColumns:
        return s.DropColumns(name, columns)

    def rename_columns(self, name: s.Name, renames: tuple[Any, ...]) -> s.RenameColumns:
        return s.RenameColumns(name, renames)

    def row_ttl(self, _: Token) -> bool:
        return True

    def alter_row_ttl(self, name: s.Name, _: Token, column: str | Token) -> s.AlterRowTtl:
        return s.AlterRowTtl(name, None if isinstance(column, Token) else column)

    def alter_properties(self, name: s.Name, properties: tuple[s.TableProperty, ...]) -> s.AlterProperties:
        return s.AlterProperties(name, properties)

    def properties(self, *properties: s.TableProperty) -> tuple[s.TableProperty, ...]:
        return properties

    def clustering_order(self, *columns: tuple[str, bool]) -> s.ClusteringOrder:
        return s.ClusteringOrder(columns)

    def ordering(self, name: str, direction: Token) -> tuple[str, bool]:
        return name, direction.type == "DESCENDING"

    def compact_storage(self) -> s.CompactStorage:
        return s.CompactStorage()

    def named_property(self, name: str, value: s.Term) -> s.Property:
        return s.Property(name, value)

    # Writes

    def insert(
        self,
        table: s.Name,
        columns: tuple[str, ...],
        values: tuple[s.Term, ...],
        absent: bool | None,
        using: s.Using | None,
    ) -> s.Insert:
        return s.Insert(table, columns, values, using or s.Using(), "not exists" if absent else None)

    def insert_json(
        self, table: s.Name, text: s.Term, default: Token | None, absent: bool | None, using: s.Using | None
    ) -> s.Insert:
        json = "unset" if default is not None and default.type == "UNSET" else "null"
        return s.Insert(table, (), (text,), using or s.Using(), "not exists" if absent else None, json)

    def json_default(self, token: Token) -> Token:
        return token

    def update(self, table: s.Name, using: s.Using | None, *rest: Any) -> s.Update:
        *assignments, where, condition = rest
        return s.Update(table, tuple(assignments), where, using or s.Using(), condition)

    def delete(
        self,
        targets: tuple[s.Target, ...] | None,
        table: s.Name,
        using: s.Using | None,
        where: tuple[s.Relation, ...],
        condition: s.Condition | None,
    ) -> s.Delete:
        return s.Delete(table, targets or (), where, using or s.Using(), condition)

    def batch(self, kind: Token | None, using: s.Using | None, *writes: s.Write) -> s.Batch:
        named: Any = "logged" if kind is None else kind.lower()
        return s.Batch(named, writes, using or s.Using())

    def using(self, *parameters: tuple[str, s.Term]) -> s.Using:
        named = [name for name, _ in parameters]
        if len(set(named)) < len(named):
            raise InputError(f"USING says {' AND '.join(named).upper()}; each of them is said once")
        return s.Using(**{name: term for name, term in parameters if name != "timeout"})

    def using_timestamp(self, term: s.Term) -> tuple[str, s.Term]:
        return "timestamp", term

    def using_ttl(self, term: s.Term) -> tuple[str, s.Term]:
        return "ttl", term

    def using_timeout(self, term: s.Term) -> tuple[str, s.Term]:
        return "timeout", term

    def assign(self, column: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Whole(column), value)

    def assign_element(self, column: str, key: s.Term, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Element(column, key), value)

    def assign_field(self, column: str, field: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Field(column, field), value)

    def append(self, column: str, operand: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Whole(column), value, "+", operand)

    def remove(self, column: str, operand: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Whole(column), value, "-", operand)

    def prepend(self, column: str, value: s.Term, operand: str) -> s.Assignment:
        return s.Assignment(s.Whole(column), value, "prepend", operand)

    def add_to(self, column: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Whole(column), value, "+", column)

    def take_from(self, column: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.Whole(column), value, "-", column)

    def targets(self, *targets: s.Target) -> tuple[s.Target, ...]:
        return targets

    def whole(self, column: str) -> s.Whole:
        return s.Whole(column)

    def element(self, column: str, key: s.Term) -> s.Element:
        return s.Element(column, key)

    def field_of(self, column: str, field: str) -> s.Field:
        return s.Field(column, field)

    def relations(self, *relations: s.Relation) -> tuple[s.Relation, ...]:
        return relations

    def operator(self, token: Token) -> str:
        return str(token)

    def compare(self, column: str, operator: str, term: s.Term) -> s.Relation:
        return s.Relation((column,), operator, (term,))

    def is_in(self, column: str, choices: tuple[s.Term, ...] | None) -> s.Relation:
        return s.Relation((column,), "IN", choices or ())

    def is_in_given(self, column: str, marker: s.Marker) -> s.Relation:
        return s.Relation((column,), "IN", (marker._replace(several=True),))

    def compare_several(self, columns: tuple[str, ...], operator: str, term: s.Term) -> s.Relation:
        return s.Relation(columns, operator, _components(columns, term))

    def several_in(self, columns: tuple[str, ...], choices: tuple[s.Term, ...] | None) -> s.Relation:
        return s.Relation(columns, "IN several", tuple(choices or ()))

    def token_relation(self, columns: tuple[str, ...], *_: object) -> s.Relation:
        return s.Relation(columns, "TOKEN", ())

    def contains(self, column: str, _: s.Term) -> s.Relation:
        return s.Relation((column,), "CONTAINS", ())

    def if_the_row_exists(self) -> s.Condition:
        return "exists"

    def if_so(self, *comparisons: s.Comparison) -> s.Condition:
        return comparisons

    def compared(self, target: s.Target, operator: str, term: s.Term) -> s.Comparison:
        return s.Comparison(target, operator, (term,))

    def one_of(self, target: s.Target, choices: tuple[s.Term, ...] | None) -> s.Comparison:
        return s.Comparison(target, "IN", choices or ())

    def alike(self, target: s.Target, pattern: s.Term) -> s.Comparison:
        return s.Comparison(target, "LIKE", (pattern,))

    # Values

    def terms(self, *terms: s.Term) -> tuple[s.Term, ...]:
        return terms

    def term(self, constant: s.Constant) -> s.Constant:
        return constant

    def constant(self, token: Token) -> s.Constant:
        return self._read(token)

    def _read(self, token: Token) -> s.Constant:
        """What stands in a statement for a constant."""
        kind, value = READERS[token.type](token)
        return s.Constant(kind, value, str(token))

    def list_literal(self, items: tuple[s.Term, ...] | None) -> s.ListLiteral:
        return s.ListLiteral(items or ())

    def set_literal(self, items: tuple[s.Term, ...] | None) -> s.SetLiteral:
        return s.SetLiteral(items or ())

    def map_literal(self, *pairs: tuple[s.Term, s.Term]) -> s.MapLiteral:
        return s.MapLiteral(pairs)

    def user_literal(self, *fields: tuple[str, s.Term]) -> s.UserLiteral:
        return s.UserLiteral(fields)

    def map_entry(self, key: s.Term, value: s.Term) -> tuple[s.Term, s.Term]:
        return key, value

    def field_entry(self, name: str, value: s.Term) -> tuple[str, s.Term]:
        return name, value

    def tuple_literal(self, items: tuple[s.Term, ...]) -> s.TupleLiteral:
        return s.TupleLiteral(items)

    def marker(self, token: Token) -> s.Marker:
        text = str(token)
        name = text[2:-1].replace('""', '"') if text.startswith(':"') else text[1:].lower()
        return s.Marker(name or None, token.start_pos or 0, token.end_pos or 0)

    def hinted(self, kind: s.TypeName, term: s.Term) -> s.Hinted:
        return s.Hinted(kind, term)

    def call(self, name: str, arguments: tuple[s.Term, ...] | None) -> s.Call:
        return s.Call(name, arguments or ())


def _components(columns: tuple[str, ...], term: s.Term) -> tuple[s.Term, ...]:
    if not isinstance(term, s.TupleLiteral):
        names = ", ".join(columns[:MOST_NAMED])
        raise InputError(f"({names}) is compared with a tuple of values, as in (a, b) > (1, 2)")
    return term.items


def _string(token: str) -> tuple[s.ConstantKind, object]:
    return "text", token[2:-2] if token.startswith("$$") else token[1:-1].replace("''", "'")


def _integer(token: str) -> tuple[s.ConstantKind, object]:
    assert_convertible(token)
    return "integer", integer_of_text(token)


def _float(token: str) -> tuple[s.ConstantKind, object]:
    assert_convertible(token)
    try:
        return "float", Decimal(str(token))
    except ArithmeticError:
        raise InputError(f"{str(token)[:40]} is no number; its exponent is too large") from None


def _blob(token: str) -> tuple[s.ConstantKind, object]:
    if len(token) % 2:
        raise InputError(f"{str(token)[:40]} has {len(token) - 2} hexadecimal digits; a byte has two")
    return "blob", bytes.fromhex(token[2:])


READERS: Mapping[str, Callable[[str], tuple[s.ConstantKind, Any]]] = {
    "STRING": _string,
    "INTEGER": _integer,
    "FLOAT": _float,
    "BOOLEAN": lambda token: ("boolean", token.lower() == "true"),
    "NULL": lambda _: ("null", None),
    "UUID": lambda token: ("uuid", UUID(str(token))),
    "BLOB": _blob,
    "DURATION": lambda token: ("duration", parse_duration(str(token))),
    "NOT_FINITE": lambda token: ("float", float(token)),
}
"""What the terminals of constants are, by their texts."""
