"""Numbers of ScyllaDB that several rooms go by: the default delays of a cluster, and the longest that log rows live."""

from __future__ import annotations

from cdc_platform.clock import SECOND_MS

RING_DELAY_MS = SECOND_MS * 30
"""How long it takes at the most, unless set otherwise, until every node has heard of a change of the ring."""
LEEWAY_MS = SECOND_MS * 5
"""How far ahead of its clock a coordinator takes writes, unless set otherwise."""
MAX_CDC_TTL = 2**31 - 1
"""The most seconds that CQL's `cdc = {'ttl': ...}` takes."""
