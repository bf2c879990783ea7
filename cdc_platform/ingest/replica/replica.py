"""Keeps a table of a live cluster in the lake: what was copied of it once, and what its log told since, merged.

CQL tells when cells were written, so the copy and the log come together in any order, each as often as it likes; the
log counts from before the copy began. What CQL does not tell is marked, and read again where it would be wrong by now.
Each step can be done again: who is killed in between is followed by one that does it again, to the same rows.
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
"""So many rows of the state are merged at a time."""
_ROWS_A_BATCH = 1 << 15
"""So many rows of what readers see are written at a time, while the next are digested."""
_LEAD_US = SECOND_US * 10
"""How far ahead of this machine a writer's clock may be for what it wrote to count as seen."""
_FIRST = Microseconds(0)


@dataclass(frozen=True)
class ReplicationResult:
    """How a kept table stands, as of `as_of_us` (µs), and what was done to it now.

    `slices` of its `of_slices` were written anew for `changes` rows of its log, `read_again` rows were asked for once
    more. `inexact` of its rows rest on what CQL does not tell.
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
    """Keeps one table. Whoever calls has the turn of its log."""

    def __init__(
        self, live: ScyllaSession, lake: Lake, clock: Clock, schema: TableSchema, workers: TaskRunner, tell: OnMessage
    ) -> None:
        assert_full_delta(schema)
        self._live, self._lake, self._clock, self._schema = live, lake, clock, schema
        self._workers, self._tell = workers, tell
        self._cells, self._current = cells_table(schema), current_table(schema)
        self._again, self._late = 0, LateChanges.none()

    def replicate(
        self, as_of_us: Microseconds, whole_since_us: Microseconds, ttl_us: Microseconds, *, anew: bool
    ) -> ReplicationResult:
        """Bring the table up to the newest version of its log, which has all rows up to `as_of_us` (µs).

        The log is whole from `whole_since_us` on; its rows live for `ttl_us` (0: for ever). The table is copied where
        it is not there, or where that is later than what the copy counts on; with `anew` in any case.

        Raises:
            NotGranted: the table may not be read.
            Unreachable: the cluster stopped answering.
        """
        begun, copied = time.monotonic(), False
        now = find_replica(self._lake, self._schema)
        if now is None or anew or now.since_us < whole_since_us or self._lost_columns():
            # What the user knows of and no log tells, as a TRUNCATE, was before now: the older log says it wrongly.
            now, copied = self._copy(max(whole_since_us, as_of_us) if anew else whole_since_us, ttl_us), True
        changes, slices = self._merge(now, as_of_us)
        then = find_replica(self._lake, self._schema)
        assert then is not None
        assert then.as_of_us is not None
        rows = sum(each.rows for each in self._lake.slices(self._current))
        return ReplicationResult(
            self._schema.full_name,
            then.as_of_us,
            then.copied_us,
            copied,
            rows,
            then.inexact,
            changes,
            slices,
            then.slices,
            self._again,
            round(time.monotonic() - begun, 3),
        )

    def _lost_columns(self) -> bool:
        """Whether the table has lost columns, or has some with another type: what they held is told by nobody."""
        there = self._lake.columns(self._current)
        if set(there) - set(self._current.schema.names):
            return True
        try:
            if there:
                self._lake.widen(self._current)
        except StateError:
            return True
        return False

    def _copy(self, whole_since_us: Microseconds, ttl_us: Microseconds) -> Replica:
        lake, schema, live = self._lake, self._schema, self._live
        began = self._clock.now_us()
        reach = ttl_us or us_from_seconds(DAY_SECONDS)
        since = Microseconds(max(whole_since_us, began - reach))
        orders = SyntheticTimestamps(Microseconds(since - 1), began)
        scan = SnapshotQuery(live.name, live.connection, schema, live.is_scylla, orders)
        slices = scan.slices()
        self._tell(
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
        made = find_replica(lake, schema)
        assert made is not None
        return made

    def _merge(self, now: Replica, as_of_us: Microseconds) -> tuple[int, int]:
        """Merge what the log has more; answers with its rows, and with how many slices were written."""
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
            several, found = list(self._groups(chosen)), None
            marks[INEXACT_APPLICATION] = 0
            for group in several:
                version, held = self._lake.version(self._cells), self._held(self._cells, group)
                parted = PartialReplacement(held, np.ones(held.num_rows, bool))
                found = self._state_of(group, parted, version, of_slices(changes, group), now, as_of)
                marks[INEXACT_APPLICATION] += int(found.inexact.sum())
            self._show_all(now, as_of, marks, found if len(several) == 1 else None)
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
        return sum(each.num_rows for each in logs), len(chosen)

    def _lacking(self, now: Replica, version: int | None) -> tuple[list[pa.Table], list[pa.Table]]:
        """The rows of the log that are not merged yet, all where nobody can tell; those that came behind the copy."""
        log = log_table(self._schema)
        if version is None:
            return [], []
        if now.log is not None and now.log <= version:
            found = read_changes_since(self._lake, log, now.log, version)
            if found is not None:
                return found, found
        rows = self._lake.read_version(log, version)
        behind = None if now.log is not None or now.behind == version else now.behind
        fresh = None if behind is None else read_changes_since(self._lake, log, behind, version)
        return [rows] if rows.num_rows else [], fresh or []

    def _came_late(self, fresh: Sequence[pa.Table], since_us: Microseconds) -> LateChanges:
        """Return what came into the log behind the copy, and is older than the tombstones that the state still has.

        Those are of times from which the log counts on, and later than the time up to which spent ones were removed.
        """
        schema, since = self._schema, pa.scalar(datetime_from_us(since_us), TIMESTAMP)
        older = [each.filter(compute.less(each[WRITTEN_AT].cast(TIMESTAMP), since)) for each in fresh]
        older = [each for each in older if each.num_rows]
        if not older:
            return LateChanges.none()
        # A list that is read again is one of the time of reading, see `again`.
        orders = SyntheticTimestamps(Microseconds(since_us - 1), Microseconds(self._clock.now_us() + _LEAD_US))
        late = LateChanges.read(self._live, schema, older, orders)
        self._tell(
            f"{late.rows} rows of the log of {schema.full_name} came behind its copy, and are older than"
            f" {format_us(since_us)}: the {len(late.places)} rows that they wrote to are read again"
        )
        return late

    def _of_log(self, logs: Sequence[pa.Table], since_us: Microseconds) -> pa.Table:
        since = pa.scalar(datetime_from_us(since_us), TIMESTAMP)
        found = [each.filter(compute.greater_equal(each[WRITTEN_AT].cast(TIMESTAMP), since)) for each in logs]
        found = [each for each in found if each.num_rows]
        if not found:
            return STATE_SCHEMA.empty_table()
        whole = pa.concat_tables(found, promote_options="default")
        return merge_states(self._schema, [state_from_log(self._schema, whole)])

    def _show_all(
        self, now: Replica, as_of: Microseconds, marks: Mapping[str, int], known: SelectedRows | None
    ) -> None:
        """Put all slices of the state in place of what readers have, by one commit; `known`: what all of it shows."""
        lake, schema, cells = self._lake, self._schema, self._cells

        def batches(number: int) -> Batches:
            found = known
            if found is None:
                state = lake.read(cells, filters=[(tables.SLICE, "=", number)]).drop_columns([tables.SLICE])
                found = select_with_details(schema, state, as_of)
            yield from for_readers(schema, found, now.slices).combine_chunks().to_batches(_ROWS_A_BATCH)

        if not lake.exists(self._current):
            lake.ensure(self._current)
        number = (lake.transaction(self._current, _COMMITS) or 0) + 1
        rows = TaskRows(now.slices if known is None else 1, batches)
        frames.replace_all_rows(TaskRunner.alone(), lake, self._current, rows, (_COMMITS, number), marks)

    def _due(self, as_of_us: Microseconds) -> Iterator[int]:
        """The slices in which something has expired by then, told from the bounds of the readers' files."""
        expired = {
            file.path
            for file in self._lake.bounded_files(self._current, tables.EXPIRES)
            if file.low is not None and file.low <= as_of_us
        }
        for file in self._lake.data_files(self._current):
            if file.path in expired:
                yield int(file.partition[0])

    def _groups(self, chosen: Sequence[int]) -> Iterator[list[int]]:
        """The slices in as many parts as fit into memory, one after the other."""
        sizes = {int(part.key[0]): part.rows for part in self._lake.slices(self._cells)}
        group, rows = list[int](), 0
        for each in chosen:
            if group and rows + sizes.get(each, 0) > ROWS_AT_ONCE:
                yield group
                group, rows = [], 0
            group.append(each)
            rows += sizes.get(each, 0)
        if group:
            yield group

    def _bring(self, group: list[int], changes: pa.Table, now: Replica, as_of: Microseconds) -> None:
        """Merge changes into slices, and put what they show as of a time (µs) in place of what readers have of them."""
        lake, mine = self._lake, of_slices(changes, group)
        marked = lake.transaction(self._current, INEXACT_APPLICATION) or 0
        versions = lake.version(self._cells), lake.version(self._current)
        cells, rows = self._parted(group, mine, now, as_of)
        found = self._state_of(group, cells, versions[0], mine, now, as_of)
        more = int(found.inexact.sum()) - int(compute.sum(rows.gone[INEXACT]).as_py() or 0)
        self._replace(
            self._current,
            rows,
            for_readers(self._schema, found, now.slices),
            group,
            versions[1],
            {INEXACT_APPLICATION: marked + more},
        )

    def _parted(
        self, group: list[int], changes: pa.Table, now: Replica, as_of: Microseconds
    ) -> tuple[PartialReplacement, PartialReplacement]:
        """Both tables' rows of slices, those apart that changes reach, or the time that has passed."""
        cells, rows = self._held(self._cells, group), self._held(self._current, group)
        passed = now.as_of_us or _FIRST, as_of
        found = reached(self._schema, cells, rows, changes, passed, now.sure_us)
        return PartialReplacement(cells, found.cells), PartialReplacement(rows, found.rows)

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
        """Merge changes into cells that go, of a version, with what is read again; answers with what they show."""
        schema, held = self._schema, self._late.forgotten(cells.gone.drop_columns([tables.SLICE]))
        state = merge_states(schema, [held, changes]) if changes.num_rows else held.combine_chunks()
        found = select_with_details(schema, state, as_of)
        fresh = changes if now.log is not None else _since(changes, now.copied_us)
        places = touched(schema, state, fresh, found, (now.as_of_us or _FIRST, as_of)) | self._late.touched(state)
        if places:
            seen_us = Microseconds(self._clock.now_us() + _LEAD_US)
            state = merge_states(schema, [state, read_again(self._live, schema, state, places, seen_us)])
            found = select_with_details(schema, state, as_of)
            self._again += len(places)
        if places or changes.num_rows:
            # By what was sure before these changes: who is killed here is followed by one that merges them again.
            state = purge_state(state, found, now.sure_us, as_of)
            self._replace(self._cells, cells, with_slices(state, now.slices), group, version)
            failpoints.kill_if_selected(failpoints.AFTER_CURRENT_STATE)
        return found

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
