"""Pre-images and post-images: which rows of a partition a change touches, and what they held before and after.

It carries the partition's state from one timestamp of a mutation to the next; how images become log rows is `rows`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc_platform.cql.live import Partition
from cdc_platform.cql.mutation import Marker, Mutation, RowChange, merge
from cdc_platform.cql.ranges import Key
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import Value
from cdc_platform.log.split import Changes

Image = tuple[Key | None, dict[str, Value | None]]
"""The clustering key of a row (None: the static row), and the values of its columns, None where there is none."""


class Images:
    """The running state of one partition while the changes of a mutation go over it."""

    def __init__(self, schema: TableSchema, partition_key: Key, state: Mutation | None, now_us: int | None) -> None:
        """`state` is what the partition holds, None for nothing; `now_us` says what of it has expired."""
        self._schema = schema
        self._state = Mutation(schema, partition_key) if state is None else replace(state, schema=schema)
        self._now_us = now_us

    def before(self, changes: Changes) -> Iterator[Image]:
        """The pre-images: rows that are there, static one first, then in clustering order.

        They have the touched columns alone, unless the table wants them in full or the whole row is deleted.
        """
        return self._images(changes, full=self._schema.cdc.preimage == "full")

    def after(self, changes: Changes) -> Iterator[Image]:
        """The post-images, always in full, of the rows that are still there."""
        return self._images(changes, full=True)

    def apply(self, changes: Changes) -> None:
        """Let the changes of one timestamp take effect."""
        self._state = merge([self._state, _mutation(self._state, changes)])

    def _images(self, changes: Changes, *, full: bool) -> Iterator[Image]:
        partition = Partition(self._state, self._now_us)
        static, touched = self._touched(changes)
        if static:
            values = partition.static()
            if values:
                yield None, _shown(self._schema.statics, values, None if full else static)
        for key in sorted(touched, key=self._schema.clustering_order):
            if partition.has_row(key):
                yield key, _shown(self._schema.regulars, partition.row(key), None if full else touched[key])

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


def _shown(columns: tuple[Column, ...], values: dict[str, Value], names: set[str] | None) -> dict[str, Value | None]:
    return {column.name: values.get(column.name) for column in columns if names is None or column.name in names}


def _mutation(state: Mutation, changes: Changes) -> Mutation:
    """The changes of one timestamp as a mutation again."""
    parts = []
    for upsert in changes.upserts:
        marker = Marker(changes.timestamp, upsert.ttl) if upsert.inserted else None
        part = Mutation(state.schema, state.partition_key)
        if upsert.key is None:
            parts.append(replace(part, static=upsert.columns))
        else:
            parts.append(replace(part, rows={upsert.key: RowChange(marker, upsert.columns)}))
    rest = Mutation(
        state.schema,
        state.partition_key,
        changes.timestamp if changes.partition_deleted else None,
        dict.fromkeys(changes.row_deletions, changes.timestamp),
        changes.ranges,
    )
    return merge([*parts, rest])
