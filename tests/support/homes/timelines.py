"""Homes in every state of a timeline, written row by row as each part of the platform would leave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from support.homes.v1_tables import write_v1
from support.worlds.switch_lake import describe, host, parse_node

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, us_from_ms
from cdc_platform.delta import Lake, stream_lists_to_arrow
from cdc_platform.generations import RingLayout, TopologyDescription, generate_description, uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables
from cdc_platform.ring import Ring
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    SWITCH_PROMISES,
    Table,
)

HOUR_MS = Milliseconds(3_600_000)
FIRST_MS, SECOND_MS, THIRD_MS = (Milliseconds(1_700_000_000_000 + number * HOUR_MS) for number in range(3))
LEASE_END_MS = Milliseconds(SECOND_MS - Milliseconds(5_000))
"""From this time on writes need the decision on the switch of `undecided`."""
DDL = "CREATE TABLE ks.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true'};"


def uuid_of(time_ms: Milliseconds) -> str:
    """Return the UUID of the generation with this time."""
    return host(time_ms)


def members(time_ms: Milliseconds) -> Ring:
    """Return the ring for which the generation with this time was made: each has one node more."""
    return Ring.of(parse_node(number + 1) for number in range(1 + (time_ms - FIRST_MS) // HOUR_MS))


def description(time_ms: Milliseconds) -> TopologyDescription:
    """Return the description of the generation with this time, by the rules alone."""
    return generate_description(RingLayout.of(members(time_ms)), UUID(uuid_of(time_ms)))


def plain(lake: Lake) -> None:
    """One generation, published."""
    enter(lake, FIRST_MS)
    publish(lake, FIRST_MS)


def three(lake: Lake) -> None:
    """Three generations, published."""
    for time_ms in (FIRST_MS, SECOND_MS, THIRD_MS):
        enter(lake, time_ms)
        publish(lake, time_ms)


def introduced(lake: Lake) -> None:
    """One generation, and a second one that nodes know and that is not published to readers."""
    plain(lake)
    enter(lake, SECOND_MS)


def undecided(lake: Lake) -> None:
    """One generation, and a switch to a second one for which a node has promised a lease."""
    plain(lake)
    describe(lake, uuid_of(SECOND_MS), members(SECOND_MS))
    _switch(lake, "preparing", None)
    promise = {
        "generation_id": uuid_of(SECOND_MS),
        "host_id": host(1),
        "lease_end": datetime_from_ms(LEASE_END_MS),
        "promised_at": datetime_from_ms(FIRST_MS),
    }
    _put(lake, SWITCH_PROMISES, promise)


def committed(lake: Lake) -> None:
    """One generation, and a second one with a committed switch whose join was killed before it wrote the ledger."""
    plain(lake)
    describe(lake, uuid_of(SECOND_MS), members(SECOND_MS))
    _switch(lake, "committed", SECOND_MS)


def removed(lake: Lake) -> None:
    """Two generations; the first was removed."""
    enter(lake, SECOND_MS)
    publish(lake, SECOND_MS)
    removal = {
        "time": datetime_from_ms(FIRST_MS),
        "generation_id": uuid_of(FIRST_MS),
        "expired": datetime_from_ms(SECOND_MS),
        "removed_at": datetime_from_ms(THIRD_MS),
        "rows": 1,
        "bytes": 1,
    }
    _put(lake, REMOVED_GENERATIONS, removal)


def only_v1(lake: Lake) -> None:
    """One generation, described in the first format alone."""
    write_v1(lake, {FIRST_MS: description(FIRST_MS)})


def timestamp_only(lake: Lake) -> None:
    """One generation with only its timestamp exported."""
    _put(lake, GENERATION_TIMESTAMPS, {"key": "timestamps", "time": datetime_from_ms(FIRST_MS)})


def named_by_node(lake: Lake) -> None:
    """One generation, and a later one that only a node's `cdc_local` names."""
    plain(lake)
    cdc_local = {"host_id": host(1), "key": "cdc_local", "streams_timestamp": datetime_from_ms(SECOND_MS)}
    _put(lake, CDC_LOCAL, cdc_local | {"uuid": uuid_of(SECOND_MS)})


def named_by_group(lake: Lake) -> None:
    """One generation, and a later one that only `system.topology` names as committed."""
    plain(lake)
    _put(lake, COMMITTED_GENERATIONS, {"time": datetime_from_ms(SECOND_MS), "generation_id": uuid_of(SECOND_MS)})


