"""The nodes of a live cluster with tokens, shards and features, as each version tells them; and which cluster it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from cdc_platform.clock import ms_from_datetime
from cdc_platform.cluster.known import Identity
from cdc_platform.cluster.refusals import NoTable, Unreachable
from cdc_platform.cluster.session import LiveCluster, Row, one
from cdc_platform.cluster.tables import SCYLLA_LOCAL, TOPOLOGY, VERSIONS, Layout
from cdc_platform.errors import InputError, StateError
from cdc_platform.records import node_fields
from cdc_platform.ring import Node, Ring

_TRIES = 3


@dataclass(frozen=True)
class Topology:
    """The cluster at one moment. `nodes` are those that own tokens; `committed` its generations' (time in ms, UUID).

    `committed` is empty where generations are not kept by Raft. While it is `changing`, which says what goes on, it
    comes without nodes: a ring in the middle of a change would be one that never was.
    """

    cluster_name: str
    version: str
    nodes: tuple[Node, ...]
    committed: tuple[tuple[int, UUID], ...]
    host_ids: tuple[UUID, ...]
    changing: str | None = None

    @property
    def identity(self) -> Identity:
        """Which cluster it is, without its generations."""
        return Identity(cluster_name=self.cluster_name, host_ids=self.host_ids)


def read_topology(live: LiveCluster, layout: Layout, known: Mapping[UUID, Node]) -> Topology:
    """The nodes as the cluster has them now; `known` are the home's, for the sharding of a node that is down.

    Raises:
        StateError: the sharding of a node cannot be learned.
        InputError: the nodes make no ring.
    """
    local = one(live.select("system.local", "*", "WHERE key = 'local'", at=live.contact), "system.local")
    peers = live.select("system.peers", "*", at=live.contact)
    addresses = {row["host_id"]: str(row["rpc_address"]) for row in (local, *peers) if row["host_id"] is not None}
    found = _by_raft(live, addresses) if TOPOLOGY in layout else None
    nodes, committed, changing = found or (_by_gossip(live, layout, [local, *peers], known), (), None)
    if changing is None:
        Ring.of(nodes)
    _assert_words(live, local["cluster_name"], nodes)
    hosts = tuple(sorted(addresses))
    return Topology(local["cluster_name"], _version(live, layout, local), tuple(nodes), committed, hosts, changing)


def _assert_words(live: LiveCluster, cluster_name: str, nodes: Iterable[Node]) -> None:
    """Hold that what the cluster calls itself and its nodes can be shown: no control character, no terminal's escape.

    Raises:
        InputError: a name cannot.
    """
    words = [("cluster_name", node_fields.label, cluster_name)]
    for node in nodes:
        named = ("datacenter", node.datacenter), ("rack", node.rack), *(("feature", each) for each in node.features)
        words += [(f"node {node.host_id}: {what}", node_fields.label, word) for what, word in named if word]
        words += [(f"node {node.host_id}: address", node_fields.address, node.address)] if node.address else []
    for what, check, word in words:
        try:
            check(word)
        except ValueError as error:
            raise InputError(f"{live.name}: {what}: {error}") from None


def _version(live: LiveCluster, layout: Layout, local: Row) -> str:
    if VERSIONS in layout:
        rows = live.select(VERSIONS, "version", at=live.contact)
        if rows and rows[0]["version"]:
            return str(rows[0]["version"])
    return str(local["release_version"])


def _by_raft(
    live: LiveCluster, addresses: Mapping[UUID, str]
) -> tuple[list[Node], tuple[tuple[int, UUID], ...], str | None] | None:
    """Nodes and generations as the group has agreed, and what is changing; None where it does not yet lead."""
    changing, first = "", {}
    for _ in range(_TRIES):
        rows = live.select(TOPOLOGY, "*", "WHERE key = 'topology'", at=live.contact)
        first = rows[0] if rows else {}
        if not rows or first.get("upgrade_state") not in (None, "done") or all(not row["tokens"] for row in rows):
            return None
        again = live.select(TOPOLOGY, "version, transition_state", "WHERE key = 'topology' LIMIT 1", at=live.contact)
        states = (first.get("transition_state"), again[0]["transition_state"] if again else None)
        if states == (None, None) and again and again[0]["version"] == first["version"]:
            normal = [row for row in rows if row["node_state"] == "normal" and row["tokens"]]
            return [_raft_node(row, first, addresses) for row in normal], _committed(first), None
        changing = states[0] or states[1] or "its version changes"
    return [], _committed(first), changing


def _raft_node(row: Row, first: Row, addresses: Mapping[UUID, str]) -> Node:
    features = row.get("supported_features") or first.get("enabled_features") or ()
    if row["shard_count"] is None or row["ignore_msb"] is None:
        raise InputError(f"system.topology does not say how node {row['host_id']} shards its tokens")
    return Node(
        host_id=row["host_id"],
        tokens=_tokens(row["tokens"], row["host_id"]),
        shard_count=row["shard_count"],
        ignore_msb=row["ignore_msb"],
        address=addresses.get(row["host_id"], ""),
        datacenter=row["datacenter"] or "",
        rack=row["rack"] or "",
        features=tuple(sorted(features)),
    )


def _committed(row: Row) -> tuple[tuple[int, UUID], ...]:
    found = row.get("committed_cdc_generations") or ()
    return tuple(sorted((ms_from_datetime(time), id_) for time, id_ in found))


def _by_gossip(live: LiveCluster, layout: Layout, rows: list[Row], known: Mapping[UUID, Node]) -> list[Node]:
    """The nodes as versions without a topology table tell of them: tokens by every node, sharding by each itself."""
    enabled = _enabled_features(live, layout)
    return [_gossiped(live, row, enabled, known) for row in rows if row.get("tokens")]


def _gossiped(live: LiveCluster, row: Row, enabled: tuple[str, ...], known: Mapping[UUID, Node]) -> Node:
    host, address = row["host_id"], str(row["rpc_address"])
    shards, msb = _sharding(live, host, address, known)
    return Node(
        host_id=host,
        tokens=_tokens(row["tokens"], host),
        shard_count=shards,
        ignore_msb=msb,
        address=address,
        datacenter=row["data_center"] or "",
        rack=row["rack"] or "",
        features=_listed(row.get("supported_features")) or enabled,
    )


def _sharding(live: LiveCluster, host: UUID, address: str, known: Mapping[UUID, Node]) -> tuple[int, int]:
    """Shards and ignore_msb by the node itself; of one that is down what the home knows."""
    try:
        greeting = live.greeting(address)
    except Unreachable as error:
        if host in known:
            return known[host].shard_count, known[host].ignore_msb
        raise StateError(f"{error}; only node {host} itself can say how it shards its tokens") from None
    if greeting.shards is None or greeting.ignore_msb is None:
        raise StateError(f"{live.name}, node {address} does not say how it shards its tokens; it is no ScyllaDB")
    return greeting.shards, greeting.ignore_msb


def _enabled_features(live: LiveCluster, layout: Layout) -> tuple[str, ...]:
    if SCYLLA_LOCAL not in layout:
        return ()
    try:
        rows = live.select(SCYLLA_LOCAL, "value", "WHERE key = 'enabled_features'", at=live.contact)
    except NoTable:
        return ()
    return _listed(rows[0]["value"]) if rows else ()


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(sorted(name.strip() for name in (text or "").split(",") if name.strip()))


def _tokens(texts: Iterable[str], host: UUID) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise InputError(f"node {host}: a token is no whole number; is its partitioner Murmur3?") from None
