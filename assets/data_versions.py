"""Data versions and materialization events of table partitions: content digest, writer and input versions.

Dagster would give all partitions of a multi-partition step one version, so this module builds one event per partition.
The same applies to writes outside of Dagster's runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    MaterializeResult,
    MetadataValue,
    TableColumnLineage,
)

from cdc_platform import __version__
from cdc_platform.clock import datetime_from_ms
from cdc_platform.delta import Lake, PartChange, find_last_change, provenance
from cdc_platform.storage import format_uri, parse_path
from cdc_platform.tables import GENERATION_TIMESTAMPS
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.reports import build_report_link
from cdc_platform_assets.specs import asset_key_from_table

LINEAGE_METADATA_KEY = "dagster/column_lineage"
KIND_METADATA_KEY = "kind"
"""The metadata key that says what wrote a partition: python or spark in a run of Dagster, or a command."""
DATA_VERSION_TAG = "dagster/data_version"
USER_PROVIDED_TAG = "dagster/data_version_is_user_provided"
CODE_VERSION_TAG = "dagster/code_version"
INPUT_VERSION_TAG = "dagster/input_data_version"
INPUT_EVENT_TAG = "dagster/input_event_pointer"
"""Tags under which Dagster stores an event's data version and code version, and each input's version and event.

The last two are followed by a slash and the input's key.
"""
NULL_VERSION = NULL_EVENT = "NULL"
"""The version and the event of an input that has none."""
WITHOUT_EVENT = "__source_asset_observation__"
"""The metadata key of an output for which Dagster creates no event."""
_POINTER_BEFORE_ALL = "-2"
"""A pointer before every event: any event of the input counts as newer than what was read."""

InputVersionLookup = Callable[[AssetKey], str | None]
"""Returns the version that an input had when something was written, or None if that is unknown."""


@dataclass(frozen=True)
class PartitionContent:
    """The content of an asset's partition: the part of a table, its digest and, if known, the number of rows."""

    part: GenerationRows
    digest: int
    uri: str
    rows: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Return the data version."""
        return data_version_from_digest(self.digest)


@dataclass(frozen=True)
class AssetEventSpec:
    """What an asset's events name: its inputs and the version of the code that computes it."""

    key: AssetKey
    parents: Collection[AssetKey]
    code_version: str | None
    lineage: TableColumnLineage | None = None


def data_version_from_digest(digest: int) -> str:
    """Format a digest as a data version."""
    return f"{digest:032x}"


def read_partition_content(
    lake: Lake, part: GenerationRows, rows: int | None = None, metadata: Mapping[str, Any] = MappingProxyType({})
) -> PartitionContent:
    """Return the current content of a part of a table, with `rows` and `metadata` for its event.

    A part without rows has the digest 0.
    """
    whole = not part.where
    digest = (
        provenance.get_table_digest(lake, part.table)
        if whole
        else provenance.get_part_digest(lake, part.table, part.where)
    )
    return PartitionContent(part, digest or 0, lake.path(part.table), rows, metadata)


def build_partition_event(
    instance: DagsterInstance,
    spec: AssetEventSpec,
    partition: str | None,
    content: PartitionContent,
    change: PartChange | None,
    *,
    due: InputVersionLookup | None = None,
    observed: bool = False,
    shared: Collection[AssetKey] = (),
) -> AssetMaterialization | AssetObservation:
    """Build the event of a partition that a commit has written.

    `due` returns the version that each input had then; without it the current versions count. `shared` are the inputs
    that are partitioned in another way than this asset.
    """
    commit_info = None if change is None else change.commit.info
    # This version's code may compute a different result than the version that wrote the content.
    other_version = commit_info is not None and commit_info.program != __version__
    code = f"cdc-platform {commit_info.program}" if commit_info is not None and other_version else spec.code_version
    tags = {
        DATA_VERSION_TAG: content.version,
        USER_PROVIDED_TAG: "true",
        CODE_VERSION_TAG: code or __version__,
    }
    for parent in spec.parents:
        tags |= _input_tags(instance, parent, None if parent in shared else partition, due)
    metadata = {
        KIND_METADATA_KEY: describe_kind(change),
        **build_content_metadata(content, change),
        **content.metadata,
    }
    if partition is not None and spec.key == asset_key_from_table(GENERATION_TIMESTAMPS) and "report" not in metadata:
        metadata |= build_report_link(Lake(str(parse_path(content.uri).folder.folder)), partition)
    if spec.lineage is not None:
        metadata[LINEAGE_METADATA_KEY] = spec.lineage
    if content.rows is not None:
        metadata["dagster/row_count"] = content.rows
    if observed:
        return AssetObservation(spec.key, partition=partition, metadata=metadata, tags=tags)
    return AssetMaterialization(spec.key, partition=partition, metadata=metadata, tags=tags)


