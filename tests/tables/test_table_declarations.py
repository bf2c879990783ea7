"""The table declarations are complete, and every Delta reader can open the created tables."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from cdc_platform.delta import Lake
from cdc_platform.tables import ALLOWED_FEATURES, TABLES, TIMESTAMP, Table

ALL = pytest.mark.parametrize("table", TABLES.values(), ids=str)

# The features of protocol (1, 3), which all readers and writers have; nothing newer is needed.
READER, WRITER = 1, 3


def test_the_table_names_are_fixed() -> None:
    """Users rely on the names: none is removed or changed unnoticed."""
    assert sorted(TABLES) == [
        "platform.bootstrap_events",
        "platform.cdc_table_changes",
        "platform.cdc_tables",
        "platform.cluster_changes",
        "platform.committed_generations",
        "platform.consumed_hours",
        "platform.consumers",
        "platform.expiry_marks",
        "platform.generation_switches",
        "platform.generations",
        "platform.judgements",
        "platform.kept_scripts",
        "platform.left_out",
        "platform.log_gaps",
        "platform.nodes",
        "platform.only_observed",
        "platform.passed_over",
        "platform.removed_generations",
        "platform.stream_fingerprints",
        "platform.switch_promises",
        "platform.table_checks",
        "platform.tablet_layouts",
        "platform.topology_descriptions",
        "platform.unordered_ranges",
        "platform.verdict_counts",
        "platform.verdicts",
        "system.cdc_local",
        "system.cdc_streams",
        "system.cdc_timestamps",
        "system_distributed.cdc_generation_descriptions",
        "system_distributed.cdc_generation_timestamps",
        "system_distributed.cdc_streams_descriptions",
        "system_distributed.cdc_streams_descriptions_v2",
        "system_distributed_everywhere.cdc_generation_descriptions_v2",
    ]


@ALL
def test_every_column_is_described_and_keys_are_never_null(table: Table) -> None:
    """Every table and column has a comment, and no key column is nullable."""
    assert table.comment
    for column in table.schema:
        assert (column.metadata or {}).get(b"comment"), column.name
        assert not (column.name in table.keys and column.nullable), column.name


@ALL
def test_a_created_table_matches_its_declaration(table: Table, lake: Lake) -> None:
    """Delta's metadata has the columns, nullability, comments, partitions and constraints."""
    lake.ensure(table)
    created = DeltaTable(lake.path(table))
    metadata = created.metadata()
    fields = {field.name: field for field in created.schema().fields}
    assert list(fields) == table.schema.names
    for column in table.schema:
        assert fields[column.name].nullable == column.nullable
        assert fields[column.name].metadata["comment"] == (column.metadata or {})[b"comment"].decode()
    assert tuple(metadata.partition_columns) == table.partition_by
    assert metadata.description == table.comment
    constraints = {name for name in metadata.configuration if name.startswith("delta.constraints.")}
    assert constraints == {f"delta.constraints.{name}" for name in table.constraints}


@ALL
def test_a_created_table_needs_no_newer_delta_reader(table: Table, lake: Lake) -> None:
    """A created table uses no deletion vectors, column mapping or other features that some readers lack."""
    lake.ensure(table)
    created = DeltaTable(lake.path(table))
    protocol = created.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) <= (READER, WRITER)
    assert not protocol.reader_features
    assert set(protocol.writer_features or ()) <= ALLOWED_FEATURES
    configuration = created.metadata().configuration
    assert configuration["delta.enableDeletionVectors"] == "false"
    assert "delta.columnMapping.mode" not in configuration


def test_times_are_utc_with_microseconds() -> None:
    """Every time column of every table has one type."""
    columns = [column.type for table in TABLES.values() for column in table.schema]
    kinds = {getattr(kind, "value_type", kind) for kind in columns if "timestamp" in str(kind)}
    assert kinds == {TIMESTAMP}


def test_a_key_must_be_a_column() -> None:
    """An impossible declaration is refused at once."""
    table = next(iter(TABLES.values()))
    with pytest.raises(ValueError, match="nobody"):
        Table("platform", "wrong", table.schema, keys=("nobody",), comment="wrong")
