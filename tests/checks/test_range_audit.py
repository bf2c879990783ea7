"""The audit of a generation's ranges: coverage, refinement and row count."""

from __future__ import annotations

import numpy as np
import pytest

from cdc_platform.checks import InvariantTally
from cdc_platform.checks.ranges import check_refinement, check_ring_coverage, check_row_count


def numbers(*values: int) -> np.ndarray:
    """Return a column of integers."""
    return np.array(values, dtype=np.int64)


def summary(tally: InvariantTally) -> tuple[int, int, str]:
    """Return the population, violations and sample of a tally."""
    return tally.population, tally.violations, tally.sample


@pytest.mark.parametrize(
    ("ends", "starts"),
    [((5,), (5,)), ((-7, 5), (5, -7)), ((-7, 0, 9), (9, -7, 0)), ((-7, 0, 9), None)],
)
def test_contiguous_ranges_cover_the_ring(ends: tuple[int, ...], starts: tuple[int, ...] | None) -> None:
    """The first range wraps around from the last; a single range is the whole ring."""
    assert summary(check_ring_coverage(numbers(*ends), None if starts is None else numbers(*starts))) == (
        len(ends),
        0,
        "",
    )


@pytest.mark.parametrize(
    ("ends", "starts", "violations", "sample"),
    [
        ((-7, 0, 9), (9, -7, 1), 1, "range end 9 starts at 1, the range before ends at 0"),
        ((-7, 0, 9), (0, -7, 0), 1, "range end -7 starts at 0, the range before ends at 9"),
        ((5,), (4,), 1, "range end 5 starts at 4, the range before ends at 5"),
        ((-7, -7, 9), (9, -7, -7), 1, "range end -7 comes more than once"),
        ((-7, 0, 0, 9), None, 1, "range end 0 comes more than once"),
        ((-(2**63), 0), None, 1, f"range end {-(2**63)} is no key's token"),
    ],
)
def test_gaps_overlaps_and_repetitions_are_found(
    ends: tuple[int, ...], starts: tuple[int, ...] | None, violations: int, sample: str
) -> None:
    """Each range that does not start at the end of the previous one is a violation."""
    tally = check_ring_coverage(numbers(*ends), None if starts is None else numbers(*starts))
    assert summary(tally) == (len(ends), violations, sample)


def test_every_token_of_the_rings_ends_a_range() -> None:
    """A token that occurs twice in the ring counts once; more ranges than tokens are no violation."""
    assert summary(check_refinement(numbers(1, 2, 3, 4), numbers(4, 2, 2))) == (2, 0, "")
    assert summary(check_refinement(numbers(1, 3, 4), numbers(4, 2, 5))) == (3, 2, "token 2 of the ring ends no range")
    assert summary(check_refinement(numbers(1, 2), numbers())) == (0, 0, "")


def test_every_claim_of_a_row_count_has_to_hold() -> None:
    """Each row that claims another count is a violation, and so is a row that claims none."""
    assert summary(check_row_count(3, [3], "num_ranges")) == (1, 0, "")
    assert summary(check_row_count(3, [4], "num_ranges")) == (1, 1, "num_ranges claims 4 rows, 3 are there")
    assert summary(check_row_count(3, [3, None], "num_ranges")) == (2, 1, "num_ranges claims null rows, 3 are there")
    assert summary(check_row_count(3, [-1], "num_ranges")) == (1, 1, "num_ranges claims -1 rows, 3 are there")
    assert summary(check_row_count(3, [], "num_ranges")) == (0, 0, "")
