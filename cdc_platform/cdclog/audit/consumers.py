"""Check what consumers have read: hourly copies, skipped stream sets, and completely read intervals.

A position alone proves nothing: rows can arrive late, a generation can be skipped, a log can lose rows. These checks
compare the rows of an interval by key, the log with a sink and the sink with the sinks of other consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import gaps
from cdc_platform.cdclog.changes import LoggedImages, changes_from_log
from cdc_platform.cdclog.consumer.change_sink import has_changes
from cdc_platform.cdclog.consumer.hourly import iter_row_keys, select_logs
from cdc_platform.cdclog.consumer.progress import StreamProgress
from cdc_platform.cdclog.consumer.reader import (
    BY_HOUR,
    FROM_CLUSTER,
    MAX_ROWS_IN_MEMORY,
    read_between,
    readable_until_us,
    sink_table,
)
from cdc_platform.cdclog.consumer.skipped import describe_appeared_set, find_appeared_sets
from cdc_platform.cdclog.log_rows import read_row_keys
from cdc_platform.cdclog.schema import WRITTEN_AT, log_table
from cdc_platform.checks import HOURS_HOLD_ROWS_ONCE, HOURS_MATCH_LOG, PASSED_OVER_STAYS_EMPTY, Finding
from cdc_platform.clock import (
    HOUR_US,
    ONE_US,
    Clock,
    Microseconds,
    datetime_from_us,
    format_us,
    parse_time_us,
    us_from_datetime,
)
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Filter, Lake
from cdc_platform.errors import InputError, NotFound
from cdc_platform.metastore import (
    Consumer,
    cdc_tables,
    cluster_changes,
    consumers,
    earliest_log_begin_us,
    read_skipped_sets,
)
from cdc_platform.tables import CONSUMED_HOURS, Table
from cdc_platform.timeline import StreamPeriod, StreamSource, StreamSources


def audit_hours(lake: Lake, hour_us: Microseconds | None = None) -> list[Finding]:
    """Compare all recorded hours, or one (µs), with the log, key by key; return [] if none is recorded.

    The population of a finding is the number of table hours. Tables that are no longer registered and rows of a dropped
    log are ignored.
    """
    where: list[Filter] = [] if hour_us is None else [("hour", "=", datetime_from_us(hour_us))]
    recorded: dict[str, dict[Microseconds, int]] = {}
    for row in lake.read(CONSUMED_HOURS, filters=where).to_pylist():
        hours = recorded.setdefault(f"{row['keyspace_name']}.{row['table_name']}", {})
        hours[us_from_datetime(row["hour"])] = row["rows"]
    known = [schema for schema in select_logs(lake) if schema.full_name in recorded]
    results = [
        violations for schema in known for violations in _hour_violations(lake, schema, recorded[schema.full_name])
    ]
    if not results:
        return []
    return [
        Finding(name, len(results), sum(map(bool, messages)), next(filter(None, messages), ""))
        for name, messages in zip((HOURS_MATCH_LOG, HOURS_HOLD_ROWS_ONCE), zip(*results, strict=True), strict=True)
    ]


def _hour_violations(lake: Lake, schema: TableSchema, rows: dict[Microseconds, int]) -> Iterator[tuple[str, str]]:
    """Yield the two messages of each hour (`rows` maps its start, µs, to its rows); "" is no violation.

    Consecutive hours without a gap are compared together, up to about `MAX_ROWS_IN_MEMORY` rows.
    """
    hours = sorted(rows)
    while hours:
        span, count = 1, rows[hours[0]]
        while span < len(hours) and hours[span] == hours[0] + HOUR_US * span and count <= MAX_ROWS_IN_MEMORY:
            count += rows[hours[span]]
            span += 1
        if span > 1 and not any(_compare_hours(lake, schema, hours[0], span)):
            yield from [("", "")] * span
        else:
            yield from (_compare_hours(lake, schema, hour) for hour in hours[:span])
        hours = hours[span:]


def _without_skipped_sets(lake: Lake, schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Return a log's rows except those of generations that hourly copies skipped and that still have no streams."""
    recorded = read_skipped_sets(lake).get((BY_HOUR, schema.keyspace, schema.name), [])
    if not recorded:
        return rows
    written_us = np.asarray(rows[WRITTEN_AT].cast(pa.int64()))
    mask = np.ones(rows.num_rows, dtype=bool)
    for period in StreamSources(lake).of(schema.keyspace, schema.name).periods():
        if period.empty and period.begin_us in recorded:
            mask &= (written_us < period.begin_us) | (False if period.end_us is None else written_us >= period.end_us)
    return rows.filter(pa.array(mask))


