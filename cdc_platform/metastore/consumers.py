"""Registered consumers of CDC logs, their positions, and the stream sets that they skipped as empty.

A position moves by compare-and-set on the window number, in one Delta commit. Streams that a consumer has not read
yet must not be removed. A skipped set is recorded before the position moves past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.delta import Filter, Lake, get_verified_lake
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.tables import CONSUMERS, PASSED_OVER

ConsumerKey = tuple[str, str, str]
"""The key of a consumer: its name, the keyspace and the table."""


def read_skipped_sets(lake: Lake) -> dict[ConsumerKey, list[Microseconds]]:
    """Return the sets (µs, oldest first) that each consumer has skipped."""
    skipped: dict[ConsumerKey, list[Microseconds]] = {}
    for row in lake.read(PASSED_OVER).to_pylist():
        key = row["name"], row["keyspace_name"], row["table_name"]
        skipped.setdefault(key, []).append(us_from_datetime(row["set_timestamp"]))
    return {key: sorted(sets) for key, sets in skipped.items()}


def record_skipped_sets(lake: Lake, clock: Clock, consumer: ConsumerKey, sets_us: Iterable[Microseconds]) -> None:
    """Record that a consumer skips these sets (µs); existing records remain unchanged."""
    name, keyspace, table = consumer
    now = datetime_from_us(clock.now_us())
    rows = [
        {
            "name": name,
            "keyspace_name": keyspace,
            "table_name": table,
            "set_timestamp": datetime_from_us(set_us),
            "passed_at": now,
        }
        for set_us in sets_us
    ]
    if rows:
        lake.merge(PASSED_OVER, pa.Table.from_pylist(rows, schema=PASSED_OVER.schema), update=False)


def delete_skipped_sets(lake: Lake, consumer: ConsumerKey, sets_us: Iterable[Microseconds] | None = None) -> None:
    """Delete a consumer's records of these skipped sets (µs), because it will read them after all, or of all sets."""
    where: list[Filter] = [
        (column, "=", value) for column, value in zip(("name", "keyspace_name", "table_name"), consumer, strict=True)
    ]
    if sets_us is not None:
        where.append(("set_timestamp", "in", [datetime_from_us(set_us) for set_us in sets_us]))
    lake.delete(PASSED_OVER, where)


INGEST_CONSUMER = "ingest"
"""The name of the consumer that ingests the log of a live cluster into the lake."""


