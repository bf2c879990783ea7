"""When a generation can have no live rows any more, compared with single rows that are written and expire."""

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
    """Return when each generation expires, given each table's settings changes."""
    logs = [log for log in map(build_log_ttl_history, tables) if log is not None]
    return expires_at_us(times, logs, margins).tolist()


def added(at: Microseconds, ttl: Microseconds, created: int | None = None) -> CdcSettingsChange:
    """Return a newly registered table with CDC enabled."""
    return CdcSettingsChange(at, Microseconds(at) if created is None else Microseconds(created), True, ttl)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], [202, 302, NEVER_US]),
        # T(k+1) + skew + TTL; the newest generation never expires.
        ([added(Microseconds(0), Microseconds(1000))], [1202, 1302, NEVER_US]),
        # A log registered late: its TTL counts from its creation.
        ([added(Microseconds(500), Microseconds(1000), created=50)], [1202, 1302, NEVER_US]),
        # A TTL of 0 at any time while generation k operated.
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
        # A lower TTL shortens no written row.
        (
            [
                added(Microseconds(0), Microseconds(1000)),
                CdcSettingsChange(Microseconds(150), Microseconds(0), True, Microseconds(10)),
            ],
            [1202, 312, NEVER_US],
        ),
        # A higher TTL counts from the change on.
        (
            [
                added(Microseconds(0), Microseconds(10)),
                CdcSettingsChange(Microseconds(250), Microseconds(0), True, Microseconds(1000)),
            ],
            [212, 1302, NEVER_US],
        ),
        # A period between two changes counts, too.
        (
            [
                added(Microseconds(0), Microseconds(10)),
                CdcSettingsChange(Microseconds(120), Microseconds(0), True, Microseconds(500)),
                CdcSettingsChange(Microseconds(130), Microseconds(0), True, Microseconds(10)),
            ],
            [702, 312, NEVER_US],
        ),
        # Created at T(k+1) or later: no row of k.
        ([added(Microseconds(200), Microseconds(1000))], [202, 1302, NEVER_US]),
        ([added(Microseconds(201), Microseconds(1000))], [202, 1302, NEVER_US]),
        ([added(Microseconds(199), Microseconds(1000))], [1202, 1302, NEVER_US]),
        # Without CDC, no rows are written.
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
        # A dropped log retains nothing, and a new log of the same name retains from its creation.
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
        # A log restored with its old creation time has lost nothing.
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
    """Examples of one table each, under the strict policy."""
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


def test_late_writes_to_the_previous_generation_delay_expiry() -> None:
    """Only `recent-past` accepts such writes, for one leeway; a table created in that time counts for them."""
    margins = ClockMargins.of("recent-past", Microseconds(5), Microseconds(2))
    assert (margins.late_us, ClockMargins.of("strict", Microseconds(5), Microseconds(2)).late_us) == (5, 0)
    assert expiry([added(Microseconds(0), Microseconds(1000))], margins=margins) == [1207, 1307, NEVER_US]
    assert expiry([added(Microseconds(204), Microseconds(1000))], margins=margins)[0] == 1207
    assert expiry([added(Microseconds(205), Microseconds(1000))], margins=margins)[0] == 207


def test_a_lowered_ttl_counts_for_writes_ahead_of_the_clock() -> None:
    """A row of k can be written one leeway before T(k), with the TTL of that time."""
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
    """Without a successor a generation never expires, however short the TTLs are."""
    assert expiry([added(Microseconds(0), Microseconds(1))], times=times) == [NEVER_US] * len(times)
    assert written_until_us(times, STRICT).tolist() == [NEVER_US] * len(times)
    assert find_unread_generations(times, NEVER_US).tolist() == [True] * len(times)


def test_a_reader_retains_unread_sets() -> None:
    """A reader has read k when it reaches T(k+1), and never has read the newest generation."""
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
    """The current TTL follows from the order of changes alone."""
    with pytest.raises(InputError, match="grow in time"):
        build_log_ttl_history([added(Microseconds(10), Microseconds(1)), added(Microseconds(10), Microseconds(2))])


