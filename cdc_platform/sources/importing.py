"""Takes ring snapshots and cqlsh exports into the lake: all files are read and checked, and only then written."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from cdc_platform.clock import Clock, Milliseconds
from cdc_platform.errors import ConflictError, InputError
from cdc_platform.lake import only_observed
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.looking import looking_on
from cdc_platform.lake.tables import (
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
from cdc_platform.lake.turns import IMPORTS, JOINS, in_turn
from cdc_platform.records import inbox
from cdc_platform.records.ring import current_ring, members, replace_ring
from cdc_platform.ring import Node, Ring
from cdc_platform.sources.cqlsh import Exports, parse_exports
from cdc_platform.sources.cqlsh_v1 import V1Exports
from cdc_platform.sources.described_schema import is_schema
from cdc_platform.sources.flaws import Flaws
from cdc_platform.sources.import_plan import ImportPlan, plan_import
from cdc_platform.sources.import_plan_tablets import ImportedSet
from cdc_platform.sources.import_tables import tell_tables, undefined, without_options
from cdc_platform.sources.ordering import OrderedRows
from cdc_platform.sources.printed_ring import (
    PrintedRing,
    PrintedStatus,
    is_printed_ring,
    is_printed_status,
    nodes_of,
    parse_printed_ring,
    parse_printed_status,
    with_status,
)
from cdc_platform.sources.printed_rows import is_json_rows, is_printed
from cdc_platform.sources.ring_snapshots import parse_ring_snapshot
from cdc_platform.sources.sizes import most_export
from cdc_platform.user_files import read_text, too_large

_SUFFIXES = (".json", ".csv")
_HEAD = 64 * 1024
"""Bytes that tell the form of a file."""
# What a row relies on comes before it: data before the times that commit it, generations before who knows them.
ORDER = (
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

_LOOKS = 5
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
    exports: Exports
    ignore_msb: int | None
    ignored: list[Path]
    host_id: str | None = None
    flaws: Flaws = field(default_factory=Flaws)
    printed: PrintedRing | None = None
    shards: int | None = None
    status: PrintedStatus | None = None


@dataclass
class ImportReport:
    """What an import did: hosts by what became of them, generations and stream sets newest first, and remarks."""

    nodes_added: list[str] = field(default_factory=list)
    nodes_changed: list[str] = field(default_factory=list)
    nodes_removed: list[str] = field(default_factory=list)
    generations: list[ImportedGeneration] = field(default_factory=list)
    stream_sets: list[ImportedSet] = field(default_factory=list)
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
    """Take in files, or all that are known in folders: `read_sources` and `import_sources` in one.

    Raises:
        NotFound, InputError: as those two; nothing was written.
    """
    return import_sources(lake, clock, read_sources(paths, shards, ignore_msb, host_id, as_is=as_is))


def read_sources(
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
    files, ignored = _files(paths)
    flaws = Flaws(as_is)
    texts = _texts(files)
    rings = [(source, text) for source, text in texts if is_printed_ring(text)]
    statuses = [(source, text) for source, text in texts if is_printed_status(text)]
    if len(statuses) > 1:
        raise InputError(f"{statuses[0][0]} and {statuses[1][0]} are both nodetool status; import the newest alone")
    others = [each for each in texts if each not in rings and each not in statuses]
    nodes, exports = _parse(others, shards, ignore_msb, flaws)
    if len(rings) + (nodes is not None) > 1:
        raise InputError(f"{rings[0][0]} and another ring at once; the ring is one: import the newest alone")
    printed = parse_printed_ring(*rings[0], flaws) if rings else None
    status = parse_printed_status(*statuses[0], flaws) if statuses else None
    return ImportSources(nodes, exports, ignore_msb, ignored, host_id, flaws, printed, shards, status)


class _ChangedMeanwhile(Exception):
    """A table is no longer as it was when the import was judged by it."""


@in_turn(IMPORTS)
def import_sources(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    """Take in what was read. A ring snapshot becomes the ring as it stands. The same again changes nothing.

    Where what is not whole was taken in as it is, the lake is only observed from then on.

    Imports take turns, and each table is written as the version after the one by which its rows were judged.

    Raises:
        InputError: an export contradicts the lake or is half-written; nothing was written.
        StateError: the log of a tablet-based table was dropped after its stream sets began; nothing was written.
        ConflictError: other writers kept changing the tables.
    """
    for _ in range(_LOOKS):
        with suppress(_ChangedMeanwhile), looking_on():
            return _import(lake, clock, sources)
    raise ConflictError(
        "the tables of the import changed each time between its look at them and its writing; run it again"
    )


def _import(lake: Lake, clock: Clock, sources: ImportSources) -> ImportReport:
    nodes, of_ring = _nodes(lake, sources)
    seen = {table.full_name: lake.version(table) for table in (UNORDERED_RANGES, *ORDER)}
    if nodes is not None:
        _check_ring(lake, nodes)
    ring = current_ring(lake) if nodes is None else Ring.of(nodes)
    plan = plan_import(lake, clock, sources.exports, ring, sources.ignore_msb, sources.host_id, sources.flaws)
    report = ImportReport(generations=_generations(plan, sources.exports.v1), stream_sets=plan.stream_sets)
    report.warnings = [f"{path} is none of the files that are read here and was left alone" for path in sources.ignored]
    report.warnings += [*of_ring, *plan.warnings, *undefined(sources.exports)]
    report.warnings += without_options(sources.exports)
    report.turned_off = list(sources.exports.warnings)
    report.flaws = list(sources.flaws.told)
    if report.flaws and sources.flaws.marks:
        only_observed.mark(lake, clock, report.flaws)
    if nodes is not None:
        _replace_ring(lake, nodes, report)
    report.rows_written += _write(lake, plan, seen) + tell_tables(lake, clock, sources.exports)
    for table in ORDER:
        if table.name in sources.exports.held:
            lake.ensure(table)  # without a row it is empty, which is not the same as unknown
    return report


def _nodes(lake: Lake, sources: ImportSources) -> tuple[list[Node] | None, list[str]]:
    """The nodes that the ring is to have, and what a person should know; None where it stays as it is."""
    nodes, warnings = sources.nodes, list[str]()
    if sources.printed is not None:
        given = sources.shards, sources.ignore_msb
        nodes, warnings = nodes_of(sources.printed, members(lake), *given, status=sources.status)
    if sources.status is not None:
        before = members(lake) if nodes is None else nodes
        nodes, more = with_status(before, sources.status, sources.shards, sources.ignore_msb)
        warnings += more
    return nodes, warnings


def _files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The files that the paths name, each once, and those in folders that are none of ours."""
    files: dict[Path, Path] = {}
    ignored = []
    for path in paths:
        if "://" in str(path):
            raise InputError(
                f"{path}: no live cluster is read by import; tell of it with: cdc-platform cluster add NAME --contact "
                "HOST:PORT, then: cdc-platform observe NAME"
            )
        found, others = _in_folder(Path(path)) if Path(path).is_dir() else ([Path(path)], [])
        ignored += others
        for file in found:
            files.setdefault(file.resolve(), file)
    return list(files.values()), ignored


