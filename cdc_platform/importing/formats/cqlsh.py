"""Parse cqlsh exports of ScyllaDB's generation tables, and check them for missing rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import InputError
from cdc_platform.importing.formats.cells import (
    EMPTY_STREAM_SETS,
    HALF_WRITTEN,
    ExportRows,
    read_csv_rows,
    read_expired,
    read_range_end,
    read_stream_set,
    read_time_ms,
    read_uuid,
    split_stream_ids,
    whole_number_reader,
)
from cdc_platform.importing.formats.cqlsh_output import is_cqlsh_table, is_json_rows, read_cqlsh_table, read_json_rows
from cdc_platform.importing.formats.cqlsh_tablets import (
    SCHEMA_TABLES,
    STREAMS_HISTORY,
    STREAMS_STATE,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    TabletExportReader,
    TabletExports,
    TabletInternalTables,
    tablet_table_from_columns,
)
from cdc_platform.importing.formats.cqlsh_v1 import (
    DESCRIPTIONS_V1,
    LOCAL,
    STREAMS_V1,
    V1Exports,
    collect_v1_rows,
    v1_table_from_columns,
)
from cdc_platform.importing.formats.described_schema import DescribedTable, is_schema_text, parse_schema_text
from cdc_platform.importing.formats.strict_json import max_export_bytes
from cdc_platform.importing.formats.topology import TOPOLOGY, TopologyExport, collect_topology_rows, is_topology_export
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.importing.range_rows import RangeRows, described_range_rows, published_range_rows
from cdc_platform.ring import MAX_IGNORE_MSB, MAX_RANGES
from cdc_platform.storage import read_user_text

DESCRIPTIONS_V2 = "cdc_generation_descriptions_v2"
DESCRIPTIONS_V3 = "cdc_generations_v3"
STREAMS_V2 = "cdc_streams_descriptions_v2"
TIMESTAMPS = "cdc_generation_timestamps"

_COLUMNS = {
    DESCRIPTIONS_V2: {"id", "range_end", "ignore_msb", "num_ranges", "streams"},
    STREAMS_V2: {"time", "range_end", "streams"},
    TIMESTAMPS: {"key", "time", "expired"},
    DESCRIPTIONS_V3: {"key", "id", "range_end", "ignore_msb", "streams"},
}
_READABLE_TABLES = (
    *(DESCRIPTIONS_V2, STREAMS_V2, TIMESTAMPS, DESCRIPTIONS_V1, STREAMS_V1, LOCAL, TABLET_TIMESTAMPS, TABLET_STREAMS),
    *(DESCRIPTIONS_V3, TOPOLOGY, STREAMS_STATE, STREAMS_HISTORY),
)


@dataclass(frozen=True)
class CqlshExports:
    """The content of export files: V2 descriptions by ID, streams by time (ms), times (ms) with their expiry (ms).

    `v1` is the content of V1 tables and of `cdc_local`; `tablets` are stream sets of tablets. `held` are the names of
    the exported tables, even without rows, or of the tables that their rows go into. `topology` is what the cluster's
    Raft group has committed, `tables` are those with CDC options or a log in a schema, `warnings` are remarks on that
    schema.
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
class _ExportRow:
    source: str
    line: int
    streams: bytes
    ignore_msb: int = 0
    num_ranges: int = 0

    @property
    def place(self) -> str:
        return f"{self.source}, line {self.line}"

    def says_the_same(self, other: _ExportRow) -> bool:
        mine, its = ((set(split_stream_ids(row.streams)), row.ignore_msb, row.num_ranges) for row in (self, other))
        return mine == its


_Partitions = dict[str, dict[int, _ExportRow]]


def read_exports(paths: Iterable[str | Path], flaws: ImportIssues | None = None) -> CqlshExports:
    """Read export files together: a table may be spread over several of them.

    Raises:
        NotFound: a file does not exist.
        InputError: a file is no such export, or is truncated; or rows of a generation are missing, and `flaws` refuses
            issues.
    """
    return parse_exports([(str(path), read_user_text(Path(path), max_export_bytes())) for path in paths], flaws)


