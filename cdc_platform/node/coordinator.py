"""A coordinator of writes: it learns generation IDs, reads descriptions, retries, and stores the newest ID.

`generations.acceptance` decides on writes. `RetryLoop` owns no thread and no clock: a simulation calls `step`, a
server runs `run` in its own thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds, format_ms, ms_from_us, seconds_from_us, us_from_ms
from cdc_platform.errors import PlatformError, WriteRefused
from cdc_platform.generations import (
    LEEWAY_US,
    AcceptancePolicy,
    CdcMetadata,
    GenerationId,
    UndecidedSwitch,
    WriteDecision,
    WriteVerdict,
    parse_generation_id,
)
from cdc_platform.node.interfaces import GenerationReader, MicrosecondClock, NodeDisk, RetryWaiter

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingGeneration:
    """A generation whose description could not be read yet: its ID, the number of attempts, and the last error."""

    id: GenerationId
    attempts: int
    reason: str


class Coordinator:
    """The generations that one node knows, and the writes that it accepts. Thread-safe.

    `undecided` are the switches that the node promised to wait for before a restart. Nothing is retried automatically:
    `RetryLoop` calls `retry`.
    """

    def __init__(
        self,
        host_id: UUID,
        reader: GenerationReader,
        disk: NodeDisk,
        now_us: MicrosecondClock,
        *,
        leeway_us: Microseconds = LEEWAY_US,
        policy: AcceptancePolicy = "strict",
        undecided: Iterable[UndecidedSwitch] = (),
    ) -> None:
        self.host_id = host_id
        self._reader = reader
        self._disk = disk
        self._now_us = now_us
        self._metadata = CdcMetadata(leeway_us, policy)
        self._pending: dict[Milliseconds, PendingGeneration] = {}
        self._undecided = {switch.generation_id: switch for switch in undecided}
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], object]] = []

    def add_listener(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever a generation could not be read, on the thread that tried."""
        self._listeners.append(listener)

    def start(self) -> GenerationId | None:
        """Learn the ID stored before the restart and return it, or None if none was stored."""
        stored_id = self._disk.load_id()
        if stored_id is None:
            _log.warning(
                "node %s keeps no generation ID: it learns one when a node joins or streams are repaired", self.host_id
            )
        else:
            self.learn(stored_id)
        return stored_id

    def learn(self, generation: str | GenerationId | None) -> bool:
        """Hear of a generation and try to read its data at once; return True if it is usable now.

        Raises:
            InputError: the text is not a generation ID.
        """
        id = parse_generation_id(generation) if isinstance(generation, str) else generation
        if id is None:
            return False
        if not self.hear(id):
            with self._lock:
                return self._is_read(id)
        return self.read(id)

    def hear(self, generation: str | GenerationId | None) -> bool:
        """Learn a generation's ID, or the text in which a node gossips it; return True if `read` must follow.

        Until its data has been read, writes that belong to the generation are refused. If a switch to it was undecided,
        the switch is decided now: only a committed generation has an ID. None and the empty text mean that the other
        node knows of no generation.

        Raises:
            InputError: the text is not a generation ID.
        """
        id = parse_generation_id(generation) if isinstance(generation, str) else generation
        if id is None:
            return False
        with self._lock:
            to_read = self._metadata.prepare(us_from_ms(id.time_ms), self._now_us())
            # In this order, under one lock, the previous generation cannot accept a write in between.
            self._undecided.pop(str(id.uuid), None)
        return to_read

    def wait_for(self, switch: UndecidedSwitch) -> None:
        """Promise to accept no write from the switch's lease end on until its decision is known.

        The decision is a generation's ID (see `learn`) or `aborted`. Of repeated promises the earlier lease end
        applies.
        """
        with self._lock:
            existing = self._undecided.get(switch.generation_id, switch)
            self._undecided[switch.generation_id] = min(existing, switch, key=lambda each: each.lease_end_us)

    def aborted(self, generation_id: str) -> None:
        """End the promise for an aborted switch: the current generation continues to operate."""
        with self._lock:
            self._undecided.pop(generation_id, None)

    def retry(self) -> int:
        """Try again to read every pending generation; return how many are still pending.

        A superseded generation is given up: a later one has operated for longer than the leeway, so no write can belong
        to it.
        """
        for generation in self.pending():
            self.read(generation.id)
        return len(self.pending())

    def pending(self) -> list[PendingGeneration]:
        """Return the known but unread generations, in the order of their times."""
        with self._lock:
            return [self._pending[time] for time in sorted(self._pending)]

    def decide(self, write_ts_us: Microseconds) -> WriteDecision:
        """Return the verdict on a write with this timestamp (µs) now."""
        with self._lock:
            return self._metadata.decide(write_ts_us, self._now_us(), undecided=tuple(self._undecided.values()))

    def get_stream(self, write_ts_us: Microseconds, token: int) -> bytes:
        """Return the stream ID (16 bytes) for a write of `token` with this timestamp (µs).

        Raises:
            WriteRefused: the write is not accepted now; if its generation could not be read, the message has the last
                error.
        """
        with self._lock:
            try:
                undecided = tuple(self._undecided.values())
                return self._metadata.get_stream(write_ts_us, token, self._now_us(), undecided=undecided)
            except WriteRefused as refused:
                why = self._why_not_read(write_ts_us) if refused.verdict == WriteVerdict.NOT_RETRIEVED else None
                if why is None:
                    raise
                raise WriteRefused(refused.verdict, f"{refused}; {why}") from None

    def _is_read(self, id: GenerationId) -> bool:
        times = self._metadata.times_us
        return us_from_ms(id.time_ms) in times and id.time_ms not in self._pending

    def read(self, id: GenerationId) -> bool:
        """Try to read a generation once, and record the outcome; return True if it is usable now."""
        with self._lock:
            if self._metadata.known_or_obsolete(us_from_ms(id.time_ms), self._now_us()):
                self._drop_pending(id)
                return self._is_read(id)
        try:
            # Read without the lock, so that a slow read does not block writes that do not need it.
            description = self._reader(id)
        except (PlatformError, OSError) as error:
            self._note_failure(id, str(error))
            return False
        if self._disk.store_id(id):
            _log.info("node %s keeps generation %s, which starts at %s", self.host_id, id, format_ms(id.time_ms))
        with self._lock:
            used = self._metadata.insert(us_from_ms(id.time_ms), description, self._now_us())
            self._pending.pop(id.time_ms, None)
        if used:
            _log.info("node %s starts to use generation %s", self.host_id, id)
        return used

    def _drop_pending(self, id: GenerationId) -> None:
        if self._pending.pop(id.time_ms, None) is not None:
            _log.warning("node %s no longer tries to read generation %s: it is superseded", self.host_id, id)

    def _note_failure(self, id: GenerationId, reason: str) -> None:
        with self._lock:
            before = self._pending.get(id.time_ms)
            attempts = 1 if before is None else before.attempts + 1
            self._pending[id.time_ms] = PendingGeneration(id, attempts, reason)
        how = "tries again" if before is None else "goes on trying"
        _log.warning("node %s cannot read generation %s yet and %s: %s", self.host_id, id, how, reason)
        for listener in self._listeners:
            listener()

    def _why_not_read(self, write_ts_us: Microseconds) -> str | None:
        generation = self._metadata.generation_used_at(write_ts_us)
        pending = None if generation is None else self._pending.get(ms_from_us(generation))
        return None if pending is None else f"tried {pending.attempts} times, at last: {pending.reason}"


