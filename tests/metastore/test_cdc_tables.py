"""CDC-enabled tables, the history of their TTLs, and consumers, also when a process dies between two writes."""

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
    """Return the recorded changes, each with its TTL and its state."""
    return [(change.what, change.ttl_seconds, change.enabled) for change in cdc_tables.read_table_changes(lake)]


def test_a_table_is_added_altered_and_dropped(lake: Lake) -> None:
    """The current state follows from the last change; all changes stay, with growing times even at a stopped clock."""
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
    changed_at_us = [change.changed_at_us for change in cdc_tables.read_table_changes(lake)]
    assert changed_at_us == [
        us_from_ms(Milliseconds(START_MS - 1)),
        *(us_from_ms(START_MS) + number for number in range(3)),
    ]


def test_repeated_changes_write_nothing(lake: Lake) -> None:
    """Adding the same table again, or altering it without an effect, writes nothing."""
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
    """Adding a known table with another TTL is refused; `alter` records since when the TTL applies."""
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    arguments: dict[str, Any] = {"ttl_seconds": 60, **named}
    with pytest.raises(InputError, match=says):
        cdc_tables.add_cdc_table(lake, NOW, "ks", "t", **arguments)
    assert len(history(lake)) == 1


def test_a_dropped_table_can_be_added_again(lake: Lake) -> None:
    """A dropped table can be added again as a new one; dropping or altering a dropped table is refused."""
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    cdc_tables.drop_cdc_table(lake, at(Milliseconds(START_MS + 1)), "ks", "t")
    for change in (cdc_tables.drop_cdc_table, cdc_tables.alter_cdc_table):
        with pytest.raises(NotFound, match=r"ks\.t"):
            change(lake, NOW, "ks", "t")
    readded = cdc_tables.add_cdc_table(lake, at(Milliseconds(START_MS + 1)), "ks", "t", ttl_seconds=9, created_now=True)
    assert readded.created_at_ms == START_MS + 2


def request_many_changes(lake: Lake, clock: Clock) -> list[TableChangeRequest]:
    """Request an alteration, a drop with a re-addition, and 21 additions, one of them invalid."""
    readdition = [
        cdc_tables.request_drop(lake, clock, "ks", "anew"),
        cdc_tables.request_addition(lake, clock, "ks", "anew", ttl_seconds=2),
    ]
    refused = cdc_tables.request_addition(lake, clock, "ks", "altered", ttl_seconds=3)
    others = [cdc_tables.request_addition(lake, clock, "ks", f"t{number}", ttl_seconds=number) for number in range(20)]
    return [cdc_tables.request_alteration(lake, clock, "ks", "altered", ttl_seconds=2), *readdition, refused, *others]


def add_two_tables(lake: Lake) -> tuple[int | None, int | None]:
    """Add the two tables that `request_many_changes` expects; return the versions of both metadata tables."""
    for name in ("altered", "anew"):
        cdc_tables.add_cdc_table(lake, NOW, "ks", name, ttl_seconds=1)
    return lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)


def test_changes_reported_together_are_one_commit(lake: Lake) -> None:
    """Changes of many tables are one commit of each metadata table; a refused change holds up no other."""
    tables_version, changes_version = add_two_tables(lake)
    assert tables_version is not None
    assert changes_version is not None
    outcomes = cdc_tables.record_table_changes_separately(lake, request_many_changes(lake, NOW))
    assert ["known already" in str(outcome) for outcome in outcomes] == [number == 3 for number in range(24)]
    assert (lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)) == (tables_version + 1, changes_version + 1)
    ttls = {table.table_name: table.ttl_seconds for table in cdc_tables.read_cdc_tables(lake)}
    assert ttls == {"altered": 2, "anew": 2} | {f"t{number}": number for number in range(20)}
    readded = [change for change in cdc_tables.read_table_changes(lake) if change.table_name == "anew"]
    assert [change.what for change in readded] == ["added", "dropped", "added"]
    assert len({change.changed_at_us for change in readded}) == 3


