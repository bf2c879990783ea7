"""Joins through Dagster, on a real Spark: what is materialised, told, judged, and what stops."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dagster import (
    AssetSelection,
    DagsterEventType,
    Definitions,
    ExecuteInProcessResult,
    MarkdownMetadataValue,
    TableMetadataValue,
    define_asset_job,
    in_process_executor,
)
from support.worlds.rehearsal import Rehearsal, failures

from cdc_platform.definitions import defs
from cdc_platform.delta import IN_PROCESS_VARIABLE, Lake
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.metastore import inbox
from cdc_platform.plots.ui_files import file_from_address
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform_assets.join.plots import count_streams_by_shard
from cdc_platform_assets.specs import asset_key_from_table

OF_A_GENERATION = (
    TOPOLOGY_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    CDC_LOCAL,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
)


def materialised(result: ExecuteInProcessResult) -> set[str]:
    """The tables that a run materialised."""
    return {
        ".".join(event.asset_key.path)
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }


def failed_checks(result: ExecuteInProcessResult) -> set[str]:
    """The checks that a run found violated."""
    return {check.check_name for check in result.get_asset_check_evaluations() if not check.passed}


def told(result: ExecuteInProcessResult, table: Table) -> dict[str, Any]:
    """What a run's materialisation of a table tells."""
    node = f"{table.keyspace}__{table.name}"
    return dict(result.asset_materializations_for_node(node)[0].metadata)


