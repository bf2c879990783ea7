"""Lightweight transactions: conditions after IF, the rows they read, their evaluation, and the result rows.

The rules are those of ScyllaDB 2026: the row that a statement reads (cql3/statements/cas_request.cc, find_old_row;
cql3/update_parameters.cc), null (cql3/expr/expression.cc, null_handling_style::lwt_nulls), and the statements that may
have conditions (cql3/statements/modification_statement.cc, validate_where_clause_for_conditions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_platform.cql import ast as s
from cdc_platform.cql.literals import ExecutionContext, element_from_term, value_from_term
from cdc_platform.cql.mutation import KeyValues
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.table import LivePartition
from cdc_platform.cql.types import INT, CqlType, ListType, MapType, SetType, UserType, Value
from cdc_platform.cql.where import RowSelection, select_rows
from cdc_platform.errors import InputError

APPLIED_COLUMN = "[applied]"
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


@dataclass(frozen=True)
class ConditionalWrite:
    """One write of a conditional statement: its condition and its rows.

    `key` is the clustering key of the first row that it names, () if it names none completely. `reads` are the rows
    that ScyllaDB reads for it: keys, or None for the whole partition, as for a range.
    """

    condition: s.IfCondition | None
    key: KeyValues
    names_rows: bool
    reads: frozenset[KeyValues] | None
    needs_elements: bool


@dataclass(frozen=True)
class LwtResult:
    """Whether a conditional statement is applied, and the result rows: columns by name, in order."""

    applied: bool
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Value | None], ...]

    def json(self) -> list[dict[str, object]]:
        """Return the rows as JSON has them."""
        return [
            {APPLIED_COLUMN: self.applied}
            | {column.name: column.type.json(row.get(column.name)) for column in self.columns}
            for row in self.rows
        ]


_RowValues = dict[str, Value]


def _check_condition_columns(schema: TableSchema, condition: s.IfCondition | None) -> None:
    """Refuse an IF on columns that cannot have conditions; raises InputError, NotFound."""
    for comparison in () if condition is None or isinstance(condition, str) else condition:
        column = schema.column(comparison.target.column)
        if column.is_key:
            raise InputError(f"PRIMARY KEY column '{column.name}' cannot have IF conditions")
        if isinstance(comparison.target, s.ColumnField):
            raise InputError(
                f"IF {column.name}.{comparison.target.field}: ScyllaDB's grammar has no conditions on fields"
                " (cql3/Cql.g, columnCondition); compare the whole column"
            )


def _condition_reads(schema: TableSchema, condition: s.IfCondition | None, names_rows: bool) -> tuple[bool, bool]:
    """Return whether a condition reads static columns, and whether it reads rows (cql3: has_static_, has_regular_)."""
    if condition is None:
        return False, False
    if isinstance(condition, str):
        static = bool(schema.statics) and not names_rows
        return static, not static
    kinds = {schema.column(comparison.target.column).kind for comparison in condition}
    return "static" in kinds, "regular" in kinds


def evaluate_conditions(
    schema: TableSchema,
    partition: LivePartition,
    writes: Sequence[ConditionalWrite],
    moment: ExecutionContext,
    *,
    batch: bool,
) -> LwtResult:
    """Evaluate the writes of a statement, all to one partition; return whether they apply and a result row for each.

    Raises:
        InputError: a condition compares values that cannot be compared.
    """
    read = _RowsRead(schema, partition, writes)
    applied = all(_condition_holds(schema, read, one, moment) for one in writes if one.condition is not None)
    columns = _result_columns(schema, writes, batch=batch)
    return LwtResult(applied, columns, tuple(_result_row(schema, partition, read, one) for one in writes))


class _RowsRead:
    """The rows of the partition that ScyllaDB reads for a statement, and the static row."""

    def __init__(self, schema: TableSchema, partition: LivePartition, writes: Sequence[ConditionalWrite]) -> None:
        static = partition.static()
        keys = list(partition.keys())
        wanted = [one.reads for one in writes if self._reads_rows(schema, one)]
        if wanted:
            named_keys = frozenset[KeyValues]().union(*(keys_read for keys_read in wanted if keys_read is not None))
            keys = keys if None in wanted else [key for key in keys if key in named_keys]
        elif schema.clustering_key:
            keys = keys[:1]
        self.rows: dict[KeyValues, _RowValues] = {key: static | partition.row(key) for key in keys}
        self.static: _RowValues | None = None
        if schema.clustering_key and schema.statics and (self.rows or static):
            self.static = static

    @staticmethod
    def _reads_rows(schema: TableSchema, one: ConditionalWrite) -> bool:
        if one.condition is None:
            return one.needs_elements
        static, regular = _condition_reads(schema, one.condition, one.names_rows)
        return regular or not static or one.needs_elements

    def row(self, schema: TableSchema, one: ConditionalWrite) -> tuple[KeyValues, _RowValues] | None:
        """Return the row that a write's condition reads, with its key; () for the static row."""
        if not schema.clustering_key:
            return ((), self.rows[()]) if () in self.rows else None
        if one.key in self.rows:
            return one.key, self.rows[one.key]
        if (not one.key or not isinstance(one.condition, str)) and self.static is not None:
            return (), self.static
        return None


