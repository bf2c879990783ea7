"""Read the generations of a live cluster, of both formats, and the stream sets of its tablet-based tables.

A generation is read after its timestamp, and twice: rows that differ between two reads are still being written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import numpy as np

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms, ms_from_datetime
from cdc_platform.cql import check_table_name
from cdc_platform.errors import InputError
from cdc_platform.generations import STREAM_ID_BYTES, TopologyDescription
from cdc_platform.importing import (
    LOCAL_KEYS,
    CdcLocalRow,
    RangeRows,
    TableName,
    TabletExports,
    V1Exports,
    V1Generation,
    build_stream_sets,
    described_range_rows,
    published_range_rows,
)
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, MAX_IGNORE_MSB
from cdc_platform.scylla import system_tables
from cdc_platform.scylla.errors import Unreachable
from cdc_platform.scylla.session import CqlRow, ScyllaSession
from cdc_platform.scylla.system_tables import AvailableTables
from cdc_platform.scylla.topology import ClusterTopology

_MAX_READS = 3
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class SkippedItem:
    """An item that was left out: `who` names it, `line` gives the reason."""

    who: str
    line: str

    def __str__(self) -> str:
        return self.line


@dataclass
class ObservedGenerations:
    """The generations read from a cluster.

    `descriptions` are by ID, `streams` and `timestamps` (with their expiry) by time in ms. `incomplete` lists the
    generations left out, with reasons; `not_read` lists the nodes whose `cdc_local` could not be read.
    """

    descriptions: dict[str, RangeRows] = field(default_factory=dict)
    streams: dict[Milliseconds, RangeRows] = field(default_factory=dict)
    timestamps: dict[Milliseconds, Milliseconds | None] = field(default_factory=dict)
    v1: V1Exports = field(default_factory=V1Exports)
    incomplete: list[SkippedItem] = field(default_factory=list)
    not_read: list[SkippedItem] = field(default_factory=list)


@dataclass(frozen=True)
class KnownGenerations:
    """What a home has: the times (ms) of published streams and of both V1 tables, and the IDs of descriptions."""

    times: Collection[Milliseconds] = ()
    ids: Collection[str] = ()
    v1_descriptions: Collection[Milliseconds] = ()
    v1_streams: Collection[Milliseconds] = ()


def read_generation_timestamps(live: ScyllaSession, layout: AvailableTables) -> dict[Milliseconds, Milliseconds | None]:
    """Return the published times with their expiry, in ms, oldest first; empty if the version has no such table."""
    if system_tables.TIMESTAMPS not in layout:
        return {}
    rows = live.select(system_tables.TIMESTAMPS, "time, expired", "WHERE key = 'timestamps'")
    return dict(sorted((ms_from_datetime(row["time"]), _optional_ms(row["expired"])) for row in rows))


def read_generations(
    live: ScyllaSession,
    layout: AvailableTables,
    topology: ClusterTopology,
    timestamps: dict[Milliseconds, Milliseconds | None],
    known: KnownGenerations,
) -> ObservedGenerations:
    """Read every generation that the home lacks; `timestamps` (ms, with their expiry) were read before.

    Raises:
        NotGranted, Unreachable, Refused: a table could not be read.
    """
    observed = ObservedGenerations()
    for id_ in _new_ids(live, layout, topology, known.ids):
        _collect(
            observed,
            f"generation {id_}",
            lambda id_=id_: _read_description(live, layout, id_),
            lambda rows, id_=id_: observed.descriptions.update({id_: rows}),
        )
    for time_ms, expired in timestamps.items():
        if time_ms in known.times:
            observed.timestamps[time_ms] = expired
            continue

        def put(
            rows: RangeRows | None, time_ms: Milliseconds = time_ms, expired: Milliseconds | None = expired
        ) -> None:
            observed.timestamps[time_ms] = expired
            if rows is not None:
                observed.streams[time_ms] = rows

        _collect(
            observed, f"generation {format_ms(time_ms)}", lambda time_ms=time_ms: _read_streams(live, time_ms), put
        )
    _read_v1_table(live, layout, system_tables.DESCRIPTIONS_V1, observed, known.v1_descriptions)
    _read_v1_table(live, layout, system_tables.STREAMS_V1, observed, known.v1_streams)
    _read_local_rows(live, layout, observed)
    return observed


def _collect(found: ObservedGenerations, who: str, read: Callable[[], _Read], put: Callable[[_Read], None]) -> None:
    """Store what `read` returns; on an InputError record the item as incomplete, and a later observation retries it."""
    try:
        put(read())
    except InputError as error:
        found.incomplete.append(SkippedItem(who, str(error)))


def read_until_stable(read: Callable[[], Sequence[CqlRow]], what: str) -> Sequence[CqlRow]:
    """Return the rows once two consecutive reads agree.

    Raises:
        InputError: they kept changing.
    """
    before = read()
    for _ in range(_MAX_READS):
        now = read()
        if now == before:
            return now
        before = now
    raise InputError(f"{what} changes while it is read; it is imported once two reads agree")


def _new_ids(
    live: ScyllaSession, layout: AvailableTables, topology: ClusterTopology, known: Collection[str]
) -> list[str]:
    ids = {str(id_) for _, id_ in topology.committed} if system_tables.DESCRIPTIONS_V3 in layout else set()
    if system_tables.DESCRIPTIONS_V2 in layout:
        rows = live.select(system_tables.DESCRIPTIONS_V2, "DISTINCT id")
        ids |= {str(row["id"]) for row in rows}
    return sorted(ids - set(known))


def _read_description(live: ScyllaSession, layout: AvailableTables, id_: str) -> RangeRows:
    """Return a description from the table of the second format, or from Raft's own table, which has no `num_ranges`."""
    what = f"{live.name}: generation {id_}"
    key = UUID(id_)
    rows: Sequence[CqlRow] = []
    if system_tables.DESCRIPTIONS_V2 in layout:
        columns = "range_end, ignore_msb, num_ranges, streams"
        rows = read_until_stable(
            lambda: live.select(system_tables.DESCRIPTIONS_V2, columns, "WHERE id = %s", [key]), what
        )
        claimed = {row["num_ranges"] for row in rows}
        if rows and claimed != {len(rows)}:
            claimed_text = " and ".join(str(number) for number in claimed)
            raise InputError(f"{what} has {len(rows)} rows, num_ranges claims {claimed_text}: it is incomplete")
    if not rows and system_tables.DESCRIPTIONS_V3 in layout:
        where = "WHERE key = 'cdc_generations' AND id = %s"
        columns = "range_end, ignore_msb, streams"
        at = live.contact
        rows = read_until_stable(lambda: live.select(system_tables.DESCRIPTIONS_V3, columns, where, [key], at=at), what)
    if not rows:
        raise InputError(f"{what} has no rows on any node")
    msbs = {row["range_end"]: _validate_ignore_msb(what, row["ignore_msb"]) for row in rows}
    return described_range_rows(live.name, id_, _streams_by_end(what, rows), msbs)


