"""The keys that a statement or batch assigns to list values: how many there are, and in which order."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    Catalog,
    CollectionChange,
    Column,
    ExecutionContext,
    ListType,
    LivePartition,
    Mutation,
    StatementBinder,
    TableSchema,
    us_from_timeuuid,
)
from cdc_platform.cql import ast as s
from cdc_platform.cql.timeuuid import MAX_LIST_VALUES, ListCellKeys
from cdc_platform.cql.types import timeuuid_sort_key
from cdc_platform.errors import InputError

T = Microseconds(1_606_390_225_588_947)
SCHEMA = TableSchema("ks", "t", (Column("p", INT, "partition"), Column("l", ListType(INT))))
NAME = s.QualifiedName("ks", "t")


def _integer(value: int) -> s.Constant:
    return s.Constant("integer", value, str(value))


def _assign(count: int, sign: Literal["+", "prepend"]) -> s.Update:
    values = s.ListLiteral((_integer(0),) * count)
    where = (s.Relation(("p",), "=", (_integer(0),)),)
    return s.Update(NAME, (s.Assignment(s.WholeColumn("l"), values, sign, "l"),), where)


def _is_refused(*writes: s.Update) -> bool:
    catalog = Catalog()
    catalog.put(SCHEMA)
    binder = StatementBinder(catalog, ExecutionContext(T), lambda schema, key: LivePartition(Mutation(schema, key)))
    try:
        (mutation,) = binder.bind(s.Batch("unlogged", writes))
    except InputError as error:
        return "Too many list values per single CQL statement or batch" in str(error)
    change = mutation.rows[()].cells["l"]
    values: list[Any] = [write.assignments[0].value for write in writes]
    assert isinstance(change, CollectionChange)
    assert len(change.elements) == sum(len(value.items) for value in values)
    return False


@pytest.mark.long("a batch of as many values as there may be")
def test_the_list_values_of_a_batch_are_limited() -> None:
    """131,072 can be appended and one fewer prepended, counted together; up to the limit none is lost."""
    # UUID_gen::SUBMICRO_LIMIT; cql3/query_options.hh, next_list_append_seq and next_list_prepend_seq.
    assert MAX_LIST_VALUES == 131_072
    limit = MAX_LIST_VALUES - 1
    assert not _is_refused(_assign(limit, "+"), _assign(1, "+"))
    assert _is_refused(_assign(limit, "+"), _assign(2, "+"))
    assert not _is_refused(_assign(limit, "prepend"), _assign(0, "prepend"))
    assert _is_refused(_assign(1, "prepend"), _assign(limit, "prepend"))
    assert _is_refused(_assign(limit, "+"), _assign(1, "prepend"))
    assert not _is_refused(_assign(limit, "prepend"), _assign(1, "+"))


@pytest.mark.parametrize("sizes", [(1,) * 40, (300, 2, 17_000), (70_000, 61_000)])
def test_the_last_prepend_comes_first(sizes: tuple[int, ...]) -> None:
    """The values of each prepend keep their order, within the microsecond that mirrors the write's time around 2010."""
    keys = ListCellKeys()
    keys_by_prepend = [list(keys.prepended(T, size)) for size in sizes]
    ordered = [key for part in reversed(keys_by_prepend) for key in part]
    assert ordered == sorted(set(ordered), key=timeuuid_sort_key)
    assert {us_from_timeuuid(key) for key in ordered} == {2 * 1_262_304_000_000_000 - T}


def test_appends_follow_each_other_at_any_times() -> None:
    """Keys order by time, then by position in the batch; the first ten keys are 100 ns apart, as documented."""
    keys = ListCellKeys()
    earlier = list(keys.appended(T, 20))
    later = list(keys.appended(T, 17_000))
    between = list(keys.appended(Microseconds(T - 1), 3))
    ordered = [*between, *earlier, *later]
    assert ordered == sorted(set(ordered), key=timeuuid_sort_key)
    assert [key.int & (1 << 64) - 1 for key in earlier[:10]] == [0xAF55_0000_0000_0001] * 10
