"""The stored tables of a lake, their newest versions, and the rows that were added between two versions.

The module uses file names and log entries alone, and so covers tables without a declaration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa

from cdc_platform.cql import split_full_name
from cdc_platform.delta import files
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import open_table
from cdc_platform.delta.paths import LOG_FOLDER, ForeignPath, decode_path
from cdc_platform.delta.transaction_log import get_entry_path, version_from_name
from cdc_platform.storage import StoragePath, parse_path
from cdc_platform.tables import Table

_STATE_TABLE = re.compile(r"\..*_scylla_cdc_log\.state")

_INTERNAL_TABLE = re.compile(r"\..*\.(state|cells)")


def read_newest_versions(lake: Lake) -> dict[str, int]:
    """Return the newest version of each table by `keyspace.name`.

    No log is read, only file names; a folder without a log is no table.

    Raises:
        OSError: a folder cannot be read.
    """
    return {
        name: newest
        for name, folder in iter_table_folders(lake.location)
        if (newest := _find_newest_version(parse_path(folder))) is not None
    }


def list_stored_tables(lake: Lake) -> list[tuple[str, str]]:
    """List (keyspace, name) of every table that has a log in the lake, declared or not, by name."""
    return [
        (folder.folder.name, folder.name)
        for folder in _iter_folders(lake.location)
        if (folder / LOG_FOLDER).is_folder()
    ]


def list_internal_tables(lake: Lake) -> list[tuple[str, str]]:
    """List (keyspace, name) of the tables that no other list includes: states of logs, and cells of replicas."""
    return [
        (keyspace.name, folder.name)
        for keyspace in lake.location.folders()
        for folder in keyspace.folders()
        if _INTERNAL_TABLE.fullmatch(folder.name) and (folder / LOG_FOLDER).is_folder()
    ]


def iter_table_folders(root: StoragePath) -> Iterator[tuple[str, str]]:
    """Yield the names and folders of a lake's tables and of folders like them, ordered by name."""
    return ((f"{folder.folder.name}.{folder.name}", str(folder)) for folder in _iter_folders(root))


def iter_state_folders(root: StoragePath) -> Iterator[tuple[str, str]]:
    """Yield names and folders of the state tables next to a lake's logs, which no list of tables includes."""
    states = (
        folder for keyspace in root.folders() for folder in keyspace.folders() if _STATE_TABLE.fullmatch(folder.name)
    )
    return ((f"{folder.folder.name}.{folder.name}", str(folder)) for folder in states)


def is_state_table(name: str) -> bool:
    """Return True if a table of this name (`keyspace.name`) is the state next to a log."""
    return _STATE_TABLE.fullmatch(split_full_name(name)[1]) is not None


def _iter_folders(root: StoragePath) -> Iterator[StoragePath]:
    for keyspace in root.folders():
        yield from (folder for folder in keyspace.folders() if folder.name[0] != ".")


def _find_newest_version(folder: StoragePath) -> int | None:
    versions = map(version_from_name, (folder / LOG_FOLDER).names())
    return max((version for version in versions if version is not None), default=None)


def read_changes_since(lake: Lake, table: Table, after: int, upto: int) -> list[pa.Table] | None:
    """Return the rows added after version `after` up to `upto`, one table per file, in the columns of each file.

    Return None if that is unknown: rows or columns were removed meanwhile, or the log no longer has a commit.
    """
    paths = list_files_added_since(lake, table, after, upto)
    if paths is None:
        return None
    types = lake.stored_schema(table)
    try:
        return [read_stored_file(path, types) for path in paths]
    except FileNotFoundError:
        return None


def list_files_added_since(lake: Lake, table: Table, after: int, upto: int) -> list[str] | None:
    """List the files of the rows that `read_changes_since` returns, without opening them; None in the same cases."""
    folder = lake.path(table)
    paths: list[str] = []
    with translate_errors(f"reading what was appended to {table.full_name}"):
        for version in range(after + 1, upto + 1):
            try:
                lines = get_entry_path(folder, version).read().decode().splitlines()
            except FileNotFoundError:
                return None
            for action in (json.loads(line) for line in lines if line.strip()):
                if "protocol" in action or action.get("remove", {}).get("dataChange", False):
                    return None
                added = action.get("add")
                if added is not None and added.get("dataChange", True):
                    try:
                        paths.append(str(parse_path(folder) / decode_path(added["path"])))
                    except ForeignPath:  # reading the whole table decides whether it has these rows
                        return None
    return paths


def list_files_at_version(lake: Lake, table: Table, version: int) -> list[str]:
    """List the files of a version of a table."""
    folder = lake.path(table)
    with translate_errors(f"opening version {version} of {table.full_name}"):
        return files.list_paths(open_table(folder, version))


def count_file_rows(path: str) -> int:
    """Return the number of a file's rows; raise FileNotFoundError if the file is gone."""
    with translate_errors(f"opening {path}"), files.open_parquet(parse_path(path)) as parquet:
        return parquet.metadata.num_rows


def read_stored_file(path: str, types: pa.Schema) -> pa.Table:
    """Return the rows of a file, in its columns, with the table's types: engines write one type in several ways.

    Raises:
        FileNotFoundError: the file is gone.
    """
    with translate_errors(f"reading {path}"), files.open_parquet(parse_path(path)) as parquet:
        rows = parquet.read()
    known = set(types.names)
    names = rows.schema.names
    return pa.table([rows[name].cast(types.field(name).type) if name in known else rows[name] for name in names], names)
