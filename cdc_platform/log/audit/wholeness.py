"""Whether an interval of a log was read whole by a consumer: what has to hold for that, judged one by one.

A position alone proves nothing: rows can come late, a generation can have been passed over, a log can lose rows. So the
rows of the interval are compared, log against sink, and sink against the sink of a second reader, key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import ONE_US, Clock, Microseconds, format_us, from_datetime, parse_time_us
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import InputError, NotFound
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.log import gaps
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.hourly import within
from cdc_platform.log.reading.left_out import came_later
from cdc_platform.log.reading.reader import FROM_CLUSTER, newest_us, sink_table
from cdc_platform.log.reading.stream_progress import StreamProgress
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.records import cdc_tables, cluster_changes, consumers
from cdc_platform.records.consumers import Consumer
from cdc_platform.records.passed_over import passed_over
from cdc_platform.timeline import StreamSource, StreamSources
from cdc_platform.timeline.periods import Period

_BATCH = ("cdc$stream_id", "cdc$time")
_KEYS = (*_BATCH, "cdc$batch_seq_no")


@dataclass(frozen=True)
class Held:
    """One thing that has to hold, whether it does, and what was found."""

    what: str
    holds: bool
    found: str


def judge(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    consumer: Consumer,
    since_us: Microseconds,
    until_us: Microseconds,
    others: Sequence[Consumer] = (),
) -> list[Held]:
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
        _over(lake, clock, schema, until_us),
        _reached(consumer, until_us),
        *_generations(source, source.periods(), since_us, until_us),
        *_brought_in(lake, schema, source.periods(), since_us, until_us),
        *_rows(lake, schema, consumer, since_us, until_us),
        *(_beside(lake, schema, consumer, other, since_us, until_us) for other in others),
        _logged(lake, schema, since_us, until_us),
        _without_gaps(lake, schema, since_us, until_us),
        _read_after_all(lake, source, consumer, since_us, until_us),
    ]


def _over(lake: Lake, clock: Clock, schema: TableSchema, until_us: Microseconds) -> Held:
    """No row of it may be on its way still."""
    newest = newest_us(lake, schema, clock.now_us())
    return Held("the interval is over", until_us - ONE_US <= newest, f"the log is whole up to {format_us(newest)}")


def _reached(consumer: Consumer, until_us: Microseconds) -> Held:
    told = f"{consumer.full_name} has read up to {format_us(consumer.position_us)}"
    return Held("it was reached", consumer.position_us >= until_us - ONE_US, told)


def _generations(
    source: StreamSource, periods: Sequence[Period], since_us: Microseconds, until_us: Microseconds
) -> Iterator[Held]:
    """Every generation or set of it could be read: none is removed, hidden, or without some of its streams."""
    inside = [each for each in periods if each.begin_us < until_us and (each.end_us is None or each.end_us > since_us)]
    wrong = [f"{each.name} {why}" for each in inside if (why := _unreadable(source, each))]
    told = f"{len(inside)} operate in it" + (f"; {'; '.join(wrong)}" if wrong else "")
    if not inside:
        told = "none operates in it, so that no row can be of it"
    elif inside[0].begin_us > since_us:
        told += f", the first from {format_us(inside[0].begin_us)} on"
    yield Held("its generations could be read", not wrong, told)


def _brought_in(
    lake: Lake, schema: TableSchema, periods: Sequence[Period], since_us: Microseconds, until_us: Microseconds
) -> Iterator[Held]:
    """Judge whether a log that comes from a live cluster was read by the streams of every set in the interval."""
    try:
        consumers.find(lake, FROM_CLUSTER, schema.keyspace, schema.name)
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
            wrong.append(f"{each.name} was read {_extent(progress.origin_us, read, each.begin_us)}")
    wrong += _left_out(lake, schema, until_us)
    told = "; ".join(wrong) or f"{count} of {count} read from their starts on"
    yield Held("its streams were read from their starts", not wrong, told)


def _left_out(lake: Lake, schema: TableSchema, until_us: Microseconds) -> Iterator[str]:
    """Yield each set that the cluster lists, that may begin before a time (µs), and that could not be read whole."""
    for (who, aspect), line in cluster_changes.standing(lake).items():
        if aspect != cluster_changes.LEFT_OUT:
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


def _extent(origin_us: Microseconds | None, read_us: Microseconds | None, begin_us: Microseconds) -> str:
    if origin_us is None:
        return "by an earlier release, which did not note how far: the next ingest reads what is still there once more"
    if read_us is None:
        return "not at all yet"
    return f"from {format_us(Microseconds(max(begin_us, origin_us + ONE_US)))} up to {format_us(read_us)}"


def _unreadable(source: StreamSource, period: Period) -> str | None:
    if period.removed:
        return "was removed"
    if not period.shown:
        return "was not shown to readers"
    if period.bare:
        return "has no streams: readers pass it over or wait"
    return None if source.is_complete(period.begin_us) else "lacks some of its streams"


def _rows(
    lake: Lake, schema: TableSchema, consumer: Consumer, since_us: Microseconds, until_us: Microseconds
) -> Iterator[Held]:
    log = _keys(lake, log_table(schema), since_us, until_us)
    yield _batches(log)
    if consumer.name == FROM_CLUSTER:
        return
    sink_of = sink_table(schema, consumer.name)
    sink = _keys(lake, sink_of, since_us, until_us)
    missing, foreign = _without(log, sink), _without(sink, log)
    yield Held(
        "the reader has the log's rows",
        not missing.num_rows,
        f"{log.num_rows - missing.num_rows} of {log.num_rows} rows are in {sink_of.full_name}{_named(missing)}",
    )
    yield Held(
        "the log has the reader's rows",
        not foreign.num_rows,
        f"{foreign.num_rows} rows are in {sink_of.full_name} alone{_named(foreign)}",
    )
    twice = sink.num_rows - sink.group_by(list(_KEYS)).aggregate([]).num_rows
    yield Held("the reader has each row once", not twice, f"{twice} rows are in {sink_of.full_name} again")


def _batches(log: pa.Table) -> Held:
    """Batches of which a part is there: numbered from 0 without a gap, and the last one says that it is the last."""
    batches = log.group_by(list(_BATCH)).aggregate(
        [("cdc$batch_seq_no", "max"), ("cdc$batch_seq_no", "count_distinct")]
    )
    most, count = batches["cdc$batch_seq_no_max"], batches["cdc$batch_seq_no_count_distinct"]
    torn = sum(last + 1 != rows for last, rows in zip(most.to_pylist(), count.to_pylist(), strict=True))
    return Held("its batches have all their rows", not torn, f"{torn} of {batches.num_rows} batches lack some")


def _beside(
    lake: Lake, schema: TableSchema, consumer: Consumer, other: Consumer, since_us: Microseconds, until_us: Microseconds
) -> Held:
    mine, theirs = (
        _keys(
            lake, log_table(schema) if each.name == FROM_CLUSTER else sink_table(schema, each.name), since_us, until_us
        )
        for each in (consumer, other)
    )
    lost = _without(theirs, mine)
    told = f"{lost.num_rows} of the {theirs.num_rows} rows of consumer {other.name} are not with {consumer.name}"
    return Held(f"all that {other.name} has read is there", not lost.num_rows, f"{told}{_named(lost)}")


def _logged(lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds) -> Held:
    """What no reader can have, because the log was never told of it."""
    lacking = [
        each
        for each in gaps.lacking(schema, cdc_tables.changes(lake))
        if (each.since_us is None or each.since_us < until_us) and (each.until_us is None or each.until_us > since_us)
    ]
    writes = any(each.loses_writes for each in lacking)
    return Held(
        "the log was told of all writes", not writes, "; ".join(map(str, lacking)) or "nothing is missing in it"
    )


def _without_gaps(lake: Lake, schema: TableSchema, since_us: Microseconds, until_us: Microseconds) -> Held:
    """No row of it was lost between a live cluster and the log here, accepted or not."""
    found = [gap for gap in gaps.log_gaps_of(lake, [schema.full_name]) if gap.reader == FROM_CLUSTER]
    inside = [gap for gap in found if gap.overlaps(since_us, until_us)]
    return Held("no gap was recorded in it", not inside, "; ".join(map(str, inside)) or "none")


def _read_after_all(
    lake: Lake, source: StreamSource, consumer: Consumer, since_us: Microseconds, until_us: Microseconds
) -> Held:
    """Every generation that was passed over for want of streams has none still, for the reader and for `ingest`."""
    noted = passed_over(lake)
    keys = {consumer.key, (FROM_CLUSTER, *consumer.key[1:])}
    later = came_later(source, sorted({begin for key in keys for begin in noted.get(key, ())}))
    ends = {each.begin_us: each.end_us for each in source.periods()}
    inside = [each for each in later if each < until_us and ((end := ends.get(each)) is None or end > since_us)]
    told = "; ".join(f"the generation of {format_us(each)} had no streams, and has some now" for each in inside)
    return Held("no generation in it was passed over", not inside, told or "none")


def _keys(lake: Lake, table: Table, since_us: Microseconds, until_us: Microseconds) -> pa.Table:
    """What names the rows of an interval, and when they were written; of a table that is not there none."""
    inside = within(Microseconds(since_us - ONE_US), Microseconds(until_us - ONE_US))
    return lake.read(table, [*table.keys, WRITTEN_AT], inside)


def _without(rows: pa.Table, others: pa.Table) -> pa.Table:
    return rows.join(others.select(_KEYS), keys=list(_KEYS), join_type="left anti")


def _named(rows: pa.Table) -> str:
    """The batches of rows, counted, and when the first of them was written."""
    if not rows.num_rows:
        return ""
    count = rows.group_by(list(_BATCH)).aggregate([]).num_rows
    return f": {count} batches, the first of {format_us(from_datetime(min(rows[WRITTEN_AT].to_pylist())))}"
