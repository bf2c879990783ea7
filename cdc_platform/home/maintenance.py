"""Maintain a home and the homes of live clusters below it: tables and log files.

Dagster's job `maintenance` and `cdc-platform home maintain` both call these functions. Each can be killed at any point
and run again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from cdc_platform.cdclog import LOG_KEY, WRITTEN_AT
from cdc_platform.clock import DAY_SECONDS, DAY_US, HOUR_US, Clock, Microseconds, seconds_from_ms
from cdc_platform.delta import Lake, TimeOrder, maintenance
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.home_location import HomeLocation
from cdc_platform.ingest import read_second_pass_us
from cdc_platform.scylla import registry
from cdc_platform.storage import parse_path
from cdc_platform.tables import Table

_SETTLE_US, _MAX_WAIT_US = HOUR_US, DAY_US
"""An hour of a log is settled this long after its end; one whose second pass does not come, after the second time."""
_YOUNGEST_SECONDS = DAY_SECONDS
"""Log files that were written to this recently are not deleted for their size."""
_COMPUTE_LOGS = "compute_logs"
_SERVICE_LOGS = "logs"


@dataclass(frozen=True)
class LogFilesResult:
    """Log files that were deleted or shortened (or would be), and the bytes that this freed."""

    files: int = 0
    bytes: int = 0


def list_lakes(home: HomeLocation) -> dict[str, Lake]:
    """Return the lakes of a home (path "") and of the cluster homes below it, by their paths."""
    below = {"": parse_path(home.name), **registry.list_cluster_homes(home)}
    return {path: Lake(str(folder / "lake")) for path, folder in below.items()}


def maintain_tables(
    lake: Lake, clock: Clock, names: Collection[str] | None = None
) -> list[maintenance.TableMaintenance]:
    """Maintain tables of a lake, all or those with these names; see `delta.maintenance.maintain_lake`."""
    return maintenance.maintain_lake(lake, _order_finder(clock), names)


def preview_tables(lake: Lake, clock: Clock) -> list[maintenance.TableMaintenance]:
    """Return what `maintain_tables` would do now, without writing."""
    return maintenance.preview_maintenance(lake, _order_finder(clock))


def _order_finder(clock: Clock) -> maintenance.FindOrder:
    now_us = clock.now_us()

    def find(lake: Lake, table: Table) -> TimeOrder | None:
        if WRITTEN_AT not in table.schema.names:
            return None
        settled_us = now_us - _SETTLE_US
        passed_us = read_second_pass_us(lake, table)
        if passed_us is not None:  # the second pass may still add late rows
            settled_us = min(settled_us, max(passed_us, now_us - _MAX_WAIT_US))
        after = tuple(name for name in LOG_KEY if name in table.schema.names)
        return TimeOrder(WRITTEN_AT, after, Microseconds(settled_us))

    return find


def trim_log_files(home: HomeLocation, *, dry_run: bool = False) -> LogFilesResult:
    """Delete captured output of runs by age and total size; shorten logs of services that exceed that size.

    The settings `log_retention_ms` and `log_max_bytes` are the limits. Output younger than a day is never deleted for
    its size. A service's log loses its older half.

    Raises:
        EnvironmentProblem: a file cannot be deleted.
    """
    retention_s, most = seconds_from_ms(home.settings.log_retention_ms), home.settings.log_max_bytes
    now_s = time.time()
    found = sorted(_iter_compute_logs(home.dagster / "storage"))
    total, files, freed = sum(size for _, size, _ in found), 0, 0
    try:
        for modified_s, size, path in found:
            is_old = now_s - modified_s > retention_s
            if not is_old and (total <= most or now_s - modified_s < _YOUNGEST_SECONDS):
                continue
            files, freed, total = files + 1, freed + size, total - size
            if not dry_run:
                path.unlink(missing_ok=True)
                _remove_if_empty(path.parent)
        for path in sorted((home.path / _SERVICE_LOGS).glob("*.log")):
            size = path.stat().st_size
            if size > most:
                files, freed = files + 1, freed + size - most // 2
                if not dry_run:
                    _shorten(path, most // 2)
    except OSError as error:
        raise EnvironmentProblem(f"{error.filename} cannot be trimmed: {error.strerror}; check permissions") from None
    return LogFilesResult(files, freed)


def _iter_compute_logs(storage: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield time (s), bytes and path of each file of captured output below Dagster's storage."""
    for folder in storage.glob(f"*/{_COMPUTE_LOGS}"):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    yield stat.st_mtime, stat.st_size, Path(entry.path)


def _remove_if_empty(folder: Path) -> None:
    """Remove a run's folder of output if nothing is left in it, and the run's folder as well."""
    for each in (folder, folder.parent):
        try:
            each.rmdir()
        except OSError:
            return


def _shorten(path: Path, keep: int) -> None:
    """Keep the last lines of a log of at most `keep` bytes; its writer appends, and goes on at the new end."""
    with path.open("r+b") as log:
        log.seek(-keep, os.SEEK_END)
        tail = log.read()
        tail = tail[tail.find(b"\n") + 1 :]
        log.seek(0)
        log.write(tail)
        log.truncate()
