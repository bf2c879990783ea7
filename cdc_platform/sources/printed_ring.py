"""What `nodetool ring` and `nodetool describering` print: which address owns which tokens.

They know neither host IDs nor shards: both come from the nodes that are known by their addresses, or from who imports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from cdc_platform.errors import InputError
from cdc_platform.ring import Node, Ring
from cdc_platform.sources.cqlsh_values import HALF, read_range_end
from cdc_platform.sources.flaws import Flaws

_NAMESPACE = UUID("6c1d2b1e-9f0e-4f7c-9a53-0c9c5d9f7a11")
_DATACENTER = re.compile(r"Datacenter: (\S+)")
_HEADER = re.compile(r"Address\s+Rack\s+Status\s+State\s+Load\s+Owns\s+Token\s*")
_LAST = re.compile(r"\s+(-?\d{1,19})\s*", re.ASCII)
_ROW = re.compile(
    r"(\S+)\s+(\S+)\s+(Up|Down|\?)\s+(\w+)\s+(?:\?|\S+(?: \S+)?)\s+(?:\?|[\d.]+%)\s+(-?\d{1,19})\s*",
    re.ASCII,
)
_RANGE = re.compile(
    r"TokenRange\(start_token:(-?\d{1,19}), end_token:(-?\d{1,19}), endpoints:\[([^\]]*)\][^\[]*\[[^\]]*\]"
    r"[^\[]*\[EndpointDetails\(host:([^,)]+), datacenter:([^,)]+), rack:([^,)]+)\)",
    re.ASCII,
)


@dataclass
class PrintedRing:
    """The tokens of each address, with its datacenter and rack; `source` is the file."""

    source: str
    tokens: dict[str, set[int]] = field(default_factory=dict)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)

    def own(self, place: str, address: str, datacenter: str, rack: str, token: str) -> int:
        """Say that an address owns a token."""
        value = read_range_end(place, token)
        self.tokens.setdefault(address, set()).add(value)
        self.places[address] = datacenter, rack
        return value


def is_printed_ring(text: str) -> bool:
    """Whether a text is one of the two."""
    return _is_described(text) or any(_HEADER.fullmatch(line) for line in text[:4096].splitlines())


def parse_printed_ring(source: str, text: str, flaws: Flaws) -> PrintedRing:
    """The ring that is printed.

    Raises:
        InputError: it is cut, or is no such text; or a node joins or leaves, and `flaws` are refused.
    """
    found = _described(source, text) if _is_described(text) else _listed(source, text, flaws)
    if not found.tokens:
        raise InputError(f"{source} lists no token: {HALF}; print it again")
    return found


def nodes_of(
    ring: PrintedRing, known: Sequence[Node], shards: int | None, ignore_msb: int | None
) -> tuple[list[Node], list[str]]:
    """The nodes of a printed ring, and what a person should know; `known` are those of the home.

    Raises:
        InputError: nobody says how a node shards its tokens, or the nodes make no ring.
    """
    by_address = {node.address: node for node in known}
    nodes, made_up = [], []
    for address in sorted(ring.tokens):
        there = by_address.get(address)
        sharding = (shards, ignore_msb) if there is None else (there.shard_count, there.ignore_msb)
        if None in sharding:
            raise InputError(
                f"{ring.source}: node {address} is not known, and nodetool does not say how it shards its tokens; say "
                "it with --shards 8 --ignore-msb 12"
            )
        datacenter, rack = ring.places[address]
        host = uuid5(_NAMESPACE, f"{datacenter} {address}") if there is None else there.host_id
        made_up += [] if there else [address]
        features = () if there is None else there.features
        nodes.append(
            Node(
                host_id=host,
                tokens=tuple(sorted(ring.tokens[address])),
                shard_count=sharding[0] or 0,
                ignore_msb=sharding[1] or 0,
                address=address,
                datacenter=datacenter,
                rack=rack,
                features=features,
            )
        )
    Ring.of(nodes)
    warnings = []
    if made_up:
        warnings.append(
            f"{ring.source}: nodetool prints no host IDs, and {len(made_up)} nodes are not known by their addresses, "
            f"the first {made_up[0]}: they have IDs that were made of their addresses; import system.topology or a "
            "ring snapshot for the true ones"
        )
    return nodes, warnings


def _is_described(text: str) -> bool:
    return "TokenRange(" in text[:4096]


def _listed(source: str, text: str, flaws: Flaws) -> PrintedRing:
    """By `nodetool ring`: above the rows of each datacenter is the token of its last one."""
    found = PrintedRing(source)
    datacenter, due, last = "", None, None

    def end(number: int) -> None:
        if due != last:
            raise InputError(
                f"{source}, line {number}: the rows of datacenter {datacenter} end with token {last} where they should "
                f"with {due}: {HALF}; print it again"
            )

    number = 0
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{source}, line {number}"
        head, row, alone = _DATACENTER.match(line), _ROW.fullmatch(line), _LAST.fullmatch(line)
        if head:
            end(number)
            datacenter, due, last = head[1], None, None
        elif alone:
            due = read_range_end(place, alone[1])
        elif row:
            address, rack, _, state, token = row.groups()
            last = int(token)
            if state != "Normal":
                flaws.tell(f"{place}: node {address} is {state}; print the ring when it is Normal or gone")
                continue
            found.own(place, address, datacenter, rack, token)
    end(number)
    return found


def _described(source: str, text: str) -> PrintedRing:
    """By `nodetool describering`: the first endpoint of a range owns the token that it ends with."""
    found, starts, ends = PrintedRing(source), set[int](), set[int]()
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{source}, line {number}"
        if "TokenRange(" not in line:
            continue
        row = _RANGE.search(line)
        if row is None:
            raise InputError(f"{place}: {line.strip()[:80]!r} is no range of nodetool describering: {HALF}?")
        start, token, endpoints, host, datacenter, rack = row.groups()
        first = endpoints.split(",")[0].strip()
        if first != host:
            raise InputError(f"{place}: the first endpoint is {first}, and its details are of {host}")
        starts.add(int(start))
        ends.add(found.own(place, first, datacenter, rack, token))
    if starts != ends:
        gap = min(starts ^ ends)
        raise InputError(f"{source}: the ranges do not close the ring, at token {gap}: {HALF}; print it again")
    return found
