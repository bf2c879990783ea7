"""The rows of `system.cdc_timestamps` and `system.cdc_streams` as arrays, for whoever keeps or audits stream sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, ms_of, ms_to_datetime
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES
from cdc_platform.lake.arrow import compute, fixed_bytes, stream_ids
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLET_STREAMS, TABLET_TIMESTAMPS

CURRENT, CLOSED, OPENED = 0, 1, 2
"""The states of a stream at a timestamp."""


@dataclass(frozen=True, eq=False)
class TabletRows:
    """Rows of `cdc_streams` of one table, in no order: columns of one length, and how many rows hold no stream ID.

    `times_ms` int64[n], `states` int8[n], `ids` uint8[n, 16]; rows whose ID is not 16 bytes long are only counted.
    """

    times_ms: np.ndarray
    states: np.ndarray
    ids: np.ndarray
    damaged: int

    def of(self, time_ms: Milliseconds, state: int) -> np.ndarray:
        """The streams (uint8[k, 16], in no order) of one timestamp in one state."""
        return self.ids[(self.times_ms == time_ms) & (self.states == state)]


def of_table(keyspace: str, table: str) -> list[Filter]:
    """The filter that leaves the rows of one table."""
    return [("keyspace_name", "=", keyspace), ("table_name", "=", table)]


def listed_sets(lake: Lake) -> set[tuple[tuple[str, str], Milliseconds]]:
    """Every stream set that readers see: ((keyspace, table), timestamp in ms)."""
    return _sets(lake.read(TABLET_TIMESTAMPS))


def sets_with_rows(lake: Lake) -> set[tuple[tuple[str, str], Milliseconds]]:
    """Every stream set of which there is any row of streams: ((keyspace, table), timestamp in ms)."""
    keys = ["keyspace_name", "table_name", "timestamp"]
    return _sets(lake.read(TABLET_STREAMS, keys).group_by(keys).aggregate([]))


def listed_times(lake: Lake, keyspace: str, table: str) -> list[Milliseconds]:
    """The timestamps (ms) of a table's stream sets, oldest first."""
    rows = lake.read(TABLET_TIMESTAMPS, ["timestamp"], of_table(keyspace, table))
    return np.sort(_ms_of_column(rows["timestamp"])).tolist()


def tables_with_streams(lake: Lake, table_names: Sequence[str]) -> set[tuple[str, str]]:
    """The tables (keyspace, name), of those that are called so, of which any row of streams is left."""
    if not table_names:
        return set()
    where: list[Filter] = [("table_name", "in", sorted(set(table_names)))]
    rows = lake.read(TABLET_STREAMS, ["keyspace_name", "table_name"], where)
    names = rows.group_by(["keyspace_name", "table_name"]).aggregate([])
    return set(zip(names["keyspace_name"].to_pylist(), names["table_name"].to_pylist(), strict=True))


def has_rows(lake: Lake, keyspace: str, table: str, time_ms: Milliseconds) -> bool:
    """Whether there is any row of a table's streams at a timestamp (ms)."""
    where: list[Filter] = [*of_table(keyspace, table), ("timestamp", "=", ms_to_datetime(time_ms))]
    return lake.read(TABLET_STREAMS, ["stream_state"], where).num_rows > 0


def stream_rows(
    lake: Lake,
    keyspace: str,
    table: str,
    *,
    times_ms: Sequence[Milliseconds] | None = None,
    states: Sequence[int] | None = None,
) -> TabletRows:
    """The rows of a table's streams; those of some timestamps and states alone where they are named."""
    where = of_table(keyspace, table)
    if times_ms is not None:
        where.append(("timestamp", "in", [ms_to_datetime(time) for time in times_ms]))
    if states is not None:
        where.append(("stream_state", "in", states))
    rows = lake.read(TABLET_STREAMS, ["timestamp", "stream_state", "stream_id"], where)
    whole = np.asarray(compute.equal(compute.binary_length(rows["stream_id"]), STREAM_ID_BYTES), dtype=bool)
    damaged = int(rows.num_rows - whole.sum())
    if damaged:
        rows = rows.filter(pa.array(whole))
    ids = rows["stream_id"].combine_chunks()
    ids = pa.concat_arrays(ids.chunks) if isinstance(ids, pa.ChunkedArray) else ids
    return TabletRows(_ms_of_column(rows["timestamp"]), rows["stream_state"].to_numpy(), fixed_bytes(ids), damaged)


def rows_of_set(keyspace: str, table: str, time_ms: Milliseconds, states: Sequence[tuple[int, np.ndarray]]) -> pa.Table:
    """Rows of `cdc_streams` for one timestamp: `states` are (state, streams uint8[n, 16])."""
    counts = [len(ids) for _, ids in states]
    count = sum(counts)
    when = pa.array([ms_to_datetime(time_ms)], type=TABLET_STREAMS.schema.field("timestamp").type)
    return pa.table(
        {
            "keyspace_name": pa.repeat(keyspace, count),
            "table_name": pa.repeat(table, count),
            "timestamp": pa.repeat(when[0], count),
            "stream_state": pa.array(np.repeat(np.array([state for state, _ in states], dtype=np.int8), counts)),
            "stream_id": stream_ids(np.concatenate([ids for _, ids in states])),
        }
    )


def rows_of_times(keyspace: str, table: str, times_ms: Sequence[Milliseconds]) -> pa.Table:
    """Rows of `cdc_timestamps`."""
    columns = {"keyspace_name": keyspace, "table_name": table}
    rows = [{**columns, "timestamp": ms_to_datetime(time_ms)} for time_ms in times_ms]
    return pa.Table.from_pylist(rows, schema=TABLET_TIMESTAMPS.schema)


def _sets(rows: pa.Table) -> set[tuple[tuple[str, str], Milliseconds]]:
    names = zip(rows["keyspace_name"].to_pylist(), rows["table_name"].to_pylist(), strict=True)
    return set(zip(names, _ms_of_column(rows["timestamp"]).tolist(), strict=True))


def _ms_of_column(moments: pa.ChunkedArray) -> np.ndarray:
    return ms_of(np.asarray(moments.cast(pa.int64()), dtype=np.int64))
