"""A reader of the log: the platform's choice of windows over the generations that it sees in the simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_platform.cdclog import next_window, reader_sets_from_source
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
    pass the start of one that is not published yet.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.position_us = Microseconds(START_US - HOUR_US)
        self.windows = 0
        self._published: set[int] = set()
        self.lost = False

    def start(self) -> None:
        """Begin to poll."""
        self.world.scheduler.after(POLL_US, self.poll)

    def poll(self) -> None:
        """Read all windows that are complete by the reader's clock."""
        self.world.scheduler.after(POLL_US, self.poll)
        try:
            visible = self.visible()
            source = _SeenPeriods([self._period(generation) for generation in visible])
            now_us = self.world.reader_clock.now_us()
            sets = reader_sets_from_source(source, now_us)
            horizon_us = Microseconds(now_us - self.world.rules.window_us)
            while (window := next_window(sets, self.position_us, self.windows, horizon_us)) is not None:
                generation = next(each for each in visible if us_from_ms(each.time_ms) == window.set_us)
                if not window.passed:
                    if not self.world.streams.read(None, self.world.key(generation)):
                        return
                    self._deliver(generation, window.until_us)
                self.windows = window.number
                self.position_us = window.until_us
                self.world.history.add(Advanced(self.world.now_us, window.until_us, window.set_us))
        except TimeoutError:
            return
        except StateError as error:
            if not self.lost:
                self.lost = True
                self.world.history.add(Noted(self.world.now_us, READER, f"cannot go on: {error}"))

    def visible(self) -> list[SimulatedGeneration]:
        """Return the generations that the reader sees, by their times.

        Raises:
            TimeoutError: no quorum answers.
        """
        for number in sorted(self.world.committed - self._published):
            if self.world.timestamps.read(None, self.world.key(self.world.generations[number])):
                self._published.add(number)
        known = self._published | self._heard()
        return sorted((self.world.generations[number] for number in known), key=lambda each: each.time_ms)

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

    def _period(self, generation: SimulatedGeneration) -> StreamPeriod:
        removed = generation.number in self.world.removed
        published = generation.number in self._published and not removed
        return StreamPeriod(us_from_ms(generation.time_ms), "", _Streams(), published, removed)

    def _deliver(self, generation: SimulatedGeneration, until_us: Microseconds) -> None:
        """Deliver the rows up to `until_us` that can be seen now; what appears there later is never read."""
        now_us = self.world.now_us
        rows = self.world.log.get(generation.number, [])
        ready = sorted(row for row in rows if row.ts_us <= until_us)
        rows[:] = [row for row in rows if row.ts_us > until_us]
        for row in ready:
            lives = row.expires_us is None or now_us < row.expires_us
            if row.visible_us <= now_us and row.ts_us > self.position_us and lives:
                self.world.history.add(Read(now_us, row.row))
