"""What assignments and values do to columns: cells, elements of collections, and their tombstones.

A whole collection is overwritten by a tombstone one microsecond before the write; DELETE has the write's own time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import statements as s
from cdc_platform.cql.list_keys import ListKeys
from cdc_platform.cql.literals import Moment, element_of, value_of
from cdc_platform.cql.mutation import Cell, CollectionChange, ColumnChange
from cdc_platform.cql.restrictions import column_value
from cdc_platform.cql.schema import Column, element_value_type
from cdc_platform.cql.types import INT, TIMEUUID, CqlType, ListType, MapType, SetType, UserType, Value
from cdc_platform.errors import InputError

LIST_INDEX = "scylla_timeuuid_list_index"


class OutsideOfList(InputError):
    """A list has no element at the index that a write names: that is so at its moment, not by what the write says."""

    code = "list-index"


@dataclass(frozen=True)
class Writing:
    """How a write writes: its timestamp (µs), its TTL (s, 0 for none), when it runs, and the list keys it gives."""

    timestamp: Microseconds
    ttl: int
    moment: Moment
    keys: ListKeys

    def cell(self, value: Value | None) -> Cell:
        """A live cell, or a dead one for null."""
        return Cell(self.timestamp, dead=True) if value is None else Cell(self.timestamp, value, self.ttl)

    def element(self) -> Cell:
        """The live element of a set, which holds nothing but its key."""
        return Cell(self.timestamp, None, self.ttl)


Elements = Callable[[], Mapping[Value, Value]]
"""Reads the live elements of the column that is written, in the order of their keys."""


def overwritten(column: Column, term: s.Term, writing: Writing) -> ColumnChange:
    """The change that sets a whole column to a value, as INSERT and `SET x = ...` do."""
    value = column_value(column, term, writing.moment)
    if not column.type.multicell:
        return writing.cell(value)
    elements = {} if value is None else _elements(column.type, value, writing)
    return CollectionChange(writing.timestamp - ONE_US, elements)


def deleted(column: Column, writing: Writing) -> ColumnChange:
    """The change that DELETE makes of a whole column."""
    return CollectionChange(writing.timestamp) if column.type.multicell else writing.cell(None)


def assigned(column: Column, assignment: s.Assignment, writing: Writing, elements: Elements) -> ColumnChange | None:
    """The change that an assignment of UPDATE makes; None where it does nothing.

    Raises:
        InputError: the column's type does not allow it, or a value does not fit.
    """
    target = assignment.target
    if isinstance(target, s.Field):
        return _field(column, target.field, assignment.value, writing)
    if isinstance(target, s.Element):
        return _element(column, target.key, assignment.value, writing, elements)
    if assignment.sign == "=":
        return overwritten(column, assignment.value, writing)
    if assignment.operand != column.name:
        raise InputError(
            f"column {column.name}: SET {column.name} = {assignment.operand} {assignment.sign} ... is allowed with"
            f" {column.name} itself alone"
        )
    _check_collection(column, assignment.sign)
    if assignment.sign == "-":
        return _removed(column, assignment.value, writing, elements)
    return _added(column, assignment, writing)


def element_deleted(column: Column, key: s.Term, writing: Writing, elements: Elements) -> ColumnChange | None:
    """The change that `DELETE x[key]` makes; None where there is nothing to delete."""
    _check_elements(column)
    if isinstance(column.type, SetType):
        return _one(_key(column, column.type.element, key, writing), writing.cell(None))
    return _element(column, key, s.NULL, writing, elements)


def field_deleted(column: Column, field: str, writing: Writing) -> ColumnChange:
    """The change that `DELETE x.field` makes."""
    return _field(column, field, s.NULL, writing)


def _elements(kind: CqlType, value: Value, writing: Writing, *, prepend: bool = False) -> dict[Value, Cell]:
    """The cells that hold a value of a collection or user type."""
    if isinstance(kind, ListType):
        given = writing.keys.prepended if prepend else writing.keys.appended
        keys = given(writing.timestamp, len(value))
        return {key: writing.cell(inner) for key, inner in zip(keys, value, strict=True)}
    if isinstance(kind, SetType):
        return {element: writing.element() for element in value}
    if isinstance(kind, MapType):
        return {key: writing.cell(inner) for key, inner in value}
    return {index: writing.cell(inner) for index, inner in enumerate(value) if inner is not None}


def _added(column: Column, assignment: s.Assignment, writing: Writing) -> ColumnChange | None:
    """Elements added; where there are none a list or map is touched all the same, and a set is not (cql3/sets.cc)."""
    prepend = assignment.sign == "prepend"
    if prepend and not isinstance(column.type, ListType):
        raise InputError(f"column {column.name} is no list; write SET {column.name} = {column.name} + ...")
    value = _not_null(column, column_value(column, assignment.value, writing.moment))
    elements = _elements(column.type, value, writing, prepend=prepend)
    return None if isinstance(column.type, SetType) and not elements else CollectionChange(None, elements)


def _removed(column: Column, term: s.Term, writing: Writing, elements: Elements) -> ColumnChange | None:
    """Elements removed; where there are none the column is touched all the same, but for an empty list."""
    kind = column.type
    if isinstance(kind, ListType):
        unwanted = {
            kind.element.to_bytes(value) for value in _not_null(column, column_value(column, term, writing.moment))
        }
        there = elements()
        if not there:
            return None
        keys = [key for key, value in there.items() if kind.element.to_bytes(value) in unwanted]
    else:
        removed = SetType(kind.parts[0])
        keys = _not_null(column, _value(column, removed, term, writing))
    return CollectionChange(None, {key: writing.cell(None) for key in keys})


def _element(
    column: Column, key: s.Term, term: s.Term, writing: Writing, elements: Elements
) -> CollectionChange | None:
    _check_elements(column)
    if isinstance(column.type, SetType):
        raise InputError(
            f"column {column.name} is a set, whose elements have no value; add or remove them with + and -"
        )
    found = (
        _list_key(column, key, writing, elements)
        if isinstance(column.type, ListType)
        else _key(column, column.type.parts[0], key, writing)
    )
    kind = element_value_type(column.type, found)
    assert kind is not None
    return _one(found, writing.cell(_value(column, kind, term, writing)))


def _list_key(column: Column, key: s.Term, writing: Writing, elements: Elements) -> Value:
    """The key of a list's cell: as given by SCYLLA_TIMEUUID_LIST_INDEX, or that of the element at an index."""
    if isinstance(key, s.Call) and key.name == LIST_INDEX:
        if len(key.arguments) != 1:
            raise InputError(f"column {column.name}: SCYLLA_TIMEUUID_LIST_INDEX() takes one timeuuid")
        return _key(column, TIMEUUID, key.arguments[0], writing)
    index = _key(column, INT, key, writing)
    keys = list(elements())
    if not 0 <= index < len(keys):
        raise OutsideOfList(
            f"column {column.name}: index {index} is outside of the list, which has {len(keys)} elements"
        )
    return keys[index]


