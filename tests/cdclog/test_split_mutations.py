"""The split of one mutation into several, and their order: timestamps, TTLs, kinds of change."""

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


def _log_parts(*writes: Mutation) -> list[tuple[int, list[dict[str, Any]]]]:
    """Return the log mutations of a batch as µs after T, and the rows without nulls, numbers and times."""
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
    """The tombstone has no TTL, so the marker's row cannot contain it, and the elements cannot be without a TTL."""
    overwrite = CollectionChange(Microseconds(T - 1), {1: Cell(T, 10, 5)})
    rows = [
        {"op": 2, "ttl": 5, "k": 0, "v": 3},
        {"op": 1, "k": 0, "-m": True, "-n": True},
        {"op": 1, "ttl": 5, "k": 0, "m": ((1, 10),), "n": ((1, 10),)},
    ]
    assert _log_parts(_row(0, RowMarker(T, 5), v=Cell(T, 3, 5), m=overwrite, n=overwrite)) == [(0, rows)]


def test_an_insert_with_a_collection_is_one_row() -> None:
    """Tombstone, elements, marker and cells have one time and no TTL."""
    overwrite = CollectionChange(Microseconds(T - 1), {1: Cell(T, 10)})
    row = {"op": 2, "k": 0, "v": 3, "-m": True, "m": ((1, 10),)}
    assert _log_parts(_row(0, RowMarker(T), v=Cell(T, 3), m=overwrite)) == [(0, [row])]


def test_added_elements_are_no_insert() -> None:
    """In a batch of INSERT and `m = m + {...}` the elements are an update, since no INSERT adds elements."""
    rows = [{"op": 2, "k": 0, "v": 3}, {"op": 1, "k": 0, "m": ((1, 10),)}]
    assert _log_parts(_row(0, RowMarker(T), v=Cell(T, 3)), _row(0, m=CollectionChange(None, {1: Cell(T, 10)}))) == [
        (0, rows)
    ]


def test_deleted_elements_beside_a_marker_need_no_split() -> None:
    """Only live elements need a split."""
    removed = CollectionChange(None, {1: Cell(T, dead=True)})
    row = {"op": 2, "k": 0, "cdc$deleted_elements_m": (1,)}
    assert _log_parts(_row(0, RowMarker(T)), _row(0, m=removed)) == [(0, [row])]


def test_rows_without_a_split_stay_in_clustering_order() -> None:
    """Inserts and updates of one time and TTL are logged in the order of the partition."""
    rows = [{"op": 1, "k": 0, "v": 1}, {"op": 2, "k": 1, "v": 2}, {"op": 1, "k": 2, "v": 3}]
    writes = (_row(2, v=Cell(T, 3)), _row(1, RowMarker(T), v=Cell(T, 2)), _row(0, v=Cell(T, 1)))
    assert _log_parts(*writes) == [(0, rows)]


def test_kinds_of_change_are_ordered() -> None:
    """The order is static cells, inserts, updates (by row, then TTL), row deletions, ranges, the partition."""
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
    assert _log_parts(*writes) == [(0, rows)]


def _deleted(*keys: int) -> Mutation:
    return Mutation(SCHEMA, (0,), row_tombstones={(key,): T for key in keys})


def test_deletions_before_other_rows_need_no_split() -> None:
    """Rows are visited in clustering order; only a later deletion splits (cdc/split.cc, should_split_visitor)."""
    update, deletion = {"op": 1, "k": 1, "v": 1}, {"op": 3, "k": 0}
    assert _log_parts(_deleted(0), _row(1, v=Cell(T, 1))) == [(0, [deletion, update])]
    assert _log_parts(_deleted(2), _row(1, v=Cell(T, 1))) == [(0, [update, {"op": 3, "k": 2}])]
    assert _log_parts(_deleted(1), _row(1, v=Cell(T, 1))) == [(0, [update, {"op": 3, "k": 1}])]
    assert _log_parts(_deleted(0, 2), _row(1, v=Cell(T, 1))) == [(0, [update, deletion, {"op": 3, "k": 2}])]
    assert _log_parts(_deleted(0), _row(1, v=Cell(T, 1, 5))) == [(0, [{**update, "ttl": 5}, deletion])]


def test_elements_after_a_marker_need_a_split() -> None:
    """An earlier row's marker causes the split, a later one does not (cdc/split.cc, live_collection_cell)."""
    added = CollectionChange(None, {1: Cell(T, 10)})
    first, last = {"op": 2, "k": 0}, {"op": 2, "k": 2}
    update = {"op": 1, "k": 1, "m": ((1, 10),)}
    writes = (_row(0, RowMarker(T)), _row(1, m=added), _row(2, RowMarker(T)))
    assert _log_parts(*writes) == [(0, [first, last, update])]
    assert _log_parts(*writes[1:]) == [(0, [update, last])]


