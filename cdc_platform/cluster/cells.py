"""Log rows as a cluster answers with them, in the columns of the log's Delta table.

The bytes of a column become Arrow at once where its type is of one width or text, one by one elsewhere; how each CQL
type is kept is left to `log.log_table`, and what no native column holds to `log.exact`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import MILLISECOND_US
from cdc_platform.cluster.raw import RawPage
from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.cql.timeuuid import ticks_of
from cdc_platform.cql.types import GREGORIAN, CqlType, Scalar
from cdc_platform.cql.wire import read_value
from cdc_platform.errors import InputError, StateError
from cdc_platform.lake.arrow import uuid_texts
from cdc_platform.lake.tables import TIMESTAMP
from cdc_platform.log.exact import FIRST_DAY, FIRST_MS, LAST_DAY, LAST_MS, encoded, is_far, may_be_far
from cdc_platform.log.log_table import arrow_type, log_table
from cdc_platform.log.log_values import arrow_value
from cdc_platform.log.stored_names import EXACT, WRITTEN_AT, stored_columns, stored_type


class OtherColumns(StateError):
    """The log has other columns than its table was known to have: the table was altered meanwhile."""

    code = "other-columns"


@dataclass
class LogRows:
    """Rows of a log. `unreadable` counts, by column, the values whose bytes are none of the column's type: null."""

    rows: pa.Table
    unreadable: Counter[str] = field(default_factory=Counter)


@dataclass
class _Column:
    """A column's values; `beside` has by row what only `exact` holds, as JSON."""

    values: pa.Array
    beside: Mapping[int, str] = field(default_factory=dict)
    unreadable: int = 0


def log_rows(schema: TableSchema, pages: Sequence[RawPage], *, exact: bool = False) -> LogRows:
    """The rows of pages of a table's log; with `exact`, or where a value needs it, with the column for such values.

    Raises:
        OtherColumns: a page has other columns than the schema's log.
    """
    named = {each.name for each in log_columns(schema)}
    for page in pages:
        if set(page.names) != named:
            raise OtherColumns(
                f"the log of {schema.full_name} has columns {', '.join(sorted(set(page.names) ^ named))} more or less "
                "than its table was known to have; observe the cluster again"
            )
    found, count = LogRows(pa.table({})), sum(page.rows for page in pages)
    arrays: dict[str, pa.Array] = {}
    beside: dict[int, dict[str, str]] = {}
    for each, name in stored_columns(schema):
        parts = [page.columns[page.names.index(each.name)] for page in pages]
        cells = parts[0] if len(parts) == 1 else pa.concat_arrays([*parts, pa.nulls(0, pa.binary())])
        column = _converted(each.type, cells)
        arrays[name] = column.values
        for row, text in column.beside.items():
            beside.setdefault(row, {})[name] = text
        if column.unreadable:
            found.unreadable[each.name] += column.unreadable
        if each.name == "cdc$time":
            arrays[WRITTEN_AT] = _written_at(cells)
    fields = log_table(schema, exact=exact or bool(beside)).schema
    if EXACT in fields.names:
        pairs = [list(beside[row].items()) if row in beside else None for row in range(count)]
        arrays[EXACT] = pa.array(pairs, fields.field(EXACT).type)
    found.rows = pa.table([arrays[field.name] for field in fields], schema=fields)
    return found


def _converted(kind: CqlType, cells: pa.BinaryArray) -> _Column:
    if cells.null_count == len(cells):
        return _Column(pa.nulls(len(cells), arrow_type(stored_type(kind))))
    if isinstance(kind, Scalar) and kind.name in _AT_ONCE:
        column = _AT_ONCE[kind.name](cells)
        if column is not None:
            return column
    return _one_by_one(kind, cells)


def _one_by_one(kind: CqlType, cells: pa.BinaryArray) -> _Column:
    kept, wide, beside, unreadable = stored_type(kind), may_be_far(kind), dict[int, str](), 0
    values: list[Any] = []
    for row, cell in enumerate(cells.to_pylist()):
        value = None
        if cell is not None:
            try:
                value = read_value(kind, cell)
            except InputError:
                unreadable += 1
        if wide and is_far(kind, value):
            beside[row] = encoded(kind, value)
        values.append(arrow_value(kept, value))
    return _Column(pa.array(values, arrow_type(kept)), beside, unreadable)


