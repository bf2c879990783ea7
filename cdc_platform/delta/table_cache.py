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

# So little is read as a whole in the time in which a query for one row of it is planned.
_FEW_BYTES, FEW_FILES = 1 << 18, 64
# Of partitions, which are read one after the other; so many files are as many bytes at most.
_CACHED_FILES = 8
# Of answers to the same questions; what is larger is asked for anew.
_CACHED_RESULTS, _MAX_RESULT_BYTES = 32, 1 << 20


class CachedTable(MirroredDeltaTable):
    """An open table, and all rows of the version that it is at, where they are few."""

    _few: tuple[int, pa.Table | None] = (-1, None)
    _by_file: Mapping[str, pa.Table] = MappingProxyType({})

    def __init__(self, path: str, mirror: LogMirror | None = None) -> None:
        super().__init__(path, mirror)
        self._last_read: dict[str, pa.Table] = {}
        self._answers: tuple[int, dict[object, pa.Table]] = (-1, {})

    def few(self) -> pa.Table | None:
        """All rows in the columns that the table has; None where there are more than a few."""
        version, rows = self._few
        if version != self.version():
            sizes = files.list_sizes(self)
            small = len(sizes) <= FEW_FILES and sum(sizes) <= _FEW_BYTES
            rows = self._whole() if small else None
            self._few = (self.version(), rows)
        return rows

    def few_of(self, filters: Sequence[Filter], columns: Collection[str]) -> pa.Table | None:
        """The rows of the partitions that the (normal) filters let through, in these columns at least, as far as the
        table has them; None where there are more than a few.
        """
        names = self.metadata().partition_columns
        if not any(name in names for name, _, _ in filters) or files.list_unsupported_features(self):
            return self.few()
        chosen = files.list_partition_files(self, names, files.folder_from_opened(self), filters)
        if len(chosen) > FEW_FILES or sum(file.bytes for file in chosen) > _FEW_BYTES:
            return None
        try:
            return self._together(chosen, columns)
        except Exception:  # noqa: BLE001 as of the whole: who needs what cannot be read finds it
            return None

    def answer(self, asked: object, choose: Callable[[], pa.Table]) -> pa.Table:
        """What the version has for a question; steps of a join ask a table the same a dozen times."""
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
        """The rows of these files in the columns that the table has; of some `columns`, in those among them."""
        fields = [field.with_nullable(True) for field in pa.schema(self.schema())]
        schema = pa.schema([field for field in fields if columns is None or field.name in columns])
        names = self.metadata().partition_columns
        return pa.concat_tables([get_empty_rows(schema), *(self._of_partition(file, names, schema) for file in chosen)])

    def _of_partition(self, file: files.DataFile, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The rows of a file with the columns that name its partition; the last few files are kept."""
        rows = self._last_read.pop(file.path) if file.path in self._last_read else file_cache.read_file(file.path)
        self._last_read = dict([*self._last_read.items(), (file.path, rows)][-_CACHED_FILES:])
        return _conform_file_rows(rows, schema, dict(zip(names, file.partition, strict=True)))

    def _whole(self) -> pa.Table | None:
        """All rows; None where they cannot be read. A damaged file, a null where none may be: who needs it finds it."""
        as_it_is = pa.schema([field.with_nullable(True) for field in pa.schema(self.schema())])
        try:
            names = self.metadata().partition_columns
            held = files.list_partition_files(self, names, files.folder_from_opened(self)) if names else []
            # The log says the same of a partition without a value and of one whose value is an empty text.
            if files.list_unsupported_features(self) or any(None in file.partition for file in held):
                return _query_rows(self, as_it_is, ())
            if names:
                return self._together(held)
            paths = files.list_paths(self)
            self._by_file = self._of_files(paths, as_it_is)
            return pa.concat_tables([get_empty_rows(as_it_is), *self._by_file.values()])
        except Exception:  # noqa: BLE001 deltalake hands on what others raise, of any class
            return None

    def _of_files(self, paths: Sequence[str], schema: pa.Schema) -> dict[str, pa.Table]:
        """The rows of each file as a table has them."""
        known = self._by_file
        found = {path: known[path] if path in known else file_cache.read_file(path) for path in paths}
        return {
            path: rows if rows.schema.equals(schema) else _conform_file_rows(rows, schema)
            for path, rows in found.items()
        }


def _conform_file_rows(rows: pa.Table, schema: pa.Schema, values: Mapping[str, Any] = MappingProxyType({})) -> pa.Table:
    """Rows of a file, which has these values in partition columns, in the columns and types that its table has now."""
    return _cast_rows(pa.table(fill_columns(rows, schema, values), names=schema.names), schema)


def read_rows(opened: DeltaTable, schema: pa.Schema, filters: Sequence[Filter] = ()) -> pa.Table:
    """The rows that pass all (normal) filters, in the columns and types of a schema, in no order."""
    if not isinstance(opened, CachedTable):
        return _query_rows(opened, schema, filters)
    return opened.answer((schema, tuple(map(repr, filters))), lambda: _select_rows(opened, schema, filters))


def _select_rows(opened: CachedTable, schema: pa.Schema, filters: Sequence[Filter]) -> pa.Table:
    """The same: of few rows, which have these columns, out of memory."""
    asked = {*schema.names, *(name for name, _, _ in filters)}
    few = opened.few_of(filters, asked) if opened.metadata().partition_columns else opened.few()
    if few is None or not asked <= set(few.schema.names):
        return _query_rows(opened, schema, filters)
    return _cast_rows(filter_rows(few, filters).select(schema.names), schema)


def _cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the types of a schema, which most have already; to cast a column to its own is a query of Arrow's."""
    same = rows.schema.types == schema.types
    if not same or any(rows[each.name].null_count for each in schema if not each.nullable):
        return rows.cast(schema)
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _query_rows(opened: DeltaTable, schema: pa.Schema, filters: Sequence[Filter]) -> pa.Table:
    files.list_paths(opened)  # deltalake would read files outside the folder
    # Not deltalake's pyarrow dataset: its file statistics are of a string type that pyarrow cannot compare.
    query = f"SELECT {', '.join(map(quote_column, schema.names))} FROM t WHERE {filters_sql(filters)}"
    return pa.table(QueryBuilder().register("t", with_data_files(opened)).execute(query).read_all()).cast(schema)


def read_by_partition(
    opened: CachedTable, table: Table, columns: Sequence[str], chosen: Sequence[DataFile], *, are_all: bool
) -> dict[Any, pa.Table]:
    """Columns of the rows of files by the value of the one partition column; `are_all`: these are all of the table."""
    (key,) = table.partition_by
    if are_all and len(chosen) > FEW_FILES and not file_cache.fits_in_cache(chosen):
        return split_by_column(key, opened.to_pyarrow_table(columns=[key, *columns]))
    # deltalake would make a dataset of all files first, of a thousand slices as of the one that is asked for.
    if len(chosen) > FEW_FILES:
        return split_by_column(key, read_file_rows(table, [key, *columns], chosen))
    return read_rows_by_partition(table, columns, chosen)


class TableCache:
    """The tables that a thread has open, by path; none travels to another thread or process."""

    def __init__(self) -> None:
        self._process, self._of_thread = os.getpid(), _ThreadCache()
        self._kept = SmallFileCache()

    def __reduce__(self) -> tuple[type[TableCache], tuple[()]]:
        return TableCache, ()

    def newest(self, path: str) -> CachedTable:
        """The table at its newest version, to be read at once: the next who asks makes it newer.

        Raises:
            TableNotFoundError: there is none.
        """
        mine = self._mine()
        if path in mine.missing:
            raise TableNotFoundError(f"no table at {path}")
        if path in mine.seen:
            return mine.known[path].opened
        try:
            mine.known[path] = _refresh_table(path, mine.known.pop(path, None), mine.files)
        except TableNotFoundError:
            if mine.depth:
                mine.missing.add(path)
            raise
        if mine.depth:
            mine.seen.add(path)
        return mine.known[path].opened

    def is_there(self, path: str) -> bool:
        """Whether there is a table, by names alone."""
        mine = self._mine()
        if path in mine.seen or path in mine.missing:
            return path in mine.seen
        log = transaction_log.get_log_folder(path)
        found = is_delta_log(dict(mine.files(log))) if log.here is None else DeltaTable.is_deltatable(path)
        if mine.depth and not found:
            mine.missing.add(path)
        return found

    @contextmanager
    def taken(self, path: str) -> Iterator[CachedTable]:
        """The table at its newest version, for one who writes on it: it stays at that version whoever asks.

        Where that fails, say since another was first, every table is looked at anew.

        Raises:
            TableNotFoundError: there is none.
        """
        mine = self._mine()
        inner = path in mine.taken
        if not inner:
            self.newest(path)
        known = _refresh_table(path, None, mine.files) if inner else mine.known[path]
        if not mine.depth:  # who reads meanwhile sees what others write
            del mine.known[path]
        mine.taken |= {path}
        try:
            yield known.opened
        except BaseException:
            mine.known.pop(path, None)
            self.look_anew()
            raise
        finally:
            if not inner:
                mine.taken -= {path}
        other = mine.known.get(path)
        if not mine.depth or other is None or other.opened.version() < known.opened.version():
            mine.known[path] = known

    @contextmanager
    def looked_at_once(self) -> Iterator[None]:
        """Look at each table once in a block, and from then on move it forward by own commits alone.

        A block in such a block is a part of it.
        """
        mine = self._mine()
        mine.depth += 1
        try:
            with cache_fetches(self._kept), file_cache.cache_file_reads():
                yield
        finally:
            mine.depth -= 1
            if not mine.depth:
                self.look_anew()

    def look_anew(self, *paths: str) -> None:
        """Look at these tables when they are asked for next; at all, if none is named."""
        mine = self._mine()
        for seen in (mine.seen, mine.missing):
            seen.difference_update(paths or set(seen))
        logs = map(transaction_log.get_log_folder, paths)
        mine.listed.look_anew(*(log for log in logs if isinstance(log, ObjectStorePath)))

    def _mine(self) -> _ThreadCache:
        """What this thread has open; a process that was forked opens its own: a mirror is of one."""
        if self._process != os.getpid():
            self._process, self._of_thread = os.getpid(), _ThreadCache()
        return self._of_thread


@dataclass(frozen=True, eq=False)
class _CachedVersion:
    """An open table, and the mark of one of its commits, by which another in its place is told from it."""

    opened: CachedTable
    version: int
    mark: str | None


class _ThreadCache(threading.local):
    """`known` by path; of those, and of the missing ones, what is not asked for again; what is written on.

    `listed`: what a store has in a lake, for as long as it is not looked at anew.
    """

    def __init__(self) -> None:
        self.known: dict[str, _CachedVersion] = {}
        self.seen: set[str] = set()
        self.missing: set[str] = set()
        self.taken: set[str] = set()
        self.listed = ListingCache()
        self.depth = 0

    def files(self, log: StoragePath, after: str = "") -> list[tuple[str, FileStat]]:
        """The files of a log whose names come after one; in a block a lake's logs are listed together."""
        if not self.depth or not isinstance(log, ObjectStorePath):
            return log.files(after)
        return self.listed.files(log, log.folder.folder.folder, after)


def _refresh_table(path: str, known: _CachedVersion | None, listed: transaction_log.FileLister) -> _CachedVersion:
    """A table at its newest version, out of what is known of it."""
    if known is not None and known.mark is not None:
        opened = known.opened
        look = transaction_log.probe_log(path, known.version, opened.version(), listed)
        if look.mark == known.mark and look.newest_mark is not None:
            known = _CachedVersion(opened, opened.version(), look.newest_mark)
            try:
                if not look.is_newest:
                    opened.update_incremental()
                opened.forget_commits()
            except (DeltaError, OSError):
                pass  # what is wrong is said by opening it
            else:
                return known
    return _open_mirrored(path, listed) or _open_directly(path, listed)


def _open_mirrored(path: str, listed: transaction_log.FileLister) -> _CachedVersion | None:
    """A table of a store at its newest version, by a mirror of its log; None where there can be none."""
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
        return None  # what is wrong is said by opening it there
    newest = names.get(transaction_log.get_entry_path(path, opened.version()).name)
    return _CachedVersion(opened, opened.version(), None if newest is None else newest.mark)


def _open_directly(path: str, listed: transaction_log.FileLister) -> _CachedVersion:
    # deltalake takes many times as long to tell, and steps ask for tables that most homes do not have.
    if _is_missing(transaction_log.get_log_folder(path)):
        raise TableNotFoundError(f"no table at {path}")
    opened = CachedTable(path)
    return _CachedVersion(
        opened, opened.version(), transaction_log.probe_log(path, opened.version(), opened.version(), listed).mark
    )


def _is_missing(log: StoragePath) -> bool:
    """Whether there is no such folder on this machine; whatever else is wrong with it is said by opening it."""
    if log.here is None:
        return False
    try:
        log.here.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
