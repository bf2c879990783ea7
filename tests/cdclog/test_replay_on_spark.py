"""Replay in volume: the rows that one process rebuilds, however the log's rows are split and mixed."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.histories.log_histories import EPOCH_US, USER_TYPE, histories, mutations
from support.oracles.log_walker import replay
from support.spark.batches import rows_a_batch

from cdc_platform.cdclog import select_schema
from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.cdclog.replay import replay_batches, replay_dataframe
from cdc_platform.cdclog.state.from_log import log_partition_keys
from cdc_platform.cdclog.values import log_rows_to_arrow, to_canonical_values
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    TEXT,
    BaseTable,
    CdcOptions,
    Cell,
    Column,
    CqlType,
    ListType,
    MapType,
    Mutation,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    merge_mutations,
)
from cdc_platform.cql.types import NAN, get_scalar_type
from cdc_platform.delta import translate_errors
from cdc_platform.errors import InputError, StateError
from cdc_platform.spark.shuffle import pack_batches, unpack_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = bytes(16)
ENABLED = CdcOptions(enabled=True)
WIDE = TableSchema(
    "ks",
    "wide",
    (
        Column("p", INT, "partition"),
        Column("q", TEXT, "partition"),
        Column("k", INT, "clustering", descending=True),
        Column("l", TEXT, "clustering"),
        Column("s", INT, "static"),
        Column("t", ListType(INT), "static"),
        Column("a", TEXT),
        Column("m", MapType(INT, TEXT)),
        Column("e", SetType(INT)),
        Column("i", ListType(INT)),
        Column("u", USER_TYPE),
        Column("f", USER_TYPE.frozen()),
        Column("z", MapType(INT, INT, True)),
    ),
    ENABLED,
)
SHORT_TYPE = replace(USER_TYPE, fields=USER_TYPE.fields[:2])
IMAGED = TableSchema(
    "ks",
    "imaged",
    (
        Column("p", INT, "partition"),
        Column("w", SetType(TEXT, True)),
        Column("x", MapType(INT, TEXT)),
        Column("u", SHORT_TYPE),
        Column("f", ListType(SHORT_TYPE.frozen(), True)),
    ),
    CdcOptions(enabled=True, preimage="full", postimage=True),
)
ALTERED = replace(
    IMAGED,
    columns=(
        *(replace(column, type=column.type.replaced(USER_TYPE)) for column in IMAGED.columns),
        Column("later", ListType(INT)),
        Column("latest", USER_TYPE),
    ),
)
PLAIN = TableSchema("ks", "plain", (Column("p", INT, "partition"), Column("v", INT)), ENABLED)
ODD_TYPES: dict[str, CqlType] = {
    "a": get_scalar_type("double"),
    "b": get_scalar_type("decimal"),
    "c": get_scalar_type("uuid"),
    "d": get_scalar_type("timestamp"),
    "e": MapType(INT, TEXT, True),
    "f": get_scalar_type("date"),
}
ODD = TableSchema(
    "ks",
    "odd",
    (*(Column(name, kind, "partition") for name, kind in ODD_TYPES.items()), Column("v", INT), Column("w", INT)),
    ENABLED,
)
ONE_ID, OTHER_ID = UUID("abcdef00-0000-4000-8000-00000000000f"), UUID("abcdef00-0000-4000-8000-00000000000e")
ODD_KEYS = [
    (0.0, Decimal("1.0"), ONE_ID, -1, ((1, "a"), (2, "b")), 0),
    (-0.0, Decimal("1.0"), ONE_ID, -1, ((1, "a"), (2, "b")), 0),
    (0.0, Decimal("1.00"), ONE_ID, -1, ((1, "a"), (2, "b")), 0),
    (0.0, Decimal("1.0"), OTHER_ID, -1, ((1, "a"), (2, "b")), 0),
    (0.0, Decimal("1.0"), ONE_ID, -2, ((1, "a"), (2, "b")), 0),
    (0.0, Decimal("1.0"), ONE_ID, -1, ((1, "a"), (2, "c")), 0),
    (0.0, Decimal("1.0"), ONE_ID, -1, ((1, "a"), (2, "b")), -800_000),
    (NAN, Decimal("1.0"), ONE_ID, -1, ((1, "a"), (2, "b")), 0),
]
NOW = st.none() | st.integers(EPOCH_US + 5_000_000, EPOCH_US + 9_000_010)


def _log_rows(batches: Iterable[Sequence[Mutation]]) -> list[dict[str, Any]]:
    """Return the log rows of batches of writes, each to one partition."""
    rows: list[dict[str, Any]] = []
    states: dict[bytes, Mutation] = {}
    for number, batch in enumerate(batches):
        mutation = merge_mutations(batch)
        key = mutation.schema.partition_bytes(mutation.partition_key)
        for part in encode_mutation(mutation, states.get(key), identity=number.to_bytes(4, "big")):
            rows += part.in_stream(STREAM)
        states[key] = merge_mutations([*([states[key]] if key in states else []), mutation])
    return rows


def _expected(schema: TableSchema, rows: list[dict[str, Any]], now_us: Microseconds | None) -> list[str]:
    """Return the rows that are replayed one by one, by partition and then in clustering order."""
    base = BaseTable(schema, replay(schema, rows))
    rows_of_table = (base if now_us is None else base.without_expired(now_us)).rows()
    # A column of a DataFrame has the nearest date that all readers support.
    far, nearest = ODD.partition_key[-1].type.json(-800_000), "0001-01-01"
    return _by_partition(
        schema, [{name: nearest if value == far else value for name, value in row.items()} for row in rows_of_table]
    )


def _actual(schema: TableSchema, table: pa.Table) -> list[str]:
    columns = [
        [column.type.json(value) for value in to_canonical_values(column.type, table.column(column.name))]
        for column in schema.selected
    ]
    names = [column.name for column in schema.selected]
    return _by_partition(schema, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])


def _by_partition(schema: TableSchema, rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as text, which distinguishes -0.0 from 0.0.

    Partitions may be in any order, but not the rows within one.
    """
    names = [column.name for column in schema.partition_key]
    return [str(row) for row in sorted(rows, key=lambda row: repr([row[name] for name in names]))]