def _texts(files: Sequence[Path]) -> list[tuple[str, str]]:
    """The files with their texts, which together are no larger than this machine bears."""
    left = most = most_export()
    found = []
    for path in files:
        if path.is_file() and path.stat().st_size > left:
            raise too_large(f"{path}, with what is imported beside it,", most)
        text = read_text(path, left)
        left -= len(text)
        found.append((str(path), text))
    return found


def _in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    entries = sorted(entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    found = [entry for entry in entries if entry.suffix.lower() in _SUFFIXES or _is_known(entry)]
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
    return any(tells(head) for tells in (is_printed, is_json_rows, is_printed_ring, is_printed_status, is_schema))


def _parse(
    files: Sequence[tuple[str, str]], shards: int | None, ignore_msb: int | None, flaws: Flaws
) -> tuple[list[Node] | None, Exports]:
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
    for join in inbox.waiting(lake):
        if join.kind == inbox.REPAIR or uuid.UUID(join.host_id) in hosts:
            continue
        try:
            Ring.of([*nodes, inbox.event(lake, event_id=join.event_id).node])
        except InputError as error:
            raise InputError(
                f"host {join.host_id} waits to join and could not join this ring: {error}; take it back with: "
                f"cdc-platform bootstrap --withdraw {join.event_id}"
            ) from None


@in_turn(JOINS)
def _replace_ring(lake: Lake, nodes: Sequence[Node], report: ImportReport) -> None:
    """Who was queued while the rest was judged is asked for again: nobody is queued while the ring is replaced."""
    _check_ring(lake, nodes)
    replaced = replace_ring(lake, nodes)
    report.nodes_added, report.nodes_removed = replaced.added, replaced.removed
    report.nodes_changed = replaced.changed
    report.rows_written += replaced.rows_written


def _write(lake: Lake, plan: ImportPlan, seen: Mapping[str, int | None]) -> int:
    """Write in the order in which a death at any point leaves a lake that the same import completes.

    Marks before the rows that they are about, rows before the times that commit them.
    """
    written = _merge(lake, UNORDERED_RANGES, pa.concat_tables(plan.marks), seen) if plan.marks else 0
    for table in ORDER:
        batches = [rows for each, rows in plan.rows if each is table]
        if batches:
            written += _merge(lake, table, pa.concat_tables(batches), seen, update=table not in _ENTERED_ONCE)
    for table, name, ends in plan.unmarked:
        of_generation = [("table_name", "=", table.full_name), ("generation", "=", name)]
        written += lake.delete(UNORDERED_RANGES, [*of_generation, ("range_end", "in", ends)])
    return written


def _merge(lake: Lake, table: Table, rows: pa.Table, seen: Mapping[str, int | None], *, update: bool = True) -> int:
    def as_judged() -> pa.Table:
        version = seen[table.full_name]
        if lake.files(table, ()) if version is None else lake.version(table) != version:
            raise _ChangedMeanwhile
        return rows

    merged = lake.merge_judged(table, as_judged, update=update)
    return 0 if merged is None else merged.inserted + merged.updated


def _generations(plan: ImportPlan, v1: V1Exports) -> list[ImportedGeneration]:
    new = plan.timestamps.keys() | plan.streams.keys()
    times = sorted(new | v1.descriptions.keys() | v1.streams.keys(), reverse=True)
    timed = [
        _one(plan.ids.get(time), time, plan.timestamps.get(time), plan.streams.get(time))
        if time in new
        else _one_of_v1(time, v1)
        for time in times
    ]
    timeless = [id_ for id_ in plan.descriptions if id_ not in plan.ids.values()]
    return timed + [_one(id_, None, None, plan.descriptions[id_]) for id_ in timeless]


def _one_of_v1(time_ms: Milliseconds, v1: V1Exports) -> ImportedGeneration:
    """A V1 generation, which has no UUID; of one without a description the ranges are not known."""
    described, flat = v1.descriptions.get(time_ms), v1.streams.get(time_ms)
    expired = next((each.expired_ms for each in (described, flat) if each and each.expired_ms is not None), None)
    if described is not None and described.description is not None:
        description = described.description
        return ImportedGeneration(None, time_ms, expired, len(description), len(description.streams), 0)
    count = 0 if flat is None or flat.streams is None else len(flat.streams)
    return ImportedGeneration(None, time_ms, expired, 0, count, 0)


def _one(
    id_: str | None, time_ms: Milliseconds | None, expired_ms: Milliseconds | None, ordered: OrderedRows | None
) -> ImportedGeneration:
    if ordered is None:
        return ImportedGeneration(id_, time_ms, expired_ms, 0, 0, 0)
    rows = ordered.rows
    return ImportedGeneration(id_, time_ms, expired_ms, len(rows), len(rows.streams), len(ordered.reasons))
