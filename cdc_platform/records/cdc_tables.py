"""The CDC-enabled tables with their TTLs, and the history of both: rows live as long as their cells were told to.

`platform.cdc_table_changes` is what was said, append-only, and written first; `platform.cdc_tables` is what follows
from it. A process that dies between the two leaves what the next change of any table completes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import groupby
from typing import Concatenate, ParamSpec

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import (
    ONE_MS,
    ONE_US,
    Clock,
    Microseconds,
    Milliseconds,
    format_ms,
    ms_from_datetime,
    ms_of,
    us_of,
    us_of_seconds,
)
from cdc_platform.cql.names import check_table_name
from cdc_platform.errors import InputError, UnknownTable
from cdc_platform.generations.expiry import Change, LogHistory, log_history
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.merging import NO_NUMBERS, Numbers
from cdc_platform.lake.mirrors import mend
from cdc_platform.lake.tables import CDC_TABLE_CHANGES, CDC_TABLES
from cdc_platform.lake.turns import TABLES, in_turn
from cdc_platform.limits import MAX_CDC_TTL
from cdc_platform.records.table_history import (
    ADDED,
    ALTERED,
    DROPPED,
    CdcTable,
    TableChange,
    as_it_stands,
    changes_of,
    row_of,
    rows_of,
)

_Given = ParamSpec("_Given")


def cdc_tables(lake: Lake) -> list[CdcTable]:
    """The tables that have a log now, by name; one whose CDC is off keeps the log that it has."""
    rows = lake.read(CDC_TABLES).to_pylist()
    found = [
        CdcTable(
            row["keyspace_name"],
            row["table_name"],
            row["enabled"],
            row["ttl_seconds"],
            ms_from_datetime(row["created_at"]),
            row["ddl"],
        )
        for row in rows
    ]
    return sorted(found, key=lambda table: (table.keyspace_name, table.table_name))


def find(lake: Lake, keyspace: str, table: str) -> CdcTable:
    """The table of this name.

    Raises:
        NotFound: it has no log that the platform was told of.
    """
    for known in cdc_tables(lake):
        if (known.keyspace_name, known.table_name) == (keyspace, table):
            return known
    raise _unknown(lake, keyspace, table)


def changes(lake: Lake, version: int | None = None) -> list[TableChange]:
    """Everything that was ever said of any table, by table and oldest first; until a version of the history, if given.

    A table without history, which another writer has left, was added as it stands when its log was created.
    """
    told = _told(lake) if version is None else changes_of(lake.read_version(CDC_TABLE_CHANGES, version))
    return sorted(
        [*told, *_silent(lake, told)],
        key=lambda change: (change.keyspace_name, change.table_name, change.changed_at_us),
    )


def histories(lake: Lake) -> dict[tuple[str, str], LogHistory]:
    """The TTLs that rows were written with in each log that is there, by keyspace and table, as the rule has them."""
    found: dict[tuple[str, str], LogHistory] = {}
    for name, said in groupby(changes(lake), key=lambda change: (change.keyspace_name, change.table_name)):
        history = log_history(
            [
                Change(
                    change.changed_at_us,
                    change.created_at_us,
                    change.enabled,
                    us_of_seconds(change.ttl_seconds),
                    change.what == DROPPED,
                )
                for change in said
            ]
        )
        if history is not None:
            found[name] = history
    return found


@dataclass(frozen=True)
class Saying:
    """What is to be said of a table: a rule makes it, or nothing, of what was last said of it."""

    keyspace_name: str
    table_name: str
    rule: Callable[[TableChange | None], TableChange | None]


def addition(
    _lake: Lake,
    clock: Clock,
    keyspace: str,
    table: str,
    *,
    ttl_seconds: int,
    created_at_ms: Milliseconds | None = None,
    ddl: str | None = None,
    enabled: bool = True,
) -> Saying:
    """Of a table with a log, created at `created_at_ms` (by default now). The same table again is one table.

    Raises:
        InputError: the name, the TTL or the time is impossible; as it is said, the table is there with another TTL,
            creation or state.
    """
    check_table_name(keyspace, table)
    _check_ttl(ttl_seconds)
    if created_at_ms is not None and created_at_ms > clock.now_ms():
        raise InputError(
            f"{keyspace}.{table}: its log cannot have been created at {format_ms(created_at_ms)}, which is after now, "
            f"{format_ms(clock.now_ms())}; give the time of the log's CREATE TABLE"
        )

    def rule(last: TableChange | None) -> TableChange | None:
        if last is not None and last.what != DROPPED:
            _assert_same(last, ttl_seconds, created_at_ms, enabled)
            return None
        after_us = -ONE_US if last is None else last.changed_at_us
        created_ms = max(clock.now_ms(), ms_of(after_us) + ONE_MS) if created_at_ms is None else created_at_ms
        # The TTL is in force since the log was created, however late that is told.
        created_us = us_of(created_ms)
        at_us = max(created_us, after_us + ONE_US)
        return TableChange(keyspace, table, at_us, ADDED, enabled, ttl_seconds, created_us, ddl)

    return Saying(keyspace, table, rule)


def alteration(
    lake: Lake,
    clock: Clock,
    keyspace: str,
    table: str,
    *,
    ttl_seconds: int | None = None,
    enabled: bool | None = None,
    ddl: str | None = None,
) -> Saying:
    """Of another TTL of a table's log, or its CDC on or off, from now on. What changes nothing is not noted.

    Rows that are in the log keep the TTL they were written with.

    Raises:
        InputError: the TTL is impossible.
        NotFound: as it is said, the table is not known.
    """
    if ttl_seconds is not None:
        _check_ttl(ttl_seconds)

    def rule(last: TableChange | None) -> TableChange | None:
        last = _standing(lake, last, keyspace, table)
        wanted = replace(
            last,
            what=ALTERED,
            enabled=last.enabled if enabled is None else enabled,
            ttl_seconds=last.ttl_seconds if ttl_seconds is None else ttl_seconds,
            ddl=last.ddl if ddl is None else ddl,
        )
        unchanged = replace(wanted, what=last.what) == last
        return None if unchanged else replace(wanted, changed_at_us=_next_us(clock, last))

    return Saying(keyspace, table, rule)


def ending(lake: Lake, clock: Clock, keyspace: str, table: str) -> Saying:
    """Of a table's log that was dropped, with all of its rows.

    Raises:
        NotFound: as it is said, the table is not known.
    """

    def rule(last: TableChange | None) -> TableChange | None:
        if last is not None and last.what == DROPPED and _is_listed(lake, keyspace, table):
            return None  # one who died, or is at it, has said so: this finishes it
        last = _standing(lake, last, keyspace, table)
        return replace(last, what=DROPPED, changed_at_us=_next_us(clock, last))

    return Saying(keyspace, table, rule)


@in_turn(TABLES)
def say(lake: Lake, sayings: Sequence[Saying], once: Numbers = NO_NUMBERS) -> list[TableChange]:
    """Say all of it in one commit, in this order, or nothing; answers with what stands then of each.

    Where the history has seen a number of `once`, by application, all of it was said: the answer is empty.

    Raises:
        As the sayings' rules.
    """
    found = _said(lake, sayings, apart=False, once=once)
    return [outcome for outcome in found if isinstance(outcome, TableChange)]


@in_turn(TABLES)
def say_apart(lake: Lake, sayings: Sequence[Saying]) -> list[TableChange | InputError]:
    """As `say`, but one that is refused keeps no other back: why is in its place."""
    return _said(lake, sayings, apart=True, once=NO_NUMBERS)


def _alone(
    saying: Callable[Concatenate[Lake, Clock, _Given], Saying],
) -> Callable[Concatenate[Lake, Clock, _Given], CdcTable]:
    """What says one thing at once, and answers with how the table stands then."""

    @wraps(saying)
    def said(lake: Lake, clock: Clock, *args: _Given.args, **options: _Given.kwargs) -> CdcTable:
        (change,) = say(lake, [saying(lake, clock, *args, **options)])
        return as_it_stands(change)

    return said


add, alter, drop = _alone(addition), _alone(alteration), _alone(ending)


def _standing(lake: Lake, last: TableChange | None, keyspace: str, table: str) -> TableChange:
    if last is None or last.what == DROPPED:
        raise _unknown(lake, keyspace, table)
    return last


def _said(lake: Lake, sayings: Sequence[Saying], *, apart: bool, once: Numbers) -> list[TableChange | InputError]:
    """Say what the rules make of how their tables stood when something was last said of them.

    Read, judged and said in one step: what others say at the same moment comes before or after it.
    """
    outcomes: list[TableChange | InputError] = []

    def next_rows(rows: pa.Table) -> pa.Table | None:
        told = changes_of(rows)
        silent = _silent(lake, told)
        last = {(each.keyspace_name, each.table_name): each for each in [*silent, *told]}
        outcomes.clear()
        said: list[TableChange] = []
        for saying in sayings:
            name = saying.keyspace_name, saying.table_name
            try:
                change = saying.rule(last.get(name))
            except InputError as refusal:
                if not apart:
                    raise
                outcomes.append(refusal)
                continue
            if change is not None:
                said.append(change)
                last[name] = change
            assert name in last, "a rule that says nothing of a table that nothing was said of"
            outcomes.append(last[name])
        return rows_of([*silent, *said]) if said else None

    if not sayings:
        return []
    lake.transact(CDC_TABLE_CHANGES, next_rows, numbers=once)
    failpoints.reached(failpoints.AFTER_TABLE_CHANGE)
    complete(lake)
    return outcomes


@in_turn(TABLES)
def complete(lake: Lake) -> None:
    """Make `platform.cdc_tables` what follows from the history; tables without history stay as they are.

    For who judges by the tables that stand, and says of one that it ended and began anew: somebody may have died
    between what was said and what follows from it.
    """

    def followed(rows: pa.Table) -> pa.Table | None:
        last = {(change.keyspace_name, change.table_name): change for change in _told(lake)}
        silent = [row for row in rows.to_pylist() if (row["keyspace_name"], row["table_name"]) not in last]
        told = [row_of(change) for change in last.values() if change.what != DROPPED]
        if not told and not rows.num_rows:
            return None
        return pa.Table.from_pylist([*silent, *told], schema=CDC_TABLES.schema)

    lake.transact(CDC_TABLES, followed, whole=True)


def _is_listed(lake: Lake, keyspace: str, table: str) -> bool:
    return any((each.keyspace_name, each.table_name) == (keyspace, table) for each in cdc_tables(lake))


def _told(lake: Lake) -> list[TableChange]:
    """The history as it stands in the lake, oldest first."""
    return changes_of(lake.read(CDC_TABLE_CHANGES))


def _silent(lake: Lake, told: list[TableChange]) -> list[TableChange]:
    """The additions that nobody has noted: of tables that stand there without any history."""
    known = {(change.keyspace_name, change.table_name) for change in told}
    return [
        TableChange(
            table.keyspace_name,
            table.table_name,
            us_of(table.created_at_ms),
            ADDED,
            table.enabled,
            table.ttl_seconds,
            us_of(table.created_at_ms),
            table.ddl,
        )
        for table in cdc_tables(lake)
        if (table.keyspace_name, table.table_name) not in known
    ]


def _unknown(lake: Lake, keyspace: str, table: str) -> UnknownTable:
    do = mend(lake, f"tell of it with: cdc-platform tables add {keyspace}.{table} --ttl SECONDS")
    return UnknownTable(
        f"no CDC-enabled table {keyspace}.{table} is known; list them with: cdc-platform tables, or {do}"
    )


def _assert_same(last: TableChange, ttl_seconds: int, created_at_ms: Milliseconds | None, enabled: bool) -> None:
    created_ms = ms_of(last.created_at_us)
    if (ttl_seconds, enabled) == (last.ttl_seconds, last.enabled) and created_at_ms in (None, created_ms):
        return
    raise InputError(
        f"{last.full_name} is known already, with TTL {last.ttl_seconds} s, created at {format_ms(created_ms)}, CDC "
        f"{'on' if last.enabled else 'off'}; change it with: cdc-platform tables alter {last.full_name}"
    )


def _next_us(clock: Clock, last: TableChange) -> Microseconds:
    """Now, or just after the last change where the clock stands or was turned back: the order of changes counts."""
    return max(clock.now_us(), last.changed_at_us + ONE_US)


def _check_ttl(ttl_seconds: int) -> None:
    if not 0 <= ttl_seconds <= MAX_CDC_TTL:
        raise InputError(f"a TTL of {ttl_seconds} s is out of range; it is 0 (rows never expire) to {MAX_CDC_TTL} s")
