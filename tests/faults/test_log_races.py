"""Races at logs and at what is found: eight processes that consume, keep scripts, repair or accept at one moment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet
from support.command_line import run
from support.files.export_files import SNAPSHOT
from support.processes.nursery import Nursery
from support.processes.racing import EIGHT, Command, do, explained, race
from support.read_logs import START_US, home_with_log, write

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.cdclog.consumer import reader
from cdc_platform.clock import HOUR_US, Microseconds, format_us
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables, consumers, inbox
from cdc_platform.tables import CDC_TABLES

LATE = "2026-01-31T15:01:00Z"
"""A time at which all writes of these tests are of the past."""


def at_kept_logs(folder: Path) -> Path:
    """A home with two generations and a CDC-enabled table, and eight scripts beside it."""
    home = home_with_log(folder)
    for number in EIGHT:
        (folder / f"write{number}.cql").write_text(f"INSERT INTO ks.t (p, k, v) VALUES ({number}, 1, {number});")
        (folder / f"alter{number}.cql").write_text(f"ALTER TABLE ks.t ADD added int; -- {number}")
    return home


def test_rows_are_consumed_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight runs of one consumer: each row is in the sink once and was one run's; who meets another is told so."""
    home, lake = home_with_log(tmp_path), Lake(tmp_path / "home" / "lake")
    late = "2026-01-31T15:01:00Z"
    write(lake, [Microseconds(START_US + number * HOUR_US // 8) for number in range(12)])
    alone = tmp_path / "alone"
    shutil.copytree(home, alone)
    due = run("--home", alone, "--clock", late, "consume", "ks.t", "--name", "audit", "--json").json
    ended = race(nursery, home, [("consume", "ks.t", "--name", "audit", "--json")] * 8, late)
    assert any(each.exit_code == 0 for each in ended), ended
    assert all("another process reads" in each.stderr for each in ended if each.exit_code)
    counted = [json.loads(each.stdout)["rows"] for each in ended if each.exit_code == 0]
    assert 0 < sum(counted) <= due["rows"]
    do(home, "consume", "ks.t", "--name", "audit", clock=late)  # windows of one that was refused meanwhile
    sink = reader.sink_table(read_table_schema(lake, "ks", "t"), "audit")
    order = [(name, "ascending") for name in sink.keys]
    assert lake.read(sink).sort_by(order) == Lake(alone / "lake").read(sink).sort_by(order)
    (left,) = consumers.read_consumers(lake)
    assert format_us(left.position_us) == due["position"]


def test_scripts_are_applied_whole(nursery: Nursery, tmp_path: Path) -> None:
    """Eight scripts that write rows of their own: each is kept once, whoever comes first."""
    home, lake = at_kept_logs(tmp_path), Lake(tmp_path / "home" / "lake")
    commands: list[Command] = [("cql", "run", f"{tmp_path}/write{number}.cql", "--apply") for number in EIGHT]
    ended = race(nursery, home, commands, "2026-01-31T12:10:00Z")
    assert [each.exit_code for each in ended] == [0] * 8, ended
    rows = lake.read(log_table(read_table_schema(lake, "ks", "t"))).to_pylist()
    assert sorted(row["p"] for row in rows) == list(EIGHT)
    assert len({(row["cdc$stream_id"], row["cdc$time"]) for row in rows}) == 8


def save_writes(path: Path, first: int) -> str:
    """A file of ten writes to `ks.t`, with partition keys from `first`, in both generations."""
    times = [START_US + (first + number) * 1000 + number % 2 * HOUR_US for number in range(10)]
    columns = {"p": pa.array(range(first, first + 10), pa.int32()), "k": pa.array([1] * 10, pa.int32())}
    parquet.write_table(pa.table({"timestamp": times, "v": columns["k"]} | columns), path)
    return str(path)


def appended_files(lake: Lake) -> frozenset[int]:
    """The first partition keys of the files whose writes are in the log, each of them once."""
    keys = sorted(lake.read(log_table(read_table_schema(lake, "ks", "t")))["p"].to_pylist())
    firsts = sorted({key - key % 100 for key in keys})
    assert keys == [first + number for first in firsts for number in range(10)]
    return frozenset(firsts)


def test_a_batch_is_appended_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight processes append one batch: one of them does, and all succeed."""
    home, file = home_with_log(tmp_path), save_writes(tmp_path / "writes.parquet", 100)
    ended = race(nursery, home, [("log-writes", "ks.t", file, "--batch", "one", "--json")] * 8, LATE)
    assert [each.exit_code for each in ended] == [0] * 8, ended
    batches = [json.loads(each.stdout)["batches"] for each in ended]
    assert sorted(batch["appended"] for (batch,) in batches) == [False] * 7 + [True]
    assert appended_files(Lake(home / "lake")) == {100}


def test_batches_are_appended_in_some_order(nursery: Nursery, tmp_path: Path) -> None:
    """Batches of their own, one batch several times, and other writes under its name: some order explains the log."""
    home = home_with_log(tmp_path)
    wanted = [("a", 100), ("a", 100), ("a", 200), ("a", 200), ("b", 300), ("b", 300), ("c", 400), ("d", 500)]
    files = {first: save_writes(tmp_path / f"{first}.parquet", first) for _, first in wanted}
    commands: list[Command] = [("log-writes", "ks.t", files[first], "--batch", name) for name, first in wanted]
    ended = race(nursery, home, commands, LATE)

    def rule(before: frozenset[tuple[str, int]], command: Command) -> tuple[frozenset[tuple[str, int]], bool]:
        name, first = wanted[commands.index(command)]
        there = {each for each in before if each[0] == name}
        return (before | {(name, first)}, True) if not there else (before, there == {(name, first)})

    first_of_a = appended_files(Lake(home / "lake")) & {100, 200}
    assert appended_files(Lake(home / "lake")) == first_of_a | {300, 400, 500}
    after = frozenset({("b", 300), ("c", 400), ("d", 500)} | {("a", first) for first in first_of_a})
    assert explained(rule, frozenset(), commands, ended, after)


def test_a_column_is_added_by_one_script(nursery: Nursery, tmp_path: Path) -> None:
    """Of eight scripts that add it one does; to the others it is there."""
    home, lake = at_kept_logs(tmp_path), Lake(tmp_path / "home" / "lake")
    commands: list[Command] = [("cql", "run", f"{tmp_path}/alter{number}.cql", "--apply") for number in EIGHT]
    ended = race(nursery, home, commands, "2026-01-31T12:10:00Z")
    after = "added" in {column.name for column in read_table_schema(lake, "ks", "t").columns}
    assert explained(lambda there, _: (True, not there), False, commands, ended, after)
    assert [each.what for each in cdc_tables.read_table_changes(lake)].count("altered") == 1


def test_repairs_at_once_are_one(nursery: Nursery, tmp_path: Path) -> None:
    """Eight calls ask for one generation, and all are told which."""
    home = tmp_path / "home"
    (tmp_path / "ring.json").write_text(json.dumps(SNAPSHOT), encoding="utf-8")
    do(home, "import", str(tmp_path / "ring.json"))
    ended = race(nursery, home, [("repair", "--json")] * 8)
    assert [each.exit_code for each in ended] == [0] * 8, ended
    (waiting,) = inbox.read_pending_events(Lake(home / "lake"))
    assert {json.loads(each.stdout)["generation_id"] for each in ended} == {waiting.generation_id}


def test_a_foreign_commit_is_accepted_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight acceptances with reasons of their own: one is kept, and all are told in which commit."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    do(home, "tables", "add", "ks.t", "--ttl", "1")
    opened = DeltaTable(lake.path(CDC_TABLES))
    opened.delete("table_name = 't'")
    commands: list[Command] = [
        ("check", "--accept", f"{CDC_TABLES.full_name}@{opened.version()}", "--reason", f"reason {number}", "--json")
        for number in EIGHT
    ]
    ended = race(nursery, home, commands)
    assert [each.exit_code for each in ended] == [0] * 8, ended
    told = [json.loads(each.stdout) for each in ended]
    assert [each["accepted"] for each in told].count("now") == 1
    assert {each["recorded_in_version"] for each in told} == {opened.version() + 1} == {lake.version(CDC_TABLES)}
