"""The periods of a log's streams as readers see them: which they may read, wait for, pass over, or have lost."""

from __future__ import annotations

from cdc_platform.clock import SECOND_US, format_us
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import StateError
from cdc_platform.lake.lake import Lake
from cdc_platform.log.reading.windows import Sets, Window
from cdc_platform.timeline import StreamSource, StreamSources

SAFETY_US = SECOND_US * 30
"""How far behind the clock a reader stays: what is younger may still be on its way."""


def stream_sets(lake: Lake, schema: TableSchema, now_us: int) -> Sets:
    """The periods of the table's log that readers may read at `now_us`, and from where on they have to wait."""
    return sets_of(StreamSources(lake).of(schema.keyspace, schema.name), now_us)


def sets_of(source: StreamSource, now_us: int) -> Sets:
    """The periods of a source as readers see them at `now_us`.

    What readers have not been shown they wait for, so that no row is read as one of the generation before. Of old,
    such ones were left out on purpose, since no log holds rows of them: those count as if they were not there. One
    that they have been shown without a single stream is passed over once a later one operates, the newest is waited
    for: ScyllaDB's own clients do so.
    """
    periods = source.periods()
    seen = [each.begin_us for each in periods if each.shown]
    removed = [each.begin_us for each in periods if each.removed]
    told = max([*seen, *removed], default=None)
    later = [each.begin_us for each in periods if told is None or each.begin_us > told]
    operating = max((each for each in seen if each <= now_us - SAFETY_US), default=0)
    passed = [each.begin_us for each in periods if each.shown and each.bare and each.begin_us < operating]
    return Sets(seen, removed, min(later, default=None), passed)


def assert_complete(source: StreamSource, window: Window) -> None:
    """Hold that a window's streams are all there."""
    if not source.is_complete(window.set_us):
        raise StateError(
            f"the streams of the generation of {format_us(window.set_us)} are not all published yet; its rows are read"
            " once they are: publish it, then run this again"
        )
