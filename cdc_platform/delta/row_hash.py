"""Hash rows, and sum the hashes of a partition into the digest that its commits record.

A partition's digest is the sum of its row hashes modulo 2^128, so it depends on neither the order of rows nor their
files, counts duplicates, and follows a change by addition and subtraction. An empty partition has 0. Digests detect
changes; they are no proof against forgery. Columns that name the partition are left out. A table keeps one of two
rules for its lifetime.

Encoding: each value becomes parts. Whole numbers, booleans, dates, times and timestamps (us) take 8 bytes,
little-endian; floats and decimals are as in Arrow; text and binaries are their length in 4 bytes and their bytes;
lists and maps are their length in 4 bytes and then, over all elements, each part of the element encoding; structs are
a byte 1 and each field. Inside lists and structs a null has the length -1, or a byte 0 before zeros where other
values have 1.

`blake2b-128`: BLAKE2b (16 bytes, little-endian number) over the columns in name order. A null contributes nothing, so
a later column changes no digest; other values contribute BLAKE2b (8 bytes) of the column name and their encoding.

`words-64` (a sixth of the time): a word is 8 bytes of an encoding, little-endian, the last of a run padded with
zeros; `mixed` is in ring/mixing, K is 0x9E3779B97F4A7C15, sums are modulo 2^64. The number of a run of bytes is the
sum of `mixed(word + K (place + 1))` over its words by place from 0; of no bytes 0. Neighbouring parts of one width
are one part. Each part adds `mixed(number ^ key)` to the row, or nothing where its number is 0; the key is BLAKE2b (8
bytes, little-endian) of the part's place from 0, a space and the column name. A null adds nothing. The row's hash is
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
"""A part of the encoding of n values: uint8[n, width], or all their bytes and where each begins (int64[n + 1])."""

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
"""The types whose values are bytes, as Arrow numbers them."""
_OFFSET_TYPES = {
    pa.string().id: np.dtype(np.int32),
    pa.binary().id: np.dtype(np.int32),
    pa.large_string().id: np.dtype(np.int64),
    pa.large_binary().id: np.dtype(np.int64),
}
"""Of those, the ones that are all bytes and where each value's begin, with what these places are."""
_WITHOUT_VIEWS: dict[pa.DataType, pa.DataType] = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}


def to_single_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece, without the views that deltalake's files may have: few of Arrow's functions take them."""
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
    """The encoding of values, part by part; where they are `nested`, some may be null, elsewhere none."""
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
    """A byte of each value: 0 of a null, else 1."""
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
    """Values of one width, as uint8[n, width]; nulls as zeros."""
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
    """A piece of n values as one of the runs of values that begin at these bounds (int64[m + 1])."""
    data, inner = _to_ragged(piece)
    return data, inner[bounds]


def _to_ragged(piece: _EncodedPart) -> tuple[np.ndarray, np.ndarray]:
    """All bytes of a piece, and where each value's begin (int64[n + 1])."""
    if isinstance(piece, tuple):
        return piece
    rows, width = piece.shape
    return np.ascontiguousarray(piece).ravel(), width * np.arange(rows + 1, dtype=np.int64)


def _merge_fixed_width_parts(pieces: Iterable[_EncodedPart]) -> Iterator[_EncodedPart]:
    """The same pieces, those of one width that are neighbours as one: every piece that is joined costs."""
    for fixed, some in groupby(pieces, key=lambda piece: isinstance(piece, np.ndarray)):
        several = list(some)
        if fixed and len(several) > 1:
            yield np.hstack(several)
        else:
            yield from several