def build_content_metadata(content: PartitionContent, change: PartChange | None) -> dict[str, Any]:
    """Return the metadata of a content: digest, table and URI, and the commit with its writer, time and run."""
    metadata: dict[str, Any] = {
        "digest": content.version,
        "table": content.part.table.full_name,
        "dagster/uri": MetadataValue.url(format_uri(content.uri)),
    }
    if change is None:
        return metadata | {"delta_version": MetadataValue.int(-1), "written_by": "unknown"}
    commit, commit_info = change.commit, change.commit.info
    metadata["delta_version"] = MetadataValue.int(commit.version)
    if commit.at_ms is not None:
        metadata["committed_at"] = MetadataValue.timestamp(datetime_from_ms(commit.at_ms))
    if commit_info is None:
        return metadata | {"written_by": f"unknown, by {commit.engine}"}
    metadata |= {"commit": commit_info.id, "program": commit_info.program}
    by = " ".join(filter(None, (commit_info.author.entry_point, commit_info.author.command)))
    metadata["written_by"] = f"{commit_info.user}, {by}" if by else commit_info.user
    if commit_info.author.run:
        metadata["written_in_run"] = MetadataValue.dagster_run(commit_info.author.run)
    return metadata


def describe_kind(change: PartChange | None) -> str:
    """Return what wrote a commit: command, python (a program of the Python API), run (of Dagster), or unknown."""
    commit_info = None if change is None else change.commit.info
    if commit_info is None:
        return "unknown"
    entry_point = commit_info.author.entry_point
    return {"command line": "command", "Dagster": "run", "Spark": "spark"}.get(entry_point, "python")


def find_last_write(lake: Lake, part: GenerationRows) -> PartChange | None:
    """Return the newest commit that wrote rows of a part."""
    return find_last_change(lake, part.table, part.where)


def log_partition_events(
    context: AssetExecutionContext,
    contents: Mapping[str, tuple[PartitionContent, PartChange | None]],
    inputs: Collection[AssetKey],
) -> MaterializeResult:
    """Finish a step that made several partitions: log one event per partition, each with its own version.

    `inputs` are the asset's inputs that are partitioned like the asset itself.
    """
    assets = context.assets_def
    parents = assets.asset_deps[assets.key]
    shared = [parent for parent in parents if parent not in inputs]
    spec = assets.get_asset_spec(assets.key)
    event_spec = AssetEventSpec(assets.key, sorted(parents), spec.code_version, spec.metadata.get(LINEAGE_METADATA_KEY))
    for partition, (content, change) in contents.items():
        context.log_event(
            build_partition_event(context.instance, event_spec, partition, content, change, shared=shared)
        )
    # Otherwise Dagster would create an event for every partition of the run, all with one version.
    return MaterializeResult(metadata={WITHOUT_EVENT: True})


def _input_tags(
    instance: DagsterInstance, parent: AssetKey, partition: str | None, due: InputVersionLookup | None
) -> dict[str, str]:
    record = instance.get_latest_data_version_record(parent, partition_key=partition)
    version = None if record is None else (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG)
    pointer = NULL_EVENT if record is None else str(record.storage_id)
    wanted = version if due is None else due(parent)
    if wanted is not None and wanted != version:
        pointer, version = _POINTER_BEFORE_ALL, wanted
    return {
        f"{INPUT_VERSION_TAG}/{parent.to_user_string()}": version or NULL_VERSION,
        f"{INPUT_EVENT_TAG}/{parent.to_user_string()}": pointer,
    }
