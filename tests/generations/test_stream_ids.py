"""The layout of stream IDs, and the generation of their random bits."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import tokens
from support.oracles import oracle

from cdc_platform.errors import InputError
from cdc_platform.generations import StreamId, decode_stream_ids, encode_stream_ids, random_bits
from cdc_platform.ring import MINIMUM_TOKEN

LARGEST_INDEX = 2**22 - 1
GENERATION = UUID("5f3d9c1e-8a6b-4c2d-9e0f-1a2b3c4d5e6f")


def column(hexes: list[str]) -> np.ndarray:
    """Return hexadecimal stream IDs as uint8[n, 16]."""
    return np.frombuffer(b"".join(bytes.fromhex(text[2:]) for text in hexes), dtype=np.uint8).reshape(-1, 16)


def test_fields_of_the_vectors(vectors: dict[str, Any]) -> None:
    """All vectors decode as one column and each alone; IDs without a version are legacy."""
    rows = vectors["stream_id_decode"]
    ids = decode_stream_ids(column([row["hex"] for row in rows]))
    for name, field in (
        ("token", ids.tokens),
        ("version", ids.versions),
        ("index", ids.indexes),
        ("random", ids.randoms),
    ):
        assert field.tolist() == [row[name] for row in rows]
        assert [getattr(StreamId.from_hex(row["hex"]), name) for row in rows] == [row[name] for row in rows]
    assert ids.legacy.tolist() == [not row["bytes_constructor_accepts"] for row in rows]
    kinds = [StreamId.from_hex(row["hex"]).kind for row in rows]
    assert kinds == ["versioned" if row["bytes_constructor_accepts"] else "legacy" for row in rows]


def test_bytes_of_the_vectors(vectors: dict[str, Any]) -> None:
    """All vectors encode as one column."""
    rows = vectors["stream_id_encode"]
    ids = encode_stream_ids(*([row[name] for row in rows] for name in ("token", "index", "random_input")))
    assert [str(StreamId.from_bytes(value.tobytes())) for value in ids] == [row["hex"] for row in rows]


@given(st.lists(st.tuples(tokens, st.integers(0, LARGEST_INDEX), st.integers(0, 2**64 - 1)), min_size=1))
def test_fields_survive_the_bytes(rows: list[tuple[int, int, int]]) -> None:
    """The bytes equal the oracle's, with the low 38 random bits, and decoding returns the fields."""
    fields = [np.array(values, dtype=kind) for values, kind in zip(zip(*rows, strict=True), "qqQ", strict=True)]
    ids = encode_stream_ids(*fields)
    assert [value.tobytes() for value in ids] == [oracle.pack_stream_id(*row) for row in rows]
    decoded = decode_stream_ids(ids)
    columns = (decoded.tokens, decoded.versions, decoded.indexes, decoded.randoms)
    expected = [oracle.unpack_stream_id(value.tobytes()) for value in ids]
    assert list(zip(*(field.tolist() for field in columns), strict=True)) == expected


def test_order_of_bytes_is_not_order_of_tokens(vectors: dict[str, Any]) -> None:
    """CQL orders IDs by unsigned bytes, the ring by signed tokens."""
    by_bytes, by_token = (vectors["ordering"][name] for name in ("blob_unsigned_order", "token_order"))
    assert sorted(by_token, key=lambda text: StreamId.from_hex(text).value) == by_bytes
    ids = decode_stream_ids(column(by_bytes))
    assert [by_bytes[i] for i in np.argsort(ids.tokens, kind="stable")] == by_token


@pytest.mark.parametrize(
    ("token", "index", "rule"),
    [(0, -1, "22 bits"), (0, LARGEST_INDEX + 1, "22 bits"), (MINIMUM_TOKEN, 0, "no key's token")],
)
def test_fields_out_of_bounds_are_refused(token: int, index: int, rule: str) -> None:
    """An index that is too large would overlap the random bits."""
    with pytest.raises(InputError, match=rule):
        encode_stream_ids([7, token], [0, index], 0)


@pytest.mark.parametrize("text", ["", "0x", "0x00", "0x" + "0" * 31, "0x" + "0" * 34, "0x" + "g" * 32, "hello"])
def test_texts_that_are_no_stream_ids_are_refused(text: str) -> None:
    """The message repeats the given text."""
    with pytest.raises(InputError, match="not a stream ID") as refused:
        StreamId.from_hex(text)
    assert repr(text) in str(refused.value)


def test_bytes_that_are_no_stream_ids_are_refused() -> None:
    """A value of a wrong length and a column of a wrong shape are refused."""
    with pytest.raises(InputError, match="16 bytes"):
        StreamId.from_bytes(b"short")
    wrong_ids: list[Any] = [np.zeros((2, 15), np.uint8), np.zeros(16, np.uint8), np.zeros((2, 16), np.int8)]
    for wrong in wrong_ids:
        with pytest.raises(InputError, match="16 bytes"):
            decode_stream_ids(wrong)


def test_a_stream_id_reads_as_cql_prints_it() -> None:
    """Parsing accepts an ID with or without 0x, in any case; printing uses lower case."""
    text = "0x80c5343222b6eee636e3ed42d0000031"
    for written in (text, text[2:].upper(), f" {text} "):
        assert str(StreamId.from_hex(written)) == text
    assert bytes(StreamId.from_hex(text)).hex() == text[2:]


@given(st.uuids(), tokens, st.integers(1, 4096))
def test_random_bits_of_a_range_are_a_permutation(generation: UUID, end: int, shards: int) -> None:
    """No two shards of a range draw equal bits, all bits fit, and a shard's bits depend on no other shard."""
    bits = random_bits(generation, end, np.arange(shards))
    assert len(np.unique(bits)) == shards
    assert bits.max() < 2**38
    assert random_bits(generation, end, shards - 1) == bits[-1]


def test_random_bits_are_fixed() -> None:
    """A generation has equal bytes on every machine and in every release."""
    assert random_bits(GENERATION, [[-1], [100]], [0, 1]).tolist() == [
        [28300763164, 52365824649],
        [166443704002, 218331449638],
    ]


def test_random_bits_look_random() -> None:
    """Every bit is set half of the time, and neighbours are independent, over shards, ranges and generations."""
    over_shards = random_bits(GENERATION, 0, np.arange(4096))
    over_ranges = random_bits(GENERATION, np.arange(4096), 0)
    over_generations = np.array([random_bits(UUID(int=n), 0, 0) for n in range(4096)], dtype=np.uint64)
    for bits in (over_shards, over_ranges, over_generations):
        for drawn in (bits, bits[1:] ^ bits[:-1]):
            share = [float((drawn >> np.uint64(bit) & np.uint64(1)).mean()) for bit in range(38)]
            assert min(share) > 0.45
            assert max(share) < 0.55
        assert len(np.unique(bits)) == 4096
