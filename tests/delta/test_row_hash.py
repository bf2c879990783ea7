"""Row digests, compared with a plain implementation of their definition, without a Delta table."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.delta import row_hash
from cdc_platform.delta.row_hash import DigestRule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INNER = pa.struct([pa.field("p", pa.list_(pa.int64())), pa.field("q", pa.string())])
SCHEMA = pa.schema(
    [
        ("slice", pa.string()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("small", pa.int8()),
        ("big", pa.int64()),
        ("flag", pa.bool_()),
        ("time", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("real", pa.float64()),
        ("money", pa.decimal128(10, 2)),
        ("streams", pa.list_(pa.binary())),
        ("lists", pa.list_(pa.list_(pa.int32()))),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("struct", INNER),
        ("structs", pa.list_(INNER)),
    ]
)
_SMALL = st.integers(-3, 3)
_TEXTS = st.sampled_from(["", "a", "ab", "b", "\x00", "ä"])
_BYTES = _TEXTS.map(str.encode)
_INNER = st.fixed_dictionaries({"p": st.none() | st.lists(st.none() | _SMALL, max_size=3), "q": st.none() | _TEXTS})
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": _TEXTS,
    "bytes": _BYTES,
    "small": _SMALL,
    "big": st.integers(-(2**63), 2**63 - 1),
    "flag": st.booleans(),
    "time": _SMALL.map(lambda n: EPOCH + timedelta(microseconds=n)),
    "day": _SMALL.map(lambda n: date(1970, 1, 5) + timedelta(days=n)),
    "real": st.floats(),
    "money": _SMALL.map(lambda n: Decimal(n).scaleb(-2)),
    "streams": st.lists(st.none() | _BYTES, max_size=3),
    "lists": st.lists(st.none() | st.lists(st.none() | _SMALL, max_size=2), max_size=3),
    "map": st.dictionaries(_TEXTS, st.none() | _SMALL, max_size=2).map(lambda mapping: list(mapping.items())),
    "struct": _INNER,
    "structs": st.lists(st.none() | _INNER, max_size=2),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"slice": st.sampled_from(["x", "y"]), **{name: st.none() | values for name, values in VALUES.items()}}
    ),
    min_size=1,
    max_size=6,
)
Row = dict[str, Any]


def plain(values: list[Any], kind: pa.DataType, *, nested: bool = True) -> list[list[bytes]]:
    """Return the parts of the encoding of values: one list per part, with the bytes of each value."""
    if pat.is_string(kind) or pat.is_binary(kind):
        raw = [value.encode() if isinstance(value, str) else value for value in values]
        return [[_length(value) for value in raw], [value or b"" for value in raw]]
    if pat.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        pairs = [None if value is None else [{"key": k, "value": v} for k, v in value] for value in values]
        return plain(pairs, pa.list_(entries))
    if pat.is_list(kind):
        parts = [plain(value or [], kind.value_type) for value in values]
        return [
            [_length(value) for value in values],
            *([b"".join(part[index]) for part in parts] for index, _ in enumerate(fixed(kind.value_type))),
        ]
    presence = [b"\x00" if value is None else b"\x01" for value in values]
    if pat.is_struct(kind):
        fields = ([None if value is None else value[part.name] for value in values] for part in kind)
        return [
            presence,
            *(part for part, field_values in zip(kind, fields, strict=True) for part in plain(field_values, part.type)),
        ]
    return [*([presence] if nested else []), [_number(value, kind) for value in values]]


def _length(value: Any) -> bytes:
    return struct.pack("<i", -1 if value is None else len(value))


def _number(value: Any, kind: pa.DataType) -> bytes:
    if pat.is_decimal(kind):
        return int(Decimal(value or 0).scaleb(kind.scale)).to_bytes(16, "little", signed=True)
    if pat.is_floating(kind):
        return struct.pack("<d", 0.0 if value is None else value)
    if isinstance(value, datetime):
        value = (value - EPOCH) // timedelta(microseconds=1)
    elif isinstance(value, date):
        value = (value - EPOCH.date()).days
    return struct.pack("<q", int(value or 0))


def fixed(kind: pa.DataType, *, nested: bool = True) -> list[bool]:
    """Return for each part whether it has one width in all values."""
    if pat.is_string(kind) or pat.is_binary(kind):
        return [True, False]
    if pat.is_map(kind):
        kind = pa.list_(pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)]))
    if pat.is_list(kind):
        return [True, *(False for _ in fixed(kind.value_type))]
    if pat.is_struct(kind):
        return [True, *(flag for part in kind for flag in fixed(part.type))]
    return [True] * (1 + nested)


def by_blake2b(row: Row, names: list[str]) -> int:
    """Return the digest of one row by the earlier rule."""
    encoded = b""
    for name in sorted(names):
        if row[name] is not None:
            tag = blake2b(name.encode(), digest_size=8).digest()
            parts = plain([row[name]], SCHEMA.field(name).type, nested=False)
            encoded += tag + b"".join(part for [part] in parts)
    return int.from_bytes(blake2b(encoded, digest_size=16).digest(), "little")


def by_words(row: Row, names: list[str]) -> int:
    """Return the digest of one row by today's rule, as an integer."""
    total = 0x9E3779B97F4A7C15
    for name in names:
        if row[name] is None:
            continue
        kind = SCHEMA.field(name).type
        parts = [part for [part] in plain([row[name]], kind, nested=False)]
        joined: list[bytes] = []
        flagged = list(zip(parts, fixed(kind, nested=False), strict=True))
        for is_fixed, group in groupby(flagged, key=lambda pair: pair[1]):
            runs = [part for part, _ in group]
            joined += [b"".join(runs)] if is_fixed else runs
        for index, run in enumerate(joined):
            key = int.from_bytes(blake2b(f"{index} {name}".encode(), digest_size=8).digest(), "little")
            number = run_number(run)
            total += stafford(number ^ key) if number else 0
    return stafford(total % 2**64)


