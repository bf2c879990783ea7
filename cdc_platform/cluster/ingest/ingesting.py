"""Brings the CDC log of a live cluster into the lake: every row that is visible when its window is read, exactly once.

The order of steps, generations and checkpoints is that of every consumer (`log.reading.following`); here the rows of a
window come from a cluster. The log becomes the table that `log --keep` would write, so that all that reads logs reads
it; its commits carry the number of the window and how far windows were read, once and a second time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cluster.current.keeping import Brought, Keeper
from cdc_platform.cluster.current.kept import is_kept
from cdc_platform.cluster.ingest import pace as paces
from cdc_platform.cluster.ingest.again import LATE, is_due, read_again
from cdc_platform.cluster.ingest.asking import empty_rows, serving
from cdc_platform.cluster.ingest.pace import Lifetimes, Pace
from cdc_platform.cluster.ingest.planning import Estimate, Plan, Way
from cdc_platform.cluster.ingest.shape import fitted
from cdc_platform.cluster.ingest.window_rows import Came, WindowRows, definition
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.observing import refresh
from cdc_platform.cluster.session import connected
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import NotFound, StateError
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.looking import mirroring
from cdc_platform.lake.tables import Table
from cdc_platform.lake.turns import turn
from cdc_platform.lake.volume import Workers
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.following import follow
from cdc_platform.log.reading.left_out import Tell, tell_in_log
from cdc_platform.log.reading.reader import FROM_CLUSTER, registered
from cdc_platform.log.reading.sets import stream_sets
from cdc_platform.log.reading.windows import Window
from cdc_platform.log.stored_names import EXACT
from cdc_platform.records import consumers
from cdc_platform.timeline import StreamSource

TASKS_HERE = 8
"""Tasks of requests that are done sooner in the process that asks than Spark starts."""


@dataclass(frozen=True)
class ReadWindow:
    """A window as it was read, with what was estimated and what came. Times in µs; `requests` counts pages.

    `chosen` is None where the window was passed over. `late` are the rows that a second reading found. `scanned_with`
    is the number of the window for which the scan was made that brought the rows of this one too.
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


@dataclass
class Ingested:
    """What an ingest did. `position_us`: all rows at or before it were read; `again_us`: and a second time.

    `late` are the rows that second readings found now, `late_ever` all that they ever did. `current` is the table
    itself, where it is kept.
    """

    table: str
    rows: int
    late: int
    position_us: Microseconds
    again_us: Microseconds | None
    late_ever: int
    horizon_us: Microseconds
    windows: list[ReadWindow] = field(default_factory=list)
    current: Brought | None = None


def ingest(
    cluster: KnownCluster,
    clock: Clock,
    keyspace: str,
    table: str,
    workers: Workers,
    *,
    pace: Pace | None = None,
    until_us: Microseconds | None = None,
    way: Way | None = None,
    tell: Tell = tell_in_log,
    current: bool = False,
    copy_again: bool = False,
) -> Ingested:
    """Bring in what is new in the log of a table; one that is at it in another process is waited for.

    Nothing newer than the confidence window behind the slowest clock is read, nor after `until_us` (µs). What is left
    out, or may be gone, is told. With `way` windows are read so, whatever that costs.

    With `current` the table itself is kept from now on, see `current.keeping`; one that is kept is brought up in any
    case, and copied anew with `copy_again`.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or does not let us in.
        NotGranted: the log, or a table that tells of CDC, may not be read.
        NotFound: the table has no log, or its definition is none that the platform understands.
        StateError: it is another cluster than before, or the streams of what comes next are not complete.
    """
    pace = pace or Pace()
    lake = Lake(cluster.open_home().lake)
    with (
        mirroring(),
        turn(lake, f"ingest.{keyspace}.{table}"),
        connected(cluster.name, cluster.connection) as live,
        serving(live),
    ):
        # Before generations are looked at: one that begins up to then is published by now.
        horizon = paces.horizon_us(live, clock, pace, tell)
        if until_us is not None:
            horizon = min(horizon, until_us)
        refreshed = refresh(live, cluster, clock)
        if refreshed is not None:
            horizon = refreshed.readable_us(f"{keyspace}.{table}", horizon)
            for line in refreshed.incomplete:
                tell(f"left out: {line}")
        schema = definition(lake, keyspace, table)
        asked = WindowRows(live, cluster, clock, lake, schema, way, tell)
        copier = FromCluster(lake, clock, asked, horizon, workers, tell)
        lives = Lifetimes.of(lake, schema)
        sets = stream_sets(lake, schema, clock.now_us())
        consumer = registered(lake, clock, schema, FROM_CLUSTER, tell, lambda: lives.first_us(sets, clock.now_us()))
        asked.begins_anew = consumer.window_number == 0
        # After a long stop what nobody has read yet dies first, and before it nothing is read that is here already.
        behind = is_due(consumer.position_us, pace, lives, clock)
        again = None if behind else read_again(copier, consumer, pace, lives)
        before, (consumer, rows) = consumer, follow(lake, clock, schema, consumer, copier, horizon, tell)
        if behind:
            again = read_again(copier, before, pace, lives)
        table_now = None
        if current or copy_again or is_kept(lake, copier.schema):
            keeper = Keeper(live, lake, clock, copier.schema, copier.workers, tell)
            whole = paces.whole_since_us(lake, copier.schema)
            table_now = keeper.bring_up(consumer.position_us, whole, lives.least_us, anew=copy_again)
        late = sum(window.late or 0 for window in copier.windows)
        ever = lake.transaction(copier.sink, LATE) or 0
        found = Ingested(schema.full_name, rows, late, consumer.position_us, again, ever, horizon, copier.windows)
        return replace(found, current=table_now)


