"""Alternator tables on the stand-in have decoded attributes in log, replica, views and copies.

Their names may have `-` and `.`.
"""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from support.command_line import run
from support.oracles.alternator import Attribute, as_json, encode_attribute
from support.standin.cluster import FIRST_MS, PASSWORD, USER, StandIn, description
from support.standin.kept_table import AT_ONCE
from support.standin.live_table import LiveTable
from support.standin.world import time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.clock import Clock
from cdc_platform.cql import BLOB, DECIMAL, TEXT, CdcOptions, Column, MapType, TableSchema
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import IngestResult, current_table, ingest_table
from cdc_platform.scylla import ScyllaCluster, registry

pytestmark = pytest.mark.cassandra

NAMES = ["abc", "my-table", "my.table.v2", "My-Orders.2026"]
ALL_TYPES: dict[str, Attribute] = {
    "s": ("S", 'it\'s "so"'),
    "n": ("N", Decimal("1.10")),
    "b": ("B", b"\x00\xff"),
    "bool": ("BOOL", True),
    "null": ("NULL", True),
    "ss": ("SS", ["b", "a"]),
    "ns": ("NS", [Decimal("2"), Decimal("-0.5")]),
    "bs": ("BS", [b"x"]),
    "l": ("L", [("N", Decimal("7")), ("L", [])]),
    "m.n-o": ("M", {"a.b": ("M", {}), "": ("S", "")}),
}
"""One attribute of each of DynamoDB's types."""
Item = Mapping[str, Attribute]
RawItem = Mapping[str, Attribute | bytes]
"""Attributes, some as the bytes that are stored."""


@dataclass
class AlternatorTable:
    """A table as `CreateTable` creates it, with Alternator's writes and their log rows."""

    standin: StandIn
    name: str
    delta: str = "full"
    images: bool = False
    table: LiveTable = field(init=False)

    def __post_init__(self) -> None:
        stored = self.name.replace("-", "_").replace(".", "_")
        if stored != self.name:
            self.standin.proxy.renamed[stored] = self.name
        keyspace = f"alternator_{stored}"
        kind = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false"
        self.standin.world.run(f'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" {kind}')
        columns = (Column("p", TEXT, "partition"), Column("c", DECIMAL, "clustering"))
        columns += (Column(":attrs", MapType(TEXT, BLOB)),)
        schema = TableSchema(keyspace, stored, columns, CdcOptions(enabled=True, ttl=0))
        generations = {FIRST_MS: description(time_uuid(FIRST_MS))}
        self.table = LiveTable(self.standin.world, schema, generations, random.Random(7))
        self.standin.world.logged_table(schema, FIRST_MS)
        image = "true" if self.images else "false"
        options = {"delta": self.delta, "ttl": "0", "preimage": "full" if self.images else "false", "postimage": image}
        self.standin.world.cdc_options(keyspace, stored, **options)
        self.standin.world.made(schema, FIRST_MS)
        self.standin.world.schema_changed()
        self.standin.proxy.collections = {":attrs"}

    @property
    def keyspace(self) -> str:
        return f"alternator_{self.name}"

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.name}"

    @property
    def written(self) -> str:
        """Return the name in the command line's form."""
        return f'"{self.keyspace}"."{self.name}"'

    @property
    def schema(self) -> TableSchema:
        """Return the schema in the home."""
        return TableSchema(
            self.keyspace, self.name, (*self.table.schema.columns[:2], Column(":attrs", MapType(TEXT, TEXT)))
        )

    def put(self, p: str, c: str, item: RawItem, before: Item | None = None) -> None:
        """Run PutItem: a row marker, all attributes, and a deletion of all others just before."""
        at = Clock().now_us()
        attributes = _stored(item)
        cells = ", ".join(f"{_quoted(name)}: 0x{value.hex()}" for name, value in attributes.items())
        self._run(
            f'INSERT INTO {self._place} (p, c, ":attrs") VALUES ({_quoted(p)}, {c}, {{{cells}}}) USING TIMESTAMP {at}'
        )
        changed = {":attrs": attributes or None, "cdc$deleted_:attrs": True}
        self._log(p, c, at, {"cdc$operation": 2} | changed, before, item if self.images else None)

    def update(self, p: str, c: str, item: Item, removed: set[str], before: Item | None = None) -> None:
        """Run UpdateItem, which sets some attributes and removes others."""
        at = Clock().now_us()
        where = f"WHERE p = {_quoted(p)} AND c = {c}"
        sets = [f'":attrs"[{_quoted(name)}] = 0x{value.hex()}' for name, value in _stored(item).items()]
        sets += [f'":attrs"[{_quoted(name)}] = null' for name in sorted(removed)]
        self._run(f"UPDATE {self._place} USING TIMESTAMP {at} SET {', '.join(sets)} {where}")
        changed = {":attrs": _stored(item) or None, "cdc$deleted_elements_:attrs": removed or None}
        after = {name: value for name, value in {**(before or {}), **item}.items() if name not in removed}
        self._log(p, c, at, {"cdc$operation": 1} | changed, before, after if self.images else None)

    def delete(self, p: str, c: str, before: Item | None = None) -> None:
        """Run DeleteItem."""
        at = Clock().now_us()
        self._run(f"DELETE FROM {self._place} USING TIMESTAMP {at} WHERE p = {_quoted(p)} AND c = {c}")
        self._log(p, c, at, {"cdc$operation": 3}, before, None)

    def _log(
        self,
        p: str,
        c: str,
        at: int,
        change: dict[str, Any],
        before: Item | None,
        after: RawItem | None,
    ) -> None:
        key = {"c": Decimal(c)}
        if self.delta == "keys":
            change = {"cdc$operation": change["cdc$operation"]}
        rows = [change | key]
        if self.images and before is not None:
            rows.insert(0, {"cdc$operation": 0, ":attrs": _stored(before), **key})
        if after is not None:
            rows.append({"cdc$operation": 9, ":attrs": _stored(after), **key})
        self.table.log({"p": p}, at, rows)

    @property
    def _place(self) -> str:
        return f'"{self.table.schema.keyspace}"."{self.table.schema.name}"'

    def _run(self, text: str) -> None:
        self.standin.world.run(text)