def test_all_changes_are_stored_or_none(lake: Lake) -> None:
    """If one change is refused, none of the batch is stored."""
    before = add_two_tables(lake)
    with pytest.raises(InputError, match=r"ks\.altered is known already, with TTL 2 s"):
        cdc_tables.record_table_changes(lake, request_many_changes(lake, NOW))
    assert (lake.version(CDC_TABLES), lake.version(CDC_TABLE_CHANGES)) == before
    assert cdc_tables.record_table_changes(lake, []) == []


def test_a_table_without_history_gets_an_implied_one(lake: Lake) -> None:
    """A table stored by another writer counts as added when its log was created; the next change records that first."""
    row = {"keyspace_name": "ks", "table_name": "old", "enabled": True, "ttl_seconds": 7, "created_at": START_MS - 9}
    write(lake, CDC_TABLES, row)
    assert history(lake) == [("added", 7, True)]
    cdc_tables.alter_cdc_table(lake, NOW, "ks", "old", ttl_seconds=8)
    assert history(lake) == [("added", 7, True), ("altered", 8, True)]
    assert cdc_tables.read_table_changes(lake)[0].changed_at_us == us_from_ms(Milliseconds(START_MS - 9))


@pytest.mark.parametrize("change", [["alter", "ks.t", "--ttl", "5"], ["drop", "ks.t"], ["add", "ks.u", "--ttl", "5"]])
def test_a_reported_change_is_not_lost(tmp_path: Path, change: list[str]) -> None:
    """After a kill between both writes, the next change of any table completes the first one."""
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
    ttls = {table.full_name: table.ttl_seconds for table in cdc_tables.read_cdc_tables(lake)}
    expected = {"alter": {"ks.t": 5}, "drop": {}, "add": {"ks.t": 60, "ks.u": 5}}[change[0]]
    assert ttls == expected | {"ks.other": 1}


def test_a_consumer_moves_forward_window_by_window(lake: Lake) -> None:
    """A consumer is registered once and advances by numbered windows; it cannot go back until it is forgotten."""
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


def test_one_of_many_readers_of_a_window_advances_the_consumer(lake: Lake) -> None:
    """Advancing is a compare-and-set: one reader wins, the others get a conflict; the winner may repeat its call."""
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
    assert [
        (consumer_row.position_us, consumer_row.window_number) for consumer_row in consumers.read_consumers(lake)
    ] == [(won[0], 1)]
    assert advance(Microseconds(won[0])) == won[0]
    assert advance(Microseconds(won[0] + 1)) is None


def at_day(day: float) -> Clock:
    """Return a clock stopped some days after the start."""
    return at(Milliseconds(START_MS + int(day * DAY_MS)))


def read_history_in_days(lake: Lake) -> list[tuple[float, str, int, float | None]]:
    """Return the history as day of the change, kind, TTL, and day on which the log was created."""
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
    """Return a time some days after the start, in ms."""
    return Milliseconds(START_MS + day * DAY_MS)


