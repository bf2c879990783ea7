"""Synchronize partitions, events and check results in Dagster with the tables.

Everything is derived from the tables and from Dagster's own state. A tick reports a bounded number of events, newest
generations first, and within a generation in write order, so outputs of older inputs show as stale.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Protocol

from dagster import AssetKey, DagsterEventType, DagsterInstance

from cdc_platform.cdclog import hourly
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake, get_verified_lake, provenance
from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.lifecycle import verdicts
from cdc_platform.scylla import ScyllaCluster
from cdc_platform.tables import BOOTSTRAP_EVENTS
from cdc_platform.timeline import GenerationDigests, GenerationNames, list_generation_names
from cdc_platform_assets.catalog_sync import table_contents
from cdc_platform_assets.catalog_sync.check_results import SettledVerdicts, find_missing_results
from cdc_platform_assets.catalog_sync.stored_steps import TimelinePlot, describe_part, plot_current_timeline
from cdc_platform_assets.catalog_sync.table_contents import StoredPartition
from cdc_platform_assets.check_runs import CheckReporter
from cdc_platform_assets.data_versions import (
    DATA_VERSION_TAG,
    LINEAGE_METADATA_KEY,
    AssetEventSpec,
    InputVersionLookup,
    build_partition_event,
    data_version_from_digest,
    find_last_write,
)
from cdc_platform_assets.partitions import (
    CDC_LOG_PARTITIONS,
    CLUSTER_PARTITIONS,
    GENERATION_PARTITIONS,
    HOUR_PARTITIONS,
    INGESTED_LOG_PARTITIONS,
    TABLET_TABLE_PARTITIONS,
    partition_from_hour_us,
    read_generation_keys,
)
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_assets.storage_checks import report_storage_results

MAX_EVENTS = 200
"""The most events that one tick reports. Each costs Dagster's storage about ten milliseconds."""
MAX_SECONDS = 20.0
"""A tick that has taken this long leaves the rest to the next one."""
MAX_PARTITIONS = 1000
MAX_HOURS = 24
"""The most hours due for copying that get a partition: as many as one tick of their schedule requests."""
_SETTLED: dict[tuple[str, str], SettledVerdicts] = {}
"""By the lake and Dagster's folder. A code server evaluates each tick with another instance."""
_PARTITIONS_BY_ASSET = {
    table_contents.CDC_LOG_KEY: CDC_LOG_PARTITIONS,
    table_contents.OBSERVED_CLUSTER_KEY: CLUSTER_PARTITIONS,
    table_contents.INGESTED_LOG_KEY: INGESTED_LOG_PARTITIONS,
}
_GENERATION_ASSETS = {asset_key_from_table(table) for table in table_contents.GENERATION_TABLES}


class AssetGraph(Protocol):
    """The part of a repository's `asset_graph` that the sync uses. Dagster does not export its class."""

    def has(self, key: AssetKey) -> bool:
        """Return True if the code location defines the asset."""
        ...

    def get(self, key: AssetKey) -> Any:
        """Return the asset's node."""
        ...


@dataclass
class SyncSummary:
    """What one tick did: events and results reported, partitions added and removed.

    `left` is True if more remains for the next tick. `refused` says why no partition was removed; it is empty if none
    was refused.
    """

    events: int = 0
    results: int = 0
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: bool = False
    refused: str = ""

    def __str__(self) -> str:
        return (
            f"reported {self.events} events and {self.results} check results; added {len(self.added)} partitions, "
            f"removed {len(self.removed)}"
            + ("; the next tick continues" if self.left else "")
            + (f"; {self.refused}" if self.refused else "")
        )


