"""The rows that a SELECT finds: existence by marker or cell, deletions, expiry, and static rows."""

from __future__ import annotations

from uuid import UUID

from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    Cell,
    CollectionChange,
    Column,
    ListType,
    LivePartition,
    MapType,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    UserType,
)

SECOND = 1_000_000
FIRST, LATER = UUID("00000000-1dd2-11b2-8080-000000000000"), UUID("00000000-1dd2-11b2-8000-000000000000")
SCHEMA = TableSchema(
    "ks",
    "t",
    (
        Column("p", INT, "partition"),
        Column("k", INT, "clustering", descending=True),
        Column("s", INT, "static"),
        Column("v", INT),
        Column("l", ListType(INT)),
        Column("m", MapType(INT, INT)),
        Column("e", SetType(INT)),
        Column("u", UserType("ks", "ut", (("a", INT), ("b", INT)))),
    ),
)


def test_a_cell_expires_its_ttl_after_its_timestamp() -> None:
    """The cell exists until its last microsecond; without a TTL it does not expire."""
    state = Mutation(
        SCHEMA,
        (0,),
        rows={
            (1,): RowChange(None, {"v": Cell(Microseconds(7), 3, 5)}),
            (2,): RowChange(RowMarker(Microseconds(7), 5)),
        },
    )
    assert list(LivePartition(state, Microseconds(7 + 5 * SECOND - 1)).keys()) == [(2,), (1,)]
    assert list(LivePartition(state, Microseconds(7 + 5 * SECOND)).keys()) == []
    assert list(LivePartition(state).keys()) == [(2,), (1,)]
    without_ttl = Mutation(SCHEMA, (0,), rows={(1,): RowChange(RowMarker(Microseconds(7)))})
    assert LivePartition(without_ttl, Microseconds(2**62)).has_row((1,))


def test_values_equal_the_log_and_lists_equal_a_select() -> None:
    """Elements are in key order (timeuuids by signed bytes), missing fields null, and dead elements omitted."""
    cells = {
        "l": CollectionChange(None, {LATER: Cell(Microseconds(7), 2), FIRST: Cell(Microseconds(7), 1)}),
        "m": CollectionChange(
            Microseconds(6),
            {
                2: Cell(Microseconds(7), 20),
                1: Cell(Microseconds(7), 10),
                3: Cell(Microseconds(7), dead=True),
                4: Cell(Microseconds(6), 40),
            },
        ),
        "e": CollectionChange(None, {2: Cell(Microseconds(7)), -1: Cell(Microseconds(7))}),
        "u": CollectionChange(None, {1: Cell(Microseconds(7), 5)}),
    }
    alive = LivePartition(Mutation(SCHEMA, (0,), rows={(1,): RowChange(None, cells)}))
    shared = {"m": ((1, 10), (2, 20)), "e": (-1, 2), "u": (None, 5)}
    assert alive.row((1,)) == {"l": ((FIRST, 1), (LATER, 2)), **shared}
    assert alive.selected() == [{"p": 0, "k": 1, "s": None, "v": None, "l": (1, 2), **shared}]
    assert list(alive.elements(SCHEMA.column("l"), (1,)).items()) == [(FIRST, 1), (LATER, 2)]
    assert alive.elements(SCHEMA.column("m"), (9,)) == {}


def test_static_columns_are_in_every_row_or_stand_alone() -> None:
    """As in the document on basic operations; a static row without a value is not a row."""
    static = {"s": Cell(Microseconds(7), 4)}
    rows = {
        (1,): RowChange(RowMarker(Microseconds(7))),
        (2,): RowChange(None, {"v": Cell(Microseconds(7), 3)}),
        (3,): RowChange(None, {"v": Cell(Microseconds(7), dead=True)}),
    }
    nulls = dict.fromkeys(("v", "l", "m", "e", "u"))
    assert LivePartition(Mutation(SCHEMA, (0,), static=static, rows=rows)).selected() == [
        {"p": 0, "k": 2, "s": 4, **nulls, "v": 3},
        {"p": 0, "k": 1, "s": 4, **nulls},
    ]
    assert LivePartition(Mutation(SCHEMA, (0,), static=static)).selected() == [{"p": 0, "k": None, "s": 4, **nulls}]
    assert LivePartition(Mutation(SCHEMA, (0,), static={"s": Cell(Microseconds(7), dead=True)})).selected() == []


def test_deletions_cover_older_cells() -> None:
    """Row, range and partition deletions; only the partition's deletes a static row."""
    rows = {(key,): RowChange(RowMarker(Microseconds(7)), {"v": Cell(Microseconds(8), 3)}) for key in range(4)}
    range_tombstones = [RangeTombstone(RangeBound((2,), True), RangeBound((1,), False), Microseconds(8))]
    state = Mutation(
        SCHEMA,
        (0,),
        None,
        {(3,): Microseconds(8), (0,): Microseconds(7)},
        range_tombstones,
        {"s": Cell(Microseconds(8), 1)},
        rows,
    )
    assert list(LivePartition(state).keys()) == [(1,), (0,)]
    assert [LivePartition(state).deleted_at((key,)) for key in range(4)] == [7, None, 8, 8]
    deleted_partition = Mutation(SCHEMA, (0,), Microseconds(8), static={"s": Cell(Microseconds(8), 1)}, rows=rows)
    assert LivePartition(deleted_partition).selected() == []
