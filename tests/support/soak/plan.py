"""What happens during a soak and when: a year of a cluster, or a share of it, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cdc_platform.failpoints import EXPIRY_POINTS, HOURLY_POINTS, JOIN_POINTS, REWRITE_POINTS, SWITCH_POINTS

YEAR_HOURS = 8_760
YEAR_JOINS = 2_000
MAX_NODES = 10
"""Nodes of the ring. Each further join is followed by the departure of the oldest nodes."""
NODES_TO_LEAVE = 5
TABLET_COUNTS = (2, 4, 8, 4)
"""The tablet counts that follow each other: two splits and two merges in each round."""
FAULTS = ("full-disk", "no-spark", "kill-at-point", "kill-at-commit")
KILL_POINTS = (*JOIN_POINTS, *SWITCH_POINTS, *HOURLY_POINTS, *EXPIRY_POINTS, *REWRITE_POINTS)


@dataclass(frozen=True)
class Fault:
    """A fault of an hour: its kind, and the free bytes of a full disk, the commit of a kill, or the failpoint."""

    kind: str
    number: int = 0
    point: str = ""


@dataclass(frozen=True)
class Plan:
    """A soak: its length as a share of a year, and how much of its work Dagster's runs do.

    `tick_hours` is the number of hours between two rounds of sensor and schedule ticks. Dagster runs one in
    `dagster_every` of the requested joins and hours; the functions of commands do the others before the run starts.
    """

    share: float
    seed: int = 1
    tick_hours: int = 1
    dagster_every: int = 1
    joins_per_day: float = YEAR_JOINS * 24 / YEAR_HOURS
    fault_share: float = 0.05

    @property
    def hours(self) -> int:
        """Return the number of hours."""
        return max(1, round(YEAR_HOURS * self.share))

    @property
    def joins(self) -> int:
        """Return the number of nodes that join."""
        return max(2, round(self.hours / 24 * self.joins_per_day))

    def draws(self, *key: object) -> random.Random:
        """Return the random generator of a subject. It does not depend on what was drawn before."""
        return random.Random(repr((self.seed, *key)))

    def actions(self, hour: int) -> Iterator[dict[str, Any]]:
        """Yield what people and clients do in an hour, in order. Each action can be repeated."""
        for number in range(hour * self.joins // self.hours, (hour + 1) * self.joins // self.hours):
            yield {"kind": "join", "number": number}
            if number % NODES_TO_LEAVE == NODES_TO_LEAVE - 1:
                yield {"kind": "leave"}
        yield {"kind": "write", "hour": hour}
        if hour % 24 == 12:
            yield {"kind": "tablets", "count": TABLET_COUNTS[hour // 24 % len(TABLET_COUNTS)]}

    def fault(self, hour: int) -> Fault | None:
        """Return the fault of an hour, or None. No two hours in a row have one."""
        if hour % 2 or hour >= self.hours:
            return None
        draws = self.draws("fault", hour)
        # Work is done in the hours with ticks, so a fault in another hour would meet little of it. Half of these hours
        # are odd if the distance of ticks is.
        most = self.tick_hours if self.tick_hours % 2 == 0 else 2 * self.tick_hours
        if hour % self.tick_hours or draws.random() >= self.fault_share * most:
            return None
        kind = draws.choice(FAULTS)
        if kind == "full-disk":
            return Fault(kind, draws.choice((0, 4_096, 200 * 1024)))
        if kind == "kill-at-point":
            return Fault(kind, point=draws.choice(KILL_POINTS))
        return Fault(kind, draws.randrange(1, 12))
