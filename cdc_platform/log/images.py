"""Pre-images and post-images: which rows of a partition a change touches, and what they held before and after.

As in ScyllaDB (cdc/log.cc) the values that a row held are read once, and every change is put over them in the order of
the log: timestamps of what was there, and expiry, are not asked again. How images become log rows is `rows`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cdc_platform.clock import Microseconds
from cdc_platform.cql.live import Partition, collected
from cdc_platform.cql.mutation import Cell, CollectionChange, ColumnChange, Mutation
from cdc_platform.cql.ranges import Key
from cdc_platform.cql.schema import Column
from cdc_platform.cql.types import CqlType, SetType, UserType, Value
from cdc_platform.log.split import Changes, Upsert

Image = tuple[Key | None, dict[str, Value | None]]
"""The clustering key of a row (None: the static row), and the values of its columns, None where there is none."""

_State = dict[str, Value | None]
"""What is known of a row: its values, and None for columns that a change has emptied."""


class Images:
    """The running state of the rows that a mutation touches while its changes go over them."""

    def __init__(self, mutation: Mutation, state: Mutation | None, now_us: Microseconds | None) -> None:
        """`state` is what the partition held, None for nothing; `now_us` says what of it has expired."""
        schema = mutation.schema
        self._schema = schema
        self._rows: dict[Key, _State] = {}
        self._static: _State = {}
        self._static_touched = False
        if state is None:
            return
        partition = Partition(replace(state, schema=schema), now_us)
        for key in _named(mutation):
            if partition.has_row(key):
                self._rows[key] = dict(partition.row(key))
        if mutation.static:
            self._static = dict(partition.static())

    def before(self, changes: Changes) -> Iterator[Image]:
        """The pre-images: rows that are known, static one first, then in clustering order.

        They have the touched columns alone, unless the table wants them in full or the whole row is deleted.
        """
        return self._images(changes, full=self._schema.cdc.preimage == "full")

    def after(self, changes: Changes) -> Iterator[Image]:
        """The post-images, always in full, of the rows that were not deleted; also of those that hold nothing."""
        return self._images(changes, full=True)

    def apply(self, changes: Changes) -> None:
        """Let the changes of one timestamp take effect, in the order in which the log tells them.

        A range or a partition's deletion takes its rows; the static row outlives even the latter here (cdc/log.cc,
        process_change_visitor).
        """
        for upsert in changes.upserts:
            self._apply(upsert)
        for key in changes.row_deletions:
            self._rows.pop(key, None)
        if changes.ranges:
            kept = [key for key in self._rows if not any(each.covers(self._schema, key) for each in changes.ranges)]
            self._rows = {key: self._rows[key] for key in kept}
        if changes.partition_deleted:
            self._rows = {}

    def _apply(self, upsert: Upsert) -> None:
        if upsert.key is None:
            self._static_touched = True
            row = self._static
        else:
            row = self._rows.setdefault(upsert.key, {})
        for name, change in upsert.columns.items():
            row[name] = _after(self._schema.column(name).type, row.get(name), change)

    def _images(self, changes: Changes, *, full: bool) -> Iterator[Image]:
        static, touched = self._touched(changes)
        # A static row that holds nothing is told of once something was done to it (cdc/log.cc, generate_image).
        if static and (self._static or self._static_touched):
            yield None, _shown(self._schema.statics, self._static, None if full else static)
        for key in sorted(touched, key=self._schema.clustering_order):
            if key in self._rows:
                yield key, _shown(self._schema.regulars, self._rows[key], None if full else touched[key])

    def _touched(self, changes: Changes) -> tuple[set[str], dict[Key, set[str]]]:
        """The touched columns of the static row, and of each clustered row; ranges and partitions touch none.

        But for a table without clustering columns, where the partition is the row.
        """
        static: set[str] = set()
        rows: dict[Key, set[str]] = {}
        for upsert in changes.upserts:
            (static if upsert.key is None else rows.setdefault(upsert.key, set())).update(upsert.columns)
        whole = {column.name for column in self._schema.regulars}
        gone = [
            *changes.row_deletions,
            *([()] if changes.partition_deleted and not self._schema.clustering_key else []),
        ]
        rows.update(dict.fromkeys(gone, whole))
        return static, rows


def _named(mutation: Mutation) -> set[Key]:
    """The keys of the rows that a mutation names one by one, which are the rows that are read for it."""
    named = {*mutation.rows, *mutation.row_tombstones}
    # Without clustering columns the partition is one row, and its deletion names it.
    if not mutation.schema.clustering_key and mutation.partition_tombstone is not None:
        named.add(())
    return named


def _shown(columns: tuple[Column, ...], values: _State, names: set[str] | None) -> dict[str, Value | None]:
    return {column.name: values.get(column.name) for column in columns if names is None or column.name in names}


def _after(kind: CqlType, before: Value | None, change: ColumnChange) -> Value | None:
    """The value of a column behind a change of it, whatever the timestamps are.

    A collection that lost its last element is an empty value; one that was never filled, or deleted as a whole, is
    none. A user type is never none once it was written to. A change that touches no element at all leaves none, which
    is how ScyllaDB has it.
    """
    if isinstance(change, Cell):
        return None if change.dead else change.value
    known = None if change.tombstone is not None else before
    live = {key: cell.value for key, cell in change.elements.items() if not cell.dead}
    dead = len(live) < len(change.elements)
    if not live and not isinstance(kind, UserType) and not (dead and known is not None):
        return None
    elements = {**_elements(kind, known), **live}
    return collected(kind, {key: value for key, value in elements.items() if not _is_dead(change, key)})


def _is_dead(change: CollectionChange, key: Value) -> bool:
    return key in change.elements and change.elements[key].dead


def _elements(kind: CqlType, value: Value | None) -> Mapping[Value, Value]:
    """The elements of a value as the log has it, by the keys of their cells."""
    if value is None:
        return {}
    if isinstance(kind, UserType):
        return {index: inner for index, inner in enumerate(value) if inner is not None}
    return dict.fromkeys(value) if isinstance(kind, SetType) else dict(value)