def _condition_holds(schema: TableSchema, read: _RowsRead, one: ConditionalWrite, moment: ExecutionContext) -> bool:
    key_and_row = read.row(schema, one)
    row = None if key_and_row is None else key_and_row[1]
    static, regular = _condition_reads(schema, one.condition, one.names_rows)
    if static and not regular and row is not None and not any(column.name in row for column in schema.statics):
        row = None
    if isinstance(one.condition, str):
        return (row is not None) == (one.condition == "exists")
    assert one.condition is not None
    # Evaluate each: an invalid comparison is an error whatever the results of the others are.
    results = [_comparison_holds(schema, row or {}, comparison, moment) for comparison in one.condition]
    return all(results)


def _result_columns(schema: TableSchema, writes: Iterable[ConditionalWrite], *, batch: bool) -> tuple[Column, ...]:
    names: set[str] = set()
    for one in writes:
        if isinstance(one.condition, str):
            return schema.selected
        names |= {comparison.target.column for comparison in one.condition or ()}
    return tuple(column for column in schema.selected if column.name in names or (batch and column.is_key))


def _result_row(schema: TableSchema, partition: LivePartition, read: _RowsRead, one: ConditionalWrite) -> _RowValues:
    """Return the result row for one write; empty if there is no row, since all of its columns are null then."""
    key_and_row = read.row(schema, one)
    if key_and_row is None:
        return {}
    key, row = key_and_row
    keys = (*partition.state.partition_key, *key)
    named = zip((*schema.partition_key, *schema.clustering_key), keys, strict=False)
    return {column.name: value for column, value in named} | {
        name: _base_table_value(schema.column(name).type, value) for name, value in row.items()
    }


def _base_table_value(kind: CqlType, value: Value) -> Value:
    """Return a log value as the base table has it: for a list, its values only."""
    return tuple(inner for _, inner in value) if isinstance(kind, ListType) and kind.multicell else value


def _comparison_holds(
    schema: TableSchema, row: _RowValues, comparison: s.ConditionComparison, moment: ExecutionContext
) -> bool:
    column = schema.column(comparison.target.column)
    value = row.get(column.name)
    value = None if value is None else _base_table_value(column.type, value)
    try:
        kind, mine = _left_operand(column.type, value, comparison.target, moment)
        theirs = [_right_operand(kind, term, moment) for term in comparison.terms]
        return _compare(kind, mine, comparison.operator, theirs)
    except InputError as error:
        raise InputError(f"IF {column.name}: {error}") from None


