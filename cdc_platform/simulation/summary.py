"""Many histories under the same assumptions: what was violated, by which seeds, and the figures of all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc_platform.clock import seconds_from_us
from cdc_platform.simulation.assumptions import Assumptions, draw_plan
from cdc_platform.simulation.judge import Property, Verdict
from cdc_platform.simulation.judged import judge_plan
from cdc_platform.simulation.node_set import NodeSet

_SHOWN_SEEDS = 5
_FIGURES = {
    "refused_share": "share of writes refused",
    "outage_seconds": "longest run of refused writes, s",
    "apart_share": "share of rows apart from their base rows",
    "apart_seconds": "time with rows apart, s",
    "missed_rows": "rows missed by the reader",
    "read_lag_seconds": "reader's lag at a switch, s",
    "learn_seconds": "until the last node has learned, s",
}


@dataclass(frozen=True)
class Spread:
    """The median, the 99th percentile and the greatest of some values."""

    median: float
    p99: float
    worst: float


@dataclass
class SimulationSummary:
    """The verdicts on many histories. `seeds` is how many were run, `misplaced` counts writes in wrong generations."""

    seeds: int = 0
    failed: dict[Property, list[int]] = field(default_factory=lambda: defaultdict(list))
    refused: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    generations: int = 0
    misplaced: int = 0
    apart: int = 0
    missed: int = 0
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, seed: int, verdict: Verdict) -> None:
        """Count a verdict."""
        self.seeds += 1
        for property in verdict.broken:
            self.failed[property].append(seed)
        self.refused.update(verdict.refused)
        self.writes += verdict.writes
        self.generations += verdict.generations
        wrong = [each for each in verdict.violations if each.property is Property.RIGHT_GENERATION]
        self.misplaced += len(wrong)
        self.apart += verdict.apart
        self.missed += verdict.missed
        for name, value in _figures(verdict).items():
            if value is not None:
                self.values[name].append(value)

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a figure over the histories that have it, None if none has."""
        values = sorted(self.values.get(name, ()))
        if not values:
            return None
        return Spread(values[(len(values) - 1) // 2], values[-(-len(values) * 99 // 100) - 1], values[-1])

    def counts(self) -> dict[str, int]:
        """Return what was counted over all histories, by the names that people see."""
        return {
            "histories": self.seeds,
            "generations": self.generations,
            "accepted_writes": self.writes,
            "rows_in_wrong_generation": self.misplaced,
            "rows_apart": self.apart,
            "rows_missed": self.missed,
        }

    def property_rows(self) -> list[dict[str, object]]:
        """Return each property with the number of histories that violate it, and the first seeds of those."""
        return [
            {
                "property": property.value,
                "violations": len(self.failed.get(property, ())),
                "seeds": ", ".join(map(str, self.failed.get(property, ())[:_SHOWN_SEEDS])) or None,
            }
            for property in Property
        ]

    def figure_rows(self) -> list[dict[str, object]]:
        """Return the median, the 99th percentile and the worst of each figure that some history has."""
        rows: list[dict[str, object]] = []
        for name, label in _FIGURES.items():
            spread = self.spread(name)
            if spread is not None:
                values = {"median": spread.median, "p99": spread.p99, "worst": spread.worst}
                rows.append({"figure": label} | {key: round(value, 3) for key, value in values.items()})
        return rows

    @property
    def broken(self) -> bool:
        """Return True if a property did not hold in some history."""
        return any(self.failed.values())


def _figures(verdict: Verdict) -> Mapping[str, float | None]:
    """Return the figures of one history; durations in seconds."""
    return {
        "refused_share": verdict.refused_share,
        "outage_seconds": seconds_from_us(verdict.outage_us),
        "apart_share": verdict.apart / verdict.writes if verdict.writes else 0.0,
        "apart_seconds": seconds_from_us(verdict.apart_us),
        "missed_rows": float(verdict.missed),
        "read_lag_seconds": None if verdict.read_lag_us is None else seconds_from_us(verdict.read_lag_us),
        "learn_seconds": None if verdict.learn_us is None else seconds_from_us(verdict.learn_us),
    }


def simulate(
    assumptions: Assumptions,
    seeds: Iterable[int],
    nodes: NodeSet | None = None,
    on_history: Callable[[int], object] = lambda _: None,
) -> SimulationSummary:
    """Run and judge the history of each seed; `on_history` is called after each."""
    summary = SimulationSummary()
    for seed in seeds:
        summary.add(seed, judge_plan(draw_plan(assumptions, seed), nodes).verdict)
        on_history(seed)
    return summary


def find_failing_seed(
    assumptions: Assumptions,
    seeds: Sequence[int],
    fails: Callable[[Verdict], bool],
    nodes: NodeSet | None = None,
) -> int | None:
    """Return the first seed whose verdict fails, or None."""
    return next((seed for seed in seeds if fails(judge_plan(draw_plan(assumptions, seed), nodes).verdict)), None)
