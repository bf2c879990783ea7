"""The notes of generations and stream sets that consumers passed over because not one stream of theirs was there.

A note is written before the position moves behind the set. Whether its streams came later the audit of logs says.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, from_datetime, to_datetime
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import PASSED_OVER

Key = tuple[str, str, str]
"""What names a consumer: its name, the keyspace and the table."""


def passed_over(lake: Lake) -> dict[Key, list[Microseconds]]:
    """The sets (µs, oldest first) that each consumer has passed over."""
    found: dict[Key, list[Microseconds]] = {}
    for row in lake.read(PASSED_OVER).to_pylist():
        key = row["name"], row["keyspace_name"], row["table_name"]
        found.setdefault(key, []).append(from_datetime(row["set_timestamp"]))
    return {key: sorted(sets) for key, sets in found.items()}


def note(lake: Lake, clock: Clock, consumer: Key, sets_us: Iterable[Microseconds]) -> None:
    """Note that a consumer passes these sets (µs) over; what is noted stays as it is."""
    name, keyspace, table = consumer
    now = to_datetime(clock.now_us())
    rows = [
        {
            "name": name,
            "keyspace_name": keyspace,
            "table_name": table,
            "set_timestamp": to_datetime(each),
            "passed_at": now,
        }
        for each in sets_us
    ]
    if rows:
        lake.merge(PASSED_OVER, pa.Table.from_pylist(rows, schema=PASSED_OVER.schema), update=False)


def forget(lake: Lake, consumer: Key, sets_us: Iterable[Microseconds] | None = None) -> None:
    """Take the notes of a consumer out: of these sets (µs), which it reads after all, or of all."""
    where: list[Filter] = [
        (column, "=", value) for column, value in zip(("name", "keyspace_name", "table_name"), consumer, strict=True)
    ]
    if sets_us is not None:
        where.append(("set_timestamp", "in", [to_datetime(each) for each in sets_us]))
    lake.delete(PASSED_OVER, where)
