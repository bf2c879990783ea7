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
from cdc_platform.delta import IMPORTS_LOCK, JOINS_LOCK, Lake, allow_writes, exclusive, observed_home
from cdc_platform.errors import ConflictError, InputError
from cdc_platform.importing.formats.cqlsh import CqlshExports, parse_exports
from cdc_platform.importing.formats.cqlsh_output import is_cqlsh_table, is_json_rows
from cdc_platform.importing.formats.cqlsh_v1 import V1Exports
from cdc_platform.importing.formats.described_schema import DescribedTable, is_schema_text
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
    """Add the tables that are not known, alter those that are otherwise now; answers how many.

    A schema shows how tables stand, and neither since when nor, mostly, how old their logs are: that stays unknown. A
    table that is not in the schema stays: a schema may be that of one keyspace. One that is not enabled, and whose log
    is not in the schema, has no log.

    Raises:
        InputError: a name, a TTL or a time is impossible; nothing was told then.
    """
    known = {(each.keyspace_name, each.table_name): each for each in cdc_tables.read_cdc_tables(lake)}
    sayings = []
    for table in exports.tables:
        name = table.keyspace, table.name
        there = known.get(name)
        created_ms = None if table.created_at_ms is None else min(clock.now_ms(), table.created_at_ms)
        if there is None and table.is_logged:
            options: dict[str, Any] = {
                "ttl_seconds": table.ttl_seconds or 0,
                "enabled": table.enabled,
                "ddl": table.ddl,
            }
            added = cdc_tables.request_addition(lake, clock, *name, created_at_ms=created_ms, seen=True, **options)
            sayings.append(added)
        elif there is not None and not _is_same(there, table):
            stands: dict[str, Any] = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled}
            if table.ttl_seconds is None:
                stands = {}
            ddl = there.ddl if _has_definition(there, table) else table.ddl
            altered = cdc_tables.request_alteration(
                lake, clock, *name, created_at_ms=created_ms, seen=True, ddl=ddl, **stands
            )
            sayings.append(altered)
    return len(cdc_tables.record_table_changes(lake, sayings))


def describe_missing_options(exports: CqlshExports) -> list[str]:
    """Return a line for each log imported without the CDC options of its base table, with what is assumed."""
    return [
        f"{each.full_name}: its log is in the schema, and its CDC options are not, so its rows are taken to never "
        "expire; import the schema with its base table"
        for each in exports.tables
        if each.ttl_seconds is None
    ]


def describe_missing_definitions(exports: CqlshExports) -> list[str]:
    """The tables that are taken in without their definition, a line each with why."""
    return [
        f"{each.full_name}: its definition is left out, so its keys cannot be asked for by their values: {each.unread}"
        for each in exports.tables
        if each.unread is not None
    ]


def _is_same(there: CdcTable, table: DescribedTable) -> bool:
    options = table.ttl_seconds is None or (there.ttl_seconds, there.enabled) == (table.ttl_seconds, table.enabled)
    # Of two times at which a log may have been created the older one counts.
    created = table.created_at_ms is None or (
        there.created_at_ms is not None and there.created_at_ms <= table.created_at_ms
    )
    return options and created and _has_definition(there, table)


def _has_definition(there: CdcTable, table: DescribedTable) -> bool:
    """Whether what is described says nothing new; what was noted here of truncations no schema knows."""
    if table.ddl is None:
        return True
    return there.ddl is not None and _definition(there.ddl) == _definition(table.ddl)


def _definition(ddl: str) -> tuple[str, list[str]]:
    """What makes a table, and its search indexes; what else stands in comments is of no schema."""
    return strip_comments(ddl), get_index_comments(ddl)


_KNOWN_SUFFIXES = (".json", ".csv")
_HEAD = 64 * 1024
"""Bytes that tell the form of a file."""
# What a row relies on comes before it: data before the times that commit it, generations before who knows them.
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
"""The tables that an import writes, in their order."""
# A row of a ledger keeps the moment at which it was first entered, and a stream set never changes.
_ENTERED_ONCE = (GENERATIONS, TABLET_STREAMS, TABLET_TIMESTAMPS, TABLET_LAYOUTS)

