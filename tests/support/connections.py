"""Connections of one process by their target; a server's own counts include those of all processes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

from support.processes.below import below

_ESTABLISHED = "01"


def own_connections(port: int, nodes: int = 3, process: int | str = "self") -> Counter[int]:
    """Count the connections of a process to a port of each node: node 0 is 127.0.0.1, node 1 127.0.0.2, ..."""
    sockets: set[str] = set()
    with suppress(OSError):  # the process has ended
        sockets = _opened(Path(f"/proc/{process}/fd"))
    # The kernel shows an address as it lies in memory, last byte first.
    places = {f"{0x7F000001 + node:08X}": node for node in range(nodes)}
    counts: Counter[int] = Counter()
    for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        address, _, of = fields[2].partition(":")
        node = places.get(bytes.fromhex(address)[::-1].hex().upper())
        if (
            node is not None
            and int(of, 16) == port
            and fields[3] == _ESTABLISHED
            and f"socket:[{fields[9]}]" in sockets
        ):
            counts[node] += 1
    return counts


def connections_below(top: int, port: int, nodes: int = 3) -> Counter[int]:
    """Count the connections to all nodes of each process below another one, by process ID."""
    return Counter({process: own_connections(port, nodes, process).total() for process in below(top)})


def _opened(folder: Path) -> set[str]:
    """Return the link targets of a process's file descriptors."""
    targets: set[str] = set()
    for opened in folder.iterdir():
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            targets.add(str(opened.readlink()))
    return targets