def _left_operand(
    kind: CqlType, value: Value | None, target: s.AssignmentTarget, moment: ExecutionContext
) -> tuple[CqlType, Value | None]:
    """Return the type and the value that a condition reads: a column, or one of its elements, null if missing."""
    if not isinstance(target, s.ColumnElement):
        return kind, value
    if isinstance(kind, MapType):
        key = value_from_term(target.key, kind.key, moment)
        order = kind.key.sort_key
        matches = (inner for name, inner in value or () if key is not None and order(name) == order(key))
        return kind.value, next(matches, None)
    if isinstance(kind, ListType):
        index = value_from_term(target.key, INT, moment)
        elements = () if value is None else value
        return kind.element, elements[index] if index is not None and 0 <= index < len(elements) else None
    raise InputError(f"type {kind.cql} has no elements that a condition could name; compare the whole column")


def _right_operand(kind: CqlType, term: s.Term, moment: ExecutionContext) -> Value | None:
    """Return the value of a term; an empty collection that is not frozen is null, as it is in the table."""
    if isinstance(kind, ListType | SetType) and isinstance(term, s.ListLiteral | s.SetLiteral):
        for item in term.items:
            element_from_term(item, kind.element, moment)
    value = value_from_term(term, kind, moment)
    return None if kind.multicell and not isinstance(kind, UserType) and value == () else value


def _compare(kind: CqlType, mine: Value | None, operator: str, theirs: Sequence[Value | None]) -> bool:
    if operator == "IN":
        return any(_are_equal(kind, mine, value) for value in theirs)
    (other,) = theirs
    if operator == "LIKE":
        return _matches_like(kind, mine, other)
    if operator in ("=", "!="):
        return _are_equal(kind, mine, other) == (operator == "=")
    if not kind.comparable:
        raise InputError(f"values of type {kind.cql} have no order; compare them with = or !=")
    if other is None:
        raise InputError(f'Invalid comparison with null for operator "{operator}"; compare with a value, or use =')
    return mine is not None and _COMPARISONS[operator](kind.sort_key(mine), kind.sort_key(other))


def _are_equal(kind: CqlType, one: Value | None, other: Value | None) -> bool:
    """Return True if two values are equal; null equals null."""
    if one is None or other is None:
        return one is None and other is None
    return kind.sort_key(one) == kind.sort_key(other) if kind.comparable else kind.to_bytes(one) == kind.to_bytes(other)


_MAX_PATTERN_CHARACTERS = 1 << 14
"""The longest pattern of LIKE; a compiled one takes some hundred bytes for each character."""


def _matches_like(kind: CqlType, text: Value | None, pattern: Value | None) -> bool:
    """Return True if a text matches a pattern: `%` is any characters, `_` is one, and a backslash escapes.

    This is as in utils/like_matcher.cc. Each part between two `%` is searched once, which bounds the time.
    """
    if kind.cql not in ("text", "ascii"):
        raise InputError(f"LIKE is for texts, not for values of type {kind.cql}")
    if text is None or pattern is None:
        return False
    if len(pattern) > _MAX_PATTERN_CHARACTERS:
        raise InputError(f"a pattern of LIKE has {len(pattern)} characters; write at most {_MAX_PATTERN_CHARACTERS}")
    segments = [""]
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        if part == "%":
            segments.append("")
        else:
            segments[-1] += "." if part == "_" else re.escape(part[-1])
    first, *middle = segments
    last = f".*{middle.pop()}" if middle else ""
    return re.fullmatch(first + "".join(f"(?>.*?{segment})" for segment in middle) + last, text, re.DOTALL) is not None


def get_written_rows(
    schema: TableSchema, selection: RowSelection, columns: Sequence[Column], what: str, condition: s.IfCondition | None
) -> Sequence[KeyValues]:
    """Return the clustering keys of the rows whose columns are written; one empty key if only the static row is."""
    static = all(column.kind == "static" for column in columns)
    asks_rows = not isinstance(condition, str) and _condition_reads(schema, condition, not selection.is_whole)[1]
    if static and not asks_rows:
        if not selection.is_whole:
            raise InputError(
                f"{what} of static columns alone names a partition; leave the clustering columns of {schema.full_name}"
                " out of WHERE"
            )
        return [()]
    if selection.ranges or (selection.is_whole and schema.clustering_key):
        names = ", ".join(column.name for column in schema.clustering_key)
        raise InputError(f"{what} of columns names whole rows of {schema.full_name}; give {names} with = or IN")
    return selection.rows


