"""Maintain all tables of a lake: rewrite small files, write checkpoints, and delete unneeded files.

Files are deleted by age alone, regardless of their writer. That covers files that a commit removed or rewrote, files
that no commit names (killed writers, lost races), and leftovers of store probes. The age is Delta's retention, and must
exceed the longest run.

No step changes a row. Each can be killed at any point, and the next run does the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.delta import compaction, files, small_files, verification
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import VERSION_RETENTION, Lake
from cdc_platform.delta.locks import exclusive
from cdc_platform.delta.open_table import OpenTable, open_table
from cdc_platform.delta.small_files import RewriteLimits, TimeOrder
from cdc_platform.delta.transaction_log import get_log_folder
from cdc_platform.delta.verified_lake import format_verification_refusal
from cdc_platform.delta.versions import is_state_table, list_internal_tables, list_stored_tables
from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.storage import StoragePath, parse_path, write_check
from cdc_platform.tables import CHECKPOINT_EVERY, Table

_MANY_FILES = 100
"""A checkpoint is written after a rewrite of this many files."""
FindOrder = Callable[[Lake, Table], TimeOrder | None]
"""Return the order of a stored table's rows by time; None if it has none. The table has its stored schema."""


@dataclass(frozen=True)
class TableMaintenance:
    """What was done to one table, or what would be done.

    `files` counts deleted files, `rewritten` small files that larger ones replace, and `remaining` the groups of small
    files that are left for the next run. `checkpoint` is True if one was written. `not_rewritten` says why the small
    files of the table are left as they are, and `failed` what went wrong.
    """

    table: str
    files: int = 0
    rewritten: int = 0
    remaining: int = 0
    checkpoint: bool = False
    not_rewritten: str = ""
    failed: str = ""


def vacuum_table(lake: Lake, table: Table) -> int:
    """Delete the files of a table that nothing needs any more; return their number.

    Raises:
        NotAsCommitted: the table's log is damaged, or has an unaccepted foreign commit; files that are unneeded by such
            a log may be needed to restore the table.
    """
    return lake.vacuum(table) if _count_removable_files(lake, table) else 0


def preview_maintenance(lake: Lake, find_order: FindOrder) -> list[TableMaintenance]:
    """Return what `maintain_lake` would do now, without writing. `rewritten` counts groups."""

    def preview(table: Table) -> TableMaintenance:
        opened, result = _open(lake, table)
        files = 0
        if not result.not_rewritten:
            order = find_order(lake, _with_schema(table, opened))
            groups, files = small_files.count_rewritable_files(lake, table, order)
            result = replace(result, rewritten=groups)
        return replace(result, checkpoint=_needs_checkpoint(opened, files), files=_count_removable_files(lake, table))

    return [
        *_apply_to_each_table(lake, None, preview),
        *_make_probe_results(write_check.list_leftover_probes(lake.location, VERSION_RETENTION)),
    ]


@exclusive("upkeep")
def maintain_lake(
    lake: Lake,
    find_order: FindOrder,
    names: Collection[str] | None = None,
    limits: RewriteLimits | None = None,
) -> list[TableMaintenance]:
    """Maintain the tables of a lake, all of them or those with these names; return a result for each.

    A damaged table, and one whose store fails, does not stop the others.
    """

    def maintain(table: Table) -> TableMaintenance:
        opened, result = _open(lake, table)
        failed = ""
        if not result.not_rewritten:
            order = find_order(lake, _with_schema(table, opened))
            try:
                done = small_files.rewrite_small_files(lake, table, order, limits)
                result = replace(result, rewritten=done.files_before, remaining=done.remaining)
            except PlatformError as error:
                failed = str(error)
        opened = lake.table_cache.get_newest(lake.path(table))
        if _needs_checkpoint(opened, result.rewritten):
            with translate_errors(f"writing a checkpoint of {table.full_name}"):
                _write_checkpoint(opened)
            result = replace(result, checkpoint=True)
        return replace(result, files=vacuum_table(lake, table), failed=failed)

    return _apply_to_each_table(lake, names, maintain)


