"""Read the identity of a live cluster and its nodes with tokens, shards and features, in every version's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from cdc_platform.clock import Milliseconds, ms_from_datetime
from cdc_platform.errors import InputError, StateError
from cdc_platform.metastore import join_request
from cdc_platform.ring import Membership, Node, Ring, is_ring_changing, membership_from_node_state
from cdc_platform.scylla.errors import NoTable, Unreachable
from cdc_platform.scylla.registry import ClusterIdentity
from cdc_platform.scylla.session import CqlRow, ScyllaSession, require_row
from cdc_platform.scylla.system_tables import SCYLLA_LOCAL, TOPOLOGY, VERSIONS, AvailableTables

_MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class ClusterTopology:
    """The cluster at one moment. `nodes` are its members, with or without tokens; `committed` are its generations.

    A generation is its time in ms and its UUID. `committed` is empty if Raft does not manage generations. `changing`
    describes a topology change in progress; `nodes` is empty then, since a ring read in the middle of a change may
    never have existed.
    """

    cluster_name: str
    version: str
    nodes: tuple[Node, ...]
    committed: tuple[tuple[Milliseconds, UUID], ...]
    host_ids: tuple[UUID, ...]
    changing: str | None = None

    @property
    def identity(self) -> ClusterIdentity:
        """Return the cluster's identity, without its generations."""
        return ClusterIdentity(cluster_name=self.cluster_name, host_ids=self.host_ids)


def read_topology(live: ScyllaSession, layout: AvailableTables, known: Mapping[UUID, Node]) -> ClusterTopology:
    """Read the current nodes; `known` are the home's nodes, for the sharding of a node that is down.

    Raises:
        StateError: the sharding of a node cannot be determined.
        InputError: the nodes form no valid ring.
    """
    local = require_row(live.select("system.local", "*", "WHERE key = 'local'", at=live.contact), "system.local")
    peers = live.select("system.peers", "*", at=live.contact)
    addresses = {row["host_id"]: str(row["rpc_address"]) for row in (local, *peers) if row["host_id"] is not None}
    raft_state = _read_raft_nodes(live, addresses) if TOPOLOGY in layout else None
    nodes, committed, changing = raft_state or (_read_gossip_nodes(live, layout, [local, *peers], known), (), None)
    if changing is None:
        Ring.of(nodes)
    _assert_printable(live, local["cluster_name"], nodes)
    hosts = tuple(sorted(addresses))
    return ClusterTopology(
        local["cluster_name"], _version(live, layout, local), tuple(nodes), committed, hosts, changing
    )


def _assert_printable(live: ScyllaSession, cluster_name: str, nodes: Iterable[Node]) -> None:
    """Raise unless the names of the cluster and its nodes are printable: no control characters, no terminal escapes.

    Raises:
        InputError: a name is not printable.
    """
    words = [("cluster_name", join_request.validate_label, cluster_name)]
    for node in nodes:
        named = (
            ("datacenter", node.datacenter),
            ("rack", node.rack),
            *(("feature", feature) for feature in node.features),
        )
        words += [(f"node {node.host_id}: {what}", join_request.validate_label, word) for what, word in named if word]
        words += (
            [(f"node {node.host_id}: address", join_request.validate_address, node.address)] if node.address else []
        )
    for what, check, word in words:
        try:
            check(word)
        except ValueError as error:
            raise InputError(f"{live.name}: {what}: {error}") from None


def _version(live: ScyllaSession, layout: AvailableTables, local: CqlRow) -> str:
    if VERSIONS in layout:
        rows = live.select(VERSIONS, "version", at=live.contact)
        if rows and rows[0]["version"]:
            return str(rows[0]["version"])
    return str(local["release_version"])


def _read_raft_nodes(
    live: ScyllaSession, addresses: Mapping[UUID, str]
) -> tuple[list[Node], tuple[tuple[Milliseconds, UUID], ...], str | None] | None:
    """Return the nodes and generations that Raft has, and the change in progress; None if Raft does not manage them.

    Tablets migrate for hours, and each step creates a new version of the topology. Two reads that agree in the ring's
    facts are one state, whatever their versions.
    """
    changing, first, before = "", CqlRow(), None
    for _ in range(_MAX_ATTEMPTS):
        rows = live.select(TOPOLOGY, "*", "WHERE key = 'topology'", at=live.contact)
        first = rows[0] if rows else CqlRow()
        if not rows or first.get("upgrade_state") not in (None, "done") or all(not row["tokens"] for row in rows):
            return None
        reread = live.select(TOPOLOGY, "version, transition_state", "WHERE key = 'topology' LIMIT 1", at=live.contact)
        under_way = _pending_change(live, rows) or _transition(live, reread)
        if under_way is None:
            if (reread and reread[0]["version"] == first["version"]) or before == _ring_facts(rows):
                return (
                    [_raft_node(row, first, addresses) for row in rows if _membership(live, row).in_ring],
                    committed_generations(first),
                    None,
                )
            before = _ring_facts(rows)
        changing = under_way or "its version changes"
    return [], committed_generations(first), changing


