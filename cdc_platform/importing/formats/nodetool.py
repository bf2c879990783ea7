"""Parse the output of `nodetool ring`, `nodetool describering` and `nodetool status`.

`ring` names the owner of each token. `describering` lists the replicas of one keyspace, which are the owners only if it
is replicated in every datacenter, so it never changes a known ring. `status` has host IDs. None of them prints shards:
these come from nodes known by address, or from options of import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.cql_values import HALF_WRITTEN, parse_token
from cdc_platform.importing.import_issues import ImportIssues
from cdc_platform.ring import Node, Ring, membership_from_printed_state

_NAMESPACE = UUID("6c1d2b1e-9f0e-4f7c-9a53-0c9c5d9f7a11")
_LOAD, _OWNS = r"(?:\?|\S+(?: \S+)?)", r"(?:\?|[\d.]+%)"
_DATACENTER = re.compile(r"\s*Datacenter: (.*\S)\s*")
_HEADER = re.compile(r"Address\s+Rack\s+Status\s+State\s+Load\s+Owns\s+Token\s*")
_LAST = re.compile(r"\s+(-?\d{1,19})\s*", re.ASCII)
# Rack names are free text, and a long one reaches the next column.
_ROW = re.compile(rf"\s*(\S+)\s+(.*\S)\s*\b(Up|Down|\?)\s+(\S+)\s+{_LOAD}\s+{_OWNS}\s+(-?\d{{1,19}})\s*", re.ASCII)
_ENDS_IN_TOKEN = re.compile(r".*\S\s+-?\d{1,19}\s*", re.ASCII)
_RANGE = re.compile(
    r"TokenRange\(start_token:(-?\d{1,19}), end_token:(-?\d{1,19}), endpoints:\[([^\]]*)\].*?"
    r"endpoint_details:\[EndpointDetails\(host:(.+?), datacenter:(.+?), rack:(.+?)\)"
    r"(?=, EndpointDetails\(host:|\]\)?\s*$)",
    re.ASCII,
)
_STATUS_HEADER = re.compile(r"\s*--\s+Address\s+Load\s+Tokens\s+Owns.*\s+Host ID\s+Rack\s*")
_STATUS_ROW = re.compile(
    rf"\s*([UDX?])(\S)\s+(\S+)\s+{_LOAD}\s+(\d{{1,7}}|\?)\s+{_OWNS}\s+([0-9a-fA-F-]{{36}}|\?)\s+(.*\S)\s*", re.ASCII
)
_STATUS_LIKE = re.compile(r"\s*[A-Z?]{2}\s+\S.*", re.ASCII)
_STATE_LETTERS: Mapping[str, str] = {"N": "Normal", "L": "Leaving", "J": "Joining", "M": "Moving"}


@dataclass
class NodetoolRing:
    """The tokens of each address, with its datacenter and rack; `source` is the file.

    `replicas_only`: describering printed it, which does not show who owns a token.
    """

    source: str
    tokens: dict[str, set[int]] = field(default_factory=dict)
    racks: dict[str, tuple[str, str]] = field(default_factory=dict)
    replicas_only: bool = False

    def own(self, location: str, address: str, datacenter: str, rack: str, token: str) -> int:
        """Record that an address owns a token."""
        value = _parse_token(location, token)
        self.tokens.setdefault(address, set()).add(value)
        self.racks[address] = datacenter, rack
        return value


@dataclass(frozen=True)
class NodetoolNode:
    """A node as `nodetool status` prints it. `host_id` and `token_count` are None if it prints a question mark."""

    address: str
    host_id: UUID | None
    token_count: int | None
    datacenter: str
    rack: str


@dataclass(frozen=True)
class NodetoolStatus:
    """The members of a cluster in `nodetool status`, by address; `source` is the file."""

    source: str
    nodes: Mapping[str, NodetoolNode]

    def lists(self, node: Node) -> bool:
        """Return True if the node is printed, by its host ID or its address."""
        return node.address in self.nodes or any(node.host_id == printed.host_id for printed in self.nodes.values())

    def host_id(self, address: str) -> UUID | None:
        """Return the host ID of an address, or None if it is not printed."""
        node = self.nodes.get(address)
        return None if node is None else node.host_id


def is_nodetool_ring(text: str) -> bool:
    """Return True for output of `nodetool ring` or `nodetool describering`."""
    return _is_describering(text) or any(_HEADER.fullmatch(line) for line in text[:4096].splitlines())


def is_nodetool_status(text: str) -> bool:
    """Return True for output of `nodetool status`."""
    return any(_STATUS_HEADER.fullmatch(line) for line in text[:4096].splitlines())


def parse_nodetool_ring(source: str, text: str, issues: ImportIssues) -> NodetoolRing:
    """Return the printed ring.

    Raises:
        InputError: it is truncated, a line or a state is unknown; or a node joins or leaves, and `issues` refuses
            issues.
    """
    ring = _parse_describering(source, text) if _is_describering(text) else _parse_ring(source, text, issues)
    if not ring.tokens:
        raise InputError(f"{source} lists no token: {HALF_WRITTEN}; print it again")
    return ring


def parse_nodetool_status(source: str, text: str, issues: ImportIssues) -> NodetoolStatus:
    """Return the members that `nodetool status` prints.

    Raises:
        InputError: a line or a state is unknown, an address or a host ID is duplicated; or a node joins or leaves, and
            `issues` refuses issues.
    """
    nodes: dict[str, NodetoolNode] = {}
    datacenter = ""
    for number, line in enumerate(text.splitlines(), start=1):
        location = f"{source}, line {number}"
        head, row = _DATACENTER.fullmatch(line), _STATUS_ROW.fullmatch(line)
        if head:
            datacenter = head[1]
        elif row:
            _, state, address, tokens, host, rack = row.groups()
            membership = membership_from_printed_state(f"{location}: node {address}", _STATE_LETTERS.get(state, state))
            if not membership.at_rest:
                issues.report(
                    f"{location}: node {address} is {_STATE_LETTERS[state]}; print it when it is Normal or gone"
                )
            if not membership.in_ring:
                continue
            host_id = None if host == "?" else _parse_host_id(location, host)
            if address in nodes or (host_id and any(host_id == node.host_id for node in nodes.values())):
                raise InputError(f"{location}: node {address} ({host}) is printed twice")
            nodes[address] = NodetoolNode(address, host_id, None if tokens == "?" else int(tokens), datacenter, rack)
        elif _STATUS_LIKE.fullmatch(line) and not _STATUS_HEADER.fullmatch(line):
            raise InputError(f"{location}: {line.strip()[:80]!r} is no line of nodetool status that is known here")
    if not nodes:
        raise InputError(f"{source} lists no node: {HALF_WRITTEN}; print it again")
    return NodetoolStatus(source, nodes)


def nodes_from_ring(
    ring: NodetoolRing,
    known: Sequence[Node],
    shards: int | None,
    ignore_msb: int | None,
    status: NodetoolStatus | None = None,
) -> tuple[list[Node] | None, list[str]]:
    """Return the nodes of a printed ring, and warnings; `known` are those of the home.

    The nodes are None if the known ring stays as it is. A printed ring has no zero-token nodes: known ones stay, unless
    `status`, which has all members, is given too.

    Raises:
        InputError: the sharding of a node is unknown, the nodes form no ring, or `status` contradicts it.
    """
    if ring.replicas_only and any(node.tokens for node in known):
        return None, [*_replicas_only(ring), *_differences(ring, known)]
    by_host, by_address = {node.host_id: node for node in known}, {node.address: node for node in known if node.address}
    nodes, unnamed = [], []
    for address in sorted(ring.tokens):
        host_id = None if status is None else status.host_id(address)
        existing = by_address.get(address) if host_id is None else by_host.get(host_id)
        similar = existing or by_address.get(address)
        known_sharding = (shards, ignore_msb) if similar is None else (similar.shard_count, similar.ignore_msb)
        sharding = _sharding(ring.source, address, *known_sharding)
        datacenter, rack = ring.racks[address]
        if host_id is None:
            host_id = uuid5(_NAMESPACE, f"{datacenter} {address}") if existing is None else existing.host_id
            unnamed += [] if existing else [address]
        nodes.append(
            Node(
                host_id=host_id,
                tokens=tuple(sorted(ring.tokens[address])),
                shard_count=sharding[0],
                ignore_msb=sharding[1],
                address=address,
                datacenter=datacenter,
                rack=rack,
                features=() if existing is None else existing.features,
            )
        )
    nodes += [
        node
        for node in known
        if not node.tokens and node.address not in ring.tokens and (status is None or status.lists(node))
    ]
    if status is not None:
        _assert_same_counts(status, nodes)
    Ring.of(nodes)
    warnings = []
    if unnamed:
        warnings.append(
            f"{ring.source}: nodetool {'describering' if ring.replicas_only else 'ring'} prints no host IDs, and "
            f"{len(unnamed)} nodes are not known by their addresses, the first {unnamed[0]}: they have IDs that were "
            "made of their addresses; import nodetool status, system.topology or a ring snapshot for the true ones"
        )
    warnings += _replicas_only(ring) if ring.replicas_only else []
    return nodes, warnings


def apply_status(
    nodes: Sequence[Node], status: NodetoolStatus, shards: int | None, ignore_msb: int | None
) -> tuple[list[Node], list[str]]:
    """Return nodes updated from `nodetool status`, and warnings. It removes no node.

    A true host ID replaces one that was derived from an address; zero-token nodes are added; unknown addresses,
    datacenters and racks are filled in.

    Raises:
        InputError: another host has the address of a node, no node owns tokens, or the sharding of a zero-token node is
            unknown.
    """
    if not any(node.tokens for node in nodes):
        raise InputError(
            f"{status.source}: nodetool status prints no tokens, and no node here owns any; import "
            "nodetool ring with it"
        )
    by_host = {node.host_id: node for node in nodes}
    by_address = {node.address: node for node in nodes if node.address}
    by_id: dict[UUID, Node] = {node.host_id: node for node in nodes}
    warnings: list[str] = []
    for printed in status.nodes.values():
        existing = by_host.get(printed.host_id) if printed.host_id else by_address.get(printed.address)
        existing = existing or by_address.get(printed.address)
        if existing is None and printed.token_count == 0 and printed.host_id is not None:
            sharding = _sharding(status.source, printed.address, shards, ignore_msb)
            added = Node(
                host_id=printed.host_id,
                tokens=(),
                shard_count=sharding[0],
                ignore_msb=sharding[1],
                address=printed.address,
                datacenter=printed.datacenter,
                rack=printed.rack,
            )
            by_id[added.host_id] = added
        elif existing is None:
            warnings.append(
                f"{status.source}: node {printed.address} is not known here, and nodetool status does not print its "
                "tokens: it is left out; import nodetool ring with it"
            )
        else:
            del by_id[existing.host_id]
            updated = _with_printed_names(existing, printed, status.source)
            by_id[updated.host_id] = updated
            warnings += _other_tokens(existing, printed, status.source)
    missing = [node for node in nodes if not status.lists(node)]
    if missing:
        warnings.append(
            f"{status.source}: {len(missing)} known nodes are not in it, the first {missing[0].host_id}: they "
            "stay; import nodetool ring with it, or system.topology, if they have left"
        )
    return list(by_id.values()), warnings


def _with_printed_names(known: Node, printed: NodetoolNode, source: str) -> Node:
    host_id = known.host_id
    if printed.host_id is not None and printed.host_id != host_id:
        if host_id != uuid5(_NAMESPACE, f"{known.datacenter} {known.address}"):
            raise InputError(
                f"{source}: node {printed.address} is host {printed.host_id}, and here it is host {host_id}: another "
                "node has taken its address; import nodetool ring with it, or system.topology"
            )
        host_id = printed.host_id
    return replace(
        known,
        host_id=host_id,
        address=known.address or printed.address,
        datacenter=known.datacenter or printed.datacenter,
        rack=known.rack or printed.rack,
    )


def _other_tokens(known: Node, printed: NodetoolNode, source: str) -> list[str]:
    if printed.token_count in (None, len(known.tokens)):
        return []
    return [
        f"{source}: node {printed.address} has {printed.token_count} tokens, and {len(known.tokens)} are known here; "
        "import nodetool ring with it"
    ]


def _assert_same_counts(status: NodetoolStatus, nodes: Sequence[Node]) -> None:
    """Raise InputError if the token counts show that both were not printed at the same time."""
    owned = {node.address: len(node.tokens) for node in nodes}
    for printed in status.nodes.values():
        if printed.token_count not in (None, owned.get(printed.address, 0)):
            raise InputError(
                f"{status.source}: node {printed.address} has {printed.token_count} tokens, and nodetool ring lists "
                f"{owned.get(printed.address, 0)}; print both at one time"
            )


def _sharding(source: str, address: str, shards: int | None, ignore_msb: int | None) -> tuple[int, int]:
    if shards is None or ignore_msb is None:
        raise InputError(
            f"{source}: node {address} is not known, and nodetool does not say how it shards its tokens; say it with "
            "--shards 8 --ignore-msb 12"
        )
    return shards, ignore_msb


def _replicas_only(ring: NodetoolRing) -> list[str]:
    return [
        f"{ring.source}: nodetool describering lists the replicas of one keyspace, which are the owners of the ranges "
        "only if it is replicated in every datacenter; import nodetool ring or system.topology for the owners"
    ]


def _differences(ring: NodetoolRing, known: Sequence[Node]) -> list[str]:
    """Return the differences between a description of replicas and the known ring, which stays as it is."""
    owned = {token for node in known for token in node.tokens}
    printed = {token for tokens in ring.tokens.values() for token in tokens}
    strangers = sorted(ring.tokens.keys() - {node.address for node in known})
    differences = [f"the ring here stays as it is: {len(owned)} tokens of {len(known)} nodes"]
    if printed - owned:
        differences.append(
            f"{len(printed - owned)} ranges end at tokens that no node here has, the first {min(printed - owned)}"
        )
    if owned - printed:
        differences.append(
            f"{len(owned - printed)} tokens of nodes here end no range, the first {min(owned - printed)}"
        )
    if strangers and all(node.address for node in known):
        differences.append(f"{len(strangers)} addresses are of no node here, the first {strangers[0]}")
    return [f"{ring.source}: {'; '.join(differences)}"]


def _is_describering(text: str) -> bool:
    return "TokenRange(" in text[:4096]


def _parse_ring(source: str, text: str, issues: ImportIssues) -> NodetoolRing:
    """Parse `nodetool ring`: the token of each datacenter's last row is printed above its rows."""
    ring = NodetoolRing(source)
    datacenter, expected, last = "", None, None

    def end(number: int) -> None:
        if expected != last:
            raise InputError(
                f"{source}, line {number}: the rows of datacenter {datacenter} end with token {last} where they should "
                f"with {expected}: {HALF_WRITTEN}; print it again"
            )

    number = 0
    for number, line in enumerate(text.splitlines(), start=1):
        location = f"{source}, line {number}"
        head, row, alone = _DATACENTER.fullmatch(line), _ROW.fullmatch(line), _LAST.fullmatch(line)
        if head:
            end(number)
            datacenter, expected, last = head[1], None, None
        elif alone:
            expected = _parse_token(location, alone[1])
        elif row:
            address, rack, _, state, token = row.groups()
            last = int(token)
            membership = membership_from_printed_state(f"{location}: node {address}", state)
            if not membership.at_rest:
                issues.report(f"{location}: node {address} is {state}; print the ring when it is Normal or gone")
            if membership.in_ring:
                ring.own(location, address, datacenter, rack, token)
        elif _ENDS_IN_TOKEN.fullmatch(line):
            raise InputError(f"{location}: {line.strip()[:80]!r} is no line of nodetool ring that is known here")
    end(number)
    return ring


