"""Plan the rows that an import of exports writes, fully checked against the lake before any write.

A V1 generation is one cell, so it is never half-written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa

from cdc_platform.clock import (
    ONE_MS,
    Clock,
    Milliseconds,
    datetime_from_ms,
    datetime_from_us,
    format_ms,
    ms_from_datetime,
)
from cdc_platform.delta import Lake, flatten_stream_lists, stream_ids_to_arrow, stream_lists_to_arrow
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId
from cdc_platform.importing.formats.exports import CdcLocalRow, CqlshExports, V1Exports, V1Generation
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.importing.plan_tablets import ImportedStreamSet, plan_stream_sets
from cdc_platform.importing.range_rows import (
    OrderedRangeRows,
    RangeRows,
    owner_ignore_msbs,
    report_misplaced_streams,
    restore_stream_order,
    sort_in_byte_order,
)
from cdc_platform.metastore import cdc_local, generations, read_committed_elsewhere
from cdc_platform.ring import Ring
from cdc_platform.tables import (
    CDC_LOCAL,
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    STREAMS_TYPE,
    TIMESTAMP,
    UNORDERED_RANGES,
    Table,
)

_LOCAL = CDC_LOCAL.name
_PlannedRows = list[tuple[Table, pa.Table]]


def plan_v1(
    lake: Lake, exports: V1Exports, ring: Ring, host_id: str | None, flaws: ImportIssues
) -> tuple[_PlannedRows, list[str]]:
    """Return the rows of V1 tables and of `cdc_local` to write, and the warnings. A repeated import yields no rows.

    `ring` is the ring after the import. `host_id` names the node of exported `cdc_local` rows that do not name one.

    Raises:
        InputError: the exports contradict the lake, or a node is missing.
    """
    rows: _PlannedRows = []
    for time_ms, generation in sorted(exports.descriptions.items()):
        rows += _description_row(lake, time_ms, generation, flaws)
    for time_ms, generation in sorted(exports.streams.items()):
        rows += _streams_row(lake, time_ms, generation)
    local, warnings = _local_rows(lake, exports.local, host_id)
    known = {str(node.host_id) for node in ring.nodes}
    hosts = {host for _, table in local for host in table["host_id"].to_pylist()}
    warnings += [
        f"node {host} of {_LOCAL} is not in the ring; import a ring snapshot as well" for host in sorted(hosts - known)
    ]
    return rows + local, _v1_warnings(lake, exports) + warnings


def streams_from_v1_description(
    lake: Lake, exports: V1Exports, time_ms: Milliseconds, rows: RangeRows
) -> OrderedRangeRows | None:
    """Return published rows in the shard order of the time's V1 description, or None if their streams differ."""
    exported = exports.descriptions.get(time_ms)
    description = exported.description if exported else None
    if description is None:
        try:
            description = generations.read_generation_description(lake, GenerationId(time_ms))
        except (NotFound, StateError):
            return None
    counts, streams = description.stream_counts, description.streams
    sorted_rows = RangeRows("", description.range_ends, counts, sort_in_byte_order(counts, streams))
    return OrderedRangeRows(rows, np.asarray(streams), {}) if sorted_rows.has_same_streams(rows) else None


def _description_row(lake: Lake, time_ms: Milliseconds, each: V1Generation, flaws: ImportIssues) -> _PlannedRows:
    assert each.description is not None
    existing = _existing_expiry_ms(lake, GENERATION_DESCRIPTIONS, time_ms)
    if existing is not None:
        try:
            same = generations.read_generation_description(lake, GenerationId(time_ms)).equals(each.description)
        except StateError:
            same = False
        if not same:
            raise _contradiction(each, GENERATION_DESCRIPTIONS, time_ms)
        if each.expired_ms in (None, existing):
            return []
    if existing is None:
        description = each.description
        what = f"{each.source}: {GENERATION_DESCRIPTIONS.name} of {format_ms(time_ms)}"
        report_misplaced_streams(
            what, description.range_ends, description.offsets, np.asarray(description.streams), flaws
        )
    row = generations.v1_cell_row(time_ms, each.description)
    return [(GENERATION_DESCRIPTIONS, _with_expiry(row, each.expired_ms))]


