"""The upkeep of all tables of a lake: files that nothing needs go from each, by age alone, whoever made them.

They are what a commit has removed, or put together with others, and what no commit names: drafts of writers who were
killed, and files of those who lost a race; and what is left where a store was tried out by one of them. The age is
that for which Delta keeps versions, and has to be longer than the longest run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.errors import PlatformError
from cdc_platform.lake import contract, files, upkeep
from cdc_platform.lake.lake import RETENTION, Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.lake.turns import in_turn
from cdc_platform.lake.versions import stored_names
from cdc_platform.places import Place


@dataclass(frozen=True)
class Cleared:
    """A table: how many files went, or would go, and why it could not be cleared, where it could not."""

    table: str
    files: int = 0
    failed: str = ""


def unneeded(lake: Lake) -> list[Cleared]:
    """What `clear` would delete; nothing is written."""

    def look(table: Table) -> int:
        with translated(f"vacuuming {table.full_name}"):
            return len(upkeep.unneeded(files.opened(lake.path(table)), RETENTION))

    return [*_of_each(lake, look), *_of_tries(contract.left_over(lake.place, RETENTION))]


@in_turn("upkeep")
def clear(lake: Lake) -> list[Cleared]:
    """Delete what no table of a lake needs; one that is damaged, or lies in a store that fails, is passed over."""
    done, left = _of_each(lake, lake.vacuum), contract.left_over(lake.place, RETENTION)
    for place in left:
        place.remove()
    return [*done, *_of_tries(left)]


def _of_tries(left: Sequence[Place]) -> list[Cleared]:
    """The tries of the store that were killed, as if they were a table."""
    return [Cleared(contract.TRIED, len(left))] if left else []


def _of_each(lake: Lake, work: Callable[[Table], int]) -> list[Cleared]:
    found = []
    for name in stored_names(lake):
        table = Table(*name, pa.schema([]), (), "")
        try:
            found.append(Cleared(table.full_name, work(table)))
        except PlatformError as error:
            found.append(Cleared(table.full_name, failed=str(error)))
    return found
