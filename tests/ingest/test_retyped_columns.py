"""Readers of a log find the old values of a retyped or renamed column under the column's current name."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from support.command_line import run
from support.standin.brought import DDL, FIRST_US, LOG, SWITCH_US, bring, lake_of
from support.standin.cluster import StandIn
from support.standin.kept_table import keep_id
from support.standin.live_log import LiveLog, defined
from support.standin.live_table import LiveTable

from cdc_platform.cdclog import log_rows_from_arrow, log_table
from cdc_platform.cdclog.consumer import hourly
from cdc_platform.cdclog.consumer.reader import BY_HOUR, sink_table
from cdc_platform.cdclog.consumer.retyped import rewrite_columns
from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.scylla import ScyllaCluster
from cdc_platform.spark import frames
from cdc_platform.tables import Table

pytestmark = pytest.mark.cassandra

FAR = 2**62
"""A timestamp (ms) that no native column can store."""


def retype_column(log: LiveLog, kind: str) -> None:
    """Change the type of `v` by recreating the table, as Cassandra refuses a dropped column with another type."""
    for table in ("shop.t", LOG):
        log.world.run(f"DROP TABLE {table}")
    log.schema = defined(DDL.replace("v int", f"v {kind}"))
    log.make()


def sorted_rows(lake: Lake, table: Table) -> list[dict[str, Any]]:
    """Return all rows of a table, oldest first."""
    rows = lake.read_version(table, lake.version(table) or 0)
    return rows.sort_by([("cdc$timestamp", "ascending")]).to_pylist()


def consume(cluster: ScyllaCluster, name: str) -> None:
    """Run a consumer up to now."""
    answer = run("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z", "consume", "shop.t", "--name", name)
    assert answer.exit_code == 0, answer.stderr


def copy_hours(lake: Lake, log: LiveLog, *times: int) -> None:
    """Copy the hours of these times (µs)."""
    for at in times:
        hour = Microseconds(at // HOUR_US * HOUR_US)
        hourly.copy_hour(lake, Clock(Microseconds(SWITCH_US + 24 * HOUR_US)), [log.schema], hour)


def write(log: LiveLog, at_us: int, row: dict[str, Any]) -> None:
    """Log an insert with values in the driver's form."""
    table = LiveTable(log.world, log.schema, log.generations, random.Random(7))
    table.log({"p": 1}, at_us, [{"cdc$operation": 2, **row}])


@pytest.mark.parametrize("several", [1, 2], ids=["once", "and back"])
def test_copies_have_the_columns_of_their_log(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, several: int
) -> None:
    """An existing consumer, a new one, and the copies by hour have every value, each once."""
    log.write([FIRST_US + 1, FIRST_US + 2], v=[7, 8])
    bring(cluster, workers, FIRST_US + 3_000 * SECOND_US)
    lake = lake_of(cluster)
    consume(cluster, "before")
    copy_hours(lake, log, FIRST_US)
    retype_column(log, "blob")
    log.write([SWITCH_US + 1], v=pa.array([b"\x01"], pa.binary()))
    bring(cluster, workers, SWITCH_US + 60 * SECOND_US)
    if several == 2:
        retype_column(log, "int")
        log.write([SWITCH_US + 61 * SECOND_US], v=[9])
    bring(cluster, workers)
    for name in ("before", "later"):
        consume(cluster, name)
    copy_hours(lake, log, FIRST_US, SWITCH_US)
    table = log_table(log.schema)
    old = sorted(name for name in lake.stored_schema(table).names if name.startswith("v$until_"))
    assert len(old) == several
    expected = [7, 8, b"\x01", 9][: 2 + several]
    for copy in (table, *(sink_table(log.schema, name) for name in ("before", "later", BY_HOUR))):
        rows = sorted_rows(lake, copy)
        values = [[row[name] for name in (*old, "v") if row[name] is not None] for row in rows]
        assert values == [[value] for value in expected], copy.full_name
        assert {field.name: field.type for field in lake.stored_schema(copy) if field.name in old} == {
            field.name: field.type for field in lake.stored_schema(table) if field.name in old
        }
    check = run("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z", "check", "--json")
    assert check.exit_code == 0, check.stdout


