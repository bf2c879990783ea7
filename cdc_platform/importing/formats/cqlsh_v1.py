"""Parse exports of the V1 tables and of `cdc_local`, from an old or half-upgraded cluster.

A V1 description is a list, so its streams are in shard order; the V1 streams table has one flat set without an order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import STREAM_ID_BYTES, TopologyDescription
from cdc_platform.importing.formats.cells import (
    read_description,
    read_expired,
    read_stream_set,
    read_time_ms,
    read_uuid,
    split_stream_ids,
)

DESCRIPTIONS_V1 = "cdc_generation_descriptions"
STREAMS_V1 = "cdc_streams_descriptions"
LOCAL = "cdc_local"
LOCAL_KEYS = ("cdc_local", "rewritten")

_COLUMNS = {
    DESCRIPTIONS_V1: ({"time", "description"}, {"expired"}),
    STREAMS_V1: ({"time", "streams"}, {"expired"}),
    LOCAL: ({"key", "streams_timestamp"}, {"uuid", "host_id"}),
}
"""Each table's required and optional columns: old versions have no `uuid`, no server has `host_id`."""

_Rows = Iterable[tuple[int, dict[str, str]]]


@dataclass(frozen=True, eq=False)
class V1Generation:
    """A generation as both V1 tables have it; `source` is the file. Values that a table lacks are None.

    `streams` uint8[k, 16] are the user-facing table's, in unsigned byte order.
    """

    source: str
    expired_ms: Milliseconds | None
    description: TopologyDescription | None = None
    streams: np.ndarray | None = None


@dataclass(frozen=True)
class CdcLocalRow:
    """A row of `cdc_local`; `host_id` is None if the file does not name the node."""

    place: str
    host_id: str | None
    key: str
    streams_timestamp_ms: Milliseconds | None
    uuid: str | None


@dataclass(frozen=True)
class V1Exports:
    """The content of export files: V1 tables by time (ms), and `cdc_local`."""

    descriptions: dict[Milliseconds, V1Generation] = field(default_factory=dict)
    streams: dict[Milliseconds, V1Generation] = field(default_factory=dict)
    local: list[CdcLocalRow] = field(default_factory=list)


def v1_table_from_columns(columns: set[str]) -> str | None:
    """Return the table that has these columns, or None if none of the three has."""
    for table, (needed, optional) in _COLUMNS.items():
        if needed <= columns <= needed | optional:
            return table
    return None


def collect_v1_rows(exports: V1Exports, table: str, source: str, rows: _Rows) -> None:
    """Add a file's rows to the exports.

    Raises:
        InputError: a value is invalid, or a row is duplicated or contradicts a previous file.
    """
    if table == LOCAL:
        _collect_local(exports.local, source, rows)
        return
    known = exports.descriptions if table == DESCRIPTIONS_V1 else exports.streams
    seen: dict[int, int] = {}
    for line, values in rows:
        place = f"{source}, line {line}"
        time_ms = read_time_ms(place, "time", values["time"])
        if time_ms in seen:
            raise InputError(f"{place}: time {format_ms(time_ms)} is there twice, first in line {seen[time_ms]}")
        seen[time_ms] = line
        row = _parse_generation(source, place, values)
        if not _is_same_generation(known.setdefault(time_ms, row), row):
            raise InputError(
                f"{place}: time {format_ms(time_ms)} says something else than in {known[time_ms].source}; "
                "a generation never changes: export both again"
            )


def _parse_generation(source: str, place: str, values: dict[str, str]) -> V1Generation:
    expired = read_expired(place, values)
    if "description" in values:
        return V1Generation(source, expired, description=read_description(place, values["description"]))
    ids = b"".join(sorted(split_stream_ids(read_stream_set(place, values["streams"], most=None))))
    return V1Generation(source, expired, streams=np.frombuffer(ids, dtype=np.uint8).reshape(-1, STREAM_ID_BYTES))


def _is_same_generation(one: V1Generation, other: V1Generation) -> bool:
    if one.expired_ms != other.expired_ms:
        return False
    if one.description is not None and other.description is not None:
        return one.description.equals(other.description)
    return one.streams is not None and other.streams is not None and np.array_equal(one.streams, other.streams)


def _collect_local(local: list[CdcLocalRow], source: str, rows: _Rows) -> None:
    for line, values in rows:
        place = f"{source}, line {line}"
        if values["key"] not in LOCAL_KEYS:
            raise InputError(f"{place}: key {values['key']!r}; the keys of {LOCAL} are {' and '.join(LOCAL_KEYS)}")
        host = values.get("host_id")
        if host == "":
            raise InputError(f"{place}: host_id is empty; a row of {LOCAL} is one node's")
        time = values["streams_timestamp"]
        uuid = values.get("uuid")
        row = CdcLocalRow(
            place,
            read_uuid(place, host, "host_id") if host else None,
            values["key"],
            read_time_ms(place, "streams_timestamp", time) if time else None,
            read_uuid(place, uuid, "uuid") if uuid else None,
        )
        if row.uuid is not None and row.streams_timestamp_ms is None:
            raise InputError(f"{place}: uuid {row.uuid} without streams_timestamp; a generation's ID has its time")
        local.append(row)
