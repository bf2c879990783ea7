"""Registered consumers of CDC logs, their positions, and the stream sets that they skipped as empty.

A position moves by compare-and-set on the window number, in one Delta commit. Streams that a consumer has not read
yet must not be removed. A skipped set is recorded before the position moves past it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.delta import Filter, Lake, get_verified_lake
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.tables import CONSUMERS, PASSED_OVER

ConsumerKey = tuple[str, str, str]
"""What names a consumer: its name, the keyspace and the table."""


def read_skipped_sets(lake: Lake) -> dict[ConsumerKey, list[Microseconds]]:
    """The sets (µs, oldest first) that each consumer has passed over."""
    found: dict[ConsumerKey, list[Microseconds]] = {}
    for row in lake.read(PASSED_OVER).to_pylist():
        key = row["name"], row["keyspace_name"], row["table_name"]
        found.setdefault(key, []).append(us_from_datetime(row["set_timestamp"]))
    return {key: sorted(sets) for key, sets in found.items()}


def record_skipped_sets(lake: Lake, clock: Clock, consumer: ConsumerKey, sets_us: Iterable[Microseconds]) -> None:
    """Note that a consumer passes these sets (µs) over; what is noted stays as it is."""
    name, keyspace, table = consumer
    now = datetime_from_us(clock.now_us())
    rows = [
        {
            "name": name,
            "keyspace_name": keyspace,
            "table_name": table,
            "set_timestamp": datetime_from_us(each),
            "passed_at": now,
        }
        for each in sets_us
    ]
    if rows:
        lake.merge(PASSED_OVER, pa.Table.from_pylist(rows, schema=PASSED_OVER.schema), update=False)


def delete_skipped_sets(lake: Lake, consumer: ConsumerKey, sets_us: Iterable[Microseconds] | None = None) -> None:
    """Take the notes of a consumer out: of these sets (µs), which it reads after all, or of all."""
    where: list[Filter] = [
        (column, "=", value) for column, value in zip(("name", "keyspace_name", "table_name"), consumer, strict=True)
    ]
    if sets_us is not None:
        where.append(("set_timestamp", "in", [datetime_from_us(each) for each in sets_us]))
    lake.delete(PASSED_OVER, where)


INGEST_CONSUMER = "ingest"
"""The name of the consumer that brings the log of a live cluster into the lake."""


@dataclass(frozen=True)
class Consumer:
    """A reader of one table's log. Times in µs.

    `set_timestamp_us`: the generation or stream set it reads, None before the first; `position_us`: every row at or
    before it is read; `window_number`: windows read so far.
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
        """What names it: its name, the keyspace and the table."""
        return self.name, self.keyspace_name, self.table_name

    @property
    def full_name(self) -> str:
        """As people name it: `name of keyspace.table`."""
        return f"{self.name} of {self.keyspace_name}.{self.table_name}"


def read_consumers(lake: Lake) -> list[Consumer]:
    """All consumers, by name and table."""
    found = [
        Consumer(
            row["name"],
            row["keyspace_name"],
            row["table_name"],
            None if row["set_timestamp"] is None else us_from_datetime(row["set_timestamp"]),
            us_from_datetime(row["position"]),
            row["window_number"],
            us_from_datetime(row["updated_at"]),
        )
        for row in lake.read(CONSUMERS).to_pylist()
    ]
    return sorted(found, key=lambda consumer: consumer.key)


def find_consumer(lake: Lake, name: str, keyspace: str, table: str) -> Consumer:
    """The consumer of this name for this table.

    Raises:
        NotFound: it is not registered.
    """
    for consumer in read_consumers(lake):
        if consumer.key == (name, keyspace, table):
            return consumer
    raise _not_registered(name, keyspace, table)


def register_consumer(
    lake: Lake, clock: Clock, name: str, keyspace: str, table: str, *, position_us: Microseconds
) -> Consumer:
    """Register a consumer that has everything at or before `position_us` (µs) behind it.

    One that is registered stays as it is, wherever it has got to.

    Raises:
        InputError: the name is empty.
    """
    if not name.strip():
        raise InputError("a consumer needs a name that is not empty: it is what names the checkpoint")
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

    Compare-and-set: of two processes that read the same window one moves it, the other gets a ConflictError, or, if
    it asks for the very same move, the consumer as it stands.

    Raises:
        NotFound: it is not registered.
        ConflictError: its window is another one by now.
        StateError: the position or the set would go back.
    """
    standing = find_consumer(lake, *consumer.key)
    moved = Consumer(*consumer.key, set_timestamp_us, position_us, expected_window + 1, clock.now_us())
    if _progress(standing) == _progress(moved):
        return standing
    if standing.window_number != expected_window:
        raise _overtaken(standing, expected_window)
    _assert_forward(standing, moved)
    if not lake.compare_and_set(CONSUMERS, _rows(moved), ("window_number", expected_window)):
        standing = find_consumer(lake, *consumer.key)
        if _progress(standing) != _progress(moved):
            raise _overtaken(standing, expected_window)
    return find_consumer(lake, *consumer.key)


def forget_consumer(lake: Lake, name: str, keyspace: str, table: str) -> None:
    """Take a consumer out: it holds nothing any more, and what it has not read may be removed.

    Raises:
        NotFound: it is not registered.
        NotAsCommitted: its row, or the notes of what it passed over, are not as committed.
    """
    lake = get_verified_lake(lake, "consumers forget")
    lake.verify(CONSUMERS, PASSED_OVER)
    find_consumer(lake, name, keyspace, table)
    # First: a note without its consumer would be taken for one of the next that has its name.
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
            f"{format_us(moved.position_us)}: forget it and register it anew to read again"
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
