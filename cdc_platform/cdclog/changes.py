"""Join the rows of a CDC log into changes: one row per changed table row or deleted range, with its before and after.

A write's pre-image, delta and post-image rows share a stream and a `cdc$time`. The joining rule is in this module only;
Python, Spark, the views of `query` and consumers use it. An image that the log does not have is unknown: it is never
computed from other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.column_codec import encode_column, rank_values
from cdc_platform.cdclog.encoder import Operation
from cdc_platform.cdclog.gaps import CdcOptionsSince, options_history
from cdc_platform.cdclog.items import find_removed_attributes, items_from_images
from cdc_platform.cdclog.schema import EXACT, EXACT_COLUMN, WRITTEN_AT, arrow_type, stored_type, with_stored_names
from cdc_platform.cdclog.state.from_log import LogBatches, log_partition_keys, missing_value_error, take_wire_rows
from cdc_platform.cdclog.state.merge import combine_codes, dictionary_codes, number_groups
from cdc_platform.cdclog.values import read_exact_values
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    TIMEUUID,
    Column,
    CqlType,
    ListType,
    TableSchema,
    UserType,
    get_element_key_type,
    get_logged_type,
)
from cdc_platform.delta import HomeKind, Lake, compute, get_home_mode
from cdc_platform.metastore import cdc_tables
from cdc_platform.spark import MAX_BATCH_ROWS, apply_by_key, arrow_to_spark_schema
from cdc_platform.tables import TIMESTAMP, array_type, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FULL, PARTIAL, ABSENT, UNKNOWN = "full", "partial", "absent", "unknown"
"""What is known of a row before or after a write; only `full` and `partial` have an image."""
CREATE, UPDATE, DELETE = "c", "u", "d"
"""Debezium's letters. A log has no rows of a snapshot, so that `r` does not occur."""

_KINDS: dict[Operation, str] = {
    Operation.INSERT: "insert",
    Operation.UPDATE: "update",
    Operation.ROW_DELETE: "row_delete",
    Operation.RANGE_START_INCLUSIVE: "range_delete",
    Operation.PARTITION_DELETE: "partition_delete",
    Operation.SERVICE_ROW_DELETE: "row_expiry",
    Operation.SERVICE_PARTITION_DELETE: "partition_expiry",
}
_UPSERTS = (Operation.UPDATE, Operation.INSERT)
_ROW_DELETES = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_PARTITION_DELETES = (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE)
_INCLUSIVE = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_END_INCLUSIVE)


@dataclass(frozen=True)
class LoggedImages:
    """From when on (µs) a log certainly has pre-images, post-images and values for every write; None: not known.

    Writes may carry any timestamp, so an option counts only from the last time at which it was off.
    """

    preimages_us: Microseconds | None
    postimages_us: Microseconds | None
    values_us: Microseconds | None

    @classmethod
    def of(cls, history: Sequence[CdcOptionsSince], *, since_creation: bool) -> LoggedImages:
        """Derive them from the options of a log, oldest first.

        `since_creation`: the first options apply from the creation of the log on, so to writes of any timestamp.
        """

        def since(flags: list[bool]) -> Microseconds | None:
            last_off = max((index for index, flag in enumerate(flags) if not flag), default=-1)
            if last_off + 1 == len(flags):
                return None
            return Microseconds(0) if last_off < 0 and since_creation else history[last_off + 1].since_us

        # While CDC is off no write is logged, so that such a time refutes nothing.
        logged = [entry.options for entry in history]
        return cls(
            since([not options.enabled or options.preimage != "false" for options in logged]),
            since([not options.enabled or options.postimage for options in logged]),
            since([not options.enabled or options.delta == "full" for options in logged]),
        )


def read_logged_images(lake: Lake, schema: TableSchema) -> LoggedImages:
    """Return which images the log of a table certainly has, by the recorded history of its options.

    In an own home the first recorded options apply to all writes. Elsewhere the table was only seen with them.
    """
    history = options_history(cdc_tables.read_table_changes(lake), schema)
    return LoggedImages.of(history, since_creation=get_home_mode(lake).kind is HomeKind.OWN)


