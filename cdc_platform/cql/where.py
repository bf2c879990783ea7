"""WHERE clauses of writes: the partitions, rows or ranges of rows that they select.

This module enforces CQL's restrictions for writes, and reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from cdc_platform.cql import ast as s
from cdc_platform.cql.literals import ExecutionContext, value_from_term
from cdc_platform.cql.mutation import KeyValues, RangeBound
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import Value
from cdc_platform.errors import InputError

_BOUND_OPERATORS = {">": ("start", False), ">=": ("start", True), "<": ("end", False), "<=": ("end", True)}
MAX_KEYS = 10_000
"""The most keys that one statement may name by its INs."""


@dataclass(frozen=True)
class ClusteringRange:
    """A range of rows in clustering order; None for an open end."""

    start: RangeBound | None
    end: RangeBound | None


@dataclass(frozen=True)
class RowSelection:
    """The partitions that a WHERE names, and their rows or ranges of rows; all rows if both are empty.

    `is_whole` is True if the clustering columns are not restricted at all.
    """

    partitions: tuple[KeyValues, ...]
    rows: tuple[KeyValues, ...] = ()
    ranges: tuple[ClusteringRange, ...] = ()
    is_whole: bool = False


def select_rows(schema: TableSchema, where: Sequence[s.Relation], moment: ExecutionContext) -> RowSelection:
    """Return what a WHERE selects.

    Raises:
        NotFound: a column does not exist.
        InputError: the partition key is incomplete, or the clustering columns are restricted in a way that is no range.
    """
    restrictions = _Restrictions(schema, moment)
    for relation in where:
        restrictions.add(relation)
    missing = [column.name for column in schema.partition_key if column.name not in restrictions.choices]
    if missing:
        raise InputError(
            f"WHERE lacks {', '.join(missing)} of the partition key of {schema.full_name}; give each of its columns"
            " with = or IN"
        )
    partitions = _combine_choices(restrictions.choices[column.name] for column in schema.partition_key)
    for key in partitions:
        _check_partition_key(schema, key)
    return restrictions.select_clustering(partitions)


def _check_partition_key(schema: TableSchema, key: KeyValues) -> None:
    size = len(schema.partition_bytes(key))
    if size == 0:
        raise InputError(f"the partition key of {schema.full_name} is empty; a key has at least one byte")
    if size > 0xFFFF:
        raise InputError(f"the partition key of {schema.full_name} has {size} bytes; it has at most 65535")


def key_value_from_term(column: Column, term: s.Term, moment: ExecutionContext) -> Value:
    """Return the value of a key column, which cannot be null; an InputError names the column."""
    value = column_value_from_term(column, term, moment)
    if value is None:
        raise InputError(f"column {column.name} is in the primary key and cannot be null")
    return value


def column_value_from_term(column: Column, term: s.Term, moment: ExecutionContext) -> Value | None:
    """Return the value of a column; an InputError names the column."""
    try:
        return value_from_term(term, column.type, moment)
    except InputError as error:
        raise InputError(f"column {column.name}: {error}") from None


def _combine_choices(choices: Iterable[Sequence[Value]]) -> tuple[KeyValues, ...]:
    lists = list(choices)
    count = 1
    for values in lists:
        count *= len(values)
    if count > MAX_KEYS:
        raise InputError(f"WHERE names {count} keys by its INs; a statement names at most {MAX_KEYS}")
    return tuple(product(*lists))


_BoundsBySide = Mapping[str, tuple[tuple[Column, ...], KeyValues, bool]]
"""Bounds of columns compared together, by side (`start` is the lower one): columns, values, inclusive."""


def _range_between(prefix: KeyValues, sides: Mapping[str, RangeBound], *, descending: bool) -> ClusteringRange:
    """Return the range between bounds of values; the lower bound is the end if the columns descend."""
    whole = RangeBound(prefix, True) if prefix else None
    low, high = sides.get("start", whole), sides.get("end", whole)
    return ClusteringRange(high, low) if descending else ClusteringRange(low, high)


def _mixed_ranges(prefix: KeyValues, bounds: _BoundsBySide) -> list[ClusteringRange]:
    """Return the ranges between bounds of columns that partly ascend and partly descend.

    (a, b) > (1, 2) is a > 1, or a = 1 and b > 2. Each of these is one range, in whichever direction its last column
    goes.
    """
    pieces: list[_RangePiece] = [_RangePiece((), ())]
    for side, (columns, values, inclusive) in bounds.items():
        of_side = [
            _RangePiece(
                columns[: index + 1], values[:index], {side: (values[index], inclusive and index == len(values) - 1)}
            )
            for index in range(len(columns))
        ]
        pieces = [both for one in pieces for other in of_side if (both := one.within(other)) is not None]
    return [piece.range(prefix) for piece in pieces]


@dataclass(frozen=True)
class _RangePiece:
    """Columns that all have given values but the last one, which lies between limits."""

    columns: tuple[Column, ...]
    values: KeyValues
    limits: Mapping[str, tuple[Value, bool]] = field(default_factory=dict)

    def within(self, other: _RangePiece) -> _RangePiece | None:
        """Return the intersection of both pieces; None if it is empty."""
        shorter, longer = sorted((self, other), key=lambda piece: len(piece.columns))
        if not shorter.columns:
            return longer
        index = len(shorter.values)
        if shorter.values != longer.values[:index]:
            return None
        if len(longer.values) == index:
            return _RangePiece(self.columns, self.values, {**self.limits, **other.limits})
        return longer if shorter.holds(longer.values[index]) else None

    def holds(self, value: Value) -> bool:
        """Return True if a value of the last column lies between the limits."""
        order = self.columns[-1].type.sort_key
        for side, (limit, inclusive) in self.limits.items():
            low, high = (limit, value) if side == "start" else (value, limit)
            if not (order(low) < order(high) or (inclusive and order(low) == order(high))):
                return False
        return True

    def range(self, prefix: KeyValues) -> ClusteringRange:
        """Return the rows of the piece after a prefix."""
        behind = (*prefix, *self.values)
        sides = {side: RangeBound((*behind, limit), inclusive) for side, (limit, inclusive) in self.limits.items()}
        return _range_between(behind, sides, descending=self.columns[-1].descending)


@dataclass
class _Restrictions:
    """The restrictions of a WHERE so far: choices of columns, and bounds of the columns after them."""

    schema: TableSchema
    moment: ExecutionContext
    choices: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    bounds: dict[str, tuple[tuple[Column, ...], KeyValues, bool]] = field(default_factory=dict)
    together: tuple[tuple[str, ...], tuple[KeyValues, ...]] | None = None

    def add(self, relation: s.Relation) -> None:
        columns = [self.schema.column(name) for name in relation.columns]
        for column in columns:
            if not column.is_key:
                raise InputError(
                    f"column {column.name} of {self.schema.full_name} is no part of the primary key; the WHERE of a"
                    " write names rows by their key alone"
                )
        if relation.operator == "IN several":
            self._choose_together(columns, relation.terms)
        elif relation.operator == "=":
            self._choose_each(columns, relation.terms)
        elif relation.operator == "IN":
            values = [key_value_from_term(columns[0], term, self.moment) for term in relation.terms]
            self._choose(columns[0], values)
        elif relation.operator in _BOUND_OPERATORS:
            self._bound(columns, relation)
        else:
            raise InputError(
                f"{relation.operator} of {', '.join(relation.columns)} cannot name the rows of a write; use =, IN, <,"
                " <=, > or >="
            )

    def select_clustering(self, partitions: tuple[KeyValues, ...]) -> RowSelection:
        keys = self.schema.clustering_key
        if self.together is not None:
            return self._select_together(partitions)
        prefix = 0
        while prefix < len(keys) and keys[prefix].name in self.choices:
            prefix += 1
        behind = [column.name for column in keys[prefix:] if column.name in self.choices]
        if behind:
            raise InputError(
                f"clustering column {behind[0]} is restricted, but {keys[prefix].name} before it is not given with ="
            )
        chosen = _combine_choices(self.choices[column.name] for column in keys[:prefix])
        if self.bounds:
            return RowSelection(partitions, ranges=tuple(part for key in chosen for part in self._ranges(key)))
        if prefix == len(keys):
            return RowSelection(partitions, rows=chosen, is_whole=not keys)
        if prefix == 0:
            return RowSelection(partitions, is_whole=True)
        return RowSelection(
            partitions, ranges=tuple(ClusteringRange(RangeBound(key, True), RangeBound(key, True)) for key in chosen)
        )

    def _select_together(self, partitions: tuple[KeyValues, ...]) -> RowSelection:
        assert self.together is not None
        names, choices = self.together
        mixed = self.bounds or any(column.name in self.choices for column in self.schema.clustering_key)
        if mixed or names != tuple(column.name for column in self.schema.clustering_key):
            raise InputError(f"({', '.join(names)}) IN must name exactly all clustering columns, in their order")
        return RowSelection(partitions, rows=choices)

    def _choose_each(self, columns: Sequence[Column], terms: Sequence[s.Term]) -> None:
        self._check_count(columns, terms)
        for column, term in zip(columns, terms, strict=True):
            self._choose(column, [key_value_from_term(column, term, self.moment)])

    def _choose(self, column: Column, values: Iterable[Value]) -> None:
        self._check_once(column)
        by_bytes = {column.type.to_bytes(value): value for value in values}
        self.choices[column.name] = tuple(by_bytes.values())

    def _choose_together(self, columns: Sequence[Column], choices: Sequence[s.Term]) -> None:
        self._check_clustering(columns)
        keys = []
        for choice in choices:
            if not isinstance(choice, s.TupleLiteral):
                raise InputError(f"({', '.join(column.name for column in columns)}) IN takes tuples, as in ((1, 2))")
            self._check_count(columns, choice.items)
            keys.append(
                tuple(
                    key_value_from_term(column, item, self.moment)
                    for column, item in zip(columns, choice.items, strict=True)
                )
            )
        self.together = tuple(column.name for column in columns), tuple(dict.fromkeys(keys))

    def _bound(self, columns: Sequence[Column], relation: s.Relation) -> None:
        self._check_clustering(columns)
        self._check_count(columns, relation.terms)
        side, inclusive = _BOUND_OPERATORS[relation.operator]
        if side in self.bounds:
            raise InputError(
                f"{columns[0].name} has two bounds on one side; give at most one lower and one upper bound"
            )
        values = tuple(
            key_value_from_term(column, term, self.moment) for column, term in zip(columns, relation.terms, strict=True)
        )
        self.bounds[side] = tuple(columns), values, inclusive

    def _check_clustering(self, columns: Sequence[Column]) -> None:
        for column in columns:
            if column.kind != "clustering":
                raise InputError(f"column {column.name} is in the partition key, which is given with = or IN")

    def _check_count(self, columns: Sequence[Column], terms: Sequence[s.Term]) -> None:
        if len(columns) != len(terms):
            names = ", ".join(column.name for column in columns)
            raise InputError(f"({names}) is compared with {len(terms)} values; give {len(columns)}")

    def _check_once(self, column: Column) -> None:
        if column.name in self.choices:
            raise InputError(f"column {column.name} is given more than once; give it one = or one IN")

    def _ranges(self, prefix: KeyValues) -> list[ClusteringRange]:
        """Return the rows after a prefix that the bounds leave, in clustering order."""
        directions = set()
        for columns, _, _ in self.bounds.values():
            self._check_position(columns, len(prefix))
            directions |= {column.descending for column in columns}
        if len(directions) > 1:
            return _mixed_ranges(prefix, self.bounds)
        sides = {
            side: RangeBound((*prefix, *values), inclusive) for side, (_, values, inclusive) in self.bounds.items()
        }
        return [_range_between(prefix, sides, descending=directions == {True})]

    def _check_position(self, columns: Sequence[Column], position: int) -> None:
        expected = self.schema.clustering_key[position : position + len(columns)]
        if tuple(columns) != expected:
            before = ", ".join(column.name for column in self.schema.clustering_key[:position]) or "nothing"
            raise InputError(
                f"({', '.join(column.name for column in columns)}) is bounded, but the columns before it that are "
                f"given with = are"
                f" {before}; bound the clustering column that comes next"
            )
