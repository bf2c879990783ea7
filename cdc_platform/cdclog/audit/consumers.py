"""Checks of what consumers have read: hourly copies, skipped stream sets, and completely read intervals.

A position alone proves nothing: rows can come late, a generation can be skipped, a log can lose rows. So the rows of
an interval are compared by key, log with sink, and sink with the sinks of other consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import gaps
from cdc_platform.cdclog.consumer.hourly import iter_row_keys, select_logs, time_filters
from cdc_platform.cdclog.consumer.progress import StreamProgress
from cdc_platform.cdclog.consumer.reader import BY_HOUR, FROM_CLUSTER, MAX_ROWS_IN_MEMORY, readable_until_us, sink_table
from cdc_platform.cdclog.consumer.skipped import describe_appeared_set, find_appeared_sets
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
    """Compare hours that are noted, all or this one (µs), with the log, key by key; nothing where none is noted.

    Counts hours of tables. A table that is no longer known is left out, and so are rows of a log that was dropped.
    """
    where: list[Filter] = [] if hour_us is None else [("hour", "=", datetime_from_us(hour_us))]
    noted: dict[str, dict[Microseconds, int]] = {}
    for row in lake.read(CONSUMED_HOURS, filters=where).to_pylist():
        hours = noted.setdefault(f"{row['keyspace_name']}.{row['table_name']}", {})
        hours[us_from_datetime(row["hour"])] = row["rows"]
    known = [schema for schema in select_logs(lake) if schema.full_name in noted]
    told = [each for schema in known for each in _hour_violations(lake, schema, noted[schema.full_name])]
    if not told:
        return []
    return [
        Finding(name, len(told), sum(map(bool, several)), next(filter(None, several), ""))
        for name, several in zip((HOURS_MATCH_LOG, HOURS_HOLD_ROWS_ONCE), zip(*told, strict=True), strict=True)
    ]


def _hour_violations(lake: Lake, schema: TableSchema, rows: dict[Microseconds, int]) -> Iterator[tuple[str, str]]:
    """What is wrong with each hour (start, µs, and its rows), in words; hours without a gap are looked at together."""
    hours = sorted(rows)
    while hours:
        together, count = 1, rows[hours[0]]
        while (
            together < len(hours) and hours[together] == hours[0] + HOUR_US * together and count <= MAX_ROWS_IN_MEMORY
        ):
            count += rows[hours[together]]
            together += 1
        if together > 1 and not any(_compare_hours(lake, schema, hours[0], together)):
            yield from [("", "")] * together
        else:
            yield from (_compare_hours(lake, schema, hour) for hour in hours[:together])
        hours = hours[together:]


def _without_skipped_sets(lake: Lake, schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Rows of a log without those of generations that the hours passed over, and that have no streams still."""
    noted = read_skipped_sets(lake).get((BY_HOUR, schema.keyspace, schema.name), [])
    if not noted:
        return rows
    when = np.asarray(rows[WRITTEN_AT].cast(pa.int64()))
    kept = np.ones(rows.num_rows, dtype=bool)
    for each in StreamSources(lake).of(schema.keyspace, schema.name).periods():
        if each.bare and each.begin_us in noted:
            kept &= (when < each.begin_us) | (False if each.end_us is None else when >= each.end_us)
    return rows.filter(pa.array(kept))


def _log_begin_us(lake: Lake, schema: TableSchema) -> Microseconds:
    name = (schema.keyspace, schema.name)
    changes = cdc_tables.read_table_changes(lake)
    return earliest_log_begin_us(change for change in changes if (change.keyspace_name, change.table_name) == name)


