"""Range tombstones: which rows they cover, their normal form, and the rows of the log that tell them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_model import ModelPartition

from cdc_platform.clock import Microseconds
from cdc_platform.cql.mutation import Mutation, merge
from cdc_platform.cql.ranges import Bound, RangeIndex, RangeTombstone, normal_form
from cdc_platform.cql.schema import CdcOptions, Column, TableSchema
from cdc_platform.cql.types import INT
from cdc_platform.log.replay.partitions import replay
from cdc_platform.log.rows import log_mutations

VALUES = range(4)


def _schema(*descending: bool) -> TableSchema:
    clustering = (Column(f"k{n}", INT, "clustering", down) for n, down in enumerate(descending))
    return TableSchema("ks", "t", (Column("p", INT, "partition"), *clustering), CdcOptions(enabled=True))


bounds = st.none() | st.builds(
    Bound, st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).map(tuple), st.booleans()
)
several = st.lists(st.builds(RangeTombstone, bounds, bounds, st.integers(1, 3)), max_size=5)
two_columns = st.tuples(st.booleans(), st.booleans()).map(lambda down: _schema(*down))


def _deleted(schema: TableSchema, ranges: Sequence[RangeTombstone]) -> dict[tuple, int | None]:
    """When the model says that each row is deleted."""
    model = ModelPartition({}, tuple(column.descending for column in schema.clustering_key), ranges=list(ranges))
    return {key: model.deleted(key) for key in product(VALUES, repeat=len(schema.clustering_key))}


@given(two_columns, several)
def test_the_normal_form_deletes_the_same_rows(schema: TableSchema, ranges: list[RangeTombstone]) -> None:
    """Row by row, for bounds on one or both columns, in either order, any overlap, empty and open ranges."""
    normal = normal_form(schema, ranges)
    index = RangeIndex(schema, normal)
    expected = _deleted(schema, ranges)
    assert _deleted(schema, normal) == expected
    assert {key: index.covering(key) for key in expected} == expected


@given(two_columns, several)
def test_the_normal_form_is_one_form(schema: TableSchema, ranges: list[RangeTombstone]) -> None:
    """It does not depend on the order of the ranges, does not change again, and no two of its ranges are one."""
    normal = normal_form(schema, ranges)
    assert normal_form(schema, reversed(ranges)) == normal
    assert normal_form(schema, normal) == normal
    for one, other in pairwise(normal):
        assert one.end is not None
        assert other.start is not None
        touching = one.end.prefix == other.start.prefix and one.end.inclusive != other.start.inclusive
        assert not (touching and one.timestamp == other.timestamp)


@given(two_columns, several)
def test_the_log_tells_every_range(schema: TableSchema, ranges: list[RangeTombstone]) -> None:
    """However ranges lie to each other, what is replayed are the same ranges."""
    merged = merge([Mutation(schema, (0,), range_tombstones=ranges)])
    logged = [row for part in log_mutations(merged) for row in part.rows]
    replayed = replay(schema, logged)
    found = replayed[schema.partition_bytes((0,))].range_tombstones if replayed else ()
    assert _deleted(schema, found) == _deleted(schema, ranges)
    assert tuple(found) == tuple(merged.range_tombstones)


def _told(schema: TableSchema, *ranges: RangeTombstone) -> list[tuple[Any, ...]]:
    parts = log_mutations(Mutation(schema, (0,), range_tombstones=ranges))
    names = [column.name for column in schema.clustering_key]
    return [(row["cdc$operation"], *(row[name] for name in names)) for part in parts for row in part.rows]


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        (Bound((0,), False), Bound((2,), True), [(6, 0, None, None), (7, 2, None, None)]),
        (Bound((0,), True), Bound((2,), False), [(5, 0, None, None), (8, 2, None, None)]),
        (None, Bound((3,), False), [(8, 3, None, None)]),
        (Bound((3,), True), None, [(5, 3, None, None)]),
        (Bound((0, 0), False), Bound((0, 3), False), [(6, 0, 0, None), (8, 0, 3, None)]),
        (Bound((0, 1, 1), True), Bound((0, 1), True), [(5, 0, 1, 1)]),
        (Bound((0,), True), Bound((0, 3), True), [(7, 0, 3, None)]),
        (Bound((1,), True), Bound((1,), True), [(5, 1, None, None), (7, 1, None, None)]),
        (Bound((1, 2), False), None, [(6, 1, 2, None), (7, None, None, None)]),
        (Bound((2,), False), Bound((2,), True), []),
        (Bound((3,), True), Bound((1,), True), []),
    ],
)
def test_a_range_is_one_row_a_bound_that_is_given(start: Bound | None, end: Bound | None, rows: list) -> None:
    """Operations 5 to 8; a side that follows from equal columns alone has no row; an open tuple relation tells both."""
    assert _told(_schema(False, False, False), RangeTombstone(start, end, Microseconds(7))) == rows


def test_an_open_end_before_an_open_start_is_told() -> None:
    """`k0 = 0 AND k1 > 3` and `k0 = 5 AND k1 < 2` in one batch would else read as one range."""
    first = RangeTombstone(Bound((0, 3), False), Bound((0,), True), Microseconds(7))
    second = RangeTombstone(Bound((5,), True), Bound((5, 2), False), Microseconds(7))
    assert _told(_schema(False, False), first, second) == [(6, 0, 3), (7, 0, None), (8, 5, 2)]


def test_bounds_are_in_clustering_order() -> None:
    """With a descending column the start is the larger value."""
    assert _told(_schema(True), RangeTombstone(Bound((5,), True), Bound((1,), False), Microseconds(7))) == [
        (5, 5),
        (8, 1),
    ]
    assert _told(_schema(True), RangeTombstone(Bound((1,), True), Bound((5,), False), Microseconds(7))) == []
