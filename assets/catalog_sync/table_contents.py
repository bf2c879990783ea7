"""Content of every asset partition according to the tables. Reads small tables and Delta logs, no streams."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from dagster import AssetKey

from cdc_platform.cdclog import REBUILT_SUFFIX, log_table, read_logged_tables, rebuilt_table
from cdc_platform.clock import Microseconds, datetime_from_us, us_from_datetime
from cdc_platform.cql import LOG_SUFFIX
from cdc_platform.delta import Filter, Lake, provenance, read_newest_versions, row_hash
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import HomeLocation
from cdc_platform.scylla import ScyllaCluster, registry
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    CDC_LOCAL,
    CDC_TABLES,
    CONSUMED_HOURS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLE_CHECKS,
    TABLES,
    TABLET_LAYOUTS,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.timeline import GenerationDigests, GenerationNames, GenerationRows
from cdc_platform_assets.data_versions import PartitionContent
from cdc_platform_assets.partitions import can_be_partition, partition_from_hour_us
from cdc_platform_assets.specs import asset_key_from_table

CDC_LOG_KEY = AssetKey(["platform", "cdc_log"])
REBUILT_KEY = AssetKey(["platform", "rebuilt_tables"])
OBSERVED_CLUSTER_KEY = AssetKey(["platform", "observed_cluster"])
INGESTED_LOG_KEY = AssetKey(["platform", "ingested_log"])
UNREADABLE = (PlatformError, pa.ArrowException, OSError, ValueError)
"""The errors of reading a damaged table."""
MAX_LOG_BYTES = 64 << 20
"""The most bytes of a log that is read to compute its digest, if no commit records that digest."""
GENERATION_TABLES = (
    BOOTSTRAP_EVENTS,
    TOPOLOGY_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    CDC_LOCAL,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
)
"""The tables whose assets have one partition per generation, in the order in which a join fills them."""
TABLET_STATE_TABLES = (TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS)
UNPARTITIONED_TABLES = (
    GENERATIONS,
    CDC_TABLES,
    GENERATION_SWITCHES,
    GENERATION_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS,
    REMOVED_GENERATIONS,
)
"""The tables whose assets have no partitions."""
_WATCHED_NAMES = frozenset(
    table.full_name
    for table in (*GENERATION_TABLES, *TABLET_STATE_TABLES, *UNPARTITIONED_TABLES, CONSUMED_HOURS, TABLE_CHECKS)
)


@dataclass(frozen=True)
class StoredPartition:
    """A partition of an asset and the part of a table that it stands for. `digest` is costly and computed on demand.

    `lake` is the lake of the table if it is the one of a cluster, and None if it is the home's.
    """

    asset: AssetKey
    partition: str | None
    part: GenerationRows
    digest: Callable[[], int | None]
    lake: Lake | None = None

    def content(self, lake: Lake) -> PartitionContent | None:
        """Return the partition's content, or None if it is empty."""
        digest = self.digest()
        path = (self.lake or lake).path(self.part.table)
        return None if digest is None else PartitionContent(self.part, digest, path)


def iterate_generation_partitions(names: GenerationNames, contents: GenerationDigests) -> Iterator[StoredPartition]:
    """Yield the stored partitions of a generation, in the order in which a join fills them."""
    for table in GENERATION_TABLES:
        part = names.part(table)
        if part is not None:
            yield StoredPartition(
                asset_key_from_table(table), names.key, part, lambda table=table: contents.of(names, table)
            )


def iterate_other_partitions(lake: Lake, hours_since_us: Microseconds = Microseconds(0)) -> Iterator[StoredPartition]:
    """Yield the stored partitions that belong to no generation, without hours from before `hours_since_us` (µs)."""
    for table in UNPARTITIONED_TABLES:
        yield StoredPartition(
            asset_key_from_table(table),
            None,
            GenerationRows(table, {}),
            lambda table=table: provenance.get_table_digest(lake, table),
        )
    for table in TABLET_STATE_TABLES:
        columns = ("keyspace_name", "table_name")
        yield from _partitions_by_columns(lake, table, columns, lambda values: ".".join(map(str, values)))
    yield from _partitions_by_columns(
        lake,
        CONSUMED_HOURS,
        ("hour",),
        lambda values: partition_from_hour_us(us_from_datetime(values[0])),
        [("hour", ">=", datetime_from_us(hours_since_us))],
    )
    for schema in read_logged_tables(lake):
        log = log_table(schema)
        yield StoredPartition(
            CDC_LOG_KEY,
            schema.full_name,
            GenerationRows(log, {}),
            lambda log=log: provenance.get_table_digest(lake, log, most_bytes=MAX_LOG_BYTES),
        )
        rebuilt = rebuilt_table(schema)
        if lake.exists(rebuilt):
            yield StoredPartition(
                REBUILT_KEY,
                schema.full_name,
                GenerationRows(rebuilt, {}),
                lambda rebuilt=rebuilt: provenance.get_table_digest(lake, rebuilt, most_bytes=MAX_LOG_BYTES),
            )


