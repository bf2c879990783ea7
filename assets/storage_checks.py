"""Checks of the stored tables on each asset: files, rows and commits, by partition. No Spark.

Every entry point that verifies tables stores what it found by part of each table (`platform.table_checks`): the
command line, the job `audit_tables` and these checks. The results of an asset's partition derive from that, whichever
entry point it was. A partition that nobody looked at gets no result that passed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    Definitions,
    PartitionsDefinition,
    multi_asset_check,
)

from cdc_platform.checks import STORAGE_FAMILY, CheckResult, judge_part, name_part, verify_part
from cdc_platform.clock import format_us
from cdc_platform.delta import ALL_PARTS, Lake
from cdc_platform.errors import PlatformError
from cdc_platform.metastore import WHOLE_HOME, TableCheck, read_table_checks
from cdc_platform.tables import CONSUMED_HOURS, Table
from cdc_platform.timeline import GenerationDigests, list_generation_names
from cdc_platform_assets.catalog_sync import table_contents
from cdc_platform_assets.catalog_sync.check_results import find_target_materialization, read_newest_results
from cdc_platform_assets.catalog_sync.table_contents import StoredPartition
from cdc_platform_assets.check_runs import report_result
from cdc_platform_assets.checks import (
    LOW_PRIORITY_TAGS,
    build_check_metadata,
    build_judgement_results,
    build_result_without_subject,
    check_specs,
    list_requested_partitions,
    report_results,
    start_judging,
)
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.partitions import (
    CDC_LOG_PARTITIONS,
    GENERATION_PARTITIONS,
    HOUR_PARTITIONS,
    TABLET_TABLE_PARTITIONS,
    read_generation_keys,
)
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

_CDC_LOGS = Table("platform", "cdc_log", pa.schema([]), keys=(), comment="Stands for all logs")
UNREADABLE = (PlatformError, pa.ArrowException, OSError, ValueError)
"""The errors of reading a damaged table."""
STORAGE_CHECKED_ASSETS: Mapping[AssetKey, tuple[Table, PartitionsDefinition | None]] = {
    asset_key_from_table(table): (table, partitions)
    for tables, partitions in (
        (table_contents.GENERATION_TABLES, GENERATION_PARTITIONS),
        (table_contents.TABLET_STATE_TABLES, TABLET_TABLE_PARTITIONS),
        ((CONSUMED_HOURS,), HOUR_PARTITIONS),
        ((_CDC_LOGS,), CDC_LOG_PARTITIONS),
        (table_contents.UNPARTITIONED_TABLES, None),
    )
    for table in tables
}
"""The assets whose partitions are parts of stored tables, each with its table and partitions."""


@dataclass(frozen=True)
class AssetPart:
    """A partition of an asset and the part of a table that it stands for.

    `part` is the part's name (see `checks.name_part`), or None if the tables that tell it cannot be read.
    """

    asset: AssetKey
    partition: str | None
    table: Table
    part: str | None


def list_asset_parts(lake: Lake, instance: DagsterInstance) -> Iterator[AssetPart]:
    """Yield the parts of all assets: first those that belong to no generation, then the newest generations.

    If damage prevents reading which partitions there are, those that Dagster knows are yielded.
    """
    yield from _list_other_parts(lake, instance)
    yield from _list_generation_parts(lake, instance)


def _list_other_parts(lake: Lake, instance: DagsterInstance) -> Iterator[AssetPart]:
    try:
        others = [*table_contents.iterate_other_partitions(lake)]
    except UNREADABLE:
        for key, (table, partitions) in STORAGE_CHECKED_ASSETS.items():
            if partitions is not GENERATION_PARTITIONS:
                for partition in _list_known_partitions(instance, partitions):
                    yield AssetPart(key, partition, table, ALL_PARTS if partition is None else None)
        return
    yield from map(_from_stored, others)


def _list_generation_parts(lake: Lake, instance: DagsterInstance) -> Iterator[AssetPart]:
    try:
        names = list_generation_names(lake, read_generation_keys(lake, instance))
        contents = GenerationDigests(lake)
    except UNREADABLE:
        for table in table_contents.GENERATION_TABLES:
            for partition in _list_known_partitions(instance, GENERATION_PARTITIONS):
                yield AssetPart(asset_key_from_table(table), partition, table, None)
        return
    for generation in reversed(names):
        if not generation.is_removed:
            yield from map(_from_stored, table_contents.iterate_generation_partitions(generation, contents))


def _list_known_partitions(instance: DagsterInstance, partitions: PartitionsDefinition | None) -> list[str | None]:
    return [None] if partitions is None else [*partitions.get_partition_keys(dynamic_partitions_store=instance)]


def _from_stored(stored: StoredPartition) -> AssetPart:
    table, where = stored.part.table, stored.part.where
    return AssetPart(stored.asset, stored.partition, table, name_part(table, where))


def report_storage_results(lake: Lake, instance: DagsterInstance) -> Iterator[AssetCheckEvaluation]:
    """Report the results by partition that verifications of tables have stored and Dagster lacks, violations first.

    Each is yielded when it is reported; a caller that stops early leaves the others to the next call.

    Dagster lacks a result if its newest one on the partition differs, or is from another version of the table.
    """
    checks = read_table_checks(lake)
    if not checks:
        return
    reported = _ReportedResults(instance)
    waiting = []
    for stored in list_asset_parts(lake, instance):
        check = checks.get(stored.table.full_name)
        if check is None:
            continue
        for result in judge_part(check, stored.part):
            if reported.lacks(stored, result):
                waiting.append((result.passed, not result.failed, len(waiting), stored, result, check))
    for _, _, _, stored, result, check in sorted(waiting, key=lambda entry: entry[:3]):
        evaluation = _build_evaluation(instance, stored, result, check)
        report_result(instance, evaluation, check.entry_point, format_us(check.judged_at_us))
        yield evaluation


_SUCCEEDED = "SUCCEEDED"


class _ReportedResults:
    """The statuses of the newest check results in Dagster, loaded asset by asset on first use."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._statuses: dict[AssetKey, dict[tuple[str, str | None], str]] = {}

    def lacks(self, stored: AssetPart, result: CheckResult) -> bool:
        """Return True if Dagster has no result on the partition, or another one."""
        if stored.asset not in self._statuses:
            keys = [AssetCheckKey(stored.asset, str(name)) for name in STORAGE_FAMILY.invariants]
            self._statuses[stored.asset] = {
                (info.check_key.name, info.partition_key): info.latest_execution_status.value
                for info in self._instance.event_log_storage.get_asset_check_partition_info(keys)
            }
        status = self._statuses[stored.asset].get((str(result.invariant), stored.partition))
        if status is None:
            return True
        if result.passed:
            return status != _SUCCEEDED
        return status == _SUCCEEDED or self._differs(stored, result)

    def _differs(self, stored: AssetPart, result: CheckResult) -> bool:
        """Return True if the newest result, which did not pass, has another message."""
        key = AssetCheckKey(stored.asset, str(result.invariant))
        record = read_newest_results(self._instance, [key], stored.partition).get(key)
        event = None if record is None or record.event is None else record.event.dagster_event
        evaluation = None if event is None else event.event_specific_data
        return not isinstance(evaluation, AssetCheckEvaluation) or evaluation.description != result.message