@dataclass(frozen=True)
class Consumer:
    """A reader of one table's log. Times in µs.

    `set_timestamp_us` is the generation or stream set that it reads, None before the first. It has read every row at or
    before `position_us`, and `window_number` windows so far.
    """

    name: str
    keyspace_name: str
    table_name: str
    set_timestamp_us: Microseconds | None
    position_us: Microseconds
    window_number: int
    updated_at_us: Microseconds

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the name, the keyspace and the table."""
        return self.name, self.keyspace_name, self.table_name

    @property
    def full_name(self) -> str:
        """Return `name of keyspace.table`, as people name it."""
        return f"{self.name} of {self.keyspace_name}.{self.table_name}"


def read_consumers(lake: Lake) -> list[Consumer]:
    """Return all consumers, by name and table."""
    return sorted(_read_consumers(lake), key=lambda consumer: consumer.key)


def _read_consumers(lake: Lake, where: Sequence[Filter] = ()) -> list[Consumer]:
    return [
        Consumer(
            row["name"],
            row["keyspace_name"],
            row["table_name"],
            None if row["set_timestamp"] is None else us_from_datetime(row["set_timestamp"]),
            us_from_datetime(row["position"]),
            row["window_number"],
            us_from_datetime(row["updated_at"]),
        )
        for row in lake.read(CONSUMERS, filters=where).to_pylist()
    ]


def find_consumer(lake: Lake, name: str, keyspace: str, table: str) -> Consumer:
    """Return the consumer of this name for this table.

    Raises:
        NotFound: it is not registered.
    """
    where: list[Filter] = [("name", "=", name), ("keyspace_name", "=", keyspace), ("table_name", "=", table)]
    for consumer in _read_consumers(lake, where):
        return consumer
    raise _not_registered(name, keyspace, table)


def register_consumer(
    lake: Lake, clock: Clock, name: str, keyspace: str, table: str, *, position_us: Microseconds
) -> Consumer:
    """Register a consumer that has read everything at or before `position_us` (µs).

    A registered consumer remains at its current position.

    Raises:
        InputError: the name is empty.
    """
    if not name.strip():
        raise InputError("the name of a consumer must not be empty, because it identifies the checkpoint")
    consumer = Consumer(name, keyspace, table, None, position_us, 0, clock.now_us())
    if lake.merge(CONSUMERS, _rows(consumer), update=False).inserted:
        return consumer
    return find_consumer(lake, name, keyspace, table)


def advance_consumer(
    lake: Lake,
    clock: Clock,
    consumer: Consumer,
    *,
    position_us: Microseconds,
    set_timestamp_us: Microseconds | None,
    expected_window: int,
) -> Consumer:
    """Move a consumer to `position_us` (µs) in the set of `set_timestamp_us`, as the window after `expected_window`.

    This is a compare-and-set. Of two processes that read the same window, one moves the consumer. The other gets a
    ConflictError, or the current consumer if it asks for the same move.

    Raises:
        NotFound: it is not registered.
        ConflictError: the consumer is at another window by now.
        StateError: the position or the set would go back.
    """
    current = find_consumer(lake, *consumer.key)
    moved = Consumer(*consumer.key, set_timestamp_us, position_us, expected_window + 1, clock.now_us())
    if _progress(current) == _progress(moved):
        return current
    if current.window_number != expected_window:
        raise _overtaken(current, expected_window)
    _assert_forward(current, moved)
    if not lake.compare_and_set(CONSUMERS, _rows(moved), ("window_number", expected_window)):
        current = find_consumer(lake, *consumer.key)
        if _progress(current) != _progress(moved):
            raise _overtaken(current, expected_window)
    return find_consumer(lake, *consumer.key)


def forget_consumer(lake: Lake, name: str, keyspace: str, table: str) -> None:
    """Delete a consumer, so that streams it has not read may be removed.

    Raises:
        NotFound: it is not registered.
        NotAsCommitted: its row, or the records of its skipped sets, are not as committed.
    """
    lake = get_verified_lake(lake, "consumers remove")
    lake.verify(CONSUMERS, PASSED_OVER)
    find_consumer(lake, name, keyspace, table)
    # Delete these first: a later consumer with the same name would inherit records that remain.
    delete_skipped_sets(lake, (name, keyspace, table))
    where: list[Filter] = [("name", "=", name), ("keyspace_name", "=", keyspace), ("table_name", "=", table)]
    if not lake.delete(CONSUMERS, where):
        raise _not_registered(name, keyspace, table)


def _not_registered(name: str, keyspace: str, table: str) -> NotFound:
    return NotFound(f"no consumer {name} of {keyspace}.{table} is registered; list them with: cdc-platform consumers")


def _progress(consumer: Consumer) -> tuple[int, int, int | None]:
    return consumer.window_number, consumer.position_us, consumer.set_timestamp_us


def _overtaken(standing: Consumer, expected_window: int) -> ConflictError:
    return ConflictError(
        f"consumer {standing.full_name} has read {standing.window_number} windows, not {expected_window}: another "
        "process reads under the same name; stop one of them, or give each its own name"
    )


def _assert_forward(standing: Consumer, moved: Consumer) -> None:
    if moved.position_us < standing.position_us:
        raise StateError(
            f"consumer {standing.full_name} is at {format_us(standing.position_us)}; it cannot go back to "
            f"{format_us(moved.position_us)}: remove and register it again to read from there"
        )
    before, after = standing.set_timestamp_us, moved.set_timestamp_us
    if before is not None and (after is None or after < before):
        raise StateError(
            f"consumer {standing.full_name} reads the set of {format_us(before)}; it cannot go back to "
            f"{'none' if after is None else format_us(after)}"
        )


def _rows(consumer: Consumer) -> pa.Table:
    set_us = consumer.set_timestamp_us
    row = {
        "name": consumer.name,
        "keyspace_name": consumer.keyspace_name,
        "table_name": consumer.table_name,
        "set_timestamp": None if set_us is None else datetime_from_us(set_us),
        "position": datetime_from_us(consumer.position_us),
        "window_number": consumer.window_number,
        "updated_at": datetime_from_us(consumer.updated_at_us),
    }
    return pa.Table.from_pylist([row], schema=CONSUMERS.schema)
