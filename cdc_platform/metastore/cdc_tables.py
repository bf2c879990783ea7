"""CDC-enabled tables, their TTLs and the history of both.

`platform.cdc_table_changes` is append-only and written first; `platform.cdc_tables` follows from it, and the next
change of any table completes it after a crash. Unknown facts stay unknown: a log of unknown age has no creation time.
`generations.expiry` alone decides what an unknown past means for a generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from itertools import groupby, pairwise
from typing import Any, Concatenate, ParamSpec

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import (
    MAX_CDC_TTL_SECONDS,
    ONE_MS,
    ONE_US,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_us,
    format_ms,
    format_us,
    ms_from_us,
    us_from_datetime,
    us_from_ms,
    us_from_seconds,
)
from cdc_platform.cql import check_table_name, quote_name
from cdc_platform.delta import NO_TRANSACTION_NUMBERS, TABLES_LOCK, Lake, TransactionNumbers, choose_remedy, exclusive
from cdc_platform.errors import InputError, UnknownTable
from cdc_platform.generations import CdcSettingsChange, LogTtlHistory, build_log_ttl_history
from cdc_platform.tables import CDC_TABLE_CHANGES, CDC_TABLES

TABLE_ADDED, TABLE_ALTERED, TABLE_DROPPED = "added", "altered", "dropped"
"""The kinds of change of a table.

A second `added` without a drop before it means that an observer saw the table in another state, and does not know since
when.
"""

_UNKNOWN_US = Microseconds(0)
"""The value for an unknown time in a column that may not be null; readers place it before every generation."""


@dataclass(frozen=True)
class _NamedTable:
    keyspace_name: str
    table_name: str

    @property
    def full_name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace_name}.{self.table_name}"

    @property
    def cql_name(self) -> str:
        """Return `keyspace.table` as CQL and the command line accept it, with quotes where a name needs them."""
        return f"{quote_name(self.keyspace_name)}.{quote_name(self.table_name)}"


@dataclass(frozen=True)
class CdcTable(_NamedTable):
    """A table with a CDC log.

    `ttl_seconds` 0 means that log rows never expire. `created_at_ms` is the creation time of the log, None if unknown.
    """

    enabled: bool
    ttl_seconds: int
    created_at_ms: Milliseconds | None
    ddl: str | None = None

    @property
    def oldest_ms(self) -> Milliseconds:
        """Return the earliest time (ms) at which the log can have existed: 0 if the log's age is unknown."""
        return Milliseconds(0) if self.created_at_ms is None else self.created_at_ms


@dataclass(frozen=True)
class TableChange(_NamedTable):
    """A change of a table at `changed_at_us` (µs), and the table's state from then on; see `CdcTable`."""

    changed_at_us: Microseconds
    what: str
    enabled: bool
    ttl_seconds: int
    created_at_us: Microseconds | None
    ddl: str | None = None


def log_recreation_times(changes: Iterable[TableChange]) -> list[Microseconds]:
    """Return when (µs) a table's log was created again after a drop, from the changes of that table alone.

    A log that returns with its old creation time is the same log. For a log of unknown age, the time is that of the
    first observation.
    """
    return [
        after.changed_at_us if after.created_at_us is None else after.created_at_us
        for before, after in pairwise(changes)
        if before.what == TABLE_DROPPED and (after.created_at_us is None or after.created_at_us != before.created_at_us)
    ]


def earliest_log_begin_us(changes: Iterable[TableChange]) -> Microseconds:
    """Return the earliest time (µs) at which a table's log can have begun, from its changes, oldest first.

    That is the log's creation time. If it is unknown, it is the time at which the previous log was dropped, or 0.
    """
    began_us = Microseconds(0)
    for change in changes:
        if change.what == TABLE_DROPPED:
            began_us = change.changed_at_us
        elif change.created_at_us is not None:
            began_us = change.created_at_us
    return began_us


