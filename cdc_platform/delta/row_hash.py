"""Hash rows, and sum the hashes of a partition into the digest that its commits record.

A partition's digest is the sum of its row hashes modulo 2^128, so it depends on neither the order of rows nor their
files, counts duplicates, and follows a change by addition and subtraction. An empty partition has 0. Digests detect
changes; they are no proof against forgery. Partition columns are left out. A table uses one of two rules for its
lifetime.

Encoding: each value becomes parts. Integers, booleans, dates, times and timestamps (us) take 8 bytes, little-endian;
floats and decimals are as in Arrow; text and binaries are their length in 4 bytes and their bytes; lists and maps are
their length in 4 bytes and then, over all elements, each part of the element encoding; structs are a byte 1 and each
field. Inside lists and structs a null has the length -1, or a byte 0 before zeros where other values have 1.

`blake2b-128`: BLAKE2b (16 bytes, little-endian number) over the columns in name order. A null contributes nothing, so a
later column changes no digest; other values contribute BLAKE2b (8 bytes) of the column name and their encoding.

`words-64` (a sixth of the time): a word is 8 bytes of an encoding, little-endian, the last of a run padded with zeros;
`mixed` is `ring.mix_bits`, K is 0x9E3779B97F4A7C15, sums are modulo 2^64. The number of a run of bytes is the sum of
`mixed(word + K (index + 1))` over its words by index from 0; without bytes it is 0. Adjacent parts of fixed width are
one part. Each part adds `mixed(number ^ key)` to the row, or nothing if its number is 0; the key is BLAKE2b (8 bytes,
little-endian) of the part's index from 0, a space and the column name. A null adds nothing. The row's hash is
`mixed(sum + K)`. Two different rows share a hash once in 2^64 pairs; a collision can be constructed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.clock import format_us, us_from_datetime
from cdc_platform.delta.arrow import compute
from cdc_platform.errors import StateError
from cdc_platform.ring import GOLDEN_RATIO_64, Bools, UInt64s, mix_bits

_EncodedPart = np.ndarray | tuple[np.ndarray, np.ndarray]
"""A part of the encoding of n values: uint8[n, width], or all bytes and the bounds of each value (int64[n + 1])."""

_BYTE_TYPES = frozenset(
    kind.id
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(1),
    )
)
"""The Arrow type IDs of binary and string types."""
_OFFSET_TYPES = {
    pa.string().id: np.dtype(np.int32),
    pa.binary().id: np.dtype(np.int32),
    pa.large_string().id: np.dtype(np.int64),
    pa.large_binary().id: np.dtype(np.int64),
}
"""The binary and string types that have one data buffer, with the dtype of their offsets."""
_WITHOUT_VIEWS: dict[pa.DataType, pa.DataType] = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}


def to_single_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array, without deltalake's view types, which few of Arrow's functions support."""
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks or [pa.nulls(0, column.type)]
        column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    kind = _type_without_views(column.type)
    return column if kind == column.type else column.cast(kind)


def _type_without_views(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_type_without_views(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(_type_without_views(kind.key_type), _type_without_views(kind.item_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_type_without_views(field.type)) for field in kind])
    return _WITHOUT_VIEWS.get(kind, kind)


def _encode_values(values: pa.Array, *, nested: bool = False) -> list[_EncodedPart]:
    """Return the parts of the encoding of values; only `nested` values may be null."""
    kind = values.type
    if isinstance(kind, pa.DictionaryType):
        return _encode_values(values.dictionary_decode(), nested=nested)
    if kind.id in _BYTE_TYPES:
        return _encode_binaries(values)
    if pat.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _encode_lists(values.cast(pa.list_(entries)))
    if _is_list(kind):
        return _encode_lists(values)
    if pat.is_struct(kind):
        fields = (_encode_values(field, nested=True) for field in values.flatten())
        return [_validity_bytes(values), *(piece for field in fields for piece in field)]
    if pat.is_null(kind):
        return [_validity_bytes(values)]
    return [_validity_bytes(values), _fixed_width_bytes(values)] if nested else [_fixed_width_bytes(values)]


def _validity_bytes(values: pa.Array) -> np.ndarray:
    """Return a byte for each value: 0 for null, else 1."""
    return np.asarray(compute.is_valid(values)).astype(np.uint8)[:, None]


def _is_list(kind: pa.DataType) -> bool:
    return pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)


