"""The columns that a query may read, determined from its text before anything is read."""

from __future__ import annotations

import pytest

from cdc_platform.query.spark_guard import check_spark_query, find_column_names

ALL = "all"
CASES = {
    "SELECT a, t.B FROM ks.t WHERE \"cdc$time\" > 1": {"a", "b", "cdc$time"},
    "SELECT count(*) FROM t": set(),
    "SELECT * FROM t": ALL,
    "SELECT t.* FROM t": ALL,
    "SELECT count(*), x.* FROM t AS x": ALL,
    "WITH g AS (SELECT max(time) AS m FROM t) SELECT m FROM g": {"time"},
    "SELECT a FROM t JOIN u USING (k) ORDER BY c": {"a", "k", "c"},
    "SELECT a FROM t NATURAL JOIN u": ALL,
    "SELECT s.x.y FROM t AS s": {"x"},
    "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.b = t.c)": {"a", "b", "c"},
    "SELECT sum(size(streams)) OVER (PARTITION BY p) FROM t": {"streams", "p"},
}  # fmt: skip


@pytest.mark.parametrize("query", CASES)
def test_columns_named_in_a_query_are_found(query: str) -> None:
    """Only columns that the query names, or all for a star or a join by equal names."""
    names, expected = find_column_names(check_spark_query(query)), CASES[query]
    assert (names is None) == (expected == ALL)
    if names is not None:
        assert names >= set(expected)
        assert len(names) < 12
