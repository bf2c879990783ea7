"""The pandera models: each declared invariant is a check of the same name, which fails for that invariant alone."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandera.pandas as pa
import pytest
from support.oracles import oracle
from support.worlds.invariant_seeds import (
    ONE,
    OWNERS,
    SeededLake,
    generation_rows,
    host_id,
    row_batch,
    row_tallies,
    with_low_bits,
    with_token,
)

from cdc_platform.checks import (
    STREAM_FORMAT,
    VNODE_COLOCATION,
    Invariant,
    InvariantTally,
    audit_description,
    judge,
    models,
    ranges,
    scan,
    sum_tallies,
)
from cdc_platform.checks.invariants import (
    GENERATION_INVARIANTS,
    INVARIANTS_BY_NAME,
    MAX_SAMPLES,
    REFINES_VNODES,
    RING_COVERED_ONCE,
    ROW_COUNT,
    SHARD_COLOCATION,
    STREAMS_UNIQUE,
    STREAMS_UNIQUE_ACROSS_GENERATIONS,
    TABLET_STREAM_AT_END,
    TABLET_STREAM_FORMAT,
)
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.ring import Node, Ring

MODELS = [
    model
    for model in vars(models).values()
    if isinstance(model, type) and issubclass(model, pa.DataFrameModel) and model.to_schema().checks
]
"""Every model that declares an invariant."""


def checks_of(model: Any) -> list[Any]:
    """Return the checks of a model's whole frame."""
    return list(model.to_schema().checks)


def summary(**changed: int) -> dict[str, np.ndarray]:
    """Return a summary of every declared invariant, with `population` or `violations` flipped at an index."""
    columns = {
        "invariant": np.array(list(INVARIANTS_BY_NAME), dtype=object),
        "population": np.ones(len(INVARIANTS_BY_NAME), dtype=np.int64),
        "violations": np.zeros(len(INVARIANTS_BY_NAME), dtype=np.int64),
    }
    for name, index in changed.items():
        columns[name][index] = 1 - columns[name][index]
    return columns


def test_each_check_of_a_model_matches_its_invariant() -> None:
    """The models declare each row invariant of a family once, with the description of its declaration."""
    declared = [check for model in MODELS for check in checks_of(model)]
    names = [check.name for check in declared]
    assert len(set(names)) == len(names)
    assert {check.name: check.description for check in declared} == {
        name: INVARIANTS_BY_NAME[name].meaning for name in names
    }
    on_rows = {*GENERATION_INVARIANTS} - {STREAMS_UNIQUE_ACROSS_GENERATIONS}
    assert on_rows | {TABLET_STREAM_FORMAT, TABLET_STREAM_AT_END} == set(names)


def test_every_invariant_fails_only_its_own_check() -> None:
    """A violation or an empty population fails only the check of that invariant."""
    model = judge.summary_model(tuple(INVARIANTS_BY_NAME))
    assert judge.find_failures(model, summary()) == []
    for index, name in enumerate(INVARIANTS_BY_NAME):
        for column in ("population", "violations"):
            failed = judge.find_failures(model, summary(**{column: index}))
            assert [failure.invariant for failure in failed] == [name], column


def test_a_frame_of_another_shape_never_passes() -> None:
    """Counts that are not integers and missing columns fail every check."""
    for columns in (
        summary() | {"violations": np.zeros(len(INVARIANTS_BY_NAME))},
        {"invariant": np.array(list(INVARIANTS_BY_NAME))},
    ):
        assert all(
            failure.rows.all()
            for failure in judge.find_failures(judge.summary_model(tuple(INVARIANTS_BY_NAME)), columns)
        )
        assert judge.find_failures(judge.summary_model(tuple(INVARIANTS_BY_NAME)), columns)
    for model in MODELS:
        columns = {str(name): column.to_numpy() for name, column in model.empty().items()}
        assert judge.find_failures(model, columns) == []
        for name in columns:
            wrong_type = {
                other: np.zeros(3, dtype=np.int32 if other == name else column.dtype)
                for other, column in columns.items()
            }
            assert {None} <= {failure.invariant for failure in judge.find_failures(model, wrong_type)}, (model, name)
            with pytest.raises(AssertionError, match="columns of its model"):
                judge.failed_rows(model, wrong_type)
        with pytest.raises(AssertionError, match="columns of its model"):
            judge.failed_rows(model, {name: columns[name] for name in list(columns)[1:]})


