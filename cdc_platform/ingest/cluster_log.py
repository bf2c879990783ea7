"""The CDC log of a live cluster as a source of windows, committed into the log's Delta table.

`consume_windows` determines the order of windows, generations and checkpoints, and `WindowReader` reads the rows. This
module commits each window at once, with its number and its end. A window with more rows than memory can hold is
committed in parts first. Gaps that a window reveals are recorded before its rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog import (
    EXACT,
    FROM_CLUSTER,
    GAP_APPLICATION,
    OnMessage,
    Window,
    ensure_log_columns,
    log_table,
    origin_application,
)
from cdc_platform.clock import ONE_US, Clock, Microseconds
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.ingest.marks import LATE, PARTS, PARTS_UNTIL, REQUESTS, RETRIES
from cdc_platform.ingest.planner import Estimate, Plan
from cdc_platform.ingest.policy import Lifetimes, find_gaps, gap_before_first_read, gap_of_late_set
from cdc_platform.ingest.requests import empty_rows
from cdc_platform.ingest.window_reader import WindowReader, WindowResult
from cdc_platform.metastore import Consumer, LogGap, LogLoss, log_gaps
from cdc_platform.spark import frames
from cdc_platform.tables import Table
from cdc_platform.timeline import StreamSource

_ORIGIN = origin_application(FROM_CLUSTER)
TASKS_HERE = 8
"""Up to this many tasks run faster in the calling process than Spark starts."""


@dataclass(frozen=True)
class ReadWindow:
    """A window as it was read, with estimates and results. Times in µs; `requests` counts pages, `retries` repetitions.

    `seconds` run from the commit of the previous window, so those of all windows add up to the time of the ingest.

    `chosen` is None if the window was skipped. `late` counts the rows that the second pass found. `scanned_with` is the
    number of the window whose scan also read the rows of this one. `catch_up` means that the position had passed the
    window before the streams of its set could be read.
    """

    number: int
    set_us: Microseconds
    after_us: Microseconds
    until_us: Microseconds
    chosen: Estimate | None
    other: Estimate | None
    requests: int
    rows: int
    late: int | None = None
    seconds: float = 0.0
    scanned_with: int | None = None
    catch_up: bool = False
    retries: int = 0

    @classmethod
    def of(
        cls,
        window: Window,
        result: WindowResult | None,
        rows: int,
        seconds: float,
        late: int | None = None,
        *,
        catch_up: bool = False,
    ) -> ReadWindow:
        """Describe a committed window and what it took."""
        times = window.set_us, window.after_us, window.until_us
        if result is None:
            return cls(window.number, *times, None, None, 0, rows, late, seconds, None, catch_up)
        return cls(
            window.number,
            *times,
            result.chosen,
            result.other,
            result.requests,
            rows,
            late,
            seconds,
            result.scanned_with,
            catch_up,
            result.retries,
        )


class LapTimer:
    """Splits a run into laps, whose times add up to the whole."""

    def __init__(self) -> None:
        self._started, self._total = time.monotonic(), 0.0

    def lap(self) -> float:
        """Return the time (s) since the last lap, or since the start."""
        before, self._total = self._total, round(time.monotonic() - self._started, 3)
        return round(self._total - before, 3)


class ClusterLogSource:
    """Copies windows up to `read_until_us` (µs) from a cluster into the log's Delta table."""

    def __init__(
        self,
        lake: Lake,
        clock: Clock,
        reader: WindowReader,
        consumer: Consumer,
        read_until_us: Microseconds,
        workers: TaskRunner,
        lap_timer: LapTimer,
        on_message: OnMessage,
    ) -> None:
        self.lake, self.clock, self.on_message = lake, clock, on_message
        self.lap_timer = lap_timer
        self.windows: list[ReadWindow] = []
        """The committed windows, without those of the second pass."""
        self._reader, self._read_until_us = reader, read_until_us
        self.workers = workers.at_least(TASKS_HERE)
        # Earlier releases did not record stream sets.
        self._rereads = consumer.window_number > 0 and lake.transaction(self.sink, _ORIGIN) is None

    @property
    def schema(self) -> TableSchema:
        """Return the table as the cluster was last seen to define it."""
        return self._reader.schema

    @property
    def sink(self) -> Table:
        """Return the table of the log."""
        return log_table(self.schema)

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        """Return None: a window may be of any length, since one with many rows is committed in parts."""
        return None

    def rows_left(self, window: Window) -> int | None:
        """Return None: rows of unknown streams cannot be counted."""
        return None

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Copy a window; read it again if the table was altered meanwhile."""
        reader, plan = self._reader, None
        first_read = window.number == 1
        new: list[LogGap] = []
        result: WindowResult | None
        if window.passed:
            marks = self._with_gaps(window, marks, new)
            result, count = None, self.append(empty_rows(self.schema), marks, expected)
        elif (
            reader.has_read(window)
            or self._work_here(plan := reader.plan(source, window, self._read_until_us, first_read=first_read))
            or reader.resumes(window)
        ):

            def commit_part(rows: pa.Table, until_us: Microseconds) -> None:
                self._append_part(replace(window, until_us=until_us), rows, new)

            result = reader.read(source, window, self._read_until_us, commit_part, plan, first_read=first_read)
            # Rows may have expired while they were being read.
            marks = self._with_gaps(window, marks, new)
            count = self.append(result.rows, self.count_requests(marks, result), expected)
            count = None if count is None else count + result.committed
        else:
            assert plan is not None
            if plan.chosen.windows > 1:
                # What tasks read goes straight into the window's files.
                plan = reader.plan(source, window, first_read=first_read)
            result = WindowResult(empty_rows(self.schema), plan.chosen, plan.other, len(plan.places))
            marks = self.count_requests(self._with_gaps(window, marks, new), result)
            count = self._append_in_tasks(plan, marks, expected)
            self._with_gaps(window, marks, new)
        if count is not None:
            self.windows.append(ReadWindow.of(window, result, count, self.lap_timer.lap()))
            self._report(new)
        return count

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """Return where reading begins: an earlier release's rows are read once more if they may still exist."""
        if consumer.window_number == 0:
            return consumer.position_us
        return Microseconds(Lifetimes.read(self.lake, self.schema).since_us(self.clock.now_us()) - ONE_US)

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        """Copy a window that became readable late; report rows that may have expired before their set could be read."""
        schema = self.schema
        new: list[LogGap] = []

        def died_us() -> Microseconds | None:
            times = window.after_us, window.until_us, self.clock.now_us()
            died = None if self._rereads else Lifetimes.read(self.lake, schema).find_expired_until_us(*times)
            if died is not None:
                new.extend(log_gaps.record_log_gaps(self.lake, self.clock, [gap_of_late_set(schema, window, died)]))
            return died

        def commit_part(rows: pa.Table, until_us: Microseconds) -> None:
            died_us()
            self._append_numbered(rows, {})

        result = self._reader.read(source, window, window.until_us, commit_part, drop_known=True)
        died = died_us()
        if died is not None:
            marks = {**marks, GAP_APPLICATION: max(died, self.lake.transaction(self.sink, GAP_APPLICATION) or 0)}
        count = self.append(result.rows, self.count_requests(marks, result), expected)
        if count is not None:
            count += result.committed
            self.windows.append(ReadWindow.of(window, result, count, self.lap_timer.lap(), catch_up=True))
            self._report(new)
        return count

    def read_late(self, source: StreamSource, window: Window, until_us: Microseconds) -> WindowResult:
        """Read the rows of a window that the log's table lacks; one scan serves windows up to `until_us` (µs).

        Raises:
            OtherColumns: the table was altered, and its definition is not understood.
        """

        def commit_part(rows: pa.Table, _: Microseconds) -> None:
            self._append_numbered(rows, {LATE: (self.lake.transaction(self.sink, LATE) or 0) + rows.num_rows})

        return self._reader.read(source, window, until_us, commit_part, drop_known=True)

    def count_requests(self, marks: Mapping[str, int], result: WindowResult | None) -> Mapping[str, int]:
        """Return the marks of a commit with the log's totals of requests and retries, a window's included."""
        if result is None or not result.requests:
            return marks
        totals = {name: self.lake.transaction(self.sink, name) or 0 for name in (REQUESTS, RETRIES)}
        return {**marks, REQUESTS: totals[REQUESTS] + result.requests, RETRIES: totals[RETRIES] + result.retries}

    def append(self, rows: pa.Table, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Append rows in memory to the log, with the marks; return None if the first mark's value is not `expected`."""
        sink = ensure_log_columns(self.lake, self.clock, self.schema, exact=EXACT in rows.column_names)
        failpoints.kill_if_selected(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None

    def _append_part(self, span: Window, rows: pa.Table, new: list[LogGap]) -> None:
        """Commit a part of the rows of a window or scan; first record the gaps that it reveals."""
        marks = dict(self._with_gaps(span, {}, new))
        noted = self.lake.transaction(self.sink, PARTS_UNTIL) or 0
        self._append_numbered(rows, {**marks, PARTS_UNTIL: max(span.until_us, noted)})

    def _append_numbered(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        number = self.lake.transaction(self.sink, PARTS)
        if self.append(rows, {PARTS: (number or 0) + 1, **marks}, number) is None:
            raise ConflictError(f"another process ingests {self.schema.full_name}; stop one of them")
        failpoints.kill_if_selected(failpoints.AFTER_PART)

    def _report(self, gaps: list[LogGap]) -> None:
        for gap in gaps:
            self.on_message(str(gap))

    def _work_here(self, plan: Plan) -> bool:
        return self.workers.runs_in_process(plan.task_count)

    def _append_in_tasks(self, plan: Plan, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Let tasks read rows and write files; one commit appends the files to the log, with the marks."""
        (name, number), *rest = marks.items()
        while True:
            sink = ensure_log_columns(self.lake, self.clock, self.schema, exact=True)
            if self.lake.transaction(sink, name) != expected:
                return None
            tasks = self._reader.query().task_rows(plan.tasks())
            before = sum(part.rows for part in self.lake.partitions(sink))
            failpoints.kill_if_selected(failpoints.BEFORE_SINK)
            try:
                done = frames.append_to_table(self.workers, self.lake, sink, tasks, (name, number), dict(rest))
            except StateError:
                # A task cannot report by its error's class that the table was altered.
                known = self.schema
                self._reader.learn()
                if self.schema == known:
                    raise
                continue
            return sum(part.rows for part in self.lake.partitions(sink)) - before if done else None

    def _with_gaps(self, window: Window, marks: Mapping[str, int], new: list[LogGap]) -> Mapping[str, int]:
        """Record the gaps that a window reveals, before its commit; return the marks, with the time of expired rows.

        Newly recorded gaps are added to `new`.
        """
        lake, schema, now = self.lake, self.schema, self.clock.now_us()
        if window.number == 1:
            log_gaps.record_log_gaps(lake, self.clock, [gap_before_first_read(lake, schema, now)])
            return marks
        gaps = find_gaps(lake, schema, window.after_us, window.until_us, now)
        new += log_gaps.record_log_gaps(lake, self.clock, gaps)
        died = [gap.until_us - ONE_US for gap in gaps if gap.what == LogLoss.DIED]
        return (
            {**marks, GAP_APPLICATION: max(*died, self.lake.transaction(self.sink, GAP_APPLICATION) or 0)}
            if died
            else marks
        )