@lru_cache(maxsize=512)
def changes_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of a table's changes; docs/reading.md describes them.

    Columns of the base table have the names of the log's Delta table.
    """
    stored = with_stored_names(schema)
    row = pa.struct([pa.field(item.name, arrow_type(item.type)) for item in stored.selected])
    keys = (*stored.partition_key, *stored.clustering_key)
    fields = [
        column("cdc$stream_id", pa.binary(), "stream of the write"),
        column("cdc$time", pa.string(), "timeuuid of the write; all of its changes share it"),
        column("cdc$batch_seq_no", pa.int32(), "number of the change's first row in the write's batch of the log"),
        column(WRITTEN_AT, TIMESTAMP, "time of the write, µs, by which readers skip files; same as ts"),
        column("op", pa.string(), "c insert, u update, d delete, as in Debezium"),
        column("ts", TIMESTAMP, "time of the write, µs"),
        column("before", row, "the row before the write; null: see before_state", null=True),
        column("after", row, "the row after the write; null: see after_state", null=True),
        column("before_state", pa.string(), "full; partial: before_columns are known; absent: no such row; unknown"),
        column("before_columns", array_type(pa.string()), "columns of a partial before that are known", null=True),
        column("after_state", pa.string(), "full; absent: the row is deleted; unknown"),
        column("kind", pa.string(), f"statement or deletion: {', '.join(_KINDS.values())}"),
        column("key", pa.struct([pa.field(key.name, arrow_type(key.type)) for key in keys]), "key columns, if known"),
        column("ttl", pa.int64(), "least lifetime of the written cells, seconds; null: none expires", null=True),
    ]
    if stored.clustering_key:
        bound = pa.struct([pa.field(key.name, arrow_type(key.type)) for key in stored.clustering_key])
        ends = [("start", bound), ("start_inclusive", pa.bool_()), ("end", bound), ("end_inclusive", pa.bool_())]
        fields.append(column("range", pa.struct(ends), "bounds of a deleted range; null: none", null=True))
    if stored.statics or stored.regulars:
        written = pa.struct([pa.field(item.name, _change_type(item.type)) for item in _value_columns(stored)])
        fields.append(column("changes", written, "what was written, by column; null: not logged", null=True))
    if schema.has_decoded_attributes:
        fields += [
            column("old_item", pa.string(), "the whole item before, in DynamoDB's JSON; null unless full", null=True),
            column("new_item", pa.string(), "the whole item after, in DynamoDB's JSON; null unless full", null=True),
            column("removed_attributes", array_type(pa.string()), "names; null: unknown, or no item after", null=True),
        ]
    return pa.schema([*fields, EXACT_COLUMN])


def _value_columns(schema: TableSchema) -> tuple[Column, ...]:
    return schema.selected[len(schema.partition_key) + len(schema.clustering_key) :]


def _change_type(kind: CqlType) -> pa.DataType:
    """Return the type of what was written to a column."""
    logged, deleted = arrow_type(get_logged_type(kind)), pa.field("deleted", pa.bool_())
    if not kind.multicell:
        return pa.struct([pa.field("value", logged), deleted])
    removed = pa.string() if isinstance(kind, UserType) else arrow_type(get_element_key_type(kind).frozen())
    return pa.struct([pa.field("added", logged), pa.field("removed", array_type(removed)), deleted])


def changes_from_log(schema: TableSchema, log: pa.Table, images: LoggedImages) -> pa.Table:
    """Return the changes (`changes_schema`) of complete batches of a log's Delta table, whose rows may be in any order.

    Changes are ordered by time, stream and position in the batch. All log rows that write to one table row in one batch
    are one change.

    Raises:
        InputError: a row is not a valid log row, or a batch is incomplete.
    """
    if not log.num_rows:
        return changes_schema(schema).empty_table()
    names = ("cdc$timestamp", "cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
    order = [(name, "ascending") for name in names if name in log.schema.names]
    return _ChangeReader(schema, log.sort_by(order), images).changes()


def changes_frame(schema: TableSchema, log: DataFrame, images: LoggedImages) -> DataFrame:
    """Return the changes of a DataFrame of complete batches of a log's Delta table; see `changes_from_log`.

    A task reads the log rows of one part of the ring at a time; if those do not fit into memory, set more shuffle
    partitions. An invalid log row fails the job with an InputError: run it under `delta.translate_errors`.
    """

    def keys(batch: pa.RecordBatch) -> pa.Array:
        return log_partition_keys(schema, pa.Table.from_batches([batch]))

    def changes(rows: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from changes_from_log(schema, rows.combine_chunks(), images).to_batches(max_chunksize=MAX_BATCH_ROWS)

    return apply_by_key(log, keys, changes, arrow_to_spark_schema(changes_schema(schema)))


class _ChangeReader(LogBatches):
    """Joins the rows of a log, which are in order.

    A change has a `first` row; `group`, the number of the table row and batch that it belongs to, or -1; and the rows
    of its images, or -1.
    """

    def __init__(self, schema: TableSchema, log: pa.Table, images: LoggedImages) -> None:
        super().__init__(schema, log)
        self._stored = with_stored_names(schema)
        self._images = images
        self._exact_values = read_exact_values(log)
        self._find_changes()

    def _find_changes(self) -> None:
        operations = self.operations
        is_upsert, is_row = np.isin(operations, _UPSERTS), np.isin(operations, _ROW_DELETES)
        is_partition = np.isin(operations, _PARTITION_DELETES)
        is_image = np.isin(operations, (Operation.PRE_IMAGE, Operation.POST_IMAGE))
        groups = combine_codes([self.batches, dictionary_codes(self.clustering_keys())])
        self._groups, last = number_groups(groups)
        before, after = (self._image_rows(operation, len(last)) for operation in (0, 9))
        # The first row of each group's upserts stands for all of them.
        upserts = np.flatnonzero(is_upsert)
        _, places = np.unique(self._groups[upserts], return_index=True)
        inserted = np.zeros(len(last), dtype=bool)
        inserted[self._groups[operations == Operation.INSERT]] = True
        self._upsert_rows, self._inserted = upserts, inserted
        ranges = self.range_pairs()
        starts = np.array([end if start is None else start for start, end in ranges], np.int64)
        first = np.concatenate([upserts[places], np.flatnonzero(is_row | is_partition), starts])
        order = np.argsort(first, kind="stable")
        self._first = first[order]
        self._range_of = np.concatenate([np.full(len(first) - len(starts), -1), np.arange(len(starts))])[order]
        self._ranges = ranges
        # A partition deletion concerns one row, and has its images, only without clustering columns.
        whole = ~is_partition[self._first] if self.schema.clustering_key else np.ones(len(first), dtype=bool)
        has_images = whole & (self._range_of < 0)
        self._of_group = np.where(has_images, self._groups[self._first], -1)
        self._before = np.where(has_images, before[self._of_group], -1)
        self._is_upsert = is_upsert[self._first]
        self._after = np.where(self._is_upsert, after[self._of_group], -1)
        self._is_static = ~self.has_full_key[self._first]
        self._image_batches = {
            operation: set(self.batches[is_image & (operations == operation)].tolist()) for operation in (0, 9)
        }

    def _image_rows(self, operation: int, groups: int) -> np.ndarray:
        """Return the row of the image of each group (int64), -1 for none; one more entry for no group."""
        rows = np.full(groups + 1, -1, dtype=np.int64)
        images = np.flatnonzero(self.operations == operation)
        rows[self._groups[images]] = images
        return rows

    def changes(self) -> pa.Table:
        """Return the changes."""
        first, size = self._first, len(self._first)
        taken = pa.array(first)
        streams = self.values("cdc$stream_id")
        if streams is None or streams.null_count:
            raise missing_value_error("cdc$stream_id")
        times = pa.array(self.timestamps[first]).cast(TIMESTAMP)
        before_state, before_columns = self._before_states()
        columns: dict[str, Any] = {
            "cdc$stream_id": streams.take(taken),
            "cdc$time": self.values("cdc$time").take(taken),
            "cdc$batch_seq_no": pa.array(self.numbers[first].astype(np.int32)),
            WRITTEN_AT: times,
            "op": self._letters(),
            "ts": times,
            "before": self._row_values(self._before),
            "after": self._row_values(self._after),
            "before_state": before_state,
            "before_columns": before_columns,
            "after_state": self._after_states(),
            "kind": self._kinds(),
            "key": self._key_values(),
            "ttl": self._least_ttls(),
            "range": self._range_values(),
            "changes": self._changed_values(),
            EXACT: pa.array(self._exact_by_change(), EXACT_COLUMN.type) if self._exact_values else None,
        }
        if self.schema.has_decoded_attributes:
            columns |= self._item_columns(columns)
        fields = changes_schema(self.schema)
        return pa.table(
            [
                pa.nulls(size, field.type) if (values := columns[field.name]) is None else values.cast(field.type)
                for field in fields
            ],
            schema=fields,
        )

    def _item_columns(self, columns: Mapping[str, Any]) -> dict[str, pa.Array]:
        """Return the items of an Alternator table before and after, and the names of removed attributes."""
        images = []
        for side in ("before", "after"):
            is_full = compute.equal(columns[f"{side}_state"], FULL)
            images.append(compute.if_else(is_full, columns[side], pa.scalar(None, columns[side].type)))
        is_new = np.asarray(compute.equal(columns["before_state"], ABSENT))
        removed = find_removed_attributes(images[0], images[1], columns["changes"], is_new)
        is_absent = compute.equal(columns["after_state"], ABSENT)
        return {
            "old_item": items_from_images(self.schema, images[0]),
            "new_item": items_from_images(self.schema, images[1]),
            "removed_attributes": compute.if_else(is_absent, pa.scalar(None, removed.type), removed),
        }

    def _letters(self) -> pa.Array:
        inserted = self._is_upsert & self._inserted[self._of_group]
        return pa.array(np.where(inserted, CREATE, np.where(self._is_upsert, UPDATE, DELETE)))

    def _kinds(self) -> pa.Array:
        operations = self.operations[self._first]
        operations = np.where(self._range_of >= 0, Operation.RANGE_START_INCLUSIVE, operations)
        inserted = self._is_upsert & self._inserted[self._of_group]
        operations = np.where(inserted, Operation.INSERT, operations)
        names = dict(sorted((int(operation), name) for operation, name in _KINDS.items()))
        return pa.array(list(names.values())).take(pa.array(np.searchsorted(list(names), operations)))

    def _before_states(self) -> tuple[pa.Array, pa.Array]:
        """Return what is known of each row before its write, and the known columns of partial rows."""
        columns = _value_columns(self.schema)
        static = np.array([item.kind == "static" for item in columns], dtype=bool)
        own = self._is_static[:, None] == static[None, :]
        shown = np.zeros((self.size, len(columns)), dtype=bool)
        for index, item in enumerate(columns):
            shown[:, index] = self._has_value(item.name) | self.true(f"cdc$deleted_{item.name}")
        known, exists = own & shown[self._before], self._before >= 0
        full = exists & (known == own).all(axis=1)
        partial = exists & ~full
        certain = self._is_certain(self._images.preimages_us, Operation.PRE_IMAGE)
        # Only some releases give the deletion of a partition that is one row, or of an expired row, a pre-image.
        judged = self._is_upsert | (self.operations[self._first] == Operation.ROW_DELETE)
        states = np.select([full, partial, judged & certain], [FULL, PARTIAL, ABSENT], UNKNOWN)
        listed = known & partial[:, None]
        names = pa.array([item.name for item in _value_columns(self._stored)], pa.string())
        offsets = np.concatenate([[0], np.cumsum(listed.sum(axis=1))]).astype(np.int32)
        values = names.take(pa.array(np.nonzero(listed)[1]))
        lists = pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~partial))
        return pa.array(states), lists

    def _has_value(self, name: str) -> np.ndarray:
        """Return the log rows (bool) with a value of a column."""
        values = self.values(name)
        return np.zeros(self.size, dtype=bool) if values is None else np.asarray(compute.is_valid(values))

    def _after_states(self) -> pa.Array:
        certain = self._is_certain(self._images.postimages_us, Operation.POST_IMAGE)
        absent = ~self._is_upsert | certain
        return pa.array(np.select([self._after >= 0, absent], [FULL, ABSENT], UNKNOWN))

    def _is_certain(self, since_us: Microseconds | None, operation: Operation) -> np.ndarray:
        """Return the changes (bool) whose write has all images of a kind: a missing one is of a row that is absent."""
        with_image = np.isin(self.batches[self._first], list(self._image_batches[int(operation)]))
        return with_image if since_us is None else with_image | (self.timestamps[self._first] >= since_us)

    def _row_values(self, rows: np.ndarray) -> pa.Array:
        """Return the base row of the image in each log row; null for -1."""
        missing = rows < 0
        indices = pa.array(np.where(missing, 0, rows), mask=missing)
        fields, arrays = [], []
        for item, stored in zip(self.schema.selected, self._stored.selected, strict=True):
            fields.append(pa.field(stored.name, arrow_type(stored.type)))
            arrays.append(_base_values(item.type, self._column(item.name, item.type).take(indices)))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(missing))

    def _column(self, name: str, kind: CqlType) -> pa.Array:
        """Return a column of the log with its current type; nulls if the log lacks it."""
        values, due = self.values(name), arrow_type(stored_type(get_logged_type(kind)))
        if values is None:
            return pa.nulls(self.size, due)
        return values if values.type == due else values.cast(due)

    def _key_values(self) -> pa.Array:
        keys = (*self.schema.partition_key, *self.schema.clustering_key)
        taken = pa.array(self._first)
        fields, arrays, depth = [], [], len(self.schema.partition_key)
        shared = self._shared_depths()
        for index, (item, stored) in enumerate(
            zip(keys, (*self._stored.partition_key, *self._stored.clustering_key), strict=True)
        ):
            values = self._column(item.name, item.type).take(taken)
            if index >= depth:
                hidden = pa.array((self._range_of >= 0) & (shared <= index - depth))
                values = compute.if_else(hidden, pa.scalar(None, values.type), values)
            fields.append(pa.field(stored.name, arrow_type(stored.type)))
            arrays.append(values)
        return pa.StructArray.from_arrays(arrays, fields=fields)

    def _shared_depths(self) -> np.ndarray:
        """Return of each change the number of leading clustering columns that both bounds of its range share."""
        shared = np.zeros(len(self._first), dtype=np.int64)
        for change in np.flatnonzero(self._range_of >= 0).tolist():
            start, end = self._ranges[self._range_of[change]]
            if start is None or end is None:
                row = end if start is None else start
                assert row is not None
                shared[change] = max(int(self.depth[row]) - 1, 0)
                continue
            for wire in self.clustering_wires[: min(int(self.depth[start]), int(self.depth[end]))]:
                one, other = take_wire_rows(wire, np.array([start])), take_wire_rows(wire, np.array([end]))
                if not one.equals(other):
                    break
                shared[change] += 1
        return shared

    def _range_values(self) -> pa.Array | None:
        if not self.schema.clustering_key or not self._ranges:
            return None
        fields = changes_schema(self.schema).field("range").type
        sides = []
        for is_end in (False, True):
            rows, depths, inclusive = self._bounds(is_end=is_end)
            sides += [self._bound_values(rows, depths), pa.array(inclusive, mask=self._range_of < 0)]
        return pa.StructArray.from_arrays(sides, fields=list(fields), mask=pa.array(self._range_of < 0))

    def _bounds(self, *, is_end: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for one side of each range the row with its columns, how many it has, and if it is inclusive."""
        rows = np.zeros(len(self._first), dtype=np.int64)
        depths, inclusive = np.zeros_like(rows), np.ones(len(rows), dtype=bool)
        for change in np.flatnonzero(self._range_of >= 0).tolist():
            pair = self._ranges[self._range_of[change]]
            row, other = (pair[1], pair[0]) if is_end else pair
            if row is None:
                # The log omits a bound at the end of the rows that share all columns but the other bound's last.
                assert other is not None
                rows[change], depths[change] = other, max(int(self.depth[other]) - 1, 0)
                continue
            rows[change], depths[change] = row, self.depth[row]
            inclusive[change] = self.operations[row] in _INCLUSIVE
        return rows, depths, inclusive

    def _bound_values(self, rows: np.ndarray, depths: np.ndarray) -> pa.Array:
        """Return the columns of bounds; null for a bound without columns, which is open."""
        fields, arrays = [], []
        for index, (item, stored) in enumerate(
            zip(self.schema.clustering_key, self._stored.clustering_key, strict=True)
        ):
            indices = pa.array(rows, mask=depths <= index)
            fields.append(pa.field(stored.name, arrow_type(stored.type)))
            arrays.append(self._column(item.name, item.type).take(indices))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(depths == 0))

    def _least_ttls(self) -> pa.Array:
        """Return the least TTL (s) of each upsert; null for none."""
        least = np.full(int(self._groups.max()) + 1, np.iinfo(np.int64).max)
        rows = self._upsert_rows[self.ttls[self._upsert_rows] > 0]
        np.minimum.at(least, self._groups[rows], self.ttls[rows])
        ttls = least[self._of_group]
        return pa.array(ttls, mask=~self._is_upsert | (ttls == np.iinfo(np.int64).max))

    def _changed_values(self) -> pa.Array | None:
        """Return what each upsert wrote; null for deletions, and for writes that the log may have only keys of."""
        columns = _value_columns(self.schema)
        if not columns:
            return None
        upserts = np.flatnonzero(self._is_upsert)
        numbers = np.full(int(self._groups.max()) + 1, -1, dtype=np.int64)
        numbers[self._of_group[upserts]] = upserts
        owners = numbers[self._groups[self._upsert_rows]]
        fields, arrays = [], []
        touched = np.zeros(len(self._first), dtype=bool)
        for item, stored in zip(columns, _value_columns(self._stored), strict=True):
            values = self._written(item, stored, owners)
            touched |= np.asarray(values.is_valid())
            fields.append(pa.field(stored.name, _change_type(stored.type)))
            arrays.append(values)
        since_us = self._images.values_us
        certain = np.zeros(len(touched), bool) if since_us is None else self.timestamps[self._first] >= since_us
        missing = ~self._is_upsert | ~(touched | certain)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(missing))

    def _written(self, item: Column, stored: Column, owners: np.ndarray) -> pa.Array:
        """Return what was written to a column, by change; `owners` are the changes of the upsert rows."""
        size, rows = len(self._first), self._upsert_rows
        deleted = np.zeros(size, dtype=bool)
        deleted[owners[self.true(f"cdc$deleted_{item.name}")[rows]]] = True
        values = self._column(item.name, item.type).take(pa.array(rows))
        kind = _change_type(stored.type)
        if not item.type.multicell:
            written = _last_of(owners, values, size)
            mask = deleted | np.asarray(written.is_valid())
            return pa.StructArray.from_arrays([written, pa.array(deleted)], fields=list(kind), mask=pa.array(~mask))
        removed_name, removed_type = f"cdc$deleted_elements_{item.name}", kind.field("removed").type
        removed = self.values(removed_name)
        removed = pa.nulls(len(rows), removed_type) if removed is None else removed.take(pa.array(rows))
        if isinstance(item.type, UserType):
            assert isinstance(stored.type, UserType)
            removed = _field_names(removed, stored.type.field_names)
            added = _join_fields(owners, values, size)
        else:
            added = _join_elements(owners, values, size)
        removed = _join_elements(owners, removed.cast(removed_type), size)
        mask = deleted | np.asarray(added.is_valid()) | np.asarray(removed.is_valid())
        return pa.StructArray.from_arrays([added, removed, pa.array(deleted)], fields=list(kind), mask=pa.array(~mask))

    def _exact_by_change(self) -> list[list[tuple[str, str]] | None]:
        """Return the exact values that columns only approximate, by the path of the column."""
        written: dict[int, list[int]] = {}
        for row in self._upsert_rows.tolist():
            written.setdefault(int(self._groups[row]), []).append(row)
        keys = {key.name for key in (*self._stored.partition_key, *self._stored.clustering_key)}
        by_change: list[list[tuple[str, str]] | None] = []
        for index, first in enumerate(self._first.tolist()):
            rows = [("key", first), ("before", int(self._before[index])), ("after", int(self._after[index]))]
            if self._is_upsert[index]:
                rows += [("changes", row) for row in written[int(self._of_group[index])]]
            pairs = [
                (f"{part}.{name}", values[row])
                for part, row in rows
                for name, values in self._exact_values.items()
                if row in values and (part in ("before", "after") or (part == "key") == (name in keys))
            ]
            by_change.append(pairs or None)
        return by_change


