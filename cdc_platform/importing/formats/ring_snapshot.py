"""Parse ring snapshots (the nodes of a ring as a JSON list), and find the joins between two snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.strict_json import parse_json
from cdc_platform.metastore import (
    DEFAULT_FEATURES,
    FeatureNames,
    HostId,
    JoinRequest,
    Label,
    OptionalAddress,
    OptionalIgnoreMsb,
    OptionalLabel,
    OptionalShardCount,
    TokenList,
    input_error,
)
from cdc_platform.ring import Membership, Node, Ring, membership_from_node_state
from cdc_platform.storage import read_user_text

_NORMAL = "NORMAL"


class SnapshotNode(BaseModel):
    """One node of a snapshot. The caller may supply `shard_count` and `ignore_msb`; the other fields are required.

    An empty address, datacenter or rack is unknown; `system.topology`, for example, has no addresses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_id: HostId
    address: OptionalAddress
    datacenter: OptionalLabel
    rack: OptionalLabel
    tokens: TokenList
    shard_count: OptionalShardCount = None
    ignore_msb: OptionalIgnoreMsb = None
    features: FeatureNames = DEFAULT_FEATURES
    status: Label = _NORMAL


def snapshot_from_node(node: Node) -> dict[str, Any]:
    """Return a node in the form of a ring snapshot, which `import` reads."""
    return {
        "host_id": str(node.host_id),
        "address": node.address,
        "datacenter": node.datacenter,
        "rack": node.rack,
        "status": node.status,
        "shard_count": node.shard_count,
        "ignore_msb": node.ignore_msb,
        "features": node.features,
        "tokens": node.tokens,
    }


def read_ring_snapshot(path: str | Path, shards: int | None = None, ignore_msb: int | None = None) -> list[Node]:
    """Return the nodes of the snapshot at `path`, in order; `shards` and `ignore_msb` apply if the file lacks them.

    Raises:
        NotFound: the file does not exist.
        InputError: it is not a ring snapshot, or its nodes form no ring.
    """
    return parse_ring_snapshot(read_user_text(Path(path)), str(path), shards, ignore_msb)


def parse_ring_snapshot(
    text: str, source: str = "ring snapshot", shards: int | None = None, ignore_msb: int | None = None
) -> list[Node]:
    """Return the nodes of a snapshot's JSON text, in order; messages call the text `source`.

    Raises:
        InputError: it is not a JSON list of nodes, a node lacks its sharding, or the nodes form no ring.
    """
    value = parse_json(text, source)
    if not isinstance(value, list):
        hint = "; a joining node is queued by: cdc-platform bootstrap" if isinstance(value, dict) else ""
        raise InputError(f"{source} has to be a JSON list of nodes{hint}")
    if not value:
        raise InputError(f"{source} lists no nodes; a ring snapshot has at least one")
    nodes = [
        _parse_node(item, f"{source}: node {number}", shards, ignore_msb) for number, item in enumerate(value, start=1)
    ]
    try:
        Ring.of(nodes)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return nodes


def joins_between_snapshots(snapshots: Sequence[Sequence[Node]]) -> list[JoinRequest]:
    """Return the nodes that each snapshot adds to the previous one, oldest first; the first one adds all of its nodes.

    Raises:
        InputError: a node is gone, or has other tokens or shards, in a later snapshot, which is no join.
    """
    known: dict[UUID, Node] = {}
    requests = []
    for number, snapshot in enumerate(snapshots, start=1):
        present = {node.host_id: node for node in snapshot}
        for host, before in known.items():
            if host not in present:
                raise InputError(
                    f"snapshot {number}: host {host} of the previous snapshot is missing; only joins are read"
                )
            if _sharding(before) != _sharding(present[host]):
                raise InputError(f"snapshot {number}: host {host} has other tokens or shards than in the one before")
        requests += [_request(node) for host, node in present.items() if host not in known]
        known = present
    return requests


def _parse_node(item: object, source: str, shards: int | None, ignore_msb: int | None) -> Node:
    if not isinstance(item, dict):
        raise InputError(f"{source} is no JSON object")
    try:
        node = SnapshotNode.model_validate(item)
    except ValidationError as error:
        raise input_error(error, source, tuple(SnapshotNode.model_fields)) from None
    membership = membership_from_node_state(source, node.status)
    if membership is Membership.GONE:
        raise InputError(f"{source} has status {node.status}, which owns nothing: leave it out")
    if not membership.at_rest:
        raise InputError(
            f"{source} has status {node.status}: the ring is changing; write the snapshot when the node is "
            f"{_NORMAL} or gone"
        )
    return Node(
        host_id=node.host_id,
        tokens=node.tokens,
        shard_count=_require_value(node.shard_count, shards, f"{source}: shard_count", "--shards 8"),
        ignore_msb=_require_value(node.ignore_msb, ignore_msb, f"{source}: ignore_msb", "--ignore-msb 12"),
        address=node.address,
        datacenter=node.datacenter,
        rack=node.rack,
        features=node.features,
        status=_NORMAL,
    )


def _require_value(in_file: int | None, by_caller: int | None, what: str, option: str) -> int:
    value = by_caller if in_file is None else in_file
    if value is None:
        raise InputError(f"{what} is not in the file; say it with {option}")
    return value


def _sharding(node: Node) -> tuple[tuple[int, ...], int, int]:
    return node.tokens, node.shard_count, node.ignore_msb


def _request(node: Node) -> JoinRequest:
    return JoinRequest(
        host_id=node.host_id,
        address=node.address,
        datacenter=node.datacenter,
        rack=node.rack,
        shard_count=node.shard_count,
        ignore_msb=node.ignore_msb,
        tokens=node.tokens,
        features=node.features,
    )
