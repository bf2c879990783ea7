"""What a WHERE selects of a table: partitions, and in them rows, ranges of rows, or everything.

Knows which restrictions of keys CQL allows for writes. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from cdc_platform.cql import statements as s
from cdc_platform.cql.literals import Moment, value_of
from cdc_platform.cql.ranges import Bound, Key
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import Value
from cdc_platform.errors import InputError

_SLICES = {">": ("start", False), ">=": ("start", True), "<": ("end", False), "<=": ("end", True)}
MOST_KEYS = 10_000
"""The most keys that one statement may name by its INs."""


@dataclass(frozen=True)
class ClusteringRange:
    """A range of rows in clustering order; None on a side where nothing bounds it."""

    start: Bound | None
    end: Bound | None


@dataclass(frozen=True)
class Selection:
    """The partitions that a WHERE names, and of each the rows, or the ranges; all of it where both are empty.

    `is_whole` says that the clustering columns are not restricted at all.
    """

    partitions: tuple[Key, ...]
    rows: tuple[Key, ...] = ()
    ranges: tuple[ClusteringRange, ...] = ()
    is_whole: bool = False


def select(schema: TableSchema, where: Sequence[s.Relation], moment: Moment) -> Selection:
    """What a WHERE selects.

    Raises:
        NotFound: a column does not exist.
        InputError: the partition key is not given in full, or the clustering columns in a way that is no range.
    """
    given = _Given(schema, moment)
    for relation in where:
        given.add(relation)
    missing = [column.name for column in schema.partition_key if column.name not in given.choices]
    if missing:
        raise InputError(
            f"WHERE lacks {', '.join(missing)} of the partition key of {schema.full_name}; give each of its columns"
            " with = or IN"
        )
    partitions = _product(given.choices[column.name] for column in schema.partition_key)
    for key in partitions:
        _check_partition_key(schema, key)
    return given.of_clustering(partitions)


def _check_partition_key(schema: TableSchema, key: Key) -> None:
    size = len(schema.partition_bytes(key))
    if size == 0:
        raise InputError(f"the partition key of {schema.full_name} is empty; a key has at least one byte")
    if size > 0xFFFF:
        raise InputError(f"the partition key of {schema.full_name} has {size} bytes; it has at most 65535")


def key_value(column: Column, term: s.Term, moment: Moment) -> Value:
    """The value of a key column, which cannot be null; raises InputError that names the column."""
    value = column_value(column, term, moment)
    if value is None:
        raise InputError(f"column {column.name} is in the primary key and cannot be null")
    return value


def column_value(column: Column, term: s.Term, moment: Moment) -> Value | None:
    """The value of a column; raises InputError that names the column."""
    try:
        return value_of(term, column.type, moment)
    except InputError as error:
        raise InputError(f"column {column.name}: {error}") from None


def _product(choices: Iterable[Sequence[Value]]) -> tuple[Key, ...]:
    lists = list(choices)
    count = 1
    for several in lists:
        count *= len(several)
    if count > MOST_KEYS:
        raise InputError(f"WHERE names {count} keys by its INs; a statement names at most {MOST_KEYS}")
    return tuple(product(*lists))


Bounds = Mapping[str, tuple[tuple[Column, ...], Key, bool]]
"""Bounds of columns that are compared together, by side (`start` is the lower one): columns, values, inclusive."""


def _range(prefix: Key, sides: Mapping[str, Bound], *, descending: bool) -> ClusteringRange:
    """The range between bounds of values, of which the lower one is the end where the columns descend."""
    whole = Bound(prefix, True) if prefix else None
    low, high = sides.get("start", whole), sides.get("end", whole)
    return ClusteringRange(high, low) if descending else ClusteringRange(low, high)


def mixed_ranges(prefix: Key, bounds: Bounds) -> list[ClusteringRange]:
    """The ranges between bounds of columns of which some ascend and some descend.

    (a, b) > (1, 2) is a > 1, and b > 2 where a = 1: each is one range, whatever way its last column goes.
    """
    pieces: list[_Piece] = [_Piece((), ())]
    for side, (columns, values, inclusive) in bounds.items():
        of_side = [
            _Piece(
                columns[: place + 1], values[:place], {side: (values[place], inclusive and place == len(values) - 1)}
            )
            for place in range(len(columns))
        ]
        pieces = [both for one in pieces for other in of_side if (both := one.within(other)) is not None]
    return [piece.range(prefix) for piece in pieces]


@dataclass(frozen=True)
class _Piece:
    """Columns of which all but the last one have given values, and the last one lies between limits."""

    columns: tuple[Column, ...]
    values: Key
    limits: Mapping[str, tuple[Value, bool]] = field(default_factory=dict)

    def within(self, other: _Piece) -> _Piece | None:
        """What both pieces have in common; None if it is nothing."""
        shorter, longer = sorted((self, other), key=lambda piece: len(piece.columns))
        if not shorter.columns:
            return longer
        place = len(shorter.values)
        if shorter.values != longer.values[:place]:
            return None
        if len(longer.values) == place:
            return _Piece(self.columns, self.values, {**self.limits, **other.limits})
        return longer if shorter.holds(longer.values[place]) else None

    def holds(self, value: Value) -> bool:
        """Whether a value of the last column lies between the limits."""
        order = self.columns[-1].type.sort_key
        for side, (limit, inclusive) in self.limits.items():
            low, high = (limit, value) if side == "start" else (value, limit)
            if not (order(low) < order(high) or (inclusive and order(low) == order(high))):
                return False
        return True

    def range(self, prefix: Key) -> ClusteringRange:
        """The rows of the piece behind a prefix."""
        behind = (*prefix, *self.values)
        sides = {side: Bound((*behind, limit), inclusive) for side, (limit, inclusive) in self.limits.items()}
        return _range(behind, sides, descending=self.columns[-1].descending)


@dataclass
class _Given:
    """The restrictions of a WHERE as they come: choices of columns, and bounds of the columns behind them."""

    schema: TableSchema
    moment: Moment
    choices: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    bounds: dict[str, tuple[tuple[Column, ...], Key, bool]] = field(default_factory=dict)
    together: tuple[tuple[str, ...], tuple[Key, ...]] | None = None

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
            values = [key_value(columns[0], term, self.moment) for term in relation.terms]
            self._choose(columns[0], values)
        elif relation.operator in _SLICES:
            self._bound(columns, relation)
        else:
            raise InputError(
                f"{relation.operator} of {', '.join(relation.columns)} cannot name the rows of a write; use =, IN, <,"
                " <=, > or >="
            )

    def of_clustering(self, partitions: tuple[Key, ...]) -> Selection:
        keys = self.schema.clustering_key
        if self.together is not None:
            return self._of_together(partitions)
        prefix = 0
        while prefix < len(keys) and keys[prefix].name in self.choices:
            prefix += 1
        behind = [column.name for column in keys[prefix:] if column.name in self.choices]
        if behind:
            raise InputError(
                f"clustering column {behind[0]} is restricted, but {keys[prefix].name} before it is not given with ="
            )
        chosen = _product(self.choices[column.name] for column in keys[:prefix])
        if self.bounds:
            return Selection(partitions, ranges=tuple(part for key in chosen for part in self._ranges(key)))
        if prefix == len(keys):
            return Selection(partitions, rows=chosen, is_whole=not keys)
        if prefix == 0:
            return Selection(partitions, is_whole=True)
        return Selection(
            partitions, ranges=tuple(ClusteringRange(Bound(key, True), Bound(key, True)) for key in chosen)
        )

    def _of_together(self, partitions: tuple[Key, ...]) -> Selection:
        assert self.together is not None
        names, choices = self.together
        mixed = self.bounds or any(column.name in self.choices for column in self.schema.clustering_key)
        if mixed or names != tuple(column.name for column in self.schema.clustering_key):
            raise InputError(f"({', '.join(names)}) IN has to name all clustering columns, in their order, and alone")
        return Selection(partitions, rows=choices)

    def _choose_each(self, columns: Sequence[Column], terms: Sequence[s.Term]) -> None:
        self._check_count(columns, terms)
        for column, term in zip(columns, terms, strict=True):
            self._choose(column, [key_value(column, term, self.moment)])

    def _choose(self, column: Column, values: Iterable[Value]) -> None:
        self._check_once(column)
        by_bytes = {column.type.to_bytes(value): value for value in values}
        self.choices[column.name] = tuple(by_bytes.values())

    def _choose_together(self, columns: Sequence[Column], choices: Sequence[s.Term]) -> None:
        self._check_clustering(columns)
        found = []
        for choice in choices:
            if not isinstance(choice, s.TupleLiteral):
                raise InputError(f"({', '.join(column.name for column in columns)}) IN takes tuples, as in ((1, 2))")
            self._check_count(columns, choice.items)
            found.append(
                tuple(key_value(column, item, self.moment) for column, item in zip(columns, choice.items, strict=True))
            )
        self.together = tuple(column.name for column in columns), tuple(dict.fromkeys(found))

    def _bound(self, columns: Sequence[Column], relation: s.Relation) -> None:
        self._check_clustering(columns)
        self._check_count(columns, relation.terms)
        side, inclusive = _SLICES[relation.operator]
        if side in self.bounds:
            raise InputError(
                f"{columns[0].name} has two bounds on one side; give at most one lower and one upper bound"
            )
        values = tuple(
            key_value(column, term, self.moment) for column, term in zip(columns, relation.terms, strict=True)
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

    def _ranges(self, prefix: Key) -> list[ClusteringRange]:
        """The rows behind a prefix that the bounds leave, in clustering order."""
        directions = set()
        for columns, _, _ in self.bounds.values():
            self._check_place(columns, len(prefix))
            directions |= {column.descending for column in columns}
        if len(directions) > 1:
            return mixed_ranges(prefix, self.bounds)
        sides = {side: Bound((*prefix, *values), inclusive) for side, (_, values, inclusive) in self.bounds.items()}
        return [_range(prefix, sides, descending=directions == {True})]

    def _check_place(self, columns: Sequence[Column], place: int) -> None:
        expected = self.schema.clustering_key[place : place + len(columns)]
        if tuple(columns) != expected:
            before = ", ".join(column.name for column in self.schema.clustering_key[:place]) or "nothing"
            raise InputError(
                f"({', '.join(column.name for column in columns)}) is bounded, but what is given with = before it is"
                f" {before}; bound the clustering column that comes next"
            )
