"""A replica rewrites only the rows that changes or time affect; the result equals a rewrite of all rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.log_histories import EPOCH_US, histories

from cdc_platform.cdclog import SelectedRows, StateRowKind, merge_states, purge_state, select_with_details
from cdc_platform.cdclog.state.mutations import state_from_mutations
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    DECIMAL,
    INT,
    TEXT,
    TIMESTAMP,
    CdcOptions,
    Cell,
    Column,
    CqlType,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    TableSchema,
)
from cdc_platform.cql.types import DATE, DOUBLE, VARINT
from cdc_platform.delta import PartialReplacement
from cdc_platform.ingest import current_table
from cdc_platform.ingest.replica import affected as module
from cdc_platform.ingest.replica.affected import find_affected
from cdc_platform.ingest.replica.reread import find_doubtful_rows
from cdc_platform.ingest.replica.snapshot import SOLE
from cdc_platform.ingest.replica.tables import cells_table, for_readers

History = tuple[TableSchema, list[list[Mutation]]]
PARTITIONS = 4
NOW = Microseconds(9)
TIMES = st.lists(st.integers(EPOCH_US - 1, EPOCH_US + 9_000_010).map(Microseconds), min_size=3, max_size=3).map(sorted)


@pytest.fixture(autouse=True, scope="module")
def always_apart() -> Iterator[None]:
    """Separate affected rows in small tables, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_AFFECTED_SHARE", 1)
        yield


@dataclass(frozen=True)
class Replica:
    """Both tables of a replica, and the rows that its state selects."""

    cells: pa.Table
    rows: pa.Table
    found: SelectedRows


def build_replica(schema: TableSchema, state: pa.Table, sure_us: Microseconds, now_us: Microseconds) -> Replica:
    """Return both tables that a merged state gives."""
    selected = select_with_details(schema, state, now_us)
    return Replica(purge_state(state, selected, sure_us, now_us), for_readers(schema, selected, PARTITIONS), selected)


def sorted_rows(table: pa.Table) -> list[str]:
    """Return the rows in an order that depends on their values alone."""
    return sorted(map(repr, table.to_pylist()))


def with_inexact_rows(state: pa.Table, dice: random.Random) -> pa.Table:
    """Return the state with some of its markers and cells marked inexact, as a copy of the cluster leaves them."""
    rows = state.to_pylist()
    for row in rows:
        if (
            row["kind"] in (StateRowKind.MARKER, StateRowKind.CELL)
            and not row["ttl"]
            and not row["dead"]
            and dice.random() < 0.3
        ):
            row["inexact"] = True
            if row["kind"] == StateRowKind.MARKER:
                row["value"] = dice.choice([None, SOLE])
    return pa.Table.from_pylist(rows, schema=state.schema)


def states_from_mutations(mutations: Sequence[Mutation]) -> list[pa.Table]:
    """Return one state for each mutation."""
    return [state_from_mutations([mutation]) for mutation in mutations]


@given(histories(), st.integers(0, 2**32).map(random.Random), TIMES)
def test_partial_replacement_equals_a_full_rewrite(
    history: History, dice: random.Random, times: list[Microseconds]
) -> None:
    """Partial replacement gives the same two tables as a rewrite of the whole state, for any history and change."""
    schema, (before_us, sure_us, now_us) = history[0], times
    first, later = list[Mutation](), list[Mutation]()
    for mutation in (mutation for batch in history[1] for mutation in batch):
        (later if dice.random() < 0.3 else first).append(mutation)
    old = build_replica(
        schema,
        with_inexact_rows(merge_states(schema, states_from_mutations(first)), dice),
        dice.choice(times),
        before_us,
    )
    changes = merge_states(schema, states_from_mutations(later))
    state = merge_states(schema, [old.cells, changes])
    whole = build_replica(schema, state, sure_us, now_us)
    cells = old.cells
    if dice.random() < 0.3:  # killed before the readers' rows were written
        cells, state = whole.cells, merge_states(schema, [whole.cells, changes])
        whole = build_replica(schema, state, sure_us, now_us)
    passed = before_us, now_us

    affected = find_affected(schema, cells, old.rows, changes, passed, sure_us)
    cell_replacement, row_replacement = (
        PartialReplacement(cells, affected.cells),
        PartialReplacement(old.rows, affected.rows),
    )
    part = merge_states(schema, [cell_replacement.removed, changes])
    new = build_replica(schema, part, sure_us, now_us)
    assert sorted_rows(cell_replacement.apply(cells_table(schema), new.cells)) == sorted_rows(whole.cells)
    assert sorted_rows(row_replacement.apply(current_table(schema), new.rows)) == sorted_rows(whole.rows)
    doubtful, all_doubtful = (
        find_doubtful_rows(schema, part, changes, new.found, passed),
        find_doubtful_rows(schema, state, changes, whole.found, passed),
    )
    before = select_with_details(schema, old.cells, before_us)
    known = zip(before.partitions.to_pylist(), before.clusterings.to_pylist(), before.doubtful, strict=True)
    assert (
        all_doubtful - {(partition, row) for partition, row, doubtful in known if doubtful} <= doubtful <= all_doubtful
    )


