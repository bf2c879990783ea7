"""Compact the small files of a table, and delete the files that it no longer needs.

Neither commit changes a row.
"""

from __future__ import annotations

from datetime import timedelta

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_platform.delta import commit_info, files, transaction_log
from cdc_platform.delta.files import folder_from_opened
from cdc_platform.storage import parse_path, write_check
from cdc_platform.tables import Table

# Each file costs the one who writes, reads or opens the table half a millisecond, gathering them forty once.
_EVERY_COMMITS, _FEWEST_FILES, _MAX_BYTES = 16, 8, 1 << 20


def compact_small_files(opened: DeltaTable, table: Table, before: int) -> None:
    """Put the files of a small table together now and then, after a commit; where another writer comes, the next time.

    Nothing is done where the table is at the version `before`.

    Partitions are left alone: they are written as a whole.
    """
    version = opened.version()
    if version == before or table.partition_by or not version or version % _EVERY_COMMITS:
        return
    sizes = files.list_sizes(opened)
    if len(sizes) < _FEWEST_FILES or sum(sizes) > _MAX_BYTES:
        return
    try:
        transaction_log.make_commit(
            opened,
            lambda properties: opened.optimize.compact(
                commit_properties=properties, post_commithook_properties=transaction_log.get_post_commit_hooks(opened)
            ),
        )
    except DeltaError:
        opened.update_incremental()  # the rows are in, whatever became of their files


def list_unneeded_files(opened: DeltaTable, retention: timedelta) -> list[str]:
    """The files, by their paths below the table, that no version younger than `retention` needs, nor who writes now.

    Which a commit has removed for so long, or which no commit names and are as old: what writers left who were killed
    or lost a race, since a store knows no owner of a file.
    """
    return opened.vacuum(_round_up_to_hours(retention), dry_run=True, full=True)


def vacuum_files(opened: DeltaTable | None, retention: timedelta) -> list[str]:
    """Delete what is `list_unneeded_files`; answers which files. None is no commit."""
    if opened is None:
        return []
    place = parse_path(folder_from_opened(opened))
    write_check.assert_conditional_writes(place.folder.folder, f"vacuuming {place}")
    files = list_unneeded_files(opened, retention)
    if not files:
        return []
    seal = transaction_log.properties_from_commit_info(commit_info.new_commit_info())
    opened.vacuum(_round_up_to_hours(retention), dry_run=False, full=True, commit_properties=seal)
    return files


def _round_up_to_hours(retention: timedelta) -> int:
    return -(-retention // timedelta(hours=1))
