"""Vacuum all tables of a lake: delete unneeded files by age alone, regardless of their writer.

That covers files that a commit removed or compacted, files that no commit names (killed writers, lost races), and
leftovers of store probes. The age is Delta's retention, and must exceed the longest run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.delta import compaction, verification
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import VERSION_RETENTION, Lake
from cdc_platform.delta.locks import exclusive
from cdc_platform.delta.open_table import open_table
from cdc_platform.delta.verified_lake import format_verification_refusal
from cdc_platform.delta.versions import list_stored_tables
from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.storage import StoragePath, write_check
from cdc_platform.tables import Table


@dataclass(frozen=True)
class VacuumResult:
    """A table, the number of files deleted (or to be deleted), and the error if vacuuming failed."""

    table: str
    files: int = 0
    failed: str = ""


def vacuum_table(lake: Lake, table: Table) -> int:
    """Delete the files of a table that nothing needs any more; return their number.

    Raises:
        NotAsCommitted: the table's log is damaged, or has an unaccepted foreign commit; files that are unneeded by such
            a log may be needed to restore the table.
    """
    return lake.vacuum(table) if _count_removable_files(lake, table) else 0


def preview_vacuum(lake: Lake) -> list[VacuumResult]:
    """Return the deletions that `vacuum_lake` would make, without writing."""
    return [
        *_apply_to_each_table(lake, lambda table: _count_removable_files(lake, table)),
        *_make_probe_results(write_check.list_leftover_probes(lake.location, VERSION_RETENTION)),
    ]


@exclusive("upkeep")
def vacuum_lake(lake: Lake) -> list[VacuumResult]:
    """Delete unneeded files of a lake's tables; skip damaged tables and those whose store fails."""
    done, probes = (
        _apply_to_each_table(lake, lambda table: vacuum_table(lake, table)),
        write_check.list_leftover_probes(lake.location, VERSION_RETENTION),
    )
    for probe in probes:
        probe.remove()
    return [*done, *_make_probe_results(probes)]


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


def _make_probe_results(left: Sequence[StoragePath]) -> list[VacuumResult]:
    """Return the leftovers of killed store probes as the result of one table."""
    return [VacuumResult(write_check.PROBE_FOLDER, len(left))] if left else []


def _apply_to_each_table(lake: Lake, work: Callable[[Table], int]) -> list[VacuumResult]:
    results = []
    for name in list_stored_tables(lake):
        table = Table(*name, pa.schema([]), (), "")
        try:
            results.append(VacuumResult(table.full_name, work(table)))
        except PlatformError as error:
            results.append(VacuumResult(table.full_name, failed=str(error)))
    return results
