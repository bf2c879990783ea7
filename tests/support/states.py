"""The meaning of every state of nodes and of the topology, from ScyllaDB's documents: the oracle of both readers.

The sources are `docs/dev/topology-over-raft.md` of ScyllaDB and its name maps, from 5.4 to 2026. The module shares no
code with the product.
"""

from __future__ import annotations

UNKNOWN = "zzz_unknown"
"""A state that no version has."""

OWNS, LEAVING, JOINING, GONE = "owns", "leaving", "joining", "gone"

NODE_STATES = {
    "normal": OWNS,
    "rebuilding": OWNS,
    "decommissioning": LEAVING,
    "removing": LEAVING,
    "rollback to normal": LEAVING,
    "bootstrapping": JOINING,
    "replacing": JOINING,
    "left token ring": GONE,
    "left": GONE,
    "none": GONE,
}
"""What a node in each `node_state` does with its tokens."""

TRANSITIONS = {
    "join group0": True,
    "commit cdc generation": True,
    "publish cdc generation": True,
    "write both read old": True,
    "write both read new": True,
    "tablet draining": True,
    "left token ring": True,
    "rollback to normal": True,
    "tablet migration": False,
    "tablet split finalization": False,
    "tablet resize finalization": False,
    "truncate table": False,
    "lock": False,
}
"""Whether nodes or generations change in each `transition_state`."""

PRINTED_STATES = {"Normal": OWNS, "Leaving": LEAVING, "Moving": LEAVING, "Joining": JOINING}
"""What a node in each state that nodetool prints does with its tokens."""

SEARCH_CLASSES = {"vector_index": True, "fulltext_index": True, "substring_index": False, "pattern_index": False}
"""The classes of indexes that are built from a log, and whether each enables CDC by itself."""