def _join_parts(pieces: Iterable[_EncodedPart], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of each row, one behind the other: all bytes, and where each row begins and ends."""
    columns = [_make_large_binaries(*_to_ragged(piece)) for piece in _merge_fixed_width_parts(pieces)]
    if not columns:
        return np.empty(0, dtype=np.uint8), np.zeros(count + 1, dtype=np.int64)
    joined = compute.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = joined.buffers()
    return np.frombuffer(data, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int64)[: count + 1]


def _make_large_binaries(data: np.ndarray, bounds: np.ndarray) -> pa.Array:
    """Bytes, cut where each value's begin and the last one's end, as a column."""
    buffers: list[Any] = [None, np.ascontiguousarray(bounds), np.ascontiguousarray(data)]
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [each if each is None else pa.py_buffer(each) for each in buffers]
    )


BLAKE2B_BYTES = 16
_BLAKE2B_CHUNK_ROWS = 1 << 16


def hash_rows_blake2b(rows: pa.Table, names: Sequence[str] | None = None) -> np.ndarray:
    """The digest of each row of some columns (all without `names`), as uint32[n, 4], the lowest word first."""
    chosen = sorted(rows.schema.names if names is None else names)
    parts: list[bytes] = []
    for start in range(0, rows.num_rows, _BLAKE2B_CHUNK_ROWS):
        data, bounds = _encode_columns(rows.slice(start, _BLAKE2B_CHUNK_ROWS), chosen)
        whole = data.tobytes()  # slices of bytes are made faster than those of a view
        parts += [
            blake2b(whole[begin:end], digest_size=BLAKE2B_BYTES).digest() for begin, end in pairwise(bounds.tolist())
        ]
    return np.frombuffer(b"".join(parts), dtype="<u4").reshape(-1, 4)


def hash_keys(rows: pa.Table, names: Sequence[str]) -> list[bytes]:
    """What tells rows apart by the columns that name them; nobody can make two that are alike."""
    found = hash_rows_blake2b(rows, names).tobytes()
    return [found[place : place + BLAKE2B_BYTES] for place in range(0, len(found), BLAKE2B_BYTES)]


def encode_rows(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """The bytes (large binary) of each row that are digested: two rows are equal in some columns if theirs are."""
    return _make_large_binaries(*_encode_columns(rows, sorted(names)))


def _encode_columns(rows: pa.Table, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    pieces: list[_EncodedPart] = []
    for name in names:
        pieces += _encode_column_with_tag(name, to_single_array(rows[name]))
    return _join_parts(pieces, rows.num_rows)


def _encode_column_with_tag(name: str, values: pa.Array) -> list[_EncodedPart]:
    """A column of rows, with its name before each value; nothing where that is null."""
    if values.null_count == len(values):
        return []
    tag = np.frombuffer(blake2b(name.encode(), digest_size=8).digest(), dtype=np.uint8)
    before = np.broadcast_to(tag, (len(values) - values.null_count, 8))
    if not values.null_count:
        return [before, *_encode_values(values)]
    pieces = [before, *_encode_values(values.drop_null())]
    places = np.concatenate([[0], np.cumsum(np.asarray(compute.is_valid(values)))])
    return [_regroup_part(piece, places) for piece in _merge_fixed_width_parts(pieces)]


# What is worked on at once stays in a core's cache.
_WORDS_CHUNK_ROWS = 1 << 15
_CHUNK_WORDS = 1 << 15
_FEW_WORDS = 8


def hash_rows_words(rows: pa.Table) -> np.ndarray:
    """The number (uint64[n]) of each row, of its columns' names and values."""
    starts = range(0, rows.num_rows, _WORDS_CHUNK_ROWS)
    parts = [_hash_chunk(rows.slice(start, _WORDS_CHUNK_ROWS)) for start in starts]
    return np.concatenate([np.empty(0, dtype=np.uint64), *parts])


def _hash_chunk(rows: pa.Table) -> np.ndarray:
    found = np.full(rows.num_rows, GOLDEN_RATIO_64)
    waiting: list[tuple[UInt64s, np.uint64]] = []
    for name in rows.schema.names:
        values = to_single_array(rows[name])
        if values.null_count == len(values):
            continue
        given = np.asarray(compute.is_valid(values)) if values.null_count else None
        pieces = _merge_fixed_width_parts(_encode_values(values if given is None else values.drop_null()))
        for place, piece in enumerate(pieces):
            waiting.append((_scatter_to_rows(_hash_runs(piece), given), _get_part_key(name, place)))
            # Of few rows all parts are spread at once: each of numpy's calls takes a microsecond, whatever it works on.
            if len(waiting) * rows.num_rows >= _CHUNK_WORDS:
                found += _combine_parts(waiting)
                waiting.clear()
    return mix_bits(found + _combine_parts(waiting) if waiting else found)


def _scatter_to_rows(numbers: UInt64s, given: Bools | None) -> UInt64s:
    """The numbers of the values that are given, a row each; 0 of those that are not."""
    if given is None:
        return numbers
    found = np.zeros(len(given), dtype=np.uint64)
    found[given] = numbers
    return found


@lru_cache(maxsize=1 << 12)
def _get_part_key(name: str, place: int) -> np.uint64:
    return np.frombuffer(blake2b(f"{place} {name}".encode(), digest_size=8).digest(), dtype=np.uint64)[0]


def _combine_parts(parts: Sequence[tuple[UInt64s, np.uint64]]) -> UInt64s:
    """What some parts put into their rows: their numbers, one for all rows or one for each, and each part's key."""
    numbers = np.empty((len(parts), max(len(each) for each, _ in parts)), dtype=np.uint64)
    for place, (each, _) in enumerate(parts):
        numbers[place] = each
    spread = mix_bits(numbers ^ np.array([key for _, key in parts])[:, None])
    if not numbers.all():
        spread[numbers == 0] = 0
    return spread.sum(axis=0, dtype=np.uint64)


def _hash_runs(piece: _EncodedPart) -> np.ndarray:
    """A number of the bytes of each run, word by word, or of all of them where they are the same; 0 of none."""
    if isinstance(piece, np.ndarray):
        return _hash_equal_width_runs(piece)
    data, bounds = _to_ragged(piece)
    lengths = np.diff(bounds)
    if len(lengths) and (lengths == lengths[0]).all():
        return _hash_equal_width_runs(data[bounds[0] : bounds[-1]].reshape(len(lengths), -1))
    words = (lengths + 7) // 8
    ends = np.cumsum(words)
    runs = np.repeat(np.arange(len(words)), words)
    places = np.arange(len(runs)) - (ends - words)[runs]
    padded = np.append(data, np.zeros(8, dtype=np.uint8))
    begins = bounds[:-1][runs] + 8 * places
    # Eight bytes from any place on: numpy reads a word that begins anywhere.
    taken = np.ndarray((len(padded) - 7,), dtype=np.uint64, buffer=padded, strides=(1,))[begins]
    left = np.minimum(lengths[runs] - 8 * places, 8).astype(np.uint64)
    taken &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.uint64(8) * left)
    totals = np.append(np.uint64(0), np.cumsum(mix_bits(taken + _make_word_keys(places))))
    return totals[ends] - totals[ends - words]


