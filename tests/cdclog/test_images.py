"""Pre-images and post-images: which rows have one, what is in it, and what one timestamp leaves to the next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from support.histories.log_histories import histories
from support.oracles.log_model import ImageModel, ModelPartition, by_element

from cdc_platform.cdclog.encoder import LogMutation, encode_mutation
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    CdcOptions,
    Cell,
    CollectionChange,
    Column,
    MapType,
    Mutation,
    RangeTombstone,
    RowChange,
    RowMarker,
    TableSchema,
    UserType,
    merge_mutations,
)
from cdc_platform.cql.schema import PreimageMode

T = Microseconds(1_606_390_225_588_947)
COLUMNS = (
    Column("p", INT, "partition"),
    Column("k", INT, "clustering"),
    Column("s", INT, "static"),
    Column("v", INT),
    Column("w", INT),
    Column("m", MapType(INT, INT)),
)


def _schema(
    preimage: PreimageMode = "false", postimage: bool = False, columns: tuple[Column, ...] = COLUMNS
) -> TableSchema:
    return TableSchema("ks", "t", columns, CdcOptions(enabled=True, preimage=preimage, postimage=postimage))


def _row(
    schema: TableSchema, key: tuple, marker: RowMarker | None = None, **cells: Cell | CollectionChange
) -> Mutation:
    return Mutation(schema, (0,), rows={key: RowChange(marker, cells)})


def _told(mutation: Mutation, state: Mutation | None, now_us: Microseconds | None = None) -> list[list[dict[str, Any]]]:
    hidden = ("cdc$time", "cdc$batch_seq_no", "cdc$end_of_batch", "p")
    return [
        [
            {name.replace("cdc$", ""): value for name, value in row.items() if value is not None and name not in hidden}
            for row in part.rows
        ]
        for part in encode_mutation(mutation, state, now_us=now_us)
    ]


def _there(schema: TableSchema) -> Mutation:
    return _row(
        schema,
        (0,),
        RowMarker(Microseconds(T - 9)),
        v=Cell(Microseconds(T - 9), 1),
        m=CollectionChange(None, {1: Cell(Microseconds(T - 9), 10)}),
    )


def test_a_preimage_has_the_touched_columns() -> None:
    """What has no value is shown as deleted; it comes before the delta, in one batch with it."""
    schema = _schema("true")
    (rows,) = _told(_row(schema, (0,), v=Cell(T, 2), w=Cell(T, 3)), _there(schema))
    assert rows == [{"operation": 0, "k": 0, "v": 1, "deleted_w": True}, {"operation": 1, "k": 0, "v": 2, "w": 3}]


def test_a_full_preimage_has_all_columns() -> None:
    """So has that of a deleted row, whatever the option."""
    schema = _schema("full")
    before = {"operation": 0, "k": 0, "v": 1, "deleted_w": True, "m": ((1, 10),)}
    assert _told(_row(schema, (0,), v=Cell(T, 2)), _there(schema)) == [[before, {"operation": 1, "k": 0, "v": 2}]]
    for preimage in ("true", "full"):
        schema = _schema(preimage)
        deletion = Mutation(schema, (0,), row_tombstones={(0,): T})
        assert _told(deletion, _there(schema)) == [[before, {"operation": 3, "k": 0}]]


def test_what_was_not_there_has_no_preimage() -> None:
    """Neither a row of an empty partition, nor one that is deleted or has expired."""
    schema = _schema("full")
    write = _row(schema, (0,), v=Cell(T, 2))
    alone = [[{"operation": 1, "k": 0, "v": 2}]]
    assert _told(write, None) == alone
    assert _told(write, _row(schema, (1,), RowMarker(Microseconds(T - 9)))) == alone
    assert _told(write, merge_mutations([_there(schema), Mutation(schema, (0,), Microseconds(T - 5))])) == alone
    expiring = _row(schema, (0,), v=Cell(Microseconds(T - 2_000_000), 1, 1))
    assert _told(write, expiring, now_us=T) == alone
    assert len(_told(write, expiring)[0]) == 2


def test_a_postimage_is_the_whole_row_after() -> None:
    """Without deleted flags; a deleted row has none."""
    schema = _schema(postimage=True)
    after = {"operation": 9, "k": 0, "v": 2, "m": ((1, 10),)}
    assert _told(_row(schema, (0,), v=Cell(T, 2)), _there(schema)) == [[{"operation": 1, "k": 0, "v": 2}, after]]
    assert _told(Mutation(schema, (0,), row_tombstones={(0,): T}), _there(schema)) == [[{"operation": 3, "k": 0}]]


def test_static_rows_have_images_of_their_own() -> None:
    """Before those of clustered rows; the static row is there once a static column has a value."""
    schema = _schema("true", True)
    write = Mutation(schema, (0,), static={"s": Cell(T, 2)}, rows={(0,): RowChange(None, {"v": Cell(T, 2)})})
    deltas = [{"operation": 1, "s": 2}, {"operation": 1, "k": 0, "v": 2}]
    after = [{"operation": 9, "s": 2}, {"operation": 9, "k": 0, "v": 2, "m": ((1, 10),)}]
    row = {"operation": 0, "k": 0, "v": 1}
    assert _told(write, _there(schema)) == [[row, *deltas, *after]]
    before = merge_mutations([_there(schema), Mutation(schema, (0,), static={"s": Cell(Microseconds(T - 9), 1)})])
    assert _told(write, before) == [[{"operation": 0, "s": 1}, row, *deltas, *after]]


def test_ranges_and_partitions_have_no_images() -> None:
    """But what they delete is gone from the images of later timestamps; a partition that is one row has its own."""
    schema = _schema("full", True)
    for deletion, delta in (
        (Mutation(schema, (0,), T), {"operation": 4}),
        (Mutation(schema, (0,), range_tombstones=[RangeTombstone(None, None, T)]), {"operation": 5}),
    ):
        told = _told(merge_mutations([deletion, _row(schema, (0,), v=Cell(Microseconds(T + 1), 2))]), _there(schema))
        assert told[0][0] == delta
        assert all(row["operation"] not in (0, 9) for row in told[0])
        assert told[1] == [{"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2}]
    lone = _schema("true", True, (Column("p", INT, "partition"), Column("v", INT)))
    state = _row(lone, (), RowMarker(Microseconds(T - 9)), v=Cell(Microseconds(T - 9), 1))
    assert _told(Mutation(lone, (0,), T), state) == [[{"operation": 0, "v": 1}, {"operation": 4}]]


def test_one_timestamp_sees_what_the_one_before_did() -> None:
    """The state is carried through a batch of several timestamps."""
    schema = _schema("true", True)
    writes = merge_mutations([_row(schema, (0,), v=Cell(T, 2)), _row(schema, (0,), w=Cell(Microseconds(T + 1), 3))])
    assert _told(writes, _row(schema, (0,), v=Cell(Microseconds(T - 9), 1))) == [
        [{"operation": 0, "k": 0, "v": 1}, {"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2}],
        [
            {"operation": 0, "k": 0, "deleted_w": True},
            {"operation": 1, "k": 0, "w": 3},
            {"operation": 9, "k": 0, "v": 2, "w": 3},
        ],
    ]


def test_a_row_that_was_touched_has_a_postimage_even_if_it_holds_nothing() -> None:
    """Keys alone; also the static row (cdc/log.cc: clustered_row_cells keeps a state, generate_image tells of it)."""
    schema = _schema("true", True)
    delta, after = {"operation": 1, "k": 0, "deleted_v": True}, {"operation": 9, "k": 0}
    assert _told(_row(schema, (0,), v=Cell(T, dead=True)), None) == [[delta, after]]
    static = Mutation(schema, (0,), static={"s": Cell(T, dead=True)})
    assert _told(static, None) == [[{"operation": 1, "deleted_s": True}, {"operation": 9}]]


def test_a_row_that_was_touched_has_preimages_at_later_timestamps() -> None:
    """With every column deleted that the row does not have, though no SELECT would find the row."""
    schema = _schema("true")
    dead = [_row(schema, (0,), v=Cell(T, dead=True)), _row(schema, (0,), w=Cell(Microseconds(T + 1), 3))]
    assert _told(merge_mutations(dead), None)[1] == [
        {"operation": 0, "k": 0, "deleted_w": True},
        {"operation": 1, "k": 0, "w": 3},
    ]


def test_a_column_is_touched_at_one_timestamp_and_shown_at_the_next() -> None:
    """A static column that a batch empties at T and writes at T + 1: the second pre-image says that it is empty."""
    schema = TableSchema(
        "ks", "t", (*COLUMNS, Column("z", INT, "static")), CdcOptions(enabled=True, preimage="true", postimage=True)
    )
    writes = [
        Mutation(schema, (0,), static={"z": Cell(T, dead=True)}),
        Mutation(schema, (0,), static={"s": Cell(Microseconds(T + 1), 2)}),
    ]
    assert _told(merge_mutations(writes), None) == [
        [{"operation": 1, "deleted_z": True}, {"operation": 9}],
        [{"operation": 0, "deleted_s": True}, {"operation": 1, "s": 2}, {"operation": 9, "s": 2}],
    ]


def test_a_late_write_is_in_the_postimage() -> None:
    """State is what was read with the delta over it (cdc/log.cc, process_row_visitor): timestamps are not compared."""
    schema = _schema("true", True)
    before = {"operation": 0, "k": 0, "v": 1}
    assert _told(_row(schema, (0,), v=Cell(Microseconds(T - 99), 2)), _there(schema)) == [
        [before, {"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2, "m": ((1, 10),)}]
    ]
    late = Mutation(schema, (0,), row_tombstones={(0,): Microseconds(T - 99)})
    full = {"operation": 0, "k": 0, "v": 1, "deleted_w": True, "m": ((1, 10),)}
    assert _told(late, _there(schema)) == [[full, {"operation": 3, "k": 0}]]


def test_a_collection_without_its_last_element_is_empty_and_not_null() -> None:
    """cdc/log.cc, merge: the frozen value of no elements; a collection that is deleted, or never was, is null."""
    schema = _schema("true", True)
    removed = _row(schema, (0,), m=CollectionChange(None, {1: Cell(T, dead=True)}))
    deleted = {"operation": 1, "k": 0, "deleted_elements_m": (1,)}
    assert _told(removed, _there(schema)) == [
        [{"operation": 0, "k": 0, "m": ((1, 10),)}, deleted, {"operation": 9, "k": 0, "v": 1, "m": ()}]
    ]
    assert _told(removed, None) == [[deleted, {"operation": 9, "k": 0}]]
    emptied = _row(schema, (0,), m=CollectionChange(Microseconds(T - 1)))
    assert _told(emptied, _there(schema))[0][-1] == {"operation": 9, "k": 0, "v": 1}
    both = _row(schema, (0,), m=CollectionChange(Microseconds(T - 1), {2: Cell(T, 20), 1: Cell(T, dead=True)}))
    assert _told(both, _there(schema))[0][-1] == {"operation": 9, "k": 0, "v": 1, "m": ((2, 20),)}
    only_dead = _row(schema, (0,), m=CollectionChange(Microseconds(T - 1), {1: Cell(T, dead=True)}))
    assert _told(only_dead, _there(schema))[0][-1] == {"operation": 9, "k": 0, "v": 1}


def test_a_collection_that_is_touched_without_elements_has_no_value_after() -> None:
    """`v = 2, m = m + {}`: ScyllaDB's state of the column is lost, that of the table is not (cdc/log.cc)."""
    schema = _schema("true", True)
    write = _row(schema, (0,), v=Cell(T, 2), m=CollectionChange())
    assert _told(write, _there(schema)) == [
        [
            {"operation": 0, "k": 0, "v": 1, "m": ((1, 10),)},
            {"operation": 1, "k": 0, "v": 2},
            {"operation": 9, "k": 0, "v": 2},
        ]
    ]


