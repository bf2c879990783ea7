"""Readers of the log: the platform's choice of windows over what they see in the simulated cluster."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cdc_platform.cdclog import (
    ReaderSets,
    StreamProgress,
    Window,
    iter_unread_windows,
    next_window,
    reader_sets_from_source,
)
from cdc_platform.clock import HOUR_US, SECOND_US, Microseconds, us_from_ms
from cdc_platform.errors import StateError
from cdc_platform.simulation.observations import Advanced, Noted, Read, SimulatedGeneration
from cdc_platform.simulation.plan import READER
from cdc_platform.simulation.world import START_US, World
from cdc_platform.timeline import KnownStreams, StreamPeriod

POLL_US = SECOND_US * 5


@dataclass(frozen=True)
class _SeenPeriods:
    """The stream source of one look at the tables."""

    seen: list[StreamPeriod]

    def periods(self) -> list[StreamPeriod]:
        return self.seen


class _Streams:
    """The streams of a period, which the simulated log does not need: it has its rows by generation."""

    def read(self) -> KnownStreams:
        raise StateError("a simulated reader reads by generation")


class LogReader:
    """Reads the log in windows, each row once.

    It sees the published generations and, unlike the official clients, those that the cluster has heard of: it does not
    pass the start of one that is not published yet. A generation that can be read only after the position has passed
    its start is read from its start then, as `consume` and `ingest` do; the official clients do not.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.position_us = self._origin_us = Microseconds(START_US - HOUR_US)
        self.windows = 0
        self._published: set[int] = set()
        self._progress = StreamProgress("simulated")
        self._seen: object = None
        self._sets = ReaderSets(())
        self._caught_up = False
        self.lost = False

    def start(self) -> None:
        """Begin to poll."""
        self.world.scheduler.after(POLL_US, self.poll)

    def poll(self) -> None:
        """Read all windows that are complete by the reader's clock."""
        self.world.scheduler.after(POLL_US, self.poll)
        try:
            visible = self.visible()
            now_us = self.world.reader_clock.now_us()
            seen = (visible, len(self._published), len(self.world.removed))
            if seen != self._seen:
                # No simulated period is empty, so the sets depend on nothing else.
                self._seen, self._sets, self._caught_up = seen, self.sets(visible, now_us), False
            sets = self._sets
            horizon_us = Microseconds(now_us - self.world.rules.window_us)
            while (window := self._next_window(sets, horizon_us)) is not None:
                generation = next(each for each in visible if us_from_ms(each.time_ms) == window.set_us)
                if not window.passed:
                    if not self.can_read(generation):
                        return
                    self._deliver(generation, window)
                self._progress.committed(self._progress.marks(window, self._origin_us), window)
                self.windows = window.number
                self.position_us = max(self.position_us, window.until_us)
                self.world.history.add(Advanced(self.world.now_us, self.position_us, window.set_us))
        except TimeoutError:
            return
        except StateError as error:
            if not self.lost:
                self.lost = True
                self.world.history.add(Noted(self.world.now_us, READER, f"cannot go on: {error}"))

    def sets(self, visible: list[SimulatedGeneration], now_us: Microseconds) -> ReaderSets:
        """Return the periods that may be read, by the platform's rule."""
        return reader_sets_from_source(_SeenPeriods([self._period(generation) for generation in visible]), now_us)

    def _next_window(self, sets: ReaderSets, horizon_us: Microseconds) -> Window | None:
        """Return a window of a set whose start the position has passed unread, or else the one after the position."""
        if self.world.rules.reader == "platform" and not self._caught_up:
            passed_us = Microseconds(min(self.position_us, horizon_us))
            unread = iter_unread_windows(self._progress, sets, passed_us, self._origin_us, self.windows)
            if (missed := next(unread, None)) is not None:
                return missed
            # Only a set that appears later can be unread behind the position from now on.
            self._caught_up = passed_us == self.position_us
        return next_window(sets, self.position_us, self.windows, horizon_us)

    def visible(self) -> list[SimulatedGeneration]:
        """Return the generations that the reader sees, by their times.

        Raises:
            TimeoutError: no quorum answers.
        """
        for number in sorted(self.world.committed - self._published):
            if self.world.timestamps.read(None, self.world.key(self.world.generations[number])):
                self._published.add(number)
        return self._by_time(self._published | self._heard())

    def _by_time(self, numbers: set[int]) -> list[SimulatedGeneration]:
        return sorted((self.world.generations[number] for number in numbers), key=lambda each: each.time_ms)

    def _heard(self) -> set[int]:
        """Return the generations that the reader hears of before they are published, as it knows the first one.

        In two phases it reads the register. By gossip it asks a node: the first one that serves clients.
        """
        rules = self.world.rules
        if rules.reader == "client":
            return {0}
        if rules.protocol == "two-phase":
            return self.world.committed
        asked = next((machine.number for machine in self.world.machines if machine.serving), None)
        if asked is None:
            raise TimeoutError("no node answers the reader")
        return self.world.known[asked] & self.world.committed

    def can_read(self, generation: SimulatedGeneration) -> bool:
        """Return True if all streams of a generation can be read.

        Raises:
            TimeoutError: no quorum answers.
        """
        return self.world.streams.read(None, self.world.key(generation))

    def _period(self, generation: SimulatedGeneration) -> StreamPeriod:
        removed = generation.number in self.world.removed
        published = generation.number in self._published and not removed
        return StreamPeriod(us_from_ms(generation.time_ms), "", _Streams(), published, removed)

    def _deliver(self, generation: SimulatedGeneration, window: Window) -> None:
        """Deliver the rows of a window that can be seen now; what appears there later is never read."""
        now_us = self.world.now_us
        rows = self.world.log.get(generation.number, [])
        ready = sorted(row for row in rows if row.ts_us <= window.until_us)
        rows[:] = [row for row in rows if row.ts_us > window.until_us]
        for row in ready:
            lives = row.expires_us is None or now_us < row.expires_us
            if row.visible_us <= now_us and row.ts_us > window.after_us and lives:
                self.world.history.add(Read(now_us, row.row))


class TabletLogReader(LogReader):
    """Reads by the stream sets of a table: those that some node has listed, each time another one is asked."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._random = random.Random(f"reader {world.plan.seed}")

    def visible(self) -> list[SimulatedGeneration]:
        """Return the stream sets that the reader sees, by their times.

        Raises:
            TimeoutError: no node serves clients.
        """
        asked = [machine.number for machine in self.world.machines if machine.serving]
        if not asked:
            raise TimeoutError("no node answers the reader")
        self._published |= self.world.known[self._random.choice(asked)]
        return self._by_time(self._published)

    def can_read(self, generation: SimulatedGeneration) -> bool:
        """Return True: a node lists a stream set together with its streams."""
        return True
