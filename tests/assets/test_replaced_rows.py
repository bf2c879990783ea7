"""A partition that is materialized again names the rows it replaced; no step is blamed for rows it is compared with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetCheckSeverity, TableMetadataValue
from deltalake import DeltaTable, write_deltalake
from support.worlds.rehearsal import QUIET, Rehearsal, failures

from cdc_platform.definitions import defs
from cdc_platform.lifecycle import V2_STEPS, verdicts
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS
from cdc_platform_assets.run_requests import PARTITION_TAG
from cdc_platform_assets.specs import asset_key_from_table

pytestmark = pytest.mark.long("runs of Dagster, of all steps and checks")
GRAPH = defs.get_repository_def().asset_graph


def append_foreign_row(rehearsal: Rehearsal) -> dict[str, Any]:
    """Append a row of the described generation with another range end; return the row."""
    folder = rehearsal.lake.path(TOPOLOGY_DESCRIPTIONS)
    row = rehearsal.lake.read(TOPOLOGY_DESCRIPTIONS).to_pylist()[0]
    row["range_end"] += 1
    rows = pa.Table.from_pylist([row], schema=pa.schema(DeltaTable(folder).schema()))
    write_deltalake(folder, rows, mode="append")
    return row


def test_the_event_names_the_foreign_rows_that_it_replaced(rehearsal: Rehearsal) -> None:
    """The event has their number, their keys and the commit that wrote them; equal rows replace nothing."""
    generation = rehearsal.queue(1)
    assert rehearsal.join(generation).success
    second = rehearsal.join(generation, TOPOLOGY_DESCRIPTIONS.full_name)
    assert second.success, failures(second)
    assert "replaced_rows" not in second.asset_materializations_for_node("platform__topology_descriptions")[0].metadata
    row = append_foreign_row(rehearsal)
    repaired = rehearsal.join(generation, TOPOLOGY_DESCRIPTIONS.full_name)
    assert repaired.success, failures(repaired)
    metadata = repaired.asset_materializations_for_node("platform__topology_descriptions")[0].metadata
    assert metadata["replaced_rows"].value == 1
    keys = metadata["replaced_keys"]
    assert isinstance(keys, TableMetadataValue)
    assert [record.data["range_end"] for record in keys.records] == [str(row["range_end"])]
    assert "WRITE" in str(metadata["replaced_foreign_commits"].value)


def test_a_step_is_not_blamed_for_the_rows_before_it(rehearsal: Rehearsal) -> None:
    """Damage of the description fails no check of later steps: a comparison with it is not judged."""
    generation = rehearsal.queue(1)
    assert rehearsal.join(generation).success
    before = verdicts.read_last_verdict(rehearsal.lake, generation, GENERATION_DESCRIPTIONS_V2.name)
    append_foreign_row(rehearsal)
    asset, partition = asset_key_from_table(GENERATION_DESCRIPTIONS_V2), rehearsal.partition(generation)
    (step,) = (step for step in V2_STEPS if step.table is GENERATION_DESCRIPTIONS_V2)
    assert step.audit is not None
    names = set(map(str, step.audit.invariants))
    keys = {key for key in GRAPH.asset_check_keys if key.asset_key == asset and key.name in names}
    job = defs.get_repository_def().get_implicit_global_asset_job_def()
    checked = job.get_subset(asset_selection=set(), asset_check_selection=keys).execute_in_process(
        run_config=QUIET, instance=rehearsal.instance, tags={PARTITION_TAG: partition}, raise_on_error=False
    )
    assert checked.success, failures(checked)
    results = checked.get_asset_check_evaluations()
    unknown = [result for result in results if not result.passed]
    assert "published_equals_description" in {result.check_name for result in unknown}
    assert {result.severity for result in unknown} == {AssetCheckSeverity.WARN}
    assert all("depends on platform.topology_descriptions" in str(result.description) for result in unknown)
    assert verdicts.read_last_verdict(rehearsal.lake, generation, GENERATION_DESCRIPTIONS_V2.name) == before
