"""A `Lake` for irreversible steps, which verifies rows against their commits before it returns them.

A removal decides by what tables contain, so no decision may rest on damaged or foreign rows. Each read verifies the
partitions that it touches, once per version; `partitions` counts from the log and costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from cdc_platform.delta import files, row_hash
from cdc_platform.delta.errors import is_content_error
from cdc_platform.delta.files import DataFile, Filter, normalize_filters
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.delta.verification import TableVerification, verify_partitions, verify_tables
from cdc_platform.errors import NotAsCommitted, PlatformError
from cdc_platform.tables import Table

_WHOLE_TABLE = ("",)
"""The partitions of a table without partition columns."""


class VerifiedLake(Lake):
    """A lake's tables for `step`, which refusals name.

    Raises, wherever it reads rows or changes a table:
        NotAsCommitted: a partition has other rows than its commits recorded, a data file or an entry of the log is
            damaged or missing, or the log is gone.
    """

    def __init__(self, lake: Lake, step: str) -> None:
        self.location, self.table_cache, self.step = lake.location, lake.table_cache, step
        self._verified: dict[tuple[str, int], set[str]] = {}

    def verify(self, *tables: Table) -> None:
        """Verify all rows of these tables, as if they were read; partitioned tables only by their logs."""
        for table in tables:
            self._open(table)

    def read(
        self, table: Table, columns: Sequence[str] | None = None, filters: Sequence[Filter] | None = None
    ) -> pa.Table:
        """Read as `Lake.read`, from verified partitions."""
        opened = self._open(table)
        if opened is not None and table.partition_by:
            self._verify(table, opened, self._partitions(table, opened, filters or ()))
        return super().read(table, columns, filters)

    def read_partitions(
        self, table: Table, columns: Sequence[str], keys: Collection[Any] | None = None
    ) -> tuple[dict[Any, pa.Table], list[DataFile]]:
        """Read as `Lake.read_partitions`, from verified partitions."""
        opened = self._open(table)
        if opened is not None:
            (name,) = table.partition_by
            filters = () if keys is None else [(name, "in", list(keys))]
            self._verify(table, opened, self._partitions(table, opened, filters))
        return super().read_partitions(table, columns, keys)

    def open_for_write(self, table: Table, size: int = 0) -> AbstractContextManager[OpenTable]:
        """Open as `Lake.open_for_write`, so that rules decide by verified rows of the version that they change."""
        return self._open_verified(table, size)

    @contextmanager
    def _open_verified(self, table: Table, size: int) -> Iterator[OpenTable]:
        with super().open_for_write(table, size) as opened:
            if not table.partition_by:
                self._verify(table, opened, _WHOLE_TABLE)
            yield opened

    def _open(self, table: Table) -> OpenTable | None:
        try:
            opened = super()._open(table)
        except PlatformError as error:
            self._refuse(table, verify_tables(self, deep=True, names=[table.full_name]))
            raise error
        if opened is None:
            self._refuse(
                table, verify_tables(self, names=[table.full_name])
            )  # a folder without a log is no missing table
        elif not table.partition_by:
            self._verify(table, opened, _WHOLE_TABLE)
        return opened

    def _partitions(self, table: Table, opened: OpenTable, filters: Sequence[Filter]) -> list[str]:
        """Return the names of the partitions that a read with these filters touches or names, also of empty ones."""
        normal = normalize_filters(table, filters)
        touched = files.list_data_files(opened, table, normal)
        names = [row_hash.format_partition_name(table.partition_by, file.partition) for file in touched]
        for name, operator, value in normal:
            if (name,) == table.partition_by and operator in ("=", "in"):
                names += [
                    row_hash.format_partition_name((name,), (item,))
                    for item in (value if operator == "in" else [value])
                ]
        return list(dict.fromkeys(names))

    def _verify(self, table: Table, opened: OpenTable, partitions: Collection[str]) -> None:
        verified = self._verified.setdefault((self.path(table), opened.version()), set())
        missing = [name for name in partitions if name not in verified]
        if not missing:
            return
        try:
            results = [verify_partitions(table.full_name, self.path(table), opened, missing)]
        except (PlatformError, OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, OSError) and not is_content_error(error):
                raise
            results = verify_tables(self, deep=True, names=[table.full_name])
            self._refuse(table, results)
            raise
        self._refuse(table, results)
        verified.update(missing)

    def _refuse(self, table: Table, results: Sequence[TableVerification]) -> None:
        lines = [
            line
            for result in results
            if result.name == table.full_name
            for line in (*result.damage, *result.unexpected)
        ]
        if lines:
            raise NotAsCommitted(format_verification_refusal(lines, self.step))


def format_verification_refusal(lines: Sequence[str], step: str) -> str:
    """Format the refusal of a step: the first complaint of `check` in full, and the number of the others."""
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return (
        f"{lines[0]}{more}: {step} is refused, since it cannot be undone and would rely on these rows; run:"
        " cdc-platform check --deep"
    )


def get_verified_lake(lake: Lake, step: str) -> VerifiedLake:
    """Return the lake's tables for a step that cannot be undone; see `VerifiedLake`."""
    return lake if isinstance(lake, VerifiedLake) else VerifiedLake(lake, step)
