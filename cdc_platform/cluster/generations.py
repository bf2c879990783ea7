"""The generations of a live cluster, of both formats, as the rows that an import takes in.

A generation is read after its timestamp was seen, and twice: rows that differ between the reads are still being
written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime, ms_to_datetime
from cdc_platform.cluster import tables
from cdc_platform.cluster.refusals import Unreachable
from cdc_platform.cluster.session import LiveCluster, Row
from cdc_platform.cluster.tables import Layout
from cdc_platform.cluster.topology import Topology
from cdc_platform.errors import InputError
from cdc_platform.generations import TopologyDescription
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.ring import FIRST, LAST, MAX_IGNORE_MSB
from cdc_platform.sources.cqlsh_v1 import KEYS, LocalRow, V1Exports, V1Generation
from cdc_platform.sources.range_rows import RangeRows, described_rows, published_rows

_READS = 3
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class LeftOut:
    """What was not taken in: `who` it is, and a line that says why."""

    who: str
    line: str

    def __str__(self) -> str:
        return self.line


@dataclass
class Generations:
    """What was read. `incomplete` says which generations were left out and why, `not_read` of which nodes nothing.

    `descriptions` by id, `streams` and `timestamps` (with their expiry) by time in ms.
    """

    descriptions: dict[str, RangeRows] = field(default_factory=dict)
    streams: dict[Milliseconds, RangeRows] = field(default_factory=dict)
    timestamps: dict[Milliseconds, Milliseconds | None] = field(default_factory=dict)
    v1: V1Exports = field(default_factory=V1Exports)
    incomplete: list[LeftOut] = field(default_factory=list)
    not_read: list[LeftOut] = field(default_factory=list)


@dataclass(frozen=True)
class Known:
    """What a home has: times (ms) of published streams and of both V1 tables, IDs of descriptions."""

    times: Collection[Milliseconds] = ()
    ids: Collection[str] = ()
    v1_descriptions: Collection[Milliseconds] = ()
    v1_streams: Collection[Milliseconds] = ()


def read_timestamps(live: LiveCluster, layout: Layout) -> dict[Milliseconds, Milliseconds | None]:
    """The published times with their expiry, in ms, oldest first; none where the version has no such table."""
    if tables.TIMESTAMPS not in layout:
        return {}
    rows = live.select(tables.TIMESTAMPS, "time, expired", "WHERE key = 'timestamps'")
    return dict(sorted((ms_from_datetime(row["time"]), _ms_if_known(row["expired"])) for row in rows))


def read_generations(
    live: LiveCluster,
    layout: Layout,
    topology: Topology,
    timestamps: dict[Milliseconds, Milliseconds | None],
    known: Known,
) -> Generations:
    """Everything that the home has not; `timestamps` were read before, with their expiry, in ms.

    Raises:
        NotGranted, Unreachable, Refused: a table could not be read.
    """
    found = Generations()
    for id_ in _new_ids(live, layout, topology, known.ids):
        _keep(
            found,
            f"generation {id_}",
            lambda id_=id_: _description(live, layout, id_),
            lambda rows, id_=id_: found.descriptions.update({id_: rows}),
        )
    for time_ms, expired in timestamps.items():
        if time_ms in known.times:
            found.timestamps[time_ms] = expired
            continue

        def put(
            rows: RangeRows | None, time_ms: Milliseconds = time_ms, expired: Milliseconds | None = expired
        ) -> None:
            found.timestamps[time_ms] = expired
            if rows is not None:
                found.streams[time_ms] = rows

        _keep(found, f"generation {format_ms(time_ms)}", lambda time_ms=time_ms: _streams(live, time_ms), put)
    _first_format(live, layout, tables.DESCRIPTIONS_V1, found, known.v1_descriptions)
    _first_format(live, layout, tables.STREAMS_V1, found, known.v1_streams)
    _local_rows(live, layout, found)
    return found


def _keep(found: Generations, who: str, read: Callable[[], _Read], put: Callable[[_Read], None]) -> None:
    """Take in what is whole; what is not is told of, and comes with a later look."""
    try:
        put(read())
    except InputError as error:
        found.incomplete.append(LeftOut(who, str(error)))


def settled(read: Callable[[], Sequence[Row]], what: str) -> Sequence[Row]:
    """Rows that two reads one after the other have answered alike.

    Raises:
        InputError: they kept changing.
    """
    before = read()
    for _ in range(_READS):
        now = read()
        if now == before:
            return now
        before = now
    raise InputError(f"{what} changes while it is read; it is taken in when two reads agree")


def _new_ids(live: LiveCluster, layout: Layout, topology: Topology, known: Collection[str]) -> list[str]:
    ids = {str(id_) for _, id_ in topology.committed} if tables.DESCRIPTIONS_V3 in layout else set()
    if tables.DESCRIPTIONS_V2 in layout:
        rows = live.select(tables.DESCRIPTIONS_V2, "DISTINCT id")
        ids |= {str(row["id"]) for row in rows}
    return sorted(ids - set(known))


def _description(live: LiveCluster, layout: Layout, id_: str) -> RangeRows:
    """A description by the table of the second format, else by the group's own, which counts no ranges."""
    what = f"{live.name}: generation {id_}"
    key = UUID(id_)
    rows: Sequence[Row] = []
    if tables.DESCRIPTIONS_V2 in layout:
        columns = "range_end, ignore_msb, num_ranges, streams"
        rows = settled(lambda: live.select(tables.DESCRIPTIONS_V2, columns, "WHERE id = %s", [key]), what)
        claimed = {row["num_ranges"] for row in rows}
        if rows and claimed != {len(rows)}:
            shown = " and ".join(str(number) for number in claimed)
            raise InputError(f"{what} has {len(rows)} rows, num_ranges claims {shown}: it is not written whole")
    if not rows and tables.DESCRIPTIONS_V3 in layout:
        where = "WHERE key = 'cdc_generations' AND id = %s"
        columns = "range_end, ignore_msb, streams"
        at = live.contact
        rows = settled(lambda: live.select(tables.DESCRIPTIONS_V3, columns, where, [key], at=at), what)
    if not rows:
        raise InputError(f"{what} is known by its ID alone: no node has its rows")
    msbs = {row["range_end"]: _msb(what, row["ignore_msb"]) for row in rows}
    return described_rows(live.name, id_, _streams_by_end(what, rows), msbs)