def _log_begin_us(lake: Lake, schema: TableSchema) -> Microseconds:
    name = (schema.keyspace, schema.name)
    changes = cdc_tables.read_table_changes(lake)
    return earliest_log_begin_us(change for change in changes if (change.keyspace_name, change.table_name) == name)


def _compare_hours(lake: Lake, schema: TableSchema, hour_us: Microseconds, hours: int = 1) -> tuple[str, str]:
    """Compare consecutive hours of a sink with the log; return two messages, each "" if there is no violation.

    The first reports missing and foreign rows, the second duplicates.
    """
    log, sink = log_table(schema), sink_table(schema, BY_HOUR)
    keys, until_us = list(log.keys), Microseconds(hour_us + HOUR_US * hours)
    order = [(name, "ascending") for name in keys]
    expected, stored = (_read_keys(lake, table, hour_us, until_us).sort_by(order) for table in (log, sink))
    expected = _without_skipped_sets(lake, schema, expected)
    if stored.equals(expected) and stored.group_by(keys).aggregate([]).num_rows == stored.num_rows:
        return "", ""
    # A row older than the log comes from the log of a dropped table.
    began_at = datetime_from_us(_log_begin_us(lake, schema))
    stored_times = dict(zip(iter_row_keys(stored), stored[WRITTEN_AT].to_pylist(), strict=True))
    expected_keys = set(iter_row_keys(expected))
    missing = len(expected_keys - stored_times.keys())
    foreign = sum(key not in expected_keys and written >= began_at for key, written in stored_times.items())
    twice = stored.num_rows - len(stored_times)
    head, remedy = f"{schema.full_name}, the hour from {format_us(hour_us)}:", "materialise the hour again"
    rows = f"{missing} of {len(expected_keys)} rows of the log are not in {sink.full_name}, {foreign} others are"
    return (
        f"{head} {rows}; {remedy}" if missing or foreign else "",
        f"{head} {twice} of {stored.num_rows} rows of {sink.full_name} are duplicates; {remedy}" if twice else "",
    )


def audit_skipped_sets(lake: Lake, schema: TableSchema | None = None) -> list[Finding]:
    """Check each recorded skip of a registered consumer, or those of one table; return [] if there is none."""
    recorded = read_skipped_sets(lake)
    if not recorded:
        return []
    sources = StreamSources(lake)
    count, messages = 0, []
    for consumer in consumers.read_consumers(lake):
        if schema is not None and consumer.key[1:] != (schema.keyspace, schema.name):
            continue
        sets = recorded.get(consumer.key, [])
        count += len(sets)
        appeared = find_appeared_sets(sources.of(consumer.keyspace_name, consumer.table_name), sets) if sets else []
        messages += [describe_appeared_set(consumer.full_name, begin) for begin in appeared]
    return [Finding(PASSED_OVER_STAYS_EMPTY, count, len(messages), messages[0] if messages else "")] if count else []


_BATCH_COLUMNS = ("cdc$stream_id", "cdc$time")
_KEY_COLUMNS = (*_BATCH_COLUMNS, "cdc$batch_seq_no")


@dataclass(frozen=True)
class CompletenessCheck:
    """A condition, whether it holds, and the details."""

    what: str
    holds: bool
    details: str


