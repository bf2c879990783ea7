"""The encoding of stored states: keys, range bounds and table numbers. Homes of earlier versions contain them."""

from __future__ import annotations

from cdc_platform.cdclog.state.model import decode_clustering_key, encode_clustering_key, encode_edge
from cdc_platform.cdclog.state.store import _table_identity
from cdc_platform.clock import Microseconds
from cdc_platform.cql import RangeBound
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import INT, TEXT, ListType
from cdc_platform.ingest.replica import tables

CARTS = TableSchema(
    "shop",
    "carts",
    (
        Column("a", INT, "partition"),
        Column("b", TEXT, "clustering"),
        Column("c", INT, "clustering", descending=True),
        Column("v", ListType(TEXT)),
    ),
    created_at_us=Microseconds(1_600_000_000_000_000),
    truncated_us=Microseconds(1_700_000_000_000_001),
)


def test_clustering_keys() -> None:
    """Each value follows its length; the key is decoded whole, or as its leading values."""
    key = ("é\0", -7)
    assert encode_clustering_key(CARTS, key).hex() == "00000003c3a90000000004fffffff9"
    assert encode_clustering_key(CARTS, ("", 0)).hex() == "000000000000000400000000"
    assert decode_clustering_key(CARTS, encode_clustering_key(CARTS, key)) == key
    assert decode_clustering_key(CARTS, bytes.fromhex("00000003c3a900")) == key[:1]
    assert decode_clustering_key(CARTS, b"") == ()


def test_edges_of_ranges() -> None:
    """An edge is a prefix of the key, and a flag for the position before or after the rows with that prefix."""
    bounds = (None, RangeBound(("x",), True), RangeBound(("x", 5), False))
    assert [encode_edge(bound, CARTS, is_start=True).hex() for bound in bounds] == [
        "00",
        "000000017800",
        "0000000178000000040000000501",
    ]
    assert [encode_edge(bound, CARTS, is_start=False).hex() for bound in bounds] == [
        "01",
        "000000017801",
        "0000000178000000040000000500",
    ]


def test_numbers_of_tables() -> None:
    """They show whether a stored state belongs to the same table; another number would rebuild every state."""
    assert _table_identity(CARTS) == 7400983614281364026
    assert tables.identity(CARTS) == 6163705724600353150
