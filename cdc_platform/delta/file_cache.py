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
"""Limits in uncompressed bytes: of a small file, and of all cached rows."""
_THREADS = 16


@dataclass
class _FileCache:
    """The rows of files by path; None for files that are not cached."""

    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    bytes: int = 0


_file_cache: ContextVar[_FileCache | None] = ContextVar("read", default=None)


@contextmanager
def cache_file_reads() -> Iterator[None]:
    """Within the block, read each small file once, with all of its columns."""
    if _file_cache.get() is not None:
        yield
        return
    with set_for_block(_file_cache, _FileCache()):
        yield


def fits_in_cache(files: Sequence[DataFile]) -> bool:
    """Return True if a cache is active and these files fit into it. Packed columns such as IDs compress to half."""
    return _file_cache.get() is not None and sum(file.bytes for file in files) <= _CACHE_BYTES // 4


def read_cached_file(path: str) -> pa.Table | None:
    """Return all rows of a small file from the block's cache; None outside such a block or if the file is not small.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    cache = _file_cache.get()
    if cache is None:
        return None
    if path not in cache.tables:
        with open_parquet(path) as file:
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
            fits = size <= _FILE_BYTES and cache.bytes + size <= _CACHE_BYTES
            cache.tables[path] = file.read(use_threads=False) if fits else None
            cache.bytes += size * fits
    return cache.tables[path]


def read_file(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all rows of a file that fits into memory, in all columns or some; raises as `read_cached_file`."""
    rows = read_cached_file(path)
    if rows is not None:
        return rows if columns is None else rows.select(list(columns))
    with open_parquet(path) as file:
        return file.read(columns=None if columns is None else list(columns))


def read_files(paths: Sequence[str], columns: Sequence[str]) -> list[pa.Table]:
    """Return all rows of some files, in some columns; read a store's files in parallel, since each read waits."""
    if len(paths) < 2 or parse_path(paths[0]).local_path is not None:
        return [read_file(path, columns) for path in paths]
    return map_in_threads(lambda path: read_file(path, columns), paths, _THREADS)