def _read_streams(live: ScyllaSession, time_ms: Milliseconds) -> RangeRows | None:
    """Return the streams of a listed time; None if no row exists for it."""
    what = f"{live.name}: time {format_ms(time_ms)}"
    where, moment = "WHERE time = %s", datetime_from_ms(time_ms).replace(tzinfo=None)
    rows = read_until_stable(lambda: live.select(system_tables.STREAMS_V2, "range_end, streams", where, [moment]), what)
    if not rows:
        if not live.select(system_tables.TIMESTAMPS, "time", "WHERE key = 'timestamps' AND time = %s", [moment]):
            raise InputError(f"{what} was removed while it was read")
        return None
    return published_range_rows(live.name, time_ms, _streams_by_end(what, rows))


def _streams_by_end(what: str, rows: Sequence[CqlRow]) -> dict[int, bytes]:
    streams = {}
    for row in rows:
        end = row["range_end"]
        if not FIRST_TOKEN <= end <= LAST_TOKEN:
            raise InputError(f"{what}: range_end {end} is no token; tokens are {FIRST_TOKEN} to {LAST_TOKEN}")
        streams[end] = _join_streams(f"{what}, range_end {end}", row["streams"])
    return streams


def _join_streams(what: str, streams: Iterable[bytes] | None) -> bytes:
    ids = list(streams or ())
    if not ids:
        raise InputError(f"{what} has no streams; every range has at least one")
    wrong = next((stream for stream in ids if len(stream) != STREAM_ID_BYTES), None)
    if wrong is not None:
        raise InputError(f"{what}: 0x{wrong.hex()[:40]} is {len(wrong)} bytes; a stream ID has {STREAM_ID_BYTES}")
    return b"".join(ids)


