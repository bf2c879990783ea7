"""Check results of join steps that other entry points recorded and Dagster lacks.

A verdict is skipped if the content that it judged has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    DagsterInstance,
)

# Private API. A result without a target would appear as one on an older materialization, and the constructor takes no
# other type. A verdict concerns one partition; without the filter the storage returns the newest result of any
# partition.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.event_api import PartitionKeyFilter

from cdc_platform.checks import invariants, judge_findings
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.lifecycle import JoinContext, JoinStep, StepVerdict, select_steps, verdicts
from cdc_platform.settings import Settings
from cdc_platform.timeline import GenerationNames
from cdc_platform_assets.checks import build_check_metadata, link_to_invariant
from cdc_platform_assets.specs import asset_key_from_table

CheckTarget = AssetCheckEvaluationTargetMaterializationData | None
"""The materialization that a check result judges, or None if there is none."""
JUDGED_CONTENT_METADATA_KEY = "judged_content"
"""The metadata key of a result that names the judged content, so that no result is reported twice."""


class RecordedResult(NamedTuple):
    """A recorded result of a check, with the entry point that judged and the judged content."""

    evaluation: AssetCheckEvaluation
    entry_point: str
    content: str


class SettledVerdicts:
    """The verdicts that need no look at Dagster's storage any more: reported, or on content that has changed since.

    A home of years has thousands of verdicts, and Dagster is asked about each of them once in the life of a process.
    """

    def __init__(self) -> None:
        self._settled: set[tuple[str, StepVerdict]] = set()

    def includes(self, partition: str, verdict: StepVerdict) -> bool:
        """Return True if the verdict is settled for a partition of Dagster."""
        return (partition, verdict) in self._settled

    def add(self, partition: str, verdict: StepVerdict) -> None:
        """Settle a verdict."""
        self._settled.add((partition, verdict))


def find_missing_results(
    lake: Lake,
    instance: DagsterInstance,
    names: GenerationNames,
    stored: Mapping[str, StepVerdict],
    settled: SettledVerdicts,
) -> Iterator[RecordedResult]:
    """Yield the recorded check results of a generation's join steps that Dagster does not have.

    `stored` are the generation's verdicts by step. A verdict is settled once the caller has taken its results.
    """
    if names.id is None or names.host_id is None:
        return
    if all(settled.includes(names.key, verdict) for verdict in stored.values()):
        return
    joining = JoinContext(lake, Clock(), Settings(), names.id, None, "the catalogue")
    try:
        steps = select_steps(lake, names.id)
    except PlatformError:
        return
    audited = {step.name: step for step in steps if step.audit is not None}
    for verdict in stored.values():
        if settled.includes(names.key, verdict):
            continue
        step = audited.get(verdict.step)
        if step is not None and step.audit is not None and not _is_reported(instance, step, names.key, verdict):
            content = verdicts.content_name(lake, step.audit.parts(joining))
            if content == verdict.content:
                for evaluation in _build_results(lake, instance, step, names.key, verdict):
                    yield RecordedResult(evaluation, verdict.entry_point, verdict.content)
        settled.add(names.key, verdict)


def _is_reported(instance: DagsterInstance, step: JoinStep, partition: str, verdict: StepVerdict) -> bool:
    """Return True if Dagster has a result of this verdict, reported here or by the run that made it."""
    checks = [AssetCheckKey(asset_key_from_table(step.table), str(name)) for name in verdict.invariants]
    for record in read_newest_results(instance, checks, partition).values():
        event = None if record.event is None else record.event.dagster_event
        evaluation = None if event is None else event.event_specific_data
        if record.run_id and record.run_id in verdict.entry_point:
            return True
        if isinstance(evaluation, AssetCheckEvaluation) and JUDGED_CONTENT_METADATA_KEY in evaluation.metadata:
            return evaluation.metadata[JUDGED_CONTENT_METADATA_KEY].value == verdict.content
    return False


def _build_results(
    lake: Lake, instance: DagsterInstance, step: JoinStep, partition: str, verdict: StepVerdict
) -> Iterator[AssetCheckEvaluation]:
    """Yield the result of each invariant of a verdict, as a run reports it."""
    asset = asset_key_from_table(step.table)
    for name, passed, description, metadata in _describe_results(lake, verdict):
        yield AssetCheckEvaluation(
            asset_key=asset,
            check_name=name,
            passed=passed,
            description=description,
            metadata={**metadata, JUDGED_CONTENT_METADATA_KEY: verdict.content, "judged_by": verdict.entry_point},
            blocking=True,
            partition=partition,
            target_materialization_data=find_target_materialization(instance, asset, partition),
        )


def _describe_results(lake: Lake, verdict: StepVerdict) -> Iterator[tuple[str, bool, str, dict[str, Any]]]:
    """Yield each invariant of a verdict, whether it holds, the result as text, and metadata.

    A verdict of an earlier version has no counts. It says that all invariants hold, or names the first that does not.
    """
    findings = verdicts.read_findings(lake, verdict)
    for line in judge_findings(findings, verdict.invariants) if findings else ():
        yield str(line.invariant), line.passed, line.message, build_check_metadata(line)
    for name in () if findings else verdict.invariants:
        if verdict.passed or verdict.message.startswith(f"{name} "):
            description = verdict.message or f"Passed, judged by {verdict.entry_point}."
            invariant = invariants.INVARIANTS_BY_NAME.get(name)
            metadata = {} if invariant is None else {"explained_in": link_to_invariant(invariant)}
            yield name, verdict.passed, description, metadata


def read_newest_results(
    instance: DagsterInstance, checks: Sequence[AssetCheckKey], partition: str | None
) -> Mapping[AssetCheckKey, Any]:
    """Return the record of the newest result of each check on a partition; without one, of any partition."""
    only = None if partition is None else PartitionKeyFilter(key=partition)
    return instance.event_log_storage.get_latest_asset_check_execution_by_key(checks, partition_filter=only)


def find_target_materialization(instance: DagsterInstance, asset: AssetKey, partition: str | None) -> CheckTarget:
    """Return the newest materialization of a partition as the target of a check result; None if there is none."""
    record = instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
    if record is None:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.event_log_entry.run_id, timestamp=record.timestamp
    )
