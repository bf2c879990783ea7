"""The default order of a query's rows is CQL's, if the table declares it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables
from cdc_platform.query.duckdb import run_duckdb_query
from cdc_platform.tables import TABLES, Table

Row = dict[str, Any]


def get_token(stream: bytes) -> int:
    """Return the token in a stream ID."""
    return int.from_bytes(stream[:8], "big", signed=True)


# By hand from ScyllaDB's schemas (db/system_distributed_keyspace.cc, db/virtual_tables.cc): partition, then clustering.
ORDERS: dict[str, Callable[[Row], Any]] = {
    "system_distributed.cdc_generation_timestamps": lambda row: (row["key"], -row["time"]),
    "system_distributed.cdc_streams_descriptions_v2": lambda row: (row["time"], row["range_end"]),
    "system_distributed_everywhere.cdc_generation_descriptions_v2": lambda row: (row["id"], row["range_end"]),
    "system.cdc_timestamps": lambda row: (row["keyspace_name"], row["table_name"], -row["timestamp"]),
    "system.cdc_streams": lambda row: (
        row["keyspace_name"],
        row["table_name"],
        row["timestamp"],
        row["stream_state"],
        get_token(row["stream_id"]),
    ),
}


def test_every_table_with_a_declared_order_is_listed() -> None:
    """The list has exactly the tables that CQL orders."""
    assert {name for name, table in TABLES.items() if table.clustering} == set(ORDERS)


def make_rows(table: Table, dice: random.Random) -> pa.Table:
    """Return sixty rows with random keys, in no order."""
    values: dict[str, Callable[[], Any]] = {
        "key": lambda: "timestamps",
        "id": lambda: dice.choice(["1a4753a0-0000-4000-8000-000000000001", "9a4753a0-0000-4000-8000-000000000001"]),
        "keyspace_name": lambda: dice.choice("ab"),
        "table_name": lambda: dice.choice(["T", "t"]),
        "time": lambda: dice.randrange(40) * 1_000_000,
        "timestamp": lambda: dice.randrange(5) * 1_000_000,
        "range_end": lambda: dice.randrange(-(2**63) + 1, 2**63),
        "stream_state": lambda: dice.randrange(3),
        "stream_id": lambda: dice.randbytes(8) + bytes(8),
        "streams": lambda: [bytes(16)],
        "ignore_msb": lambda: 12,
        "num_ranges": lambda: 60,
    }
    rows_by_key: dict[tuple[Any, ...], Row] = {}
    for _ in range(60):
        row = {name: values[name]() if name in values else None for name in table.schema.names}
        rows_by_key.setdefault(tuple(row[key] for key in table.keys), row)
    return pa.Table.from_pylist(list(rows_by_key.values()), schema=table.schema)


def run_query(lake: Lake, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with run_duckdb_query(lake, query) as result:
        return list(result.values())


@pytest.mark.parametrize("name", ORDERS)
def test_rows_have_the_order_of_cql(lake: Lake, name: str) -> None:
    """With all rows, some rows and some columns, unless the query has another order."""
    table = TABLES[name]
    lake.merge(table, make_rows(table, random.Random(name)), update=False)
    keys = ", ".join(table.keys)
    selected = run_query(lake, f"SELECT {keys} FROM {name}")
    columns = dict(zip(table.keys, range(len(table.keys)), strict=True))

    def order(row: tuple[Any, ...]) -> Any:
        def plain(value: Any) -> Any:
            return value.timestamp() if hasattr(value, "timestamp") else value

        return ORDERS[name]({key: plain(row[index]) for key, index in columns.items()})

    assert len(selected) == lake.read(table).num_rows > 3
    assert selected == sorted(selected, key=order)
    assert run_query(lake, f"SELECT {keys} FROM {name} LIMIT 3") == selected[:3]
    assert run_query(lake, f"SELECT {keys} FROM {name} LIMIT 2 OFFSET 1") == selected[1:3]
    last = table.keys[-1]
    filtered = run_query(lake, f"SELECT {keys} FROM {name} AS x WHERE x.{last} <> (SELECT max({last}) FROM {name})")
    assert filtered == [row for row in selected if row[-1] != max(candidate[-1] for candidate in selected)]
    other = run_query(lake, f"SELECT {last} FROM {name} ORDER BY {last}")
    assert other == sorted(other)
    assert run_query(lake, f"SELECT count(*), max({last}) FROM {name}") == [
        (len(selected), max(row[-1] for row in selected))
    ]
    assert len(run_query(lake, f"SELECT DISTINCT {last} FROM {name}")) == len({row[-1] for row in selected})


DDL = """CREATE TABLE ks.t (p int, "Day" date, n int, v text, PRIMARY KEY (p, "Day", n))
    WITH cdc = {'enabled': 'true'} AND CLUSTERING ORDER BY ("Day" DESC, n ASC);"""


@pytest.mark.parametrize("ordered", [True, False])
def test_a_clusters_table_has_the_order_of_its_definition(lake: Lake, ordered: bool) -> None:
    """If Delta's order equals CQL's; Delta stores varints as texts, whose rows are in stored order."""
    ddl = DDL if ordered else DDL.replace("n int", "n varint")
    cdc_tables.add_cdc_table(lake, Clock(Microseconds(0)), "ks", "t", ttl_seconds=0, ddl=ddl)
    number = pa.int32() if ordered else pa.string()
    schema = pa.schema([("p", pa.int32()), ("Day", pa.date32()), ("n", number), ("v", pa.string())])
    expected = [(p, day, n) for p in (1, 2) for day in (9, 3, -4) for n in (-1, 2, 10)]
    mixed = random.Random(7).sample(expected, len(expected))
    columns = list(zip(*mixed, strict=True))
    rows = pa.table([*columns[:2], list(map(int if ordered else str, columns[2])), [None] * len(mixed)], schema=schema)
    table = Table("ks", "t", schema, ("p", "Day", "n"), "kept")
    lake.append_once(table, rows, {"test": 1}, None)
    selected = run_query(lake, "SELECT p, CAST(\"Day\" - DATE '1970-01-01' AS INTEGER), n FROM ks.t")
    if ordered:
        assert selected == expected
    assert sorted(map(str, selected)) == sorted(str((p, day, n if ordered else str(n))) for p, day, n in expected)
