"""Replicate a table of a live cluster in the lake, by merging one copy of it with its log since then.

CQL reports when cells were written, so copy and log merge in any order, and repeatedly; the log counts from before the
copy began. Cells whose time CQL does not report are marked inexact, and reread when they may be wrong. Each step is
repeatable: the run after a killed one repeats the step with the same result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog import (
    AS_OF_APPLICATION,
    INEXACT,
    INEXACT_APPLICATION,
    STATE_SCHEMA,
    WRITTEN_AT,
    OnMessage,
    SelectedRows,
    assert_full_delta,
    log_table,
    merge_states,
    purge_state,
    select_with_details,
    state_from_log,
)
from cdc_platform.clock import DAY_SECONDS, SECOND_US, Clock, Microseconds, datetime_from_us, format_us, us_from_seconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Batches, Lake, PartialReplacement, TaskRows, TaskRunner, compute, read_changes_since
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.ingest.marks import AGAIN
from cdc_platform.ingest.policy import ReadPolicy
from cdc_platform.ingest.replica import tables
from cdc_platform.ingest.replica.refresh import LateChanges, read_again, touched
from cdc_platform.ingest.replica.snapshot import SnapshotQuery, SyntheticTimestamps, of_slices
from cdc_platform.ingest.replica.tables import (
    Replica,
    cells_table,
    current_table,
    find_replica,
    for_readers,
    reached,
    with_slices,
)
from cdc_platform.scylla import ScyllaSession
from cdc_platform.spark import frames
from cdc_platform.tables import TIMESTAMP, Table

_COMMITS = "current:commits"
ROWS_AT_ONCE = 1 << 20
"""How many rows of the state are merged at a time."""
_ROWS_A_BATCH = 1 << 15
"""How many rows of the readers' table are written at a time, while the next are digested."""
_LEAD_US = SECOND_US * 10
"""How far a writer's clock may be ahead of this machine's for its writes to count as seen."""
_FIRST = Microseconds(0)


