"""What time removes of tablet-based tables: stream sets of which no log can hold a row, and that every reader has read.

The oldest set that stays becomes the base: its whole set is opened at its timestamp, and nothing is closed there. A
collection decides by verified tables alone (`lake.verified`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdc_platform import failpoints
from cdc_platform.clock import HOUR_MS, Clock, Microseconds, Milliseconds, format_us, ms_to_datetime, us_of
from cdc_platform.errors import NotFound
from cdc_platform.generations import tablets
from cdc_platform.generations.expiry import Margins, held_until_us
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    CONSUMERS,
    TABLET_LAYOUTS,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
)
from cdc_platform.lake.turns import TABLES, in_turn
from cdc_platform.lake.verified import verified
from cdc_platform.records import cdc_tables, consumers, tablet_rows
from cdc_platform.records.consumers import Consumer
from cdc_platform.records.tablet_ledger import RESIZED
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED, of_table

log = logging.getLogger(__name__)

_Name = tuple[str, str]
STEP = "tablets gc"
"""How refusals name a collection."""


@dataclass(frozen=True)
class HeldBack:
    """The sets (ms, oldest first) that could go but for a consumer that has not read them to their end."""

    consumer: Consumer
    sets_ms: tuple[Milliseconds, ...]

    def __str__(self) -> str:
        count = len(self.sets_ms)
        return (
            f"{count} stream {'set is' if count == 1 else 'sets are'} held back by consumer {self.consumer.full_name}, "
            f"which has read up to {format_us(self.consumer.position_us)}"
        )


@dataclass(frozen=True)
class Collection:
    """What can go of one table: the sets of `removed_ms` (ms, oldest first); `base_ms` is the oldest that stays.

    `at_risk_ms` are those of them in which a row can still be, because it was written under a larger TTL than the
    table has now. `held_back` is what each consumer keeps of the sets that its TTL would let go.
    """

    keyspace: str
    table: str
    ttl_seconds: int
    base_ms: Milliseconds
    removed_ms: tuple[Milliseconds, ...]
    at_risk_ms: tuple[Milliseconds, ...]
    held_back: tuple[HeldBack, ...] = ()

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"


def plan(lake: Lake, clock: Clock, keyspace: str, table: str, *, ttl_seconds: int | None = None) -> Collection:
    """What can go of a table by its TTL of now, as ScyllaDB decides it, and by its consumers. Nothing is removed.

    With `ttl_seconds`: what could go if that were the TTL from now on; rows that are there keep theirs.

    Raises:
        NotFound: the table has no stream sets, or is not known.
    """
    times = tablet_rows.listed_times(lake, keyspace, table)
    if not times:
        raise NotFound(f"{keyspace}.{table} has no stream sets of tablets; list tables with: cdc-platform tables")
    known = cdc_tables.find(lake, keyspace, table).ttl_seconds
    readers = [each for each in consumers.consumers(lake) if each.key[1:] == (keyspace, table)]
    ttl_seconds = known if ttl_seconds is None else ttl_seconds
    return _collection(lake, (keyspace, table), times, ttl_seconds, readers, clock.now_ms())


@in_turn(TABLES)
def collect(lake: Lake, clock: Clock, keyspace: str, table: str, *, grace_ms: Milliseconds = HOUR_MS) -> Collection:
    """Remove what `plan` names, and what a collection that died has left.

    Timestamps go first: a reader in between finds a set that is gone, never one without streams. `grace_ms`: by how
    much the clock may be ahead of the machine's.

    Raises:
        As `plan`.
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
        ClockRefused: sets would go by a clock that is too far ahead of the machine's.
    """
    lake = verified(lake, STEP)
    lake.verify(CDC_TABLE_CHANGES, CDC_TABLES, CONSUMERS, TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
    found = plan(lake, clock, keyspace, table)
    if found.removed_ms:
        clock.assert_not_ahead(grace_ms, STEP)
    where = of_table(keyspace, table)
    base = ms_to_datetime(found.base_ms)
    _open_whole(lake, keyspace, table, found.base_ms)
    if found.removed_ms:
        lake.delete(TABLET_TIMESTAMPS, [*where, ("timestamp", "<", base)])
        log.info("%s: %d stream sets are gone.", found.full_name, len(found.removed_ms))
    failpoints.reached(failpoints.AFTER_TABLET_TIMESTAMPS_REMOVED)
    lake.delete(TABLET_STREAMS, [*where, ("timestamp", "<", base)])
    failpoints.reached(failpoints.AFTER_TABLET_STREAMS_REMOVED)
    lake.delete(TABLET_STREAMS, [*where, ("timestamp", "=", base), ("stream_state", "=", CLOSED)])
    # The row of the log's creation stays: it tells a log that was dropped from one that was made after it.
    lake.delete(TABLET_LAYOUTS, [*where, ("kind", "=", RESIZED), ("timestamp", "<", base)])
    return found


def due(lake: Lake, clock: Clock) -> list[Collection]:
    """Every collection of which something could go now by the TTL, by table: what may, and what is held back.

    Reads no stream IDs.
    """
    known = {(table.keyspace_name, table.table_name): table.ttl_seconds for table in cdc_tables.cdc_tables(lake)}
    times: dict[_Name, list[Milliseconds]] = {}
    for name, time in sorted(tablet_rows.listed_sets(lake)):
        times.setdefault(name, []).append(time)
    now_ms = clock.now_ms()
    over = [
        name
        for name, listed in times.items()
        if name in known and tablets.base_index_after_gc(listed, now_ms, known[name]) > 0
    ]
    registered = consumers.consumers(lake) if over else []
    readers = {name: [each for each in registered if each.key[1:] == name] for name in over}
    return [_collection(lake, name, times[name], known[name], readers[name], now_ms) for name in over]


def _collection(
    lake: Lake,
    name: _Name,
    times: list[Milliseconds],
    ttl_seconds: int,
    readers: Sequence[Consumer],
    now_ms: Milliseconds,
) -> Collection:
    """The collection of a table whose sets start at `times` (ms, ascending) and whose consumers are `readers`."""
    by_ttl = tablets.base_index_after_gc(times, now_ms, ttl_seconds)
    unread = [tablets.oldest_unread_index(times, each.position_us) for each in readers]
    held_back = [
        HeldBack(reader, tuple(times[oldest:by_ttl]))
        for reader, oldest in zip(readers, unread, strict=True)
        if oldest < by_ttl
    ]
    base = min([by_ttl, *unread])
    # A timestamp without a row of streams cannot be the base: the set after it goes on from the one before.
    while base and not tablet_rows.has_rows(lake, *name, times[base]):
        base -= 1
    at_risk = _at_risk(lake, name, times, base, now_ms)
    return Collection(*name, ttl_seconds, times[base], tuple(times[:base]), at_risk, tuple(held_back))


def _open_whole(lake: Lake, keyspace: str, table: str, base_ms: Milliseconds) -> None:
    """Open the whole set of a base whose difference was partial: whoever starts to read there knows no set before it.

    It goes first, because it is true at once: what is opened again was there already.
    """
    rows = tablet_rows.stream_rows(lake, keyspace, table, times_ms=[base_ms], states=[CURRENT, OPENED])
    current, opened = rows.of(base_ms, CURRENT), rows.of(base_ms, OPENED)
    if not tablets.among(current, opened).all():
        missing = tablet_rows.rows_of_set(keyspace, table, base_ms, [(OPENED, current)])
        lake.merge(TABLET_STREAMS, missing, update=False)


def _at_risk(
    lake: Lake, name: _Name, times_ms: list[Milliseconds], removed: int, now_ms: Milliseconds
) -> tuple[Milliseconds, ...]:
    """Of the first `removed` sets (ms) those in which a row can be still, by the TTLs that rows were written with."""
    history = cdc_tables.histories(lake).get(name) if removed else None
    if history is None:
        return ()
    # The tablet of a row is that of its timestamp, whatever clock it comes from.
    held = held_until_us(
        us_of(np.array(times_ms, dtype=np.int64)), history, Margins(Microseconds(0), Microseconds(0), Microseconds(0))
    )
    return tuple(time for time, until in zip(times_ms[:removed], held.tolist(), strict=False) if until > us_of(now_ms))