def content(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, in the order of the keys."""
    return {
        table.full_name: lake.read(table).sort_by([(name, "ascending") for name in table.keys]).to_pylist()
        for table in (*OF_A_GENERATION, BOOTSTRAP_EVENTS, GENERATIONS)
    }


@pytest.mark.parametrize("tasks", ["1", pytest.param("0", marks=pytest.mark.spark)])
@pytest.mark.long("runs of Dagster, of all steps and checks")
def test_a_join_and_its_repetition(rehearsal: Rehearsal, tasks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join materialises every table, in its process or on Spark; materialised again, every row is the same."""
    monkeypatch.setenv(IN_PROCESS_VARIABLE, tasks)
    first, second = rehearsal.queue(1), rehearsal.queue(2, tokens=3, shard_count=3)
    results = [rehearsal.join(first), rehearsal.join(second)]
    for result in results:
        assert result.success, failures(result)
        assert materialised(result) == {table.full_name for table in OF_A_GENERATION}
        assert failed_checks(result) == set()
        assert len(result.get_asset_check_evaluations()) == 19
        # No timestamp waits for what is asked of the whole home.
        started = [event.step_key for event in result.all_events if event.event_type_value == "STEP_START"]
        assert set(started[-2:]) == {"audit_named_generations", "platform__nodes_streams_fit_the_ring"}
    before = content(rehearsal.lake)
    assert len(before[GENERATION_TIMESTAMPS.full_name]) == 2
    assert len(before[STREAMS_DESCRIPTIONS_V2.full_name]) == 4 + 7
    assert rehearsal.join(first).success
    assert rehearsal.join(second).success
    assert content(rehearsal.lake) == before
    _tells_what_it_did(results[1], rehearsal.lake)


def _tells_what_it_did(result: ExecuteInProcessResult, lake: Lake) -> None:
    assert told(result, TOPOLOGY_DESCRIPTIONS)["streams"].value == 4 * 2 + 3 * 3
    rows = {table.full_name: told(result, table)["dagster/row_count"].value for table in OF_A_GENERATION}
    assert rows == {
        TOPOLOGY_DESCRIPTIONS.full_name: 7,
        GENERATION_DESCRIPTIONS_V2.full_name: 7,
        STREAMS_DESCRIPTIONS_V2.full_name: 7,
        CDC_LOCAL.full_name: 2,
        NODES.full_name: 2,
        GENERATION_TIMESTAMPS.full_name: 1,
    }
    versions = {commit.version for commit in lake.commits(TOPOLOGY_DESCRIPTIONS)}
    assert told(result, TOPOLOGY_DESCRIPTIONS)["delta_version"].value in versions
    pictures = 0
    for table in OF_A_GENERATION:
        for value in told(result, table).values():
            if isinstance(value, MarkdownMetadataValue):
                pictures += 1
                assert len(value.value) < 1_000
                address = value.value.partition("](")[2].partition(")")[0]
                kept = file_from_address(lake.root.parent, address)
                assert kept is not None
                assert kept.read_bytes().startswith(b"\x89PNG")
            if isinstance(value, TableMetadataValue):
                assert len(value.records) <= 50
    assert pictures == 3
    report = told(result, GENERATION_TIMESTAMPS)["report"].value
    page = file_from_address(lake.root.parent, str(report))
    assert page is not None
    assert '"published":true' in page.read_text(encoding="utf-8")


def test_a_violated_description_is_not_inserted(rehearsal: Rehearsal) -> None:
    """Where another generation has the streams already, the audit fails and nothing after it is written."""
    generation_id = rehearsal.queue(1)
    ring = bootstrap.read_rings(rehearsal.lake, generation_id)[1]
    rehearsal.lake.merge(GENERATION_DESCRIPTIONS_V2, _rows_of(generation_id, RingLayout.of(ring)), update=False)
    before = content(rehearsal.lake)
    result = rehearsal.join(generation_id)
    assert not result.success
    assert failed_checks(result) == {"streams_unique_across_generations"}
    assert materialised(result) == {TOPOLOGY_DESCRIPTIONS.full_name}
    after = content(rehearsal.lake)
    assert len(after.pop(TOPOLOGY_DESCRIPTIONS.full_name)) == 4
    before.pop(TOPOLOGY_DESCRIPTIONS.full_name)
    assert after == before
    failures = [event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE]
    assert [event.step_key for event in failures] == ["audit_topology_descriptions"]


def _rows_of(generation_id: str, layout: RingLayout) -> pa.Table:
    """V2 descriptions under another UUID, with the very streams that the generation is going to have."""
    description = generate_description(layout, uuid.UUID(generation_id))
    ids = [stream.tobytes() for stream in description.streams]
    rows = [
        {
            "id": str(uuid.UUID(int=99)),
            "range_end": int(end),
            "ignore_msb": int(description.ignore_msbs[row]),
            "num_ranges": len(description.range_ends),
            "streams": ids[description.offsets[row] : description.offsets[row + 1]],
        }
        for row, end in enumerate(description.range_ends)
    ]
    return pa.Table.from_pylist(rows, schema=GENERATION_DESCRIPTIONS_V2.schema)


def test_damaged_streams_are_not_announced(rehearsal: Rehearsal) -> None:
    """Rows that are not the description's stop the timestamp, and a repetition of the publishing mends them."""
    generation_id = rehearsal.queue(1)
    tables = [table.full_name for table in OF_A_GENERATION if table is not GENERATION_TIMESTAMPS]
    assert rehearsal.join(generation_id, *tables).success
    rows = rehearsal.lake.read(STREAMS_DESCRIPTIONS_V2).to_pylist()
    rows[0]["streams"] = rows[0]["streams"][::-1]
    rehearsal.lake.merge(
        STREAMS_DESCRIPTIONS_V2, pa.Table.from_pylist(rows, schema=STREAMS_DESCRIPTIONS_V2.schema), update=True
    )
    audits = AssetSelection.checks_for_assets(asset_key_from_table(STREAMS_DESCRIPTIONS_V2))
    timestamps = AssetSelection.assets(asset_key_from_table(GENERATION_TIMESTAMPS))
    job = define_asset_job("announce", selection=audits | timestamps, executor_def=in_process_executor)
    resolved = Definitions.merge(defs, Definitions(jobs=[job])).resolve_job_def("announce")
    result = resolved.execute_in_process(
        instance=rehearsal.instance, partition_key=rehearsal.partition(generation_id), raise_on_error=False
    )
    assert not result.success
    assert failed_checks(result) == {"published_equals_description"}
    assert content(rehearsal.lake)[GENERATION_TIMESTAMPS.full_name] == []
    assert [join.generation_id for join in inbox.read_pending_events(rehearsal.lake)] == [generation_id]
    assert rehearsal.join(generation_id).success
    assert inbox.read_pending_events(rehearsal.lake) == []


def test_a_join_out_of_turn_is_refused_in_one_line(rehearsal: Rehearsal) -> None:
    """Bad input ends a run with the platform's own line, at once and without retries."""
    rehearsal.queue(1)
    second = rehearsal.queue(2)
    result = rehearsal.join(second)
    assert not result.success
    assert materialised(result) == set()
    failures = [event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE]
    assert [event.step_key for event in failures] == ["platform__topology_descriptions"]
    assert not any(event.event_type is DagsterEventType.STEP_UP_FOR_RETRY for event in result.all_events)
    said = failures[0].step_failure_data.user_failure_data
    assert said is not None
    assert said.description is not None
    assert said.description.startswith(f"generation {second} must wait: host {uuid.UUID(int=1)}")
    assert "\n" not in said.description


def test_streams_that_lie_on_shards_are_counted() -> None:
    """A shard that owns nothing of a range has no stream there that a write could get."""
    # With no ignored bits four shards are quarters of the ring: (0, 100] is shard 2's alone.
    wide = Node(uuid.UUID(int=1), (100,), 4, 0)
    narrow = Node(uuid.UUID(int=2), (0,), 2, 0)
    counted = count_streams_by_shard(Ring.of([wide, narrow]))
    assert np.array_equal(counted, [[0, 0, 1, 0], [1, 1, -1, -1]])
