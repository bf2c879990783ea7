"""The upkeep of a table's files: the small ones of many commits put together, those that nothing needs removed.

A commit of either changes no row.
"""

from __future__ import annotations

from datetime import timedelta

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_platform.lake import commits, contract, envelope, files
from cdc_platform.lake.files import folder_of
from cdc_platform.lake.tables import Table
from cdc_platform.places import place_of

# Each file costs the one who writes, reads or opens the table half a millisecond, gathering them forty once.
_EVERY_COMMITS, _FEWEST_FILES, _MOST_BYTES = 16, 8, 1 << 20


def gather(opened: DeltaTable, table: Table, before: int) -> None:
    """Put the files of a small table together now and then, after a commit; where another writer comes, the next time.

    Nothing is done where the table is at the version `before`.

    Partitions are left alone: they are written as a whole.
    """
    version = opened.version()
    if version == before or table.partition_by or not version or version % _EVERY_COMMITS:
        return
    sizes = files.sizes(opened)
    if len(sizes) < _FEWEST_FILES or sum(sizes) > _MOST_BYTES:
        return
    try:
        commits.make(
            opened,
            lambda properties: opened.optimize.compact(
                commit_properties=properties, post_commithook_properties=commits.hooks_of(opened)
            ),
        )
    except DeltaError:
        opened.update_incremental()  # the rows are in, whatever became of their files


def unneeded(opened: DeltaTable, retention: timedelta) -> list[str]:
    """The files, by their paths below the table, that no version younger than `retention` needs, nor who writes now.

    Which a commit has removed for so long, or which no commit names and are as old: what writers left who were killed
    or lost a race, since a store knows no owner of a file.
    """
    return opened.vacuum(_hours(retention), dry_run=True, full=True)


def vacuum(opened: DeltaTable | None, retention: timedelta) -> list[str]:
    """Delete what is `unneeded`; answers which files. None is no commit."""
    if opened is None:
        return []
    place = place_of(folder_of(opened))
    contract.assert_kept(place.folder.folder, f"vacuuming {place}")
    files = unneeded(opened, retention)
    if not files:
        return []
    seal = commits.properties_of(envelope.sealed())
    opened.vacuum(_hours(retention), dry_run=False, full=True, commit_properties=seal)
    return files


def _hours(retention: timedelta) -> int:
    return -(-retention // timedelta(hours=1))
