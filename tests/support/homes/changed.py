"""Create a home with a table whose log has full images, and one write of each kind."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from support.files.export_files import ID
from support.homes.imported import home_with_generations

from cdc_platform.cdclog import read_table_schema
from cdc_platform.cdclog.script.commit import commit_script
from cdc_platform.clock import SECOND_US, Clock, Microseconds, parse_time_ms, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.ingest import current_table
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings

SINCE_MS = parse_time_ms("2026-01-31T12:00:00Z")
NOW_US = parse_time_us("2026-01-31T13:00:00Z")
TABLE = """
CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1};
CREATE TYPE shop.money (amount decimal, currency text);
CREATE TABLE shop."Carts" (customer text, item int, count int, "Count" int, price frozen<money>, tags set<text>,
    notes list<text>, PRIMARY KEY (customer, item))
    WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true};
"""
FIRST = """
INSERT INTO shop."Carts" (customer, item, count, "Count", tags) VALUES ('ada', 1, 2, 3, {'gift'});
"""
LATER = """
UPDATE shop."Carts" SET count = 3, tags = tags - {'gift'}, tags = tags + {'late'}, notes = notes + ['twice']
    WHERE customer = 'ada' AND item = 1;
DELETE FROM shop."Carts" WHERE customer = 'ada' AND item = 1;
DELETE FROM shop."Carts" WHERE customer = 'ada' AND item > 2;
DELETE FROM shop."Carts" WHERE customer = 'ada';
"""
VIEW = 'shop."Carts$changes"'
ALTERNATOR = """
CREATE KEYSPACE "alternator_my.table-v2"
    WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1};
CREATE TABLE "alternator_my.table-v2"."my.table-v2" (p text, c decimal, ":attrs" map<text, text>, PRIMARY KEY (p, c))
    WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true};
INSERT INTO "alternator_my.table-v2"."my.table-v2" (p, c, ":attrs") VALUES ('x', 1.50, {'a.b': '{"S":"1"}'});
"""
ITEMS = '"alternator_my.table-v2"."my.table-v2$items"'


def with_alternator_replica(lake: Lake) -> None:
    """Add a replica of two rows to a home with the table of `ALTERNATOR`, and declare an attribute of each type."""
    name = ("alternator_my.table-v2", "my.table-v2")
    types = ("S", "N", "B", "BOOL", "SS", "NS", "BS")
    comments = "".join(f'\n-- attribute: {kind} "{kind.lower()} x"' for kind in types)
    table_info = cdc_tables.find_cdc_table(lake, *name)
    change = cdc_tables.request_alteration(lake, Clock(NOW_US), *name, observed=True, ddl=f"{table_info.ddl}{comments}")
    cdc_tables.record_table_changes(lake, [change])
    schema = read_table_schema(lake, *name)
    values = ['"text"', '"1.5"', '"AP8="', "true", '["b","a"]', '["-1"]', '["AA=="]']
    attributes = {f"{kind.lower()} x": f'{{"{kind}":{value}}}' for kind, value in zip(types, values, strict=True)}
    rows = [("x", "1.50", attributes), ("y", "2", {"s x": '{"L":[]}', "null": '{"NULL":true}'}), ("z", "0", None)]
    common = {"cdc$inexact": False, "cdc$expires": None, "cdc$slice": 0}
    table = current_table(schema)
    content = [
        common | {"p": p, "c": c, ":attrs": None if attribute_values is None else list(attribute_values.items())}
        for p, c, attribute_values in rows
    ]
    lake.merge(table, pa.Table.from_pylist(content, schema=table.schema), update=True)


def home_with_changes(folder: Path, *texts: str) -> Path:
    """Commit scripts ten seconds apart; by default a table with a write of each kind, in two commits of its log."""
    home = home_with_generations(folder, {ID: SINCE_MS})
    for number, text in enumerate(texts or (TABLE + FIRST, LATER)):
        clock = Clock(Microseconds(NOW_US + number * SECOND_US * 10))
        result = commit_script(text, Lake(home / "lake"), clock, Settings())
        assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
    return home
