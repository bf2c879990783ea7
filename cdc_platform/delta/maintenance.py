"""Vacuum all tables of a lake: delete unneeded files by age alone, whoever made them.

That covers files that a commit removed or compacted, files that no commit names (killed writers, lost races), and
leftovers of store probes. The age is Delta's retention, and must exceed the longest run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.delta import compaction, files, verification
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import VERSION_RETENTION, Lake
from cdc_platform.delta.locks import exclusive
from cdc_platform.delta.verified_lake import format_verification_refusal
from cdc_platform.delta.versions import list_stored_tables
from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.storage import StoragePath, write_check
from cdc_platform.tables import Table


@dataclass(frozen=True)
class VacuumResult:
    """A table: how many files went, or would go, and why it could not be cleared, where it could not."""

    table: str
    files: int = 0
    failed: str = ""


def vacuum_table(lake: Lake, table: Table) -> int:
    """Delete the files of a table that nothing needs any more; answers how many.

    Raises:
        NotAsCommitted: the table's log is damaged, or has a foreign commit that nobody accepted: files that the table
            does without by such a log can be what it is restored from.
    """
    return lake.vacuum(table) if _count_removable_files(lake, table) else 0


def preview_vacuum(lake: Lake) -> list[VacuumResult]:
    """What `vacuum_lake` would delete; nothing is written."""
    return [
        *_apply_to_each_table(lake, lambda table: _count_removable_files(lake, table)),
        *_make_probe_results(write_check.list_leftover_probes(lake.place, VERSION_RETENTION)),
    ]


@exclusive("upkeep")
def vacuum_lake(lake: Lake) -> list[VacuumResult]:
    """Delete what no table of a lake needs; one that is damaged, or lies in a store that fails, is passed over."""
    done, left = (
        _apply_to_each_table(lake, lambda table: vacuum_table(lake, table)),
        write_check.list_leftover_probes(lake.place, VERSION_RETENTION),
    )
    for place in left:
        place.remove()
    return [*done, *_make_probe_results(left)]


def _count_removable_files(lake: Lake, table: Table) -> int:
    """How many files of a table may be deleted; the log is only judged where there are some.

    Raises:
        NotAsCommitted: as `vacuum`.
    """
    if not lake.exists(table):
        return 0
    with translate_errors(f"vacuuming {table.full_name}"):
        found = len(compaction.list_unneeded_files(files.open_table(lake.path(table)), VERSION_RETENTION))
    if found:
        log = verification.verify_table_log(lake, table)
        lines = [*log.damage, *log.foreign]
        if lines:
            raise NotAsCommitted(format_verification_refusal(lines, f"vacuuming {table.full_name}"))
    return found


def _make_probe_results(left: Sequence[StoragePath]) -> list[VacuumResult]:
    """The tries of the store that were killed, as if they were a table."""
    return [VacuumResult(write_check.PROBE_FOLDER, len(left))] if left else []


def _apply_to_each_table(lake: Lake, work: Callable[[Table], int]) -> list[VacuumResult]:
    found = []
    for name in list_stored_tables(lake):
        table = Table(*name, pa.schema([]), (), "")
        try:
            found.append(VacuumResult(table.full_name, work(table)))
        except PlatformError as error:
            found.append(VacuumResult(table.full_name, failed=str(error)))
    return found