def test_a_user_type_that_was_written_is_never_null() -> None:
    """Setting it to null leaves a value without fields (cdc/log.cc: its added cells are always there)."""
    schema = _schema("false", True, (*COLUMNS[:2], Column("u", UserType("ks", "ut", (("a", INT), ("b", INT))))))
    state = _row(
        schema, (0,), u=CollectionChange(None, {0: Cell(Microseconds(T - 9), 1), 1: Cell(Microseconds(T - 9), 2)})
    )
    (rows,) = _told(_row(schema, (0,), u=CollectionChange(Microseconds(T - 1))), state)
    assert rows[-1] == {"operation": 9, "k": 0, "u": (None, None)}
    (rows,) = _told(_row(schema, (0,), u=CollectionChange(None, {0: Cell(T, dead=True)})), state)
    assert rows[-1] == {"operation": 9, "k": 0, "u": (None, 2)}


def test_the_static_row_outlives_the_partition_in_images() -> None:
    """A deletion of the partition takes the rows that were read, and not what was read of the static row."""
    schema = _schema("true", True)
    state = merge_mutations([_there(schema), Mutation(schema, (0,), static={"s": Cell(Microseconds(T - 9), 1)})])
    writes = [Mutation(schema, (0,), T), Mutation(schema, (0,), static={"s": Cell(Microseconds(T + 1), 2)})]
    writes.append(_row(schema, (0,), v=Cell(Microseconds(T + 1), 2)))
    assert _told(merge_mutations(writes), state)[1][:2] == [{"operation": 0, "s": 1}, {"operation": 1, "s": 2}]


