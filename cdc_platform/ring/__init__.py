"""The token ring: tokens, murmur3, shards and nodes, with numpy only.

Each function accepts a single value as well as millions. `cdc_platform.generations` builds streams on this package.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "membership": (
            "Membership",
            "is_ring_changing",
            "membership_from_node_state",
            "membership_from_printed_state",
        ),
        "murmur3": (
            "GOLDEN_RATIO_64",
            "hash128",
            "mix_bits",
            "serialize_composite_key",
            "serialize_composite_keys",
            "tokens_from_buffer",
            "tokens_from_keys",
        ),
        "ring": (
            "MAX_RANGES",
            "Node",
            "Ring",
        ),
        "sharding": (
            "MAX_IGNORE_MSB",
            "MAX_SHARD_COUNT",
            "first_token_for_shard",
            "shard_of",
            "shard_starts",
            "token_for_next_shard",
        ),
        "tokens": (
            "Bools",
            "FIRST_TOKEN",
            "Int64s",
            "LAST_TOKEN",
            "MINIMUM_TOKEN",
            "RangeLookup",
            "UInt64s",
            "UInt8s",
            "bias",
            "check_tokens",
            "is_in_range",
            "isin_sorted_tokens",
            "range_starts",
            "unbias",
            "uniform_last_tokens",
            "unique_tokens",
        ),
    },
)
