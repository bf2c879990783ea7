"""Small data files, each read and decoded once in a block: a data file never changes, and to open one takes longer than
its few rows are worth. A home of some thousand small generations is nothing but such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import pyarrow as pa

from cdc_platform.blocks import during
from cdc_platform.lake.files import DataFile, parquet
from cdc_platform.lake.threads import side_by_side
from cdc_platform.places import place_of

_FILE_BYTES, _KEPT_BYTES = 1 << 18, 1 << 26
"""Of the rows as they are before Parquet compresses them: of a file that is small, and of all that are kept."""
_AT_ONCE = 16


@dataclass
class _Read:
    """The rows of files by their paths; None of those that are not kept."""

    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    bytes: int = 0


_read: ContextVar[_Read | None] = ContextVar("read", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Read each small file once in a block, all of its columns, for whoever reads it next."""
    if _read.get() is not None:
        yield
        return
    with during(_read, _Read()):
        yield


def keeps(files: Sequence[DataFile]) -> bool:
    """Whether these are read once each, by whoever reads them next. What is packed as IDs are is half of its size."""
    return _read.get() is not None and sum(file.bytes for file in files) <= _KEPT_BYTES // 4


def rows_of(path: str) -> pa.Table | None:
    """All rows of a small file in such a block; None for who has to read it in parts, and outside.

    Raises:
        FileNotFoundError: there is none.
    """
    kept = _read.get()
    if kept is None:
        return None
    if path not in kept.tables:
        with parquet(path) as file:
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
            fits = size <= _FILE_BYTES and kept.bytes + size <= _KEPT_BYTES
            kept.tables[path] = file.read(use_threads=False) if fits else None
            kept.bytes += size * fits
    return kept.tables[path]


def whole(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a file that fits into memory, in all columns or some; raises as `rows_of`."""
    rows = rows_of(path)
    if rows is not None:
        return rows if columns is None else rows.select(list(columns))
    with parquet(path) as file:
        return file.read(columns=None if columns is None else list(columns))


def wholes(paths: Sequence[str], columns: Sequence[str]) -> list[pa.Table]:
    """All rows of some files, in some columns; of a store several files at once, since each is awaited."""
    if len(paths) < 2 or place_of(paths[0]).here is not None:
        return [whole(path, columns) for path in paths]
    return side_by_side(lambda path: whole(path, columns), paths, _AT_ONCE)
