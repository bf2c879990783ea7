"""CDC-enabled tables, the history of their TTLs, and consumers: what was said is kept, also if a process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.homes.expiring import DAY_MS, START_MS, at, write

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Microseconds, Milliseconds, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.metastore import CdcTable, Consumer, TableChangeRequest, cdc_tables, consumers
from cdc_platform.tables import CDC_TABLE_CHANGES, CDC_TABLES

NOW = at(START_MS)


def history(lake: Lake) -> list[tuple[str, int, bool]]:
    """What was said, with the TTL and the state."""
    return [(change.what, change.ttl_seconds, change.enabled) for change in cdc_tables.read_table_changes(lake)]


def test_a_table_is_added_altered_and_dropped(lake: Lake) -> None:
    """What stands follows from the last change; all changes stay, at times that grow at a clock that stands."""
    assert cdc_tables.read_cdc_tables(lake) == []
    added = cdc_tables.add_cdc_table(
        lake, NOW, "ks", "t", ttl_seconds=60, created_at_ms=Milliseconds(START_MS - 1), ddl="CREATE TABLE ks.t"
    )
    assert added == CdcTable("ks", "t", True, 60, Milliseconds(START_MS - 1), "CREATE TABLE ks.t")
    assert cdc_tables.alter_cdc_table(lake, NOW, "ks", "t", ttl_seconds=0).ttl_seconds == 0
    assert not cdc_tables.alter_cdc_table(lake, NOW, "ks", "t", enabled=False).enabled
    assert cdc_tables.find_cdc_table(lake, "ks", "t") == CdcTable(
        "ks", "t", False, 0, Milliseconds(START_MS - 1), "CREATE TABLE ks.t"
    )
    cdc_tables.drop_cdc_table(lake, NOW, "ks", "t")
    assert cdc_tables.read_cdc_tables(lake) == []
    assert history(lake) == [
        ("added", 60, True),
        ("altered", 0, True),
        ("altered", 0, False),
        ("dropped", 0, False),
    ]
    moments = [change.changed_at_us for change in cdc_tables.read_table_changes(lake)]
    assert moments == [us_from_ms(Milliseconds(START_MS - 1)), *(us_from_ms(START_MS) + number for number in range(3))]


def test_saying_the_same_twice_is_saying_it_once(lake: Lake) -> None:
    """The same addition, and a change that changes nothing, write nothing."""
    first = cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    versions = lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)
    assert cdc_tables.add_cdc_table(lake, at(START_MS + DAY_MS), "ks", "t", ttl_seconds=60) == first
    assert cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_at_ms=START_MS) == first
    assert cdc_tables.alter_cdc_table(lake, at(START_MS + DAY_MS), "ks", "t", ttl_seconds=60, enabled=True) == first
    assert (lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)) == versions


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"ttl_seconds": 61}, "tables alter ks.t"),
        ({"created_at_ms": START_MS - 5}, "created at 2026-01-01T00:00:00.000Z"),
        ({"enabled": False}, "CDC on"),
    ],
)
def test_another_table_of_the_same_name_is_refused(lake: Lake, named: dict[str, Any], says: str) -> None:
    """A TTL is altered, not added again: the history would not know since when."""
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    asked: dict[str, Any] = {"ttl_seconds": 60, **named}
    with pytest.raises(InputError, match=says):
        cdc_tables.add_cdc_table(lake, NOW, "ks", "t", **asked)
    assert len(history(lake)) == 1


def test_a_dropped_table_can_come_again(lake: Lake) -> None:
    """As a new one, whatever it was before; dropping or altering what is gone is refused."""
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    cdc_tables.drop_cdc_table(lake, at(Milliseconds(START_MS + 1)), "ks", "t")
    for change in (cdc_tables.drop_cdc_table, cdc_tables.alter_cdc_table):
        with pytest.raises(NotFound, match=r"ks\.t"):
            change(lake, NOW, "ks", "t")
    again = cdc_tables.add_cdc_table(lake, at(Milliseconds(START_MS + 1)), "ks", "t", ttl_seconds=9, created_now=True)
    assert again.created_at_ms == START_MS + 2


def many(lake: Lake, clock: Clock) -> list[TableChangeRequest]:
    """A table that is altered, one that is made anew, and twenty others, one of which is refused."""
    again = [
        cdc_tables.request_drop(lake, clock, "ks", "anew"),
        cdc_tables.request_addition(lake, clock, "ks", "anew", ttl_seconds=2),
    ]
    refused = cdc_tables.request_addition(lake, clock, "ks", "altered", ttl_seconds=3)
    others = [cdc_tables.request_addition(lake, clock, "ks", f"t{number}", ttl_seconds=number) for number in range(20)]
    return [cdc_tables.request_alteration(lake, clock, "ks", "altered", ttl_seconds=2), *again, refused, *others]


def said_before(lake: Lake) -> tuple[int | None, int | None]:
    """The versions of both tables, of which two are known."""
    for name in ("altered", "anew"):
        cdc_tables.add_cdc_table(lake, NOW, "ks", name, ttl_seconds=1)
    return lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)


def test_changes_reported_together_are_one_commit(lake: Lake) -> None:
    """One of the history and one of what follows, however many tables; what one is refused for keeps no other back."""
    standing, told = said_before(lake)
    assert standing is not None
    assert told is not None
    outcomes = cdc_tables.record_table_changes_separately(lake, many(lake, NOW))
    assert ["known already" in str(outcome) for outcome in outcomes] == [number == 3 for number in range(24)]
    assert (lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)) == (standing + 1, told + 1)
    ttls = {table.table_name: table.ttl_seconds for table in cdc_tables.read_cdc_tables(lake)}
    assert ttls == {"altered": 2, "anew": 2} | {f"t{number}": number for number in range(20)}
    anew = [change for change in cdc_tables.read_table_changes(lake) if change.table_name == "anew"]
    assert [change.what for change in anew] == ["added", "dropped", "added"]
    assert len({change.changed_at_us for change in anew}) == 3


def test_all_changes_are_stored_or_none(lake: Lake) -> None:
    """Where one is refused, nothing is there of what came before it."""
    before = said_before(lake)
    with pytest.raises(InputError, match=r"ks\.altered is known already, with TTL 2 s"):
        cdc_tables.record_table_changes(lake, many(lake, NOW))
    assert (lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)) == before
    assert cdc_tables.record_table_changes(lake, []) == []


def test_a_table_without_history_has_the_one_that_it_implies(lake: Lake) -> None:
    """What another writer left was added when its log was created; a change notes that first."""
    row = {"keyspace_name": "ks", "table_name": "old", "enabled": True, "ttl_seconds": 7, "created_at": START_MS - 9}
    write(lake, CDC_TABLES, row)
    assert history(lake) == [("added", 7, True)]
    cdc_tables.alter_cdc_table(lake, NOW, "ks", "old", ttl_seconds=8)
    assert history(lake) == [("added", 7, True), ("altered", 8, True)]
    assert cdc_tables.read_table_changes(lake)[0].changed_at_us == us_from_ms(Milliseconds(START_MS - 9))


@pytest.mark.parametrize("change", [["alter", "ks.t", "--ttl", "5"], ["drop", "ks.t"], ["add", "ks.u", "--ttl", "5"]])
def test_a_reported_change_is_not_lost(tmp_path: Path, change: list[str]) -> None:
    """A process dies between the history and what follows from it: the next change of any table completes it."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")

    def tables(*args: str, kill: bool = False) -> int:
        environment = os.environ | ({failpoints.KILL_AT_VARIABLE: failpoints.AFTER_TABLE_CHANGE} if kill else {})
        command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "--clock", "2026-01-01T00:00:00Z"]
        return subprocess.run([*command, "tables", *args], env=environment, capture_output=True, check=False).returncode

    assert tables("add", "ks.t", "--ttl", "60") == 0
    before = cdc_tables.read_cdc_tables(lake)
    assert tables(*change, kill=True) == -signal.SIGKILL
    assert cdc_tables.read_cdc_tables(lake) == before
    assert tables("add", "ks.other", "--ttl", "1") == 0
    standing = {table.full_name: table.ttl_seconds for table in cdc_tables.read_cdc_tables(lake)}
    expected = {"alter": {"ks.t": 5}, "drop": {}, "add": {"ks.t": 60, "ks.u": 5}}[change[0]]
    assert standing == expected | {"ks.other": 1}


