"""Pre-images and post-images: which rows have one, its contents, and how one timestamp affects the next."""

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


def _visible_values(
    mutation: Mutation, state: Mutation | None, now_us: Microseconds | None = None
) -> list[list[dict[str, Any]]]:
    hidden = ("cdc$time", "cdc$batch_seq_no", "cdc$end_of_batch", "p")
    return [
        [
            {name.replace("cdc$", ""): value for name, value in row.items() if value is not None and name not in hidden}
            for row in part.rows
        ]
        for part in encode_mutation(mutation, state, now_us=now_us)
    ]


def _existing_row(schema: TableSchema) -> Mutation:
    return _row(
        schema,
        (0,),
        RowMarker(Microseconds(T - 9)),
        v=Cell(Microseconds(T - 9), 1),
        m=CollectionChange(None, {1: Cell(Microseconds(T - 9), 10)}),
    )


def test_a_preimage_has_the_written_columns() -> None:
    """A column without a value appears as deleted; the pre-image precedes the delta in the same batch."""
    schema = _schema("true")
    (rows,) = _visible_values(_row(schema, (0,), v=Cell(T, 2), w=Cell(T, 3)), _existing_row(schema))
    assert rows == [{"operation": 0, "k": 0, "v": 1, "deleted_w": True}, {"operation": 1, "k": 0, "v": 2, "w": 3}]


def test_a_full_preimage_has_all_columns() -> None:
    """So has the pre-image of a deleted row, whatever the option."""
    schema = _schema("full")
    before = {"operation": 0, "k": 0, "v": 1, "deleted_w": True, "m": ((1, 10),)}
    assert _visible_values(_row(schema, (0,), v=Cell(T, 2)), _existing_row(schema)) == [
        [before, {"operation": 1, "k": 0, "v": 2}]
    ]
    for preimage in ("true", "full"):
        schema = _schema(preimage)
        deletion = Mutation(schema, (0,), row_tombstones={(0,): T})
        assert _visible_values(deletion, _existing_row(schema)) == [[before, {"operation": 3, "k": 0}]]


def test_a_missing_row_has_no_preimage() -> None:
    """A row of an empty partition, a deleted row and an expired one have no pre-image."""
    schema = _schema("full")
    write = _row(schema, (0,), v=Cell(T, 2))
    alone = [[{"operation": 1, "k": 0, "v": 2}]]
    assert _visible_values(write, None) == alone
    assert _visible_values(write, _row(schema, (1,), RowMarker(Microseconds(T - 9)))) == alone
    assert (
        _visible_values(write, merge_mutations([_existing_row(schema), Mutation(schema, (0,), Microseconds(T - 5))]))
        == alone
    )
    expiring = _row(schema, (0,), v=Cell(Microseconds(T - 2_000_000), 1, 1))
    assert _visible_values(write, expiring, now_us=T) == alone
    assert len(_visible_values(write, expiring)[0]) == 2


def test_a_postimage_is_the_whole_new_row() -> None:
    """It has no deleted flags; a deleted row has no post-image."""
    schema = _schema(postimage=True)
    after = {"operation": 9, "k": 0, "v": 2, "m": ((1, 10),)}
    assert _visible_values(_row(schema, (0,), v=Cell(T, 2)), _existing_row(schema)) == [
        [{"operation": 1, "k": 0, "v": 2}, after]
    ]
    assert _visible_values(Mutation(schema, (0,), row_tombstones={(0,): T}), _existing_row(schema)) == [
        [{"operation": 3, "k": 0}]
    ]


def test_static_rows_have_their_own_images() -> None:
    """They precede those of clustered rows; a static row exists once a static column has a value."""
    schema = _schema("true", True)
    write = Mutation(schema, (0,), static={"s": Cell(T, 2)}, rows={(0,): RowChange(None, {"v": Cell(T, 2)})})
    deltas = [{"operation": 1, "s": 2}, {"operation": 1, "k": 0, "v": 2}]
    after = [{"operation": 9, "s": 2}, {"operation": 9, "k": 0, "v": 2, "m": ((1, 10),)}]
    row = {"operation": 0, "k": 0, "v": 1}
    assert _visible_values(write, _existing_row(schema)) == [[row, *deltas, *after]]
    before = merge_mutations(
        [_existing_row(schema), Mutation(schema, (0,), static={"s": Cell(Microseconds(T - 9), 1)})]
    )
    assert _visible_values(write, before) == [[{"operation": 0, "s": 1}, row, *deltas, *after]]