def _validate_ignore_msb(what: str, value: int | None) -> int:
    if value is None or not 0 <= value <= MAX_IGNORE_MSB:
        raise InputError(f"{what}: ignore_msb {value} is no whole number from 0 to {MAX_IGNORE_MSB}")
    return value


def _read_v1_table(
    live: ScyllaSession,
    layout: AvailableTables,
    table: str,
    found: ObservedGenerations,
    known: Collection[Milliseconds],
) -> None:
    """Read the generations, one per row, of a table of the first format that the home lacks."""
    if table not in layout:
        return
    into = found.v1.descriptions if table == system_tables.DESCRIPTIONS_V1 else found.v1.streams
    for time_ms in sorted(ms_from_datetime(row["time"]) for row in live.select(table, "DISTINCT time")):
        if time_ms not in known:
            _collect(
                found,
                f"generation {format_ms(time_ms)} in {table}",
                lambda time_ms=time_ms: _read_v1_row(live, table, time_ms),
                lambda row, time_ms=time_ms: into.update({time_ms: row}),
            )


def _read_v1_row(live: ScyllaSession, table: str, time_ms: Milliseconds) -> V1Generation:
    what = f"{live.name}: {table} of {format_ms(time_ms)}"
    moment = datetime_from_ms(time_ms).replace(tzinfo=None)
    is_description = table == system_tables.DESCRIPTIONS_V1
    columns = f"{'description' if is_description else 'streams'}, expired"
    rows = read_until_stable(lambda: live.select(table, columns, "WHERE time = %s", [moment]), what)
    if not rows:
        raise InputError(f"{what} was removed while it was read")
    return (_v1_description if is_description else _v1_streams)(live.name, what, rows[0])


