"""The form of a table's state: merging in parts equals merging at once, and equals merging single mutations."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.histories.log_histories import EPOCH_US, histories

from cdc_platform.cdclog import StateRowKind, merge_states, purge_state, select_with_details, state_from_log
from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.cdclog.state.model import empty_state
from cdc_platform.cdclog.state.mutations import mutations_from_state, state_from_mutations
from cdc_platform.cdclog.state.select import select_rows
from cdc_platform.cdclog.values import log_rows_to_arrow, to_canonical_values
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    DECIMAL,
    INT,
    BaseTable,
    CdcOptions,
    Cell,
    CollectionChange,
    Column,
    MapType,
    Mutation,
    RowChange,
    TableSchema,
    merge_mutations,
)

History = tuple[TableSchema, list[list[Mutation]]]
SEED = st.integers(0, 2**32).map(random.Random)
NOW = st.none() | st.integers(EPOCH_US + 5_000_000, EPOCH_US + 9_000_010)


def sorted_rows(state: pa.Table) -> list[str]:
    """Return the rows of a state in an order that depends on the rows alone."""
    return sorted(map(repr, state.to_pylist()))


def all_mutations(history: History) -> list[Mutation]:
    """Return every mutation of a history."""
    return [mutation for batch in history[1] for mutation in batch]


def merge_partitions(mutations: list[Mutation]) -> dict[bytes, Mutation]:
    """Return the merged mutations of each partition, merged one by one."""
    by_key: dict[bytes, list[Mutation]] = {}
    for mutation in mutations:
        by_key.setdefault(mutation.schema.partition_bytes(mutation.partition_key), []).append(mutation)
    return {key: merge_mutations(partition_mutations) for key, partition_mutations in by_key.items()}


@given(histories(), SEED)
def test_parts_of_a_history_merge_into_its_state(history: History, chance: random.Random) -> None:
    """Merging states is associative, commutative and idempotent."""
    schema, mutations = history[0], all_mutations(history)
    whole = merge_states(schema, [state_from_mutations(mutations)])
    states = [state_from_mutations([mutation]) for mutation in mutations] + [
        state_from_mutations([chance.choice(mutations)])
    ]
    while len(states) > 1:
        chance.shuffle(states)
        count = chance.randint(1, min(3, len(states)))
        states = [merge_states(schema, states[:count]), *states[count:]]
    assert sorted_rows(merge_states(schema, states)) == sorted_rows(whole)
    assert sorted_rows(merge_states(schema, [whole, whole, empty_state()])) == sorted_rows(whole)


@given(histories())
def test_a_state_is_what_the_mutations_come_to(history: History) -> None:
    """Cells, markers and tombstones equal those of merging single partitions, and are decoded to the same mutations."""
    schema, mutations = history[0], all_mutations(history)
    whole = merge_states(schema, [state_from_mutations(mutations)])
    expected = merge_partitions(mutations)
    assert sorted_rows(whole) == sorted_rows(state_from_mutations(expected.values()))
    assert sorted_rows(state_from_mutations(mutations_from_state(schema, whole).values())) == sorted_rows(whole)


def log_rows(history: History) -> list[dict[str, Any]]:
    """Return the log rows of a history, without images."""
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(history[1]):
        for part in encode_mutation(merge_mutations(batch), identity=number.to_bytes(4, "big")):
            rows += part.in_stream(bytes(16))
    return rows


@given(histories(), SEED)
def test_a_log_tells_of_the_state(history: History, chance: random.Random) -> None:
    """Log rows in any order give the state that the merged batches have left."""
    schema, rows = history[0], log_rows(history)
    chance.shuffle(rows)
    batches = [merge_mutations(batch) for batch in history[1]]
    assert sorted_rows(merge_states(schema, [state_from_log(schema, log_rows_to_arrow(schema, rows))])) == sorted_rows(
        merge_states(schema, [state_from_mutations(batches)])
    )


@given(histories(), NOW)
def test_a_state_shows_what_select_finds(history: History, now_us: Microseconds | None) -> None:
    """The rows, in clustering order, are those of each partition by itself."""
    schema, mutations = history[0], all_mutations(history)
    table = select_rows(schema, merge_states(schema, [state_from_mutations(mutations)]), now_us)
    columns = [to_canonical_values(column.type, table[column.name]) for column in schema.selected]
    actual = [
        {column.name: column.type.json(value) for column, value in zip(schema.selected, row, strict=True)}
        for row in zip(*columns, strict=True)
    ]
    base = BaseTable(schema, merge_partitions(mutations))
    expected = (base if now_us is None else base.without_expired(now_us)).rows()
    assert by_partition(schema, actual) == by_partition(schema, expected)


@settings(max_examples=examples(50))
@given(histories(), SEED, NOW)
def test_purged_tombstones_change_no_later_read(
    history: History, chance: random.Random, now_us: Microseconds | None
) -> None:
    """Later writes give the same rows if they are younger than the safe time, and no tombstone up to it remains."""
    schema, now = history[0], now_us or Microseconds(EPOCH_US)
    states = [state_from_mutations([mutation]) for mutation in all_mutations(history)]
    times = sorted(time for state in states for time in state["timestamp"].to_pylist())
    safe_us = Microseconds(chance.choice(times or [EPOCH_US]))
    first, later = [], []
    for state in states:
        is_late = min(state["timestamp"].to_pylist(), default=safe_us) > safe_us and chance.random() < 0.5
        (later if is_late else first).append(state)
    whole = merge_states(schema, first)
    purged = purge_state(whole, select_with_details(schema, whole), safe_us, now)
    old_rows = [row for row in purged.to_pylist() if row["timestamp"] <= safe_us]
    assert not [row for row in old_rows if row["dead"] or row["kind"] not in (StateRowKind.MARKER, StateRowKind.CELL)]
    assert select_rows(schema, purged, now).equals(select_rows(schema, merge_states(schema, first), now))
    whole = merge_states(schema, states)
    chance.shuffle(later)
    assert select_rows(schema, merge_states(schema, [*later, purged]), now).equals(select_rows(schema, whole, now))


def test_one_key_in_two_forms_is_one_row() -> None:
    """1.0 and 1.00 are one clustering key and one map key, whose last write wins; 2.0 is another key."""
    kinds = (Column("p", INT, "partition"), Column("k", DECIMAL, "clustering"), Column("m", MapType(DECIMAL, INT)))
    schema = TableSchema("ks", "t", kinds, CdcOptions(enabled=True))
    one, same, other = Decimal("1.0"), Decimal("1.00"), Decimal("2.0")

    def write(key: Decimal, path: Decimal, timestamp: int) -> pa.Table:
        cells = {"m": CollectionChange(None, {path: Cell(Microseconds(timestamp), timestamp)})}
        return state_from_mutations([Mutation(schema, (0,), rows={(key,): RowChange(None, cells)})])

    states = [write(one, same, 1), write(same, one, 2), write(other, other, 1)]
    for parts in (states, states[::-1]):
        rows = select_rows(schema, merge_states(schema, [merge_states(schema, parts[:2]), parts[2]]))
        assert rows.select(["k", "m"]).to_pylist() == [
            {"k": "1.0", "m": [("1.0", 2)]},
            {"k": "2.0", "m": [("2.0", 1)]},
        ]


def by_partition(schema: TableSchema, rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as text; partitions may be in any order, but not the rows within one."""
    names = [column.name for column in schema.partition_key]
    return [repr(row) for row in sorted(rows, key=lambda row: repr([row[name] for name in names]))]
