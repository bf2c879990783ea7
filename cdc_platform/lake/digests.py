"""What rows are, as numbers: a digest of each row, and their sum, which says what a slice of a table holds.

A slice's digest is the sum of the digests of its rows modulo 2^128. So it depends neither on the order of the rows nor
on the files they are in, a row that is there twice counts twice, and what a change adds and takes away is added and
taken away. An empty slice has 0. Who wants to can forge a sum: it shows changes, it proves nobody honest.

The digest of a row is BLAKE2b (16 bytes, read as a little-endian number) of its columns in the order of their names,
without those that name the slice. A null contributes nothing, so that a column that a table gets later changes no
digest; any other value contributes BLAKE2b (8 bytes) of its column's name and then itself:

* whole numbers, booleans, dates, times and timestamps (in µs): 8 bytes, little-endian; floats and decimals as Arrow
  has them;
* text and binaries: their length in 4 bytes, then their bytes;
* lists and maps: their length in 4 bytes, then, of all elements, each part of their encoding on its own;
* structs: a byte 1, then each field.

Inside lists and structs a null has the length -1, or a byte 0 before zeros, where other values have a byte 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import format_us, from_datetime
from cdc_platform.lake.arrow import compute

MODULUS = 1 << 128
BYTES = 16
_ROWS_AT_ONCE = 1 << 16

Digests = Mapping[str, int]
"""The digest of each slice by its name: `column=value` of its partition columns, empty where a table has none."""
Piece = np.ndarray | tuple[np.ndarray, np.ndarray]
"""A part of the encoding of n values: uint8[n, width], or all their bytes and where each begins (int64[n + 1])."""


def slice_name(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The name of a slice: its partition columns and their values; that of a table without any is empty."""
    return "/".join(f"{name}={_text(value)}" for name, value in zip(columns, values, strict=True))


def slice_of(columns: Sequence[str], where: Mapping[str, Any]) -> str:
    """The name of the slice in which each of the partition columns has its value in `where`."""
    return slice_name(columns, [where[name] for name in columns])


def of_rows(rows: pa.Table, partition_by: Sequence[str]) -> dict[str, int]:
    """The sums of the digests of rows, by the slice that they belong to; none of no rows."""
    if not rows.num_rows:
        return {}
    found = row_digests(rows.drop_columns(list(partition_by)))
    if not partition_by:
        return {"": _number(found)}
    totals: dict[str, int] = {}
    for key, places in _grouped([rows[name] for name in partition_by]):
        totals[slice_name(partition_by, key)] = _number(found[places])
    return totals


def changed(before: Digests, added: Digests, removed: Digests) -> dict[str, int]:
    """The digests of the slices that a change touches, after it; a slice that `before` lacks was empty."""
    names = dict.fromkeys([*added, *removed])
    return {name: (before.get(name, 0) + added.get(name, 0) - removed.get(name, 0)) % MODULUS for name in names}


def summed(parts: Iterable[Digests]) -> dict[str, int]:
    """The digests of slices of which each part has some rows."""
    totals: dict[str, int] = {}
    for part in parts:
        totals = totals | changed(totals, part, {})
    return totals


def row_digests(rows: pa.Table, names: Sequence[str] | None = None) -> np.ndarray:
    """The digest of each row of some columns (all without `names`), as uint32[n, 4], the lowest word first."""
    chosen = sorted(rows.schema.names if names is None else names)
    parts: list[bytes] = []
    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
        part = rows.slice(start, _ROWS_AT_ONCE)
        pieces: list[Piece] = []
        for name in chosen:
            pieces += _tagged(name, _one_array(part[name]))
        data, bounds = _joined(pieces, part.num_rows)
        whole = data.tobytes()  # slices of bytes are made faster than those of a view
        parts += [blake2b(whole[begin:end], digest_size=BYTES).digest() for begin, end in pairwise(bounds.tolist())]
    return np.frombuffer(b"".join(parts), dtype="<u4").reshape(-1, 4)


def encoded(rows: pa.Table) -> Iterator[tuple[str, list[Piece]]]:
    """What each column puts into the digests of rows, as many pieces whether it has nulls or not."""
    for name in sorted(rows.schema.names):
        yield name, list(_side_by_side(_of_column(_one_array(rows[name]), [])))


def slices_in(rows: pa.Table, partition_by: Sequence[str]) -> list[str]:
    """The names of the slices that rows belong to."""
    if not rows.num_rows or not partition_by:
        return [""] * bool(rows.num_rows)
    return [slice_name(partition_by, key) for key, _ in _grouped([rows[name] for name in partition_by])]


def keys_of(rows: pa.Table, names: Sequence[str]) -> list[bytes]:
    """What tells the rows apart by the columns that name them: equal where those are equal."""
    found = row_digests(rows, names).tobytes()
    return [found[place : place + BYTES] for place in range(0, len(found), BYTES)]


def _number(found: np.ndarray) -> int:
    words = found.sum(axis=0, dtype=np.uint64).tolist()
    return sum(word << (32 * place) for place, word in enumerate(words)) % MODULUS


