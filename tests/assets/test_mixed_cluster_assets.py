"""A join of a mixed cluster through Dagster: the assets choose the first format by themselves. On Spark."""

from __future__ import annotations

import pytest
from dagster import ExecuteInProcessResult
from support.worlds.rehearsal import Rehearsal, node_config

from cdc_platform.generations import GenerationId
from cdc_platform.metastore import generations as metastore_generations
from cdc_platform.metastore import read_current_ring
from cdc_platform.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS
from cdc_platform.timeline import Timeline


def metadata_value(result: ExecuteInProcessResult, asset: str, name: str) -> object:
    """Return a value of the metadata of an asset's materialization."""
    return result.asset_materializations_for_node(asset)[0].metadata[name].value


@pytest.mark.long("runs of Dagster, of all steps and checks")
def test_a_mixed_cluster_joins_in_the_first_format(rehearsal: Rehearsal) -> None:
    """With one node without the feature, V1 cells are written, every check passes and readers get both tables."""
    generations = []
    for number, features in ((1, ["SOMETHING_ELSE"]), (2, ["CDC_GENERATIONS_V2"])):
        queued = rehearsal.bootstrap(node_config(number) | {"features": features})
        metadata = queued.asset_materializations_for_node("queue_node")[0].metadata
        generations.append(str(metadata["generation_id"].value))
        joined = rehearsal.join(generations[-1])
        assert joined.success
        assert all(check.passed for check in joined.get_asset_check_evaluations())
        inserted = "system_distributed_everywhere__cdc_generation_descriptions_v2"
        assert metadata_value(joined, inserted, "format") == "v1"
        assert "lack the feature CDC_GENERATIONS_V2" in str(
            metadata_value(joined, "platform__topology_descriptions", "mixed_cluster")
        )
    lake = rehearsal.lake
    assert lake.read(GENERATION_DESCRIPTIONS).num_rows == 2
    assert lake.read(GENERATION_DESCRIPTIONS_V2).num_rows == 0
    assert set(lake.read(CDC_LOCAL)["uuid"].to_pylist()) == {None}
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 2
    assert [known.format for known in Timeline.read(lake).known] == ["v1", "v1"]
    for generation in generations:
        id_ = metastore_generations.read_generation_id(lake, generation)
        assert id_ is not None
        description = metastore_generations.read_generation_description(lake, GenerationId(id_.time_ms))
        rows = metastore_generations.read_published_rows(lake, id_.time_ms)
        flat = b"".join(stream for row in rows["streams"].to_pylist() for stream in row)
        assert flat == description.streams.tobytes()
    assert len(read_current_ring(lake).nodes) == 2
