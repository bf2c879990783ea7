"""The connections of this process by where they go: what a server counts are those of all processes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

from support.processes.below import below

_ESTABLISHED = "01"


def own_connections(port: int, nodes: int = 3, process: int | str = "self") -> Counter[int]:
    """How many this process has, or another, to a port of each node: of 127.0.0.1, node 0, of 127.0.0.2, ..."""
    mine: set[str] = set()
    with suppress(OSError):  # it has ended
        mine = _opened(Path(f"/proc/{process}/fd"))
    # An address is as the machine has it in memory, its last byte first.
    places = {f"{0x7F000001 + node:08X}": node for node in range(nodes)}
    found: Counter[int] = Counter()
    for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        address, _, of = fields[2].partition(":")
        node = places.get(bytes.fromhex(address)[::-1].hex().upper())
        if node is not None and int(of, 16) == port and fields[3] == _ESTABLISHED and f"socket:[{fields[9]}]" in mine:
            found[node] += 1
    return found


def connections_below(top: int, port: int, nodes: int = 3) -> Counter[int]:
    """How many each process below another has to all nodes, as the workers below a JVM, by its number."""
    return Counter({process: own_connections(port, nodes, process).total() for process in below(top)})


def _opened(folder: Path) -> set[str]:
    """What the file descriptors of a process are of."""
    found: set[str] = set()
    for opened in folder.iterdir():
        with suppress(OSError):  # that of the list itself is closed by now
            found.add(str(opened.readlink()))
    return found
