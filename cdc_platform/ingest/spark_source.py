"""The CDC log of a live cluster in Spark: `spark.read.format("scylla_cdc")` and `spark.readStream`, each row once.

Register it with `spark.dataSource.register(ScyllaCdc)`. Windows are planned with the query, by the generations in the
cluster's home; Spark's tasks request the rows. A stream's offset is the time up to which it has read.

| option | |
|---|---|
| `home`, `cluster` | the platform's home, and the cluster's name in it |
| `table` | as CQL and the command line write it: `shop.carts`, or `"Kw"."Select"` where capitals count |
| `from`, `until` | the first and the last moment, as in 2026-01-31T12:00:00Z; by default everything available |
| `confidence` | seconds to stay behind the slowest clock; 30 |
| `by` | `streams` or `ranges`; by default the cheaper one |
| `gaps` | for rows that can no longer be read: `tell` warns and continues, `refuse` (the default of streams) fails |

A worker of Spark on the driver's machine plans windows, so warnings appear in the driver's output.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from math import nan
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cdc_platform.cdclog import (
    Window,
    describe_skip,
    iter_complete_windows,
    log_table,
    read_log_gaps,
    read_reader_sets,
    read_table_schema,
    reader_sets_from_source,
)
from cdc_platform.clock import MAX_CDC_TTL_SECONDS, ONE_US, SECOND_US, Clock, Microseconds, format_us, parse_time_us
from cdc_platform.cql import TableSchema, parse_table_name
from cdc_platform.delta import CommitAuthor, Lake, commit_as
from cdc_platform.errors import InputError, StateError
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import policy as policies
from cdc_platform.ingest.ingest import assert_readable, describe_wait
from cdc_platform.ingest.planner import RANGES, STREAMS, Plan, Way, WindowPlanner
from cdc_platform.ingest.policy import Lifetimes, ReadPolicy, find_gaps, gap_of_late_set
from cdc_platform.ingest.requests import LogQuery
from cdc_platform.ingest.worker_errors import in_one_line
from cdc_platform.metastore import INGEST_CONSUMER, SPARK_STREAM_READER, LogGap, LogLoss, log_gaps
from cdc_platform.scylla import Observation, ScyllaCluster, ScyllaSession, open_session, refresh_if_changed, registry
from cdc_platform.spark import arrow_to_spark_schema
from cdc_platform.timeline import StreamSources

_log = logging.getLogger(__name__)
_OPTIONS = ("home", "cluster", "table", "from", "until", "confidence", "by", "gaps")
_REPORT, _REFUSE = "tell", "refuse"
_Offset = dict[str, Any]
"""What Spark stores as JSON."""
_Interval = tuple[int, int]
"""Times after the first and up to the second (µs)."""


@dataclass(frozen=True)
class _QueryOptions:
    """The options of a query. Times in µs, the first one read and the last. `refuses` gaps; None if not given."""

    home: str
    cluster: str
    keyspace: str
    table: str
    first_us: Microseconds | None
    until_us: Microseconds | None
    policy: ReadPolicy
    way: Way | None
    refuses: bool | None

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> _QueryOptions:
        """Parse the options of a query, which Spark compares without regard to case.

        Raises:
            InputError: one is missing, unknown, or has an invalid value.
        """
        values = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(values) - set(_OPTIONS))
        missing = [name for name in ("home", "cluster", "table") if name not in values]
        if unknown or missing:
            wrong = f"no option {unknown[0]}" if unknown else f"option {missing[0]} is missing"
            raise InputError(f"scylla_cdc: {wrong}; the options are {', '.join(_OPTIONS)}")
        try:
            keyspace, table = parse_table_name(values["table"])
        except InputError as error:
            raise InputError(f"scylla_cdc: {error}") from None
        way = values.get("by")
        if way not in (None, STREAMS, RANGES):
            raise InputError(f"scylla_cdc: by is {way!r}; it is {STREAMS} or {RANGES}")
        first, until = (parse_time_us(values[name]) if name in values else None for name in ("from", "until"))
        if first is not None and until is not None and until < first:
            raise InputError(
                f"scylla_cdc: until is {values['until']}, which is before from, {values['from']}; swap them"
            )
        confidence = _confidence_us(values.get("confidence", "30"))
        chosen_way: Way | None = None if way is None else STREAMS if way == STREAMS else RANGES
        gaps = values.get("gaps")
        if gaps not in (None, _REPORT, _REFUSE):
            raise InputError(f"scylla_cdc: gaps is {gaps!r}; it is {_REPORT} or {_REFUSE}")
        refuses = None if gaps is None else gaps == _REFUSE
        return cls(
            values["home"],
            values["cluster"],
            keyspace,
            table,
            first,
            until,
            ReadPolicy(confidence),
            chosen_way,
            refuses,
        )

    def find(self) -> ScyllaCluster:
        """Return the cluster as registered in the home."""
        return registry.find_cluster(open_home_location(self.home, create=False), self.cluster)

    def schema(self) -> TableSchema:
        """Return the table as the cluster was last seen to define it."""
        cluster = self.find()
        with open_session(cluster.name, cluster.connection, known_nodes=cluster.node_addresses) as live:
            _refreshed(live, cluster)
        return read_table_schema(Lake(cluster.open_home().lake), self.keyspace, self.table)


def _refreshed(live: ScyllaSession, cluster: ScyllaCluster) -> Observation | None:
    """Observe the cluster if it changed; the home's history names the Spark source as the author."""
    with commit_as(CommitAuthor("Spark", "scylla_cdc")):
        return refresh_if_changed(live, cluster, Clock())


