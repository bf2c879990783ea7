"""The digest of 128 bits of a row: BLAKE2b (16 bytes, read as a little-endian number) of its columns in name order.

A null contributes nothing, so that a column that a table gets later changes no digest; any other value contributes
BLAKE2b (8 bytes) of its column's name and then its encoding (see `encoding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow as pa

from cdc_platform.lake import encoding
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.encoding import Piece

BYTES = 16
_ROWS_AT_ONCE = 1 << 16


def row_digests(rows: pa.Table, names: Sequence[str] | None = None) -> np.ndarray:
    """The digest of each row of some columns (all without `names`), as uint32[n, 4], the lowest word first."""
    chosen = sorted(rows.schema.names if names is None else names)
    parts: list[bytes] = []
    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
        data, bounds = _bytes_of(rows.slice(start, _ROWS_AT_ONCE), chosen)
        whole = data.tobytes()  # slices of bytes are made faster than those of a view
        parts += [blake2b(whole[begin:end], digest_size=BYTES).digest() for begin, end in pairwise(bounds.tolist())]
    return np.frombuffer(b"".join(parts), dtype="<u4").reshape(-1, 4)


def keys_of(rows: pa.Table, names: Sequence[str]) -> list[bytes]:
    """What tells rows apart by the columns that name them; nobody can make two that are alike."""
    found = row_digests(rows, names).tobytes()
    return [found[place : place + BYTES] for place in range(0, len(found), BYTES)]


def encoded(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """The bytes (large binary) of each row that are digested: two rows are equal in some columns if theirs are."""
    return encoding.large_binaries(*_bytes_of(rows, sorted(names)))


def _bytes_of(rows: pa.Table, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    pieces: list[Piece] = []
    for name in names:
        pieces += _tagged(name, encoding.one_array(rows[name]))
    return encoding.joined(pieces, rows.num_rows)


def _tagged(name: str, values: pa.Array) -> list[Piece]:
    """A column of rows, with its name before each value; nothing where that is null."""
    if values.null_count == len(values):
        return []
    tag = np.frombuffer(blake2b(name.encode(), digest_size=8).digest(), dtype=np.uint8)
    before = np.broadcast_to(tag, (len(values) - values.null_count, 8))
    if not values.null_count:
        return [before, *encoding.pieces_of(values)]
    pieces = [before, *encoding.pieces_of(values.drop_null())]
    places = np.concatenate([[0], np.cumsum(np.asarray(compute.is_valid(values)))])
    return [encoding.at(piece, places) for piece in encoding.side_by_side(pieces)]