def run_number(run: bytes) -> int:
    """Return the number of a run of bytes."""
    words = [int.from_bytes(run[start : start + 8], "little") for start in range(0, len(run), 8)]
    return sum(stafford((w + (i + 1) * 0x9E3779B97F4A7C15) % 2**64) for i, w in enumerate(words)) % 2**64


def stafford(word: int) -> int:
    """Apply David Stafford's thirteenth variant of the 64-bit finaliser, as splitmix64 does."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


PLAIN = {DigestRule.BLAKE2B: by_blake2b, DigestRule.WORDS: by_words}
of_every_rule = pytest.mark.parametrize("rule", DigestRule)


@of_every_rule
@given(ROWS)
def test_digests_are_as_they_are_defined(rule: DigestRule, rows: list[Row]) -> None:
    """Values of all types, with nulls anywhere; a partition's digest is the sum of its rows' digests."""
    names = [name for name in SCHEMA.names if name != "slice"]
    expected: dict[str, int] = {}
    for row in rows:
        key = f"slice={row['slice']}"
        expected[key] = (expected.get(key, 0) + PLAIN[rule](row, names)) % 2**128
    assert row_hash.digest_rows(pa.Table.from_pylist(rows, schema=SCHEMA), ["slice"], rule) == expected


@pytest.mark.parametrize("width", [1, 5, 9, 40])
def test_a_number_is_the_same_however_long_a_value_is(width: int) -> None:
    """Values of one word and of many, in rows of equal and of different lengths."""
    values = [bytes([index % 256]) * (8 * width - index % 3) for index in range(5000)]
    for cases in (values, [value.ljust(8 * width, b"x") for value in values], [values[0]] * 9):
        rows = [dict.fromkeys(SCHEMA.names) | {"slice": "x", "bytes": value} for value in cases]
        digests = row_hash.digest_rows(pa.Table.from_pylist(rows, schema=SCHEMA), ["slice"], DigestRule.WORDS)
        assert digests == {"slice=x": sum(by_words(row, ["bytes"]) for row in rows)}


@of_every_rule
def test_a_row_without_a_value_counts(rule: DigestRule) -> None:
    """A row with nulls in all but its partition column has a digest."""
    rows = pa.Table.from_pylist([{"slice": "x"}], schema=SCHEMA)
    assert row_hash.digest_rows(rows, ["slice"], rule)["slice=x"] != 0


@of_every_rule
@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_digest_knows_no_order_no_files_and_no_batches(
    rule: DigestRule, rows: list[Row], random: Any, size: int
) -> None:
    """Shuffled rows, chunks of any size and offsets into larger buffers have one digest."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    whole = row_hash.digest_rows(table, ["slice"], rule)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = table.take(pa.array(order))
    parts = [shuffled.slice(start, size) for start in range(0, len(rows), size)]
    assert row_hash.sum_digests(row_hash.digest_rows(part, ["slice"], rule) for part in parts) == whole
    assert row_hash.digest_rows(pa.concat_tables(parts), ["slice"], rule) == whole


