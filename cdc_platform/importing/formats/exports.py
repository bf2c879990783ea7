"""Combine exported tables and schemas into the CDC metadata of a cluster, and check it for missing rows.

A table may be spread over several files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.generations import STREAM_ID_BYTES, TopologyDescription
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN
from cdc_platform.importing.formats.described_schema import (
    DescribedSchema,
    DescribedTable,
    is_schema_text,
    parse_schema_text,
)
from cdc_platform.importing.formats.exported_tables import (
    DESCRIPTIONS_V1,
    DESCRIPTIONS_V2,
    DESCRIPTIONS_V3,
    EXPORTED_TABLES,
    LOCAL,
    SCHEMA_TABLES,
    STREAMS_HISTORY,
    STREAMS_STATE,
    STREAMS_V1,
    STREAMS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TIMESTAMPS,
    TOPOLOGY,
    ExportedRow,
    ExportedRows,
    read_exported_table,
)
from cdc_platform.importing.formats.tablet_sets import TabletExports, derive_stream_sets, read_tablet_exports
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.importing.range_rows import RangeRows, described_range_rows, published_range_rows
from cdc_platform.ring import Node, is_ring_changing, membership_from_node_state


@dataclass(frozen=True, eq=False)
class V1Generation:
    """A generation as both V1 tables have it; `source` is the file. Values that a table lacks are None.

    `streams` uint8[k, 16] are the user-facing table's, in unsigned byte order.
    """

    source: str
    expired_ms: Milliseconds | None
    description: TopologyDescription | None = None
    streams: np.ndarray | None = None


@dataclass(frozen=True)
class CdcLocalRow:
    """A row of `cdc_local`; `host_id` is None if the file does not name the node."""

    location: str
    host_id: str | None
    key: str
    streams_timestamp_ms: Milliseconds | None
    uuid: str | None


@dataclass(frozen=True)
class V1Exports:
    """The content of V1 tables by time (ms), and of `cdc_local`."""

    descriptions: dict[Milliseconds, V1Generation] = field(default_factory=dict)
    streams: dict[Milliseconds, V1Generation] = field(default_factory=dict)
    local: list[CdcLocalRow] = field(default_factory=list)


@dataclass(frozen=True)
class TopologyExport:
    """The nodes that own tokens, and the UUIDs of committed generations by their times (ms)."""

    nodes: list[Node] = field(default_factory=list)
    committed: dict[Milliseconds, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterExports:
    """The content of export files: V2 descriptions by ID, streams by time (ms), times (ms) with their expiry (ms).

    `v1` is the content of V1 tables and of `cdc_local`; `tablets` are stream sets of tablets. `exported_tables` names
    the exported tables, even those without rows, by the tables that their rows go into. `topology` is what the
    cluster's Raft group has committed, `tables` are those with CDC options or a log in a schema, `warnings` are remarks
    on that schema.
    """

    descriptions: Mapping[str, RangeRows] = field(default_factory=dict)
    streams: Mapping[Milliseconds, RangeRows] = field(default_factory=dict)
    timestamps: Mapping[Milliseconds, Milliseconds | None] = field(default_factory=dict)
    v1: V1Exports = field(default_factory=V1Exports)
    tablets: TabletExports = field(default_factory=TabletExports)
    exported_tables: frozenset[str] = frozenset()
    topology: TopologyExport = field(default_factory=TopologyExport)
    tables: Sequence[DescribedTable] = ()
    warnings: Sequence[str] = ()


def parse_exports(files: Iterable[tuple[str, str]], issues: ImportIssues | None = None) -> ClusterExports:
    """Parse export files and schemas, given as (name, text).

    Raises:
        InputError: a text is no export or is truncated; files contradict each other; or rows are missing, and `issues`
            refuses issues.
    """
    issues = issues or ImportIssues()
    rows = {table: ExportedRows() for table in EXPORTED_TABLES}
    exported_tables: set[str] = set()
    schemas: list[DescribedSchema] = []
    for source, text in files:
        if is_schema_text(text):
            schemas.append(parse_schema_text(source, text))
            continue
        table, table_rows = read_exported_table(source, text)
        exported_tables.add(table.stored_in or table.name)
        for row in table_rows:
            rows[table].add(row)
    names = {id_: name for schema in schemas for id_, name in schema.names.items()}
    names |= {row.get("id"): (row.get("keyspace_name"), row.get("table_name")) for row in rows[SCHEMA_TABLES].take()}
    derived_sets = derive_stream_sets(rows[STREAMS_STATE].take(), rows[STREAMS_HISTORY].take(), names, issues)
    return ClusterExports(
        _read_descriptions(rows[DESCRIPTIONS_V2], rows[DESCRIPTIONS_V3], issues),
        _read_streams(rows[STREAMS_V2], issues),
        dict(sorted((row.get("time"), row.get("expired")) for row in rows[TIMESTAMPS].take())),
        V1Exports(
            {row.get("time"): _read_v1_description(row) for row in rows[DESCRIPTIONS_V1].take()},
            {row.get("time"): _read_v1_streams(row) for row in rows[STREAMS_V1].take()},
            [_read_local(row) for row in rows[LOCAL].take()],
        ),
        read_tablet_exports(rows[TABLET_TIMESTAMPS].take(), rows[TABLET_STREAMS].take(), derived_sets, issues),
        frozenset(exported_tables),
        _read_topology(rows[TOPOLOGY].take(), issues),
        [table for schema in schemas for table in schema.tables],
        [warning for schema in schemas for warning in schema.warnings],
    )


def _read_descriptions(own: ExportedRows, group: ExportedRows, issues: ImportIssues) -> dict[str, RangeRows]:
    """Return the V2 descriptions by ID.

    The group's own table has no row counts, so a generation that is in both tables is read from the one that has them.
    """
    by_id = _group_by_range(group, "id", issues) | _group_by_range(own, "id", issues)
    return {id_: _build_description(id_, rows, issues) for id_, rows in by_id.items()}


def _build_description(id_: str, rows: Mapping[int, ExportedRow], issues: ImportIssues) -> RangeRows:
    source = next(iter(rows.values())).source
    claims = None
    if all(row.table is DESCRIPTIONS_V2 for row in rows.values()):
        claims = {end: row.get("num_ranges") for end, row in rows.items()}
        claimed = set(claims.values())
        if claimed != {len(rows)}:
            counts = " and ".join(map(str, sorted(claimed)))
            issues.report(
                f"{source}: generation {id_} has {len(rows)} rows, num_ranges claims {counts}: {HALF_WRITTEN}"
            )
    ignore_msbs = {end: row.require("ignore_msb") for end, row in rows.items()}
    return described_range_rows(source, id_, _streams_by_end(rows), ignore_msbs, claims, issues)


def _read_streams(rows: ExportedRows, issues: ImportIssues) -> dict[Milliseconds, RangeRows]:
    """Return the published streams by time (ms), oldest first."""
    return {
        time_ms: published_range_rows(ranges[min(ranges)].source, time_ms, _streams_by_end(ranges), issues)
        for time_ms, ranges in sorted(_group_by_range(rows, "time", issues).items())
    }


def _group_by_range(rows: ExportedRows, partition: str, issues: ImportIssues) -> dict[Any, dict[int, ExportedRow]]:
    """Group rows by partition and range end. A row without streams cannot be stored, so its range is missing."""
    groups: dict[Any, dict[int, ExportedRow]] = {}
    for row in rows.take():
        if row.get("streams") is not None:
            groups.setdefault(row.get(partition), {})[row.require("range_end")] = row
        elif row.get("range_end") is None and row.table is DESCRIPTIONS_V2:
            issues.report(
                f"{row.location}: generation {row.get('id')} has num_ranges {row.get('num_ranges')} and no rows: "
                f"{HALF_WRITTEN}"
            )
        else:
            issues.report(f"{row.location}: streams: no streams; every range has at least one")
    return groups


def _streams_by_end(rows: Mapping[int, ExportedRow]) -> dict[int, bytes]:
    return {end: row.get("streams") for end, row in rows.items()}


def _read_v1_description(row: ExportedRow) -> V1Generation:
    return V1Generation(row.source, row.get("expired"), description=row.get("description"))


def _read_v1_streams(row: ExportedRow) -> V1Generation:
    streams = np.frombuffer(row.get("streams"), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    return V1Generation(row.source, row.get("expired"), streams=streams)


def _read_local(row: ExportedRow) -> CdcLocalRow:
    time_ms, uuid = row.get("streams_timestamp"), row.get("uuid")
    if uuid is not None and time_ms is None:
        raise InputError(f"{row.location}: uuid {uuid} without streams_timestamp; a generation's ID has its time")
    return CdcLocalRow(row.location, row.get("host_id"), row.get("key"), time_ms, uuid)


def _read_topology(rows: Iterable[ExportedRow], issues: ImportIssues) -> TopologyExport:
    """Return the nodes in the ring, and the committed generations. Every row repeats the group's values.

    Raises:
        InputError: a state is unknown; or nodes or generations are changing, and `issues` refuses issues.
    """
    topology = TopologyExport()
    for row in rows:
        host, state, transition = row.get("host_id"), row.get("node_state"), row.get("transition_state")
        if is_ring_changing(row.location, transition):
            issues.report(f"{row.source}: the topology is changing ({transition}); export it when that is done")
        topology.committed.update(row.get("committed_cdc_generations") or {})
        membership = membership_from_node_state(f"{row.location}: node {host}", state)
        if not membership.at_rest:
            issues.report(
                f"{row.source}: node {host} is {state}: the topology is changing; export it when that is done"
            )
        if membership.in_ring:
            topology.nodes.append(_read_node(row))
    return topology


def _read_node(row: ExportedRow) -> Node:
    return Node(
        host_id=UUID(row.get("host_id")),
        tokens=row.get("tokens") or (),
        shard_count=row.require("shard_count"),
        ignore_msb=row.require("ignore_msb"),
        address=row.get("rpc_address") or "",
        datacenter=row.get("datacenter") or "",
        rack=row.get("rack") or "",
        features=row.get("supported_features") or (),
    )
