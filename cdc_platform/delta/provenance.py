"""The digest of a part of a table, and the commits that wrote or removed its rows. No JVM.

A part is selected by column values: a partition, or the rows of one generation, node or table. Partitions are traced
by the digests in commits, other parts by comparing the files that each commit added and removed. Vacuumed files can
no longer be traced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.delta import file_cache, row_hash, transaction_log
from cdc_platform.delta.arrow import compute
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.files import DataFile
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.paths import decode_path
from cdc_platform.delta.row_hash import BLAKE2B_BYTES, hash_keys
from cdc_platform.delta.tasks import read_file_batches
from cdc_platform.delta.transaction_log import Commit
from cdc_platform.storage import parse_path
from cdc_platform.tables import Table

_CACHED_ENTRIES = 50_000
"""Log entries that a process caches; an entry never changes."""

_STATISTICS_ROUNDING = timedelta(milliseconds=1)

PartSelector = Mapping[str, Any]
"""Column values that select a part; an empty mapping selects the whole table."""


@dataclass(frozen=True, eq=False)
class PartChange:
    """A commit that changed a part: it added `written` rows and removed `removed` rows."""

    commit: Commit
    written: int
    removed: int


_LogFile = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""A file in the log: its path below the table, its partition values, its statistics."""


@dataclass(frozen=True, eq=False)
class _LogEntry:
    """A commit with the files that it added and those that it removed."""

    commit: Commit
    added: tuple[_LogFile, ...]
    removed: tuple[_LogFile, ...]


class PartitionDigests:
    """The current digests of a table's partitions: from its commits or, where they record none, from its files."""

    def __init__(self, lake: Lake, table: Table) -> None:
        self._rule = lake.digest_rule(table)
        self._files: dict[str, list[DataFile]] = {}
        for file in lake.data_files(table):
            self._files.setdefault(row_hash.format_partition_name(table.partition_by, file.partition), []).append(file)
        self._recorded: dict[str, int] = {}
        for entry in _iter_entries(lake, table):
            if self._files.keys() <= self._recorded.keys():
                break
            recorded = {} if entry.commit.info is None else entry.commit.info.digests
            self._recorded = {name: digest for name, digest in recorded.items() if name in self._files} | self._recorded

    @property
    def names(self) -> list[str]:
        """The partitions that have rows."""
        return [name for name, files in self._files.items() if any(file.rows for file in files)]

    def digest(self, name: str, *, most_bytes: int | None = None) -> int | None:
        """Return the digest of a partition.

        Return None if it has no rows, or if computing the digest would read more than `most_bytes` bytes.
        """
        files = [file for file in self._files.get(name, ()) if file.rows]
        if not files:
            return None
        if name not in self._recorded:
            if most_bytes is not None and sum(file.bytes for file in files) > most_bytes:
                return None
            return sum(_digest_file(file.path, self._rule) for file in files) % row_hash.DIGEST_MODULUS
        return self._recorded[name]


def get_part_digest(lake: Lake, table: Table, where: PartSelector) -> int | None:
    """Return the current digest of a part; None if it has no rows.

    Raises:
        StoreFailure: the log or a file cannot be read.
    """
    columns, values = tuple(where), tuple(where.values())
    name = row_hash.format_partition_name(columns, values)
    if columns == table.partition_by:
        with translate_errors(f"reading {table.full_name}"):
            return PartitionDigests(lake, table).digest(name)
    rows = lake.read(table, filters=[(c, "=", v) for c, v in where.items()])
    return row_hash.digest_rows(rows, columns, lake.digest_rule(table)).get(name)


def get_table_digest(lake: Lake, table: Table, *, most_bytes: int | None = None) -> int | None:
    """Return the digest of a whole table; None if it has no rows.

    For a table without partitions this is the digest of its rows, otherwise a hash of its partitions' digests. Return
    None as well if no commit records a partition's digest and computing it would read more than `most_bytes` bytes.
    """
    with translate_errors(f"reading {table.full_name}"):
        partitions = PartitionDigests(lake, table)
        digests = {name: partitions.digest(name, most_bytes=most_bytes) for name in partitions.names}
    known = {name: digest for name, digest in digests.items() if digest is not None}
    if not known or len(known) < len(digests):
        return None
    if not table.partition_by:
        return known[""]
    lines = "\n".join(f"{name} {digest:032x}" for name, digest in sorted(known.items()))
    return int.from_bytes(blake2b(lines.encode(), digest_size=BLAKE2B_BYTES).digest(), "little")


def get_recorded_digest(lake: Lake, table: Table, where: PartSelector, at_ms: int) -> int | None:
    """Return a partition's digest at a time (ms by its writers' clocks) from the commits; None if none records it."""
    name = row_hash.partition_name_from_values(tuple(where), where)
    for entry in _iter_entries(lake, table):
        info = entry.commit.info
        if info is not None and (entry.commit.at_ms or 0) <= at_ms and name in info.digests:
            return info.digests[name]
    return None


def find_last_change(lake: Lake, table: Table, where: PartSelector) -> PartChange | None:
    """Return the newest commit that wrote rows of a part; None if the log or files no longer show it."""
    return next((change for change in iter_changes(lake, table, where) if change.written), None)


