"""Parse exports of `system.topology`: the nodes of a cluster with Raft, and its committed generations.

The columns are those that `scylla.topology` reads from the live table: one row per node, with the group's values
repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from cdc_platform.clock import Milliseconds
from cdc_platform.errors import InputError
from cdc_platform.importing.formats.cells import ExportRows, read_time_ms, read_uuid, whole_number_reader
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.ring import MAX_IGNORE_MSB, MAX_SHARD_COUNT, Node, is_ring_changing, membership_from_node_state

TOPOLOGY = "topology"
NEEDED_COLUMNS = frozenset({"host_id", "node_state", "tokens", "shard_count", "ignore_msb"})
"""The columns that identify an export of the table; all others are optional."""

_TOKEN = re.compile(r"'?(-?\d{1,19})'?", re.ASCII)
_COMMITTED = re.compile(r"\(\s*'?([^,']+)'?\s*,\s*([0-9a-fA-F-]{36})\s*\)")
_read_shard_count, _read_ignore_msb = (
    whole_number_reader("shard_count", 1, MAX_SHARD_COUNT),
    whole_number_reader("ignore_msb", 0, MAX_IGNORE_MSB),
)


@dataclass(frozen=True)
class TopologyExport:
    """The nodes that own tokens, and the UUIDs of committed generations by their times (ms)."""

    nodes: list[Node] = field(default_factory=list)
    committed: dict[Milliseconds, str] = field(default_factory=dict)


def is_topology_export(columns: set[str]) -> bool:
    """Return True if these are columns of the table."""
    return columns >= NEEDED_COLUMNS


def collect_topology_rows(found: TopologyExport, source: str, rows: ExportRows, flaws: ImportIssues) -> None:
    """Add a file's rows. `ring.membership` defines what a state means for the ring.

    Raises:
        InputError: a value is malformed or unknown, or a node is duplicated; or nodes or generations are changing, and
            `flaws` refuses issues.
    """
    for line, values in rows:
        place = f"{source}, line {line}"
        if values.get("key") not in (None, TOPOLOGY):
            raise InputError(f"{place}: key {values['key']!r}; the key of system.topology is always topology")
        transition = values.get("transition_state")
        if is_ring_changing(place, transition):
            flaws.tell(f"{source}: the topology is changing ({transition}); export it when that is done")
        for time, id_ in _COMMITTED.findall(values.get("committed_cdc_generations") or ""):
            found.committed[read_time_ms(place, "committed_cdc_generations", time.strip())] = read_uuid(place, id_)
        membership = membership_from_node_state(f"{place}: node {values['host_id']}", values["node_state"])
        if not membership.at_rest:
            flaws.tell(
                f"{source}: node {values['host_id']} is {values['node_state']}: the topology is changing; export it "
                "when that is done"
            )
        if not membership.in_ring:
            continue
        node = _parse_node(place, values)
        if any(node.host_id == other.host_id for other in found.nodes):
            raise InputError(f"{place}: host {node.host_id} is there twice")
        found.nodes.append(node)


def _parse_node(place: str, values: Mapping[str, str]) -> Node:
    return Node(
        host_id=UUID(read_uuid(place, values["host_id"], "host_id")),
        tokens=tuple(sorted(_tokens(place, values["tokens"]))),
        shard_count=_read_shard_count(place, values["shard_count"]),
        ignore_msb=_read_ignore_msb(place, values["ignore_msb"]),
        address=values.get("rpc_address", ""),
        datacenter=values.get("datacenter", ""),
        rack=values.get("rack", ""),
        features=tuple(sorted(_split_set(values.get("supported_features") or ""))),
    )


def _tokens(place: str, text: str) -> list[int]:
    """Return the tokens of a node; a zero-token node has none, written as null or an empty set."""
    matches = [_TOKEN.fullmatch(word) for word in _split_set(text)]
    if None in matches or (text and not matches and text != "{}"):
        raise InputError(f"{place}: tokens {text[:60]!r} are no set of whole numbers, as in {{'-42', '17'}}")
    return [int(match[1]) for match in matches if match is not None]


def _split_set(text: str) -> list[str]:
    return [word.strip().strip("'") for word in text.strip("{}").split(",") if word.strip()]