def iterate_cluster_partitions(clusters: Sequence[ScyllaCluster]) -> Iterator[StoredPartition]:
    """Yield what stands for tables in the homes of clusters: the observed cluster, and its ingested logs.

    A home that cannot be read has none; the runs and commands that read it report why.
    """
    for cluster in clusters:
        with suppress(*UNREADABLE):
            lake = open_cluster_lake(cluster)
            schemas = read_logged_tables(lake)
            yield StoredPartition(
                OBSERVED_CLUSTER_KEY,
                cluster.name,
                GenerationRows(GENERATION_TIMESTAMPS, {}),
                lambda lake=lake: provenance.get_table_digest(lake, GENERATION_TIMESTAMPS),
                lake,
            )
            for schema in schemas:
                log, partition = log_table(schema), f"{cluster.name}/{schema.full_name}"
                if not can_be_partition(partition):
                    continue
                yield StoredPartition(
                    INGESTED_LOG_KEY,
                    partition,
                    GenerationRows(log, {}),
                    lambda lake=lake, log=log: provenance.get_table_digest(lake, log, most_bytes=MAX_LOG_BYTES),
                    lake,
                )


def list_readable_clusters(home: HomeLocation) -> list[ScyllaCluster]:
    """Return the registered clusters, or none if a registration cannot be read. Runs that need them report that."""
    with suppress(*UNREADABLE):
        return registry.list_clusters(home)
    return []


def open_cluster_lake(cluster: ScyllaCluster) -> Lake:
    """Return the lake of a cluster's home."""
    return Lake(cluster.open_home().lake)


def describe_table_versions(versions: Mapping[str, int], clusters: Sequence[ScyllaCluster] = ()) -> str:
    """Return a string that changes with the version of a watched table, log or rebuilt table, or a cluster's table.

    `versions` are those of the home's tables (`read_newest_versions`). No table is opened.
    """
    state = digest_versions({name: version for name, version in versions.items() if _is_watched(name)})
    for cluster in clusters:
        with suppress(*UNREADABLE):
            state += f"/{digest_versions(read_newest_versions(open_cluster_lake(cluster)))}"
    return state


def digest_versions(versions: Mapping[str, int]) -> str:
    """Return a short digest of the versions of tables."""
    return hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()[:16]


def _is_watched(name: str) -> bool:
    """Return True if partitions of assets stand for parts of the table with this full name."""
    return name in _WATCHED_NAMES if name in TABLES else name.endswith((LOG_SUFFIX, REBUILT_SUFFIX))


def group_by_asset(partitions: Iterator[StoredPartition]) -> Mapping[AssetKey, list[StoredPartition]]:
    """Group stored partitions by asset."""
    ordered = sorted(partitions, key=lambda partition: partition.asset)
    return {asset: list(partitions) for asset, partitions in groupby(ordered, key=lambda partition: partition.asset)}


def _partitions_by_columns(
    lake: Lake,
    table: Table,
    columns: tuple[str, ...],
    named: Callable[[tuple[Any, ...]], str],
    filters: Sequence[Filter] = (),
) -> Iterator[StoredPartition]:
    rows = lake.read(table, filters=filters)
    digests = row_hash.digest_rows(rows, columns, lake.digest_rule(table))
    for values in sorted(set(zip(*(rows[name].to_pylist() for name in columns), strict=True))):
        where = dict(zip(columns, values, strict=True))
        digest = digests.get(row_hash.format_partition_name(columns, values))
        yield StoredPartition(
            asset_key_from_table(table), named(values), GenerationRows(table, where), lambda digest=digest: digest
        )
