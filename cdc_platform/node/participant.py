"""A node's part in the two-phase switch: its promises, the writes it accepts meanwhile, and their routing.

It stores generations like `generations.acceptance`, and the ring of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cdc_platform.clock import Microseconds, Milliseconds, us_from_ms
from cdc_platform.errors import WriteRefused
from cdc_platform.generations import (
    AcceptancePolicy,
    CdcMetadata,
    GenerationSwitch,
    SwitchTimes,
    TopologyDescription,
    UndecidedSwitch,
    WriteVerdict,
)
from cdc_platform.ring import Ring


@dataclass(frozen=True)
class LeasePromise:
    """A promise to accept no write with a timestamp of `lease_end_ms` or later until a generation's decision is known.

    `since_ms` is when its switch was prepared; both in ms.
    """

    generation_id: str
    lease_end_ms: Milliseconds
    since_ms: Milliseconds

    @property
    def undecided(self) -> UndecidedSwitch:
        """Return the promise as the acceptance rule's undecided switch."""
        return UndecidedSwitch(self.generation_id, us_from_ms(self.since_ms), us_from_ms(self.lease_end_ms))


@dataclass(frozen=True, eq=False)
class AcceptedWrite:
    """An accepted write: its generation's timestamp (µs), its stream's ID (16 bytes), and the ring that routes it."""

    generation_us: Microseconds
    stream_id: bytes
    ring: Ring


class SwitchParticipant:
    """One node. It knows only the generations passed to `know` and `learn`.

    `promises` are those it made before a restart. Not thread-safe.
    """

    def __init__(
        self,
        host_id: str,
        times: SwitchTimes,
        policy: AcceptancePolicy = "strict",
        promises: Iterable[LeasePromise] = (),
    ) -> None:
        self.host_id = host_id
        self._times = times
        self._metadata = CdcMetadata(us_from_ms(times.leeway_ms), policy)
        self._rings: dict[Microseconds, Ring] = {}
        self._prepared: dict[str, tuple[TopologyDescription, Ring]] = {}
        self._promises = {promise.generation_id: promise for promise in promises}

    @property
    def promises(self) -> tuple[LeasePromise, ...]:
        """Return the promises whose decision is not known yet."""
        return tuple(self._promises.values())

    @property
    def times_us(self) -> tuple[Microseconds, ...]:
        """Return the timestamps (µs) of the generations it can write to, ascending."""
        return tuple(time for time in self._metadata.times_us if time in self._rings)

    def know(self, time_ms: Milliseconds, description: TopologyDescription, ring: Ring, now_us: Microseconds) -> None:
        """Add a committed generation, with the ring from its timestamp on."""
        if self._metadata.insert(us_from_ms(time_ms), description, now_us):
            self._rings[us_from_ms(time_ms)] = ring

    def promise(
        self, switch: GenerationSwitch, description: TopologyDescription, ring: Ring, now_us: Microseconds
    ) -> LeasePromise:
        """Store a whole generation as prepared and promise to wait; repeated calls return the first promise."""
        self._prepared[switch.generation_id] = (description, ring)
        if switch.generation_id not in self._promises:
            end = self._times.lease_end_ms(now_us)
            self._promises[switch.generation_id] = LeasePromise(switch.generation_id, end, switch.prepared_at_ms)
        return self._promises[switch.generation_id]

    def learn(self, switch: GenerationSwitch, now_us: Microseconds) -> bool:
        """Learn the register's state of a switch. A decision ends the promise.

        Return True if the state was applied. Return False if a committed generation must be read first: then call
        `promise` or `know` for it and learn again. Until then the promise holds, and writes that belong to the
        generation are refused even without a promise, as after a restart.
        """
        time = switch.time_ms
        if time is not None and not self._metadata.known_or_obsolete(us_from_ms(time), now_us):
            prepared = self._prepared.get(switch.generation_id)
            if prepared is None:
                self._metadata.prepare(us_from_ms(time), now_us)
                return False
            self.know(time, *prepared, now_us)
        if switch.is_decided:
            self._promises.pop(switch.generation_id, None)
            self._prepared.pop(switch.generation_id, None)
        return True

    def accept(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> AcceptedWrite:
        """Accept a write: its timestamp determines the generation, and thereby the stream and the ring.

        Raises:
            WriteRefused: the acceptance rule refuses it, or it needs a decision that is not known (UNDECIDED).
        """
        undecided = [promise.undecided for promise in self._promises.values()]
        stream = self._metadata.get_stream(write_ts_us, token, now_us, undecided=undecided)
        generation = self._metadata.generation_used_at(write_ts_us)
        if generation is None:
            raise WriteRefused(WriteVerdict.NO_STREAM, f"no generation operates at {write_ts_us} µs")
        for time in self._rings.keys() - set(self._metadata.times_us):
            del self._rings[time]
        return AcceptedWrite(generation, stream, self._rings[generation])
