"""Values of Alternator's attributes: all types, by hand and generated, and every violation of the format."""

from __future__ import annotations

import base64
import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.alternator import Attribute, as_json, encode_attribute, encode_number, plain_number

from cdc_platform.cql import column_value, format_decimal, is_undecoded, parse_attribute_type, value_to_json
from cdc_platform.cql.alternator import COLUMN_TYPES
from cdc_platform.errors import InputError

BY_HAND = [
    (b"\x00", '{"S":""}'),
    (b'\x00it\'s "so"\n', '{"S":"it\'s \\"so\\"\\n"}'),
    ("\x00\N{SNOWMAN}".encode(), '{"S":"\N{SNOWMAN}"}'),
    (b"\x01", '{"B":""}'),
    (b"\x01\x00\xff", '{"B":"AP8="}'),
    (b"\x02\x00", '{"BOOL":false}'),
    (b"\x02\x01", '{"BOOL":true}'),
    (b"\x03\x00\x00\x00\x00\x00", '{"N":"0"}'),
    (b"\x03\x00\x00\x00\x02\x03\xde", '{"N":"9.9"}'),
    (b"\x03\x00\x00\x00\x01\xff", '{"N":"-0.1"}'),
    (b"\x03\xff\xff\xff\xfe\x07", '{"N":"700"}'),
    (b"\x03\x00\x00\x00\x82\x01", '{"N":"0.' + "0" * 129 + '1"}'),
    (b"\x03\xff\xff\xff\x83\x09", '{"N":"9' + "0" * 125 + '"}'),
    (b"\x03\x7f\xff\xff\xff\x01", '{"N":"1E-2147483647"}'),
    (b'\x04{"NULL":true}', '{"NULL":true}'),
    (b'\x04{"SS":["b","a"]}', '{"SS":["b","a"]}'),
    (b'\x04{"NS":["1.50","-2"]}', '{"NS":["1.50","-2"]}'),
    (b'\x04{"BS":["AA=="]}', '{"BS":["AA=="]}'),
    (b'\x04{"L":[]}', '{"L":[]}'),
    (b'\x04{"M":{"a":{"L":[{"N":"1e125"},{"M":{}}]}}}', '{"M":{"a":{"L":[{"N":"1e125"},{"M":{}}]}}}'),
    (b"\x05", '{"FLOAT32VECTOR":[]}'),
    (b"\x05\x3d\xcc\xcc\xcd\xc0\x00\x00\x00", '{"FLOAT32VECTOR":[0.1,-2]}'),
    (b"\x05\x7f\x7f\xff\xff", '{"FLOAT32VECTOR":[3.4028235e+38]}'),
]


@pytest.mark.parametrize(("stored", "text"), BY_HAND, ids=range(len(BY_HAND)))
def test_values_by_hand(stored: bytes, text: str) -> None:
    """Stored bytes and their JSON, both by hand; JSON that Alternator stored is unchanged."""
    assert value_to_json(stored) == text
    assert not is_undecoded(text)


MALFORMED = [
    (b"", "no type byte"),
    (b"\x06x", "unknown type byte 6"),
    (b"\xff", "unknown type byte 255"),
    (b"\x00\xff", "text that is no UTF-8"),
    (b"\x02", "a boolean of 0 bytes"),
    (b"\x02\x02", "neither 0 nor 1"),
    (b"\x02\x01\x01", "a boolean of 2 bytes"),
    (b"\x03", "a number of 0 bytes"),
    (b"\x03\x00\x00\x00\x00", "a number of 4 bytes"),
    (b"\x04", "no JSON"),
    (b"\x04{", "no JSON"),
    (b"\x04\xff", "JSON that is no UTF-8"),
    (b"\x04[]", "not one value with its type"),
    (b"\x04{}", "not one value with its type"),
    (b'\x04{"SS":["a"],"L":[]}', "not one value with its type"),
    (b'\x04{"M":{"a":{"S":"x"},"a":{"S":"y"}}}', "a key that occurs twice"),
    (b'\x04{"SS":[]}', "SS that is no set"),
    (b'\x04{"SS":"a"}', "SS that is no set"),
    (b'\x04{"SS":[1]}', "S that is no text"),
    (b'\x04{"NS":["one"]}', "N that is no number"),
    (b'\x04{"NS":["NaN"]}', "N that is no number"),
    (b'\x04{"BS":["?"]}', "B that is no base64"),
    (b'\x04{"L":{}}', "L that is no list"),
    (b'\x04{"L":[1]}', "not one value with its type"),
    (b'\x04{"M":[]}', "M that is no map"),
    (b'\x04{"M":{"a":{"X":"1"}}}', "unknown type 'X'"),
    (b'\x04{"NULL":null}', "NULL that is neither"),
    (b'\x04{"L":[{"BOOL":"true"}]}', "BOOL that is neither"),
    (b'\x04{"L":[{"N":NaN}]}', "JSON with NaN"),
    (b'\x04{"FLOAT32VECTOR":["1"]}', "no list of numbers"),
    (b"\x04" + b'{"L":[' * 100_000, "nested too deeply"),
    (b"\x05\x00", "no multiple of 4"),
    (b"\x05\x7f\xc0\x00\x00", "not finite"),
]