def _base_values(kind: CqlType, values: pa.Array) -> pa.Array:
    """Return logged values in the form of the base table: lists without their keys, in the order of these."""
    if not (isinstance(kind, ListType) and kind.multicell):
        return values
    offsets = np.asarray(values.offsets, dtype=np.int64)
    start, end = int(offsets[0]), int(offsets[-1])
    keys = encode_column(TIMEUUID, values.keys.slice(start, end - start))
    owners = np.repeat(np.arange(len(values)), np.diff(offsets))
    order = np.lexsort((rank_values(TIMEUUID, keys), owners))
    items = values.items.slice(start, end - start).take(pa.array(order))
    bounds = pa.array((offsets - start).astype(np.int32))
    return pa.ListArray.from_arrays(bounds, items, type=array_type(items.type), mask=values.is_null())


def _last_of(owners: np.ndarray, values: pa.Array, size: int) -> pa.Array:
    """Return of each owner the last of its values that is not null."""
    valid = np.flatnonzero(np.asarray(values.is_valid()))
    rows = np.full(size, -1, dtype=np.int64)
    rows[owners[valid]] = valid
    return values.take(pa.array(np.where(rows < 0, 0, rows), mask=rows < 0))


def _join_fields(owners: np.ndarray, values: pa.Array, size: int) -> pa.Array:
    """Return of each owner one struct of the fields in its structs; null if it has none with a field."""
    fields = [_last_of(owners, part, size) for part in values.flatten()]
    present = np.zeros(size, dtype=bool)
    for part in fields:
        present |= np.asarray(part.is_valid())
    return pa.StructArray.from_arrays(fields, fields=list(values.type), mask=pa.array(~present))