def parse_exports(files: Sequence[tuple[str, str]], flaws: ImportIssues | None = None) -> CqlshExports:
    """Parse exports as `read_exports` does, from (name, text) pairs.

    Raises:
        InputError: a text is no such export, or is truncated; or rows of a generation are missing, and `flaws` refuses
            issues.
    """
    flaws = flaws or ImportIssues()
    descriptions: _Partitions = {}
    group_descriptions: _Partitions = {}
    topology, internals = TopologyExport(), TabletInternalTables()
    streams: _Partitions = {}
    timestamps: dict[Milliseconds, Milliseconds | None] = {}
    v1 = V1Exports()
    tablets = TabletExportReader()
    exported_tables: set[str] = set()
    tables: list[DescribedTable] = []
    warnings: list[str] = []
    for source, text in files:
        if is_schema_text(text):
            schema = parse_schema_text(source, text)
            tables += schema.tables
            warnings += schema.warnings
            internals.names.update(schema.names)
            continue
        table, rows = _parse_table(source, text)
        exported_tables.add(
            DESCRIPTIONS_V2 if table == DESCRIPTIONS_V3 else table
        )  # rows of the group's own table go into the same one
        if table == DESCRIPTIONS_V2:
            _collect_rows(descriptions, source, _description_rows(source, rows, flaws))
        elif table == DESCRIPTIONS_V3:
            _collect_rows(group_descriptions, source, _description_rows(source, rows, flaws))
        elif table == TOPOLOGY:
            collect_topology_rows(topology, source, rows, flaws)
        elif table in (STREAMS_STATE, STREAMS_HISTORY, SCHEMA_TABLES):
            internals.add(table, source, rows)
        elif table == STREAMS_V2:
            _collect_rows(streams, source, _streams_rows(source, rows, flaws))
        elif table == TIMESTAMPS:
            _collect_timestamps(timestamps, source, rows)
        elif table in (TABLET_TIMESTAMPS, TABLET_STREAMS):
            tablets.add(table, source, rows)
        else:
            collect_v1_rows(v1, table, source, rows)
    # The group's own table has no row counts, so a generation that is in both tables is read from the one that has
    # them.
    descriptions = group_descriptions | descriptions
    tablets.add_sets(internals.sets(flaws))
    return CqlshExports(
        {id_: _build_description(id_, rows, flaws) for id_, rows in descriptions.items()},
        {
            Milliseconds(time_ms): _build_streams(Milliseconds(time_ms), rows, flaws)
            for time_ms, rows in sorted(streams.items())
        },
        dict(sorted(timestamps.items())),
        v1,
        tablets.exports(flaws),
        frozenset(exported_tables),
        topology,
        tables,
        warnings,
    )


def _parse_table(source: str, text: str) -> tuple[str, ExportRows]:
    """Return the table that the columns name, and its rows, in any supported form."""
    if not text.strip():
        raise InputError(f"{source} is empty: {HALF_WRITTEN}; export it again")
    if is_cqlsh_table(text):
        header, rows = read_cqlsh_table(source, text)
    elif is_json_rows(text):
        header, rows = read_json_rows(source, text)
    else:
        header, rows = read_csv_rows(source, text)
    return _table_from_header(source, header), rows


