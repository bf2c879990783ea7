"""When one mutation is told as several, and in which order: timestamps, TTLs, kinds of change."""

from __future__ import annotations

from typing import Any

from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    CdcOptions,
    Cell,
    CollectionChange,
    Column,
    MapType,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    TableSchema,
    UserType,
    merge_mutations,
    us_from_timeuuid,
)

T = Microseconds(1_606_390_225_588_947)
SCHEMA = TableSchema(
    "ks",
    "t",
    (
        Column("p", INT, "partition"),
        Column("k", INT, "clustering"),
        Column("s", INT, "static"),
        Column("v", INT),
        Column("m", MapType(INT, INT)),
        Column("n", MapType(INT, INT)),
        Column("u", UserType("ks", "ut", (("a", INT), ("b", INT)))),
    ),
    CdcOptions(enabled=True),
)
SHORT = {"cdc$operation": "op", "cdc$ttl": "ttl", "cdc$deleted_v": "-v", "cdc$deleted_m": "-m", "cdc$deleted_n": "-n"}


def _told(*writes: Mutation) -> list[tuple[int, list[dict[str, Any]]]]:
    """The log mutations of a batch: µs after T, and the rows without the nulls, numbers and times."""
    parts = encode_mutation(merge_mutations(writes))
    for part in parts:
        assert {us_from_timeuuid(row["cdc$time"]) for row in part.rows} == {part.timestamp}
        assert len({row["cdc$time"] for row in part.rows}) == 1
        assert [row["cdc$batch_seq_no"] for row in part.rows] == list(range(len(part.rows)))
        assert [row["cdc$end_of_batch"] for row in part.rows] == [None] * (len(part.rows) - 1) + [True]
    hidden = ("cdc$time", "cdc$batch_seq_no", "cdc$end_of_batch", "p")
    return [
        (
            part.timestamp - T,
            [
                {
                    SHORT.get(name, name): value
                    for name, value in row.items()
                    if value is not None and name not in hidden
                }
                for row in part.rows
            ],
        )
        for part in parts
    ]


def _row(key: int, marker: RowMarker | None = None, **cells: Cell | CollectionChange) -> Mutation:
    return Mutation(SCHEMA, (0,), rows={(key,): RowChange(marker, cells)})


def test_an_insert_with_a_collection_and_a_ttl_is_three_rows() -> None:
    """The tombstone has no TTL, so it cannot be in the row of the marker, and the elements cannot be without it."""
    overwrite = CollectionChange(Microseconds(T - 1), {1: Cell(T, 10, 5)})
    rows = [
        {"op": 2, "ttl": 5, "k": 0, "v": 3},
        {"op": 1, "k": 0, "-m": True, "-n": True},
        {"op": 1, "ttl": 5, "k": 0, "m": ((1, 10),), "n": ((1, 10),)},
    ]
    assert _told(_row(0, RowMarker(T, 5), v=Cell(T, 3, 5), m=overwrite, n=overwrite)) == [(0, rows)]


def test_an_insert_with_a_collection_is_one_row() -> None:
    """Tombstone, elements, marker and cells belong to one time and no TTL."""
    overwrite = CollectionChange(Microseconds(T - 1), {1: Cell(T, 10)})
    row = {"op": 2, "k": 0, "v": 3, "-m": True, "m": ((1, 10),)}
    assert _told(_row(0, RowMarker(T), v=Cell(T, 3), m=overwrite)) == [(0, [row])]


def test_added_elements_are_no_insert() -> None:
    """A batch of INSERT and `m = m + {...}`: there is no INSERT that adds, so the elements are an update."""
    rows = [{"op": 2, "k": 0, "v": 3}, {"op": 1, "k": 0, "m": ((1, 10),)}]
    assert _told(_row(0, RowMarker(T), v=Cell(T, 3)), _row(0, m=CollectionChange(None, {1: Cell(T, 10)}))) == [
        (0, rows)
    ]