def iter_changes(lake: Lake, table: Table, where: PartSelector) -> Iterator[PartChange]:
    """Yield the commits that changed a part, newest first, as far back as log and files go.

    A partition that was replaced by the same rows counts as written; for other parts only actual differences count.

    Raises:
        StoreFailure: an entry of the log cannot be read.
    """
    partitions = {name: value for name, value in where.items() if name in table.partition_by}
    rest = {name: value for name, value in where.items() if name not in table.partition_by}
    for entry in _iter_entries(lake, table):
        added = [file for file in entry.added if _can_contain(file, partitions, rest)]
        removed = [file for file in entry.removed if _can_contain(file, partitions, rest)]
        if not added and not removed:
            continue
        if not rest:
            rows = (sum(int(stats.get("numRecords") or 1) for _, _, stats in files) for files in (added, removed))
            yield PartChange(entry.commit, *rows)
            continue
        added_keys, removed_keys = (_hash_selected_rows(lake, table, files, rest) for files in (added, removed))
        if added_keys is None or removed_keys is None:
            continue
        common = added_keys & removed_keys
        if added_keys - common or removed_keys - common:
            yield PartChange(entry.commit, len(added_keys - common), len(removed_keys - common))


def _iter_entries(lake: Lake, table: Table) -> Iterator[_LogEntry]:
    """Yield the entries that are still in the log, newest first."""
    version = lake.version(table)
    folder = lake.path(table)
    with translate_errors(f"reading the log of {table.full_name}"):
        while version is not None and version >= 0:
            file = transaction_log.get_entry_path(folder, version)
            stat = file.stat()
            if stat is None:
                return
            yield _read_entry(str(file), version, stat.mark)
            version -= 1


@lru_cache(maxsize=_CACHED_ENTRIES)
def _digest_file(path: str, rule: row_hash.DigestRule) -> int:
    """Return the sum of the digests of a file's rows. A file never changes."""
    parts = (row_hash.digest_rows(pa.Table.from_batches([batch]), (), rule) for batch in read_file_batches(path))
    return sum(sum(part.values()) for part in parts) % row_hash.DIGEST_MODULUS


@lru_cache(maxsize=_CACHED_ENTRIES)
def _read_entry(file: str, version: int, _mark: str) -> _LogEntry:
    files_by_kind: dict[str, list[_LogFile]] = {"add": [], "remove": []}
    actions = transaction_log.read_actions(parse_path(file))
    for action in actions:
        for kind, files in files_by_kind.items():
            if kind in action and action[kind].get("dataChange", True):
                file_action = action[kind]
                stats = json.loads(file_action.get("stats") or "{}")
                files.append((file_action["path"], file_action.get("partitionValues") or {}, stats))
    return _LogEntry(
        transaction_log.commit_from_actions(actions, version),
        tuple(files_by_kind["add"]),
        tuple(files_by_kind["remove"]),
    )


def _can_contain(file: _LogFile, partitions: PartSelector, rest: PartSelector) -> bool:
    """Return True if a file can hold rows of a part, by its partition values and its statistics."""
    _, partition, stats = file
    if any(not _equals_partition_value(partition.get(name), value) for name, value in partitions.items()):
        return False
    lows, highs = stats.get("minValues") or {}, stats.get("maxValues") or {}
    return all(_is_between(value, lows.get(name), highs.get(name)) for name, value in rest.items())


def _is_between(value: Any, low: Any, high: Any) -> bool:
    """Return True if the bounds in a file's statistics allow a value.

    Writers may truncate strings, and round times to milliseconds.
    """
    if not (isinstance(low, str) and isinstance(high, str)):
        return True
    if isinstance(value, datetime):
        return _parse_time(low) - _STATISTICS_ROUNDING <= value <= _parse_time(high) + _STATISTICS_ROUNDING
    return not isinstance(value, str) or (low <= value and value[: len(high)] <= high)


def _parse_time(written: str) -> datetime:
    """Parse a time as Delta's log writes it, in UTC."""
    return datetime.fromisoformat(f"{written.replace(' ', 'T').removesuffix('Z')}+00:00")


def _equals_partition_value(written: Any, value: Any) -> bool:
    """Return True if a partition value, as Delta's log writes it, equals this value."""
    if isinstance(value, datetime) and isinstance(written, str):
        return _parse_time(written) == value
    return written == (None if value is None else str(value))


def _hash_selected_rows(lake: Lake, table: Table, files: Sequence[_LogFile], rest: PartSelector) -> set[bytes] | None:
    """Return the digests of the rows in some files that belong to a part; None if a file is gone."""
    digests: set[bytes] = set()
    for path, _, _ in files:
        file = parse_path(lake.path(table)) / decode_path(path)
        try:
            rows = file_cache.read_file(str(file))
        except FileNotFoundError:
            return None
        # Compare columns instead of filtering: files of deltalake may have view types, which Arrow barely supports.
        chosen = np.ones(rows.num_rows, dtype=bool)
        for name, value in rest.items():
            column = rows[name].cast(pa.string()) if isinstance(value, str) else rows[name]
            same = compute.equal(column, pa.scalar(value, column.type))
            chosen &= np.asarray(compute.fill_null(same, False))
        keys = hash_keys(rows, rows.schema.names)
        digests |= {key for key, wanted in zip(keys, chosen.tolist(), strict=True) if wanted}
    return digests