def _split(table: pa.Table, positions: list[int]) -> list[pa.RecordBatch]:
    """Return the rows in batches that end at some positions, some without rows."""
    (whole,) = table.combine_chunks().to_batches()
    ends = [0, *sorted(position % whole.num_rows for position in positions), whole.num_rows]
    return [whole.slice(start, end - start) for start, end in pairwise(ends)]


@settings(max_examples=examples(80))
@given(histories(), NOW, st.lists(st.integers(0, 1000), max_size=12), st.randoms(use_true_random=False))
def test_rows_come_in_any_order_and_by_any_parts_of_the_ring(
    history: tuple[TableSchema, list[list[Mutation]]],
    now_us: Microseconds | None,
    places: list[int],
    order: random.Random,
) -> None:
    """Rows in any order and batches, packed and combined, give what one process rebuilds."""
    schema, batches = history
    rows = _log_rows(batches)
    assume(rows)
    order.shuffle(rows)

    def keys(batch: pa.RecordBatch) -> pa.Array:
        return log_partition_keys(schema, pa.Table.from_batches([batch]))

    packs = pack_batches(_split(log_rows_to_arrow(schema, rows), places), keys, 5)
    blobs = pa.Table.from_batches(packs)
    parts = [blobs.filter(pa.array(blobs["part"].to_numpy() == part)) for part in range(5)]
    rebuilt = [batch for part in parts if part.num_rows for batch in replay_batches(schema, unpack_rows(part), now_us)]
    assert _actual(schema, pa.Table.from_batches(rebuilt, select_schema(schema))) == _expected(schema, rows, now_us)


