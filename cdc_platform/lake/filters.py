"""Filters of rows: what callers write down, as deltalake's SQL, as Arrow and as Python have them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pyarrow as pa

from cdc_platform.clock import from_datetime, to_datetime
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.tables import Table

Filter = tuple[str, str, Any]
"""(column, operator, value); operators `=`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`.

Times are datetimes, UUIDs are UUIDs or text. A null passes no filter.
"""

PASSES: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq,
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "in": lambda value, several: value in several,
    "not in": lambda value, several: value not in several,
}
"""What an operator asks of a value."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], pa.ChunkedArray]] = {
    "=": compute.equal,
    "==": compute.equal,
    "!=": compute.not_equal,
    "<": compute.less,
    "<=": compute.less_equal,
    ">": compute.greater,
    ">=": compute.greater_equal,
}


def normal_filters(table: Table, filters: Iterable[Filter]) -> list[Filter]:
    """The filters with values as Arrow and SQL want them: aware datetimes in UTC, UUIDs as lower-case text."""
    normal: list[Filter] = []
    for name, operator, value in filters:
        if name not in table.schema.names:
            raise InputError(f"{table.full_name} has no column {name}; it has {', '.join(table.schema.names)}")
        if operator not in PASSES:
            raise InputError(f"no filter operator {operator!r}; there are {', '.join(sorted(PASSES))}")
        several = operator in ("in", "not in")
        normal.append((name, operator, [_value(each) for each in value] if several else _value(value)))
    return normal


def _value(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return to_datetime(from_datetime(value))
    return value


def passing(rows: pa.Table, filters: Iterable[Filter]) -> pa.Table:
    """The rows that pass all (normal) filters, as SQL would have it."""
    chosen: pa.ChunkedArray | None = None
    for name, operator, value in filters:
        passes = _mask(rows[name], operator, value)
        chosen = passes if chosen is None else compute.and_kleene(chosen, passes)
    return rows if chosen is None else rows.filter(chosen)


def _mask(column: pa.ChunkedArray, operator: str, value: Any) -> pa.ChunkedArray:
    """For each value whether it passes; null counts as no."""
    if operator not in ("in", "not in"):
        return _COMPARISONS[operator](column, pa.scalar(value))
    found = compute.is_in(column, value_set=pa.array(value, column.type))
    if operator == "in":
        return found
    return compute.if_else(compute.or_(column.is_valid(), not value), compute.invert(found), False)


def filters_sql(filters: Iterable[Filter]) -> str:
    """The condition in SQL that all (normal) filters are passed."""
    return " AND ".join(_filter_sql(*each) for each in filters) or "true"


def _filter_sql(name: str, operator: str, value: Any) -> str:
    if operator in ("in", "not in"):
        inside = ", ".join(_literal(each) for each in value)
        return f"{quoted(name)} {operator.upper()} ({inside})" if inside else str(operator == "not in").lower()
    return f"{quoted(name)} {'=' if operator == '==' else operator} {_literal(value)}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        return f"arrow_cast('{value.isoformat(timespec='microseconds')}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return "'" + str(value).replace("'", "''") + "'"


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return '"' + name.replace('"', '""') + '"'