def bare_in_ledger(lake: Lake) -> None:
    """One generation, and a later one in the ledger without rows in any table."""
    introduced(lake)
    lake.delete(GENERATION_DESCRIPTIONS_V2, [("id", "=", uuid_of(SECOND_MS))])


def bare_timestamp(lake: Lake) -> None:
    """One generation, and a later timestamp that readers see without rows in any table."""
    plain(lake)
    _put(lake, GENERATION_TIMESTAMPS, {"key": "timestamps", "time": datetime_from_ms(SECOND_MS)})


def bare_in_v1(lake: Lake) -> None:
    """One generation, and a later one that readers of the first format see and that no table describes."""
    plain(lake)
    _put(lake, STREAMS_DESCRIPTIONS, {"time": datetime_from_ms(SECOND_MS), "streams": [bytes(16)]})


def with_tablets(lake: Lake) -> None:
    """One generation, and a table that has its own tablets from the second time on."""
    plain(lake)
    tablets.create_tablets(
        lake, Clock(us_from_ms(Milliseconds(SECOND_MS + 5_000))), Settings(), "ks", "t", uniform_tablet_ends(4)
    )


HOMES: dict[str, Callable[[Lake], None]] = {
    make.__name__: make
    for make in (
        plain,
        three,
        introduced,
        undecided,
        committed,
        removed,
        only_v1,
        timestamp_only,
        named_by_node,
        named_by_group,
        bare_in_ledger,
        bare_timestamp,
        bare_in_v1,
        with_tablets,
    )
}


def home_of(folder: Path, name: str) -> Path:
    """Create the home with this name, with `ks.t`, whose log is empty; return its folder."""
    home = folder / name
    lake = Lake(home / "lake")
    HOMES[name](lake)
    if name == "with_tablets":
        cdc_tables.alter_cdc_table(lake, Clock(us_from_ms(Milliseconds(SECOND_MS + 5_000))), "ks", "t", ddl=DDL)
    else:
        cdc_tables.add_cdc_table(lake, Clock(us_from_ms(FIRST_MS)), "ks", "t", ttl_seconds=86_400, ddl=DDL)
    return home


def enter(lake: Lake, time_ms: Milliseconds) -> None:
    """Write a generation that is described and in the ledger."""
    count = describe(lake, uuid_of(time_ms), members(time_ms))
    row = {
        "generation_id": uuid_of(time_ms),
        "time": datetime_from_ms(time_ms),
        "num_ranges": count,
        "num_streams": 2 * count,
        "created_at": datetime_from_ms(FIRST_MS),
    }
    _put(lake, GENERATIONS, row)


def publish(lake: Lake, time_ms: Milliseconds) -> None:
    """Publish a generation to readers."""
    described = description(time_ms)
    rows = {
        "time": pa.array([datetime_from_ms(time_ms)] * len(described)),
        "range_end": pa.array(described.range_ends),
        "streams": stream_lists_to_arrow(described.stream_counts, described.streams),
    }
    lake.merge(STREAMS_DESCRIPTIONS_V2, pa.table(rows), update=False)
    _put(lake, GENERATION_TIMESTAMPS, {"key": "timestamps", "time": datetime_from_ms(time_ms)})


def decide(lake: Lake) -> None:
    """Commit the switch of `undecided` and publish its generation."""
    lake.delete(GENERATION_SWITCHES, [("generation_id", "=", uuid_of(SECOND_MS))])
    _switch(lake, "committed", SECOND_MS)
    enter(lake, SECOND_MS)
    publish(lake, SECOND_MS)


def _switch(lake: Lake, phase: str, time_ms: Milliseconds | None) -> None:
    when = None if time_ms is None else datetime_from_ms(time_ms)
    row = {
        "generation_id": uuid_of(SECOND_MS),
        "phase": phase,
        "initiator": host(2),
        "participants": [host(1), host(2)],
        "acknowledged": [],
        "lease_ends": [],
        "prepared_at": datetime_from_ms(FIRST_MS),
        "deadline": datetime_from_ms(Milliseconds(FIRST_MS + 30_000)),
        "time": when,
        "decided_at": None if time_ms is None else datetime_from_ms(Milliseconds(FIRST_MS + 20_000)),
        "decided_by": None if time_ms is None else host(2),
    }
    _put(lake, GENERATION_SWITCHES, row)


def _put(lake: Lake, table: Table, row: Mapping[str, object]) -> None:
    lake.merge(table, pa.Table.from_pylist([dict(row)], schema=table.schema), update=False)