def _encode_binaries(values: pa.Array) -> list[_EncodedPart]:
    if len(values) and not values.null_count and values.type.id in _OFFSET_TYPES:
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, dtype=_OFFSET_TYPES[values.type.id])[
            values.offset : values.offset + len(values) + 1
        ]
        bounds = ends.astype(np.int64)
        return [_view_as_bytes(np.diff(bounds).astype("<i4")), (_buffer_bytes(data), bounds)]
    array = values.cast(pa.large_binary()) if values.type != pa.large_string() else values
    lengths = compute.binary_length(array)
    if array.null_count:
        lengths, array = compute.fill_null(lengths, -1), compute.fill_null(array, b"")
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    return [_view_as_bytes(np.asarray(lengths, dtype="<i4")), (_buffer_bytes(data), bounds)]


def _buffer_bytes(data: pa.Buffer | None) -> np.ndarray:
    return np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)


def _encode_lists(values: pa.Array) -> list[_EncodedPart]:
    lengths = compute.list_value_length(values)
    counts = np.asarray(compute.fill_null(lengths, -1), dtype="<i4")
    bounds = np.concatenate([[0], np.cumsum(np.maximum(counts, 0), dtype=np.int64)])
    elements = _encode_values(compute.list_flatten(values), nested=True)
    return [_view_as_bytes(counts), *(_regroup_part(piece, bounds) for piece in elements)]


def _fixed_width_bytes(values: pa.Array) -> np.ndarray:
    """Return values of fixed width as uint8[n, width]; nulls as zeros."""
    kind = values.type
    if pat.is_decimal(kind):
        width = kind.byte_width
        filled = compute.fill_null(values, pa.scalar(0).cast(kind)) if values.null_count else values
        raw = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
        return raw[filled.offset * width : (filled.offset + len(filled)) * width].reshape(-1, width)
    if pat.is_timestamp(kind):
        values = (values if kind.unit == "us" else values.cast(pa.timestamp("us", kind.tz))).view(pa.int64())
    elif pat.is_time32(kind) or pat.is_date32(kind):
        values = values.cast(pa.int32())
    elif pat.is_time64(kind) or pat.is_date64(kind) or pat.is_duration(kind):
        values = values.cast(pa.int64())
    if not pat.is_floating(kind) and values.type != pa.int64():
        values = values.cast(pa.int64())
    filled = compute.fill_null(values, 0) if values.null_count else values
    return _view_as_bytes(np.asarray(filled))


def _view_as_bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)


def _regroup_part(piece: _EncodedPart, bounds: np.ndarray) -> _EncodedPart:
    """Return a part of n values as a part of the runs of values with these bounds (int64[m + 1])."""
    data, inner = _to_ragged(piece)
    return data, inner[bounds]


def _to_ragged(piece: _EncodedPart) -> tuple[np.ndarray, np.ndarray]:
    """Return all bytes of a part, and the bounds of each value (int64[n + 1])."""
    if isinstance(piece, tuple):
        return piece
    rows, width = piece.shape
    return np.ascontiguousarray(piece).ravel(), width * np.arange(rows + 1, dtype=np.int64)


def _merge_fixed_width_parts(pieces: Iterable[_EncodedPart]) -> Iterator[_EncodedPart]:
    """Yield the parts with adjacent ones of fixed width merged, since joining has a cost per part."""
    for fixed, group in groupby(pieces, key=lambda piece: isinstance(piece, np.ndarray)):
        members = list(group)
        if fixed and len(members) > 1:
            yield np.hstack(members)
        else:
            yield from members


