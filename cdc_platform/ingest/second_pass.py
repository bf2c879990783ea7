"""Windows read a second time, for the rows that were not visible when they were read first.

A write may carry an old timestamp, and a hint or a batch may be late: such rows come behind the confidence window. What
is found is merged by the log's key, so that nothing is doubled, and counted in the same commit.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.errors import ConflictError
from cdc_platform.ingest.policy import Lifetimes, ReadPolicy
from cdc_platform.log.reading.following import TooManyRows
from cdc_platform.log.reading.reader import without_known
from cdc_platform.log.reading.sets import sets_of
from cdc_platform.log.reading.windows import next_window
from cdc_platform.records.consumers import Consumer
from cdc_platform.timeline import StreamSources

if TYPE_CHECKING:
    from cdc_platform.ingest.ingest import ClusterLogSource

AGAIN, LATE = "ingest:again", "ingest:late"
"""The applications under which the log's table notes how far (µs) it was read a second time, and all late rows."""


def is_due(position_us: Microseconds, pace: ReadPolicy, lives: Lifetimes, clock: Clock) -> bool:
    """Whether what was written at a time (µs) is so old that its window is read a second time."""
    after = pace.again_after(lives.least_us)
    return bool(after) and position_us < clock.now_us() - after


def read_again(copier: ClusterLogSource, consumer: Consumer, pace: ReadPolicy, lives: Lifetimes) -> Microseconds | None:
    """Read what is due a second time; answers with how far (µs) that has come, None where nothing was ever due.

    Raises:
        ConflictError: another process reads the same windows again.
    """
    lake, schema, clock = copier.lake, copier.schema, copier.clock
    before = lake.transaction(copier.sink, AGAIN)
    after, now = pace.again_after(lives.least_us), clock.now_us()
    if not after or not lake.exists(copier.sink):
        return None if before is None else Microseconds(before)
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    sets = sets_of(source, now)
    begun = lives.first_us(sets, now)
    until = min(consumer.position_us, Microseconds(now - after))
    place = Microseconds(max(begun, before) if before is not None else begun)
    if until - place < max(1, pace.again_every(lives.least_us)):
        return None if before is None else Microseconds(before)
    number = 0
    while True:
        window = next_window(sets, place, number, until, longest_us=copier.longest_us(place))
        if window is None:
            return place
        started = time.monotonic()
        came, late = None, copier.sink.schema.empty_table()
        if not window.passed:
            try:
                came = copier.read_again(source, window, until)
            except TooManyRows:
                continue
            late = without_known(lake, copier.sink, came.rows, window)
        total = (lake.transaction(copier.sink, LATE) or 0) + late.num_rows
        marks = {AGAIN: window.until_us, LATE: total}
        if copier.append(late, marks, before) is None:
            raise ConflictError(f"another process reads windows of {schema.full_name} again; stop one of them")
        copier.note(window, came, late.num_rows, started, late.num_rows)
        before, place, number = window.until_us, window.until_us, window.number
