"""Rows and metadata of parts that other entry points wrote: the same as those of a run of Dagster, from the tables."""

from __future__ import annotations

from logging import getLogger
from typing import Any

from pyarrow import ArrowException

from cdc_platform.clock import Clock, format_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import PlatformError
from cdc_platform.lifecycle import DescribedGeneration, InsertResult, JoinContext, read_rings
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.timeline import GenerationNames, GenerationRows, Timeline
from cdc_platform_assets.catalog_sync.table_contents import StoredPartition
from cdc_platform_assets.join.plots import build_timeline_plot
from cdc_platform_assets.join.step_docs import STEP_DOCS, StepReport
from cdc_platform_assets.specs import asset_key_from_table

_LOG = getLogger(__name__)
_STEP_TABLES = {asset_key_from_table(table): table for table in STEP_DOCS}


def describe_part(lake: Lake, stored: StoredPartition, names: GenerationNames | None) -> StepReport | None:
    """Return the number of rows of a stored part, and the metadata that a run of its step reports.

    `names` is the generation of the part, None if it belongs to none. Return None if the tables cannot be read: the
    checks of the damaged table report that.
    """
    try:
        rows = _count_rows(lake, stored.part)
        if names is None or names.id is None or names.time_ms is None or names.host_id is None:
            return StepReport(rows)
        report = _report_step(lake, stored, names, rows)
        return StepReport(rows) if report is None else report
    except (PlatformError, ArrowException, OSError, ValueError) as error:
        _LOG.warning("%s of %s is reported without its metadata: %s", stored.asset, stored.partition, error)
        return None


def _count_rows(lake: Lake, part: GenerationRows) -> int:
    filters = [(name, "=", value) for name, value in part.where.items()]
    if part.where.keys() <= set(part.table.partition_by):
        return sum(file.rows for file in lake.data_files(part.table, filters))
    return lake.read(part.table, part.table.schema.names[:1], filters).num_rows


def _report_step(lake: Lake, stored: StoredPartition, names: GenerationNames, rows: int) -> StepReport | None:
    """Return the report of the join step that writes this part; None if no step of a join does."""
    table, time_ms, generation_id = _STEP_TABLES.get(stored.asset), names.time_ms, names.id
    if table is None or time_ms is None or generation_id is None:
        return None
    joining = JoinContext(lake, Clock(), Settings(), generation_id, None, "the catalogue")
    if table is GENERATION_TIMESTAMPS:
        # The page of the generation is linked by its event and made when it is opened.
        timeline = build_timeline_plot(lake, Timeline.read(lake).known, joining.clock)
        return StepReport(1, {"time": format_ms(time_ms), "timeline": timeline})
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