def _parse_describering(source: str, text: str) -> NodetoolRing:
    """Parse `nodetool describering`: the ranges, each with its first replica and that replica's location."""
    ring, starts, ends = NodetoolRing(source, replicas_only=True), set[int](), set[int]()
    for number, line in enumerate(text.splitlines(), start=1):
        location = f"{source}, line {number}"
        if "TokenRange(" not in line:
            continue
        row = _RANGE.search(line)
        if row is None:
            raise InputError(f"{location}: {line.strip()[:80]!r} is no range of nodetool describering: {HALF_WRITTEN}?")
        start, token, endpoints, host, datacenter, rack = row.groups()
        first = endpoints.split(",")[0].strip()
        if first != host:
            raise InputError(f"{location}: the first endpoint is {first}, and its details are of {host}")
        starts.add(int(start))
        ends.add(ring.own(location, first, datacenter, rack, token))
    if starts != ends:
        gap = min(starts ^ ends)
        raise InputError(f"{source}: the ranges do not close the ring, at token {gap}: {HALF_WRITTEN}; print it again")
    return ring


def _parse_host_id(location: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InputError(f"{location}: host ID {text!r} is no UUID") from None


def _parse_token(location: str, text: str) -> int:
    try:
        return parse_token(text)
    except InputError as error:
        raise InputError(f"{location}: {error}") from None
