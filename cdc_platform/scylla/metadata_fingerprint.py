"""Detect with a few small queries whether any metadata of a cluster has changed.

A change triggers a full observation. The last fingerprint lies beside the home's tables, so that the next process
continues from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cdc_platform.clock import Milliseconds, ms_from_datetime
from cdc_platform.ring import is_ring_changing
from cdc_platform.scylla import system_tables
from cdc_platform.scylla.errors import NoTable, Unreachable
from cdc_platform.scylla.registry import ClusterIdentity, ScyllaCluster
from cdc_platform.scylla.session import CqlRow, ScyllaSession, require_row
from cdc_platform.scylla.topology import committed_generations
from cdc_platform.storage import atomic

_FILE = "glance"
TableKey = tuple[str, str]
"""Keyspace and name of a table."""


@dataclass(frozen=True)
class MetadataSnapshot:
    """A snapshot of a cluster's metadata. `mark` differs if nodes, generations, stream sets or the schema differ.

    `times_ms` are the listed generations, `sets` the stream sets of each table. `changing` describes a topology change
    in progress; `down` are the addresses of nodes that do not answer.
    """

    identity: ClusterIdentity
    mark: str
    times_ms: tuple[Milliseconds, ...] = ()
    sets: Mapping[TableKey, tuple[Milliseconds, ...]] = field(default_factory=dict)
    changing: str | None = None
    down: tuple[str, ...] = ()


def take_metadata_snapshot(live: ScyllaSession) -> MetadataSnapshot:
    """Take a snapshot of the contact's local row, the topology, the generations and the tablets.

    Raises:
        NotGranted, Unreachable, Refused: a table could not be read.
        InputError: the topology's transition state is unknown.
    """
    local = require_row(live.select("system.local", "*", "WHERE key = 'local'", at=live.contact), "system.local")
    topology = _select_if_present(live, system_tables.TOPOLOGY, "*", "WHERE key = 'topology' LIMIT 1")
    peers = live.select("system.peers", "*", at=live.contact) if topology is None else []
    times = _select_if_present(live, system_tables.TIMESTAMPS, "time", "WHERE key = 'timestamps'")
    if times is None:
        times = _select_if_present(live, system_tables.STREAMS_V1, "time", "")
    sets = _select_if_present(live, system_tables.TABLET_TIMESTAMPS, "keyspace_name, table_name, timestamp", "")
    hosts = tuple(sorted({member.host_id for member in live.members if member.host_id is not None}))
    listed = tuple(sorted(ms_from_datetime(row["time"]) for row in times or []))
    sets_by_table: dict[TableKey, tuple[Milliseconds, ...]] = {}
    for row in sets or []:
        name = row["keyspace_name"], row["table_name"]
        sets_by_table[name] = (*sets_by_table.get(name, ()), ms_from_datetime(row["timestamp"]))
    facts = [
        (local["cluster_name"], local["schema_version"], sorted(local["tokens"] or ()), hosts),
        [(row["version"], row["transition_state"]) for row in topology or []],
        sorted((str(row["host_id"]), sorted(row["tokens"] or ())) for row in peers),
        list(listed),
        sorted((*name, time_ms) for name, times_ms in sets_by_table.items() for time_ms in times_ms),
        # Nodes use a generation before it is published.
        _committed_generations(live, topology or []),
    ]
    identity = ClusterIdentity(cluster_name=local["cluster_name"], host_ids=hosts, newest_ms=max(listed, default=None))
    transition = next((row["transition_state"] for row in topology or []), None)
    changing = transition if is_ring_changing(f"{live.name}: system.topology", transition) else None
    down = tuple(member.address for member in live.members if member.is_down)
    mark = hashlib.sha256(repr(facts).encode()).hexdigest()
    return MetadataSnapshot(identity, mark, listed, sets_by_table, changing, down)


def _committed_generations(live: ScyllaSession, topology: Sequence[CqlRow]) -> list[str]:
    """Return the generations that nodes know, published or not: from the topology, else from each node."""
    committed = {str(generation) for row in topology for generation in committed_generations(row)}
    for member in () if committed else live.members:
        if member.is_down:
            continue
        try:
            rows = live.select(system_tables.LOCAL, "*", "WHERE key = 'cdc_local'", at=member.address)
        except NoTable:
            break
        except Unreachable:
            continue
        committed |= {f"{row['streams_timestamp']} {row.get('uuid')}" for row in rows}
    return sorted(committed)


def read_last_fingerprint(cluster: ScyllaCluster) -> str | None:
    """Return the fingerprint of the last snapshot that was imported completely; None before the first."""
    try:
        return Path(cluster.home, _FILE).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None


def store_fingerprint(cluster: ScyllaCluster, seen: MetadataSnapshot) -> None:
    """Store a snapshot's fingerprint, once everything in the snapshot was imported."""
    atomic.write_text_atomically(cluster.home / _FILE, seen.mark)


def _select_if_present(live: ScyllaSession, table: str, columns: str, where: str) -> list[CqlRow] | None:
    """Return the rows of a table; None if this version of the server lacks it."""
    try:
        return live.select(table, columns, where, at=system_tables.node_for_table(live, table))
    except NoTable:
        return None
