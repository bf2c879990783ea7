"""The jobs: one join from its description to its published timestamp, and the queueing of a node."""

from __future__ import annotations

from dagster import AssetSelection, define_asset_job, in_process_executor

from assets.bootstrap_events import JOIN_JOB, bootstrap_events
from assets.cdc_local import cdc_local
from assets.generation_descriptions import cdc_generation_descriptions_v2
from assets.generation_timestamps import cdc_generation_timestamps
from assets.nodes import nodes
from assets.streams_descriptions import cdc_streams_descriptions_v2
from assets.topology_descriptions import topology_descriptions

GENERATION_ASSETS = [
    topology_descriptions,
    cdc_generation_descriptions_v2,
    cdc_local,
    nodes,
    cdc_streams_descriptions_v2,
    cdc_generation_timestamps,
]

# One process for all steps of a run: by default each step would start a JVM, or a Connect session, of its own.
join = define_asset_job(
    JOIN_JOB,
    selection=AssetSelection.assets(*GENERATION_ASSETS),
    description="A node joins: its generation is described, audited, inserted, given its timestamp, published. "
    "Each step is idempotent; a run that died is simply run again.",
    executor_def=in_process_executor,
)
bootstrap = define_asset_job(
    "bootstrap",
    selection=AssetSelection.assets(bootstrap_events),
    description="Queue a joining node: give it in the launchpad, as the description of its asset shows.",
    executor_def=in_process_executor,
)