def test_a_row_without_a_key_or_of_another_log_is_refused() -> None:
    """A null in the key, an unknown operation, an invalid UUID and an incomplete batch each cause one line."""
    keys = pa.table({"p": pa.array([1, None], pa.int32())})
    with pytest.raises(InputError, match=r"^a log row has no p; every row of a CDC log has one$"):
        log_partition_keys(PLAIN, keys)
    row = _log_rows([[_insert(PLAIN, (1,), 1)]])[0]
    for change, message in {
        ("cdc$operation", 11): (
            "operation 11 of a log row is out of bounds; operations that can be replayed are 0 to 9, -3 and -4"
        ),
        ("cdc$end_of_batch", None): f"the batch of {row['cdc$time']} in the log of ks.plain is not complete",
    }.items():
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            list(replay_batches(PLAIN, log_rows_to_arrow(PLAIN, [row | dict([change])])))
    table = log_rows_to_arrow(PLAIN, [row])
    index = table.schema.get_field_index("cdc$time")
    invalid = table.set_column(index, "cdc$time", pa.array(["never"]))
    with pytest.raises(InputError, match=r"^'never' is no value of type timeuuid$"):
        list(replay_batches(PLAIN, invalid))


def test_keys_are_distinguished_by_their_bytes() -> None:
    """Every Arrow form of a value gives the same key, and two values give two, whatever Spark considers equal."""
    rows = _log_rows([[_insert(ODD, key, number)] for number, key in enumerate(ODD_KEYS)])
    keys = log_partition_keys(ODD, log_rows_to_arrow(ODD, rows)).to_pylist()
    assert keys == [ODD.partition_bytes(row) for row in ODD_KEYS]
    assert len(set(keys)) == len(ODD_KEYS)
    # Dates are stored exactly only where no column can hold them, whatever form the columns have.
    other = _in_other_forms(log_rows_to_arrow(ODD, rows))
    assert not other.equals(log_rows_to_arrow(ODD, rows))
    assert log_partition_keys(ODD, other).to_pylist() == keys


def test_a_log_of_keys_is_refused() -> None:
    """A log of keys alone cannot be replayed, so its rows are not read."""
    frame: Any = None
    with pytest.raises(StateError, match=r"^ks\.plain logs keys alone \(delta 'keys'\)"):
        replay_dataframe(replace(PLAIN, cdc=CdcOptions(enabled=True, delta="keys")), frame)


@pytest.mark.spark
def test_spark_rebuilds_the_same_as_one_process(spark: SparkSession) -> None:
    """Mixed histories of many partitions, in batches smaller than a partition: statics, collections, ranges, TTLs."""
    with rows_a_batch(spark, 7):
        rows = _log_rows(_draw_batches(WIDE, [(number, text) for number in range(9) for text in ("a", "b")], 20))
        assert {row["cdc$operation"] for row in rows} == set(range(1, 9))
        assert max(Counter(row["p"] for row in rows).values()) > 20
        assert _expected(WIDE, rows, None) != _expected(WIDE, rows, Microseconds(EPOCH_US + 5_000_005))
        _assert_replayed(spark, WIDE, rows, log_rows_to_arrow(WIDE, rows), None)
        _assert_replayed(spark, WIDE, rows, log_rows_to_arrow(WIDE, rows), Microseconds(EPOCH_US + 5_000_005))

        # Images are ignored; the log does not yet have what ALTER TABLE and ALTER TYPE have added.
        rows = _log_rows(_draw_batches(IMAGED, [(number,) for number in range(20)], 12))
        assert {row["cdc$operation"] for row in rows} == {0, 1, 2, 4, 9}
        _assert_replayed(spark, ALTERED, rows, log_rows_to_arrow(IMAGED, rows), None)

        rows = _log_rows(
            [[write(ODD, key, number)] for write in (_insert, _update) for number, key in enumerate(ODD_KEYS)]
        )
        _assert_replayed(spark, ODD, rows, _in_other_forms(log_rows_to_arrow(ODD, rows)), None)


