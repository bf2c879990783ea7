"""Replicate a table of a live cluster in the lake, by merging one copy of it with its log since then.

CQL reports when cells were written, so copy and log merge in any order, and repeatedly; the log counts from before the
copy began. Rows named by a log without values are read from the table instead, see `changed_keys`. Cells whose time CQL
does not report are marked inexact, and reread when they may be wrong. Each step is repeatable: the run after a killed
one repeats the step with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdc_platform import failpoints
from cdc_platform.cdclog import (
    AS_OF_APPLICATION,
    INEXACT_APPLICATION,
    OnMessage,
    SelectedRows,
    log_table,
    select_with_details,
)
from cdc_platform.clock import DAY_SECONDS, Clock, Microseconds, format_us, us_from_seconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Batches, Lake, TaskRows, TaskRunner
from cdc_platform.errors import StateError
from cdc_platform.ingest.marks import AGAIN
from cdc_platform.ingest.policy import ReadPolicy
from cdc_platform.ingest.replica import tables
from cdc_platform.ingest.replica.changed_keys import ChangedKeys
from cdc_platform.ingest.replica.changes import (
    LogChanges,
    find_changed_keys,
    read_changed_rows,
    read_log_changes,
)
from cdc_platform.ingest.replica.merge import RangeMerger, concurrent_writer_error
from cdc_platform.ingest.replica.snapshot import SnapshotQuery, SyntheticTimestamps
from cdc_platform.ingest.replica.tables import Replica, cells_table, current_table, find_replica, for_readers
from cdc_platform.scylla import ScyllaSession
from cdc_platform.spark import frames
from cdc_platform.tables import Table

_COMMITS = "current:commits"
ROWS_AT_ONCE = 1 << 20
"""How many rows of the state are merged at a time."""
_ROWS_A_BATCH = 1 << 15
"""How many rows of the readers' table are written at a time, while the next are digested."""


@dataclass(frozen=True)
class ReplicationResult:
    """The state of a replicated table as of `as_of_us` (µs), and what was done now.

    `written_ranges` of its `ranges` token ranges were rewritten for `log_rows` rows of its log; `reread_rows` rows were
    reread from the cluster. `inexact` of its rows rest on times that CQL does not report.
    """

    table: str
    as_of_us: Microseconds
    copied_us: Microseconds
    copied_now: bool
    rows: int
    inexact: int
    log_rows: int
    written_ranges: int
    ranges: int
    reread_rows: int
    seconds: float


@dataclass(frozen=True)
class _Merge:
    """What a merge did: the number of token ranges that it wrote, and of rows that it reread."""

    written_ranges: int
    reread_rows: int


