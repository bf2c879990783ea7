"""Import ring snapshots, cqlsh exports and other files into the lake, and export the lake as such files.

Parsing is pure; only `run` and `restore` write.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "export": (
            "CsvTable",
            "LOAD_SCRIPT_FILE",
            "export_files",
            "partition_filters",
        ),
        "formats.cql_values": ("parse_generation_time",),
        "formats.exported_tables": ("LOCAL_KEYS",),
        "formats.exports": (
            "CdcLocalRow",
            "ClusterExports",
            "TopologyExport",
            "V1Exports",
            "V1Generation",
        ),
        "formats.json_inputs": (
            "AddNodes",
            "RehearsalFileStep",
            "RemoveNode",
            "RepairStreams",
            "ReshardNode",
            "WaitSeconds",
            "parse_join_request",
            "parse_rehearsal",
            "parse_tablet_ends",
            "read_join_request",
            "read_rehearsal",
            "read_tablet_ends",
        ),
        "formats.ring_snapshot": (
            "joins_between_snapshots",
            "parse_ring_snapshot",
            "read_ring_snapshot",
            "snapshot_from_node",
        ),
        "formats.strict_json": ("get_memory_bytes",),
        "formats.tablet_sets": (
            "TableName",
            "TabletExports",
            "build_stream_sets",
        ),
        "formats.text_tables": ("strip_session",),
        "import_issues": ("ImportIssues",),
        "range_rows": (
            "RangeRows",
            "described_range_rows",
            "published_range_rows",
        ),
        "restore": ("restore_rows",),
        "run": (
            "ImportReport",
            "ImportedGeneration",
            "import_sources",
        ),
        "sources": (
            "ImportSources",
            "read_import_sources",
        ),
    },
)
