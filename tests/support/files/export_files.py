"""Files as `cqlsh COPY ... TO ... WITH HEADER = true` writes them, and the generations that tests export into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cdc_platform.clock import Microseconds, Milliseconds, ms_from_us
from cdc_platform.generations import RingLayout, TopologyDescription, generate_description
from cdc_platform.ring import Node, Ring

ID = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de001"
OTHER_ID = "8d3f3f2e-3c61-4b0e-9a59-5a3f7c1de002"
TIME_MS = Milliseconds(1_769_860_800_384)  # 2026-01-31 12:00:00.384 UTC
LATER_MS = Milliseconds(1_769_947_200_000)  # 2026-02-01 12:00:00.000 UTC

NODES = (
    Node(
        host_id=UUID("11111111-1111-4111-8111-111111111111"),
        # The range that ends with 101 has one token, so all four streams share it.
        tokens=(-6_000_000_000_000_000_000, 100, 101, 7_000_000_000_000_000_000),
        shard_count=4,
        ignore_msb=12,
        address="127.0.0.1",
        datacenter="dc1",
        rack="r1",
        features=("CDC_GENERATIONS_V2",),
    ),
    Node(
        host_id=UUID("22222222-2222-4222-8222-222222222222"),
        tokens=(-3_000_000_000_000_000_000, 4_000_000_000_000_000_000),
        shard_count=3,
        ignore_msb=0,
        address="127.0.0.2",
        datacenter="dc1",
        rack="r2",
        features=("CDC_GENERATIONS_V2",),
    ),
)
SNAPSHOT = [
    {
        "host_id": str(node.host_id),
        "address": node.address,
        "datacenter": node.datacenter,
        "rack": node.rack,
        "tokens": list(node.tokens),
        "shard_count": node.shard_count,
        "ignore_msb": node.ignore_msb,
    }
    for node in NODES
]
"""The ring snapshot of these nodes."""
NARROW_END = 101
"""The range end whose streams are indistinguishable after a client has sorted them."""


def generation(id_: str = ID, nodes: tuple[Node, ...] = NODES) -> TopologyDescription:
    """Return the generation with this ID over these nodes."""
    return generate_description(RingLayout.of(Ring.of(nodes)), UUID(id_))


def v2_csv(
    generations: Mapping[str, TopologyDescription], *, num_ranges: int | None = None, skip: frozenset[int] = frozenset()
) -> str:
    """Return cdc_generation_descriptions_v2 with sets sorted as clients sort them; `skip` omits rows by number."""
    lines = ["id,range_end,ignore_msb,num_ranges,streams"]
    for id_, description in generations.items():
        for row in range(len(description)):
            entry = description.entry(row)
            count = len(description) if num_ranges is None else num_ranges
            if row not in skip:
                lines.append(f"{id_},{entry.range_end},{entry.ignore_msb},{count},{blob_set(entry.streams)}")
    return _file(lines)


def streams_csv(generations: Mapping[Milliseconds, TopologyDescription], *, skip: frozenset[int] = frozenset()) -> str:
    """Return cdc_streams_descriptions_v2 of generations by time (ms)."""
    lines = ["time,range_end,streams"]
    for time_ms, description in generations.items():
        for row in range(len(description)):
            entry = description.entry(row)
            if row not in skip:
                lines.append(f"{cql_time(time_ms)},{entry.range_end},{blob_set(entry.streams)}")
    return _file(lines)


def timestamps_csv(times: Mapping[int, int | None]) -> str:
    """Return cdc_generation_timestamps: times (ms) with the times at which they expired."""
    rows = [
        f"timestamps,{cql_time(Milliseconds(time))},{'' if expired is None else cql_time(Milliseconds(expired))}"
        for time, expired in times.items()
    ]
    return _file(["key,time,expired", *rows])


def v1_descriptions_csv(
    generations: Mapping[Milliseconds, TopologyDescription], expired: Mapping[Milliseconds, Milliseconds] | None = None
) -> str:
    """Return cdc_generation_descriptions: each generation's list of entries as cqlsh writes it, in shard order."""
    lines = ["time,description,expired"]
    for time_ms, description in generations.items():
        entries = []
        for row in range(len(description)):
            entry = description.entry(row)
            streams = ", ".join(f"0x{bytes(stream).hex()}" for stream in entry.streams)
            entries.append(f"({entry.range_end}, [{streams}], {entry.ignore_msb})")
        end = (expired or {}).get(time_ms)
        lines.append(f'{cql_time(time_ms)},"[{", ".join(entries)}]",{"" if end is None else cql_time(end)}')
    return _file(lines)


def v1_streams_csv(
    generations: Mapping[Milliseconds, TopologyDescription], expired: Mapping[Milliseconds, Milliseconds] | None = None
) -> str:
    """Return cdc_streams_descriptions: all streams of a generation as one set."""
    lines = ["time,expired,streams"]
    for time_ms, description in generations.items():
        end = (expired or {}).get(time_ms)
        lines.append(f"{cql_time(time_ms)},{'' if end is None else cql_time(end)},{blob_set(description.streams)}")
    return _file(lines)


def local_csv(rows: Mapping[str, tuple[Milliseconds | None, str | None]], host_id: str | None = None) -> str:
    """Return cdc_local: (time in ms, UUID) by key; ScyllaDB's table has no host_id."""
    lines = ["key,streams_timestamp,uuid" + (",host_id" if host_id else "")]
    for key, (time_ms, uuid) in rows.items():
        time = "" if time_ms is None else cql_time(time_ms)
        lines.append(f"{key},{time},{uuid or ''}" + (f",{host_id}" if host_id else ""))
    return _file(lines)


def tablet_streams_csv(rows: Iterable[tuple[int, int, str]], table: str = "t") -> str:
    """Return an export of system.cdc_streams for a table of ks: rows (time in ms, stream_state, stream_id in hex)."""
    lines = ["keyspace_name,table_name,timestamp,stream_state,stream_id"]
    return _file(
        [*lines, *(f"ks,{table},{cql_time(Milliseconds(time))},{state},0x{stream}" for time, state, stream in rows)]
    )


def tablet_timestamps_csv(times: Iterable[int], table: str = "t") -> str:
    """Return an export of system.cdc_timestamps for a table of ks: times in ms."""
    return _file(
        ["keyspace_name,table_name,timestamp", *(f"ks,{table},{cql_time(Milliseconds(time))}" for time in times)]
    )


def blob_set(streams: Iterable[Any]) -> str:
    """Return a set of blobs as cqlsh writes it: sorted as unsigned bytes, quoted only if it contains a comma."""
    ids = sorted(bytes(stream) for stream in streams)
    text = "{" + ", ".join(f"0x{id_.hex()}" for id_ in ids) + "}"
    return f'"{text}"' if len(ids) > 1 else text


def cql_time(ms: Milliseconds) -> str:
    """Return a time as cqlsh writes it."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms_from_us(Microseconds(moment.microsecond)):03d}+0000"


def iso_time(ms: Milliseconds) -> str:
    """Return a time as the platform writes it."""
    return cql_time(ms).replace(" ", "T").replace("+0000", "Z")


def _file(lines: list[str]) -> str:
    return "".join(f"{line}\r\n" for line in lines)
