"""Compact the small files of a table, and delete the files that it no longer needs.

Neither commit changes a row.
"""

from __future__ import annotations

from datetime import timedelta

from deltalake.exceptions import DeltaError

from cdc_platform.delta import commit_info, commits, files
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.storage import parse_path, write_check
from cdc_platform.tables import Table

# Each file costs every write, read or open of the table half a millisecond; compacting them costs forty once.
_EVERY_COMMITS, _FEWEST_FILES, _MAX_BYTES = 16, 8, 1 << 20


def compact_small_files(opened: OpenTable, table: Table, before: int) -> None:
    """Compact the files of a small table after every 16th version; on a conflict, leave it to the next time.

    Do nothing if the table is still at version `before`. Partitioned tables are left alone, since each partition is
    written as a whole.
    """
    version = opened.version()
    if version == before or table.partition_by or not version or version % _EVERY_COMMITS:
        return
    sizes = files.list_sizes(opened)
    if len(sizes) < _FEWEST_FILES or sum(sizes) > _MAX_BYTES:
        return
    try:
        commits.make_commit(
            opened,
            lambda properties: opened.with_data_files().optimize.compact(
                commit_properties=properties, post_commithook_properties=commits.get_post_commit_hooks(opened)
            ),
        )
    except DeltaError:
        opened.update()  # the rows are committed, whether or not their files were compacted


def list_unneeded_files(opened: OpenTable, retention: timedelta) -> list[str]:
    """List the files that neither a version younger than `retention` nor a current writer needs.

    The paths are relative to the table. These are files that a commit removed that long ago, and files as old that no
    commit names: leftovers of writers that were killed or lost a race, since a store knows no owner of a file.
    """
    return opened.with_data_files().vacuum(_round_up_to_hours(retention), dry_run=True, full=True)


def vacuum_files(opened: OpenTable | None, retention: timedelta) -> list[str]:
    """Delete the files of `list_unneeded_files`, and return them. Without any, there is no commit."""
    if opened is None:
        return []
    path = parse_path(opened.folder)
    write_check.assert_conditional_writes(path.folder.folder, f"vacuuming {path}")
    files = list_unneeded_files(opened, retention)
    if not files:
        return []
    properties = commits.properties_from_commit_info(commit_info.new_commit_info())
    opened.with_data_files().vacuum(
        _round_up_to_hours(retention), dry_run=False, full=True, commit_properties=properties
    )
    return files


def _round_up_to_hours(retention: timedelta) -> int:
    return -(-retention // timedelta(hours=1))