_MAX_ATTEMPTS = 5
"""How often an import is judged anew because other writers changed what it was judged by."""


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
    """What an import was given, read: the nodes of a ring snapshot (None without one) and the exports.

    `printed` and `status` are what nodetool printed of the ring and its members, `shards` and `ignore_msb` the sharding
    of nodes of which nothing else says it.
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
    """What an import did: hosts by what became of them, generations and stream sets newest first, and remarks."""

    nodes_added: list[str] = field(default_factory=list)
    nodes_changed: list[str] = field(default_factory=list)
    nodes_removed: list[str] = field(default_factory=list)
    generations: list[ImportedGeneration] = field(default_factory=list)
    stream_sets: list[ImportedStreamSet] = field(default_factory=list)
    rows_written: int = 0
    warnings: list[str] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)
    turned_off: list[str] = field(default_factory=list)
    """Statements of a schema that turn CDC off and may not be meant to."""


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
    """Take in files, or all that are known in folders: `read_import_sources` and `import_sources` in one.

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
    """Read and check files, or all that are known in folders.

    `shards` and `ignore_msb` hold for the nodes of a ring snapshot where the file does not say; `ignore_msb` also for
    streams whose V2 description is not known. `host_id` is the node that exports of `cdc_local` are of. With `as_is`
    what is not whole in the cluster is noted and not refused.

    Raises:
        NotFound: a path is not there.
        InputError: a file breaks a rule, or is cut.
    """
    files, ignored = _list_files(paths)
    flaws = ImportIssues(as_is)
    texts = _read_texts(files)
    rings = [(source, text) for source, text in texts if is_nodetool_ring(text)]
    statuses = [(source, text) for source, text in texts if is_nodetool_status(text)]
    if len(statuses) > 1:
        raise InputError(f"{statuses[0][0]} and {statuses[1][0]} are both nodetool status; import the newest alone")
    others = [each for each in texts if each not in rings and each not in statuses]
    nodes, exports = _parse(others, shards, ignore_msb, flaws)
    if len(rings) + (nodes is not None) > 1:
        raise InputError(f"{rings[0][0]} and another ring at once; the ring is one: import the newest alone")
    printed = parse_nodetool_ring(*rings[0], flaws) if rings else None
    status = parse_nodetool_status(*statuses[0], flaws) if statuses else None
    return ImportSources(nodes, exports, ignore_msb, ignored, host_id, flaws, printed, shards, status)


class _ChangedMeanwhile(Exception):
    """A table is no longer as it was when the import was judged by it."""


