"""Decode the attributes of Alternator tables in pages of raw cells.

A cell of `:attrs` is a CQL map of names and values: a count, then each name and value after its length (int32). Names
and values of all rows are cut out as whole columns, each distinct value is decoded once, and the maps are joined again
with the values as DynamoDB's JSON.
"""

from __future__ import annotations

import hmac
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc_platform.cql import HASHED, is_undecoded, value_to_json
from cdc_platform.delta import binaries_from_buffer, compute, get_binary_buffers

_LENGTH_BYTES = 4


@dataclass(frozen=True)
class AttributeRules:
    """Attributes that are left out or stored as hashes, and the key of the hashes."""

    left_out: Collection[str] = ()
    hashed: Collection[str] = ()
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class DecodedAttributes:
    """Cells of `:attrs` with JSON for values. `undecoded` counts, by name, values that do not follow the format."""

    cells: pa.BinaryArray
    undecoded: Counter[str]


@dataclass(frozen=True)
class _Entries:
    """The elements of maps or sets of some rows, in order: the row of each, and its parts (binary) by role."""

    rows: np.ndarray
    parts: list[pa.BinaryArray]

    def filter(self, mask: np.ndarray) -> _Entries:
        kept = pa.array(mask)
        return _Entries(self.rows[mask], [part.filter(kept) for part in self.parts])


def decode_attribute_cells(cells: pa.BinaryArray, rules: AttributeRules) -> DecodedAttributes:
    """Return cells of `:attrs` with their values as JSON, without left-out attributes.

    Null stays null. A cell that is no map stays as it is: its bytes are invalid for the column's type.
    """
    valid, entries = _split(cells, parts=2)
    if rules.left_out:
        entries = entries.filter(~_is_among(entries.parts[0], rules.left_out))
    names, values = entries.parts
    distinct = values.dictionary_encode()
    texts = [value_to_json(value) for value in distinct.dictionary.to_pylist()]
    decoded = _take(texts, distinct.indices)
    undecoded = Counter[str]()
    flags = np.array([is_undecoded(text) for text in texts], bool)
    hashed = _is_among(names, rules.hashed) if rules.hashed else np.zeros(len(names), bool)
    if flags.any():
        named = names.filter(pa.array(flags[np.asarray(distinct.indices)] & ~hashed))
        undecoded.update(name.decode(errors="replace") for name in named.to_pylist())
    if hashed.any():
        assert rules.key is not None
        decoded = _with_hashes(decoded, distinct, hashed, rules.key)
    return DecodedAttributes(_join(cells, valid, _Entries(entries.rows, [names, decoded])), undecoded)


def drop_attribute_names(cells: pa.BinaryArray, left_out: Collection[str]) -> pa.BinaryArray:
    """Return cells that are sets of attribute names without the left-out ones; null for a set that has no others."""
    valid, entries = _split(cells, parts=1)
    joined = _join(cells, valid, entries.filter(~_is_among(entries.parts[0], left_out)))
    emptied = pa.array(valid & (np.asarray(compute.binary_length(joined).fill_null(0)) == _LENGTH_BYTES))
    return compute.if_else(emptied, pa.scalar(None, pa.binary()), joined)


def _is_among(names: pa.BinaryArray, wanted: Collection[str]) -> np.ndarray:
    known = pa.array([name.encode() for name in sorted(wanted)], pa.binary())
    return np.asarray(compute.is_in(names, value_set=known))


def _take(texts: list[str], indices: pa.Array) -> pa.BinaryArray:
    if not texts:
        return pa.array([], pa.binary())
    return pa.array([text.encode() for text in texts], pa.binary()).take(indices)


def _with_hashes(decoded: pa.BinaryArray, values: pa.DictionaryArray, hashed: np.ndarray, key: bytes) -> pa.BinaryArray:
    """Replace some values by the HMAC-SHA-256 of their stored bytes."""
    texts = [
        json.dumps({HASHED: b64encode(hmac.digest(key, value, "sha256")).decode()}, separators=(",", ":"))
        for value in values.dictionary.to_pylist()
    ]
    return compute.if_else(pa.array(hashed), _take(texts, values.indices), decoded)


