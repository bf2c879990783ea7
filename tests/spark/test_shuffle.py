"""Rows packed by parts of the ring are complete, and all rows of a key are in one part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.oracle import token_of

from cdc_platform.spark import shuffle
from cdc_platform.spark.shuffle import pack_batches, unpack_rows

_PARTS = 7
_SCHEMA = pa.schema([("part", pa.int32()), ("rows", pa.binary())])
KEYS = st.lists(st.binary(max_size=20), max_size=60)


def _batch(keys: list[bytes]) -> pa.RecordBatch:
    """Return rows with a key, and another column that distinguishes them."""
    values = [{"number": number, "text": ["x"] * (number % 4) or None} for number in range(len(keys))]
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values)], names=["key", "value"])


def _unpacked(batches: list[pa.RecordBatch]) -> dict[int, pa.Table]:
    blobs = pa.Table.from_batches(pack_batches(batches, lambda batch: batch.column("key"), _PARTS), _SCHEMA)
    numbers = blobs["part"].to_pylist()
    return {part: unpack_rows(blobs.filter(pa.array([number == part for number in numbers]))) for part in set(numbers)}


@given(KEYS, st.lists(st.integers(0, 60), max_size=5))
def test_each_row_is_in_the_part_of_its_token(keys: list[bytes], places: list[int]) -> None:
    """Parts are equal arcs of the ring from the lowest token; rows of one part stay in order."""
    whole = _batch(keys)
    ends = [0, *sorted(cut % (len(keys) + 1) for cut in places), len(keys)]
    unpacked = _unpacked([whole.slice(start, end - start) for start, end in pairwise(ends)])
    expected: dict[int, list[object]] = {}
    for row in whole.to_pylist():
        part = (token_of(row["key"]) + 2**63) // 2**32 * _PARTS // 2**32
        expected.setdefault(part, []).append(row)
    assert {part: table.to_pylist() for part, table in unpacked.items()} == expected


def test_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a limit of rows or bytes is packed at once, for any sizes of batches."""
    monkeypatch.setattr(shuffle, "_BUFFERED_ROWS", 10)
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            read.append(number)
            yield _batch([bytes([number])] * 4)

    packed = []
    for blobs in pack_batches(batches(), lambda batch: batch.column("key"), _PARTS):
        table = unpack_rows(pa.Table.from_batches([blobs]))
        packed.append((table.num_rows, read[-1]))
    assert packed == [(12, 2), (12, 5)]


def test_large_batch_is_packed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed data has 31-bit offsets, so a batch above the buffer limit is split in order."""
    batch = _batch([bytes([number % 3]) for number in range(100)])
    monkeypatch.setattr(shuffle, "_BUFFERED_BYTES", batch.nbytes // 10)
    pieces = list(pack_batches([batch], lambda piece_batch: piece_batch.column("key"), _PARTS))
    assert len(pieces) >= 5  # at most two pieces are buffered
    rows = [row for piece in pieces for row in unpack_rows(pa.Table.from_batches([piece])).to_pylist()]
    assert sorted(row["value"]["number"] for row in rows) == list(range(100))