DEFAULT_RETRY_US = SECOND_US * 5
"""How long a coordinator waits by default before it tries again to read a generation (µs)."""


class RetryLoop:
    """Retries a coordinator's pending generations, `retry_us` (µs) after each failure."""

    def __init__(
        self,
        coordinator: Coordinator,
        now_us: MicrosecondClock,
        waiter: RetryWaiter,
        *,
        retry_us: Microseconds = DEFAULT_RETRY_US,
    ) -> None:
        self._coordinator = coordinator
        self._now_us = now_us
        self._waiter = waiter
        self._retry_us = retry_us
        self._due_us: Microseconds | None = None
        self._closed = False
        coordinator.add_listener(waiter.set)

    def step(self) -> Microseconds | None:
        """Retry if it is time to; return when (µs) the next attempt is due, or None while nothing is pending."""
        now_us = self._now_us()
        if not self._coordinator.pending():
            self._due_us = None
        elif self._due_us is None:
            self._due_us = now_us + self._retry_us
        elif now_us >= self._due_us:
            self._due_us = now_us + self._retry_us if self._coordinator.retry() else None
        return self._due_us

    def run(self) -> None:
        """Retry until `close` is called, waiting with the waiter in between; meant for a dedicated thread."""
        while not self._closed:
            due_us = self.step()
            self._waiter.wait(
                None if due_us is None else seconds_from_us(max(due_us - self._now_us(), Microseconds(0)))
            )
            self._waiter.clear()

    def close(self) -> None:
        """Make `run` return, at the latest after the current attempt."""
        self._closed = True
        self._waiter.set()
