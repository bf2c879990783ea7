"""The materialization of partitions: one partition gives a result, several give an event each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster import AssetExecutionContext, AssetKey, MaterializeResult

from cdc_platform.delta import Lake
from cdc_platform_assets.data_versions import (
    KIND_METADATA_KEY,
    PartitionContent,
    find_last_write,
    log_partition_events,
)
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result
from cdc_platform_assets.partitions import get_requested_partitions
from cdc_platform_assets.specs import ColumnSources

if TYPE_CHECKING:
    from cdc_platform_resources.spark import SparkResource


def materialize_partitions(
    context: AssetExecutionContext,
    lake: Lake,
    what: str,
    write: Callable[[str], PartitionContent],
    *,
    sources: ColumnSources = MappingProxyType({}),
    inputs: Collection[AssetKey] = (),
    select: Callable[[list[str]], Iterable[str]] | None = None,
    spark: SparkResource | None = None,
) -> MaterializeResult:
    """Write the requested partitions, and return the result of the step.

    `what` names the partitions in messages. `write` writes one and returns its content with rows and metadata.
    `inputs` are the asset's inputs that are partitioned like the asset itself. `select` chooses among several requested
    partitions. `spark` is the resource of steps that can need a session.

    Raises:
        Failure: the step runs without a partition, or `write` refused.
    """
    watch, contents = Stopwatch(), {}
    with platform_errors_as_failures():
        requested = get_requested_partitions(context, what)
        if len(requested) == 1:
            content = _write_with_kind(write, requested[0], spark)
            return build_materialize_result(
                lake, content, rows=content.rows or 0, watch=watch, sources=sources, metadata=content.metadata
            )
        for partition in requested if select is None else select(requested):
            content = _write_with_kind(write, partition, spark)
            contents[partition] = content, find_last_write(lake, content.part)
    return log_partition_events(context, contents, inputs)


def _write_with_kind(
    write: Callable[[str], PartitionContent], partition: str, spark: SparkResource | None
) -> PartitionContent:
    content = write(partition)
    kind = "python" if spark is None else spark.kind
    return replace(content, metadata={**content.metadata, KIND_METADATA_KEY: kind})
