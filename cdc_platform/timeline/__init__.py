"""Which generations exist and in which state (`Timeline`), and which stream a write gets (`StreamSource`).

Commands, steps, readers and audits all use this package. It reads the metadata tables and writes nothing. Only
`StreamSources` knows whether a table's streams are those of the generations or of its tablets.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "explain": ("VnodeExplanation",),
        "generation_names": (
            "GenerationDigests",
            "GenerationKeys",
            "GenerationNames",
            "GenerationRows",
            "get_generation_names",
            "is_generation_name",
            "list_generation_names",
            "read_generation_digest",
            "resolve_generation",
        ),
        "sizes": (
            "read_generation_sizes",
            "read_node_counts",
        ),
        "sources": ("StreamSources",),
        "streams": (
            "KnownStreams",
            "StreamFinder",
            "StreamPeriod",
            "StreamSource",
            "WriteExplanation",
        ),
        "timeline": (
            "Generation",
            "GenerationState",
            "Timeline",
        ),
    },
)
