"""Rows and metadata of parts that other entry points wrote: the same as those of a run of Dagster, from the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any

from dagster import AssetKey, MarkdownMetadataValue
from pyarrow import ArrowException

from cdc_platform.cdclog import hourly, log_table, read_rebuilt_table, read_table_schema
from cdc_platform.clock import Clock, datetime_from_us, format_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import PlatformError
from cdc_platform.lifecycle import DescribedGeneration, InsertResult, JoinContext, read_rings
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    CONSUMED_HOURS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_LAYOUTS,
    TABLET_TIMESTAMPS,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.timeline import GenerationNames, GenerationRows, Timeline
from cdc_platform_assets.catalog_sync.table_contents import (
    CDC_LOG_KEY,
    INGESTED_LOG_KEY,
    OBSERVED_CLUSTER_KEY,
    REBUILT_KEY,
    StoredPartition,
)
from cdc_platform_assets.cluster.ingest import describe_ingested_log
from cdc_platform_assets.cluster.observations import describe_observed_cluster
from cdc_platform_assets.join.plots import build_timeline_plot
from cdc_platform_assets.join.step_docs import STEP_DOCS, StepReport
from cdc_platform_assets.log.hourly import build_copy_metadata
from cdc_platform_assets.log.logs import describe_log
from cdc_platform_assets.log.rebuilt import describe_rebuilt
from cdc_platform_assets.partitions import hour_us_from_partition, table_from_partition
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_assets.switch import describe_switches
from cdc_platform_assets.tablets.stream_sets import describe_layouts, describe_stream_sets
from cdc_platform_assets.v1_rewrite import describe_v1_generations

_LOG = getLogger(__name__)
MAX_DESCRIBED_ROWS = 1 << 20
"""The most rows of a log that a tick reads for the metadata of a partition. A run of the asset reports that of more."""
_STEP_TABLES = {asset_key_from_table(table): table for table in STEP_DOCS}


TimelinePlot = Callable[[], MarkdownMetadataValue]


def plot_current_timeline(lake: Lake) -> MarkdownMetadataValue:
    """Plot when each generation operates, as of now."""
    return build_timeline_plot(lake, Timeline.read(lake).known, Clock())


def describe_part(
    lake: Lake, stored: StoredPartition, names: GenerationNames | None, timeline: TimelinePlot
) -> StepReport | None:
    """Return the number of rows of a stored part, and the metadata that a run of its step reports.

    `names` is the generation of the part, None if it belongs to none. `timeline` returns the plot of
    `plot_current_timeline`, which all generations of a tick share. Return None if the tables cannot be read: the
    checks of the damaged table report that.
    """
    try:
        describe = _DESCRIPTIONS.get(stored.asset)
        described = None if describe is None else describe(lake, stored.partition or "")
        if described is not None:
            return StepReport(*described)
        rows = _count_rows(lake, stored.part)
        if names is None or names.id is None or names.time_ms is None or names.host_id is None:
            return StepReport(rows)
        report = _report_step(lake, stored, names, rows, timeline)
        return StepReport(rows) if report is None else report
    except (PlatformError, ArrowException, OSError, ValueError) as error:
        _LOG.warning("%s of %s is reported without its metadata: %s", stored.asset, stored.partition, error)
        return None


_Description = tuple[int, dict[str, Any]]
"""The number of rows of a partition, and its metadata."""


def _describe_log(lake: Lake, partition: str) -> _Description | None:
    schema = read_table_schema(lake, *table_from_partition(partition))
    if sum(part.rows for part in lake.partitions(log_table(schema))) > MAX_DESCRIBED_ROWS:
        return None
    return describe_log(lake, schema, TaskRunner.alone())


def _describe_hour(lake: Lake, partition: str) -> _Description | None:
    hour_us = hour_us_from_partition(partition)
    recorded = lake.read(CONSUMED_HOURS, ["rows"], [("hour", "=", datetime_from_us(hour_us))])["rows"].to_pylist()
    if sum(recorded) > MAX_DESCRIBED_ROWS:
        return None
    return build_copy_metadata(hourly.read_copied_hour(lake, hour_us))


def _describe_rebuilt(lake: Lake, partition: str) -> _Description | None:
    rebuilt = read_rebuilt_table(lake, read_table_schema(lake, *table_from_partition(partition)))
    return None if rebuilt is None else (rebuilt.rows, describe_rebuilt(rebuilt))


_DESCRIPTIONS: Mapping[AssetKey, Callable[[Lake, str], _Description | None]] = {
    CDC_LOG_KEY: _describe_log,
    REBUILT_KEY: _describe_rebuilt,
    OBSERVED_CLUSTER_KEY: lambda lake, _: describe_observed_cluster(lake),
    INGESTED_LOG_KEY: describe_ingested_log,
    asset_key_from_table(CONSUMED_HOURS): _describe_hour,
    asset_key_from_table(TABLET_LAYOUTS): lambda lake, name: describe_layouts(lake, table_from_partition(name)),
    asset_key_from_table(TABLET_TIMESTAMPS): lambda lake, name: describe_stream_sets(
        lake, Clock(), table_from_partition(name)
    ),
    asset_key_from_table(GENERATION_DESCRIPTIONS): lambda lake, _: describe_v1_generations(lake),
    asset_key_from_table(GENERATION_SWITCHES): lambda lake, _: describe_switches(lake),
}
"""For assets without a join step: the rows and the metadata of a partition, as runs report them; None: rows alone."""


def _count_rows(lake: Lake, part: GenerationRows) -> int:
    filters = [(name, "=", value) for name, value in part.where.items()]
    if part.where.keys() <= set(part.table.partition_by):
        return sum(file.rows for file in lake.data_files(part.table, filters))
    return lake.read(part.table, part.table.schema.names[:1], filters).num_rows


def _report_step(
    lake: Lake, stored: StoredPartition, names: GenerationNames, rows: int, timeline: TimelinePlot
) -> StepReport | None:
    """Return the report of the join step that writes this part; None if no step of a join does."""
    table, time_ms, generation_id = _STEP_TABLES.get(stored.asset), names.time_ms, names.id
    if table is None or time_ms is None or generation_id is None:
        return None
    joining = JoinContext(lake, Clock(), Settings(), generation_id, None, "the catalogue")
    if table is GENERATION_TIMESTAMPS:
        # The page of the generation is linked by its event and made when it is opened.
        return StepReport(1, {"time": format_ms(time_ms), "timeline": timeline()})
    made: Any = None
    if table is TOPOLOGY_DESCRIPTIONS:
        before, after = read_rings(lake, generation_id)
        streams = int(after.shard_counts.sum())
        made = DescribedGeneration(before, after, len(after.tokens), streams, lake.version(table) or 0)
    elif table is GENERATION_DESCRIPTIONS_V2:
        made = InsertResult(lake.version(stored.part.table), rows, {"format": "v1" if names.is_v1 else "v2"})
    elif table is CDC_LOCAL:
        made = time_ms
    elif table is NODES:
        made = inbox.find_event(lake, generation_id=generation_id).node
    elif table is not STREAMS_DESCRIPTIONS_V2:
        return None
    return STEP_DOCS[table].report(joining, made, _LOG)
