"""Brings the CDC log of a live cluster into the lake: every row that is visible when its window is read, exactly once.

The order of steps, generations and checkpoints is that of every consumer (`log.reading.following`); here the rows of a
window come from a cluster. The log becomes the table that `log --keep` would write, so that all that reads logs reads
it; its commits carry the number of the window and how far windows were read, once and a second time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import SECOND_US, Clock, Microseconds, format_us, from_datetime
from cdc_platform.cluster.cells import OtherColumns, log_rows
from cdc_platform.cluster.current.keeping import Brought, Keeper
from cdc_platform.cluster.current.kept import is_kept
from cdc_platform.cluster.ingest import pace as paces
from cdc_platform.cluster.ingest.again import LATE, read_again
from cdc_platform.cluster.ingest.asking import AT_ONCE, Asking, empty_rows, serving
from cdc_platform.cluster.ingest.pace import Lifetimes, Pace
from cdc_platform.cluster.ingest.planning import Estimate, Plan, Way, by_token, plan
from cdc_platform.cluster.ingest.shape import fitted
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.observing import look, refresh
from cdc_platform.cluster.session import LiveCluster, connected
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import NotFound, StateError
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.turns import turn
from cdc_platform.lake.volume import Workers
from cdc_platform.log.ddl import schema_of
from cdc_platform.log.log_table import WRITTEN_AT, log_table
from cdc_platform.log.reading.following import TooManyRows, follow
from cdc_platform.log.reading.left_out import Tell, tell_in_log
from cdc_platform.log.reading.reader import FROM_CLUSTER, ROWS_AT_ONCE, registered
from cdc_platform.log.reading.sets import stream_sets
from cdc_platform.log.reading.windows import Window
from cdc_platform.log.stored_names import EXACT
from cdc_platform.records import consumers
from cdc_platform.timeline import StreamSource

TASKS_HERE = 8
"""Tasks of requests that are done sooner in the process that asks than Spark starts."""
_LEARNS = 3
_ORDER = [(name, "ascending") for name in (WRITTEN_AT, "cdc$stream_id", "cdc$time", "cdc$batch_seq_no")]


@dataclass(frozen=True)
class ReadWindow:
    """A window as it was read, with what was estimated and what came. Times in µs; `requests` counts pages.

    `chosen` is None where the window was passed over. `late` are the rows that a second reading found.
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
        schema = _definition(lake, keyspace, table)
        copier = FromCluster(live, cluster, clock, lake, schema, workers, way, tell)
        lives = Lifetimes.of(lake, schema)
        sets = stream_sets(lake, schema, clock.now_us())
        consumer = registered(lake, clock, schema, FROM_CLUSTER, tell, lambda: lives.first_us(sets, clock.now_us()))
        copier.begins_anew = consumer.window_number == 0
        again = read_again(copier, consumer, pace, lives)
        consumer, rows = follow(lake, clock, schema, consumer, copier, horizon, tell)
        table_now = None
        if current or copy_again or is_kept(lake, copier.schema):
            keeper = Keeper(live, lake, clock, copier.schema, copier.workers, tell)
            whole = paces.whole_since_us(lake, copier.schema)
            table_now = keeper.bring_up(consumer.position_us, whole, lives.least_us, anew=copy_again)
        late = sum(window.late or 0 for window in copier.windows)
        ever = lake.transaction(copier.sink, LATE) or 0
        found = Ingested(schema.full_name, rows, late, consumer.position_us, again, ever, horizon, copier.windows)
        return replace(found, current=table_now)


def _definition(lake: Lake, keyspace: str, table: str) -> TableSchema:
    try:
        return schema_of(lake, keyspace, table)
    except NotFound as error:
        raise NotFound(
            f"the cluster has no table {keyspace}.{table} with a CDC log whose definition is understood ({error}); "
            "look at what there is with: cdc-platform cluster test"
        ) from None


