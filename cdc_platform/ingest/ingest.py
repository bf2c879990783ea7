"""Ingest the CDC log of a live cluster into the lake: each row visible when its window is read, exactly once.

The order of steps, generations and checkpoints is that of every consumer (`cdclog.consume_windows`); here a cluster
provides the rows of a window. The result is the table that `cql run --apply` would write, so everything that reads
logs can read it. Its commits carry the number of the window, and how far the first and the second pass have read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
from cdc_platform.clock import Clock, Microseconds, format_ms, format_us, ms_from_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, TaskRunner, WriteSource, lake_lock, write_as
from cdc_platform.errors import NotFound, StateError
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
from cdc_platform.metastore import LogGap, cdc_tables, cluster_changes, consumers
from cdc_platform.scylla import ScyllaCluster, ScyllaSession, open_session, refresh_if_changed


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


def ingest_table(
    cluster: ScyllaCluster,
    clock: Clock,
    keyspace: str,
    table: str,
    workers: TaskRunner,
    *,
    policy: ReadPolicy | None = None,
    until_us: Microseconds | None = None,
    way: Way | None = None,
    on_message: OnMessage = log_message,
    current: bool = False,
    recopy: bool = False,
) -> IngestResult:
    """Ingest what is new in the log of a table; wait for an ingest of the same table by another process.

    Read nothing newer than the confidence window behind the slowest clock, nor after `until_us` (µs). Report what is
    left out, and rows that may have expired. With `way`, read windows that way regardless of its cost.

    With `current`, replicate the table itself from now on, see `replica.replica`. A replicated table is updated in any
    case, and `recopy` copies it once more.

    Raises:
        EnvironmentProblem: the cluster cannot be reached, or rejects the login.
        NotGranted: the log, or a table with CDC metadata, may not be read.
        NotFound: the table has no log, or the platform does not understand its definition.
        StateError: it is not the cluster observed before; or the streams of what comes next are incomplete; or the log
            of a table to replicate does not determine the table's state.
        NothingReadable: no generation or stream set of the log can be read yet.
    """
    policy = policy or ReadPolicy()
    lake = Lake(cluster.open_home().lake)
    with (
        write_as(WriteSource.OBSERVED),
        lake_lock(lake, f"ingest.{keyspace}.{table}"),
        open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live,
        serving(live),
    ):
        lap_timer = LapTimer()
        # Before generations are read: by then nodes know every generation that begins up to this time.
        read_until_us = policies.find_read_until_us(live, clock, policy, on_message)
        if until_us is not None:
            read_until_us = min(read_until_us, until_us)
        refreshed = refresh_if_changed(live, cluster, clock)
        clocks_allow_us = read_until_us
        if refreshed is not None:
            read_until_us = refreshed.readable_us(f"{keyspace}.{table}", read_until_us)
            for line in refreshed.incomplete:
                on_message(f"left out: {line}")
        schema = definition(lake, keyspace, table)
        replicate = current or recopy
        if recopy or (replicate and not is_replicated(lake, schema)):
            assert_replicable(lake, schema)
        lifetimes = Lifetimes.read(lake, schema)
        sets = read_reader_sets(lake, schema, clock.now_us())
        assert_readable(cluster.name, lake, schema, sets)
        consumer = ensure_consumer(
            lake, clock, schema, FROM_CLUSTER, on_message, lambda: lifetimes.first_us(sets, clock.now_us())
        )
        reader = WindowReader(live, cluster, clock, lake, schema, policy, way, on_message)
        log = ClusterLogSource(lake, clock, reader, consumer, read_until_us, workers, lap_timer, on_message)
        start_us, late_windows = consumer.position_us, list[ReadWindow]()
        second_pass_us: Microseconds | None = None
        second_pass_first = second_pass_goes_first(start_us, policy, lifetimes, clock.now_us())
        if second_pass_first:
            second_pass_us, late_windows = run_second_pass(log, start_us, policy, lifetimes)
        consumer, rows = consume_windows(lake, clock, schema, consumer, log, read_until_us, on_message)
        if not second_pass_first:
            second_pass_us, late_windows = run_second_pass(log, start_us, policy, lifetimes)
        windows = [*late_windows, *log.windows] if second_pass_first else [*log.windows, *late_windows]
        replication = None
        if replicate or is_replicated(lake, log.schema):
            replication = _replicate(live, log, policy, consumer.position_us, lifetimes, recopy=recopy)
        late = sum(window.late or 0 for window in late_windows)
        late_ever = lake.transaction(log.sink, LATE) or 0
        waiting = describe_wait(lake, schema, clock.now_us(), consumer.position_us, clocks_allow_us)
        if waiting is not None:
            on_message(waiting)
        changes = [change for change in cdc_tables.read_table_changes(lake) if change.full_name == schema.full_name]
        lag = get_ingest_lag((schema.keyspace, schema.name), changes, consumer, clock.now_us())
        result = IngestResult(
            schema.full_name, rows, late, consumer.position_us, second_pass_us, late_ever, read_until_us, lag, windows
        )
        gaps = [gap for gap in read_log_gaps(lake, [schema.full_name]) if gap.reader == FROM_CLUSTER]
        return replace(result, current=replication, waiting_for=waiting, gaps=gaps)


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