@of_every_rule
@given(ROWS)
def test_digests_follow_added_and_removed_rows(rule: DigestRule, rows: list[Row]) -> None:
    """Adding and removing rows updates the digest to that of the current rows."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    first, rest = table.slice(0, 1), table.slice(1)
    key = f"slice={rows[0]['slice']}"
    before = row_hash.digest_rows(rest, ["slice"], rule)
    with_first = row_hash.update_digests(before, row_hash.digest_rows(first, ["slice"], rule), {})
    assert with_first[key] == row_hash.digest_rows(table, ["slice"], rule)[key]
    assert row_hash.update_digests(with_first, {}, row_hash.digest_rows(first, ["slice"], rule))[key] == before.get(
        key, 0
    )


@of_every_rule
@given(ROWS)
def test_a_new_column_of_nulls_and_views_change_nothing(rule: DigestRule, rows: list[Row]) -> None:
    """A table that grew reads a new column of nulls, and deltalake writes views."""
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    whole = row_hash.digest_rows(table, ["slice"], rule)
    assert (
        row_hash.digest_rows(table.append_column("later", pa.nulls(len(rows), pa.string())), ["slice"], rule) == whole
    )
    for name, kind in (("text", pa.string_view()), ("bytes", pa.binary_view())):
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table[name].cast(kind))
    assert row_hash.digest_rows(table, ["slice"], rule) == whole


@of_every_rule
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"text": "ab", "bytes": b""}, {"text": "a", "bytes": b"b"}),
        ({"text": ""}, {"text": None}),
        ({"streams": [b"a", b"b"]}, {"streams": [b"b", b"a"]}),
        ({"streams": [b"ab", b""]}, {"streams": [b"a", b"b"]}),
        ({"streams": []}, {"streams": [None]}),
        ({"lists": [[1], [2]]}, {"lists": [[1, 2], []]}),
        ({"small": 1, "big": None}, {"small": None, "big": 1}),
        ({"struct": {"p": None, "q": None}}, {"struct": None}),
    ],
)
def test_rows_that_nearly_are_the_same_are_not(rule: DigestRule, one: Row, other: Row) -> None:
    """Rows that would have equal bytes without lengths, column names and null marks have different digests."""
    digests = [
        row_hash.digest_rows(pa.Table.from_pylist([row], schema=SCHEMA), ["slice"], rule) for row in (one, other)
    ]
    assert digests[0] != digests[1]


@of_every_rule
def test_a_row_that_is_there_twice_counts_twice(rule: DigestRule) -> None:
    """Two equal rows do not cancel each other, as they would with XOR."""
    table = pa.Table.from_pylist([{"slice": "x", "text": "a"}], schema=SCHEMA)
    both = pa.concat_tables([table, table])
    [once], [twice] = (row_hash.digest_rows(rows, ["slice"], rule).values() for rows in (table, both))
    assert twice == 2 * once % 2**128
    assert twice not in (0, once)