class FromCluster:
    """Copies windows up to a horizon (µs) from a cluster into the log's Delta table."""

    def __init__(
        self, lake: Lake, clock: Clock, asked: WindowRows, horizon_us: Microseconds, workers: Workers, tell: Tell
    ) -> None:
        self.lake, self.clock, self.tell = lake, clock, tell
        self.windows: list[ReadWindow] = []
        self._asked, self._horizon_us = asked, horizon_us
        self.workers = workers.at_least(TASKS_HERE)

    @property
    def schema(self) -> TableSchema:
        """The table, as it was found to be last."""
        return self._asked.schema

    @property
    def sink(self) -> Table:
        """The table of the log."""
        return log_table(self.schema)

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        """As `Copier`: as long as it likes, until one window had too many rows."""
        return self._asked.longest_us(after_us)

    def rows_left(self, window: Window) -> None:
        """As `Copier`: nobody can count rows of streams that are not known."""
        return

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        """As `Copier`; where the table was altered meanwhile, the window is read anew."""
        begun, horizon, made = time.monotonic(), self._horizon_us, None
        gone = self._what_is_gone(window)
        if gone:
            marks = {**marks, paces.GAP: window.until_us}
        if window.passed:
            came, count = None, self.append(empty_rows(self.schema), marks, expected)
        elif self._asked.are_here(window) or self._work_here(made := self._asked.plan(source, window, horizon)):
            came = self._asked.come(source, window, horizon, made)
            count = self.append(came.rows, marks, expected)
        else:
            if made.chosen.windows > 1:
                made = self._asked.plan(source, window)  # what tasks read goes straight into the window's files
            count = self._append_in_tasks(made, marks, expected)
            came = Came(empty_rows(self.schema), made.chosen, made.other, len(made.places))
        if count is not None:
            self._asked.begins_anew = False
            self.note(window, came, count, begun)
            for line in gone:
                self.tell(line)
        return count

    def read_again(self, source: StreamSource, window: Window, until_us: Microseconds) -> Came:
        """What the cluster has of a window now; one scan serves those up to a time (µs).

        Raises:
            TooManyRows: they do not fit into memory; `longest_us` is shorter from now on.
            OtherColumns: the table was altered, and its definition is not understood.
        """
        return self._asked.come(source, window, until_us)

    def note(self, window: Window, came: Came | None, rows: int, begun: float, late: int | None = None) -> None:
        """Keep what is told of a window that is in."""
        told = (None, None, 0, None) if came is None else (came.chosen, came.other, came.requests, came.scanned_with)
        chosen, other, requests, scanned_with = told
        times = window.set_us, window.after_us, window.until_us
        seconds = round(time.monotonic() - begun, 3)
        read = ReadWindow(window.number, *times, chosen, other, requests, rows, late, seconds, scanned_with)
        self.windows.append(read)

    def _work_here(self, made: Plan) -> bool:
        return self.workers.work_here(self._asked.asking().tasks(made.places))

    def _append_in_tasks(self, made: Plan, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Let tasks read the rows and write their files, which one commit puts behind the log's, with the marks."""
        (name, number), *rest = marks.items()
        while True:
            sink = fitted(self.lake, self.clock, self.schema, exact=True)
            if self.lake.transaction(sink, name) != expected:
                return None
            tasks = self._asked.asking().task_rows(made.conditions)
            before = sum(each.rows for each in self.lake.slices(sink))
            failpoints.reached(failpoints.BEFORE_SINK)
            try:
                done = frames.append(self.workers, self.lake, sink, tasks, (name, number), dict(rest))
            except StateError:
                # A task cannot say by the class of its error that the table was altered.
                known = self.schema
                self._asked.learn()
                if self.schema == known:
                    raise
                continue
            return sum(each.rows for each in self.lake.slices(sink)) - before if done else None

    def append(self, rows: pa.Table, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Put rows of this process's memory behind the log's, with the marks; None where the first is not expected."""
        sink = fitted(self.lake, self.clock, self.schema, exact=EXACT in rows.column_names)
        failpoints.reached(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None

    def _what_is_gone(self, window: Window) -> list[str]:
        """What is told of rows that may have lived and died unread: a gap is never silent."""
        if self._asked.begins_anew:
            return []
        return paces.what_is_gone(self.lake, self.schema, window.after_us, window.until_us, self.clock.now_us())


def position(lake: Lake, schema: TableSchema) -> Microseconds | None:
    """How far (µs) the log of a table was brought in; None where it never was."""
    try:
        return consumers.find(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return None