def test_deleted_elements_beside_a_marker_need_no_split() -> None:
    """Only live elements do."""
    removed = CollectionChange(None, {1: Cell(T, dead=True)})
    row = {"op": 2, "k": 0, "cdc$deleted_elements_m": (1,)}
    assert _told(_row(0, RowMarker(T)), _row(0, m=removed)) == [(0, [row])]


def test_rows_without_a_split_keep_clustering_order() -> None:
    """Inserts and updates of one time and TTL are told as they lie in the partition."""
    rows = [{"op": 1, "k": 0, "v": 1}, {"op": 2, "k": 1, "v": 2}, {"op": 1, "k": 2, "v": 3}]
    writes = (_row(2, v=Cell(T, 3)), _row(1, RowMarker(T), v=Cell(T, 2)), _row(0, v=Cell(T, 1)))
    assert _told(*writes) == [(0, rows)]


def test_kinds_of_change_have_their_order() -> None:
    """Static cells, inserts, updates (by row, then TTL), row deletions, ranges, the partition."""
    writes = (
        Mutation(SCHEMA, (0,), T),
        Mutation(SCHEMA, (0,), range_tombstones=[RangeTombstone(RangeBound((5,), True), None, T)]),
        Mutation(SCHEMA, (0,), row_tombstones={(2,): T, (1,): T}),
        _row(0, v=Cell(T, 1, 9), m=CollectionChange(None, {1: Cell(T, 10, 5)})),
        _row(3, RowMarker(T)),
        Mutation(SCHEMA, (0,), static={"s": Cell(T, 4)}),
    )
    rows = [
        {"op": 1, "s": 4},
        {"op": 2, "k": 3},
        {"op": 1, "ttl": 5, "k": 0, "m": ((1, 10),)},
        {"op": 1, "ttl": 9, "k": 0, "v": 1},
        {"op": 3, "k": 1},
        {"op": 3, "k": 2},
        {"op": 5, "k": 5},
        {"op": 4},
    ]
    assert _told(*writes) == [(0, rows)]


def _deleted(*keys: int) -> Mutation:
    return Mutation(SCHEMA, (0,), row_tombstones={(key,): T for key in keys})


def test_deletions_in_front_of_other_rows_need_no_split() -> None:
    """As rows are visited in clustering order (cdc/split.cc, should_split_visitor), only a deletion behind one does."""
    update, deletion = {"op": 1, "k": 1, "v": 1}, {"op": 3, "k": 0}
    assert _told(_deleted(0), _row(1, v=Cell(T, 1))) == [(0, [deletion, update])]
    assert _told(_deleted(2), _row(1, v=Cell(T, 1))) == [(0, [update, {"op": 3, "k": 2}])]
    assert _told(_deleted(1), _row(1, v=Cell(T, 1))) == [(0, [update, {"op": 3, "k": 1}])]
    assert _told(_deleted(0, 2), _row(1, v=Cell(T, 1))) == [(0, [update, deletion, {"op": 3, "k": 2}])]
    assert _told(_deleted(0), _row(1, v=Cell(T, 1, 5))) == [(0, [{**update, "ttl": 5}, deletion])]


def test_elements_behind_a_marker_need_a_split() -> None:
    """A marker of any row before them will do, and none behind them (cdc/split.cc, live_collection_cell)."""
    added = CollectionChange(None, {1: Cell(T, 10)})
    first, last = {"op": 2, "k": 0}, {"op": 2, "k": 2}
    update = {"op": 1, "k": 1, "m": ((1, 10),)}
    writes = (_row(0, RowMarker(T)), _row(1, m=added), _row(2, RowMarker(T)))
    assert _told(*writes) == [(0, [first, last, update])]
    assert _told(*writes[1:]) == [(0, [update, last])]


