"""Plan the rows of tablet stream sets.

The sets of a table form one history: an export must continue the lake's history, otherwise it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms, format_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError, StateError
from cdc_platform.generations import get_stream_tokens, isin_streams, sort_in_ring_order
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN
from cdc_platform.importing.formats.tablet_sets import ExportedStreamSet, TableName
from cdc_platform.importing.plan import OTHER_HOME, ImportedStreamSet, ImportPlan, format_times
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
from cdc_platform.tables import TABLET_LAYOUTS, TABLET_STREAMS, TABLET_TIMESTAMPS

_STATES = (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED)


@dataclass(frozen=True)
class _StoredTimes:
    """The times (ms, ascending) of a table's sets in the lake, and those whose streams it has."""

    all: Sequence[Milliseconds]
    with_streams: Sequence[Milliseconds]

    @property
    def without_streams(self) -> set[Milliseconds]:
        return set(self.all) - set(self.with_streams)


def plan_stream_sets(plan: ImportPlan, lake: Lake) -> None:
    """Plan the stream sets, and list them all, newest first. Importing the same export twice plans no rows.

    Raises:
        InputError: the export is half-written or contradicts the lake.
        StateError: the log of a table was dropped after its sets began.
    """
    exports = plan.exports.tablets
    names = sorted({*exports.sets, *exports.times})
    known = {(table.keyspace_name, table.table_name) for table in cdc_tables.read_cdc_tables(lake)} if names else set()
    for name in names:
        times = tablets.read_set_timestamps(lake, *name)
        stored = _StoredTimes(times, [time for time in times if tablets.has_stream_rows(lake, *name, time)])
        _check_times(plan, name, stored)
        _plan_sets(plan, lake, name, stored)
        _plan_bare_times(plan, name, stored)
        if exports.sets.get(name) and name not in known:
            plan.warnings.append(
                f"the TTL of {_format_name(name)} is not in an export, and without it no stream set is ever "
                f"collected; add it with: cdc-platform tables add {_format_name(name)} --ttl SECONDS"
            )


def _check_times(plan: ImportPlan, name: TableName, stored: _StoredTimes) -> None:
    """Report sets whose timestamp, which makes them visible to readers, is neither in the export nor in the lake."""
    times = {*plan.exports.tablets.times.get(name, ()), *stored.all}
    for stream_set in plan.exports.tablets.sets.get(name, []):
        if stream_set.time_ms not in times:
            plan.issues.report(
                f"{_describe(name, stream_set)}: {HALF_WRITTEN}: streams without their row in cdc_timestamps; export "
                "both tables once more and import both"
            )


def _plan_sets(plan: ImportPlan, lake: Lake, name: TableName, stored: _StoredTimes) -> None:
    exported = plan.exports.tablets.sets.get(name, [])
    recent = [stream_set for stream_set in exported if not stored.all or stream_set.time_ms >= stored.all[0]]
    if len(recent) < len(exported):
        plan.warnings.append(
            f"{len(exported) - len(recent)} stream sets of {_format_name(name)} are older than the lake's oldest, "
            f"{format_ms(stored.all[0])}, and were left out: collected sets are not restored"
        )
    if not recent:
        return
    new = _new_sets(name, recent, stored, tablets.read_stream_rows(lake, *name))
    listed = {*stored.with_streams, *plan.exports.tablets.times.get(name, {})}
    for stream_set in new:
        states = list(zip(_STATES, (stream_set.current, stream_set.closed, stream_set.opened), strict=True))
        plan.write(TABLET_STREAMS, tablets.stream_set_rows(*name, stream_set.time_ms, states))
    if times := [stream_set.time_ms for stream_set in new if stream_set.time_ms in listed]:
        plan.write(TABLET_TIMESTAMPS, tablets.set_timestamp_rows(*name, times))
    # From sets that contradict each other no tablet layout can be derived.
    if not plan.issues.messages:
        all_times = sorted({*stored.with_streams, *(stream_set.time_ms for stream_set in new)})
        _plan_layouts(plan, lake, name, recent, all_times)
    plan.stream_sets += [
        ImportedStreamSet(
            _format_name(name),
            stream_set.time_ms,
            len(stream_set.current),
            len(stream_set.closed),
            len(stream_set.opened),
            stream_set in new,
        )
        for stream_set in reversed(recent)
    ]


def _plan_bare_times(plan: ImportPlan, name: TableName, stored: _StoredTimes) -> None:
    """Plan the exported times (ms) that have no streams, neither in the export nor in the lake.

    Times before the oldest of the lake are omitted: the lake has collected their sets.
    """
    with_streams = {stream_set.time_ms for stream_set in plan.exports.tablets.sets.get(name, [])}
    exported = plan.exports.tablets.times.get(name, {}).keys() - with_streams - set(stored.with_streams)
    bare = sorted(time for time in exported if not (stored.all and time < stored.all[0]))
    if not bare:
        return
    plan.warnings.append(
        f"{_format_name(name)} has {len(bare)} timestamps without a row of streams: {format_times(bare)}; readers skip "
        "one when a later one operates, and wait for the newest: export both tables once more if there are any"
    )
    if missing := [time for time in bare if time not in stored.all]:
        plan.write(TABLET_TIMESTAMPS, tablets.set_timestamp_rows(*name, missing))


