"""Changes derived from a write's log rows, compared with a model of the base table that shares no code with them."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.log_histories import histories
from support.oracles.log_model import ImageModel, ModelPartition

from cdc_platform.cdclog import LoggedImages, changes_from_log, changes_schema
from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.cdclog.gaps import CdcOptionsSince
from cdc_platform.cdclog.values import log_rows_to_arrow
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    TEXT,
    CdcOptions,
    Cell,
    CollectionChange,
    Column,
    CqlType,
    ListType,
    MapType,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    UserType,
    merge_mutations,
)
from cdc_platform.cql.types import DATE
from cdc_platform.errors import InputError

T = Microseconds(1_606_390_225_588_947)
STREAM = bytes(16)
OPTIONS = [
    CdcOptions(enabled=True, preimage=preimage, postimage=postimage, delta=delta)
    for preimage in ("false", "true", "full")
    for postimage in (False, True)
    for delta in ("full", "keys")
]


def known_images(cdc: CdcOptions) -> LoggedImages:
    """Return the options as those of the whole history."""
    return LoggedImages.of([CdcOptionsSince(T, cdc)], since_creation=True)


def arrow_form(kind: CqlType, elements: Any) -> Any:
    """Return a value of the model in Arrow's form of the base table."""
    if elements is None or not (kind.multicell or isinstance(kind, MapType | SetType | ListType | UserType)):
        return elements
    if isinstance(kind, UserType):
        parts = elements if isinstance(elements, dict) else dict(enumerate(elements))
        return {name: parts.get(index) for index, name in enumerate(kind.field_names)}
    if isinstance(kind, ListType) and kind.multicell:
        signed = [
            (key.time, [byte - 256 * (byte > 127) for byte in key.bytes[8:]], value) for key, value in elements.items()
        ]
        return [value for _, _, value in sorted(signed, key=lambda entry: entry[:2])]
    if isinstance(kind, MapType):
        return sorted(elements.items() if isinstance(elements, dict) else elements)
    return sorted(elements) if isinstance(kind, SetType) else list(elements)