def _streams(live: LiveCluster, time_ms: Milliseconds) -> RangeRows | None:
    """The streams of a time that is listed; None where there is not one row of them."""
    what = f"{live.name}: time {format_ms(time_ms)}"
    where, moment = "WHERE time = %s", ms_to_datetime(time_ms).replace(tzinfo=None)
    rows = settled(lambda: live.select(tables.STREAMS_V2, "range_end, streams", where, [moment]), what)
    if not rows:
        if not live.select(tables.TIMESTAMPS, "time", "WHERE key = 'timestamps' AND time = %s", [moment]):
            raise InputError(f"{what} was removed while it was read")
        return None
    return published_rows(live.name, time_ms, _streams_by_end(what, rows))


def _streams_by_end(what: str, rows: Sequence[Row]) -> dict[int, bytes]:
    found = {}
    for row in rows:
        end = row["range_end"]
        if not FIRST <= end <= LAST:
            raise InputError(f"{what}: range_end {end} is no token; tokens are {FIRST} to {LAST}")
        found[end] = _joined(f"{what}, range_end {end}", row["streams"])
    return found


def _joined(what: str, streams: Iterable[bytes] | None) -> bytes:
    ids = list(streams or ())
    if not ids:
        raise InputError(f"{what} has no streams; every range has at least one")
    wrong = next((stream for stream in ids if len(stream) != STREAM_ID_BYTES), None)
    if wrong is not None:
        raise InputError(f"{what}: 0x{wrong.hex()[:40]} is {len(wrong)} bytes; a stream ID has {STREAM_ID_BYTES}")
    return b"".join(ids)