def _streams_row(lake: Lake, time_ms: Milliseconds, each: V1Generation) -> _PlannedRows:
    assert each.streams is not None
    flat = stream_ids_to_arrow(each.streams)
    existing = _existing_expiry_ms(lake, STREAMS_DESCRIPTIONS, time_ms)
    if existing is not None:
        where = [("time", "=", datetime_from_ms(time_ms))]
        existing_ids = lake.read(STREAMS_DESCRIPTIONS, ["streams"], where)["streams"].combine_chunks().flatten()
        if sorted(existing_ids.to_pylist()) != flat.to_pylist():
            raise _contradiction(each, STREAMS_DESCRIPTIONS, time_ms)
        if each.expired_ms in (None, existing):
            return []
    cell = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat, type=STREAMS_TYPE)
    time = pa.array([datetime_from_ms(time_ms)], TIMESTAMP)
    row = pa.table({"time": time, "streams": cell, "expired": pa.nulls(1, TIMESTAMP)}, STREAMS_DESCRIPTIONS.schema)
    return [(STREAMS_DESCRIPTIONS, _with_expiry(row, each.expired_ms))]


def _existing_expiry_ms(lake: Lake, table: Table, time_ms: Milliseconds) -> Milliseconds | None:
    """Return when (ms) the row of this time expired: -1 if it has not, None if there is no row. Reads no streams."""
    expiry_times = lake.read(table, ["expired"], [("time", "=", datetime_from_ms(time_ms))])["expired"].to_pylist()
    if not expiry_times:
        return None
    return -ONE_MS if expiry_times[0] is None else ms_from_datetime(expiry_times[0])


def _with_expiry(row: pa.Table, expired_ms: Milliseconds | None) -> pa.Table:
    if expired_ms is None:
        return row
    index = row.schema.get_field_index("expired")
    return row.set_column(index, row.schema.field(index), pa.array([datetime_from_ms(expired_ms)], TIMESTAMP))


def _contradiction(each: V1Generation, table: Table, time_ms: Milliseconds) -> InputError:
    return InputError(
        f"{each.source}: {table.name} of {format_ms(time_ms)} is otherwise in the lake, and a generation never "
        "changes; import it into another --home"
    )


def _v1_warnings(lake: Lake, exports: V1Exports) -> list[str]:
    warnings = []
    described = {*exports.descriptions, *generations.read_v1_times(lake).tolist()}
    bare = sorted(exports.streams.keys() - described)
    if bare:
        warnings.append(
            f"{len(bare)} V1 generations without their description, the first {format_ms(bare[0])}; the rewrite needs "
            "it: import cdc_generation_descriptions as well"
        )
    for time_ms, generation in exports.streams.items():
        other = exports.descriptions.get(time_ms)
        if other is None or other.description is None or generation.streams is None:
            continue
        flat = sort_in_byte_order(np.array([len(other.description.streams)]), np.asarray(other.description.streams))
        if not np.array_equal(flat, generation.streams):
            warnings.append(
                f"the V1 tables disagree about {format_ms(time_ms)}: {len(generation.streams)} streams in "
                f"cdc_streams_descriptions, {len(flat)} in its description; the rewrite takes the description's"
            )
    return warnings


def _local_rows(lake: Lake, local: Sequence[CdcLocalRow], host_id: str | None) -> tuple[_PlannedRows, list[str]]:
    nameless = next((row for row in local if row.host_id is None), None)
    if host_id is not None and nameless is None:
        state = "name their nodes themselves" if local else "are not among the files"
        raise InputError(f"--node {host_id} says which node an export of {_LOCAL} is of, and such exports {state}")
    if nameless is not None and host_id is None:
        raise InputError(f"{nameless.place}: {_LOCAL} does not say which node it is of; name it with --node HOST_ID")
    rows: dict[tuple[str, str], CdcLocalRow] = {}
    for row in local:
        key = (row.host_id or host_id or "", row.key)
        if key in rows:
            raise InputError(
                f"{row.place}: key {row.key} of node {key[0]} is there twice, first in {rows[key].place}; "
                "import the nodes' exports one by one, each with its --node"
            )
        rows[key] = row
    known_rows = cdc_local.read_cdc_local(lake)
    warnings: list[str] = []
    new_rows = [
        cdc_local.NodeLocalRow(host, key, row.streams_timestamp_ms, row.uuid)
        for (host, key), row in rows.items()
        if _is_newer(host, row, known_rows.get((host, key)), warnings)
    ]
    return ([(CDC_LOCAL, cdc_local.cdc_local_rows(new_rows))] if new_rows else []), warnings


