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
from cdc_platform.clock import ONE_US, Clock, Microseconds, format_ms, format_us, ms_of
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.cluster.observing import refresh
from cdc_platform.cluster.session import LiveCluster, connected
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import NotFound, StateError
from cdc_platform.ingest import policy as paces
from cdc_platform.ingest.planner import Estimate, Plan, Way
from cdc_platform.ingest.policy import Lifetimes, ReadPolicy
from cdc_platform.ingest.replica.replica import ReplicationResult, TableReplicator
from cdc_platform.ingest.replica.tables import assert_replicable, find_replica, is_replicated, why_not_replicable
from cdc_platform.ingest.requests import empty_rows, serving
from cdc_platform.ingest.second_pass import LATE, is_due, read_again
from cdc_platform.ingest.window_reader import WindowReader, WindowResult, definition
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.looking import mirroring
from cdc_platform.lake.tables import Table
from cdc_platform.lake.turns import turn
from cdc_platform.lake.volume import Workers
from cdc_platform.log.gaps import log_gaps_of
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.following import follow
from cdc_platform.log.reading.left_out import Tell, tell_in_log
from cdc_platform.log.reading.reader import FROM_CLUSTER, registered, without_known
from cdc_platform.log.reading.retyped import fitted
from cdc_platform.log.reading.sets import stream_sets
from cdc_platform.log.reading.stream_progress import origin_mark
from cdc_platform.log.reading.windows import Sets, Window
from cdc_platform.log.stored_names import EXACT, GAP
from cdc_platform.records import cluster_changes, consumers, log_gaps
from cdc_platform.records.consumers import Consumer
from cdc_platform.records.log_gaps import LogGap, Loss
from cdc_platform.timeline import StreamSource

_ORIGIN = origin_mark(FROM_CLUSTER)
TASKS_HERE = 8
"""Tasks of requests that are done sooner in the process that asks than Spark starts."""


