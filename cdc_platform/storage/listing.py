"""A cache of object store listings, so that one request serves all folders that its page covers.

The Delta logs of a small home are thus checked by one request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from cdc_platform.storage import cache
from cdc_platform.storage.object_store import ObjectStorePath
from cdc_platform.storage.path import FileStat

_AFTER_ALL_NAMES = "\U0010ffff"
"""What comes after every name."""


@dataclass(frozen=True, eq=False)
class _Page:
    """The files below a place whose paths in the store come after `first`, up to `last`; None: all that follow."""

    within: ObjectStorePath
    first: str
    last: str | None
    paths: list[str]
    seen: list[FileStat]

    def holds(self, within: ObjectStorePath, begin: str, end: str) -> bool:
        """Whether all files between two paths are in it."""
        return self.within == within and self.first <= begin and (self.last is None or end <= self.last)

    def is_within(self, folder: ObjectStorePath) -> bool:
        """Whether it is full, and with what lies below a folder in which it begins."""
        return self.last is not None and self.last.startswith(f"{folder.path}/")


class ListingCache:
    """The pages that were listed since it was told to look anew.

    Where a page does not hold all of a place, it is remembered from which folders on the others begin, and which of
    those shared their page with no other folder that is asked for: such a one is listed alone from then on, however
    many files lie behind it.
    """

    def __init__(self) -> None:
        self._pages: list[_Page] = []
        self._stale: set[ObjectStorePath] = set()
        self._begins: dict[ObjectStorePath, list[str]] = {}
        self._alone: set[ObjectStorePath] = set()

    def files(self, folder: ObjectStorePath, within: ObjectStorePath, after: str = "") -> list[tuple[str, FileStat]]:
        """The files in a folder whose names come after one, by name, out of a page of all that is below `within`."""
        inside = f"{folder.path}/"
        page = self._page(folder, within, inside + _AFTER_ALL_NAMES)
        if page is None:
            return folder.files(after)
        found: list[tuple[str, FileStat]] = []
        for place in range(bisect_right(page.paths, inside + after), len(page.paths)):
            path = page.paths[place]
            if not path.startswith(inside):
                break
            if "/" not in path[len(inside) :]:
                found.append((path[len(inside) :], page.seen[place]))
        return found

    def look_anew(self, *folders: ObjectStorePath) -> None:
        """Forget what was listed of these folders; of all, if none is named."""
        self._stale.update(folders)
        if not folders:
            self._pages.clear()
            self._stale.clear()

    def _page(self, folder: ObjectStorePath, within: ObjectStorePath, end: str) -> _Page | None:
        """The page that holds all files of a folder; None where it is better listed alone, or the store lists none."""
        begins = self._begins.setdefault(within, [f"{within.path}/"])
        if folder in self._stale:
            if not self._is_small(within):
                return None
            self.look_anew()
        begin = f"{folder.path}/"
        found = next((page for page in self._pages if page.holds(within, begin, end)), None)
        if found is not None or not within.lists_from_anywhere:
            return found
        if folder in self._alone:
            return self._kept(_make_page(within, begin, end, [(begin + name, seen) for name, seen in folder.files()]))
        first = begins[bisect_right(begins, begin) - 1]
        if all(page.first != first for page in self._pages):
            page = self._listed(within, first)
            if page is None or page.holds(within, begin, end):
                return self._shared(page, folder)
        page = self._listed(within, begin)
        return self._shared(page, folder) if page is not None and page.holds(within, begin, end) else None

    def _shared(self, page: _Page | None, folder: ObjectStorePath) -> _Page | None:
        """A page, of which is remembered whether it is of use for this folder alone."""
        if page is not None and page.first == f"{folder.path}/" and page.is_within(folder.folder):
            self._alone.add(folder)
        return page

    def _is_small(self, within: ObjectStorePath) -> bool:
        """Whether one page holds all of a place, as far as it was listed."""
        return all(page.last is None for page in self._pages if page.within == within)

    def _listed(self, within: ObjectStorePath, first: str) -> _Page | None:
        """A page that begins behind a path; None of a store that does not list in the order of names."""
        files, is_all = within.page(first)
        paths = [path for path, _ in files]
        if paths != sorted(paths):
            return None
        page = self._kept(_make_page(within, first, None if is_all else paths[-1], files))
        left = [each for each in self._begins[within] if each < first or not (page.last is None or each <= page.last)]
        self._begins[within] = sorted([*left, first])
        return page

    def _kept(self, page: _Page) -> _Page:
        marks = zip(page.paths, page.seen, strict=True)
        cache.record_listed_marks({f"{page.within.root}/{path}": seen.mark for path, seen in marks})
        self._pages.append(page)
        return page


def _make_page(within: ObjectStorePath, first: str, last: str | None, files: Sequence[tuple[str, FileStat]]) -> _Page:
    return _Page(within, first, last, [path for path, _ in files], [seen for _, seen in files])