def _grouped(columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """The rows (their places) of each combination of values."""
    encoded = [_one_array(column).dictionary_encode() for column in columns]
    # All of a row in one number; a null has none of the dictionary's places.
    codes, places = np.zeros(len(columns[0]), dtype=np.int64), 1
    for each in encoded:
        codes += places * (np.asarray(compute.fill_null(each.indices, -1)).astype(np.int64) + 1)
        places *= len(each.dictionary) + 1
    order = np.argsort(codes, kind="stable") if codes.min() < codes.max() else np.arange(len(codes))
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for some in np.split(order, begins[1:]):
        first = int(some[0])
        yield tuple(each[first].as_py() for each in encoded), some


def _text(value: Any) -> str:
    return format_us(from_datetime(value)) if hasattr(value, "tzinfo") else str(value)


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece, without the views that deltalake's files may have: few of Arrow's functions take them."""
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks or [pa.nulls(0, column.type)]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    kind = _plain(column.type)
    return column if kind == column.type else column.cast(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}.get(kind, kind)


def _tagged(name: str, values: pa.Array) -> list[Piece]:
    """A column of rows: nothing where it is null."""
    tag = np.frombuffer(blake2b(name.encode(), digest_size=8).digest(), dtype=np.uint8)
    return _of_column(values, [np.broadcast_to(tag, (len(values) - values.null_count, 8))])


def _of_column(values: pa.Array, before: list[Piece]) -> list[Piece]:
    """The encoding of a column's values, behind what stands before it; nothing of nulls."""
    if values.null_count == len(values):
        return []
    if not values.null_count:
        return [*before, *_pieces(values, nested=False)]
    pieces = [*before, *_pieces(values.drop_null(), nested=False)]
    places = np.concatenate([[0], np.cumsum(np.asarray(compute.is_valid(values)))])
    return [_at(piece, places) for piece in _side_by_side(pieces)]


def _pieces(values: pa.Array, *, nested: bool) -> list[Piece]:
    """The encoding of values; where they are `nested`, some may be null."""
    kind = values.type
    if isinstance(kind, pa.DictionaryType):
        return _pieces(values.dictionary_decode(), nested=nested)
    if _is_bytes(kind):
        return _of_bytes(values)
    if pa.types.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _of_lists(values.cast(pa.list_(entries)))
    if _is_list(kind):
        return _of_lists(values)
    given: list[Piece] = [np.asarray(compute.is_valid(values)).astype(np.uint8)[:, None]]
    if pa.types.is_struct(kind):
        fields = (_pieces(field, nested=True) for field in values.flatten())
        return [*given, *(piece for field in fields for piece in field)]
    if pa.types.is_null(kind):
        return given
    return [*(given if nested else []), _numbers(values)]


def _is_bytes(kind: pa.DataType) -> bool:
    tests: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _of_bytes(values: pa.Array) -> list[Piece]:
    array = values.cast(pa.large_binary()) if values.type != pa.large_string() else values
    lengths = np.asarray(compute.fill_null(compute.binary_length(array), -1), dtype="<i4")
    if array.null_count:
        array = compute.fill_null(array, b"")
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return [_bytes_of(lengths), (content, bounds)]


def _of_lists(values: pa.Array) -> list[Piece]:
    lengths = compute.list_value_length(values)
    counts = np.asarray(compute.fill_null(lengths, -1), dtype="<i4")
    bounds = np.concatenate([[0], np.cumsum(np.maximum(counts, 0), dtype=np.int64)])
    elements = _pieces(compute.list_flatten(values), nested=True)
    return [_bytes_of(counts), *(_at(piece, bounds) for piece in elements)]


def _numbers(values: pa.Array) -> np.ndarray:
    """Values of one width, as uint8[n, width]; nulls as zeros."""
    kind = values.type
    if pa.types.is_decimal(kind):
        width = kind.byte_width
        filled = compute.fill_null(values, pa.scalar(0).cast(kind)) if values.null_count else values
        raw = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
        return raw[filled.offset * width : (filled.offset + len(filled)) * width].reshape(-1, width)
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_time32(kind) or pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_date64(kind) or pa.types.is_duration(kind):
        values = values.cast(pa.int64())
    if not pa.types.is_floating(kind):
        values = values.cast(pa.int64())
    filled = compute.fill_null(values, 0) if values.null_count else values
    return _bytes_of(np.asarray(filled))


def _bytes_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)


def _at(piece: Piece, bounds: np.ndarray) -> Piece:
    """A piece of n values as one of the runs of values that begin at these bounds (int64[m + 1])."""
    data, inner = ragged(piece)
    return data, inner[bounds]


def ragged(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """All bytes of a piece, and where each value's begin (int64[n + 1])."""
    if isinstance(piece, tuple):
        return piece
    rows, width = piece.shape
    return np.ascontiguousarray(piece).ravel(), width * np.arange(rows + 1, dtype=np.int64)


def _side_by_side(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces, those of one width that are neighbours as one: every piece that is joined costs."""
    for fixed, some in groupby(pieces, key=lambda piece: isinstance(piece, np.ndarray)):
        if fixed:
            yield np.hstack(list(some))
        else:
            yield from some


def _joined(pieces: Iterable[Piece], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of each row, one behind the other: all bytes, and where each row begins and ends."""
    columns = [_large_binaries(*ragged(piece)) for piece in _side_by_side(pieces)]
    if not columns:
        return np.empty(0, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    joined = compute.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = joined.buffers()
    return np.frombuffer(data, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int64)[: count + 1]


def _large_binaries(data: np.ndarray, bounds: np.ndarray) -> pa.Array:
    buffers: list[Any] = [None, np.ascontiguousarray(bounds), np.ascontiguousarray(data)]
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [each if each is None else pa.py_buffer(each) for each in buffers]
    )
