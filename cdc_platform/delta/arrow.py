"""Convert columns between Arrow and numpy without copies: stream IDs, lists of them, partition keys.

The module knows buffer layouts, not what the values mean.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as _compute
import pyarrow.types as pat

from cdc_platform.clock import Milliseconds, ms_from_us
from cdc_platform.errors import InputError
from cdc_platform.generations import STREAM_ID_BYTES
from cdc_platform.ring import serialize_composite_keys, tokens_from_buffer

# Maps two bytes, read as one number, to their four hex digits, as one element.
_BYTE_PAIR = np.dtype("<u2")
_HEX_DIGITS = np.frombuffer(np.arange(1 << 16, dtype=_BYTE_PAIR).tobytes().hex().encode(), dtype=np.uint32)
_UUID_DIGIT_RANGES = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""The positions of digits in the text of a UUID, between the hyphens."""

compute: Any = _compute
"""pyarrow's compute functions; Any, since pyarrow creates them at import, invisible to type checkers."""


class _PandasBlocker:
    """An import finder that hides pandas."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas; return None for others, which other finders handle."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _hide_pandas() -> None:
    """Make pyarrow's search for pandas, at its first conversion, find nothing.

    Importing pandas takes as long as all other imports of a look-up, only to check for pandas values. A program that
    imports pandas itself still has it, and pyarrow finds it when a frame is requested.
    """
    if "pandas" in sys.modules:
        return
    without = _PandasBlocker()
    sys.meta_path.insert(0, without)
    try:
        pa.array([], pa.int64()).to_numpy()  # this triggers both searches: Python's and C++'s
    finally:
        sys.meta_path.remove(without)


_hide_pandas()


def to_python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return a column as Python values, None for null, as its `to_pylist`.

    For strings, bytes and integers this takes a fifteenth of the time: numpy makes no Arrow scalar for each value.
    """
    kind = column.type
    if kind in (pa.string(), pa.binary()) or (pat.is_integer(kind) and not column.null_count):
        return column.to_numpy(zero_copy_only=False).tolist()
    return column.to_pylist()


def to_int64_array(column: pa.Array | pa.ChunkedArray, null: int) -> np.ndarray:
    """Return a column of integers as int64[n], with `null` for nulls."""
    numbers = column if column.type == pa.int64() else column.cast(pa.int64())
    return np.asarray(compute.fill_null(numbers, null) if numbers.null_count else numbers, dtype=np.int64)


def to_milliseconds(moments: pa.ChunkedArray) -> list[Milliseconds | None]:
    """Return a column of times as milliseconds, None for null; Python's datetimes take ten times as long."""
    if not moments.null_count:
        return [*to_milliseconds_without_nulls(moments)]
    return [None if us is None else ms_from_us(us) for us in moments.cast(pa.int64()).to_pylist()]


def to_milliseconds_without_nulls(moments: pa.ChunkedArray) -> list[Milliseconds]:
    """Return a column of times without nulls as milliseconds."""
    return ms_from_us(np.asarray(moments.cast(pa.int64()), dtype=np.int64)).tolist()


def stream_lists_to_arrow(counts: np.ndarray, streams: np.ndarray) -> pa.ListArray:
    """Return stream IDs uint8[k, 16] as lists of binaries with `counts` (int64[n]) elements each, in order."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    element = pa.field("element", pa.binary(), nullable=False)
    return pa.ListArray.from_arrays(pa.array(offsets), stream_ids_to_arrow(streams), type=pa.list_(element))


def stream_ids_to_arrow(streams: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Return stream IDs uint8[n, 16] as binaries; null where not `valid` (bool[n])."""
    bitmap = None if valid is None or valid.all() else _to_buffer(np.packbits(valid, bitorder="little"))
    return binaries_from_buffer(streams, STREAM_ID_BYTES * np.arange(len(streams) + 1), bitmap)


def fixed_width_to_arrow(values: np.ndarray) -> pa.Array:
    """Return values of one width (any dtype [n]) as binaries, with the bytes of each as in memory."""
    return binaries_from_buffer(values, values.itemsize * np.arange(len(values) + 1))


def uuids_to_text(values: np.ndarray) -> pa.Array:
    """Return UUIDs uint8[n, 16] as lower-case text with hyphens."""
    text = np.full((len(values), 36), ord("-"), dtype=np.uint8)
    digits = _HEX_DIGITS.take(np.ascontiguousarray(values).view(_BYTE_PAIR)).view(np.uint8)
    for hyphens, (begin, end) in enumerate(_UUID_DIGIT_RANGES):
        text[:, begin:end] = digits[:, begin - hyphens : end - hyphens]
    ends = np.arange(0, 36 * len(values) + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, _to_buffer(ends), _to_buffer(text)])


def flatten_stream_lists(lists: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return lists of stream IDs as (counts int64[n], streams uint8[k, 16]), in order.

    Raises:
        InputError: a list or a stream ID is null, or a stream ID is not 16 bytes long.
    """
    array = pa.concat_arrays(lists.chunks) if isinstance(lists, pa.ChunkedArray) else lists
    if array.null_count:
        raise InputError(f"{array.null_count} of {len(array)} rows have no streams; every range has at least one")
    counts = np.asarray(compute.list_value_length(array), dtype=np.int64)
    values = array.flatten()
    lengths = np.asarray(compute.fill_null(compute.binary_length(values), 0))
    wrong = np.flatnonzero(lengths != STREAM_ID_BYTES)
    if wrong.size:
        value = values[int(wrong[0])].as_py()
        raise InputError(
            f"stream ID {'null' if value is None else '0x' + value.hex()} has {lengths[wrong[0]]} bytes; it has 16"
        )
    return counts, stream_ids_to_numpy(values)


def stream_ids_to_numpy(values: pa.Array) -> np.ndarray:
    """Return binaries of 16 bytes each, none null, as uint8[n, 16]; a view of their buffer."""
    data, bounds = get_binary_buffers(values)
    return data[bounds[0] : bounds[0] + STREAM_ID_BYTES * len(values)].reshape(-1, STREAM_ID_BYTES)


def tokens_from_keys(keys: pa.Array) -> np.ndarray:
    """Return tokens (int64[n]) of serialized partition keys (binary); undefined where the key is null."""
    return tokens_from_buffer(*get_binary_buffers(keys))


def composite_keys_to_arrow(components: Sequence[pa.Array]) -> pa.Array:
    """Return the serialized keys (binary) of columns of components (binary), none null.

    See `ring.serialize_composite_keys`.

    Raises:
        InputError: a component is longer than 65,535 bytes.
    """
    return binaries_from_buffer(*serialize_composite_keys([get_binary_buffers(component) for component in components]))


def binaries_from_buffer(values: np.ndarray, offsets: np.ndarray, bitmap: pa.Buffer | None = None) -> pa.Array:
    """Return the bytes of `values`, cut at the offsets (int[n + 1]), as a column of binaries.

    The inverse of `get_binary_buffers`.
    """
    buffers = [bitmap, _to_buffer(offsets.astype(np.int32)), _to_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def get_binary_buffers(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes (uint8[]) and offsets (int[n + 1]) of a column of binaries; views of its buffers."""
    _, offsets, data = values.buffers()
    if len(values) == 0 or offsets is None:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int32)
    kind = np.int64 if pat.is_large_binary(values.type) else np.int32
    bounds = np.frombuffer(offsets, dtype=kind)[values.offset : values.offset + len(values) + 1]
    return np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8), bounds


def _to_buffer(array: np.ndarray) -> pa.Buffer:
    shared: Any = array
    return pa.py_buffer(shared)
