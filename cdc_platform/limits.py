"""Numbers of ScyllaDB that several rooms go by: the default delays of a cluster, and the longest that log rows live."""

from __future__ import annotations

RING_DELAY_MS = 30_000
"""How long it takes at the most, unless set otherwise, until every node has heard of a change of the ring."""
LEEWAY_MS = 5_000
"""How far ahead of its clock a coordinator takes writes, unless set otherwise."""
MAX_CDC_TTL = 2**31 - 1
"""The most seconds that CQL's `cdc = {'ttl': ...}` takes."""