def _fixed(cells: pa.BinaryArray, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Cells of one width as uint8[n, width], with where they are null (bool[n]); None where one has another width."""
    _, offsets, data = cells.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(cells) + 1]
    missing = np.asarray(cells.is_null()) if cells.null_count else np.zeros(len(cells), bool)
    if (np.diff(bounds)[~missing] != width).any():
        return None
    given = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].reshape(-1, width)
    if not cells.null_count:
        return given, missing
    out = np.zeros((len(cells), width), np.uint8)
    out[~missing] = given
    return out, missing


def _numbers(dtype: str) -> Callable[[pa.BinaryArray], _Column | None]:
    def column(cells: pa.BinaryArray) -> _Column | None:
        found = _fixed(cells, np.dtype(dtype).itemsize)
        if found is None:
            return None
        native = found[0].view(dtype)[:, 0].astype(np.dtype(dtype).newbyteorder("="))
        return _Column(pa.array(native, mask=found[1]))

    return column


def _booleans(cells: pa.BinaryArray) -> _Column | None:
    found = _fixed(cells, 1)
    return None if found is None else _Column(pa.array(found[0][:, 0] != 0, mask=found[1]))


def _timestamps(cells: pa.BinaryArray) -> _Column | None:
    found = _fixed(cells, 8)
    if found is None:
        return None
    ms = found[0].view(">i8")[:, 0].astype(np.int64)
    far = np.flatnonzero(((ms < FIRST_MS) | (ms > LAST_MS)) & ~found[1])
    us = np.clip(ms, FIRST_MS, LAST_MS) * MILLISECOND_US
    return _Column(pa.array(us, mask=found[1]).cast(TIMESTAMP), {row: str(ms[row]) for row in far.tolist()})


def _dates(cells: pa.BinaryArray) -> _Column | None:
    found = _fixed(cells, 4)
    if found is None:
        return None
    days = found[0].view(">u4")[:, 0].astype(np.int64) - 2**31
    far = np.flatnonzero(((days < FIRST_DAY) | (days > LAST_DAY)) & ~found[1])
    near = np.clip(days, FIRST_DAY, LAST_DAY).astype(np.int32)
    return _Column(pa.array(near, mask=found[1]).cast(pa.date32()), {row: str(days[row]) for row in far.tolist()})


def _uuids(cells: pa.BinaryArray) -> _Column | None:
    found = _fixed(cells, 16)
    if found is None:
        return None
    texts = uuid_texts(found[0])
    return _Column(texts.take(pa.array(np.arange(len(texts)), mask=found[1])) if found[1].any() else texts)


def _texts(cells: pa.BinaryArray) -> _Column | None:
    try:
        return _Column(cells.cast(pa.string()))
    except pa.ArrowInvalid:
        return None


def _written_at(cells: pa.BinaryArray) -> pa.Array:
    """The time in each timeuuid (16 bytes)."""
    found = _fixed(cells, 16)
    if found is None:
        return pa.nulls(len(cells), TIMESTAMP)
    high = np.ascontiguousarray(found[0][:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return pa.array((ticks_of(high).astype(np.int64) - GREGORIAN) // 10).cast(TIMESTAMP)


_AT_ONCE: Mapping[str, Callable[[pa.BinaryArray], _Column | None]] = {
    "ascii": _texts,
    "bigint": _numbers(">i8"),
    "blob": _Column,
    "boolean": _booleans,
    "counter": _numbers(">i8"),
    "date": _dates,
    "double": _numbers(">f8"),
    "float": _numbers(">f4"),
    "int": _numbers(">i4"),
    "smallint": _numbers(">i2"),
    "text": _texts,
    "time": _numbers(">i8"),
    "timestamp": _timestamps,
    "timeuuid": _uuids,
    "tinyint": _numbers("i1"),
    "uuid": _uuids,
}