def test_ten_thousand_generations_take_no_time_per_generation() -> None:
    """All generations are one array: fifty tables of ten changes each are five hundred passes."""
    times = np.arange(10_000, dtype=np.int64) * 1_000_000
    changes = [
        CdcSettingsChange(Microseconds(at), Microseconds(0), True, Microseconds(1 + at % 7))
        for at in range(0, 10_000_000_000, 1_000_000_000)
    ]
    log = build_log_ttl_history(changes)
    assert log is not None
    expiries = expires_at_us(times, [log] * 50, STRICT)
    assert expiries.shape == (10_000,)
    assert (np.diff(expiries[:-1]) > 0).all()


@dataclass(frozen=True)
class Row:
    """A row of the log: its generation, and the end of its life (None: no end)."""

    generation: int
    lives_until: int | None


def written(
    times: list[int],
    changes: list[CdcSettingsChange],
    at: int,
    skew: int,
    ahead: int,
    policy: AcceptancePolicy,
    leeway: int,
) -> Row | None:
    """Return the row that a coordinator writes, or None if it refuses the write or the table is not logged.

    Its clock is off by `skew`, and the write's timestamp is `ahead` of that clock. Plain integers, from the rules
    alone.
    """
    clock = at + skew
    timestamp = clock + ahead
    if timestamp >= clock + leeway:
        return None
    row = bisect_right(times, timestamp) - 1
    current = bisect_right(times, clock) - 1
    too_old = row < current and (policy == "strict" or timestamp <= clock - leeway)
    in_force = [change for change in changes if change.at_us <= at]
    if row < 0 or current < 0 or too_old or not in_force or in_force[-1].dropped or not in_force[-1].enabled:
        return None
    if clock < (in_force[-1].created_us or 0):
        return None
    ttl = in_force[-1].ttl_us
    return Row(row, None if ttl == 0 else at + ttl)


generations = st.lists(st.integers(0, 400), min_size=1, max_size=6, unique=True).map(sorted)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[int], list[CdcSettingsChange]]:
    """Draw generations, and the changes of one table, which is added, altered, dropped and added, often near them."""
    times = draw(generations)
    near = st.builds(lambda time, away: max(time + away, 0), st.sampled_from(times), st.integers(-12, 12))
    instants = draw(st.lists(st.one_of(near, st.integers(0, 450)), min_size=1, max_size=6, unique=True).map(sorted))
    changes: list[CdcSettingsChange] = []
    for at in instants:
        ttl = draw(st.sampled_from([0, 1, 3, 20, 150]))
        if not changes or changes[-1].dropped:
            changes.append(
                CdcSettingsChange(Microseconds(at), Microseconds(at), draw(st.integers(0, 3)) > 0, Microseconds(ttl))
            )
        else:
            dropped = draw(st.integers(0, 5)) == 0
            changes.append(
                CdcSettingsChange(
                    Microseconds(at), changes[-1].created_us, draw(st.integers(0, 3)) > 0, Microseconds(ttl), dropped
                )
            )
    return times, changes


AHEAD = (
    [50, 100, 130],
    [
        added(Microseconds(0), Microseconds(150)),
        CdcSettingsChange(Microseconds(96), Microseconds(0), True, Microseconds(1)),
    ],
)


@settings(max_examples=examples(100))
@example(life=AHEAD, policy="strict", leeway=8, skew=0)  # lowered while writes are ahead, in the next generation
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
    """Any row, written with skewed clocks near any change, has expired when its generation expires."""
    times, changes = life
    expiries = expiry(changes, times=times, margins=ClockMargins.of(policy, leeway, skew))
    turning_points = [*times, *(change.at_us for change in changes)]
    last_drop = max((change.at_us for change in changes if change.dropped), default=-1)
    instants = sorted({point + away for point in turning_points for away in range(-12, 13)})
    for at in instants:
        for off in (-skew, 0, skew):
            for ahead in {-leeway, 1 - leeway, 0, leeway - 1}:
                row = written(times, changes, at, off, ahead, policy, leeway)
                if row is None or at < last_drop:  # a drop removes its rows
                    continue
                assert expiries[row.generation] == NEVER_US or row.lives_until is not None
                assert row.lives_until is None or row.lives_until <= expiries[row.generation]


