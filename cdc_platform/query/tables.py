"""Whole tables as Arrow tables, without a query engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.cql import split_full_name
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError, UnknownTable
from cdc_platform.query.names import TableNames, TableReference, TimeTravel

if TYPE_CHECKING:
    import pyarrow.dataset


def read_table(
    lake: Lake,
    name: str,
    columns: Sequence[str] | None,
    row_filter: pyarrow.dataset.Expression | None,
    at: TimeTravel,
) -> pa.Table:
    """Return the rows of a table that pass a filter, in no particular order.

    `name` is `keyspace.table`, or the table's name alone if only one keyspace has it; case matters only if two names
    differ in nothing else. A declared table that does not exist has no rows.

    Raises:
        UnknownTable: no table has this name.
        InputError: several tables have the name, or there is no such column.
        NotFound: the table has no such version or time, or no longer has it.
        StateError: a file of the table is missing or damaged.
    """
    import pyarrow.dataset as arrow_dataset

    from cdc_platform.query.change_views import iter_view_rows

    names = TableNames(lake)
    keyspace, table_name = split_full_name(name) if "." in name else ("", name)
    reference = TableReference(keyspace, table_name)
    table = names.find(reference)
    if table is None:
        raise UnknownTable(f"there is no table {name} in this home{names.close_to(reference)}")
    (source,) = names.sources([table], at)
    unknown = [column for column in columns or () if column not in source.schema.names]
    if unknown:
        raise InputError(f"{table.full_name} has no column {unknown[0]!r}; it has {', '.join(source.schema.names)}")
    if source.snapshot is None:
        rows = source.schema.empty_table()
        return rows if columns is None else rows.select(list(columns))
    try:
        dataset = (
            source.snapshot.dataset()
            if source.view is None
            else arrow_dataset.dataset(pa.concat_tables([source.schema.empty_table(), *iter_view_rows(source)]))
        )
        return dataset.to_table(None if columns is None else list(columns), filter=row_filter)
    except (pa.ArrowException, OSError) as error:
        damage = source.snapshot.find_damage()
        if damage is not None:
            raise StateError(f"{damage}; restore it, or read an older version") from None
        raise InputError(f"{table.full_name} cannot be read with this filter: {error}") from None
