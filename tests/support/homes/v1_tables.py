"""An old cluster for tests: its ring, V1 generations and tables with CDC, and the expected results of a rewrite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.generations import RingLayout, TopologyDescription, generate_description
from cdc_platform.metastore import cdc_tables, write_nodes
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2

HOUR_MS = Milliseconds(3_600_000)
START_MS = Milliseconds(1_600_000_000_000)
"""The first V1 generation; the others follow an hour apart."""


def times(count: int) -> list[int]:
    """Return the times (ms) of `count` V1 generations."""
    return [START_MS + number * HOUR_MS for number in range(count)]


def nodes(count: int, tokens: int = 4) -> list[Node]:
    """Return nodes with their own tokens, always the same."""
    drawn = np.random.default_rng(7).integers(-(2**63) + 1, 2**63 - 1, (count, tokens), dtype=np.int64)
    return [
        Node(UUID(int=number + 1), tuple(row), 3, 12, f"10.0.0.{number}", "dc1", "r1", ("CDC_GENERATIONS_V2",))
        for number, row in enumerate(drawn.tolist())
    ]


def description(time_ms: Milliseconds, members: list[Node]) -> TopologyDescription:
    """Return a generation over these nodes, identified by its time."""
    return generate_description(RingLayout.of(Ring.of(members)), UUID(int=time_ms))


def old_cluster(
    lake: Lake,
    generations: Iterable[int],
    *,
    members: list[Node] | None = None,
    without_data: Iterable[int] = (),
    tables: Iterable[tuple[str, int]] = (("orders", 24 * 3600),),
    created_at_ms: Milliseconds = Milliseconds(0),
) -> dict[int, TopologyDescription]:
    """Fill a lake with an old cluster (ring, V1 tables, tables with CDC); return the descriptions.

    `without_data` names times that have only the user-facing row.
    """
    ring = nodes(3) if members is None else members
    if ring:
        write_nodes(lake, ring)
    descriptions = {time_ms: description(Milliseconds(time_ms), ring or nodes(3)) for time_ms in generations}
    lost = set(without_data)
    write_v1(
        lake, {time_ms: entry for time_ms, entry in descriptions.items() if time_ms not in lost}, STREAMS_DESCRIPTIONS
    )
    lake.merge(STREAMS_DESCRIPTIONS, _flat({time_ms: descriptions[time_ms] for time_ms in lost}), update=True)
    for name, ttl in tables:
        cdc_tables.add_cdc_table(
            lake, Clock(us_from_ms(START_MS)), "ks", name, ttl_seconds=ttl, created_at_ms=created_at_ms
        )
    return descriptions


def write_v1(lake: Lake, descriptions: dict[int, TopologyDescription], *also: object) -> None:
    """Write descriptions into the internal table, and their streams into the user-facing one if it is given."""
    cells = [list(_entries(described)) for described in descriptions.values()]
    moments = [datetime_from_ms(Milliseconds(time_ms)) for time_ms in descriptions]
    rows = pa.table({"time": moments, "description": cells}, schema=_without_expired(GENERATION_DESCRIPTIONS.schema))
    lake.merge(GENERATION_DESCRIPTIONS, rows, update=True)
    if STREAMS_DESCRIPTIONS in also:
        lake.merge(STREAMS_DESCRIPTIONS, _flat(descriptions), update=True)


def published(lake: Lake, time_ms: Milliseconds) -> list[tuple[int, list[bytes]]]:
    """Return the published rows of a time, ascending."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_ms(time_ms))])
    return sorted((row["range_end"], row["streams"]) for row in rows.to_pylist())


def expected(described: TopologyDescription) -> list[tuple[int, list[bytes]]]:
    """Return the rows that a description must be published as."""
    return [(entry["token_range_end"], entry["streams"]) for entry in _entries(described)]


def _entries(described: TopologyDescription) -> Iterable[dict[str, Any]]:
    for row in range(len(described)):
        entry = described.entry(row)
        yield {
            "token_range_end": entry.range_end,
            "streams": [stream.tobytes() for stream in entry.streams],
            "sharding_ignore_msb": entry.ignore_msb,
        }


def _flat(descriptions: dict[int, TopologyDescription]) -> pa.Table:
    moments = [datetime_from_ms(Milliseconds(time_ms)) for time_ms in descriptions]
    flat = [sorted(stream.tobytes() for stream in described.streams) for described in descriptions.values()]
    return pa.table({"time": moments, "streams": flat}, schema=_without_expired(STREAMS_DESCRIPTIONS.schema))


def _without_expired(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index("expired"))