def test_a_collection_written_without_elements_is_logged_beside_others() -> None:
    """`l = l + []` alone leaves no row; beside others it leaves an empty one unless there is a split (cdc/split.cc)."""
    nothing = _row(0, m=CollectionChange())
    assert _log_parts(nothing) == []
    assert _log_parts(nothing, _row(1, v=Cell(T, 1))) == [(0, [{"op": 1, "k": 0}, {"op": 1, "k": 1, "v": 1}])]
    assert _log_parts(nothing, _row(1, RowMarker(T, 5), v=Cell(T, 1))) == [
        (0, [{"op": 2, "ttl": 5, "k": 1}, {"op": 1, "k": 1, "v": 1}])
    ]


def test_timestamps_are_separate_and_ascend() -> None:
    """Each has its own time and numbers; a DELETE's tombstone is logged with writes of the next microsecond."""
    deletion = _row(0, m=CollectionChange(T))
    addition = _row(0, m=CollectionChange(None, {1: Cell(Microseconds(T + 1), 10)}))
    assert _log_parts(deletion, addition) == [(1, [{"op": 1, "k": 0, "-m": True, "m": ((1, 10),)}])]
    assert _log_parts(_row(0, v=Cell(Microseconds(T + 2), 1)), deletion) == [
        (1, [{"op": 1, "k": 0, "-m": True}]),
        (2, [{"op": 1, "k": 0, "v": 1}]),
    ]


def test_the_earlier_of_two_inserts_is_an_update() -> None:
    """A row has one marker, so the cells of the earlier insert are logged without one."""
    writes = (
        _row(0, RowMarker(T), v=Cell(T, 1)),
        _row(0, RowMarker(Microseconds(T + 1)), m=CollectionChange(T, {1: Cell(Microseconds(T + 1), 10)})),
    )
    assert _log_parts(*writes) == [
        (0, [{"op": 1, "k": 0, "v": 1}]),
        (1, [{"op": 2, "k": 0, "-m": True, "m": ((1, 10),)}]),
    ]


def test_a_dead_cell_has_no_ttl() -> None:
    """With INSERT ... USING TTL, a null cannot expire."""
    rows = [{"op": 2, "ttl": 5, "k": 0}, {"op": 1, "k": 0, "-v": True}]
    assert _log_parts(_row(0, RowMarker(T, 5), v=Cell(T, dead=True))) == [(0, rows)]


def test_the_fields_of_a_user_type_are_always_present() -> None:
    """A field that was not written is null, even in a deletion; deleted fields are logged by index."""
    change = CollectionChange(None, {0: Cell(T, 1), 1: Cell(T, dead=True)})
    assert _log_parts(_row(0, u=change)) == [(0, [{"op": 1, "k": 0, "u": (1, None), "cdc$deleted_elements_u": (1,)}])]
    assert _log_parts(_row(0, u=CollectionChange(Microseconds(T - 1)))) == [
        (0, [{"op": 1, "k": 0, "u": (None, None), "cdc$deleted_u": True}])
    ]


def test_a_mutation_without_effect_is_not_logged() -> None:
    """Without cells, or with an empty range, there is no log row."""
    empty = RangeTombstone(RangeBound((5,), True), RangeBound((5,), False), T)
    assert _log_parts(Mutation(SCHEMA, (0,))) == []
    assert _log_parts(Mutation(SCHEMA, (0,), range_tombstones=[empty])) == []


def test_keys_alone() -> None:
    """With delta 'keys' rows, operations and TTLs are unchanged, and no column has a value."""
    schema = TableSchema("ks", "t", SCHEMA.columns, CdcOptions(enabled=True, delta="keys"))
    row = RowChange(
        RowMarker(T, 5), {"v": Cell(T, 3, 5), "u": CollectionChange(Microseconds(T - 1), {0: Cell(T, 1, 5)})}
    )
    (part,) = encode_mutation(Mutation(schema, (0,), rows={(0,): row}, static={"s": Cell(T, 1, 5)}))
    visible_rows = [{name: value for name, value in row.items() if value is not None} for row in part.rows]
    assert [(row["cdc$operation"], row.get("cdc$ttl"), row.get("k")) for row in visible_rows] == [
        (1, 5, None),
        (2, 5, 0),
        (1, None, 0),
        (1, 5, 0),
    ]
    visible_names = {"cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl", "cdc$end_of_batch", "p", "k"}
    assert set().union(*visible_rows) == visible_names