def _join_elements(owners: np.ndarray, values: pa.Array, size: int) -> pa.Array:
    """Return of each owner one list or map with the elements of all of its values; null if all of them are null."""
    valid = pa.array(np.asarray(values.is_valid()))
    taken, taken_owners = values.filter(valid), owners[np.asarray(valid)]
    order = np.argsort(taken_owners, kind="stable")
    taken, taken_owners = taken.take(pa.array(order)), taken_owners[order]
    lengths = np.diff(np.asarray(taken.offsets, dtype=np.int64))
    counts = np.bincount(np.repeat(taken_owners, lengths), minlength=size)
    bounds = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    present = np.zeros(size, dtype=bool)
    present[taken_owners] = True
    start, length = (taken.offsets[0].as_py(), int(lengths.sum())) if len(taken) else (0, 0)
    mask = pa.array(~present)
    if pat.is_map(taken.type):
        keys, items = taken.keys.slice(start, length), taken.items.slice(start, length)
        return pa.MapArray.from_arrays(bounds, keys, items, taken.type, mask=mask)
    return pa.ListArray.from_arrays(bounds, taken.values.slice(start, length), type=taken.type, mask=mask)


def _field_names(indices: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return lists of field names for lists of their positions; a position without a name is its number."""
    if pat.is_string(indices.type.value_type):
        return indices
    flat = [names[index] if index < len(names) else str(index) for index in indices.values.to_pylist()]
    return pa.ListArray.from_arrays(
        indices.offsets, pa.array(flat, pa.string()), type=array_type(pa.string()), mask=indices.is_null()
    )