@given(life=lives())
def test_nothing_is_retained_longer_than_the_rule_requires(life: tuple[list[int], list[CdcSettingsChange]]) -> None:
    """Without margins a generation expires at T(k+1) plus the largest TTL within [T(k), T(k+1))."""
    times, changes = life
    assume(not changes[-1].dropped)
    created = changes[-1].created_us
    assert created is not None
    expiries = expiry(changes, times=times, margins=ClockMargins(Microseconds(0), Microseconds(0), Microseconds(0)))
    for k, (begin, end) in enumerate(pairwise(times)):
        standing = [[c for c in changes if c.at_us <= instant][-1:] for instant in range(max(begin, created), end)]
        ttls = [change.ttl_us for [change] in filter(None, standing) if change.enabled]
        assert expiries[k] == (NEVER_US if 0 in ttls else end + max(ttls, default=0))
    assert expiries[-1] == NEVER_US


@given(life=lives(), policy=st.sampled_from(["strict", "recent-past"]))
def test_tables_without_retained_rows_are_not_named(
    life: tuple[list[int], list[CdcSettingsChange]], policy: AcceptancePolicy
) -> None:
    """A log that cannot have rows of a generation returns 0 for it, another at least the end of its writes."""
    times, changes = life
    log = build_log_ttl_history(changes)
    assume(log is not None)
    assert log is not None
    margins = ClockMargins.of(policy, Microseconds(5), Microseconds(2))
    live_until = live_until_us(times, log, margins)
    assert ((live_until == 0) | (live_until >= written_until_us(times, margins))).all()


def test_unknown_settings_count_as_the_worst_case() -> None:
    """A log of unknown age is older than every generation; with an unknown TTL its rows never expire."""
    seen = CdcSettingsChange(Microseconds(250), None, True, Microseconds(10), seen=True)
    assert expiry([seen]) == [NEVER_US, NEVER_US, NEVER_US]
    assert expiry([replace(seen, created_us=Microseconds(250))]) == [202, 312, NEVER_US]
    assert expiry([replace(seen, created_us=Microseconds(240))]) == [202, NEVER_US, NEVER_US]
    # A log of unknown age whose TTL is known since before the first generation.
    assert expiry([replace(seen, at_us=Microseconds(0))]) == [212, 312, NEVER_US]
    assert expiry([CdcSettingsChange(Microseconds(0), None, True, Microseconds(10))]) == [212, 312, NEVER_US]
    # A detached log: its CDC is off when it is observed, since an unknown time.
    assert expiry([replace(seen, enabled=False)]) == [NEVER_US, NEVER_US, NEVER_US]
    before = CdcSettingsChange(Microseconds(0), Microseconds(0), True, Microseconds(10))
    assert expiry([before, replace(seen, created_us=Microseconds(0), enabled=False)]) == [212, 312, NEVER_US]


@pytest.mark.parametrize(("ttl", "expected"), [(10, [212, 312, NEVER_US]), (20, [212, NEVER_US, NEVER_US])])
def test_an_observed_change_may_have_happened_at_any_time(ttl: Microseconds, expected: list[int]) -> None:
    """If the TTL changed between two observations, it may have been any in between; if not, it was that one."""
    first = CdcSettingsChange(Microseconds(210), Microseconds(0), True, Microseconds(10))
    known = replace(first, at_us=Microseconds(0))
    for enabled in (True, False):
        last = CdcSettingsChange(Microseconds(400), Microseconds(0), enabled, ttl, seen=True)
        assert expiry([known, replace(first, enabled=False), last]) == expected


@given(life=lives(), forgotten=st.sets(st.integers(0, 5)), aged=st.booleans())
def test_knowing_less_frees_nothing(
    life: tuple[list[int], list[CdcSettingsChange]], forgotten: set[int], aged: bool
) -> None:
    """A history with any part unknown lets no generation expire earlier than the full history."""
    times, changes = life
    less = [
        replace(
            change,
            seen=not change.dropped and (change.seen or index in forgotten),
            created_us=None if aged else change.created_us,
        )
        for index, change in enumerate(changes)
    ]
    assert all(now >= then for now, then in zip(expiry(less, times=times), expiry(changes, times=times), strict=True))
