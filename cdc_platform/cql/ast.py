"""Syntax tree of CQL scripts: plain records from the parser, with unresolved names of tables and types.

`literals` and `binding` interpret them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cdc_platform.errors import InputError

DroppedKind = Literal["keyspace", "type", "table"]
ConstantKind = Literal["text", "integer", "float", "boolean", "null", "uuid", "blob", "duration"]


class Constant(NamedTuple):
    """A constant: its kind as written, its Python value, and its text."""

    kind: ConstantKind
    value: Any
    text: str


class ListLiteral(NamedTuple):
    """`[a, b]`."""

    items: tuple[Term, ...]


class SetLiteral(NamedTuple):
    """`{a, b}`; without items it is an empty set, map or user type, depending on its column."""

    items: tuple[Term, ...]


class MapLiteral(NamedTuple):
    """`{a: 1, b: 2}`, with terms as keys."""

    pairs: tuple[tuple[Term, Term], ...]


class UserTypeLiteral(NamedTuple):
    """`{field: 1, other: 2}`, with names as keys."""

    fields: tuple[tuple[str, Term], ...]


class TupleLiteral(NamedTuple):
    """`(a, b)`."""

    items: tuple[Term, ...]


class FunctionCall(NamedTuple):
    """`function(a, b)`."""

    name: str
    arguments: tuple[Term, ...]


class BindMarker(NamedTuple):
    """`?` or `:name`: a marker for a value given separately, and its position in the text.

    `is_list` is True for a marker after IN, whose value is a list.
    """

    name: str | None
    start: int
    end: int
    is_list: bool = False


class TypeHint(NamedTuple):
    """`(type) term`."""

    type: TypeName
    term: Term


Term = (
    Constant
    | ListLiteral
    | SetLiteral
    | MapLiteral
    | UserTypeLiteral
    | TupleLiteral
    | FunctionCall
    | BindMarker
    | TypeHint
)

NULL_CONSTANT = Constant("null", None, "null")


class QualifiedName(NamedTuple):
    """The name of a table or type as written; `keyspace` None means the one in use."""

    keyspace: str | None
    name: str


class TypeName(NamedTuple):
    """A type as written: its name, and its parameters in angle brackets; a vector's last parameter is a number."""

    name: QualifiedName
    parameters: tuple[TypeName, ...] = ()
    dimension: int | None = None


class ColumnDefinition(NamedTuple):
    """A column of CREATE TABLE or ALTER TABLE ADD."""

    name: str
    type: TypeName
    static: bool = False
    primary_key: bool = False
    row_ttl: bool = False


class PrimaryKey(NamedTuple):
    """`PRIMARY KEY ((a, b), c)`."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]


class ClusteringOrder(NamedTuple):
    """`CLUSTERING ORDER BY (a DESC, b)`: names, and whether each is descending."""

    columns: tuple[tuple[str, bool], ...]


class NamedProperty(NamedTuple):
    """`name = value` after WITH."""

    name: str
    value: Term


class CompactStorage(NamedTuple):
    """`COMPACT STORAGE` after WITH."""


TableProperty = ClusteringOrder | NamedProperty | CompactStorage


@dataclass(frozen=True)
class UseKeyspace:
    """USE keyspace."""

    keyspace: str


@dataclass(frozen=True)
class CreateKeyspace:
    """CREATE KEYSPACE."""

    name: str
    if_not_exists: bool
    properties: tuple[TableProperty, ...]


@dataclass(frozen=True)
class CreateType:
    """CREATE TYPE."""

    name: QualifiedName
    if_not_exists: bool
    fields: tuple[tuple[str, TypeName], ...]


@dataclass(frozen=True)
class AddFields:
    """ALTER TYPE ADD."""

    name: QualifiedName
    fields: tuple[tuple[str, TypeName], ...]


@dataclass(frozen=True)
class RenameFields:
    """ALTER TYPE RENAME."""

    name: QualifiedName
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE. `keys` holds every PRIMARY KEY clause that is not part of a column definition."""

    name: QualifiedName
    if_not_exists: bool
    columns: tuple[ColumnDefinition, ...]
    keys: tuple[PrimaryKey, ...]
    properties: tuple[TableProperty, ...]


@dataclass(frozen=True)
class AddColumns:
    """ALTER TABLE ADD."""

    name: QualifiedName
    columns: tuple[ColumnDefinition, ...]


@dataclass(frozen=True)
class DropColumns:
    """ALTER TABLE DROP."""

    name: QualifiedName
    columns: tuple[str, ...]


@dataclass(frozen=True)
class RenameColumns:
    """ALTER TABLE RENAME."""

    name: QualifiedName
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class AlterRowTtl:
    """ALTER TABLE TTL; `column` is None for NULL."""

    name: QualifiedName
    column: str | None


