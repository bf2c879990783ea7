"""Read the rows of windows from a cluster, each once: a window by its streams, or several windows by one scan.

Memory holds at most `MAX_ROWS_IN_MEMORY` rows, and a page of each request in flight. At that bound the reader hands the
rows that have arrived to the caller, who commits them as a part, and goes on. The position moves only with the last
rows of a window. After a kill the log's table has the time up to which parts may have rows (`PARTS_UNTIL`); rows reread
up to there are added by key.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import (
    EXACT,
    MAX_ROWS_IN_MEMORY,
    WRITTEN_AT,
    OnMessage,
    Window,
    exclude_stored_rows,
    log_table,
    next_window,
    read_table_schema,
    reader_sets_from_source,
    sort_log_rows,
)
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, choose_remedy
from cdc_platform.errors import NotFound
from cdc_platform.ingest.marks import PARTS_UNTIL
from cdc_platform.ingest.planner import Estimate, Plan, Way, WindowPlanner
from cdc_platform.ingest.policy import ReadPolicy
from cdc_platform.ingest.requests import LogQuery, empty_rows
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import OtherColumns, ScyllaCluster, ScyllaSession, decode_log_rows, observe_session
from cdc_platform.timeline import StreamSource

_ATTEMPTS = 3
_WINDOWS_AHEAD = 100
CommitPart = Callable[[pa.Table, Microseconds], None]
"""Commits a part of the rows of a window, or of a scan that ends at a time (µs)."""


@dataclass(frozen=True)
class WindowResult:
    """The remaining rows of a window to commit, sorted, and what reading them took.

    `committed` rows of the window went into parts. `requests` counts pages, `retries` the requests that were repeated
    after a failure. Both are 0 if the scan of an earlier window read the rows; `scanned_with` is then the number of
    that window.
    """

    rows: pa.Table
    chosen: Estimate
    other: Estimate
    requests: int
    scanned_with: int | None = None
    committed: int = 0
    retries: int = 0


class WindowReader:
    """Reads windows of one table's log, one after the other."""

    def __init__(
        self,
        live: ScyllaSession,
        cluster: ScyllaCluster,
        clock: Clock,
        lake: Lake,
        schema: TableSchema,
        policy: ReadPolicy,
        way: Way | None,
        on_message: OnMessage,
    ) -> None:
        self._live, self._cluster, self._clock, self._lake = live, cluster, clock, lake
        self._policy = policy
        self._way: Way | None = way
        self._on_message = on_message
        self._schema, self._planner = schema, self._planner_for(schema)
        self._ahead: _Ahead | None = None

    @property
    def schema(self) -> TableSchema:
        """Return the table as the cluster was last seen to define it."""
        return self._schema

    def has_read(self, window: Window) -> bool:
        """Return True if an earlier window's scan has read the rows of this one."""
        return self._ahead is not None and self._ahead.covers(window)

    def resumes(self, window: Window) -> bool:
        """Return True if a killed process may have committed parts of this window."""
        return window.after_us < self._parts_until()

    def query(self) -> LogQuery:
        """Return the common part of the requests, for the log as currently known."""
        live = self._live
        return LogQuery(live.name, live.connection, self._schema, live.is_scylla, self._policy.concurrency)

    def plan(
        self, source: StreamSource, window: Window, until_us: Microseconds | None = None, *, first_read: bool = False
    ) -> Plan:
        """Plan a window, together with the following windows up to `until_us` (µs) if one scan is cheaper."""
        stored = self._planner.stored(self._clock.now_us(), first_read=first_read)
        coming = () if until_us is None else islice(self._coming(source, window, until_us), _WINDOWS_AHEAD)
        return self._planner.plan(source, window, stored, coming)

    def read(
        self,
        source: StreamSource,
        window: Window,
        until_us: Microseconds,
        commit_part: CommitPart,
        plan: Plan | None = None,
        *,
        first_read: bool = False,
        drop_known: bool = False,
    ) -> WindowResult:
        """Return the rows of a window, by the requests of `plan` or from an earlier window's scan.

        With `drop_known`, leave out rows that the log's table already has, by the log's key.

        Raises:
            OtherColumns: the table was altered, and its definition is not understood.
        """
        if not self.has_read(window):

            def make() -> Plan:
                return plan or self.plan(source, window, until_us, first_read=first_read)

            self._ahead = self._requested(make, commit_part, drop_known=drop_known)
        ahead = self._ahead
        assert ahead is not None
        rows, committed = ahead.rows_in(window), ahead.committed_in(window)
        if ahead.until_us == window.until_us:
            self._ahead = None
        if ahead.number is None:
            ahead.number = window.number
            return WindowResult(
                rows, ahead.plan.chosen, ahead.plan.other, ahead.requests, committed=committed, retries=ahead.retries
            )
        stored = self._planner.stored(self._clock.now_us(), first_read=first_read)
        return WindowResult(rows, *self._planner.served(source, window, stored), 0, ahead.number, committed)

    def learn(self) -> None:
        """Observe the cluster again, because the table was altered since the last observation."""
        observe_session(self._live, self._cluster, self._clock)
        self._schema = definition(self._lake, self._schema.keyspace, self._schema.name)
        self._planner = self._planner_for(self._schema)

    def _planner_for(self, schema: TableSchema) -> WindowPlanner:
        return WindowPlanner(self._lake, schema, self._live.connection.page_rows, self._way)

    def _parts_until(self) -> Microseconds:
        return Microseconds(self._lake.transaction(log_table(self._schema), PARTS_UNTIL) or 0)

    def _coming(self, source: StreamSource, window: Window, until_us: Microseconds) -> Iterator[Window]:
        """Yield the following windows that can be read by now."""
        sets = reader_sets_from_source(source, self._clock.now_us())
        after: Window | None = window
        while after is not None:
            after = next_window(sets, after.until_us, after.number, until_us)
            if after is None or not (after.passed or source.is_complete(after.set_us)):
                return
            if not after.passed:
                yield after

    def _requested(self, make: Callable[[], Plan], commit_part: CommitPart, *, drop_known: bool) -> _Ahead:
        doubtful = True
        for attempt in range(_ATTEMPTS):
            try:
                return self._read(make(), commit_part, doubtful=doubtful, drop_known=drop_known)
            except OtherColumns:
                if attempt == _ATTEMPTS - 1:
                    raise
                known = self._schema
                self.learn()
                # A value that is invalid for its column's type may be of a newer type; if not, it is invalid.
                doubtful = self._schema != known
        raise AssertionError("unreachable: the last attempt raises")

    def _read(self, plan: Plan, commit_part: CommitPart, *, doubtful: bool, drop_known: bool) -> _Ahead:
        """Read all rows of a plan; if it is `doubtful`, a value that is invalid for its type raises OtherColumns."""
        # Rows of an earlier attempt, or of a process that was killed.
        drop_known = drop_known or plan.after_us < self._parts_until()
        ahead = _Ahead(plan)
        unreadable, undecoded = Counter[str](), Counter[str]()
        for page in self.query().pages(plan.conditions, on_retry=ahead.note_retry):
            ahead.requests += 1
            if not page.rows:
                continue
            part = decode_log_rows(self._schema, [page])
            unreadable.update(part.unreadable)
            undecoded.update(part.undecoded)
            self._refuse_unreadable(unreadable, doubtful=doubtful)
            ahead.add(part.rows)
            if ahead.size > MAX_ROWS_IN_MEMORY:
                rows = self._taken(ahead, drop_known=drop_known)
                commit_part(rows, plan.until_us)
                ahead.note_committed(rows)
        for name, count in unreadable.items():
            self._on_message(
                f"{count} values of {self._schema.full_name}.{name} are invalid for its type, and are read as null"
            )
        if undecoded:
            names = ", ".join(f"{json.dumps(name)} ({count})" for name, count in undecoded.most_common(5))
            self._on_message(
                f"{undecoded.total()} attribute values of {self._schema.full_name} do not follow Alternator's format "
                f"and are stored undecoded, with their bytes: {names}"
            )
        ahead.rows = self._taken(ahead, drop_known=drop_known)
        return ahead

    def _refuse_unreadable(self, unreadable: Counter[str], *, doubtful: bool) -> None:
        if doubtful and unreadable:
            raise OtherColumns(f"{', '.join(unreadable)} of {self._schema.full_name} have values of another type")

    def _taken(self, ahead: _Ahead, *, drop_known: bool) -> pa.Table:
        """Take the rows that have arrived, sorted; with `drop_known` only those that the table lacks."""
        if not ahead.parts:
            return empty_rows(self._schema)
        rows = sort_log_rows(pa.concat_tables(_alike(ahead.parts)))
        ahead.parts.clear()
        ahead.size = 0
        if not drop_known:
            return rows
        plan = ahead.plan
        return exclude_stored_rows(
            self._lake, log_table(self._schema), rows, Window(0, Microseconds(0), plan.after_us, plan.until_us)
        )


