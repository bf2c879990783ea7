"""The verdicts that other doors have kept on steps of joins, as check results that Dagster lacks.

A verdict counts for what it was made on: of one on other content than is there now nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    DagsterInstance,
)

# Private API: a result without its target shows as one on an older materialization, and the constructor takes no other
# type; a verdict is of one partition, and without the filter the storage gives the newest result of any.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.event_api import PartitionKeyFilter

from assets.declared import key
from cdc_platform.clock import Clock
from cdc_platform.errors import PlatformError
from cdc_platform.lake.lake import Lake
from cdc_platform.lifecycle.join import verdicts
from cdc_platform.lifecycle.join.formats import steps_of
from cdc_platform.lifecycle.join.step import Joining, Step
from cdc_platform.lifecycle.join.verdicts import Verdict
from cdc_platform.settings import Settings
from cdc_platform.timeline.parts import Names

CONTENT = "judged_content"
"""Under this name a result says which content it is on, so that none is told twice."""


def missing_results(lake: Lake, instance: DagsterInstance, names: Names) -> Iterator[AssetCheckEvaluation]:
    """What is known of a generation's steps and Dagster has no result of."""
    if names.id is None or names.host_id is None:
        return
    joining = Joining(lake, Clock(), Settings(), names.id, None, "the catalogue")
    try:
        steps = steps_of(lake, names.id)
    except PlatformError:
        return
    for step in steps:
        found = None if step.audit is None else verdicts.last(lake, names.id, step.name)
        if found is not None and step.audit is not None and not _is_known(instance, step, names.key, found):
            content = verdicts.content_of(lake, step.audit.slices(joining))
            if content == found.content:
                yield from _results(instance, step, names.key, found)


def _is_known(instance: DagsterInstance, step: Step, partition: str, verdict: Verdict) -> bool:
    """Whether Dagster has a result of this verdict: told of it, or of the run that made it."""
    checks = [AssetCheckKey(key(step.table), str(name)) for name in verdict.invariants]
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        checks, partition_filter=PartitionKeyFilter(key=partition)
    )
    for record in found.values():
        made = None if record.event is None else record.event.dagster_event
        told = None if made is None else made.event_specific_data
        if record.run_id and record.run_id in verdict.door:
            return True
        if isinstance(told, AssetCheckEvaluation) and CONTENT in told.metadata:
            return told.metadata[CONTENT].value == verdict.content
    return False


def _results(instance: DagsterInstance, step: Step, partition: str, verdict: Verdict) -> Iterator[AssetCheckEvaluation]:
    """A result for each invariant of which the verdict tells: all that hold, or the first that does not."""
    for name in verdict.invariants:
        broken = not verdict.passed and verdict.said.startswith(f"{name} ")
        if verdict.passed or broken:
            yield AssetCheckEvaluation(
                asset_key=key(step.table),
                check_name=str(name),
                passed=verdict.passed,
                description=verdict.said or f"It held when {verdict.door} asked.",
                metadata={CONTENT: verdict.content, "judged_by": verdict.door},
                blocking=True,
                partition=partition,
                target_materialization_data=_target(instance, key(step.table), partition),
            )


def _target(
    instance: DagsterInstance, asset: AssetKey, partition: str
) -> AssetCheckEvaluationTargetMaterializationData | None:
    record = instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
    if record is None:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.event_log_entry.run_id, timestamp=record.timestamp
    )