def test_rebuilt_table_has_only_values_of_the_new_type(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """A dropped column loses its values, as in the cluster; `sql` shows both columns."""
    log.write([FIRST_US + 1], v=[7])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    retype_column(log, "blob")
    log.write([SWITCH_US + 1, SWITCH_US + 2], v=pa.array([b"\x01", b"\x02"], pa.binary()))
    bring(cluster, workers)
    statements = tmp_path / "statements.cql"
    statements.write_text("UPDATE shop.t SET v = 0x03 WHERE p = 1 AND k = 0;")
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    answer = run(*at, "cql", "run", statements, "--json")
    assert answer.exit_code == 0, answer.stderr
    result = answer.json["tables"]["shop.t"]
    assert sorted((row["p"], row["v"]) for row in result["base"]) == [(0, "0x01"), (1, "0x03")]
    assert result["replayed"] == result["base"]
    (old,) = [
        name for name in lake_of(cluster).stored_schema(log_table(log.schema)).names if name.startswith("v$until_")
    ]
    rows = run(*at, "sql", f'SELECT "{old}", v FROM {LOG} ORDER BY "cdc$time"', "--json").rows
    assert [tuple(row.values()) for row in rows] == [(7, None), (None, "0x01"), (None, "0x02")]


@pytest.mark.parametrize("what", ["a key that is renamed", "a value of another type"])
def test_out_of_range_values_follow_their_column(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, what: str
) -> None:
    """An exact value is stored under the column's new name, too."""
    world, is_key = standin.world, what == "a key that is renamed"
    name = "k" if is_key else "v"
    for table in ("shop.t", LOG):
        world.run(f"DROP TABLE {table}")
    ddl = DDL.replace(f"{name} int", f"{name} timestamp")
    log.schema = defined(ddl)
    log.make()
    write(log, FIRST_US + 1, {name: FAR})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    if is_key:
        world.run("ALTER TABLE shop.t RENAME k TO key")
        # The stand-in's log is an ordinary table, whose regular columns have fixed names.
        world.run(f"ALTER TABLE {LOG} DROP k")
        world.run(f"ALTER TABLE {LOG} ADD key timestamp")
        keep_id(world)
        log.schema = defined(ddl.replace("k timestamp", "key timestamp").replace("(p, k)", "(p, key)"))
    else:
        retype_column(log, "int")
    write(log, SWITCH_US + 1, {"key" if is_key else "v": 5})
    bring(cluster, workers)
    first, last = sorted_rows(lake_of(cluster), log_table(log.schema, exact=True))
    ((column, text),) = first["cdc$exact"]
    assert json.loads(text) == FAR
    assert column == "key" if is_key else column.startswith("v$until_")
    assert last["cdc$exact"] is None
    stored = lake_of(cluster).read(log_table(log.schema, exact=True))
    values = [row["key" if is_key else "v"] for row in log_rows_from_arrow(log.schema, stored)]
    assert sorted(values, key=str) == ([FAR, 5] if is_key else [5, None])


def test_concurrent_write_to_a_copy_loses_no_row(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of the consumer writes between the read of the files and the commit that renames a column."""
    log.write([FIRST_US + 1], v=[7])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "audit")
    lake, sink = lake_of(cluster), sink_table(log.schema, "audit")
    replace_all, pending = frames.replace_all_rows, [True]

    def other_first(*args: Any, **options: Any) -> bool:
        if pending and pending.pop():
            rows = lake.read_version(sink, lake.version(sink) or 0)
            later = pa.array([1], rows["cdc$batch_seq_no"].type)
            index = rows.schema.get_field_index("cdc$batch_seq_no")
            assert lake.append_once(sink, rows.set_column(index, "cdc$batch_seq_no", later), {"other": 1}, None)
        return replace_all(*args, **options)

    monkeypatch.setattr(frames, "replace_all_rows", other_first)
    rewrite_columns(lake, sink, {"v": "v$until_20260921T161320000Z"})
    stored = sorted_rows(lake, sink)
    assert sorted((row["cdc$batch_seq_no"], row["v$until_20260921T161320000Z"]) for row in stored) == [(0, 7), (1, 7)]
    assert pending == []


GROWING = """CREATE TYPE shop.growing ({fields});
    CREATE TABLE shop.t (p int, k int, v frozen<growing>, l frozen<list<frozen<growing>>>, PRIMARY KEY (p, k))
    WITH cdc = {{'enabled': 'true', 'ttl': '0'}};"""


def test_extended_user_type_is_the_same_column(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """A new field is null in older values, and a renamed field drops no value in any copy."""
    world, later = standin.world, {"z": 3, "b": "y", "c": 4}
    for table in ("shop.t", LOG):
        world.run(f"DROP TABLE {table}")
    world.run("DROP TYPE IF EXISTS shop.growing")
    world.run("CREATE TYPE shop.growing (a int, b text)")
    log.schema = defined(GROWING.format(fields="a int, b text"))
    log.make()
    for number in range(3):
        write(log, FIRST_US + 1 + number, {"k": number, "v": (number, "x"), "l": [(number, None)]})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "before")
    world.run("ALTER TYPE shop.growing ADD c int")
    world.run("ALTER TYPE shop.growing RENAME a TO z")
    world.schema_changed()
    log.schema = defined(GROWING.format(fields="z int, b text, c int"))
    write(log, SWITCH_US + 1, {"k": 3, "v": tuple(later.values()), "l": [tuple(later.values())]})
    bring(cluster, workers)
    lake = lake_of(cluster)
    for name in ("before", "later"):
        consume(cluster, name)
    expected = [*({"z": number, "b": "x", "c": None} for number in range(3)), later]
    table = log_table(log.schema)
    for copy in (table, *(sink_table(log.schema, name) for name in ("before", "later"))):
        rows = sorted_rows(lake, copy)
        assert [row["v"] for row in rows] == expected, copy.full_name
        assert [row["l"][0]["z"] for row in rows] == [0, 1, 2, 3]
        assert not [name for name in lake.stored_schema(copy).names if "$until_" in name]
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    exported = run(*at, "export", tmp_path / "exported")
    assert exported.exit_code == 0, exported.stderr
    lines = (tmp_path / "exported" / "logs" / f"{LOG}.csv").read_text(encoding="utf-8").splitlines()
    assert [line.count("{z: ") for line in lines] == [0, 2, 2, 2, 2]
    check = run(*at, "check", "--deep", "--json")
    assert check.exit_code == 0, check.stdout


@pytest.mark.parametrize(("old", "new"), [("text", "uuid"), ("uuid", "text"), ("varint", "decimal")])
def test_types_with_equal_storage_are_distinguished(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, old: str, new: str, tmp_path: Path
) -> None:
    """All of them are texts in Delta: no value of the old type counts as one of the new."""
    values: dict[str, Any] = {"text": "x", "uuid": UUID(int=7), "varint": 7, "decimal": Decimal("1.5")}
    retype_column(log, old)
    write(log, FIRST_US + 1, {"k": 0, "v": values[old]})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "before")
    retype_column(log, new)
    for _ in range(2):
        write(log, SWITCH_US + 1, {"k": 1, "v": values[new]})
        bring(cluster, workers)
    consume(cluster, "before")
    lake = lake_of(cluster)
    for copy in (log_table(log.schema), sink_table(log.schema, "before")):
        rows = sorted_rows(lake, copy)
        (old_column,) = [name for name in lake.stored_schema(copy).names if name.startswith("v$until_")]
        assert (rows[0][old_column], rows[0]["v"]) == (str(values[old]), None)
        assert {row["v"] for row in rows[1:]} == {str(values[new])}
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    assert run(*at, "export", tmp_path / "exported").exit_code == 0


def test_deletions_of_a_dropped_column_stay_with_it(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """Log and copies store them with the old values; an export leaves them out."""
    write(log, FIRST_US + 1, {"k": 0, "v": 7})
    write(log, FIRST_US + 2, {"k": 0, "cdc$deleted_v": True})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "before")
    retype_column(log, "blob")
    write(log, SWITCH_US + 1, {"k": 1, "cdc$deleted_v": True})
    bring(cluster, workers)
    for name in ("before", "later"):
        consume(cluster, name)
    lake = lake_of(cluster)
    for copy in (log_table(log.schema), *(sink_table(log.schema, name) for name in ("before", "later"))):
        rows = sorted_rows(lake, copy)
        assert [row["cdc$deleted_v"] for row in rows] == [None, None, True], copy.full_name
        (old,) = [name for name in lake.stored_schema(copy).names if name.startswith("cdc$deleted_v$until_")]
        assert [row[old] for row in rows] == [None, True, None]
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    exported = run(*at, "export", tmp_path / "exported")
    assert exported.exit_code == 0
    assert exported.stderr.count("[left-out]") == 1
    head, *lines = (tmp_path / "exported" / "logs" / f"{LOG}.csv").read_text(encoding="utf-8").splitlines()
    index = head.split(",").index("cdc$deleted_v")
    assert [line.split(",")[index] for line in lines] == ["<null>", "<null>", "True"]