def table_schema(partition: CqlType, clustering: CqlType) -> TableSchema:
    """Return the schema of a table with keys of these types and one value."""
    kinds = (Column("p", partition, "partition"), Column("k", clustering, "clustering"), Column("v", INT))
    return TableSchema("ks", "t", kinds, CdcOptions(enabled=True))


def write(schema: TableSchema, partition: object, row: object, at: int) -> pa.Table:
    """Return the state of an inserted row."""
    change = RowChange(RowMarker(Microseconds(at)), {"v": Cell(Microseconds(at), at)})
    return state_from_mutations([Mutation(schema, (partition,), rows={(row,): change})])


@pytest.mark.parametrize(
    ("partition", "clustering", "due"),
    [
        (INT, TEXT, 1),  # the row
        (TIMESTAMP, DATE, 1),
        (INT, DECIMAL, 2),  # its partition
        (TEXT, DOUBLE, 2),
        (VARINT, INT, 4),  # all
    ],
)
def test_key_with_ambiguous_bytes_affects_its_partition_or_all_rows(
    partition: CqlType, clustering: CqlType, due: int
) -> None:
    """If a value does not determine its key's bytes, its partition or all four rows are affected."""
    schema = table_schema(partition, clustering)
    keys: dict[CqlType, Sequence[object]] = {TEXT: "ab", DECIMAL: [Decimal(1), Decimal(2)]}
    rows = [(p, k) for p in keys.get(partition, (1, 2)) for k in keys.get(clustering, (1, 2))]
    state = merge_states(schema, [write(schema, p, k, 1) for p, k in rows])
    old = build_replica(schema, state, Microseconds(0), Microseconds(5))
    changes = write(schema, *rows[0], 2)
    affected = find_affected(schema, old.cells, old.rows, changes, (Microseconds(5), Microseconds(6)), Microseconds(0))
    assert (np.count_nonzero(affected.rows), np.count_nonzero(affected.cells)) == (due, 2 * due)


def test_out_of_range_dates_are_distinguished() -> None:
    """Two partitions that readers see under one nearest date stay two."""
    schema = table_schema(DATE, INT)
    far = 2**30
    state = merge_states(schema, [write(schema, key, 1, 1) for key in (far, far + 1)])
    old = build_replica(schema, state, Microseconds(0), Microseconds(5))
    assert len(set(old.rows["p"].to_pylist())) == 1
    changes = write(schema, far, 1, 2)
    affected = find_affected(schema, old.cells, old.rows, changes, (Microseconds(5), Microseconds(6)), Microseconds(0))
    rows = old.rows.filter(pa.array(affected.rows))
    assert [dict(exact)["p"] for exact in rows["cdc$exact"].to_pylist()] == [str(far)]


def test_all_rows_are_rewritten_if_most_are_affected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the maximum share, separating the affected rows would cost what it saves."""
    schema = table_schema(INT, INT)
    state = merge_states(schema, [write(schema, 1, row, 1) for row in range(4)])
    old = build_replica(schema, state, Microseconds(0), Microseconds(5))
    changes = merge_states(schema, [write(schema, 1, row, 2) for row in range(3)])
    for most, due in ((0.7, 4), (0.8, 3)):
        monkeypatch.setattr(module, "MAX_AFFECTED_SHARE", most)
        affected = find_affected(
            schema, old.cells, old.rows, changes, (Microseconds(5), Microseconds(6)), Microseconds(0)
        )
        assert (np.count_nonzero(affected.rows), np.count_nonzero(affected.cells)) == (due, 2 * due)


def test_range_tombstone_affects_its_whole_partition() -> None:
    """A range tombstone removes its rows and hides an older write that is merged later, in either order."""
    schema, never = table_schema(INT, INT), Microseconds(0)
    deleted = state_from_mutations(
        [Mutation(schema, (1,), range_tombstones=[RangeTombstone(None, RangeBound((3,), True), NOW)])]
    )
    rows = [write(schema, 1, row, NOW - 1) for row in range(2, 6)]
    for old, changes, due in ((rows, [deleted], [4, 5]), ([deleted, *rows[2:]], rows[:1], [4, 5])):
        replica = build_replica(schema, merge_states(schema, old), never, NOW)
        changed = merge_states(schema, changes)
        affected = find_affected(schema, replica.cells, replica.rows, changed, (NOW, NOW), never)
        cell_replacement, row_replacement = (
            PartialReplacement(replica.cells, affected.cells),
            PartialReplacement(replica.rows, affected.rows),
        )
        new = build_replica(schema, merge_states(schema, [cell_replacement.removed, changed]), never, NOW)
        assert sorted(row_replacement.apply(current_table(schema), new.rows)["k"].to_pylist()) == due
