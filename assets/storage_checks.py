"""Checks of the stored tables on each asset: files, rows and commits, by partition. No Spark.

Every entry point that verifies tables stores what it found by part of each table (`platform.table_checks`): the
command line, the job `audit_tables` and these checks. The results of an asset's partition derive from that, whichever
entry point it was. A partition that nobody looked at gets no result that passed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

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
    DynamicPartitionsDefinition,
    PartitionsDefinition,
    multi_asset_check,
)

from cdc_platform.cdclog import hourly, read_logged_tables
from cdc_platform.checks import STORAGE_FAMILY, CheckResult, judge_part, merge_results, name_part, verify_part
from cdc_platform.clock import Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.delta import ALL_PARTS, Lake, list_stored_tables
from cdc_platform.metastore import WHOLE_HOME, TableCheck, read_table_checks
from cdc_platform.scylla import ScyllaCluster
from cdc_platform.tables import CONSUMED_HOURS, TABLES, Table
from cdc_platform.timeline import GenerationDigests, list_generation_names
from cdc_platform_assets.catalog_sync import table_contents
from cdc_platform_assets.catalog_sync.check_results import CheckTarget, find_target_materialization, read_newest_results
from cdc_platform_assets.catalog_sync.table_contents import (
    CDC_LOG_KEY,
    INGESTED_LOG_KEY,
    OBSERVED_CLUSTER_KEY,
    REBUILT_KEY,
    StoredPartition,
    list_readable_clusters,
)
from cdc_platform_assets.check_runs import CheckReporter
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
    CLUSTER_PARTITIONS,
    GENERATION_PARTITIONS,
    HOUR_PARTITIONS,
    HOURS_NAME,
    INGESTED_LOG_PARTITIONS,
    TABLET_TABLE_PARTITIONS,
    can_be_partition,
    hour_us_from_partition,
    partition_from_hour_us,
    read_generation_keys,
)
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

_STAND_INS = {
    key: Table(key.path[0], key.path[1], pa.schema([]), keys=(), comment="Stands for several tables")
    for key in (CDC_LOG_KEY, REBUILT_KEY, OBSERVED_CLUSTER_KEY, INGESTED_LOG_KEY)
}
_CLUSTER_ASSETS = (OBSERVED_CLUSTER_KEY, INGESTED_LOG_KEY)
_LOG = "_scylla_cdc_log"
UNREADABLE = table_contents.UNREADABLE
STORAGE_CHECKED_ASSETS: Mapping[AssetKey, tuple[Table, DynamicPartitionsDefinition | None]] = {
    asset_key_from_table(table): (table, partitions)
    for tables, partitions in (
        (table_contents.GENERATION_TABLES, GENERATION_PARTITIONS),
        (table_contents.TABLET_STATE_TABLES, TABLET_TABLE_PARTITIONS),
        ((CONSUMED_HOURS,), HOUR_PARTITIONS),
        ((_STAND_INS[CDC_LOG_KEY], _STAND_INS[REBUILT_KEY]), CDC_LOG_PARTITIONS),
        ((_STAND_INS[OBSERVED_CLUSTER_KEY],), CLUSTER_PARTITIONS),
        ((_STAND_INS[INGESTED_LOG_KEY],), INGESTED_LOG_PARTITIONS),
        (table_contents.UNPARTITIONED_TABLES, None),
    )
    for table in tables
}
"""The assets whose partitions are parts of stored tables, each with its table and partitions."""


@dataclass(frozen=True)
class AssetPart:
    """A partition of an asset and the part of a table that it stands for. A partition can stand for several.

    `part` is the part's name (see `checks.name_part`), or None if the tables that tell it cannot be read. `lake` is the
    lake of the table: the home's, or that of a cluster.
    """

    asset: AssetKey
    partition: str | None
    table: Table
    part: str | None
    lake: Lake


def list_asset_parts(
    lake: Lake, instance: DagsterInstance, clusters: Sequence[ScyllaCluster] = ()
) -> Iterator[AssetPart]:
    """Yield the parts of all assets: first those that belong to no generation, then the newest generations.

    Hours that Dagster has no partition of are left out. If damage prevents reading which partitions there are, those
    that Dagster knows are yielded.
    """
    hours = frozenset(instance.get_dynamic_partitions(HOURS_NAME))
    since_us = min(map(hour_us_from_partition, hours), default=Microseconds(0))
    for stored in (*_list_other_parts(lake, instance, since_us), *_list_hourly_sinks(lake, since_us)):
        if stored.asset != asset_key_from_table(CONSUMED_HOURS) or stored.partition in hours:
            yield stored
    yield from _list_cluster_parts(clusters)
    yield from _list_generation_parts(lake, instance)


def _list_other_parts(lake: Lake, instance: DagsterInstance, hours_since_us: Microseconds) -> Iterator[AssetPart]:
    try:
        others = [*table_contents.iterate_other_partitions(lake, hours_since_us)]
    except UNREADABLE:
        for key, (table, partitions) in STORAGE_CHECKED_ASSETS.items():
            if partitions is not GENERATION_PARTITIONS and table not in _STAND_INS.values():
                for partition in _list_known_partitions(instance, partitions):
                    yield AssetPart(key, partition, table, ALL_PARTS if partition is None else None, lake)
        return
    for stored in others:
        yield _from_stored(stored, lake)


def _list_hourly_sinks(lake: Lake, since_us: Microseconds) -> Iterator[AssetPart]:
    """Yield the tables into which hours from `since_us` (µs) on are copied, for each hour that has rows in them."""
    try:
        sinks = {schema.full_name: hourly.hourly_sink(schema) for schema in read_logged_tables(lake)}
        columns = ["hour", "keyspace_name", "table_name"]
        hours = lake.read(CONSUMED_HOURS, columns, [("hour", ">=", datetime_from_us(since_us))]).to_pylist()
    except UNREADABLE:
        return
    for row in sorted(hours, key=lambda row: row["hour"], reverse=True):
        sink = sinks.get(f"{row['keyspace_name']}.{row['table_name']}")
        if sink is not None:
            partition = partition_from_hour_us(us_from_datetime(row["hour"]))
            yield AssetPart(asset_key_from_table(CONSUMED_HOURS), partition, sink, ALL_PARTS, lake)


def _list_cluster_parts(clusters: Sequence[ScyllaCluster]) -> Iterator[AssetPart]:
    """Yield the tables in the homes of clusters. A log and its copies belong to the log, all others to the cluster."""
    for cluster in clusters:
        try:
            lake = table_contents.open_cluster_lake(cluster)
            names = list_stored_tables(lake)
        except UNREADABLE:
            continue
        # The names tell which logs there are, even if the table that lists them is damaged.
        logged = [(keyspace, name.removesuffix(_LOG)) for keyspace, name in names if name.endswith(_LOG)]
        for keyspace, name in names:
            table = TABLES.get(f"{keyspace}.{name}") or Table(keyspace, name, pa.schema([]), keys=(), comment="")
            base = next((base for base in logged if base[0] == keyspace and _is_of_log(name, base[1])), None)
            partition = cluster.name if base is None else f"{cluster.name}/{'.'.join(base)}"
            if base is None or not can_be_partition(partition):
                yield AssetPart(OBSERVED_CLUSTER_KEY, cluster.name, table, ALL_PARTS, lake)
            else:
                yield AssetPart(INGESTED_LOG_KEY, partition, table, ALL_PARTS, lake)


def _is_of_log(name: str, base: str) -> bool:
    """Return True for the replica of a base table, its log, and the tables that were copied from the log."""
    return name == base or name.startswith((f"{base}{_LOG}", f"{base}_rebuilt"))


def _list_generation_parts(lake: Lake, instance: DagsterInstance) -> Iterator[AssetPart]:
    try:
        names = list_generation_names(lake, read_generation_keys(lake, instance))
        contents = GenerationDigests(lake)
    except UNREADABLE:
        for table in table_contents.GENERATION_TABLES:
            for partition in _list_known_partitions(instance, GENERATION_PARTITIONS):
                yield AssetPart(asset_key_from_table(table), partition, table, None, lake)
        return
    for generation in reversed(names):
        if not generation.is_removed:
            for stored in table_contents.iterate_generation_partitions(generation, contents):
                yield _from_stored(stored, lake)


def _list_known_partitions(instance: DagsterInstance, partitions: PartitionsDefinition | None) -> list[str | None]:
    return [None] if partitions is None else [*partitions.get_partition_keys(dynamic_partitions_store=instance)]


def _from_stored(stored: StoredPartition, lake: Lake) -> AssetPart:
    table, where = stored.part.table, stored.part.where
    return AssetPart(stored.asset, stored.partition, table, name_part(table, where), stored.lake or lake)


@dataclass(frozen=True)
class _Judged:
    """A partition of an asset with the last verification of each table that it stands for."""

    asset: AssetKey
    partition: str | None
    checks: list[tuple[AssetPart, TableCheck]]

    def results(self) -> list[CheckResult]:
        return merge_results([judge_part(check, stored.part) for stored, check in self.checks])


def report_storage_results(
    lake: Lake, instance: DagsterInstance, clusters: Sequence[ScyllaCluster] = ()
) -> Iterator[AssetCheckEvaluation]:
    """Report the results by partition that verifications of tables have stored and Dagster lacks, violations first.

    Each is yielded when it is reported; a caller that stops early leaves the others to the next call.

    Dagster lacks a result if its newest one on the partition differs, or is from another version of the table.
    """
    reported, reporter = _ReportedResults(instance), CheckReporter(instance)
    find_target = cache(partial(find_target_materialization, instance))
    waiting = []
    for judged in _read_judged(list_asset_parts(lake, instance, clusters)):
        for result in judged.results():
            if reported.lacks(judged, result):
                waiting.append((result.passed, not result.failed, len(waiting), judged, result))
    for _, _, _, judged, result in sorted(waiting, key=lambda entry: entry[:3]):
        check = _find_decisive_check(judged.checks)
        evaluation = _build_evaluation(judged, result, find_target(judged.asset, judged.partition))
        reporter.report(evaluation, check.entry_point, format_us(check.judged_at_us))
        yield evaluation


def _read_judged(parts: Iterable[AssetPart]) -> list[_Judged]:
    """Group parts by partition, with the last verification of each. Tables that were never verified are left out."""
    stored_checks: dict[int, dict[str, TableCheck]] = {}
    judged: dict[tuple[AssetKey, str | None], _Judged] = {}
    for stored in parts:
        if id(stored.lake) not in stored_checks:
            stored_checks[id(stored.lake)] = _read_checks(stored.lake)
        check = stored_checks[id(stored.lake)].get(stored.table.full_name)
        if check is not None:
            key = stored.asset, stored.partition
            judged.setdefault(key, _Judged(*key, [])).checks.append((stored, check))
    return [*judged.values()]


def _read_checks(lake: Lake) -> dict[str, TableCheck]:
    try:
        return read_table_checks(lake)
    except UNREADABLE:
        return {}


def _find_decisive_check(checks: Sequence[tuple[AssetPart, TableCheck]]) -> TableCheck:
    """Return the verification that found a violation, otherwise the newest one."""
    for stored, check in checks:
        if any(result.failed for result in judge_part(check, stored.part)):
            return check
    return max((check for _, check in checks), key=lambda check: check.judged_at_us)


_SUCCEEDED = "SUCCEEDED"
_MAX_NAMED_TABLES = 5


class _ReportedResults:
    """The statuses of the newest check results in Dagster, loaded asset by asset on first use."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._statuses: dict[AssetKey, dict[tuple[str, str | None], str]] = {}

    def lacks(self, stored: _Judged, result: CheckResult) -> bool:
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

    def _differs(self, stored: _Judged, result: CheckResult) -> bool:
        """Return True if the newest result, which did not pass, has another message."""
        key = AssetCheckKey(stored.asset, str(result.invariant))
        record = read_newest_results(self._instance, [key], stored.partition).get(key)
        event = None if record is None or record.event is None else record.event.dagster_event
        evaluation = None if event is None else event.event_specific_data
        return not isinstance(evaluation, AssetCheckEvaluation) or evaluation.description != result.message


