"""Homes with the problems that the pages of docs/questions describe, by the name in a page's head.

Each is a folder in which the page's commands run: the home is `.cdc-platform` in it, with files beside it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from support.command_line import run
from support.homes import expiring, timelines, v1_tables
from support.worlds.switch_lake import parse_node, ring_of

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.cdclog.consumer.reader import sink_table
from cdc_platform.clock import (
    DAY_US,
    HOUR_US,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_ms,
    parse_time_us,
    us_from_ms,
)
from cdc_platform.delta import Lake
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables, consumers, write_nodes
from cdc_platform.ring import Node
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, Table

HOME = ".cdc-platform"


def home_for(folder: Path, name: str) -> Path:
    """Create the home of a page in `folder`; return the new folder in which its commands run."""
    page_folder = folder / name.replace(" ", "_")
    page_folder.mkdir()
    PROBLEMS[name](page_folder)
    return page_folder


def _lake(folder: Path) -> Lake:
    return Lake(folder / HOME / "lake")


def _node(number: int, tokens: int, shards: int) -> Node:
    drawn = np.random.default_rng(number).integers(-(2**63) + 1, 2**63 - 1, tokens, dtype=np.int64)
    features = ("CDC_GENERATIONS_V2",)
    return Node(UUID(int=number), tuple(drawn.tolist()), shards, 12, f"10.0.0.{number}", "dc1", "r1", features)


def _timeline(folder: Path, name: str, nodes: Iterable[int] = ()) -> Lake:
    """Create a home of `timelines`, with these nodes as the ring."""
    timelines.home_of(folder, name).rename(folder / HOME)
    ring_of(_lake(folder), nodes)
    return _lake(folder)


def _resharded(folder: Path, name: str, number: int, shards: int) -> None:
    """Create a generation of two nodes; one of them now has another number of shards in the ring."""
    lake = _timeline(folder, name, [1])
    write_nodes(lake, [dataclasses.replace(parse_node(number), shard_count=shards)])


def _rewritten(lake: Lake, table: Table, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Replace all rows of a table by changed ones, as foreign programs or a broken export leave them."""
    rows = lake.read(table).to_pylist()
    change(rows)
    opened = DeltaTable(lake.path(table))
    write_deltalake(opened, pa.Table.from_pylist(rows, schema=pa.schema(opened.schema())), mode="overwrite")


def _logged(folder: Path, statements: str, clock: str) -> None:
    """Store the log rows of CQL statements."""
    (folder / "statements.cql").write_text(statements, encoding="utf-8")
    answer = run("--home", folder / HOME, "--clock", clock, "cql", "run", folder / "statements.cql", "--apply")
    assert answer.exit_code == 0, answer.stderr


def empty_cluster(folder: Path) -> None:
    """One node of 256 tokens and two shards; no CDC tables are declared."""
    write_nodes(_lake(folder), [_node(1, 256, 2)])


