"""The asset of Dagster that shows the results of a check."""

from __future__ import annotations

from cdc_platform.checks import (
    DERIVED_TABLE_FAMILY,
    EXPIRY_FAMILY,
    GENERATION_FAMILY,
    HOUR_FAMILY,
    INGEST_FAMILY,
    LOG_FAMILY,
    OBSERVATION_FAMILY,
    REPAIR_FAMILY,
    SKIPPED_SET_FAMILY,
    STATE_FAMILY,
    STORAGE_FAMILY,
    SWITCH_FAMILY,
    TABLET_FAMILY,
    V1_FAMILY,
)

_BY_FAMILY = {
    GENERATION_FAMILY: "platform/topology_descriptions",
    V1_FAMILY: "system_distributed/cdc_streams_descriptions",
    TABLET_FAMILY: "system/cdc_streams",
    SWITCH_FAMILY: "platform/generation_switches",
    EXPIRY_FAMILY: "platform/removed_generations",
    REPAIR_FAMILY: "platform/nodes",
    OBSERVATION_FAMILY: "platform/observed_cluster",
    LOG_FAMILY: "platform/cdc_log",
    STATE_FAMILY: "platform/cdc_log",
    SKIPPED_SET_FAMILY: "platform/cdc_log",
    HOUR_FAMILY: "platform/consumed_hours",
    INGEST_FAMILY: "platform/ingested_log",
    DERIVED_TABLE_FAMILY: "platform/tables",
    STORAGE_FAMILY: "platform/tables",
}
_BY_INVARIANT = {str(name): asset for family, asset in _BY_FAMILY.items() for name in family.invariants} | {
    "published_equals_description": "system_distributed/cdc_streams_descriptions_v2",
    "timestamp_complete": "system_distributed/cdc_generation_timestamps",
    "tablet_timestamp_complete": "system/cdc_timestamps",
    "rebuilt_equals_given": "platform/rebuilt_tables",
}


def find_check_asset(invariant: str) -> str:
    """Return the key of the asset that a check belongs to, empty if this version has no such check.

    Invariants of a generation are checked on the table of each step of its join; this is the table that they describe.
    """
    return _BY_INVARIANT.get(invariant, "")