def _v1_description(source: str, what: str, row: CqlRow) -> V1Generation:
    entries = row["description"] or []
    if not entries:
        raise InputError(f"{what} has no ranges; a generation has at least one")
    ends, counts, msbs, flat = [], [], [], []
    for end, streams, msb in entries:
        ends.append(end)
        counts.append(len(streams))
        msbs.append(_validate_ignore_msb(what, msb))
        flat.append(_join_streams(f"{what}, range_end {end}", streams))
    ids = np.frombuffer(b"".join(flat), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    numbers = [np.array(column, dtype=np.int64) for column in (ends, counts, msbs)]
    description = TopologyDescription(numbers[0], numbers[1], numbers[2], ids)
    return V1Generation(source, _optional_ms(row["expired"]), description=description)


def _v1_streams(source: str, what: str, row: CqlRow) -> V1Generation:
    ids = b"".join(sorted(row["streams"] or ()))
    flat = np.frombuffer(_join_streams(what, row["streams"]) and ids, dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    return V1Generation(source, _optional_ms(row["expired"]), streams=flat)


def _read_local_rows(live: ScyllaSession, layout: AvailableTables, found: ObservedGenerations) -> None:
    """Read each live node's own `cdc_local` rows, and record the nodes that could not be read."""
    if system_tables.LOCAL not in layout:
        return
    for member in live.members:
        who = f"node {member.address}"
        if member.is_down or member.host_id is None:
            found.not_read.append(SkippedItem(who, "it was not up"))
            continue
        try:
            rows = live.select(system_tables.LOCAL, "*", at=member.address)
        except Unreachable as error:
            found.incomplete += [SkippedItem(who, str(error))] if member.is_up else []
            found.not_read.append(SkippedItem(who, "it did not answer"))
            continue
        source = f"{live.name}, node {member.address}"
        for row in rows:
            if row["key"] in LOCAL_KEYS:
                time, id_ = _optional_ms(row["streams_timestamp"]), row.get("uuid")
                known = CdcLocalRow(source, str(member.host_id), row["key"], time, None if id_ is None else str(id_))
                found.v1.local.append(known)


def _optional_ms(moment: datetime | None) -> Milliseconds | None:
    return None if moment is None else ms_from_datetime(moment)


def read_stream_sets(
    live: ScyllaSession, layout: AvailableTables, known: Mapping[TableName, Collection[Milliseconds]]
) -> tuple[TabletExports, list[SkippedItem], dict[TableName, Milliseconds]]:
    """Return the stream sets of every table that has a set unknown to the home, and the tables left out.

    `known` are the times (ms) that the home has with their streams. A table's sets form one history, so a table is
    imported completely or not at all. The last result gives, for each table left out, the first missing time (ms).

    Raises:
        NotGranted, Unreachable, Refused: a table could not be read.
    """
    exports, incomplete, missing = TabletExports({}, {}), list[SkippedItem](), dict[TableName, Milliseconds]()
    if system_tables.TABLET_TIMESTAMPS not in layout or system_tables.TABLET_STREAMS not in layout:
        return exports, incomplete, missing
    at = live.contact
    times: dict[TableName, list[Milliseconds]] = {}
    for row in live.select(system_tables.TABLET_TIMESTAMPS, "keyspace_name, table_name, timestamp", at=at):
        name = row["keyspace_name"], row["table_name"]
        times.setdefault(name, []).append(ms_from_datetime(row["timestamp"]))
    sets, listed = dict(exports.sets), dict(exports.times)
    for name, listed_ms in sorted(times.items()):
        if set(listed_ms) <= set(known.get(name, ())):
            continue
        source = f"{live.name}: {system_tables.TABLET_STREAMS}"
        try:
            check_table_name(*name)
            rows = {time_ms: _read_states(live, name, time_ms, source) for time_ms in listed_ms}
            sets[name] = list(build_stream_sets(name, {time_ms: states for time_ms, states in rows.items() if states}))
            listed[name] = dict.fromkeys(listed_ms, source)
        except InputError as error:
            incomplete.append(SkippedItem(f"table {'.'.join(name)}", str(error)))
            missing[name] = min(set(listed_ms) - set(known.get(name, ())))
    return TabletExports(sets, listed), incomplete, missing


def _read_states(
    live: ScyllaSession, name: TableName, time_ms: Milliseconds, place: str
) -> dict[tuple[int, bytes], str]:
    what = f"{place} of {'.'.join(name)} at {format_ms(time_ms)}"
    where = "WHERE keyspace_name = %s AND table_name = %s AND timestamp = %s"
    key = [*name, datetime_from_ms(time_ms).replace(tzinfo=None)]
    columns = "stream_state, stream_id"
    rows: Sequence[CqlRow] = read_until_stable(
        lambda: live.select(system_tables.TABLET_STREAMS, columns, where, key, at=live.contact), what
    )
    states = {}
    for row in rows:
        state, stream = row["stream_state"], row["stream_id"]
        if state not in (0, 1, 2) or len(stream) != STREAM_ID_BYTES:
            raise InputError(f"{what}: stream 0x{stream.hex()[:40]} in state {state}; states are 0, 1, 2, IDs 16 bytes")
        states[state, stream] = place
    return states
