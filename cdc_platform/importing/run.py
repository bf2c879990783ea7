"""Import ring snapshots, cqlsh exports and schemas into the lake: read and check all files first, then write."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.cql import get_index_comments, strip_comments
from cdc_platform.delta import IMPORTS_LOCK, JOINS_LOCK, Lake, WriteSource, exclusive, observed_home, write_as
from cdc_platform.errors import ConflictError, InputError
from cdc_platform.importing.formats.described_schema import DescribedTable, is_schema_text
from cdc_platform.importing.formats.exports import CqlshExports, V1Exports, parse_exports
from cdc_platform.importing.formats.nodetool import (
    NodetoolRing,
    NodetoolStatus,
    apply_status,
    is_nodetool_ring,
    is_nodetool_status,
    nodes_from_ring,
    parse_nodetool_ring,
    parse_nodetool_status,
)
from cdc_platform.importing.formats.ring_snapshot import parse_ring_snapshot
from cdc_platform.importing.formats.strict_json import max_export_bytes
from cdc_platform.importing.formats.text_tables import is_cqlsh_table, is_json_rows
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.importing.plan import ImportPlan, plan_import
from cdc_platform.importing.plan_tablets import ImportedStreamSet
from cdc_platform.importing.range_rows import OrderedRangeRows
from cdc_platform.metastore import CdcTable, cdc_tables, inbox, read_current_ring, read_nodes, replace_ring
from cdc_platform.ring import Node, Ring
from cdc_platform.storage import read_user_text, too_large_error
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


def update_tables(lake: Lake, clock: Clock, exports: CqlshExports) -> int:
    """Add unknown tables and alter those that changed; return how many changes were recorded.

    A schema shows the current state of tables, but not since when, nor mostly how old their logs are; that stays
    unknown. Tables missing from the schema stay, because a schema may describe only one keyspace. A table without CDC
    enabled and without a log in the schema has no log.

    Raises:
        InputError: a name, a TTL or a time is invalid; nothing was recorded.
    """
    known = {
        (cdc_table.keyspace_name, cdc_table.table_name): cdc_table for cdc_table in cdc_tables.read_cdc_tables(lake)
    }
    changes = []
    for table in exports.tables:
        name = table.keyspace, table.name
        existing = known.get(name)
        created_ms = None if table.created_at_ms is None else min(clock.now_ms(), table.created_at_ms)
        if existing is None and table.is_logged:
            options: dict[str, Any] = {
                "ttl_seconds": table.ttl_seconds or 0,
                "enabled": table.enabled,
                "ddl": table.ddl,
            }
            addition = cdc_tables.request_addition(
                lake, clock, *name, created_at_ms=created_ms, observed=True, **options
            )
            changes.append(addition)
        elif existing is not None and not _is_same(existing, table):
            current_options: dict[str, Any] = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled}
            if table.ttl_seconds is None:
                current_options = {}
            ddl = existing.ddl if _has_definition(existing, table) else table.ddl
            alteration = cdc_tables.request_alteration(
                lake, clock, *name, created_at_ms=created_ms, observed=True, ddl=ddl, **current_options
            )
            changes.append(alteration)
    return len(cdc_tables.record_table_changes(lake, changes))


def describe_missing_options(exports: CqlshExports) -> list[str]:
    """Return a line for each log imported without the CDC options of its base table, with what is assumed."""
    return [
        f"{described.full_name}: its log is in the schema, and its CDC options are not, so its rows are taken to never "
        "expire; import the schema with its base table"
        for described in exports.tables
        if described.ttl_seconds is None
    ]


def describe_missing_definitions(exports: CqlshExports) -> list[str]:
    """Return a line for each table imported without its definition, with the reason."""
    return [
        f"{each.full_name}: its definition is left out, so its keys cannot be asked for by their values: {each.unread}"
        for each in exports.tables
        if each.unread is not None
    ]


def _is_same(there: CdcTable, table: DescribedTable) -> bool:
    options = table.ttl_seconds is None or (there.ttl_seconds, there.enabled) == (table.ttl_seconds, table.enabled)
    # Of two possible creation times of a log the older one counts.
    created = table.created_at_ms is None or (
        there.created_at_ms is not None and there.created_at_ms <= table.created_at_ms
    )
    return options and created and _has_definition(there, table)


def _has_definition(there: CdcTable, table: DescribedTable) -> bool:
    """Return True if the described definition equals the known one, ignoring truncations recorded here only."""
    if table.ddl is None:
        return True
    return there.ddl is not None and _definition(there.ddl) == _definition(table.ddl)


def _definition(ddl: str) -> tuple[str, list[str]]:
    """Return a table's statement and its search indexes, without other comments."""
    return strip_comments(ddl), get_index_comments(ddl)


