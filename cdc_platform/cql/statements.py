"""What a script says, statement by statement, before it is known whether the tables and types exist.

Plain records that the parser makes; `literals` and `binding` give them their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cdc_platform.errors import InputError

Dropped = Literal["keyspace", "type", "table"]
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


class UserLiteral(NamedTuple):
    """`{field: 1, other: 2}`, with names as keys."""

    fields: tuple[tuple[str, Term], ...]


class TupleLiteral(NamedTuple):
    """`(a, b)`."""

    items: tuple[Term, ...]


class Call(NamedTuple):
    """`function(a, b)`."""

    name: str
    arguments: tuple[Term, ...]


class Marker(NamedTuple):
    """`?`, or with a name `:name`: a value that is given beside the statement; where it stands in the text.

    `several` says that it is what stands behind IN: a list of values.
    """

    name: str | None
    start: int
    end: int
    several: bool = False


class Hinted(NamedTuple):
    """`(type) term`."""

    type: TypeName
    term: Term


Term = Constant | ListLiteral | SetLiteral | MapLiteral | UserLiteral | TupleLiteral | Call | Marker | Hinted

NULL = Constant("null", None, "null")


class Name(NamedTuple):
    """A table or type as it is written; `keyspace` None means the one in use."""

    keyspace: str | None
    name: str


class TypeName(NamedTuple):
    """A type as it is written: its name, and what stands between the angle brackets; vectors end with a number."""

    name: Name
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


class Property(NamedTuple):
    """`name = value` behind WITH."""

    name: str
    value: Term


class CompactStorage(NamedTuple):
    """`COMPACT STORAGE` behind WITH."""


TableProperty = ClusteringOrder | Property | CompactStorage


@dataclass(frozen=True)
class Use:
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

    name: Name
    if_not_exists: bool
    fields: tuple[tuple[str, TypeName], ...]


@dataclass(frozen=True)
class AddFields:
    """ALTER TYPE ADD."""

    name: Name
    fields: tuple[tuple[str, TypeName], ...]


@dataclass(frozen=True)
class RenameFields:
    """ALTER TYPE RENAME."""

    name: Name
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE. `keys` holds every PRIMARY KEY clause that stands apart from a column."""

    name: Name
    if_not_exists: bool
    columns: tuple[ColumnDefinition, ...]
    keys: tuple[PrimaryKey, ...]
    properties: tuple[TableProperty, ...]


@dataclass(frozen=True)
class AddColumns:
    """ALTER TABLE ADD."""

    name: Name
    columns: tuple[ColumnDefinition, ...]


@dataclass(frozen=True)
class DropColumns:
    """ALTER TABLE DROP."""

    name: Name
    columns: tuple[str, ...]


@dataclass(frozen=True)
class RenameColumns:
    """ALTER TABLE RENAME."""

    name: Name
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class AlterRowTtl:
    """ALTER TABLE TTL; without a column NULL."""

    name: Name
    column: str | None


@dataclass(frozen=True)
class AlterProperties:
    """ALTER TABLE WITH."""

    name: Name
    properties: tuple[TableProperty, ...]


@dataclass(frozen=True)
class Drop:
    """DROP KEYSPACE, TYPE or TABLE; a keyspace is a name without one."""

    what: Dropped
    name: Name
    if_exists: bool


@dataclass(frozen=True)
class CreateIndex:
    """CREATE INDEX ... USING a class; `name` is None where the statement gives none."""

    name: str | None
    table: Name
    columns: tuple[str, ...]
    class_name: str
    if_not_exists: bool


@dataclass(frozen=True)
class DropIndex:
    """DROP INDEX."""

    name: Name
    if_exists: bool


@dataclass(frozen=True)
class Truncate:
    """TRUNCATE."""

    name: Name


@dataclass(frozen=True)
class Read:
    """SELECT and DESCRIBE: they change nothing, so the script passes them by."""


@dataclass(frozen=True)
class PassedOver:
    """A statement that cannot change a table with CDC and is not done; why that is so."""

    why: str


@dataclass(frozen=True)
class Unread:
    """A statement that is not understood, or not done though it could change a table; what is to be told of it."""

    error: InputError


class Using(NamedTuple):
    """What stands behind USING; None where it says nothing."""

    timestamp: Term | None = None
    ttl: Term | None = None


class Element(NamedTuple):
    """`column[key]`."""

    column: str
    key: Term


class Field(NamedTuple):
    """`column.field`."""

    column: str
    field: str


class Whole(NamedTuple):
    """A column as a whole."""

    column: str


Target = Whole | Element | Field


class Assignment(NamedTuple):
    """`target = value`, or with `sign` `target = target + value`, `target - value`, `value + target` ("prepend").

    `operand` is the column on the right side, which has to be the target.
    """

    target: Target
    value: Term
    sign: Literal["=", "+", "-", "prepend"] = "="
    operand: str | None = None


class Relation(NamedTuple):
    """`columns operator terms`; several columns where they stand in parentheses. `IN` has a term for every choice."""

    columns: tuple[str, ...]
    operator: str
    terms: tuple[Term, ...]


class Comparison(NamedTuple):
    """A part of IF: `target operator term`; `IN` has a term for every choice."""

    target: Target
    operator: str
    terms: tuple[Term, ...]


Condition = Literal["exists", "not exists"] | tuple[Comparison, ...]
"""What stands behind IF: whether the row is there, or comparisons which all have to hold."""


@dataclass(frozen=True)
class Insert:
    """INSERT."""

    table: Name
    columns: tuple[str, ...]
    values: tuple[Term, ...]
    using: Using = field(default_factory=Using)
    condition: Condition | None = None
    json: Literal["null", "unset"] | None = None
    """Of INSERT JSON, whose only value is the document: what columns are that it does not name."""


@dataclass(frozen=True)
class Update:
    """UPDATE."""

    table: Name
    assignments: tuple[Assignment, ...]
    where: tuple[Relation, ...]
    using: Using = field(default_factory=Using)
    condition: Condition | None = None


@dataclass(frozen=True)
class Delete:
    """DELETE; without targets it deletes rows, ranges of rows or partitions."""

    table: Name
    targets: tuple[Target, ...]
    where: tuple[Relation, ...]
    using: Using = field(default_factory=Using)
    condition: Condition | None = None


Write = Insert | Update | Delete


@dataclass(frozen=True)
class Batch:
    """BEGIN ... APPLY BATCH."""

    kind: Literal["logged", "unlogged", "counter"]
    writes: tuple[Write, ...]
    using: Using = field(default_factory=Using)


Definition = (
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
    | Drop
)
Body = Definition | Write | Batch | Use | Truncate | Read | PassedOver | Unread


class Statement(NamedTuple):
    """One statement of a script: as it was written, the line it begins on (from 1), what it says, what kind it is."""

    text: str
    line: int
    body: Body
    kind: str