@dataclass(frozen=True)
class AlterProperties:
    """ALTER TABLE WITH."""

    name: QualifiedName
    properties: tuple[TableProperty, ...]


@dataclass(frozen=True)
class DropObject:
    """DROP KEYSPACE, TYPE or TABLE; the name of a keyspace is unqualified."""

    kind: DroppedKind
    name: QualifiedName
    if_exists: bool


@dataclass(frozen=True)
class CreateIndex:
    """CREATE INDEX ... USING a class; `name` is None if the statement has none."""

    name: str | None
    table: QualifiedName
    columns: tuple[str, ...]
    class_name: str
    if_not_exists: bool


@dataclass(frozen=True)
class DropIndex:
    """DROP INDEX."""

    name: QualifiedName
    if_exists: bool


@dataclass(frozen=True)
class Truncate:
    """TRUNCATE."""

    name: QualifiedName


@dataclass(frozen=True)
class ReadOnlyStatement:
    """SELECT and DESCRIBE, which change nothing and are skipped."""


@dataclass(frozen=True)
class IgnoredStatement:
    """A statement that is skipped because it cannot change a table with CDC, with the reason."""

    why: str


@dataclass(frozen=True)
class UnsupportedStatement:
    """A statement that is not understood, or not supported although it could change a table, with the error."""

    error: InputError


class UsingClause(NamedTuple):
    """The values after USING; None where not given."""

    timestamp: Term | None = None
    ttl: Term | None = None


class ColumnElement(NamedTuple):
    """`column[key]`."""

    column: str
    key: Term


class ColumnField(NamedTuple):
    """`column.field`."""

    column: str
    field: str


class WholeColumn(NamedTuple):
    """A column as a whole."""

    column: str


AssignmentTarget = WholeColumn | ColumnElement | ColumnField


class Assignment(NamedTuple):
    """`target = value`, or with `sign` `target = target + value`, `target - value`, `value + target` ("prepend").

    `operand` is the column on the right-hand side, which must be the target.
    """

    target: AssignmentTarget
    value: Term
    sign: Literal["=", "+", "-", "prepend"] = "="
    operand: str | None = None


class Relation(NamedTuple):
    """`columns operator terms`; several columns if they are in parentheses. `IN` has a term for each choice."""

    columns: tuple[str, ...]
    operator: str
    terms: tuple[Term, ...]


class ConditionComparison(NamedTuple):
    """A comparison of IF: `target operator term`; `IN` has a term for each choice."""

    target: AssignmentTarget
    operator: str
    terms: tuple[Term, ...]


IfCondition = Literal["exists", "not exists"] | tuple[ConditionComparison, ...]
"""The condition after IF: whether the row exists, or comparisons that must all be true."""


@dataclass(frozen=True)
class Insert:
    """INSERT."""

    table: QualifiedName
    columns: tuple[str, ...]
    values: tuple[Term, ...]
    using: UsingClause = field(default_factory=UsingClause)
    condition: IfCondition | None = None
    json: Literal["null", "unset"] | None = None
    """For INSERT JSON, whose only value is the document: what happens to columns that the document does not name."""


@dataclass(frozen=True)
class Update:
    """UPDATE."""

    table: QualifiedName
    assignments: tuple[Assignment, ...]
    where: tuple[Relation, ...]
    using: UsingClause = field(default_factory=UsingClause)
    condition: IfCondition | None = None


@dataclass(frozen=True)
class Delete:
    """DELETE; without targets it deletes rows, ranges of rows or partitions."""

    table: QualifiedName
    targets: tuple[AssignmentTarget, ...]
    where: tuple[Relation, ...]
    using: UsingClause = field(default_factory=UsingClause)
    condition: IfCondition | None = None


WriteStatement = Insert | Update | Delete


@dataclass(frozen=True)
class Batch:
    """BEGIN ... APPLY BATCH."""

    kind: Literal["logged", "unlogged", "counter"]
    writes: tuple[WriteStatement, ...]
    using: UsingClause = field(default_factory=UsingClause)


DefinitionStatement = (
    CreateKeyspace
    | CreateType
    | AddFields
    | RenameFields
    | CreateTable
    | AddColumns
    | DropColumns
    | RenameColumns
    | AlterRowTtl
    | AlterProperties
    | CreateIndex
    | DropIndex
    | DropObject
)
StatementBody = (
    DefinitionStatement
    | WriteStatement
    | Batch
    | UseKeyspace
    | Truncate
    | ReadOnlyStatement
    | IgnoredStatement
    | UnsupportedStatement
)


class Statement(NamedTuple):
    """One statement of a script: its text, its first line (from 1), its body, and its kind."""

    text: str
    line: int
    body: StatementBody
    kind: str