_KNOWN_SUFFIXES = (".json", ".csv")
_HEAD = 64 * 1024
"""The bytes of a file that are read to identify its format."""
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


@dataclass(frozen=True)
class ImportSources:
    """The parsed input of an import: the nodes of a ring snapshot (None without one) and the exports.

    `printed` and `status` are nodetool's output about the ring and its members. `shards` and `ignore_msb` are the
    sharding of nodes for which no file states it.
    """

    nodes: list[Node] | None
    exports: CqlshExports
    ignore_msb: int | None
    ignored: list[Path]
    host_id: str | None = None
    flaws: ImportIssues = field(default_factory=ImportIssues)
    printed: NodetoolRing | None = None
    shards: int | None = None
    status: NodetoolStatus | None = None


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
    flaws: list[str] = field(default_factory=list)
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
    as_is: bool = False,
) -> ImportReport:
    """Import files, or all known files of folders: `read_import_sources` followed by `import_sources`.

    Raises:
        NotFound, InputError: as those two; nothing was written.
    """
    return import_sources(lake, clock, read_import_sources(paths, shards, ignore_msb, host_id, as_is=as_is))


def read_import_sources(
    paths: Sequence[str | Path],
    shards: int | None = None,
    ignore_msb: int | None = None,
    host_id: str | None = None,
    *,
    as_is: bool = False,
) -> ImportSources:
    """Read and check files, or all known files of folders.

    `shards` and `ignore_msb` apply to nodes of a ring snapshot that does not state them; `ignore_msb` also applies to
    streams without a known V2 description. `host_id` names the node whose `cdc_local` was exported. With `as_is`,
    issues of the cluster are recorded instead of refused.

    Raises:
        NotFound: a path does not exist.
        InputError: a file is invalid or truncated.
    """
    files, ignored = _list_files(paths)
    flaws = ImportIssues(as_is)
    texts = _read_texts(files)
    rings = [(source, text) for source, text in texts if is_nodetool_ring(text)]
    statuses = [(source, text) for source, text in texts if is_nodetool_status(text)]
    if len(statuses) > 1:
        raise InputError(f"{statuses[0][0]} and {statuses[1][0]} are both nodetool status; import the newest alone")
    others = [file for file in texts if file not in rings and file not in statuses]
    nodes, exports = _parse(others, shards, ignore_msb, flaws)
    if len(rings) + (nodes is not None) > 1:
        raise InputError(f"{rings[0][0]} and another ring at once; the ring is one: import the newest alone")
    printed = parse_nodetool_ring(*rings[0], flaws) if rings else None
    status = parse_nodetool_status(*statuses[0], flaws) if statuses else None
    return ImportSources(nodes, exports, ignore_msb, ignored, host_id, flaws, printed, shards, status)


class _ChangedMeanwhile(Exception):
    """Raised if a table changed after the import was planned against it."""


