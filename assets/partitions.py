"""Partition definitions and keys: generations, tables and hours.

A generation's key is known once its node is queued, so the UI shows the partition while the join waits.
"""

from __future__ import annotations

from datetime import UTC, datetime

from dagster import AssetCheckExecutionContext, AssetExecutionContext, DagsterInstance, DynamicPartitionsDefinition

from cdc_platform.clock import Microseconds, datetime_from_us, us_from_datetime
from cdc_platform.cql import split_full_name
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, NotFound
from cdc_platform.timeline import GenerationKeys

GENERATIONS_NAME = "generation"
GENERATION_PARTITIONS = DynamicPartitionsDefinition(name=GENERATIONS_NAME)

REWRITE_DECISIONS_NAME = "rewrite_decision"
REWRITE_DECISION_PARTITIONS = DynamicPartitionsDefinition(name=REWRITE_DECISIONS_NAME)
"""The V1 generations about which the rewrite has decided, with the keys of `generation`."""

RING_PARTITIONS = DynamicPartitionsDefinition(name="ring_before_join")
"""Without keys: no event is reported of the ring before a join, so that no generation shows as missing there."""

TABLET_TABLES_NAME = "tablet_table"
TABLET_TABLE_PARTITIONS = DynamicPartitionsDefinition(name=TABLET_TABLES_NAME)
"""The tablet-based tables: one partition per table, with the key `keyspace.table`."""

LOGS_NAME = "cdc_log"
CDC_LOG_PARTITIONS = DynamicPartitionsDefinition(name=LOGS_NAME)
"""The tables that have a CDC log: one partition per table, with the key `keyspace.table`."""

_HOUR_FORMAT = "%Y-%m-%d-%H:%M"
HOURS_NAME = "cdc_hour"
HOUR_PARTITIONS = DynamicPartitionsDefinition(name=HOURS_NAME)
"""Hours of CDC logs: one partition per hour that is copied or can be, with its start in UTC as the key."""

WRITE_HOURS_NAME = "write_hour"
WRITE_HOUR_PARTITIONS = DynamicPartitionsDefinition(name=WRITE_HOURS_NAME)
"""Hours of base writes that are appended to logs: one partition per hour, with its start in UTC as the key."""


CLUSTERS_NAME = "cluster"
CLUSTER_PARTITIONS = DynamicPartitionsDefinition(name=CLUSTERS_NAME)
"""The registered clusters, one partition each."""

INGESTED_LOGS_NAME = "ingested_log"
INGESTED_LOG_PARTITIONS = DynamicPartitionsDefinition(name=INGESTED_LOGS_NAME)
"""The logs of live clusters: one partition per table, with the key `cluster/keyspace.table`."""


def can_be_partition(key: str) -> bool:
    """Return False for a key that Dagster refuses, since it has what separates the ends of a range of partitions."""
    return "..." not in key


def read_generation_keys(lake: Lake, instance: DagsterInstance) -> GenerationKeys:
    """Return the generation keys, including those of earlier versions that this instance's partitions have."""
    return GenerationKeys.read(lake, instance.get_dynamic_partitions(GENERATIONS_NAME))


def get_requested_partitions(context: AssetExecutionContext | AssetCheckExecutionContext, what: str) -> list[str]:
    """Return the partitions that a step runs for, in order.

    Raises:
        InputError: the step runs without a partition.
    """
    if not context.has_partition_key and not context.has_partition_key_range:
        raise InputError(
            f"{what} need a partition: select one or several partitions of the asset, and launch the run again"
        )
    return get_run_partitions(context)


def get_run_partitions(context: AssetExecutionContext | AssetCheckExecutionContext) -> list[str]:
    """Return the partitions of a partitioned step, in order. A single one needs no query of Dagster's storage."""
    return [context.partition_key] if context.has_partition_key else list(context.partition_keys)


def hour_us_from_partition(partition: str) -> Microseconds:
    """Return the start of a partition's hour (µs).

    Raises:
        InputError: the partition names no hour.
    """
    try:
        return us_from_datetime(datetime.strptime(partition, _HOUR_FORMAT).replace(tzinfo=UTC))
    except ValueError:
        raise InputError(f"{partition!r} is no hour; hours are named as 2026-01-31-12:00, in UTC") from None


def partition_from_hour_us(hour_us: Microseconds) -> str:
    """Return the partition key of an hour by its start (µs)."""
    return datetime_from_us(hour_us).strftime(_HOUR_FORMAT)


def table_from_partition(partition: str) -> tuple[str, str]:
    """Return the keyspace and name of a partition's table.

    Raises:
        NotFound: the partition names no table.
    """
    keyspace, table = split_full_name(partition)
    if not (keyspace and table):
        raise NotFound(f"partition {partition!r} names no table; tables are keyspace.table")
    return keyspace, table
