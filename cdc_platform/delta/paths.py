"""Where the files of a table are: its folder, its log, its drafts, and the paths that Delta's log names."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from cdc_platform.home_location import local_state_folder
from cdc_platform.storage import StoragePath

LOG_FOLDER = "_delta_log"
"""The folder of a table's commits, next to its data files."""


class ForeignPath(ValueError):
    """Delta's log names a file outside its table's folder."""


def decode_path(written: str) -> str:
    """Decode a path below the table from Delta's log, which quotes it like a URL.

    The log quotes the path in addition to the quoting in the names of partition folders.

    Raises:
        ForeignPath: the path is absolute, an address, or leads out of the folder. Delta allows such a file in a log;
            the platform never writes one, and never reads, copies or removes files outside its tables.
    """
    return _decode_unusual_path(written) if _UNUSUAL_PATH.search(written) else written


_UNUSUAL_PATH = re.compile(r"[%:\\\0]|\.\.|^/|^$")
"""Characters of quoted paths and of paths that lead elsewhere: one search rules out nearly all others."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@lru_cache(maxsize=1 << 13)
def _decode_unusual_path(written: str) -> str:
    """Decode a quoted path; cached, since each commit of an old home decodes thousands."""
    plain = unquote(written)
    if _ADDRESS.match(written) or plain[:1] in ("", "/") or "\0" in plain or ".." in plain.split("/"):
        raise ForeignPath(f"Delta's log names a file that is not in the table's folder: {written!r}")
    return plain


@lru_cache(maxsize=256)
def get_table_folder(lake: StoragePath, keyspace: str, name: str) -> str:
    """Return the folder of a table of a lake: its path, or its address in a store. Cached: every access needs it."""
    return str(lake / f"{keyspace}/{name}")


def get_draft_folder(table: StoragePath) -> Path:
    """Return the folder for drafts of a table: next to it or, for a store, in this machine's local state.

    Return the folder of `get_writable_folder` if the local state folder cannot be made.
    """
    if table.local_path is not None:
        return table.local_path.parent
    folder = local_state_folder(table.folder.folder.folder)
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return get_writable_folder(folder)


def get_writable_folder(folder: Path) -> Path:
    """Return a folder, or the temporary folder if this process (on a worker, for example) cannot write there."""
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
