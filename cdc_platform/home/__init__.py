"""The hub for Python users: `open_home(path)` returns a `Home`, whose methods answer what the commands print.

Commands parse options, call a method and render its result. Results are frozen dataclasses with typed fields.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "checking": ("CheckReport",),
        "colocation": (
            "ColocationReport",
            "NodeShares",
            "ShardShares",
        ),
        "generations": (
            "DescribedSize",
            "GenerationDiff",
            "GenerationStreams",
            "GenerationSummary",
        ),
        "maintenance": (
            "list_lakes",
            "maintain_tables",
            "preview_tables",
            "trim_log_files",
        ),
        "home": (
            "Home",
            "open_home",
        ),
        "names": ("parse_generation_name",),
    },
)
