"""Remove old ended runs from Dagster's storage, without losing what the asset catalogue and the checks show.

A run that holds the newest materialization or observation of a partition, or the newest result of a check of one, stays
for as long as it does and the partition exists. So the catalogue, the lineage and the checks of every partition look
the same afterwards. Only superseded events disappear, and events of partitions that were removed. Rows are traced by
Delta's logs and the platform's tables, which this does not touch.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    RunsFilter,
)

from cdc_platform.clock import Milliseconds
from cdc_platform.storage import atomic
from cdc_platform_assets.catalog_sync.check_results import read_newest_results
from cdc_platform_assets.run_requests import FINISHED_STATUSES
from cdc_platform_assets.storage_checks import STORAGE_CHECKED_ASSETS

MAX_RUNS = 2_000
"""The most ended runs that one call looks at. The next call goes on behind them."""
_EVIDENCE = {
    DagsterEventType.ASSET_MATERIALIZATION,
    DagsterEventType.ASSET_OBSERVATION,
    DagsterEventType.ASSET_CHECK_EVALUATION,
}
_CURSOR_FILE = "trimmed_runs.json"
_DATABASES = Path("history", "runs")
"""The folder of Dagster's SQLite storage, which has a database for each run. Dagster never deletes these files."""
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class TrimmedRuns:
    """Runs that were removed (or would be), and old runs that stay because they hold a newest event."""

    removed: int = 0
    retained: int = 0


def trim_runs(
    instance: DagsterInstance,
    retention_ms: Milliseconds,
    folder: Path | None,
    *,
    dry_run: bool = False,
    now: datetime | None = None,
) -> TrimmedRuns:
    """Remove ended runs that were created at least `retention_ms` ago and hold no newest event of what exists.

    A call looks at no more than `MAX_RUNS` runs, the oldest first. `folder` is DAGSTER_HOME, in which it stores how far
    it came, so that runs that stay do not block the others; it starts over once it reaches runs that are too young. A
    run's files in that folder go with the run. Killed at any point, a further call does the rest.
    """
    before = (now or datetime.now(UTC)) - timedelta(milliseconds=retention_ms)
    cursor = folder / _CURSOR_FILE if folder is not None and folder.is_dir() else None
    since = _read_cursor(cursor)
    records = instance.get_run_records(
        RunsFilter(statuses=list(FINISHED_STATUSES), created_before=before, created_after=since),
        limit=MAX_RUNS,
        ascending=True,
    )
    removed = retained = 0
    partitions = _ExistingPartitions(instance)
    for record in records:
        run_id = record.dagster_run.run_id
        if _holds_newest_event(instance, run_id, partitions):
            retained += 1
            continue
        removed += 1
        if not dry_run:
            instance.delete_run(run_id)
            if folder is not None:
                shutil.rmtree(folder / "storage" / run_id, ignore_errors=True)
                _remove_database(folder / _DATABASES / f"{run_id}.db")
    if folder is not None and not dry_run:
        _remove_unused_databases(instance, folder, before)
    if cursor is not None and not dry_run:
        reached = records[-1].create_timestamp if len(records) == MAX_RUNS else None
        document = {"created_after": None if reached is None else reached.isoformat()}
        atomic.write_text_atomically(cursor, f"{json.dumps(document)}\n")
    return TrimmedRuns(removed, retained)


def _remove_unused_databases(instance: DagsterInstance, folder: Path, before: datetime) -> None:
    """Remove the databases of runs that no longer exist, if they were last written before a time."""
    databases = [
        file
        for file in (folder / _DATABASES).glob("*.db")
        if _RUN_ID.fullmatch(file.stem) and file.stat().st_mtime < before.timestamp()
    ]
    existing = set(instance.get_run_ids()) if databases else set()
    for file in databases:
        if file.stem not in existing:
            _remove_database(file)


def _remove_database(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


def _read_cursor(file: Path | None) -> datetime | None:
    try:
        value = None if file is None else json.loads(file.read_text(encoding="utf-8"))["created_after"]
        return None if value is None else datetime.fromisoformat(value)
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class _ExistingPartitions:
    """The partitions of the platform's assets, loaded on first use. Those of other assets count as existing."""

    instance: DagsterInstance
    _keys: dict[str, frozenset[str]] = field(default_factory=dict)

    def includes(self, asset: AssetKey, partition: str | None) -> bool:
        """Return False if the partition has been removed."""
        _, definition = STORAGE_CHECKED_ASSETS.get(asset, (None, None))
        name = None if definition is None else definition.name
        if name is None or partition is None:
            return True
        if name not in self._keys:
            self._keys[name] = frozenset(self.instance.get_dynamic_partitions(name))
        return partition in self._keys[name]


def _holds_newest_event(instance: DagsterInstance, run_id: str, partitions: _ExistingPartitions) -> bool:
    """Return True if an event of the run is the newest of its kind for an asset or check and an existing partition."""
    return any(newest == run_id for newest in _iter_newest_runs(instance, run_id, partitions))


def _iter_newest_runs(instance: DagsterInstance, run_id: str, partitions: _ExistingPartitions) -> Iterator[str | None]:
    """Yield, for each asset event and check result of a run, the run of the newest such event."""
    seen: set[tuple[str, AssetKey | AssetCheckKey, str | None]] = set()
    for entry in instance.all_logs(run_id, of_type=_EVIDENCE):
        event = entry.dagster_event
        if event is None:
            continue
        if event.event_type is DagsterEventType.ASSET_CHECK_EVALUATION:
            evaluation = event.event_specific_data
            assert isinstance(evaluation, AssetCheckEvaluation)
            check, partition = evaluation.asset_check_key, evaluation.partition
            if ("check", check, partition) not in seen and partitions.includes(check.asset_key, partition):
                seen.add(("check", check, partition))
                newest = read_newest_results(instance, [check], partition).get(check)
                yield None if newest is None else newest.run_id
            continue
        asset, partition = event.asset_key, event.partition
        kind = event.event_type_value
        if asset is None or (kind, asset, partition) in seen or not partitions.includes(asset, partition):
            continue
        seen.add((kind, asset, partition))
        wanted = AssetRecordsFilter(asset_key=asset, asset_partitions=None if partition is None else [partition])
        is_observation = event.event_type is DagsterEventType.ASSET_OBSERVATION
        fetch = instance.fetch_observations if is_observation else instance.fetch_materializations
        records = fetch(wanted, limit=1).records
        yield records[0].run_id if records else None
