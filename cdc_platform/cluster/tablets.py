"""The stream sets of a live cluster's tablet-based tables, as an import takes them in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime, ms_to_datetime
from cdc_platform.cluster import tables
from cdc_platform.cluster.generations import LeftOut, settled
from cdc_platform.cluster.session import LiveCluster, Row
from cdc_platform.cluster.tables import Layout
from cdc_platform.cql.names import check_table_name
from cdc_platform.errors import InputError
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.sources.cqlsh_tablets import Name, TabletExports, stream_sets


def read_stream_sets(
    live: LiveCluster, layout: Layout, known: Mapping[Name, Collection[Milliseconds]]
) -> tuple[TabletExports, list[LeftOut], dict[Name, Milliseconds]]:
    """The sets of every table that has one which the home has not, and which tables were left out and why.

    `known`: the times (ms) that the home has with their streams. The sets of a table are one history, so a table is
    read whole or not; of one that is not the first time that is lacking comes last.

    Raises:
        NotGranted, Unreachable, Refused: a table could not be read.
    """
    exports, incomplete, lacking = TabletExports({}, {}), list[LeftOut](), dict[Name, Milliseconds]()
    if tables.TABLET_TIMESTAMPS not in layout or tables.TABLET_STREAMS not in layout:
        return exports, incomplete, lacking
    at = live.contact
    times: dict[Name, list[Milliseconds]] = {}
    for row in live.select(tables.TABLET_TIMESTAMPS, "keyspace_name, table_name, timestamp", at=at):
        name = row["keyspace_name"], row["table_name"]
        times.setdefault(name, []).append(ms_from_datetime(row["timestamp"]))
    sets, listed = dict(exports.sets), dict(exports.times)
    for name, of_table in sorted(times.items()):
        if set(of_table) <= set(known.get(name, ())):
            continue
        place = f"{live.name}: {tables.TABLET_STREAMS}"
        try:
            check_table_name(*name)
            rows = {time_ms: _states(live, name, time_ms, place) for time_ms in of_table}
            sets[name] = list(stream_sets(name, {time_ms: states for time_ms, states in rows.items() if states}))
            listed[name] = dict.fromkeys(of_table, place)
        except InputError as error:
            incomplete.append(LeftOut(f"table {'.'.join(name)}", str(error)))
            lacking[name] = min(set(of_table) - set(known.get(name, ())))
    return TabletExports(sets, listed), incomplete, lacking


def _states(live: LiveCluster, name: Name, time_ms: Milliseconds, place: str) -> dict[tuple[int, bytes], str]:
    what = f"{place} of {'.'.join(name)} at {format_ms(time_ms)}"
    where = "WHERE keyspace_name = %s AND table_name = %s AND timestamp = %s"
    key = [*name, ms_to_datetime(time_ms).replace(tzinfo=None)]
    columns = "stream_state, stream_id"
    rows: Sequence[Row] = settled(
        lambda: live.select(tables.TABLET_STREAMS, columns, where, key, at=live.contact), what
    )
    states = {}
    for row in rows:
        state, stream = row["stream_state"], row["stream_id"]
        if state not in (0, 1, 2) or len(stream) != STREAM_ID_BYTES:
            raise InputError(f"{what}: stream 0x{stream.hex()[:40]} in state {state}; states are 0, 1, 2, IDs 16 bytes")
        states[state, stream] = place
    return states
