"""When no CDC log can contain a row of a generation any more, and which V1 generations a rewrite still needs.

The TTL that was in force when a row was written counts, never a newer one. An unknown TTL stays unknown in the history;
only `live_until_us` assumes the worst case. The rewrite follows design document 000, step 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.clock import Microseconds, Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.generations.acceptance import AcceptancePolicy
from cdc_platform.ring import Bools, Int64s

NEVER_US = Microseconds(2**63 - 1)
"""A time that never comes, in µs."""
BEGINNING_US = Microseconds(-(2**63))
"""A time before all others, in µs."""

_BoolArray = np.ndarray


@dataclass(frozen=True)
class ClockMargins:
    """How far the clock of a write and the generation that it gets may differ, in µs.

    `ahead_us`: how far a write's timestamp may be ahead of its coordinator's clock; `late_us`: for how long after
    T(k+1) a coordinator still accepts writes of k; `skew_us`: how far a clock may be off.
    """

    ahead_us: Microseconds
    late_us: Microseconds
    skew_us: Microseconds

    @classmethod
    def of(cls, policy: AcceptancePolicy, leeway_us: Microseconds, skew_us: Microseconds) -> ClockMargins:
        """Return the margins of an acceptance policy: only `recent-past` accepts writes to the previous generation."""
        return cls(leeway_us, leeway_us if policy == "recent-past" else Microseconds(0), skew_us)


@dataclass(frozen=True)
class CdcSettingsChange:
    """The CDC settings of a table from `at_us` (µs) on.

    `ttl_us` 0: rows never expire. `created_us`: when the log was created; None: unknown. `dropped`: its rows were
    dropped with it. `seen`: these settings were observed at `at_us`, but since when they apply is unknown.
    """

    at_us: Microseconds
    created_us: Microseconds | None
    enabled: bool
    ttl_us: Microseconds
    dropped: bool = False
    seen: bool = False


@dataclass(frozen=True)
class TtlPeriod:
    """A period in which rows were written with one TTL, in µs, excluding `until_us`.

    `ttl_us` None: unknown; `observed_us` is then the TTL that was observed at the end of the period.
    """

    from_us: Microseconds
    until_us: Microseconds
    ttl_us: Microseconds | None
    observed_us: Microseconds | None = None


@dataclass(frozen=True)
class LogTtlHistory:
    """The history of an existing log: its creation time, if known, and the periods in which rows were written.

    Periods are ordered by their beginnings. An unknown one may overlap a known one.
    """

    created_us: Microseconds | None
    periods: tuple[TtlPeriod, ...]

    @property
    def unknown(self) -> tuple[TtlPeriod, ...]:
        """Return the periods whose TTL is unknown."""
        return tuple(period for period in self.periods if period.ttl_us is None)

    def observed(self) -> LogTtlHistory:
        """Return the history with the next observed TTL for each unknown one, a guess; nothing may expire by it."""
        guessed = (
            replace(period, ttl_us=period.observed_us) if period.ttl_us is None else period for period in self.periods
        )
        return LogTtlHistory(self.created_us, tuple(guessed))


def build_log_ttl_history(changes: Sequence[CdcSettingsChange]) -> LogTtlHistory | None:
    """Return the history of a table's log from all known changes, oldest first, or None if the log was dropped.

    A log that was restored with a creation time before its drop has not lost its rows, so earlier settings count as
    well. Periods with CDC off contain no rows. If a table was only observed, the settings since the previous change, or
    since its creation, are unknown.

    Raises:
        InputError: the changes are not in the order of their times.
    """
    if any(after.at_us <= before.at_us for before, after in pairwise(changes)):
        raise InputError("the changes of a table must grow in time")
    if not changes or changes[-1].dropped:
        return None
    created_us = changes[-1].created_us
    oldest_us = BEGINNING_US if created_us is None else created_us
    ends = [change.at_us for change in changes[1:]] + [NEVER_US]
    periods: list[TtlPeriod] = []
    before: CdcSettingsChange | None = None
    for change, until_us in zip(changes, ends, strict=True):
        from_us = change.at_us
        if before is not None and before.dropped:
            before = None
        if change.seen:
            periods += _unobserved_periods(change, before)
        elif before is None and change.created_us is not None:
            # The first statement about a log applies from its creation, however late it is made.
            from_us = min(from_us, change.created_us)
        if change.enabled and not change.dropped:
            periods.append(TtlPeriod(from_us, until_us, change.ttl_us))
        before = change
    return LogTtlHistory(
        created_us,
        tuple(
            replace(period, from_us=max(period.from_us, oldest_us)) for period in periods if period.until_us > oldest_us
        ),
    )


def _unobserved_periods(change: CdcSettingsChange, before: CdcSettingsChange | None) -> list[TtlPeriod]:
    """Return the period before a change that was only observed: CDC may have been on throughout, with any TTL."""
    if before is None:
        return [TtlPeriod(BEGINNING_US, change.at_us, None, change.ttl_us)]
    if not before.enabled and not change.enabled and before.ttl_us == change.ttl_us:
        return []
    if before.ttl_us == change.ttl_us:
        return [TtlPeriod(before.at_us, change.at_us, change.ttl_us)]
    return [TtlPeriod(before.at_us, change.at_us, None, change.ttl_us)]


def written_until_us(times_us: ArrayLike, margins: ClockMargins) -> Int64s:
    """Return when (µs, int64[g]) the last row of each generation was written, by any clock; NEVER for the newest one.

    `times_us` int64[g] ascend.
    """
    times = np.asarray(times_us, dtype=np.int64)
    until = np.full(times.shape, NEVER_US, dtype=np.int64)
    until[:-1] = times[1:] + (margins.late_us + margins.skew_us)
    return until


def live_until_us(times_us: ArrayLike, log: LogTtlHistory, margins: ClockMargins) -> Int64s:
    """Return until when (µs, int64[g]) a log can contain rows of each generation; 0 if it cannot, NEVER if for ever.

    A row of k is written from T(k) on, less what its timestamp may run ahead, until T(k+1), and lives for the TTL in
    force at that moment. So the largest TTL in force in between counts from the last such moment on. An unknown TTL
    counts as the largest possible one, under which rows never expire; a log of unknown age counts as older than every
    generation.
    """
    times = np.asarray(times_us, dtype=np.int64)
    begin = times - (margins.ahead_us + margins.skew_us)
    until = written_until_us(times, margins)
    longest = np.full(times.shape, -1, dtype=np.int64)
    for period in log.periods:
        overlaps = (period.from_us < until) & (period.until_us > begin)
        longest[overlaps] = np.maximum(longest[overlaps], period.ttl_us or NEVER_US)
    if log.created_us is not None:
        # No skew here: a table created after T(k+1) has no row of k, and both times come from one clock.
        longest[log.created_us >= until - margins.skew_us] = -1
    live_until = np.zeros(times.shape, dtype=np.int64)
    has_rows = longest >= 0
    forever = has_rows & ((longest == NEVER_US) | (until == NEVER_US))
    live_until[has_rows & ~forever] = until[has_rows & ~forever] + longest[has_rows & ~forever]
    live_until[forever] = NEVER_US
    return live_until


def expires_at_us(times_us: ArrayLike, logs: Sequence[LogTtlHistory], margins: ClockMargins) -> Int64s:
    """Return when (µs, int64[g]) no log can contain a row of each generation any more; NEVER for the newest one."""
    expiry = written_until_us(times_us, margins)
    for log in logs:
        expiry = np.maximum(expiry, live_until_us(times_us, log, margins))
    return expiry


def find_unread_generations(times_us: ArrayLike, position_us: Microseconds) -> _BoolArray:
    """Return which generations (bool[g]) a reader at `position_us` (everything up to it is read) has not finished.

    It has finished k when it has reached T(k+1); it never finishes the newest one.
    """
    times = np.asarray(times_us, dtype=np.int64)
    waiting = np.ones(times.shape, dtype=bool)
    waiting[:-1] = position_us < times[1:]
    return waiting


_BEGINNING_MS = Milliseconds(-(2**63))


@dataclass(frozen=True)
class LogLifetime:
    """How long a table's log rows live (`ttl_ms`, 0: for ever), and since when there are any (`created_at_ms`).

    `created_at_ms` None: unknown, so there may be rows of any age. `until_ms`: until when rows with that TTL were
    written; None: they still are.
    """

    ttl_ms: Milliseconds
    created_at_ms: Milliseconds | None
    until_ms: Milliseconds | None = None


def may_have_live_rows(
    times_ms: ArrayLike,
    logs: Sequence[LogLifetime],
    now_ms: Milliseconds,
    *,
    use_creation_time: bool = False,
    clock_margin_ms: Milliseconds = Milliseconds(0),
) -> Bools:
    """Return whether each generation (times int64[n], ascending) can have rows that a log still contains: bool[n].

    A generation is too old if there is a greater timestamp T such that `now - ttl > T` for every table, because its
    rows were written before T. The newest is never too old; with a TTL of 0 none is; without tables all are.

    `use_creation_time`: a log contains nothing from before it was created, whatever its TTL. `clock_margin_ms`: other
    clocks may have written rows of T's predecessor that much later. With either of them T itself counts as too old when
    it is exactly at the limit, as in the servers that have this refinement.

    Raises:
        InputError: the times do not ascend, a TTL or the margin is negative.
    """
    times = np.asarray(times_ms, dtype=np.int64)
    if np.any(times[1:] <= times[:-1]):
        raise InputError("the times of V1 generations have to ascend, each once")
    if clock_margin_ms < 0 or any(log.ttl_ms < 0 for log in logs):
        raise InputError("a TTL and the clock margin are 0 or more")
    refined = use_creation_time or clock_margin_ms > 0
    live = np.zeros(len(times), dtype=bool)
    for log in logs:
        limit = get_oldest_live_ms([log], now_ms, use_creation_time=use_creation_time, clock_margin_ms=clock_margin_ms)
        reached = np.ones(len(times), dtype=bool)
        if limit is not None:
            reached[:-1] = times[1:] > limit if refined else times[1:] >= limit
        if log.until_ms is not None:
            reached &= times < log.until_ms + clock_margin_ms
        live |= reached
    return live


def get_oldest_live_ms(
    logs: Sequence[LogLifetime],
    now_ms: Milliseconds,
    *,
    use_creation_time: bool = False,
    clock_margin_ms: Milliseconds = Milliseconds(0),
) -> Milliseconds | None:
    """Return the time (ms) from which some log (there is at least one) still has its rows; None: from the beginning."""
    limits = [
        max(
            now_ms - log.ttl_ms if log.ttl_ms else _BEGINNING_MS,
            log.created_at_ms if use_creation_time and log.created_at_ms is not None else _BEGINNING_MS,
        )
        for log in logs
    ]
    oldest = min(limits)
    return None if oldest == _BEGINNING_MS else oldest - clock_margin_ms
