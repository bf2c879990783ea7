"""Plan the rows that an import of tablet stream sets writes, checked against the lake before any write.

The sets of a table form one history: an export must continue the lake's history, otherwise it is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, format_ms, format_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.generations import get_stream_tokens, isin_streams, sort_in_ring_order
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN
from cdc_platform.importing.formats.tablet_sets import ExportedStreamSet, TableName, TabletExports
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.metastore import (
    LAYOUT_CREATED,
    LAYOUT_DROPPED,
    LAYOUT_RESIZED,
    STREAM_CLOSED,
    STREAM_CURRENT,
    STREAM_OPENED,
    TabletLayout,
    TabletRows,
    cdc_tables,
    tablets,
)
from cdc_platform.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS, Table

_PlannedRows = list[tuple[Table, pa.Table]]
_STATES = (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED)
_MAX_SHOWN = 5
_ELSEWHERE = "import it into another --home"


@dataclass(frozen=True)
class ImportedStreamSet:
    """One stream set of an import with its numbers of streams. `new`: the lake did not have it before the import."""

    table: str
    time_ms: Milliseconds
    streams: int
    closed: int
    opened: int
    new: bool


def plan_stream_sets(
    lake: Lake, exports: TabletExports, flaws: ImportIssues
) -> tuple[_PlannedRows, list[ImportedStreamSet], list[str]]:
    """Return the rows to write, every exported set (newest first), and the warnings.

    Importing the same export twice yields no rows.

    Raises:
        InputError: the export is half-written or contradicts the lake.
        StateError: the log of a table was dropped after its sets began.
    """
    rows: _PlannedRows = []
    imported: list[ImportedStreamSet] = []
    warnings: list[str] = []
    known = (
        {(cdc_table.keyspace_name, cdc_table.table_name) for cdc_table in cdc_tables.read_cdc_tables(lake)}
        if exports.sets
        else set()
    )
    for name in sorted({*exports.sets, *exports.times}):
        times = tablets.read_set_timestamps(lake, *name)
        listed = [time for time in times if tablets.has_stream_rows(lake, *name, time)]
        _check_times(name, exports, times, flaws)
        exported = exports.sets.get(name, [])
        recent = [stream_set for stream_set in exported if not times or stream_set.time_ms >= times[0]]
        if len(recent) < len(exported):
            warnings.append(
                f"{len(exported) - len(recent)} stream sets of {_format_name(name)} are older than the lake's oldest, "
                f"{format_ms(times[0])}, and were left out: what was collected stays so"
            )
        if recent:
            existing = tablets.read_stream_rows(lake, *name)
            new = _new_sets(name, recent, listed, set(times) - set(listed), existing)
            rows += _rows_of(name, new, {*listed, *exports.times.get(name, {})})
            # From sets that contradict each other no tablet layout can be derived.
            if not flaws.told:
                rows += _ledger_rows(lake, name, recent, sorted({*listed, *(stream_set.time_ms for stream_set in new)}))
            imported += [_imported_set(name, stream_set, stream_set in new) for stream_set in reversed(recent)]
        bare = _bare_times(name, exports, listed, times)
        if bare:
            sample = ", ".join(map(format_ms, bare[:_MAX_SHOWN])) + (
                f" and {len(bare) - _MAX_SHOWN} more" if bare[_MAX_SHOWN:] else ""
            )
            warnings.append(
                f"{_format_name(name)} has {len(bare)} timestamps without a row of streams: {sample}; readers "
                "pass one over"
                " when a later one operates, and wait for the newest: export both tables once more if there are any"
            )
            missing = [time for time in bare if time not in times]
            rows += [(TABLET_TIMESTAMPS, tablets.set_timestamp_rows(*name, missing))] if missing else []
        if exported and name not in known:
            warnings.append(
                f"the TTL of {_format_name(name)} is not in an export, and without it no stream set is ever "
                "collected; tell "
                f"of it with: cdc-platform tables add {_format_name(name)} --ttl SECONDS"
            )
    return rows, imported, warnings


def _check_times(name: TableName, exports: TabletExports, listed: Sequence[Milliseconds], flaws: ImportIssues) -> None:
    """Report sets whose timestamp, which makes them visible to readers, is neither in the export nor in the lake."""
    times = exports.times.get(name, {})
    for stream_set in exports.sets.get(name, []):
        if stream_set.time_ms not in times and stream_set.time_ms not in listed:
            flaws.tell(
                f"{stream_set.source}: {HALF_WRITTEN}: streams of {_format_name(name)} at "
                f"{format_ms(stream_set.time_ms)} without their "
                "row in cdc_timestamps; export both tables once more and import both"
            )


def _bare_times(
    name: TableName, exports: TabletExports, listed: Sequence[Milliseconds], times: Sequence[Milliseconds]
) -> list[Milliseconds]:
    """Return the exported times (ms) that have no streams, neither in the export nor in the lake (`listed`).

    Times before the oldest of `times` are omitted: the lake has collected their sets.
    """
    known = {stream_set.time_ms for stream_set in exports.sets.get(name, [])} | set(listed)
    exported = exports.times.get(name, {})
    return sorted(time for time in exported if time not in known and not (times and time < times[0]))


def _new_sets(
    name: TableName,
    kept: list[ExportedStreamSet],
    listed: Sequence[Milliseconds],
    bare: Collection[Milliseconds],
    there: TabletRows,
) -> list[ExportedStreamSet]:
    """Return the exported sets that the lake lacks: newer than its own, or at times that it has without rows (`bare`).

    Raises:
        InputError: the export leaves a gap after the lake's sets, or contradicts them.
    """
    base, last = kept[0].time_ms, kept[-1].time_ms
    both = [time for time in listed if base <= time <= last]
    shared = [
        exported for exported in kept if not listed or (exported.time_ms <= listed[-1] and exported.time_ms not in bare)
    ]
    if listed and base > listed[-1]:
        raise InputError(
            f"{kept[0].source}: the export of {_format_name(name)} begins at {format_ms(base)}, after the "
            "lake's newest "
            f"stream set, {format_ms(listed[-1])}: with a gap between they do not add up; {_ELSEWHERE}"
        )
    if listed and [exported.time_ms for exported in shared] != both:
        raise InputError(
            f"{kept[0].source}: {_format_name(name)} has stream sets up to {format_ms(listed[-1])} in the "
            "lake that are not "
            f"the exported ones from {format_ms(base)} on; {_ELSEWHERE}"
        )
    for exported in shared if listed else []:
        if not np.array_equal(sort_in_ring_order(there.of(exported.time_ms, STREAM_CURRENT)), exported.current):
            raise InputError(
                f"{exported.source}: {_format_name(name)} at {format_ms(exported.time_ms)} has other streams in the "
                "lake, and a "
                f"stream set never changes; {_ELSEWHERE}"
            )
    new = [exported for exported in kept if not listed or exported not in shared]
    for exported in new:
        for state, ids in zip(_STATES, (exported.current, exported.closed, exported.opened), strict=True):
            if not isin_streams(there.of(exported.time_ms, state), ids).all():
                raise InputError(
                    f"{exported.source}: {_format_name(name)} at {format_ms(exported.time_ms)} has streams in the "
                    "lake already, left "
                    f"by another writer, that the export has not; {_ELSEWHERE}"
                )
    return new


def _rows_of(name: TableName, new: Sequence[ExportedStreamSet], listed: Collection[Milliseconds]) -> _PlannedRows:
    rows: _PlannedRows = []
    for stream_set in new:
        states = list(zip(_STATES, (stream_set.current, stream_set.closed, stream_set.opened), strict=True))
        rows.append((TABLET_STREAMS, tablets.stream_set_rows(*name, stream_set.time_ms, states)))
    times = [stream_set.time_ms for stream_set in new if stream_set.time_ms in listed]
    if times:
        rows.append((TABLET_TIMESTAMPS, tablets.set_timestamp_rows(*name, times)))
    return rows


def _ledger_rows(
    lake: Lake, name: TableName, kept: Sequence[ExportedStreamSet], times: Sequence[Milliseconds]
) -> _PlannedRows:
    """Return ledger rows for the imported sets that the ledger lacks, so that later tablet changes can build on them.

    `times` (ms, ascending) are the times of all sets after the import. If another writer added one of them and the
    export lacks it, return no rows; the tablets then follow from the newest set.
    """
    known = tablets.read_tablet_layouts(lake, *name)
    _check_ledger(lake, name, kept[0], known, times)
    last = known[-1] if known and known[-1].kind != LAYOUT_DROPPED else None
    missing = [time for time in times if last is None or last.timestamp_ms is None or time > last.timestamp_ms]
    by_time = {stream_set.time_ms: stream_set for stream_set in kept}
    if not missing or any(time not in by_time for time in missing):
        return []
    number = known[-1].number + 1 if known else 0
    table_id = tablets.derive_table_id(*name, number) if last is None else last.table_id
    layouts = [
        TabletLayout(
            *name,
            number + index,
            LAYOUT_CREATED if last is None and index == 0 else LAYOUT_RESIZED,
            table_id,
            time,
            get_stream_tokens(by_time[time].current),
            us_from_ms(time),
        )
        for index, time in enumerate(missing)
    ]
    return [(TABLET_LAYOUTS, tablets.tablet_layout_rows(layouts))]


def _check_ledger(
    lake: Lake, name: TableName, oldest: ExportedStreamSet, known: Sequence[TabletLayout], times: Sequence[Milliseconds]
) -> None:
    """Raise StateError if the log was dropped after the sets began, or the export lacks a set planned in the lake."""
    dropped = [layout.decided_at_us for layout in known if layout.kind == LAYOUT_DROPPED]
    dropped += [
        change.changed_at_us
        for change in cdc_tables.read_table_changes(lake)
        if (change.keyspace_name, change.table_name) == name and change.what == cdc_tables.TABLE_DROPPED
    ]
    where = f"{oldest.source}: {_format_name(name)}"
    if dropped and max(dropped) >= us_from_ms(times[0]):
        raise StateError(
            f"{where}: its log was dropped at {format_us(max(dropped))}, after its stream set of {format_ms(times[0])} "
            f"began: export the table as it is now, or {_ELSEWHERE}"
        )
    decided = known[-1].timestamp_ms if known else None
    if decided is not None and decided not in times:
        raise StateError(
            f"{where}: it gets other tablets here from {format_ms(decided)} on, which the export has not; {_ELSEWHERE}"
        )


def _imported_set(name: TableName, each: ExportedStreamSet, new: bool) -> ImportedStreamSet:
    return ImportedStreamSet(
        _format_name(name), each.time_ms, len(each.current), len(each.closed), len(each.opened), new
    )


def _format_name(name: TableName) -> str:
    return ".".join(name)
