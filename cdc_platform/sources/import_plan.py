"""What an import of exports would write, checked against the lake to the last row before any of it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa

from cdc_platform.clock import (
    Clock,
    Milliseconds,
    format_ms,
    ms_from_datetime,
    ms_to_datetime,
    to_datetime,
)
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import flat_streams, stream_lists
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.records import descriptions
from cdc_platform.records.ledger import committed_elsewhere
from cdc_platform.ring import Ring
from cdc_platform.sources.cqlsh import Exports
from cdc_platform.sources.flaws import Flaws
from cdc_platform.sources.import_plan_tablets import ImportedSet, plan_tablets
from cdc_platform.sources.import_plan_v1 import described_streams, plan_v1
from cdc_platform.sources.ordering import OrderedRows, msbs_of_owners, put_back
from cdc_platform.sources.range_rows import RangeRows, in_byte_order, tell_misplaced

_SHOWN = 5
_TIME_TYPE = STREAMS_DESCRIPTIONS_V2.schema.field("time").type


@dataclass
class ImportPlan:
    """All that is to be written. `ids` are generations by time (ms), where equal streams tell them."""

    descriptions: dict[str, OrderedRows] = field(default_factory=dict)
    streams: dict[Milliseconds, OrderedRows] = field(default_factory=dict)
    timestamps: dict[Milliseconds, Milliseconds | None] = field(default_factory=dict)
    ids: dict[Milliseconds, str] = field(default_factory=dict)
    rows: list[tuple[Table, pa.Table]] = field(default_factory=list)
    marks: list[pa.Table] = field(default_factory=list)
    unmarked: list[tuple[Table, str, list[int]]] = field(default_factory=list)
    stream_sets: list[ImportedSet] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    flaws: Flaws = field(default_factory=Flaws)


def plan_import(
    lake: Lake,
    clock: Clock,
    exports: Exports,
    ring: Ring,
    ignore_msb: int | None,
    host_id: str | None = None,
    flaws: Flaws | None = None,
) -> ImportPlan:
    """Check the exports against the lake and each other. `ring` and `ignore_msb` tell shard orders that V2 does not.

    `host_id` is the node whose `cdc_local` was exported, where the export does not say.

    Raises:
        InputError: the export is half-written, or says something else than the lake about a generation or a table.
        StateError: the log of a tablet-based table was dropped after its stream sets began.
    """
    plan = ImportPlan(timestamps=dict(exports.timestamps), flaws=flaws or Flaws())
    _check_times(plan, lake, exports)
    _plan_descriptions(plan, lake, exports)
    _plan_streams(plan, lake, exports, ring, ignore_msb)
    _plan_timestamps(plan, lake, exports)
    _plan_ledger(plan, lake, clock, exports)
    rows, warnings = plan_v1(lake, exports.v1, ring, host_id, plan.flaws)
    plan.rows += rows
    plan.warnings += warnings
    rows, plan.stream_sets, warnings = plan_tablets(lake, exports.tablets, plan.flaws)
    plan.rows += rows
    plan.warnings += warnings
    return plan


def _check_times(plan: ImportPlan, lake: Lake, exports: Exports) -> None:
    """Readers rely on rows only after the timestamp: an export has to keep to it."""
    listed = descriptions.listed_times(lake)
    for time in exports.streams:
        if time not in exports.timestamps and time not in listed:
            plan.flaws.tell(
                f"half-written export: streams of {format_ms(time)} without its row in cdc_generation_timestamps; "
                "export that table first and import both"
            )


def _is_published(lake: Lake, time_ms: Milliseconds) -> bool:
    return lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", ms_to_datetime(time_ms))]).num_rows > 0


def _plan_descriptions(plan: ImportPlan, lake: Lake, exports: Exports) -> None:
    for id_, rows in exports.descriptions.items():
        assert rows.ignore_msbs is not None
        ordered = put_back(rows, rows.ignore_msbs)
        columns = {
            "id": pa.repeat(id_, len(rows)),
            "range_end": pa.array(rows.range_ends),
            "ignore_msb": pa.array(rows.ignore_msbs.astype(np.int8)),
            "num_ranges": pa.array(_claims(rows).astype(np.int32)),
        }
        existing = lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", id_)])
        plan.descriptions[id_] = ordered
        _plan_partition(plan, lake, GENERATION_DESCRIPTIONS_V2, id_, columns, ordered, existing)


def _claims(rows: RangeRows) -> np.ndarray:
    """How many rows a generation has by what each of its rows says, int64[n]; all that there are where none says it."""
    return np.full(len(rows), len(rows)) if rows.claims is None else rows.claims


def _plan_streams(plan: ImportPlan, lake: Lake, exports: Exports, ring: Ring, ignore_msb: int | None) -> None:
    described_by = _Descriptions(lake, plan.descriptions)
    for time, rows in exports.streams.items():
        matches = described_by.those_of(rows)
        if len(matches) == 1:
            plan.ids[time], described = next(iter(matches.items()))
            ordered = OrderedRows(rows, described.streams, described.reasons)
        elif (in_order := described_streams(lake, exports.v1, time, rows)) is not None:
            ordered = in_order
        elif ignore_msb is not None:
            ordered = put_back(rows, np.full(len(rows), ignore_msb))
        else:
            ordered = put_back(rows, msbs_of_owners(rows, ring))
        columns = {
            "time": pa.repeat(pa.scalar(ms_to_datetime(time), _TIME_TYPE), len(rows)),
            "range_end": pa.array(rows.range_ends),
        }
        existing = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", ms_to_datetime(time))])
        plan.streams[time] = ordered
        _plan_partition(plan, lake, STREAMS_DESCRIPTIONS_V2, format_ms(time), columns, ordered, existing)


class _Descriptions:
    """The V2 descriptions of an import and of its lake, by what they hold; the lake's read no further than is asked."""

    def __init__(self, lake: Lake, imported: Mapping[str, OrderedRows]) -> None:
        self._lake = lake
        self._by_content: dict[tuple[bytes, int], dict[str, OrderedRows]] = {}
        for id_, ordered in imported.items():
            self._add(id_, ordered)

    def those_of(self, rows: RangeRows) -> Mapping[str, OrderedRows]:
        """The descriptions with the same streams, by ID."""
        for id_ in self._unread.pop(rows.range_ends.astype(np.int64).tobytes(), ()):
            self._add(id_, self._description(id_))
        return self._by_content.get(rows.content, {})

    def _add(self, id_: str, ordered: OrderedRows) -> None:
        self._by_content.setdefault(ordered.rows.content, {})[id_] = ordered

    @cached_property
    def _unread(self) -> dict[bytes, list[str]]:
        """The lake's IDs by their range ends (int64, ascending)."""
        keys = self._lake.read(GENERATION_DESCRIPTIONS_V2, ["id", "range_end"])
        groups = keys.group_by("id").aggregate([("range_end", "list")])
        found: dict[bytes, list[str]] = {}
        for id_, ends in zip(groups["id"].to_pylist(), groups["range_end_list"], strict=True):
            found.setdefault(np.sort(np.asarray(ends.values, dtype=np.int64)).tobytes(), []).append(id_)
        return found

    def _description(self, id_: str) -> OrderedRows:
        table = self._lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", id_)]).sort_by("range_end")
        counts, streams = flat_streams(table["streams"])
        ends = table["range_end"].to_numpy()
        rows = RangeRows(f"generation {id_}", ends, counts, in_byte_order(counts, streams))
        return OrderedRows(rows, streams, _marks(self._lake, GENERATION_DESCRIPTIONS_V2, id_))


