"""Small generations as rows that a test can damage, and functions that write them into a lake without any checks.

The rows are plain Python: lists of dicts, one per range, with the streams as bytes in shard order.
"""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from deltalake import write_deltalake
from support.oracles import oracle

from cdc_platform.checks import Finding, InvariantTally, sum_tallies
from cdc_platform.checks.scan import GenerationRanges, GenerationRowBatch, audit_generation_rows
from cdc_platform.clock import Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    Table,
)

Row = dict[str, Any]
Owners = dict[int, tuple[int, int]]

OWNERS: Owners = {
    -(2**62): (4, 12),
    -1000: (4, 12),
    0: (2, 0),
    # A range of three tokens: most of its eight shards own nothing there.
    3: (8, 4),
    2**40: (1, 0),
    2**62: (8, 4),
}
"""A ring: token -> (shard_count, ignore_msb) of its owner."""
ONE = str(uuid.UUID(int=1))
OTHER = str(uuid.UUID(int=2))
TIME_MS = Milliseconds(1_700_000_000_123)
CROWDED = 3
"""The row (and range end) of the range in which most shards own nothing."""


def host_id(number: int) -> str:
    """Return the UUID of a node."""
    return str(uuid.UUID(int=100 + number))


def generation_rows(owners: Owners = OWNERS, seed: int = 1, of_second: tuple[int, ...] = ()) -> list[Row]:
    """Return the rows of a valid generation over a ring, made by the oracle; another seed gives other random bits.

    Node 1 owns all tokens except `of_second`.
    """
    random = np.random.default_rng(seed)
    return [
        {
            "range_end": entry.end,
            "range_start": entry.start,
            "vnode_index": index,
            "owner": host_id(2 if entry.end in of_second else 1),
            "ignore_msb": entry.ignore_msb,
            "streams": [
                oracle.pack_stream_id(token, index, int(random.integers(2**38))) for token in entry.stream_tokens
            ],
        }
        for index, entry in enumerate(oracle.generation(owners))
    ]


def with_token(stream: bytes, token: int) -> bytes:
    """Return the stream with another token."""
    return token.to_bytes(8, "big", signed=True) + stream[8:]


def with_low_bits(stream: bytes, *, version: int = 1, index: int | None = None) -> bytes:
    """Return the stream with another version or index."""
    token, _, own, random = oracle.unpack_stream_id(stream)
    low = version | (own if index is None else index) << 4 | random << 26
    return token.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big")


def row_violations(rows: list[Row], *, unordered: tuple[int, ...] = ()) -> dict[str, int]:
    """Return the violations that the audit of rows finds without Spark, by invariant, without zeros."""
    return {
        name: tally.violations for name, tally in row_tallies(rows, unordered=unordered).items() if tally.violations
    }


def row_tallies(rows: list[Row], *, unordered: tuple[int, ...] = ()) -> dict[str, InvariantTally]:
    """Return the tallies of the audit of rows without Spark."""
    batch = row_batch(rows, unordered=unordered)
    return sum_tallies(audit_generation_rows(batch, GenerationRanges(np.unique(batch.range_ends))))


def row_batch(rows: list[Row], *, unordered: tuple[int, ...] = ()) -> GenerationRowBatch:
    """Return the rows as a batch for the audit."""
    ends = np.array([row["range_end"] for row in rows], dtype=np.int64)
    streams = [stream for row in rows for stream in row["streams"]]
    damaged = {index: f"0x{stream.hex()}" for index, stream in enumerate(streams) if len(stream) != 16}
    whole = b"".join(bytes(16) if index in damaged else stream for index, stream in enumerate(streams))
    return GenerationRowBatch(
        range_ends=ends,
        ignore_msbs=np.array([row["ignore_msb"] for row in rows], dtype=np.int64),
        stream_counts=np.array([len(row["streams"]) for row in rows], dtype=np.int64),
        streams=np.frombuffer(whole, dtype=np.uint8).reshape(-1, 16),
        order_known=~np.isin(ends, unordered),
        damaged=damaged,
    )


def violations(findings: list[Finding]) -> dict[str, int]:
    """Return violations by invariant, without zeros."""
    return {line.invariant: line.violations for line in findings if line.violations}