def _build_evaluation(
    instance: DagsterInstance, stored: AssetPart, result: CheckResult, check: TableCheck
) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        asset_key=stored.asset,
        check_name=str(result.invariant),
        passed=result.passed,
        description=result.message,
        severity=AssetCheckSeverity.WARN if result.unknown else AssetCheckSeverity.ERROR,
        metadata=build_check_metadata(result) | _describe_check(check),
        blocking=STORAGE_FAMILY.blocking,
        partition=stored.partition,
        target_materialization_data=find_target_materialization(instance, stored.asset, stored.partition),
    )


def _describe_check(check: TableCheck) -> dict[str, str | int]:
    """Return metadata that names the entry point, the time and the version of a verification."""
    version = {} if check.version is None else {"delta_version": check.version}
    return {"judged_by": check.entry_point, "judged_at": format_us(check.judged_at_us), "table": check.table} | version


def _build_checks(table: Table, partitions: PartitionsDefinition | None) -> AssetChecksDefinition:
    @multi_asset_check(
        can_subset=True,
        name=f"verify_{table.name}",
        specs=check_specs(table, STORAGE_FAMILY.invariants, partitions),
        description="Verifies files, rows and commits of the table, reading the rows of the requested partitions.",
        op_tags=LOW_PRIORITY_TAGS,
    )
    def verify(
        context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
    ) -> Iterator[AssetCheckResult]:
        lake = home.lake()
        run = start_judging(context, lake, clock.clock(), None)
        with platform_errors_as_failures():
            by_partition = {
                stored.partition: stored
                for stored in list_asset_parts(lake, context.instance)
                if stored.asset == asset_key_from_table(table)
            }
            requested = list_requested_partitions(context)
            wanted = [by_partition[partition] for partition in requested if partition in by_partition]
            checks = {
                part_table.full_name: verify_part(
                    lake, run, part_table, [stored.part for stored in wanted if stored.table is part_table]
                )
                for part_table in dict.fromkeys(stored.table for stored in wanted)
            }
        names = {key.name for key in context.selected_asset_check_keys}
        for partition in requested:
            stored = by_partition.get(partition)
            if stored is None and not context.has_partition_key and partition is not None:
                continue  # a run over all partitions says nothing of those without rows
            check = None if stored is None else checks[stored.table.full_name]
            if stored is None or check is None:
                invariants = (invariant for invariant in STORAGE_FAMILY.invariants if invariant in names)
                results = [
                    build_result_without_subject(table, invariant, partition or WHOLE_HOME) for invariant in invariants
                ]
            else:
                judged = judge_part(check, stored.part)
                requested_lines = [line for line in judged if line.invariant in names]
                results = [
                    result.with_metadata({**(result.metadata or {}), **_describe_check(check)})
                    for result in build_judgement_results(table, requested_lines)
                ]
            yield from report_results(context, partition, results, STORAGE_FAMILY, [])

    return verify


DEFINED = Definitions(asset_checks=[_build_checks(*asset) for asset in STORAGE_CHECKED_ASSETS.values()])
