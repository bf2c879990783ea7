"""Exports of `system.cdc_timestamps` and `system.cdc_streams`: the stream sets of tablet-based tables.

The rows of a set say the same thing twice, as streams that are open and as what was closed and opened, so that a row
that is missing shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.cql.names import check_table_name
from cdc_platform.errors import InputError
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES, VERSION, decode
from cdc_platform.generations.tablets import StreamDifference, apply, in_ring_order, tokens_of
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED
from cdc_platform.ring import LAST
from cdc_platform.sources.cqlsh_values import HALF, read_stream_id, read_time_ms
from cdc_platform.sources.flaws import Flaws, refusing

TABLET_TIMESTAMPS = "cdc_timestamps"
TABLET_STREAMS = "cdc_streams"

_COLUMNS = {
    TABLET_TIMESTAMPS: {"keyspace_name", "table_name", "timestamp"},
    TABLET_STREAMS: {"keyspace_name", "table_name", "timestamp", "stream_state", "stream_id"},
}
_STATES = {"0": CURRENT, "1": CLOSED, "2": OPENED}

Name = tuple[str, str]
_Rows = Iterable[tuple[int, dict[str, str]]]


@dataclass(frozen=True, eq=False)
class ExportedSet:
    """A stream set of a table, from `time_ms` on: uint8[n, 16] each, in ring order; `source` is the file."""

    source: str
    time_ms: Milliseconds
    current: np.ndarray
    closed: np.ndarray
    opened: np.ndarray


@dataclass(frozen=True)
class TabletExports:
    """What export files hold of tablet-based tables: sets oldest first, and where each listed time (ms) stands."""

    sets: Mapping[Name, list[ExportedSet]] = field(default_factory=dict)
    times: Mapping[Name, dict[Milliseconds, str]] = field(default_factory=dict)


def tablet_table(source: str, columns: set[str]) -> str | None:
    """The table that has these columns, None where it is none of the two.

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
class TabletFiles:
    """Rows of the files read so far, by table and time (ms): each stream in each state once, with its place."""

    _streams: dict[Name, dict[Milliseconds, dict[tuple[int, bytes], str]]] = field(default_factory=dict)
    _times: dict[Name, dict[Milliseconds, str]] = field(default_factory=dict)

    def add(self, table: str, source: str, rows: _Rows) -> None:
        """Add a file's rows. A row may be in several files, and in one file once.

        Raises:
            InputError: a value is none of its kind, or a row is there twice.
        """
        if table == TABLET_TIMESTAMPS:
            self._add_times(source, rows)
        else:
            self._add_streams(source, rows)

    def add_sets(self, sets: Mapping[Name, Mapping[Milliseconds, Mapping[tuple[int, bytes], str]]]) -> None:
        """Add the sets that another table tells, each with its time; rows that are there stay."""
        for name, by_time in sets.items():
            for time_ms, states in by_time.items():
                known = self._streams.setdefault(name, {}).setdefault(time_ms, {})
                known.update({key: place for key, place in states.items() if key not in known})
                self._times.setdefault(name, {}).setdefault(time_ms, next(iter(states.values())))

    def exports(self, flaws: Flaws) -> TabletExports:
        """What the files hold together.

        Raises:
            InputError: `flaws` are refused, and a set does not cover the ring, or is not what its changes make of
                the one before.
        """
        return TabletExports(
            {name: list(stream_sets(name, rows, flaws)) for name, rows in self._streams.items()}, self._times
        )

    def _add_times(self, source: str, rows: _Rows) -> None:
        for place, name, time_ms, _ in _keyed(source, rows):
            known = self._times.setdefault(name, {}).setdefault(time_ms, place)
            _refuse_twice(source, place, known, f"{'.'.join(name)} at {format_ms(time_ms)}")

    def _add_streams(self, source: str, rows: _Rows) -> None:
        for place, name, time_ms, values in _keyed(source, rows):
            state = _STATES.get(values["stream_state"])
            if state is None:
                raise InputError(
                    f"{place}: invalid value {values['stream_state']!r} for stream state; it is 0 (current), 1 (closed)"
                    " or 2 (opened)"
                )
            stream = read_stream_id(place, values["stream_id"])
            known = self._streams.setdefault(name, {}).setdefault(time_ms, {}).setdefault((state, stream), place)
            _refuse_twice(source, place, known, f"stream 0x{stream.hex()} in state {state}")