def _field(column: Column, field: str, term: s.Term, writing: Writing) -> CollectionChange:
    if not isinstance(column.type, UserType):
        raise InputError(f"column {column.name} of type {column.type.cql} has no fields")
    if not column.type.multicell:
        raise InputError(
            f"column {column.name} is frozen, so that its fields cannot be written one by one; set it whole"
        )
    index = column.type.index_of(field)
    return _one(index, writing.cell(_value(column, column.type.parts[index], term, writing)))


def _one(key: Value, cell: Cell) -> CollectionChange:
    return CollectionChange(None, {key: cell})


def _key(column: Column, kind: CqlType, term: s.Term, writing: Writing) -> Value:
    try:
        return element_of(term, kind, writing.moment)
    except InputError as error:
        raise InputError(f"column {column.name}: {error}") from None


def _value(column: Column, kind: CqlType, term: s.Term, writing: Writing) -> Value | None:
    try:
        return value_of(term, kind, writing.moment)
    except InputError as error:
        raise InputError(f"column {column.name}: {error}") from None


def _not_null(column: Column, value: Value | None) -> Value:
    if value is None:
        raise InputError(f"column {column.name}: null cannot be added or removed; name elements")
    return value


def _check_collection(column: Column, sign: str) -> None:
    if not isinstance(column.type, ListType | SetType | MapType) or not column.type.multicell:
        raise InputError(
            f"column {column.name} of type {column.type.cql} takes no {'+' if sign == 'prepend' else sign}; + and - are"
            " for lists, sets and maps that are not frozen"
        )


def _check_elements(column: Column) -> None:
    if not isinstance(column.type, ListType | SetType | MapType):
        raise InputError(f"column {column.name} of type {column.type.cql} has no elements")
    if not column.type.multicell:
        raise InputError(
            f"column {column.name} is frozen, so that its elements cannot be written one by one; set it whole"
        )
