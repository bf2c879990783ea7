"""Plan what an import of tablet stream sets writes, checked against the lake before anything is written.

The sets of a table are one history: an export continues the lake's history or is refused.
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
from cdc_platform.importing.formats.cells import HALF_WRITTEN
from cdc_platform.importing.formats.cqlsh_tablets import ExportedStreamSet, TableName, TabletExports
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
    """One stream set of an import, and whether it was not in the lake before. Streams are counted."""

    table: str
    time_ms: Milliseconds
    streams: int
    closed: int
    opened: int
    new: bool


def plan_stream_sets(
    lake: Lake, exports: TabletExports, flaws: ImportIssues
) -> tuple[_PlannedRows, list[ImportedStreamSet], list[str]]:
    """The rows to be written, every set that was exported, newest first, and what a person should know.

    The same again: no rows.

    Raises:
        InputError: the export is half-written, or says something else than the lake about a table.
        StateError: the log of a table was dropped after its sets began.
    """
    rows: _PlannedRows = []
    found: list[ImportedStreamSet] = []
    warnings: list[str] = []
    known = (
        {(each.keyspace_name, each.table_name) for each in cdc_tables.read_cdc_tables(lake)} if exports.sets else set()
    )
    for name in sorted({*exports.sets, *exports.times}):
        times = tablets.read_set_timestamps(lake, *name)
        listed = [time for time in times if tablets.has_stream_rows(lake, *name, time)]
        _check_times(name, exports, times, flaws)
        exported = exports.sets.get(name, [])
        kept = [each for each in exported if not times or each.time_ms >= times[0]]
        if len(kept) < len(exported):
            warnings.append(
                f"{len(exported) - len(kept)} stream sets of {_format_name(name)} are older than the lake's oldest, "
                f"{format_ms(times[0])}, and were left out: what was collected stays so"
            )
        if kept:
            there = tablets.read_stream_rows(lake, *name)
            new = _new_sets(name, kept, listed, set(times) - set(listed), there)
            rows += _rows_of(name, new, {*listed, *exports.times.get(name, {})})
            # Sets that do not add up tell no tablets that changes made here could go on from.
            if not flaws.told:
                rows += _ledger_rows(lake, name, kept, sorted({*listed, *(each.time_ms for each in new)}))
            found += [_imported_set(name, each, each in new) for each in reversed(kept)]
        bare = _bare_times(name, exports, listed, times)
        if bare:
            shown = ", ".join(map(format_ms, bare[:_MAX_SHOWN])) + (
                f" and {len(bare) - _MAX_SHOWN} more" if bare[_MAX_SHOWN:] else ""
            )
            warnings.append(
                f"{_format_name(name)} has {len(bare)} timestamps without a row of streams: {shown}; readers "
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
    return rows, found, warnings


def _check_times(name: TableName, exports: TabletExports, listed: Sequence[Milliseconds], flaws: ImportIssues) -> None:
    """Streams have the time at which readers see them: in the export, or in the lake."""
    times = exports.times.get(name, {})
    for each in exports.sets.get(name, []):
        if each.time_ms not in times and each.time_ms not in listed:
            flaws.tell(
                f"{each.source}: {HALF_WRITTEN}: streams of {_format_name(name)} at "
                f"{format_ms(each.time_ms)} without their "
                "row in cdc_timestamps; export both tables once more and import both"
            )


def _bare_times(
    name: TableName, exports: TabletExports, listed: Sequence[Milliseconds], times: Sequence[Milliseconds]
) -> list[Milliseconds]:
    """The exported times (ms) without a stream in the export, or in the lake, which has streams of `listed`.

    What lies before all `times` that the lake has was collected and needs none.
    """
    there = {each.time_ms for each in exports.sets.get(name, [])} | set(listed)
    exported = exports.times.get(name, {})
    return sorted(time for time in exported if time not in there and not (times and time < times[0]))


def _new_sets(
    name: TableName,
    kept: list[ExportedStreamSet],
    listed: Sequence[Milliseconds],
    bare: Collection[Milliseconds],
    there: TabletRows,
) -> list[ExportedStreamSet]:
    """Those that the lake has not: after those that it has, or at times that it has without a row (`bare`)."""
    base, last = kept[0].time_ms, kept[-1].time_ms
    both = [time for time in listed if base <= time <= last]
    shared = [each for each in kept if not listed or (each.time_ms <= listed[-1] and each.time_ms not in bare)]
    if listed and base > listed[-1]:
        raise InputError(
            f"{kept[0].source}: the export of {_format_name(name)} begins at {format_ms(base)}, after the "
            "lake's newest "
            f"stream set, {format_ms(listed[-1])}: with a gap between they do not add up; {_ELSEWHERE}"
        )
    if listed and [each.time_ms for each in shared] != both:
        raise InputError(
            f"{kept[0].source}: {_format_name(name)} has stream sets up to {format_ms(listed[-1])} in the "
            "lake that are not "
            f"the exported ones from {format_ms(base)} on; {_ELSEWHERE}"
        )
    for each in shared if listed else []:
        if not np.array_equal(sort_in_ring_order(there.of(each.time_ms, STREAM_CURRENT)), each.current):
            raise InputError(
                f"{each.source}: {_format_name(name)} at {format_ms(each.time_ms)} has other streams in the "
                "lake, and a "
                f"stream set never changes; {_ELSEWHERE}"
            )
    new = [each for each in kept if not listed or each not in shared]
    for each in new:
        for state, ids in zip(_STATES, (each.current, each.closed, each.opened), strict=True):
            if not isin_streams(there.of(each.time_ms, state), ids).all():
                raise InputError(
                    f"{each.source}: {_format_name(name)} at {format_ms(each.time_ms)} has streams in the "
                    "lake already, left "
                    f"by another writer, that the export has not; {_ELSEWHERE}"
                )
    return new


def _rows_of(name: TableName, new: Sequence[ExportedStreamSet], listed: Collection[Milliseconds]) -> _PlannedRows:
    rows: _PlannedRows = []
    for each in new:
        states = list(zip(_STATES, (each.current, each.closed, each.opened), strict=True))
        rows.append((TABLET_STREAMS, tablets.stream_set_rows(*name, each.time_ms, states)))
    times = [each.time_ms for each in new if each.time_ms in listed]
    if times:
        rows.append((TABLET_TIMESTAMPS, tablets.set_timestamp_rows(*name, times)))
    return rows


def _ledger_rows(
    lake: Lake, name: TableName, kept: Sequence[ExportedStreamSet], times: Sequence[Milliseconds]
) -> _PlannedRows:
    """Note the tablets of the sets that the ledger has not, so that changes made here go on from them.

    `times` (ms, ascending) are those of all sets that there will be. Where one of them has been left by another
    writer and is not in the export, none is noted: the newest set tells the tablets then.
    """
    known = tablets.read_tablet_layouts(lake, *name)
    _check_ledger(lake, name, kept[0], known, times)
    last = known[-1] if known and known[-1].kind != LAYOUT_DROPPED else None
    missing = [time for time in times if last is None or last.timestamp_ms is None or time > last.timestamp_ms]
    by_time = {each.time_ms: each for each in kept}
    if not missing or any(time not in by_time for time in missing):
        return []
    number = known[-1].number + 1 if known else 0
    table_id = tablets.derive_table_id(*name, number) if last is None else last.table_id
    layouts = [
        TabletLayout(
            *name,
            number + place,
            LAYOUT_CREATED if last is None and place == 0 else LAYOUT_RESIZED,
            table_id,
            time,
            get_stream_tokens(by_time[time].current),
            us_from_ms(time),
        )
        for place, time in enumerate(missing)
    ]
    return [(TABLET_LAYOUTS, tablets.tablet_layout_rows(layouts))]


def _check_ledger(
    lake: Lake, name: TableName, oldest: ExportedStreamSet, known: Sequence[TabletLayout], times: Sequence[Milliseconds]
) -> None:
    """Refuse sets of a log that was dropped, and those beside a change that was decided here."""
    dropped = [each.decided_at_us for each in known if each.kind == LAYOUT_DROPPED]
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
