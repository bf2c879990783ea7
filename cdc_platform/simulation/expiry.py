"""Removal of generations that no row needs any more, by the platform's rules of expiry."""

from __future__ import annotations

import numpy as np

from cdc_platform.clock import SECOND_US, Microseconds, ms_from_us, us_from_ms
from cdc_platform.generations import (
    BEGINNING_US,
    NEVER_US,
    ClockMargins,
    LogTtlHistory,
    TtlPeriod,
    expires_at_us,
    find_unread_generations,
)
from cdc_platform.generations import tablets as tablet_rules
from cdc_platform.simulation.log_reader import LogReader
from cdc_platform.simulation.observations import Removed
from cdc_platform.simulation.world import World

INTERVAL_US = SECOND_US * 30


class Expiry:
    """Looks every half minute for generations that may be removed, by the clock of node 0."""

    def __init__(self, world: World, reader: LogReader) -> None:
        self.world = world
        self.reader = reader

    def start(self) -> None:
        """Begin to look, if rows expire at all."""
        if self.world.rules.ttl_us:
            self.world.scheduler.after(INTERVAL_US, self.look)

    def ttl_us(self) -> Microseconds:
        """Return the TTL that the rules count with."""
        return self.world.rules.ttl_us

    def look(self) -> None:
        """Remove what has expired: the timestamp, then the streams."""
        self.world.scheduler.after(INTERVAL_US, self.look)
        rules = self.world.rules
        numbers = sorted(self.world.committed, key=lambda number: self.world.generations[number].time_ms)
        times = np.array([us_from_ms(self.world.generations[number].time_ms) for number in numbers], dtype=np.int64)
        log = LogTtlHistory(None, (TtlPeriod(BEGINNING_US, NEVER_US, self.ttl_us()),))
        margins = ClockMargins.of(rules.policy, rules.leeway_us, rules.expiry_skew_us)
        expiry = expires_at_us(times, [log], margins)
        unread = find_unread_generations(times, self.reader.position_us)
        now_us = self.world.machines[0].clock.now_us()
        for number, expires_us, blocked in zip(numbers, expiry.tolist(), unread.tolist(), strict=True):
            over = expires_us != NEVER_US and expires_us + rules.expiry_grace_us <= now_us
            if over and not blocked and number not in self.world.removed:
                key = self.world.key(self.world.generations[number])
                self.world.removed.add(number)
                self.world.timestamps.remove(key)
                self.world.streams.remove(key)
                self.world.history.add(Removed(self.world.now_us, number))


class TabletExpiry(Expiry):
    """Looks for stream sets that ScyllaDB's rule and the reader release, by the clock of node 0."""

    def look(self) -> None:
        """Remove the stream sets that ended a TTL ago or earlier."""
        self.world.scheduler.after(INTERVAL_US, self.look)
        numbers = sorted(self.world.committed, key=lambda number: self.world.generations[number].time_ms)
        times_ms = [self.world.generations[number].time_ms for number in numbers]
        now_ms = ms_from_us(self.world.machines[0].clock.now_us())
        oldest = min(
            tablet_rules.first_set_index_after_gc(times_ms, now_ms, self.ttl_us() // SECOND_US),
            tablet_rules.oldest_unread_set_index(times_ms, self.reader.position_us),
        )
        for number in numbers[:oldest]:
            if number not in self.world.removed:
                self.world.removed.add(number)
                self.world.history.add(Removed(self.world.now_us, number))
