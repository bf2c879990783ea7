"""The register of two-phase switches: one sequence of versions, changed by compare-and-set, readable by all."""

from __future__ import annotations

from uuid import UUID

from cdc_platform.clock import Milliseconds
from cdc_platform.generations import GenerationSwitch, SwitchPhase
from cdc_platform.simulation.observations import Decided
from cdc_platform.simulation.world import World


class Register:
    """The rows of all switches, and their version."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.version = 0
        self._rows: dict[str, GenerationSwitch] = {}

    def rows(self) -> list[GenerationSwitch]:
        """Return the switches in the order in which they were begun."""
        return list(self._rows.values())

    def get(self, generation_id: str) -> GenerationSwitch | None:
        """Return the switch to a generation, or None."""
        return self._rows.get(generation_id)

    @property
    def undecided(self) -> GenerationSwitch | None:
        """Return the switch without a decision, or None."""
        return next((row for row in self._rows.values() if not row.is_decided), None)

    @property
    def newest_ms(self) -> Milliseconds | None:
        """Return the timestamp of the newest committed generation."""
        return max((row.time_ms for row in self._rows.values() if row.time_ms is not None), default=None)

    def number_of(self, generation_id: str) -> int:
        """Return the number of a switch's generation."""
        return UUID(generation_id).int - 1

    def begin(self, number: int, participants: list[int]) -> None:
        """Enter the generation that operates at the start."""
        generation = self.world.generations[number]
        self._put(
            GenerationSwitch(
                str(generation.uuid),
                str(participants[0]),
                tuple(map(str, participants)),
                generation.time_ms,
                generation.time_ms,
                SwitchPhase.COMMITTED,
                time_ms=generation.time_ms,
            )
        )

    def compare_and_set(self, version: int, row: GenerationSwitch) -> bool:
        """Replace a row if nothing has changed since `version` was read; return True if it was replaced."""
        if version != self.version:
            return False
        self._put(row)
        return True

    def _put(self, row: GenerationSwitch) -> None:
        self.version += 1
        self._rows[row.generation_id] = row
        if row.is_decided:
            number = self.number_of(row.generation_id)
            self.world.history.add(Decided(self.world.now_us, number, row.time_ms))
            if row.time_ms is not None:
                self.world.set_time(number, row.time_ms)
                self.world.commit(int(row.decided_by or row.initiator), number)
