"""How far a consumer has read each generation or stream set, and which sets its position passed unread.

A consumer has one position, but a set that becomes readable after the position has passed its start is read from
its start. The sink notes the consumer's origin and its progress per set in the transactions of its commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cdc_platform.cdclog.consumer.windows import ReaderSets, Window
from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.tables import Table


def origin_application(name: str) -> str:
    """Return the application under which a sink notes behind which time (µs) its consumer began to read."""
    return f"{name}:origin"


def set_application(name: str, set_us: Microseconds) -> str:
    """Return the application under which a sink notes how far (µs) its consumer has read the set of this start."""
    return f"{name}:set:{set_us}"


@dataclass
class StreamProgress:
    """What the sink of a consumer notes. Times in µs.

    `origin_us`: everything at or before it was left to whatever came before this consumer; None in sinks of releases
    that noted nothing of it. `read_us`: up to when each set has been read from its start on, or from the origin, by
    the set's start.
    """

    name: str
    origin_us: Microseconds | None = None
    read_us: dict[Microseconds, Microseconds] = field(default_factory=dict)

    @classmethod
    def of(cls, lake: Lake, sink: Table, name: str, sets: Iterable[Microseconds]) -> StreamProgress:
        """Read what a sink notes of a consumer and of these sets."""
        marks = {set_application(name, each): each for each in sets}
        noted = lake.transactions(sink, [origin_application(name), *marks])
        origin = noted.pop(origin_application(name), None)
        read = {marks[mark]: Microseconds(until) for mark, until in noted.items()}
        return cls(name, None if origin is None else Microseconds(origin), read)

    def marks(self, window: Window, origin_us: Microseconds) -> dict[str, int]:
        """Return what the commit of a window notes, for a consumer that began behind `origin_us` (µs)."""
        found = dict[str, int]()
        if self.origin_us is None:
            found[origin_application(self.name)] = origin_us
        if not window.passed:
            found[set_application(self.name, window.set_us)] = window.until_us
        return found

    def committed(self, marks: Mapping[str, int], window: Window) -> None:
        """Take in what a commit of a window has noted."""
        if origin_application(self.name) in marks:
            self.origin_us = Microseconds(marks[origin_application(self.name)])
        if set_application(self.name, window.set_us) in marks:
            self.read_us[window.set_us] = window.until_us


def iter_unread_windows(
    progress: StreamProgress, sets: ReaderSets, position_us: Microseconds, origin_us: Microseconds, number: int = 0
) -> Iterator[Window]:
    """Yield what a position (µs) has passed of each set without reading that set's streams, oldest set first."""
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
    """Return behind which time (µs) rows of some set may not have been read yet; None if there is no such set.

    Nothing is known of sinks of earlier releases: their consumer reads everything that may still be there once more.
    """
    if progress.origin_us is None:
        return None
    return min(
        (each.after_us for each in iter_unread_windows(progress, sets, position_us, progress.origin_us)), default=None
    )


def _set_extents(sets: ReaderSets) -> Iterable[tuple[Microseconds, Microseconds | None]]:
    """Yield each set that readers have been shown, and when (µs) the next one begins."""
    begins = sorted({*sets.seen, *sets.removed})
    ends: Mapping[Microseconds, Microseconds | None] = dict(zip(begins, [*begins[1:], None], strict=True))
    return ((each, ends[each]) for each in sorted(sets.seen))