def _stored(item: RawItem) -> dict[str, bytes]:
    return {name: value if isinstance(value, bytes) else encode_attribute(value) for name, value in item.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def bring(cluster: ScyllaCluster, table: AlternatorTable, workers: TaskRunner, **options: Any) -> IngestResult:
    """Ingest up to now."""
    current = registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name)
    return ingest_table(current, Clock(), table.keyspace, table.name, workers, policy=AT_ONCE, **options)


def lake_of(cluster: ScyllaCluster) -> Lake:
    """Return the lake of the cluster's home."""
    return Lake(cluster.open_home().lake)


def parse_attributes(attributes: Any) -> dict[str, Any]:
    """Return the attributes of a row in the lake as parsed JSON."""
    return {name: json.loads(text) for name, text in attributes or ()}


def expected_json(item: Item) -> dict[str, Any]:
    """Return the expected JSON of the attributes."""
    return {name: as_json(value) for name, value in item.items()}


@pytest.mark.parametrize("name", NAMES)
def test_table_is_ingested_with_all_ten_types(
    name: str, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """Log, replica, changes and items work for every kind of name, with the commands that users type."""
    table = AlternatorTable(standin, name)
    table.put("old", "1", {"s": ("S", "before the log")})
    bring(cluster, table, workers, current=True)
    table.put("x", "1.5", ALL_TYPES)
    table.update("x", "1.5", {"n": ("N", Decimal("12")), "new": ("S", "y")}, {"s", "bs"})
    table.put("gone", "0", {})
    table.delete("gone", "0")
    result = bring(cluster, table, workers)
    assert result.table == table.full_name
    lake = lake_of(cluster)
    log = lake.read(log_table(table.schema)).sort_by("cdc$timestamp").to_pylist()
    assert [parse_attributes(row[":attrs"]) for row in log[1:3]] == [
        expected_json(ALL_TYPES),
        {"n": {"N": "12"}, "new": {"S": "y"}},
    ]
    assert [row["cdc$deleted_elements_:attrs"] for row in log[1:3]] == [None, ["bs", "s"]]
    current = {
        n: v for n, v in {**ALL_TYPES, "n": ("N", Decimal("12")), "new": ("S", "y")}.items() if n not in ("s", "bs")
    }
    rows = {row["p"]: parse_attributes(row[":attrs"]) for row in lake.read(current_table(table.schema)).to_pylist()}
    assert rows == {"old": {"s": {"S": "before the log"}}, "x": expected_json(current)}
    home = Path(cluster.at)
    query = f'SELECT p, item FROM "{table.keyspace}"."{table.name}$items" ORDER BY p'
    items = run("--home", home, "sql", query, "--json")
    assert items.exit_code == 0, items.stderr
    assert json.loads(items.rows[1]["item"]) == {"p": {"S": "x"}, "c": {"N": "1.5"}, **expected_json(current)}
    query = f'SELECT op, removed_attributes AS r FROM "{table.keyspace}"."{table.name}$changes" ORDER BY ts'
    changes = run("--home", home, "sql", query, "--json").rows
    assert [(row["op"], row["r"]) for row in changes][1:3] == [("c", None), ("u", ["bs", "s"])]


def test_images_of_a_stream_are_items(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """DynamoDB's API enables keys and images."""
    table = AlternatorTable(standin, "my.table.v2", delta="keys", images=True)
    first: Item = {"a": ("S", "1"), "b": ("SS", ["x"])}
    table.put("p", "1", first)
    table.update("p", "1", {"a": ("N", Decimal(2))}, {"b"}, before=first)
    second: Item = {"a": ("N", Decimal(2))}
    table.put("p", "1", {"d": ("BOOL", False)}, before=second)
    table.delete("p", "1", before={"d": ("BOOL", False)})
    home = cluster.home.parent.parent
    done = run("--home", home, "ingest", "prod", "--include", "alternator_*.*", "--confidence", "0", "--json")
    assert done.exit_code == 0, done.stderr
    columns = "op, changes IS NULL AS k, old_item, new_item, removed_attributes AS r"
    query = f'SELECT {columns} FROM "{table.keyspace}"."{table.name}$changes" ORDER BY ts'
    rows = run("--home", cluster.at, "sql", query, "--json").rows
    items = [
        (row["old_item"] and json.loads(row["old_item"]), row["new_item"] and json.loads(row["new_item"]))
        for row in rows
    ]
    key = {"p": {"S": "p"}, "c": {"N": "1"}}
    assert [(row["op"], row["k"], row["r"]) for row in rows] == [
        ("c", True, []),
        ("u", True, ["b"]),
        ("c", True, ["a"]),
        ("d", True, None),
    ]
    item_1, item_2, item_3 = ({**key, **expected_json(item)} for item in (first, second, {"d": ("BOOL", False)}))
    assert items == [(None, item_1), (item_1, item_2), (item_2, item_3), (item_3, None)]


@pytest.mark.parametrize("images", [False, True], ids=["KEYS_ONLY", "NEW_AND_OLD_IMAGES"])
def test_a_stream_of_keys_is_enough_for_a_replica(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, images: bool
) -> None:
    """Items that the stream names are read from the table, with or without images."""
    table = AlternatorTable(standin, "my-orders", delta="keys", images=images)
    for c in ("1", "1.5", "2"):
        table.put("p", c, {"a": ("S", "old"), "b": ("N", Decimal(1))})
    home = cluster.home.parent.parent
    ingest = ("--home", home, "ingest", "prod", table.written, "--confidence", "0")
    first = run(*ingest, "--current")
    assert first.exit_code == 0, first.stderr
    table.put("p", "1", ALL_TYPES, before={})
    table.update("p", "1.5", {"a": ("BOOL", False)}, {"b"}, before={})
    table.delete("p", "2", before={})
    result = json.loads(run(*ingest, "--json").stdout)["current"]
    assert (result["rows"], result["reread_rows"], result["copied_now"]) == (2, 3, False)
    query = f'SELECT c, item FROM "{table.keyspace}"."{table.name}$items" ORDER BY c'
    items = [json.loads(row["item"]) for row in run("--home", cluster.at, "sql", query, "--json").rows]
    assert items == [
        {"p": {"S": "p"}, "c": {"N": "1"}, **expected_json(ALL_TYPES)},
        {"p": {"S": "p"}, "c": {"N": "1.5"}, "a": {"BOOL": False}},
    ]


def test_attributes_are_declared_left_out_or_hashed(standin: StandIn, tmp_path: Path, workers: TaskRunner) -> None:
    """`cluster add` declares them; a value of another type is listed, and no byte of a left-out attribute is stored."""
    key = tmp_path / "hash.key"
    key.write_bytes(b"0123456789abcdef")
    key.chmod(0o600)
    table = AlternatorTable(standin, "my-table")
    where = f"{table.keyspace}.{table.name}"
    rules = {
        "left_out": (f'{where}."photo"',),
        "hashed": (f'{where}."e.mail"',),
        "hash_key_file": str(key),
        "attribute_types": (f"{where}.price=N", f"{where}.tags=SS", f'{where}."Raw"=B', f"{where}.item=S"),
    }
    home = open_home_location(tmp_path / "home")
    cluster = registry.add_cluster(home, "prod", standin.connection(**rules))
    assert "--attribute" in list(registry.connection_options(cluster.connection))
    item: Item = {
        "price": ("N", Decimal("9.90")),
        "tags": ("SS", ["b", "a"]),
        "Raw": ("B", b"\x01"),
        "item": ("S", "named like a column"),
        "photo": ("B", b"secret photo"),
        "e.mail": ("S", "secret mail"),
    }
    table.put("p", "1", item)
    bring(cluster, table, workers, current=True)
    table.put("q", "2", {**item, "price": ("S", "free")})
    table.update("p", "1", {}, {"photo", "tags"})
    bring(cluster, table, workers)
    query = f'SELECT * FROM "{table.keyspace}"."{table.name}$items" ORDER BY p'
    first, second = run("--home", cluster.at, "sql", query, "--json").rows
    assert (first["price"], first["tags"], first["other_types"]) == ("9.9", None, [])
    assert (second["price"], second["tags"], second["other_types"]) == (None, ["b", "a"], ["price"])
    assert [name for name in first if name.lower().startswith("item")] == ["item$0", "item"]
    assert set(json.loads(second["item"])) == {"p", "c", "price", "tags", "Raw", "item", "e.mail"}
    assert set(json.loads(second["item"])["e.mail"]) == {"hmac"}
    (log,) = (lake_of(cluster).read(log_table(table.schema)).filter(pc.field("cdc$operation") == 1).to_pylist(),)
    assert [row["cdc$deleted_elements_:attrs"] for row in log] == [["tags"]]
    texts = [path.read_bytes() for path in Path(home.name).rglob("*") if path.is_file()]
    assert not any(secret in text for text in texts for secret in (b"secret photo", b"secret mail"))


def test_declarations_affect_only_views(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """Registering with other declarations does not change the table; other rules are refused."""
    table = AlternatorTable(standin, "abc")
    table.put("p", "1", {"n": ("N", Decimal(1))})
    bring(cluster, table, workers, current=True)
    home = open_home_location(cluster.home.parent.parent)
    registry.remove_cluster(home, "prod")
    declared = standin.connection(attribute_types=("alternator_abc.abc.n=N",))
    redeclared = registry.add_cluster(home, "prod", declared)
    observed = run("--home", home.name, "observe", "prod")
    assert observed.exit_code == 0, observed.stderr
    result = bring(redeclared, table, workers)
    assert result.current is not None
    assert not result.current.copied_now
    assert not any(gap.is_open for gap in result.gaps)
    query = 'SELECT n FROM alternator_abc."abc$items"'
    assert run("--home", redeclared.at, "sql", query, "--json").rows == [{"n": "1"}]
    registry.remove_cluster(home, "prod")
    registry.add_cluster(home, "prod", standin.connection(attribute_types=("shop.orders.n=N",)))
    refused = run("--home", home.name, "observe", "prod")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
    assert "shop.orders has no attributes: it is no table of Alternator" in refused.stderr


def test_undecodable_values_are_reported(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """The message has names and counts, and the values are stored with their bytes."""
    table = AlternatorTable(standin, "abc")
    table.put("p", "1", {"good": encode_attribute(("S", "x")), "odd": b"\x09odd", "empty": b""})
    lines: list[str] = []
    bring(cluster, table, workers, on_message=lines.append)
    (line,) = [line for line in lines if "undecoded" in line]
    assert line.startswith("2 attribute values of alternator_abc.abc do not follow Alternator's format")
    assert '"odd" (1)' in line
    (row,) = lake_of(cluster).read(log_table(table.schema)).to_pylist()
    assert parse_attributes(row[":attrs"])["odd"] == {
        "undecoded": {"reason": "unknown type byte 9", "bytes": "CW9kZA=="}
    }


def test_home_with_blobs_preserves_them(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """The columns of an earlier release's home stay, also if the cluster is registered again."""
    home = open_home_location(cluster.home.parent.parent)
    for file in (cluster.home / "columns.json", cluster.home / "cluster.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        content.pop("decode_attributes")
        file.write_text(json.dumps(content), encoding="utf-8")
    old = registry.find_cluster(home, "prod")
    table = AlternatorTable(standin, "abc")
    table.put("p", "1", {"a": ("S", "x")})
    bring(old, table, workers, current=True)
    registry.remove_cluster(home, "prod")
    registered = registry.add_cluster(home, "prod", standin.connection())
    assert not registered.connection.decode_attributes
    table.put("p", "2", {"a": ("S", "y")})
    assert bring(registered, table, workers).rows == 1
    raw = lake_of(registered).read(log_table(table.table.schema))
    assert sorted(dict(row)["a"] for row in raw[":attrs"].to_pylist()) == [b"\x00x", b"\x00y"]
    answer = run("--home", registered.at, "sql", 'SELECT * FROM alternator_abc."abc$items"')
    assert (answer.exit_code, "there is no table" in answer.stderr) == (2, True)


def test_example_in_the_docs_runs(standin: StandIn, tmp_path: Path) -> None:
    """It runs from registration to queries, with the stand-in's address and login and without a confidence window."""
    table = AlternatorTable(standin, "my-orders")
    item: Item = {"price": ("N", Decimal("9.90")), "photo": ("B", b"\xff")}
    table.put("ada", "1", item)
    page = (Path(__file__).parents[2] / "docs" / "alternator.md").read_text(encoding="utf-8")
    words = shlex.split(page.partition("```sh\n")[2].partition("```")[0].replace("\\\n", " "))
    starts = [index for index, word in enumerate(words) if word in ("cdc-platform", "cd")]
    lines = [words[start:end] for start, end in pairwise([*starts, len(words)])]
    extra = {"cluster": ["--user-env", USER, "--password-env", PASSWORD], "ingest": ["--confidence", "0"]}
    answers = []
    for _, *line in (line for line in lines if line[0] != "cd"):
        home = tmp_path / "home" / ("clusters/prod" if line[:2] == ["--home", "."] else "")
        arguments = line[2:] if line[0] == "--home" else line
        words_to_run = [f"127.0.0.1:{standin.proxy.port}" if word == "10.0.0.1:9042" else word for word in arguments]
        answers.append(run("--home", home, *words_to_run, *extra.get(arguments[0], ["--json"])))
        assert answers[-1].exit_code == 0, (line, answers[-1].stderr)
    items, changes = (answer.rows for answer in answers[-2:])
    assert [row["price"] for row in items] == ["9.9"]
    assert json.loads(items[0]["item"]) == {"p": {"S": "ada"}, "c": {"N": "1"}, "price": {"N": "9.9"}}
    assert [row["op"] for row in changes] == ["c"]
