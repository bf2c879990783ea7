"""The status of a home, and the auditor's page of a generation.

Status reads small tables and Delta's log, never a stream, and writes nothing. A page is rendered from a record of
plain values alone, so it can be rendered again and compared. A seal covers its bytes.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "page": ("make_page",),
        "record": (
            "ReportSource",
            "commit_facts",
            "find_generations_between",
            "read_generation_writes",
            "write_sort_key",
        ),
        "seal": (
            "read_private_key",
            "read_public_key",
        ),
        "status": (
            "HomeStatus",
            "STATUS_CODES",
            "join_progress_facts",
            "read_home_status",
        ),
        "verify": ("verify_page",),
    },
)
