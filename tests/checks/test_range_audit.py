"""The audit of a generation's ranges: cover, refinement, number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from cdc_platform.checks import InvariantTally
from cdc_platform.checks.ranges import check_refinement, check_ring_coverage, check_row_count


def numbers(*values: int) -> np.ndarray:
    """A column."""
    return np.array(values, dtype=np.int64)


def told(tally: InvariantTally) -> tuple[int, int, str]:
    """What a line of the summary would say."""
    return tally.population, tally.violations, tally.sample


@pytest.mark.parametrize(
    ("ends", "starts"),
    [((5,), (5,)), ((-7, 5), (5, -7)), ((-7, 0, 9), (9, -7, 0)), ((-7, 0, 9), None)],
)
def test_ranges_that_follow_each_other_cover_the_ring(ends: tuple[int, ...], starts: tuple[int, ...] | None) -> None:
    """The first wraps from the last; the only one is the whole ring."""
    assert told(check_ring_coverage(numbers(*ends), None if starts is None else numbers(*starts))) == (len(ends), 0, "")


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
def test_a_gap_an_overlap_and_a_repetition_are_found(
    ends: tuple[int, ...], starts: tuple[int, ...] | None, violations: int, sample: str
) -> None:
    """Each range that does not start where the one before ends is a violation."""
    found = check_ring_coverage(numbers(*ends), None if starts is None else numbers(*starts))
    assert told(found) == (len(ends), violations, sample)


def test_every_token_of_the_rings_ends_a_range() -> None:
    """A token that is asked for twice counts once; more ranges than tokens are no violation."""
    assert told(check_refinement(numbers(1, 2, 3, 4), numbers(4, 2, 2))) == (2, 0, "")
    assert told(check_refinement(numbers(1, 3, 4), numbers(4, 2, 5))) == (3, 2, "token 2 of the ring ends no range")
    assert told(check_refinement(numbers(1, 2), numbers())) == (0, 0, "")


def test_every_claim_of_a_row_count_has_to_hold() -> None:
    """Rows that disagree are a violation each, and a row that claims nothing is one."""
    assert told(check_row_count(3, [3], "num_ranges")) == (1, 0, "")
    assert told(check_row_count(3, [4], "num_ranges")) == (1, 1, "num_ranges claims 4 rows, 3 are there")
    assert told(check_row_count(3, [3, None], "num_ranges")) == (2, 1, "num_ranges claims null rows, 3 are there")
    assert told(check_row_count(3, [-1], "num_ranges")) == (1, 1, "num_ranges claims -1 rows, 3 are there")
    assert told(check_row_count(3, [], "num_ranges")) == (0, 0, "")
