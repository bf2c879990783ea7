"""Values that are one and are written in several ways: 1.0 and 1.00 are one clustering key, and one key of a map.

Of the forms that a row's key, or an element's, was written in, a state has the one with the least bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from cdc_platform.cql.schema import TableSchema, element_key_type
from cdc_platform.cql.types import DECIMAL, CqlType
from cdc_platform.cql.wire import read_value
from cdc_platform.log.state.ranges import key_of


def in_one_form(schema: TableSchema, state: pa.Table) -> pa.Table:
    """The state, which has no ranges, with one form of each key of a row and of an element."""
    if any(map(_has_forms, (column.type for column in schema.clustering_key))):
        order = cache(lambda data: schema.clustering_order(key_of(schema, data)))
        state = _replaced(state, "clustering", ("partition",), lambda row: order(row["clustering"]))
    several = {
        column.name: element_key_type(column.type)
        for column in schema.columns
        if column.type.multicell and _has_forms(element_key_type(column.type))
    }
    if several:
        state = _replaced(
            state,
            "path",
            ("partition", "clustering", "column"),
            lambda row: several[row["column"]].sort_key(read_value(several[row["column"]], row["path"])),
            several,
        )
    return state


def _has_forms(kind: CqlType) -> bool:
    return kind == DECIMAL or any(map(_has_forms, kind.parts))


def _replaced(
    state: pa.Table,
    name: str,
    beside: tuple[str, ...],
    order: Callable[[dict[str, Any]], Any],
    columns: Iterable[str] | None = None,
) -> pa.Table:
    """The state with the least form of each value of a column among the rows that are alike in those `beside`."""
    rows = state.select([*{*beside, "column", name}]).to_pylist()
    groups: list[tuple[Any, ...] | None] = []
    least: dict[tuple[Any, ...], bytes] = {}
    for row in rows:
        if row[name] is None or (columns is not None and row["column"] not in columns):
            groups.append(None)
        else:
            group = (*(row[each] for each in beside), order(row))
            least[group] = min(row[name], least.get(group, row[name]))
            groups.append(group)
    found = [row[name] if group is None else least[group] for row, group in zip(rows, groups, strict=True)]
    return state.set_column(state.schema.get_field_index(name), state.schema.field(name), pa.array(found, pa.binary()))
