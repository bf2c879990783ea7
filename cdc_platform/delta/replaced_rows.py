"""The rows that writing a part of a table again replaced: how many, their keys, and the foreign commits behind them.

The data files of the version before remain until they are vacuumed, so both versions can be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.delta.arrow import compute
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.files import DataFile
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.row_hash import hash_keys
from cdc_platform.delta.tasks import read_file_batches
from cdc_platform.errors import PlatformError
from cdc_platform.storage import parse_path
from cdc_platform.tables import Table

MAX_REPLACED_KEYS = 20
"""The most replaced rows whose keys are returned."""
_MAX_BYTES = 64 << 20
"""The most bytes of replaced files that are read."""


@dataclass(frozen=True)
class PartFiles:
    """The data files of a part before it is written again, see `list_part_files`."""

    table: Table
    where: Mapping[str, Any]
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class ReplacedRows:
    """Rows of a part that are no longer there.

    `rows` is their number, None if it is unknown; `keys` are the key columns of the first ones. `commits` describe the
    foreign commits that wrote replaced files. `unread` says why rows could not be compared; empty if they were.
    """

    rows: int | None = 0
    keys: tuple[Mapping[str, Any], ...] = ()
    commits: tuple[str, ...] = ()
    unread: str = ""


def list_part_files(lake: Lake, table: Table, where: Mapping[str, Any]) -> PartFiles:
    """Return the files that can hold rows of a part, before the part is written again."""
    filters = [(name, "=", value) for name, value in where.items() if name in table.partition_by]
    return PartFiles(table, where, tuple(lake.data_files(table, filters)))


def find_replaced_rows(lake: Lake, before: PartFiles) -> ReplacedRows:
    """Compare a part with its files before, and return the rows that it no longer has."""
    now = {file.path for file in list_part_files(lake, before.table, before.where).files}
    removed = [file for file in before.files if file.path not in now]
    if not removed:
        return ReplacedRows()
    known = {file.path for file in before.files}
    added = [path for path in now if path not in known]
    commits = _describe_foreign_commits(lake, before.table, removed)
    if sum(file.bytes for file in removed) > _MAX_BYTES:
        return ReplacedRows(None, (), commits, f"{len(removed)} files are too large to compare")
    try:
        with translate_errors(f"reading the replaced rows of {before.table.full_name}"):
            old = [_read_rows([file.path], before.where) for file in removed]
            remaining = Counter(key for path in added for key in _hash_rows(_read_rows([path], before.where)))
    except (PlatformError, OSError, pa.ArrowException) as error:
        return ReplacedRows(None, (), commits, str(error))
    count, keys = 0, []
    for rows in old:
        lost = []
        for index, key in enumerate(_hash_rows(rows)):
            if remaining[key]:
                remaining[key] -= 1
            else:
                lost.append(index)
        count += len(lost)
        shown = [name for name in before.table.keys if name in rows.schema.names]
        first = pa.array(lost[: MAX_REPLACED_KEYS - len(keys)], pa.int64())
        keys += rows.select(shown).take(first).to_pylist() if shown else []
    return ReplacedRows(count, tuple(keys), commits)


def _hash_rows(rows: pa.Table) -> list[bytes]:
    return hash_keys(rows, rows.schema.names) if rows.num_rows else []


def _read_rows(paths: Sequence[str], where: Mapping[str, Any]) -> pa.Table:
    """Read the rows of a part from files; the partition columns are not in them."""
    batches = [batch for path in paths for batch in read_file_batches(path)]
    rows = pa.Table.from_batches(batches) if batches else pa.table({})
    chosen = np.ones(rows.num_rows, dtype=bool)
    for name, value in where.items():
        if name in rows.schema.names:
            column = rows[name].cast(pa.string()) if isinstance(value, str) else rows[name]
            chosen &= np.asarray(compute.fill_null(compute.equal(column, pa.scalar(value, column.type)), False))
    return rows.take(np.flatnonzero(chosen))


def _describe_foreign_commits(lake: Lake, table: Table, removed: Sequence[DataFile]) -> tuple[str, ...]:
    folder = parse_path(lake.path(table))
    names = {file.path.removeprefix(f"{folder}/") for file in removed}
    return tuple(
        f"version {commit.version}: {commit.operation} by {commit.engine}"
        for commit in lake.commits(table)
        if commit.info is None and commit.changes and names & commit.added
    )
