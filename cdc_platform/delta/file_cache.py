"""A block-scoped cache of small data files, each read and decoded once.

A data file never changes, and opening one takes longer than reading its few rows. A home of several thousand small
generations consists of such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import pyarrow as pa

from cdc_platform.delta.files import DataFile, open_parquet
from cdc_platform.storage import map_in_threads, parse_path, set_for_block

_FILE_BYTES, _CACHE_BYTES = 1 << 18, 1 << 26
"""Of the rows as they are before Parquet compresses them: of a file that is small, and of all that are kept."""
_THREADS = 16


@dataclass
class _FileCache:
    """The rows of files by their paths; None of those that are not kept."""

    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    bytes: int = 0


_file_cache: ContextVar[_FileCache | None] = ContextVar("read", default=None)


@contextmanager
def cache_file_reads() -> Iterator[None]:
    """Read each small file once in a block, all of its columns, for whoever reads it next."""
    if _file_cache.get() is not None:
        yield
        return
    with set_for_block(_file_cache, _FileCache()):
        yield


def fits_in_cache(files: Sequence[DataFile]) -> bool:
    """Whether these are read once each, by whoever reads them next. What is packed as IDs are is half of its size."""
    return _file_cache.get() is not None and sum(file.bytes for file in files) <= _CACHE_BYTES // 4


def read_cached_file(path: str) -> pa.Table | None:
    """All rows of a small file in such a block; None for who has to read it in parts, and outside.

    Raises:
        FileNotFoundError: there is none.
    """
    kept = _file_cache.get()
    if kept is None:
        return None
    if path not in kept.tables:
        with open_parquet(path) as file:
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
            fits = size <= _FILE_BYTES and kept.bytes + size <= _CACHE_BYTES
            kept.tables[path] = file.read(use_threads=False) if fits else None
            kept.bytes += size * fits
    return kept.tables[path]


def read_file(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a file that fits into memory, in all columns or some; raises as `read_cached_file`."""
    rows = read_cached_file(path)
    if rows is not None:
        return rows if columns is None else rows.select(list(columns))
    with open_parquet(path) as file:
        return file.read(columns=None if columns is None else list(columns))


def read_files(paths: Sequence[str], columns: Sequence[str]) -> list[pa.Table]:
    """All rows of some files, in some columns; of a store several files at once, since each is awaited."""
    if len(paths) < 2 or parse_path(paths[0]).here is not None:
        return [read_file(path, columns) for path in paths]
    return map_in_threads(lambda path: read_file(path, columns), paths, _THREADS)