@exclusive(IMPORTS_LOCK)
def import_sources(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    """Take in what was read. A ring snapshot becomes the ring as it stands. The same again changes nothing.

    Where what is not whole was taken in as it is, the lake is only observed from then on.

    Imports take turns, and each table is written as the version after the one by which its rows were judged.

    Raises:
        InputError: an export contradicts the lake or is half-written; nothing was written.
        StateError: the log of a tablet-based table was dropped after its stream sets began; nothing was written.
        ConflictError: other writers kept changing the tables.
    """
    for _ in range(_MAX_ATTEMPTS):
        with suppress(_ChangedMeanwhile), allow_writes():
            return _import_once(lake, clock, sources)
    raise ConflictError(
        "the tables of the import changed each time between its look at them and its writing; run it again"
    )


def _import_once(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    nodes, of_ring = _plan_nodes(lake, sources)
    seen = {table.full_name: lake.version(table) for table in (UNORDERED_RANGES, *WRITE_ORDER)}
    if nodes is not None:
        _check_ring(lake, nodes)
    ring = read_current_ring(lake) if nodes is None else Ring.of(nodes)
    plan = plan_import(lake, clock, sources.exports, ring, sources.ignore_msb, sources.host_id, sources.flaws)
    report = ImportReport(generations=_imported_generations(plan, sources.exports.v1), stream_sets=plan.stream_sets)
    report.warnings = [f"{path} is none of the files that are read here and was left alone" for path in sources.ignored]
    report.warnings += [*of_ring, *plan.warnings, *describe_missing_definitions(sources.exports)]
    report.warnings += describe_missing_options(sources.exports)
    report.turned_off = list(sources.exports.warnings)
    report.flaws = list(sources.flaws.told)
    if report.flaws and sources.flaws.marks:
        observed_home.mark_as_observed(lake, clock, report.flaws)
    if nodes is not None:
        _replace_ring(lake, nodes, report)
    report.rows_written += _write_plan(lake, plan, seen) + update_tables(lake, clock, sources.exports)
    for table in WRITE_ORDER:
        if table.name in sources.exports.held:
            lake.ensure(table)  # without a row it is empty, which is not the same as unknown
    return report


def _plan_nodes(lake: Lake, sources: ImportSources) -> tuple[list[Node] | None, list[str]]:
    """The nodes that the ring is to have, and what a person should know; None where it stays as it is."""
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
    """The files that the paths name, each once, and those in folders that are none of ours."""
    files: dict[Path, Path] = {}
    ignored = []
    for path in paths:
        if "://" in str(path):
            raise InputError(
                f"{path}: no live cluster is read by import; tell of it with: cdc-platform cluster add NAME --contact "
                "HOST:PORT, then: cdc-platform observe NAME"
            )
        found, others = _list_folder(Path(path)) if Path(path).is_dir() else ([Path(path)], [])
        ignored += others
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values()), ignored


def _read_texts(files: Sequence[Path]) -> list[tuple[str, str]]:
    """The files with their texts, which together are no larger than this machine bears."""
    left = most = max_export_bytes()
    found = []
    for path in files:
        if path.is_file() and path.stat().st_size > left:
            raise too_large_error(f"{path}, with what is imported beside it,", most)
        text = read_user_text(path, left)
        left -= len(text)
        found.append((str(path), text))
    return found


def _list_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    entries = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    found = [entry for entry in entries if entry.suffix.lower() in _KNOWN_SUFFIXES or _is_known(entry)]
    if not found:
        raise InputError(f"{folder} holds no file that is read here; name a ring snapshot or exports")
    return found, [entry for entry in entries if entry not in found]


def _is_known(path: Path) -> bool:
    """Whether a file that says nothing by its name has a form that tells itself: not CSV, which any text may be."""
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
    """Refuse a ring that a node which waits to join could not join any more."""
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
    """Who was queued while the rest was judged is asked for again: nobody is queued while the ring is replaced."""
    _check_ring(lake, nodes)
    replaced = replace_ring(lake, nodes)
    report.nodes_added, report.nodes_removed = replaced.added, replaced.removed
    report.nodes_changed = replaced.changed
    report.rows_written += replaced.rows_written


def _write_plan(lake: Lake, plan: ImportPlan, seen: Mapping[str, int | None]) -> int:
    """Write in the order in which a death at any point leaves a lake that the same import completes.

    Marks before the rows that they are about, rows before the times that commit them.
    """
    written = _merge_rows(lake, UNORDERED_RANGES, pa.concat_tables(plan.marks), seen) if plan.marks else 0
    for table in WRITE_ORDER:
        batches = [rows for each, rows in plan.rows if each is table]
        if batches:
            written += _merge_rows(lake, table, pa.concat_tables(batches), seen, update=table not in _ENTERED_ONCE)
    for table, name, ends in plan.unmarked:
        of_generation = [("table_name", "=", table.full_name), ("generation", "=", name)]
        written += lake.delete(UNORDERED_RANGES, [*of_generation, ("range_end", "in", ends)])
    return written


def _merge_rows(
    lake: Lake, table: Table, rows: pa.Table, seen: Mapping[str, int | None], *, update: bool = True
) -> int:
    def as_judged() -> pa.Table:
        version = seen[table.full_name]
        if lake.files(table, ()) if version is None else lake.version(table) != version:
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
    """A V1 generation, which has no UUID; of one without a description the ranges are not known."""
    described, flat = v1.descriptions.get(time_ms), v1.streams.get(time_ms)
    expired = next((each.expired_ms for each in (described, flat) if each and each.expired_ms is not None), None)
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