def table_changes_from_rows(rows: pa.Table) -> list[TableChange]:
    """Parse rows of the history into changes, oldest first."""
    return sorted(
        (
            TableChange(
                row["keyspace_name"],
                row["table_name"],
                us_from_datetime(row["changed_at"]),
                row["what"],
                row["enabled"],
                row["ttl_seconds"],
                stored_time_us(us_from_datetime(row["created_at"])),
                row["ddl"],
            )
            for row in rows.to_pylist()
        ),
        key=lambda change: change.changed_at_us,
    )


def stored_time_us(stored_us: Microseconds) -> Microseconds | None:
    """Return a stored time (µs), or None if the value stands for an unknown time."""
    return None if stored_us == _UNKNOWN_US else stored_us


def table_change_rows(several: list[TableChange]) -> pa.Table:
    """Build the rows of the history from changes."""
    return pa.Table.from_pylist([table_change_row(change) for change in several], schema=CDC_TABLE_CHANGES.schema)


def table_change_row(change: TableChange) -> dict[str, Any]:
    """Build the row of a change for the history; `platform.cdc_tables` uses a subset of its columns."""
    created_us = _UNKNOWN_US if change.created_at_us is None else change.created_at_us
    return vars(change) | {
        "changed_at": datetime_from_us(change.changed_at_us),
        "created_at": datetime_from_us(created_us),
    }


def cdc_table_from_change(change: TableChange) -> CdcTable:
    """Return the table in its state after a change."""
    return CdcTable(
        change.keyspace_name,
        change.table_name,
        change.enabled,
        change.ttl_seconds,
        None if change.created_at_us is None else ms_from_us(change.created_at_us),
        change.ddl,
    )


_Parameters = ParamSpec("_Parameters")


def read_cdc_tables(lake: Lake) -> list[CdcTable]:
    """Return the tables that have a log now, by name.

    A table with CDC switched off is included, since its log remains.
    """
    rows = lake.read(CDC_TABLES).to_pylist()
    tables = [
        CdcTable(
            row["keyspace_name"],
            row["table_name"],
            row["enabled"],
            row["ttl_seconds"],
            _known_ms(row["created_at"]),
            row["ddl"],
        )
        for row in rows
    ]
    return sorted(tables, key=lambda table: (table.keyspace_name, table.table_name))


def find_cdc_table(lake: Lake, keyspace: str, table: str) -> CdcTable:
    """Return the table of this name.

    Raises:
        NotFound: no CDC log of this table is registered.
    """
    for known in read_cdc_tables(lake):
        if (known.keyspace_name, known.table_name) == (keyspace, table):
            return known
    raise _unknown_table(lake, keyspace, table)


def read_table_changes(lake: Lake, version: int | None = None) -> list[TableChange]:
    """Return every recorded change of every table, by table and oldest first, optionally at a version of the history.

    A table that another writer added without history counts as added, in its current state, when its log was created.
    """
    recorded = (
        _recorded_changes(lake)
        if version is None
        else table_changes_from_rows(lake.read_version(CDC_TABLE_CHANGES, version))
    )
    return sorted(
        [*recorded, *_unrecorded_additions(lake, recorded)],
        key=lambda change: (change.keyspace_name, change.table_name, change.changed_at_us),
    )


def read_log_histories(lake: Lake) -> dict[tuple[str, str], LogTtlHistory]:
    """Return the TTL history of each existing log by keyspace and table, in the form that the expiry rule needs."""
    histories: dict[tuple[str, str], LogTtlHistory] = {}
    for name, changes in groupby(
        read_table_changes(lake), key=lambda change: (change.keyspace_name, change.table_name)
    ):
        history = build_log_ttl_history(list(_expiry_changes(list(changes))))
        if history is not None:
            histories[name] = history
    return histories


