"""The merge of a batch's writes: the last write wins, cell by cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.histories.log_histories import histories

from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    TEXT,
    Cell,
    CollectionChange,
    Column,
    MapType,
    Mutation,
    RowChange,
    RowMarker,
    TableSchema,
    merge_mutations,
)

SCHEMA = TableSchema(
    "ks",
    "t",
    (
        Column("p", INT, "partition"),
        Column("k", INT, "clustering"),
        Column("v", INT),
        Column("t", TEXT),
        Column("m", MapType(INT, INT)),
    ),
)


def _row(marker: RowMarker | None = None, **cells: Cell | CollectionChange) -> Mutation:
    return Mutation(SCHEMA, (0,), rows={(0,): RowChange(marker, cells)})


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (Cell(Microseconds(8), 1), Cell(Microseconds(7), 2)),
        (Cell(Microseconds(8), dead=True), Cell(Microseconds(7), 2)),
        (Cell(Microseconds(8), 2), Cell(Microseconds(7), dead=True)),
        (Cell(Microseconds(7), dead=True), Cell(Microseconds(7), 2)),
        (Cell(Microseconds(7), 2), Cell(Microseconds(7), 1)),
        (Cell(Microseconds(7), -1), Cell(Microseconds(7), 1)),
        (Cell(Microseconds(7), 2, 5), Cell(Microseconds(7), 2)),
        (Cell(Microseconds(7), 2, 9), Cell(Microseconds(7), 2, 5)),
        (Cell(Microseconds(7), 2, 5), Cell(Microseconds(7), 3)),
        (Cell(Microseconds(7), 2, 9), Cell(Microseconds(7), 3, 5)),
        (Cell(Microseconds(7), 3, 5), Cell(Microseconds(7), 2, 5)),
        (Cell(Microseconds(7), dead=True), Cell(Microseconds(7), 3, 5)),
    ],
)
def test_of_two_cells_one_wins(winner: Cell, loser: Cell) -> None:
    """The later, else the dead, the expiring, the longer TTL, the larger bytes (a minus sign is the highest bit)."""
    # The steps of compare_atomic_cell_for_merge in ScyllaDB's mutation/atomic_cell.cc.
    for pair in ((winner, loser), (loser, winner)):
        merged = merge_mutations(_row(v=cell) for cell in pair)
        assert merged.rows[(0,)].cells["v"] == winner
        elements = merge_mutations(_row(m=CollectionChange(None, {4: cell})) for cell in pair)
        assert elements.rows[(0,)].cells["m"] == CollectionChange(None, {4: winner})


def test_a_collection_tombstone_deletes_the_elements_it_covers() -> None:
    """`DELETE m` and `m = m + {1: 1, 2: 2}`: the tombstone deletes elements that are not newer."""
    deletion = _row(m=CollectionChange(Microseconds(7)))
    added = _row(m=CollectionChange(None, {1: Cell(Microseconds(7), 1), 2: Cell(Microseconds(8), 2)}))
    for pair in ((deletion, added), (added, deletion)):
        assert merge_mutations(pair).rows[(0,)].cells["m"] == CollectionChange(
            Microseconds(7), {2: Cell(Microseconds(8), 2)}
        )


def test_a_row_tombstone_leaves_the_cells() -> None:
    """The log has both, and the reader applies their order."""
    merged = merge_mutations(
        [
            _row(RowMarker(Microseconds(7)), v=Cell(Microseconds(7), 1)),
            Mutation(SCHEMA, (0,), row_tombstones={(0,): Microseconds(9)}),
        ]
    )
    assert merged == Mutation(
        SCHEMA,
        (0,),
        None,
        {(0,): Microseconds(9)},
        (),
        {},
        {(0,): RowChange(RowMarker(Microseconds(7)), {"v": Cell(Microseconds(7), 1)})},
    )


def test_the_later_marker_wins() -> None:
    """Two inserts of one row leave one marker, at equal times the one that lives longer."""
    assert merge_mutations([_row(RowMarker(Microseconds(8))), _row(RowMarker(Microseconds(7), 5))]).rows[
        (0,)
    ].marker == RowMarker(Microseconds(8))
    assert merge_mutations([_row(RowMarker(Microseconds(7))), _row(RowMarker(Microseconds(7), 5))]).rows[
        (0,)
    ].marker == RowMarker(Microseconds(7), 5)


@given(histories())
def test_merging_is_a_join(history: tuple[TableSchema, list[list[Mutation]]]) -> None:
    """Order, grouping and repetition of writes do not change the result."""
    for batch in history[1]:
        merged = merge_mutations(batch)
        assert merge_mutations(reversed(batch)) == merged
        assert merge_mutations([batch[0], *batch]) == merged
        assert merge_mutations([merged, merge_mutations(batch[1:] or batch)]) == merged


def test_mutations_of_several_partitions_do_not_merge() -> None:
    """Mutations of two keys, or none at all, are an error of the caller."""
    with pytest.raises(ValueError, match="one partition"):
        merge_mutations([_row(), Mutation(SCHEMA, (1,))])
    with pytest.raises(ValueError, match="nothing"):
        merge_mutations([])
