"""An open Delta table, with the values that are derived from its version and from its log.

`TableCache` holds one per table. deltalake's own object stays as deltalake made it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable

from cdc_platform.delta import transaction_log
from cdc_platform.delta.log_mirror import LogMirror
from cdc_platform.delta.transaction_log import Commit
from cdc_platform.storage import get_storage_options, parse_path
from cdc_platform.tables import CHECKPOINT_EVERY

_Value = TypeVar("_Value")


class OpenTable:
    """A Delta table that is open at one version, moved forward only by `update`.

    `delta` is deltalake's table. If `mirror` is set, that table has the log from the mirror, and can append; use
    `with_data_files` for everything that reads, changes or removes data files.

    Values of two kinds are cached. Those from `derive` belong to the version, and go when the table moves forward.
    Those about a commit (`commit`, `verified_versions`, `verified_files`) stay, because a log entry never changes.
    """

    def __init__(self, folder: str, mirror: LogMirror | None = None, version: int | None = None) -> None:
        self.folder, self.mirror = folder, mirror
        self.verified_versions: set[int] = set()
        """The commits whose added files were found to have the committed rows."""
        self.verified_files: set[str] = set()
        """The rewritten files, by path below the table, that were found to have the committed rows."""
        self._commits: dict[int, Commit] = {}
        self._derived_version, self._derived = -1, dict[object, Any]()
        self._in_store: DeltaTable | None = None
        self._open(version)

    def version(self) -> int:
        """Return the version at which the table is open."""
        return self.delta.version()

    def schema(self) -> pa.Schema:
        """Return the stored columns and types."""
        return self.derive("schema", lambda: pa.schema(self.delta.schema()))

    def partition_columns(self) -> list[str]:
        """Return the names of the partition columns."""
        return self.delta.metadata().partition_columns

    def derive(self, key: object, compute: Callable[[], _Value]) -> _Value:
        """Return a value derived from the open version, computed once per version."""
        if self._derived_version != self.version():
            self._derived_version, self._derived = self.version(), {}
        if key not in self._derived:
            self._derived[key] = compute()
        return self._derived[key]

    def commit(self, version: int) -> Commit:
        """Return a commit of the log, read once, from the mirror if that has it.

        Raises:
            FileNotFoundError: the log no longer has it.
            ValueError: the entry is damaged.
        """
        if version not in self._commits:
            mirrored = None if self.mirror is None else self.mirror.entry(version)
            entry = transaction_log.get_entry_path(self.folder, version) if mirrored is None else parse_path(mirrored)
            self._commits[version] = transaction_log.read_commit(entry, version)
        return self._commits[version]

    def update(self) -> None:
        """Move forward to the newest version."""
        if self.mirror is not None:
            self.mirror.fetch_newer(self.version())
        self.delta.update_incremental()

    def reopen_past_checkpoint(self) -> None:
        """Open the table again if it has moved past a checkpoint.

        At each update deltalake processes every commit since the table was opened: for a hundred commits that takes as
        long as three commits, and after a checkpoint no time.
        """
        if (self.version() + 1) // CHECKPOINT_EVERY > (self._opened_version + 1) // CHECKPOINT_EVERY:
            self._open(None)

    def with_data_files(self) -> DeltaTable:
        """Return the version as a table with data files that deltalake can read and change, and the whole log."""
        if self.mirror is None:
            return self.delta
        if self._in_store is None or self._in_store.version() != self.version():
            self._in_store = DeltaTable(
                self.folder, version=self.version(), storage_options=get_storage_options(self.folder)
            )
        return self._in_store

    def publish(self, version: int) -> None:
        """Publish the commit of a version, if it was made in a mirror; raises as `LogMirror.put`.

        Expired entries are removed from the log if a checkpoint was made.
        """
        if self.mirror is None:
            return
        self.mirror.put(version)
        if self.mirror.has_checkpoint(version) and self.mirror.has_expired(self.delta.metadata().configuration):
            DeltaTable(self.folder, storage_options=get_storage_options(self.folder)).cleanup_metadata()

    def _open(self, version: int | None) -> None:
        if self.mirror is not None:
            self.delta = DeltaTable(self.mirror.folder)
        else:
            self.delta = DeltaTable(self.folder, version=version, storage_options=get_storage_options(self.folder))
        self._opened_version = self.delta.version()


def open_table(folder: str, version: int | None = None) -> OpenTable:
    """Open a table at a version, by default its newest, without the cache.

    Raises:
        TableNotFoundError: there is no table.
    """
    return OpenTable(folder, version=version)