def _expiry_changes(history: Sequence[TableChange]) -> Iterator[CdcSettingsChange]:
    """Yield the changes of one table, oldest first, in the form that the expiry rule needs.

    The last change of a log has the best knowledge of the log's creation time, and it applies to all changes of that
    log. A table added at that time had this state from the beginning. Any other addition is only an observation, or
    states the table from then on.
    """
    created = _creations(history)
    for before, change, created_us in zip([None, *history], history, created, strict=False):
        is_back = before is not None and before.what == TABLE_DROPPED and _is_same_log(before, change)
        is_first = created_us is not None and change.changed_at_us <= created_us
        yield CdcSettingsChange(
            change.changed_at_us,
            created_us,
            change.enabled,
            us_from_seconds(change.ttl_seconds),
            change.what == TABLE_DROPPED,
            seen=change.what == TABLE_ADDED and not is_first and not is_back,
        )


def _creations(history: Sequence[TableChange]) -> list[Microseconds | None]:
    """Return the creation time (µs) of each change's log, as known by the log's drop or by now."""
    times: list[Microseconds | None] = []
    created_us: Microseconds | None = None
    for index, change in reversed(list(enumerate(history))):
        if change.what == TABLE_DROPPED or index == len(history) - 1:
            created_us = change.created_at_us
        times.append(created_us)
    return times[::-1]


def _is_same_log(drop: TableChange, change: TableChange) -> bool:
    """Return True if a change states that a log is older than its drop; such a row directly follows the drop."""
    return change.created_at_us is not None and change.changed_at_us == drop.changed_at_us + ONE_US


TableChangeRule = Callable[[Sequence[TableChange]], Sequence[TableChange]]
"""Returns the changes to add to a table, given all existing changes of that table, oldest first."""


@dataclass(frozen=True)
class TableChangeRequest:
    """A request to change a table.

    `rule` derives the changes to record, possibly none, from the table's existing changes.
    """

    keyspace_name: str
    table_name: str
    rule: TableChangeRule


def request_addition(
    _lake: Lake,
    clock: Clock,
    keyspace: str,
    table: str,
    *,
    ttl_seconds: int,
    created_at_ms: Milliseconds | None = None,
    created_now: bool = False,
    ttl_since_ms: Milliseconds | None = None,
    ddl: str | None = None,
    enabled: bool = True,
    observed: bool = False,
) -> TableChangeRequest:
    """Request the addition of a table whose log was created at `created_at_ms` (None: unknown), or now.

    The table has this state since `ttl_since_ms`, by default since its creation. If neither is known, or the table was
    only `observed`, it has this state since now. Adding an existing table again fills in what was unknown about it.

    Raises:
        InputError: the name, the TTL or a time is impossible; when the rule runs, the table exists with another TTL,
            creation time or state.
    """
    check_table_name(keyspace, table)
    _check_ttl(ttl_seconds)
    _check_past(clock, f"{keyspace}.{table}", created_at_ms, ttl_since_ms)

    def rule(history: Sequence[TableChange]) -> Sequence[TableChange]:
        last = history[-1] if history else None
        if last is not None and last.what != TABLE_DROPPED:
            _assert_same(last, ttl_seconds, None if observed else created_at_ms, enabled)
            created_us = _created_us(history, created_at_ms, observed=observed)
            changes = [] if created_us == last.created_at_us else [_creation_change(clock, last, created_us)]
            is_unaltered = all(change.ttl_seconds == ttl_seconds for change in _changes_of_current_log(history))
            since_ms = created_at_ms if ttl_since_ms is None and is_unaltered else ttl_since_ms
            return (
                changes
                if observed or since_ms is None
                else [*changes, *_ttl_change(_merged_changes(history, changes), since_ms)]
            )
        after_us = -ONE_US if last is None else last.changed_at_us
        created_ms = max(clock.now_ms(), ms_from_us(after_us) + ONE_MS) if created_now else created_at_ms
        since_ms = created_ms if ttl_since_ms is None and not observed else ttl_since_ms
        at_us = us_from_ms(clock.now_ms() if since_ms is None else since_ms)
        created_us = None if created_ms is None else us_from_ms(created_ms)
        if created_us is not None:
            at_us = max(at_us, created_us)
        # The position directly after the drop is reserved for a log stated to be older than the drop, see
        # `_is_same_log`.
        at_us = max(at_us, after_us + ONE_US * (1 if at_us == created_us else 2))
        return [TableChange(keyspace, table, at_us, TABLE_ADDED, enabled, ttl_seconds, created_us, ddl)]

    return TableChangeRequest(keyspace, table, rule)


