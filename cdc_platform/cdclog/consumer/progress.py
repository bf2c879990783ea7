"""How far a consumer has read each generation or stream set, and which sets its position passed unread.

A consumer has one position, but a set that becomes readable after the position has passed its start is read from its
start. The sink records the consumer's origin and its progress per set in the transactions of its commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from cdc_platform.cdclog.consumer.windows import ReaderSets, Window
from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.tables import Table


def origin_application(name: str) -> str:
    """Return the application under which a sink records the time (µs) after which its consumer began to read."""
    return f"{name}:origin"


def set_application(name: str, set_us: Microseconds) -> str:
    """Return the application under which a sink records how far (µs) its consumer has read a set."""
    return f"{name}:set:{set_us}"


@dataclass
class StreamProgress:
    """The progress of a consumer as recorded in its sink. Times in µs.

    `origin_us` is the time after which this consumer began to read; None in sinks of releases that did not record it.
    `read_us` maps the start of each set to the time up to which it has been read from its start, or from the origin.
    """

    name: str
    origin_us: Microseconds | None = None
    read_us: dict[Microseconds, Microseconds] = field(default_factory=dict)

    @classmethod
    def of(cls, lake: Lake, sink: Table, name: str, sets: Iterable[Microseconds]) -> StreamProgress:
        """Read the progress of a consumer in these sets from a sink."""
        marks = {set_application(name, set_us): set_us for set_us in sets}
        recorded = lake.transactions(sink, [origin_application(name), *marks])
        origin = recorded.pop(origin_application(name), None)
        read = {marks[mark]: Microseconds(until) for mark, until in recorded.items()}
        return cls(name, None if origin is None else Microseconds(origin), read)

    def marks(self, window: Window, origin_us: Microseconds) -> dict[str, int]:
        """Return the transactions to record with a window, for a consumer that began after `origin_us` (µs)."""
        transactions = dict[str, int]()
        if self.origin_us is None:
            transactions[origin_application(self.name)] = origin_us
        if not window.passed:
            transactions[set_application(self.name, window.set_us)] = window.until_us
        return transactions

    def committed(self, marks: Mapping[str, int], window: Window) -> None:
        """Update the progress by a committed window."""
        if origin_application(self.name) in marks:
            self.origin_us = Microseconds(marks[origin_application(self.name)])
        if set_application(self.name, window.set_us) in marks:
            self.read_us[window.set_us] = window.until_us


def iter_unread_windows(
    progress: StreamProgress, sets: ReaderSets, position_us: Microseconds, origin_us: Microseconds, number: int = 0
) -> Iterator[Window]:
    """Yield the windows before a position (µs) whose set's streams were not read, oldest set first."""
    for set_us, end_us in _set_extents(sets):
        if set_us > position_us:
            return
        until = min(end_us - ONE_US, position_us) if end_us is not None else position_us
        first = max(set_us - ONE_US, origin_us)
        if set_us in sets.passed or first >= until:
            continue
        after = max(first, progress.read_us.get(set_us, first))
        if after < until:
            yield Window(number, set_us, Microseconds(after), Microseconds(until))


def first_unread_us(progress: StreamProgress, sets: ReaderSets, position_us: Microseconds) -> Microseconds | None:
    """Return the time (µs) after which rows of some set may be unread; None if there is no such set.

    Sinks of earlier releases recorded no progress: their consumers read everything that may still exist once more.
    """
    if progress.origin_us is None:
        return None
    return min(
        (window.after_us for window in iter_unread_windows(progress, sets, position_us, progress.origin_us)),
        default=None,
    )


def _set_extents(sets: ReaderSets) -> Iterable[tuple[Microseconds, Microseconds | None]]:
    """Yield each set that was shown to readers, and the start (µs) of the next one."""
    begins = sorted({*sets.seen, *sets.removed})
    ends: Mapping[Microseconds, Microseconds | None] = dict(zip_longest(begins, begins[1:]))
    return ((set_us, ends[set_us]) for set_us in sorted(sets.seen))
