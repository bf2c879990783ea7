"""Every audited invariant of a join, violated: the command line and Dagster stop at the same step with the same line.

The test damages the rows of a step before they are judged; steps, audits and entry points are the real ones.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterEventType, ExecuteInProcessResult
from deltalake import write_deltalake
from support.command_line import run
from support.nodes import node_fields
from support.worlds.invariant_seeds import Owners, Row, generation_rows, with_low_bits, with_token
from support.worlds.rehearsal import Rehearsal

from cdc_platform.clock import Clock, datetime_from_ms
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.delta import Lake
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.home_location import open_home_location
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import JoinContext, find_step
from cdc_platform.lifecycle.join import steps as join_steps
from cdc_platform.lifecycle.join.steps import JoinSteps
from cdc_platform.metastore import generations, inbox
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform_assets.partitions import GENERATIONS_NAME

Damage = Callable[[Lake, str], None]
NOON = "2026-01-31T12:00:00Z"
OTHER = "00000000-0000-4000-8000-000000000063"
# Most of the eight shards own nothing of the range of three tokens.
OWNERS: Owners = dict.fromkeys((-(2**62), 0, 3, 2**62), (8, 4))
CROWDED = 2
NODE = node_fields(1, tokens=[str(token) for token in OWNERS], shard_count=8, ignore_msb=4)
KEY = {TOPOLOGY_DESCRIPTIONS: "generation_id", GENERATION_DESCRIPTIONS_V2: "id", STREAMS_DESCRIPTIONS_V2: "time"}


def damage_of(table: Table, change: Callable[[list[Row]], list[Row] | None]) -> Damage:
    """Return the damage of a generation's rows in a table, past every guard but the table's own constraints."""

    def damage(lake: Lake, generation_id: str) -> None:
        key: Any = generation_id
        if table is STREAMS_DESCRIPTIONS_V2:
            time_ms = generations.read_generation_time_ms(lake, generation_id)
            assert time_ms is not None
            key = datetime_from_ms(time_ms)
        rows = sorted(lake.read(table, filters=[(KEY[table], "=", key)]).to_pylist(), key=lambda row: row["range_end"])
        changed_rows = change(rows) or rows
        data = table.schema.empty_table().from_pylist(
            [row | {KEY[table]: key} for row in changed_rows], schema=table.schema
        )
        lake.delete(table, [(KEY[table], "=", key)])
        write_deltalake(lake.path(table), data, mode="append")

    return damage


def shift_start(rows: list[Row]) -> None:
    """Start a range a token late."""
    rows[1]["range_start"] += 1


def move_end(rows: list[Row]) -> None:
    """Put a vnode's end inside a range."""
    rows[1]["range_end"] -= 1
    rows[2]["range_start"] -= 1


def duplicate_range(rows: list[Row]) -> list[Row]:
    """Repeat a range."""
    return [*rows, rows[0]]


def move_stream(rows: list[Row]) -> None:
    """Move a stream into another range."""
    rows[0]["streams"][0] = with_token(rows[0]["streams"][0], rows[1]["range_end"])


def reverse_streams(rows: list[Row]) -> None:
    """Reverse the streams of a range."""
    rows[0]["streams"].reverse()


def set_version_two(rows: list[Row]) -> None:
    """Give a stream ID an unknown version."""
    rows[0]["streams"][0] = with_low_bits(rows[0]["streams"][0], version=2)


def repeat_idle_stream(rows: list[Row]) -> None:
    """Give two shards that own nothing of a range the same stream."""
    streams = rows[CROWDED]["streams"]
    at_end = [index for index, stream in enumerate(streams) if stream[:8] == streams[-1][:8]]
    streams[at_end[0]] = streams[at_end[1]]


def add_token(rows: list[Row]) -> list[Row]:
    """Return a valid generation over a ring with one more token."""
    new_rows = generation_rows({**OWNERS, 2**62 + 2**61: (8, 4)})
    return [row | {"owner": rows[0]["owner"]} for row in new_rows]


