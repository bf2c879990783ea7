"""Ingest the CDC log of a live cluster into the lake: each row visible when its window is read, exactly once.

The order of steps, generations and checkpoints is that of every consumer (`cdclog.consume_windows`); here a cluster
provides the rows of a window. The result is the table that `cql run --apply` would write, so everything that reads
logs can read it. Its commits carry the number of the window, and how far the first and the second pass have read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from cdc_platform.cdclog import (
    FROM_CLUSTER,
    IngestLag,
    OnMessage,
    ReaderSets,
    TtlLag,
    consume_windows,
    ensure_consumer,
    get_ingest_lag,
    log_message,
    read_log_gaps,
    read_reader_sets,
)
from cdc_platform.clock import ONE_US, Clock, Microseconds, format_ms, format_us, ms_from_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, TaskRunner, WriteSource, lake_lock, write_as
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.ingest import policy as policies
from cdc_platform.ingest.cluster_log import ClusterLogSource, LapTimer, ReadWindow
from cdc_platform.ingest.marks import LATE
from cdc_platform.ingest.planner import Way
from cdc_platform.ingest.policy import Lifetimes, ReadPolicy, second_pass_goes_first
from cdc_platform.ingest.replica.replica import ReplicationResult, TableReplicator
from cdc_platform.ingest.replica.tables import assert_replicable, find_replica, is_replicated, why_not_replicable
from cdc_platform.ingest.requests import serving
from cdc_platform.ingest.second_pass import run_second_pass
from cdc_platform.ingest.window_reader import WindowReader, definition
from cdc_platform.metastore import LogGap, LogLoss, cdc_tables, cluster_changes, consumers, log_gaps
from cdc_platform.scylla import ReadTraffic, ScyllaCluster, ScyllaSession, open_session, refresh_if_changed


@dataclass
class IngestResult:
    """The result of an ingest. The first pass has read all rows up to `position_us`, the second up to `second_pass_us`.

    `lag` is how far the position is behind now, against the TTL of the log's rows.

    `late` counts the rows that the second pass found now, `late_ever` all that it ever found. `current` is the
    replicated table, if there is one. `waiting_for` says which generation the position waits for, None for
    none. `gaps` are all gaps of the log.
    """

    table: str
    rows: int
    late: int
    position_us: Microseconds
    second_pass_us: Microseconds | None
    late_ever: int
    read_until_us: Microseconds
    lag: IngestLag
    windows: list[ReadWindow] = field(default_factory=list)
    current: ReplicationResult | None = None
    waiting_for: str | None = None
    gaps: list[LogGap] = field(default_factory=list)
    traffic: ReadTraffic = field(default_factory=ReadTraffic)
    """What this process read from the cluster, rows of the second pass and of a replica included."""
    is_finished: bool = True
    """False if more could be read, and the caller limited this turn."""

    @property
    def has_open_gaps(self) -> bool:
        """Return True if rows of the log are lost and not accepted as lost, as found by this run or an earlier one."""
        return any(gap.is_open for gap in self.gaps)

    @property
    def loses_rows(self) -> bool:
        """Return True if rows are lost and not accepted as lost, or unread rows may have expired by now."""
        return self.has_open_gaps or self.lag.status.lag is TtlLag.DYING


class NothingReadable(StateError):
    """The cluster lists no generation or stream set with readable streams, so no row can be read."""

    exit_code = 1
    code = "nothing-readable"


NOW: Literal["now"] = "now"
"""The start of an ingest that leaves out everything written before."""


@dataclass(frozen=True)
class IngestOptions:
    """How tables are ingested. `ReadPolicy` has the distance from the clocks and the second pass.

    A log that was never ingested is read from `start` (µs, or `NOW`) on, by default from its beginning. Nothing after
    `until_us` (µs) is read. With `way`, windows are read that way regardless of its cost. `current` replicates the
    tables themselves, `recopy` copies replicated ones once more.
    """

    policy: ReadPolicy = field(default_factory=ReadPolicy)
    start: Microseconds | Literal["now"] | None = None
    until_us: Microseconds | None = None
    way: Way | None = None
    current: bool = False
    recopy: bool = False


class ClusterIngest:
    """Ingests logs of one cluster over one session. It looked at the clocks and the generations once, when it opened.

    `read_until_us` (µs) is up to when logs are read.
    """

    def __init__(
        self,
        live: ScyllaSession,
        cluster: ScyllaCluster,
        clock: Clock,
        workers: TaskRunner,
        options: IngestOptions,
        on_message: OnMessage,
    ) -> None:
        self.lake = Lake(cluster.open_home().lake)
        self._live, self._cluster, self._clock, self._workers = live, cluster, clock, workers
        self._options, self._on_message = options, on_message
        unnamed = policies.describe_unnamed_datacenter(live)
        if unnamed is not None:
            on_message(unnamed)
        if live.meter.is_limited:
            # One process keeps to a rate; tasks of Spark would each have a share, whether they use it or not.
            self._workers = replace(workers, in_process=sys.maxsize)
        # Before generations are read: by then nodes know every generation that begins up to this time.
        self.read_until_us = policies.find_read_until_us(live, clock, options.policy, on_message)
        # By the slowest clock, so that no write from now on is left out.
        slowest_us = Microseconds(self.read_until_us + options.policy.confidence_us)
        self._start_us = slowest_us if options.start == NOW else options.start
        if self._start_us is not None and self._start_us > clock.now_us():
            raise InputError(f"--from {format_us(self._start_us)} is in the future; give a past time, or now")
        if options.until_us is not None:
            self.read_until_us = min(self.read_until_us, options.until_us)
        self._refreshed = refresh_if_changed(live, cluster, clock)
        for line in () if self._refreshed is None else self._refreshed.incomplete:
            on_message(f"left out: {line}")

    def ingest(
        self, keyspace: str, table: str, *, on_message: OnMessage | None = None, turn_us: Microseconds | None = None
    ) -> IngestResult:
        """Ingest what is new in the log of a table; wait for an ingest of the same table by another process.

        With `turn_us`, read at most that much of the time (µs) in which rows may exist. If more remains, `is_finished`
        of the result is False. The second pass and the replica follow with the last turn.

        Raises:
            PlatformError: as `ingest_table`.
        """
        with lake_lock(self.lake, f"ingest.{keyspace}.{table}"):
            with self._live.meter.measure() as traffic:
                result = self._ingest(keyspace, table, on_message or self._on_message, turn_us)
            return replace(result, traffic=traffic)

    def _ingest(self, keyspace: str, table: str, on_message: OnMessage, turn_us: Microseconds | None) -> IngestResult:
        lake, clock, live, options, policy = self.lake, self._clock, self._live, self._options, self._options.policy
        lap_timer = LapTimer()
        read_until_us = self.read_until_us
        if self._refreshed is not None:
            read_until_us = self._refreshed.readable_us(f"{keyspace}.{table}", read_until_us)
        schema = definition(lake, keyspace, table)
        replicate = options.current or options.recopy
        if options.recopy or (replicate and not is_replicated(lake, schema)):
            assert_replicable(lake, schema)
        lifetimes = Lifetimes.read(lake, schema)
        sets = read_reader_sets(lake, schema, clock.now_us())
        assert_readable(self._cluster.name, lake, schema, sets)
        consumer = ensure_consumer(
            lake,
            clock,
            schema,
            FROM_CLUSTER,
            on_message,
            lambda: self._begin(schema, lifetimes.first_us(sets, clock.now_us()), on_message),
        )
        if (
            options.start not in (None, NOW)
            and self._start_us is not None
            and self._start_us > consumer.position_us + 1
        ):
            on_message(
                f"{schema.full_name} is ingested up to {format_us(consumer.position_us)} and continues there: --from "
                "applies to the first ingest of a log"
            )
        start_us, late_windows = consumer.position_us, list[ReadWindow]()
        turn_until_us = read_until_us
        if turn_us is not None:
            # One window with the time before: what expired before the first read is no gap.
            alive_us = max(start_us, lifetimes.since_us(clock.now_us()))
            turn_until_us = Microseconds(min(read_until_us, alive_us + turn_us))
        reader = WindowReader(live, self._cluster, clock, lake, schema, policy, options.way, on_message)
        log = ClusterLogSource(lake, clock, reader, consumer, turn_until_us, self._workers, lap_timer, on_message)
        second_pass_us: Microseconds | None = None
        is_last_turn = turn_until_us == read_until_us
        second_pass_first = is_last_turn and second_pass_goes_first(start_us, policy, lifetimes, clock.now_us())
        if second_pass_first:
            second_pass_us, late_windows = run_second_pass(log, start_us, policy, lifetimes)
        consumer, rows = consume_windows(lake, clock, schema, consumer, log, turn_until_us, on_message)
        if is_last_turn and not second_pass_first:
            second_pass_us, late_windows = run_second_pass(log, start_us, policy, lifetimes)
        windows = [*late_windows, *log.windows] if second_pass_first else [*log.windows, *late_windows]
        replication = None
        if is_last_turn and (replicate or is_replicated(lake, log.schema)):
            replication = _replicate(live, log, policy, consumer.position_us, lifetimes, recopy=options.recopy)
        late = sum(window.late or 0 for window in late_windows)
        late_ever = lake.transaction(log.sink, LATE) or 0
        waiting = describe_wait(lake, schema, clock.now_us(), consumer.position_us, self.read_until_us)
        if waiting is not None and is_last_turn:
            on_message(waiting)
        changes = [change for change in cdc_tables.read_table_changes(lake) if change.full_name == schema.full_name]
        lag = get_ingest_lag((schema.keyspace, schema.name), changes, consumer, clock.now_us())
        gaps = [gap for gap in read_log_gaps(lake, [schema.full_name]) if gap.reader == FROM_CLUSTER]
        return IngestResult(
            schema.full_name,
            rows,
            late,
            consumer.position_us,
            second_pass_us,
            late_ever,
            read_until_us,
            lag,
            windows,
            replication,
            waiting,
            gaps,
            is_finished=is_last_turn,
        )

    def _begin(self, schema: TableSchema, first_us: Microseconds, on_message: OnMessage) -> Microseconds:
        """Return the time (µs) after which to read a log first; record what `start` leaves out as an accepted gap."""
        start_us = self._start_us
        if start_us is None or start_us <= first_us + ONE_US:
            return first_us
        reason = "--from now" if self._options.start == NOW else f"--from {format_us(start_us)}"
        gap = LogGap(
            schema.keyspace,
            schema.name,
            LogLoss.BEFORE_START,
            Microseconds(first_us + ONE_US),
            start_us,
            "the first ingest began later",
            accepted_at_us=self._clock.now_us(),
            reason=reason,
        )
        # Before the position is stored: a killed process leaves a gap without a position, never the reverse.
        for recorded in log_gaps.record_log_gaps(self.lake, self._clock, [gap]):
            on_message(str(recorded))
        return Microseconds(start_us - ONE_US)


@contextmanager
def open_ingest(
    cluster: ScyllaCluster,
    clock: Clock,
    workers: TaskRunner,
    options: IngestOptions,
    on_message: OnMessage = log_message,
) -> Iterator[ClusterIngest]:
    """Connect to a cluster and look at its clocks and generations, once for every table that the block ingests.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or rejects the login.
        NotGranted: a table with CDC metadata may not be read.
        StateError: it is not the cluster observed before.
    """
    with (
        write_as(WriteSource.OBSERVED),
        open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live,
        serving(live),
    ):
        yield ClusterIngest(live, cluster, clock, workers, options, on_message)


def ingest_table(
    cluster: ScyllaCluster,
    clock: Clock,
    keyspace: str,
    table: str,
    workers: TaskRunner,
    *,
    policy: ReadPolicy | None = None,
    start: Microseconds | Literal["now"] | None = None,
    until_us: Microseconds | None = None,
    way: Way | None = None,
    on_message: OnMessage = log_message,
    current: bool = False,
    recopy: bool = False,
) -> IngestResult:
    """Ingest what is new in the log of a table; wait for an ingest of the same table by another process.

    Begin a log that was never ingested at `start` (µs, or `NOW`), and record what that leaves out as an accepted gap.
    Read nothing newer than the confidence window behind the slowest clock, nor after `until_us` (µs). Report what is
    left out, and rows that may have expired. With `way`, read windows that way regardless of its cost.

    With `current`, replicate the table itself from now on, see `replica.replica`. A replicated table is updated in any
    case, and `recopy` copies it once more.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or rejects the login.
        NotGranted: the log, or a table with CDC metadata, may not be read.
        NotFound: the table has no log, or the platform does not understand its definition.
        StateError: it is not the cluster observed before; or the streams of what comes next are incomplete; or a table
            to replicate has CDC disabled.
        NothingReadable: no generation or stream set of the log can be read yet.
    """
    options = IngestOptions(policy or ReadPolicy(), start, until_us, way, current, recopy)
    with open_ingest(cluster, clock, workers, options, on_message) as ingest:
        return ingest.ingest(keyspace, table)


def assert_readable(cluster: str, lake: Lake, schema: TableSchema, sets: ReaderSets) -> None:
    """Refuse to read a log without any readable generation or stream set: no row would ever arrive.

    Raises:
        NothingReadable: the cluster lists none.
    """
    if sets.seen:
        return
    if sets.awaited is not None:
        why = f"{_waiting_for(lake, sets.awaited)}, the first known generation"
    else:
        why = "no generation with streams in cdc_generation_timestamps or in the V1 tables"
    raise NothingReadable(
        f"no generation of {cluster} can be read for {schema.full_name}: {why}; see:"
        f" cdc-platform cluster test {cluster}"
    )


def describe_wait(
    lake: Lake, schema: TableSchema, now_us: Microseconds, position_us: Microseconds, read_until_us: Microseconds
) -> str | None:
    """Return a line if the position waits at the start of a generation that nodes use and clients cannot read yet."""
    awaited = read_reader_sets(lake, schema, now_us).awaited
    if awaited is None or awaited > read_until_us:
        return None
    return f"{schema.full_name} waits at {format_us(position_us)}: {_waiting_for(lake, awaited)}"


def _waiting_for(lake: Lake, awaited_us: Microseconds) -> str:
    name = f"generation {format_ms(ms_from_us(awaited_us))}"
    since = next(
        (change.at_us for change in cluster_changes.read_cluster_changes(lake) if change.change.who == name), None
    )
    known = "" if since is None else f", since {format_us(since)}"
    return f"{name} is committed but not published{known}"


def _replicate(
    live: ScyllaSession,
    log: ClusterLogSource,
    policy: ReadPolicy,
    as_of_us: Microseconds,
    lifetimes: Lifetimes,
    *,
    recopy: bool,
) -> ReplicationResult | None:
    """Replicate the table itself up to a time (µs); report and return None if its log is insufficient."""
    lake, schema = log.lake, log.schema
    why = why_not_replicable(lake, schema)
    if why is not None:
        existing = find_replica(lake, schema)
        since = "" if existing is None or existing.as_of_us is None else f" as of {format_us(existing.as_of_us)}"
        log.on_message(f"{schema.full_name} stays{since}, {why}; it is copied again once its log is complete")
        return None
    replicator = TableReplicator(live, lake, log.clock, schema, log.workers, policy, log.on_message)
    return replicator.replicate(
        as_of_us, policies.find_complete_since_us(lake, schema), lifetimes.min_us, recopy=recopy
    )


def position(lake: Lake, schema: TableSchema) -> Microseconds | None:
    """Return how far (µs) the log of a table was ingested; None if it never was."""
    try:
        return consumers.find_consumer(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return None
