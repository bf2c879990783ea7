"""Decode raw pages of a log into the columns of the log's Delta table.

Types of fixed width and texts are converted as whole columns, the others value by value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import (
    EXACT,
    FIRST_DAY,
    FIRST_MS,
    LAST_DAY,
    LAST_MS,
    WRITTEN_AT,
    arrow_type,
    encode_exact_value,
    is_out_of_range,
    log_table,
    may_be_out_of_range,
    stored_columns,
    stored_type,
    to_arrow_value,
)
from cdc_platform.clock import MILLISECOND_US
from cdc_platform.cql import (
    GREGORIAN_OFFSET,
    CqlType,
    ScalarType,
    TableSchema,
    get_log_columns,
    ticks_from_high_half,
    value_from_bytes,
)
from cdc_platform.delta import uuids_to_text
from cdc_platform.errors import InputError, StateError
from cdc_platform.scylla.raw_pages import RawPage
from cdc_platform.tables import TIMESTAMP


class OtherColumns(StateError):
    """The log's columns differ from those of the known table: the table was altered meanwhile."""

    code = "other-columns"


@dataclass
class DecodedLogRows:
    """Rows of a log. `unreadable` counts, by column, values invalid for the column's type, now null.

    `undecoded` counts, by attribute, values of an Alternator table that do not follow its format.
    """

    rows: pa.Table
    unreadable: Counter[str] = field(default_factory=Counter)
    undecoded: Counter[str] = field(default_factory=Counter)


@dataclass
class _DecodedColumn:
    """A column's values; `beside` maps row numbers to out-of-range values, as JSON for the `exact` column."""

    values: pa.Array
    beside: Mapping[int, str] = field(default_factory=dict)
    unreadable: int = 0


def decode_log_rows(schema: TableSchema, pages: Sequence[RawPage], *, exact: bool = False) -> DecodedLogRows:
    """Return the rows in pages of a table's log.

    With `exact`, or if a value needs it, the result includes the column for out-of-range values.

    Raises:
        OtherColumns: a page's columns differ from those of the schema's log.
    """
    named = {log_column.name for log_column in get_log_columns(schema)}
    for page in pages:
        if set(page.names) != named:
            columns = ", ".join(sorted(set(page.names) ^ named))
            raise OtherColumns(
                f"the log of {schema.full_name} differs from its known table in columns {columns}; observe the cluster "
                "again"
            )
    decoded, count = DecodedLogRows(pa.table({})), sum(page.rows for page in pages)
    for page in pages:
        decoded.undecoded.update(page.undecoded)
    arrays: dict[str, pa.Array] = {}
    beside: dict[int, dict[str, str]] = {}
    for log_column, name in stored_columns(schema):
        parts = [page.columns[page.names.index(log_column.name)] for page in pages]
        cells = parts[0] if len(parts) == 1 else pa.concat_arrays([*parts, pa.nulls(0, pa.binary())])
        column = _decode_column(log_column.type, cells)
        arrays[name] = column.values
        for row, text in column.beside.items():
            beside.setdefault(row, {})[name] = text
        if column.unreadable:
            decoded.unreadable[log_column.name] += column.unreadable
        if log_column.name == "cdc$time":
            arrays[WRITTEN_AT] = _decode_write_times(cells)
    fields = log_table(schema, exact=exact or bool(beside)).schema
    if EXACT in fields.names:
        pairs = [list(beside[row].items()) if row in beside else None for row in range(count)]
        arrays[EXACT] = pa.array(pairs, fields.field(EXACT).type)
    decoded.rows = pa.table([arrays[field.name] for field in fields], schema=fields)
    return decoded


def _decode_column(kind: CqlType, cells: pa.BinaryArray) -> _DecodedColumn:
    if cells.null_count == len(cells):
        return _DecodedColumn(pa.nulls(len(cells), arrow_type(stored_type(kind))))
    if isinstance(kind, ScalarType) and kind.name in _COLUMN_DECODERS:
        column = _COLUMN_DECODERS[kind.name](cells)
        if column is not None:
            return column
    return _decode_one_by_one(kind, cells)


def _decode_one_by_one(kind: CqlType, cells: pa.BinaryArray) -> _DecodedColumn:
    arrow_kind, wide, beside, unreadable = stored_type(kind), may_be_out_of_range(kind), dict[int, str](), 0
    values: list[Any] = []
    for row, cell in enumerate(cells.to_pylist()):
        value = None
        if cell is not None:
            try:
                value = value_from_bytes(kind, cell)
            except InputError:
                unreadable += 1
        if wide and is_out_of_range(kind, value):
            beside[row] = encode_exact_value(kind, value)
        values.append(to_arrow_value(arrow_kind, value))
    return _DecodedColumn(pa.array(values, arrow_type(arrow_kind)), beside, unreadable)


