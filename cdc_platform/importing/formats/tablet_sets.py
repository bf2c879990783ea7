"""Build the stream sets of tablet-based tables from their exported rows, from the public and the internal tables.

A set is stored twice, as open streams and as closed and opened ones, so a missing row shows. `cdc_streams_state` and
`cdc_streams_history` identify a table by the ID of its log; the sets derived from them are checked as those of
`cdc_streams` are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

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
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN
from cdc_platform.importing.formats.exported_tables import STREAMS_HISTORY, STREAMS_STATE, ExportedRow
from cdc_platform.importing.import_issues import ImportIssues, refuse_issues
from cdc_platform.metastore import STREAM_CLOSED, STREAM_CURRENT, STREAM_OPENED
from cdc_platform.ring import LAST_TOKEN

TableName = tuple[str, str]
_Value = TypeVar("_Value")
StreamStates = Mapping[tuple[int, bytes], str]
"""The streams of a set in their states (0 current, 1 closed, 2 opened), each with its source, such as a file."""


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
    """The stream sets in export files, oldest first by table, and the source of each listed time (ms)."""

    sets: Mapping[TableName, list[ExportedStreamSet]] = field(default_factory=dict)
    times: Mapping[TableName, dict[Milliseconds, str]] = field(default_factory=dict)


def read_tablet_exports(
    timestamps: Iterable[ExportedRow],
    streams: Iterable[ExportedRow],
    derived: Mapping[TableName, Mapping[Milliseconds, StreamStates]],
    issues: ImportIssues,
) -> TabletExports:
    """Return the sets in the rows of both public tables, and those derived from the internal tables.

    Raises:
        InputError: a table's name is invalid; or a set does not cover the ring or does not follow from the previous
            one, and `issues` refuses issues.
    """
    times: dict[TableName, dict[Milliseconds, str]] = {}
    rows: dict[TableName, dict[Milliseconds, dict[tuple[int, bytes], str]]] = {}
    for row in timestamps:
        _table_entry(times, row)[row.get("timestamp")] = row.source
    for row in streams:
        states = _table_entry(rows, row).setdefault(row.get("timestamp"), {})
        states[row.get("stream_state"), row.get("stream_id")] = row.source
    for name, sets in derived.items():
        for time_ms, states in sets.items():
            known = rows.setdefault(name, {}).setdefault(time_ms, {})
            known.update({key: source for key, source in states.items() if key not in known})
            times.setdefault(name, {}).setdefault(time_ms, next(iter(states.values())))
    return TabletExports({name: list(build_stream_sets(name, sets, issues)) for name, sets in rows.items()}, times)


def _table_entry(by_table: dict[TableName, dict[Milliseconds, _Value]], row: ExportedRow) -> dict[Milliseconds, _Value]:
    """Return the entry of the row's table, whose name is checked first."""
    name = row.get("keyspace_name"), row.get("table_name")
    if name not in by_table:
        try:
            check_table_name(*name)
        except InputError as error:
            raise InputError(f"{row.location}: {error}") from None
    return by_table.setdefault(name, {})


def derive_stream_sets(
    state: Iterable[ExportedRow], history: Iterable[ExportedRow], names: Mapping[str, TableName], issues: ImportIssues
) -> dict[TableName, dict[Milliseconds, StreamStates]]:
    """Return every set: the oldest of each table, and each later one derived from its changes to the previous one.

    `names` are the tables of logs by the ID of the log.

    Raises:
        InputError: `names` lacks a log, or the oldest set has two times; or there is no oldest set, and `issues`
            refuses issues.
    """
    bases: dict[str, tuple[Milliseconds, dict[bytes, str]]] = {}
    changes: dict[str, dict[Milliseconds, dict[tuple[int, bytes], str]]] = {}
    for row in state:
        _add_to_oldest_set(bases, row)
    for row in history:
        of_time = changes.setdefault(row.get("table_id"), {}).setdefault(row.get("timestamp"), {})
        of_time[row.get("stream_state"), row.get("stream_id")] = row.source
    sets: dict[TableName, dict[Milliseconds, StreamStates]] = {}
    for id_ in sorted({*bases, *changes}):
        if id_ not in bases:
            issues.report(
                f"{STREAMS_STATE.name} has no oldest set of table {id_}, but {STREAMS_HISTORY.name} has changes to it"
            )
        oldest = bases.get(id_, (Milliseconds(0), {}))
        sets.setdefault(_table_of_log(id_, names), {}).update(_apply_changes(*oldest, changes.get(id_, {})))
    return sets


def _add_to_oldest_set(bases: dict[str, tuple[Milliseconds, dict[bytes, str]]], row: ExportedRow) -> None:
    id_, time_ms, stream = row.get("table_id"), row.get("timestamp"), row.get("stream_id")
    if stream is None:
        return
    base_ms, streams = bases.setdefault(id_, (time_ms, {}))
    if base_ms != time_ms:
        raise InputError(
            f"{row.location}: the oldest set of table {id_} began at {format_ms(time_ms)}, and in a row before at "
            f"{format_ms(base_ms)}: it was replaced while it was exported; export it again"
        )
    streams[stream] = row.source


