"""What an event in Dagster says of a part of a table: its content as data version, who wrote it, what it was made from.

A step that is run for one partition leaves that to Dagster. Where one is run for several, Dagster would give all of
them one version; there, and where no run of Dagster has written, the events are made here, one a partition.
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

from assets.declared import key
from assets.reports import linked
from cdc_platform import __version__
from cdc_platform.clock import ms_to_datetime
from cdc_platform.lake import provenance
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.provenance import Change, last_change
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS
from cdc_platform.places import address_of, place_of
from cdc_platform.timeline.parts import Part

LINEAGE = "dagster/column_lineage"
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
_BEFORE_ALL = "-2"
"""Points before every event: whatever the input has since is newer than what was read."""

Due = Callable[[AssetKey], str | None]
"""Which version of an input was there when something was written; None where nobody can tell."""


@dataclass(frozen=True)
class Content:
    """What a partition of an asset holds: the rows of a part of a table, their digest, how many they are if known."""

    part: Part
    digest: int
    uri: str
    rows: int | None = None
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The data version."""
        return version_of(self.digest)


@dataclass(frozen=True)
class Asked:
    """An asset as its events have to name it: its inputs, and the version of the code that makes it."""

    key: AssetKey
    parents: Collection[AssetKey]
    code_version: str | None
    lineage: TableColumnLineage | None = None


def version_of(digest: int) -> str:
    """A digest as a data version."""
    return f"{digest:032x}"


def held(lake: Lake, part: Part) -> Content:
    """What a part of a table holds now; a part without rows has the digest 0."""
    whole = not part.where
    digest = provenance.whole(lake, part.table) if whole else provenance.held(lake, part.table, part.where)
    return Content(part, digest or 0, lake.path(part.table))


def event(
    instance: DagsterInstance,
    asked: Asked,
    partition: str | None,
    content: Content,
    change: Change | None,
    *,
    due: Due | None = None,
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
    metadata = {**told_of(content, change), **content.told}
    if partition is not None and asked.key == key(GENERATION_TIMESTAMPS) and "report" not in metadata:
        metadata |= linked(Lake(str(place_of(content.uri).folder.folder)), partition)
    if asked.lineage is not None:
        metadata[LINEAGE] = asked.lineage
    if content.rows is not None:
        metadata["dagster/row_count"] = content.rows
    if observed:
        return AssetObservation(asked.key, partition=partition, metadata=metadata, tags=tags)
    return AssetMaterialization(asked.key, partition=partition, metadata=metadata, tags=tags)


def told_of(content: Content, change: Change | None) -> dict[str, Any]:
    """What a part of a table holds and where, which commit holds it, who made that, when, in which run."""
    told: dict[str, Any] = {
        "digest": content.version,
        "table": content.part.table.full_name,
        "dagster/uri": MetadataValue.url(address_of(content.uri)),
    }
    if change is None:
        return told | {"delta_version": MetadataValue.int(-1), "written_by": "unknown"}
    commit, said = change.commit, change.commit.envelope
    told["delta_version"] = MetadataValue.int(commit.version)
    if commit.at_ms is not None:
        told["committed_at"] = MetadataValue.timestamp(ms_to_datetime(commit.at_ms))
    if said is None:
        return told | {"written_by": f"unknown, by {commit.engine}"}
    told |= {"commit": said.id, "program": said.program}
    by = " ".join(filter(None, (said.speaker.door, said.speaker.command)))
    told["written_by"] = f"{said.user}, {by}" if by else said.user
    if said.speaker.run:
        told["written_in_run"] = MetadataValue.dagster_run(said.speaker.run)
    return told


def written(lake: Lake, part: Part) -> Change | None:
    """The newest commit that wrote rows of a part."""
    return last_change(lake, part.table, part.where)


def told_apart(
    context: AssetExecutionContext, contents: Mapping[str, tuple[Content, Change | None]], inputs: Collection[AssetKey]
) -> MaterializeResult:
    """End a step that made several partitions: an event for each of them, with its own version, and none for others.

    `inputs` are those of the asset's that are partitioned as it is.
    """
    assets = context.assets_def
    parents = assets.asset_deps[assets.key]
    shared = [each for each in parents if each not in inputs]
    spec = assets.get_asset_spec(assets.key)
    asked = Asked(assets.key, sorted(parents), spec.code_version, spec.metadata.get(LINEAGE))
    for partition, (content, change) in contents.items():
        context.log_event(event(context.instance, asked, partition, content, change, shared=shared))
    # Dagster would give every partition of the run an event, and all of them one version.
    return MaterializeResult(metadata={WITHOUT_EVENT: True})


def _input_tags(instance: DagsterInstance, parent: AssetKey, partition: str | None, due: Due | None) -> dict[str, str]:
    record = instance.get_latest_data_version_record(parent, partition_key=partition)
    version = None if record is None else (record.event_log_entry.tags or {}).get(DATA_VERSION_TAG)
    pointer = NULL_EVENT if record is None else str(record.storage_id)
    wanted = version if due is None else due(parent)
    if wanted is not None and wanted != version:
        pointer, version = _BEFORE_ALL, wanted
    return {
        f"{INPUT_VERSION_TAG}/{parent.to_user_string()}": version or NULL_VERSION,
        f"{INPUT_EVENT_TAG}/{parent.to_user_string()}": pointer,
    }
