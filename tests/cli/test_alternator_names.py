"""Names of Alternator's tables at every entry point: hyphens, dots, capitals, the shortest and the longest."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from dagster import DagsterInstance
from support.command_line import run
from support.homes.expiring import iso
from support.homes.questions import HOME, home_for

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.cql import format_table_name, parse_table_name, split_full_name
from cdc_platform.delta import Lake, WriteSource, list_stored_tables, write_as
from cdc_platform.errors import InputError
from cdc_platform.home import open_home
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import TableSelection
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import Connection, registry
from cdc_platform_assets.cluster.ingest import find_missing_log_partitions, parse_log_partition
from cdc_platform_assets.partitions import table_from_partition

LATER_MS = Milliseconds(1_785_000_000_000)
NAMES = ["abc", "a-b", "---", "my.table.v2", "My-Orders", "1.a", "a.a", "Mixed_Case.and-more", "x" * 207, ("y.-" * 69)]
IDS = [name[:20] for name in NAMES]
DERIVED = ["", "_scylla_cdc_log", "_scylla_cdc_log_audit", "$changes", "$items"]
SCRIPT = """
CREATE KEYSPACE "alternator_{name}" WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 1}};
CREATE TABLE "alternator_{name}"."{name}" (p text PRIMARY KEY, ":attrs" map<text, text>)
    WITH cdc = {{'enabled': true, 'preimage': 'full', 'postimage': true}};
INSERT INTO "alternator_{name}"."{name}" (p, ":attrs") VALUES ('x', {{'a.b': '{{"S":"1"}}', 'c': '{{"N":"2"}}'}});
UPDATE "alternator_{name}"."{name}" SET ":attrs" = ":attrs" - {{'c'}} WHERE p = 'x';
"""


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_a_name_is_parsed_and_formatted_consistently(name: str) -> None:
    """Full names of the table and its derived tables, in CQL, in patterns and in Dagster's partitions."""
    keyspace = f"alternator_{name}"
    assert parse_table_name(format_table_name(keyspace, name)) == (keyspace, name)
    for suffix in DERIVED:
        assert split_full_name(f"{keyspace}.{name}{suffix}") == (keyspace, name + suffix)
    assert split_full_name(f"{keyspace}..{name}.cells") == (keyspace, f".{name}.cells")
    assert parse_log_partition(f"prod/{keyspace}.{name}") == ("prod", keyspace, name)
    assert table_from_partition(f"{keyspace}.{name}") == (keyspace, name)
    assert TableSelection((f"{keyspace}.{name}",)).matches((keyspace, name))
    assert TableSelection(("alternator_*.*",)).select([(keyspace, name), ("shop", "t")]) == [(keyspace, name)]
    if name == name.lower():
        assert parse_table_name(f"{keyspace}.{name}") == (keyspace, name)


@pytest.mark.parametrize(
    "text",
    [
        "alternator_My-Orders.My-Orders",
        '"alternator_a-b"."a-c"',
        '"alternator_a b"."a b"',
        f'"alternator_{"x" * 208}"."{"x" * 208}"',
        '"a-b"."a-b"',
        "shop.a-b",
        "alternator_.",
    ],
)
def test_other_names_with_such_characters_are_refused(text: str) -> None:
    """Refuse capitals without quotes, parts that do not belong together, and names that Alternator does not allow."""
    with pytest.raises(InputError, match="is no table"):
        parse_table_name(text)


def test_tables_have_dagster_partitions(tmp_path: Path) -> None:
    """A name that Dagster refuses gets no partition and does not affect the others."""
    home = open_home_location(str(tmp_path / "home"))
    cluster = registry.add_cluster(home, "prod", Connection(contacts=("a:1",)))
    with write_as(WriteSource.OBSERVED):
        for name in (*NAMES, "a...b"):
            cdc_tables.add_cdc_table(
                Lake(cluster.open_home().lake), Clock(), f"alternator_{name}", name, ttl_seconds=60
            )
    with DagsterInstance.ephemeral() as instance:
        missing = find_missing_log_partitions(home, instance)
        instance.add_dynamic_partitions("ingested_logs", missing)
        assert sorted(instance.get_dynamic_partitions("ingested_logs")) == missing
    assert [parse_log_partition(key) for key in missing] == sorted(("prod", f"alternator_{n}", n) for n in NAMES)


@pytest.mark.long("more than a dozen commands on a home, and a copy of it")
@pytest.mark.grid("names of Alternator tables", 3)
@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_commands_accept_the_name(name: str, tmp_path: Path) -> None:
    """Commands accept a table of each name, and its files survive a copy of the home."""
    home = str(home_for(tmp_path, "just booted") / HOME)
    keyspace = f"alternator_{name}"
    table = format_table_name(keyspace, name)
    script = tmp_path / "t.cql"
    script.write_text(SCRIPT.format(name=name), encoding="utf-8")
    lines = [
        f"cql run {script} --apply",
        "tables",
        f"log {shlex.quote(table)}",
        f"consume {shlex.quote(table)} --name audit",
        f"consume {shlex.quote(table)} --name changes --changes",
        "consumers",
        f"consumers gaps {shlex.quote(table)}",
        f"rebuild {shlex.quote(table)}",
        f"history --table {shlex.quote(table)}",
        "check",
        "status",
        "metrics",
        f"export {tmp_path / 'exported'}",
        f"home copy {home} {tmp_path / 'copy'}",
    ]
    for line in lines:
        answer = run("--home", home, "--clock", iso(LATER_MS), *shlex.split(line))
        assert answer.exit_code == 0, (line, answer.stderr, answer.stdout)
    longest = run("--home", home, "--clock", iso(LATER_MS), "consume", table, "--name", "n" * 48)
    assert longest.exit_code == (2 if len(name) > 191 else 0), longest.stderr
    assert ("choose a name of at most 32" in longest.stderr) == (len(name) > 191)
    query = f'SELECT new_item, removed_attributes AS r FROM "{keyspace}"."{name}$changes" ORDER BY ts, op'
    rows = run("--home", home, "sql", query, "--json").rows
    assert [(json.loads(row["new_item"]), row["r"]) for row in rows] == [
        ({"p": {"S": "x"}, "a.b": {"S": "1"}, "c": {"N": "2"}}, []),
        ({"p": {"S": "x"}, "a.b": {"S": "1"}}, ["c"]),
    ]
    assert open_home(home).read(f"{keyspace}.{name}$changes").num_rows == 2
    stored = {table for table in list_stored_tables(Lake(str(tmp_path / "copy" / "lake"))) if table[0] == keyspace}
    assert (keyspace, f"{name}_scylla_cdc_log") in stored
