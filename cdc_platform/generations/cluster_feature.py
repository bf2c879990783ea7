"""The cluster feature that decides in which format a new generation is introduced (design document 001)."""

from __future__ import annotations

from collections.abc import Iterable

from cdc_platform.ring.ring import Node

CDC_GENERATIONS_V2 = "CDC_GENERATIONS_V2"
"""What a node that reads generations of the second format announces."""


def understands_v2(features: Iterable[str] | None) -> bool:
    """Whether a node that announces these features reads generations of the second format."""
    return CDC_GENERATIONS_V2 in (features or ())


def nodes_without_v2(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that do not understand generations of the second format, in the order of their host IDs.

    One of them is enough: a generation is introduced in the second format only where every node can read it.
    """
    lacking = [node for node in nodes if not understands_v2(node.features)]
    return sorted(lacking, key=lambda node: node.host_id.int)