def test_a_consumer_moves_forward_window_by_window(lake: Lake) -> None:
    """It is registered once; a move counts its window; going back is refused until it is forgotten."""
    consumer = consumers.register_consumer(lake, NOW, "audit", "ks", "t", position_us=Microseconds(10))
    assert consumer == Consumer("audit", "ks", "t", None, Microseconds(10), 0, us_from_ms(START_MS))
    assert consumers.register_consumer(lake, NOW, "audit", "ks", "t", position_us=Microseconds(99)) == consumer
    moved = consumers.advance_consumer(
        lake, NOW, consumer, position_us=Microseconds(20), set_timestamp_us=Microseconds(5), expected_window=0
    )
    assert (moved.position_us, moved.set_timestamp_us, moved.window_number) == (20, 5, 1)
    with pytest.raises(StateError, match="cannot go back"):
        consumers.advance_consumer(
            lake, NOW, moved, position_us=Microseconds(19), set_timestamp_us=Microseconds(5), expected_window=1
        )
    with pytest.raises(StateError, match="cannot go back"):
        consumers.advance_consumer(
            lake, NOW, moved, position_us=Microseconds(21), set_timestamp_us=Microseconds(4), expected_window=1
        )
    assert consumers.read_consumers(lake) == [moved]
    consumers.forget_consumer(lake, "audit", "ks", "t")
    assert consumers.read_consumers(lake) == []
    with pytest.raises(NotFound, match=r"audit of ks\.t"):
        consumers.forget_consumer(lake, "audit", "ks", "t")
    with pytest.raises(InputError, match="must not be empty"):
        consumers.register_consumer(lake, NOW, " ", "ks", "t", position_us=Microseconds(0))