def _compare_hours(lake: Lake, schema: TableSchema, hour_us: Microseconds, hours: int = 1) -> tuple[str, str]:
    """What is wrong with hours that follow each other: rows that are not the log's, and rows that are there twice."""
    log, sink = log_table(schema), sink_table(schema, BY_HOUR)
    keys, inside = list(log.keys), time_filters(hour_us - ONE_US, hour_us + HOUR_US * hours - ONE_US)
    order = [(name, "ascending") for name in keys]
    wanted, found = (lake.read(table, [*keys, WRITTEN_AT], inside).sort_by(order) for table in (log, sink))
    wanted = _without_skipped_sets(lake, schema, wanted)
    if found.equals(wanted) and found.group_by(keys).aggregate([]).num_rows == found.num_rows:
        return "", ""
    # A row from before the log began was in the log of a table that was dropped.
    began = datetime_from_us(_log_begin_us(lake, schema))
    there = dict(zip(iter_row_keys(found), found[WRITTEN_AT].to_pylist(), strict=True))
    due = set(iter_row_keys(wanted))
    missing = len(due - there.keys())
    foreign = sum(key not in due and when >= began for key, when in there.items())
    twice = found.num_rows - len(there)
    head, mend = f"{schema.full_name}, the hour from {format_us(hour_us)}:", "materialise the hour again"
    rows = f"{missing} of {len(due)} rows of the log are not in {sink.full_name}, {foreign} others are"
    return (
        f"{head} {rows}; {mend}" if missing or foreign else "",
        f"{head} {twice} of {found.num_rows} rows of {sink.full_name} are there again; {mend}" if twice else "",
    )


def audit_skipped_sets(lake: Lake, schema: TableSchema | None = None) -> list[Finding]:
    """Look at every note of a consumer that is registered, or of those of one table; nothing where there is none."""
    noted = read_skipped_sets(lake)
    if not noted:
        return []
    sources = StreamSources(lake)
    count, found = 0, []
    for consumer in consumers.read_consumers(lake):
        if schema is not None and consumer.key[1:] != (schema.keyspace, schema.name):
            continue
        sets = noted.get(consumer.key, [])
        count += len(sets)
        later = find_appeared_sets(sources.of(consumer.keyspace_name, consumer.table_name), sets) if sets else []
        found += [describe_appeared_set(consumer.full_name, begin) for begin in later]
    return [Finding(PASSED_OVER_STAYS_EMPTY, count, len(found), found[0] if found else "")] if count else []


_BATCH_COLUMNS = ("cdc$stream_id", "cdc$time")
_KEY_COLUMNS = (*_BATCH_COLUMNS, "cdc$batch_seq_no")


@dataclass(frozen=True)
class CompletenessCheck:
    """One thing that has to hold, whether it does, and what was found."""

    what: str
    holds: bool
    found: str