def _plan_partition(
    plan: ImportPlan,
    lake: Lake,
    table: Table,
    name: str,
    columns: Mapping[str, pa.Array],
    ordered: OrderedRows,
    existing: pa.Table,
) -> None:
    """Plan the rows of one generation: those that are not there, and those whose order can be told only now.

    Rows of a generation never change: one that is there and says something else is refused.
    """
    streams = stream_lists(ordered.rows.stream_counts, ordered.streams)
    rows = pa.table({**columns, "streams": streams}).cast(table.schema)
    _refuse_contradiction(f"{ordered.rows.source}: {table.name} of {name}", rows, existing)
    there = set(existing["range_end"].to_pylist())
    settled = {end for end in _marks(lake, table, name) if end in there and end not in ordered.reasons}
    wanted = [end not in there or end in settled for end in ordered.rows.range_ends.tolist()]
    if any(wanted):
        read = ordered.rows
        what = f"{read.source}: {table.name} of {name}"
        tell_misplaced(what, read.range_ends, read.offsets, read.streams, plan.flaws)
        plan.rows.append((table, rows.filter(pa.array(wanted))))
    marks = {end: reason for end, reason in ordered.reasons.items() if end not in there}
    if marks:
        plan.marks.append(_mark_rows(table, name, marks))
    if settled:
        plan.unmarked.append((table, name, sorted(settled)))


def _refuse_contradiction(what: str, rows: pa.Table, existing: pa.Table) -> None:
    if existing.num_rows == 0:
        return
    mine = {row["range_end"]: _content(row) for row in rows.to_pylist()}
    for row in existing.to_pylist():
        if mine.get(row["range_end"]) != _content(row):
            raise InputError(
                f"{what}: range_end {row['range_end']} is otherwise in the lake, and a generation never changes; "
                "import it into another --home"
            )


