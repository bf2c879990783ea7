"""Races on logs and findings: eight processes consume, apply scripts, repair or accept at the same moment."""

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
"""A time later than all writes of these tests."""


def home_with_scripts(folder: Path) -> Path:
    """Create a home with two generations and a CDC-enabled table, and eight scripts beside it."""
    home = home_with_log(folder)
    for number in EIGHT:
        (folder / f"write{number}.cql").write_text(f"INSERT INTO ks.t (p, k, v) VALUES ({number}, 1, {number});")
        (folder / f"alter{number}.cql").write_text(f"ALTER TABLE ks.t ADD added int; -- {number}")
    return home


def test_rows_are_consumed_once(nursery: Nursery, tmp_path: Path) -> None:
    """Of eight runs of one consumer each row reaches the sink once; a run that meets another one reports it."""
    home, lake = home_with_log(tmp_path), Lake(tmp_path / "home" / "lake")
    late = "2026-01-31T15:01:00Z"
    write(lake, [Microseconds(START_US + number * HOUR_US // 8) for number in range(12)])
    alone = tmp_path / "alone"
    shutil.copytree(home, alone)
    expected = run("--home", alone, "--clock", late, "consume", "ks.t", "--name", "audit", "--json").json
    results = race(nursery, home, [("consume", "ks.t", "--name", "audit", "--json")] * 8, late)
    assert any(result.exit_code == 0 for result in results), results
    assert all("another process reads" in result.stderr for result in results if result.exit_code)
    counted = [json.loads(result.stdout)["rows"] for result in results if result.exit_code == 0]
    assert 0 < sum(counted) <= expected["rows"]
    do(home, "consume", "ks.t", "--name", "audit", clock=late)  # read windows that a refused run has missed
    sink = reader.sink_table(read_table_schema(lake, "ks", "t"), "audit")
    order = [(name, "ascending") for name in sink.keys]
    assert lake.read(sink).sort_by(order) == Lake(alone / "lake").read(sink).sort_by(order)
    (consumer,) = consumers.read_consumers(lake)
    assert format_us(consumer.position_us) == expected["position"]


def test_scripts_are_applied_whole(nursery: Nursery, tmp_path: Path) -> None:
    """Eight scripts that write different rows are each applied exactly once, in any order."""
    home, lake = home_with_scripts(tmp_path), Lake(tmp_path / "home" / "lake")
    commands: list[Command] = [("cql", "run", f"{tmp_path}/write{number}.cql", "--apply") for number in EIGHT]
    results = race(nursery, home, commands, "2026-01-31T12:10:00Z")
    assert [result.exit_code for result in results] == [0] * 8, results
    rows = lake.read(log_table(read_table_schema(lake, "ks", "t"))).to_pylist()
    assert sorted(row["p"] for row in rows) == list(EIGHT)
    assert len({(row["cdc$stream_id"], row["cdc$time"]) for row in rows}) == 8


def save_writes(path: Path, first: int) -> str:
    """Write a file of ten writes to `ks.t`, with partition keys from `first`, in both generations."""
    times = [START_US + (first + number) * 1000 + number % 2 * HOUR_US for number in range(10)]
    columns = {"p": pa.array(range(first, first + 10), pa.int32()), "k": pa.array([1] * 10, pa.int32())}
    parquet.write_table(pa.table({"timestamp": times, "v": columns["k"]} | columns), path)
    return str(path)


def appended_files(lake: Lake) -> frozenset[int]:
    """Return the first partition keys of the files whose writes are in the log; each write must be there once."""
    keys = sorted(lake.read(log_table(read_table_schema(lake, "ks", "t")))["p"].to_pylist())
    firsts = sorted({key - key % 100 for key in keys})
    assert keys == [first + number for first in firsts for number in range(10)]
    return frozenset(firsts)


def test_a_batch_is_appended_once(nursery: Nursery, tmp_path: Path) -> None:
    """Of eight processes that append one batch, one appends it and all succeed."""
    home, file = home_with_log(tmp_path), save_writes(tmp_path / "writes.parquet", 100)
    results = race(nursery, home, [("log-writes", "ks.t", file, "--batch", "one", "--json")] * 8, LATE)
    assert [result.exit_code for result in results] == [0] * 8, results
    batches = [json.loads(result.stdout)["batches"] for result in results]
    assert sorted(batch["appended"] for (batch,) in batches) == [False] * 7 + [True]
    assert appended_files(Lake(home / "lake")) == {100}


def test_batches_are_appended_in_some_order(nursery: Nursery, tmp_path: Path) -> None:
    """A sequential order explains the log after races of different batches, equal batches and reused batch names."""
    home = home_with_log(tmp_path)
    requests = [("a", 100), ("a", 100), ("a", 200), ("a", 200), ("b", 300), ("b", 300), ("c", 400), ("d", 500)]
    files = {first: save_writes(tmp_path / f"{first}.parquet", first) for _, first in requests}
    commands: list[Command] = [("log-writes", "ks.t", files[first], "--batch", name) for name, first in requests]
    results = race(nursery, home, commands, LATE)

    def rule(before: frozenset[tuple[str, int]], command: Command) -> tuple[frozenset[tuple[str, int]], bool]:
        name, first = requests[commands.index(command)]
        appended = {entry for entry in before if entry[0] == name}
        return (before | {(name, first)}, True) if not appended else (before, appended == {(name, first)})

    first_of_a = appended_files(Lake(home / "lake")) & {100, 200}
    assert appended_files(Lake(home / "lake")) == first_of_a | {300, 400, 500}
    after = frozenset({("b", 300), ("c", 400), ("d", 500)} | {("a", first) for first in first_of_a})
    assert explained(rule, frozenset(), commands, results, after)


def test_a_column_is_added_by_one_script(nursery: Nursery, tmp_path: Path) -> None:
    """One of eight scripts adds the column; the others find that it exists."""
    home, lake = home_with_scripts(tmp_path), Lake(tmp_path / "home" / "lake")
    commands: list[Command] = [("cql", "run", f"{tmp_path}/alter{number}.cql", "--apply") for number in EIGHT]
    results = race(nursery, home, commands, "2026-01-31T12:10:00Z")
    after = "added" in {column.name for column in read_table_schema(lake, "ks", "t").columns}
    assert explained(lambda is_added, _: (True, not is_added), False, commands, results, after)
    assert [change.what for change in cdc_tables.read_table_changes(lake)].count("altered") == 1


def test_concurrent_repairs_queue_one_generation(nursery: Nursery, tmp_path: Path) -> None:
    """Eight concurrent repairs queue one generation, and each reports its ID."""
    home = tmp_path / "home"
    (tmp_path / "ring.json").write_text(json.dumps(SNAPSHOT), encoding="utf-8")
    do(home, "import", str(tmp_path / "ring.json"))
    results = race(nursery, home, [("repair", "--json")] * 8)
    assert [result.exit_code for result in results] == [0] * 8, results
    (waiting,) = inbox.read_pending_events(Lake(home / "lake"))
    assert {json.loads(result.stdout)["generation_id"] for result in results} == {waiting.generation_id}


def test_a_foreign_commit_is_accepted_once(nursery: Nursery, tmp_path: Path) -> None:
    """Of eight acceptances with different reasons one is recorded, and each reports the commit that records it."""
    home, lake = tmp_path / "home", Lake(tmp_path / "home" / "lake")
    do(home, "tables", "add", "ks.t", "--ttl", "1")
    opened = DeltaTable(lake.path(CDC_TABLES))
    opened.delete("table_name = 't'")
    commands: list[Command] = [
        ("check", "--accept", f"{CDC_TABLES.full_name}@{opened.version()}", "--reason", f"reason {number}", "--json")
        for number in EIGHT
    ]
    results = race(nursery, home, commands)
    assert [result.exit_code for result in results] == [0] * 8, results
    reports = [json.loads(result.stdout) for result in results]
    assert [report["accepted"] for report in reports].count("now") == 1
    assert {report["recorded_in_version"] for report in reports} == {opened.version() + 1} == {lake.version(CDC_TABLES)}
