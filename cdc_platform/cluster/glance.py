"""A look at a cluster that costs a few small queries: whether anything of its metadata is other than it was.

It says that something changed and not what: then the whole is observed. What was seen last lies beside the home's
tables, so that the next process goes on from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cdc_platform import drafts
from cdc_platform.clock import ms_from_datetime
from cdc_platform.cluster import tables
from cdc_platform.cluster.known import Identity, KnownCluster
from cdc_platform.cluster.refusals import NoTable
from cdc_platform.cluster.session import LiveCluster, Row, one

_FILE = "glance"


@dataclass(frozen=True)
class Glance:
    """What was seen. `mark` is another one when nodes, generations, stream sets or the schema are.

    `changing` says what goes on in a topology that is changing, `down` the addresses of nodes that do not answer.
    """

    identity: Identity
    mark: str
    changing: str | None = None
    down: tuple[str, ...] = ()


def glance(live: LiveCluster) -> Glance:
    """Look at the cluster: at what a node says of itself, the topology, the generations and the tablets.

    Raises:
        NotGranted, Unreachable, Refused: a table could not be read.
    """
    local = one(live.select("system.local", "*", "WHERE key = 'local'", at=live.contact), "system.local")
    topology = _rows(live, tables.TOPOLOGY, "version, transition_state", "WHERE key = 'topology' LIMIT 1")
    peers = live.select("system.peers", "*", at=live.contact) if topology is None else []
    times = _rows(live, tables.TIMESTAMPS, "time", "WHERE key = 'timestamps'")
    if times is None:
        times = _rows(live, tables.STREAMS_V1, "time", "")
    sets = _rows(live, tables.TABLET_TIMESTAMPS, "keyspace_name, table_name, timestamp", "")
    hosts = tuple(sorted({member.host_id for member in live.members if member.host_id is not None}))
    seen = [
        (local["cluster_name"], local["schema_version"], sorted(local["tokens"] or ()), hosts),
        [(row["version"], row["transition_state"]) for row in topology or []],
        sorted((str(row["host_id"]), sorted(row["tokens"] or ())) for row in peers),
        sorted(ms_from_datetime(row["time"]) for row in times or []),
        sorted((row["keyspace_name"], row["table_name"], ms_from_datetime(row["timestamp"])) for row in sets or []),
    ]
    newest = max((ms_from_datetime(row["time"]) for row in times or []), default=None)
    identity = Identity(cluster_name=local["cluster_name"], host_ids=hosts, newest_ms=newest)
    changing = next((row["transition_state"] for row in topology or []), None)
    down = tuple(member.address for member in live.members if member.is_down)
    return Glance(identity, hashlib.sha256(repr(seen).encode()).hexdigest(), changing, down)


def last_mark(cluster: KnownCluster) -> str | None:
    """The mark of the last glance of which all was taken in; None before the first."""
    try:
        return Path(cluster.home, _FILE).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def remember(cluster: KnownCluster, seen: Glance) -> None:
    """Keep the mark: all that was seen at this glance was taken in."""
    drafts.write(cluster.home / _FILE, seen.mark)


def _rows(live: LiveCluster, table: str, columns: str, where: str) -> list[Row] | None:
    """The rows of a table that a version may lack; None where it does."""
    try:
        return live.select(table, columns, where, at=tables.node_of(live, table))
    except NoTable:
        return None