def check_interval_read(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    consumer: Consumer,
    since_us: Microseconds,
    until_us: Microseconds,
    others: Sequence[Consumer] = (),
) -> list[CompletenessCheck]:
    """Check that a consumer has read all rows with `since_us` <= timestamp < `until_us` (µs).

    `others` are consumers of the same log. Their sinks are compared too, because only one sink has a batch that the log
    lost as a whole after one consumer, or before both, read it.

    Raises:
        InputError: `since_us` is not before `until_us`.
    """
    if since_us >= until_us:
        raise InputError(f"{format_us(since_us)} is not before {format_us(until_us)}; an interval needs both, in order")
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    return [
        _check_interval_over(lake, clock, schema, until_us),
        _check_position(consumer, until_us),
        *_check_generations(source, source.periods(), since_us, until_us),
        *_check_ingest(lake, schema, source.periods(), since_us, until_us),
        *_check_rows(lake, schema, consumer, since_us, until_us),
        *(_check_other_consumer(lake, schema, consumer, other, since_us, until_us) for other in others),
        _check_logged_writes(lake, schema, since_us, until_us),
        _check_gaps(lake, schema, since_us, until_us),
        _check_skipped_sets(lake, source, consumer, since_us, until_us),
    ]


def _check_interval_over(lake: Lake, clock: Clock, schema: TableSchema, until_us: Microseconds) -> CompletenessCheck:
    """Check that no row of the interval can still arrive."""
    newest = readable_until_us(lake, schema, clock.now_us())
    return CompletenessCheck(
        "the interval is over", until_us - ONE_US <= newest, f"the log is whole up to {format_us(newest)}"
    )


def _check_position(consumer: Consumer, until_us: Microseconds) -> CompletenessCheck:
    detail = f"{consumer.full_name} has read up to {format_us(consumer.position_us)}"
    return CompletenessCheck("it was reached", consumer.position_us >= until_us - ONE_US, detail)


def _check_generations(
    source: StreamSource, periods: Sequence[StreamPeriod], since_us: Microseconds, until_us: Microseconds
) -> Iterator[CompletenessCheck]:
    """Check that every generation or stream set of the interval was readable.

    None may be removed, hidden from readers, or incomplete.
    """
    inside = [
        period
        for period in periods
        if period.begin_us < until_us and (period.end_us is None or period.end_us > since_us)
    ]
    wrong = [f"{period.name} {why}" for period in inside if (why := _unreadable_reason(source, period))]
    detail = f"{len(inside)} operate in it" + (f"; {'; '.join(wrong)}" if wrong else "")
    if not inside:
        detail = "none operates in it, so that no row can be of it"
    elif inside[0].begin_us > since_us:
        detail += f", the first from {format_us(inside[0].begin_us)} on"
    yield CompletenessCheck("its generations could be read", not wrong, detail)


def _check_ingest(
    lake: Lake, schema: TableSchema, periods: Sequence[StreamPeriod], since_us: Microseconds, until_us: Microseconds
) -> Iterator[CompletenessCheck]:
    """Check that ingest read every stream set of the interval if the log comes from a live cluster."""
    try:
        consumers.find_consumer(lake, FROM_CLUSTER, schema.keyspace, schema.name)
    except NotFound:
        return
    begins = [period.begin_us for period in periods if period.published]
    progress = StreamProgress.of(lake, log_table(schema), FROM_CLUSTER, begins)
    last_us = Microseconds(until_us - ONE_US)
    wrong, count = list[str](), 0
    for period in periods:
        if (
            period.begin_us > last_us
            or (period.end_us is not None and period.end_us <= since_us)
            or not period.published
        ):
            continue
        count += 1
        first_us = Microseconds(max(period.begin_us, since_us))
        required_us = last_us if period.end_us is None else min(last_us, period.end_us - ONE_US)
        read = progress.read_us.get(period.begin_us)
        if progress.origin_us is None or read is None or progress.origin_us >= first_us or read < required_us:
            wrong.append(f"{period.name} was read {_extent_text(progress.origin_us, read, period.begin_us)}")
    wrong += _omitted_sets(lake, schema, until_us)
    detail = "; ".join(wrong) or f"{count} of {count} read from their starts on"
    yield CompletenessCheck("its streams were read from their starts", not wrong, detail)