class FromCluster:
    """Copies windows from a cluster into the log's Delta table."""

    def __init__(
        self,
        live: LiveCluster,
        cluster: KnownCluster,
        clock: Clock,
        lake: Lake,
        schema: TableSchema,
        workers: Workers,
        way: Way | None,
        tell: Tell,
    ) -> None:
        self.lake, self.schema, self.clock, self.tell = lake, schema, clock, tell
        self.windows: list[ReadWindow] = []
        self.begins_anew = False
        self._live, self._cluster = live, cluster
        self._way: Way | None = way
        self.workers = workers.at_least(TASKS_HERE)
        self._longest: Microseconds | None = None
        self._bypass = live.is_scylla
        self._requests = 0

    @property
    def sink(self) -> Table:
        """The table of the log."""
        return log_table(self.schema)

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        """As `Copier`: as long as it likes, until one window had too many rows."""
        return self._longest

    def rows_left(self, window: Window) -> None:
        """As `Copier`: nobody can count rows of streams that are not known."""
        return

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        """As `Copier`; where the table was altered meanwhile, the window is read anew."""
        begun = time.monotonic()
        self._requests = 0
        gone = self._what_is_gone(window)
        if gone:
            marks = {**marks, paces.GAP: window.until_us}
        if window.passed:
            made, count = None, self.append(empty_rows(self.schema), marks, expected)
        elif self.workers.work_here(self._asking().tasks((planned := self._plan(source, window)).conditions)):
            made, rows = self.rows_here(source, window)
            count = self.append(rows, marks, expected)
        else:
            made, count = planned, self._append_in_tasks(planned, marks, expected)
        if count is not None:
            self.begins_anew = False
            self.note(window, made, count, begun)
            for line in gone:
                self.tell(line)
        return count

    def note(self, window: Window, made: Plan | None, rows: int, begun: float, late: int | None = None) -> None:
        """Keep what is told of a window that is in."""
        estimates = (None, None) if made is None else (made.chosen, made.other)
        times = window.set_us, window.after_us, window.until_us
        seconds = round(time.monotonic() - begun, 3)
        self.windows.append(ReadWindow(window.number, *times, *estimates, self._requests, rows, late, seconds))

    def rows_here(self, source: StreamSource, window: Window) -> tuple[Plan, pa.Table]:
        """The plan of a window, and its rows as this process reads them, sorted.

        Raises:
            TooManyRows: they do not fit into memory; `longest_us` is shorter from now on.
            OtherColumns: the table was altered, and its definition is not understood.
        """
        doubtful = True
        for place in range(_LEARNS):
            made = self._plan(source, window)
            try:
                return made, self._read(made, window, doubtful)
            except OtherColumns:
                if place == _LEARNS - 1:
                    raise
                known = self.schema
                self._learn()
                # A value that is none of its column's type may be one of a newer type, and if not it is none at all.
                doubtful = self.schema != known
        raise AssertionError("unreachable: the last try raises")

    def _asking(self) -> Asking:
        return Asking(self._live.name, self._live.connection, self.schema, self._bypass)

    def _plan(self, source: StreamSource, window: Window) -> Plan:
        period = next(each for each in source.periods() if each.begin_us == window.set_us)
        lives, now = Lifetimes.of(self.lake, self.schema), self.clock.now_us()
        since = max(lives.created_us, now - lives.most_us) if lives.most_us else lives.created_us
        held = None if self.begins_anew else rows_since(self.lake, self.sink, Microseconds(since))
        share = (window.until_us - max(window.after_us, since)) / max(now - since, 1)
        page_rows = self._live.connection.page_rows
        return plan(window, by_token(period.streams().streams), held, share, page_rows, self._way)

    def _read(self, made: Plan, window: Window, doubtful: bool) -> pa.Table:
        """All rows of a window, sorted; where it is `doubtful` a value that is none of its type is another table's."""
        found: list[pa.Table] = []
        unreadable: Counter[str] = Counter()
        count = 0
        for done, pages in enumerate(self._asking().answers(made.conditions), 1):
            self._requests += len(pages)
            if not any(page.rows for page in pages):
                continue
            part = log_rows(self.schema, pages)
            unreadable.update(part.unreadable)
            found.append(part.rows)
            count += part.rows.num_rows
            if count > ROWS_AT_ONCE and window.until_us - window.after_us > AT_ONCE:
                expected = count * len(made.conditions) // done
                shorter = (window.until_us - window.after_us) * ROWS_AT_ONCE // (2 * expected)
                self._longest = Microseconds(max(1, shorter))
                raise TooManyRows
        if self._longest is not None:
            self._longest = Microseconds(self._longest * 2)
        if doubtful and unreadable:
            raise OtherColumns(f"{', '.join(unreadable)} of {self.schema.full_name} have values of another type")
        for name, several in unreadable.items():
            self.tell(f"{several} values of {self.schema.full_name}.{name} are none of its type, and come as null")
        if not found:
            return empty_rows(self.schema)
        return pa.concat_tables(_alike(found)).sort_by(_ORDER)

    def _append_in_tasks(self, made: Plan, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Let tasks read the rows and write their files, which one commit puts behind the log's, with the marks."""
        self._requests = len(made.conditions)
        (name, number), *rest = marks.items()
        while True:
            sink = fitted(self.lake, self.clock, self.schema, exact=True)
            if self.lake.transaction(sink, name) != expected:
                return None
            tasks = self._asking().task_rows(made.conditions)
            before = sum(each.rows for each in self.lake.slices(sink))
            failpoints.reached(failpoints.BEFORE_SINK)
            try:
                done = frames.append(self.workers, self.lake, sink, tasks, (name, number), dict(rest))
            except StateError:
                # A task cannot say by the class of its error that the table was altered.
                known = self.schema
                self._learn()
                if self.schema == known:
                    raise
                continue
            return sum(each.rows for each in self.lake.slices(sink)) - before if done else None

    def append(self, rows: pa.Table, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Put rows of this process's memory behind the log's, with the marks; None where the first is not expected."""
        sink = fitted(self.lake, self.clock, self.schema, exact=EXACT in rows.column_names)
        failpoints.reached(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None

    def _learn(self) -> None:
        """Look at the cluster again: its table was altered since it was looked at."""
        look(self._live, self._cluster, self.clock, unsettled=True)
        self.schema = _definition(self.lake, self.schema.keyspace, self.schema.name)

    def _what_is_gone(self, window: Window) -> list[str]:
        """What is told of rows that may have lived and died unread: a gap is never silent."""
        if self.begins_anew:
            return []
        lives, name = Lifetimes.of(self.lake, self.schema), self.schema.full_name
        gone = lives.gone_us(self.clock.now_us())
        told = []
        if window.after_us < lives.created_us <= window.until_us:
            told.append(
                f"the log of {name} was made anew at {format_us(lives.created_us)}: what was written to the one before"
                f" after {format_us(window.after_us)} went with it unread"
            )
        if gone is not None and window.after_us < gone:
            told.append(
                f"rows of {name} written from {format_us(window.after_us)} to"
                f" {format_us(Microseconds(min(gone, window.until_us)))} may be gone: they live for"
                f" {lives.least_us // SECOND_US} s, and this window is read later than that"
            )
        return told


def rows_since(lake: Lake, sink: Table, since_us: Microseconds) -> int | None:
    """About how many rows of a log that is here were written from then on (µs); None where nothing is here."""
    if not lake.exists(sink):
        return None
    count = 0.0
    for low, high, rows in lake.file_bounds(sink, WRITTEN_AT):
        first, last = from_datetime(low), from_datetime(high)
        if last >= since_us:
            count += rows * min(1.0, (last - since_us + 1) / (last - first + 1))
    return int(count)


def _alike(several: Sequence[pa.Table]) -> list[pa.Table]:
    """Tables of one log, of which some have the column for values that no native one holds."""
    wide = next((each.schema for each in several if EXACT in each.column_names), None)
    if wide is None:
        return list(several)
    return [
        each
        if EXACT in each.column_names
        else each.append_column(wide.field(EXACT), pa.nulls(each.num_rows, wide.field(EXACT).type))
        for each in several
    ]


def position(lake: Lake, schema: TableSchema) -> Microseconds | None:
    """How far (µs) the log of a table was brought in; None where it never was."""
    try:
        return consumers.find(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return None
