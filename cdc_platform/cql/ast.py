"""Syntax tree of CQL scripts: plain records that the parser creates, before names of tables and types are resolved.

`literals` and `binding` interpret them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cdc_platform.errors import InputError

DroppedKind = Literal["keyspace", "type", "table"]
ConstantKind = Literal["text", "integer", "float", "boolean", "null", "uuid", "blob", "duration"]


class Constant(NamedTuple):
    """A constant: what kind it was written as, its Python value, and how it was written."""

    kind: ConstantKind
    value: Any
    text: str


class ListLiteral(NamedTuple):
    """`[a, b]`."""

    items: tuple[Term, ...]


class SetLiteral(NamedTuple):
    """`{a, b}`; without items it is whatever its column needs: an empty set, map or user type."""

    items: tuple[Term, ...]


class MapLiteral(NamedTuple):
    """`{a: 1, b: 2}` with terms as keys."""

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
    """`?`, or with a name `:name`: a value that is given beside the statement; where it stands in the text.

    `several` says that it is what stands behind IN: a list of values.
    """

    name: str | None
    start: int
    end: int
    several: bool = False


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
    """A table or type as it is written; `keyspace` None means the one in use."""

    keyspace: str | None
    name: str


class TypeName(NamedTuple):
    """A type as it is written: its name, and what stands between the angle brackets; vectors end with a number."""

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
    """`name = value` behind WITH."""

    name: str
    value: Term


class CompactStorage(NamedTuple):
    """`COMPACT STORAGE` behind WITH."""


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
    """CREATE TABLE. `keys` holds every PRIMARY KEY clause that stands apart from a column."""

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
    """ALTER TABLE TTL; without a column NULL."""

    name: QualifiedName
    column: str | None


@dataclass(frozen=True)
class AlterProperties:
    """ALTER TABLE WITH."""

    name: QualifiedName
    properties: tuple[TableProperty, ...]


@dataclass(frozen=True)
class DropObject:
    """DROP KEYSPACE, TYPE or TABLE; a keyspace is a name without one."""

    what: DroppedKind
    name: QualifiedName
    if_exists: bool


@dataclass(frozen=True)
class CreateIndex:
    """CREATE INDEX ... USING a class; `name` is None where the statement gives none."""

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
    """SELECT and DESCRIBE: they change nothing, so the script passes them by."""


@dataclass(frozen=True)
class IgnoredStatement:
    """A statement that cannot change a table with CDC and is not done; why that is so."""

    why: str


@dataclass(frozen=True)
class UnsupportedStatement:
    """A statement that is not understood, or not done though it could change a table; what is to be told of it."""

    error: InputError


class UsingClause(NamedTuple):
    """What stands behind USING; None where it says nothing."""

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

    `operand` is the column on the right side, which has to be the target.
    """

    target: AssignmentTarget
    value: Term
    sign: Literal["=", "+", "-", "prepend"] = "="
    operand: str | None = None


class Relation(NamedTuple):
    """`columns operator terms`; several columns where they stand in parentheses. `IN` has a term for every choice."""

    columns: tuple[str, ...]
    operator: str
    terms: tuple[Term, ...]


class ConditionComparison(NamedTuple):
    """A part of IF: `target operator term`; `IN` has a term for every choice."""

    target: AssignmentTarget
    operator: str
    terms: tuple[Term, ...]


IfCondition = Literal["exists", "not exists"] | tuple[ConditionComparison, ...]
"""What stands behind IF: whether the row is there, or comparisons which all have to hold."""


@dataclass(frozen=True)
class Insert:
    """INSERT."""

    table: QualifiedName
    columns: tuple[str, ...]
    values: tuple[Term, ...]
    using: UsingClause = field(default_factory=UsingClause)
    condition: IfCondition | None = None
    json: Literal["null", "unset"] | None = None
    """Of INSERT JSON, whose only value is the document: what columns are that it does not name."""


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
    """One statement of a script: as it was written, the line it begins on (from 1), what it says, what kind it is."""

    text: str
    line: int
    body: StatementBody
    kind: str