def _new_sets(
    name: TableName, exported: list[ExportedStreamSet], stored: _StoredTimes, rows: TabletRows
) -> list[ExportedStreamSet]:
    """Return the exported sets that the lake lacks: newer than its own, or at times that it has without streams.

    Raises:
        InputError: the export leaves a gap after the lake's sets, or contradicts them.
    """
    shared = _shared_sets(name, exported, stored) if stored.with_streams else []
    for stream_set in shared:
        if not np.array_equal(sort_in_ring_order(rows.of(stream_set.time_ms, STREAM_CURRENT)), stream_set.current):
            raise InputError(
                f"{_describe(name, stream_set)} has other streams in the lake, and a stream set never changes; "
                f"{OTHER_HOME}"
            )
    new = [stream_set for stream_set in exported if stream_set not in shared]
    for stream_set in new:
        for state, ids in zip(_STATES, (stream_set.current, stream_set.closed, stream_set.opened), strict=True):
            if not isin_streams(rows.of(stream_set.time_ms, state), ids).all():
                raise InputError(
                    f"{_describe(name, stream_set)} has streams in the lake already, left by another writer, that the "
                    f"export lacks; {OTHER_HOME}"
                )
    return new


def _shared_sets(name: TableName, exported: list[ExportedStreamSet], stored: _StoredTimes) -> list[ExportedStreamSet]:
    """Return the exported sets that the lake must have, because they are not newer than its newest."""
    newest, base, last = stored.with_streams[-1], exported[0].time_ms, exported[-1].time_ms
    source = exported[0].source
    if base > newest:
        raise InputError(
            f"{source}: the export of {_format_name(name)} begins at {format_ms(base)}, after the lake's newest "
            f"stream set, {format_ms(newest)}: sets between them are missing; {OTHER_HOME}"
        )
    shared = [
        stream_set
        for stream_set in exported
        if stream_set.time_ms <= newest and stream_set.time_ms not in stored.without_streams
    ]
    if [stream_set.time_ms for stream_set in shared] != [time for time in stored.with_streams if base <= time <= last]:
        raise InputError(
            f"{source}: {_format_name(name)} has stream sets up to {format_ms(newest)} in the lake that are not the "
            f"exported ones from {format_ms(base)} on; {OTHER_HOME}"
        )
    return shared


def _plan_layouts(
    plan: ImportPlan, lake: Lake, name: TableName, sets: Sequence[ExportedStreamSet], times: Sequence[Milliseconds]
) -> None:
    """Plan tablet layouts for the imported sets that have none, so that later tablet changes can build on them.

    `times` (ms, ascending) are the times of all sets after the import. If another writer added one of them and the
    export lacks it, plan no rows; the tablets then follow from the newest set.
    """
    known = tablets.read_tablet_layouts(lake, *name)
    _check_layouts(lake, name, sets[0], known, times)
    last = known[-1] if known and known[-1].kind != LAYOUT_DROPPED else None
    missing = [time for time in times if last is None or last.timestamp_ms is None or time > last.timestamp_ms]
    by_time = {stream_set.time_ms: stream_set for stream_set in sets}
    if not missing or any(time not in by_time for time in missing):
        return
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
    plan.write(TABLET_LAYOUTS, tablets.tablet_layout_rows(layouts))


def _check_layouts(
    lake: Lake, name: TableName, oldest: ExportedStreamSet, known: Sequence[TabletLayout], times: Sequence[Milliseconds]
) -> None:
    """Raise StateError if the log was dropped after the sets began, or the export lacks a set planned in the lake."""
    dropped = [layout.decided_at_us for layout in known if layout.kind == LAYOUT_DROPPED]
    dropped += [
        change.changed_at_us
        for change in cdc_tables.read_table_changes(lake)
        if (change.keyspace_name, change.table_name) == name and change.what == cdc_tables.TABLE_DROPPED
    ]
    table = f"{oldest.source}: {_format_name(name)}"
    if dropped and max(dropped) >= us_from_ms(times[0]):
        raise StateError(
            f"{table}: its log was dropped at {format_us(max(dropped))}, after its stream set of {format_ms(times[0])} "
            f"began: export the table as it is now, or {OTHER_HOME}"
        )
    decided = known[-1].timestamp_ms if known else None
    if decided is not None and decided not in times:
        raise StateError(
            f"{table}: it gets other tablets in this home from {format_ms(decided)} on, which the export lacks; "
            f"{OTHER_HOME}"
        )


def _describe(name: TableName, stream_set: ExportedStreamSet) -> str:
    return f"{stream_set.source}: {_format_name(name)} at {format_ms(stream_set.time_ms)}"


def _format_name(name: TableName) -> str:
    return ".".join(name)
