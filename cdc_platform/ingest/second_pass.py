"""Read windows a second time, for the rows that were not visible when the first pass read them.

A write may carry an old timestamp, and a hint or a batch may be late: such rows appear behind the confidence window.
The pass adds them by the log's key, so that nothing is doubled, and counts them in the same commit.
"""

from __future__ import annotations

from cdc_platform.cdclog import next_window, reader_sets_from_source
from cdc_platform.clock import Microseconds
from cdc_platform.delta import Lake
from cdc_platform.errors import ConflictError
from cdc_platform.ingest.cluster_log import ClusterLogSource, ReadWindow
from cdc_platform.ingest.marks import AGAIN, LATE
from cdc_platform.ingest.policy import Lifetimes, ReadPolicy
from cdc_platform.tables import Table
from cdc_platform.timeline import StreamSources


def read_second_pass_us(lake: Lake, log: Table) -> Microseconds | None:
    """Return up to when (µs) a log's windows were read a second time; None if they never were."""
    done = lake.transaction(log, AGAIN)
    return None if done is None else Microseconds(done)


def run_second_pass(
    log: ClusterLogSource, position_us: Microseconds, policy: ReadPolicy, lifetimes: Lifetimes
) -> tuple[Microseconds | None, list[ReadWindow]]:
    """Read the windows up to `position_us` (µs) that are due; return how far (µs) the pass is, and the windows.

    The first is None if nothing was ever due.

    Raises:
        ConflictError: another process reads the same windows a second time.
    """
    lake, schema = log.lake, log.schema
    done = reached = read_second_pass_us(lake, log.sink)
    after, now = policy.second_pass_age_us(lifetimes.min_us), log.clock.now_us()
    if not after or not lake.exists(log.sink):
        return reached, []
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    sets = reader_sets_from_source(source, now)
    begun = lifetimes.first_us(sets, now)
    until = min(position_us, Microseconds(now - after))
    at_us = Microseconds(max(begun, done) if done is not None else begun)
    if until - at_us < max(1, policy.second_pass_interval_us(lifetimes.min_us)):
        return reached, []
    windows: list[ReadWindow] = []
    number = 0
    while (window := next_window(sets, at_us, number, until)) is not None:
        result = None if window.passed else log.read_late(source, window, until)
        late = log.sink.schema.empty_table() if result is None else result.rows
        total = (lake.transaction(log.sink, LATE) or 0) + late.num_rows
        marks = log.count_requests({AGAIN: window.until_us, LATE: total}, result)
        if log.append(late, marks, done) is None:
            raise ConflictError(f"another process runs the second pass of {schema.full_name}; stop one of them")
        late_count = late.num_rows + (0 if result is None else result.committed)
        windows.append(ReadWindow.of(window, result, late_count, log.lap_timer.lap(), late=late_count))
        done, at_us, number = window.until_us, window.until_us, window.number
    return at_us, windows