class TableReplicator:
    """Replicates one table. The caller holds the lock of its log."""

    def __init__(
        self,
        live: ScyllaSession,
        lake: Lake,
        clock: Clock,
        schema: TableSchema,
        workers: TaskRunner,
        policy: ReadPolicy,
        on_message: OnMessage,
    ) -> None:
        self._live, self._lake, self._clock, self._schema = live, lake, clock, schema
        self._workers, self._policy, self._on_message = workers, policy, on_message
        self._cells, self._current = cells_table(schema), current_table(schema)

    def replicate(
        self, as_of_us: Microseconds, complete_since_us: Microseconds, ttl_us: Microseconds, *, recopy: bool
    ) -> ReplicationResult:
        """Update the table to the newest version of its log, which has all rows up to `as_of_us` (µs).

        The log is complete from `complete_since_us` on; its rows live for `ttl_us` (0: for ever). Copy the table if
        there is no copy, if the copy counts on the log from an earlier time, or if `recopy` is True.

        Raises:
            NotGranted: the table may not be read.
            Unreachable: the cluster stopped answering.
        """
        started = time.monotonic()
        replica = None if recopy else self._find_usable(complete_since_us)
        is_copied = replica is None
        if replica is None:
            # The user knows of a change before now that no log records, such as a TRUNCATE; the older log is wrong.
            since_us = max(complete_since_us, as_of_us) if recopy else complete_since_us
            replica = self._copy(since_us, ttl_us)
        keys = self._find_changed_keys(replica)
        if keys is not None and not is_copied and keys.exceeds_copy(_count_rows(self._lake, self._current)):
            self._on_message(f"{keys.size} rows of {self._schema.full_name} changed: a copy reads them faster")
            replica, is_copied = self._copy(complete_since_us, ttl_us), True
            keys = self._find_changed_keys(replica)
        changes = self._read_changes(replica, keys)
        merge = self._merge(replica, changes, as_of_us)
        return self._result(changes, merge, is_copied=is_copied, seconds=round(time.monotonic() - started, 3))

    def _find_changed_keys(self, replica: Replica) -> ChangedKeys | None:
        """Return the rows that the log names; None if it has their values, too."""
        if self._schema.cdc.delta != "keys":
            return None
        return find_changed_keys(self._lake, self._schema, replica)

    def _read_changes(self, replica: Replica, keys: ChangedKeys | None) -> LogChanges:
        """Read the changes from the log or, if it has only keys, the rows that it names from the base table."""
        live, clock, schema, policy = self._live, self._clock, self._schema, self._policy
        if keys is None:
            return read_log_changes(live, self._lake, clock, schema, replica, policy, self._on_message)
        return read_changed_rows(live, clock, schema, replica, keys, policy)

    def _find_usable(self, complete_since_us: Microseconds) -> Replica | None:
        """Return the replica if the log determines its current state; None if the table has to be copied."""
        replica = find_replica(self._lake, self._schema)
        if replica is None or replica.since_us < complete_since_us or self._lost_columns():
            return None
        return replica

    def _lost_columns(self) -> bool:
        """Return True if the table has lost columns or changed their types: no log has the values that they had."""
        existing = self._lake.stored_schema(self._current).names
        if set(existing) - set(self._current.schema.names):
            return True
        try:
            if existing:
                self._lake.widen(self._current)
        except StateError:
            return True
        return False

    def _copy(self, complete_since_us: Microseconds, ttl_us: Microseconds) -> Replica:
        """Replace the state by a copy of the cluster's table."""
        lake, schema, live = self._lake, self._schema, self._live
        started_us = self._clock.now_us()
        lifetime_us = ttl_us or us_from_seconds(DAY_SECONDS)
        since = Microseconds(max(complete_since_us, started_us - lifetime_us))
        timestamps = SyntheticTimestamps(Microseconds(since - 1), started_us)
        query = SnapshotQuery(live.name, live.connection, schema, live.is_scylla, self._policy.concurrency, timestamps)
        ranges = query.estimate_ranges()
        parts = f"{ranges} part{'s' * (ranges > 1)}"
        self._on_message(f"copying {schema.full_name}, in {parts}; its log counts from {format_us(since)}")
        if schema.cdc.delta == "keys":
            self._on_message(f"the log of {schema.full_name} has only keys, so changed rows are read from the table")
        marks = {
            tables.COPIED: max(started_us, (lake.transaction(self._cells, tables.COPIED) or 0) + 1),
            tables.SINCE: since,
            tables.RANGES: ranges,
            tables.IDENTITY: tables.identity(schema),
            tables.LOG_BEFORE_COPY: lake.version(log_table(schema)) or 0,
        }
        if not lake.exists(self._cells):
            lake.ensure(self._cells)
        rows = query.cells(ranges, one_by_one=self._workers.runs_in_process(ranges))
        number = (lake.transaction(self._cells, _COMMITS) or 0) + 1
        frames.replace_all_rows(self._workers, lake, self._cells, rows, (_COMMITS, number), marks)
        failpoints.kill_if_selected(failpoints.AFTER_COPY)
        replica = find_replica(lake, schema)
        assert replica is not None
        return replica

    def _merge(self, replica: Replica, changes: LogChanges, as_of_us: Microseconds) -> _Merge:
        """Merge changes into the state and show the result to readers, as of a time (µs)."""
        as_of = max(as_of_us, replica.as_of_us or as_of_us)
        merger = RangeMerger(
            self._live, self._lake, self._clock, self._schema, self._policy.concurrency, replica, changes, as_of
        )
        marks = {
            tables.COPY: replica.copied_us,
            tables.MERGED_LOG: changes.log_version,
            AS_OF_APPLICATION: as_of,
            tables.SURE: self._lake.transaction(log_table(self._schema), AGAIN) or 0,
        }
        if replica.log is None:
            return self._merge_copy(merger, marks)
        return self._merge_changes(merger, marks)

    def _merge_copy(self, merger: RangeMerger, marks: Mapping[str, int]) -> _Merge:
        """Merge changes into a new copy, and replace the readers' table by all of its rows."""
        numbers = list(range(merger.replica.ranges))
        groups = list(self._groups(numbers))
        inexact, reread, selected = 0, 0, None
        for group in groups:
            merged = merger.merge_whole(group)
            inexact += int(merged.selected.inexact.sum())
            reread += merged.reread_rows
            selected = merged.selected
        # One group has all rows, which need not be read again.
        known = selected if len(groups) == 1 else None
        self._show_all(merger.replica, merger.as_of_us, {**marks, INEXACT_APPLICATION: inexact}, known)
        return _Merge(len(numbers), reread)

    def _merge_changes(self, merger: RangeMerger, marks: Mapping[str, int]) -> _Merge:
        """Rewrite the token ranges with changes or expired values, and mark the log's version as merged."""
        self._lake.widen(self._current)
        numbers = sorted({*merger.changes.ranges(), *self._expired_ranges(merger.as_of_us)})
        reread = sum(merger.update(group) for group in self._groups(numbers))
        failpoints.kill_if_selected(failpoints.BEFORE_CURRENT_MARK)
        number = self._lake.transaction(self._current, _COMMITS)
        no_rows = self._current.schema.empty_table()
        if not self._lake.append_once(self._current, no_rows, {_COMMITS: (number or 0) + 1, **marks}, number):
            raise concurrent_writer_error(self._schema)
        return _Merge(len(numbers), reread)

    def _show_all(
        self, replica: Replica, as_of: Microseconds, marks: Mapping[str, int], known: SelectedRows | None
    ) -> None:
        """Replace the readers' table by all of the state's token ranges, in one commit; `known` has their rows."""
        lake, schema, cells = self._lake, self._schema, self._cells

        def batches(number: int) -> Batches:
            selected = known
            if selected is None:
                state = lake.read(cells, filters=[(tables.RANGE, "=", number)]).drop_columns([tables.RANGE])
                selected = select_with_details(schema, state, as_of)
            yield from for_readers(schema, selected, replica.ranges).combine_chunks().to_batches(_ROWS_A_BATCH)

        if not lake.exists(self._current):
            lake.ensure(self._current)
        number = (lake.transaction(self._current, _COMMITS) or 0) + 1
        rows = TaskRows(replica.ranges if known is None else 1, batches)
        frames.replace_all_rows(TaskRunner.alone(), lake, self._current, rows, (_COMMITS, number), marks)

    def _expired_ranges(self, as_of_us: Microseconds) -> Iterator[int]:
        """Yield the token ranges in which something has expired by then, from the bounds of the readers' files."""
        expired = {
            file.path
            for file in self._lake.bounded_files(self._current, tables.EXPIRES)
            if file.low is not None and file.low <= as_of_us
        }
        for file in self._lake.data_files(self._current):
            if file.path in expired:
                yield int(file.partition[0])

    def _groups(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Yield the token ranges in groups that fit into memory."""
        sizes = {int(part.key[0]): part.rows for part in self._lake.partitions(self._cells)}
        group, rows = list[int](), 0
        for number in numbers:
            if group and rows + sizes.get(number, 0) > ROWS_AT_ONCE:
                yield group
                group, rows = [], 0
            group.append(number)
            rows += sizes.get(number, 0)
        if group:
            yield group

    def _result(self, changes: LogChanges, merge: _Merge, *, is_copied: bool, seconds: float) -> ReplicationResult:
        replica = find_replica(self._lake, self._schema)
        assert replica is not None
        assert replica.as_of_us is not None
        return ReplicationResult(
            table=self._schema.full_name,
            as_of_us=replica.as_of_us,
            copied_us=replica.copied_us,
            copied_now=is_copied,
            rows=_count_rows(self._lake, self._current),
            inexact=replica.inexact,
            log_rows=changes.log_rows,
            written_ranges=merge.written_ranges,
            ranges=replica.ranges,
            reread_rows=merge.reread_rows + (changes.replaced.keys.size if changes.replaced is not None else 0),
            seconds=seconds,
        )


def _count_rows(lake: Lake, table: Table) -> int:
    return sum(part.rows for part in lake.partitions(table))
