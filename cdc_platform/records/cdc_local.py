"""The owner of `system.cdc_local`: which generation each node keeps, and which nodes have nothing left to rewrite.

Every other module reads and writes that table through this one. A node's generation never goes back to an older one,
and a marker that is there stays. No Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from cdc_platform.clock import Milliseconds, ms_to_datetime
from cdc_platform.generations import GenerationId
from cdc_platform.lake.arrow import milliseconds, values
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_LOCAL

GENERATION = "cdc_local"
"""The key of the row with the node's newest generation."""
REWRITTEN = "rewritten"
"""The key of the marker: the node has nothing to rewrite, or no more."""


@dataclass(frozen=True)
class KeptRow:
    """A row: of which node, its key, the time (ms) and the UUID that it holds, each None where it holds none."""

    host_id: str
    key: str
    time_ms: Milliseconds | None
    uuid: str | None = None


def known(lake: Lake) -> dict[tuple[str, str], KeptRow]:
    """Every row, by its node and key."""
    return {(row.host_id, row.key): row for row in _read(lake, [])}


def hosts(lake: Lake) -> set[str]:
    """The nodes that have a row, whatever it holds."""
    return set(lake.read(CDC_LOCAL, ["host_id"])["host_id"].to_pylist())


def kept_ids(lake: Lake) -> dict[str, GenerationId]:
    """The generation ID that each node keeps, by host ID. A row without a time is as good as none."""
    return {
        row.host_id: _id(row.time_ms, row.uuid) for row in _read(lake, [_OF_GENERATIONS]) if row.time_ms is not None
    }


def kept_id(lake: Lake, host_id: UUID | str) -> GenerationId | None:
    """The ID that a node keeps: V1 where it has no UUID, None where it keeps none."""
    row = next(_read(lake, [("host_id", "=", str(host_id)), _OF_GENERATIONS]), None)
    return None if row is None or row.time_ms is None else _id(row.time_ms, row.uuid)


def keep(lake: Lake, host_id: UUID | str, id: GenerationId) -> bool:
    """Keep an ID at a node in place of an older one or none; whether it was."""

    def newer() -> pa.Table | None:
        before = kept_id(lake, host_id)
        if before is not None and before.time_ms >= id.time_ms:
            return None
        return rows_of([_row_of(str(host_id), id)])

    return lake.merge_judged(CDC_LOCAL, newer, update=True) is not None


def keep_first(lake: Lake, host_ids: Collection[UUID], id: GenerationId) -> None:
    """Those of these nodes that have no row yet keep this ID, in one commit."""
    _write(lake, [_row_of(str(host), id) for host in host_ids], update=False)


def keep_at_maker(lake: Lake, host_id: UUID | str, id: GenerationId, *, joins: bool) -> None:
    """Keep a generation's ID at the node that makes it, and, if it joins, that it has nothing to rewrite.

    Both in one commit. A node that has learnt of a newer generation since keeps that one.
    """

    def not_older() -> pa.Table | None:
        before = kept_id(lake, host_id)
        if before is not None and before.time_ms > id.time_ms:
            return None
        return rows_of([_row_of(str(host_id), id), *([KeptRow(str(host_id), REWRITTEN, None)] if joins else [])])

    lake.merge_judged(CDC_LOCAL, not_older, update=True)


def raise_at(lake: Lake, host_ids: Collection[str], id: GenerationId) -> None:
    """Every one of these nodes that keeps an ID keeps this one in place of an older one, in one commit.

    What a node keeps that has no row is not known, and is not made up.
    """
    where = [_OF_GENERATIONS, ("host_id", "in", list(host_ids))]
    keeping = lake.read(CDC_LOCAL, ["host_id"], where)["host_id"].to_pylist()
    lake.raise_column(CDC_LOCAL, rows_of(_row_of(host, id) for host in keeping), "streams_timestamp")


def marked_hosts(lake: Lake) -> set[str]:
    """The nodes that have the marker."""
    return set(lake.read(CDC_LOCAL, ["host_id"], [_OF_MARKERS])["host_id"].to_pylist())


def has_rewritten(lake: Lake) -> bool:
    """Whether a marker names a time, as that of a rewrite does; one without a time says there was nothing to do."""
    times = lake.read(CDC_LOCAL, ["streams_timestamp"], [_OF_MARKERS])["streams_timestamp"]
    return times.null_count < len(times)


def mark(lake: Lake, host_ids: Sequence[str], newest_ms: Milliseconds | None) -> None:
    """Write the marker of each node, with the newest rewritten time (ms); a marker that is there stays."""
    _write(lake, [KeptRow(host, REWRITTEN, newest_ms) for host in host_ids], update=False)


def rows_of(rows: Iterable[KeptRow]) -> pa.Table:
    """Rows as the table has them."""
    return pa.Table.from_pylist(
        [
            {
                "host_id": row.host_id,
                "key": row.key,
                "streams_timestamp": None if row.time_ms is None else ms_to_datetime(row.time_ms),
                "uuid": row.uuid,
            }
            for row in rows
        ],
        schema=CDC_LOCAL.schema,
    )


@dataclass(frozen=True)
class LocalDisk:
    """What a node of the lake keeps over a restart: what `node` asks for, kept in this table."""

    lake: Lake
    host_id: UUID

    def kept_id(self) -> GenerationId | None:
        """The ID that the node keeps, None where it keeps none."""
        return kept_id(self.lake, self.host_id)

    def keep(self, id: GenerationId) -> bool:
        """Keep an ID in place of an older one or none; whether it was."""
        return keep(self.lake, self.host_id, id)


_OF_GENERATIONS = ("key", "=", GENERATION)
_OF_MARKERS = ("key", "=", REWRITTEN)


def _read(lake: Lake, where: list[tuple[str, str, object]]) -> Iterator[KeptRow]:
    rows = lake.read(CDC_LOCAL, filters=where)
    hosts, keys, uuids = (values(rows[name]) for name in ("host_id", "key", "uuid"))
    return map(KeptRow, hosts, keys, milliseconds(rows["streams_timestamp"]), uuids)


def _write(lake: Lake, rows: Sequence[KeptRow], *, update: bool) -> None:
    lake.merge(CDC_LOCAL, rows_of(rows), update=update)


def _row_of(host_id: str, id: GenerationId) -> KeptRow:
    return KeptRow(host_id, GENERATION, id.time_ms, None if id.uuid is None else str(id.uuid))


def _id(time_ms: Milliseconds, uuid: str | None) -> GenerationId:
    return GenerationId(time_ms, None if uuid is None else UUID(uuid))