def raise_claim(rows: list[Row]) -> None:
    """Let the rows claim one more row than exists."""
    for row in rows:
        row["num_ranges"] += 1


def change_random_bits(rows: list[Row]) -> None:
    """Replace a stream by a possible one that the previous step does not have."""
    stream = rows[0]["streams"][0]
    rows[0]["streams"][0] = stream[:8] + bytes([stream[8] ^ 1]) + stream[9:]


def share_streams(lake: Lake, generation_id: str) -> None:
    """Give another generation the same streams."""
    rows = lake.read(TOPOLOGY_DESCRIPTIONS, filters=[("generation_id", "=", generation_id)]).to_pylist()
    names = GENERATION_DESCRIPTIONS_V2.schema.names
    other_rows = [{name: row.get(name) for name in names} | {"id": OTHER, "num_ranges": len(rows)} for row in rows]
    schema = GENERATION_DESCRIPTIONS_V2.schema
    lake.merge(GENERATION_DESCRIPTIONS_V2, schema.empty_table().from_pylist(other_rows, schema=schema), update=False)


def delete_published_row(lake: Lake, generation_id: str) -> None:
    """Delete a published row after the timestamp is written."""
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("range_end", "=", 3)])


def swap_cell_streams(lake: Lake, generation_id: str) -> None:
    """Swap two streams in the cell of the first format."""
    time_ms = generations.read_generation_time_ms(lake, generation_id)
    assert time_ms is not None
    cell = generations.read_generation_description(lake, GenerationId(time_ms))
    streams = cell.streams.copy()
    streams[[0, 1]] = streams[[1, 0]]
    damaged = TopologyDescription(cell.range_ends, cell.stream_counts, cell.ignore_msbs, streams)
    lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(time_ms, damaged), update=True)


DESCRIBED, INSERTED, PUBLISHED = TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2
V2_SEEDS: list[tuple[Table, str, Damage]] = [
    (DESCRIBED, "ring_covered_once", damage_of(DESCRIBED, shift_start)),
    (DESCRIBED, "refines_vnodes", damage_of(DESCRIBED, move_end)),
    (DESCRIBED, "vnode_colocation", damage_of(DESCRIBED, move_stream)),
    (DESCRIBED, "shard_colocation", damage_of(DESCRIBED, reverse_streams)),
    (DESCRIBED, "stream_format", damage_of(DESCRIBED, set_version_two)),
    (DESCRIBED, "streams_unique", damage_of(DESCRIBED, repeat_idle_stream)),
    (DESCRIBED, "row_count", damage_of(DESCRIBED, add_token)),
    (DESCRIBED, "streams_unique_across_generations", share_streams),
    (INSERTED, "ring_covered_once", damage_of(INSERTED, duplicate_range)),
    (INSERTED, "vnode_colocation", damage_of(INSERTED, move_stream)),
    (INSERTED, "shard_colocation", damage_of(INSERTED, reverse_streams)),
    (INSERTED, "stream_format", damage_of(INSERTED, set_version_two)),
    (INSERTED, "streams_unique", damage_of(INSERTED, repeat_idle_stream)),
    (INSERTED, "row_count", damage_of(INSERTED, raise_claim)),
    (INSERTED, "published_equals_description", damage_of(INSERTED, change_random_bits)),
    (PUBLISHED, "published_equals_description", damage_of(PUBLISHED, change_random_bits)),
    (GENERATION_TIMESTAMPS, "timestamp_complete", delete_published_row),
]
V1_SEEDS: list[tuple[Table, str, Damage]] = [
    (INSERTED, "shard_colocation", swap_cell_streams),
    (PUBLISHED, "published_equals_description", damage_of(PUBLISHED, change_random_bits)),
]
SEEDS = [("V2", *seed) for seed in V2_SEEDS] + [("V1", *seed) for seed in V1_SEEDS]