@given(
    histories(CdcOptions(enabled=True, preimage="full", postimage=True))
    | histories(CdcOptions(enabled=True, preimage="true", postimage=True))
)
def test_images_are_those_of_the_model(history: tuple[TableSchema, list[list[Mutation]]]) -> None:
    """Which rows have images at every timestamp of a batch, and what is in them; deltas are those without images."""
    schema, batches = history
    plain = TableSchema("ks", "t", schema.columns, CdcOptions(enabled=True))
    for partition in {batch[0].partition_key for batch in batches}:
        model = ModelPartition(
            {column.name: column.type for column in schema.columns},
            tuple(column.descending for column in schema.clustering_key),
        )
        state: Mutation | None = None
        for batch in (batch for batch in batches if batch[0].partition_key == partition):
            merged = merge_mutations(batch)
            parts = encode_mutation(merged, state)
            bare = encode_mutation(Mutation(plain, *_fields(merged)))
            assert [_deltas(part.rows) for part in parts] == [_deltas(part.rows) for part in bare]
            images = _model_of_images(schema, model, batch)
            for part in parts:
                _assert_images(schema, images, batch, part)
            for mutation in batch:
                model.apply(mutation)
            state = merged if state is None else merge_mutations([state, merged])


def _fields(mutation: Mutation) -> tuple:
    return (
        mutation.partition_key,
        mutation.partition_tombstone,
        mutation.row_tombstones,
        mutation.range_tombstones,
        mutation.static,
        mutation.rows,
    )


