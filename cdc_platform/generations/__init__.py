"""Generations: stream IDs, topology descriptions, generation IDs and timestamps, and what operates when. Pure numpy."""

from cdc_platform.generations.description import (
    RangeDescription,
    RingLayout,
    TopologyDescription,
    generate,
    generate_streams,
    layout_of,
    limit_streams_for_v1,
    refines,
)
from cdc_platform.generations.ids import GenerationId, parse_generation_id
from cdc_platform.generations.metadata import Decision, Metadata, Policy, Verdict, decide, operating_index
from cdc_platform.generations.shard_order import RestoredOrder, restore_shard_order, restore_shard_orders
from cdc_platform.generations.stream_ids import StreamId, StreamIds, decode, encode, random_bits
from cdc_platform.generations.timestamp import (
    choose_generation_timestamp,
    new_generation_timestamp,
    next_generation_timestamp,
)

__all__ = [
    "Decision",
    "GenerationId",
    "Metadata",
    "Policy",
    "RangeDescription",
    "RestoredOrder",
    "RingLayout",
    "StreamId",
    "StreamIds",
    "TopologyDescription",
    "Verdict",
    "choose_generation_timestamp",
    "decide",
    "decode",
    "encode",
    "generate",
    "generate_streams",
    "layout_of",
    "limit_streams_for_v1",
    "new_generation_timestamp",
    "next_generation_timestamp",
    "operating_index",
    "parse_generation_id",
    "random_bits",
    "refines",
    "restore_shard_order",
    "restore_shard_orders",
]
