"""Where the chance of network and gossip comes from: a seed, or numbers of the plan, which a library can shrink."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol


class Chance(Protocol):
    """A source of random numbers and events."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""
        ...

    def happens(self, share: float) -> bool:
        """Return True for that share of the calls."""
        ...


class SeededChance(random.Random):
    """Chance that follows from a seed."""

    def happens(self, share: float) -> bool:
        """Return True for that share of the calls."""
        return self.random() < share


class PlannedChance:
    """The numbers of a plan, one after the other from the first operation on; before and after them 0.

    0 is calm everywhere: no delay, no loss, and a peer with news.
    """

    def __init__(self, numbers: Sequence[float]) -> None:
        self._numbers = iter(numbers)
        self.started = False

    def random(self) -> float:
        """Return the next number."""
        return next(self._numbers, 0.0) if self.started else 0.0

    def happens(self, share: float) -> bool:
        """Return True if the next number is in the upper `share` of all."""
        return self.random() >= 1 - share if share else False
