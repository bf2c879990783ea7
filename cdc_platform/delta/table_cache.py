"""A cache of opened Delta tables per thread, refreshed by the commits made since.

Versions are consecutive, so a table without a next log entry is at its newest: one file lookup instead of 10 ms for
opening it (a join asks 150 times). Within `looked_at_once` a table keeps the version of its first lookup, plus the
block's own commits. Small tables are read once per file and filtered in memory, where a query takes 10 ms.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_platform.delta import file_cache, files, transaction_log
from cdc_platform.delta.conform import (
    fill_columns,
    get_empty_rows,
    read_file_rows,
    read_rows_by_partition,
    split_by_column,
)
from cdc_platform.delta.files import DataFile, Filter, filter_rows, filters_sql, quote_column
from cdc_platform.delta.log_mirror import LogMirror, MirroredDeltaTable, is_delta_log, with_data_files
from cdc_platform.storage import FileStat, ListingCache, ObjectStorePath, SmallFileCache, StoragePath, cache_fetches
from cdc_platform.tables import Table

# Reading this much takes no longer than planning a query for one row of it.
_FEW_BYTES, FEW_FILES = 1 << 18, 64
# The number of cached partition files; `_FEW_BYTES` bounds each.
_CACHED_FILES = 8
# The number of cached query results and the maximum size of each.
_CACHED_RESULTS, _MAX_RESULT_BYTES = 32, 1 << 20


class CachedTable(MirroredDeltaTable):
    """An open table, with all rows of its current version if they are few."""

    _few: tuple[int, pa.Table | None] = (-1, None)
    _by_file: Mapping[str, pa.Table] = MappingProxyType({})

    def __init__(self, path: str, mirror: LogMirror | None = None) -> None:
        super().__init__(path, mirror)
        self._last_read: dict[str, pa.Table] = {}
        self._answers: tuple[int, dict[object, pa.Table]] = (-1, {})

    def few(self) -> pa.Table | None:
        """Return all rows in the table's columns; None if they are more than a few."""
        version, rows = self._few
        if version != self.version():
            sizes = files.list_sizes(self)
            small = len(sizes) <= FEW_FILES and sum(sizes) <= _FEW_BYTES
            rows = self._whole() if small else None
            self._few = (self.version(), rows)
        return rows

    def few_of(self, filters: Sequence[Filter], columns: Collection[str]) -> pa.Table | None:
        """Return the rows of the partitions that pass the (normal) filters; None if they are more than a few.

        The result has at least those of `columns` that the table has.
        """
        names = self.metadata().partition_columns
        if not any(name in names for name, _, _ in filters) or files.list_unsupported_features(self):
            return self.few()
        chosen = files.list_partition_files(self, names, files.folder_from_opened(self), filters)
        if len(chosen) > FEW_FILES or sum(file.bytes for file in chosen) > _FEW_BYTES:
            return None
        try:
            return self._together(chosen, columns)
        except Exception:  # noqa: BLE001 as in `_whole`, the caller's own read reports the error
            return None

    def answer(self, asked: object, choose: Callable[[], pa.Table]) -> pa.Table:
        """Return the version's cached rows for a query; the steps of a join repeat a query a dozen times."""
        version, answers = self._answers
        if version != self.version() or len(answers) >= _CACHED_RESULTS:
            version, answers = self._answers = self.version(), {}
        if asked in answers:
            return answers[asked]
        rows = choose()
        if rows.nbytes <= _MAX_RESULT_BYTES:
            answers[asked] = rows
        return rows

    def _together(self, chosen: Sequence[files.DataFile], columns: Collection[str] | None = None) -> pa.Table:
        """Return the rows of these files in the table's columns, restricted to `columns` if given."""
        fields = [field.with_nullable(True) for field in pa.schema(self.schema())]
        schema = pa.schema([field for field in fields if columns is None or field.name in columns])
        names = self.metadata().partition_columns
        return pa.concat_tables([get_empty_rows(schema), *(self._of_partition(file, names, schema) for file in chosen)])

    def _of_partition(self, file: files.DataFile, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Return the rows of a file with its partition columns; the last few files are cached."""
        rows = self._last_read.pop(file.path) if file.path in self._last_read else file_cache.read_file(file.path)
        self._last_read = dict([*self._last_read.items(), (file.path, rows)][-_CACHED_FILES:])
        return _conform_file_rows(rows, schema, dict(zip(names, file.partition, strict=True)))

    def _whole(self) -> pa.Table | None:
        """Return all rows; None if they cannot be read.

        Damaged files and nulls in NOT NULL columns are not reported here; the caller's own read reports them.
        """
        schema = pa.schema([field.with_nullable(True) for field in pa.schema(self.schema())])
        try:
            names = self.metadata().partition_columns
            data_files = files.list_partition_files(self, names, files.folder_from_opened(self)) if names else []
            # The log does not distinguish a null partition value from an empty string.
            if files.list_unsupported_features(self) or any(None in file.partition for file in data_files):
                return _query_rows(self, schema, ())
            if names:
                return self._together(data_files)
            paths = files.list_paths(self)
            self._by_file = self._of_files(paths, schema)
            return pa.concat_tables([get_empty_rows(schema), *self._by_file.values()])
        except Exception:  # noqa: BLE001 deltalake passes on exceptions of any class
            return None

    def _of_files(self, paths: Sequence[str], schema: pa.Schema) -> dict[str, pa.Table]:
        """Return the rows of each file in the table's schema, by path."""
        known = self._by_file
        rows_by_path = {path: known[path] if path in known else file_cache.read_file(path) for path in paths}
        return {
            path: rows if rows.schema.equals(schema) else _conform_file_rows(rows, schema)
            for path, rows in rows_by_path.items()
        }


def _conform_file_rows(rows: pa.Table, schema: pa.Schema, values: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
    """Convert the rows of a file, with these partition values, to the table's current columns and types."""
    return _cast_rows(pa.table(fill_columns(rows, schema, values), names=schema.names), schema)


def read_rows(opened: DeltaTable, schema: pa.Schema, filters: Sequence[Filter] = ()) -> pa.Table:
    """Return the rows that pass all (normal) filters, in the columns and types of a schema, unordered."""
    if not isinstance(opened, CachedTable):
        return _query_rows(opened, schema, filters)
    return opened.answer((schema, tuple(map(repr, filters))), lambda: _select_rows(opened, schema, filters))


def _select_rows(opened: CachedTable, schema: pa.Schema, filters: Sequence[Filter]) -> pa.Table:
    """Read rows as `read_rows` does, from memory if the rows are few and have these columns."""
    needed = {*schema.names, *(name for name, _, _ in filters)}
    few = opened.few_of(filters, needed) if opened.metadata().partition_columns else opened.few()
    if few is None or not needed <= set(few.schema.names):
        return _query_rows(opened, schema, filters)
    return _cast_rows(filter_rows(few, filters).select(schema.names), schema)


def _cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to a schema; skip columns that have its types already, since Arrow runs a query for each cast."""
    same = rows.schema.types == schema.types
    if not same or any(rows[field.name].null_count for field in schema if not field.nullable):
        return rows.cast(schema)
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _query_rows(opened: DeltaTable, schema: pa.Schema, filters: Sequence[Filter]) -> pa.Table:
    files.list_paths(opened)  # deltalake would read files outside the folder
    # Avoid deltalake's pyarrow dataset: its file statistics have a string type that pyarrow cannot compare.
    query = f"SELECT {', '.join(map(quote_column, schema.names))} FROM t WHERE {filters_sql(filters)}"
    return pa.table(QueryBuilder().register("t", with_data_files(opened)).execute(query).read_all()).cast(schema)


def read_by_partition(
    opened: CachedTable, table: Table, columns: Sequence[str], chosen: Sequence[DataFile], *, are_all: bool
) -> dict[Any, pa.Table]:
    """Return columns of the rows of files by the value of the one partition column.

    `are_all` means that these are all files of the table.
    """
    (key,) = table.partition_by
    if are_all and len(chosen) > FEW_FILES and not file_cache.fits_in_cache(chosen):
        return split_by_column(key, opened.to_pyarrow_table(columns=[key, *columns]))
    # Read the files directly: deltalake would first make a dataset of all files of the table.
    if len(chosen) > FEW_FILES:
        return split_by_column(key, read_file_rows(table, [key, *columns], chosen))
    return read_rows_by_partition(table, columns, chosen)


class TableCache:
    """The open tables of each thread, by path; they are shared with no other thread or process."""

    def __init__(self) -> None:
        self._process, self._of_thread = os.getpid(), _ThreadCache()
        self._kept = SmallFileCache()

    def __reduce__(self) -> tuple[type[TableCache], tuple[()]]:
        return TableCache, ()

    def newest(self, path: str) -> CachedTable:
        """Return the table at its newest version, to be read at once: the next caller moves it forward.

        Raises:
            TableNotFoundError: there is no table.
        """
        cache = self._mine()
        if path in cache.missing:
            raise TableNotFoundError(f"no table at {path}")
        if path in cache.seen:
            return cache.known[path].opened
        try:
            cache.known[path] = _refresh_table(path, cache.known.pop(path, None), cache.files)
        except TableNotFoundError:
            if cache.depth:
                cache.missing.add(path)
            raise
        if cache.depth:
            cache.seen.add(path)
        return cache.known[path].opened

    def is_there(self, path: str) -> bool:
        """Return True if the table exists, by file names only."""
        cache = self._mine()
        if path in cache.seen or path in cache.missing:
            return path in cache.seen
        log = transaction_log.get_log_folder(path)
        exists = is_delta_log(dict(cache.files(log))) if log.local_path is None else DeltaTable.is_deltatable(path)
        if cache.depth and not exists:
            cache.missing.add(path)
        return exists

    @contextmanager
    def taken(self, path: str) -> Iterator[CachedTable]:
        """Yield the table at its newest version, for a write: it stays at that version during the block.

        If the block fails, for example since another writer committed first, all tables are looked up again.

        Raises:
            TableNotFoundError: there is no table.
        """
        cache = self._mine()
        inner = path in cache.taken
        if not inner:
            self.newest(path)
        known = _refresh_table(path, None, cache.files) if inner else cache.known[path]
        if not cache.depth:  # reads during the block see the commits of others
            del cache.known[path]
        cache.taken |= {path}
        try:
            yield known.opened
        except BaseException:
            cache.known.pop(path, None)
            self.look_anew()
            raise
        finally:
            if not inner:
                cache.taken -= {path}
        other = cache.known.get(path)
        if not cache.depth or other is None or other.opened.version() < known.opened.version():
            cache.known[path] = known

    @contextmanager
    def looked_at_once(self) -> Iterator[None]:
        """Look up each table once within the block; from then on only the block's own commits move it forward.

        A nested block is part of the outer one.
        """
        cache = self._mine()
        cache.depth += 1
        try:
            with cache_fetches(self._kept), file_cache.cache_file_reads():
                yield
        finally:
            cache.depth -= 1
            if not cache.depth:
                self.look_anew()

    def look_anew(self, *paths: str) -> None:
        """Look up these tables again on their next use; all tables if none is named."""
        cache = self._mine()
        for paths_seen in (cache.seen, cache.missing):
            paths_seen.difference_update(paths or set(paths_seen))
        logs = map(transaction_log.get_log_folder, paths)
        cache.listed.invalidate(*(log for log in logs if isinstance(log, ObjectStorePath)))

    def _mine(self) -> _ThreadCache:
        """Return this thread's cache. A forked process starts with an empty one: a mirror belongs to one process."""
        if self._process != os.getpid():
            self._process, self._of_thread = os.getpid(), _ThreadCache()
        return self._of_thread


@dataclass(frozen=True, eq=False)
class _CachedVersion:
    """An open table, and the mark of one of its commits, which differs if another table replaces it."""

    opened: CachedTable
    version: int
    mark: str | None


class _ThreadCache(threading.local):
    """The tables of a thread.

    `known` are the open tables by path. `seen` and `missing` are the paths already looked up in the current block;
    `taken` are those being written. `listed` caches a store's listings of a lake until tables are looked up again.
    """

    def __init__(self) -> None:
        self.known: dict[str, _CachedVersion] = {}
        self.seen: set[str] = set()
        self.missing: set[str] = set()
        self.taken: set[str] = set()
        self.listed = ListingCache()
        self.depth = 0

    def files(self, log: StoragePath, after: str = "") -> list[tuple[str, FileStat]]:
        """List the files of a log whose names come after `after`; within a block a lake's logs are listed together."""
        if not self.depth or not isinstance(log, ObjectStorePath):
            return log.files(after)
        return self.listed.files(log, log.folder.folder.folder, after)


def _refresh_table(path: str, known: _CachedVersion | None, listed: transaction_log.FileLister) -> _CachedVersion:
    """Return a table at its newest version, starting from the cached one."""
    if known is not None and known.mark is not None:
        opened = known.opened
        probe = transaction_log.probe_log(path, known.version, opened.version(), listed)
        if probe.mark == known.mark and probe.newest_mark is not None:
            known = _CachedVersion(opened, opened.version(), probe.newest_mark)
            try:
                if not probe.is_newest:
                    opened.update_incremental()
                opened.forget_commits()
            except (DeltaError, OSError):
                pass  # opening the table reports the error
            else:
                return known
    return _open_mirrored(path, listed) or _open_directly(path, listed)


def _open_mirrored(path: str, listed: transaction_log.FileLister) -> _CachedVersion | None:
    """Open a store's table at its newest version through a mirror of its log; None if a mirror is impossible."""
    log = transaction_log.get_log_folder(path)
    if not isinstance(log, ObjectStorePath):
        return None
    names = dict(listed(log, ""))
    if not is_delta_log(names):
        raise TableNotFoundError(f"no table at {path}")
    mirror = LogMirror(log.folder)
    try:
        if not mirror.begin(names):
            return None
        opened = CachedTable(path, mirror)
    except (DeltaError, OSError):
        return None  # opening the table in the store reports the error
    newest = names.get(transaction_log.get_entry_path(path, opened.version()).name)
    return _CachedVersion(opened, opened.version(), None if newest is None else newest.mark)


def _open_directly(path: str, listed: transaction_log.FileLister) -> _CachedVersion:
    # deltalake takes many times as long to find this, and steps look up tables that most homes do not have.
    if _is_missing(transaction_log.get_log_folder(path)):
        raise TableNotFoundError(f"no table at {path}")
    opened = CachedTable(path)
    return _CachedVersion(
        opened, opened.version(), transaction_log.probe_log(path, opened.version(), opened.version(), listed).mark
    )


def _is_missing(log: StoragePath) -> bool:
    """Return True if there is no such folder on this machine; opening the table reports any other error."""
    if log.local_path is None:
        return False
    try:
        log.local_path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