def test_unstated_times_stay_unknown(lake: Lake) -> None:
    """A table added without times is known from now on; adding or observing the same table again changes nothing."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60)
    cdc_tables.add_cdc_table(lake, at_day(6), "ks", "t", ttl_seconds=60, observed=True)
    cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", ttl_seconds=60, observed=True)
    assert read_history_in_days(lake) == [(5, "added", 60, None)]
    assert cdc_tables.find_cdc_table(lake, "ks", "t").created_at_ms is None


def test_facts_of_the_past_are_filled_in(lake: Lake) -> None:
    """Facts of the past are recorded once, in any order, by `add` or `alter`, as rows that the past would have had."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60)
    for _ in range(2):
        cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", ttl_since_ms=day_ms(3))
        cdc_tables.alter_cdc_table(lake, at_day(7), "ks", "t", created_at_ms=day_ms(1))
        assert read_history_in_days(lake) == [(3, "added", 60, None), (5, "added", 60, None), (7, "altered", 60, 1)]
    for _ in range(2):
        cdc_tables.add_cdc_table(lake, at_day(8), "ks", "t", ttl_seconds=60, created_at_ms=day_ms(1))
        assert read_history_in_days(lake)[0] == (1, "added", 60, 1)
        assert len(read_history_in_days(lake)) == 4
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
def test_facts_that_contradict_the_history_are_refused(lake: Lake, stated: dict[str, Any], says: str) -> None:
    """A creation time after a known state, a future time, or a TTL that differs from the known one is refused."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60)
    cdc_tables.alter_cdc_table(lake, at_day(8), "ks", "t", ttl_seconds=70, observed=True)
    before = read_history_in_days(lake)
    with pytest.raises(InputError, match=says):
        cdc_tables.alter_cdc_table(lake, at_day(9), "ks", "t", **stated)
    assert read_history_in_days(lake) == before


def test_a_stated_creation_time_is_fixed_and_an_observed_one_may_get_older(lake: Lake) -> None:
    """A person gets an error for another creation time; of observed times the worst case counts, in either order."""
    cdc_tables.add_cdc_table(lake, at_day(5), "ks", "t", ttl_seconds=60, created_at_ms=day_ms(3))
    with pytest.raises(InputError, match=r"was created at 2026-01-04.*tables drop ks\.t"):
        cdc_tables.alter_cdc_table(lake, at_day(5), "ks", "t", created_at_ms=day_ms(2))
    for day, expected in ((4, 3), (2, 2), (3, 2)):
        cdc_tables.alter_cdc_table(lake, at_day(6), "ks", "t", created_at_ms=day_ms(day), observed=True)
        assert cdc_tables.find_cdc_table(lake, "ks", "t").created_at_ms == day_ms(expected)
    unknown = cdc_tables.read_log_histories(lake)["ks", "t"].unknown
    assert [(interval.from_us, interval.until_us) for interval in unknown] == [
        (us_from_ms(day_ms(2)), us_from_ms(day_ms(3)))
    ]


def test_the_ttl_between_two_observations_is_unknown(lake: Lake) -> None:
    """The TTL is unknown from the last time of the old one until the new one was observed, or its start is stated."""
    cdc_tables.add_cdc_table(lake, at_day(1), "ks", "t", ttl_seconds=60, created_now=True)
    last_known_us = us_from_ms(day_ms(4))
    cdc_tables.alter_cdc_table(
        lake, at_day(6), "ks", "t", ttl_seconds=70, unchanged_until_us=last_known_us, observed=True
    )

    def unknown() -> list[tuple[int, int]]:
        return [
            (interval.from_us, interval.until_us) for interval in cdc_tables.read_log_histories(lake)["ks", "t"].unknown
        ]

    assert unknown() == [(last_known_us, us_from_ms(day_ms(6)))]
    cdc_tables.alter_cdc_table(lake, at_day(7), "ks", "t", ttl_since_ms=day_ms(5))
    assert unknown() == []
    periods = cdc_tables.read_log_histories(lake)["ks", "t"].periods
    assert {(interval.from_us, interval.ttl_us) for interval in periods} == {
        (us_from_ms(day_ms(1)), 60_000_000),
        (last_known_us, 60_000_000),
        (us_from_ms(day_ms(5)), 70_000_000),
        (us_from_ms(day_ms(6)), 70_000_000),
    }


def test_a_dropped_log_that_reappears_has_unknown_age(lake: Lake) -> None:
    """A log observed again after its drop has unknown age, even at a stopped clock, unless it is stated to be older."""
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_now=True)
    cdc_tables.drop_cdc_table(lake, NOW, "ks", "t")
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, observed=True)
    assert len(cdc_tables.read_log_histories(lake)["ks", "t"].unknown) == 1
    cdc_tables.drop_cdc_table(lake, NOW, "ks", "t")
    cdc_tables.add_cdc_table(lake, NOW, "ks", "t", ttl_seconds=60, created_at_ms=day_ms(-1))
    log_history = cdc_tables.read_log_histories(lake)["ks", "t"]
    assert (log_history.unknown[1:], log_history.created_us) == ((), us_from_ms(day_ms(-1)))