def request_alteration(
    lake: Lake,
    clock: Clock,
    keyspace: str,
    table: str,
    *,
    ttl_seconds: int | None = None,
    enabled: bool | None = None,
    ddl: str | None = None,
    created_at_ms: Milliseconds | None = None,
    ttl_since_ms: Milliseconds | None = None,
    unchanged_until_us: Microseconds | None = None,
    observed: bool = False,
) -> TableChangeRequest:
    """Request another TTL of a table's log, or its CDC on or off, from now on.

    The rule records nothing if nothing changes. Rows already in the log keep the TTL with which they were written.
    `created_at_ms` and `ttl_since_ms` supply facts that were unknown: the creation time of the log, and since when the
    TTL is in force. If the change was only `observed`, its time is unknown, except that it is later than
    `unchanged_until_us` (µs).

    Raises:
        InputError: the TTL or a time is impossible, or contradicts what is known.
        NotFound: when the rule runs, the table is not known.
    """
    if ttl_seconds is not None:
        _check_ttl(ttl_seconds)
    _check_past(clock, f"{keyspace}.{table}", created_at_ms, ttl_since_ms)

    def rule(history: Sequence[TableChange]) -> Sequence[TableChange]:
        last = _current_state(lake, history[-1] if history else None, keyspace, table)
        wanted = replace(
            last,
            enabled=last.enabled if enabled is None else enabled,
            ttl_seconds=last.ttl_seconds if ttl_seconds is None else ttl_seconds,
            ddl=last.ddl if ddl is None else ddl,
            created_at_us=_created_us(history, created_at_ms, observed=observed),
        )
        is_other = (wanted.enabled, wanted.ttl_seconds) != (last.enabled, last.ttl_seconds)
        changes = list[TableChange]()
        if wanted != last:
            at_us = _next_us(clock, last)
            if is_other and ttl_since_ms is not None:
                at_us = _since_us(last, us_from_ms(ttl_since_ms))
            if (
                observed
                and is_other
                and unchanged_until_us is not None
                and last.changed_at_us < unchanged_until_us < at_us
            ):
                changes.append(replace(last, what=TABLE_ALTERED, changed_at_us=unchanged_until_us))
            changes.append(
                replace(wanted, what=TABLE_ADDED if observed and is_other else TABLE_ALTERED, changed_at_us=at_us)
            )
        if ttl_since_ms is not None and not is_other:
            changes += _ttl_change(_merged_changes(history, changes), ttl_since_ms)
        return changes

    return TableChangeRequest(keyspace, table, rule)


def _creation_change(clock: Clock, last: TableChange, created_us: Microseconds | None) -> TableChange:
    return replace(last, what=TABLE_ALTERED, created_at_us=created_us, changed_at_us=_next_us(clock, last))


def _created_us(
    history: Sequence[TableChange], created_at_ms: Milliseconds | None, *, observed: bool
) -> Microseconds | None:
    """Return the log's creation time (µs) from what is known and what is stated; of two `observed` times the older one.

    Raises:
        InputError: the stated time contradicts a known one.
    """
    log = _changes_of_current_log(history)
    last, first = log[-1], log[0]
    if created_at_ms is None:
        return last.created_at_us
    created_us = us_from_ms(created_at_ms)
    if observed:
        return created_us if last.created_at_us is None else min(created_us, last.created_at_us)
    if last.created_at_us is not None and last.created_at_us != created_us:
        raise InputError(
            f"the log of {last.full_name} was created at {format_us(last.created_at_us)}; if that "
            f"is wrong, drop the table here and add it again: cdc-platform tables drop {last.full_name}"
        )
    if created_us > first.changed_at_us:
        raise InputError(
            f"{last.full_name} existed at {format_us(first.changed_at_us)}, so its log cannot have been created at "
            f"{format_ms(created_at_ms)}; give a time before that"
        )
    return created_us


