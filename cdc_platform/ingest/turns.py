"""Ingest many tables of a cluster in turns, over one session.

A table with a backlog reads a part of it, then the next table is read. A part covers as much of the log's time as took
about `TURN_SECONDS` before. A failing table does not stop the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cdc_platform.clock import HOUR_US, MINUTE_US, Clock, Microseconds
from cdc_platform.delta import TaskRunner
from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.ingest.ingest import ClusterIngest, IngestOptions, IngestResult, open_ingest
from cdc_platform.ingest.selection import TableName, TableSelection, named_table
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import ScyllaCluster, Unreachable

TURN_SECONDS = 5.0
"""How long a turn of a table with a backlog takes, approximately."""
_FIRST_TURN_US = Microseconds(HOUR_US)
_MAX_GROWTH = 8.0
_MAX_UNREACHABLE = 3
"""After so many tables in a row without an answer the cluster counts as unreachable for the others, too."""
OnTableMessage = Callable[[str, str], None]
"""Receives the table (empty for the cluster) and a message."""


@dataclass
class TableOutcome:
    """What became of one table: a result, an error, or both if it failed after some turns."""

    table: str
    result: IngestResult | None = None
    error: PlatformError | None = None
    turns: int = 0
    seconds: float = 0.0

    @property
    def is_fine(self) -> bool:
        """Return True if the table was ingested, and no rows are lost or about to be."""
        return self.error is None and self.result is not None and not self.result.loses_rows


@dataclass
class _TableTurns:
    """The turns of one table. `span_us` is how much of the log's time (µs) the next turn reads; None for all."""

    name: TableName
    outcome: TableOutcome
    span_us: Microseconds | None = field(default=_FIRST_TURN_US)

    def take(self, ingest: ClusterIngest, on_message: OnTableMessage) -> bool:
        """Take a turn; return True if the table needs no further turn.

        Raises:
            PlatformError: the table cannot be ingested.
        """
        started, outcome = time.monotonic(), self.outcome
        before = outcome.result
        outcome.turns += 1
        try:
            result = ingest.ingest(*self.name, on_message=partial(on_message, outcome.table), turn_us=self.span_us)
        finally:
            seconds = time.monotonic() - started
            outcome.seconds = round(outcome.seconds + seconds, 3)
        outcome.result = result if before is None else _joined(before, result)
        if self.span_us is not None:
            # A position that did not move waits for a generation, or for the first one to begin.
            stuck = before is not None and result.position_us == before.position_us
            factor = min(_MAX_GROWTH, max(1 / _MAX_GROWTH, TURN_SECONDS / max(seconds, 0.001)))
            self.span_us = None if stuck else Microseconds(max(MINUTE_US, int(self.span_us * factor)))
        return result.is_finished


def ingest_tables(
    cluster: ScyllaCluster,
    clock: Clock,
    selection: TableSelection,
    workers: TaskRunner,
    options: IngestOptions,
    on_message: OnTableMessage,
) -> list[TableOutcome]:
    """Ingest the selected tables among those with a CDC log; return the outcome of each, by name.

    The session, the clocks and the generations are shared. Tables that the cluster has now count, new ones included. A
    table that is named without wildcards and has no log fails, as others may.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or rejects the login.
        NotFound: no table is selected.
        StateError: it is not the cluster observed before.
    """
    with open_ingest(cluster, clock, workers, options, partial(on_message, "")) as ingest:
        existing = [(table.keyspace_name, table.table_name) for table in cdc_tables.read_cdc_tables(ingest.lake)]
        names = selection.select(existing)
        for pattern in selection.unmatched(existing):
            missing = named_table(pattern)
            if missing is not None:
                names.append(missing)
            else:
                on_message("", f"no table of {cluster.name} with a CDC log matches {pattern}")
        if not names:
            raise NotFound(
                f"no table of {cluster.name} with a CDC log is selected; see which ones there are with: cdc-platform "
                f"cluster test {cluster.name}"
            )
        return _take_turns(ingest, names, on_message)


def _take_turns(ingest: ClusterIngest, names: Sequence[TableName], on_message: OnTableMessage) -> list[TableOutcome]:
    outcomes = [TableOutcome(".".join(name)) for name in names]
    only = len(names) == 1
    queue = deque(
        _TableTurns(name, outcome, None if only else _FIRST_TURN_US)
        for name, outcome in zip(names, outcomes, strict=True)
    )
    unreachable = 0
    while queue:
        turns = queue.popleft()
        try:
            if not turns.take(ingest, on_message):
                queue.append(turns)
            unreachable = 0
        except PlatformError as error:
            turns.outcome.error = error
            unreachable = unreachable + 1 if isinstance(error, Unreachable) else 0
            if unreachable == _MAX_UNREACHABLE:
                for remaining in queue:
                    remaining.outcome.error = error
                return outcomes
    return outcomes


def _joined(before: IngestResult, after: IngestResult) -> IngestResult:
    """Return the result of several turns of one table."""
    return replace(
        after,
        rows=before.rows + after.rows,
        late=before.late + after.late,
        windows=[*before.windows, *after.windows],
        traffic=before.traffic.plus(after.traffic),
    )