@pytest.mark.parametrize(("stored", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_values_stay_visible(stored: bytes, reason: str) -> None:
    """The JSON has the reason and all bytes under a key that is no DynamoDB type."""
    text = value_to_json(stored)
    undecoded = json.loads(text)["undecoded"]
    assert is_undecoded(text)
    assert reason in undecoded["reason"]
    assert base64.b64decode(undecoded["bytes"]) == stored
    assert all(column_value(kind, text) is None for kind in COLUMN_TYPES)


NUMBERS = st.builds(
    lambda digits, exponent, negative: Decimal((int(negative), tuple(map(int, digits)), exponent)),
    st.text("0123456789", min_size=1, max_size=38),
    st.integers(-130, 88),
    st.booleans(),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "S": TEXTS,
    "N": NUMBERS,
    "B": st.binary(max_size=40),
    "BOOL": st.booleans(),
    "NULL": st.just(True),
    "SS": st.lists(TEXTS, min_size=1, max_size=4),
    "NS": st.lists(NUMBERS, min_size=1, max_size=4),
    "BS": st.lists(st.binary(max_size=10), min_size=1, max_size=4),
}
SIMPLE = st.one_of(*(st.tuples(st.just(kind), values) for kind, values in SCALARS.items()))
VALUES: st.SearchStrategy[Attribute] = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.tuples(st.just("L"), st.lists(inner, max_size=4)),
        st.tuples(st.just("M"), st.dictionaries(TEXTS, inner, max_size=4)),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_drawn_values_are_decoded(value: Attribute) -> None:
    """The bytes that Alternator stores for a value decode to DynamoDB's JSON."""
    assert json.loads(value_to_json(encode_attribute(value))) == as_json(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_shown(stored: bytes) -> None:
    """Decoding raises no error and loses no bytes."""
    text = value_to_json(stored)
    decoded = json.loads(text)
    assert len(decoded) == 1
    if is_undecoded(text):
        assert base64.b64decode(decoded["undecoded"]["bytes"]) == stored


@given(NUMBERS)
def test_numbers_are_exact(number: Decimal) -> None:
    """Numbers are exact with 38 digits, all exponents of DynamoDB, and scales beyond them."""
    digits = f"{number:f}"
    text = format_decimal(int(digits.replace(".", "")), len(digits.partition(".")[2]))
    assert Decimal(text) == number
    assert text == plain_number(number)
    far_scale = struct.pack(">i", 123_456_789) + encode_number(number)[4:]
    decoded = json.loads(value_to_json(b"\x03" + far_scale))["N"]
    assert decoded == "0" or Decimal(decoded).as_tuple().exponent == -123_456_789


TYPED: list[tuple[str, Attribute, Any]] = [
    ("S", ("S", "a"), "a"),
    ("S", ("S", ""), ""),
    ("N", ("N", Decimal("1E+125")), "1" + "0" * 125),
    ("B", ("B", b"\x00"), b"\x00"),
    ("BOOL", ("BOOL", False), False),
    ("SS", ("SS", ["b", "a"]), ["b", "a"]),
    ("NS", ("NS", [Decimal("1.5")]), ["1.5"]),
    ("BS", ("BS", [b"x", b""]), [b"x", b""]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), TYPED, ids=range(len(TYPED)))
def test_columns_have_values_of_their_type_alone(kind: str, value: Attribute, expected: Any) -> None:
    """A value of another type, and a missing one, is null."""
    text = value_to_json(encode_attribute(value))
    assert column_value(kind, text) == expected
    assert all(column_value(other, text) is None for other in COLUMN_TYPES if other != kind)
    assert column_value(kind, None) is None


@pytest.mark.parametrize("text", ["L", "M", "NULL", "s", "text", "", "N "])
def test_types_without_columns_are_refused(text: str) -> None:
    """The message names the allowed types."""
    with pytest.raises(InputError, match="choose S, N, B, BOOL, SS, NS, BS"):
        parse_attribute_type(text)