def _join_parts(pieces: Iterable[_EncodedPart], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the parts of each row; return all bytes, and the bounds of each row."""
    columns = [_make_large_binaries(*_to_ragged(piece)) for piece in _merge_fixed_width_parts(pieces)]
    if not columns:
        return np.empty(0, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    joined = compute.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = joined.buffers()
    return np.frombuffer(data, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int64)[: count + 1]


def _make_large_binaries(data: np.ndarray, bounds: np.ndarray) -> pa.Array:
    """Return bytes, cut at the bounds of each value, as a column."""
    buffers: list[Any] = [None, np.ascontiguousarray(bounds), np.ascontiguousarray(data)]
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [buffer if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    )


BLAKE2B_BYTES = 16
_BLAKE2B_CHUNK_ROWS = 1 << 16


def hash_rows_blake2b(rows: pa.Table, names: Sequence[str] | None = None) -> np.ndarray:
    """Return the BLAKE2b hash of each row of some columns (by default all), as uint32[n, 4], the lowest word first."""
    chosen = sorted(rows.schema.names if names is None else names)
    parts: list[bytes] = []
    for start in range(0, rows.num_rows, _BLAKE2B_CHUNK_ROWS):
        data, bounds = _encode_columns(rows.slice(start, _BLAKE2B_CHUNK_ROWS), chosen)
        whole = data.tobytes()  # slicing bytes is faster than slicing a view
        parts += [
            blake2b(whole[begin:end], digest_size=BLAKE2B_BYTES).digest() for begin, end in pairwise(bounds.tolist())
        ]
    return np.frombuffer(b"".join(parts), dtype="<u4").reshape(-1, 4)


def hash_keys(rows: pa.Table, names: Sequence[str]) -> list[bytes]:
    """Return collision-resistant hashes that identify rows by their key columns."""
    hashes = hash_rows_blake2b(rows, names).tobytes()
    return [hashes[start : start + BLAKE2B_BYTES] for start in range(0, len(hashes), BLAKE2B_BYTES)]


def encode_rows(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the hashed bytes (large binary) of each row: rows are equal in these columns if their bytes are."""
    return _make_large_binaries(*_encode_columns(rows, sorted(names)))


def _encode_columns(rows: pa.Table, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    pieces: list[_EncodedPart] = []
    for name in names:
        pieces += _encode_column_with_tag(name, to_single_array(rows[name]))
    return _join_parts(pieces, rows.num_rows)


def _encode_column_with_tag(name: str, values: pa.Array) -> list[_EncodedPart]:
    """Return the parts of a column, with a hash of its name before each value; nothing for null."""
    if values.null_count == len(values):
        return []
    tag = np.frombuffer(blake2b(name.encode(), digest_size=8).digest(), dtype=np.uint8)
    before = np.broadcast_to(tag, (len(values) - values.null_count, 8))
    if not values.null_count:
        return [before, *_encode_values(values)]
    pieces = [before, *_encode_values(values.drop_null())]
    bounds = np.concatenate([[0], np.cumsum(np.asarray(compute.is_valid(values)))])
    return [_regroup_part(piece, bounds) for piece in _merge_fixed_width_parts(pieces)]


# Chunks stay in a core's cache.
_WORDS_CHUNK_ROWS = 1 << 15
_CHUNK_WORDS = 1 << 15
_FEW_WORDS = 8


def hash_rows_words(rows: pa.Table) -> np.ndarray:
    """Return the hash (uint64[n]) of each row, from its columns' names and values."""
    starts = range(0, rows.num_rows, _WORDS_CHUNK_ROWS)
    parts = [_hash_chunk(rows.slice(start, _WORDS_CHUNK_ROWS)) for start in starts]
    return np.concatenate([np.empty(0, dtype=np.uint64), *parts])


def _hash_chunk(rows: pa.Table) -> np.ndarray:
    totals = np.full(rows.num_rows, GOLDEN_RATIO_64)
    waiting: list[tuple[UInt64s, np.uint64]] = []
    for name in rows.schema.names:
        values = to_single_array(rows[name])
        if values.null_count == len(values):
            continue
        valid = np.asarray(compute.is_valid(values)) if values.null_count else None
        pieces = _merge_fixed_width_parts(_encode_values(values if valid is None else values.drop_null()))
        for index, piece in enumerate(pieces):
            waiting.append((_scatter_to_rows(_hash_runs(piece), valid), _get_part_key(name, index)))
            # For few rows, combine all parts at once: each numpy call takes at least a microsecond.
            if len(waiting) * rows.num_rows >= _CHUNK_WORDS:
                totals += _combine_parts(waiting)
                waiting.clear()
    return mix_bits(totals + _combine_parts(waiting) if waiting else totals)


def _scatter_to_rows(numbers: UInt64s, given: Bools | None) -> UInt64s:
    """Return the numbers of the valid values, one for each row; 0 for nulls."""
    if given is None:
        return numbers
    by_row = np.zeros(len(given), dtype=np.uint64)
    by_row[given] = numbers
    return by_row


@lru_cache(maxsize=1 << 12)
def _get_part_key(name: str, place: int) -> np.uint64:
    return np.frombuffer(blake2b(f"{place} {name}".encode(), digest_size=8).digest(), dtype=np.uint64)[0]


def _combine_parts(parts: Sequence[tuple[UInt64s, np.uint64]]) -> UInt64s:
    """Return the sum that some parts add to their rows, from their numbers (one for all rows or one each) and keys."""
    numbers = np.empty((len(parts), max(len(part_numbers) for part_numbers, _ in parts)), dtype=np.uint64)
    for index, (part_numbers, _) in enumerate(parts):
        numbers[index] = part_numbers
    spread = mix_bits(numbers ^ np.array([key for _, key in parts])[:, None])
    if not numbers.all():
        spread[numbers == 0] = 0
    return spread.sum(axis=0, dtype=np.uint64)


def _hash_runs(piece: _EncodedPart) -> np.ndarray:
    """Return a number for the bytes of each run, or one for all runs if they are equal; 0 for an empty run."""
    if isinstance(piece, np.ndarray):
        return _hash_equal_width_runs(piece)
    data, bounds = _to_ragged(piece)
    lengths = np.diff(bounds)
    if len(lengths) and (lengths == lengths[0]).all():
        return _hash_equal_width_runs(data[bounds[0] : bounds[-1]].reshape(len(lengths), -1))
    words = (lengths + 7) // 8
    ends = np.cumsum(words)
    runs = np.repeat(np.arange(len(words)), words)
    indices = np.arange(len(runs)) - (ends - words)[runs]
    padded = np.append(data, np.zeros(8, dtype=np.uint8))
    begins = bounds[:-1][runs] + 8 * indices
    # Read eight bytes at any offset: numpy reads unaligned words.
    words_read = np.ndarray((len(padded) - 7,), dtype=np.uint64, buffer=padded, strides=(1,))[begins]
    remaining = np.minimum(lengths[runs] - 8 * indices, 8).astype(np.uint64)
    words_read &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.uint64(8) * remaining)
    totals = np.append(np.uint64(0), np.cumsum(mix_bits(words_read + _make_word_keys(indices))))
    return totals[ends] - totals[ends - words]


def _hash_equal_width_runs(runs: np.ndarray) -> np.ndarray:
    """Hash runs of one width as `_hash_runs` does."""
    words = _view_as_words(runs)
    if len(words) > 1 and (words == words[0]).all():
        words = words[:1]  # true for most TTL columns
    count, width = words.shape
    keys = _get_cached_word_keys(width)
    if count * width <= _CHUNK_WORDS:
        return mix_bits(words + keys).sum(axis=1, dtype=np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    if width <= _FEW_WORDS:
        for index in range(width):
            hashes += mix_bits(words[:, index] + keys[index : index + 1])
        return hashes
    at_once = max(1, _CHUNK_WORDS // width)
    for start in range(0, count, at_once):
        hashes[start : start + at_once] = mix_bits(words[start : start + at_once] + keys).sum(axis=1, dtype=np.uint64)
    return hashes


def _view_as_words(runs: np.ndarray) -> np.ndarray:
    """Return runs of one width (uint8[n, width]) as words (uint64[n, words])."""
    count, width = runs.shape
    if width % 8:
        padded = np.zeros((count, width + -width % 8), dtype=np.uint8)
        padded[:, :width] = runs
        runs = padded
    return np.ascontiguousarray(runs).view(np.uint64) if width else np.empty((count, 0), dtype=np.uint64)


@lru_cache(maxsize=64)
def _get_cached_word_keys(count: int) -> np.ndarray:
    return _make_word_keys(np.arange(count))


def _make_word_keys(places: np.ndarray) -> np.ndarray:
    return (places + 1).astype(np.uint64) * GOLDEN_RATIO_64


DIGEST_MODULUS = 1 << 128

_DigestByPartition = Mapping[str, int]
"""The digest of each partition by its name: `column=value` of its partition columns, empty if there are none."""


class DigestRule(StrEnum):
    """The rule that computes a table's digests, stored in the table's property DIGEST_RULE_PROPERTY.

    WORDS: a row's number of 64 bits (see `hash_rows_words`), computed from whole columns, in a sixth of the time.
    BLAKE2B: 128 bits of each row's own bytes (see `hash_rows_blake2b`), of tables that are older than the property.
    """

    WORDS = "words-64"
    BLAKE2B = "blake2b-128"


NEWEST_DIGEST_RULE = DigestRule.WORDS
DIGEST_RULE_PROPERTY = "cdc_platform.digests"


def digest_rule_from_properties(table: str, properties: Mapping[str, str | None]) -> DigestRule:
    """Return the rule of a table (named for the message) with these properties.

    Raises:
        StateError: this version does not know the rule.
    """
    named = properties.get(DIGEST_RULE_PROPERTY) or DigestRule.BLAKE2B
    try:
        return DigestRule(named)
    except ValueError:
        raise StateError(
            f"{table} digests rows by {named!r}, this version knows {', '.join(DigestRule)} "
            f"({DIGEST_RULE_PROPERTY} of the table's "
            "properties); use the version of the platform that made it"
        ) from None


def format_partition_name(columns: Sequence[str], values: Sequence[Any]) -> str:
    """Return a partition's name: its columns and values; empty for a table without partition columns."""
    return "/".join(f"{name}={_format_partition_value(value)}" for name, value in zip(columns, values, strict=True))


def partition_name_from_values(columns: Sequence[str], where: Mapping[str, Any]) -> str:
    """Return the name of the partition whose columns have their values in `where`."""
    return format_partition_name(columns, [where[name] for name in columns])


def digest_rows(rows: pa.Table, partition_by: Sequence[str], rule: DigestRule) -> dict[str, int]:
    """Return the sums of the hashes of rows, by partition; empty without rows."""
    if not rows.num_rows:
        return {}
    hashes = _hash_rows(rows.drop_columns(list(partition_by)), rule)
    if not partition_by:
        return {"": _sum_hashes(hashes)}
    totals: dict[str, int] = {}
    for key, indices in _group_rows([rows[name] for name in partition_by]):
        totals[format_partition_name(partition_by, key)] = _sum_hashes(hashes[indices])
    return totals


def update_digests(
    before: _DigestByPartition, added: _DigestByPartition, removed: _DigestByPartition
) -> dict[str, int]:
    """Return the digests of changed partitions after the change; a partition that `before` lacks was empty."""
    names = dict.fromkeys([*added, *removed])
    return {name: (before.get(name, 0) + added.get(name, 0) - removed.get(name, 0)) % DIGEST_MODULUS for name in names}


def sum_digests(parts: Iterable[_DigestByPartition]) -> dict[str, int]:
    """Return the digests of partitions whose rows are spread over several parts."""
    totals: dict[str, int] = {}
    for part in parts:
        totals = totals | update_digests(totals, part, {})
    return totals


def list_partition_names(rows: pa.Table, partition_by: Sequence[str]) -> list[str]:
    """Return the names of the partitions that rows belong to."""
    if not rows.num_rows or not partition_by:
        return [""] * bool(rows.num_rows)
    return [format_partition_name(partition_by, key) for key, _ in _group_rows([rows[name] for name in partition_by])]


def _hash_rows(rows: pa.Table, rule: DigestRule) -> np.ndarray:
    """Return the hash of each row, as uint32[n, words], the lowest word first."""
    if rule == DigestRule.BLAKE2B:
        return hash_rows_blake2b(rows)
    return hash_rows_words(rows).astype("<u8", copy=False).view("<u4").reshape(-1, 2)


def _sum_hashes(found: np.ndarray) -> int:
    # Sum by column: numpy takes twenty times as long along rows of two.
    words = (int(found[:, index].sum(dtype=np.uint64)) for index in range(found.shape[1]))
    return sum(word << (32 * index) for index, word in enumerate(words)) % DIGEST_MODULUS


def _group_rows(columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """Yield each combination of values with its rows' indices."""
    encoded = [to_single_array(column).dictionary_encode() for column in columns]
    # Combine a row's dictionary indices into one number; null has index -1.
    codes, base = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column_codes in encoded:
        codes += base * (np.asarray(compute.fill_null(column_codes.indices, -1)).astype(np.int64) + 1)
        base *= len(column_codes.dictionary) + 1
    order = np.argsort(codes, kind="stable") if codes.min() < codes.max() else np.arange(len(codes))
    begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for indices in np.split(order, begins[1:]):
        first = int(indices[0])
        yield tuple(column_codes[first].as_py() for column_codes in encoded), indices


def _format_partition_value(value: Any) -> str:
    return format_us(us_from_datetime(value)) if hasattr(value, "tzinfo") else str(value)


_FEW_ROWS = 512
"""Hashing this few rows takes no longer than comparing them."""


def find_differing_rows(one: pa.Table, other: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of each table that the other lacks, counting duplicates; columns have equal names, in any types.

    Two different rows count as equal once in 2^64 pairs.
    """
    if min(one.num_rows, other.num_rows) <= _FEW_ROWS:
        return one, other
    one_numbers, other_numbers = _number_duplicates(hash_rows_words(one)), _number_duplicates(hash_rows_words(other))
    return one.filter(pa.array(_find_missing(one_numbers, other_numbers))), other.filter(
        pa.array(_find_missing(other_numbers, one_numbers))
    )


def _find_missing(numbers: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return a mask (bool) of the numbers that are not known; both are sorted, since ordered searches are fast."""
    if not len(known):
        return np.ones(len(numbers), dtype=bool)
    order, known = np.argsort(numbers), np.sort(known)
    wanted = numbers[order]
    missing = np.empty(len(numbers), dtype=bool)
    missing[order] = known[np.minimum(np.searchsorted(known, wanted), len(known) - 1)] != wanted
    return missing


def _number_duplicates(numbers: np.ndarray) -> np.ndarray:
    """Return distinct numbers: a repeated number is replaced by one that depends on its occurrence."""
    ordered = np.sort(numbers)
    fresh = np.append(True, ordered[1:] != ordered[:-1])
    if fresh.all():
        return numbers
    order = np.argsort(numbers, kind="stable")
    indices = np.arange(len(ordered))
    times = indices - np.maximum.accumulate(np.where(fresh, indices, 0))
    counted = np.empty_like(numbers)
    counted[order] = ordered + times.astype(np.uint64) * GOLDEN_RATIO_64
    return counted
