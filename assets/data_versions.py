"""Data versions and materialization events of table partitions: content digest, writer and input versions.

Dagster would give all partitions of a multi-partition step one version, so these events are built here, one per
partition. The same holds for writes outside of Dagster's runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
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

from assets.reports import build_report_link
from assets.specs import asset_key_from_table
from cdc_platform import __version__
from cdc_platform.clock import datetime_from_ms
from cdc_platform.delta import Lake, PartChange, find_last_change, provenance
from cdc_platform.storage import format_uri, parse_path
from cdc_platform.tables import GENERATION_TIMESTAMPS
from cdc_platform.timeline import GenerationRows

LINEAGE_METADATA_KEY = "dagster/column_lineage"
DATA_VERSION_TAG = "dagster/data_version"
USER_PROVIDED_TAG = "dagster/data_version_is_user_provided"
CODE_VERSION_TAG = "dagster/code_version"
INPUT_VERSION_TAG = "dagster/input_data_version"
INPUT_EVENT_TAG = "dagster/input_event_pointer"
"""Tags by which Dagster stores the data version of an event, the code behind it, and the version and the event of each
input (the last two are followed by a slash and the input's key)."""
NULL_VERSION = NULL_EVENT = "NULL"
"""The version and the event of an input that has none."""
WITHOUT_EVENT = "__source_asset_observation__"
"""The metadata of an output for which Dagster makes no event."""
_POINTER_BEFORE_ALL = "-2"
"""Points before every event: whatever the input has since is newer than what was read."""

InputVersionLookup = Callable[[AssetKey], str | None]
"""Which version of an input was there when something was written; None where nobody can tell."""


@dataclass(frozen=True)
class PartitionContent:
    """What a partition of an asset holds: the rows of a part of a table, their digest, how many they are if known."""

    part: GenerationRows
    digest: int
    uri: str
    rows: int | None = None
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The data version."""
        return data_version_from_digest(self.digest)


@dataclass(frozen=True)
class AssetEventSpec:
    """An asset as its events have to name it: its inputs, and the version of the code that makes it."""

    key: AssetKey
    parents: Collection[AssetKey]
    code_version: str | None
    lineage: TableColumnLineage | None = None


def data_version_from_digest(digest: int) -> str:
    """A digest as a data version."""
    return f"{digest:032x}"


def read_partition_content(lake: Lake, part: GenerationRows) -> PartitionContent:
    """What a part of a table holds now; a part without rows has the digest 0."""
    whole = not part.where
    digest = (
        provenance.get_table_digest(lake, part.table)
        if whole
        else provenance.get_part_digest(lake, part.table, part.where)
    )
    return PartitionContent(part, digest or 0, lake.path(part.table))


def build_partition_event(
    instance: DagsterInstance,
    asked: AssetEventSpec,
    partition: str | None,
    content: PartitionContent,
    change: PartChange | None,
    *,
    due: InputVersionLookup | None = None,
    observed: bool = False,
    shared: Collection[AssetKey] = (),
) -> AssetMaterialization | AssetObservation:
    """What is said of a partition that a commit has written. `shared`: inputs that are not partitioned as it is.

    `due` says what its inputs were then; without it they are as they are now.
    """
    said = None if change is None else change.commit.envelope
    # What another version of the program computed, this one's code may compute otherwise.
    older = said is not None and said.program != __version__
    code = f"cdc-platform {said.program}" if said is not None and older else asked.code_version
    tags = {
        DATA_VERSION_TAG: content.version,
        USER_PROVIDED_TAG: "true",
        CODE_VERSION_TAG: code or __version__,
    }
    for parent in asked.parents:
        tags |= _input_tags(instance, parent, None if parent in shared else partition, due)
    metadata = {**build_content_metadata(content, change), **content.told}
    if partition is not None and asked.key == asset_key_from_table(GENERATION_TIMESTAMPS) and "report" not in metadata:
        metadata |= build_report_link(Lake(str(parse_path(content.uri).folder.folder)), partition)
    if asked.lineage is not None:
        metadata[LINEAGE_METADATA_KEY] = asked.lineage
    if content.rows is not None:
        metadata["dagster/row_count"] = content.rows
    if observed:
        return AssetObservation(asked.key, partition=partition, metadata=metadata, tags=tags)
    return AssetMaterialization(asked.key, partition=partition, metadata=metadata, tags=tags)


def build_content_metadata(content: PartitionContent, change: PartChange | None) -> dict[str, Any]:
    """What a part of a table holds and where, which commit holds it, who made that, when, in which run."""
    told: dict[str, Any] = {
        "digest": content.version,
        "table": content.part.table.full_name,
        "dagster/uri": MetadataValue.url(format_uri(content.uri)),
    }
    if change is None:
        return told | {"delta_version": MetadataValue.int(-1), "written_by": "unknown"}
    commit, said = change.commit, change.commit.envelope
    told["delta_version"] = MetadataValue.int(commit.version)
    if commit.at_ms is not None:
        told["committed_at"] = MetadataValue.timestamp(datetime_from_ms(commit.at_ms))
    if said is None:
        return told | {"written_by": f"unknown, by {commit.engine}"}
    told |= {"commit": said.id, "program": said.program}
    by = " ".join(filter(None, (said.speaker.door, said.speaker.command)))
    told["written_by"] = f"{said.user}, {by}" if by else said.user
    if said.speaker.run:
        told["written_in_run"] = MetadataValue.dagster_run(said.speaker.run)
    return told


def find_last_write(lake: Lake, part: GenerationRows) -> PartChange | None:
    """The newest commit that wrote rows of a part."""
    return find_last_change(lake, part.table, part.where)


def log_partition_events(
    context: AssetExecutionContext,
    contents: Mapping[str, tuple[PartitionContent, PartChange | None]],
    inputs: Collection[AssetKey],
) -> MaterializeResult:
    """End a step that made several partitions: an event for each of them, with its own version, and none for others.

    `inputs` are those of the asset's that are partitioned as it is.
    """
    assets = context.assets_def
    parents = assets.asset_deps[assets.key]
    shared = [each for each in parents if each not in inputs]
    spec = assets.get_asset_spec(assets.key)
    asked = AssetEventSpec(assets.key, sorted(parents), spec.code_version, spec.metadata.get(LINEAGE_METADATA_KEY))
    for partition, (content, change) in contents.items():
        context.log_event(build_partition_event(context.instance, asked, partition, content, change, shared=shared))
    # Dagster would give every partition of the run an event, and all of them one version.
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
