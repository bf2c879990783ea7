"""The property that proves the whole: a log contains exactly what was written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.histories.log_histories import EPOCH_US, histories
from support.oracles.log_model import ModelPartition

from cdc_platform.cdclog import replay_log
from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    Cell,
    CollectionChange,
    Column,
    LivePartition,
    Mutation,
    RowChange,
    RowMarker,
    TableSchema,
    merge_mutations,
)

STREAM = bytes(16)
KEYS = (Column("p", INT, "partition"), Column("c", INT, "clustering"))


def _log_rows(mutations: Iterable[Mutation], identity: bytes) -> list[dict[str, Any]]:
    return [
        row for part in encode_mutation(merge_mutations(mutations), identity=identity) for row in part.in_stream(STREAM)
    ]


def _contents(state: Mutation) -> dict[tuple, tuple]:
    """Return the contents of a replayed partition in the model's form."""
    alive = LivePartition(state)
    contents: dict[tuple, tuple] = {}
    rows = [(None, state.static), *((key, row.cells) for key, row in state.rows.items())]
    for key, columns in rows:
        deleted = state.partition_tombstone if key is None else alive.deleted_at(key)
        deleted = -1 if deleted is None else deleted
        for name, change in columns.items():
            if isinstance(change, CollectionChange):
                if change.tombstone is not None and change.tombstone > deleted:
                    contents["tombstone", key, name] = (change.tombstone,)
                elements = {element: cell for element, cell in change.elements.items() if cell.timestamp > deleted}
                contents |= {("element", key, name, element): _cell_fields(cell) for element, cell in elements.items()}
            elif change.timestamp > deleted:
                contents["cell", key, name] = _cell_fields(change)
    for key, row in state.rows.items():
        if row.marker is not None and row.marker.timestamp > (alive.deleted_at(key) or -1):
            contents["marker", key] = (row.marker.timestamp, row.marker.ttl)
    return contents


def _cell_fields(cell: Any) -> tuple:
    return cell.timestamp, cell.dead, cell.value, cell.ttl


def _model_of(schema: TableSchema) -> ModelPartition:
    types = {column.name: column.type for column in schema.columns}
    return ModelPartition(types, tuple(column.descending for column in schema.clustering_key))


def _every_key(schema: TableSchema, batches: list[list[Mutation]]) -> set[tuple]:
    keys = {key for batch in batches for mutation in batch for key in (*mutation.rows, *mutation.row_tombstones)}
    return keys if schema.clustering_key else {()}


@pytest.mark.long("hundreds of random histories, judged after each statement")
@settings(settings.get_profile("histories"))
@given(histories())
def test_the_replay_equals_the_model_at_every_prefix(history: tuple[TableSchema, list[list[Mutation]]]) -> None:
    """Cells, markers and tombstones of the replayed log equal those of an independent last-write-wins model."""
    schema, batches = history
    event(f"{len(batches)} batches")
    models: dict[bytes, ModelPartition] = {}
    states: dict[bytes, Mutation] = {}
    log: list[dict[str, Any]] = []
    keys = _every_key(schema, batches)
    for number, batch in enumerate(batches):
        partition = schema.partition_bytes(batch[0].partition_key)
        model = models.setdefault(partition, _model_of(schema))
        for mutation in batch:
            model.apply(mutation)
        states[partition] = merge_mutations([*([states[partition]] if partition in states else []), *batch])
        log += _log_rows(batch, bytes([number]))
        replayed = replay_log(schema, log)
        for name, expected in models.items():
            actual = replayed.get(name, Mutation(schema, states[name].partition_key))
            assert _contents(actual) == expected.contents()
            assert actual.partition_tombstone == expected.partition
            assert actual.row_tombstones == expected.rows
            assert {key: LivePartition(actual).deleted_at(key) for key in keys} == {
                key: expected.deleted(key) for key in keys
            }
            assert states[name] == actual


@given(histories(), st.integers(EPOCH_US, EPOCH_US + 10_000_000))
def test_live_rows_equal_the_model(history: tuple[TableSchema, list[list[Mutation]]], now_us: Microseconds) -> None:
    """Rows, static rows and values are equal at any time, including cells that have expired by then."""
    schema, batches = history
    for partition in {batch[0].partition_key for batch in batches}:
        writes = [mutation for batch in batches if batch[0].partition_key == partition for mutation in batch]
        model = _model_of(schema)
        for mutation in writes:
            model.apply(mutation)
        alive = LivePartition(merge_mutations(writes), now_us)
        expected = model.select(now_us)
        static = expected.pop(None, {})
        assert sorted(map(repr, alive.keys())) == sorted(map(repr, expected))
        for key, row in {**expected, None: static}.items():
            columns = schema.statics if key is None else schema.regulars
            for column in columns:
                actual = (alive.static() if key is None else alive.row(key)).get(column.name)
                expected_value = row.get(column.name)
                if column.type.multicell:
                    assert alive.elements(column, key or ()) == (expected_value or {})
                    assert (actual is None) == (expected_value is None)
                else:
                    assert actual == expected_value


@pytest.mark.parametrize(
    ("schema", "user", "service"),
    [
        (TableSchema("ks", "t", (*KEYS, Column("v", INT))), 3, -3),
        (TableSchema("ks", "t", (KEYS[0], Column("v", INT))), 4, -4),
    ],
)
def test_rows_deleted_by_the_ttl_service_are_gone(schema: TableSchema, user: int, service: int) -> None:
    """Expired by a TTL column, operations -3 and -4 delete as 3 and 4 do (test/cqlpy/test_ttl_row.py)."""
    key = (2,) if schema.clustering_key else ()
    written_us, later = Microseconds(EPOCH_US), Microseconds(EPOCH_US + 9)
    written = Mutation(schema, (1,), rows={key: RowChange(RowMarker(written_us), {"v": Cell(written_us, 3)})})
    deletion = Mutation(schema, (1,), row_tombstones={key: later}) if key else Mutation(schema, (1,), later)
    rows = _log_rows([written], b"1") + _log_rows([deletion], b"2")
    assert [row["cdc$operation"] for row in rows] == [2, user]
    rows[1]["cdc$operation"] = service
    (state,) = replay_log(schema, rows).values()
    assert LivePartition(state).selected() == []
