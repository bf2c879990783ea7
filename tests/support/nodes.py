"""Nodes that join, derived from their number, so that each number always gives the same node."""

from __future__ import annotations

import json
import uuid

import numpy as np

from cdc_platform.importing import parse_join_request
from cdc_platform.metastore import JoinRequest


def node_fields(number: int, **overrides: object) -> dict[str, object]:
    """Return the fields of the bootstrap file of node `number`, with `overrides`, which must contain the tokens."""
    return {
        "host_id": str(uuid.UUID(int=number)),
        "address": f"10.0.0.{number}",
        "datacenter": "dc1",
        "rack": "r1",
        "shard_count": 2,
        "ignore_msb": 12,
    } | overrides


def node_text(number: int, count: int = 16, shard_count: int = 4, ignore_msb: int = 12) -> str:
    """Return the bootstrap file of node `number` with `count` random tokens that depend on the number alone."""
    tokens = np.random.default_rng(number).integers(-(2**63) + 1, 2**63 - 1, count, dtype=np.int64)
    shape = {"tokens": sorted(tokens.tolist()), "shard_count": shard_count, "ignore_msb": ignore_msb}
    return json.dumps(node_fields(number, **shape))


def join_request(*arguments: int, **named: int) -> JoinRequest:
    """Return the join request of a node (see `node_text`)."""
    return parse_join_request(node_text(*arguments, **named))