def _build_evaluation(judged: _Judged, result: CheckResult, target: CheckTarget) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        asset_key=judged.asset,
        check_name=str(result.invariant),
        passed=result.passed,
        description=result.message,
        severity=AssetCheckSeverity.WARN if result.unknown else AssetCheckSeverity.ERROR,
        metadata=build_check_metadata(result) | _describe_checks(judged.checks),
        blocking=STORAGE_FAMILY.blocking,
        partition=judged.partition,
        target_materialization_data=target,
    )


def _describe_checks(checks: Sequence[tuple[AssetPart, TableCheck]]) -> dict[str, str | int]:
    """Return metadata that names the entry point and the time of a verification, the tables, and the version of one."""
    check = _find_decisive_check(checks)
    names = [check.table for _, check in checks]
    more = f" and {len(names) - _MAX_NAMED_TABLES} more" if len(names) > _MAX_NAMED_TABLES else ""
    version = {"delta_version": check.version} if len(names) == 1 and check.version is not None else {}
    return {
        "judged_by": check.entry_point,
        "judged_at": format_us(check.judged_at_us),
        "table": ", ".join(names[:_MAX_NAMED_TABLES]) + more,
    } | version


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
        key = asset_key_from_table(table)
        with platform_errors_as_failures():
            clusters = list_readable_clusters(home.home()) if key in _CLUSTER_ASSETS else ()
            by_partition: dict[str | None, list[AssetPart]] = {}
            for stored in list_asset_parts(home.lake(), context.instance, clusters):
                if stored.asset == key:
                    by_partition.setdefault(stored.partition, []).append(stored)
            requested = list_requested_partitions(context)
            wanted = [stored for partition in requested for stored in by_partition.get(partition, ())]
            checks = _verify_parts(context, clock.clock(), wanted)
        names = {key.name for key in context.selected_asset_check_keys}
        for partition in requested:
            parts = by_partition.get(partition, [])
            if not parts and not context.has_partition_key and partition is not None:
                continue  # a run over all partitions says nothing of those without rows
            found = [(stored, check) for stored in parts if (check := checks[_table_of(stored)]) is not None]
            if not found:
                invariants = (invariant for invariant in STORAGE_FAMILY.invariants if invariant in names)
                results = [
                    build_result_without_subject(table, invariant, partition or WHOLE_HOME) for invariant in invariants
                ]
            else:
                judged = _Judged(key, partition, found)
                requested_lines = [line for line in judged.results() if line.invariant in names]
                results = [
                    result.with_metadata({**(result.metadata or {}), **_describe_checks(found)})
                    for result in build_judgement_results(table, requested_lines)
                ]
            yield from report_results(context, partition, results, STORAGE_FAMILY, [])

    return verify


def _table_of(stored: AssetPart) -> tuple[int, str]:
    """Return a key of the table that a part belongs to, among the tables of several homes."""
    return id(stored.lake), stored.table.full_name


def _verify_parts(
    context: AssetCheckExecutionContext, clock: Clock, wanted: Sequence[AssetPart]
) -> dict[tuple[int, str], TableCheck | None]:
    """Verify the tables of parts, and return the verification of each; None if the table does not exist."""
    lakes = {id(stored.lake): stored.lake for stored in wanted}
    runs = {number: start_judging(context, lake, clock, None) for number, lake in lakes.items()}
    parts: dict[tuple[int, str], list[AssetPart]] = {}
    for stored in wanted:
        parts.setdefault(_table_of(stored), []).append(stored)
    return {
        key: verify_part(same[0].lake, runs[key[0]], same[0].table, [stored.part for stored in same])
        for key, same in parts.items()
    }


DEFINED = Definitions(asset_checks=[_build_checks(*asset) for asset in STORAGE_CHECKED_ASSETS.values()])