def remove_leftover_probes(lake: Lake) -> list[TableMaintenance]:
    """Delete what killed store probes left, if it is older than Delta's retention; return a result if there was any."""
    probes = write_check.list_leftover_probes(lake.location, VERSION_RETENTION)
    for probe in probes:
        probe.remove()
    return _make_probe_results(probes)


def list_maintained_tables(lake: Lake) -> list[Table]:
    """List every table of a lake, declared or not, also the internal ones; their schemas are empty."""
    return [Table(*name, pa.schema([]), (), "") for name in (*list_stored_tables(lake), *list_internal_tables(lake))]


def _open(lake: Lake, table: Table) -> tuple[OpenTable, TableMaintenance]:
    """Open a table, and return a result with the reason why its small files are not rewritten, if there is one."""
    with translate_errors(f"opening {table.full_name}"):
        opened = lake.table_cache.get_newest(lake.path(table))
        reason = ""
        if opened.partition_columns():
            reason = "each partition is written as a whole"
        elif is_state_table(table.full_name):
            reason = "its writer rewrites it as a whole"
        elif foreign := files.list_unsupported_features(opened):
            reason = f"it has Delta features that the platform never enables: {', '.join(foreign)}"
    return opened, TableMaintenance(table.full_name, not_rewritten=reason)


def _with_schema(table: Table, opened: OpenTable) -> Table:
    return replace(table, schema=opened.schema())


def _needs_checkpoint(opened: OpenTable, rewritten: int) -> bool:
    """Return True if at least as many commits follow the last checkpoint as the platform leaves between two.

    Return True as well if many files were `rewritten` since: a commit names each file that it removes, so opening the
    table takes as long as after many commits.
    """
    if rewritten >= _MANY_FILES:
        return True
    try:
        pointer = (get_log_folder(opened.folder) / verification.LAST_CHECKPOINT_FILE).read()
        last = json.loads(pointer)["version"]
    except (OSError, ValueError, KeyError, TypeError):
        last = -1
    return opened.version() - (last if isinstance(last, int) else -1) > CHECKPOINT_EVERY


def _write_checkpoint(opened: OpenTable) -> None:
    path = parse_path(opened.folder)
    write_check.assert_conditional_writes(path.folder.folder, f"writing a checkpoint of {path}")
    opened.with_data_files().create_checkpoint()
    failpoints.kill_if_selected(failpoints.AFTER_CHECKPOINT)


def _count_removable_files(lake: Lake, table: Table) -> int:
    """Return the number of a table's removable files; verify the log only if there are any.

    Raises:
        NotAsCommitted: as `vacuum_table`.
    """
    if not lake.exists(table):
        return 0
    with translate_errors(f"vacuuming {table.full_name}"):
        removable = len(compaction.list_unneeded_files(open_table(lake.path(table)), VERSION_RETENTION))
    if removable:
        log = verification.verify_table_log(lake, table)
        lines = [*log.damage, *log.foreign]
        if lines:
            raise NotAsCommitted(format_verification_refusal(lines, f"vacuuming {table.full_name}"))
    return removable


def _make_probe_results(left: Sequence[StoragePath]) -> list[TableMaintenance]:
    """Return the leftovers of killed store probes as the result of one table."""
    return [TableMaintenance(write_check.PROBE_FOLDER, len(left))] if left else []


def _apply_to_each_table(
    lake: Lake, names: Collection[str] | None, work: Callable[[Table], TableMaintenance]
) -> list[TableMaintenance]:
    return list(_iter_results(lake, names, work))


def _iter_results(
    lake: Lake, names: Collection[str] | None, work: Callable[[Table], TableMaintenance]
) -> Iterator[TableMaintenance]:
    for table in list_maintained_tables(lake):
        if names is not None and table.full_name not in names:
            continue
        try:
            yield work(table)
        except PlatformError as error:
            yield TableMaintenance(table.full_name, failed=str(error))
