"""What a reader leaves out, noted and told by name: generations without a single stream, and those that were removed.

Which sets are passed over `reader` decides; here it is noted beside the checkpoint, so that rows which appear later are
not missed in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cdc_platform.clock import Clock, Microseconds, format_us, to_datetime
from cdc_platform.cql.schema import TableSchema
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.windows import Sets, Window
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.records import passed_over
from cdc_platform.records.consumers import Consumer
from cdc_platform.timeline import StreamSource

Tell = Callable[[str], None]
"""What a remark goes to, a line each."""
_log = logging.getLogger(__name__)


def tell_in_log(remark: str) -> None:
    """Where nobody says where remarks go."""
    _log.warning(remark)


def pass_over(
    lake: Lake,
    clock: Clock,
    consumer: Consumer,
    window: Window,
    rows_left: Callable[[Window], int | None],
    tell: Tell,
) -> None:
    """Note that a window is passed over; told when its set is noted first, with the rows of the log that it leaves."""
    if window.set_us in passed_over.passed_over(lake).get(consumer.key, ()):
        return
    tell(passing_over(f"consumer {consumer.full_name}", window, rows_left(window)))
    passed_over.note(lake, clock, consumer.key, [window.set_us])


def passing_over(name: str, window: Window, count: int | None) -> str:
    """How it is said that a reader passes over a window, with the rows that it leaves; None where nobody knows."""
    left = "what the log has" if count is None else f"{_counted(count)} of the log"
    return (
        f"{name} passes over the generation of {format_us(window.set_us)}: it is listed without"
        f" a row of streams, and a later one operates; {left} up to {format_us(window.until_us)}"
        f" {'is' if count is None else 'are'} left out"
    )


def rows_of(lake: Lake, schema: TableSchema, window: Window) -> int:
    """The rows that the log in the lake has of a window's set, up to the window's end."""
    begin, end = to_datetime(window.set_us), to_datetime(window.until_us)
    return _rows(lake, schema, [(WRITTEN_AT, ">=", begin), (WRITTEN_AT, "<=", end)])


def read_after_all(lake: Lake, consumer: Consumer, set_us: Microseconds) -> None:
    """Take back the note of a set (µs), if there is one: it has streams now, and is read."""
    if set_us in passed_over.passed_over(lake).get(consumer.key, ()):
        passed_over.forget(lake, consumer.key, [set_us])


def came_later(source: StreamSource, sets_us: list[Microseconds]) -> list[Microseconds]:
    """Of the sets (µs) that were passed over those of which streams are there now."""
    there = {each.begin_us for each in source.periods() if each.shown and not each.bare}
    return [each for each in sets_us if each in there]


def tell_what_came_later(lake: Lake, source: StreamSource, consumer: Consumer, tell: Tell) -> None:
    """Tell of each set that a consumer passed over and whose streams are there now."""
    noted = passed_over.passed_over(lake).get(consumer.key, [])
    for begin in came_later(source, noted) if noted else ():
        tell(appeared(consumer.full_name, begin))


def appeared(name: str, begin_us: Microseconds) -> str:
    """How it is said that a passed set has streams now."""
    return (
        f"consumer {name} passed over the generation of {format_us(begin_us)}, which had no streams, and has some now:"
        " its rows are not read yet; run the consumer again, or if that does not read them, read the log under another"
        " name and forget this one"
    )


def tell_of_removed(lake: Lake, schema: TableSchema, name: str, sets: Sets, first_us: Microseconds, tell: Tell) -> None:
    """Tell which rows a new consumer leaves out: those of removed generations before the first that it reads."""
    gone = [each for each in sorted(sets.removed) if each < first_us]
    if not gone:
        return
    shown = ", ".join(format_us(each) for each in gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
    count = _rows(lake, schema, [(WRITTEN_AT, "<", to_datetime(first_us))])
    tell(
        f"consumer {name} of {schema.full_name} begins at {format_us(first_us)} and leaves out what was written before,"
        f" in generations that have been removed ({shown}): {_counted(count)} of the log"
    )


def _rows(lake: Lake, schema: TableSchema, where: list[Filter]) -> int:
    """The rows of a log that pass filters on their time."""
    return lake.read(log_table(schema), [WRITTEN_AT], where).num_rows


def _counted(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
