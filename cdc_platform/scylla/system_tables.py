"""ScyllaDB's system tables about CDC, and which of them a cluster has and lets this role read.

There is no list of versions: each table is queried, and a server that lacks it answers with an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdc_platform.scylla.errors import NoTable, NotGranted
from cdc_platform.scylla.session import ScyllaSession

TOPOLOGY = "system.topology"
VERSIONS = "system.versions"
SCYLLA_LOCAL = "system.scylla_local"
LOCAL = "system.cdc_local"
DESCRIPTIONS_V3 = "system.cdc_generations_v3"
DESCRIPTIONS_V2 = "system_distributed_everywhere.cdc_generation_descriptions_v2"
DESCRIPTIONS_V1 = "system_distributed.cdc_generation_descriptions"
STREAMS_V1 = "system_distributed.cdc_streams_descriptions"
STREAMS_V2 = "system_distributed.cdc_streams_descriptions_v2"
TIMESTAMPS = "system_distributed.cdc_generation_timestamps"
TABLET_TIMESTAMPS = "system.cdc_timestamps"
TABLET_STREAMS = "system.cdc_streams"
SCYLLA_TABLES = "system_schema.scylla_tables"

# One cheap key for each table: a scan could be long, and some tables are virtual, computed as they are read.
_PROBES = {
    TOPOLOGY: ("key", "key = 'topology' LIMIT 1"),
    VERSIONS: ("key", "key = 'local'"),
    SCYLLA_LOCAL: ("key", "key = 'enabled_features'"),
    LOCAL: ("key", "key = 'cdc_local'"),
    DESCRIPTIONS_V3: ("id", "key = 'cdc_generations' LIMIT 1"),
    DESCRIPTIONS_V2: ("id", "id = 00000000-0000-0000-0000-000000000000 LIMIT 1"),
    DESCRIPTIONS_V1: ("time", "time = 0"),
    STREAMS_V1: ("time", "time = 0"),
    STREAMS_V2: ("time", "time = 0 LIMIT 1"),
    TIMESTAMPS: ("key", "key = 'timestamps' LIMIT 1"),
    TABLET_TIMESTAMPS: ("table_name", "keyspace_name = 'system' AND table_name = 'none'"),
    TABLET_STREAMS: ("table_name", "keyspace_name = 'system' AND table_name = 'none'"),
    SCYLLA_TABLES: ("table_name", "keyspace_name = 'system' LIMIT 1"),
}
NODE_LOCAL_TABLES = frozenset(
    {TOPOLOGY, VERSIONS, SCYLLA_LOCAL, LOCAL, DESCRIPTIONS_V3, TABLET_TIMESTAMPS, TABLET_STREAMS, SCYLLA_TABLES}
)


@dataclass(frozen=True)
class AvailableTables:
    """The tables that a cluster has. `refused` are existing tables that the role may not read, by name."""

    present: frozenset[str]
    refused: Mapping[str, NotGranted]

    def __contains__(self, table: str) -> bool:
        return table in self.present

    def assert_readable(self) -> None:
        """Raise if a table could not be read, because its content would look absent.

        Raises:
            NotGranted: a table may not be read.
        """
        for refusal in self.refused.values():
            raise refusal


def node_for_table(live: ScyllaSession, table: str) -> str | None:
    """Return the node to query for a node-local or Raft-managed table; None for any node, at the metadata's level."""
    return live.contact if table in NODE_LOCAL_TABLES else None


def detect_tables(live: ScyllaSession) -> AvailableTables:
    """Query every table, for one row at most.

    Raises:
        Unreachable, Refused: the cluster stopped answering.
    """
    present: set[str] = set()
    refused: dict[str, NotGranted] = {}
    for table, (column, key) in _PROBES.items():
        try:
            live.select(table, column, f"WHERE {key}", at=node_for_table(live, table))
            present.add(table)
        except NoTable:
            continue
        except NotGranted as refusal:
            refused[table] = refusal
    return AvailableTables(frozenset(present), refused)
