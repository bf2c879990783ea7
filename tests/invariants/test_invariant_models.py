"""The pandera models: each declared invariant is a check of its name, which fails for what breaks it alone."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from support.worlds.invariant_seeds import ONE, OWNERS, SeededLake, generation_rows, host_id, with_low_bits

from cdc_platform.invariants import audit_description, models
from cdc_platform.invariants.facts import Facts, judged
from cdc_platform.invariants.families import Invariant
from cdc_platform.invariants.findings import DECLARED, SHOWN, STREAM_FORMAT, Tally, add_up
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.volume import Workers
from cdc_platform.ring import Node, Ring

RANGES = 5


def facts(generation: int = 0) -> dict[str, np.ndarray]:
    """Facts of sound ranges, against the order of the ring."""
    sound = {name: np.zeros(RANGES, dtype=np.int64) for name in models.FACTS}
    counted = {each.in_range.among: np.full(RANGES, 8) for each in models.IN_RANGES if each.in_range}
    return sound | counted | {"generation": np.full(RANGES, generation), "range_end": np.arange(RANGES)[::-1]}


def failing(columns: dict[str, np.ndarray]) -> dict[str | None, list[int]]:
    """The rows that fail the checks of the model of facts, by invariant."""
    found = models.failures(models.facts_model(), {name: columns[name] for name in models.JUDGED})
    return {failure.invariant: np.flatnonzero(failure.rows).tolist() for failure in found}


def summary(**changed: int) -> dict[str, np.ndarray]:
    """A summary of every declared invariant; `population` or `violations` of one is changed at a place."""
    columns = {
        "invariant": np.array(list(DECLARED), dtype=object),
        "population": np.ones(len(DECLARED), dtype=np.int64),
        "violations": np.zeros(len(DECLARED), dtype=np.int64),
    }
    for name, place in changed.items():
        columns[name][place] = 1 - columns[name][place]
    return columns


@pytest.mark.parametrize("invariant", models.IN_RANGES)
def test_a_fact_that_is_wrong_fails_its_check_alone(invariant: Invariant) -> None:
    """In the ranges that have it, more of them than a sample names."""
    assert invariant.in_range is not None
    assert failing(facts()) == {}
    wrong = facts()
    wrong[invariant.in_range.wrong][1:] = 2
    assert failing(wrong) == {invariant: [1, 2, 3, 4]}


def test_every_invariant_fails_its_check_of_a_summary_alone() -> None:
    """Of each family: a violation, and that nothing was looked at."""
    model = models.summary_model(tuple(DECLARED))
    assert models.failures(model, summary()) == []
    for place, name in enumerate(DECLARED):
        for what in ("population", "violations"):
            failed = models.failures(model, summary(**{what: place}))
            assert [failure.invariant for failure in failed] == [name], what


def test_a_frame_that_is_none_of_the_model_never_passes() -> None:
    """Counts that are no integers, a column that is missing: nothing of it holds."""
    for columns in (summary() | {"violations": np.zeros(len(DECLARED))}, {"invariant": np.array(list(DECLARED))}):
        assert all(failure.rows.all() for failure in models.failures(models.summary_model(tuple(DECLARED)), columns))
        assert models.failures(models.summary_model(tuple(DECLARED)), columns)
    for name in models.JUDGED:
        assert failing(facts() | {name: np.zeros(RANGES)}) == {None: list(range(RANGES))}
    for name in models.FACTS:
        odd = Facts()
        odd.add(facts() | {name: facts()[name].astype(float)}, [None] * RANGES, {})
        with pytest.raises(AssertionError, match="columns of their model"):
            list(judged(odd))


def test_generations_of_one_task_are_told_apart() -> None:
    """Each has its own sums and its own first failures, however their facts came in."""
    assert STREAM_FORMAT.in_range is not None
    gathered = Facts()
    for generation, wrong in ((1, 4), (0, 0), (1, 1)):
        columns = facts(generation)
        columns[STREAM_FORMAT.in_range.wrong][:wrong] = 3
        said = {(str(STREAM_FORMAT), row): f"range {columns['range_end'][row]}" for row in range(wrong)}
        gathered.add(columns, [None] * RANGES, said)
    found = {generation: tally for generation, tally in judged(gathered) if tally.invariant == STREAM_FORMAT}
    assert found[0] == Tally(STREAM_FORMAT, 40, 0)
    assert (found[1].population, found[1].violations) == (80, 15)
    assert [sample for _, sample in found[1].cases] == ["range 1", "range 2", "range 3"]


def test_samples_of_parts_add_up_to_the_first_on_the_ring() -> None:
    """Whichever part they are from, none twice, and no more than a line names."""
    parts = [Tally.of_cases(STREAM_FORMAT, 1, 1, [(place, f"range {place}")]) for place in (5, 1, 4, 1, 3)]
    total = add_up(parts)[STREAM_FORMAT]
    assert total.cases == ((1, "range 1"), (3, "range 3"), (4, "range 4"))
    assert (len(total.cases), total.told) == (SHOWN, "range 1; range 3; range 4")


def test_whose_a_range_is_is_told_where_the_table_says_it(lake: Lake) -> None:
    """A description has the owners of its ranges."""
    seeded = SeededLake(lake)
    rows = generation_rows(of_second=(0,))
    rows[2]["streams"][0] = with_low_bits(rows[2]["streams"][0], version=0)
    seeded.described(rows)
    ring = Ring.of([Node(uuid.UUID(int=1), tuple(sorted(OWNERS)), 4, 12)])
    found = audit_description(Workers.alone(), lake, ONE, Ring.of([]), ring)
    line = next(line for line in found if line.invariant == STREAM_FORMAT)
    assert line.sample.endswith(f"its version is 0, not 1 (owner {host_id(2)})")