def _is_newer(host: str, row: CdcLocalRow, known: cdc_local.NodeLocalRow | None, warnings: list[str]) -> bool:
    """Return True if the row should be written: an ID never replaces a newer one, and an existing marker stays."""
    if known is None:
        return True
    known_ms = known.time_ms
    if row.key == cdc_local.REWRITTEN_KEY or known_ms is None:
        return row.key != cdc_local.REWRITTEN_KEY and row.streams_timestamp_ms is not None
    if row.streams_timestamp_ms is None or row.streams_timestamp_ms < known_ms:
        warnings.append(f"node {host} knows generation {format_ms(known_ms)} already; its older ID was left out")
        return False
    if row.streams_timestamp_ms == known_ms and row.uuid != known.uuid:
        raise InputError(
            f"{row.place}: node {host} has generation {format_ms(known_ms)} in the lake with "
            f"{known.uuid or 'no UUID'}, and here with {row.uuid or 'no UUID'}; import it into another --home"
        )
    return row.streams_timestamp_ms > known_ms


_MAX_SHOWN = 5
_TIME_TYPE = STREAMS_DESCRIPTIONS_V2.schema.field("time").type


@dataclass
class ImportPlan:
    """Everything that the import writes. `ids` maps times (ms) to generations that were identified by equal streams."""

    descriptions: dict[str, OrderedRangeRows] = field(default_factory=dict)
    streams: dict[Milliseconds, OrderedRangeRows] = field(default_factory=dict)
    timestamps: dict[Milliseconds, Milliseconds | None] = field(default_factory=dict)
    ids: dict[Milliseconds, str] = field(default_factory=dict)
    rows: list[tuple[Table, pa.Table]] = field(default_factory=list)
    marks: list[pa.Table] = field(default_factory=list)
    unmarked: list[tuple[Table, str, list[int]]] = field(default_factory=list)
    stream_sets: list[ImportedStreamSet] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    flaws: ImportIssues = field(default_factory=ImportIssues)


def plan_import(
    lake: Lake,
    clock: Clock,
    exports: CqlshExports,
    ring: Ring,
    ignore_msb: int | None,
    host_id: str | None = None,
    flaws: ImportIssues | None = None,
) -> ImportPlan:
    """Check the exports against the lake and each other. `ring` and `ignore_msb` provide shard orders that V2 lacks.

    `host_id` names the node whose `cdc_local` was exported, if the export does not.

    Raises:
        InputError: the export is half-written, or contradicts the lake about a generation or a table.
        StateError: the log of a tablet-based table was dropped after its stream sets began.
    """
    plan = ImportPlan(timestamps=dict(exports.timestamps), flaws=flaws or ImportIssues())
    _check_times(plan, lake, exports)
    _plan_descriptions(plan, lake, exports)
    _plan_streams(plan, lake, exports, ring, ignore_msb)
    _plan_timestamps(plan, lake, exports)
    _plan_ledger(plan, lake, clock, exports)
    rows, warnings = plan_v1(lake, exports.v1, ring, host_id, plan.flaws)
    plan.rows += rows
    plan.warnings += warnings
    rows, plan.stream_sets, warnings = plan_stream_sets(lake, exports.tablets, plan.flaws)
    plan.rows += rows
    plan.warnings += warnings
    return plan


def _check_times(plan: ImportPlan, lake: Lake, exports: CqlshExports) -> None:
    """Report exported streams without their timestamp: readers rely on rows only once the timestamp is present."""
    listed = generations.read_listed_times(lake)
    for time in exports.streams:
        if time not in exports.timestamps and time not in listed:
            plan.flaws.tell(
                f"half-written export: streams of {format_ms(time)} without its row in cdc_generation_timestamps; "
                "export that table first and import both"
            )