def old_generations(folder: Path) -> None:
    """Four generations, one per day, and a table that lowered its TTL in the second one; the first is marked."""
    imported = expiring.import_generations(folder)
    imported.rename(folder / HOME)
    lake = _lake(folder)
    expiring.add_table(lake, 2 * 86_400, name="orders")
    changed = Milliseconds(expiring.TIMES_MS[1] + expiring.HOUR_MS)
    cdc_tables.alter_cdc_table(lake, expiring.at(changed), "ks", "orders", ttl_seconds=3600)
    consumers.register_consumer(
        lake, expiring.at(expiring.START_MS), "audit", "ks", "orders", position_us=us_from_ms(expiring.TIMES_MS[2])
    )
    expiring.mark(lake, Milliseconds(expiring.TIMES_MS[3] + expiring.HOUR_MS // 2))


def stream_history(folder: Path) -> None:
    """A tablet-based table that was split twice, one day apart."""
    lake, settings = _lake(folder), Settings()
    begin = parse_time_us("2026-01-31T12:00:05Z")
    tablets.create_tablets(lake, Clock(begin), settings, "shop", "orders", uniform_tablet_ends(2), ttl_seconds=86_400)
    for day, count in ((1, 4), (2, 8)):
        tablets.split_tablets(lake, Clock(Microseconds(begin + day * DAY_US)), settings, "shop", "orders", count)


def just_booted(folder: Path) -> None:
    """One generation, which starts at 22:13:20."""
    _timeline(folder, "plain", [1])


def gossiped_alone(folder: Path) -> None:
    """A node names a generation that no table describes."""
    _timeline(folder, "named_by_node", [1])


def switch_of_generations(folder: Path) -> None:
    """Three generations, an hour apart."""
    _timeline(folder, "three", [1, 2, 3])


def nodes_left(folder: Path) -> None:
    """A generation of three nodes; one of them has left."""
    _timeline(folder, "three", [1, 3])


def skewed(folder: Path) -> None:
    """A generation of one node, and a second node in the ring."""
    _timeline(folder, "plain", [1, 2])


def more_cores(folder: Path) -> None:
    """A generation for a node of two shards, which has three now."""
    _resharded(folder, "plain", 1, 3)


def never_described(folder: Path) -> None:
    """A second generation in the ledger without any row in the table of descriptions."""
    lake = _timeline(folder, "introduced", [1, 2])
    generation_id = timelines.uuid_of(timelines.SECOND_MS)
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", generation_id)])


def rows_missing(folder: Path) -> None:
    """Three generations; readers see the timestamp and nine of twelve rows of the last one."""
    lake = _timeline(folder, "three", [1, 2, 3])
    last = datetime_from_ms(timelines.THIRD_MS)

    def without(rows: list[dict[str, Any]]) -> None:
        ends = sorted(row["range_end"] for row in rows if row["time"] == last)
        rows[:] = [row for row in rows if row["time"] != last or row["range_end"] not in ends[:3]]

    _logged(folder, "INSERT INTO ks.t (p, k, v) VALUES (7, 1, 1);", "2023-11-15T00:20:00Z")
    _rewritten(lake, STREAMS_DESCRIPTIONS_V2, without)


def tablets_split(folder: Path) -> None:
    """A table whose two tablets are split into four."""
    lake, settings = _lake(folder), Settings()
    begin = parse_time_us("2026-01-31T12:00:05Z")
    tablets.create_tablets(lake, Clock(begin), settings, "shop", "orders", uniform_tablet_ends(2), ttl_seconds=86_400)
    tablets.split_tablets(lake, Clock(Microseconds(begin + HOUR_US)), settings, "shop", "orders", 4)


def not_published(folder: Path) -> None:
    """A second generation that nodes use and that is not published to clients."""
    _timeline(folder, "introduced", [1, 2])


def unknown_shards(folder: Path) -> None:
    """A generation in which one range was made as if its owner had one shard (scylladb#6223)."""
    lake = _timeline(folder, "plain", [1])

    def fewer(rows: list[dict[str, Any]]) -> None:
        rows[0]["streams"] = rows[0]["streams"][:1]

    for table in (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2):
        _rewritten(lake, table, fewer)


def two_hundred_nodes(folder: Path) -> None:
    """A ring of 199 nodes with 256 tokens and 64 shards each, and the step that adds another node."""
    write_nodes(_lake(folder), [_node(number, 256, 64) for number in range(1, 200)])
    steps = [{"add": {"num_tokens": 256, "shard_count": 64}}]
    (folder / "one-more.json").write_text(json.dumps(steps), encoding="utf-8")


def old_ids(folder: Path) -> None:
    """A generation with one stream ID that is older than the version field."""
    lake = _timeline(folder, "plain", [1])

    def older(rows: list[dict[str, Any]]) -> None:
        rows[0]["streams"][0] = rows[0]["streams"][0][:15] + b"\xd2"

    for table in (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2):
        _rewritten(lake, table, older)


def dead_checkpoints(folder: Path) -> None:
    """A generation that was removed although a consumer's position is in it, and the checkpoints of a Go client."""
    lake = _timeline(folder, "removed", [1])
    first, second = timelines.FIRST_MS, timelines.SECOND_MS
    for name, at in (("audit", first), ("search", second)):
        consumers.register_consumer(
            lake, expiring.at(first), name, "ks", "t", position_us=us_from_ms(Milliseconds(at + 60_000))
        )
    checkpoints = [
        (expiring.iso(time_ms), f"0x{number:032x}", "") for time_ms in (first, second) for number in range(3)
    ]
    rows = [("0001-01-01 00:00:00+0000", "0x", expiring.iso(second)), *checkpoints]
    lines = [f"{when},app,ks.t,{stream},{current}," for when, stream, current in rows]
    head = "generation,application_name,table_name,stream_id,current_generation,last_timestamp"
    (folder / "cdc_progress.csv").write_text("\n".join([head, *lines, ""]), encoding="utf-8")


def lost_batch(folder: Path) -> None:
    """A log with two readers; one reader and the log have since lost a whole batch; and the base table."""
    lake = _timeline(folder, "three", [1, 2, 3])
    for number, clock in enumerate(("2023-11-14T22:20:00Z", "2023-11-14T23:20:00Z", "2023-11-15T00:20:00Z")):
        _logged(folder, f"INSERT INTO ks.t (p, k, v) VALUES ({number}, 1, 1);", clock)
    for name in ("audit", "search"):
        answer = run("--home", folder / HOME, "--clock", "2023-11-15T00:10:00Z", "consume", "ks.t", "--name", name)
        assert answer.exit_code == 0, answer.stderr
    schema = read_table_schema(lake, "ks", "t")

    def without(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["p"] != 1]

    for table in (log_table(schema), sink_table(schema, "audit")):
        _rewritten(lake, table, without)
    rows = "\n".join(json.dumps({"p": number, "k": 1, "v": 1}) for number in range(3))
    (folder / "base.txt").write_text(f"{rows}\n", encoding="utf-8")


def half_rewritten(folder: Path) -> None:
    """Three V1 generations, one without its description; the rewrite ran on one of three nodes."""
    first, *_ = times = v1_tables.times(3)
    v1_tables.old_cluster(_lake(folder), times, without_data=[first])
    clock = expiring.iso(Milliseconds(times[-1] + v1_tables.HOUR_MS))
    node = "00000000-0000-0000-0000-000000000001"
    assert run("--home", folder / HOME, "--clock", clock, "rewrite", "--node", node).exit_code == 0


def expiring_row(folder: Path) -> None:
    """A generation, and a file with a write that has a TTL."""
    _timeline(folder, "plain", [1])
    text = "INSERT INTO ks.t (p, k, v) VALUES (7, 1, 1) USING TTL 60;\n"
    (folder / "with-ttl.cql").write_text(text, encoding="utf-8")


PROBLEMS: dict[str, Callable[[Path], None]] = {
    make.__name__.replace("_", " "): make
    for make in (
        empty_cluster,
        old_generations,
        stream_history,
        just_booted,
        gossiped_alone,
        switch_of_generations,
        nodes_left,
        skewed,
        more_cores,
        never_described,
        rows_missing,
        tablets_split,
        not_published,
        unknown_shards,
        two_hundred_nodes,
        old_ids,
        dead_checkpoints,
        lost_batch,
        half_rewritten,
        expiring_row,
    )
}