def _since_us(last: TableChange, at_us: Microseconds) -> Microseconds:
    """Return `at_us`, the time at which a TTL came into force, after checking that it follows the last known other TTL.

    Raises:
        InputError: another TTL was in force at that time or later.
    """
    if at_us <= last.changed_at_us:
        raise InputError(
            f"the TTL of {last.full_name} was {last.ttl_seconds} s at {format_us(last.changed_at_us)}; another one is "
            "in force since a later time: give that as --ttl-since"
        )
    return at_us


def _ttl_change(history: Sequence[TableChange], since_ms: Milliseconds) -> list[TableChange]:
    """Return the change that the history lacks if the current TTL has been in force since an earlier time (ms).

    Raises:
        InputError: the table had another TTL after that time.
    """
    log = _changes_of_current_log(history)
    last = log[-1]
    at_us = us_from_ms(since_ms)
    if last.created_at_us is not None:
        at_us = max(at_us, last.created_at_us)
    if len(log) < len(history):
        at_us = max(at_us, history[-len(log) - 1].changed_at_us + ONE_US)
    other = next((change for change in reversed(log) if change.ttl_seconds != last.ttl_seconds), None)
    if other is not None:
        at_us = _since_us(other, at_us)
    begun = next(change for change in log if other is None or change.changed_at_us > other.changed_at_us)
    if begun.changed_at_us <= at_us:
        return []
    # CDC counts as on unless a change says that it was off.
    what = TABLE_ADDED if other is None else TABLE_ALTERED
    return [replace(begun, what=what, changed_at_us=at_us, enabled=True, created_at_us=last.created_at_us)]


def _changes_of_current_log(history: Sequence[TableChange]) -> Sequence[TableChange]:
    """Return the changes of a table since its log was last dropped."""
    drops = [index for index, change in enumerate(history) if change.what == TABLE_DROPPED]
    return history[drops[-1] + 1 :] if drops else history


def _merged_changes(history: Sequence[TableChange], more: Sequence[TableChange]) -> list[TableChange]:
    return sorted([*history, *more], key=lambda change: change.changed_at_us)


def request_drop(lake: Lake, clock: Clock, keyspace: str, table: str) -> TableChangeRequest:
    """Request the drop of a table's log with all of its rows.

    Raises:
        NotFound: when the rule runs, the table is not known.
    """

    def rule(history: Sequence[TableChange]) -> Sequence[TableChange]:
        last = history[-1] if history else None
        if last is not None and last.what == TABLE_DROPPED and _is_listed(lake, keyspace, table):
            return ()  # a process that died or still runs has recorded the drop; the caller completes it
        last = _current_state(lake, last, keyspace, table)
        return [replace(last, what=TABLE_DROPPED, changed_at_us=_next_us(clock, last))]

    return TableChangeRequest(keyspace, table, rule)


@exclusive(TABLES_LOCK)
def record_table_changes(
    lake: Lake, requests: Sequence[TableChangeRequest], once: TransactionNumbers = NO_TRANSACTION_NUMBERS
) -> list[TableChange]:
    """Record all requests in this order in one commit, or none; return the resulting state of each table.

    Returns an empty list if the history already contains a transaction number of `once`, because all requests were
    recorded then.

    Raises:
        As the rules of the requests.
    """
    outcomes = _record(lake, requests, apart=False, once=once)
    return [outcome for outcome in outcomes if isinstance(outcome, TableChange)]


