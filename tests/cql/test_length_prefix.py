"""Byte strings with length prefixes, as in CQL values and stored states, have fixed bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cql.length_prefix import join_length_prefixed, split_length_prefixed
from cdc_platform.cql.types import INT, TEXT, MapType, TupleType
from cdc_platform.errors import InputError


@given(st.lists(st.none() | st.binary(max_size=300), max_size=6), st.binary(max_size=9))
def test_split_reverses_join(parts: list[bytes | None], before: bytes) -> None:
    """The strings may follow other bytes; a null is not an empty string."""
    assert list(split_length_prefixed(before + join_length_prefixed(parts), len(before))) == parts


def test_the_bytes_are_those_of_cql() -> None:
    """Lengths are big-endian, a null is -1, and a collection starts with its count."""
    assert join_length_prefixed([b"ab", None, b""]).hex() == "000000026162ffffffff00000000"
    assert TupleType((INT, TEXT)).to_bytes((None, "ab")).hex() == "ffffffff000000026162"
    assert MapType(TEXT, INT).to_bytes([("a", 1)]).hex() == "0000000100000001610000000400000001"


@pytest.mark.parametrize("data", ["00", "000000", "00000002ff", "00000000ff", "0000000161ffff"])
def test_bytes_that_end_too_early_are_refused(data: str) -> None:
    """The end may be within a length or within a value."""
    with pytest.raises(InputError, match="end within a value"):
        list(split_length_prefixed(bytes.fromhex(data)))
