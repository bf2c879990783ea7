"""Validation of frames by pandera models, the model of a summary, and the check results that follow from findings.

The models are pandera's pandas models on purpose: the same summary model in pandera.pyspark takes 12 Spark jobs and
1.3 s. Functions import pandera and pandas on first use, because that takes longer than a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cdc_platform.checks.invariants import GENERATION_INVARIANTS, INVARIANTS_BY_NAME, Finding, Invariant
from cdc_platform.ring import Bools


@cache
def summary_model(expected: tuple[str, ...]) -> Any:
    """Return the model of a summary with exactly one finding for each of the `expected` invariants.

    Each finding must have checked something and found no violation.
    """
    import pandera.pandas as pa

    return pa.DataFrameSchema(
        {
            # With a text type pandera would examine each value; the check tests whether they are ours.
            "invariant": pa.Column(object, pa.Check.isin(expected)),
            "population": _integer_column(),
            "violations": _integer_column(),
        },
        checks=[_summary_check(INVARIANTS_BY_NAME[name]) for name in expected],
        strict=True,
        ordered=True,
        name="summary",
    )


@dataclass(frozen=True, eq=False)
class ModelFailure:
    """A failed check of a frame: the check's invariant, or None, and the `rows` (bool[n]) that fail it."""

    invariant: str | None
    rows: Bools


def find_failures(model: Any, columns: Mapping[str, Any]) -> list[ModelFailure]:
    """Return all failures that pandera finds in a frame of these columns.

    If the frame does not match the model at all, or a check of the whole frame fails, every row fails.
    """
    import pandas as pd
    from pandera.config import ValidationDepth, config_context
    from pandera.errors import SchemaErrors

    frame = pd.DataFrame(dict(columns), copy=False)
    try:
        # The environment can disable validation; data that was not validated must not pass.
        with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
            model.validate(frame, lazy=True, inplace=True)
    except SchemaErrors as found:
        return [_failure_from_error(error, len(frame)) for error in found.schema_errors]
    return []


def failed_rows(model: Any, columns: Mapping[str, Any]) -> dict[str, Bools]:
    """Return the rows (bool[n]) that fail each invariant's check, for the invariants that any row fails.

    `columns` are those of the model.
    """
    failures = find_failures(model, columns)
    failed = {failure.invariant: failure.rows for failure in failures if failure.invariant is not None}
    assert len(failed) == len(failures), "a frame has the columns of its model"
    return failed


def _failure_from_error(error: Any, rows: int) -> ModelFailure:
    name = getattr(error.check, "name", None)
    output = np.asarray(error.check_output)
    by_row = output.dtype == bool and output.shape == (rows,)
    return ModelFailure(
        name if name in INVARIANTS_BY_NAME else None, np.logical_not(output) if by_row else np.ones(rows, dtype=bool)
    )


def preload_models() -> None:
    """Import what judging needs and build the models, for a process whose forks will judge."""
    from cdc_platform.checks.models import StreamModel

    find_failures(StreamModel, {str(name): column.to_numpy() for name, column in StreamModel.empty().items()})


def _integer_column(check: Any = None) -> Any:
    """Return an int64 column. It has no nulls, and checking for them would take a fifth of the time."""
    import pandera.pandas as pa

    return pa.Column("int64", check, nullable=True)


def _summary_check(invariant: Invariant) -> Any:
    import pandera.pandas as pa

    return pa.Check(_summary_predicate(invariant), **_check_description(invariant))


def _check_description(invariant: Invariant) -> dict[str, Any]:
    """Return pandera's arguments that describe an invariant's check."""
    return {"name": str(invariant), "title": str(invariant), "description": invariant.meaning}


def _summary_predicate(invariant: str) -> Callable[[Any], bool]:
    def holds(summary: Any) -> bool:
        # Comparing columns in pandas takes a hundred times as long as comparing their numpy values.
        is_invariant = summary["invariant"].to_numpy() == invariant
        judged, wrong = (summary[name].to_numpy()[is_invariant] for name in ("population", "violations"))
        return len(judged) == 1 and bool(judged[0] > 0 and wrong[0] == 0)

    return holds


@dataclass(frozen=True)
class CheckResult(Finding):
    """A finding and its judgement.

    `passed` is False for violations, if nothing was checked, if something could not be judged, and for a finding that
    is missing, duplicated or unexpected. An `unknown` result has neither passed nor failed.
    """

    passed: bool = False

    @property
    def failed(self) -> bool:
        """Return True if something is wrong, or if nothing was proven that could have been."""
        return not (self.passed or self.unknown)

    @property
    def message(self) -> str:
        """Return the judgement as text."""
        if self.passed:
            return f"{self.population:,} checked"
        if self.violations:
            return f"{self.violations:,} of {self.population:,} violate it: {self.sample}"
        return self.sample or "nothing was checked"


def judge_findings(findings: Sequence[Finding], expected: Sequence[str] = GENERATION_INVARIANTS) -> list[CheckResult]:
    """Judge a summary: one result per expected invariant, in the order of `expected`, then the unexpected ones.

    A missing invariant has failed, with nothing checked. The findings of a duplicated one are summed.
    """
    wrong = _failed_invariants(findings, expected)
    names = dict.fromkeys([*expected, *(line.invariant for line in findings)])
    return [_check_result(name, [line for line in findings if line.invariant == name], name in wrong) for name in names]


def _check_result(name: str, lines: Sequence[Finding], wrong: bool) -> CheckResult:
    sample = next((line.sample for line in lines if line.sample), "")
    if wrong and not sample:
        reasons = {0: "it was not audited", 1: "it was not requested, or nothing was checked"}
        sample = reasons.get(len(lines), "it is in the summary twice")
    counts = (sum(getattr(line, what) for line in lines) for what in ("population", "violations", "unjudged"))
    population, violations, unjudged = counts
    wrong = wrong or unjudged > 0
    unknown = wrong and len(lines) == 1 and lines[0].unknown
    return CheckResult(name, population, violations, sample, unknown, unjudged, not wrong)


def _failed_invariants(lines: Sequence[Finding], expected: Sequence[str]) -> set[str]:
    """Return the invariants that fail the model of the summary."""
    names = [str(line.invariant) for line in lines]
    columns = {
        "invariant": np.array(names, dtype=object),
        "population": np.array([line.population for line in lines], dtype=np.int64),
        "violations": np.array([line.violations for line in lines], dtype=np.int64),
    }
    wrong: set[str] = set()
    for failure in find_failures(summary_model(tuple(map(str, expected))), columns):
        if failure.invariant is not None:
            wrong.add(failure.invariant)
        elif failure.rows.all():  # not a summary at all, so no line of it is trusted
            wrong |= {*expected, *names}
        else:
            wrong |= {names[row] for row in np.flatnonzero(failure.rows).tolist()}
    return wrong
