"""Plan the rows of V2 descriptions, published streams, timestamps and the ledger of generations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, datetime_from_us, format_ms, ms_from_datetime
from cdc_platform.delta import Lake, flatten_stream_lists, stream_lists_to_arrow
from cdc_platform.errors import InputError
from cdc_platform.importing.plan import OTHER_HOME, ImportPlan, contradiction, format_times
from cdc_platform.importing.plan_v1 import streams_from_v1_description
from cdc_platform.importing.range_rows import (
    OrderedRangeRows,
    RangeRows,
    owner_ignore_msbs,
    report_misplaced_streams,
    restore_stream_order,
    sort_in_byte_order,
)
from cdc_platform.metastore import generations, read_committed_elsewhere
from cdc_platform.ring import Ring
from cdc_platform.tables import (
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
    Table,
)

_TIME_TYPE = STREAMS_DESCRIPTIONS_V2.schema.field("time").type


def plan_generations(plan: ImportPlan, lake: Lake, clock: Clock, ring: Ring, ignore_msb: int | None) -> None:
    """Plan generations of the second format. `ring` and `ignore_msb` provide shard orders that the files lack.

    Raises:
        InputError: the export is half-written, or contradicts the lake about a generation.
    """
    _check_times(plan, lake)
    _plan_descriptions(plan, lake)
    _plan_streams(plan, lake, ring, ignore_msb)
    _plan_timestamps(plan, lake)
    _plan_ledger(plan, lake, clock)


def _check_times(plan: ImportPlan, lake: Lake) -> None:
    """Report exported streams without their timestamp: readers rely on rows only once the timestamp is present."""
    listed = generations.read_listed_times(lake) | plan.exports.timestamps.keys()
    for time in plan.exports.streams:
        if time not in listed:
            plan.issues.report(
                f"half-written export: streams of {format_ms(time)} without its row in {GENERATION_TIMESTAMPS.name}; "
                "export that table first and import both"
            )


def _plan_descriptions(plan: ImportPlan, lake: Lake) -> None:
    for id_, rows in plan.exports.descriptions.items():
        assert rows.ignore_msbs is not None
        columns = {
            "id": pa.repeat(id_, len(rows)),
            "range_end": pa.array(rows.range_ends),
            "ignore_msb": pa.array(rows.ignore_msbs.astype(np.int8)),
            "num_ranges": pa.array(_claimed_counts(rows).astype(np.int32)),
        }
        existing = lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", id_)])
        ordered = plan.descriptions[id_] = restore_stream_order(rows, rows.ignore_msbs)
        _plan_partition(plan, lake, GENERATION_DESCRIPTIONS_V2, id_, columns, ordered, existing)


def _claimed_counts(rows: RangeRows) -> np.ndarray:
    """Return the number of rows that each row states for its generation, int64[n], or the actual number if none do."""
    return np.full(len(rows), len(rows)) if rows.claims is None else rows.claims


def _plan_streams(plan: ImportPlan, lake: Lake, ring: Ring, ignore_msb: int | None) -> None:
    descriptions = _DescriptionIndex(lake, plan.descriptions)
    for time, rows in plan.exports.streams.items():
        matches = descriptions.with_streams_of(rows)
        if len(matches) == 1:
            plan.ids[time], described = next(iter(matches.items()))
            ordered = OrderedRangeRows(rows, described.streams, described.reasons)
        else:
            ordered = streams_from_v1_description(lake, plan.exports.v1, time, rows) or restore_stream_order(
                rows, owner_ignore_msbs(rows, ring) if ignore_msb is None else np.full(len(rows), ignore_msb)
            )
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

    def with_streams_of(self, rows: RangeRows) -> Mapping[str, OrderedRangeRows]:
        """Return the descriptions with the same streams, by ID."""
        for id_ in self._unread.pop(rows.range_ends.astype(np.int64).tobytes(), ()):
            self._add(id_, self._read(id_))
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

    def _read(self, id_: str) -> OrderedRangeRows:
        table = self._lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", id_)]).sort_by("range_end")
        counts, streams = flatten_stream_lists(table["streams"])
        ends = table["range_end"].to_numpy()
        rows = RangeRows(f"generation {id_}", ends, counts, sort_in_byte_order(counts, streams))
        return OrderedRangeRows(rows, streams, _read_marks(self._lake, GENERATION_DESCRIPTIONS_V2, id_))


def _plan_partition(
    plan: ImportPlan,
    lake: Lake,
    table: Table,
    generation: str,
    columns: Mapping[str, pa.Array],
    ordered: OrderedRangeRows,
    existing: pa.Table,
) -> None:
    """Plan the rows of one generation that the lake lacks, and those whose shard order is known only now.

    Rows of a generation never change: an existing row with other content is refused.
    """
    exported, what = ordered.rows, f"{table.name} of {generation}"
    streams = stream_lists_to_arrow(exported.stream_counts, ordered.streams)
    rows = pa.table({**columns, "streams": streams}).cast(table.schema)
    _refuse_contradiction(exported.source, what, rows, existing)
    existing_ends = set(existing["range_end"].to_pylist())
    ordered_now = {end for end in _read_marks(lake, table, generation) if end in existing_ends - ordered.reasons.keys()}
    wanted = [end not in existing_ends or end in ordered_now for end in exported.range_ends.tolist()]
    if any(wanted):
        what = f"{exported.source}: {what}"
        report_misplaced_streams(what, exported.range_ends, exported.offsets, exported.streams, plan.issues)
        plan.write(table, rows.filter(pa.array(wanted)))
    new_reasons = {end: reason for end, reason in ordered.reasons.items() if end not in existing_ends}
    plan.mark_unordered(table, generation, new_reasons)
    if ordered_now:
        plan.unmarked.append((table, generation, sorted(ordered_now)))


def _refuse_contradiction(source: str, what: str, rows: pa.Table, existing: pa.Table) -> None:
    if existing.num_rows == 0:
        return
    imported = {row["range_end"]: _row_content(row) for row in rows.to_pylist()}
    for row in existing.to_pylist():
        if imported.get(row["range_end"]) != _row_content(row):
            raise contradiction(source, f"{what}, range_end {row['range_end']}")


def _row_content(row: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    return row | {"streams": sorted(row["streams"])}


def _read_marks(lake: Lake, table: Table, generation: str) -> dict[int, str]:
    """Return the reasons why the streams of ranges of a generation have no known order, by range end."""
    partition_filter = [("table_name", "=", table.full_name), ("generation", "=", generation)]
    rows = lake.read(UNORDERED_RANGES, ["range_end", "reason"], partition_filter)
    return dict(zip(rows["range_end"].to_pylist(), rows["reason"].to_pylist(), strict=True))


def _plan_timestamps(plan: ImportPlan, lake: Lake) -> None:
    exported = plan.exports.timestamps
    if not exported:
        return
    stored = {ms_from_datetime(row["time"]): row["expired"] for row in lake.read(GENERATION_TIMESTAMPS).to_pylist()}
    rows = [
        {
            "key": "timestamps",
            "time": datetime_from_ms(time),
            "expired": stored.get(time) if expired is None else datetime_from_ms(expired),
        }
        for time, expired in exported.items()
    ]
    plan.write(GENERATION_TIMESTAMPS, rows)
    bare = [
        time
        for time, expired in exported.items()
        if expired is None and time not in plan.exports.streams and not _is_published(lake, time)
    ]
    if not bare:
        return
    message = f"{len(bare)} timestamps without their streams rows: {format_times(bare)}"
    is_table_exported = STREAMS_DESCRIPTIONS_V2.name in plan.exports.exported_tables
    if is_table_exported and plan.issues.allow_incomplete and plan.issues.makes_read_only:
        plan.issues.report(message)
    else:
        plan.warnings.append(
            f"{message}; readers skip one when a later one operates, and wait for the newest: import "
            f"{STREAMS_DESCRIPTIONS_V2.name} as well if it has rows of them"
        )


def _is_published(lake: Lake, time_ms: Milliseconds) -> bool:
    return lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", datetime_from_ms(time_ms))]).num_rows > 0


def _plan_ledger(plan: ImportPlan, lake: Lake, clock: Clock) -> None:
    """Plan a ledger row with the time of each generation that was identified by equal streams or is committed."""
    ledger = {row["generation_id"]: ms_from_datetime(row["time"]) for row in lake.read(GENERATIONS).to_pylist()}
    by_time = {time: id_ for id_, time in ledger.items()}
    for time, id_ in plan.ids.items():
        if by_time.get(time, id_) != id_ or ledger.get(id_, time) != time:
            other = format_ms(ledger[id_]) if id_ in ledger else f"generation {by_time[time]}"
            raise InputError(
                f"time {format_ms(time)} and generation {id_} have the same streams, but the lake has {other}; "
                f"{OTHER_HOME}"
            )
    _identify_committed(plan, lake, ledger)
    timeless = [id_ for id_ in plan.exports.descriptions if id_ not in plan.ids.values() and id_ not in ledger]
    if timeless:
        plan.warnings.append(
            f"{len(timeless)} V2 descriptions with streams of no known time, the first {timeless[0]}; "
            "they are imported and do not operate"
        )
    now = datetime_from_us(clock.now_us())  # one time for all rows, by which `backdate_rows` finds it again
    rows = [_count_streams(plan, lake, time, id_) for time, id_ in plan.ids.items()]
    published = [now if time in plan.streams else None for time in plan.ids]
    plan.write(
        GENERATIONS,
        [row | {"created_at": now, "published_at": at} for row, at in zip(rows, published, strict=True)],
    )


def _identify_committed(plan: ImportPlan, lake: Lake, ledger: Mapping[str, Milliseconds]) -> None:
    """Assign the committed timestamp to each committed generation, even before it is published; it must have rows.

    A committed generation without rows is recorded as known, so that a later import can add its description.
    """
    described_ids = {part.key[0] for part in lake.partitions(GENERATION_DESCRIPTIONS_V2) if part.rows}
    committed = plan.exports.topology.committed
    bare: dict[Milliseconds, str] = {}
    for time, id_ in sorted((read_committed_elsewhere(lake) | committed).items()):
        if id_ in ledger or id_ in plan.ids.values():
            continue
        if (id_ in plan.descriptions or id_ in described_ids) and time not in plan.ids:
            plan.ids[time] = id_
        elif id_ not in described_ids and time in committed:
            bare[time] = id_
            message = f"generation {id_} of {format_ms(time)} is committed and has no rows"
            if GENERATION_DESCRIPTIONS_V2.name in plan.exports.exported_tables:
                plan.issues.report(message)
            else:
                plan.warnings.append(f"{message} here: import cdc_generations_v3 as well")
    plan.write(
        COMMITTED_GENERATIONS,
        [{"time": datetime_from_ms(time), "generation_id": id_} for time, id_ in bare.items()],
    )


def _count_streams(plan: ImportPlan, lake: Lake, time_ms: Milliseconds, id_: str) -> dict[str, object]:
    """Build a ledger row without its times from the published streams, or else from the V2 description."""
    ordered = plan.streams.get(time_ms) or plan.descriptions.get(id_)
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
    }
