"""Raw pages become columns of the lake: nulls, out-of-range values, and invalid bytes."""

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
    """Return a page of rows that have the head and the given cells."""
    names = tuple(column.name for column in get_log_columns(SCHEMA))
    complete = [{**HEAD, **row} for row in rows]
    columns = [pa.array([row.get(name) for row in complete], pa.binary()) for name in names]
    return RawPage(names, columns, len(rows))


@pytest.mark.parametrize("pages", [[page({}), page({"x": b"a"})], [page({}, {"x": b"a"})]])
def test_nulls_and_pages(pages: list[RawPage]) -> None:
    """A column may be null in one page and not in the next; the write time is a column in addition to the timeuuid."""
    rows = decode_log_rows(SCHEMA, pages).rows
    assert rows["x"].to_pylist() == [None, "a"]
    assert rows[WRITTEN_AT].cast("int64").to_pylist() == [1_790_000_000_000_001] * 2
    assert rows.schema.equals(log_table(SCHEMA).schema)
    assert decode_log_rows(SCHEMA, pages, exact=True).rows.schema.equals(log_table(SCHEMA, exact=True).schema)


def test_out_of_range_values_have_an_exact_column() -> None:
    """This holds for a page decoded by columns, and for one whose odd bytes are decoded one by one."""
    far: dict[str, Any] = {"d": 2**31 - 1, "t": 2**63 - 1}
    as_bytes = {"d": struct.pack(">I", 2**32 - 1), "t": struct.pack(">q", 2**63 - 1)}
    for odd_rows in ([], [{"d": b"", "t": b""}]):
        rows = decode_log_rows(SCHEMA, [page({}, as_bytes, *odd_rows)]).rows
        assert EXACT in rows.column_names
        (_, row, *_) = log_rows_from_arrow(SCHEMA, rows)
        assert {name: row[name] for name in far} == far


def test_invalid_bytes_are_counted() -> None:
    """They become null, and the rest of the row is decoded."""
    decoded = decode_log_rows(SCHEMA, [page({"x": b"\xff", "v": b"\7", "u": b"\1"}, {"x": b"ok", "f": b"\0\0"})])
    assert decoded.unreadable == {"x": 1, "u": 1, "f": 1}
    assert decoded.rows["x"].to_pylist() == [None, "ok"]
    assert decoded.rows["v"].to_pylist() == ["7", None]


@pytest.mark.parametrize("names", [("p",), (*(each.name for each in get_log_columns(SCHEMA)), "new")])
def test_other_columns_are_an_altered_table(names: tuple[str, ...]) -> None:
    """Columns are missing or added in comparison with the known table."""
    with pytest.raises(OtherColumns, match="differs from its known table"):
        decode_log_rows(SCHEMA, [RawPage(names, [pa.nulls(0, pa.binary()) for _ in names], 0)])