def _fixed_width_cells(cells: pa.BinaryArray, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return cells of one width as uint8[n, width], and which are null (bool[n]); None if a cell has another width."""
    _, offsets, data = cells.buffers()
    bounds = np.frombuffer(offsets, np.int32)[: len(cells) + 1]
    missing = np.asarray(cells.is_null()) if cells.null_count else np.zeros(len(cells), bool)
    if (np.diff(bounds)[~missing] != width).any():
        return None
    packed = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]].reshape(-1, width)
    if not cells.null_count:
        return packed, missing
    out = np.zeros((len(cells), width), np.uint8)
    out[~missing] = packed
    return out, missing


def _number_decoder(dtype: str) -> Callable[[pa.BinaryArray], _DecodedColumn | None]:
    def column(cells: pa.BinaryArray) -> _DecodedColumn | None:
        cells_and_nulls = _fixed_width_cells(cells, np.dtype(dtype).itemsize)
        if cells_and_nulls is None:
            return None
        native = cells_and_nulls[0].view(dtype)[:, 0].astype(np.dtype(dtype).newbyteorder("="))
        return _DecodedColumn(pa.array(native, mask=cells_and_nulls[1]))

    return column


def _decode_booleans(cells: pa.BinaryArray) -> _DecodedColumn | None:
    fixed = _fixed_width_cells(cells, 1)
    return None if fixed is None else _DecodedColumn(pa.array(fixed[0][:, 0] != 0, mask=fixed[1]))


def _decode_timestamps(cells: pa.BinaryArray) -> _DecodedColumn | None:
    fixed = _fixed_width_cells(cells, 8)
    if fixed is None:
        return None
    ms = fixed[0].view(">i8")[:, 0].astype(np.int64)
    far = np.flatnonzero(((ms < FIRST_MS) | (ms > LAST_MS)) & ~fixed[1])
    us = np.clip(ms, FIRST_MS, LAST_MS) * MILLISECOND_US
    return _DecodedColumn(pa.array(us, mask=fixed[1]).cast(TIMESTAMP), {row: str(ms[row]) for row in far.tolist()})


def _decode_dates(cells: pa.BinaryArray) -> _DecodedColumn | None:
    fixed = _fixed_width_cells(cells, 4)
    if fixed is None:
        return None
    days = fixed[0].view(">u4")[:, 0].astype(np.int64) - 2**31
    far = np.flatnonzero(((days < FIRST_DAY) | (days > LAST_DAY)) & ~fixed[1])
    near = np.clip(days, FIRST_DAY, LAST_DAY).astype(np.int32)
    return _DecodedColumn(
        pa.array(near, mask=fixed[1]).cast(pa.date32()), {row: str(days[row]) for row in far.tolist()}
    )


def _decode_uuids(cells: pa.BinaryArray) -> _DecodedColumn | None:
    fixed = _fixed_width_cells(cells, 16)
    if fixed is None:
        return None
    texts = uuids_to_text(fixed[0])
    return _DecodedColumn(texts.take(pa.array(np.arange(len(texts)), mask=fixed[1])) if fixed[1].any() else texts)


def _decode_texts(cells: pa.BinaryArray) -> _DecodedColumn | None:
    try:
        return _DecodedColumn(cells.cast(pa.string()))
    except pa.ArrowInvalid:
        return None


def _decode_write_times(cells: pa.BinaryArray) -> pa.Array:
    """Return the time in each timeuuid (16 bytes)."""
    fixed = _fixed_width_cells(cells, 16)
    if fixed is None:
        return pa.nulls(len(cells), TIMESTAMP)
    high = np.ascontiguousarray(fixed[0][:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return pa.array((ticks_from_high_half(high).astype(np.int64) - GREGORIAN_OFFSET) // 10).cast(TIMESTAMP)


_COLUMN_DECODERS: Mapping[str, Callable[[pa.BinaryArray], _DecodedColumn | None]] = {
    "ascii": _decode_texts,
    "bigint": _number_decoder(">i8"),
    "blob": _DecodedColumn,
    "boolean": _decode_booleans,
    "counter": _number_decoder(">i8"),
    "date": _decode_dates,
    "double": _number_decoder(">f8"),
    "float": _number_decoder(">f4"),
    "int": _number_decoder(">i4"),
    "smallint": _number_decoder(">i2"),
    "text": _decode_texts,
    "time": _number_decoder(">i8"),
    "timestamp": _decode_timestamps,
    "timeuuid": _decode_uuids,
    "tinyint": _number_decoder("i1"),
    "uuid": _decode_uuids,
}
