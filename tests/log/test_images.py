"""Pre-images and post-images: which rows have one, what is in it, and what one timestamp leaves to the next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from support.histories.log_histories import histories
from support.oracles.log_model import ModelPartition

from cdc_platform.cql.mutation import Cell, CollectionChange, Marker, Mutation, RowChange, merge
from cdc_platform.cql.ranges import RangeTombstone
from cdc_platform.cql.schema import CdcOptions, Column, Images, TableSchema
from cdc_platform.cql.types import INT, MapType
from cdc_platform.log.rows import log_mutations

T = 1_606_390_225_588_947
COLUMNS = (
    Column("p", INT, "partition"),
    Column("k", INT, "clustering"),
    Column("s", INT, "static"),
    Column("v", INT),
    Column("w", INT),
    Column("m", MapType(INT, INT)),
)


def _schema(preimage: Images = "false", postimage: bool = False, columns: tuple[Column, ...] = COLUMNS) -> TableSchema:
    return TableSchema("ks", "t", columns, CdcOptions(enabled=True, preimage=preimage, postimage=postimage))


def _row(schema: TableSchema, key: tuple, marker: Marker | None = None, **cells: Cell | CollectionChange) -> Mutation:
    return Mutation(schema, (0,), rows={key: RowChange(marker, cells)})


def _told(mutation: Mutation, state: Mutation | None, now_us: int | None = None) -> list[list[dict[str, Any]]]:
    hidden = ("cdc$time", "cdc$batch_seq_no", "cdc$end_of_batch", "p")
    return [
        [
            {name.replace("cdc$", ""): value for name, value in row.items() if value is not None and name not in hidden}
            for row in part.rows
        ]
        for part in log_mutations(mutation, state, now_us=now_us)
    ]


def _there(schema: TableSchema) -> Mutation:
    return _row(schema, (0,), Marker(T - 9), v=Cell(T - 9, 1), m=CollectionChange(None, {1: Cell(T - 9, 10)}))


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
    assert _told(write, _row(schema, (1,), Marker(T - 9))) == alone
    assert _told(write, merge([_there(schema), Mutation(schema, (0,), T - 5)])) == alone
    expiring = _row(schema, (0,), v=Cell(T - 2_000_000, 1, 1))
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
    before = merge([_there(schema), Mutation(schema, (0,), static={"s": Cell(T - 9, 1)})])
    assert _told(write, before) == [[{"operation": 0, "s": 1}, row, *deltas, *after]]


def test_ranges_and_partitions_have_no_images() -> None:
    """But what they delete is gone from the images of later timestamps; a partition that is one row has its own."""
    schema = _schema("full", True)
    for deletion, delta in (
        (Mutation(schema, (0,), T), {"operation": 4}),
        (Mutation(schema, (0,), range_tombstones=[RangeTombstone(None, None, T)]), {"operation": 5}),
    ):
        told = _told(merge([deletion, _row(schema, (0,), v=Cell(T + 1, 2))]), _there(schema))
        assert told[0][0] == delta
        assert all(row["operation"] not in (0, 9) for row in told[0])
        assert told[1] == [{"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2}]
    lone = _schema("true", True, (Column("p", INT, "partition"), Column("v", INT)))
    state = _row(lone, (), Marker(T - 9), v=Cell(T - 9, 1))
    assert _told(Mutation(lone, (0,), T), state) == [[{"operation": 0, "v": 1}, {"operation": 4}]]


def test_one_timestamp_sees_what_the_one_before_did() -> None:
    """The state is carried through a batch of several timestamps."""
    schema = _schema("true", True)
    writes = merge([_row(schema, (0,), v=Cell(T, 2)), _row(schema, (0,), w=Cell(T + 1, 3))])
    assert _told(writes, _row(schema, (0,), v=Cell(T - 9, 1))) == [
        [{"operation": 0, "k": 0, "v": 1}, {"operation": 1, "k": 0, "v": 2}, {"operation": 9, "k": 0, "v": 2}],
        [
            {"operation": 0, "k": 0, "deleted_w": True},
            {"operation": 1, "k": 0, "w": 3},
            {"operation": 9, "k": 0, "v": 2, "w": 3},
        ],
    ]


@given(histories(CdcOptions(enabled=True, preimage="full", postimage=True)))
def test_images_are_the_model_before_and_after(history: tuple[TableSchema, list[list[Mutation]]]) -> None:
    """Of a batch's first timestamp the pre-images, of its last the post-images; deltas are those without images."""
    schema, batches = history
    plain = TableSchema("ks", "t", schema.columns, CdcOptions(enabled=True))
    for partition in {batch[0].partition_key for batch in batches}:
        model = ModelPartition(
            {column.name: column.type for column in schema.columns},
            tuple(column.descending for column in schema.clustering_key),
        )
        state: Mutation | None = None
        for batch in (batch for batch in batches if batch[0].partition_key == partition):
            merged = merge(batch)
            parts = log_mutations(merged, state)
            bare = log_mutations(Mutation(plain, *_fields(merged)))
            assert [_deltas(part.rows) for part in parts] == [_deltas(part.rows) for part in bare]
            if parts:
                _assert_images(schema, parts[0].rows, 0, model.select(0))
            for mutation in batch:
                model.apply(mutation)
            if parts:
                _assert_images(schema, parts[-1].rows, 9, model.select(0))
            state = merged if state is None else merge([state, merged])


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


def _assert_images(schema: TableSchema, rows: list[dict[str, Any]], operation: int, expected: dict) -> None:
    for row in (row for row in rows if row["cdc$operation"] == operation):
        key = tuple(row[column.name] for column in schema.clustering_key)
        static = bool(key) and None in key
        values_there = expected[None if static else key]
        for column in schema.statics if static else schema.regulars:
            there = values_there.get(column.name)
            assert (row[column.name] is None) == (there is None)
            assert row[f"cdc$deleted_{column.name}"] == (True if there is None and operation == 0 else None)
            if not column.type.multicell:
                assert row[column.name] == there