@dataclass
class _Ahead:
    """The rows that a plan has read, and how many went into parts, by window.

    `number` is that of the window they came with, None until that was reported.
    """

    plan: Plan
    parts: list[pa.Table] = field(default_factory=list)
    size: int = 0
    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    requests: int = 0
    retries: int = 0
    number: int | None = None
    committed: Counter[int] = field(default_factory=Counter)

    @property
    def until_us(self) -> Microseconds:
        """Return when the last of them may have been written."""
        return self.plan.until_us

    def covers(self, window: Window) -> bool:
        """Return True if all rows of a window have been read."""
        return self.plan.after_us <= window.after_us and window.until_us <= self.until_us

    def note_retry(self) -> None:
        """Count a request that was repeated."""
        self.retries += 1

    def add(self, rows: pa.Table) -> None:
        """Add rows that arrived."""
        self.parts.append(rows)
        self.size += rows.num_rows

    def note_committed(self, rows: pa.Table) -> None:
        """Count rows that went into a part, by the end of their window."""
        ends = np.array(self.plan.ends, np.int64)
        windows, counts = np.unique(np.searchsorted(ends, _times(rows), side="left"), return_counts=True)
        self.committed.update(dict(zip(ends[windows].tolist(), counts.tolist(), strict=True)))

    def committed_in(self, window: Window) -> int:
        """Return how many rows of a window went into parts."""
        return sum(count for end, count in self.committed.items() if window.after_us < end <= window.until_us)

    def rows_in(self, window: Window) -> pa.Table:
        """Return the rows of a window, sorted."""
        if self.rows.num_rows == 0:
            return self.rows
        times = _times(self.rows)
        first, last = np.searchsorted(times, [window.after_us, window.until_us], side="right").tolist()
        return self.rows.slice(first, last - first)