def test_ranges_and_partitions_have_no_images() -> None:
    """Images of later timestamps omit what they delete; a partition that is a single row has its own image."""
    schema = _schema("full", True)
    for deletion, delta in (
        (Mutation(schema, (0,), T), {"operation": 4}),
        (Mutation(schema, (0,), range_tombstones=[RangeTombstone(None, None, T)]), {"operation": 5}),
    ):
        parts = _visible_values(
            merge_mutations([deletion, _row(schema, (0,), v=Cell(Microseconds(T + 1), 2))]), _existing_row(schema)
        )
        assert parts[0][0] == delta
        assert all(row["operation"] not in (0, 9) for row in parts[0])
        assert parts[1] == [{"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2}]
    single_row = _schema("true", True, (Column("p", INT, "partition"), Column("v", INT)))
    state = _row(single_row, (), RowMarker(Microseconds(T - 9)), v=Cell(Microseconds(T - 9), 1))
    assert _visible_values(Mutation(single_row, (0,), T), state) == [[{"operation": 0, "v": 1}, {"operation": 4}]]


def test_a_timestamp_sees_the_effects_of_the_one_before() -> None:
    """The state is carried through a batch of several timestamps."""
    schema = _schema("true", True)
    writes = merge_mutations([_row(schema, (0,), v=Cell(T, 2)), _row(schema, (0,), w=Cell(Microseconds(T + 1), 3))])
    assert _visible_values(writes, _row(schema, (0,), v=Cell(Microseconds(T - 9), 1))) == [
        [{"operation": 0, "k": 0, "v": 1}, {"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2}],
        [
            {"operation": 0, "k": 0, "deleted_w": True},
            {"operation": 1, "k": 0, "w": 3},
            {"operation": 9, "k": 0, "v": 2, "w": 3},
        ],
    ]


def test_a_written_row_has_a_postimage_even_if_it_is_empty() -> None:
    """It has only keys; so has the static row (cdc/log.cc: clustered_row_cells, generate_image)."""
    schema = _schema("true", True)
    delta, after = {"operation": 1, "k": 0, "deleted_v": True}, {"operation": 9, "k": 0}
    assert _visible_values(_row(schema, (0,), v=Cell(T, dead=True)), None) == [[delta, after]]
    static = Mutation(schema, (0,), static={"s": Cell(T, dead=True)})
    assert _visible_values(static, None) == [[{"operation": 1, "deleted_s": True}, {"operation": 9}]]


def test_a_written_row_has_preimages_at_later_timestamps() -> None:
    """The pre-image has every missing column as deleted, although no SELECT would find the row."""
    schema = _schema("true")
    dead = [_row(schema, (0,), v=Cell(T, dead=True)), _row(schema, (0,), w=Cell(Microseconds(T + 1), 3))]
    assert _visible_values(merge_mutations(dead), None)[1] == [
        {"operation": 0, "k": 0, "deleted_w": True},
        {"operation": 1, "k": 0, "w": 3},
    ]


def test_a_static_row_written_at_one_timestamp_has_a_preimage_at_the_next() -> None:
    """A batch empties one static column at T and writes another at T + 1, whose pre-image shows it as empty."""
    schema = TableSchema(
        "ks", "t", (*COLUMNS, Column("z", INT, "static")), CdcOptions(enabled=True, preimage="true", postimage=True)
    )
    writes = [
        Mutation(schema, (0,), static={"z": Cell(T, dead=True)}),
        Mutation(schema, (0,), static={"s": Cell(Microseconds(T + 1), 2)}),
    ]
    assert _visible_values(merge_mutations(writes), None) == [
        [{"operation": 1, "deleted_z": True}, {"operation": 9}],
        [{"operation": 0, "deleted_s": True}, {"operation": 1, "s": 2}, {"operation": 9, "s": 2}],
    ]


def test_a_late_write_is_in_the_postimage() -> None:
    """The delta is applied to the stored state without comparing timestamps (cdc/log.cc, process_row_visitor)."""
    schema = _schema("true", True)
    before = {"operation": 0, "k": 0, "v": 1}
    assert _visible_values(_row(schema, (0,), v=Cell(Microseconds(T - 99), 2)), _existing_row(schema)) == [
        [before, {"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2, "m": ((1, 10),)}]
    ]
    late = Mutation(schema, (0,), row_tombstones={(0,): Microseconds(T - 99)})
    full = {"operation": 0, "k": 0, "v": 1, "deleted_w": True, "m": ((1, 10),)}
    assert _visible_values(late, _existing_row(schema)) == [[full, {"operation": 3, "k": 0}]]


def test_a_collection_without_its_last_element_is_empty_and_not_null() -> None:
    """It is the frozen value without elements (cdc/log.cc, merge); a deleted or never written collection is null."""
    schema = _schema("true", True)
    removed = _row(schema, (0,), m=CollectionChange(None, {1: Cell(T, dead=True)}))
    deleted = {"operation": 1, "k": 0, "deleted_elements_m": (1,)}
    assert _visible_values(removed, _existing_row(schema)) == [
        [{"operation": 0, "k": 0, "m": ((1, 10),)}, deleted, {"operation": 9, "k": 0, "v": 1, "m": ()}]
    ]
    assert _visible_values(removed, None) == [[deleted, {"operation": 9, "k": 0}]]
    emptied = _row(schema, (0,), m=CollectionChange(Microseconds(T - 1)))
    assert _visible_values(emptied, _existing_row(schema))[0][-1] == {"operation": 9, "k": 0, "v": 1}
    both = _row(schema, (0,), m=CollectionChange(Microseconds(T - 1), {2: Cell(T, 20), 1: Cell(T, dead=True)}))
    assert _visible_values(both, _existing_row(schema))[0][-1] == {"operation": 9, "k": 0, "v": 1, "m": ((2, 20),)}
    only_dead = _row(schema, (0,), m=CollectionChange(Microseconds(T - 1), {1: Cell(T, dead=True)}))
    assert _visible_values(only_dead, _existing_row(schema))[0][-1] == {"operation": 9, "k": 0, "v": 1}


def test_a_collection_written_without_elements_has_no_value_after() -> None:
    """`v = 2, m = m + {}`: ScyllaDB loses the column's state, but not the value in the table (cdc/log.cc)."""
    schema = _schema("true", True)
    write = _row(schema, (0,), v=Cell(T, 2), m=CollectionChange())
    assert _visible_values(write, _existing_row(schema)) == [
        [
            {"operation": 0, "k": 0, "v": 1, "m": ((1, 10),)},
            {"operation": 1, "k": 0, "v": 2},
            {"operation": 9, "k": 0, "v": 2},
        ]
    ]


def test_a_written_user_type_is_never_null() -> None:
    """Setting it to null leaves a value without fields, since its added cells always exist (cdc/log.cc)."""
    schema = _schema("false", True, (*COLUMNS[:2], Column("u", UserType("ks", "ut", (("a", INT), ("b", INT))))))
    state = _row(
        schema, (0,), u=CollectionChange(None, {0: Cell(Microseconds(T - 9), 1), 1: Cell(Microseconds(T - 9), 2)})
    )
    (rows,) = _visible_values(_row(schema, (0,), u=CollectionChange(Microseconds(T - 1))), state)
    assert rows[-1] == {"operation": 9, "k": 0, "u": (None, None)}
    (rows,) = _visible_values(_row(schema, (0,), u=CollectionChange(None, {0: Cell(T, dead=True)})), state)
    assert rows[-1] == {"operation": 9, "k": 0, "u": (None, 2)}


def test_the_static_row_outlives_the_partition_in_images() -> None:
    """Deleting the partition removes the rows that were read, but not the static row that was read."""
    schema = _schema("true", True)
    state = merge_mutations([_existing_row(schema), Mutation(schema, (0,), static={"s": Cell(Microseconds(T - 9), 1)})])
    writes = [Mutation(schema, (0,), T), Mutation(schema, (0,), static={"s": Cell(Microseconds(T + 1), 2)})]
    writes.append(_row(schema, (0,), v=Cell(Microseconds(T + 1), 2)))
    assert _visible_values(merge_mutations(writes), state)[1][:2] == [
        {"operation": 0, "s": 1},
        {"operation": 1, "s": 2},
    ]


@given(
    histories(CdcOptions(enabled=True, preimage="full", postimage=True))
    | histories(CdcOptions(enabled=True, preimage="true", postimage=True))
)
def test_images_are_those_of_the_model(history: tuple[TableSchema, list[list[Mutation]]]) -> None:
    """At every timestamp the same rows have the same images; deltas equal those without images."""
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
    """Return the rows that the batch names, in their state before it."""
    keys: set[tuple | None] = {key for mutation in batch for key in (*mutation.rows, *mutation.row_tombstones)}
    if not schema.clustering_key:
        keys.add(())
    keys |= {None} if any(mutation.static for mutation in batch) else set()
    existing = {key: row for key, row in model.select(Microseconds(0)).items() if key in keys}
    return ImageModel(model.types, existing, None in existing)


def _assert_images(schema: TableSchema, images: ImageModel, batch: list[Mutation], part: LogMutation) -> None:
    """Assert the images of a log mutation.

    Pre-images show the earlier state; then the deltas apply one by one, and post-images show the new state.
    """
    deltas = [row for row in part.rows if row["cdc$operation"] not in (0, 9)]
    touched: dict[tuple | None, set[str]] = {}
    for row in deltas:
        if row["cdc$operation"] in (1, 2):
            touched.setdefault(_clustering_key(schema, row), set()).update(_columns(schema, row))
        elif row["cdc$operation"] == 3 or (row["cdc$operation"] == 4 and not schema.clustering_key):
            touched[_clustering_key(schema, row)] = {column.name for column in schema.regulars}
    full = schema.cdc.preimage == "full"
    _assert_image_rows(schema, images, part, 0, dict.fromkeys(touched) if full else touched)
    for row in deltas:
        _apply_row(schema, images, batch, part.timestamp, row)
    _assert_image_rows(schema, images, part, 9, dict.fromkeys(touched))


def _assert_image_rows(
    schema: TableSchema,
    images: ImageModel,
    part: LogMutation,
    operation: int,
    wanted: dict[tuple | None, set[str]] | dict[tuple | None, None],
) -> None:
    by_key = {_clustering_key(schema, row): row for row in part.rows if row["cdc$operation"] == operation}
    order = [key for key in by_key if key is not None]
    assert order == sorted(order, key=schema.clustering_order)
    expected = {key: image for key in wanted if (image := images.image(key)) is not None}
    assert set(by_key) == set(expected)
    for key, row in by_key.items():
        for column in schema.statics if key is None else schema.regulars:
            names = wanted[key]
            value = expected[key].get(column.name) if names is None or column.name in names else None
            is_deleted = value is None and operation == 0 and (names is None or column.name in names)
            assert row[f"cdc$deleted_{column.name}"] == (True if is_deleted else None)
            assert (row[column.name] is None) == (value is None)
            if column.type.multicell:
                assert by_element(column.type, row[column.name]) == (value or {})
            else:
                assert row[column.name] == value


def _apply_row(
    schema: TableSchema, images: ImageModel, batch: list[Mutation], timestamp: int, row: dict[str, Any]
) -> None:
    operation, keys = row["cdc$operation"], [key for key in images.rows if key is not None]
    if operation in (1, 2):
        images.tell(_clustering_key(schema, row), _columns(schema, row))
    elif operation == 3:
        images.forget([_clustering_key(schema, row) or ()])
    elif operation == 4:
        images.forget(keys)
    else:
        ranges = [tombstone for mutation in batch for tombstone in mutation.range_tombstones]
        times_by_key = {
            key: [tombstone.timestamp for tombstone in ranges if tombstone.covers(schema, key)] for key in keys
        }
        images.forget([key for key, times in times_by_key.items() if max(times, default=None) == timestamp])


def _clustering_key(schema: TableSchema, row: dict[str, Any]) -> tuple | None:
    key = tuple(row[column.name] for column in schema.clustering_key)
    return None if None in key else key


def _columns(schema: TableSchema, row: dict[str, Any]) -> dict[str, tuple[Any, bool, tuple]]:
    written = {}
    for column in schema.statics if _clustering_key(schema, row) is None else schema.regulars:
        value, deleted = row[column.name], bool(row[f"cdc$deleted_{column.name}"])
        removed = row.get(f"cdc$deleted_elements_{column.name}") or ()
        if value is not None or deleted or removed:
            written[column.name] = (value, deleted, removed)
    return written
