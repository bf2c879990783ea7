"""Import ring snapshots, cqlsh exports and schemas into the lake: read and check all files first, then write."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.delta import IMPORTS_LOCK, JOINS_LOCK, Lake, WriteSource, exclusive, observed_home, write_as
from cdc_platform.errors import ConflictError, InputError
from cdc_platform.importing.formats.exports import V1Exports
from cdc_platform.importing.plan import ImportedStreamSet, ImportPlan
from cdc_platform.importing.planner import plan_import, plan_nodes
from cdc_platform.importing.range_rows import OrderedRangeRows
from cdc_platform.importing.sources import ImportSources, read_import_sources
from cdc_platform.metastore import cdc_tables, inbox, replace_ring
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import (
    CDC_LOCAL,
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_LAYOUTS,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    UNORDERED_RANGES,
    Table,
)

# Dependencies come first: data before the timestamps that commit it, generations before the nodes that know them.
WRITE_ORDER = (
    GENERATION_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    COMMITTED_GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    CDC_LOCAL,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TABLET_LAYOUTS,
)
"""The tables that an import writes, in write order."""
# A ledger row keeps the time at which it was first entered, and a stream set never changes.
_ENTERED_ONCE = (GENERATIONS, TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)

_MAX_ATTEMPTS = 5
"""How often an import is planned again because other writers changed the tables it was planned against."""


@dataclass(frozen=True)
class ImportedGeneration:
    """One generation of an import. `ranges` and `streams` are 0 where only its timestamp was exported.

    `unordered_ranges` counts the ranges whose streams could not be put back in shard order.
    """

    id: str | None
    time_ms: Milliseconds | None
    expired_ms: Milliseconds | None
    ranges: int
    streams: int
    unordered_ranges: int


@dataclass
class ImportReport:
    """The result of an import: changed hosts, generations and stream sets (newest first), and warnings."""

    nodes_added: list[str] = field(default_factory=list)
    nodes_changed: list[str] = field(default_factory=list)
    nodes_removed: list[str] = field(default_factory=list)
    generations: list[ImportedGeneration] = field(default_factory=list)
    stream_sets: list[ImportedStreamSet] = field(default_factory=list)
    rows_written: int = 0
    warnings: list[str] = field(default_factory=list)
    issues: list[str] = field(default_factory=list)
    turned_off: list[str] = field(default_factory=list)
    """Statements of an imported schema that turn CDC off, perhaps unintentionally."""


def import_paths(
    lake: Lake,
    clock: Clock,
    paths: Sequence[str | Path],
    shards: int | None = None,
    ignore_msb: int | None = None,
    host_id: str | None = None,
    *,
    allow_incomplete: bool = False,
) -> ImportReport:
    """Import files, or all known files of folders: `read_import_sources` followed by `import_sources`.

    Raises:
        NotFound, InputError: as those two; nothing was written.
    """
    return import_sources(
        lake, clock, read_import_sources(paths, shards, ignore_msb, host_id, allow_incomplete=allow_incomplete)
    )


class _ChangedMeanwhile(Exception):
    """Raised if a table changed after the import was planned against it."""


@exclusive(IMPORTS_LOCK)
def import_sources(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    """Write the parsed sources. A ring snapshot replaces the ring. Importing the same sources again changes nothing.

    If issues were accepted (`allow_incomplete`), the home becomes read-only (observed).

    Imports take an exclusive lock. Each table is written as the version that follows the one that its rows were checked
    against.

    Raises:
        InputError: an export contradicts the lake or is half-written; nothing was written.
        StateError: the log of a tablet-based table was dropped after its stream sets began; nothing was written.
        ConflictError: other writers changed the tables at every attempt.
    """
    for _ in range(_MAX_ATTEMPTS):
        with suppress(_ChangedMeanwhile), write_as(WriteSource.STATED):
            return _import_once(lake, clock, sources)
    raise ConflictError("other writers changed the tables of the import each time before it wrote them; run it again")


def _import_once(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    nodes, ring_warnings = plan_nodes(lake, sources)
    versions = {table.full_name: lake.version(table) for table in (UNORDERED_RANGES, *WRITE_ORDER)}
    if nodes is not None:
        _check_ring(lake, nodes)
    plan = plan_import(lake, clock, sources, nodes)
    report = ImportReport(
        generations=_imported_generations(plan),
        stream_sets=plan.stream_sets,
        warnings=[f"{path}: unknown format; ignored" for path in sources.ignored] + ring_warnings + plan.warnings,
        issues=list(plan.issues.messages),
        turned_off=list(plan.exports.warnings),
    )
    if report.issues and plan.issues.makes_read_only:
        observed_home.mark_as_observed(lake, clock, report.issues)
    if nodes is not None:
        _replace_ring(lake, nodes, report)
    report.rows_written += _write_plan(lake, plan, versions)
    report.rows_written += len(cdc_tables.record_table_changes(lake, plan.table_changes))
    for table in WRITE_ORDER:
        if table.name in plan.exports.exported_tables:
            lake.ensure(table)  # a table without rows is empty, which differs from unknown
    return report


def _check_ring(lake: Lake, nodes: Sequence[Node]) -> None:
    """Raise InputError if a node that is queued to join could not join the new ring."""
    hosts = {node.host_id for node in nodes}
    for join in inbox.read_pending_events(lake):
        if join.kind == inbox.REPAIR_EVENT or uuid.UUID(join.host_id) in hosts:
            continue
        try:
            Ring.of([*nodes, inbox.find_event(lake, event_id=join.event_id).node])
        except InputError as error:
            raise InputError(
                f"host {join.host_id} waits to join and could not join this ring: {error}; take it back with: "
                f"cdc-platform bootstrap --withdraw {join.event_id}"
            ) from None


@exclusive(JOINS_LOCK)
def _replace_ring(lake: Lake, nodes: Sequence[Node], report: ImportReport) -> None:
    """Replace the ring. Check the queued joins again under the lock: nodes may have been queued since the plan."""
    _check_ring(lake, nodes)
    replaced = replace_ring(lake, nodes)
    report.nodes_added, report.nodes_removed = replaced.added, replaced.removed
    report.nodes_changed = replaced.changed
    report.rows_written += replaced.rows_written


def _write_plan(lake: Lake, plan: ImportPlan, seen: Mapping[str, int | None]) -> int:
    """Write in an order such that the same import can complete the lake after a crash at any point.

    Markers precede the rows that they mark; rows precede the timestamps that commit them.
    """
    written = _merge_rows(lake, UNORDERED_RANGES, pa.concat_tables(plan.marks), seen) if plan.marks else 0
    for table in WRITE_ORDER:
        batches = [rows for planned, rows in plan.rows if planned is table]
        if batches:
            written += _merge_rows(lake, table, pa.concat_tables(batches), seen, update=table not in _ENTERED_ONCE)
    for table, name, ends in plan.unmarked:
        partition_filter = [("table_name", "=", table.full_name), ("generation", "=", name)]
        written += lake.delete(UNORDERED_RANGES, [*partition_filter, ("range_end", "in", ends)])
    return written


def _merge_rows(
    lake: Lake, table: Table, rows: pa.Table, seen: Mapping[str, int | None], *, update: bool = True
) -> int:
    def as_judged() -> pa.Table:
        version = seen[table.full_name]
        if lake.data_files(table) if version is None else lake.version(table) != version:
            raise _ChangedMeanwhile
        return rows

    merged = lake.merge_judged(table, as_judged, update=update)
    return 0 if merged is None else merged.inserted + merged.updated


def _imported_generations(plan: ImportPlan) -> list[ImportedGeneration]:
    timestamps, v1 = plan.exports.timestamps, plan.exports.v1
    new = timestamps.keys() | plan.streams.keys()
    times = sorted(new | v1.descriptions.keys() | v1.streams.keys(), reverse=True)
    timed = [
        _imported_generation(plan.ids.get(time), time, timestamps.get(time), plan.streams.get(time))
        if time in new
        else _imported_v1_generation(time, v1)
        for time in times
    ]
    timeless = [id_ for id_ in plan.descriptions if id_ not in plan.ids.values()]
    return timed + [_imported_generation(id_, None, None, plan.descriptions[id_]) for id_ in timeless]


def _imported_v1_generation(time_ms: Milliseconds, v1: V1Exports) -> ImportedGeneration:
    """Return a V1 generation, which has no UUID; without a description the number of its ranges is unknown (0)."""
    described, flat = v1.descriptions.get(time_ms), v1.streams.get(time_ms)
    expired = next(
        (exported.expired_ms for exported in (described, flat) if exported and exported.expired_ms is not None), None
    )
    if described is not None and described.description is not None:
        description = described.description
        return ImportedGeneration(None, time_ms, expired, len(description), len(description.streams), 0)
    count = 0 if flat is None or flat.streams is None else len(flat.streams)
    return ImportedGeneration(None, time_ms, expired, 0, count, 0)


def _imported_generation(
    id_: str | None, time_ms: Milliseconds | None, expired_ms: Milliseconds | None, ordered: OrderedRangeRows | None
) -> ImportedGeneration:
    if ordered is None:
        return ImportedGeneration(id_, time_ms, expired_ms, 0, 0, 0)
    rows = ordered.rows
    return ImportedGeneration(id_, time_ms, expired_ms, len(rows), len(rows.streams), len(ordered.reasons))
