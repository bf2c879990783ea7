"""Files and folders on local file systems and in object stores, atomic writes, leases and input limits.

The package knows files by name and no tables. A folder in a store exists as soon as an object lies in it.
"""

from __future__ import annotations

from cdc_platform.exports import lazy_exports

__getattr__ = lazy_exports(
    __name__,
    {
        "cache": (
            "SmallFileCache",
            "bypass_fetch_cache",
            "cache_fetches",
        ),
        "context": (
            "map_in_threads",
            "set_for_block",
        ),
        "leases": (
            "StoreLock",
            "hold_store_lock",
        ),
        "listing": ("ListingCache",),
        "locks": (
            "FileLock",
            "Lock",
            "is_file_locked",
        ),
        "object_store": (
            "ObjectStorePath",
            "clean_message",
            "get_storage_options",
        ),
        "path": (
            "FileStat",
            "StoragePath",
        ),
        "resolve": (
            "format_uri",
            "is_store_address",
            "parse_path",
            "parse_root",
        ),
        "user_files": (
            "DEFAULT_MAX_BYTES",
            "STANDARD_INPUT",
            "read_standard_input",
            "read_user_bytes",
            "read_user_text",
            "too_large_error",
        ),
    },
)