def _deltas(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbered = ("cdc$time", "cdc$batch_seq_no", "cdc$end_of_batch")
    deltas = [row for row in rows if row["cdc$operation"] not in (0, 9)]
    return [{name: value for name, value in row.items() if name not in numbered} for row in deltas]


def _model_of_images(schema: TableSchema, model: ModelPartition, batch: list[Mutation]) -> ImageModel:
    """The rows that the batch names as they were before it."""
    named: set[tuple | None] = {key for mutation in batch for key in (*mutation.rows, *mutation.row_tombstones)}
    if not schema.clustering_key:
        named.add(())
    named |= {None} if any(mutation.static for mutation in batch) else set()
    there = {key: row for key, row in model.select(Microseconds(0)).items() if key in named}
    return ImageModel(model.types, there, None in there)


def _assert_images(schema: TableSchema, images: ImageModel, batch: list[Mutation], part: LogMutation) -> None:
    """Pre-images by what was known, then the deltas one by one, then post-images by what is known."""
    deltas = [row for row in part.rows if row["cdc$operation"] not in (0, 9)]
    touched: dict[tuple | None, set[str]] = {}
    for row in deltas:
        if row["cdc$operation"] in (1, 2):
            touched.setdefault(_key_of(schema, row), set()).update(_columns(schema, row))
        elif row["cdc$operation"] == 3 or (row["cdc$operation"] == 4 and not schema.clustering_key):
            touched[_key_of(schema, row)] = {column.name for column in schema.regulars}
    full = schema.cdc.preimage == "full"
    _assert_shown(schema, images, part, 0, dict.fromkeys(touched) if full else touched)
    for row in deltas:
        _tell(schema, images, batch, part.timestamp, row)
    _assert_shown(schema, images, part, 9, dict.fromkeys(touched))


def _assert_shown(
    schema: TableSchema,
    images: ImageModel,
    part: LogMutation,
    operation: int,
    wanted: dict[tuple | None, set[str]] | dict[tuple | None, None],
) -> None:
    found = {_key_of(schema, row): row for row in part.rows if row["cdc$operation"] == operation}
    order = [key for key in found if key is not None]
    assert order == sorted(order, key=schema.clustering_order)
    expected = {key: image for key in wanted if (image := images.image(key)) is not None}
    assert set(found) == set(expected)
    for key, row in found.items():
        for column in schema.statics if key is None else schema.regulars:
            names = wanted[key]
            there = expected[key].get(column.name) if names is None or column.name in names else None
            gone = there is None and operation == 0 and (names is None or column.name in names)
            assert row[f"cdc$deleted_{column.name}"] == (True if gone else None)
            assert (row[column.name] is None) == (there is None)
            if column.type.multicell:
                assert by_element(column.type, row[column.name]) == (there or {})
            else:
                assert row[column.name] == there


def _tell(schema: TableSchema, images: ImageModel, batch: list[Mutation], timestamp: int, row: dict[str, Any]) -> None:
    operation, known = row["cdc$operation"], [key for key in images.rows if key is not None]
    if operation in (1, 2):
        images.tell(_key_of(schema, row), _columns(schema, row))
    elif operation == 3:
        images.forget([_key_of(schema, row) or ()])
    elif operation == 4:
        images.forget(known)
    else:
        ranges = [each for mutation in batch for each in mutation.range_tombstones]
        hit = {key: [each.timestamp for each in ranges if each.covers(schema, key)] for key in known}
        images.forget([key for key, times in hit.items() if max(times, default=None) == timestamp])


def _key_of(schema: TableSchema, row: dict[str, Any]) -> tuple | None:
    key = tuple(row[column.name] for column in schema.clustering_key)
    return None if None in key else key


def _columns(schema: TableSchema, row: dict[str, Any]) -> dict[str, tuple[Any, bool, tuple]]:
    found = {}
    for column in schema.statics if _key_of(schema, row) is None else schema.regulars:
        value, deleted = row[column.name], bool(row[f"cdc$deleted_{column.name}"])
        gone = row.get(f"cdc$deleted_elements_{column.name}") or ()
        if value is not None or deleted or gone:
            found[column.name] = (value, deleted, gone)
    return found
