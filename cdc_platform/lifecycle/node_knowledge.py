"""The nodes that know the operating generation, according to their `cdc_local`.

A node that names an older generation long after a newer one started writes rows where no reader looks. The state of a
node is unknown if its `cdc_local` is not here, or could not be read at the last observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc_platform.clock import Clock, Milliseconds, format_ms, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import STATUS_NORMAL, cdc_local, cluster_changes, read_nodes
from cdc_platform.settings import Settings
from cdc_platform.timeline import Timeline


@dataclass(frozen=True)
class NodeKnowledge:
    """The knowledge of the ring's nodes, by host ID.

    `behind` has the time (ms) that each node names, `unknown` the reason. All nodes should name the generation at
    `time_ms` or a later one.
    """

    time_ms: Milliseconds
    informed: tuple[str, ...]
    behind: Mapping[str, Milliseconds]
    unknown: Mapping[str, str]

    def __str__(self) -> str:
        """Return the nodes that are behind, in words."""
        named = ", ".join(f"{host} names {format_ms(time_ms)}" for host, time_ms in self.behind.items())
        return f"generation {format_ms(self.time_ms)} is published and operates, and {named} in cdc_local"


def read_node_knowledge(lake: Lake, clock: Clock, settings: Settings) -> NodeKnowledge | None:
    """Return the nodes' knowledge of the newest published generation that has operated for a ring delay.

    Returns None if there is no such generation, or no node.
    """
    started = [
        generation
        for generation in Timeline.read(lake).known
        if generation.published and us_from_ms(generation.time_ms + settings.ring_delay_ms) <= clock.now_us()
    ]
    nodes = [node for node in read_nodes(lake) if node.status == STATUS_NORMAL]
    if not started or not nodes:
        return None
    due_ms, stored_ids = started[-1].time_ms, cdc_local.read_node_generation_ids(lake)
    not_read = cluster_changes.read_unreadable_cdc_local(lake)
    informed, behind, unknown = list[str](), dict[str, Milliseconds](), dict[str, str]()
    for node in sorted(nodes, key=lambda node: str(node.host_id)):
        host = str(node.host_id)
        known = stored_ids.get(host)
        if known is not None and known.time_ms >= due_ms:
            informed.append(host)
        elif (why := not_read.get(node.address or host) or not_read.get(host)) is not None:
            unknown[host] = why
        elif known is None:
            unknown[host] = "its cdc_local is not here"
        else:
            behind[host] = known.time_ms
    return NodeKnowledge(due_ms, tuple(informed), behind, unknown)
