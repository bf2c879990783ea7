"""Cells of Alternator's `:attrs` in pages of rows are decoded, left out or hashed; cells that are no map stay."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.alternator import as_json, decode_map, encode_attribute, encode_map, encode_set

from cdc_platform.scylla.attributes import AttributeRules, decode_attribute_cells, drop_attribute_names

KEY = b"0123456789abcdef"
ITEM = [("a", encode_attribute(("S", "x"))), ("b.c", encode_attribute(("BOOL", True))), ("", b"\x09")]
NO_RULES = AttributeRules()
NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.sampled_from([("S", "x"), ("S", ""), ("BOOL", False), ("SS", ["q"])])
ITEMS = st.lists(st.one_of(st.none(), st.lists(st.tuples(NAMES, VALUES), max_size=6)), max_size=8)


@given(ITEMS, st.integers(0, 2))
def test_cells_are_decoded_in_order(items: list[list[tuple[str, tuple[str, object]]] | None], skipped: int) -> None:
    """This holds for any number of attributes, and for a slice of an array."""
    cells = [None if item is None else encode_map([(n, encode_attribute(v)) for n, v in item]) for item in items]
    array = pa.array([b"skipped"] * skipped + cells, pa.binary()).slice(skipped)
    decoded = decode_attribute_cells(array, NO_RULES)
    maps = [None if cell is None else decode_map(cell) for cell in decoded.cells.to_pylist()]
    items_read = [None if item is None else [(name, json.loads(text)) for name, text in item] for item in maps]
    assert items_read == [None if item is None else [(name, as_json(v)) for name, v in item] for item in items]
    assert not decoded.undecoded


def test_undecodable_values_are_counted_by_name() -> None:
    """They keep their position."""
    decoded = decode_attribute_cells(pa.array([encode_map(ITEM), None, encode_map(ITEM)], pa.binary()), NO_RULES)
    assert decoded.undecoded == {"": 2}
    assert [name for name, _ in decode_map(decoded.cells[2].as_py())] == ["a", "b.c", ""]


NO_MAPS = [
    b"",
    b"\x00\x00\x00",
    struct.pack(">i", -1),
    struct.pack(">i", 1),
    struct.pack(">i", 2**31 - 1),
    struct.pack(">iii", 1, 0, -1),
    struct.pack(">ii", 1, 2**31 - 1) + b"a",
    encode_map(ITEM) + b"\x00",
    encode_map(ITEM)[:-1],
]


@pytest.mark.parametrize("cell", NO_MAPS, ids=range(len(NO_MAPS)))
def test_cells_that_are_no_maps_stay_unchanged(cell: bytes) -> None:
    """Other cells are decoded; these later count as invalid for the column's type."""
    good = encode_map(ITEM)
    decoded = decode_attribute_cells(pa.array([good, cell, good], pa.binary()), NO_RULES).cells.to_pylist()
    assert decoded[1] == cell
    assert decoded[0] == decoded[2] == decode_attribute_cells(pa.array([good], pa.binary()), NO_RULES).cells[0].as_py()


def test_attributes_are_left_out_or_hashed() -> None:
    """The hash covers the stored bytes, so equal values have equal hashes; a hidden value is not counted."""
    rules = AttributeRules({"a"}, {"b.c", "", "missing"}, KEY)
    decoded = decode_attribute_cells(pa.array([encode_map(ITEM), encode_map(ITEM[:1]), None], pa.binary()), rules)
    first, second, third = decoded.cells.to_pylist()
    expected = [
        (name, {"hmac": base64.b64encode(hmac.new(KEY, value, hashlib.sha256).digest()).decode()})
        for name, value in ITEM[1:]
    ]
    assert [(name, json.loads(text)) for name, text in decode_map(first)] == expected
    assert (decode_map(second), third) == ([], None)
    assert not decoded.undecoded
    assert KEY.decode() not in repr(rules)


def test_names_of_left_out_attributes_are_dropped() -> None:
    """Sets of deleted attributes lose these names; an empty set becomes null, as if nothing had been deleted."""
    cells = pa.array([encode_set(["a", "b"]), encode_set(["a"]), encode_set(["c"]), None, b"\x00"], pa.binary())
    assert drop_attribute_names(cells, {"a"}).to_pylist() == [encode_set(["b"]), None, encode_set(["c"]), None, b"\x00"]
