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
    """A generation that is known by its ID and could not be read yet: how often that was tried, and the last error."""

    id: GenerationId
    attempts: int
    reason: str


class Coordinator:
    """What one node knows of generations, and which writes it takes. Safe for use from several threads.

    `undecided` are the switches that it promised to wait for before a restart. Nothing is tried again by itself:
    `retry` does it, and `Background` calls that.
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
        self._told: list[Callable[[], object]] = []

    def tell(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever a generation could not be read, from the thread that tried."""
        self._told.append(listener)

    def start(self) -> GenerationId | None:
        """Learn what this node kept before it was restarted; answers with that ID, None where it kept none."""
        kept = self._disk.kept_id()
        if kept is None:
            _log.warning(
                "node %s keeps no generation ID: it learns one when a node joins or streams are repaired", self.host_id
            )
        else:
            self.learn(kept)
        return kept

    def learn(self, told: str | GenerationId | None) -> bool:
        """Take in a generation's ID, or the text in which a node gossips it. Its data is tried to be read at once.

        Until it has been read, the writes that belong to it are refused. If it was being switched to, the switch is
        decided with that: only a committed generation has an ID. Returns whether it is usable now; None and the empty
        text mean that the other node knows of no generation.

        Raises:
            InputError: the text is no generation ID.
        """
        id = parse_generation_id(told) if isinstance(told, str) else told
        if id is None:
            return False
        with self._lock:
            to_read = self._metadata.prepare(us_from_ms(id.time_ms), self._now_us())
            # In this order, under one lock: no write is taken in between by the generation before.
            self._undecided.pop(str(id.uuid), None)
            if not to_read:
                return self._is_read(id)
        return self._try(id)

    def wait_for(self, switch: UndecidedSwitch) -> None:
        """Promise to take no write from the switch's lease end on before its decision is known.

        That is a generation's ID, see `learn`, or `aborted`. Promised again, the earlier lease end holds.
        """
        with self._lock:
            before = self._undecided.get(switch.generation_id, switch)
            self._undecided[switch.generation_id] = min(before, switch, key=lambda each: each.lease_end_us)

    def aborted(self, generation_id: str) -> None:
        """The switch to this generation was aborted: the generation that operates goes on."""
        with self._lock:
            self._undecided.pop(generation_id, None)

    def retry(self) -> int:
        """Try every generation once more that could not be read yet; answers how many still could not.

        One that is superseded is given up: a later one operates for longer than the leeway, nobody writes to it.
        """
        for each in self.pending():
            self._try(each.id)
        return len(self.pending())

    def pending(self) -> list[PendingGeneration]:
        """The generations that are known and not read, in the order of their times."""
        with self._lock:
            return [self._pending[time] for time in sorted(self._pending)]

    def decide(self, write_ts_us: Microseconds) -> WriteDecision:
        """The verdict on a write with this timestamp (µs) now."""
        with self._lock:
            return self._metadata.decide(write_ts_us, self._now_us(), undecided=tuple(self._undecided.values()))

    def get_stream(self, write_ts_us: Microseconds, token: int) -> bytes:
        """The stream ID (16 bytes) for a write of `token` with this timestamp (µs).

        Raises:
            WriteRefused: the write is not taken now; where its generation could not be read the last error is told.
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

    def _try(self, id: GenerationId) -> bool:
        """Read a generation once; whatever the outcome, what is known afterwards says so."""
        with self._lock:
            if self._metadata.known_or_obsolete(us_from_ms(id.time_ms), self._now_us()):
                self._give_up(id)
                return self._is_read(id)
        try:
            # Without the lock: a slow read holds no write up that does not need it.
            description = self._reader(id)
        except (PlatformError, OSError) as error:
            self._note_failure(id, str(error))
            return False
        if self._disk.keep(id):
            _log.info("node %s keeps generation %s, which starts at %s", self.host_id, id, format_ms(id.time_ms))
        with self._lock:
            used = self._metadata.insert(us_from_ms(id.time_ms), description, self._now_us())
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
            self._pending[id.time_ms] = PendingGeneration(id, attempts, reason)
        how = "tries again" if before is None else "goes on trying"
        _log.warning("node %s cannot read generation %s yet and %s: %s", self.host_id, id, how, reason)
        for listener in self._told:
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
        coordinator.tell(waiter.set)

    def step(self) -> Microseconds | None:
        """Try again if it is time to; answers when (µs) the next attempt is due, None while nothing is pending."""
        now_us = self._now_us()
        if not self._coordinator.pending():
            self._due_us = None
        elif self._due_us is None:
            self._due_us = now_us + self._retry_us
        elif now_us >= self._due_us:
            self._due_us = now_us + self._retry_us if self._coordinator.retry() else None
        return self._due_us

    def run(self) -> None:
        """Step by step until `close` is called, waiting with the waiter in between; for a thread that is handed in."""
        while not self._closed:
            due_us = self.step()
            self._waiter.wait(
                None if due_us is None else seconds_from_us(max(due_us - self._now_us(), Microseconds(0)))
            )
            self._waiter.clear()

    def close(self) -> None:
        """Let `run` return, at the latest after the attempt it is in."""
        self._closed = True
        self._waiter.set()
