"""What IF asks of a partition, whether it holds, and the rows with which the answer is told.

The rules are those of ScyllaDB 2026: which row a statement asks (cql3/statements/cas_request.cc, find_old_row;
cql3/update_parameters.cc), what null means (cql3/expr/expression.cc, null_handling_style::lwt_nulls), which statements
may ask (cql3/statements/modification_statement.cc, validate_where_clause_for_conditions). Writing is `binding`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_platform.cql import statements as s
from cdc_platform.cql.literals import Moment, element_of, value_of
from cdc_platform.cql.live import Partition
from cdc_platform.cql.ranges import Key
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import INT, CqlType, ListType, MapType, SetType, UserType, Value
from cdc_platform.errors import InputError

APPLIED = "[applied]"
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


@dataclass(frozen=True)
class Asked:
    """One write of a conditional statement: what it asks, and where.

    `key` is the clustering key of the first row that it names, () where it names none in full. `reads` are the rows
    that ScyllaDB reads for it: keys, or None for whatever the partition holds, as for a range.
    """

    condition: s.Condition | None
    key: Key
    names_rows: bool
    reads: frozenset[Key] | None
    needs_elements: bool


@dataclass(frozen=True)
class Answer:
    """Whether a conditional statement is applied, and the rows that the client gets: columns by name, in order."""

    applied: bool
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value | None], ...]

    def json(self) -> list[dict[str, object]]:
        """The rows as JSON has them."""
        return [
            {APPLIED: self.applied} | {column.name: column.type.json(row.get(column.name)) for column in self.columns}
            for row in self.rows
        ]


_Row = dict[str, Value]


def check_condition(schema: TableSchema, condition: s.Condition | None) -> None:
    """Hold that the columns of an IF can be asked; raises InputError, NotFound."""
    for comparison in () if condition is None or isinstance(condition, str) else condition:
        column = schema.column(comparison.target.column)
        if column.is_key:
            raise InputError(f"PRIMARY KEY column '{column.name}' cannot have IF conditions")
        if isinstance(comparison.target, s.Field):
            raise InputError(
                f"IF {column.name}.{comparison.target.field}: ScyllaDB's grammar has no conditions on fields"
                " (cql3/Cql.g, columnCondition); compare the whole column"
            )


def asks_static(schema: TableSchema, condition: s.Condition | None, names_rows: bool) -> tuple[bool, bool]:
    """Whether a condition asks static columns, and whether it asks rows (cql3: has_static_, has_regular_)."""
    if condition is None:
        return False, False
    if isinstance(condition, str):
        static = bool(schema.statics) and not names_rows
        return static, not static
    kinds = {schema.column(comparison.target.column).kind for comparison in condition}
    return "static" in kinds, "regular" in kinds


def answer(schema: TableSchema, partition: Partition, asked: Sequence[Asked], moment: Moment, *, batch: bool) -> Answer:
    """Whether the writes of a statement, all to one partition, are applied, and the row that is told for each.

    Raises:
        InputError: a condition compares what cannot be compared.
    """
    read = _Read(schema, partition, asked)
    applied = all(_holds(schema, read, one, moment) for one in asked if one.condition is not None)
    columns = _columns(schema, asked, batch=batch)
    return Answer(applied, columns, tuple(_told(schema, partition, read, one) for one in asked))


class _Read:
    """The rows of the partition that ScyllaDB reads for a statement, and the static row beside them."""

    def __init__(self, schema: TableSchema, partition: Partition, asked: Sequence[Asked]) -> None:
        static = partition.static()
        keys = list(partition.keys())
        wanted = [one.reads for one in asked if self._reads_rows(schema, one)]
        if wanted:
            several = frozenset[Key]().union(*(each for each in wanted if each is not None))
            keys = keys if None in wanted else [key for key in keys if key in several]
        elif schema.clustering_key:
            keys = keys[:1]
        self.rows: dict[Key, _Row] = {key: static | partition.row(key) for key in keys}
        self.static: _Row | None = None
        if schema.clustering_key and schema.statics and (self.rows or static):
            self.static = static

    @staticmethod
    def _reads_rows(schema: TableSchema, one: Asked) -> bool:
        if one.condition is None:
            return one.needs_elements
        static, regular = asks_static(schema, one.condition, one.names_rows)
        return regular or not static or one.needs_elements

    def row(self, schema: TableSchema, one: Asked) -> tuple[Key, _Row] | None:
        """The row that a write asks, with the key it is found under; () for the static row."""
        if not schema.clustering_key:
            return ((), self.rows[()]) if () in self.rows else None
        if one.key in self.rows:
            return one.key, self.rows[one.key]
        if (not one.key or not isinstance(one.condition, str)) and self.static is not None:
            return (), self.static
        return None


def _holds(schema: TableSchema, read: _Read, one: Asked, moment: Moment) -> bool:
    found = read.row(schema, one)
    row = None if found is None else found[1]
    static, regular = asks_static(schema, one.condition, one.names_rows)
    if static and not regular and row is not None and not any(column.name in row for column in schema.statics):
        row = None
    if isinstance(one.condition, str):
        return (row is not None) == (one.condition == "exists")
    assert one.condition is not None
    # Each is looked at: what cannot be compared is refused whatever the others come to.
    held = [_compares(schema, row or {}, comparison, moment) for comparison in one.condition]
    return all(held)


def _columns(schema: TableSchema, asked: Iterable[Asked], *, batch: bool) -> tuple[Column, ...]:
    names: set[str] = set()
    for one in asked:
        if isinstance(one.condition, str):
            return schema.selected
        names |= {comparison.target.column for comparison in one.condition or ()}
    return tuple(column for column in schema.selected if column.name in names or (batch and column.is_key))


def _told(schema: TableSchema, partition: Partition, read: _Read, one: Asked) -> _Row:
    """The row of the answer for one write; empty where there is none, since all of its columns are null then."""
    found = read.row(schema, one)
    if found is None:
        return {}
    key, row = found
    keys = (*partition.state.partition_key, *key)
    named = zip((*schema.partition_key, *schema.clustering_key), keys, strict=False)
    return {column.name: value for column, value in named} | {
        name: _shown(schema.column(name).type, value) for name, value in row.items()
    }


def _shown(kind: CqlType, value: Value) -> Value:
    """A value of the log as the base table has it: of a list its values alone."""
    return tuple(inner for _, inner in value) if isinstance(kind, ListType) and kind.multicell else value


def _compares(schema: TableSchema, row: _Row, comparison: s.Comparison, moment: Moment) -> bool:
    column = schema.column(comparison.target.column)
    value = row.get(column.name)
    value = None if value is None else _shown(column.type, value)
    try:
        kind, mine = _operand(column.type, value, comparison.target, moment)
        theirs = [_value(kind, term, moment) for term in comparison.terms]
        return _is_so(kind, mine, comparison.operator, theirs)
    except InputError as error:
        raise InputError(f"IF {column.name}: {error}") from None


def _operand(kind: CqlType, value: Value | None, target: s.Target, moment: Moment) -> tuple[CqlType, Value | None]:
    """The type and the value of what a condition asks: a column, or an element of it, null where there is none."""
    if not isinstance(target, s.Element):
        return kind, value
    if isinstance(kind, MapType):
        key = value_of(target.key, kind.key, moment)
        order = kind.key.sort_key
        found = (inner for name, inner in value or () if key is not None and order(name) == order(key))
        return kind.value, next(found, None)
    if isinstance(kind, ListType):
        index = value_of(target.key, INT, moment)
        elements = () if value is None else value
        return kind.element, elements[index] if index is not None and 0 <= index < len(elements) else None
    raise InputError(f"type {kind.cql} has no elements that a condition could name; compare the whole column")


def _value(kind: CqlType, term: s.Term, moment: Moment) -> Value | None:
    """The value of a term; an empty collection that is not frozen is null, as it is in the table."""
    if isinstance(kind, ListType | SetType) and isinstance(term, s.ListLiteral | s.SetLiteral):
        for item in term.items:
            element_of(item, kind.element, moment)
    value = value_of(term, kind, moment)
    return None if kind.multicell and not isinstance(kind, UserType) and value == () else value


def _is_so(kind: CqlType, mine: Value | None, operator: str, theirs: Sequence[Value | None]) -> bool:
    if operator == "IN":
        return any(_equal(kind, mine, each) for each in theirs)
    (other,) = theirs
    if operator == "LIKE":
        return _is_like(kind, mine, other)
    if operator in ("=", "!="):
        return _equal(kind, mine, other) == (operator == "=")
    if not kind.comparable:
        raise InputError(f"values of type {kind.cql} have no order; compare them with = or !=")
    if other is None:
        raise InputError(f'Invalid comparison with null for operator "{operator}"; compare with a value, or use =')
    return mine is not None and _ORDERS[operator](kind.sort_key(mine), kind.sort_key(other))


def _equal(kind: CqlType, one: Value | None, other: Value | None) -> bool:
    """Whether two values are equal; null equals null."""
    if one is None or other is None:
        return one is None and other is None
    return kind.sort_key(one) == kind.sort_key(other) if kind.comparable else kind.to_bytes(one) == kind.to_bytes(other)


_LONGEST_PATTERN = 1 << 14
"""Characters of a pattern of LIKE: a compiled one takes some hundred bytes for each."""


def _is_like(kind: CqlType, text: Value | None, pattern: Value | None) -> bool:
    """Whether a text matches a pattern: `%` is any characters, `_` is one, and a backslash frees what is behind it.

    As in utils/like_matcher.cc; each part between two `%` is looked for once, so that it takes no longer than that.
    """
    if kind.cql not in ("text", "ascii"):
        raise InputError(f"LIKE is for texts, not for values of type {kind.cql}")
    if text is None or pattern is None:
        return False
    if len(pattern) > _LONGEST_PATTERN:
        raise InputError(f"a pattern of LIKE has {len(pattern)} characters; write at most {_LONGEST_PATTERN}")
    segments = [""]
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        if part == "%":
            segments.append("")
        else:
            segments[-1] += "." if part == "_" else re.escape(part[-1])
    first, *middle = segments
    last = f".*{middle.pop()}" if middle else ""
    return re.fullmatch(first + "".join(f"(?>.*?{each})" for each in middle) + last, text, re.DOTALL) is not None