def _omitted_sets(lake: Lake, schema: TableSchema, until_us: Microseconds) -> Iterator[str]:
    """Yield each set that the cluster lists, that may begin before a time (µs), and that was not read in full."""
    for (subject, aspect), line in cluster_changes.read_cluster_state(lake).items():
        if aspect != cluster_changes.OMITTED_ASPECT:
            continue
        kind, _, name = subject.partition(" ")
        begins = _start_us(name) if kind == "generation" else None
        if subject == f"table {schema.full_name}" or (begins is not None and begins < until_us):
            yield f"the cluster lists what is left out here: {line}"


def _start_us(name: str) -> Microseconds | None:
    """Return the start (µs) of a generation named by its time; return None for one named by its UUID."""
    try:
        return parse_time_us(name)
    except InputError:
        return None


def _extent_text(origin_us: Microseconds | None, read_us: Microseconds | None, begin_us: Microseconds) -> str:
    if origin_us is None:
        return "by an earlier release, which did not note how far: the next ingest reads the remaining rows once more"
    if read_us is None:
        return "not at all yet"
    return f"from {format_us(Microseconds(max(begin_us, origin_us + ONE_US)))} up to {format_us(read_us)}"


def _unreadable_reason(source: StreamSource, period: StreamPeriod) -> str | None:
    if period.removed:
        return "was removed"
    if not period.published:
        return "was not shown to readers"
    if period.empty:
        return "has no streams: readers skip it or wait"
    return None if source.is_complete(period.begin_us) else "lacks some of its streams"


def _check_rows(
    lake: Lake, schema: TableSchema, consumer: Consumer, since_us: Microseconds, until_us: Microseconds
) -> Iterator[CompletenessCheck]:
    log = _read_keys(lake, log_table(schema), since_us, until_us)
    yield _check_batches(log)
    if consumer.name == FROM_CLUSTER:
        return
    sink_of = sink_table(schema, consumer.name)
    sink = _read_keys(lake, sink_of, since_us, until_us)
    if has_changes(lake, sink_of):
        try:
            log = _change_keys(lake, schema, since_us, until_us)
        except InputError as error:
            yield CompletenessCheck("the reader has the log's rows", False, str(error))
            return
    missing, foreign = _rows_missing_from(log, sink), _rows_missing_from(sink, log)
    yield CompletenessCheck(
        "the reader has the log's rows",
        not missing.num_rows,
        f"{log.num_rows - missing.num_rows} of {log.num_rows} rows are in {sink_of.full_name}{_batches_text(missing)}",
    )
    yield CompletenessCheck(
        "the log has the reader's rows",
        not foreign.num_rows,
        f"{foreign.num_rows} rows are in {sink_of.full_name} alone{_batches_text(foreign)}",
    )
    twice = sink.num_rows - sink.group_by(list(_KEY_COLUMNS)).aggregate([]).num_rows
    yield CompletenessCheck(
        "the reader has each row once", not twice, f"{twice} rows of {sink_of.full_name} are duplicates"
    )


def _change_keys(lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds) -> pa.Table:
    """Return the keys and times of the changes that the log has in an interval.

    Raises:
        InputError: a batch of the log is incomplete.
    """
    rows = read_between(lake, schema, Microseconds(since_us - ONE_US), Microseconds(until_us - ONE_US))
    return changes_from_log(schema, rows, LoggedImages(None, None, None)).select([*_KEY_COLUMNS, WRITTEN_AT])


def _check_batches(log: pa.Table) -> CompletenessCheck:
    """Check that batch sequence numbers run from 0 without a gap."""
    batches = log.group_by(list(_BATCH_COLUMNS)).aggregate(
        [("cdc$batch_seq_no", "max"), ("cdc$batch_seq_no", "count_distinct")]
    )
    highest, count = batches["cdc$batch_seq_no_max"], batches["cdc$batch_seq_no_count_distinct"]
    incomplete = sum(last + 1 != rows for last, rows in zip(highest.to_pylist(), count.to_pylist(), strict=True))
    return CompletenessCheck(
        "its batches have all their rows", not incomplete, f"{incomplete} of {batches.num_rows} batches lack rows"
    )


