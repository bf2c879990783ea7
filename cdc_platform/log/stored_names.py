"""The names under which a log's Delta table has its columns: CQL tells names apart by case, and Delta does not.

A name stays as it is unless another one of the same table, or of the same user type, differs from it by case alone.
Then those with capitals have a `$` behind them and, in hexadecimal, which letters are capitals: bit n for letter n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from cdc_platform.cql.schema import LogColumn, TableSchema, log_columns
from cdc_platform.cql.types import CqlType, ListType, MapType, SetType, TupleType, UserType

WRITTEN_AT = "cdc$timestamp"
"""The one column that ScyllaDB's log never has: the time in `cdc$time` as a timestamp, by which files are skipped."""
EXACT = "cdc$exact"
"""A column that a log has once a value was kept that no native column holds: see `exact`."""

GENERATION = "cdc$generation"
"""A column of sinks: when the generation or stream set began of which a reader has read the row."""

INEXACT = "cdc$inexact"
"""A column of a live cluster's table that is kept: whether some of a row rests on what CQL does not tell exactly."""
AS_OF, MARKED = "current:as-of", "current:inexact"
"""The applications under which such a table notes as of when (µs) it is, and how many of its rows are inexact."""


GAP = "ingest:gap"
"""The application under which a log notes up to when (µs) rows of it may have died unread; see `records.log_gaps`."""


@lru_cache(maxsize=512)
def stored(schema: TableSchema) -> TableSchema:
    """The schema with the names that its log has in Delta; itself where no names differ by case alone."""
    heads = [each.name for each in log_columns(schema) if each.base is None]
    names = _apart([column.name for column in schema.columns], taken=(WRITTEN_AT, EXACT, GENERATION, *heads))
    columns = tuple(
        replace(column, name=names[column.name], type=stored_type(column.type)) for column in schema.columns
    )
    return schema if columns == schema.columns else replace(schema, columns=columns)


def stored_type(kind: CqlType) -> CqlType:
    """The type with the names that fields of user types have in Delta."""
    match kind:
        case MapType():
            return replace(kind, key=stored_type(kind.key), value=stored_type(kind.value))
        case ListType() | SetType():
            return replace(kind, element=stored_type(kind.element))
        case TupleType():
            return TupleType(tuple(map(stored_type, kind.components)))
        case UserType():
            names = _apart(kind.field_names)
            return replace(kind, fields=tuple((names[name], stored_type(part)) for name, part in kind.fields))
    return kind


def candidates(name: str) -> tuple[str, ...]:
    """The names under which a column or field may be in a table that was written when it had other neighbours."""
    return name, marked(name)


def marked(name: str) -> str:
    """A name with which of its letters are capitals."""
    return f"{name}${sum(1 << place for place, letter in enumerate(name) if letter != letter.lower()):x}"


def stored_columns(schema: TableSchema) -> list[tuple[LogColumn, str]]:
    """The columns of a table's log in the order of its Delta table, each with its name there."""
    names = dict(zip((column.name for column in stored(schema).columns), schema.columns, strict=True))
    by_role = {(each.base.name if each.base else each.name, each.role): each for each in log_columns(schema)}
    return [
        (by_role[names[each.base.name].name if each.base else each.name, each.role], each.name)
        for each in log_columns(stored(schema))
    ]


def place_of(each: LogColumn, name: str, present: Collection[str]) -> str | None:
    """The name that a column has among those of a table, which may be of a time when other columns were beside it."""
    if each.base is None or name in present:
        return name if name in present else None
    prefix = each.name.removesuffix(each.base.name)
    known = (prefix + other for other in candidates(each.base.name))
    return next((other for other in known if other in present), None)


def _apart(names: Iterable[str], taken: Iterable[str] = ()) -> Mapping[str, str]:
    listed, reserved = list(names), {name.lower() for name in taken}
    counts = Counter(name.lower() for name in listed)

    def apart(name: str) -> str:
        alone = counts[name.lower()] == 1 or name == name.lower()
        return name if alone and name.lower() not in reserved else marked(name)

    return {name: apart(name) for name in listed}
