"""Replaying a log: the rows of a CDC log become the partitions of the base table, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdc_platform.cql.mutation import Mutation
from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.cql.types import Value
from cdc_platform.log.log_values import rows_table
from cdc_platform.log.state.merging import merged
from cdc_platform.log.state.of_log import assert_full_delta, state_of_log
from cdc_platform.log.state.of_mutations import mutations_of

LogRow = Mapping[str, Value | None]


def replay(schema: TableSchema, rows: Iterable[LogRow]) -> dict[bytes, Mutation]:
    """The partitions of the base table, by serialized partition key, that the rows of its log amount to.

    Rows may come in any order. Cells, markers and tombstones have the timestamps and TTLs that they were written
    with; images are passed over. What the rows lack of the columns of `schema` counts as null.

    Raises:
        StateError: the log holds keys alone.
        InputError: a row is none of a log, or a batch is not complete.
    """
    assert_full_delta(schema)
    names = [column.name for column in log_columns(schema)]
    given = [{name: row.get(name) for name in names} for row in rows]
    if not given:
        return {}
    return mutations_of(schema, merged(schema, [state_of_log(schema, rows_table(schema, given))]))
