"""When a generation can hold no row any more, held against rows that are written and live one by one."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.drawing import examples

from cdc_platform.clock import Microseconds
from cdc_platform.errors import InputError
from cdc_platform.generations import (
    NEVER_US,
    AcceptancePolicy,
    CdcSettingsChange,
    ClockMargins,
    build_log_ttl_history,
    expires_at_us,
    find_unread_generations,
    live_until_us,
    written_until_us,
)

STRICT = ClockMargins(ahead_us=Microseconds(5), late_us=Microseconds(0), skew_us=Microseconds(2))
TIMES = [100, 200, 300]


def expiry(*tables: list[CdcSettingsChange], times: list[int] = TIMES, margins: ClockMargins = STRICT) -> list[int]:
    """When each generation expires, given everything said of each table."""
    logs = [log for log in map(build_log_ttl_history, tables) if log is not None]
    return expires_at_us(times, logs, margins).tolist()


def added(at: Microseconds, ttl: Microseconds, created: int | None = None) -> CdcSettingsChange:
    """A table that is told of, with CDC on."""
    return CdcSettingsChange(at, Microseconds(at) if created is None else Microseconds(created), True, ttl)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], [202, 302, NEVER_US]),
        # T(k+1) + skew + TTL; the newest generation never.
        ([added(Microseconds(0), Microseconds(1000))], [1202, 1302, NEVER_US]),
        # Told late of a log that was there: its TTL counts from its creation.
        ([added(Microseconds(500), Microseconds(1000), created=50)], [1202, 1302, NEVER_US]),
        # ttl 0 at any time while k operated.
        ([added(Microseconds(0), Microseconds(0))], [NEVER_US, NEVER_US, NEVER_US]),
        (
            [
                added(Microseconds(0), Microseconds(0)),
                CdcSettingsChange(Microseconds(150), Microseconds(0), True, Microseconds(10)),
            ],
            [NEVER_US, 312, NEVER_US],
        ),
        (
            [
                added(Microseconds(0), Microseconds(10)),
                CdcSettingsChange(Microseconds(250), Microseconds(0), True, Microseconds(0)),
            ],
            [212, NEVER_US, NEVER_US],
        ),
        # Lowering shortens nothing that is written.
        (
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(150), Microseconds(0), True, Microseconds(10)),
            ],
            [1202, 312, NEVER_US],
        ),
        # Raising counts from the change on.
        (
            [
                added(Microseconds(0), Microseconds(10)),
                CdcSettingsChange(Microseconds(250), Microseconds(0), True, Microseconds(1000)),
            ],
            [212, 1302, NEVER_US],
        ),
        # A spell between two changes counts too.
        (
            [
                added(Microseconds(0), Microseconds(10)),
                CdcSettingsChange(Microseconds(120), Microseconds(0), True, Microseconds(500)),
                CdcSettingsChange(Microseconds(130), Microseconds(0), True, Microseconds(10)),
            ],
            [702, 312, NEVER_US],
        ),
        # Created after T(k+1), or at it: no row of k.
        ([added(Microseconds(200), Microseconds(1000))], [202, 1302, NEVER_US]),
        ([added(Microseconds(201), Microseconds(1000))], [202, 1302, NEVER_US]),
        ([added(Microseconds(199), Microseconds(1000))], [1202, 1302, NEVER_US]),
        # While CDC is off no rows are written.
        (
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(50), Microseconds(0), False, Microseconds(1000)),
            ],
            [202, 302, NEVER_US],
        ),
        (
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(150), Microseconds(0), False, Microseconds(1000)),
            ],
            [1202, 302, NEVER_US],
        ),
        (
            [
                added(Microseconds(0), Microseconds(10)),
                CdcSettingsChange(Microseconds(50), Microseconds(0), False, Microseconds(1000)),
                CdcSettingsChange(Microseconds(250), Microseconds(0), True, Microseconds(1000)),
            ],
            [202, 1302, NEVER_US],
        ),
        # A dropped log lets go, and a new one of the same name holds from its creation.
        (
            [
                added(Microseconds(0), Microseconds(0)),
                CdcSettingsChange(Microseconds(400), Microseconds(0), True, Microseconds(0), dropped=True),
            ],
            [202, 302, NEVER_US],
        ),
        (
            [
                added(Microseconds(0), Microseconds(0)),
                CdcSettingsChange(Microseconds(250), Microseconds(0), True, Microseconds(0), dropped=True),
                added(Microseconds(260), Microseconds(10)),
            ],
            [202, 312, NEVER_US],
        ),
        # Put back with its old creation it has lost nothing.
        (
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(150), Microseconds(0), True, Microseconds(1000), dropped=True),
                added(Microseconds(400), Microseconds(10), created=0),
            ],
            [1202, 312, NEVER_US],
        ),
    ],
)
def test_worked_examples(said: list[CdcSettingsChange], expected: list[int]) -> None:
    """One table at a time, under the strict policy."""
    assert expiry(said) == expected


def test_the_table_with_the_longest_ttl_decides() -> None:
    """Each generation waits for the last of its tables."""
    assert expiry(
        [added(Microseconds(0), Microseconds(10))],
        [added(Microseconds(150), Microseconds(500))],
        [added(Microseconds(250), Microseconds(900))],
    ) == [702, 1202, NEVER_US]
    assert expiry([added(Microseconds(0), Microseconds(10))], [added(Microseconds(0), Microseconds(0))]) == [
        NEVER_US,
        NEVER_US,
        NEVER_US,
    ]


def test_writes_to_the_generation_before_are_waited_for() -> None:
    """Only `recent-past` takes them, a leeway long; a table that comes in that time holds the generation before."""
    margins = ClockMargins.of("recent-past", Microseconds(5), Microseconds(2))
    assert (margins.late_us, ClockMargins.of("strict", Microseconds(5), Microseconds(2)).late_us) == (5, 0)
    assert expiry([added(Microseconds(0), Microseconds(1000))], margins=margins) == [1207, 1307, NEVER_US]
    assert expiry([added(Microseconds(204), Microseconds(1000))], margins=margins)[0] == 1207
    assert expiry([added(Microseconds(205), Microseconds(1000))], margins=margins)[0] == 207


def test_a_lowered_ttl_counts_for_what_was_written_ahead_of_the_clock() -> None:
    """A row of k can be written a leeway before T(k), and then has the TTL of that moment."""
    assert (
        expiry(
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(94), Microseconds(0), True, Microseconds(10)),
            ]
        )[0]
        == 1202
    )
    assert (
        expiry(
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(93), Microseconds(0), True, Microseconds(10)),
            ]
        )[0]
        == 212
    )


@pytest.mark.parametrize("times", [[], [100]])
def test_without_a_successor_nothing_expires(times: list[int]) -> None:
    """However short the TTLs are."""
    assert expiry([added(Microseconds(0), Microseconds(1))], times=times) == [NEVER_US] * len(times)
    assert written_until_us(times, STRICT).tolist() == [NEVER_US] * len(times)
    assert find_unread_generations(times, NEVER_US).tolist() == [True] * len(times)


def test_a_reader_retains_unread_sets() -> None:
    """It is done with k when it has reached T(k+1), and never with the newest."""
    assert [
        find_unread_generations(TIMES, Microseconds(position)).tolist() for position in (0, 199, 200, 299, 300)
    ] == [
        [True, True, True],
        [True, True, True],
        [False, True, True],
        [False, True, True],
        [False, False, True],
    ]


def test_changes_out_of_order_are_refused() -> None:
    """Which TTL is in force follows from the order alone."""
    with pytest.raises(InputError, match="grow in time"):
        build_log_ttl_history([added(Microseconds(10), Microseconds(1)), added(Microseconds(10), Microseconds(2))])


def test_ten_thousand_generations_take_no_time_per_generation() -> None:
    """All generations are one array: fifty tables of ten changes each are five hundred passes."""
    times = np.arange(10_000, dtype=np.int64) * 1_000_000
    said = [
        CdcSettingsChange(Microseconds(at), Microseconds(0), True, Microseconds(1 + at % 7))
        for at in range(0, 10_000_000_000, 1_000_000_000)
    ]
    log = build_log_ttl_history(said)
    assert log is not None
    found = expires_at_us(times, [log] * 50, STRICT)
    assert found.shape == (10_000,)
    assert (np.diff(found[:-1]) > 0).all()


@dataclass(frozen=True)
class Row:
    """A row of the log: its generation, and until when it lives (None: for ever)."""

    generation: int
    lives_until: int | None


def written(
    times: list[int],
    said: list[CdcSettingsChange],
    at: int,
    skew: int,
    ahead: int,
    policy: AcceptancePolicy,
    leeway: int,
) -> Row | None:
    """The row that a coordinator writes at a true time, if it takes the write and the table is logged then.

    Its clock is off by `skew`; the write's timestamp is `ahead` of that clock. Plain integers, from the rules alone.
    """
    clock = at + skew
    timestamp = clock + ahead
    if timestamp >= clock + leeway:
        return None
    row = bisect_right(times, timestamp) - 1
    current = bisect_right(times, clock) - 1
    too_old = row < current and (policy == "strict" or timestamp <= clock - leeway)
    in_force = [change for change in said if change.at_us <= at]
    if row < 0 or current < 0 or too_old or not in_force or in_force[-1].dropped or not in_force[-1].enabled:
        return None
    if clock < (in_force[-1].created_us or 0):
        return None
    ttl = in_force[-1].ttl_us
    return Row(row, None if ttl == 0 else at + ttl)


generations = st.lists(st.integers(0, 400), min_size=1, max_size=6, unique=True).map(sorted)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[int], list[CdcSettingsChange]]:
    """Generations, and everything said of one table: it is added, altered, dropped and added again, often near them."""
    times = draw(generations)
    near = st.builds(lambda time, away: max(time + away, 0), st.sampled_from(times), st.integers(-12, 12))
    moments = draw(st.lists(st.one_of(near, st.integers(0, 450)), min_size=1, max_size=6, unique=True).map(sorted))
    said: list[CdcSettingsChange] = []
    for at in moments:
        ttl = draw(st.sampled_from([0, 1, 3, 20, 150]))
        if not said or said[-1].dropped:
            said.append(
                CdcSettingsChange(Microseconds(at), Microseconds(at), draw(st.integers(0, 3)) > 0, Microseconds(ttl))
            )
        else:
            dropped = draw(st.integers(0, 5)) == 0
            said.append(
                CdcSettingsChange(
                    Microseconds(at), said[-1].created_us, draw(st.integers(0, 3)) > 0, Microseconds(ttl), dropped
                )
            )
    return times, said


AHEAD = (
    [50, 100, 130],
    [
        added(Microseconds(0), Microseconds(150)),
        CdcSettingsChange(Microseconds(96), Microseconds(0), True, Microseconds(1)),
    ],
)


@settings(max_examples=examples(100))
@example(life=AHEAD, policy="strict", leeway=8, skew=0)  # lowered while writes run ahead into the next generation
@example(life=AHEAD, policy="strict", leeway=2, skew=6)
@given(
    life=lives(),
    policy=st.sampled_from(["strict", "recent-past"]),
    leeway=st.integers(0, 8),
    skew=st.integers(0, 6),
)
def test_no_row_outlives_its_generation(
    life: tuple[list[int], list[CdcSettingsChange]], policy: AcceptancePolicy, leeway: Microseconds, skew: Microseconds
) -> None:
    """Whatever is written, by clocks that are off, around any change: it is gone when its generation has expired."""
    times, said = life
    found = expiry(said, times=times, margins=ClockMargins.of(policy, leeway, skew))
    turns = [*times, *(change.at_us for change in said)]
    last_drop = max((change.at_us for change in said if change.dropped), default=-1)
    moments = sorted({turn + away for turn in turns for away in range(-12, 13)})
    for at in moments:
        for off in (-skew, 0, skew):
            for ahead in {-leeway, 1 - leeway, 0, leeway - 1}:
                row = written(times, said, at, off, ahead, policy, leeway)
                if row is None or at < last_drop:  # a drop takes its rows with it
                    continue
                assert found[row.generation] == NEVER_US or row.lives_until is not None
                assert row.lives_until is None or row.lives_until <= found[row.generation]


@given(life=lives())
def test_nothing_is_retained_longer_than_the_rule_requires(life: tuple[list[int], list[CdcSettingsChange]]) -> None:
    """Without margins: T(k+1) and the largest TTL in force in [T(k), T(k+1)), looked up moment by moment."""
    times, said = life
    assume(not said[-1].dropped)
    created = said[-1].created_us
    assert created is not None
    found = expiry(said, times=times, margins=ClockMargins(Microseconds(0), Microseconds(0), Microseconds(0)))
    for k, (begin, end) in enumerate(pairwise(times)):
        standing = [[c for c in said if c.at_us <= moment][-1:] for moment in range(max(begin, created), end)]
        ttls = [change.ttl_us for [change] in filter(None, standing) if change.enabled]
        assert found[k] == (NEVER_US if 0 in ttls else end + max(ttls, default=0))
    assert found[-1] == NEVER_US


@given(life=lives(), policy=st.sampled_from(["strict", "recent-past"]))
def test_tables_without_retained_rows_are_not_named(
    life: tuple[list[int], list[CdcSettingsChange]], policy: AcceptancePolicy
) -> None:
    """A log that cannot hold rows of a generation answers 0 for it, any other at least the end of its writes."""
    times, said = life
    log = build_log_ttl_history(said)
    assume(log is not None)
    assert log is not None
    margins = ClockMargins.of(policy, Microseconds(5), Microseconds(2))
    held = live_until_us(times, log, margins)
    assert ((held == 0) | (held >= written_until_us(times, margins))).all()


def test_what_is_not_known_counts_as_the_worst_case() -> None:
    """Unknown age: older than every generation. Unknown TTL: rows never expire; each only where it is not known."""
    seen = CdcSettingsChange(Microseconds(250), None, True, Microseconds(10), seen=True)
    assert expiry([seen]) == [NEVER_US, NEVER_US, NEVER_US]
    assert expiry([replace(seen, created_us=Microseconds(250))]) == [202, 312, NEVER_US]
    assert expiry([replace(seen, created_us=Microseconds(240))]) == [202, NEVER_US, NEVER_US]
    # A log of unknown age whose TTL is known since before the first generation.
    assert expiry([replace(seen, at_us=Microseconds(0))]) == [212, 312, NEVER_US]
    assert expiry([CdcSettingsChange(Microseconds(0), None, True, Microseconds(10))]) == [212, 312, NEVER_US]
    # A detached log: its CDC is off when it is seen, and nobody knows for how long.
    assert expiry([replace(seen, enabled=False)]) == [NEVER_US, NEVER_US, NEVER_US]
    before = CdcSettingsChange(Microseconds(0), Microseconds(0), True, Microseconds(10))
    assert expiry([before, replace(seen, created_us=Microseconds(0), enabled=False)]) == [212, 312, NEVER_US]


@pytest.mark.parametrize(("ttl", "expected"), [(10, [212, 312, NEVER_US]), (20, [212, NEVER_US, NEVER_US])])
def test_a_change_that_was_only_seen_may_have_come_at_any_time(ttl: Microseconds, expected: list[int]) -> None:
    """Between two looks at another TTL it may have been any TTL; at the same TTL it was that one, whether on or off."""
    first = CdcSettingsChange(Microseconds(210), Microseconds(0), True, Microseconds(10))
    known = replace(first, at_us=Microseconds(0))
    for enabled in (True, False):
        last = CdcSettingsChange(Microseconds(400), Microseconds(0), enabled, ttl, seen=True)
        assert expiry([known, replace(first, enabled=False), last]) == expected


@given(life=lives(), forgotten=st.sets(st.integers(0, 5)), aged=st.booleans())
def test_knowing_less_frees_nothing(
    life: tuple[list[int], list[CdcSettingsChange]], forgotten: set[int], aged: bool
) -> None:
    """Whatever of a history is not known, no generation expires earlier than by all of it."""
    times, said = life
    less = [
        replace(
            change,
            seen=not change.dropped and (change.seen or place in forgotten),
            created_us=None if aged else change.created_us,
        )
        for place, change in enumerate(said)
    ]
    assert all(now >= then for now, then in zip(expiry(less, times=times), expiry(said, times=times), strict=True))
