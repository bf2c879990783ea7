"""Filters of rows: what callers write down, as deltalake's SQL and as Python has them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from cdc_platform.clock import from_datetime, to_datetime
from cdc_platform.errors import InputError
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


def filter_sql(name: str, operator: str, value: Any) -> str:
    """A normal filter in SQL."""
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