def damage_step(steps: JoinSteps, table: Table, damage: Damage) -> JoinSteps:
    """Return the steps, with one that leaves damaged rows."""
    step = find_step(steps, table)

    def run_and_damage(joining: JoinContext) -> Any:
        result = step.run(joining)
        damage(joining.lake, joining.generation_id)
        return result

    return tuple(replace(other, run=run_and_damage) if other is step else other for other in steps)


def refusal(result: ExecuteInProcessResult) -> tuple[str, str]:
    """Return the step at which a run stopped, and its message."""
    [failure] = [event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE]
    failure_data = failure.step_failure_data.user_failure_data
    assert failure_data is not None
    return str(failure.step_key), str(failure_data.description)


def test_every_audited_invariant_is_seeded() -> None:
    """The table has each invariant that judges a step of the second format."""
    audited = {(step.table, str(name)) for step in join_steps.V2_STEPS if step.audit for name in step.audit.invariants}
    assert {(table, name) for table, name, _ in V2_SEEDS} == audited


@pytest.mark.grid("violations that stop a join", 4)
@pytest.mark.parametrize(
    ("format_", "table", "invariant", "damage"), SEEDS, ids=[f"{seed[0]}-{seed[1].name}-{seed[2]}" for seed in SEEDS]
)
def test_a_violation_stops_both_entry_points_at_the_same_step(
    format_: str, table: Table, invariant: str, damage: Damage, rehearsal: Rehearsal, tmp_path: Path
) -> None:
    """The messages match, no later step writes, and a later run of the next step refuses by the stored verdict."""
    node = NODE | {"features": [] if format_ == "V1" else ["CDC_GENERATIONS_V2"]}
    steps: JoinSteps = getattr(join_steps, f"{format_}_STEPS")
    file, home = tmp_path / "node.json", open_home_location(tmp_path / "commands")
    file.write_text(json.dumps(node), encoding="utf-8")
    waiting = inbox.queue_join(rehearsal.lake, Clock(), parse_join_request(json.dumps(node))).generation_id
    rehearsal.instance.add_dynamic_partitions(GENERATIONS_NAME, [waiting])
    # With the same event in both homes, the streams of the generation are the same.
    Lake(home.lake).merge(BOOTSTRAP_EVENTS, rehearsal.lake.read(BOOTSTRAP_EVENTS), update=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLOCK_VARIABLE, NOON)
        patch.setattr(join_steps, f"{format_}_STEPS", damage_step(steps, table, damage))
        answer = run("--home", home.path, "--clock", NOON, "bootstrap", str(file), "--run")
        result = rehearsal.join(waiting)
    assert answer.exit_code == 1
    assert not result.success
    step_key, line = refusal(result)
    assert step_key == f"audit_{table.name}"
    assert line.startswith(f"{table.name} of generation {waiting}: {invariant} does not hold: ")
    # Only the command line knows which home it was given, and names it in the suggested command.
    before, advised, after = line.partition("look at: cdc-platform check")
    assert (advised, after) == ("look at: cdc-platform check", "")
    command = f"cdc-platform --home {shlex.quote(str(home.path))} check"
    assert answer.stderr.splitlines()[-1] == f"error: {before}look at: {command} [audit-failed]"
    assert row_counts(rehearsal.lake) == row_counts(Lake(home.lake))
    following = next((step for step in steps if table in step.relies_on), None)
    if following is not None:
        later = rehearsal.join(waiting, following.table.full_name)
        assert not later.success
        assert f"{table.name} failed its audit by" in refusal(later)[1]
        assert f"{invariant} does not hold" in refusal(later)[1]


def row_counts(lake: Lake) -> list[int]:
    """Return how many rows the tables of a join have."""
    return [lake.read(step.table, step.table.schema.names[:1]).num_rows for step in join_steps.V2_STEPS]