@exclusive(TABLES_LOCK)
def record_table_changes_separately(
    lake: Lake, requests: Sequence[TableChangeRequest]
) -> list[TableChange | InputError]:
    """Record requests like `record_table_changes`, but return a refused one's error in its place and record others."""
    return _record(lake, requests, apart=True, once=NO_TRANSACTION_NUMBERS)


def _recording_one(
    request: Callable[Concatenate[Lake, Clock, _Parameters], TableChangeRequest],
) -> Callable[Concatenate[Lake, Clock, _Parameters], CdcTable]:
    """Wrap a request so that it is recorded at once and the resulting table is returned."""

    @wraps(request)
    def record(lake: Lake, clock: Clock, *args: _Parameters.args, **options: _Parameters.kwargs) -> CdcTable:
        (change,) = record_table_changes(lake, [request(lake, clock, *args, **options)])
        return cdc_table_from_change(change)

    return record


add_cdc_table, alter_cdc_table, drop_cdc_table = (
    _recording_one(request_addition),
    _recording_one(request_alteration),
    _recording_one(request_drop),
)


def _current_state(lake: Lake, last: TableChange | None, keyspace: str, table: str) -> TableChange:
    if last is None or last.what == TABLE_DROPPED:
        raise _unknown_table(lake, keyspace, table)
    return last


def _record(
    lake: Lake, requests: Sequence[TableChangeRequest], *, apart: bool, once: TransactionNumbers
) -> list[TableChange | InputError]:
    """Record the changes that each request's rule derives from the current state of its table.

    One transaction reads, applies the rules and writes, so that concurrent changes come entirely before or after it.
    """
    outcomes: list[TableChange | InputError] = []

    def next_rows(rows: pa.Table) -> pa.Table | None:
        recorded = table_changes_from_rows(rows)
        unrecorded = _unrecorded_additions(lake, recorded)
        by_table: dict[tuple[str, str], list[TableChange]] = {}
        for change in [*unrecorded, *recorded]:
            by_table.setdefault((change.keyspace_name, change.table_name), []).append(change)
        outcomes.clear()
        added: list[TableChange] = []
        for request in requests:
            name = request.keyspace_name, request.table_name
            try:
                changes = request.rule(by_table.get(name, []))
            except InputError as error:
                if not apart:
                    raise
                outcomes.append(error)
                continue
            if changes:
                added += changes
                by_table[name] = _merged_changes(by_table.get(name, []), changes)
            assert name in by_table, "a rule that returns no change for a table without changes"
            outcomes.append(by_table[name][-1])
        return table_change_rows([*unrecorded, *added]) if added else None

    if not requests:
        return []
    lake.transact(CDC_TABLE_CHANGES, next_rows, numbers=once)
    failpoints.kill_if_selected(failpoints.AFTER_TABLE_CHANGE)
    complete_cdc_tables(lake)
    return outcomes


@exclusive(TABLES_LOCK)
def complete_cdc_tables(lake: Lake) -> None:
    """Derive `platform.cdc_tables` from the history; tables without history remain unchanged.

    Call this before judging the current tables to decide that one ended and began again. A process may have died
    between recording a change and updating the tables.
    """

    def followed(rows: pa.Table) -> pa.Table | None:
        last = {(change.keyspace_name, change.table_name): change for change in _recorded_changes(lake)}
        unrecorded = [row for row in rows.to_pylist() if (row["keyspace_name"], row["table_name"]) not in last]
        recorded = [table_change_row(change) for change in last.values() if change.what != TABLE_DROPPED]
        if not recorded and not rows.num_rows:
            return None
        return pa.Table.from_pylist([*unrecorded, *recorded], schema=CDC_TABLES.schema)

    lake.transact(CDC_TABLES, followed, whole=True)


def _is_listed(lake: Lake, keyspace: str, table: str) -> bool:
    return any((known.keyspace_name, known.table_name) == (keyspace, table) for known in read_cdc_tables(lake))


def _recorded_changes(lake: Lake) -> list[TableChange]:
    """Return the history in the lake, oldest first."""
    return table_changes_from_rows(lake.read(CDC_TABLE_CHANGES))


