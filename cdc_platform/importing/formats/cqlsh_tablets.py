"""Parse cqlsh exports of the stream sets of tablet-based tables, from the public and the internal tables.

A set is stored twice, as open streams and as closed and opened ones, so a missing row shows. `cdc_streams_state` and
`cdc_streams_history` identify a table by the ID of its log; their rows are converted to rows of `cdc_streams` and
checked as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.cql import LOG_SUFFIX, check_table_name
from cdc_platform.errors import InputError
from cdc_platform.generations import (
    STREAM_ID_BYTES,
    STREAM_ID_VERSION,
    StreamSetDifference,
    apply_difference,
    decode_stream_ids,
    get_stream_tokens,
    sort_in_ring_order,
)
from cdc_platform.importing.formats.cells import HALF_WRITTEN, ExportRows, read_stream_id, read_time_ms, read_uuid
from cdc_platform.importing.import_issues import ImportIssues, refuse_issues
from cdc_platform.metastore import STREAM_CLOSED, STREAM_CURRENT, STREAM_OPENED
from cdc_platform.ring import LAST_TOKEN

TABLET_TIMESTAMPS = "cdc_timestamps"
TABLET_STREAMS = "cdc_streams"

_COLUMNS = {
    TABLET_TIMESTAMPS: {"keyspace_name", "table_name", "timestamp"},
    TABLET_STREAMS: {"keyspace_name", "table_name", "timestamp", "stream_state", "stream_id"},
}
_STATES = {"0": STREAM_CURRENT, "1": STREAM_CLOSED, "2": STREAM_OPENED}

TableName = tuple[str, str]
_Rows = Iterable[tuple[int, dict[str, str]]]


@dataclass(frozen=True, eq=False)
class ExportedStreamSet:
    """A stream set of a table, from `time_ms` on: uint8[n, 16] each, in ring order; `source` is the file."""

    source: str
    time_ms: Milliseconds
    current: np.ndarray
    closed: np.ndarray
    opened: np.ndarray


@dataclass(frozen=True)
class TabletExports:
    """The stream sets in export files, oldest first by table, and the place of each listed time (ms)."""

    sets: Mapping[TableName, list[ExportedStreamSet]] = field(default_factory=dict)
    times: Mapping[TableName, dict[Milliseconds, str]] = field(default_factory=dict)


def tablet_table_from_columns(source: str, columns: set[str]) -> str | None:
    """Return the table that has these columns, or None if neither has.

    Raises:
        InputError: a column of the streams is missing.
    """
    for table, needed in _COLUMNS.items():
        if columns == needed:
            return table
    missing = _COLUMNS[TABLET_STREAMS] - columns
    if "stream_id" in columns and columns < _COLUMNS[TABLET_STREAMS]:
        raise InputError(
            f"{source}: column {', '.join(sorted(missing))} of {TABLET_STREAMS} is missing; export all columns"
        )
    return None


@dataclass
class TabletExportReader:
    """Rows of the files read so far, by table and time (ms): each stream in each state once, with its place."""

    _streams: dict[TableName, dict[Milliseconds, dict[tuple[int, bytes], str]]] = field(default_factory=dict)
    _times: dict[TableName, dict[Milliseconds, str]] = field(default_factory=dict)

    def add(self, table: str, source: str, rows: _Rows) -> None:
        """Add a file's rows. A row may be in several files, but only once in each.

        Raises:
            InputError: a value is invalid, or a row is duplicated.
        """
        if table == TABLET_TIMESTAMPS:
            self._add_times(source, rows)
        else:
            self._add_streams(source, rows)

    def add_sets(self, sets: Mapping[TableName, Mapping[Milliseconds, Mapping[tuple[int, bytes], str]]]) -> None:
        """Add the sets derived from another table, each with its time; existing rows stay."""
        for name, by_time in sets.items():
            for time_ms, states in by_time.items():
                known = self._streams.setdefault(name, {}).setdefault(time_ms, {})
                known.update({key: place for key, place in states.items() if key not in known})
                self._times.setdefault(name, {}).setdefault(time_ms, next(iter(states.values())))

    def exports(self, flaws: ImportIssues) -> TabletExports:
        """Return the combined content of the files.

        Raises:
            InputError: `flaws` refuses issues, and a set does not cover the ring, or does not follow from its changes
                to the previous set.
        """
        return TabletExports(
            {name: list(build_stream_sets(name, rows, flaws)) for name, rows in self._streams.items()}, self._times
        )

    def _add_times(self, source: str, rows: _Rows) -> None:
        for place, name, time_ms, _ in _keyed_rows(source, rows):
            known = self._times.setdefault(name, {}).setdefault(time_ms, place)
            _refuse_duplicate(source, place, known, f"{'.'.join(name)} at {format_ms(time_ms)}")

    def _add_streams(self, source: str, rows: _Rows) -> None:
        for place, name, time_ms, values in _keyed_rows(source, rows):
            state = _STATES.get(values["stream_state"])
            if state is None:
                raise InputError(
                    f"{place}: invalid value {values['stream_state']!r} for stream state; it is 0 (current), 1 (closed)"
                    " or 2 (opened)"
                )
            stream = read_stream_id(place, values["stream_id"])
            known = self._streams.setdefault(name, {}).setdefault(time_ms, {}).setdefault((state, stream), place)
            _refuse_duplicate(source, place, known, f"stream 0x{stream.hex()} in state {state}")


def _keyed_rows(source: str, rows: _Rows) -> Iterator[tuple[str, TableName, Milliseconds, dict[str, str]]]:
    """Yield every row with its place and its key: the table and the time (ms)."""
    names: set[TableName] = set()
    times: dict[str, Milliseconds] = {}
    for line, values in rows:
        place = f"{source}, line {line}"
        name = values["keyspace_name"], values["table_name"]
        if name not in names:
            _check_name(place, name)
            names.add(name)
        text = values["timestamp"]
        if text not in times:
            times[text] = read_time_ms(place, "timestamp", text)
        yield place, name, times[text], values


def _check_name(place: str, name: TableName) -> None:
    try:
        check_table_name(*name)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _refuse_duplicate(source: str, place: str, known: str, what: str) -> None:
    if known != place and re.fullmatch(re.escape(source) + r", line \d+", known):
        raise InputError(f"{place}: {what} is there twice, first in {known.removeprefix(f'{source}, ')}")


def build_stream_sets(
    name: TableName, rows: Mapping[Milliseconds, Mapping[tuple[int, bytes], str]], flaws: ImportIssues | None = None
) -> Iterator[ExportedStreamSet]:
    """Yield the sets of a table, oldest first, each checked against the previous one.

    `rows`: by time (ms) the streams in their states (0 current, 1 closed, 2 opened), each with its place in the files.

    Raises:
        InputError: `flaws` refuses issues, and a set does not cover the ring, or does not follow from its changes to
            the previous set.
    """
    flaws = flaws or refuse_issues()
    previous: ExportedStreamSet | None = None
    for time_ms in sorted(rows):
        states: dict[int, list[bytes]] = {STREAM_CURRENT: [], STREAM_CLOSED: [], STREAM_OPENED: []}
        for state, stream in rows[time_ms]:
            states[state].append(stream)
        place = next(iter(rows[time_ms].values()))
        source = place.rpartition(", line ")[0] or place
        stream_set = ExportedStreamSet(
            source,
            time_ms,
            *(_to_stream_ids(states[state]) for state in (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED)),
        )
        where = f"{source}: {'.'.join(name)} at {format_ms(time_ms)}"
        _check_set(where, stream_set, flaws)
        _check_change(where, previous, stream_set, flaws)
        yield stream_set
        previous = stream_set


def _check_set(where: str, found: ExportedStreamSet, flaws: ImportIssues) -> None:
    for ids in (found.current, found.closed, found.opened):
        fields = decode_stream_ids(ids)
        wrong = np.flatnonzero((fields.versions != STREAM_ID_VERSION) | (fields.indexes != 0))
        if wrong.size:
            at = int(wrong[0])
            flaws.tell(
                f"{where}: stream 0x{ids[at].tobytes().hex()} has version {fields.versions[at]} and index "
                f"{fields.indexes[at]}; a tablet's has 1 and 0"
            )
    if not len(found.current):
        flaws.tell(f"{where}: no current streams (state 0): {HALF_WRITTEN}, rows are missing")
        return
    tokens = get_stream_tokens(found.current)
    repeated = np.flatnonzero(tokens[1:] == tokens[:-1])
    if repeated.size:
        flaws.tell(f"{where}: two current streams have token {tokens[repeated[0]]}; a tablet has one stream")
    if tokens[-1] != LAST_TOKEN:
        flaws.tell(
            f"{where}: its last stream has token {tokens[-1]}, and the ring ends at {LAST_TOKEN}: "
            f"{HALF_WRITTEN}, rows are missing"
        )


def _check_change(
    where: str, previous: ExportedStreamSet | None, found: ExportedStreamSet, flaws: ImportIssues
) -> None:
    """Report a set that differs from its changes applied to the previous one; the oldest only opens its own streams."""
    before = found.current[:0] if previous is None else previous.current
    try:
        computed = apply_difference(before, StreamSetDifference(found.closed, found.opened))
    except InputError as error:
        flaws.tell(f"{where}: {error}: {HALF_WRITTEN}, rows are missing")
        return
    if not np.array_equal(computed, found.current):
        flaws.tell(
            f"{where}: what was open, closed and opened makes {len(computed)} streams, which are not its "
            f"{len(found.current)} current ones: {HALF_WRITTEN}, rows are missing"
        )


def _to_stream_ids(streams: list[bytes]) -> np.ndarray:
    return sort_in_ring_order(np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES))


STREAMS_STATE, STREAMS_HISTORY, SCHEMA_TABLES = "cdc_streams_state", "cdc_streams_history", "tables"
INTERNAL_COLUMNS: Mapping[str, frozenset[str]] = {
    STREAMS_STATE: frozenset({"table_id", "last_token", "stream_id", "timestamp"}),
    STREAMS_HISTORY: frozenset({"table_id", "timestamp", "stream_state", "last_token", "stream_id"}),
}
_SCHEMA_TABLES_COLUMNS = frozenset({"keyspace_name", "table_name", "id"})
_CHANGE_STATES = {"1": STREAM_CLOSED, "2": STREAM_OPENED}

_TableName = tuple[str, str]
StreamStates = dict[_TableName, dict[Milliseconds, dict[tuple[int, bytes], str]]]
"""By table and time (ms) the streams in their states, each with its place."""


@dataclass
class TabletInternalTables:
    """Rows of the files read so far, by the ID of the log's table: `bases` the oldest sets, `changes` by time (ms)."""

    names: dict[str, _TableName] = field(default_factory=dict)
    _bases: dict[str, tuple[Milliseconds, dict[bytes, str]]] = field(default_factory=dict)
    _changes: dict[str, dict[Milliseconds, dict[tuple[int, bytes], str]]] = field(default_factory=dict)

    @staticmethod
    def table_of(columns: set[str]) -> str | None:
        """Return the table that has these columns, or None if none of the three has."""
        streams_table = next((table for table, known in INTERNAL_COLUMNS.items() if columns == known), None)
        return streams_table or (SCHEMA_TABLES if columns >= _SCHEMA_TABLES_COLUMNS else None)

    def add(self, table: str, source: str, rows: ExportRows) -> None:
        """Add a file's rows.

        Raises:
            InputError: a value is invalid, or two files disagree.
        """
        for line, values in rows:
            place = f"{source}, line {line}"
            if table == SCHEMA_TABLES:
                self.names[read_uuid(place, values["id"])] = values["keyspace_name"], values["table_name"]
                continue
            id_ = read_uuid(place, values["table_id"], "table_id")
            time_ms = read_time_ms(place, "timestamp", values["timestamp"])
            if table == STREAMS_STATE and not values["stream_id"]:
                continue  # a static timestamp alone: the set has no streams
            stream = read_stream_id(place, values["stream_id"])
            if table == STREAMS_HISTORY:
                state = _CHANGE_STATES.get(values["stream_state"])
                if state is None:
                    raise InputError(
                        f"{place}: invalid value {values['stream_state']!r} for stream state; in "
                        f"{STREAMS_HISTORY} it is 1 "
                        "(closed) or 2 (opened)"
                    )
                self._changes.setdefault(id_, {}).setdefault(time_ms, {})[state, stream] = place
                continue
            base, streams = self._bases.setdefault(id_, (time_ms, {}))
            if base != time_ms:
                raise InputError(
                    f"{place}: the oldest set of table {id_} began at {format_ms(time_ms)}, and in a row before at "
                    f"{format_ms(base)}: it was replaced while it was exported; export it again"
                )
            streams[stream] = place

    def sets(self, flaws: ImportIssues) -> StreamStates:
        """Return the sets of every table: the oldest, and each later one derived from its changes to the previous one.

        Raises:
            InputError: no schema names the table; or there is no oldest set, and `flaws` refuses issues.
        """
        sets: StreamStates = {}
        for id_ in sorted({*self._bases, *self._changes}):
            table_sets = sets.setdefault(self._name(id_), {})
            base = self._bases.get(id_)
            if base is None:
                flaws.tell(f"{STREAMS_STATE} has no oldest set of table {id_}, of which {STREAMS_HISTORY} has changes")
            time_ms, streams = base or (Milliseconds(0), {})
            current = dict(streams)
            if streams:
                table_sets[time_ms] = {
                    (state, each): place for each, place in streams.items() for state in (STREAM_CURRENT, STREAM_OPENED)
                }
            for later in sorted(time for time in self._changes.get(id_, {}) if time > time_ms):
                changes = self._changes[id_][later]
                for (state, stream), place in changes.items():
                    if state == STREAM_OPENED:
                        current[stream] = place
                # If a tablet has streams opened and closed at once, these are different streams.
                for state, stream in changes:
                    if state == STREAM_CLOSED:
                        current.pop(stream, None)
                place = next(iter(changes.values()))
                table_sets[later] = changes | {(STREAM_CURRENT, stream): place for stream in current}
        return sets

    def _name(self, id_: str) -> _TableName:
        keyspace, log = self.names.get(id_, ("", ""))
        if not log:
            raise InputError(
                f"table {id_} of {STREAMS_STATE} and {STREAMS_HISTORY} has no name; import with them: COPY "
                "system_schema.tables "
                "(keyspace_name, table_name, id) TO 'tables.csv' WITH HEADER = true, or DESCRIBE SCHEMA WITH INTERNALS"
            )
        return keyspace, log.removesuffix(LOG_SUFFIX)
