"""Judges the summary of an audit by its pandera model: no violations, something was checked, every invariant once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdc_platform.invariants import models
from cdc_platform.invariants.findings import INVARIANTS, Finding


@dataclass(frozen=True)
class Judgement(Finding):
    """A finding and whether it is good: `passed` is False for violations, for nothing checked, for what could not be
    judged, and for a line that is missing, there twice, or that nobody asked for. What is `unknown` has neither passed
    nor failed.
    """

    passed: bool = False

    @property
    def failed(self) -> bool:
        """Whether something is wrong, or nothing was proven that could have been."""
        return not (self.passed or self.unknown)

    @property
    def said(self) -> str:
        """The judgement in words."""
        if self.passed:
            return f"{self.population:,} checked"
        if self.violations:
            return f"{self.violations:,} of {self.population:,} violate it: {self.sample}"
        return self.sample or "nothing was checked"


def judge(findings: Sequence[Finding], expected: Sequence[str] = INVARIANTS) -> list[Judgement]:
    """Judge a summary; one judgement an expected invariant, in the order of `expected`, then those not expected.

    An invariant that is missing has failed, of which nothing was checked; of one that is there twice the lines add up.
    """
    wrong = _wrong(findings, expected)
    names = dict.fromkeys([*expected, *(line.invariant for line in findings)])
    return [_judgement(name, [line for line in findings if line.invariant == name], name in wrong) for name in names]


def _judgement(name: str, lines: Sequence[Finding], wrong: bool) -> Judgement:
    sample = next((line.sample for line in lines if line.sample), "")
    if wrong and not sample:
        told = {0: "it was not audited", 1: "nobody asked for it, or nothing was checked"}
        sample = told.get(len(lines), "it is in the summary twice")
    counts = (sum(getattr(line, what) for line in lines) for what in ("population", "violations", "unjudged"))
    population, violations, unjudged = counts
    wrong = wrong or unjudged > 0
    unknown = wrong and len(lines) == 1 and lines[0].unknown
    return Judgement(name, population, violations, sample, unknown, unjudged, not wrong)


def _wrong(lines: Sequence[Finding], expected: Sequence[str]) -> set[str]:
    """The invariants that the model of the summary finds wrong."""
    names = [str(line.invariant) for line in lines]
    columns = {
        "invariant": np.array(names, dtype=object),
        "population": np.array([line.population for line in lines], dtype=np.int64),
        "violations": np.array([line.violations for line in lines], dtype=np.int64),
    }
    wrong: set[str] = set()
    for failure in models.failures(models.summary_model(tuple(map(str, expected))), columns):
        if failure.invariant is not None:
            wrong.add(failure.invariant)
        elif failure.rows.all():  # the summary is none: then no line of it is trusted
            wrong |= {*expected, *names}
        else:
            wrong |= {names[row] for row in np.flatnonzero(failure.rows).tolist()}
    return wrong
