"""A column of a log that got another type, or name: who reads the log has the old values where they stand by now."""

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
"""A timestamp that no native column holds (ms)."""


def another_type(log: LiveLog, kind: str) -> None:
    """Let `v` be of another type: Cassandra does not take a column back that it had with another one."""
    for table in ("shop.t", LOG):
        log.world.run(f"DROP TABLE {table}")
    log.schema = defined(DDL.replace("v int", f"v {kind}"))
    log.make()


def rows_of(lake: Lake, table: Table) -> list[dict[str, Any]]:
    """All rows of a table by its columns, oldest first."""
    rows = lake.read_version(table, lake.version(table) or 0)
    return rows.sort_by([("cdc$timestamp", "ascending")]).to_pylist()


def consume(cluster: ScyllaCluster, name: str) -> None:
    """Read on, as any consumer does."""
    answer = run("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z", "consume", "shop.t", "--name", name)
    assert answer.exit_code == 0, answer.stderr


def copy_hours(lake: Lake, log: LiveLog, *times: int) -> None:
    """Copy the hours of these times (µs)."""
    for at in times:
        hour = Microseconds(at // HOUR_US * HOUR_US)
        hourly.copy_hour(lake, Clock(Microseconds(SWITCH_US + 24 * HOUR_US)), [log.schema], hour)


def write(log: LiveLog, at_us: int, row: dict[str, Any]) -> None:
    """Log an insert with values as the driver takes them."""
    table = LiveTable(log.world, log.schema, log.generations, random.Random(7))
    table.log({"p": 1}, at_us, [{"cdc$operation": 2, **row}])


@pytest.mark.parametrize("several", [1, 2], ids=["once", "and back"])
def test_copies_have_the_columns_of_their_log(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, several: int
) -> None:
    """A consumer that was there before, one that comes later, and the copies by the hour: every value, each once."""
    log.write([FIRST_US + 1, FIRST_US + 2], v=[7, 8])
    bring(cluster, workers, FIRST_US + 3_000 * SECOND_US)
    lake = lake_of(cluster)
    consume(cluster, "before")
    copy_hours(lake, log, FIRST_US)
    another_type(log, "blob")
    log.write([SWITCH_US + 1], v=pa.array([b"\x01"], pa.binary()))
    bring(cluster, workers, SWITCH_US + 60 * SECOND_US)
    if several == 2:
        another_type(log, "int")
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
        found = rows_of(lake, copy)
        values = [[row[name] for name in (*old, "v") if row[name] is not None] for row in found]
        assert values == [[value] for value in expected], copy.full_name
        assert {field.name: field.type for field in lake.stored_schema(copy) if field.name in old} == {
            field.name: field.type for field in lake.stored_schema(table) if field.name in old
        }
    checked = run("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z", "check", "--json")
    assert checked.exit_code == 0, checked.stdout


def test_a_table_that_is_rebuilt_has_the_values_of_the_new_type_alone(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """As the cluster, where a column that was dropped takes its values with it; `sql` shows both columns."""
    log.write([FIRST_US + 1], v=[7])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    another_type(log, "blob")
    log.write([SWITCH_US + 1, SWITCH_US + 2], v=pa.array([b"\x01", b"\x02"], pa.binary()))
    bring(cluster, workers)
    statements = tmp_path / "statements.cql"
    statements.write_text("UPDATE shop.t SET v = 0x03 WHERE p = 1 AND k = 0;")
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    answer = run(*at, "cql", "run", statements, "--json")
    assert answer.exit_code == 0, answer.stderr
    shown = answer.json["tables"]["shop.t"]
    assert sorted((row["p"], row["v"]) for row in shown["base"]) == [(0, "0x01"), (1, "0x03")]
    assert shown["replayed"] == shown["base"]
    (old,) = [
        name for name in lake_of(cluster).stored_schema(log_table(log.schema)).names if name.startswith("v$until_")
    ]
    asked = run(*at, "sql", f'SELECT "{old}", v FROM {LOG} ORDER BY "cdc$time"', "--json").rows
    assert [tuple(row.values()) for row in asked] == [(7, None), (None, "0x01"), (None, "0x02")]


@pytest.mark.parametrize("what", ["a key that is renamed", "a value of another type"])
def test_what_no_native_column_holds_goes_with_its_column(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, what: str
) -> None:
    """The value beside a row stands under the column's new name too."""
    world, of_key = standin.world, what == "a key that is renamed"
    name = "k" if of_key else "v"
    for table in ("shop.t", LOG):
        world.run(f"DROP TABLE {table}")
    ddl = DDL.replace(f"{name} int", f"{name} timestamp")
    log.schema = defined(ddl)
    log.make()
    write(log, FIRST_US + 1, {name: FAR})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    if of_key:
        world.run("ALTER TABLE shop.t RENAME k TO key")
        # The stand-in's log is a table like others, whose regular columns have fixed names.
        world.run(f"ALTER TABLE {LOG} DROP k")
        world.run(f"ALTER TABLE {LOG} ADD key timestamp")
        keep_id(world)
        log.schema = defined(ddl.replace("k timestamp", "key timestamp").replace("(p, k)", "(p, key)"))
    else:
        another_type(log, "int")
    write(log, SWITCH_US + 1, {"key" if of_key else "v": 5})
    bring(cluster, workers)
    first, last = rows_of(lake_of(cluster), log_table(log.schema, exact=True))
    ((place, text),) = first["cdc$exact"]
    assert json.loads(text) == FAR
    assert place == "key" if of_key else place.startswith("v$until_")
    assert last["cdc$exact"] is None
    stored = lake_of(cluster).read(log_table(log.schema, exact=True))
    values = [row["key" if of_key else "v"] for row in log_rows_from_arrow(log.schema, stored)]
    assert sorted(values, key=str) == ([FAR, 5] if of_key else [5, None])


def test_a_copy_that_is_written_to_meanwhile_keeps_every_row(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of the consumer comes between the reading of its files and the commit that renames a column."""
    log.write([FIRST_US + 1], v=[7])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "audit")
    lake, sink = lake_of(cluster), sink_table(log.schema, "audit")
    replace_all, once = frames.replace_all_rows, [True]

    def other_first(*given: Any, **options: Any) -> bool:
        if once and once.pop():
            rows = lake.read_version(sink, lake.version(sink) or 0)
            later = pa.array([1], rows["cdc$batch_seq_no"].type)
            place = rows.schema.get_field_index("cdc$batch_seq_no")
            assert lake.append_once(sink, rows.set_column(place, "cdc$batch_seq_no", later), {"other": 1}, None)
        return replace_all(*given, **options)

    monkeypatch.setattr(frames, "replace_all_rows", other_first)
    rewrite_columns(lake, sink, {"v": "v$until_20260921T161320000Z"})
    found = rows_of(lake, sink)
    assert sorted((row["cdc$batch_seq_no"], row["v$until_20260921T161320000Z"]) for row in found) == [(0, 7), (1, 7)]
    assert once == []


GROWING = """CREATE TYPE shop.growing ({fields});
    CREATE TABLE shop.t (p int, k int, v frozen<growing>, l frozen<list<frozen<growing>>>, PRIMARY KEY (p, k))
    WITH cdc = {{'enabled': 'true', 'ttl': '0'}};"""


def test_a_user_type_that_grew_is_the_same_column(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """With null in the field that came, also where another one got a new name: no older value is dropped anywhere."""
    world, later = standin.world, {"z": 3, "b": "y", "c": 4}
    for table in ("shop.t", LOG):
        world.run(f"DROP TABLE {table}")
    world.run("DROP TYPE IF EXISTS shop.growing")
    world.run("CREATE TYPE shop.growing (a int, b text)")
    log.schema = defined(GROWING.format(fields="a int, b text"))
    log.make()
    for place in range(3):
        write(log, FIRST_US + 1 + place, {"k": place, "v": (place, "x"), "l": [(place, None)]})
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
    expected = [*({"z": place, "b": "x", "c": None} for place in range(3)), later]
    table = log_table(log.schema)
    for copy in (table, *(sink_table(log.schema, name) for name in ("before", "later"))):
        found = rows_of(lake, copy)
        assert [row["v"] for row in found] == expected, copy.full_name
        assert [row["l"][0]["z"] for row in found] == [0, 1, 2, 3]
        assert not [name for name in lake.stored_schema(copy).names if "$until_" in name]
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    exported = run(*at, "export", tmp_path / "exported")
    assert exported.exit_code == 0, exported.stderr
    lines = (tmp_path / "exported" / "logs" / f"{LOG}.csv").read_text(encoding="utf-8").splitlines()
    assert [line.count("{z: ") for line in lines] == [0, 2, 2, 2, 2]
    checked = run(*at, "check", "--deep", "--json")
    assert checked.exit_code == 0, checked.stdout


@pytest.mark.parametrize(("old", "new"), [("text", "uuid"), ("uuid", "text"), ("varint", "decimal")])
def test_types_that_are_stored_alike_are_told_apart(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, old: str, new: str, tmp_path: Path
) -> None:
    """All of them are texts in Delta: no value of the old type is taken for one of the new."""
    values: dict[str, Any] = {"text": "x", "uuid": UUID(int=7), "varint": 7, "decimal": Decimal("1.5")}
    another_type(log, old)
    write(log, FIRST_US + 1, {"k": 0, "v": values[old]})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "before")
    another_type(log, new)
    for _ in range(2):
        write(log, SWITCH_US + 1, {"k": 1, "v": values[new]})
        bring(cluster, workers)
    consume(cluster, "before")
    lake = lake_of(cluster)
    for copy in (log_table(log.schema), sink_table(log.schema, "before")):
        found = rows_of(lake, copy)
        (aside,) = [name for name in lake.stored_schema(copy).names if name.startswith("v$until_")]
        assert (found[0][aside], found[0]["v"]) == (str(values[old]), None)
        assert {row["v"] for row in found[1:]} == {str(values[new])}
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    assert run(*at, "export", tmp_path / "exported").exit_code == 0


def test_deletions_of_a_dropped_column_are_not_those_of_the_new_one(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, tmp_path: Path
) -> None:
    """They stand aside with its values: in the log, in its copies, and not in an export."""
    write(log, FIRST_US + 1, {"k": 0, "v": 7})
    write(log, FIRST_US + 2, {"k": 0, "cdc$deleted_v": True})
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    consume(cluster, "before")
    another_type(log, "blob")
    write(log, SWITCH_US + 1, {"k": 1, "cdc$deleted_v": True})
    bring(cluster, workers)
    for name in ("before", "later"):
        consume(cluster, name)
    lake = lake_of(cluster)
    for copy in (log_table(log.schema), *(sink_table(log.schema, name) for name in ("before", "later"))):
        found = rows_of(lake, copy)
        assert [row["cdc$deleted_v"] for row in found] == [None, None, True], copy.full_name
        (old,) = [name for name in lake.stored_schema(copy).names if name.startswith("cdc$deleted_v$until_")]
        assert [row[old] for row in found] == [None, True, None]
    at = ("--home", cluster.home, "--clock", "2026-09-22T12:00:00Z")
    exported = run(*at, "export", tmp_path / "exported")
    assert exported.exit_code == 0
    assert exported.stderr.count("[left-out]") == 1
    head, *lines = (tmp_path / "exported" / "logs" / f"{LOG}.csv").read_text(encoding="utf-8").splitlines()
    place = head.split(",").index("cdc$deleted_v")
    assert [line.split(",")[place] for line in lines] == ["<null>", "<null>", "True"]