def definition(lake: Lake, keyspace: str, table: str) -> TableSchema:
    """Return the table as the cluster was last seen to define it.

    Raises:
        NotFound: it has no log, or the platform does not understand its definition.
    """
    try:
        return read_table_schema(lake, keyspace, table)
    except NotFound:
        look = choose_remedy(lake, "cdc-platform cluster test", "cdc-platform cluster test {cluster}")
        help_text = _suggest_quotes(lake, keyspace, table) or f"see what there is with: {look}"
        raise NotFound(
            f"the cluster has no table {keyspace}.{table} with a CDC log and a supported definition; {help_text}"
        ) from None


def _suggest_quotes(lake: Lake, keyspace: str, table: str) -> str | None:
    """Return how to write the name of a table that differs only in its capitals; None if there is none."""
    name = f"{keyspace}.{table}"
    for known in cdc_tables.read_table_changes(lake):
        if known.full_name.lower() == name.lower() and known.full_name != name:
            return f"names with capitals are written in double quotes: {shlex.quote(known.cql_name)}"
    return None


def _times(rows: pa.Table) -> np.ndarray:
    """Return when rows were written, in µs."""
    return rows[WRITTEN_AT].cast(pa.int64()).to_numpy()


def _alike(several: Sequence[pa.Table]) -> list[pa.Table]:
    """Return tables of one log with equal columns: add the column for out-of-range values if any of them has it."""
    wide = next((rows.schema for rows in several if EXACT in rows.column_names), None)
    if wide is None:
        return list(several)
    return [
        rows
        if EXACT in rows.column_names
        else rows.append_column(wide.field(EXACT), pa.nulls(rows.num_rows, wide.field(EXACT).type))
        for rows in several
    ]
