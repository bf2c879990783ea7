"""The partitions of a base table by key: those that were in use last in memory, the others in a file of their own."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from typing import Any

from cdc_platform.cql.mutation import Mutation
from cdc_platform.cql.schema import TableSchema

MOST_IN_MEMORY = 2_000


class Partitions:
    """What is known of partitions, by their serialized keys; None of those to which nothing was written.

    Of more than `MOST_IN_MEMORY` those that were set first go to the file.
    """

    def __init__(self) -> None:
        self._near: dict[bytes, Mutation | None] = {}
        self._files: list[_File] = []
        self._shared = False
        """Whether a copy reads the last file too, so that nothing more may be put there."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._near or any(file.data(key) is not None for file in self._files)

    def get(self, schema: TableSchema, key: bytes) -> Mutation | None:
        """A partition in the table's schema of now."""
        if key in self._near:
            return self._near[key]
        data = next((found for file in reversed(self._files) if (found := file.data(key)) is not None), None)
        if data is None:
            return None
        fields = pickle.loads(data)
        found = None if fields is None else Mutation(schema, *fields)
        self.put(key, found)
        return found

    def put(self, key: bytes, state: Mutation | None) -> None:
        """Keep what a partition has come to."""
        self._near[key] = state
        if len(self._near) > MOST_IN_MEMORY:
            self._store()

    def __iter__(self) -> Iterator[bytes]:
        """The keys of all partitions."""
        return iter({*self._near, *(key for file in self._files for key in file)})

    def copy(self) -> Partitions:
        """The same partitions, whatever becomes of these later."""
        copied = Partitions()
        copied._near, copied._files = dict(self._near), list(self._files)
        copied._shared = self._shared = True
        return copied

    def _store(self) -> None:
        if self._shared or not self._files:
            self._files.append(_File())
            self._shared = False
        first = list(self._near)[: MOST_IN_MEMORY // 2]
        self._files[-1].put((key, pickle.dumps(_fields(self._near.pop(key)))) for key in first)


def _fields(state: Mutation | None) -> tuple[Any, ...] | None:
    """All but the schema, which is the table's."""
    if state is None:
        return None
    return (
        state.partition_key,
        state.partition_tombstone,
        state.row_tombstones,
        state.range_tombstones,
        state.static,
        state.rows,
    )


class _File:
    """Bytes by keys, in a file that is gone when this is."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("CREATE TABLE partitions (key BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID")

    def put(self, pairs: Iterator[tuple[bytes, bytes]]) -> None:
        """Keep them in place of what their keys had."""
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO partitions VALUES (?, ?)", pairs)
        self._connection.execute("COMMIT")

    def data(self, key: bytes) -> bytes | None:
        """What a key has."""
        found = self._connection.execute("SELECT data FROM partitions WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def __iter__(self) -> Iterator[bytes]:
        """All keys."""
        return (key for (key,) in self._connection.execute("SELECT key FROM partitions"))
