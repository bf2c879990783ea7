"""Base writes that are appended to CDC logs hour by hour, each hour of a table exactly once."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    Config,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)
from pydantic import Field

from cdc_platform.cdclog import AppendedBatch, append_hour, audit_appended_hour, log_table, read_table_schema
from cdc_platform.checks import LOG_FAMILY
from cdc_platform.clock import format_us
from cdc_platform.tables import Table, column
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import FamilyFindings, check_specs, evaluate_checks
from cdc_platform_assets.data_versions import (
    PartitionContent,
    read_partition_content,
)
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.partitions import (
    WRITE_HOUR_PARTITIONS,
    hour_us_from_partition,
    table_from_partition,
)
from cdc_platform_assets.specs import pool_from_table, table_asset
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource
from cdc_platform_resources.spark import SparkResource

WRITES_JOB = "log_writes"
LOGGED_WRITES = Table(
    "platform",
    "logged_writes",
    pa.schema(
        [
            column("timestamp", pa.int64(), "time of the write, µs, or a timestamp"),
            column("ttl", pa.int64(), "seconds that the written values live; null: those of the table", null=True),
            column("operation", pa.int8(), "1 update, 2 insert (default), 3 to 6 deletions", null=True),
        ]
    ),
    keys=("timestamp",),
    comment="Base writes whose log rows are appended to a CDC log, with these columns and those of the base table",
)
"""Stands for all tables of writes, which are outside of the home."""


class Writes(Config):
    """Which writes to append to which log."""

    table: str = Field(description="keyspace.table of the base table")
    path: str = Field(description="path or address of a Delta table, a Parquet file or a folder of Parquet files")


@table_asset(
    LOGGED_WRITES,
    group="cdc_log",
    spark=True,
    partitions=WRITE_HOUR_PARTITIONS,
    code=("cdc_platform.cdclog.write_batches", "cdc_platform.cdclog.batch_encoder"),
    description="Materializing an hour appends the log rows of its writes to the log of their table, as a batch named "
    "after the hour, exactly once. Its checks judge the log rows of the hour. Hours with invalid writes are refused.",
)
def logged_writes(
    context: AssetExecutionContext, config: Writes, home: HomeResource, spark: SparkResource
) -> MaterializeResult:
    """Append the writes of one hour."""
    lake = home.lake()

    def append(partition: str) -> PartitionContent:
        name = table_from_partition(config.table)
        part = GenerationRows(log_table(read_table_schema(lake, *name)), {})
        batch = append_hour(lake, *name, config.path, hour_us_from_partition(partition), spark.workers())
        context.log.info(f"{partition}: {batch.writes} writes, {batch.log_rows} log rows appended.")
        return read_partition_content(lake, part, batch.writes, _batch_metadata(batch))

    return materialize_partitions(context, lake, "hours", append, spark=spark)


def _batch_metadata(batch: AppendedBatch) -> dict[str, Any]:
    return {
        "table": batch.table,
        "batch": batch.batch,
        "source": batch.source,
        "appended": batch.appended,
        "log_rows": batch.log_rows,
        "first": "" if batch.first_us is None else format_us(batch.first_us),
        "last": "" if batch.last_us is None else format_us(batch.last_us),
        "passed_consumers": ", ".join(consumer.name for consumer in batch.passed),
    }


@multi_asset_check(
    can_subset=True,
    name="audit_logged_writes",
    specs=check_specs(LOGGED_WRITES, LOG_FAMILY.invariants, WRITE_HOUR_PARTITIONS),
    pool=pool_from_table(LOGGED_WRITES),
)
def audit_logged_writes(
    context: AssetCheckExecutionContext, home: HomeResource, spark: SparkResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge the log rows of an hour, in all logs to which its writes were appended, or all rows of all logs."""
    lake, workers = home.lake(), spark.workers()

    def audit(hour: str | None) -> FamilyFindings:
        if hour is None:
            return [(LOG_FAMILY, audit_appended_hour(lake, workers, None))]
        findings = audit_appended_hour(lake, workers, hour_us_from_partition(hour))
        return [(LOG_FAMILY, findings or LOG_FAMILY.not_judged("no writes of this hour were appended"))]

    yield from evaluate_checks(context, LOGGED_WRITES, lake, clock.clock(), audit)


log_writes = define_asset_job(
    WRITES_JOB,
    selection=AssetSelection.assets(logged_writes),
    description="Appends the writes of one hour to the log of their table, and checks the log rows of the hour.",
    executor_def=in_process_executor,
)
