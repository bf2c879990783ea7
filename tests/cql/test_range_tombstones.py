"""Range tombstones: the rows that they cover, their normal form, and their rows in the log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.log_model import ModelPartition

from cdc_platform.cdclog import replay_log
from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    CdcOptions,
    Column,
    Mutation,
    RangeBound,
    RangeTombstone,
    TableSchema,
    merge_mutations,
    normalize_ranges,
)
from cdc_platform.cql.mutation import RangeTombstoneIndex

VALUES = range(4)


def _schema(*descending: bool) -> TableSchema:
    clustering = (Column(f"k{n}", INT, "clustering", down) for n, down in enumerate(descending))
    return TableSchema("ks", "t", (Column("p", INT, "partition"), *clustering), CdcOptions(enabled=True))


bounds = st.none() | st.builds(
    RangeBound, st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).map(tuple), st.booleans()
)
several = st.lists(st.builds(RangeTombstone, bounds, bounds, st.integers(1, 3)), max_size=5)
two_columns = st.tuples(st.booleans(), st.booleans()).map(lambda down: _schema(*down))


def _deleted_rows(schema: TableSchema, ranges: Sequence[RangeTombstone]) -> dict[tuple, int | None]:
    """Return when the model deletes each row."""
    model = ModelPartition({}, tuple(column.descending for column in schema.clustering_key), ranges=list(ranges))
    return {key: model.deleted(key) for key in product(VALUES, repeat=len(schema.clustering_key))}


@given(two_columns, several)
def test_the_normal_form_deletes_the_same_rows(schema: TableSchema, ranges: list[RangeTombstone]) -> None:
    """Row by row, for bounds on one or both columns, either order, any overlap, and empty and open ranges."""
    normal = normalize_ranges(schema, ranges)
    index = RangeTombstoneIndex(schema, normal)
    expected = _deleted_rows(schema, ranges)
    assert _deleted_rows(schema, normal) == expected
    assert {key: index.covering(key) for key in expected} == expected


@given(two_columns, several)
def test_the_normal_form_is_one_form(schema: TableSchema, ranges: list[RangeTombstone]) -> None:
    """The form is independent of the ranges' order, stable, and no two of its ranges can be joined."""
    normal = normalize_ranges(schema, ranges)
    assert normalize_ranges(schema, reversed(ranges)) == normal
    assert normalize_ranges(schema, normal) == normal
    for one, other in pairwise(normal):
        assert one.end is not None
        assert other.start is not None
        touching = one.end.prefix == other.start.prefix and one.end.inclusive != other.start.inclusive
        assert not (touching and one.timestamp == other.timestamp)


@given(two_columns, several)
def test_the_log_shows_every_range(schema: TableSchema, ranges: list[RangeTombstone]) -> None:
    """For any positions of the ranges, a replay gives equal ranges."""
    merged = merge_mutations([Mutation(schema, (0,), range_tombstones=ranges)])
    logged = [row for part in encode_mutation(merged) for row in part.rows]
    replayed = replay_log(schema, logged)
    replayed_ranges = replayed[schema.partition_bytes((0,))].range_tombstones if replayed else ()
    assert _deleted_rows(schema, replayed_ranges) == _deleted_rows(schema, ranges)
    assert tuple(replayed_ranges) == tuple(merged.range_tombstones)


def _logged_bounds(schema: TableSchema, *ranges: RangeTombstone) -> list[tuple[Any, ...]]:
    parts = encode_mutation(Mutation(schema, (0,), range_tombstones=ranges))
    names = [column.name for column in schema.clustering_key]
    return [(row["cdc$operation"], *(row[name] for name in names)) for part in parts for row in part.rows]


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        (RangeBound((0,), False), RangeBound((2,), True), [(6, 0, None, None), (7, 2, None, None)]),
        (RangeBound((0,), True), RangeBound((2,), False), [(5, 0, None, None), (8, 2, None, None)]),
        (None, RangeBound((3,), False), [(8, 3, None, None)]),
        (RangeBound((3,), True), None, [(5, 3, None, None)]),
        (RangeBound((0, 0), False), RangeBound((0, 3), False), [(6, 0, 0, None), (8, 0, 3, None)]),
        (RangeBound((0, 1, 1), True), RangeBound((0, 1), True), [(5, 0, 1, 1)]),
        (RangeBound((0,), True), RangeBound((0, 3), True), [(7, 0, 3, None)]),
        (RangeBound((1,), True), RangeBound((1,), True), [(5, 1, None, None), (7, 1, None, None)]),
        (RangeBound((1, 2), False), None, [(6, 1, 2, None), (7, None, None, None)]),
        (RangeBound((2,), False), RangeBound((2,), True), []),
        (RangeBound((3,), True), RangeBound((1,), True), []),
    ],
)
def test_a_range_has_one_row_per_given_bound(start: RangeBound | None, end: RangeBound | None, rows: list) -> None:
    """Operations 5 to 8; a side implied by equal columns has no row; an open tuple relation has both."""
    assert _logged_bounds(_schema(False, False, False), RangeTombstone(start, end, Microseconds(7))) == rows


def test_an_open_end_before_an_open_start_is_reported() -> None:
    """Otherwise `k0 = 0 AND k1 > 3` and `k0 = 5 AND k1 < 2` in one batch would read as one range."""
    first = RangeTombstone(RangeBound((0, 3), False), RangeBound((0,), True), Microseconds(7))
    second = RangeTombstone(RangeBound((5,), True), RangeBound((5, 2), False), Microseconds(7))
    assert _logged_bounds(_schema(False, False), first, second) == [(6, 0, 3), (7, 0, None), (8, 5, 2)]


def test_bounds_are_in_clustering_order() -> None:
    """With a descending column the start is the larger value."""
    assert _logged_bounds(
        _schema(True), RangeTombstone(RangeBound((5,), True), RangeBound((1,), False), Microseconds(7))
    ) == [
        (5, 5),
        (8, 1),
    ]
    assert (
        _logged_bounds(_schema(True), RangeTombstone(RangeBound((1,), True), RangeBound((5,), False), Microseconds(7)))
        == []
    )
