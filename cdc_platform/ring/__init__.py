"""The token ring: tokens, murmur3, shards, nodes. Pure numpy; one implementation for one value and for millions.

Streams and generations are built on it in `cdc_platform.generations`.
"""

from cdc_platform.ring.lookup import RangeLookup
from cdc_platform.ring.membership import Membership, changes_ring, node_membership, printed_membership
from cdc_platform.ring.murmur3 import composite_key, composite_keys, hash128, tokens_of_buffer, tokens_of_keys
from cdc_platform.ring.ring import MAX_RANGES, Node, Ring
from cdc_platform.ring.sharding import (
    MAX_IGNORE_MSB,
    MAX_SHARD_COUNT,
    first_token_for_shard,
    shard_of,
    shard_starts,
    token_for_next_shard,
)
from cdc_platform.ring.tokens import (
    FIRST,
    LAST,
    MINIMUM,
    are_among,
    bias,
    distinct,
    legal_tokens,
    range_starts,
    unbias,
    uniform_last_tokens,
)

__all__ = [
    "FIRST",
    "LAST",
    "MAX_IGNORE_MSB",
    "MAX_RANGES",
    "MAX_SHARD_COUNT",
    "MINIMUM",
    "Membership",
    "Node",
    "RangeLookup",
    "Ring",
    "are_among",
    "bias",
    "changes_ring",
    "composite_key",
    "composite_keys",
    "distinct",
    "first_token_for_shard",
    "hash128",
    "legal_tokens",
    "node_membership",
    "printed_membership",
    "range_starts",
    "shard_of",
    "shard_starts",
    "token_for_next_shard",
    "tokens_of_buffer",
    "tokens_of_keys",
    "unbias",
    "uniform_last_tokens",
]