@pytest.mark.spark
def test_an_invalid_log_fails_the_job_with_one_line(spark: SparkSession) -> None:
    """An incomplete batch or a missing key is the error of the task, a wrong column that of the call."""
    from pyspark.sql import functions as F

    rows = _log_rows([[_insert(PLAIN, (number,), number)] for number in range(3)])
    table = log_rows_to_arrow(PLAIN, rows)
    changes = spark.createDataFrame(table)
    for invalid, message in (
        (
            changes.withColumn("cdc$end_of_batch", F.lit(None).cast("boolean")),
            r"the batch of \S+ in the log of ks\.plain is not complete",
        ),
        (changes.withColumn("p", F.lit(None).cast("int")), "a log row has no p; every row of a CDC log has one"),
    ):
        with (
            pytest.raises(InputError, match=f"^replaying ks.plain: {message}$"),
            translate_errors("replaying ks.plain"),
        ):
            replay_dataframe(PLAIN, invalid).collect()
    with pytest.raises(InputError, match=r"^the changes have no column cdc\$ttl; every log of ks\.plain has it$"):
        replay_dataframe(PLAIN, changes.drop("cdc$ttl"))
    with pytest.raises(InputError, match=r"^column v of the changes is string; in a log of ks\.plain it is int$"):
        replay_dataframe(PLAIN, changes.withColumn("v", F.col("v").cast("string")))


def _assert_replayed(
    spark: SparkSession, schema: TableSchema, rows: list[dict[str, Any]], table: pa.Table, now_us: Microseconds | None
) -> None:
    order = list(range(table.num_rows))
    random.Random(0).shuffle(order)
    replayed = replay_dataframe(schema, spark.createDataFrame(table.take(order)), now_us=now_us).toArrow()
    expected = _expected(schema, rows, now_us)
    assert _actual(schema, replayed) == expected
    assert len(expected) > 7


def _draw_batches(schema: TableSchema, keys: list[tuple[Any, ...]], count: int) -> list[list[Mutation]]:
    """Return batches of writes to partitions with these keys, drawn by hypothesis."""
    batch = st.sampled_from(keys).flatmap(lambda key: st.lists(mutations(schema, key), min_size=1, max_size=4))
    drawn: list[list[Mutation]] = []

    @settings(max_examples=count, phases=[Phase.generate], derandomize=True, deadline=None, database=None)
    @given(st.lists(batch, min_size=4, max_size=8))
    def draw(batches: list[list[Mutation]]) -> None:
        drawn.extend(batches)

    draw()
    return drawn


def _in_other_forms(table: pa.Table) -> pa.Table:
    """Return the log of `ODD` with every third UUID in capitals, and every third time within its millisecond."""
    texts = [text.upper() if index % 3 == 0 else text for index, text in enumerate(table["c"].to_pylist())]
    times = [time + 300 * (index % 3 == 1) for index, time in enumerate(table["d"].cast(pa.int64()).to_pylist())]
    table = table.set_column(table.schema.get_field_index("c"), table.schema.field("c"), pa.array(texts))
    kind = table.schema.field("d")
    return table.set_column(table.schema.get_field_index("d"), kind, pa.array(times, kind.type))


def _insert(schema: TableSchema, key: tuple[Any, ...], number: int) -> Mutation:
    values = {"v": Cell(Microseconds(EPOCH_US + number), number)}
    return Mutation(schema, key, rows={(): RowChange(RowMarker(Microseconds(EPOCH_US + number)), values)})


def _update(schema: TableSchema, key: tuple[Any, ...], number: int) -> Mutation:
    return Mutation(schema, key, rows={(): RowChange(None, {"w": Cell(Microseconds(EPOCH_US + number + 1), -number)})})