def _msb(what: str, value: int | None) -> int:
    if value is None or not 0 <= value <= MAX_IGNORE_MSB:
        raise InputError(f"{what}: ignore_msb {value} is no whole number from 0 to {MAX_IGNORE_MSB}")
    return value


def _first_format(
    live: LiveCluster, layout: Layout, table: str, found: Generations, known: Collection[Milliseconds]
) -> None:
    """A table of the first format, a generation a row; those that the home has are left unread."""
    if table not in layout:
        return
    into = found.v1.descriptions if table == tables.DESCRIPTIONS_V1 else found.v1.streams
    for time_ms in sorted(ms_from_datetime(row["time"]) for row in live.select(table, "DISTINCT time")):
        if time_ms not in known:
            _keep(
                found,
                f"generation {format_ms(time_ms)} in {table}",
                lambda time_ms=time_ms: _v1_row(live, table, time_ms),
                lambda row, time_ms=time_ms: into.update({time_ms: row}),
            )


def _v1_row(live: LiveCluster, table: str, time_ms: Milliseconds) -> V1Generation:
    what = f"{live.name}: {table} of {format_ms(time_ms)}"
    moment = ms_to_datetime(time_ms).replace(tzinfo=None)
    is_description = table == tables.DESCRIPTIONS_V1
    columns = f"{'description' if is_description else 'streams'}, expired"
    rows = settled(lambda: live.select(table, columns, "WHERE time = %s", [moment]), what)
    if not rows:
        raise InputError(f"{what} was removed while it was read")
    return (_v1_description if is_description else _v1_streams)(live.name, what, rows[0])


def _v1_description(source: str, what: str, row: Row) -> V1Generation:
    entries = row["description"] or []
    if not entries:
        raise InputError(f"{what} has no ranges; a generation has at least one")
    ends, counts, msbs, flat = [], [], [], []
    for end, streams, msb in entries:
        ends.append(end)
        counts.append(len(streams))
        msbs.append(_msb(what, msb))
        flat.append(_joined(f"{what}, range_end {end}", streams))
    ids = np.frombuffer(b"".join(flat), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    numbers = [np.array(column, dtype=np.int64) for column in (ends, counts, msbs)]
    description = TopologyDescription(numbers[0], numbers[1], numbers[2], ids)
    return V1Generation(source, _ms_if_known(row["expired"]), description=description)


def _v1_streams(source: str, what: str, row: Row) -> V1Generation:
    ids = b"".join(sorted(row["streams"] or ()))
    flat = np.frombuffer(_joined(what, row["streams"]) and ids, dtype=np.uint8).reshape(-1, STREAM_ID_BYTES)
    return V1Generation(source, _ms_if_known(row["expired"]), streams=flat)


def _local_rows(live: LiveCluster, layout: Layout, found: Generations) -> None:
    """Read what every node that is up keeps of its CDC state, and note which nodes could not be asked.

    The table is each node's own.
    """
    if tables.LOCAL not in layout:
        return
    for member in live.members:
        who = f"node {member.address}"
        if member.is_down or member.host_id is None:
            found.not_read.append(LeftOut(who, "it was not up"))
            continue
        try:
            rows = live.select(tables.LOCAL, "*", at=member.address)
        except Unreachable as error:
            found.incomplete += [LeftOut(who, str(error))] if member.is_up else []
            found.not_read.append(LeftOut(who, "it did not answer"))
            continue
        place = f"{live.name}, node {member.address}"
        for row in rows:
            if row["key"] in KEYS:
                time, id_ = _ms_if_known(row["streams_timestamp"]), row.get("uuid")
                known = LocalRow(place, str(member.host_id), row["key"], time, None if id_ is None else str(id_))
                found.v1.local.append(known)


def _ms_if_known(moment: datetime | None) -> Milliseconds | None:
    return None if moment is None else ms_from_datetime(moment)
