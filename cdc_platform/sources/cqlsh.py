"""Exports of ScyllaDB's generation tables by `cqlsh COPY ... TO ... WITH HEADER = true`, checked for holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import InputError
from cdc_platform.ring import MAX_IGNORE_MSB, MAX_RANGES
from cdc_platform.sources.cqlsh_tablets import (
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TabletExports,
    TabletFiles,
    tablet_table,
)
from cdc_platform.sources.cqlsh_v1 import DESCRIPTIONS_V1, LOCAL, STREAMS_V1, V1Exports, collect_v1, v1_table
from cdc_platform.sources.cqlsh_values import (
    HALF,
    NO_STREAMS,
    read_expired,
    read_range_end,
    read_time_ms,
    read_uuid,
    stream_ids_of,
    streams_of_set,
    whole_number,
)
from cdc_platform.sources.csv_rows import Rows, csv_rows
from cdc_platform.sources.described_schema import DescribedTable, is_schema, parse_schema
from cdc_platform.sources.flaws import Flaws
from cdc_platform.sources.printed_rows import is_json_rows, is_printed, json_rows, printed_rows
from cdc_platform.sources.range_rows import RangeRows, described_rows, published_rows
from cdc_platform.sources.sizes import most_export
from cdc_platform.sources.tablet_internals import HISTORY, SCHEMA_TABLES, STATE, TabletInternals
from cdc_platform.sources.topology_rows import TOPOLOGY, TopologyExport, collect_topology, is_topology
from cdc_platform.user_files import read_text

V2 = "cdc_generation_descriptions_v2"
V3 = "cdc_generations_v3"
STREAMS = "cdc_streams_descriptions_v2"
TIMESTAMPS = "cdc_generation_timestamps"

_COLUMNS = {
    V2: {"id", "range_end", "ignore_msb", "num_ranges", "streams"},
    STREAMS: {"time", "range_end", "streams"},
    TIMESTAMPS: {"key", "time", "expired"},
    V3: {"key", "id", "range_end", "ignore_msb", "streams"},
}
_READ = (
    *(V2, STREAMS, TIMESTAMPS, DESCRIPTIONS_V1, STREAMS_V1, LOCAL, TABLET_TIMESTAMPS, TABLET_STREAMS),
    *(V3, TOPOLOGY, STATE, HISTORY),
)


@dataclass(frozen=True)
class Exports:
    """What the export files hold: V2 descriptions by id, streams by time (ms), times (ms) with their expiry (ms).

    `v1` is what they hold of the first format, and of what nodes keep; `tablets` are stream sets of tablets. `held` are
    the names of the tables that were exported, or of those that their rows go into, also without a row. `topology` is
    what the cluster's group has agreed on, `tables` are those with CDC options or a log in a schema, `warnings` are
    remarks on that schema.
    """

    descriptions: Mapping[str, RangeRows] = field(default_factory=dict)
    streams: Mapping[Milliseconds, RangeRows] = field(default_factory=dict)
    timestamps: Mapping[Milliseconds, Milliseconds | None] = field(default_factory=dict)
    v1: V1Exports = field(default_factory=V1Exports)
    tablets: TabletExports = field(default_factory=TabletExports)
    held: frozenset[str] = frozenset()
    topology: TopologyExport = field(default_factory=TopologyExport)
    tables: Sequence[DescribedTable] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    source: str
    line: int
    streams: bytes
    ignore_msb: int = 0
    num_ranges: int = 0

    @property
    def place(self) -> str:
        return f"{self.source}, line {self.line}"

    def says_the_same(self, other: _Row) -> bool:
        mine, its = ((set(stream_ids_of(row.streams)), row.ignore_msb, row.num_ranges) for row in (self, other))
        return mine == its


_Partitions = dict[str, dict[int, _Row]]


def read_exports(paths: Iterable[str | Path], flaws: Flaws | None = None) -> Exports:
    """Read export files together: a table may lie in several of them.

    Raises:
        NotFound: a file is not there.
        InputError: a file is no such export, or is cut; or rows of a generation are missing, and `flaws` are refused.
    """
    return parse_exports([(str(path), read_text(Path(path), most_export())) for path in paths], flaws)


def parse_exports(files: Sequence[tuple[str, str]], flaws: Flaws | None = None) -> Exports:
    """As `read_exports`, from (name, text) pairs.

    Raises:
        InputError: a text is no such export, or is cut; or rows of a generation are missing, and `flaws` are refused.
    """
    flaws = flaws or Flaws()
    descriptions: _Partitions = {}
    of_group: _Partitions = {}
    topology, internals = TopologyExport(), TabletInternals()
    streams: _Partitions = {}
    timestamps: dict[Milliseconds, Milliseconds | None] = {}
    v1 = V1Exports()
    tablets = TabletFiles()
    held: set[str] = set()
    tables: list[DescribedTable] = []
    warnings: list[str] = []
    for source, text in files:
        if is_schema(text):
            schema = parse_schema(source, text)
            tables += schema.tables
            warnings += schema.warnings
            internals.names.update(schema.names)
            continue
        table, rows = _table(source, text)
        held.add(V2 if table == V3 else table)  # what the group's own table holds goes into the same one
        if table == V2:
            _collect(descriptions, source, _v2_rows(source, rows, flaws))
        elif table == V3:
            _collect(of_group, source, _v2_rows(source, rows, flaws))
        elif table == TOPOLOGY:
            collect_topology(topology, source, rows, flaws)
        elif table in (STATE, HISTORY, SCHEMA_TABLES):
            internals.add(table, source, rows)
        elif table == STREAMS:
            _collect(streams, source, _streams_rows(source, rows, flaws))
        elif table == TIMESTAMPS:
            _collect_timestamps(timestamps, source, rows)
        elif table in (TABLET_TIMESTAMPS, TABLET_STREAMS):
            tablets.add(table, source, rows)
        else:
            collect_v1(v1, table, source, rows)
    # The group's own table counts no rows: where both have a generation, the one that does is read.
    descriptions = of_group | descriptions
    tablets.add_sets(internals.sets(flaws))
    return Exports(
        {id_: _description(id_, rows, flaws) for id_, rows in descriptions.items()},
        {
            Milliseconds(time_ms): _streams_of(Milliseconds(time_ms), rows, flaws)
            for time_ms, rows in sorted(streams.items())
        },
        dict(sorted(timestamps.items())),
        v1,
        tablets.exports(flaws),
        frozenset(held),
        topology,
        tables,
        warnings,
    )


def _table(source: str, text: str) -> tuple[str, Rows]:
    """The table that the columns name, and its rows, whatever form they have."""
    if not text.strip():
        raise InputError(f"{source} is empty: {HALF}; export it again")
    if is_printed(text):
        header, rows = printed_rows(source, text)
    elif is_json_rows(text):
        header, rows = json_rows(source, text)
    else:
        header, rows = csv_rows(source, text)
    return _table_of(source, header), rows


def _table_of(source: str, header: list[str]) -> str:
    columns = set(header)
    if len(columns) < len(header):
        raise InputError(f"{source}: the header names a column twice: {', '.join(header)}")
    for table in (V2, STREAMS, V3):
        if columns == _COLUMNS[table]:
            return table
    if "time" in columns and columns <= _COLUMNS[TIMESTAMPS]:
        return TIMESTAMPS
    old = v1_table(columns)
    if old is not None:
        return old
    internal = TabletInternals.table_of(columns)
    if internal is not None:
        return internal
    if is_topology(columns):
        return TOPOLOGY
    of_tablets = tablet_table(source, columns)
    if of_tablets is not None:
        return of_tablets
    for table in (V2, STREAMS):
        missing = _COLUMNS[table] - columns
        if columns and columns < _COLUMNS[table] and "range_end" in columns:
            raise InputError(f"{source}: column {', '.join(sorted(missing))} of {table} is missing; export all columns")
    raise InputError(
        f"{source}: the first row is no header of {', '.join(_READ)} but {', '.join(header)[:80]!r}; "
        "export with: COPY ... TO ... WITH HEADER = true"
    )


def _v2_rows(source: str, rows: Rows, flaws: Flaws) -> Iterator[tuple[str, int, _Row]]:
    msb, count = (whole_number(name, low, high) for name, low, high in _V2_NUMBERS)
    for line, values in rows:
        place = f"{source}, line {line}"
        id_ = read_uuid(place, values["id"])
        claimed = values.get("num_ranges")
        if not values["range_end"] and claimed:
            flaws.tell(f"{place}: generation {id_} has num_ranges {claimed} and no rows: {HALF}")
            continue
        if _has_no_streams(place, values["streams"], flaws):
            continue
        row = _Row(
            source,
            line,
            streams_of_set(place, values["streams"]),
            msb(place, values["ignore_msb"]),
            0 if claimed is None else count(place, claimed),
        )
        yield id_, read_range_end(place, values["range_end"]), row


_V2_NUMBERS = (("ignore_msb", 0, MAX_IGNORE_MSB), ("num_ranges", 1, MAX_RANGES))


def _streams_rows(source: str, rows: Rows, flaws: Flaws) -> Iterator[tuple[str, int, _Row]]:
    times: dict[str, str] = {}
    for line, values in rows:
        place = f"{source}, line {line}"
        if _has_no_streams(place, values["streams"], flaws):
            continue
        text = values["time"]
        time = times.get(text) or times.setdefault(text, str(read_time_ms(place, "time", text)))
        yield (
            time,
            read_range_end(place, values["range_end"]),
            _Row(source, line, streams_of_set(place, values["streams"])),
        )


def _has_no_streams(place: str, text: str, flaws: Flaws) -> bool:
    """Whether a row has no streams, which is told of: such a row cannot be kept, its range is one that is missing."""
    if text not in NO_STREAMS:
        return False
    flaws.tell(f"{place}: streams: no streams; every range has at least one")
    return True


def _collect(partitions: _Partitions, source: str, rows: Iterator[tuple[str, int, _Row]]) -> None:
    for key, range_end, row in rows:
        known = partitions.setdefault(key, {}).setdefault(range_end, row)
        if known is row:
            continue
        if known.source == source:
            raise InputError(f"{row.place}: range_end {range_end} is there twice, first in line {known.line}")
        if not known.says_the_same(row):
            raise InputError(f"{row.place}: range_end {range_end} says something else than in {known.place}")


def _collect_timestamps(timestamps: dict[Milliseconds, Milliseconds | None], source: str, rows: Rows) -> None:
    seen: dict[int, int] = {}
    for line, values in rows:
        place = f"{source}, line {line}"
        if values.get("key", "timestamps") != "timestamps":
            raise InputError(f"{place}: key {values['key']!r}; the key of {TIMESTAMPS} is always timestamps")
        time = read_time_ms(place, "time", values["time"])
        expired = read_expired(place, values)
        if time in seen:
            raise InputError(f"{place}: time {format_ms(time)} is there twice, first in line {seen[time]}")
        seen[time] = line
        known = timestamps.setdefault(time, expired)
        if expired is not None and known not in (None, expired):
            raise InputError(f"{place}: time {format_ms(time)} expired at another time in a file before")
        timestamps[time] = known if expired is None else expired


def _description(id_: str, rows: dict[int, _Row], flaws: Flaws) -> RangeRows:
    claimed = {row.num_ranges for row in rows.values()}
    source = next(iter(rows.values())).source
    told = claimed != {0}
    if told and claimed != {len(rows)}:
        shown = " and ".join(str(number) for number in sorted(claimed))
        flaws.tell(f"{source}: generation {id_} has {len(rows)} rows, num_ranges claims {shown}: {HALF}")
    msbs = {end: row.ignore_msb for end, row in rows.items()}
    claims = {end: row.num_ranges for end, row in rows.items()} if told else None
    return described_rows(source, id_, {end: row.streams for end, row in rows.items()}, msbs, claims, flaws)


def _streams_of(time_ms: Milliseconds, rows: dict[int, _Row], flaws: Flaws) -> RangeRows:
    source = rows[min(rows)].source
    return published_rows(source, time_ms, {end: row.streams for end, row in rows.items()}, flaws)