def populations(findings: list[Finding]) -> dict[str, int]:
    """Return populations by invariant."""
    return {line.invariant: line.population for line in findings}


@dataclass
class SeededLake:
    """A lake that accepts any rows: its tables have no constraints, and every column may be null."""

    lake: Lake
    owners: Owners = field(default_factory=lambda: dict(OWNERS))

    def described(self, rows: list[Row], generation: str = ONE) -> None:
        """Write rows of `topology_descriptions`."""
        self.write(TOPOLOGY_DESCRIPTIONS, [row | {"generation_id": generation} for row in rows])

    def inserted(self, rows: list[Row], generation: str = ONE, num_ranges: int | None = -1) -> None:
        """Write rows of `cdc_generation_descriptions_v2`; `num_ranges` is correct unless given."""
        claim = len(rows) if num_ranges == -1 else num_ranges
        self.write(GENERATION_DESCRIPTIONS_V2, [row | {"id": generation, "num_ranges": claim} for row in rows])

    def published(self, rows: list[Row], time_ms: Milliseconds = TIME_MS) -> None:
        """Write rows of `cdc_streams_descriptions_v2`."""
        self.write(STREAMS_DESCRIPTIONS_V2, [row | {"time": _time(time_ms)} for row in rows])

    def introduced(self, generation: str = ONE, time_ms: Milliseconds = TIME_MS) -> None:
        """Write the generation's time into the ledger."""
        row = {"generation_id": generation, "time": _time(time_ms), "num_ranges": 1, "num_streams": 1}
        self.write(GENERATIONS, [row | {"created_at": _time(time_ms)}])

    def listed(self, time_ms: Milliseconds = TIME_MS) -> None:
        """Write the published timestamp."""
        self.write(GENERATION_TIMESTAMPS, [{"key": "timestamps", "time": _time(time_ms)}])

    def unordered(self, table: Table, generation: str, range_end: int) -> None:
        """Mark the shard order of a range as unknown."""
        row = {"table_name": table.full_name, "generation": generation, "range_end": range_end, "reason": "seeded"}
        self.write(UNORDERED_RANGES, [row])

    def node(self, tokens: list[int], number: int = 1, status: str = "NORMAL") -> None:
        """Write a node of the current ring, sharded like the owner of its first token."""
        self.write(NODES, [_node(tokens, number, self.owners) | {"status": status}])

    def event(self, tokens: list[int], generation: str = ONE, number: int = 1) -> None:
        """Write the bootstrap event that introduces a generation."""
        row = _node(tokens, number, self.owners) | {"event_id": f"event {number}", "kind": "join"}
        self.write(BOOTSTRAP_EVENTS, [row | {"generation_id": generation, "created_at": _time(TIME_MS)}])

    def whole(self, rows: list[Row], generation: str = ONE, time_ms: Milliseconds = TIME_MS) -> None:
        """Write a generation into every table, as after its join."""
        self.described(rows, generation)
        self.inserted(rows, generation)
        self.introduced(generation, time_ms)
        self.published(rows, time_ms)
        self.listed(time_ms)

    def write(self, table: Table, rows: list[Row]) -> None:
        """Append rows to a table; missing columns are null."""
        nullable = pa.schema([pa.field(column.name, _nullable(column.type)) for column in table.schema])
        data = pa.Table.from_pylist([{name: row.get(name) for name in nullable.names} for row in rows], schema=nullable)
        write_deltalake(self.lake.path(table), data, mode="append", partition_by=list(table.partition_by) or None)


def copied(rows: list[Row]) -> list[Row]:
    """Return rows that a test may damage without changing the originals."""
    return copy.deepcopy(rows)


def _node(tokens: list[int], number: int, owners: Owners) -> Row:
    shard_count, ignore_msb = owners.get(tokens[0], (4, 12))
    return {
        "host_id": host_id(number),
        "tokens": sorted(tokens),
        "shard_count": shard_count,
        "ignore_msb": ignore_msb,
        "features": [],
    }


def _nullable(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind.value_type)) if pat.is_list(kind) else kind


def _time(ms: Milliseconds) -> Any:
    return datetime_from_ms(ms)
