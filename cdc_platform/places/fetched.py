"""What was fetched of a store: small files, each once in a block, and in a later one if its store lists another there.

A file is known by its address and the mark that the store gives what is in it. Some MB are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from cdc_platform.blocks import during

SMALL_BYTES = 4 << 20
"""A file of so many bytes is fetched by one request, and kept as long as there is room."""
_KEPT_BYTES = 8 << 20


class Kept:
    """Small files by address and mark; those that were not asked for the longest go first."""

    def __init__(self) -> None:
        self._contents: dict[tuple[str, str], bytes] = {}
        self._bytes = 0
        self._changing = threading.Lock()

    def get(self, address: str, mark: str) -> bytes | None:
        """What is in a file with this mark; None where it is not kept."""
        with self._changing:
            content = self._contents.pop((address, mark), None)
            if content is not None:
                self._contents[address, mark] = content
            return content

    def put(self, address: str, mark: str, content: bytes) -> None:
        """Keep a file."""
        with self._changing:
            self._bytes += len(content) - len(self._contents.pop((address, mark), b""))
            self._contents[address, mark] = content
            while self._bytes > _KEPT_BYTES:
                self._bytes -= len(self._contents.pop(next(iter(self._contents))))


@dataclass
class _Block:
    """The files that were fetched or put in a block, by their addresses; the marks of those that were listed in it.

    `kept` are those of earlier blocks.
    """

    kept: Kept
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    marks: dict[str, str] = field(default_factory=dict)


_block: ContextVar[_Block | None] = ContextVar("block", default=None)


@contextmanager
def fetching_once(kept: Kept | None = None) -> Iterator[None]:
    """Fetch each small file that Parquet is read from once in a block: a data file never changes. Some MB are kept.

    One that is kept from an earlier block, where it was fetched or put, is fetched again unless it is listed in this
    one with its mark.
    """
    if _block.get() is not None:
        yield
        return
    with during(_block, _Block(Kept() if kept is None else kept)):
        yield


def fetching_anew() -> AbstractContextManager[None]:
    """Fetch what is read in a block from its store, whatever earlier ones kept: to see that it can be read there."""
    block = _block.get()
    return during(_block, None if block is None else replace(block, kept=Kept()))


def content(address: str) -> bytes | None:
    """What is in a file as this block knows it; None where it has to be fetched."""
    block = _block.get()
    if block is None:
        return None
    if address in block.contents:
        return block.contents[address]
    mark = block.marks.get(address)
    return None if mark is None else block.kept.get(address, mark)


def marked(address: str, mark: str) -> bytes | None:
    """What is in a file that was just seen with a mark; None where it has to be fetched."""
    block = _block.get()
    return None if block is None else block.kept.get(address, mark)


def keep(address: str, mark: str | None, content: bytes) -> None:
    """Keep what was fetched or put, if it is small."""
    block = _block.get()
    if block is None or len(content) > SMALL_BYTES:
        return
    if mark is not None:
        block.kept.put(address, mark, content)
    if block.size + len(content) <= _KEPT_BYTES:
        block.contents[address] = content
        block.size += len(content)


def listed(marks: Mapping[str, str]) -> None:
    """Note the marks with which a store lists files, for this block."""
    block = _block.get()
    if block is not None:
        block.marks.update(marks)