@dataclass(frozen=True)
class ReplicationResult:
    """The state of a replicated table as of `as_of_us` (µs), and what was done now.

    `slices` of its `of_slices` token ranges were rewritten for `changes` rows of its log; `read_again` rows were reread
    from the cluster. `inexact` of its rows rest on times that CQL does not report.
    """

    table: str
    as_of_us: Microseconds
    copied_us: Microseconds
    copied_now: bool
    rows: int
    inexact: int
    changes: int
    slices: int
    of_slices: int
    read_again: int
    seconds: float


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
        assert_full_delta(schema)
        self._live, self._lake, self._clock, self._schema = live, lake, clock, schema
        self._workers, self._policy, self._on_message = workers, policy, on_message
        self._cells, self._current = cells_table(schema), current_table(schema)
        self._again, self._late = 0, LateChanges.none()

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
        begun, copied = time.monotonic(), False
        replica = find_replica(self._lake, self._schema)
        if replica is None or recopy or replica.since_us < complete_since_us or self._lost_columns():
            # The user knows of something before now that no log records, such as a TRUNCATE, so the older log is wrong.
            replica, copied = (
                self._copy(max(complete_since_us, as_of_us) if recopy else complete_since_us, ttl_us),
                True,
            )
        changes, slices = self._merge(replica, as_of_us)
        updated = find_replica(self._lake, self._schema)
        assert updated is not None
        assert updated.as_of_us is not None
        rows = sum(part.rows for part in self._lake.slices(self._current))
        return ReplicationResult(
            self._schema.full_name,
            updated.as_of_us,
            updated.copied_us,
            copied,
            rows,
            updated.inexact,
            changes,
            slices,
            updated.slices,
            self._again,
            round(time.monotonic() - begun, 3),
        )

    def _lost_columns(self) -> bool:
        """Return True if the table has lost columns or changed their types: no log has the values that they had."""
        existing = self._lake.columns(self._current)
        if set(existing) - set(self._current.schema.names):
            return True
        try:
            if existing:
                self._lake.widen(self._current)
        except StateError:
            return True
        return False

    def _copy(self, complete_since_us: Microseconds, ttl_us: Microseconds) -> Replica:
        lake, schema, live = self._lake, self._schema, self._live
        began = self._clock.now_us()
        lifetime_us = ttl_us or us_from_seconds(DAY_SECONDS)
        since = Microseconds(max(complete_since_us, began - lifetime_us))
        orders = SyntheticTimestamps(Microseconds(since - 1), began)
        scan = SnapshotQuery(live.name, live.connection, schema, live.is_scylla, self._policy.concurrency, orders)
        slices = scan.slices()
        self._on_message(
            f"copying {schema.full_name}, in {slices} part{'s' * (slices > 1)}; its log counts from {format_us(since)}"
        )
        number = (lake.transaction(self._cells, _COMMITS) or 0) + 1
        copied = max(began, (lake.transaction(self._cells, tables.COPIED) or 0) + 1)
        of, behind = tables.identity(schema), lake.version(log_table(schema)) or 0
        marks = {
            tables.COPIED: copied, tables.SINCE: since, tables.SLICES: slices, tables.OF: of, tables.BEHIND: behind,
        }  # fmt: skip
        if not lake.exists(self._cells):
            lake.ensure(self._cells)
        rows = scan.cells(slices, one_by_one=self._workers.work_here(slices))
        frames.replace_all_rows(self._workers, lake, self._cells, rows, (_COMMITS, number), marks)
        failpoints.kill_if_selected(failpoints.AFTER_COPY)
        replica = find_replica(lake, schema)
        assert replica is not None
        return replica

    def _merge(self, now: Replica, as_of_us: Microseconds) -> tuple[int, int]:
        """Merge the new rows of the log; return their number, and how many token ranges were written."""
        version = self._lake.version(log_table(self._schema))
        logs, fresh = self._lacking(now, version)
        counts_from = Microseconds(max(now.since_us, now.sure_us + 1)) if logs is fresh else now.since_us
        self._late = self._came_late(fresh, counts_from)
        changes = [self._of_log(logs, counts_from), self._late.changes]
        changes = with_slices(merge_states(self._schema, changes) if self._late.rows else changes[0], now.slices)
        as_of = max(as_of_us, now.as_of_us or as_of_us)
        marks = {tables.COPY: now.copied_us, tables.COVERED: version or 0, AS_OF_APPLICATION: as_of}
        marks[tables.SURE] = self._lake.transaction(log_table(self._schema), AGAIN) or 0
        if now.log is None:
            chosen = list(range(now.slices))
            groups, selected = list(self._groups(chosen)), None
            marks[INEXACT_APPLICATION] = 0
            for group in groups:
                version, rows = self._lake.version(self._cells), self._held(self._cells, group)
                parted = PartialReplacement(rows, np.ones(rows.num_rows, bool))
                selected = self._state_of(group, parted, version, of_slices(changes, group), now, as_of)
                marks[INEXACT_APPLICATION] += int(selected.inexact.sum())
            self._show_all(now, as_of, marks, selected if len(groups) == 1 else None)
        else:
            self._lake.widen(self._current)
            chosen = sorted({*np.unique(np.asarray(changes[tables.SLICE])).tolist(), *self._due(as_of)})
            for group in self._groups(chosen):
                self._bring(group, changes, now, as_of)
            failpoints.kill_if_selected(failpoints.BEFORE_CURRENT_MARK)
            number = self._lake.transaction(self._current, _COMMITS)
            marks = {_COMMITS: (number or 0) + 1, **marks}
            if not self._lake.append_once(self._current, self._current.schema.empty_table(), marks, number):
                raise self._disturbed()
        return sum(log_rows.num_rows for log_rows in logs), len(chosen)

    def _lacking(self, now: Replica, version: int | None) -> tuple[list[pa.Table], list[pa.Table]]:
        """Return the log rows that are not merged yet (all, if unknown), and those that arrived after the copy."""
        log = log_table(self._schema)
        if version is None:
            return [], []
        if now.log is not None and now.log <= version:
            added = read_changes_since(self._lake, log, now.log, version)
            if added is not None:
                return added, added
        rows = self._lake.read_version(log, version)
        behind = None if now.log is not None or now.behind == version else now.behind
        fresh = None if behind is None else read_changes_since(self._lake, log, behind, version)
        return [rows] if rows.num_rows else [], fresh or []

    def _came_late(self, fresh: Sequence[pa.Table], since_us: Microseconds) -> LateChanges:
        """Return the log rows that arrived after the copy and are older than the tombstones that the state still has.

        Those tombstones have times from which the log counts on, and later than the time up to which purging removed
        spent ones.
        """
        schema, since = self._schema, pa.scalar(datetime_from_us(since_us), TIMESTAMP)
        older = [rows.filter(compute.less(rows[WRITTEN_AT].cast(TIMESTAMP), since)) for rows in fresh]
        older = [rows for rows in older if rows.num_rows]
        if not older:
            return LateChanges.none()
        # A reread list gets the time of reading, see `refresh`.
        orders = SyntheticTimestamps(Microseconds(since_us - 1), Microseconds(self._clock.now_us() + _LEAD_US))
        late = LateChanges.read(self._live, schema, older, orders, self._policy.concurrency)
        self._on_message(
            f"{late.rows} rows of the log of {schema.full_name} came behind its copy, and are older than"
            f" {format_us(since_us)}: the {len(late.places)} rows that they wrote to are read again"
        )
        return late

    def _of_log(self, logs: Sequence[pa.Table], since_us: Microseconds) -> pa.Table:
        since = pa.scalar(datetime_from_us(since_us), TIMESTAMP)
        parts = [rows.filter(compute.greater_equal(rows[WRITTEN_AT].cast(TIMESTAMP), since)) for rows in logs]
        parts = [rows for rows in parts if rows.num_rows]
        if not parts:
            return STATE_SCHEMA.empty_table()
        whole = pa.concat_tables(parts, promote_options="default")
        return merge_states(self._schema, [state_from_log(self._schema, whole)])

    def _show_all(
        self, now: Replica, as_of: Microseconds, marks: Mapping[str, int], known: SelectedRows | None
    ) -> None:
        """Replace the readers' table by all of the state's token ranges, in one commit; `known` has their rows."""
        lake, schema, cells = self._lake, self._schema, self._cells

        def batches(number: int) -> Batches:
            selected = known
            if selected is None:
                state = lake.read(cells, filters=[(tables.SLICE, "=", number)]).drop_columns([tables.SLICE])
                selected = select_with_details(schema, state, as_of)
            yield from for_readers(schema, selected, now.slices).combine_chunks().to_batches(_ROWS_A_BATCH)

        if not lake.exists(self._current):
            lake.ensure(self._current)
        number = (lake.transaction(self._current, _COMMITS) or 0) + 1
        rows = TaskRows(now.slices if known is None else 1, batches)
        frames.replace_all_rows(TaskRunner.alone(), lake, self._current, rows, (_COMMITS, number), marks)

    def _due(self, as_of_us: Microseconds) -> Iterator[int]:
        """Yield the token ranges in which something has expired by then, from the bounds of the readers' files."""
        expired = {
            file.path
            for file in self._lake.bounded_files(self._current, tables.EXPIRES)
            if file.low is not None and file.low <= as_of_us
        }
        for file in self._lake.data_files(self._current):
            if file.path in expired:
                yield int(file.partition[0])

    def _groups(self, chosen: Sequence[int]) -> Iterator[list[int]]:
        """Yield the token ranges in groups that fit into memory."""
        sizes = {int(part.key[0]): part.rows for part in self._lake.slices(self._cells)}
        group, rows = list[int](), 0
        for number in chosen:
            if group and rows + sizes.get(number, 0) > ROWS_AT_ONCE:
                yield group
                group, rows = [], 0
            group.append(number)
            rows += sizes.get(number, 0)
        if group:
            yield group

    def _bring(self, group: list[int], changes: pa.Table, now: Replica, as_of: Microseconds) -> None:
        """Merge changes into token ranges, and replace the readers' rows of those ranges as of a time (µs)."""
        lake, mine = self._lake, of_slices(changes, group)
        marked = lake.transaction(self._current, INEXACT_APPLICATION) or 0
        versions = lake.version(self._cells), lake.version(self._current)
        cells, rows = self._parted(group, mine, now, as_of)
        selected = self._state_of(group, cells, versions[0], mine, now, as_of)
        more = int(selected.inexact.sum()) - int(compute.sum(rows.gone[INEXACT]).as_py() or 0)
        self._replace(
            self._current,
            rows,
            for_readers(self._schema, selected, now.slices),
            group,
            versions[1],
            {INEXACT_APPLICATION: marked + more},
        )

    def _parted(
        self, group: list[int], changes: pa.Table, now: Replica, as_of: Microseconds
    ) -> tuple[PartialReplacement, PartialReplacement]:
        """Return both tables' rows of token ranges, split by whether changes or the passing of time affect them."""
        cells, rows = self._held(self._cells, group), self._held(self._current, group)
        passed = now.as_of_us or _FIRST, as_of
        affected = reached(self._schema, cells, rows, changes, passed, now.sure_us)
        return PartialReplacement(cells, affected.cells), PartialReplacement(rows, affected.rows)

    def _held(self, table: Table, group: list[int]) -> pa.Table:
        return self._lake.read(table, filters=[(tables.SLICE, "in", group)])

    def _state_of(
        self,
        group: list[int],
        cells: PartialReplacement,
        version: int | None,
        changes: pa.Table,
        now: Replica,
        as_of: Microseconds,
    ) -> SelectedRows:
        """Merge changes and reread rows into the replaced cells of a version; return the rows that they show."""
        schema, remaining = self._schema, self._late.forgotten(cells.gone.drop_columns([tables.SLICE]))
        state = merge_states(schema, [remaining, changes]) if changes.num_rows else remaining.combine_chunks()
        selected = select_with_details(schema, state, as_of)
        fresh = changes if now.log is not None else _since(changes, now.copied_us)
        places = touched(schema, state, fresh, selected, (now.as_of_us or _FIRST, as_of)) | self._late.touched(state)
        if places:
            seen_us = Microseconds(self._clock.now_us() + _LEAD_US)
            rows = read_again(self._live, schema, state, places, seen_us, self._policy.concurrency)
            state = merge_states(schema, [state, rows])
            selected = select_with_details(schema, state, as_of)
            self._again += len(places)
        if places or changes.num_rows:
            # Purge by what was certain before these changes: the run after a killed one merges them again.
            state = purge_state(state, selected, now.sure_us, as_of)
            self._replace(self._cells, cells, with_slices(state, now.slices), group, version)
            failpoints.kill_if_selected(failpoints.AFTER_CURRENT_STATE)
        return selected

    def _replace(
        self,
        table: Table,
        parted: PartialReplacement,
        rows: pa.Table,
        group: list[int],
        version: int | None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        inside = [(tables.SLICE, "in", group)]
        if not self._lake.replace_once(table, rows, inside, version, parted, **(numbers or {})):
            raise self._disturbed()

    def _disturbed(self) -> ConflictError:
        return ConflictError(f"another process writes to {self._schema.full_name} in the lake; stop it and try again")


def _since(changes: pa.Table, time_us: Microseconds) -> pa.Table:
    return changes.filter(pa.array(np.asarray(changes["timestamp"]) > time_us))
