"""The changes that a replica has not merged yet: new rows of its log as rows of a state, and rows that came late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import STATE_SCHEMA, WRITTEN_AT, OnMessage, log_table, merge_states, state_from_log
from cdc_platform.clock import SECOND_US, Clock, Microseconds, datetime_from_us, format_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, compute, read_changes_since
from cdc_platform.ingest.policy import ReadPolicy
from cdc_platform.ingest.replica.changed_keys import ChangedKeys, RereadRows
from cdc_platform.ingest.replica.reread import LateChanges
from cdc_platform.ingest.replica.snapshot import SyntheticTimestamps
from cdc_platform.ingest.replica.tables import RANGE, Replica, with_ranges
from cdc_platform.scylla import ScyllaSession
from cdc_platform.tables import TIMESTAMP

MAX_CLOCK_LEAD_US = SECOND_US * 10
"""How far a writer's clock may be ahead of this machine's for its writes to count as seen."""


@dataclass(frozen=True)
class LogChanges:
    """New rows of a log up to its version `log_version`: `rows` of a state, and `places` that change, by token range.

    `log_rows` counts the rows of the log. `late` are those of rows that came after the copy and are older than the log
    that the replica counts on. If the log has only keys, `rows` were read from the base table, see `replaced`.
    """

    rows: pa.Table
    places: pa.Table
    late: LateChanges
    replaced: RereadRows | None
    log_rows: int
    log_version: int

    def ranges(self) -> list[int]:
        """Return the token ranges that have changes."""
        return np.unique(np.asarray(self.places[RANGE])).tolist()

    def in_ranges(self, numbers: Sequence[int]) -> pa.Table:
        """Return the rows in some token ranges, without the range's column."""
        return _in_ranges(self.rows, numbers)

    def places_in_ranges(self, numbers: Sequence[int]) -> pa.Table:
        """Return the keys and kinds of the changes in some token ranges."""
        return _in_ranges(self.places, numbers)


@dataclass(frozen=True)
class _NewLogRows:
    """Rows of a log to merge, and those of them that arrived after the copy, as far as that is known."""

    rows: Sequence[pa.Table]
    after_copy: Sequence[pa.Table]


def read_log_changes(
    live: ScyllaSession,
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    replica: Replica,
    policy: ReadPolicy,
    on_message: OnMessage,
) -> LogChanges:
    """Return what the newest version of the log adds to a replica.

    Raises:
        NotGranted, Unreachable: rows of late changes could not be reread.
    """
    version = lake.version(log_table(schema))
    new = _read_new_rows(lake, schema, replica, version)
    # Tombstones before this time are purged from the state, unless the whole log is merged.
    is_increment = new.rows is new.after_copy
    since_us = Microseconds(max(replica.since_us, replica.sure_us + 1)) if is_increment else replica.since_us
    older = _split_at(new.after_copy, since_us)[0]
    late = LateChanges.none()
    if older:
        # A reread list gets the time of reading, see `reread`.
        lists_us = Microseconds(clock.now_us() + MAX_CLOCK_LEAD_US)
        timestamps = SyntheticTimestamps(Microseconds(since_us - 1), lists_us)
        late = LateChanges.read(live, schema, older, timestamps, policy.concurrency)
        on_message(
            f"{late.rows} rows of the log of {schema.full_name} came behind its copy, and are older than"
            f" {format_us(since_us)}: the {len(late.places)} rows that they wrote to are read again"
        )
    states = [_state_from_logs(schema, _split_at(new.rows, since_us)[1])]
    if late.rows:
        states = [merge_states(schema, [*states, late.changes])]
    log_rows = sum(rows.num_rows for rows in new.rows)
    rows = with_ranges(states[0], replica.ranges)
    return LogChanges(rows, rows.select([*_PLACE, RANGE]), late, None, log_rows, version or 0)


def find_changed_keys(lake: Lake, schema: TableSchema, replica: Replica) -> ChangedKeys:
    """Return the rows that the log names and a replica has not merged yet; the log's values are ignored."""
    log = log_table(schema)
    version = lake.version(log)
    if version is None:
        return ChangedKeys.find(schema, [], 0)
    known = replica.log if replica.log is not None else replica.log_before_copy
    new = read_changes_since(lake, log, known, version) if known is not None and known <= version else None
    return ChangedKeys.find(schema, new if new is not None else [lake.read_version(log, version)], version)


def read_changed_rows(
    live: ScyllaSession,
    clock: Clock,
    schema: TableSchema,
    replica: Replica,
    keys: ChangedKeys,
    policy: ReadPolicy,
) -> LogChanges:
    """Return the rows that a log names, as the base table has them.

    Raises:
        NotGranted, Unreachable: the base table could not be read.
    """
    now_us = Microseconds(clock.now_us() + MAX_CLOCK_LEAD_US)
    replaced = RereadRows.read(live, schema, keys, now_us, policy.concurrency)
    rows, places = with_ranges(replaced.state, replica.ranges), with_ranges(replaced.places, replica.ranges)
    return LogChanges(rows, places, LateChanges.none(), replaced, keys.log_rows, keys.log_version)


_PLACE = ["partition", "clustering", "kind"]


def _in_ranges(rows: pa.Table, numbers: Sequence[int]) -> pa.Table:
    inside = np.isin(np.asarray(rows[RANGE]), np.asarray(numbers, np.int32))
    return rows.filter(pa.array(inside)).drop_columns([RANGE])


def _read_new_rows(lake: Lake, schema: TableSchema, replica: Replica, version: int | None) -> _NewLogRows:
    """Return the log rows that are not merged yet (all, if that is unknown)."""
    log = log_table(schema)
    if version is None:
        return _NewLogRows([], [])
    if replica.log is not None and replica.log <= version:
        added = read_changes_since(lake, log, replica.log, version)
        if added is not None:
            return _NewLogRows(added, added)
    rows = lake.read_version(log, version)
    before_copy = None if replica.log is not None else replica.log_before_copy
    after_copy = None
    if before_copy is not None and before_copy != version:
        after_copy = read_changes_since(lake, log, before_copy, version)
    return _NewLogRows([rows] if rows.num_rows else [], after_copy or [])


def _split_at(logs: Iterable[pa.Table], time_us: Microseconds) -> tuple[list[pa.Table], list[pa.Table]]:
    """Return the rows written before a time (µs), and the others; no empty tables."""
    time, before, after = pa.scalar(datetime_from_us(time_us), TIMESTAMP), list[pa.Table](), list[pa.Table]()
    for rows in logs:
        is_older = compute.less(rows[WRITTEN_AT].cast(TIMESTAMP), time)
        before.append(rows.filter(is_older))
        after.append(rows.filter(compute.invert(is_older)))
    return [rows for rows in before if rows.num_rows], [rows for rows in after if rows.num_rows]


def _state_from_logs(schema: TableSchema, logs: Sequence[pa.Table]) -> pa.Table:
    if not logs:
        return STATE_SCHEMA.empty_table()
    return merge_states(schema, [state_from_log(schema, pa.concat_tables(logs, promote_options="default"))])