def _split(cells: pa.BinaryArray, parts: int) -> tuple[np.ndarray, _Entries]:
    """Return which cells (bool) are valid maps (2 parts an element) or sets (1), and the elements of these."""
    raw, bounds = get_binary_buffers(cells)
    size, ends = len(cells), bounds[1:].astype(np.int64)
    cursors = bounds[:-1].astype(np.int64)
    valid = np.asarray(cells.is_valid()).copy()
    valid &= ends - cursors >= _LENGTH_BYTES
    counts = np.zeros(size, np.int64)
    counts[valid] = _read_lengths(raw, cursors[valid])
    valid &= counts >= 0
    cursors = cursors + _LENGTH_BYTES
    rows: list[np.ndarray] = []
    starts: list[list[np.ndarray]] = [[] for _ in range(parts)]
    lengths: list[list[np.ndarray]] = [[] for _ in range(parts)]
    active = np.flatnonzero(valid & (counts > 0))
    number = 0
    while len(active):
        at, element = cursors[active], []
        fits = np.ones(len(active), bool)
        for _ in range(parts):
            fits &= at + _LENGTH_BYTES <= ends[active]
            length = np.full(len(active), -1, np.int64)
            length[fits] = _read_lengths(raw, at[fits])
            fits &= (length >= 0) & (at + _LENGTH_BYTES + length <= ends[active])
            element.append((at + _LENGTH_BYTES, length))
            at = at + _LENGTH_BYTES + np.maximum(length, 0)
        valid[active[~fits]] = False
        active = active[fits]
        cursors[active] = at[fits]
        rows.append(active)
        for index, (start, length) in enumerate(element):
            starts[index].append(start[fits])
            lengths[index].append(length[fits])
        number += 1
        active = active[counts[active] > number]
    valid &= cursors == ends
    if not rows:
        return valid, _Entries(np.empty(0, np.int64), [pa.array([], pa.binary())] * parts)
    owners = np.concatenate(rows)
    order = np.argsort(owners, kind="stable")
    order = order[valid[owners[order]]]
    columns = [
        _cut(raw, np.concatenate(start)[order], np.concatenate(length)[order])
        for start, length in zip(starts, lengths, strict=True)
    ]
    return valid, _Entries(owners[order], columns)


def _read_lengths(raw: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the big-endian int32 at each position (int64)."""
    if not len(at):
        return np.empty(0, np.int64)
    return np.ascontiguousarray(raw[at[:, None] + np.arange(_LENGTH_BYTES)]).view(">i4")[:, 0].astype(np.int64)


def _cut(raw: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.BinaryArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return binaries_from_buffer(raw[_positions(starts, lengths)], offsets)


def _positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the positions start, start + 1, ... of each stretch, one after the other."""
    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()))


def _join(cells: pa.BinaryArray, valid: np.ndarray, entries: _Entries) -> pa.BinaryArray:
    """Return cells with the given elements; cells that are not valid stay as they are."""
    size = len(cells)
    raw, bounds = get_binary_buffers(cells)
    lengths = [np.asarray(compute.binary_length(part)).astype(np.int64) for part in entries.parts]
    sizes = sum((length + _LENGTH_BYTES for length in lengths), np.zeros(len(entries.rows), np.int64))
    per_row = np.bincount(entries.rows, weights=sizes, minlength=size).astype(np.int64)
    old = np.diff(bounds).astype(np.int64)
    totals = np.where(valid, per_row + _LENGTH_BYTES, old)
    offsets = np.concatenate([[0], np.cumsum(totals)])
    out = np.zeros(int(offsets[-1]), np.uint8)
    _write_lengths(out, offsets[:-1][valid], np.bincount(entries.rows, minlength=size)[valid])
    others = ~valid
    begins = bounds[:-1].astype(np.int64)
    out[_positions(offsets[:-1][others], old[others])] = raw[_positions(begins[others], old[others])]
    before = np.cumsum(sizes) - sizes
    first = (np.cumsum(per_row) - per_row)[entries.rows]
    at = offsets[:-1][entries.rows] + _LENGTH_BYTES + before - first
    for part, length in zip(entries.parts, lengths, strict=True):
        _write_lengths(out, at, length)
        values, cut = get_binary_buffers(part)
        out[_positions(at + _LENGTH_BYTES, length)] = values[cut[0] : cut[-1]]
        at = at + _LENGTH_BYTES + length
    joined = binaries_from_buffer(out, offsets)
    return compute.if_else(cells.is_valid(), joined, pa.scalar(None, pa.binary())) if cells.null_count else joined


def _write_lengths(out: np.ndarray, at: np.ndarray, lengths: np.ndarray) -> None:
    """Write each number as a big-endian int32 at its position."""
    if len(at):
        numbers = lengths.astype(">i4").view(np.uint8).reshape(-1, _LENGTH_BYTES)
        out[at[:, None] + np.arange(_LENGTH_BYTES)] = numbers