def test_a_touched_collection_without_elements_is_told_beside_others() -> None:
    """`l = l + []` alone leaves no row, and one without columns where the mutation is not split (cdc/split.cc)."""
    nothing = _row(0, m=CollectionChange())
    assert _told(nothing) == []
    assert _told(nothing, _row(1, v=Cell(T, 1))) == [(0, [{"op": 1, "k": 0}, {"op": 1, "k": 1, "v": 1}])]
    assert _told(nothing, _row(1, RowMarker(T, 5), v=Cell(T, 1))) == [
        (0, [{"op": 2, "ttl": 5, "k": 1}, {"op": 1, "k": 1, "v": 1}])
    ]


def test_timestamps_are_apart_and_ascend() -> None:
    """Each has a time and numbers of its own; a tombstone of DELETE shows with what is written a microsecond later."""
    deletion = _row(0, m=CollectionChange(T))
    addition = _row(0, m=CollectionChange(None, {1: Cell(Microseconds(T + 1), 10)}))
    assert _told(deletion, addition) == [(1, [{"op": 1, "k": 0, "-m": True, "m": ((1, 10),)}])]
    assert _told(_row(0, v=Cell(Microseconds(T + 2), 1)), deletion) == [
        (1, [{"op": 1, "k": 0, "-m": True}]),
        (2, [{"op": 1, "k": 0, "v": 1}]),
    ]


def test_of_two_inserts_the_earlier_is_an_update() -> None:
    """A row has one marker, so what the earlier one wrote beside it is left without."""
    writes = (
        _row(0, RowMarker(T), v=Cell(T, 1)),
        _row(0, RowMarker(Microseconds(T + 1)), m=CollectionChange(T, {1: Cell(Microseconds(T + 1), 10)})),
    )
    assert _told(*writes) == [
        (0, [{"op": 1, "k": 0, "v": 1}]),
        (1, [{"op": 2, "k": 0, "-m": True, "m": ((1, 10),)}]),
    ]


def test_a_dead_cell_has_no_ttl() -> None:
    """INSERT ... USING TTL with a null: the null cannot expire."""
    rows = [{"op": 2, "ttl": 5, "k": 0}, {"op": 1, "k": 0, "-v": True}]
    assert _told(_row(0, RowMarker(T, 5), v=Cell(T, dead=True))) == [(0, rows)]


def test_the_fields_of_a_user_type_are_always_shown() -> None:
    """Null where nothing was written, also when all that happened is a deletion; indices of deleted fields."""
    change = CollectionChange(None, {0: Cell(T, 1), 1: Cell(T, dead=True)})
    assert _told(_row(0, u=change)) == [(0, [{"op": 1, "k": 0, "u": (1, None), "cdc$deleted_elements_u": (1,)}])]
    assert _told(_row(0, u=CollectionChange(Microseconds(T - 1)))) == [
        (0, [{"op": 1, "k": 0, "u": (None, None), "cdc$deleted_u": True}])
    ]


def test_a_mutation_that_does_nothing_is_not_told() -> None:
    """No cells, or an empty range."""
    empty = RangeTombstone(RangeBound((5,), True), RangeBound((5,), False), T)
    assert _told(Mutation(SCHEMA, (0,))) == []
    assert _told(Mutation(SCHEMA, (0,), range_tombstones=[empty])) == []


def test_keys_alone() -> None:
    """With delta 'keys' rows, operations and TTLs are as always, and no column tells of a value."""
    schema = TableSchema("ks", "t", SCHEMA.columns, CdcOptions(enabled=True, delta="keys"))
    row = RowChange(
        RowMarker(T, 5), {"v": Cell(T, 3, 5), "u": CollectionChange(Microseconds(T - 1), {0: Cell(T, 1, 5)})}
    )
    (part,) = encode_mutation(Mutation(schema, (0,), rows={(0,): row}, static={"s": Cell(T, 1, 5)}))
    told = [{name: value for name, value in row.items() if value is not None} for row in part.rows]
    assert [(row["cdc$operation"], row.get("cdc$ttl"), row.get("k")) for row in told] == [
        (1, 5, None),
        (2, 5, 0),
        (1, None, 0),
        (1, 5, 0),
    ]
    shown = {"cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl", "cdc$end_of_batch", "p", "k"}
    assert set().union(*told) == shown