def check_conditional_statement(body: s.WriteStatement | s.Batch, writes: Sequence[s.WriteStatement]) -> None:
    """Refuse clauses that conditional statements cannot have; raises InputError."""
    if isinstance(body, s.Batch) and body.using.timestamp is not None:
        raise InputError("Cannot provide custom timestamp for conditional BATCH; leave USING TIMESTAMP out")
    for write in writes:
        if write.condition is not None and write.using.timestamp is not None:
            raise InputError("Cannot provide custom timestamp for conditional updates; leave USING TIMESTAMP out")


def get_conditional_write(
    schema: TableSchema, write: s.WriteStatement, moment: ExecutionContext
) -> tuple[tuple[KeyValues, ...], ConditionalWrite]:
    """Return the partitions that a write of a conditional statement names, and its condition.

    Raises:
        InputError, NotFound: the write is not allowed with a condition.
    """
    if schema.has_counters:
        raise InputError(f"Conditional updates are not supported on counter tables, as {schema.full_name} is one")
    _check_condition_columns(schema, write.condition)
    selection = select_rows(schema, _key_relations(schema, write), moment)
    if write.condition is not None:
        _check_rows_named(schema, write, selection)
    names_rows = bool(schema.clustering_key) and not selection.is_whole
    keys = selection.rows if schema.clustering_key else ((),)
    conditional = ConditionalWrite(
        write.condition,
        keys[0] if keys else (),
        names_rows,
        None if selection.ranges or (selection.is_whole and schema.clustering_key) else frozenset(keys),
        _needs_elements(schema, write),
    )
    return selection.partitions, conditional


def _key_relations(schema: TableSchema, write: s.WriteStatement) -> Sequence[s.Relation]:
    if not isinstance(write, s.Insert):
        return write.where
    named = dict(zip(write.columns, write.values, strict=False))
    keys = (*schema.partition_key, *schema.clustering_key)
    return [s.Relation((column.name,), "=", (named[column.name],)) for column in keys if column.name in named]


def _check_rows_named(schema: TableSchema, write: s.WriteStatement, selection: RowSelection) -> None:
    """Refuse a condition unless it is about one row, or about a partition's static columns."""
    what = "deletions" if isinstance(write, s.Delete) else "updates"
    if len(selection.partitions) != 1:
        raise InputError(f"IN on the partition key is not supported with conditional {what}; name one partition")
    if len(selection.rows) > 1:
        raise InputError(
            f"IN on the clustering key columns is not supported with conditional {what}; name one row of"
            f" {schema.full_name}"
        )
    if isinstance(write, s.Delete) and not selection.rows and schema.clustering_key:
        columns = [schema.column(target.column) for target in write.targets]
        if not columns or any(column.kind != "static" for column in columns):
            raise InputError(
                "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to delete"
                f" non static columns of {schema.full_name} with IF"
            )
        if _condition_reads(schema, write.condition, not selection.is_whole)[1]:
            raise InputError(
                "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to use IF"
                f" condition on non static columns of {schema.full_name}"
            )


def _needs_elements(schema: TableSchema, write: s.WriteStatement) -> bool:
    """Return True if the write itself reads the elements of a list (cql3/lists.hh, requires_read)."""
    if isinstance(write, s.Insert):
        return False
    if isinstance(write, s.Delete):
        targets: list[s.AssignmentTarget] = [target for target in write.targets if isinstance(target, s.ColumnElement)]
    else:
        targets = [
            assignment.target
            for assignment in write.assignments
            if isinstance(assignment.target, s.ColumnElement) or assignment.sign == "-"
        ]
    return any(isinstance(schema.column(target.column).type, ListType) for target in targets)
