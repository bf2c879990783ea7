"""A node as a coordinator of writes: it learns of generations, reads them, tries again, and keeps the newest ID.

Which writes it takes is `generations.metadata`'s rule; here is how its knowledge comes about and that threads share it.
Time, data and the waiting in between are handed in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

import pyarrow as pa

from cdc_platform.clock import Clock, format_ms, to_datetime
from cdc_platform.errors import PlatformError, WriteRefused
from cdc_platform.generations import (
    Decision,
    GenerationId,
    Metadata,
    TopologyDescription,
    Verdict,
    parse_generation_id,
)
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_LOCAL
from cdc_platform.node.restart import own_generation
from cdc_platform.records import generation_data
from cdc_platform.settings import Settings

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 60.0

Reader = Callable[[GenerationId], TopologyDescription]


class Waiter(Protocol):
    """What the background waits with. `threading.Event` is one."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; True if `set` was called."""
        ...

    def set(self) -> None:
        """End the wait that is, and those that come."""
        ...


@dataclass(frozen=True)
class Pending:
    """A generation that is known by its ID and could not be read yet: how often that was tried, and the last error."""

    id: GenerationId
    attempts: int
    reason: str


class Coordinator:
    """What one node knows of generations, and which writes it takes. Safe for use from several threads.

    `reader` gives the whole description of a generation or raises a PlatformError; by default it reads the lake, V1
    and V2. Nothing is tried again by itself: `retry` does it, and `Background` calls that.
    """

    def __init__(
        self, lake: Lake, clock: Clock, settings: Settings, host_id: UUID, *, reader: Reader | None = None
    ) -> None:
        self.host_id = host_id
        self._lake = lake
        self._clock = clock
        self._reader = reader or (lambda id: generation_data.description_of(lake, id))
        self._metadata = Metadata(settings.generation_leeway_ms * 1000, settings.policy)
        self._pending: dict[int, Pending] = {}
        self._lock = threading.RLock()
        self.newly_pending = threading.Event()

    def start(self) -> GenerationId | None:
        """Learn what this node kept before it was restarted; answers with that ID, None where it kept none."""
        kept = own_generation(self._lake, self.host_id)
        if kept is None:
            _log.warning(
                "node %s keeps no generation ID: it learns one when a node joins or streams are repaired", self.host_id
            )
        else:
            self.learn(kept)
        return kept

    def learn(self, told: str | GenerationId | None) -> bool:
        """Take in a generation's ID, or the text in which a node gossips it. Its data is tried to be read at once.

        Until it has been read, the writes that belong to it are refused. Returns whether it is usable now; None and
        the empty text mean that the other node knows of no generation.

        Raises:
            InputError: the text is no generation ID.
        """
        id = parse_generation_id(told) if isinstance(told, str) else told
        if id is None:
            return False
        with self._lock:
            if not self._metadata.prepare(id.time_ms * 1000, self._clock.now_us()):
                return self._is_read(id)
        return self._try(id)

    def retry(self) -> int:
        """Try every generation once more that could not be read yet; answers how many still could not.

        One that is superseded is given up: a later one operates for longer than the leeway, nobody writes to it.
        """
        for each in self.pending():
            self._try(each.id)
        return len(self.pending())

    def pending(self) -> list[Pending]:
        """The generations that are known and not read, in the order of their times."""
        with self._lock:
            return [self._pending[time] for time in sorted(self._pending)]

    def decide(self, write_ts_us: int) -> Decision:
        """The verdict on a write with this timestamp (µs) now."""
        with self._lock:
            return self._metadata.decide(write_ts_us, self._clock.now_us())

    def get_stream(self, write_ts_us: int, token: int) -> bytes:
        """The stream ID (16 bytes) for a write of `token` with this timestamp (µs).

        Raises:
            WriteRefused: the write is not taken now; where its generation could not be read the last error is told.
        """
        with self._lock:
            try:
                return self._metadata.get_stream(write_ts_us, token, self._clock.now_us())
            except WriteRefused as refused:
                why = self._why_not_read(write_ts_us) if refused.verdict == Verdict.NOT_RETRIEVED else None
                if why is None:
                    raise
                raise WriteRefused(refused.verdict, f"{refused}; {why}") from None

    def _is_read(self, id: GenerationId) -> bool:
        times = self._metadata.times_us
        return id.time_ms * 1000 in times and id.time_ms not in self._pending

    def _try(self, id: GenerationId) -> bool:
        """Read a generation once; whatever the outcome, what is known afterwards says so."""
        with self._lock:
            if self._metadata.known_or_obsolete(id.time_ms * 1000, self._clock.now_us()):
                self._give_up(id)
                return self._is_read(id)
        try:
            # Without the lock: a slow read holds no write up that does not need it.
            description = self._reader(id)
        except (PlatformError, OSError) as error:
            self._note_failure(id, str(error))
            return False
        keep(self._lake, self.host_id, id)
        with self._lock:
            used = self._metadata.insert(id.time_ms * 1000, description, self._clock.now_us())
            self._pending.pop(id.time_ms, None)
        if used:
            _log.info("node %s starts to use generation %s", self.host_id, id)
        return used

    def _give_up(self, id: GenerationId) -> None:
        if self._pending.pop(id.time_ms, None) is not None:
            _log.warning("node %s no longer tries to read generation %s: it is superseded", self.host_id, id)

    def _note_failure(self, id: GenerationId, reason: str) -> None:
        with self._lock:
            before = self._pending.get(id.time_ms)
            attempts = 1 if before is None else before.attempts + 1
            self._pending[id.time_ms] = Pending(id, attempts, reason)
        how = "tries again" if before is None else "goes on trying"
        _log.warning("node %s cannot read generation %s yet and %s: %s", self.host_id, id, how, reason)
        self.newly_pending.set()

    def _why_not_read(self, write_ts_us: int) -> str | None:
        generation = self._metadata.generation_used_at(write_ts_us)
        pending = None if generation is None else self._pending.get(generation // 1000)
        return pending and f"tried {pending.attempts} times, at last: {pending.reason}"


class Background:
    """Reads a coordinator's pending generations again and again in a thread of its own, until it is closed.

    `generation_retry_ms` of the settings lie between two attempts; while nothing is pending the thread waits for
    something that is.
    """

    def __init__(self, coordinator: Coordinator, settings: Settings, stop: Waiter | None = None) -> None:
        self._coordinator = coordinator
        self._interval = settings.generation_retry_ms / 1000
        self._stop = stop or threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"generations of {coordinator.host_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, at the latest after the attempt it is in."""
        self._stop.set()
        self._coordinator.newly_pending.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        coordinator = self._coordinator
        while True:
            coordinator.newly_pending.wait()
            if self._stop.wait(self._interval):
                return
            coordinator.newly_pending.clear()
            if coordinator.retry():
                coordinator.newly_pending.set()


def keep(lake: Lake, host_id: UUID, id: GenerationId) -> bool:
    """Keep a generation's ID in the node's `cdc_local` if it is newer than the one that is there; whether it was."""
    kept = own_generation(lake, host_id)
    if kept is not None and kept.time_ms >= id.time_ms:
        return False
    row = {
        "host_id": str(host_id),
        "key": "cdc_local",
        "streams_timestamp": to_datetime(id.time_ms * 1000),
        "uuid": None if id.uuid is None else str(id.uuid),
    }
    lake.merge(CDC_LOCAL, pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), update=True)
    _log.info("node %s keeps generation %s, which starts at %s", host_id, id, format_ms(id.time_ms))
    return True