def _unrecorded_additions(lake: Lake, recorded: list[TableChange]) -> list[TableChange]:
    """Return additions for the tables that exist without any history."""
    known = {(change.keyspace_name, change.table_name) for change in recorded}
    return [
        TableChange(
            table.keyspace_name,
            table.table_name,
            us_from_ms(table.oldest_ms),
            TABLE_ADDED,
            table.enabled,
            table.ttl_seconds,
            None if table.created_at_ms is None else us_from_ms(table.created_at_ms),
            table.ddl,
        )
        for table in read_cdc_tables(lake)
        if (table.keyspace_name, table.table_name) not in known
    ]


def _unknown_table(lake: Lake, keyspace: str, table: str) -> UnknownTable:
    do = choose_remedy(lake, f"register it with: cdc-platform tables add {keyspace}.{table} --ttl SECONDS")
    return UnknownTable(
        f"no CDC-enabled table {keyspace}.{table} is known; list the tables with: cdc-platform tables, or {do}"
    )


def _assert_same(last: TableChange, ttl_seconds: int, created_at_ms: Milliseconds | None, enabled: bool) -> None:
    created_ms = None if last.created_at_us is None else ms_from_us(last.created_at_us)
    same = created_ms is None or created_at_ms in (None, created_ms)
    if (ttl_seconds, enabled) == (last.ttl_seconds, last.enabled) and same:
        return
    created = "at an unknown time" if created_ms is None else f"at {format_ms(created_ms)}"
    raise InputError(
        f"{last.full_name} is known already, with TTL {last.ttl_seconds} s, created {created}, CDC "
        f"{'on' if last.enabled else 'off'}; change it with: cdc-platform tables alter {last.full_name}"
    )


def _next_us(clock: Clock, last: TableChange) -> Microseconds:
    """Return now, or 1 µs after the last change if the clock stands still or was turned back, to preserve the order."""
    return max(clock.now_us(), last.changed_at_us + ONE_US)


def _check_past(clock: Clock, name: str, created_at_ms: Milliseconds | None, ttl_since_ms: Milliseconds | None) -> None:
    now = f"which is after now, {format_ms(clock.now_ms())}"
    if created_at_ms is not None and created_at_ms > clock.now_ms():
        raise InputError(
            f"{name}: its log cannot have been created at {format_ms(created_at_ms)}, {now}; give the time of the "
            "log's CREATE TABLE"
        )
    if ttl_since_ms is not None and ttl_since_ms > clock.now_ms():
        raise InputError(
            f"{name}: its TTL cannot be in force since {format_ms(ttl_since_ms)}, {now}; give the time of its last "
            "change"
        )


def _known_ms(stored: datetime) -> Milliseconds | None:
    us = stored_time_us(us_from_datetime(stored))
    return None if us is None else ms_from_us(us)


def _check_ttl(ttl_seconds: int) -> None:
    if not 0 <= ttl_seconds <= MAX_CDC_TTL_SECONDS:
        raise InputError(
            f"a TTL of {ttl_seconds} s is out of range; it is 0 (rows never expire) to {MAX_CDC_TTL_SECONDS} s"
        )


def are_cdc_tables_known(lake: Lake) -> bool:
    """Return True if the CDC-enabled tables are known: some are registered, or someone declared that there are none."""
    return lake.exists(CDC_TABLE_CHANGES) or bool(read_cdc_tables(lake))


@exclusive(TABLES_LOCK)
def declare_no_cdc_tables(lake: Lake) -> None:
    """Declare that no table has a log. Tables can still be registered later.

    Raises:
        InputError: a registered table has a log.
    """
    known = read_cdc_tables(lake)
    if known:
        raise InputError(
            f"{known[0].full_name} has a log; record that it was dropped with: "
            f"cdc-platform tables drop {known[0].full_name}"
        )
    lake.ensure(CDC_TABLE_CHANGES)
