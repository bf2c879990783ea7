"""The facts of ranges, as the pass over their rows gathers them, and what the model of facts finds wrong with them.

One frame for everything that a task has read. How facts are made of rows is in `rows`; what they have to be is
declared in `findings`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cdc_platform.invariants import models
from cdc_platform.invariants.families import Invariant
from cdc_platform.invariants.findings import SHOWN, Tally
from cdc_platform.ring.tokens import Bools, Int64s

Said = Mapping[tuple[str, int], str]
"""What is wrong with a range, in words, by invariant and row."""


@dataclass
class Facts:
    """Facts of ranges in the order in which they were read: the columns of `models.FACTS`, int64[n], and owners.

    `said` has words for the first ranges of each part that break an invariant; `rows` counts all ranges.
    """

    parts: list[Mapping[str, Int64s]] = field(default_factory=list)
    owners: list[Sequence[str | None]] = field(default_factory=list)
    said: dict[tuple[str, int], str] = field(default_factory=dict)
    rows: int = 0

    def add(self, columns: Mapping[str, Int64s], owners: Sequence[str | None], said: Said) -> None:
        """Put the facts of further ranges behind those that are there; `said` counts rows from the first of these."""
        self.said.update({(name, self.rows + row): words for (name, row), words in said.items()})
        self.parts.append(columns)
        self.owners.append(owners)
        self.rows += len(owners)


@dataclass(frozen=True, eq=False)
class _Frame:
    """All facts of a task by generation, and in each as the ranges lie on the ring; `order` is where each row was.

    `firsts` int64[g] are the first rows of the generations.
    """

    facts: Facts
    columns: Mapping[str, Int64s]
    owners: np.ndarray
    order: Int64s
    firsts: Int64s

    def said(self, invariant: Invariant, row: int) -> str:
        """What is wrong with a range, and whose it is where that is known."""
        words = self.facts.said[invariant, int(self.order[row])]
        return words if self.owners[row] is None else f"{words} (owner {self.owners[row]})"


def judged(facts: Facts) -> Iterator[tuple[int, Tally]]:
    """Each generation, by the number that its facts have, with its tallies of `models.IN_RANGES`.

    The samples are the first ranges on the ring that fail.
    """
    if not facts.rows:
        return
    frame = _frame(facts)
    failed = _failed(frame)
    for invariant in models.IN_RANGES:
        yield from _tallies(invariant, frame, failed.get(invariant))


def _frame(facts: Facts) -> _Frame:
    columns = {name: np.concatenate([part[name] for part in facts.parts]) for name in models.FACTS}
    order = np.lexsort((columns["range_end"], columns["generation"]))
    columns = {name: column[order] for name, column in columns.items()}
    owners = np.array([owner for some in facts.owners for owner in some], dtype=object)[order]
    generations = columns["generation"]
    firsts = np.flatnonzero(np.append(True, generations[1:] != generations[:-1]))
    return _Frame(facts, columns, owners, order, firsts)


def _failed(frame: _Frame) -> dict[str, Bools]:
    """The rows that fail the check of each invariant that any row fails."""
    failures = models.failures(models.facts_model(), {name: frame.columns[name] for name in models.JUDGED})
    failed = {failure.invariant: failure.rows for failure in failures if failure.invariant is not None}
    kinds = {column.dtype for column in frame.columns.values()}
    assert (kinds, len(failed)) == ({np.dtype(np.int64)}, len(failures)), "facts are made in the columns of their model"
    return failed


def _tallies(invariant: Invariant, frame: _Frame, failed: Bools | None) -> Iterator[tuple[int, Tally]]:
    assert invariant.in_range is not None
    generations = frame.columns["generation"][frame.firsts].tolist()
    populations = np.add.reduceat(frame.columns[invariant.in_range.among], frame.firsts).tolist()
    unjudged = [0] * len(generations)
    if invariant.in_range.unjudged is not None:
        unjudged = np.add.reduceat(frame.columns[invariant.in_range.unjudged], frame.firsts).tolist()
    if failed is None:
        for generation, population, left in zip(generations, populations, unjudged, strict=True):
            yield generation, Tally(invariant, population, 0, unjudged=left)
        return
    wrong = np.where(failed, frame.columns[invariant.in_range.wrong], 0)
    violations = np.add.reduceat(wrong, frame.firsts).tolist()
    rows = np.flatnonzero(failed)
    begins = np.searchsorted(rows, frame.firsts).tolist()
    ends = [*begins[1:], len(rows)]
    for generation, population, count, begin, end, left in zip(
        generations, populations, violations, begins, ends, unjudged, strict=True
    ):
        shown = rows[begin : min(end, begin + SHOWN)].tolist()
        cases = [(int(frame.columns["range_end"][row]), frame.said(invariant, row)) for row in shown]
        yield generation, Tally.of_cases(invariant, population, count, cases, left)