def _keyed(source: str, rows: _Rows) -> Iterator[tuple[str, Name, Milliseconds, dict[str, str]]]:
    """Every row with its place and its key: the table and the time (ms)."""
    names: set[Name] = set()
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


def _check_name(place: str, name: Name) -> None:
    try:
        check_table_name(*name)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _refuse_twice(source: str, place: str, known: str, what: str) -> None:
    if known != place and re.fullmatch(re.escape(source) + r", line \d+", known):
        raise InputError(f"{place}: {what} is there twice, first in {known.removeprefix(f'{source}, ')}")


def stream_sets(
    name: Name, rows: Mapping[Milliseconds, Mapping[tuple[int, bytes], str]], flaws: Flaws | None = None
) -> Iterator[ExportedSet]:
    """The sets of a table, oldest first, each held against the one before it.

    `rows`: by time (ms) the streams in their states (0 current, 1 closed, 2 opened), each with the place it is from.

    Raises:
        InputError: `flaws` are refused, and a set does not cover the ring, or is not what its changes make of the
            one before.
    """
    flaws = flaws or refusing()
    previous: ExportedSet | None = None
    for time_ms in sorted(rows):
        states: dict[int, list[bytes]] = {CURRENT: [], CLOSED: [], OPENED: []}
        for state, stream in rows[time_ms]:
            states[state].append(stream)
        place = next(iter(rows[time_ms].values()))
        source = place.rpartition(", line ")[0] or place
        found = ExportedSet(source, time_ms, *(_ids(states[state]) for state in (CURRENT, CLOSED, OPENED)))
        where = f"{source}: {'.'.join(name)} at {format_ms(time_ms)}"
        _check_set(where, found, flaws)
        _check_change(where, previous, found, flaws)
        yield found
        previous = found


def _check_set(where: str, found: ExportedSet, flaws: Flaws) -> None:
    for ids in (found.current, found.closed, found.opened):
        fields = decode(ids)
        wrong = np.flatnonzero((fields.versions != VERSION) | (fields.indexes != 0))
        if wrong.size:
            at = int(wrong[0])
            flaws.tell(
                f"{where}: stream 0x{ids[at].tobytes().hex()} has version {fields.versions[at]} and index "
                f"{fields.indexes[at]}; a tablet's has 1 and 0"
            )
    if not len(found.current):
        flaws.tell(f"{where}: no current streams (state 0): {HALF}, rows are missing")
        return
    tokens = tokens_of(found.current)
    repeated = np.flatnonzero(tokens[1:] == tokens[:-1])
    if repeated.size:
        flaws.tell(f"{where}: two current streams have token {tokens[repeated[0]]}; a tablet has one stream")
    if tokens[-1] != LAST:
        flaws.tell(
            f"{where}: its last stream has token {tokens[-1]}, and the ring ends at {LAST}: {HALF}, rows are missing"
        )


def _check_change(where: str, previous: ExportedSet | None, found: ExportedSet, flaws: Flaws) -> None:
    """Hold that a set is what its changes make of the one before; the oldest opens all of itself and closes nothing."""
    before = found.current[:0] if previous is None else previous.current
    try:
        made = apply(before, StreamDifference(found.closed, found.opened))
    except InputError as error:
        flaws.tell(f"{where}: {error}: {HALF}, rows are missing")
        return
    if not np.array_equal(made, found.current):
        flaws.tell(
            f"{where}: what was open, closed and opened makes {len(made)} streams, which are not its "
            f"{len(found.current)} current ones: {HALF}, rows are missing"
        )


def _ids(streams: list[bytes]) -> np.ndarray:
    return in_ring_order(np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES))
