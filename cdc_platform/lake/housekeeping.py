"""The upkeep of all tables of a lake: files that nothing needs go from each, by age alone, whoever made them.

They are what a commit has removed, or put together with others, and what no commit names: drafts of writers who were
killed, and files of those who lost a race; and what is left where a store was tried out by one of them. The age is
that for which Delta keeps versions, and has to be longer than the longest run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.lake import contract, files, upkeep, verification
from cdc_platform.lake.lake import RETENTION, Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.lake.turns import in_turn
from cdc_platform.lake.verified import refusal
from cdc_platform.lake.versions import stored_names
from cdc_platform.places import Place


@dataclass(frozen=True)
class Cleared:
    """A table: how many files went, or would go, and why it could not be cleared, where it could not."""

    table: str
    files: int = 0
    failed: str = ""


def vacuum(lake: Lake, table: Table) -> int:
    """Delete the files of a table that nothing needs any more; answers how many.

    Raises:
        NotAsCommitted: the table's log is damaged, or has a foreign commit that nobody accepted: files that the table
            does without by such a log can be what it is restored from.
    """
    return lake.vacuum(table) if _removable(lake, table) else 0


def unneeded(lake: Lake) -> list[Cleared]:
    """What `clear` would delete; nothing is written."""
    return [
        *_of_each(lake, lambda table: _removable(lake, table)),
        *_of_tries(contract.left_over(lake.place, RETENTION)),
    ]


@in_turn("upkeep")
def clear(lake: Lake) -> list[Cleared]:
    """Delete what no table of a lake needs; one that is damaged, or lies in a store that fails, is passed over."""
    done, left = _of_each(lake, lambda table: vacuum(lake, table)), contract.left_over(lake.place, RETENTION)
    for place in left:
        place.remove()
    return [*done, *_of_tries(left)]


def _removable(lake: Lake, table: Table) -> int:
    """How many files of a table may be deleted; the log is only judged where there are some.

    Raises:
        NotAsCommitted: as `vacuum`.
    """
    if not lake.exists(table):
        return 0
    with translated(f"vacuuming {table.full_name}"):
        found = len(upkeep.unneeded(files.opened(lake.path(table)), RETENTION))
    if found:
        log = verification.verify_log(lake, table)
        lines = [*log.damage, *log.foreign]
        if lines:
            raise NotAsCommitted(refusal(lines, f"vacuuming {table.full_name}"))
    return found


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