@dataclass(frozen=True)
class ReadWindow:
    """A window as it was read, with what was estimated and what came. Times in µs; `requests` counts pages.

    `chosen` is None where the window was passed over. `late` are the rows that a second reading found. `scanned_with`
    is the number of the window for which the scan was made that brought the rows of this one too. `catch_up`: the
    position had passed it before the streams of its set could be read.
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


@dataclass
class IngestResult:
    """What an ingest did. `position_us`: all rows at or before it were read; `again_us`: and a second time.

    `late` are the rows that second readings found now, `late_ever` all that they ever did. `current` is the table
    itself, where it is kept. `held` says which generation the position waits for, None if it waits for none. `gaps` are
    all that the log has.
    """

    table: str
    rows: int
    late: int
    position_us: Microseconds
    again_us: Microseconds | None
    late_ever: int
    horizon_us: Microseconds
    windows: list[ReadWindow] = field(default_factory=list)
    current: ReplicationResult | None = None
    held: str | None = None
    gaps: list[LogGap] = field(default_factory=list)

    @property
    def lacks_rows(self) -> bool:
        """Whether rows of the log are lost that nobody has accepted, found by this run or an earlier one."""
        return any(gap.is_open for gap in self.gaps)


class NothingReadable(StateError):
    """The cluster lists no generation or stream set whose streams can be read, so that no row can be."""

    exit_code = 1
    code = "nothing-readable"


def ingest(
    cluster: KnownCluster,
    clock: Clock,
    keyspace: str,
    table: str,
    workers: Workers,
    *,
    pace: ReadPolicy | None = None,
    until_us: Microseconds | None = None,
    way: Way | None = None,
    tell: Tell = tell_in_log,
    current: bool = False,
    copy_again: bool = False,
) -> IngestResult:
    """Bring in what is new in the log of a table; one that is at it in another process is waited for.

    Nothing newer than the confidence window behind the slowest clock is read, nor after `until_us` (µs). What is left
    out, or may be gone, is told. With `way` windows are read so, whatever that costs.

    With `current` the table itself is kept from now on, see `current.keeping`; one that is kept is brought up in any
    case, and copied anew with `copy_again`.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or does not let us in.
        NotGranted: the log, or a table that tells of CDC, may not be read.
        NotFound: the table has no log, or its definition is none that the platform understands.
        StateError: it is another cluster than before, or the streams of what comes next are not complete; or a table
            is to be kept whose log does not tell what becomes of it.
        NothingReadable: no generation or stream set of the log can be read yet.
    """
    pace = pace or ReadPolicy()
    lake = Lake(cluster.open_home().lake)
    with (
        mirroring(),
        turn(lake, f"ingest.{keyspace}.{table}"),
        connected(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live,
        serving(live),
    ):
        # Before generations are looked at: nodes know every one that begins up to then by now.
        horizon = paces.horizon_us(live, clock, pace, tell)
        if until_us is not None:
            horizon = min(horizon, until_us)
        refreshed = refresh(live, cluster, clock)
        unheld_us = horizon
        if refreshed is not None:
            horizon = refreshed.readable_us(f"{keyspace}.{table}", horizon)
            for line in refreshed.incomplete:
                tell(f"left out: {line}")
        schema = definition(lake, keyspace, table)
        wanted = current or copy_again
        if copy_again or (wanted and not is_replicated(lake, schema)):
            assert_replicable(lake, schema)
        asked = WindowReader(live, cluster, clock, lake, schema, way, tell)
        copier = ClusterLogSource(lake, clock, asked, horizon, workers, tell)
        lives = Lifetimes.of(lake, schema)
        sets = stream_sets(lake, schema, clock.now_us())
        assert_readable(cluster.name, lake, schema, sets)
        consumer = registered(lake, clock, schema, FROM_CLUSTER, tell, lambda: lives.first_us(sets, clock.now_us()))
        asked.begins_anew = consumer.window_number == 0
        copier.reads_once_more = not asked.begins_anew and lake.transaction(copier.sink, _ORIGIN) is None
        # After a long stop what nobody has read yet dies first, and before it nothing is read that is here already.
        behind = is_due(consumer.position_us, pace, lives, clock)
        again = None if behind else read_again(copier, consumer, pace, lives)
        before, (consumer, rows) = consumer, follow(lake, clock, schema, consumer, copier, horizon, tell)
        if behind:
            again = read_again(copier, before, pace, lives)
        table_now = None
        if wanted or is_replicated(lake, copier.schema):
            table_now = _brought_up(live, copier, consumer.position_us, lives, anew=copy_again)
        late = sum(window.late or 0 for window in copier.windows)
        ever = lake.transaction(copier.sink, LATE) or 0
        held = held_by(lake, schema, clock.now_us(), consumer.position_us, unheld_us)
        if held is not None:
            tell(held)
        found = IngestResult(schema.full_name, rows, late, consumer.position_us, again, ever, horizon, copier.windows)
        gaps = [gap for gap in log_gaps_of(lake, [schema.full_name]) if gap.reader == FROM_CLUSTER]
        return replace(found, current=table_now, held=held, gaps=gaps)


def assert_readable(cluster: str, lake: Lake, schema: TableSchema, sets: Sets) -> None:
    """Refuse to read a log without any readable generation or stream set: no row would ever arrive.

    Raises:
        NothingReadable: there is none.
    """
    if sets.seen:
        return
    if sets.awaited is not None:
        why = f"{_waiting_for(lake, sets.awaited)}, and it is the first that is known"
    else:
        why = "it lists none with streams, in cdc_generation_timestamps or in the tables of the first format"
    raise NothingReadable(
        f"no generation of {cluster} can be read for {schema.full_name}: {why}; look at what there is with:"
        f" cdc-platform cluster test {cluster}"
    )


def held_by(
    lake: Lake, schema: TableSchema, now_us: Microseconds, position_us: Microseconds, horizon_us: Microseconds
) -> str | None:
    """Return a line if the position waits at the start of a generation that nodes use and clients cannot read yet."""
    awaited = stream_sets(lake, schema, now_us).awaited
    if awaited is None or awaited > horizon_us:
        return None
    return f"{schema.full_name} is held at {format_us(position_us)}: {_waiting_for(lake, awaited)}"


def _waiting_for(lake: Lake, awaited_us: Microseconds) -> str:
    name = f"generation {format_ms(ms_of(awaited_us))}"
    since = next((each.at_us for each in cluster_changes.noted(lake) if each.change.who == name), None)
    known = "" if since is None else f", since {format_us(since)}"
    return f"{name} is committed and not published{known}"


def _brought_up(
    live: LiveCluster, copier: ClusterLogSource, as_of_us: Microseconds, lives: Lifetimes, *, anew: bool
) -> ReplicationResult | None:
    """The table itself, brought up to a time (µs); None where its log does not tell enough, which is told."""
    lake, schema = copier.lake, copier.schema
    why = why_not_replicable(lake, schema)
    if why is not None:
        now = find_replica(lake, schema)
        since = "" if now is None or now.as_of_us is None else f" as of {format_us(now.as_of_us)}"
        copier.tell(f"{schema.full_name} stays{since}, {why}; it is copied anew once its log tells all again")
        return None
    keeper = TableReplicator(live, lake, copier.clock, schema, copier.workers, copier.tell)
    return keeper.replicate(as_of_us, paces.whole_since_us(lake, schema), lives.least_us, anew=anew)


class ClusterLogSource:
    """Copies windows up to a horizon (µs) from a cluster into the log's Delta table."""

    def __init__(
        self, lake: Lake, clock: Clock, asked: WindowReader, horizon_us: Microseconds, workers: Workers, tell: Tell
    ) -> None:
        self.lake, self.clock, self.tell = lake, clock, tell
        self.windows: list[ReadWindow] = []
        self.reads_once_more = False
        """Whether an earlier release read the log, which noted nothing of stream sets."""
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
        new: list[LogGap] = []
        if window.passed:
            marks = self._with_gaps(window, marks, new)
            came, count = None, self.append(empty_rows(self.schema), marks, expected)
        elif self._asked.are_here(window) or self._work_here(made := self._asked.plan(source, window, horizon)):
            came = self._asked.come(source, window, horizon, made)
            # Rows may have died while they were being read.
            marks = self._with_gaps(window, marks, new)
            count = self.append(came.rows, marks, expected)
        else:
            assert made is not None
            if made.chosen.windows > 1:
                made = self._asked.plan(source, window)  # what tasks read goes straight into the window's files
            marks = self._with_gaps(window, marks, new)
            count = self._append_in_tasks(made, marks, expected)
            self._with_gaps(window, marks, new)
            came = WindowResult(empty_rows(self.schema), made.chosen, made.other, len(made.places))
        if count is not None:
            self._asked.begins_anew = False
            self.note(window, came, count, begun)
            for gap in new:
                self.tell(str(gap))
        return count

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """As `Copier`: what an earlier release read is read once more, as far as its rows may still be there."""
        if consumer.window_number == 0:
            return consumer.position_us
        return Microseconds(Lifetimes.of(self.lake, self.schema).since_us(self.clock.now_us()) - ONE_US)

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        """As `Copier`; tells of rows that may have died before their set could be read."""
        begun, schema = time.monotonic(), self.schema
        came = self._asked.come(source, window, window.until_us)
        when = window.after_us, window.until_us, self.clock.now_us()
        died = None if self.reads_once_more else Lifetimes.of(self.lake, schema).died_us(*when)
        new = []
        if died is not None:
            new = log_gaps.record(self.lake, self.clock, [paces.died_before(schema, window, died)])
            marks = {**marks, GAP: max(died, self.lake.transaction(self.sink, GAP) or 0)}
        count = self.append(without_known(self.lake, self.sink, came.rows, window), marks, expected)
        if count is not None:
            self.note(window, came, count, begun, catch_up=True)
            for gap in new:
                self.tell(str(gap))
        return count

    def read_again(self, source: StreamSource, window: Window, until_us: Microseconds) -> WindowResult:
        """What the cluster has of a window now; one scan serves those up to a time (µs).

        Raises:
            TooManyRows: they do not fit into memory; `longest_us` is shorter from now on.
            OtherColumns: the table was altered, and its definition is not understood.
        """
        return self._asked.come(source, window, until_us)

    def note(
        self,
        window: Window,
        came: WindowResult | None,
        rows: int,
        begun: float,
        late: int | None = None,
        *,
        catch_up: bool = False,
    ) -> None:
        """Keep what is told of a window that is in."""
        told = (None, None, 0, None) if came is None else (came.chosen, came.other, came.requests, came.scanned_with)
        chosen, other, requests, scanned_with = told
        times = window.set_us, window.after_us, window.until_us
        seconds = round(time.monotonic() - begun, 3)
        read = ReadWindow(window.number, *times, chosen, other, requests, rows, late, seconds, scanned_with, catch_up)
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

    def _with_gaps(self, window: Window, marks: Mapping[str, int], new: list[LogGap]) -> Mapping[str, int]:
        """Record the gaps that a window reveals by now, before it is committed; return the marks with what has died.

        What was not recorded before goes into `new`.
        """
        lake, schema, now = self.lake, self.schema, self.clock.now_us()
        if self._asked.begins_anew:
            log_gaps.record(lake, self.clock, [paces.before_reading(lake, schema, now)])
            return marks
        gaps = paces.gaps_between(lake, schema, window.after_us, window.until_us, now)
        new += log_gaps.record(lake, self.clock, gaps)
        died = [gap.until_us - ONE_US for gap in gaps if gap.what == Loss.DIED]
        return {**marks, GAP: max(*died, self.lake.transaction(self.sink, GAP) or 0)} if died else marks


def position(lake: Lake, schema: TableSchema) -> Microseconds | None:
    """How far (µs) the log of a table was brought in; None where it never was."""
    try:
        return consumers.find(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return None
