"""Merge changes into token ranges of a replica: the state's cells, and then the rows that readers see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog import (
    INEXACT,
    INEXACT_APPLICATION,
    SelectedRows,
    merge_states,
    purge_state,
    select_with_details,
)
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, PartialReplacement, compute
from cdc_platform.errors import ConflictError
from cdc_platform.ingest.replica.affected import find_affected
from cdc_platform.ingest.replica.changes import MAX_CLOCK_LEAD_US, LogChanges
from cdc_platform.ingest.replica.reread import find_doubtful_rows, reread_rows
from cdc_platform.ingest.replica.tables import RANGE, Replica, cells_table, current_table, for_readers, with_ranges
from cdc_platform.scylla import ScyllaSession
from cdc_platform.tables import Table

_BEFORE_ALL = Microseconds(0)


@dataclass(frozen=True)
class MergedRanges:
    """The rows that some token ranges show after a merge, and how many rows were reread for it."""

    selected: SelectedRows
    reread_rows: int


@dataclass(frozen=True)
class RangeMerger:
    """Merges the changes of one log version into a replica, as of a time (µs), one group of token ranges at a time."""

    live: ScyllaSession
    lake: Lake
    clock: Clock
    schema: TableSchema
    concurrency: int
    replica: Replica
    changes: LogChanges
    as_of_us: Microseconds

    def merge_whole(self, ranges: Sequence[int]) -> MergedRanges:
        """Merge changes into all cells of some token ranges, and replace the cells."""
        cells_version = self.lake.version(self._cells_table)
        cells = self._read(self._cells_table, ranges)
        everything = PartialReplacement(cells, np.ones(cells.num_rows, bool))
        return self._merge(ranges, everything, cells_version)

    def update(self, ranges: Sequence[int]) -> int:
        """Merge changes into the affected rows of some token ranges, of cells and readers; return the rereads."""
        current = current_table(self.schema)
        inexact = self.lake.transaction(current, INEXACT_APPLICATION) or 0
        cells_version, current_version = self.lake.version(self._cells_table), self.lake.version(current)
        cells, rows = self._read(self._cells_table, ranges), self._read(current, ranges)
        affected = find_affected(
            self.schema, cells, rows, self.changes.places_in_ranges(ranges), self._elapsed, self.replica.sure_us
        )
        merged = self._merge(ranges, PartialReplacement(cells, affected.cells), cells_version)
        replaced = PartialReplacement(rows, affected.rows)
        added = int(merged.selected.inexact.sum()) - int(compute.sum(replaced.removed[INEXACT]).as_py() or 0)
        new_rows = for_readers(self.schema, merged.selected, self.replica.ranges)
        numbers = {INEXACT_APPLICATION: inexact + added}
        self._replace(current, replaced, new_rows, ranges, current_version, numbers)
        return merged.reread_rows

    @property
    def _cells_table(self) -> Table:
        return cells_table(self.schema)

    @property
    def _elapsed(self) -> tuple[Microseconds, Microseconds]:
        """Return between which times (µs) values may have expired since the last merge."""
        return self.replica.as_of_us or _BEFORE_ALL, self.as_of_us

    def _read(self, table: Table, ranges: Sequence[int]) -> pa.Table:
        return self.lake.read(table, filters=[(RANGE, "in", list(ranges))])

    def _merge(self, ranges: Sequence[int], cells: PartialReplacement, version: int | None) -> MergedRanges:
        """Merge changes and reread rows into the replaced cells of a version, and return the rows that they show."""
        schema, late, changes = self.schema, self.changes.late, self.changes.in_ranges(ranges)
        before = cells.removed.drop_columns([RANGE])
        known, new = late.without_reread(before), changes
        if self.replica.log is None:
            new = _written_after(changes, self.replica.copied_us)
        replaced = self.changes.replaced
        if replaced is not None:
            known, new = replaced.remove_from(before), changes.slice(0, 0)
            changes = replaced.extend_expiries(changes, before, self.as_of_us)
        state = merge_states(schema, [known, changes]) if changes.num_rows else known.combine_chunks()
        selected = select_with_details(schema, state, self.as_of_us)
        places = find_doubtful_rows(schema, state, new, selected, self._elapsed) | late.find_doubtful_rows(state)
        if places:
            seen_us = Microseconds(self.clock.now_us() + MAX_CLOCK_LEAD_US)
            rows = reread_rows(self.live, schema, state, places, seen_us, self.concurrency)
            state = merge_states(schema, [state, rows])
            selected = select_with_details(schema, state, self.as_of_us)
        if places or changes.num_rows or known.num_rows < before.num_rows:
            # Purge by what was certain before these changes: the run after a killed one merges them again.
            state = purge_state(state, selected, self.replica.sure_us, self.as_of_us)
            self._replace(self._cells_table, cells, with_ranges(state, self.replica.ranges), ranges, version, {})
            failpoints.kill_if_selected(failpoints.AFTER_CURRENT_STATE)
        return MergedRanges(selected, len(places))

    def _replace(
        self,
        table: Table,
        replaced: PartialReplacement,
        rows: pa.Table,
        ranges: Sequence[int],
        version: int | None,
        numbers: Mapping[str, int],
    ) -> None:
        inside = [(RANGE, "in", list(ranges))]
        if not self.lake.replace_once(table, rows, inside, version, replaced, **numbers):
            raise concurrent_writer_error(self.schema)


def concurrent_writer_error(schema: TableSchema) -> ConflictError:
    """Return the error for another writer of a table's replica."""
    return ConflictError(f"another process writes to {schema.full_name} in the lake; stop it and try again")


def _written_after(changes: pa.Table, time_us: Microseconds) -> pa.Table:
    return changes.filter(pa.array(np.asarray(changes["timestamp"]) > time_us))
