"""Exports of `system.cdc_streams_state` and `cdc_streams_history`: the oldest set of a table, and what changed since.

They know tables by the ID of the log; a schema says which table that is. What they make are the rows that
`system.cdc_streams` would have, so that they are judged as those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.errors import InputError
from cdc_platform.records.tablet_rows import CLOSED, CURRENT, OPENED
from cdc_platform.sources.cqlsh_values import read_stream_id, read_time_ms, read_uuid
from cdc_platform.sources.csv_rows import Rows
from cdc_platform.sources.flaws import Flaws

STATE, HISTORY, SCHEMA_TABLES = "cdc_streams_state", "cdc_streams_history", "tables"
COLUMNS: Mapping[str, frozenset[str]] = {
    STATE: frozenset({"table_id", "last_token", "stream_id", "timestamp"}),
    HISTORY: frozenset({"table_id", "timestamp", "stream_state", "last_token", "stream_id"}),
}
_NAMES = frozenset({"keyspace_name", "table_name", "id"})
_CHANGES = {"1": CLOSED, "2": OPENED}

Name = tuple[str, str]
Sets = dict[Name, dict[Milliseconds, dict[tuple[int, bytes], str]]]
"""By table and time (ms) the streams in their states, each with its place; as `cqlsh_tablets` has them."""


@dataclass
class TabletInternals:
    """Rows of the files read so far, by the ID of the log's table: `bases` the oldest sets, `changes` by time (ms)."""

    names: dict[str, Name] = field(default_factory=dict)
    _bases: dict[str, tuple[Milliseconds, dict[bytes, str]]] = field(default_factory=dict)
    _changes: dict[str, dict[Milliseconds, dict[tuple[int, bytes], str]]] = field(default_factory=dict)

    @staticmethod
    def table_of(columns: set[str]) -> str | None:
        """The table that has these columns; None where it is none of the three."""
        of_streams = next((table for table, known in COLUMNS.items() if columns == known), None)
        return of_streams or (SCHEMA_TABLES if columns >= _NAMES else None)

    def add(self, table: str, source: str, rows: Rows) -> None:
        """Add a file's rows.

        Raises:
            InputError: a value is none of its kind, or two files disagree.
        """
        for line, values in rows:
            place = f"{source}, line {line}"
            if table == SCHEMA_TABLES:
                self.names[read_uuid(place, values["id"])] = values["keyspace_name"], values["table_name"]
                continue
            id_ = read_uuid(place, values["table_id"], "table_id")
            time_ms = read_time_ms(place, "timestamp", values["timestamp"])
            if table == STATE and not values["stream_id"]:
                continue  # a static timestamp alone: the set has no stream
            stream = read_stream_id(place, values["stream_id"])
            if table == HISTORY:
                state = _CHANGES.get(values["stream_state"])
                if state is None:
                    raise InputError(
                        f"{place}: invalid value {values['stream_state']!r} for stream state; in {HISTORY} it is 1 "
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

    def sets(self, flaws: Flaws) -> Sets:
        """The sets of every table: the oldest, and each that its changes make of the one before.

        Raises:
            InputError: no schema says which table it is; or there is no oldest set, and `flaws` are refused.
        """
        found: Sets = {}
        for id_ in sorted({*self._bases, *self._changes}):
            of_table = found.setdefault(self._name(id_), {})
            base = self._bases.get(id_)
            if base is None:
                flaws.tell(f"{STATE} has no oldest set of table {id_}, of which {HISTORY} has changes")
            time_ms, streams = base or (Milliseconds(0), {})
            current = dict(streams)
            if streams:
                of_table[time_ms] = {
                    (state, each): place for each, place in streams.items() for state in (CURRENT, OPENED)
                }
            for later in sorted(time for time in self._changes.get(id_, {}) if time > time_ms):
                changes = self._changes[id_][later]
                for (state, stream), place in changes.items():
                    if state == OPENED:
                        current[stream] = place
                # One that is opened and closed at once is another stream of the same tablet.
                for state, stream in changes:
                    if state == CLOSED:
                        current.pop(stream, None)
                place = next(iter(changes.values()))
                of_table[later] = changes | {(CURRENT, stream): place for stream in current}
        return found

    def _name(self, id_: str) -> Name:
        keyspace, log = self.names.get(id_, ("", ""))
        if not log:
            raise InputError(
                f"table {id_} of {STATE} and {HISTORY} has no name; import with them: COPY system_schema.tables "
                "(keyspace_name, table_name, id) TO 'tables.csv' WITH HEADER = true, or DESCRIBE SCHEMA WITH INTERNALS"
            )
        return keyspace, log.removesuffix(LOG_SUFFIX)