def test_of_many_that_read_one_window_one_moves_the_consumer(lake: Lake) -> None:
    """Compare-and-set: one wins, the others are told; the winner's own repetition is no conflict."""
    consumer = consumers.register_consumer(lake, NOW, "audit", "ks", "t", position_us=Microseconds(0))

    def advance(number: Microseconds) -> int | None:
        try:
            moved = consumers.advance_consumer(
                lake, NOW, consumer, position_us=number, set_timestamp_us=Microseconds(1), expected_window=0
            )
        except ConflictError:
            return None
        return moved.position_us

    with ThreadPoolExecutor(6) as pool:
        won = [position for position in pool.map(advance, range(1, 7)) if position is not None]
    assert len(won) == 1
    assert [(each.position_us, each.window_number) for each in consumers.read_consumers(lake)] == [(won[0], 1)]
    assert advance(Microseconds(won[0])) == won[0]
    assert advance(Microseconds(won[0] + 1)) is None


def at_day(day: float) -> Clock:
    """A clock that stands some days after the start."""
    return at(Milliseconds(START_MS + int(day * DAY_MS)))


def rows_of(lake: Lake) -> list[tuple[float, str, int, float | None]]:
    """The history as days, what became of the table, its TTL, and when its log was created."""
    return [
        (
            (change.changed_at_us - us_from_ms(START_MS)) / us_from_ms(DAY_MS),
            change.what,
            change.ttl_seconds,
            None
            if change.created_at_us is None
            else (change.created_at_us - us_from_ms(START_MS)) / us_from_ms(DAY_MS),
        )
        for change in cdc_tables.read_table_changes(lake)
    ]


def day_ms(day: int) -> Milliseconds:
    """A time some days after the start, in ms."""
    return Milliseconds(START_MS + day * DAY_MS)