def tallies_of_violation(invariant: str) -> dict[str, InvariantTally]:
    """Return the tallies of a generation in which one stream breaks an invariant."""
    rows = generation_rows()
    stream = rows[1]["streams"][1]
    rows[1]["streams"][1] = {
        VNODE_COLOCATION: with_token(rows[1]["streams"][1], 2**62 - 1),
        SHARD_COLOCATION: with_token(stream, oracle.unpack_stream_id(rows[1]["streams"][2])[0]),
        STREAM_FORMAT: with_low_bits(stream, version=0),
        STREAMS_UNIQUE: rows[1]["streams"][2],
    }[INVARIANTS_BY_NAME[invariant]]
    return row_tallies(rows)


@pytest.mark.parametrize("invariant", [VNODE_COLOCATION, SHARD_COLOCATION, STREAM_FORMAT, STREAMS_UNIQUE])
def test_without_its_check_the_model_passes_a_violation(invariant: Invariant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the model's check finds the violation: a model without it passes."""
    assert tallies_of_violation(invariant)[invariant].violations == 1
    schema = copy.deepcopy(models.StreamModel.to_schema())
    schema.checks = [check for check in checks_of(models.StreamModel) if check.name != invariant]
    monkeypatch.setattr(models, "StreamModel", schema)
    assert tallies_of_violation(invariant)[invariant].violations == 0


CONTROLS: dict[str, tuple[Any, Callable[[], InvariantTally]]] = {
    RING_COVERED_ONCE: (models.RangeModel, lambda: ranges.check_ring_coverage(np.array([1, 1, 2]))),
    REFINES_VNODES: (models.RingTokenModel, lambda: ranges.check_refinement(np.array([1, 3]), np.array([2]))),
    ROW_COUNT: (models.RowCountModel, lambda: ranges.check_row_count(3, [4], "the ring")),
}
"""For each invariant of ranges, its model and a violation of it."""


@pytest.mark.parametrize("invariant", CONTROLS)
def test_without_its_check_a_model_of_ranges_passes_a_violation(
    invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the check of a model of ranges finds its violation."""
    model, violate = CONTROLS[invariant]
    assert violate().violations == 1
    schema = copy.deepcopy(model.to_schema())
    schema.checks = []
    monkeypatch.setattr(models, model.__name__, schema)
    assert violate().violations == 0


def test_generations_of_one_task_stay_separate() -> None:
    """Each generation has its own sums and first failures, whatever the order and the frames of its rows."""
    audit = scan.StreamAudit()
    for generation, wrong in ((1, 4), (0, 0), (1, 1)):
        rows = generation_rows(seed=generation)
        for row in rows[:wrong]:
            row["streams"][0] = with_low_bits(row["streams"][0], version=0)
        batch = row_batch(rows)
        audit.add(batch, scan.GenerationRanges(np.sort(batch.range_ends)), generation)
    tallies = {generation: tally for generation, tally in audit.finish() if tally.invariant == STREAM_FORMAT}
    streams = sum(len(row["streams"]) for row in generation_rows())
    assert tallies[0] == InvariantTally(STREAM_FORMAT, streams, 0)
    assert (tallies[1].population, tallies[1].violations) == (2 * streams, 5)
    assert [range_end for range_end, _ in tallies[1].cases] == sorted(OWNERS)[:MAX_SAMPLES]


def test_samples_of_parts_add_up_to_the_first_cases_on_the_ring() -> None:
    """The sum has the first cases of any part, without repetitions, and no more than a sample names."""
    parts = [
        InvariantTally.of_cases(STREAM_FORMAT, 1, 1, [(range_end, f"range {range_end}")])
        for range_end in (5, 1, 4, 1, 3)
    ]
    total = sum_tallies(parts)[STREAM_FORMAT]
    assert total.cases == ((1, "range 1"), (3, "range 3"), (4, "range 4"))
    assert (len(total.cases), total.samples_text) == (MAX_SAMPLES, "range 1; range 3; range 4")


def test_the_owner_of_a_range_is_named_where_the_table_has_it(lake: Lake) -> None:
    """A description has the owners of its ranges, so the sample names the owner."""
    seeded = SeededLake(lake)
    rows = generation_rows(of_second=(0,))
    rows[2]["streams"][0] = with_low_bits(rows[2]["streams"][0], version=0)
    seeded.described(rows)
    ring = Ring.of([Node(uuid.UUID(int=1), tuple(sorted(OWNERS)), 4, 12)])
    findings = audit_description(TaskRunner.alone(), lake, ONE, Ring.of([]), ring)
    line = next(line for line in findings if line.invariant == STREAM_FORMAT)
    assert line.sample.endswith(f"its version is 0, not 1 (owner {host_id(2)})")