def expected_row(schema: TableSchema, partition: tuple, key: tuple | None, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the model with all columns."""
    keys = dict(zip((column.name for column in schema.partition_key), partition, strict=True))
    keys |= dict(zip((column.name for column in schema.clustering_key), key or (), strict=False))
    return {
        column.name: keys.get(column.name, arrow_form(column.type, row.get(column.name))) for column in schema.selected
    }


def changed_row(schema: TableSchema, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the delta rows of one table row wrote, column by column."""
    result: dict[str, Any] = {}
    for column in schema.selected[len(schema.partition_key) + len(schema.clustering_key) :]:
        values = [row[column.name] for row in rows if row[column.name] is not None]
        deleted = any(row[f"cdc$deleted_{column.name}"] for row in rows)
        if not column.type.multicell:
            arrow_value = arrow_form(column.type, values[-1]) if values else None
            result[column.name] = {"value": arrow_value, "deleted": deleted} if values or deleted else None
            continue
        removed: list[Any] = [key for row in rows for key in row[f"cdc$deleted_elements_{column.name}"] or ()]
        if isinstance(column.type, UserType):
            merged = {index: part for value in values for index, part in enumerate(value) if part is not None}
            added = arrow_form(column.type, merged) if merged else None
            removed = [column.type.field_names[index] for index in removed]
        elif isinstance(column.type, SetType):
            added = sorted(element for value in values for element in value) if values else None
        else:
            added = sorted(
                (str(key) if isinstance(key, UUID) else key, part) for value in values for key, part in value
            )
            added = added if values else None
        removed = sorted(str(key) if isinstance(key, UUID) else key for key in removed)
        if added is not None or removed or deleted:
            result[column.name] = {"added": added, "removed": removed or None, "deleted": deleted}
        else:
            result[column.name] = None
    return result


def clustering_key(schema: TableSchema, row: dict[str, Any]) -> tuple | None:
    """Return the clustering key of a log row; None if it is not complete."""
    key = tuple(row[column.name] for column in schema.clustering_key)
    return None if None in key else key


def apply_row(
    schema: TableSchema, images: ImageModel, batch: list[Mutation], timestamp: int, row: dict[str, Any]
) -> None:
    """Apply a delta row to the model."""
    operation, keys = row["cdc$operation"], [key for key in images.rows if key is not None]
    if operation in (1, 2):
        key = clustering_key(schema, row)
        columns = schema.statics if key is None else schema.regulars
        written = {}
        for column in columns:
            value, deleted = row[column.name], bool(row[f"cdc$deleted_{column.name}"])
            removed = row.get(f"cdc$deleted_elements_{column.name}") or ()
            if value is not None or deleted or removed:
                written[column.name] = (value, deleted, removed)
        images.tell(key, written)
    elif operation == 3:
        images.forget([clustering_key(schema, row) or ()])
    elif operation == 4:
        images.forget(keys)
    else:
        ranges = [tombstone for mutation in batch for tombstone in mutation.range_tombstones]
        times_by_key = {
            key: [tombstone.timestamp for tombstone in ranges if tombstone.covers(schema, key)] for key in keys
        }
        images.forget([key for key, times in times_by_key.items() if max(times, default=None) == timestamp])


def model_before(schema: TableSchema, model: ModelPartition, batch: list[Mutation]) -> ImageModel:
    """Return the rows that a batch names, in their state before it."""
    keys: set[tuple | None] = {key for mutation in batch for key in (*mutation.rows, *mutation.row_tombstones)}
    if not schema.clustering_key:
        keys.add(())
    keys |= {None} if any(mutation.static for mutation in batch) else set()
    existing = {key: row for key, row in model.select(Microseconds(0)).items() if key in keys}
    return ImageModel(model.types, existing, None in existing)


def expected_changes(
    schema: TableSchema, images: ImageModel, batch: list[Mutation], at: int, deltas: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the changes of one write, from its delta rows and the model around it.

    Values are those that `schema` logs.
    """
    partition, cdc = batch[0].partition_key, schema.cdc
    touched: dict[tuple | None, set[str]] = {}
    for row in deltas:
        if row["cdc$operation"] in (1, 2):
            names = {
                column.name
                for column in (*schema.statics, *schema.regulars)
                if row[column.name] is not None
                or row[f"cdc$deleted_{column.name}"]
                or row.get(f"cdc$deleted_elements_{column.name}")
            }
            touched.setdefault(clustering_key(schema, row), set()).update(names)
        elif row["cdc$operation"] == 3 or (row["cdc$operation"] == 4 and not schema.clustering_key):
            touched[clustering_key(schema, row)] = {column.name for column in schema.regulars}
    before = {key: image for key in touched if (image := images.image(key)) is not None}
    for row in deltas:
        apply_row(schema, images, batch, at, row)
    after = {key: image for key in touched if (image := images.image(key)) is not None}
    result: list[dict[str, Any]] = []
    by_key: dict[tuple | None, list[dict[str, Any]]] = {}
    change: dict[str, Any]
    change: dict[str, Any]
    for number, row in enumerate(deltas):
        operation, key = row["cdc$operation"], clustering_key(schema, row)
        if operation in (1, 2):
            by_key.setdefault(key, []).append(row)
            continue
        if operation in (7, 8) and number and deltas[number - 1]["cdc$operation"] in (5, 6):
            continue  # it is the end of the previous range
        if operation in (5, 6, 7, 8):
            result.append({"op": "d", "kind": "range_delete", "before": None, "before_state": "unknown"})
            continue
        change = {"op": "d", "kind": "row_delete" if operation == 3 else "partition_delete"}
        change |= {"before": None, "before_state": "unknown"}
        if key is not None and cdc.preimage != "false":
            if key in before:
                change |= {"before": expected_row(schema, partition, key, before[key]), "before_state": "full"}
            elif operation == 3:
                change["before_state"] = "absent"
        result.append(change)
    for key, rows in by_key.items():
        inserted = any(row["cdc$operation"] == 2 for row in rows)
        change = {"op": "c" if inserted else "u", "kind": "insert" if inserted else "update"}
        change |= {"before": None, "before_state": "unknown", "after": None, "after_state": "unknown"}
        if cdc.preimage != "false":
            all_columns = {column.name for column in (schema.statics if key is None else schema.regulars)}
            visible = all_columns if cdc.preimage == "full" else touched[key]
            if key in before:
                image = {name: value for name, value in before[key].items() if name in visible}
                change["before"] = expected_row(schema, partition, key, image)
                change["before_state"] = "full" if visible == all_columns else "partial"
                change["before_columns"] = None if visible == all_columns else sorted(visible)
            else:
                change["before_state"] = "absent"
        if cdc.postimage:
            change["after_state"] = "full" if key in after else "absent"
            change["after"] = expected_row(schema, partition, key, after[key]) if key in after else None
        ttls = [row["cdc$ttl"] for row in rows if row["cdc$ttl"]]
        change["ttl"] = min(ttls, default=None)
        if schema.statics or schema.regulars:
            change["changes"] = changed_row(schema, rows) if cdc.delta == "full" else None
        change["key"] = expected_row(schema, partition, key, {}) if key is not None else None
        result.append(change)
    return result


def comparable(change: dict[str, Any], schema: TableSchema) -> str:
    """Return a change as text, with only what the model knows, and elements in order."""
    fields = {name: change.get(name) for name in ("op", "kind", "before", "before_state", "ttl")}
    fields |= {"after": change.get("after"), "after_state": change.get("after_state") or "absent"}
    names = change.get("before_columns")
    fields["before_columns"] = None if names is None else sorted(names)
    written = change.get("changes")
    if written is not None:
        written = {name: None if part is None else dict(sorted(part.items())) for name, part in sorted(written.items())}
        for part in written.values():
            for side in ("added", "removed"):
                if part is not None and isinstance(part.get(side), list):
                    part[side] = sorted(part[side]) or None
    fields["changes"] = written
    if change.get("op") != "d" and change.get("key") is not None:
        keys = [column.name for column in (*schema.partition_key, *schema.clustering_key)]
        fields["key"] = [change["key"][name] for name in keys]
        if None in fields["key"]:
            del fields["key"]  # a static row
    return repr(sort_maps(fields))


def sort_maps(value: Any) -> Any:
    """Return Arrow's values with maps and sets in one order; lists of pairs are maps."""
    if isinstance(value, dict):
        return {name: sort_maps(part) for name, part in sorted(value.items())}
    if isinstance(value, list) and all(isinstance(part, tuple) for part in value):
        return sorted(value)
    return value


@given(history=st.sampled_from(OPTIONS).flatmap(histories), seed=st.integers(0, 99))
def test_changes_are_those_of_the_model(history: tuple[TableSchema, list[list[Mutation]]], seed: int) -> None:
    """Every change of random histories has the rows around it, whatever the log's options; there is no other change."""
    schema, batches = history
    complete = TableSchema("ks", "t", schema.columns, CdcOptions(enabled=True))
    rows: list[dict[str, Any]] = []
    expected: list[tuple[str, str]] = []
    for partition in {batch[0].partition_key for batch in batches}:
        model = ModelPartition(
            {column.name: column.type for column in schema.columns},
            tuple(column.descending for column in schema.clustering_key),
        )
        state: Mutation | None = None
        for number, batch in enumerate(batches):
            if batch[0].partition_key != partition:
                continue
            merged, identity = merge_mutations(batch), str((partition, number)).encode()
            deltas = encode_mutation(
                Mutation(
                    complete,
                    merged.partition_key,
                    merged.partition_tombstone,
                    merged.row_tombstones,
                    merged.range_tombstones,
                    merged.static,
                    merged.rows,
                )
            )
            images = model_before(schema, model, batch)
            parts = encode_mutation(merged, state, identity=identity)
            for part, delta in zip(parts, deltas, strict=True):
                rows += part.in_stream(STREAM)
                model_changes = expected_changes(schema, images, batch, part.timestamp, delta.rows)
                expected += [(str(part.rows[0]["cdc$time"]), comparable(change, schema)) for change in model_changes]
            for mutation in batch:
                model.apply(mutation)
            state = merged if state is None else merge_mutations([state, merged])
    random.Random(seed).shuffle(rows)
    changes = changes_from_log(schema, log_rows_to_arrow(schema, rows), known_images(schema.cdc))
    changes.validate(full=True)
    assert changes.schema.equals(changes_schema(schema))
    actual = [(row["cdc$time"], comparable(row, schema)) for row in changes.to_pylist()]
    assert sorted(actual) == sorted(expected)


COLUMNS = (
    Column("p", INT, "partition"),
    Column("a", INT, "clustering"),
    Column("b", INT, "clustering"),
    Column("s", INT, "static"),
    Column("v", INT),
    Column("l", ListType(TEXT)),
    Column("m", MapType(TEXT, INT)),
    Column("u", UserType("ks", "ut", (("x", INT), ("y", TEXT)))),
)


def table(cdc: CdcOptions = OPTIONS[-2], columns: tuple[Column, ...] = COLUMNS) -> TableSchema:
    """Return a table with two clustering columns, whose log has full images by default."""
    return TableSchema("ks", "t", columns, cdc)


def compute_changes(
    mutation: Mutation, state: Mutation | None = None, images: LoggedImages | None = None
) -> list[dict[str, Any]]:
    """Return the changes of one write after a state."""
    schema = mutation.schema
    rows = [row for part in encode_mutation(mutation, state) for row in part.in_stream(STREAM)]
    return changes_from_log(schema, log_rows_to_arrow(schema, rows), images or known_images(schema.cdc)).to_pylist()


def bound(*prefix: int, inclusive: bool = True) -> RangeBound:
    """Return one side of a range."""
    return RangeBound(prefix, inclusive)


@pytest.mark.parametrize(
    ("start", "end", "key", "expected"),
    [
        (None, bound(3), (None, None), (None, True, (3, None), True)),
        (bound(3, inclusive=False), None, (None, None), ((3, None), False, None, True)),
        (bound(1), bound(1), (1, None), ((1, None), True, (1, None), True)),
        (bound(1, 2), bound(1, 5, inclusive=False), (1, None), ((1, 2), True, (1, 5), False)),
        (bound(1, 2, inclusive=False), bound(1), (1, None), ((1, 2), False, (1, None), True)),
        (bound(1), bound(1, 5), (1, None), ((1, None), True, (1, 5), True)),
        (bound(1), bound(2, inclusive=False), (None, None), ((1, None), True, (2, None), False)),
    ],
)
def test_a_deleted_range_has_its_bounds_and_their_common_key(
    start: RangeBound | None, end: RangeBound | None, key: tuple, expected: tuple
) -> None:
    """A range deletion has no row; its key has only the columns that all deleted rows share."""
    (change,) = compute_changes(Mutation(table(), (7,), range_tombstones=[RangeTombstone(start, end, T)]))
    states = (change["op"], change["kind"], change["before_state"], change["after_state"])
    assert states == ("d", "range_delete", "unknown", "absent")
    assert (change["before"], change["after"], change["changes"]) == (None, None, None)
    assert change["key"] == {"p": 7, "a": key[0], "b": key[1]}
    low, low_inclusive, high, high_inclusive = expected
    sides = [None if side is None else dict(zip("ab", side, strict=True)) for side in (low, high)]
    assert change["range"] == {
        "start": sides[0],
        "start_inclusive": low_inclusive,
        "end": sides[1],
        "end_inclusive": high_inclusive,
    }


def test_a_deleted_partition_has_only_its_partition_key() -> None:
    """Its rows are not in the log; without clustering columns it is one row, which has a pre-image."""
    (change,) = compute_changes(Mutation(table(), (7,), T))
    assert (change["op"], change["kind"], change["before"]) == ("d", "partition_delete", None)
    assert change["key"] == {"p": 7, "a": None, "b": None}
    assert change["before_state"] == "unknown"
    one_row = table(columns=(COLUMNS[0], COLUMNS[4]))
    old = Microseconds(T - 9)
    state = Mutation(one_row, (7,), rows={(): RowChange(RowMarker(old), {"v": Cell(old, 1)})})
    (change,) = compute_changes(Mutation(one_row, (7,), T), state)
    assert (change["before"], change["before_state"]) == ({"p": 7, "v": 1}, "full")


def test_collections_show_added_and_removed_elements() -> None:
    """Lists are in the order of their keys before and after; fields of a user type are named."""
    first, second = UUID("00000000-1dd2-11b2-8080-0000000000ff"), UUID("00000001-1dd2-11b2-8080-0000000000ff")
    old = Microseconds(T - 9)
    existing: dict[str, Any] = {
        "l": CollectionChange(None, {second: Cell(old, "later"), first: Cell(old, "sooner")}),
        "m": CollectionChange(None, {"k": Cell(old, 1)}),
        "u": CollectionChange(None, {0: Cell(old, 1), 1: Cell(old, "y")}),
    }
    state = Mutation(table(), (7,), rows={(1, 2): RowChange(RowMarker(old), existing)})
    cells: dict[str, Any] = {
        "l": CollectionChange(None, {first: Cell(T, dead=True)}),
        "m": CollectionChange(None, {"k": Cell(T, dead=True), "n": Cell(T, 2)}),
        "u": CollectionChange(None, {1: Cell(T, dead=True)}),
    }
    (change,) = compute_changes(Mutation(table(), (7,), rows={(1, 2): RowChange(None, cells)}), state)
    assert change["before"]["l"] == ["sooner", "later"]
    assert change["after"]["l"] == ["later"]
    assert (change["before"]["u"], change["after"]["u"]) == ({"x": 1, "y": "y"}, {"x": 1, "y": None})
    assert change["changes"]["l"] == {"added": None, "removed": [str(first)], "deleted": False}
    assert change["changes"]["m"] == {"added": [("n", 2)], "removed": ["k"], "deleted": False}
    assert change["changes"]["u"] == {"added": None, "removed": ["y"], "deleted": False}
    assert change["changes"]["v"] is None


def test_lists_are_ordered_by_their_keys_whatever_the_order_in_the_log() -> None:
    """Not every reader preserves the order of a map in the log."""
    keys = ["00000001-1dd2-11b2-8080-0000000000ff", "00000000-1dd2-11b2-8080-0000000000ff"]
    keys += ["00000000-1dd2-11b2-7f80-0000000000ff"]
    old = Microseconds(T - 9)
    existing = CollectionChange(None, {UUID(key): Cell(old, key) for key in keys})
    state = Mutation(table(), (7,), rows={(1, 2): RowChange(RowMarker(old), {"l": existing})})
    write = Mutation(table(), (7,), rows={(1, 2): RowChange(None, {"v": Cell(T, 5)})})
    rows = [row for part in encode_mutation(write, state) for row in part.in_stream(STREAM)]
    log = log_rows_to_arrow(write.schema, rows)
    index = log.schema.get_field_index("l")
    reversed_pairs = [None if pairs is None else pairs[::-1] for pairs in log["l"].to_pylist()]
    log = log.set_column(index, log.schema.field(index), pa.array(reversed_pairs, log.schema.field(index).type))
    (change,) = changes_from_log(write.schema, log, known_images(write.schema.cdc)).to_pylist()
    assert change["before"]["l"] == ["00000000-1dd2-11b2-8080-0000000000ff", keys[2], keys[0]]


def test_several_log_rows_of_one_statement_are_one_change() -> None:
    """An INSERT with a TTL and a collection has three rows in the log, but is one write of one row."""
    elements = CollectionChange(Microseconds(T - 1), {"k": Cell(T, 1, 60)})
    row = RowChange(RowMarker(T, 60), {"v": Cell(T, 5, 60), "m": elements})
    (change,) = compute_changes(Mutation(table(), (7,), rows={(1, 2): row}))
    assert (change["op"], change["ttl"]) == ("c", 60)
    assert (change["before_state"], change["before"]) == ("absent", None)
    assert change["after"] == {"p": 7, "a": 1, "b": 2, "s": None, "v": 5, "l": None, "m": [("k", 1)], "u": None}
    assert change["changes"]["m"] == {"added": [("k", 1)], "removed": None, "deleted": True}
    assert change["changes"]["v"] == {"value": 5, "deleted": False}


def test_an_added_field_of_a_user_type_is_null() -> None:
    """Rows from before and after ALTER TYPE ADD are changes of one type."""
    cells = {"u": CollectionChange(Microseconds(T - 1), {0: Cell(T, 1)})}
    write = Mutation(table(), (7,), rows={(1, 2): RowChange(None, cells)})
    rows = [row for part in encode_mutation(write) for row in part.in_stream(STREAM)]
    log = log_rows_to_arrow(write.schema, rows)
    grown = UserType("ks", "ut", (("x", INT), ("y", TEXT), ("z", INT)))
    schema = table(columns=(*COLUMNS[:-1], Column("u", grown)))
    (change,) = changes_from_log(schema, log, known_images(schema.cdc)).to_pylist()
    assert change["after"]["u"] == {"x": 1, "y": None, "z": None}
    assert change["changes"]["u"]["added"] == {"x": 1, "y": None, "z": None}


WRITE = Mutation(table(OPTIONS[0]), (7,), rows={(1, 2): RowChange(RowMarker(T), {"v": Cell(T, 5)})})
ON, OFF = CdcOptions(enabled=True, preimage="full", postimage=True), CdcOptions(enabled=True)
NO_LOG = CdcOptions(enabled=False)


@pytest.mark.parametrize(
    ("history", "since_creation", "state"),
    [
        ([(T - 9, ON)], False, "absent"),
        ([(T + 9, ON)], False, "unknown"),
        ([(T + 9, ON)], True, "absent"),
        ([(T - 9, OFF), (T - 5, ON)], True, "absent"),
        ([(T - 9, OFF), (T + 5, ON)], True, "unknown"),
        ([(T - 9, ON), (T + 5, OFF)], True, "unknown"),
        ([(T - 9, ON), (T - 5, OFF), (T - 3, ON)], False, "absent"),
        ([(T - 9, ON), (T + 5, NO_LOG), (T + 7, ON)], False, "absent"),
        ([(T - 9, OFF)], True, "unknown"),
        ([], True, "unknown"),
    ],
)
def test_a_missing_image_means_absent_only_if_the_log_certainly_has_images(
    history: list[tuple[int, CdcOptions]], since_creation: bool, state: str
) -> None:
    """A write may be younger than its timestamp, so options that were off at any later time leave it unknown."""
    entries = [CdcOptionsSince(Microseconds(at), options) for at, options in history]
    (change,) = compute_changes(WRITE, images=LoggedImages.of(entries, since_creation=since_creation))
    assert (change["before_state"], change["after_state"]) == (state, state)
    assert (change["before"], change["after"]) == (None, None)


def test_an_image_in_the_batch_proves_that_the_log_has_images() -> None:
    """Whatever options are recorded, the write read its rows, so a row without a pre-image was absent."""
    schema, old = table(OPTIONS[-2]), Microseconds(T - 9)
    state = Mutation(schema, (7,), rows={(1, 1): RowChange(RowMarker(old), {"v": Cell(old, 1)})})
    cells = RowChange(None, {"v": Cell(T, 5)})
    write = Mutation(schema, (7,), rows={(1, 1): cells, (1, 2): cells})
    actual = compute_changes(write, state, LoggedImages(None, None, None))
    assert [change["before_state"] for change in actual] == ["full", "absent"]


def test_a_value_outside_the_column_range_is_stored_exactly() -> None:
    """The exact value is stored by the path of its column."""
    schema = table(columns=(COLUMNS[0], Column("d", DATE)))
    far = 2**31 - 1
    write = Mutation(schema, (7,), rows={(): RowChange(RowMarker(T), {"d": Cell(T, far)})})
    (change,) = compute_changes(write)
    assert change["cdc$exact"] == [("after.d", str(far)), ("changes.d", str(far))]


def test_an_incomplete_batch_is_refused() -> None:
    """A write that misses rows is refused."""
    rows = [row for part in encode_mutation(WRITE) for row in part.in_stream(STREAM)]
    rows[-1]["cdc$end_of_batch"] = None
    with pytest.raises(InputError, match="is not complete"):
        changes_from_log(WRITE.schema, log_rows_to_arrow(WRITE.schema, rows), LoggedImages(None, None, None))
    nothing = log_rows_to_arrow(WRITE.schema, [])
    assert changes_from_log(WRITE.schema, nothing, LoggedImages(None, None, None)).num_rows == 0