def _confidence_us(text: str) -> Microseconds:
    try:
        seconds = float(text)
    except ValueError:
        seconds = nan
    if not 0 <= seconds <= MAX_CDC_TTL_SECONDS:
        raise InputError(
            f"scylla_cdc: confidence is {text!r}; it is a number of seconds from 0 to {MAX_CDC_TTL_SECONDS}"
        )
    return Microseconds(int(seconds * SECOND_US))


class ScyllaCdc(DataSource):
    """The CDC log of a table, as in the platform's lake."""

    @cached_property
    def _query_options(self) -> _QueryOptions:
        return _QueryOptions.of(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "scylla_cdc"

    @in_one_line()
    def schema(self) -> StructType:
        """Return the columns of the log, with the one for out-of-range values."""
        return arrow_to_spark_schema(log_table(self._query_options.schema(), exact=True).schema)

    @in_one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return _Reader(self._query_options)

    @in_one_line()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return _StreamReader(self._query_options)


class _Planner:
    """A connection to the cluster and the windows that can be read, for planning a query.

    A stream (`streams`) ends at a gap unless its options say otherwise. One that goes on records it.
    """

    def __init__(self, query_options: _QueryOptions, streams: bool) -> None:
        self.query_options, self._opened = query_options, ExitStack()
        self._streams = streams
        self._refuses = streams if query_options.refuses is None else query_options.refuses
        self.cluster = query_options.find()
        self.lake = Lake(self.cluster.open_home().lake)

    @cached_property
    def live(self) -> ScyllaSession:
        """Return the session, opened on first use."""
        return self._opened.enter_context(
            open_session(self.cluster.name, self.cluster.connection, known_nodes=self.cluster.node_addresses)
        )

    def close(self) -> None:
        """Close the connection."""
        self._opened.close()

    def schema(self) -> TableSchema:
        """Return the table as the home has it."""
        return read_table_schema(self.lake, self.query_options.keyspace, self.query_options.table)

    def find_read_until_us(self) -> Microseconds:
        """Return up to when (µs) can be read now; import what the cluster has new."""
        read_until_us = policies.find_read_until_us(self.live, Clock(), self.query_options.policy, _log.warning)
        refreshed = _refreshed(self.live, self.cluster)
        if refreshed is not None:
            read_until_us = refreshed.readable_us(
                f"{self.query_options.keyspace}.{self.query_options.table}", read_until_us
            )
            for line in refreshed.incomplete:
                _log.warning("left out: %s", line)
        return (
            read_until_us
            if self.query_options.until_us is None
            else Microseconds(min(read_until_us, self.query_options.until_us))
        )

    def first_us(self) -> Microseconds:
        """Return the time (µs) after which reading begins.

        Raises:
            NothingReadable: no generation or stream set of the log can be read yet.
        """
        if self.query_options.first_us is not None:
            return Microseconds(self.query_options.first_us - ONE_US)
        schema, now = self.schema(), Clock().now_us()
        sets = read_reader_sets(self.lake, schema, now)
        assert_readable(self.cluster.name, self.lake, schema, sets)
        return Lifetimes.read(self.lake, schema).first_us(sets, now)

    def readable_us(self, after_us: Microseconds, read_until_us: Microseconds) -> Microseconds:
        """Return the end (µs) of the last window from there on that can be read without waiting for a generation."""
        now, schema = Clock().now_us(), self.schema()
        ends = [window.until_us for window in iter_complete_windows(self.lake, schema, after_us, read_until_us, now)]
        until = max(ends, default=after_us)
        waiting = describe_wait(self.lake, schema, now, until, read_until_us)
        if waiting is not None:
            _log.warning(waiting)
        return until

    def readable_sets(self, until_us: Microseconds) -> list[int]:
        """Return when (µs) each set begins whose streams are readable and have rows at or before a time (µs)."""
        schema, now = self.schema(), Clock().now_us()
        source = StreamSources(self.lake).of(schema.keyspace, schema.name)
        sets = reader_sets_from_source(source, now)
        begun = sorted(begin_us for begin_us in sets.seen if begin_us <= until_us and begin_us not in sets.passed)
        return [int(begin_us) for begin_us in begun if source.is_complete(begin_us)]

    def partitions(
        self,
        after_us: Microseconds,
        until_us: Microseconds,
        whole_us: Microseconds,
        only: Collection[int] | None = None,
        missed: Sequence[Window] = (),
        way: Way | None = None,
    ) -> list[InputPartition]:
        """Return the requests of all windows in between, in partitions by the estimated number of rows.

        No row written later than `whole_us` (µs) may be missing. With `only`, read only the sets that begin at these
        times (µs), and with `way` read windows that way, so that a batch planned again has the same rows. Read `missed`
        windows first, by their streams, since the rows of other streams were read before.

        Raises:
            StateError: a row may be missing, and the query refuses gaps.
        """
        schema = self.schema()
        windows = list(iter_complete_windows(self.lake, schema, after_us, until_us, Clock().now_us(), only))
        self._report_gaps(schema, windows, whole_us, missed)
        concurrency = self.query_options.policy.concurrency
        query = LogQuery(self.cluster.name, self.live.connection, schema, self.live.is_scylla, concurrency)
        least = Lifetimes.read(self.lake, schema).min_us
        tasks: list[_Task] = []
        plans = [
            (window_plan, Microseconds(0))
            for window in missed
            for window_plan in self._plans(schema, [window], STREAMS)
        ]
        plans += [
            (window_plan, whole_us) for window_plan in self._plans(schema, windows, way or self.query_options.way)
        ]
        for window_plan, whole in plans:
            alive = max(window_plan.after_us, whole) + least
            until = Microseconds(alive) if least and self._refuses and whole < window_plan.until_us else None
            for conditions in window_plan.tasks():
                tasks.append(_Task(query, conditions, until, len(tasks)))
        # Each task has its share of the rates, since all may run at once.
        shared = replace(query, connection=query.connection.divided(len(tasks)))
        return [InputPartition(replace(task, query=shared)) for task in tasks]

    def way(self, after_us: Microseconds, until_us: Microseconds, only: Collection[int]) -> Way:
        """Return how to read all windows of a batch, so that its offset can record it."""
        schema, now = self.schema(), Clock().now_us()
        windows = iter_complete_windows(self.lake, schema, after_us, until_us, now, only)
        first = next(
            self._plans(schema, [window for window in windows if not window.passed], self.query_options.way), None
        )
        return STREAMS if first is None else first.chosen.way

    def scanned(self, after_us: Microseconds, until_us: Microseconds, only: Collection[int]) -> Iterator[_Interval]:
        """Yield the time of each window that a scan reads; a scan reads the rows of all streams, known or not."""
        for window in iter_complete_windows(self.lake, self.schema(), after_us, until_us, Clock().now_us(), only):
            if not window.passed:
                yield window.after_us, window.until_us

    def _report_gaps(
        self, schema: TableSchema, windows: Sequence[Window], whole_us: Microseconds, missed: Sequence[Window]
    ) -> None:
        now, lost = Clock().now_us(), list[LogGap]()
        lifetimes = Lifetimes.read(self.lake, schema)
        for window in missed:
            died = lifetimes.find_expired_until_us(window.after_us, window.until_us, now)
            if died is not None:
                lost.append(gap_of_late_set(schema, window, died))
        if windows:
            after, until = Microseconds(max(windows[0].after_us, whole_us)), windows[-1].until_us
            lost += self._gaps(schema, after, until) if after < until else []
        # This is no gap: ScyllaDB's own clients skip these windows as well.
        for window in windows:
            if window.passed:
                _log.warning(describe_skip(f"scylla_cdc of {schema.full_name}", window, None))
        if lost and self._refuses:
            raise _refusal(list(map(str, lost)))
        for gap in lost:
            _log.warning(str(gap))
        if self._streams:
            reason = f"option gaps = {_REPORT}"
            accepted = {"reader": SPARK_STREAM_READER, "reason": reason, "accepted_at_us": Clock().now_us()}
            log_gaps.record_log_gaps(self.lake, Clock(), [replace(gap, **accepted) for gap in lost])

    def _gaps(self, schema: TableSchema, after_us: Microseconds, until_us: Microseconds) -> list[LogGap]:
        """Return what the rows of an interval may lack by now, and what `ingest` found missing from them before."""
        revealed = find_gaps(self.lake, schema, after_us, until_us, Clock().now_us())
        recorded = [
            gap
            for gap in read_log_gaps(self.lake, [schema.full_name])
            if gap.reader == INGEST_CONSUMER and gap.what not in (LogLoss.BEFORE_READING, LogLoss.BEFORE_START)
            if gap.overlaps(Microseconds(after_us + ONE_US), Microseconds(until_us + ONE_US))
        ]
        same = [gap for gap in recorded if any(_is_same(gap, other) for other in revealed)]
        return [*revealed, *(gap for gap in recorded if gap not in same)]

    def _plans(self, schema: TableSchema, windows: Sequence[Window], way: Way | None) -> Iterator[Plan]:
        planner = WindowPlanner(self.lake, schema, self.cluster.connection.page_rows, way)
        source = StreamSources(self.lake).of(schema.keyspace, schema.name)
        return planner.plan_all(source, windows, planner.stored(Clock().now_us()))


@dataclass(frozen=True)
class _Task:
    """Requests for a task. Their rows exist until a time (µs), by which the requests must be answered."""

    query: LogQuery
    conditions: Sequence[str]
    alive_us: Microseconds | None
    number: int

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Raises:
            StateError: some may have expired meanwhile.
        """
        with in_one_line():
            yield from self.query.rows_of_task(self.conditions, self.number)
            if self.alive_us is not None and Clock().now_us() > self.alive_us:
                name, late = self.query.schema.full_name, format_us(self.alive_us)
                raise _refusal([f"rows of {name} may have expired: they lived until {late}, and were read later"])


def _is_same(one: LogGap, other: LogGap) -> bool:
    return one.what == other.what and one.overlaps(other.since_us, other.until_us)


def _refusal(lost: Sequence[str]) -> StateError:
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return StateError(
        f"scylla_cdc: {lost[0]}{more}; to continue without them, restart the query with the option gaps ="
        f" {_REPORT}, or start over with another checkpoint"
    )


class _Reader(DataSourceReader):
    def __init__(self, query_options: _QueryOptions) -> None:
        self._query_options = query_options

    @in_one_line()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the windows up to now."""
        planner = _Planner(self._query_options, streams=False)
        try:
            read_until_us, first = planner.find_read_until_us(), planner.first_us()
            until = planner.readable_us(first, read_until_us)
            # Without a start time the query wants what exists, with or without gaps.
            whole = until if self._query_options.first_us is None else first
            return planner.partitions(first, until, whole) or [InputPartition(None)]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of some requests."""
        return _rows(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream's offsets are `{"until": µs, "origin": µs, "sets": [µs, ...]}`: all rows at or before `until` were read.

    `sets` are the starts of the generations or stream sets whose streams were read. A set that becomes readable after
    `until` has passed its start is read from its start in the next batch, but not from before `origin`, where the query
    began, and not for the times of `scanned` (`[[µs, µs], ...]`), since a scan reads the rows of all streams. `by` is
    the way to read the batch that ends here. Offsets of earlier releases have `until` alone: the sets that are known by
    then count as read.

    The first offset of a query without a start time also has `whole`: when the query began (µs). Rows written later
    than that must not be missing; earlier ones may be.
    """

    def __init__(self, query_options: _QueryOptions) -> None:
        self._query_options = query_options
        self._fixed_us: Microseconds | None = None

    def __getstate__(self) -> dict[str, object]:
        # Tasks get a copy, which uses its own connection.
        return {name: value for name, value in vars(self).items() if name != "_planner"}

    @cached_property
    def _planner(self) -> _Planner:
        return _Planner(self._query_options, streams=True)

    @in_one_line()
    def initialOffset(self) -> _Offset:
        """Return where a new query begins."""
        self._planner.find_read_until_us()
        first = self._planner.first_us()
        offset: _Offset = {"until": first, "origin": first, "sets": []}
        return offset if self._query_options.first_us is not None else {**offset, "whole": Clock().now_us()}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit: rows of a cluster cannot be counted before they are read."""
        return ReadAllAvailable()

    @in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the time up to which this run reads."""
        self._fixed_us = self._planner.find_read_until_us()

    @in_one_line()
    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the offset up to which can be read by now, or could when this run began."""
        read_until_us = self._planner.find_read_until_us() if self._fixed_us is None else self._fixed_us
        after = Microseconds(start["until"])
        until = max(after, self._planner.readable_us(after, read_until_us))
        sets = self._planner.readable_sets(until)
        if until == after and set(sets) <= set(start.get("sets", sets)):
            return start
        way = self._planner.way(after, until, sets)
        scanned = [(low, high) for low, high in start.get("scanned", ())]
        if way == RANGES:
            scanned += self._planner.scanned(after, until, sets)
        joined = [list(interval) for interval in _joined(scanned)]
        return {"until": until, "origin": start.get("origin", after), "sets": sets, "by": way, "scanned": joined}

    @in_one_line()
    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """Return the windows of a batch, the same on every call."""
        after, until = Microseconds(start["until"]), Microseconds(end["until"])
        whole = Microseconds(start.get("whole", after))
        return self._planner.partitions(after, until, whole, end.get("sets"), _missed(start, end), end.get("by"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of some requests."""
        return _rows(partition)

    def commit(self, end: _Offset) -> None:
        """Do nothing: Spark stores the checkpoint."""

    def stop(self) -> None:
        """Close the connection."""
        self._planner.close()


def _missed(start: _Offset, end: _Offset) -> list[Window]:
    """Return what a stream had passed at `start` of sets that it can read since, without what scans have read."""
    begins = sorted(end.get("sets", ()))
    read = set(start.get("sets", begins))
    windows: list[Window] = []
    for begin, following in zip_longest(begins, begins[1:]):
        if begin in read:
            continue
        after = max(begin - ONE_US, end["origin"])
        until = start["until"] if following is None else min(start["until"], following - ONE_US)
        for low, high in [*start.get("scanned", ()), (until, until)]:
            if after < min(low, until):
                windows.append(Window(0, Microseconds(begin), Microseconds(after), Microseconds(min(low, until))))
            after = max(after, high)
    return windows


def _joined(intervals: Iterable[_Interval]) -> list[_Interval]:
    """Return intervals in order, merging those that are adjacent or overlap."""
    merged: list[_Interval] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _rows(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    task: _Task | None = partition.value
    return iter(()) if task is None else task.rows()