def _is_published(lake: Lake, time_ms: Milliseconds) -> bool:
    return lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", datetime_from_ms(time_ms))]).num_rows > 0


def _plan_descriptions(plan: ImportPlan, lake: Lake, exports: CqlshExports) -> None:
    for id_, rows in exports.descriptions.items():
        assert rows.ignore_msbs is not None
        ordered = restore_stream_order(rows, rows.ignore_msbs)
        columns = {
            "id": pa.repeat(id_, len(rows)),
            "range_end": pa.array(rows.range_ends),
            "ignore_msb": pa.array(rows.ignore_msbs.astype(np.int8)),
            "num_ranges": pa.array(_claimed_counts(rows).astype(np.int32)),
        }
        existing = lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", id_)])
        plan.descriptions[id_] = ordered
        _plan_partition(plan, lake, GENERATION_DESCRIPTIONS_V2, id_, columns, ordered, existing)


def _claimed_counts(rows: RangeRows) -> np.ndarray:
    """Return the number of rows that each row states for its generation, int64[n], or the actual number if none do."""
    return np.full(len(rows), len(rows)) if rows.claims is None else rows.claims


def _plan_streams(plan: ImportPlan, lake: Lake, exports: CqlshExports, ring: Ring, ignore_msb: int | None) -> None:
    described_by = _DescriptionIndex(lake, plan.descriptions)
    for time, rows in exports.streams.items():
        matches = described_by.those_of(rows)
        if len(matches) == 1:
            plan.ids[time], described = next(iter(matches.items()))
            ordered = OrderedRangeRows(rows, described.streams, described.reasons)
        elif (in_order := streams_from_v1_description(lake, exports.v1, time, rows)) is not None:
            ordered = in_order
        elif ignore_msb is not None:
            ordered = restore_stream_order(rows, np.full(len(rows), ignore_msb))
        else:
            ordered = restore_stream_order(rows, owner_ignore_msbs(rows, ring))
        columns = {
            "time": pa.repeat(pa.scalar(datetime_from_ms(time), _TIME_TYPE), len(rows)),
            "range_end": pa.array(rows.range_ends),
        }
        existing = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_ms(time))])
        plan.streams[time] = ordered
        _plan_partition(plan, lake, STREAMS_DESCRIPTIONS_V2, format_ms(time), columns, ordered, existing)


class _DescriptionIndex:
    """The V2 descriptions of an import and of its lake by content; the lake's are read only on demand."""

    def __init__(self, lake: Lake, imported: Mapping[str, OrderedRangeRows]) -> None:
        self._lake = lake
        self._by_content: dict[tuple[bytes, int], dict[str, OrderedRangeRows]] = {}
        for id_, ordered in imported.items():
            self._add(id_, ordered)

    def those_of(self, rows: RangeRows) -> Mapping[str, OrderedRangeRows]:
        """Return the descriptions with the same streams, by ID."""
        for id_ in self._unread.pop(rows.range_ends.astype(np.int64).tobytes(), ()):
            self._add(id_, self._description(id_))
        return self._by_content.get(rows.content, {})

    def _add(self, id_: str, ordered: OrderedRangeRows) -> None:
        self._by_content.setdefault(ordered.rows.content, {})[id_] = ordered

    @cached_property
    def _unread(self) -> dict[bytes, list[str]]:
        """Return the lake's IDs by their range ends (int64, ascending, as bytes)."""
        keys = self._lake.read(GENERATION_DESCRIPTIONS_V2, ["id", "range_end"])
        groups = keys.group_by("id").aggregate([("range_end", "list")])
        ids_by_ends: dict[bytes, list[str]] = {}
        for id_, ends in zip(groups["id"].to_pylist(), groups["range_end_list"], strict=True):
            ids_by_ends.setdefault(np.sort(np.asarray(ends.values, dtype=np.int64)).tobytes(), []).append(id_)
        return ids_by_ends

    def _description(self, id_: str) -> OrderedRangeRows:
        table = self._lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", id_)]).sort_by("range_end")
        counts, streams = flatten_stream_lists(table["streams"])
        ends = table["range_end"].to_numpy()
        rows = RangeRows(f"generation {id_}", ends, counts, sort_in_byte_order(counts, streams))
        return OrderedRangeRows(rows, streams, _read_marks(self._lake, GENERATION_DESCRIPTIONS_V2, id_))