def sync_catalog(
    lake: Lake,
    instance: DagsterInstance,
    graph: AssetGraph,
    *,
    clusters: Sequence[ScyllaCluster] = (),
    most: int | None = MAX_EVENTS,
    hours_since_us: Microseconds = Microseconds(0),
) -> SyncSummary:
    """Report to Dagster what the tables hold and Dagster lacks: at most `most` events, or all with None.

    The tables are those of the lake and of the homes of `clusters`. Partitions of copied hours that begin before
    `hours_since_us` (µs) are removed: the tables have the hours, and Dagster would have more every hour.

    Raises:
        PlatformError: a table cannot be read. What verifications found is reported first.
    """
    summary = SyncSummary()
    try:
        _sync_tables(lake, instance, graph, clusters, summary, most, hours_since_us)
    except PlatformError:
        _report_storage_results(lake, instance, clusters, summary, most)
        raise
    return summary


def _sync_tables(
    lake: Lake,
    instance: DagsterInstance,
    graph: AssetGraph,
    clusters: Sequence[ScyllaCluster],
    summary: SyncSummary,
    most: int | None,
    hours_since_us: Microseconds,
) -> None:
    deadline = None if most is None else time.monotonic() + MAX_SECONDS
    names = list_generation_names(lake, read_generation_keys(lake, instance))
    others = [
        *table_contents.iterate_other_partitions(lake, hours_since_us),
        *table_contents.iterate_cluster_partitions(clusters),
    ]
    _sync_partitions(lake, instance, names, others, summary)
    _remove_old_hours(instance, hours_since_us, summary)
    contents = GenerationDigests(lake)
    by_key: dict[str | None, GenerationNames] = {generation.key: generation for generation in names}
    known = _ReportedVersions(instance, graph)
    unfinished = _ActiveRuns(instance)
    timeline = cache(partial(plot_current_timeline, lake))
    for partitions in _partitions_in_report_order(names, others, contents):
        for partition in partitions:
            if most is not None and summary.events + summary.results >= most:
                summary.left = True
                return
            generation = by_key.get(partition.partition) if partition.asset in _GENERATION_ASSETS else None
            siblings = list(partitions)
            _report_partition(
                lake, instance, graph, partition, siblings, generation, known, unfinished, timeline, summary
            )
        if deadline is not None and time.monotonic() > deadline:
            summary.left = True
            return
    _report_storage_results(lake, instance, clusters, summary, most)
    stored, reporter = verdicts.read_last_verdicts(lake), CheckReporter(instance)
    settled = _SETTLED.setdefault((str(lake.location), instance.root_directory), SettledVerdicts())
    for generation in reversed([partition for partition in names if not partition.is_removed]):
        if deadline is not None and time.monotonic() > deadline:
            summary.left = True
            return
        for result in find_missing_results(lake, instance, generation, stored.get(generation.id or "", {}), settled):
            if most is not None and summary.events + summary.results >= most:
                summary.left = True
                return
            reporter.report(result.evaluation, result.entry_point, result.content)
            summary.results += 1


def _report_storage_results(
    lake: Lake,
    instance: DagsterInstance,
    clusters: Sequence[ScyllaCluster],
    summary: SyncSummary,
    most: int | None,
) -> None:
    """Report what verifications of tables found, violations first, up to `most` events and results in all."""
    for _ in report_storage_results(lake, instance, clusters):
        summary.results += 1
        if most is not None and summary.events + summary.results >= most:
            summary.left = True
            return


def add_hour_partitions(lake: Lake, clock: Clock, instance: DagsterInstance) -> list[Microseconds]:
    """Add partitions for the first hours of logs that can be copied by now, and return the hours (start, µs).

    They appear by time, not by a commit.
    """
    due = hourly.list_due_hours(lake, clock, MAX_HOURS)
    if due:
        instance.add_dynamic_partitions(_partitions_name(HOUR_PARTITIONS), [*map(partition_from_hour_us, due)])
    return due


def _partitions_in_report_order(
    names: Sequence[GenerationNames], others: Sequence[StoredPartition], contents: GenerationDigests
) -> Iterator[Sequence[StoredPartition]]:
    """Yield the stored partitions: first those that belong to no generation, then each generation's, newest first."""
    yield from ([partition] for partition in others)
    for generation in reversed(names):
        if not generation.is_removed:
            yield list(table_contents.iterate_generation_partitions(generation, contents))