def _hash_equal_width_runs(runs: np.ndarray) -> np.ndarray:
    """The same of runs of one width."""
    words = _view_as_words(runs)
    if len(words) > 1 and (words == words[0]).all():
        words = words[:1]  # as most times to live are
    count, width = words.shape
    keys = _get_cached_word_keys(width)
    if count * width <= _CHUNK_WORDS:
        return mix_bits(words + keys).sum(axis=1, dtype=np.uint64)
    found = np.zeros(count, dtype=np.uint64)
    if width <= _FEW_WORDS:
        for place in range(width):
            found += mix_bits(words[:, place] + keys[place : place + 1])
        return found
    at_once = max(1, _CHUNK_WORDS // width)
    for start in range(0, count, at_once):
        found[start : start + at_once] = mix_bits(words[start : start + at_once] + keys).sum(axis=1, dtype=np.uint64)
    return found


def _view_as_words(runs: np.ndarray) -> np.ndarray:
    """Runs of one width (uint8[n, width]) as words (uint64[n, words])."""
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
"""The digest of each slice by its name: `column=value` of its partition columns, empty where a table has none."""


class DigestRule(StrEnum):
    """How the rows of a table are digested, as the table's property PROPERTY names it.

    WORDS: a row's number of 64 bits (see `hash_rows_words`), made of whole columns at once, in a sixth of the time.
    BLAKE2B: 128 bits of each row's own bytes (see `hash_rows_blake2b`), of tables from before there were rules.
    """

    WORDS = "words-64"
    BLAKE2B = "blake2b-128"


NEWEST_DIGEST_RULE = DigestRule.WORDS
DIGEST_RULE_PROPERTY = "cdc_platform.digests"


def digest_rule_from_properties(table: str, properties: Mapping[str, str | None]) -> DigestRule:
    """The rule of a table (its name is for the message) with these properties.

    Raises:
        StateError: it is none that this version knows.
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
    """The name of a slice: its partition columns and their values; that of a table without any is empty."""
    return "/".join(f"{name}={_format_partition_value(value)}" for name, value in zip(columns, values, strict=True))


def partition_name_from_values(columns: Sequence[str], where: Mapping[str, Any]) -> str:
    """The name of the slice in which each of the partition columns has its value in `where`."""
    return format_partition_name(columns, [where[name] for name in columns])


def digest_rows(rows: pa.Table, partition_by: Sequence[str], rule: DigestRule) -> dict[str, int]:
    """The sums of the digests of rows, by the slice that they belong to; none of no rows."""
    if not rows.num_rows:
        return {}
    found = _hash_rows(rows.drop_columns(list(partition_by)), rule)
    if not partition_by:
        return {"": _sum_hashes(found)}
    totals: dict[str, int] = {}
    for key, places in _group_rows([rows[name] for name in partition_by]):
        totals[format_partition_name(partition_by, key)] = _sum_hashes(found[places])
    return totals


def update_digests(
    before: _DigestByPartition, added: _DigestByPartition, removed: _DigestByPartition
) -> dict[str, int]:
    """The digests of the slices that a change touches, after it; a slice that `before` lacks was empty."""
    names = dict.fromkeys([*added, *removed])
    return {name: (before.get(name, 0) + added.get(name, 0) - removed.get(name, 0)) % DIGEST_MODULUS for name in names}


def sum_digests(parts: Iterable[_DigestByPartition]) -> dict[str, int]:
    """The digests of slices of which each part has some rows."""
    totals: dict[str, int] = {}
    for part in parts:
        totals = totals | update_digests(totals, part, {})
    return totals


def list_partition_names(rows: pa.Table, partition_by: Sequence[str]) -> list[str]:
    """The names of the slices that rows belong to."""
    if not rows.num_rows or not partition_by:
        return [""] * bool(rows.num_rows)
    return [format_partition_name(partition_by, key) for key, _ in _group_rows([rows[name] for name in partition_by])]


def _hash_rows(rows: pa.Table, rule: DigestRule) -> np.ndarray:
    """The digest of each row, as uint32[n, words], the lowest word first."""
    if rule == DigestRule.BLAKE2B:
        return hash_rows_blake2b(rows)
    return hash_rows_words(rows).astype("<u8", copy=False).view("<u4").reshape(-1, 2)


def _sum_hashes(found: np.ndarray) -> int:
    # Column by column: numpy takes twenty times as long along rows of two.
    words = (int(found[:, place].sum(dtype=np.uint64)) for place in range(found.shape[1]))
    return sum(word << (32 * place) for place, word in enumerate(words)) % DIGEST_MODULUS


def _group_rows(columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[tuple[Any, ...], np.ndarray]]:
    """The rows (their places) of each combination of values."""
    encoded = [to_single_array(column).dictionary_encode() for column in columns]
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


def _format_partition_value(value: Any) -> str:
    return format_us(us_from_datetime(value)) if hasattr(value, "tzinfo") else str(value)


_FEW_ROWS = 512
"""So few rows are digested in the time in which they are compared."""


def find_differing_rows(one: pa.Table, other: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of each that the other has not, or not as often. Of columns with the same names, in any types.

    Two rows that differ count as equal once in 2^64 pairs.
    """
    if min(one.num_rows, other.num_rows) <= _FEW_ROWS:
        return one, other
    mine, theirs = _number_duplicates(hash_rows_words(one)), _number_duplicates(hash_rows_words(other))
    return one.filter(pa.array(_find_missing(mine, theirs))), other.filter(pa.array(_find_missing(theirs, mine)))


def _find_missing(numbers: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which numbers (bool) are not among the known ones; both in order first, since a search in order is fast."""
    if not len(known):
        return np.ones(len(numbers), dtype=bool)
    order, known = np.argsort(numbers), np.sort(known)
    asked = numbers[order]
    lacking = np.empty(len(numbers), dtype=bool)
    lacking[order] = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] != asked
    return lacking


def _number_duplicates(numbers: np.ndarray) -> np.ndarray:
    """Numbers of which none comes twice: the second of two that are equal is another one."""
    placed = np.sort(numbers)
    fresh = np.append(True, placed[1:] != placed[:-1])
    if fresh.all():
        return numbers
    order = np.argsort(numbers, kind="stable")
    places = np.arange(len(placed))
    times = places - np.maximum.accumulate(np.where(fresh, places, 0))
    counted = np.empty_like(numbers)
    counted[order] = placed + times.astype(np.uint64) * GOLDEN_RATIO_64
    return counted
