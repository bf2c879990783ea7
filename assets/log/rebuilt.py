"""Base tables that are rebuilt from their CDC logs as of a time, and compared with other tables."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    Config,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)
from pydantic import Field

from cdc_platform.cdclog import RebuiltTable, compare_rebuilt, read_table_schema, rebuild_table, rebuilt_table
from cdc_platform.checks import REBUILT_EQUALS_GIVEN, REBUILT_FAMILY, Finding
from cdc_platform.clock import format_us, parse_time_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.tables import Table
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import check_specs, evaluate_checks, select_with_own_checks
from cdc_platform_assets.data_versions import (
    PartitionContent,
    read_partition_content,
)
from cdc_platform_assets.log.logs import CDC_LOG
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.partitions import CDC_LOG_PARTITIONS, table_from_partition
from cdc_platform_assets.specs import asset_key_from_table, pool_from_table, table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource
from cdc_platform_resources.spark import SparkResource

REBUILD_JOB = "rebuild_tables"
REBUILT = Table(
    "platform",
    "rebuilt_tables",
    pa.schema([]),
    keys=(),
    comment="Base table as of a time, `<keyspace>.<table>_rebuilt`, with the columns of the base table",
)
"""Stands for all rebuilt tables."""


class AsOf(Config):
    """The time as of which to rebuild a table."""

    as_of: str | None = Field(default=None, description="for example 2026-01-31T12:00:00Z; default: now")


class Given(Config):
    """The table with which to compare a rebuilt one."""

    path: str | None = Field(
        default=None, description="path or address of a Delta or Parquet table with the columns of the base table"
    )


@table_asset(
    REBUILT,
    group="cdc_log",
    spark=True,
    deps=[asset_key_from_table(CDC_LOG)],
    partitions=CDC_LOG_PARTITIONS,
    code=("cdc_platform.cdclog.rebuild", "cdc_platform.cdclog.replay"),
    description="Materializing a partition rebuilds that table from its log, as of a time, into "
    "`KS.T_rebuilt`. Its check compares it with a given table, if the run names one.",
)
def rebuilt_tables(
    context: AssetExecutionContext, config: AsOf, home: HomeResource, spark: SparkResource, clock: ClockResource
) -> MaterializeResult:
    """Rebuild one table."""
    lake = home.lake()

    def rebuild(partition: str) -> PartitionContent:
        name = table_from_partition(partition)
        as_of_us = None if config.as_of is None else parse_time_us(config.as_of)
        rebuilt = rebuild_table(lake, clock.clock(), *name, spark.workers(), as_of_us)
        part = GenerationRows(rebuilt_table(read_table_schema(lake, *name)), {})
        return read_partition_content(lake, part, rebuilt.rows, describe_rebuilt(rebuilt))

    return materialize_partitions(context, lake, "tables", rebuild, inputs=[asset_key_from_table(CDC_LOG)], spark=spark)


def describe_rebuilt(rebuilt: RebuiltTable) -> dict[str, Any]:
    """Return the metadata of a rebuilt table: its time, the version of its log, and what the log lacks."""
    return {
        "rebuilt": rebuilt.name,
        "as_of": format_us(rebuilt.as_of_us),
        "log_version": rebuilt.log_version,
        "missing": build_rows_preview(("missing from the log",), ([gap] for gap in rebuilt.missing)),
    }


@multi_asset_check(
    can_subset=True,
    name="compare_rebuilt_tables",
    specs=check_specs(REBUILT, REBUILT_FAMILY.invariants, CDC_LOG_PARTITIONS),
    pool=pool_from_table(REBUILT),
)
def compare_rebuilt_tables(
    context: AssetCheckExecutionContext,
    config: Given,
    home: HomeResource,
    spark: SparkResource,
    clock: ClockResource,
) -> Iterator[AssetCheckResult]:
    """Compare a rebuilt table with the table that the run names. Without one there is no verdict."""
    lake, workers = home.lake(), spark.workers()
    yield from evaluate_checks(
        context,
        REBUILT,
        lake,
        clock.clock(),
        lambda table: [(REBUILT_FAMILY, _compare(lake, table, config.path, workers))],
    )


def _compare(lake: Lake, partition: str | None, path: str | None, workers: TaskRunner) -> list[Finding]:
    if partition is None or path is None:
        return []
    compared = compare_rebuilt(lake, *table_from_partition(partition), path, workers)
    wrong = compared.only_rebuilt + compared.only_given + compared.given_twice + compared.other_values
    keys = "; ".join(f"{entry.key} {entry.difference}" for entry in compared.first)
    counts = f"{compared.rebuilt_rows} rows are rebuilt, {compared.given} has {compared.given_rows}"
    return [Finding(REBUILT_EQUALS_GIVEN, max(compared.rebuilt_rows, compared.given_rows), wrong, f"{counts}: {keys}")]


rebuild_tables = define_asset_job(
    REBUILD_JOB,
    selection=select_with_own_checks(rebuilt_tables),
    description="Rebuilds one table from its log as of a time, and compares it with the table that the run names.",
    executor_def=in_process_executor,
)
