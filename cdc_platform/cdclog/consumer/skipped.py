"""Record and report what a reader skips: generations without streams, and removed ones.

`windows` decides what is skipped. The record next to the checkpoint makes rows that appear later visible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cdc_platform.cdclog.consumer.windows import ReaderSets, Window
from cdc_platform.cdclog.log_rows import count_rows
from cdc_platform.cdclog.schema import log_table
from cdc_platform.clock import ONE_US, Clock, Microseconds, format_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake
from cdc_platform.metastore import Consumer, consumers
from cdc_platform.timeline import StreamSource

OnMessage = Callable[[str], None]
"""Receives messages, a line each."""
_log = logging.getLogger(__name__)


def log_message(remark: str) -> None:
    """Log a message; the default receiver of messages."""
    _log.warning(remark)


def skip_window(
    lake: Lake,
    clock: Clock,
    consumer: Consumer,
    window: Window,
    rows_left: Callable[[Window], int | None],
    on_message: OnMessage,
) -> None:
    """Record that a window is skipped; report a set's first skip, with the number of rows left in the log."""
    if window.set_us in consumers.read_skipped_sets(lake).get(consumer.key, ()):
        return
    on_message(describe_skip(f"consumer {consumer.full_name}", window, rows_left(window)))
    consumers.record_skipped_sets(lake, clock, consumer.key, [window.set_us])


def describe_skip(name: str, window: Window, count: int | None) -> str:
    """Describe a skipped window, with the number of rows left in the log; None if it is unknown."""
    skipped_rows = "what the log has" if count is None else f"{_format_row_count(count)} of the log"
    return (
        f"{name} skips the generation of {format_us(window.set_us)}: it is listed without"
        f" a row of streams, and a later one operates; {skipped_rows} up to {format_us(window.until_us)}"
        f" {'is' if count is None else 'are'} left out"
    )


def count_set_rows(lake: Lake, schema: TableSchema, window: Window) -> int:
    """Count the rows of a window's set in the lake's log, up to the window's end."""
    return count_rows(lake, log_table(schema), Microseconds(window.set_us - ONE_US), window.until_us)


def clear_skip(lake: Lake, consumer: Consumer, set_us: Microseconds) -> None:
    """Delete the record of a skipped set (µs), if any: it has streams now, and is read."""
    if set_us in consumers.read_skipped_sets(lake).get(consumer.key, ()):
        consumers.delete_skipped_sets(lake, consumer.key, [set_us])


def find_appeared_sets(source: StreamSource, sets_us: list[Microseconds]) -> list[Microseconds]:
    """Return those of the skipped sets (µs) that have streams now."""
    with_streams = {period.begin_us for period in source.periods() if period.published and not period.empty}
    return [set_us for set_us in sets_us if set_us in with_streams]


def report_appeared_sets(lake: Lake, source: StreamSource, consumer: Consumer, on_message: OnMessage) -> None:
    """Report each set that a consumer skipped and that has streams now."""
    recorded = consumers.read_skipped_sets(lake).get(consumer.key, [])
    for begin in find_appeared_sets(source, recorded) if recorded else ():
        on_message(describe_appeared_set(consumer.full_name, begin))


def describe_appeared_set(name: str, begin_us: Microseconds) -> str:
    """Describe a skipped set that has streams now."""
    return (
        f"consumer {name} skipped the generation of {format_us(begin_us)}, which had no streams and has streams now:"
        " its rows are not read yet; run the consumer again, or if that does not read them, read the log under another"
        " name and remove this consumer"
    )


def report_removed_sets(
    lake: Lake, schema: TableSchema, name: str, sets: ReaderSets, first_us: Microseconds, on_message: OnMessage
) -> None:
    """Report the rows that a new consumer skips: those of removed generations before the first that it reads."""
    removed = [begin_us for begin_us in sorted(sets.removed) if begin_us < first_us]
    if not removed:
        return
    listed = ", ".join(format_us(begin_us) for begin_us in removed[:3]) + (
        f" and {len(removed) - 3} more" if len(removed) > 3 else ""
    )
    count = count_rows(lake, log_table(schema), None, Microseconds(first_us - ONE_US))
    on_message(
        f"consumer {name} of {schema.full_name} begins at {format_us(first_us)} and leaves out what was written before,"
        f" in generations that have been removed ({listed}): {_format_row_count(count)} of the log"
    )


def _format_row_count(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
