"""The pandera models: each declared invariant is a check of its name, which fails for what breaks it alone."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from support.worlds.invariant_seeds import ONE, OWNERS, SeededLake, generation_rows, host_id, with_low_bits

from cdc_platform.checks import STREAM_FORMAT, Invariant, InvariantTally, audit_description, judge, sum_tallies
from cdc_platform.checks.invariants import INVARIANTS_BY_NAME, MAX_SAMPLES
from cdc_platform.checks.scan import RangeFacts, judge_range_facts
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.ring import Node, Ring

RANGES = 5


def facts(generation: int = 0) -> dict[str, np.ndarray]:
    """Facts of sound ranges, against the order of the ring."""
    sound = {name: np.zeros(RANGES, dtype=np.int64) for name in judge.FACT_COLUMNS}
    counted = {each.in_range.among: np.full(RANGES, 8) for each in judge.RANGE_INVARIANTS if each.in_range}
    return sound | counted | {"generation": np.full(RANGES, generation), "range_end": np.arange(RANGES)[::-1]}


def failing(columns: dict[str, np.ndarray]) -> dict[str | None, list[int]]:
    """The rows that fail the checks of the model of facts, by invariant."""
    found = judge.find_failures(judge.facts_model(), {name: columns[name] for name in judge.JUDGED_COLUMNS})
    return {failure.invariant: np.flatnonzero(failure.rows).tolist() for failure in found}


def summary(**changed: int) -> dict[str, np.ndarray]:
    """A summary of every declared invariant; `population` or `violations` of one is changed at a place."""
    columns = {
        "invariant": np.array(list(INVARIANTS_BY_NAME), dtype=object),
        "population": np.ones(len(INVARIANTS_BY_NAME), dtype=np.int64),
        "violations": np.zeros(len(INVARIANTS_BY_NAME), dtype=np.int64),
    }
    for name, place in changed.items():
        columns[name][place] = 1 - columns[name][place]
    return columns


@pytest.mark.parametrize("invariant", judge.RANGE_INVARIANTS)
def test_a_fact_that_is_wrong_fails_its_check_alone(invariant: Invariant) -> None:
    """In the ranges that have it, more of them than a sample names."""
    assert invariant.in_range is not None
    assert failing(facts()) == {}
    wrong = facts()
    wrong[invariant.in_range.wrong][1:] = 2
    assert failing(wrong) == {invariant: [1, 2, 3, 4]}


def test_every_invariant_fails_its_check_of_a_summary_alone() -> None:
    """Of each family: a violation, and that nothing was looked at."""
    model = judge.summary_model(tuple(INVARIANTS_BY_NAME))
    assert judge.find_failures(model, summary()) == []
    for place, name in enumerate(INVARIANTS_BY_NAME):
        for what in ("population", "violations"):
            failed = judge.find_failures(model, summary(**{what: place}))
            assert [failure.invariant for failure in failed] == [name], what


def test_a_frame_that_is_none_of_the_model_never_passes() -> None:
    """Counts that are no integers, a column that is missing: nothing of it holds."""
    for columns in (
        summary() | {"violations": np.zeros(len(INVARIANTS_BY_NAME))},
        {"invariant": np.array(list(INVARIANTS_BY_NAME))},
    ):
        assert all(
            failure.rows.all()
            for failure in judge.find_failures(judge.summary_model(tuple(INVARIANTS_BY_NAME)), columns)
        )
        assert judge.find_failures(judge.summary_model(tuple(INVARIANTS_BY_NAME)), columns)
    for name in judge.JUDGED_COLUMNS:
        assert failing(facts() | {name: np.zeros(RANGES)}) == {None: list(range(RANGES))}
    for name in judge.FACT_COLUMNS:
        odd = RangeFacts()
        odd.add(facts() | {name: facts()[name].astype(float)}, [None] * RANGES, {})
        with pytest.raises(AssertionError, match="columns of their model"):
            list(judge_range_facts(odd))


def test_generations_of_one_task_are_told_apart() -> None:
    """Each has its own sums and its own first failures, however their facts came in."""
    assert STREAM_FORMAT.in_range is not None
    gathered = RangeFacts()
    for generation, wrong in ((1, 4), (0, 0), (1, 1)):
        columns = facts(generation)
        columns[STREAM_FORMAT.in_range.wrong][:wrong] = 3
        said = {(str(STREAM_FORMAT), row): f"range {columns['range_end'][row]}" for row in range(wrong)}
        gathered.add(columns, [None] * RANGES, said)
    found = {generation: tally for generation, tally in judge_range_facts(gathered) if tally.invariant == STREAM_FORMAT}
    assert found[0] == InvariantTally(STREAM_FORMAT, 40, 0)
    assert (found[1].population, found[1].violations) == (80, 15)
    assert [sample for _, sample in found[1].cases] == ["range 1", "range 2", "range 3"]


def test_samples_of_parts_add_up_to_the_first_on_the_ring() -> None:
    """Whichever part they are from, none twice, and no more than a line names."""
    parts = [InvariantTally.of_cases(STREAM_FORMAT, 1, 1, [(place, f"range {place}")]) for place in (5, 1, 4, 1, 3)]
    total = sum_tallies(parts)[STREAM_FORMAT]
    assert total.cases == ((1, "range 1"), (3, "range 3"), (4, "range 4"))
    assert (len(total.cases), total.samples_text) == (MAX_SAMPLES, "range 1; range 3; range 4")


def test_whose_a_range_is_is_told_where_the_table_says_it(lake: Lake) -> None:
    """A description has the owners of its ranges."""
    seeded = SeededLake(lake)
    rows = generation_rows(of_second=(0,))
    rows[2]["streams"][0] = with_low_bits(rows[2]["streams"][0], version=0)
    seeded.described(rows)
    ring = Ring.of([Node(uuid.UUID(int=1), tuple(sorted(OWNERS)), 4, 12)])
    found = audit_description(TaskRunner.alone(), lake, ONE, Ring.of([]), ring)
    line = next(line for line in found if line.invariant == STREAM_FORMAT)
    assert line.sample.endswith(f"its version is 0, not 1 (owner {host_id(2)})")
