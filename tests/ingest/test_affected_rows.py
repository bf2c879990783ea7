"""Of a kept table's rows those are made anew that changes or time reach; the others are as if all had been made."""

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
SLICES = 4
NOW = Microseconds(9)
TIMES = st.lists(st.integers(EPOCH_US - 1, EPOCH_US + 9_000_010).map(Microseconds), min_size=3, max_size=3).map(sorted)


@pytest.fixture(autouse=True, scope="module")
def always_apart() -> Iterator[None]:
    """However many of few rows are reached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_AFFECTED_SHARE", 1)
        yield


@dataclass(frozen=True)
class Replica:
    """Both tables of a table, and what its state shows."""

    cells: pa.Table
    rows: pa.Table
    found: SelectedRows


def made(schema: TableSchema, state: pa.Table, sure_us: Microseconds, now_us: Microseconds) -> Replica:
    """Both tables as a merged state tells of them."""
    found = select_with_details(schema, state, now_us)
    return Replica(purge_state(state, found, sure_us, now_us), for_readers(schema, found, SLICES), found)


def told(table: pa.Table) -> list[str]:
    """The rows, in an order that is theirs alone."""
    return sorted(map(repr, table.to_pylist()))


def guessed(state: pa.Table, dice: random.Random) -> pa.Table:
    """The state with some of its markers and cells as a look at the cluster leaves them."""
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


def states_of(mutations: Sequence[Mutation]) -> list[pa.Table]:
    """A state of each."""
    return [state_from_mutations([each]) for each in mutations]


@given(histories(), st.integers(0, 2**32).map(random.Random), TIMES)
def test_what_is_reached_is_all_that_becomes_another(
    history: History, dice: random.Random, times: list[Microseconds]
) -> None:
    """Whatever came before and comes now: both tables in parts are those that all of the state comes to."""
    schema, (before_us, sure_us, now_us) = history[0], times
    first, later = list[Mutation](), list[Mutation]()
    for each in (mutation for batch in history[1] for mutation in batch):
        (later if dice.random() < 0.3 else first).append(each)
    old = made(schema, guessed(merge_states(schema, states_of(first)), dice), dice.choice(times), before_us)
    changes = merge_states(schema, states_of(later))
    state = merge_states(schema, [old.cells, changes])
    whole = made(schema, state, sure_us, now_us)
    cells = old.cells
    if dice.random() < 0.3:  # killed before the readers' rows
        cells, state = whole.cells, merge_states(schema, [whole.cells, changes])
        whole = made(schema, state, sure_us, now_us)
    passed = before_us, now_us

    reach = find_affected(schema, cells, old.rows, changes, passed, sure_us)
    of_cells, of_rows = PartialReplacement(cells, reach.cells), PartialReplacement(old.rows, reach.rows)
    part = merge_states(schema, [of_cells.removed, changes])
    new = made(schema, part, sure_us, now_us)
    assert told(of_cells.apply(cells_table(schema), new.cells)) == told(whole.cells)
    assert told(of_rows.apply(current_table(schema), new.rows)) == told(whole.rows)
    ask, asked = (
        find_doubtful_rows(schema, part, changes, new.found, passed),
        find_doubtful_rows(schema, state, changes, whole.found, passed),
    )
    doubted = select_with_details(schema, old.cells, before_us)
    known = zip(doubted.partitions.to_pylist(), doubted.clusterings.to_pylist(), doubted.doubtful, strict=True)
    assert asked - {(partition, row) for partition, row, doubtful in known if doubtful} <= ask <= asked


def table_of(partition: CqlType, clustering: CqlType) -> TableSchema:
    """A table with keys of these types and one value."""
    kinds = (Column("p", partition, "partition"), Column("k", clustering, "clustering"), Column("v", INT))
    return TableSchema("ks", "t", kinds, CdcOptions(enabled=True))


def write(schema: TableSchema, partition: object, row: object, at: int) -> pa.Table:
    """A row that was inserted."""
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
def test_a_key_whose_bytes_its_value_does_not_tell_is_not_looked_for(
    partition: CqlType, clustering: CqlType, due: int
) -> None:
    """Its partition is made anew, or all: so are as many of four rows, of two partitions."""
    schema = table_of(partition, clustering)
    keys: dict[CqlType, Sequence[object]] = {TEXT: "ab", DECIMAL: [Decimal(1), Decimal(2)]}
    places = [(one, other) for one in keys.get(partition, (1, 2)) for other in keys.get(clustering, (1, 2))]
    state = merge_states(schema, [write(schema, one, other, 1) for one, other in places])
    old = made(schema, state, Microseconds(0), Microseconds(5))
    changes = write(schema, *places[0], 2)
    found = find_affected(schema, old.cells, old.rows, changes, (Microseconds(5), Microseconds(6)), Microseconds(0))
    assert (np.count_nonzero(found.rows), np.count_nonzero(found.cells)) == (due, 2 * due)


def test_a_date_that_no_native_column_holds_is_told_from_the_nearest_that_does() -> None:
    """Two partitions that readers see under one date are two."""
    schema = table_of(DATE, INT)
    far = 2**30
    state = merge_states(schema, [write(schema, key, 1, 1) for key in (far, far + 1)])
    old = made(schema, state, Microseconds(0), Microseconds(5))
    assert len(set(old.rows["p"].to_pylist())) == 1
    changes = write(schema, far, 1, 2)
    found = find_affected(schema, old.cells, old.rows, changes, (Microseconds(5), Microseconds(6)), Microseconds(0))
    rows = old.rows.filter(pa.array(found.rows))
    assert [dict(each)["p"] for each in rows["cdc$exact"].to_pylist()] == [str(far)]


def test_where_most_is_reached_all_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """To tell the rest apart would cost what it saves."""
    schema = table_of(INT, INT)
    state = merge_states(schema, [write(schema, 1, row, 1) for row in range(4)])
    old = made(schema, state, Microseconds(0), Microseconds(5))
    changes = merge_states(schema, [write(schema, 1, row, 2) for row in range(3)])
    for most, due in ((0.7, 4), (0.8, 3)):
        monkeypatch.setattr(module, "MAX_AFFECTED_SHARE", most)
        found = find_affected(schema, old.cells, old.rows, changes, (Microseconds(5), Microseconds(6)), Microseconds(0))
        assert (np.count_nonzero(found.rows), np.count_nonzero(found.cells)) == (due, 2 * due)


def test_a_range_reaches_all_rows_of_its_partition_and_later_ones_are_held_against_it() -> None:
    """What it deletes goes from readers' rows; an older write that comes behind it shows nothing, in either order."""
    schema, never = table_of(INT, INT), Microseconds(0)
    deleted = state_from_mutations(
        [Mutation(schema, (1,), range_tombstones=[RangeTombstone(None, RangeBound((3,), True), NOW)])]
    )
    rows = [write(schema, 1, row, NOW - 1) for row in range(2, 6)]
    for old, changes, due in ((rows, [deleted], [4, 5]), ([deleted, *rows[2:]], rows[:1], [4, 5])):
        kept = made(schema, merge_states(schema, old), never, NOW)
        changed = merge_states(schema, changes)
        found = find_affected(schema, kept.cells, kept.rows, changed, (NOW, NOW), never)
        of_cells, of_rows = PartialReplacement(kept.cells, found.cells), PartialReplacement(kept.rows, found.rows)
        new = made(schema, merge_states(schema, [of_cells.removed, changed]), never, NOW)
        assert sorted(of_rows.apply(current_table(schema), new.rows)["k"].to_pylist()) == due