def _table_from_header(source: str, header: list[str]) -> str:
    columns = set(header)
    if len(columns) < len(header):
        raise InputError(f"{source}: the header names a column twice: {', '.join(header)}")
    for table in (DESCRIPTIONS_V2, STREAMS_V2, DESCRIPTIONS_V3):
        if columns == _COLUMNS[table]:
            return table
    if "time" in columns and columns <= _COLUMNS[TIMESTAMPS]:
        return TIMESTAMPS
    v1_table = v1_table_from_columns(columns)
    if v1_table is not None:
        return v1_table
    internal = TabletInternalTables.table_of(columns)
    if internal is not None:
        return internal
    if is_topology_export(columns):
        return TOPOLOGY
    tablet_table = tablet_table_from_columns(source, columns)
    if tablet_table is not None:
        return tablet_table
    for table in (DESCRIPTIONS_V2, STREAMS_V2):
        missing = _COLUMNS[table] - columns
        if columns and columns < _COLUMNS[table] and "range_end" in columns:
            raise InputError(f"{source}: column {', '.join(sorted(missing))} of {table} is missing; export all columns")
    raise InputError(
        f"{source}: the first row is no header of {', '.join(_READABLE_TABLES)} but {', '.join(header)[:80]!r}; "
        "export with: COPY ... TO ... WITH HEADER = true"
    )


def _description_rows(source: str, rows: ExportRows, flaws: ImportIssues) -> Iterator[tuple[str, int, _ExportRow]]:
    msb, count = (whole_number_reader(name, low, high) for name, low, high in _V2_NUMBERS)
    for line, values in rows:
        place = f"{source}, line {line}"
        id_ = read_uuid(place, values["id"])
        claimed = values.get("num_ranges")
        if not values["range_end"] and claimed:
            flaws.tell(f"{place}: generation {id_} has num_ranges {claimed} and no rows: {HALF_WRITTEN}")
            continue
        if _has_no_streams(place, values["streams"], flaws):
            continue
        row = _ExportRow(
            source,
            line,
            read_stream_set(place, values["streams"]),
            msb(place, values["ignore_msb"]),
            0 if claimed is None else count(place, claimed),
        )
        yield id_, read_range_end(place, values["range_end"]), row


_V2_NUMBERS = (("ignore_msb", 0, MAX_IGNORE_MSB), ("num_ranges", 1, MAX_RANGES))


def _streams_rows(source: str, rows: ExportRows, flaws: ImportIssues) -> Iterator[tuple[str, int, _ExportRow]]:
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
            _ExportRow(source, line, read_stream_set(place, values["streams"])),
        )


def _has_no_streams(place: str, text: str, flaws: ImportIssues) -> bool:
    """Return True and report an issue if a row has no streams: the row cannot be stored, so its range is missing."""
    if text not in EMPTY_STREAM_SETS:
        return False
    flaws.tell(f"{place}: streams: no streams; every range has at least one")
    return True


def _collect_rows(partitions: _Partitions, source: str, rows: Iterator[tuple[str, int, _ExportRow]]) -> None:
    for key, range_end, row in rows:
        known = partitions.setdefault(key, {}).setdefault(range_end, row)
        if known is row:
            continue
        if known.source == source:
            raise InputError(f"{row.place}: range_end {range_end} is there twice, first in line {known.line}")
        if not known.says_the_same(row):
            raise InputError(f"{row.place}: range_end {range_end} says something else than in {known.place}")


def _collect_timestamps(timestamps: dict[Milliseconds, Milliseconds | None], source: str, rows: ExportRows) -> None:
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


def _build_description(id_: str, rows: dict[int, _ExportRow], flaws: ImportIssues) -> RangeRows:
    claimed = {row.num_ranges for row in rows.values()}
    source = next(iter(rows.values())).source
    has_claims = claimed != {0}
    if has_claims and claimed != {len(rows)}:
        claims_text = " and ".join(str(number) for number in sorted(claimed))
        flaws.tell(f"{source}: generation {id_} has {len(rows)} rows, num_ranges claims {claims_text}: {HALF_WRITTEN}")
    msbs = {end: row.ignore_msb for end, row in rows.items()}
    claims = {end: row.num_ranges for end, row in rows.items()} if has_claims else None
    return described_range_rows(source, id_, {end: row.streams for end, row in rows.items()}, msbs, claims, flaws)


def _build_streams(time_ms: Milliseconds, rows: dict[int, _ExportRow], flaws: ImportIssues) -> RangeRows:
    source = rows[min(rows)].source
    return published_range_rows(source, time_ms, {end: row.streams for end, row in rows.items()}, flaws)
