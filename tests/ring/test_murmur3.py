"""Tokens of partition keys, compared with the vectors, the driver's murmur3 and the plain oracle."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cassandra.cmurmur3 import murmur3 as driver_murmur3
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import oracle

from cdc_platform.errors import InputError
from cdc_platform.ring import (
    LAST_TOKEN,
    hash128,
    serialize_composite_key,
    serialize_composite_keys,
    tokens_from_buffer,
    tokens_from_keys,
)
from cdc_platform.ring import murmur3 as implementation


def test_tokens_of_the_vectors(vectors: dict[str, Any]) -> None:
    """All key vectors at once, as one column."""
    rows = vectors["murmur3_tokens"]
    tokens = tokens_from_keys([bytes.fromhex(row["key_hex"]) for row in rows])
    assert tokens.tolist() == [row["token"] for row in rows]


def test_both_halves_with_a_seed(vectors: dict[str, Any]) -> None:
    """The published values of murmur3 x64 128."""
    rows = vectors["murmur3_x64_128_seed_cafebabe"]
    keys = [row["text"].encode() for row in rows]
    offsets = np.cumsum([0, *(len(key) for key in keys)])
    h1, h2 = hash128(np.frombuffer(b"".join(keys), dtype=np.uint8), offsets, seed=0xCAFEBABE)
    assert [h1.tolist(), h2.tolist()] == [[row["h1"] for row in rows], [row["h2"] for row in rows]]


def test_every_length_and_byte_as_the_driver() -> None:
    """Keys of 0 to 70 bytes, with each byte value at each position, have the tokens of the driver's C code."""
    keys = [bytes((i * 7 + first) % 256 for i in range(length)) for length in range(71) for first in range(0, 256, 3)]
    keys += [bytes([value]) * length for value in range(256) for length in (1, 7, 8, 9, 15, 17)]
    assert tokens_from_keys(keys).tolist() == [driver_murmur3(key) for key in keys]


@given(st.lists(st.binary(max_size=70)))
def test_columns_of_keys_as_oracle_and_driver(keys: list[bytes]) -> None:
    """Keys of different lengths in one column do not affect each other."""
    tokens = tokens_from_keys(keys).tolist()
    assert tokens == [oracle.token_of(key) for key in keys] == [driver_murmur3(key) for key in keys]


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 5), st.integers(1, 60))
def test_chunks_do_not_show(keys: list[bytes], chunk_keys: int, chunk_bytes: int) -> None:
    """The tokens are independent of the division of the column into chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(implementation, "_CHUNK_KEYS", chunk_keys)
        patch.setattr(implementation, "_CHUNK_BYTES", chunk_bytes)
        assert tokens_from_keys(keys).tolist() == [oracle.token_of(key) for key in keys]


def test_part_of_a_column() -> None:
    """The offsets start within the buffer, as in a sliced Arrow column."""
    values = np.frombuffer(b"skipped|one|three|rest", dtype=np.uint8)
    assert tokens_from_buffer(values, [8, 11, 12, 17]).tolist() == tokens_from_keys([b"one", b"|", b"three"]).tolist()


def test_the_empty_key_and_the_empty_column() -> None:
    """ScyllaDB gives the empty key token 0."""
    assert tokens_from_keys([b""]).tolist() == [0]
    assert tokens_from_keys([]).tolist() == []


def test_the_minimum_is_no_keys_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash that equals the minimum becomes the last token; as no known key has it, the test patches the hash."""
    halves = np.array([2**63, 2**63 + 1], dtype=np.uint64)
    monkeypatch.setattr(implementation, "hash128", lambda values, offsets: (halves, halves))
    assert tokens_from_buffer(np.zeros(0, dtype=np.uint8), [0, 0, 0]).tolist() == [LAST_TOKEN, -(2**63) + 1]


def test_composite_keys(vectors: dict[str, Any]) -> None:
    """Each component has its length before it and a zero after it."""
    by_name = {row["name"]: row for row in vectors["murmur3_tokens"]}
    ints = serialize_composite_key([(143).to_bytes(4, "big"), (234).to_bytes(4, "big")])
    assert ints.hex() == by_name["composite (int 143, int 234)"]["key_hex"]
    assert serialize_composite_key([b"a", b"\0\0\0\1"]).hex() == by_name["composite (text 'a', int 1)"]["key_hex"]
    with pytest.raises(InputError, match="65535"):
        serialize_composite_key([b"x" * 65536])


@given(st.integers(1, 3).flatmap(lambda count: st.lists(st.tuples(*[st.binary(max_size=9)] * count), min_size=1)))
def test_columns_of_composite_keys(rows: list[tuple[bytes, ...]]) -> None:
    """The keys equal those of single rows, also for a part of a buffer."""
    columns = [
        (
            np.frombuffer(b"before" + b"".join(column) + b"behind", dtype=np.uint8),
            np.cumsum([6, *(len(component) for component in column)]),
        )
        for column in zip(*rows, strict=True)
    ]
    keys, offsets = serialize_composite_keys(columns)
    split_keys = [keys[low:high].tobytes() for low, high in pairwise(offsets)]
    assert split_keys == [serialize_composite_key(row) for row in rows]


def test_invalid_composite_columns_are_refused() -> None:
    """A component that is too long and columns of different lengths are refused."""
    long, short = (np.zeros(70_000, dtype=np.uint8), [0, 65_536]), (np.zeros(4, dtype=np.uint8), [0, 2, 4])
    with pytest.raises(InputError, match="key component of 65536 bytes"):
        serialize_composite_keys([long])
    with pytest.raises(InputError, match="one value each"):
        serialize_composite_keys([long, short])


@pytest.mark.parametrize("offsets", [[0, 5], [2, 1], [-1, 2], []])
def test_offsets_outside_the_buffer_are_refused(offsets: list[int]) -> None:
    """A broken column raises an error before it is read."""
    with pytest.raises(InputError, match="offsets"):
        tokens_from_buffer(np.zeros(4, dtype=np.uint8), offsets)
