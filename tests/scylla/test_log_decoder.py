"""Pages of bytes as columns of the lake: nulls, values that no native column holds, and bytes that are no value."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from support.standin.live_log import defined

from cdc_platform.cdclog import EXACT, WRITTEN_AT, log_rows_from_arrow, log_table
from cdc_platform.clock import Microseconds
from cdc_platform.cql import get_log_columns, min_timeuuid
from cdc_platform.scylla import OtherColumns, RawPage, decode_log_rows

DDL = (
    "CREATE TABLE ks.t (p int PRIMARY KEY, d date, t timestamp, v varint, x text, u uuid, b boolean, f float) "
    "WITH cdc = {'enabled': 'true'};"
)
SCHEMA = defined(DDL)
HEAD = {
    "cdc$stream_id": bytes(16),
    "cdc$time": min_timeuuid(Microseconds(1_790_000_000_000_001)).bytes,
    "cdc$batch_seq_no": bytes(4),
    "cdc$operation": b"\2",
    "p": struct.pack(">i", 7),
}


def page(*rows: Mapping[str, bytes | None]) -> RawPage:
    """A page of rows, which have the head and what else is given."""
    names = tuple(each.name for each in get_log_columns(SCHEMA))
    whole = [{**HEAD, **row} for row in rows]
    columns = [pa.array([row.get(name) for row in whole], pa.binary()) for name in names]
    return RawPage(names, columns, len(rows))


@pytest.mark.parametrize("pages", [[page({}), page({"x": b"a"})], [page({}, {"x": b"a"})]])
def test_nulls_and_pages(pages: list[RawPage]) -> None:
    """A column that is null in a page and not in the next; the time of the write stands beside the timeuuid."""
    rows = decode_log_rows(SCHEMA, pages).rows
    assert rows["x"].to_pylist() == [None, "a"]
    assert rows[WRITTEN_AT].cast("int64").to_pylist() == [1_790_000_000_000_001] * 2
    assert rows.schema.equals(log_table(SCHEMA).schema)
    assert decode_log_rows(SCHEMA, pages, exact=True).rows.schema.equals(log_table(SCHEMA, exact=True).schema)


def test_far_values_stand_beside_the_nearest() -> None:
    """Of one page in columns at once, and of one whose odd bytes are looked at one by one."""
    far: dict[str, Any] = {"d": 2**31 - 1, "t": 2**63 - 1}
    as_bytes = {"d": struct.pack(">I", 2**32 - 1), "t": struct.pack(">q", 2**63 - 1)}
    for more in ([], [{"d": b"", "t": b""}]):
        rows = decode_log_rows(SCHEMA, [page({}, as_bytes, *more)]).rows
        assert EXACT in rows.column_names
        (_, found, *_) = log_rows_from_arrow(SCHEMA, rows)
        assert {name: found[name] for name in far} == far


def test_bytes_that_are_no_value_are_counted() -> None:
    """They come as null, and the rest of the row as it is."""
    found = decode_log_rows(SCHEMA, [page({"x": b"\xff", "v": b"\7", "u": b"\1"}, {"x": b"ok", "f": b"\0\0"})])
    assert found.unreadable == {"x": 1, "u": 1, "f": 1}
    assert found.rows["x"].to_pylist() == [None, "ok"]
    assert found.rows["v"].to_pylist() == ["7", None]


@pytest.mark.parametrize("names", [("p",), (*(each.name for each in get_log_columns(SCHEMA)), "new")])
def test_other_columns_are_an_altered_table(names: tuple[str, ...]) -> None:
    """Fewer or more than the table was known to have."""
    with pytest.raises(OtherColumns, match="differs from its known table"):
        decode_log_rows(SCHEMA, [RawPage(names, [pa.nulls(0, pa.binary()) for _ in names], 0)])
