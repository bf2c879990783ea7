"""How the rows of a window are asked for: stream by stream or by ranges of tokens, and what either costs the server.

A request for streams makes the server look up a hundred of them, whether they have rows or not. A scan of the ring
makes it read every row that the log still holds. The one that looks at less is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from cdc_platform.clock import Microseconds
from cdc_platform.cql.names import quoted
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.timeuuid import earliest
from cdc_platform.log.reading.windows import Window
from cdc_platform.ring import LAST
from cdc_platform.ring.tokens import UInt8s

Way = Literal["streams", "ranges"]
STREAMS: Way = "streams"
RANGES: Way = "ranges"
STREAMS_A_REQUEST = 100
"""A server refuses more partition keys in one IN, unless it is told otherwise."""
LEAST_RANGES = 16
"""Parts of the ring that a scan of a small log is cut into."""
MOST_RANGES = 128
ROWS_A_RANGE = 50_000
UNKNOWN_ROWS = 100_000
"""Rows that a log is thought to hold of which nothing was read yet."""
_FIRST_TOKEN = -(2**63)


@dataclass(frozen=True)
class Estimate:
    """What a way to read a window is thought to cost: requests, and what the server looks at (streams and rows)."""

    way: Way
    requests: int
    looks: int


@dataclass(frozen=True)
class Plan:
    """The requests of a window: a list of what each asks for behind WHERE, and why it was planned so."""

    conditions: Sequence[str]
    chosen: Estimate
    other: Estimate


def plan(
    window: Window,
    streams: UInt8s,
    held: int | None,
    share: float,
    page_rows: int,
    way: Way | None = None,
) -> Plan:
    """The requests of a window over streams uint8[k, 16].

    `held` are the rows that the log holds, None where nobody knows, `share` the part of them that the window is
    thought to have. With `way` it is read so, whatever that costs.
    """
    rows = UNKNOWN_ROWS if held is None else held
    inside = int(rows * min(max(share, 0.0), 1.0))
    ranges = min(MOST_RANGES, max(LEAST_RANGES, rows // ROWS_A_RANGE))
    by_streams = Estimate(STREAMS, -(-len(streams) // STREAMS_A_REQUEST) + inside // page_rows, len(streams) + inside)
    by_ranges = Estimate(RANGES, ranges + inside // page_rows, rows + ranges)
    cheaper, dearer = sorted((by_streams, by_ranges), key=lambda each: each.looks)
    if way is not None and cheaper.way != way:
        cheaper, dearer = dearer, cheaper
    found = _of_streams(streams) if cheaper.way == STREAMS else _of_ranges(ranges)
    times = _between(window.after_us, window.until_us)
    return Plan([f"{each} AND {times}" for each in found], cheaper, dearer)


def statement(schema: TableSchema, condition: str, bypass_cache: bool) -> str:
    """The SELECT of one request."""
    scans = " ALLOW FILTERING" if condition.startswith("token(") else ""
    end = " BYPASS CACHE" if bypass_cache else ""
    return f"SELECT * FROM {log_name(schema)} WHERE {condition}{scans}{end}"


def log_name(schema: TableSchema) -> str:
    """The log as CQL names it."""
    return f"{quoted(schema.keyspace)}.{quoted(schema.log_name)}"


def _of_streams(streams: UInt8s) -> list[str]:
    texts = [f"0x{stream.tobytes().hex()}" for stream in streams]
    return [
        f'"cdc$stream_id" IN ({", ".join(texts[first : first + STREAMS_A_REQUEST])})'
        for first in range(0, len(texts), STREAMS_A_REQUEST)
    ]


def _of_ranges(count: int) -> list[str]:
    ends = [_FIRST_TOKEN + (LAST - _FIRST_TOKEN) * place // count for place in range(count + 1)]
    key = 'token("cdc$stream_id")'
    return [f"{key} > {low} AND {key} <= {high}" for low, high in pairwise(ends)]


def _between(after_us: Microseconds, until_us: Microseconds) -> str:
    """The rows with `after_us` < time <= `until_us`: between the least timeuuids of the microseconds behind both."""
    low, high = (earliest(Microseconds(each + 1)) for each in (after_us, until_us))
    return f'"cdc$time" >= {low} AND "cdc$time" < {high}'


def by_token(streams: UInt8s) -> UInt8s:
    """Streams in the order of their tokens, so that those of a request lie beside each other on the ring."""
    tokens = np.ascontiguousarray(streams[:, :8]).view(">i8")[:, 0]
    return streams[np.argsort(tokens, kind="stable")]