def _pending_change(live: ScyllaSession, rows: Sequence[CqlRow]) -> str | None:
    """Describe a change in progress, by the topology's state or by a joining or leaving node; else return None."""
    moving = [row for row in rows if not _membership(live, row).at_rest]
    return _transition(live, rows) or next((f"node {row['host_id']} is {row['node_state']}" for row in moving), None)


def _transition(live: ScyllaSession, rows: Sequence[CqlRow]) -> str | None:
    state = rows[0].get("transition_state") if rows else None
    return state if is_ring_changing(f"{live.name}: system.topology", state) else None


def _membership(live: ScyllaSession, row: CqlRow) -> Membership:
    return membership_from_node_state(f"{live.name}: system.topology: node {row['host_id']}", row["node_state"])


def _ring_facts(rows: Sequence[CqlRow]) -> list[tuple[str, ...]]:
    """Return what rows say about the ring and its generations, in canonical order."""
    columns = ("host_id", "node_state", "tokens", "shard_count", "ignore_msb", "committed_cdc_generations")
    return sorted(tuple(repr(_sorted_if_set(row.get(name))) for name in columns) for row in rows)


def _sorted_if_set(value: object) -> object:
    return sorted(value) if isinstance(value, (set, frozenset)) else value


def _raft_node(row: CqlRow, first: CqlRow, addresses: Mapping[UUID, str]) -> Node:
    features = row.get("supported_features") or first.get("enabled_features") or ()
    if row["shard_count"] is None or row["ignore_msb"] is None:
        raise InputError(f"system.topology has no sharding for node {row['host_id']}")
    return Node(
        host_id=row["host_id"],
        tokens=_parse_tokens(row["tokens"] or (), row["host_id"]),
        shard_count=row["shard_count"],
        ignore_msb=row["ignore_msb"],
        address=addresses.get(row["host_id"], ""),
        datacenter=row["datacenter"] or "",
        rack=row["rack"] or "",
        features=tuple(sorted(features)),
    )


def committed_generations(row: CqlRow) -> tuple[tuple[Milliseconds, UUID], ...]:
    """Return the generations (time in ms, UUID) in a row of `system.topology`, published or not, oldest first."""
    generations = {(ms_from_datetime(time), id_) for time, id_ in row.get("committed_cdc_generations") or ()}
    generations |= {(ms_from_datetime(time), id_) for time, id_ in row.get("unpublished_cdc_generations") or ()}
    # ScyllaDB 5.4 names the newest one in two columns of its own.
    newest = row.get("current_cdc_generation_timestamp"), row.get("current_cdc_generation_uuid")
    if newest[0] is not None and newest[1] is not None:
        generations.add((ms_from_datetime(newest[0]), newest[1]))
    return tuple(sorted(generations))


def _read_gossip_nodes(
    live: ScyllaSession, layout: AvailableTables, rows: list[CqlRow], known: Mapping[UUID, Node]
) -> list[Node]:
    """Read the nodes in versions without a topology table: tokens from any node, sharding from each node itself."""
    enabled = _enabled_features(live, layout)
    return [_gossip_node(live, row, enabled, known) for row in rows if row.get("tokens")]


def _gossip_node(live: ScyllaSession, row: CqlRow, enabled: tuple[str, ...], known: Mapping[UUID, Node]) -> Node:
    host, address = row["host_id"], str(row["rpc_address"])
    shards, msb = _sharding(live, host, address, known)
    return Node(
        host_id=host,
        tokens=_parse_tokens(row["tokens"], host),
        shard_count=shards,
        ignore_msb=msb,
        address=address,
        datacenter=row["data_center"] or "",
        rack=row["rack"] or "",
        features=_split_names(row.get("supported_features")) or enabled,
    )


def _sharding(live: ScyllaSession, host: UUID, address: str, known: Mapping[UUID, Node]) -> tuple[int, int]:
    """Return shards and ignore_msb from the node itself; if it is down, from the home."""
    try:
        options = live.read_node_options(address)
    except Unreachable as error:
        if host in known:
            return known[host].shard_count, known[host].ignore_msb
        raise StateError(f"{error}; only node {host} itself reports its sharding") from None
    if options.shards is None or options.ignore_msb is None:
        raise StateError(f"{live.name}, node {address} reports no sharding, so it is no ScyllaDB node")
    return options.shards, options.ignore_msb


def _enabled_features(live: ScyllaSession, layout: AvailableTables) -> tuple[str, ...]:
    if SCYLLA_LOCAL not in layout:
        return ()
    try:
        rows = live.select(SCYLLA_LOCAL, "value", "WHERE key = 'enabled_features'", at=live.contact)
    except NoTable:
        return ()
    return _split_names(rows[0]["value"]) if rows else ()


def _split_names(text: str | None) -> tuple[str, ...]:
    return tuple(sorted(name.strip() for name in (text or "").split(",") if name.strip()))


def _parse_tokens(texts: Iterable[str], host: UUID) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise InputError(f"node {host}: a token is no integer; is its partitioner Murmur3?") from None
