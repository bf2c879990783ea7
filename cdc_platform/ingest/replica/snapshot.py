"""The first copy of a table: its token ranges are read one by one, in this process or in tasks of Spark.

How large a table is nobody tells; it is thought to be as dense everywhere as at the beginning of the ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.cluster.raw import RawPage
from cdc_platform.cql.names import quoted
from cdc_platform.cql.schema import TableSchema
from cdc_platform.ingest.replica.snapshot_cells import SyntheticTimestamps, seen, selection
from cdc_platform.ingest.replica.tables import SLICE, ranges, with_slices
from cdc_platform.ingest.requests import LogQuery
from cdc_platform.lake.volume import Batches, TaskRows
from cdc_platform.log.state.forms import in_one_form
from cdc_platform.log.state.merging import merged

ROWS_A_SLICE = 50_000
MOST_SLICES = 4_096
_SAMPLE_ROWS = 2_000
_REQUESTS_A_SLICE = 12
"""So that most are answered with one page: the next are under way while what came becomes rows."""
_ROWS_AT_ONCE = 10_000
"""So many rows or more that came become rows of the state together: of few at a time that takes twice as long."""


@dataclass(frozen=True)
class SnapshotQuery(LogQuery):
    """What a task needs to ask for rows of a base table. Travels to executors, as `Asking` does."""

    orders: SyntheticTimestamps

    @property
    def table(self) -> str:
        """The base table, as CQL names it."""
        return base_name(self.schema)

    def statement(self, condition: str) -> str:
        """The SELECT of a range of tokens."""
        end = " BYPASS CACHE" if self.bypass_cache else ""
        return f"SELECT {selection(self.schema)} FROM {self.table} WHERE {condition}{end}"

    def slices(self) -> int:
        """How many slices of about `ROWS_A_SLICE` rows the table is worth, told from the first of its rows."""
        key = token(self.schema)
        sample = _Sample(self.name, self.connection, self.schema, self.bypass_cache)
        condition = f"{key} >= {-(2**63) + 1} LIMIT {_SAMPLE_ROWS}"
        (pages,) = sample.answers([condition])
        tokens = [cell for page in pages for cell in page.columns[0].drop_null().to_pylist()]
        if len(tokens) < _SAMPLE_ROWS:
            return 1
        reached = int.from_bytes(tokens[-1], "big", signed=True) + 2**63
        rows = len(tokens) * 2**64 // max(reached, 1)
        return int(min(MOST_SLICES, max(1, -(-rows // ROWS_A_SLICE))))

    def cells(self, slices: int, *, one_by_one: bool = False) -> TaskRows:
        """The state of what is seen in each slice, merged, a part a slice.

        `one_by_one`: a process makes them in their order, and the next is asked for while one is written.
        """
        each = _REQUESTS_A_SLICE if slices > 1 else 1
        parts, key = ranges(slices * each), token(self.schema)
        asked: dict[int, Iterator[list[RawPage]]] = {}

        def answers(number: int) -> Iterator[list[RawPage]]:
            mine = parts[number * each : (number + 1) * each]
            return self.answers([f"{key} > {low} AND {key} <= {high}" for low, high in mine], number)

        def batches(number: int) -> Batches:
            held: list[RawPage] = []
            for place, pages in enumerate(asked.pop(number, None) or answers(number), 1):
                if one_by_one and place == each and number + 1 < slices:
                    asked[number + 1] = answers(number + 1)
                held += pages
                if place < each and sum(page.rows for page in held) < _ROWS_AT_ONCE:
                    continue
                state = self._one_a_place(seen(self.schema, held, self.orders))
                held.clear()
                if state.num_rows:
                    yield from with_slices(state, slices).to_batches()

        return TaskRows(slices, batches)

    def _one_a_place(self, state: pa.Table) -> pa.Table:
        """What was seen, merged: a static cell comes with each row of its partition, an element with a tombstone."""
        schema = self.schema
        if schema.statics or any(column.type.multicell for column in schema.regulars):
            return merged(schema, [state])
        return in_one_form(schema, state)


class _Sample(LogQuery):
    """Asks for the tokens of the first rows."""

    @property
    def table(self) -> str:
        return base_name(self.schema)

    def statement(self, condition: str) -> str:
        return f"SELECT {token(self.schema)} FROM {self.table} WHERE {condition}"


def token(schema: TableSchema) -> str:
    """The token of a row, in CQL."""
    return f"token({', '.join(quoted(each.name) for each in schema.partition_key)})"


def base_name(schema: TableSchema) -> str:
    """The base table as CQL names it."""
    return f"{quoted(schema.keyspace)}.{quoted(schema.name)}"


def of_slices(rows: pa.Table, chosen: Sequence[int]) -> pa.Table:
    """Those of some rows that lie in these slices, without the slice."""
    inside = np.isin(np.asarray(rows[SLICE]), np.asarray(chosen, np.int32))
    return rows.filter(pa.array(inside)).drop_columns([SLICE])
