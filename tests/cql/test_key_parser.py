"""Typed partition keys have the bytes of the equal values in a statement."""

from __future__ import annotations

import struct
import uuid

import pytest

from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    Catalog,
    ExecutionContext,
    TableSchema,
    apply_definition,
    parse_partition_key,
    parse_statements,
)
from cdc_platform.cql import ast as s
from cdc_platform.errors import InputError

ID = uuid.UUID("7e1f2a30-0000-4000-8000-000000000001")


def make_table(*types: str) -> TableSchema:
    """Return a table whose partition key has columns of these types."""
    catalog = Catalog()
    columns = ", ".join(f"p{number} {kind}" for number, kind in enumerate(types))
    names = ", ".join(f"p{number}" for number in range(len(types)))
    text = "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}; "
    for statement in parse_statements(f"{text} CREATE TABLE k.t ({columns}, PRIMARY KEY (({names})));"):
        if isinstance(statement.body, s.DefinitionStatement):
            apply_definition(catalog, statement.body, Microseconds(0))
    return catalog.table(s.QualifiedName("k", "t"))


def parse_key(types: list[str], *texts: str) -> bytes:
    """Return the bytes of a key."""
    return parse_partition_key(make_table(*types), texts, ExecutionContext(Microseconds(0)))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("text", "alice", b"alice"),
        ("text", "'alice'", b"alice"),
        ("text", "o'clock", b"o'clock"),
        ("text", "1); DROP TABLE x; --", b"1); DROP TABLE x; --"),
        ("int", "-7", struct.pack(">i", -7)),
        ("bigint", "9007199254740993", struct.pack(">q", 9007199254740993)),
        ("uuid", str(ID), ID.bytes),
        ("blob", "0x00ff", b"\x00\xff"),
        ("boolean", "true", b"\x01"),
        ("timestamp", "2026-01-31T12:00:00Z", struct.pack(">q", 1769860800000)),
        ("timestamp", "1769860800000", struct.pack(">q", 1769860800000)),
        ("inet", "127.0.0.1", b"\x7f\x00\x00\x01"),
        ("double", "1.5", struct.pack(">d", 1.5)),
    ],
)
def test_a_text_is_a_constant_of_its_type(kind: str, text: str, expected: bytes) -> None:
    """A key's text is valid with and without CQL's quotes."""
    assert parse_key([kind], text) == expected


def test_a_key_of_several_columns_is_serialized() -> None:
    """Each component has its length before it and a zero after it."""
    assert parse_key(["text", "int"], "ada", "1") == b"\x00\x03ada\x00\x00\x04\x00\x00\x00\x01\x00"


@pytest.mark.parametrize(
    ("types", "texts", "said"),
    [
        (["int"], ["alice"], "--pk 'alice' for p0 int"),
        (["int"], ["1); DELETE FROM k.t WHERE (p0 = 1"], "--pk"),
        (["int"], ["1, 2"], "it is not one value"),
        (["int"], ["null"], "never null"),
        (["int"], ["?"], "--pk '?'"),
        (["int"], ["9999999999"], "--pk '9999999999' for p0 int"),
        (["text", "int"], ["ada"], r"\(p0 text, p1 int\): give --pk 2 times, in that order, not 1"),
    ],
)
def test_invalid_keys_are_refused(types: list[str], texts: list[str], said: str) -> None:
    """The message has the column, its type, and the key's columns."""
    with pytest.raises(InputError, match=said):
        parse_key(types, *texts)