def _check_other_consumer(
    lake: Lake, schema: TableSchema, consumer: Consumer, other: Consumer, since_us: Microseconds, until_us: Microseconds
) -> CompletenessCheck:
    own_rows, other_rows = (
        _read_keys(
            lake,
            log_table(schema) if reader.name == FROM_CLUSTER else sink_table(schema, reader.name),
            since_us,
            until_us,
        )
        for reader in (consumer, other)
    )
    # Changes and log rows have different keys within a write.
    forms = {bool(has_changes(lake, sink_table(schema, reader.name))) for reader in (consumer, other)}
    lost = _rows_missing_from(other_rows, own_rows, _KEY_COLUMNS if len(forms) == 1 else _BATCH_COLUMNS)
    detail = f"{lost.num_rows} of the {other_rows.num_rows} rows of consumer {other.name} are not with {consumer.name}"
    return CompletenessCheck(
        f"it has all that {other.name} has read", not lost.num_rows, f"{detail}{_batches_text(lost)}"
    )


def _check_logged_writes(
    lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds
) -> CompletenessCheck:
    """Check that the log was enabled for all writes of the interval; otherwise no reader can have them."""
    missing = [
        gap
        for gap in gaps.find_table_gaps(schema, cdc_tables.read_table_changes(lake))
        if (gap.since_us is None or gap.since_us < until_us) and (gap.until_us is None or gap.until_us > since_us)
    ]
    writes = any(gap.loses_writes for gap in missing)
    return CompletenessCheck(
        "the log was enabled for all writes", not writes, "; ".join(map(str, missing)) or "nothing is missing in it"
    )


def _check_gaps(lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds) -> CompletenessCheck:
    """Check that no gap between a live cluster and the log was recorded in the interval, accepted or not."""
    recorded = [gap for gap in gaps.read_log_gaps(lake, [schema.full_name]) if gap.reader == FROM_CLUSTER]
    inside = [gap for gap in recorded if gap.overlaps(since_us, until_us)]
    return CompletenessCheck("no gap was recorded in it", not inside, "; ".join(map(str, inside)) or "none")


def _check_skipped_sets(
    lake: Lake, source: StreamSource, consumer: Consumer, since_us: Microseconds, until_us: Microseconds
) -> CompletenessCheck:
    """Check that no generation that the consumer or `ingest` skipped for lack of streams has streams now."""
    recorded = read_skipped_sets(lake)
    keys = {consumer.key, (FROM_CLUSTER, *consumer.key[1:])}
    appeared = find_appeared_sets(source, sorted({begin for key in keys for begin in recorded.get(key, ())}))
    ends = {begin_us.begin_us: begin_us.end_us for begin_us in source.periods()}
    inside = [
        begin_us
        for begin_us in appeared
        if begin_us < until_us and ((end := ends.get(begin_us)) is None or end > since_us)
    ]
    detail = "; ".join(
        f"the generation of {format_us(begin_us)} had no streams, and has streams now" for begin_us in inside
    )
    return CompletenessCheck("no generation in it was skipped", not inside, detail or "none")


def _read_keys(lake: Lake, table: Table, since_us: Microseconds, until_us: Microseconds) -> pa.Table:
    """Read the keys and times of an interval's rows; return an empty table if the table does not exist."""
    return read_row_keys(lake, table, Microseconds(since_us - ONE_US), Microseconds(until_us - ONE_US))


def _rows_missing_from(rows: pa.Table, others: pa.Table, keys: Sequence[str] = _KEY_COLUMNS) -> pa.Table:
    return rows.join(others.select(keys), keys=list(keys), join_type="left anti")


def _batches_text(rows: pa.Table) -> str:
    """Format the number of batches and the time of the first one."""
    if not rows.num_rows:
        return ""
    count = rows.group_by(list(_BATCH_COLUMNS)).aggregate([]).num_rows
    return f": {count} batches, the first of {format_us(us_from_datetime(min(rows[WRITTEN_AT].to_pylist())))}"