def test_what_is_not_stated_is_not_known(lake: Lake) -> None:
    """A table that is added without times is known from now on; the same again, or seen again, changes nothing."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60)
    cdc_tables.add_cdc_table(lake, at_day(6), "ks", "t", ttl_seconds=60, observed=True)
    cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", ttl_seconds=60, observed=True)
    assert rows_of(lake) == [(5, "added", 60, None)]
    assert cdc_tables.find_cdc_table(lake, "ks", "t").created_at_ms is None


def test_facts_of_the_past_are_filled_in(lake: Lake) -> None:
    """Each once, in any order, by `add` as by `alter`; the past gets the row that it would have had."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60)
    for _ in range(2):
        cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", ttl_since_ms=day_ms(3))
        cdc_tables.alter_cdc_table(lake, at_day(7), "ks", "t", created_at_ms=day_ms(1))
        assert rows_of(lake) == [(3, "added", 60, None), (5, "added", 60, None), (7, "altered", 60, 1)]
    for _ in range(2):
        cdc_tables.add_cdc_table(lake, at_day(8), "ks", "t", ttl_seconds=60, created_at_ms=day_ms(1))
        assert rows_of(lake)[0] == (1, "added", 60, 1)
        assert len(rows_of(lake)) == 4
    (period, *_) = cdc_tables.read_log_histories(lake)["ks", "t"].periods
    assert (period.from_us, period.ttl_us) == (us_from_ms(day_ms(1)), 60_000_000)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"created_at_ms": day_ms(6)}, "existed at 2026-01-06"),
        ({"created_at_ms": day_ms(30)}, "which is after now"),
        ({"ttl_since_ms": day_ms(30)}, "which is after now"),
        ({"ttl_since_ms": day_ms(4)}, r"the TTL of ks\.t was 60 s at 2026-01-06"),
        ({"ttl_seconds": 5, "ttl_since_ms": day_ms(7)}, r"the TTL of ks\.t was 70 s at 2026-01-09"),
    ],
)
def test_what_contradicts_what_is_known_is_refused(lake: Lake, stated: dict[str, Any], says: str) -> None:
    """It was there under another TTL, or before the time at which it is said to have been made."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60)
    cdc_tables.alter_cdc_table(lake, at_day(8), "ks", "t", ttl_seconds=70, observed=True)
    before = rows_of(lake)
    with pytest.raises(InputError, match=says):
        cdc_tables.alter_cdc_table(lake, at_day(9), "ks", "t", **stated)
    assert rows_of(lake) == before


def test_another_time_of_creation_is_refused_and_an_older_one_that_is_seen_counts(lake: Lake) -> None:
    """A person is told; of what a schema shows the worst case is taken, in either order."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60, created_at_ms=day_ms(3))
    with pytest.raises(InputError, match=r"was created at 2026-01-04.*tables drop ks\.t"):
        cdc_tables.alter_cdc_table(lake, at_day(5), "ks", "t", created_at_ms=day_ms(2))
    for day, expected in ((4, 3), (2, 2), (3, 2)):
        cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", created_at_ms=day_ms(day), observed=True)
        assert cdc_tables.find_cdc_table(lake, "ks", "t").created_at_ms == day_ms(expected)
    unknown = cdc_tables.read_log_histories(lake)["ks", "t"].unknown
    assert [(each.from_us, each.until_us) for each in unknown] == [(us_from_ms(day_ms(2)), us_from_ms(day_ms(3)))]


def test_between_two_looks_at_another_ttl_it_is_not_known(lake: Lake) -> None:
    """From the last time at which the old one is known to have stood until the new one was seen, or is stated."""
    cdc_tables.add_cdc_table(lake, at_day(1), "ks", "t", ttl_seconds=60, created_now=True)
    stood = us_from_ms(day_ms(4))
    cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", ttl_seconds=70, unchanged_until_us=stood, observed=True)

    def unknown() -> list[tuple[int, int]]:
        return [(each.from_us, each.until_us) for each in cdc_tables.read_log_histories(lake)["ks", "t"].unknown]

    assert unknown() == [(stood, us_from_ms(day_ms(6)))]
    cdc_tables.alter_cdc_table(lake, at_day(7), "ks", "t", ttl_since_ms=day_ms(5))
    assert unknown() == []
    periods = cdc_tables.read_log_histories(lake)["ks", "t"].periods
    assert {(each.from_us, each.ttl_us) for each in periods} == {
        (us_from_ms(day_ms(1)), 60_000_000),
        (stood, 60_000_000),
        (us_from_ms(day_ms(5)), 70_000_000),
        (us_from_ms(day_ms(6)), 70_000_000),
    }


def test_a_dropped_log_that_is_seen_again_is_of_unknown_age(lake: Lake) -> None:
    """Also at a clock that stands; one that is stated to be older than its drop has lost nothing."""
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    cdc_tables.drop_cdc_table(lake, NOW, "ks", "t")
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, observed=True)
    assert len(cdc_tables.read_log_histories(lake)["ks", "t"].unknown) == 1
    cdc_tables.drop_cdc_table(lake, NOW, "ks", "t")
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_at_ms=day_ms(-1))
    history = cdc_tables.read_log_histories(lake)["ks", "t"]
    assert (history.unknown[1:], history.created_us) == ((), us_from_ms(day_ms(-1)))