def _report_partition(
    lake: Lake,
    instance: DagsterInstance,
    graph: AssetGraph,
    stored: StoredPartition,
    siblings: Sequence[StoredPartition],
    generation: GenerationNames | None,
    known: _ReportedVersions,
    unfinished: _ActiveRuns,
    timeline: TimelinePlot,
    summary: SyncSummary,
) -> None:
    """Report one partition's event, unless Dagster has it or an active run is about to report it."""
    if not graph.has(stored.asset):
        return
    lake = stored.lake or lake
    content = stored.content(lake)
    if content is None or known.version(stored.asset, stored.partition) == content.version:
        return
    change = find_last_write(lake, stored.part)
    commit_info = None if change is None else change.commit.info
    if commit_info is not None and unfinished.is_under_way(commit_info.author.run):
        summary.left = True
        return
    node = graph.get(stored.asset)
    spec = AssetEventSpec(
        stored.asset, sorted(node.parent_keys), node.code_version, node.metadata.get(LINEAGE_METADATA_KEY)
    )
    shared = [parent for parent in node.parent_keys if graph.get(parent).partitions_def != node.partitions_def]
    at_ms = None if change is None else change.commit.at_ms
    due = None if at_ms is None else _input_versions_at(lake, siblings, at_ms)
    report = describe_part(lake, stored, generation, timeline)
    if report is not None:
        content = replace(content, rows=report.rows, metadata=report.metadata)
    event = build_partition_event(
        instance, spec, stored.partition, content, change, due=due, observed=not node.is_materializable, shared=shared
    )
    instance.report_runless_asset_event(event)
    summary.events += 1


def _input_versions_at(lake: Lake, siblings: Sequence[StoredPartition], at_ms: int) -> InputVersionLookup:
    """Return a lookup of the version that each input in the generation had when a commit was made at `at_ms` (ms)."""
    inputs = {partition.asset: partition for partition in siblings}

    def due(parent: AssetKey) -> str | None:
        stored = inputs.get(parent)
        digest = None if stored is None else stored.digest()
        if stored is None or digest is None:
            return None
        change = find_last_write(lake, stored.part)
        if change is None or change.commit.at_ms is None or change.commit.at_ms <= at_ms:
            return data_version_from_digest(digest)
        if tuple(stored.part.where) != stored.part.table.partition_by:
            return data_version_from_digest(digest)
        recorded = provenance.get_recorded_digest(lake, stored.part.table, stored.part.where, at_ms)
        return None if recorded is None else data_version_from_digest(recorded)

    return due


def _sync_partitions(
    lake: Lake,
    instance: DagsterInstance,
    names: Sequence[GenerationNames],
    others: Iterable[StoredPartition],
    summary: SyncSummary,
) -> None:
    """Add partitions for stored content, and remove those of generations that were withdrawn or removed."""
    existing = set(instance.get_dynamic_partitions(_partitions_name(GENERATION_PARTITIONS)))
    known = read_generation_keys(lake, instance)
    wanted = [name.key for name in names if not name.is_removed]
    gone = {name.key for name in names if name.is_removed}
    gone |= {known.of(generation) for generation in known.withdrawn if generation in known.by_generation}
    for partition in _verify_removed(lake, instance, sorted(existing & gone - set(wanted))[:MAX_PARTITIONS], summary):
        instance.delete_dynamic_partition(_partitions_name(GENERATION_PARTITIONS), partition)
        summary.removed.append(partition)
    _add_partitions(
        instance, _partitions_name(GENERATION_PARTITIONS), [name for name in wanted if name not in existing], summary
    )
    for asset, partitions in table_contents.group_by_asset(iter(others)).items():
        for definition, tables in (
            (TABLET_TABLE_PARTITIONS, table_contents.TABLET_STATE_TABLES),
            (HOUR_PARTITIONS, (table_contents.CONSUMED_HOURS,)),
        ):
            if asset in [asset_key_from_table(table) for table in tables]:
                _add_missing_partitions(instance, _partitions_name(definition), partitions, summary)
        definition = _PARTITIONS_BY_ASSET.get(asset)
        if definition is not None:
            _add_missing_partitions(instance, _partitions_name(definition), partitions, summary)


