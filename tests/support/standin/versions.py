"""The tables of each version of ScyllaDB that concern CDC."""

from __future__ import annotations

from dataclasses import dataclass

_ALWAYS = frozenset(
    {
        "system.local",
        "system.peers",
        "system.versions",
        "system.scylla_local",
        "system_schema.keyspaces",
        "system_schema.tables",
        "system_schema.columns",
        "system_schema.types",
        *(f"system_schema.{name}" for name in ("aggregates", "functions", "indexes", "triggers", "views")),
        "system_schema.dropped_columns",
        "system_schema.scylla_tables",
    }
)
_FIRST_FORMAT = frozenset(
    {
        "system_distributed.cdc_streams_descriptions",
        "system_distributed.cdc_generation_descriptions",
        "system.cdc_local",
    }
)
_PUBLISHED = frozenset(
    {"system_distributed.cdc_generation_timestamps", "system_distributed.cdc_streams_descriptions_v2"}
)
_INTERNAL_V2 = frozenset({"system_distributed_everywhere.cdc_generation_descriptions_v2"})
_RAFT = frozenset({"system.topology", "system.cdc_generations_v3", "system_schema.scylla_keyspaces"})
_TABLETS = frozenset({"system.cdc_timestamps", "system.cdc_streams"})


@dataclass(frozen=True)
class Version:
    """A version's name and its tables."""

    name: str
    tables: frozenset[str]
    is_scylla: bool = True
    tells_elements: bool = False
    """Whether it reports when an element with a given key was written."""

    def has(self, keyspace: str, table: str) -> bool:
        """Return True if it has this table."""
        return f"{keyspace}.{table}" in self.tables


VERSIONS = {
    version.name: version
    for version in (
        Version("4.2", _ALWAYS),
        Version("4.3", _ALWAYS | _FIRST_FORMAT),
        Version("4.4", _ALWAYS | _FIRST_FORMAT | _PUBLISHED),
        Version("5.2", _ALWAYS | _PUBLISHED | _INTERNAL_V2 | {"system.cdc_local"}),
        # An upgraded cluster retains the tables of the first format.
        Version("5.4", _ALWAYS | _FIRST_FORMAT | _PUBLISHED | _INTERNAL_V2 | _RAFT),
        Version("6.2", _ALWAYS | _PUBLISHED | _INTERNAL_V2 | _RAFT | {"system.cdc_local"}),
        Version("2025.4", _ALWAYS | _PUBLISHED | _INTERNAL_V2 | _RAFT | _TABLETS | {"system.cdc_local"}),
        Version(
            "2026.2", _ALWAYS | _PUBLISHED | _INTERNAL_V2 | _RAFT | _TABLETS | {"system.cdc_local"}, tells_elements=True
        ),
        Version("2026.3", _ALWAYS | _PUBLISHED | _RAFT | _TABLETS | {"system.cdc_local"}, tells_elements=True),
        Version("Cassandra", _ALWAYS - {"system.scylla_local", "system_schema.scylla_tables"}, is_scylla=False),
    )
}
NEWEST = VERSIONS["2026.3"]
