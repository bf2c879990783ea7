"""What the last look at a live cluster left out, since it was not whole there: it is wrong until it is taken in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds, from_datetime, to_datetime
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import LEFT_OUT


@dataclass(frozen=True)
class LeftOut:
    """One thing in words, and since when (µs) looks leave it out."""

    said: str
    since_us: Microseconds


def left_out(lake: Lake) -> list[LeftOut]:
    """All of it, what was left out first at the head."""
    rows = lake.read(LEFT_OUT).to_pylist()
    found = (LeftOut(row["said"], from_datetime(row["since"])) for row in rows)
    return sorted(found, key=lambda each: (each.since_us, each.said))


def keep(lake: Lake, clock: Clock, lines: Sequence[str]) -> None:
    """Keep what a look left out, a line each, in the place of what the one before did; the same is no commit."""

    def rule(before: pa.Table) -> pa.Table | None:
        since = {row["said"]: row["since"] for row in before.to_pylist()}
        if since.keys() == set(lines):
            return None
        now = to_datetime(clock.now_us())
        rows = [{"said": line, "since": since.get(line, now)} for line in dict.fromkeys(lines)]
        return pa.Table.from_pylist(rows, schema=LEFT_OUT.schema)

    lake.transact(LEFT_OUT, rule, whole=True)