def _apply_changes(
    oldest_ms: Milliseconds,
    oldest: Mapping[bytes, str],
    changes: Mapping[Milliseconds, Mapping[tuple[int, bytes], str]],
) -> dict[Milliseconds, StreamStates]:
    """Return the sets of a table by time (ms), with the streams that are current, closed and opened."""
    sets: dict[Milliseconds, StreamStates] = {}
    current = list(oldest)
    if oldest:
        states = (STREAM_CURRENT, STREAM_OPENED)
        sets[oldest_ms] = {(state, stream): source for stream, source in oldest.items() for state in states}
    for time_ms in sorted(time for time in changes if time > oldest_ms):
        opened = [stream for state, stream in changes[time_ms] if state == STREAM_OPENED]
        closed = {stream for state, stream in changes[time_ms] if state == STREAM_CLOSED}
        current = [stream for stream in dict.fromkeys([*current, *opened]) if stream not in closed]
        source = next(iter(changes[time_ms].values()))
        sets[time_ms] = {**changes[time_ms], **{(STREAM_CURRENT, stream): source for stream in current}}
    return sets


def _table_of_log(id_: str, names: Mapping[str, TableName]) -> TableName:
    keyspace, log = names.get(id_, ("", ""))
    if not log:
        raise InputError(
            f"table {id_} of {STREAMS_STATE.name} and {STREAMS_HISTORY.name} has no name; import with them: COPY "
            "system_schema.tables (keyspace_name, table_name, id) TO 'tables.csv' WITH HEADER = true, or DESCRIBE "
            "SCHEMA WITH INTERNALS"
        )
    return keyspace, log.removesuffix(LOG_SUFFIX)


def build_stream_sets(
    name: TableName, rows: Mapping[Milliseconds, StreamStates], issues: ImportIssues | None = None
) -> Iterator[ExportedStreamSet]:
    """Yield the sets of a table, oldest first, each checked against the previous one.

    `rows` are the streams in their states by time (ms).

    Raises:
        InputError: `issues` refuses issues, and a set does not cover the ring, or does not follow from its changes to
            the previous set.
    """
    issues = issues or refuse_issues()
    previous: ExportedStreamSet | None = None
    for time_ms in sorted(rows):
        states: dict[int, list[bytes]] = {STREAM_CURRENT: [], STREAM_CLOSED: [], STREAM_OPENED: []}
        for state, stream in rows[time_ms]:
            states[state].append(stream)
        source = next(iter(rows[time_ms].values()))
        stream_set = ExportedStreamSet(
            source,
            time_ms,
            *(_to_stream_ids(states[state]) for state in (STREAM_CURRENT, STREAM_CLOSED, STREAM_OPENED)),
        )
        where = f"{source}: {'.'.join(name)} at {format_ms(time_ms)}"
        _check_set(where, stream_set, issues)
        _check_change(where, previous, stream_set, issues)
        yield stream_set
        previous = stream_set


def _check_set(where: str, stream_set: ExportedStreamSet, issues: ImportIssues) -> None:
    for ids in (stream_set.current, stream_set.closed, stream_set.opened):
        fields = decode_stream_ids(ids)
        wrong = np.flatnonzero((fields.versions != STREAM_ID_VERSION) | (fields.indexes != 0))
        if wrong.size:
            at = int(wrong[0])
            issues.report(
                f"{where}: stream 0x{ids[at].tobytes().hex()} has version {fields.versions[at]} and index "
                f"{fields.indexes[at]}; a tablet's has 1 and 0"
            )
    if not len(stream_set.current):
        issues.report(f"{where}: no current streams (state 0): {HALF_WRITTEN}, rows are missing")
        return
    tokens = get_stream_tokens(stream_set.current)
    repeated = np.flatnonzero(tokens[1:] == tokens[:-1])
    if repeated.size:
        issues.report(f"{where}: two current streams have token {tokens[repeated[0]]}; a tablet has one stream")
    if tokens[-1] != LAST_TOKEN:
        issues.report(
            f"{where}: its last stream has token {tokens[-1]}, and the ring ends at {LAST_TOKEN}: "
            f"{HALF_WRITTEN}, rows are missing"
        )


def _check_change(
    where: str, previous: ExportedStreamSet | None, stream_set: ExportedStreamSet, issues: ImportIssues
) -> None:
    """Report a set that differs from its changes applied to the previous one; the oldest only opens its own streams."""
    before = stream_set.current[:0] if previous is None else previous.current
    try:
        computed = apply_difference(before, StreamSetDifference(stream_set.closed, stream_set.opened))
    except InputError as error:
        issues.report(f"{where}: {error}: {HALF_WRITTEN}, rows are missing")
        return
    if not np.array_equal(computed, stream_set.current):
        issues.report(
            f"{where}: the previous set with its changes has {len(computed)} streams, which are not its "
            f"{len(stream_set.current)} current ones: {HALF_WRITTEN}, rows are missing"
        )


def _to_stream_ids(streams: list[bytes]) -> np.ndarray:
    return sort_in_ring_order(np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(-1, STREAM_ID_BYTES))
