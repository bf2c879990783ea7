"""Lakes in which a node's generation is inserted and waits for its timestamp, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, us_from_ms
from cdc_platform.delta import Lake, stream_lists_to_arrow
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.importing import parse_join_request
from cdc_platform.lifecycle import V2_STEPS, JoinContext, find_step, switch
from cdc_platform.lifecycle.join import bootstrap, verdicts
from cdc_platform.metastore import JoinRequest, inbox, write_nodes
from cdc_platform.ring import Ring
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, GENERATIONS

NOON_MS = Milliseconds(1_700_000_000_000)
NOON = Clock(us_from_ms(NOON_MS))
TWO_PHASE = Settings(two_phase_switch=True)


def host(number: int) -> str:
    """Return the host_id of node `number`."""
    return str(UUID(int=number))


def request(number: int) -> JoinRequest:
    """Return the join request of node `number` with four tokens."""
    tokens = np.random.default_rng(number).integers(-(2**63) + 1, 2**63 - 1, 4, dtype=np.int64)
    fields = {
        "host_id": host(number),
        "address": f"10.0.0.{number}",
        "datacenter": "dc1",
        "rack": "r1",
        "tokens": tokens.tolist(),
        "shard_count": 2,
        "ignore_msb": 12,
    }
    return parse_join_request(json.dumps(fields))


def inserted(lake: Lake, number: int, clock: Clock = NOON, *, rows: slice = slice(None)) -> str:
    """Queue node `number` and insert its generation, with a subset of its `rows`; return its UUID."""
    generation_id = inbox.queue_join(lake, clock, request(number)).generation_id
    describe(lake, generation_id, bootstrap.read_rings(lake, generation_id)[1], rows)
    trusted(lake, generation_id)
    return generation_id


def switching(lake: Lake, answered: int = 0) -> str:
    """Prepare the switch to the third node's generation, acknowledged by `answered` of the three; return its UUID."""
    hosts = [host(number) for number in (1, 2, 3)]
    ring_of(lake, (1, 2))
    generation_id = inserted(lake, 3)
    switch.prepare_switch(lake, NOON, TWO_PHASE, generation_id, hosts[2], hosts)
    switch.acknowledge_switch(lake, NOON, TWO_PHASE, generation_id, hosts[:answered])
    return generation_id


def trusted(lake: Lake, generation_id: str) -> None:
    """Store the passing verdict that a join leaves for its inserted rows as they are now."""
    step = find_step(V2_STEPS, GENERATION_DESCRIPTIONS_V2)
    assert step.audit is not None
    joining = JoinContext(lake, NOON, TWO_PHASE, generation_id, None, "a join")
    content = verdicts.content_name(lake, step.audit.parts(joining))
    passed = verdicts.StepVerdict(
        generation_id, step.name, content, step.audit.invariants, True, "", joining.entry_point
    )
    verdicts.store_verdict(lake, NOON, passed)


def operating(lake: Lake, numbers: Iterable[int], time_ms: Milliseconds) -> None:
    """Write a generation over these nodes with its timestamp into the ledger."""
    generation_id = host(1_000)
    count = describe(lake, generation_id, Ring.of(parse_node(number) for number in numbers))
    row = {
        "generation_id": generation_id,
        "time": datetime_from_ms(time_ms),
        "num_ranges": count,
        "num_streams": 2 * count,
        "created_at": datetime_from_ms(time_ms),
        "published_at": datetime_from_ms(time_ms),
    }
    lake.merge(GENERATIONS, pa.Table.from_pylist([row]), update=False)


def describe(lake: Lake, generation_id: str, ring: Ring, rows: slice = slice(None)) -> int:
    """Insert the V2 descriptions of a generation over a ring; return their number."""
    described = generate_description(RingLayout.of(ring), UUID(generation_id))
    count = len(described)
    v2 = pa.table(
        {
            "id": pa.array([generation_id] * count),
            "range_end": pa.array(described.range_ends),
            "ignore_msb": pa.array(described.ignore_msbs.astype(np.int8)),
            "num_ranges": pa.array(np.full(count, count, dtype=np.int32)),
            "streams": stream_lists_to_arrow(described.stream_counts, described.streams),
        }
    )
    lake.merge(GENERATION_DESCRIPTIONS_V2, v2.take(pa.array(range(count)[rows])), update=False)
    return count


def ring_of(lake: Lake, numbers: Iterable[int]) -> None:
    """Write nodes into the current ring, without generations."""
    nodes = [parse_node(number) for number in numbers]
    write_nodes(lake, nodes)


def parse_node(number: int) -> inbox.Node:
    """Return node `number` with status NORMAL."""
    joining = request(number)
    return inbox.Node(
        UUID(int=number), tuple(joining.tokens or ()), 2, 12, joining.address, "dc1", "r1", tuple(joining.features)
    )