def _remove_old_hours(instance: DagsterInstance, since_us: Microseconds, summary: SyncSummary) -> None:
    """Remove the partitions of hours that begin before `since_us` (µs)."""
    name, first = _partitions_name(HOUR_PARTITIONS), partition_from_hour_us(since_us)
    # The names of hours sort by time.
    for partition in sorted(key for key in instance.get_dynamic_partitions(name) if key < first)[:MAX_PARTITIONS]:
        instance.delete_dynamic_partition(name, partition)
        summary.removed.append(partition)


def _verify_removed(lake: Lake, instance: DagsterInstance, partitions: list[str], summary: SyncSummary) -> list[str]:
    """Return the partitions that the verified tables confirm as gone.

    If the tables are not as committed, return none and set the reason in `summary.refused`.
    """
    if not partitions:
        return []
    try:
        deciding = get_verified_lake(lake, "removing partitions")
        deciding.verify(BOOTSTRAP_EVENTS)
        list_generation_names(deciding, read_generation_keys(deciding, instance))
    except NotAsCommitted as error:
        summary.refused = str(error)
        return []
    return partitions


def _add_missing_partitions(
    instance: DagsterInstance, name: str, partitions: Iterable[StoredPartition], summary: SyncSummary
) -> None:
    existing = set(instance.get_dynamic_partitions(name))
    _add_partitions(
        instance,
        name,
        [stored.partition for stored in partitions if stored.partition and stored.partition not in existing],
        summary,
    )


def _add_partitions(instance: DagsterInstance, name: str, partitions: Sequence[str], summary: SyncSummary) -> None:
    partitions = list(dict.fromkeys(partitions))
    now = partitions[:MAX_PARTITIONS]
    if now:
        instance.add_dynamic_partitions(name, now)
        summary.added += now
    summary.left = summary.left or len(partitions) > len(now)


def _partitions_name(definition: object) -> str:
    return str(getattr(definition, "name", ""))


class _ReportedVersions:
    """The data version of the newest event of each partition, loaded asset by asset on first use."""

    def __init__(self, instance: DagsterInstance, graph: AssetGraph) -> None:
        self._instance, self._graph = instance, graph
        self._partitions: dict[AssetKey, dict[str, str]] = {}

    def version(self, asset: AssetKey, partition: str | None) -> str | None:
        """Return the version, or None if there is no event."""
        node = self._graph.get(asset)
        if partition is None:
            record = self._instance.get_latest_data_version_record(asset, not node.is_materializable)
            return None if record is None else (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG)
        if asset not in self._partitions:
            kind = DagsterEventType.ASSET_MATERIALIZATION
            tags_by_partition = self._instance.event_log_storage.get_latest_tags_by_partition(
                asset, kind, [DATA_VERSION_TAG]
            )
            self._partitions[asset] = {name: tags[DATA_VERSION_TAG] for name, tags in tags_by_partition.items()}
        return self._partitions[asset].get(partition)


class _ActiveRuns:
    """Dagster's runs that may still report what they have written."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._under_way: dict[str, bool] = {}

    def is_under_way(self, run_id: str) -> bool:
        """Return True if Dagster knows the run with this ID and it has not ended."""
        if run_id and run_id not in self._under_way:
            run = self._instance.get_run_by_id(run_id)
            self._under_way[run_id] = run is not None and not run.is_finished
        return self._under_way.get(run_id, False)