@exclusive(IMPORTS_LOCK)
def import_sources(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    """Write the parsed sources. A ring snapshot replaces the ring. Importing the same sources again changes nothing.

    If issues were accepted (`as_is`), the home becomes read-only (observed).

    Imports take an exclusive lock. Each table is written as the version that follows the one that its rows were checked
    against.

    Raises:
        InputError: an export contradicts the lake or is half-written; nothing was written.
        StateError: the log of a tablet-based table was dropped after its stream sets began; nothing was written.
        ConflictError: other writers kept changing the tables.
    """
    for _ in range(_MAX_ATTEMPTS):
        with suppress(_ChangedMeanwhile), write_as(WriteSource.STATED):
            return _import_once(lake, clock, sources)
    raise ConflictError(
        "the tables of the import changed each time between its look at them and its writing; run it again"
    )


def _import_once(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    nodes, ring_warnings = _plan_nodes(lake, sources)
    versions = {table.full_name: lake.version(table) for table in (UNORDERED_RANGES, *WRITE_ORDER)}
    if nodes is not None:
        _check_ring(lake, nodes)
    ring = read_current_ring(lake) if nodes is None else Ring.of(nodes)
    plan = plan_import(lake, clock, sources.exports, ring, sources.ignore_msb, sources.host_id, sources.flaws)
    report = ImportReport(generations=_imported_generations(plan, sources.exports.v1), stream_sets=plan.stream_sets)
    report.warnings = [f"{path} is none of the files that are read here and was left alone" for path in sources.ignored]
    report.warnings += [*ring_warnings, *plan.warnings, *describe_missing_definitions(sources.exports)]
    report.warnings += describe_missing_options(sources.exports)
    report.turned_off = list(sources.exports.warnings)
    report.flaws = list(sources.flaws.told)
    if report.flaws and sources.flaws.marks:
        observed_home.mark_as_observed(lake, clock, report.flaws)
    if nodes is not None:
        _replace_ring(lake, nodes, report)
    report.rows_written += _write_plan(lake, plan, versions) + update_tables(lake, clock, sources.exports)
    for table in WRITE_ORDER:
        if table.name in sources.exports.held:
            lake.ensure(table)  # a table without rows is empty, which differs from unknown
    return report


def _plan_nodes(lake: Lake, sources: ImportSources) -> tuple[list[Node] | None, list[str]]:
    """Return the nodes of the new ring (None if the ring stays as it is) and the warnings."""
    nodes, warnings = sources.nodes, list[str]()
    if sources.printed is not None:
        given = sources.shards, sources.ignore_msb
        nodes, warnings = nodes_from_ring(sources.printed, read_nodes(lake), *given, status=sources.status)
    if sources.status is not None:
        before = read_nodes(lake) if nodes is None else nodes
        nodes, more = apply_status(before, sources.status, sources.shards, sources.ignore_msb)
        warnings += more
    return nodes, warnings


def _list_files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Return the named files, each once, and the unknown files in named folders."""
    files: dict[Path, Path] = {}
    ignored = []
    for path in paths:
        if "://" in str(path):
            raise InputError(
                f"{path}: no live cluster is read by import; tell of it with: cdc-platform cluster add NAME --contact "
                "HOST:PORT, then: cdc-platform observe NAME"
            )
        known, others = _list_folder(Path(path)) if Path(path).is_dir() else ([Path(path)], [])
        ignored += others
        for file in known:
            files.setdefault(file.resolve(), file)
    return list(files.values()), ignored


def _read_texts(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Read the files. Raise an error if together they exceed the limit for this machine's memory."""
    remaining = most = max_export_bytes()
    texts = []
    for path in files:
        if path.is_file() and path.stat().st_size > remaining:
            raise too_large_error(f"{path}, with what is imported beside it,", most)
        text = read_user_text(path, remaining)
        remaining -= len(text)
        texts.append((str(path), text))
    return texts


def _list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    entries = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    known = [entry for entry in entries if entry.suffix.lower() in _KNOWN_SUFFIXES or _is_known(entry)]
    if not known:
        raise InputError(f"{folder} holds no file that is read here; name a ring snapshot or exports")
    return known, [entry for entry in entries if entry not in known]


def _is_known(path: Path) -> bool:
    """Return True if the content identifies the format. CSV is not tried, because any text may be CSV."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8-sig", errors="ignore")
    except OSError:
        return False
    return any(
        tells(head) for tells in (is_cqlsh_table, is_json_rows, is_nodetool_ring, is_nodetool_status, is_schema_text)
    )


def _parse(
    files: Sequence[tuple[str, str]], shards: int | None, ignore_msb: int | None, flaws: ImportIssues
) -> tuple[list[Node] | None, CqlshExports]:
    snapshots = [(source, text) for source, text in files if _is_snapshot(source, text)]
    if len(snapshots) > 1:
        names = ", ".join(source for source, _ in snapshots)
        raise InputError(f"{len(snapshots)} ring snapshots at once ({names}); the ring is one: import the newest alone")
    exports = parse_exports([file for file in files if file not in snapshots], flaws)
    nodes = exports.topology.nodes
    if not snapshots:
        return nodes or None, exports
    source, text = snapshots[0]
    if nodes:
        raise InputError(f"{source} and an export of system.topology at once; the ring is one: import the newest alone")
    return parse_ring_snapshot(text, source, shards, ignore_msb), exports


def _is_snapshot(source: str, text: str) -> bool:
    return (source.lower().endswith(".json") or text.lstrip()[:1] in ("[", "{")) and not is_json_rows(text)


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


def _imported_generations(plan: ImportPlan, v1: V1Exports) -> list[ImportedGeneration]:
    new = plan.timestamps.keys() | plan.streams.keys()
    times = sorted(new | v1.descriptions.keys() | v1.streams.keys(), reverse=True)
    timed = [
        _imported_generation(plan.ids.get(time), time, plan.timestamps.get(time), plan.streams.get(time))
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