def check_interval_read(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    consumer: Consumer,
    since_us: Microseconds,
    until_us: Microseconds,
    others: Sequence[Consumer] = (),
) -> list[CompletenessCheck]:
    """What has to hold for the rows with `since_us` <= timestamp < `until_us` (µs) to be read, and whether it does.

    `others` are readers of the same log, whose sinks are compared too: a batch that the log has lost as a whole, after
    one of them read it or before both did, is in one sink alone.

    Raises:
        InputError: the interval is none.
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
    """No row of it may be on its way still."""
    newest = readable_until_us(lake, schema, clock.now_us())
    return CompletenessCheck(
        "the interval is over", until_us - ONE_US <= newest, f"the log is whole up to {format_us(newest)}"
    )


def _check_position(consumer: Consumer, until_us: Microseconds) -> CompletenessCheck:
    told = f"{consumer.full_name} has read up to {format_us(consumer.position_us)}"
    return CompletenessCheck("it was reached", consumer.position_us >= until_us - ONE_US, told)


def _check_generations(
    source: StreamSource, periods: Sequence[StreamPeriod], since_us: Microseconds, until_us: Microseconds
) -> Iterator[CompletenessCheck]:
    """Every generation or set of it could be read: none is removed, hidden, or without some of its streams."""
    inside = [each for each in periods if each.begin_us < until_us and (each.end_us is None or each.end_us > since_us)]
    wrong = [f"{each.name} {why}" for each in inside if (why := _unreadable_reason(source, each))]
    told = f"{len(inside)} operate in it" + (f"; {'; '.join(wrong)}" if wrong else "")
    if not inside:
        told = "none operates in it, so that no row can be of it"
    elif inside[0].begin_us > since_us:
        told += f", the first from {format_us(inside[0].begin_us)} on"
    yield CompletenessCheck("its generations could be read", not wrong, told)


def _check_ingest(
    lake: Lake, schema: TableSchema, periods: Sequence[StreamPeriod], since_us: Microseconds, until_us: Microseconds
) -> Iterator[CompletenessCheck]:
    """Judge whether a log that comes from a live cluster was read by the streams of every set in the interval."""
    try:
        consumers.find_consumer(lake, FROM_CLUSTER, schema.keyspace, schema.name)
    except NotFound:
        return
    begins = [each.begin_us for each in periods if each.shown]
    progress = StreamProgress.of(lake, log_table(schema), FROM_CLUSTER, begins)
    last_us = Microseconds(until_us - ONE_US)
    wrong, count = list[str](), 0
    for each in periods:
        if each.begin_us > last_us or (each.end_us is not None and each.end_us <= since_us) or not each.shown:
            continue
        count += 1
        first = Microseconds(max(each.begin_us, since_us))
        needed = last_us if each.end_us is None else min(last_us, each.end_us - ONE_US)
        read = progress.read_us.get(each.begin_us)
        if progress.origin_us is None or read is None or progress.origin_us >= first or read < needed:
            wrong.append(f"{each.name} was read {_extent_text(progress.origin_us, read, each.begin_us)}")
    wrong += _omitted_sets(lake, schema, until_us)
    told = "; ".join(wrong) or f"{count} of {count} read from their starts on"
    yield CompletenessCheck("its streams were read from their starts", not wrong, told)


def _omitted_sets(lake: Lake, schema: TableSchema, until_us: Microseconds) -> Iterator[str]:
    """Yield each set that the cluster lists, that may begin before a time (µs), and that could not be read whole."""
    for (who, aspect), line in cluster_changes.read_cluster_state(lake).items():
        if aspect != cluster_changes.OMITTED_ASPECT:
            continue
        kind, _, name = who.partition(" ")
        begins = _start_us(name) if kind == "generation" else None
        if who == f"table {schema.full_name}" or (begins is not None and begins < until_us):
            yield f"the cluster lists what is left out here: {line}"


def _start_us(name: str) -> Microseconds | None:
    """Return the start (µs) of a generation that is called by its time; None for one that is called by its UUID."""
    try:
        return parse_time_us(name)
    except InputError:
        return None


def _extent_text(origin_us: Microseconds | None, read_us: Microseconds | None, begin_us: Microseconds) -> str:
    if origin_us is None:
        return "by an earlier release, which did not note how far: the next ingest reads what is still there once more"
    if read_us is None:
        return "not at all yet"
    return f"from {format_us(Microseconds(max(begin_us, origin_us + ONE_US)))} up to {format_us(read_us)}"


def _unreadable_reason(source: StreamSource, period: StreamPeriod) -> str | None:
    if period.removed:
        return "was removed"
    if not period.shown:
        return "was not shown to readers"
    if period.bare:
        return "has no streams: readers pass it over or wait"
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
    yield CompletenessCheck("the reader has each row once", not twice, f"{twice} rows are in {sink_of.full_name} again")


def _check_batches(log: pa.Table) -> CompletenessCheck:
    """Batches of which a part is there: numbered from 0 without a gap, and the last one says that it is the last."""
    batches = log.group_by(list(_BATCH_COLUMNS)).aggregate(
        [("cdc$batch_seq_no", "max"), ("cdc$batch_seq_no", "count_distinct")]
    )
    most, count = batches["cdc$batch_seq_no_max"], batches["cdc$batch_seq_no_count_distinct"]
    torn = sum(last + 1 != rows for last, rows in zip(most.to_pylist(), count.to_pylist(), strict=True))
    return CompletenessCheck(
        "its batches have all their rows", not torn, f"{torn} of {batches.num_rows} batches lack some"
    )


def _check_other_consumer(
    lake: Lake, schema: TableSchema, consumer: Consumer, other: Consumer, since_us: Microseconds, until_us: Microseconds
) -> CompletenessCheck:
    mine, theirs = (
        _read_keys(
            lake, log_table(schema) if each.name == FROM_CLUSTER else sink_table(schema, each.name), since_us, until_us
        )
        for each in (consumer, other)
    )
    lost = _rows_missing_from(theirs, mine)
    told = f"{lost.num_rows} of the {theirs.num_rows} rows of consumer {other.name} are not with {consumer.name}"
    return CompletenessCheck(
        f"all that {other.name} has read is there", not lost.num_rows, f"{told}{_batches_text(lost)}"
    )


def _check_logged_writes(
    lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds
) -> CompletenessCheck:
    """What no reader can have, because the log was never told of it."""
    lacking = [
        each
        for each in gaps.find_table_gaps(schema, cdc_tables.read_table_changes(lake))
        if (each.since_us is None or each.since_us < until_us) and (each.until_us is None or each.until_us > since_us)
    ]
    writes = any(each.loses_writes for each in lacking)
    return CompletenessCheck(
        "the log was told of all writes", not writes, "; ".join(map(str, lacking)) or "nothing is missing in it"
    )


def _check_gaps(lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds) -> CompletenessCheck:
    """No row of it was lost between a live cluster and the log here, accepted or not."""
    found = [gap for gap in gaps.read_log_gaps(lake, [schema.full_name]) if gap.reader == FROM_CLUSTER]
    inside = [gap for gap in found if gap.overlaps(since_us, until_us)]
    return CompletenessCheck("no gap was recorded in it", not inside, "; ".join(map(str, inside)) or "none")


def _check_skipped_sets(
    lake: Lake, source: StreamSource, consumer: Consumer, since_us: Microseconds, until_us: Microseconds
) -> CompletenessCheck:
    """Every generation that was passed over for want of streams has none still, for the reader and for `ingest`."""
    noted = read_skipped_sets(lake)
    keys = {consumer.key, (FROM_CLUSTER, *consumer.key[1:])}
    later = find_appeared_sets(source, sorted({begin for key in keys for begin in noted.get(key, ())}))
    ends = {each.begin_us: each.end_us for each in source.periods()}
    inside = [each for each in later if each < until_us and ((end := ends.get(each)) is None or end > since_us)]
    told = "; ".join(f"the generation of {format_us(each)} had no streams, and has some now" for each in inside)
    return CompletenessCheck("no generation in it was passed over", not inside, told or "none")


def _read_keys(lake: Lake, table: Table, since_us: Microseconds, until_us: Microseconds) -> pa.Table:
    """What names the rows of an interval, and when they were written; of a table that is not there none."""
    inside = time_filters(Microseconds(since_us - ONE_US), Microseconds(until_us - ONE_US))
    return lake.read(table, [*table.keys, WRITTEN_AT], inside)


def _rows_missing_from(rows: pa.Table, others: pa.Table) -> pa.Table:
    return rows.join(others.select(_KEY_COLUMNS), keys=list(_KEY_COLUMNS), join_type="left anti")


def _batches_text(rows: pa.Table) -> str:
    """The batches of rows, counted, and when the first of them was written."""
    if not rows.num_rows:
        return ""
    count = rows.group_by(list(_BATCH_COLUMNS)).aggregate([]).num_rows
    return f": {count} batches, the first of {format_us(us_from_datetime(min(rows[WRITTEN_AT].to_pylist())))}"
