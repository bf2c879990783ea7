"""How findings are judged: violations, empty populations, and missing, repeated or unexpected lines."""

from __future__ import annotations

import pytest

from cdc_platform.checks import (
    GENERATION_INVARIANTS,
    STREAM_FORMAT,
    Finding,
    InvariantTally,
    finding_from_tallies,
    judge_findings,
)
from cdc_platform.checks.invariants import RING_COVERED_ONCE, ROW_COUNT

SOUND = [Finding(name, 10, 0) for name in GENERATION_INVARIANTS]


def failed(findings: list[Finding], expected: tuple[str, ...] = GENERATION_INVARIANTS) -> list[str]:
    """Return the invariants that did not pass."""
    return [line.invariant for line in judge_findings(findings, expected) if not line.passed]


def test_sound_findings_pass() -> None:
    """Findings pass if every invariant occurs once, with a population and without violations."""
    assert failed(SOUND) == []
    assert [line.invariant for line in judge_findings(SOUND)] == list(GENERATION_INVARIANTS)
    assert failed([], ()) == []


@pytest.mark.parametrize("name", GENERATION_INVARIANTS)
def test_one_violation_fails_its_invariant_alone(name: str) -> None:
    """The result contains the numbers and the sample."""
    summary = [Finding(name, 10, 1, "it") if line.invariant == name else line for line in SOUND]
    assert failed(summary) == [name]
    line = next(line for line in judge_findings(summary) if line.invariant == name)
    assert (line.population, line.violations, line.sample, line.passed) == (10, 1, "it", False)


@pytest.mark.parametrize("name", GENERATION_INVARIANTS)
def test_nothing_checked_fails_its_invariant_alone(name: str) -> None:
    """An empty population proves nothing."""
    summary = [Finding(name, 0, 0, "no rows") if line.invariant == name else line for line in SOUND]
    assert failed(summary) == [name]


def test_a_violation_without_a_population_fails() -> None:
    """Rows that are all missing are a violation, although the population is 0."""
    assert failed([Finding(ROW_COUNT, 0, 3)], (ROW_COUNT,)) == [ROW_COUNT]


def test_a_missing_invariant_fails_and_is_named() -> None:
    """An invariant that was not audited fails with that reason."""
    summary = [line for line in SOUND if line.invariant != STREAM_FORMAT]
    assert failed(summary) == [STREAM_FORMAT]
    assert next(line for line in judge_findings(summary) if not line.passed).sample == "it was not audited"
    assert failed([]) == list(GENERATION_INVARIANTS)


def test_a_repeated_invariant_fails() -> None:
    """Two lines of one invariant become one failed result, with the sums."""
    summary = [*SOUND, Finding(RING_COVERED_ONCE, 5, 0)]
    assert failed(summary) == [RING_COVERED_ONCE]
    assert judge_findings(summary)[0].population == 15
    assert "twice" in judge_findings(summary)[0].sample


def test_an_unexpected_invariant_fails() -> None:
    """A line under a misspelt name does not count for the intended one."""
    assert failed([*SOUND, Finding("ring_covered_twice", 5, 0)]) == ["ring_covered_twice"]


def test_disabled_validation_is_enabled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A violation fails even if pandera's configuration disables validation."""
    from pandera.config import CONFIG

    monkeypatch.setattr(CONFIG, "validation_enabled", False)
    assert failed([Finding(ROW_COUNT, 1, 1)], (ROW_COUNT,)) == [ROW_COUNT]


def test_findings_of_several_generations_add_up() -> None:
    """The sample names its generation; an empty population states its reason."""
    parts = [
        ("a", InvariantTally(ROW_COUNT, 2, 0)),
        ("b", InvariantTally(ROW_COUNT, 3, 1, 0, "it")),
        ("c", InvariantTally(ROW_COUNT, 1, 1, 0, "x")),
    ]
    assert finding_from_tallies(ROW_COUNT, parts, "no rows") == Finding(ROW_COUNT, 6, 2, "generation b: it")
    assert finding_from_tallies(ROW_COUNT, [], "no rows") == Finding(ROW_COUNT, 0, 0, "nothing was checked: no rows")
