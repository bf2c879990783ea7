"""The materialization of partitions: one partition gives a result, several give an event each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import MappingProxyType

from dagster import AssetExecutionContext, AssetKey, MaterializeResult

from cdc_platform.delta import Lake
from cdc_platform_assets.data_versions import PartitionContent, find_last_write, log_partition_events
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result
from cdc_platform_assets.partitions import get_requested_partitions
from cdc_platform_assets.specs import ColumnSources


def materialize_partitions(
    context: AssetExecutionContext,
    lake: Lake,
    what: str,
    write: Callable[[str], PartitionContent],
    *,
    sources: ColumnSources = MappingProxyType({}),
    inputs: Collection[AssetKey] = (),
    select: Callable[[list[str]], Iterable[str]] | None = None,
) -> MaterializeResult:
    """Write the requested partitions, and return the result of the step.

    `what` names the partitions in messages. `write` writes one and returns its content with rows and metadata.
    `inputs` are the asset's inputs that are partitioned like the asset itself. `select` chooses among several requested
    partitions.

    Raises:
        Failure: the step runs without a partition, or `write` refused.
    """
    watch, contents = Stopwatch(), {}
    with platform_errors_as_failures():
        requested = get_requested_partitions(context, what)
        if len(requested) == 1:
            content = write(requested[0])
            return build_materialize_result(
                lake, content, rows=content.rows or 0, watch=watch, sources=sources, metadata=content.metadata
            )
        for partition in requested if select is None else select(requested):
            content = write(partition)
            contents[partition] = content, find_last_write(lake, content.part)
    return log_partition_events(context, contents, inputs)