def _plan_partition(
    plan: ImportPlan,
    lake: Lake,
    table: Table,
    name: str,
    columns: Mapping[str, pa.Array],
    ordered: OrderedRangeRows,
    existing: pa.Table,
) -> None:
    """Plan the rows of one generation that the lake lacks, and those whose shard order is known only now.

    Rows of a generation never change: an existing row with other content is refused.
    """
    streams = stream_lists_to_arrow(ordered.rows.stream_counts, ordered.streams)
    rows = pa.table({**columns, "streams": streams}).cast(table.schema)
    _refuse_contradiction(f"{ordered.rows.source}: {table.name} of {name}", rows, existing)
    existing_ends = set(existing["range_end"].to_pylist())
    settled = {end for end in _read_marks(lake, table, name) if end in existing_ends and end not in ordered.reasons}
    wanted = [end not in existing_ends or end in settled for end in ordered.rows.range_ends.tolist()]
    if any(wanted):
        source_rows = ordered.rows
        what = f"{source_rows.source}: {table.name} of {name}"
        report_misplaced_streams(what, source_rows.range_ends, source_rows.offsets, source_rows.streams, plan.flaws)
        plan.rows.append((table, rows.filter(pa.array(wanted))))
    marks = {end: reason for end, reason in ordered.reasons.items() if end not in existing_ends}
    if marks:
        plan.marks.append(_mark_rows(table, name, marks))
    if settled:
        plan.unmarked.append((table, name, sorted(settled)))


def _refuse_contradiction(what: str, rows: pa.Table, existing: pa.Table) -> None:
    if existing.num_rows == 0:
        return
    imported = {row["range_end"]: _row_content(row) for row in rows.to_pylist()}
    for row in existing.to_pylist():
        if imported.get(row["range_end"]) != _row_content(row):
            raise InputError(
                f"{what}: range_end {row['range_end']} is otherwise in the lake, and a generation never changes; "
                "import it into another --home"
            )


def _row_content(row: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    return row | {"streams": sorted(row["streams"])}


def _plan_timestamps(plan: ImportPlan, lake: Lake, exports: CqlshExports) -> None:
    if not exports.timestamps:
        return
    expiry_by_time = {
        ms_from_datetime(row["time"]): row["expired"] for row in lake.read(GENERATION_TIMESTAMPS).to_pylist()
    }
    rows = [
        {
            "key": "timestamps",
            "time": datetime_from_ms(time),
            "expired": expiry_by_time.get(time) if expired is None else datetime_from_ms(expired),
        }
        for time, expired in exports.timestamps.items()
    ]
    plan.rows.append((GENERATION_TIMESTAMPS, pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema)))
    bare = [
        time
        for time, expired in exports.timestamps.items()
        if expired is None and time not in exports.streams and not _is_published(lake, time)
    ]
    if bare and STREAMS_DESCRIPTIONS_V2.name in exports.held and plan.flaws.as_is and plan.flaws.marks:
        plan.flaws.tell(f"{len(bare)} timestamps without their streams rows: {_format_times(bare)}")
    elif bare:
        plan.warnings.append(
            f"{len(bare)} timestamps without their streams rows: {_format_times(bare)}; readers pass one "
            "over when a later one"
            " operates, and wait for the newest: import cdc_streams_descriptions_v2 as well if there are any"
        )


def _format_times(times: Sequence[Milliseconds]) -> str:
    """Format the first times (ms), and the number of those omitted."""
    return ", ".join(map(format_ms, times[:_MAX_SHOWN])) + (
        f" and {len(times) - _MAX_SHOWN} more" if times[_MAX_SHOWN:] else ""
    )