def _content(row: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    return row | {"streams": sorted(row["streams"])}


def _plan_timestamps(plan: ImportPlan, lake: Lake, exports: Exports) -> None:
    if not exports.timestamps:
        return
    there = {ms_from_datetime(row["time"]): row["expired"] for row in lake.read(GENERATION_TIMESTAMPS).to_pylist()}
    rows = [
        {
            "key": "timestamps",
            "time": ms_to_datetime(time),
            "expired": there.get(time) if expired is None else ms_to_datetime(expired),
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
        plan.flaws.tell(f"{len(bare)} timestamps without their streams rows: {_few(bare)}")
    elif bare:
        plan.warnings.append(
            f"{len(bare)} timestamps without their streams rows: {_few(bare)}; readers pass one over when a later one"
            " operates, and wait for the newest: import cdc_streams_descriptions_v2 as well if there are any"
        )


def _few(times: Sequence[Milliseconds]) -> str:
    """Times (ms) by name, as many as a line bears."""
    return ", ".join(map(format_ms, times[:_SHOWN])) + (f" and {len(times) - _SHOWN} more" if times[_SHOWN:] else "")


def _plan_ledger(plan: ImportPlan, lake: Lake, clock: Clock, exports: Exports) -> None:
    """Enter which generation has which time, where equal streams tell it."""
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
        now = to_datetime(clock.now_us())  # of all rows one, by which a mend finds it again
        rows = [_ledger_row(lake, now, time, id_, plan) for time, id_ in plan.ids.items()]
        plan.rows.append((GENERATIONS, pa.Table.from_pylist(rows, schema=GENERATIONS.schema)))


def _plan_committed(plan: ImportPlan, lake: Lake, exports: Exports, ledger: Mapping[str, Milliseconds]) -> None:
    """What the group has committed has its time, also before clients are shown it; and it has to have rows.

    One without any is noted: it is known, and what an import after this one brings of it is its description.
    """
    there = {part.key[0] for part in lake.slices(GENERATION_DESCRIPTIONS_V2) if part.rows}
    bare: dict[Milliseconds, str] = {}
    for time, id_ in sorted((committed_elsewhere(lake) | exports.topology.committed).items()):
        if id_ in ledger or id_ in plan.ids.values():
            continue
        if (id_ in plan.descriptions or id_ in there) and time not in plan.ids:
            plan.ids[time] = id_
        elif id_ not in there and time in exports.topology.committed:
            bare[time] = id_
            said = f"generation {id_} of {format_ms(time)} is committed and has no rows"
            if GENERATION_DESCRIPTIONS_V2.name in exports.held:
                plan.flaws.tell(said)
            else:
                plan.warnings.append(f"{said} here: import cdc_generations_v3 as well")
    if bare:
        rows = [{"time": ms_to_datetime(time), "generation_id": id_} for time, id_ in bare.items()]
        plan.rows.append((COMMITTED_GENERATIONS, pa.Table.from_pylist(rows, schema=COMMITTED_GENERATIONS.schema)))


def _ledger_row(lake: Lake, now: datetime, time_ms: Milliseconds, id_: str, plan: ImportPlan) -> dict[str, object]:
    """By the rows that clients are shown, else by those that nodes have, of a generation that is not published."""
    shown = plan.streams.get(time_ms)
    brought = shown or plan.descriptions.get(id_)
    if brought is None:
        before = lake.read(GENERATION_DESCRIPTIONS_V2, ["streams"], [("id", "=", id_)])["streams"]
        num_ranges, num_streams = len(before), len(flat_streams(before.combine_chunks())[1])
    else:
        num_ranges, num_streams = len(brought.rows), len(brought.rows.streams)
    return {
        "generation_id": id_,
        "time": ms_to_datetime(time_ms),
        "num_ranges": num_ranges,
        "num_streams": num_streams,
        "created_at": now,
        "published_at": None if shown is None else now,
    }


def _marks(lake: Lake, table: Table, name: str) -> dict[int, str]:
    where = [("table_name", "=", table.full_name), ("generation", "=", name)]
    rows = lake.read(UNORDERED_RANGES, ["range_end", "reason"], where)
    return dict(zip(rows["range_end"].to_pylist(), rows["reason"].to_pylist(), strict=True))


def _mark_rows(table: Table, name: str, reasons: Mapping[int, str]) -> pa.Table:
    rows = [
        {"table_name": table.full_name, "generation": name, "range_end": end, "reason": reason}
        for end, reason in reasons.items()
    ]
    return pa.Table.from_pylist(rows, schema=UNORDERED_RANGES.schema)
