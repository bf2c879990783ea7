"""The connections of this process by where they go: what a server counts are those of all processes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

_ESTABLISHED = "01"


def own_connections(port: int, nodes: int = 3) -> Counter[int]:
    """How many this process has to a port of each node: of 127.0.0.1, which is node 0, of 127.0.0.2, ..."""
    mine: set[str] = set()
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the list itself is closed by now
            mine.add(str(opened.readlink()))
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
