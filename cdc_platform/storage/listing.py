"""A cache of object store listings, so that one request serves all folders that its page covers.

One request thus checks the Delta logs of a small home.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_platform.storage import cache
from cdc_platform.storage.object_store import ObjectStorePath
from cdc_platform.storage.path import FileStat

_AFTER_ALL_NAMES = "\U0010ffff"
"""A name that sorts after every other."""


@dataclass(frozen=True, eq=False)
class _Page:
    """The files below a path whose store paths come after `first`, up to `last`; None for all that follow."""

    within: ObjectStorePath
    first: str
    last: str | None
    paths: list[str]
    stats: list[FileStat]

    def holds(self, within: ObjectStorePath, begin: str, end: str) -> bool:
        """Return True if the page covers all files between two paths."""
        return self.within == within and self.first <= begin and (self.last is None or end <= self.last)

    def is_within(self, folder: ObjectStorePath) -> bool:
        """Return True if the page is full and does not reach beyond a folder in which it begins."""
        return self.last is not None and self.last.startswith(f"{folder.path}/")


class ListingCache:
    """Cached pages of listings, until `invalidate` invalidates them.

    If one page does not cover a path, the cache remembers at which folders further pages begin. It also remembers
    folders that shared their page with no other requested folder, and lists those alone from then on, however many
    files they precede.
    """

    def __init__(self) -> None:
        self._pages: list[_Page] = []
        self._stale: set[ObjectStorePath] = set()
        self._begins: dict[ObjectStorePath, list[str]] = {}
        self._alone: set[ObjectStorePath] = set()

    def files(self, folder: ObjectStorePath, within: ObjectStorePath, after: str = "") -> list[tuple[str, FileStat]]:
        """Return the files in a folder whose names come after `after`, by name, from a page of all below `within`."""
        inside = f"{folder.path}/"
        page = self._page(folder, within, inside + _AFTER_ALL_NAMES)
        if page is None:
            return folder.files(after)
        files: list[tuple[str, FileStat]] = []
        for index in range(bisect_right(page.paths, inside + after), len(page.paths)):
            path = page.paths[index]
            if not path.startswith(inside):
                break
            if "/" not in path[len(inside) :]:
                files.append((path[len(inside) :], page.stats[index]))
        return files

    def invalidate(self, *folders: ObjectStorePath) -> None:
        """Invalidate the listings of these folders; of all folders if none is given."""
        self._stale.update(folders)
        if not folders:
            self._pages.clear()
            self._stale.clear()

    def _page(self, folder: ObjectStorePath, within: ObjectStorePath, end: str) -> _Page | None:
        """Return a page that covers a folder; None if it is better listed alone, or the store supports no pages."""
        begins = self._begins.setdefault(within, [f"{within.path}/"])
        if folder in self._stale:
            if not self._is_small(within):
                return None
            self.invalidate()
        begin = f"{folder.path}/"
        cached = next((page for page in self._pages if page.holds(within, begin, end)), None)
        if cached is not None or not within.lists_from_anywhere:
            return cached
        if folder in self._alone:
            return self._store_page(
                _make_page(within, begin, end, [(begin + name, seen) for name, seen in folder.files()])
            )
        first = begins[bisect_right(begins, begin) - 1]
        if all(page.first != first for page in self._pages):
            page = self._list_page(within, first)
            if page is None or page.holds(within, begin, end):
                return self._note_if_alone(page, folder)
        page = self._list_page(within, begin)
        return self._note_if_alone(page, folder) if page is not None and page.holds(within, begin, end) else None

    def _note_if_alone(self, page: _Page | None, folder: ObjectStorePath) -> _Page | None:
        """Return the page, and note the folder if the page serves this folder alone."""
        if page is not None and page.first == f"{folder.path}/" and page.is_within(folder.folder):
            self._alone.add(folder)
        return page

    def _is_small(self, within: ObjectStorePath) -> bool:
        """Return True if every page listed below a path so far covers all that follows it."""
        return all(page.last is None for page in self._pages if page.within == within)

    def _list_page(self, within: ObjectStorePath, first: str) -> _Page | None:
        """List a page that begins after a path; None if the store does not list in the order of names."""
        files, is_all = within.page(first)
        paths = [path for path, _ in files]
        if paths != sorted(paths):
            return None
        page = self._store_page(_make_page(within, first, None if is_all else paths[-1], files))
        remaining = [
            begin for begin in self._begins[within] if begin < first or not (page.last is None or begin <= page.last)
        ]
        self._begins[within] = sorted([*remaining, first])
        return page

    def _store_page(self, page: _Page) -> _Page:
        marks = zip(page.paths, page.stats, strict=True)
        cache.record_listed_marks({f"{page.within.root}/{path}": seen.mark for path, seen in marks})
        self._pages.append(page)
        return page


def _make_page(within: ObjectStorePath, first: str, last: str | None, files: Sequence[tuple[str, FileStat]]) -> _Page:
    return _Page(within, first, last, [path for path, _ in files], [seen for _, seen in files])
