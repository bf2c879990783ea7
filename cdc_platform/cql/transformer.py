"""Transform the grammar's parse trees into the records of `ast`, with evaluated literals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from lark import Token, Transformer, v_args

from cdc_platform.cql import ast as s
from cdc_platform.cql.names import RESERVED_WORDS
from cdc_platform.cql.temporal import parse_duration
from cdc_platform.cql.types import check_digit_count, parse_integer
from cdc_platform.errors import InputError

_MAX_NAMED_COLUMNS = 12
"""The most columns that an error names."""


@v_args(inline=True)
class StatementTransformer(Transformer[Token, Any]):
    """Transforms each rule of the grammar into its record in `ast`."""

    def statement(self, body: s.StatementBody) -> s.StatementBody:
        return body

    # Names

    def name(self, token: Token) -> str:
        if token.type == "QUOTED_IDENTIFIER":
            return token[1:-1].replace('""', '"')
        if token.lower() in RESERVED_WORDS:
            raise InputError(f"{token} is a reserved word; put it in double quotes to use it as a name")
        return token.lower()

    def qualified(self, first: str, second: str | None) -> s.QualifiedName:
        return s.QualifiedName(None, first) if second is None else s.QualifiedName(first, second)

    def names(self, *names: str) -> tuple[str, ...]:
        return names

    def type(self, name: s.QualifiedName, *parameters: s.TypeName | None) -> s.TypeName:
        return s.TypeName(name, tuple(parameter for parameter in parameters if parameter is not None))

    def set_type(self, element: s.TypeName) -> s.TypeName:
        return s.TypeName(s.QualifiedName(None, "set"), (element,))

    def vector_type(self, name: s.QualifiedName, element: s.TypeName, dimension: Token) -> s.TypeName:
        return s.TypeName(name, (element,), int(dimension))

    # Keyspaces, types, tables

    def read(self, _: Token) -> s.ReadOnlyStatement:
        return s.ReadOnlyStatement()

    def use(self, keyspace: str) -> s.UseKeyspace:
        return s.UseKeyspace(keyspace)

    def truncate(self, name: s.QualifiedName) -> s.Truncate:
        return s.Truncate(name)

    def if_exists(self) -> bool:
        return True

    def if_not_exists(self) -> bool:
        return True

    def drop(self, what: Token, if_exists: bool | None, name: s.QualifiedName) -> s.DropObject:
        kinds: dict[str, s.DroppedKind] = {
            "DROPPED_TABLE": "table",
            "DROPPED_TYPE": "type",
            "DROPPED_KEYSPACE": "keyspace",
        }
        return s.DropObject(kinds[what.type], name, bool(if_exists))

    def create_keyspace(
        self, exists: bool | None, name: str, properties: tuple[s.TableProperty, ...] | None
    ) -> s.CreateKeyspace:
        return s.CreateKeyspace(name, bool(exists), properties or ())

    def create_index(
        self,
        exists: bool | None,
        name: str | None,
        table: s.QualifiedName,
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

    def drop_index(self, exists: bool | None, name: s.QualifiedName) -> s.DropIndex:
        return s.DropIndex(name, bool(exists))

    def create_type(self, exists: bool | None, name: s.QualifiedName, fields: tuple[Any, ...]) -> s.CreateType:
        return s.CreateType(name, bool(exists), fields)

    def add_fields(self, name: s.QualifiedName, fields: tuple[Any, ...]) -> s.AddFields:
        return s.AddFields(name, fields)

    def rename_fields(self, name: s.QualifiedName, renames: tuple[Any, ...]) -> s.RenameFields:
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
        name: s.QualifiedName,
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

    def add_columns(self, name: s.QualifiedName, columns: tuple[s.ColumnDefinition, ...]) -> s.AddColumns:
        return s.AddColumns(name, columns)

    def added(self, *columns: s.ColumnDefinition) -> tuple[s.ColumnDefinition, ...]:
        return columns

    def added_column(self, name: str, kind: s.TypeName, static: Token | None) -> s.ColumnDefinition:
        return s.ColumnDefinition(name, kind, static is not None)

    def drop_columns(self, name: s.QualifiedName, columns: tuple[str, ...], _: s.Term | None) -> s.DropColumns:
        return s.DropColumns(name, columns)

    def rename_columns(self, name: s.QualifiedName, renames: tuple[Any, ...]) -> s.RenameColumns:
        return s.RenameColumns(name, renames)

    def row_ttl(self, _: Token) -> bool:
        return True

    def alter_row_ttl(self, name: s.QualifiedName, _: Token, column: str | Token) -> s.AlterRowTtl:
        return s.AlterRowTtl(name, None if isinstance(column, Token) else column)

    def alter_properties(self, name: s.QualifiedName, properties: tuple[s.TableProperty, ...]) -> s.AlterProperties:
        return s.AlterProperties(name, properties)

    def properties(self, *properties: s.TableProperty) -> tuple[s.TableProperty, ...]:
        return properties

    def clustering_order(self, *columns: tuple[str, bool]) -> s.ClusteringOrder:
        return s.ClusteringOrder(columns)

    def ordering(self, name: str, direction: Token) -> tuple[str, bool]:
        return name, direction.type == "DESCENDING"

    def compact_storage(self) -> s.CompactStorage:
        return s.CompactStorage()

    def named_property(self, name: str, value: s.Term) -> s.NamedProperty:
        return s.NamedProperty(name, value)

    # Writes

    def insert(
        self,
        table: s.QualifiedName,
        columns: tuple[str, ...],
        values: tuple[s.Term, ...],
        absent: bool | None,
        using: s.UsingClause | None,
    ) -> s.Insert:
        return s.Insert(table, columns, values, using or s.UsingClause(), "not exists" if absent else None)

    def insert_json(
        self,
        table: s.QualifiedName,
        text: s.Term,
        default: Token | None,
        absent: bool | None,
        using: s.UsingClause | None,
    ) -> s.Insert:
        json = "unset" if default is not None and default.type == "UNSET" else "null"
        return s.Insert(table, (), (text,), using or s.UsingClause(), "not exists" if absent else None, json)

    def json_default(self, token: Token) -> Token:
        return token

    def update(self, table: s.QualifiedName, using: s.UsingClause | None, *rest: Any) -> s.Update:
        *assignments, where, condition = rest
        return s.Update(table, tuple(assignments), where, using or s.UsingClause(), condition)

    def delete(
        self,
        targets: tuple[s.AssignmentTarget, ...] | None,
        table: s.QualifiedName,
        using: s.UsingClause | None,
        where: tuple[s.Relation, ...],
        condition: s.IfCondition | None,
    ) -> s.Delete:
        return s.Delete(table, targets or (), where, using or s.UsingClause(), condition)

    def batch(self, kind: Token | None, using: s.UsingClause | None, *writes: s.WriteStatement) -> s.Batch:
        named: Any = "logged" if kind is None else kind.lower()
        return s.Batch(named, writes, using or s.UsingClause())

    def using(self, *parameters: tuple[str, s.Term]) -> s.UsingClause:
        named = [name for name, _ in parameters]
        if len(set(named)) < len(named):
            raise InputError(f"USING says {' AND '.join(named).upper()}; give each of them once")
        return s.UsingClause(**{name: term for name, term in parameters if name != "timeout"})

    def using_timestamp(self, term: s.Term) -> tuple[str, s.Term]:
        return "timestamp", term

    def using_ttl(self, term: s.Term) -> tuple[str, s.Term]:
        return "ttl", term

    def using_timeout(self, term: s.Term) -> tuple[str, s.Term]:
        return "timeout", term

    def assign(self, column: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.WholeColumn(column), value)

    def assign_element(self, column: str, key: s.Term, value: s.Term) -> s.Assignment:
        return s.Assignment(s.ColumnElement(column, key), value)

    def assign_field(self, column: str, field: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.ColumnField(column, field), value)

    def append(self, column: str, operand: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.WholeColumn(column), value, "+", operand)

    def remove(self, column: str, operand: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.WholeColumn(column), value, "-", operand)

    def prepend(self, column: str, value: s.Term, operand: str) -> s.Assignment:
        return s.Assignment(s.WholeColumn(column), value, "prepend", operand)

    def add_to(self, column: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.WholeColumn(column), value, "+", column)

    def take_from(self, column: str, value: s.Term) -> s.Assignment:
        return s.Assignment(s.WholeColumn(column), value, "-", column)

    def targets(self, *targets: s.AssignmentTarget) -> tuple[s.AssignmentTarget, ...]:
        return targets

    def whole(self, column: str) -> s.WholeColumn:
        return s.WholeColumn(column)

    def element(self, column: str, key: s.Term) -> s.ColumnElement:
        return s.ColumnElement(column, key)

    def field_of(self, column: str, field: str) -> s.ColumnField:
        return s.ColumnField(column, field)

    def relations(self, *relations: s.Relation) -> tuple[s.Relation, ...]:
        return relations

    def operator(self, token: Token) -> str:
        return str(token)

    def compare(self, column: str, operator: str, term: s.Term) -> s.Relation:
        return s.Relation((column,), operator, (term,))

    def is_in(self, column: str, choices: tuple[s.Term, ...] | None) -> s.Relation:
        return s.Relation((column,), "IN", choices or ())

    def is_in_given(self, column: str, marker: s.BindMarker) -> s.Relation:
        return s.Relation((column,), "IN", (marker._replace(is_list=True),))

    def compare_several(self, columns: tuple[str, ...], operator: str, term: s.Term) -> s.Relation:
        return s.Relation(columns, operator, _tuple_items(columns, term))

    def several_in(self, columns: tuple[str, ...], choices: tuple[s.Term, ...] | None) -> s.Relation:
        return s.Relation(columns, "IN several", tuple(choices or ()))

    def token_relation(self, columns: tuple[str, ...], *_: object) -> s.Relation:
        return s.Relation(columns, "TOKEN", ())

    def contains(self, column: str, _: s.Term) -> s.Relation:
        return s.Relation((column,), "CONTAINS", ())

    def if_the_row_exists(self) -> s.IfCondition:
        return "exists"

    def if_so(self, *comparisons: s.ConditionComparison) -> s.IfCondition:
        return comparisons

    def compared(self, target: s.AssignmentTarget, operator: str, term: s.Term) -> s.ConditionComparison:
        return s.ConditionComparison(target, operator, (term,))

    def one_of(self, target: s.AssignmentTarget, choices: tuple[s.Term, ...] | None) -> s.ConditionComparison:
        return s.ConditionComparison(target, "IN", choices or ())

    def alike(self, target: s.AssignmentTarget, pattern: s.Term) -> s.ConditionComparison:
        return s.ConditionComparison(target, "LIKE", (pattern,))

    # Values

    def terms(self, *terms: s.Term) -> tuple[s.Term, ...]:
        return terms

    def term(self, constant: s.Constant) -> s.Constant:
        return constant

    def constant(self, token: Token) -> s.Constant:
        return self._read(token)

    def _read(self, token: Token) -> s.Constant:
        """Return what represents a constant in a statement."""
        kind, value = LITERAL_READERS[token.type](token)
        return s.Constant(kind, value, str(token))

    def list_literal(self, items: tuple[s.Term, ...] | None) -> s.ListLiteral:
        return s.ListLiteral(items or ())

    def set_literal(self, items: tuple[s.Term, ...] | None) -> s.SetLiteral:
        return s.SetLiteral(items or ())

    def map_literal(self, *pairs: tuple[s.Term, s.Term]) -> s.MapLiteral:
        return s.MapLiteral(pairs)

    def user_literal(self, *fields: tuple[str, s.Term]) -> s.UserTypeLiteral:
        return s.UserTypeLiteral(fields)

    def map_entry(self, key: s.Term, value: s.Term) -> tuple[s.Term, s.Term]:
        return key, value

    def field_entry(self, name: str, value: s.Term) -> tuple[str, s.Term]:
        return name, value

    def tuple_literal(self, items: tuple[s.Term, ...]) -> s.TupleLiteral:
        return s.TupleLiteral(items)

    def marker(self, token: Token) -> s.BindMarker:
        text = str(token)
        name = text[2:-1].replace('""', '"') if text.startswith(':"') else text[1:].lower()
        return s.BindMarker(name or None, token.start_pos or 0, token.end_pos or 0)

    def hinted(self, kind: s.TypeName, term: s.Term) -> s.TypeHint:
        return s.TypeHint(kind, term)

    def call(self, name: str, arguments: tuple[s.Term, ...] | None) -> s.FunctionCall:
        return s.FunctionCall(name, arguments or ())


def _tuple_items(columns: tuple[str, ...], term: s.Term) -> tuple[s.Term, ...]:
    if not isinstance(term, s.TupleLiteral):
        names = ", ".join(columns[:_MAX_NAMED_COLUMNS])
        raise InputError(f"({names}) is compared with a tuple of values, as in (a, b) > (1, 2)")
    return term.items


def _read_string(token: str) -> tuple[s.ConstantKind, object]:
    return "text", token[2:-2] if token.startswith("$$") else token[1:-1].replace("''", "'")


def _read_integer(token: str) -> tuple[s.ConstantKind, object]:
    check_digit_count(token)
    return "integer", parse_integer(token)


def _read_float(token: str) -> tuple[s.ConstantKind, object]:
    check_digit_count(token)
    try:
        return "float", Decimal(str(token))
    except ArithmeticError:
        raise InputError(f"{str(token)[:40]} is no number; its exponent is too large") from None


def _read_blob(token: str) -> tuple[s.ConstantKind, object]:
    if len(token) % 2:
        raise InputError(f"{str(token)[:40]} has {len(token) - 2} hexadecimal digits; a byte has two")
    return "blob", bytes.fromhex(token[2:])


LITERAL_READERS: Mapping[str, Callable[[str], tuple[s.ConstantKind, Any]]] = {
    "STRING": _read_string,
    "INTEGER": _read_integer,
    "FLOAT": _read_float,
    "BOOLEAN": lambda token: ("boolean", token.lower() == "true"),
    "NULL": lambda _: ("null", None),
    "UUID": lambda token: ("uuid", UUID(str(token))),
    "BLOB": _read_blob,
    "DURATION": lambda token: ("duration", parse_duration(str(token))),
    "NOT_FINITE": lambda token: ("float", float(token)),
}
"""Readers of constants from their text, by terminal of the grammar."""


_LITERAL = re.compile(
    r"""( '[^']*+(?:''[^']*+)*+'
        | "[^"]*+(?:""[^"]*+)*+"
        | (?<![\w.])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![\w.-])
        | (?<![\w.])0x[0-9a-f]*(?![\w.])
        | (?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?![\w.])
        )""",
    re.VERBOSE | re.IGNORECASE,
)
_NO_SHAPE = re.compile(r"--|//|/\*|\$\$")
"""What no shape has outside of its literals: comments, and texts between dollars."""
_MOST_SHAPES = 2_000
_LONGEST_SHAPE = 8_192
_UUID_CHARACTERS = 36

ShapeFiller = Callable[[Mapping[int, s.Constant] | Sequence[s.Constant]], Any]
"""Fills a part of a statement's body with literals, by their numbers in the text."""


class LiteralSlot(s.Constant):
    """A slot for a literal in a body; its `value` is the literal's number in the text."""


@dataclass(frozen=True)
class ShapeLiterals:
    """A text without its literals, and the literals in order: the kind (a terminal of the grammar) and text of each."""

    shape: tuple[str, ...]
    literals: list[tuple[str, str]]

    @property
    def places(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Return each literal's number and kind, by its start and end in the text."""
        places: dict[tuple[int, int], tuple[int, str]] = {}
        at, number = 0, 0
        for index, part in enumerate(self.shape):
            end = at + len(part)
            if _is_mark(index, part):
                kind, text = self.literals[number]
                end = at + len(text)
                places[at, end] = number, kind
                number += 1
            at = end
        return places


_KINDS = {"\0STRING": "STRING", "\0UUID": "UUID", "\0BLOB": "BLOB", "\0FLOAT": "FLOAT", "\0INTEGER": "INTEGER"}
_KINDS |= {"\0FLOAT-": "FLOAT", "\0INTEGER-": "INTEGER"}
"""Marks that replace literals in a shape; the sign of a number is part of the shape."""


def _is_mark(index: int, part: str) -> bool:
    return index % 2 == 1 and part[0] != '"'


def extract_literals(text: str) -> ShapeLiterals:
    """Split a text into its shape and its literals."""
    parts = _LITERAL.split(text)
    literals: list[tuple[str, str]] = []
    for index in range(1, len(parts), 2):
        literal = parts[index]
        if literal[0] != '"':
            mark = _mark(literal)
            parts[index] = mark
            literals.append((_KINDS[mark], literal))
    return ShapeLiterals(tuple(parts), literals)


def _mark(literal: str) -> str:
    if literal[0] == "'":
        return "\0STRING"
    if literal[1:2] in ("x", "X"):
        return "\0BLOB"
    if len(literal) == _UUID_CHARACTERS and literal.count("-") == 4:
        return "\0UUID"
    sign = "-" if literal[0] == "-" else ""
    return ("\0FLOAT" if "." in literal else "\0INTEGER") + sign


class SlotTransformer(StatementTransformer):
    """Transforms a statement into records with slots for its literals, which are at the given positions of the text.

    `constants` are the literals replaced by slots, by number.
    """

    def __init__(self, places: dict[tuple[int, int], tuple[int, str]]) -> None:
        super().__init__()
        self._places = places
        self.constants: dict[int, s.Constant] = {}

    def _read(self, token: Token) -> s.Constant:
        """Return the slot of a literal; the constant itself at any other position."""
        constant = super()._read(token)
        number, kind = self._places.get((token.start_pos or 0, token.end_pos or 0), (-1, ""))
        if kind != token.type:
            return constant
        self.constants[number] = constant
        return LiteralSlot(constant.kind, number, constant.text)


@dataclass(frozen=True)
class _KnownShape:
    fill: ShapeFiller
    kind: str
    behind: int
    """Characters of the text after the statement."""


class StatementShapes:
    """The shapes seen so far, at most some thousands.

    Statements of a script mostly repeat a few shapes. Applying 20,000 statements of 20 shapes takes 4 s of CPU,
    and 12 s if each statement is parsed whole.
    """

    def __init__(self) -> None:
        self._fillers: dict[tuple[str, ...], _KnownShape] = {}

    def statement(self, literals: ShapeLiterals, text: str, line: int) -> s.Statement | None:
        """Return the statement of a text, if its shape is known and its literals are valid."""
        known = self._fillers.get(literals.shape)
        if known is None:
            return None
        constants = read_constants(literals)
        if constants is None:
            return None
        statement_text = text[: len(text) - known.behind].strip()
        return s.Statement(statement_text, line, known.fill(constants), known.kind)

    def learn(
        self, literals: ShapeLiterals, body: s.StatementBody, kind: str, text: str, span: tuple[int, int]
    ) -> None:
        """Store the shape of a body with slots, which is at `span` of its text, if all its literals have a slot."""
        if not isinstance(body, s.WriteStatement | s.Batch) or sum(map(len, literals.shape)) > _LONGEST_SHAPE:
            return
        plain = (part for index, part in enumerate(literals.shape) if index % 2 == 0)
        slots = sorted(slot.value for slot in _parts(body, LiteralSlot))
        if (
            slots != list(range(len(literals.literals)))
            or any(map(_NO_SHAPE.search, plain))
            or any(_parts(body, s.BindMarker))
        ):
            return
        start, end = span
        if start or len(text) - end > len(literals.shape[-1]):
            return
        if len(self._fillers) >= _MOST_SHAPES:
            self._fillers.clear()
        self._fillers[literals.shape] = _KnownShape(make_filler(body), kind, len(text) - end)


def read_constants(literals: ShapeLiterals) -> list[s.Constant] | None:
    """Return the literals as the parser has them; None if one is invalid, which the parser then reports."""
    try:
        return [s.Constant(*LITERAL_READERS[kind](text), text) for kind, text in literals.literals]
    except ValueError:
        return None


def _parts(node: Any, kind: type[Any]) -> Iterator[Any]:
    """Yield the parts of a body that are of a kind."""
    if isinstance(node, kind):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from _parts(part, kind)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _parts(getattr(node, field.name), kind)


def make_filler(body: s.StatementBody) -> ShapeFiller:
    """Return a function that fills a body's slots with literals."""
    return _make_part_filler(body) or (lambda _: body)


def _make_part_filler(node: Any) -> ShapeFiller | None:
    """Return a filler for a part of a body; None if it has no slot."""
    if isinstance(node, LiteralSlot):
        number = node.value
        return lambda constants: constants[number]
    is_plain = type(node) is tuple
    if not is_plain and not isinstance(node, tuple) and not is_dataclass(node):
        return None
    parts = list(node) if isinstance(node, tuple) else [getattr(node, field.name) for field in fields(node)]
    fillers = list(map(_make_part_filler, parts))
    if not any(fillers):
        return None
    node_type: Any = type(node)
    fills = [filler or _constant_filler(part) for filler, part in zip(fillers, parts, strict=True)]
    if is_plain:
        return lambda constants: tuple([fill(constants) for fill in fills])
    return lambda constants: node_type(*[fill(constants) for fill in fills])


def _constant_filler(part: Any) -> ShapeFiller:
    return lambda _: part