def _plan_ledger(plan: ImportPlan, lake: Lake, clock: Clock, exports: CqlshExports) -> None:
    """Enter the time of each generation that was identified by equal streams."""
    ledger = {row["generation_id"]: ms_from_datetime(row["time"]) for row in lake.read(GENERATIONS).to_pylist()}
    by_time = {time: id_ for id_, time in ledger.items()}
    for time, id_ in plan.ids.items():
        if by_time.get(time, id_) != id_ or ledger.get(id_, time) != time:
            other = format_ms(ledger[id_]) if id_ in ledger else f"generation {by_time[time]}"
            raise InputError(
                f"time {format_ms(time)} and generation {id_} have the same streams, but the lake has {other} there; "
                "import it into another --home"
            )
    _plan_committed(plan, lake, exports, ledger)
    timeless = [id_ for id_ in exports.descriptions if id_ not in plan.ids.values() and id_ not in ledger]
    if timeless:
        plan.warnings.append(
            f"{len(timeless)} V2 descriptions whose streams no time has, the first {timeless[0]}; "
            "they are taken in and do not operate"
        )
    if plan.ids:
        now = datetime_from_us(clock.now_us())  # one time for all rows, by which `backdate_rows` finds it again
        rows = [_ledger_row(lake, now, time, id_, plan) for time, id_ in plan.ids.items()]
        plan.rows.append((GENERATIONS, pa.Table.from_pylist(rows, schema=GENERATIONS.schema)))


def _plan_committed(plan: ImportPlan, lake: Lake, exports: CqlshExports, ledger: Mapping[str, Milliseconds]) -> None:
    """Assign the committed timestamp to each committed generation, even before it is published; it must have rows.

    A committed generation without rows is recorded as known, so that a later import can add its description.
    """
    described_ids = {part.key[0] for part in lake.partitions(GENERATION_DESCRIPTIONS_V2) if part.rows}
    bare: dict[Milliseconds, str] = {}
    for time, id_ in sorted((read_committed_elsewhere(lake) | exports.topology.committed).items()):
        if id_ in ledger or id_ in plan.ids.values():
            continue
        if (id_ in plan.descriptions or id_ in described_ids) and time not in plan.ids:
            plan.ids[time] = id_
        elif id_ not in described_ids and time in exports.topology.committed:
            bare[time] = id_
            message = f"generation {id_} of {format_ms(time)} is committed and has no rows"
            if GENERATION_DESCRIPTIONS_V2.name in exports.held:
                plan.flaws.tell(message)
            else:
                plan.warnings.append(f"{message} here: import cdc_generations_v3 as well")
    if bare:
        rows = [{"time": datetime_from_ms(time), "generation_id": id_} for time, id_ in bare.items()]
        plan.rows.append((COMMITTED_GENERATIONS, pa.Table.from_pylist(rows, schema=COMMITTED_GENERATIONS.schema)))


def _ledger_row(lake: Lake, now: datetime, time_ms: Milliseconds, id_: str, plan: ImportPlan) -> dict[str, object]:
    """Build the row from the published streams, or else from the V2 description of an unpublished generation."""
    published = plan.streams.get(time_ms)
    ordered = published or plan.descriptions.get(id_)
    if ordered is None:
        stored = lake.read(GENERATION_DESCRIPTIONS_V2, ["streams"], [("id", "=", id_)])["streams"]
        num_ranges, num_streams = len(stored), len(flatten_stream_lists(stored.combine_chunks())[1])
    else:
        num_ranges, num_streams = len(ordered.rows), len(ordered.rows.streams)
    return {
        "generation_id": id_,
        "time": datetime_from_ms(time_ms),
        "num_ranges": num_ranges,
        "num_streams": num_streams,
        "created_at": now,
        "published_at": None if published is None else now,
    }


def _read_marks(lake: Lake, table: Table, name: str) -> dict[int, str]:
    where = [("table_name", "=", table.full_name), ("generation", "=", name)]
    rows = lake.read(UNORDERED_RANGES, ["range_end", "reason"], where)
    return dict(zip(rows["range_end"].to_pylist(), rows["reason"].to_pylist(), strict=True))


def _mark_rows(table: Table, name: str, reasons: Mapping[int, str]) -> pa.Table:
    rows = [
        {"table_name": table.full_name, "generation": name, "range_end": end, "reason": reason}
        for end, reason in reasons.items()
    ]
    return pa.Table.from_pylist(rows, schema=UNORDERED_RANGES.schema)
