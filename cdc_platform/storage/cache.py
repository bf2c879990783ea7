"""A block-scoped cache of small files fetched from an object store.

A file is identified by its address and the version mark (ETag) of the store. The cache holds 8 MiB. A later block
reuses a file only if its store lists the file with the same mark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from cdc_platform.storage.context import set_for_block

SMALL_BYTES = 4 << 20
"""The largest file (bytes) that one request fetches whole and the cache may hold."""
_CACHE_BYTES = 8 << 20


class SmallFileCache:
    """An LRU cache of small files by address and mark."""

    def __init__(self) -> None:
        self._contents: dict[tuple[str, str], bytes] = {}
        self._bytes = 0
        self._changing = threading.Lock()

    def get(self, address: str, mark: str) -> bytes | None:
        """Return the content of a file with this mark; None if it is not cached."""
        with self._changing:
            content = self._contents.pop((address, mark), None)
            if content is not None:
                self._contents[address, mark] = content
            return content

    def put(self, address: str, mark: str, content: bytes) -> None:
        """Store a file, and evict the least recently used ones."""
        with self._changing:
            self._bytes += len(content) - len(self._contents.pop((address, mark), b""))
            self._contents[address, mark] = content
            while self._bytes > _CACHE_BYTES:
                self._bytes -= len(self._contents.pop(next(iter(self._contents))))


@dataclass
class _FetchScope:
    """The state of a block: the contents fetched or put in it by address, and the marks listed in it.

    `shared` is the cache of earlier blocks.
    """

    shared: SmallFileCache
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    marks: dict[str, str] = field(default_factory=dict)


_fetch_scope: ContextVar[_FetchScope | None] = ContextVar("block", default=None)


@contextmanager
def cache_fetches(shared: SmallFileCache | None = None) -> Iterator[None]:
    """Fetch each small Parquet file only once in the block, because a data file never changes; cache some MB.

    The block reuses a file that an earlier block fetched or put only if a listing in this block shows the same mark.
    """
    if _fetch_scope.get() is not None:
        yield
        return
    with set_for_block(_fetch_scope, _FetchScope(SmallFileCache() if shared is None else shared)):
        yield


def bypass_fetch_cache() -> AbstractContextManager[None]:
    """Ignore the files of earlier blocks in this block, to verify that the store can still be read."""
    block = _fetch_scope.get()
    return set_for_block(_fetch_scope, None if block is None else replace(block, shared=SmallFileCache()))


def get_cached_content(address: str) -> bytes | None:
    """Return the content of a file that is cached for this block; None if it must be fetched."""
    block = _fetch_scope.get()
    if block is None:
        return None
    if address in block.contents:
        return block.contents[address]
    mark = block.marks.get(address)
    return None if mark is None else block.shared.get(address, mark)


def get_cached_version(address: str, mark: str) -> bytes | None:
    """Return the cached content of a file that was just seen with a mark; None if it must be fetched."""
    block = _fetch_scope.get()
    return None if block is None else block.shared.get(address, mark)


def cache_content(address: str, mark: str | None, content: bytes) -> None:
    """Cache content that was fetched or put, if it is small."""
    block = _fetch_scope.get()
    if block is None or len(content) > SMALL_BYTES:
        return
    if mark is not None:
        block.shared.put(address, mark, content)
    if block.size + len(content) <= _CACHE_BYTES:
        block.contents[address] = content
        block.size += len(content)


def record_listed_marks(marks: Mapping[str, str]) -> None:
    """Record the marks of a store's listing for this block."""
    block = _fetch_scope.get()
    if block is not None:
        block.marks.update(marks)
