"""Joins through Dagster, on a real Spark: materializations, metadata, checks, and what stops a join."""

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


def materialized_tables(result: ExecuteInProcessResult) -> set[str]:
    """Return the tables that a run materialized."""
    return {
        ".".join(event.asset_key.path)
        for event in result.get_asset_materialization_events()
        if event.asset_key is not None
    }


def failed_checks(result: ExecuteInProcessResult) -> set[str]:
    """Return the checks that a run found violated."""
    return {check.check_name for check in result.get_asset_check_evaluations() if not check.passed}


def metadata(result: ExecuteInProcessResult, table: Table) -> dict[str, Any]:
    """Return the metadata of a run's materialization of a table."""
    node = f"{table.keyspace}__{table.name}"
    return dict(result.asset_materializations_for_node(node)[0].metadata)


def content(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """Return every row of every table, in the order of the keys."""
    return {
        table.full_name: lake.read(table).sort_by([(name, "ascending") for name in table.keys]).to_pylist()
        for table in (*OF_A_GENERATION, BOOTSTRAP_EVENTS, GENERATIONS)
    }


@pytest.mark.parametrize("tasks", ["1", pytest.param("0", marks=pytest.mark.spark)])
@pytest.mark.long("runs of Dagster, of all steps and checks")
def test_a_join_and_its_repetition(rehearsal: Rehearsal, tasks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join materializes every table, in its process or on Spark; a second materialization gives the same rows."""
    monkeypatch.setenv(IN_PROCESS_VARIABLE, tasks)
    first, second = rehearsal.queue(1), rehearsal.queue(2, tokens=3, shard_count=3)
    results = [rehearsal.join(first), rehearsal.join(second)]
    for result in results:
        assert result.success, failures(result)
        assert materialized_tables(result) == {table.full_name for table in OF_A_GENERATION}
        assert failed_checks(result) == set()
        assert len(result.get_asset_check_evaluations()) == 19
        # No timestamp waits for the checks of the whole home.
        started = [event.step_key for event in result.all_events if event.event_type_value == "STEP_START"]
        assert set(started[-2:]) == {"audit_named_generations", "platform__nodes_streams_fit_the_ring"}
    before = content(rehearsal.lake)
    assert len(before[GENERATION_TIMESTAMPS.full_name]) == 2
    assert len(before[STREAMS_DESCRIPTIONS_V2.full_name]) == 4 + 7
    assert rehearsal.join(first).success
    assert rehearsal.join(second).success
    assert content(rehearsal.lake) == before
    _assert_metadata(results[1], rehearsal.lake)


def _assert_metadata(result: ExecuteInProcessResult, lake: Lake) -> None:
    assert metadata(result, TOPOLOGY_DESCRIPTIONS)["streams"].value == 4 * 2 + 3 * 3
    rows = {table.full_name: metadata(result, table)["dagster/row_count"].value for table in OF_A_GENERATION}
    assert rows == {
        TOPOLOGY_DESCRIPTIONS.full_name: 7,
        GENERATION_DESCRIPTIONS_V2.full_name: 7,
        STREAMS_DESCRIPTIONS_V2.full_name: 7,
        CDC_LOCAL.full_name: 2,
        NODES.full_name: 2,
        GENERATION_TIMESTAMPS.full_name: 1,
    }
    versions = {commit.version for commit in lake.commits(TOPOLOGY_DESCRIPTIONS)}
    assert metadata(result, TOPOLOGY_DESCRIPTIONS)["delta_version"].value in versions
    pictures = 0
    for table in OF_A_GENERATION:
        for value in metadata(result, table).values():
            if isinstance(value, MarkdownMetadataValue):
                pictures += 1
                assert len(value.value) < 1_000
                address = value.value.partition("](")[2].partition(")")[0]
                file = file_from_address(lake.root.parent, address)
                assert file is not None
                assert file.read_bytes().startswith(b"\x89PNG")
            if isinstance(value, TableMetadataValue):
                assert len(value.records) <= 50
    assert pictures == 3
    report = metadata(result, GENERATION_TIMESTAMPS)["report"].value
    page = file_from_address(lake.root.parent, str(report))
    assert page is not None
    assert '"published":true' in page.read_text(encoding="utf-8")


def test_a_violated_description_is_not_inserted(rehearsal: Rehearsal) -> None:
    """If another generation already has the streams, the audit fails and no later step writes."""
    generation_id = rehearsal.queue(1)
    ring = bootstrap.read_rings(rehearsal.lake, generation_id)[1]
    rehearsal.lake.merge(
        GENERATION_DESCRIPTIONS_V2, _rows_under_other_id(generation_id, RingLayout.of(ring)), update=False
    )
    before = content(rehearsal.lake)
    result = rehearsal.join(generation_id)
    assert not result.success
    assert failed_checks(result) == {"streams_unique_across_generations"}
    assert materialized_tables(result) == {TOPOLOGY_DESCRIPTIONS.full_name}
    after = content(rehearsal.lake)
    assert len(after.pop(TOPOLOGY_DESCRIPTIONS.full_name)) == 4
    before.pop(TOPOLOGY_DESCRIPTIONS.full_name)
    assert after == before
    failures = [event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE]
    assert [event.step_key for event in failures] == ["audit_topology_descriptions"]


def _rows_under_other_id(generation_id: str, layout: RingLayout) -> pa.Table:
    """Return V2 descriptions under another UUID, with the streams that the generation will have."""
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
    """Rows that differ from the description block the timestamp, and another run of publishing repairs them."""
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


def test_a_join_before_its_turn_is_refused_in_one_line(rehearsal: Rehearsal) -> None:
    """A join out of order ends its run with the platform's message, at once and without retries."""
    rehearsal.queue(1)
    second = rehearsal.queue(2)
    result = rehearsal.join(second)
    assert not result.success
    assert materialized_tables(result) == set()
    failures = [event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE]
    assert [event.step_key for event in failures] == ["platform__topology_descriptions"]
    assert not any(event.event_type is DagsterEventType.STEP_UP_FOR_RETRY for event in result.all_events)
    failure_data = failures[0].step_failure_data.user_failure_data
    assert failure_data is not None
    assert failure_data.description is not None
    assert failure_data.description.startswith(f"generation {second} must wait: host {uuid.UUID(int=1)}")
    assert "\n" not in failure_data.description


def test_streams_owned_by_shards_are_counted() -> None:
    """A shard that owns nothing of a range has no stream there that a write could get."""
    # Without ignored bits, four shards are quarters of the ring, and (0, 100] is shard 2's alone.
    wide = Node(uuid.UUID(int=1), (100,), 4, 0)
    narrow = Node(uuid.UUID(int=2), (0,), 2, 0)
    counts = count_streams_by_shard(Ring.of([wide, narrow]))
    assert np.array_equal(counts, [[0, 0, 1, 0], [1, 1, -1, -1]])
